#!/bin/bash
# Tests what is left when launch/zerotrain or mpirun is killed (kill -9), at any time of a run: no process, and with
# --restarts a run that goes on.
# shellcheck disable=SC2317 # functions are called through claim
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
repo=$PWD
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
export OMPI_MCA_mpi_yield_when_idle=1

mkdir -p "$scratch/tree/build"
cp -r "$repo/launch" "$scratch/tree/"
ln -s "$build/zerotrain" "$scratch/tree/build/zerotrain"
cp "$repo/README.md" "$scratch/text"
cat >"$scratch/cfg.ini" <<END
[model]
layers = 2
dim = 32
heads = 2
seq_len = 32
[data]
train = $scratch/text
[train]
steps = 1000000
global_batch = 4
[log]
metrics = $scratch/metrics
[checkpoint]
dir = $scratch/checkpoints
every = 10
END
# launch OPTION...: starts a run, all of whose processes have OF_TEST in their environment. Sets `job`.
launch()
{
    rm -rf "$scratch/checkpoints" "$scratch/metrics"
    OF_TEST=$scratch "$scratch/tree/launch/zerotrain" -np 2 "$@" "$scratch/cfg.ini" </dev/null >"$scratch/out" 2>&1 &
    job=$!
}
# Prints the processes of the test's runs, or only those of this name.
processes()
{
    local file
    while read -r file; do
        [[ -n ${1:-} && $(cat "${file%/environ}/comm" 2>/dev/null) != "$1" ]] || basename "${file%/environ}"
    done < <(grep -lsxz "OF_TEST=$scratch" /proc/[0-9]*/environ)
}
# is_within LIMIT_S COMMAND...
is_within()
{
    local begin=$SECONDS
    until "${@:2}"; do
        [[ $((SECONDS - begin)) -lt $1 ]] || return 1
        sleep 0.1
    done
}
has_steps() { [[ -e $scratch/metrics && $(wc -l <"$scratch/metrics") -ge $1 ]]; }
nothing_is_left() { [[ -z $(processes) ]]; }
# leaves_nothing LIMIT_S: shows what is left of the job that was killed, if anything is.
leaves_nothing()
{
    wait "$job" 2>/dev/null
    is_within "$1" nothing_is_left && return
    processes | xargs -r ps -o pid,ppid,stat,args -p
    cat "$scratch/out"
    processes | xargs -r kill -KILL
    return 1
}

loses_its_launcher() # OPTION...
{
    launch "$@" && is_within 60 has_steps 20 && [[ -n $(processes mpirun) ]] || return 1
    kill -KILL "$job"
    leaves_nothing 10
}
loses_its_launcher_with_a_stopped_rank()
{
    launch && is_within 60 has_steps 20 || return 1
    processes zerotrain | tail -n 1 | xargs kill -STOP
    kill -KILL "$job"
    leaves_nothing 10
}
# The parts of a start: before mpirun, in mpirun, in MPI_Init, in the first steps.
loses_its_launcher_early()
{
    local delay
    for delay in 0.01 0.05 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 1 1.2; do
        launch
        sleep "$delay"
        kill -KILL "$job"
        leaves_nothing 10 || { echo "killed after $delay s"; return 1; }
    done
}
loses_its_launcher_between_starts()
{
    launch --restarts 5 && is_within 60 has_steps 20 || return 1
    processes zerotrain | tail -n 1 | xargs kill -KILL
    is_within 30 grep -q 'restart 1 of 5' "$scratch/out" && kill -KILL "$job"
    leaves_nothing 10
}
claim "kill -9 of launch/zerotrain: in 10 s nothing of the run is left" loses_its_launcher
claim "the same with --restarts and --max-minutes" loses_its_launcher --restarts 3 --max-minutes 60
claim "the same with a rank that is stopped" loses_its_launcher_with_a_stopped_rank
claim "the same at twelve moments of the start" loses_its_launcher_early
claim "the same while it waits before a restart" loses_its_launcher_between_starts

loses_mpirun()
{
    launch && is_within 60 has_steps 20 || return 1
    processes mpirun | xargs kill -KILL
    leaves_nothing 10
}
claim "kill -9 of mpirun: in 10 s nothing of the run is left" loses_mpirun
text() { sed -nE 's/.*("step": [0-9]+).*("loss": [^,]*, "grad_norm": [^,]*).*/\1 \2/p' "$1"; }
# The ranks save when mpirun is gone: the next start waits for that, and goes on from there.
goes_on_without_mpirun()
{
    local code=0
    launch --set train.steps=300 --set log.metrics="$scratch/want"
    wait "$job" || return 1
    launch --restarts 2 --set train.steps=300
    is_within 60 has_steps 50 || return 1
    processes mpirun | xargs kill -KILL
    wait "$job" || code=$?
    cat "$scratch/out"
    [[ $code -eq 0 && $(text "$scratch/want" | wc -l) -eq 300 ]] && diff <(text "$scratch/want") <(text "$scratch/metrics") &&
        grep -q 'restart 1 of 2' "$scratch/out" && ! grep -q 'restart 2 of 2' "$scratch/out" && is_within 10 nothing_is_left
}
claim "kill -9 of mpirun, with --restarts: goes on, once, to the text of an undisturbed run" goes_on_without_mpirun
# In the first start one rank never comes to MPI, as if its disk or its GPU hung.
cat >"$scratch/late" <<END
#!/bin/bash
if [[ \$OMPI_COMM_WORLD_RANK -eq 1 && ! -e $scratch/came ]]; then
    touch $scratch/came
    exec sleep 1000
fi
exec "$build/zerotrain" "\$@"
END
chmod +x "$scratch/late"
ends_without_a_rank() # CODE OPTION...
{
    local code=0 begin=$SECONDS
    rm -f "$scratch/came" "$scratch/tree/build/zerotrain"
    ln -s "$scratch/late" "$scratch/tree/build/zerotrain"
    ZERO_TIMEOUT_S=3 launch "${@:2}" --steps 20
    wait "$job" || code=$?
    cat "$scratch/out"
    echo "exit code $code after $((SECONDS - begin)) s"
    [[ $code -eq $1 && -e $scratch/came && $((SECONDS - begin)) -lt 60 ]] && is_within 10 nothing_is_left &&
        grep -q '(ZERO_TIMEOUT_S): not every rank has come to zero_comm_create: rank 1$' "$scratch/out" &&
        grep -q 'not every rank has started: this one ends, and with it the job$' "$scratch/out"
}
claim "a rank that never starts is named after ZERO_TIMEOUT_S, and the job ends" ends_without_a_rank 1
starts_again() { ends_without_a_rank 0 --restarts 1 && grep -q 'restart 1 of 1' "$scratch/out" && has_steps 20; }
claim "the same with --restarts: it is started again, and trains" starts_again
# A run whose ranks do not end: they are killed before the next start.
cat >"$scratch/stays" <<'END'
#!/bin/bash
trap '' TERM
[[ $* == *--auto-resume* ]] || exit 99
echo "$OMPI_COMM_WORLD_SIZE" >>"$(dirname "$0")/starts"
[[ $(wc -l <"$(dirname "$0")/starts") -eq 1 ]] || exit 0
while :; do sleep 1; done
END
chmod +x "$scratch/stays"
kills_what_stays()
{
    local code=0
    rm "$scratch/tree/build/zerotrain"
    cp "$scratch/stays" "$scratch/tree/build/zerotrain"
    OF_TEST=$scratch "$scratch/tree/launch/zerotrain" -np 1 --restarts 1 cfg.ini </dev/null >"$scratch/out" 2>&1 &
    job=$!
    is_within 30 [ -s "$scratch/tree/build/starts" ] || return 1
    processes mpirun | xargs kill -KILL
    wait "$job" || code=$?
    cat "$scratch/out"; echo "exit code $code"
    [[ $code -eq 0 && $(wc -l <"$scratch/tree/build/starts") -eq 2 ]] && is_within 10 nothing_is_left
}
claim "ranks that do not end with mpirun are killed before the next start" kills_what_stays
exit $status
