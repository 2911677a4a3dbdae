#!/bin/bash
# Tests launch/zerotrain: what it starts again and how, and when it stops; and how launch/quickstart ends. Most claims
# run a program that only ends with the exit codes it is told; the last ones train.
# shellcheck disable=SC2317 # functions are called through claim
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
repo=$PWD
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
export OMPI_MCA_mpi_yield_when_idle=1

# A tree of its own, so that launch/zerotrain finds this program in place of the real one. Its exit codes are the words of
# the file `codes`, one for each start; what it was started with goes to `starts`.
tree=$scratch/tree
mkdir -p "$tree/launch" "$tree/build"
cp "$repo/launch/zerotrain" "$repo/launch/setup.sh" "$tree/launch/"
cat >"$tree/build/zerotrain" <<'END'
#!/bin/bash
cd "$(dirname "$0")/.." || exit 99
[[ $OMPI_COMM_WORLD_RANK -eq 0 ]] || { sleep 2; exit 0; }
echo "$OMPI_COMM_WORLD_SIZE $*" >>starts
trap 'exit 3' USR1
code=$(sed -n "$(wc -l <starts)p" codes)
if [[ $code == wait ]]; then
    for ((i = 0; i < 600; i++)); do sleep 0.1; done
fi
exit "$code"
END
chmod +x "$tree/build/zerotrain"
# launched CODES OPTION...: sets `code` and `starts`, on one rank unless the options say otherwise.
launched()
{
    rm -f "$tree/starts"
    tr ' ' '\n' <<<"$1" >"$tree/codes"
    shift
    code=0
    "$tree/launch/zerotrain" "$@" >"$scratch/out" 2>&1 </dev/null || code=$?
    starts=$(cat "$tree/starts" 2>/dev/null)
    cat "$scratch/out"
    echo "exit code $code; started with:"
    echo "$starts"
}
n_starts() { [[ $(wc -l <"$tree/starts") -eq $1 ]]; }

explains_itself_before_the_build()
{
    mv "$tree/build/zerotrain" "$tree/zerotrain"
    "$tree/launch/zerotrain" --help >"$scratch/out" 2>&1
    code=$?
    mv "$tree/zerotrain" "$tree/build/zerotrain"
    cat "$scratch/out"
    [[ $code -eq 0 ]] && grep -q -- '--max-minutes M' "$scratch/out"
}
# With no line of its own about mpirun.
shows_the_options_of_both()
{
    launched "0" --help
    [[ $code -eq 0 && $starts == " --help" ]] && grep -q -- '--max-minutes M' "$scratch/out" &&
        ! grep -q 'mpirun --quiet' "$scratch/out"
}
is_not_restarted()
{
    local end
    for end in 0 2 3 4; do
        launched "$end 0" -np 1 --restarts 3 cfg.ini
        [[ $code -eq $end ]] && n_starts 1 || return 1
    done
}
is_restarted()
{
    launched "1 137 0" -np 1 --restarts 3 --stage 2 cfg.ini
    [[ $code -eq 0 && $starts == "1 --auto-resume --stage 2 cfg.ini"$'\n'"1 --auto-resume --stage 2 cfg.ini"$'\n'"1 --auto-resume --stage 2 cfg.ini" &&
        $(grep -c 'the run ended with exit code 1 after .* restart 1 of 3 in 0 s with 1 ranks' "$scratch/out") -eq 1 &&
        $(grep -c 'the run ended with exit code 137 after .* restart 2 of 3 in 1 s' "$scratch/out") -eq 1 ]]
}
has_a_limit() { launched "1 5 1 0" -np 1 --restarts 1 cfg.ini && [[ $code -eq 5 ]] && n_starts 2; }
is_plain() { launched "1 0" -np 1 cfg.ini && [[ $code -eq 1 && $starts == "1 cfg.ini" ]]; }
# A log on a full disk, none at all, and one whose reader has gone.
needs_no_log()
{
    local log restarts=(-np 1 --restarts 1 cfg.ini)
    for log in full closed gone; do
        rm -f "$tree/starts" "$scratch/code"
        printf '1\n0\n' >"$tree/codes"
        case $log in
        full) "$tree/launch/zerotrain" "${restarts[@]}" 2>/dev/full ;;
        closed) "$tree/launch/zerotrain" "${restarts[@]}" 2>&- ;;
        gone) { "$tree/launch/zerotrain" "${restarts[@]}" 2>&1; echo $? >"$scratch/code"; } | true ;;
        esac </dev/null || return 1
        echo "$log"
        n_starts 2 || return 1
        [[ ! -e $scratch/code || $(cat "$scratch/code") -eq 0 ]] || return 1
    done
}
refuses()
{
    launched "0" --restarts many cfg.ini
    [[ $code -eq 2 && -z $starts && $(wc -l <"$scratch/out") -eq 1 ]] &&
        grep -q -- '--restarts needs a number' "$scratch/out" || return 1
    launched "0" -np 4294967297 cfg.ini
    [[ $code -eq 2 && -z $starts ]] && grep -q -- '-np needs a number of ranks' "$scratch/out" || return 1
    local minutes
    for minutes in 0 0.00 . soon 1.5.; do
        launched "0" -np 1 --max-minutes "$minutes" cfg.ini
        [[ $code -eq 2 && -z $starts ]] && grep -q -- '--max-minutes needs more than 0 minutes' "$scratch/out" || return 1
    done
    launched "0" -np 1 generate --chat model
    [[ $code -eq 2 && -z $starts ]] && grep -q 'the messages of --chat would not arrive' "$scratch/out"
}
runs_through_a_link()
{
    mkdir -p "$scratch/links" && ln -sf "$tree/launch/zerotrain" "$scratch/links/train" || return 1
    (cd "$scratch/links" && rm -f "$tree/starts" && echo 0 >"$tree/codes" && ./train -np 1 cfg.ini >"$scratch/out" 2>&1) &&
        [[ $(cat "$tree/starts") == "1 cfg.ini" ]]
}
# Hosts that answer are those for which the agent succeeds; it runs everything here.
cat >"$scratch/agent" <<'END'
#!/bin/bash
host=$1
shift
[[ $host != *gone* ]] || exit 1
[[ $* != true ]] || exit 0
exec bash -c "$*"
END
chmod +x "$scratch/agent"
starts_on_all_hosts_or_not_at_all()
{
    printf 'node-gone slots=4\nlocalhost slots=2\nalso-gone\n' >"$scratch/hosts"
    OMPI_MCA_plm_rsh_agent=$scratch/agent launched "0" --hosts "$scratch/hosts" cfg.ini
    [[ $code -eq 1 && -z $starts && $(wc -l <"$scratch/out") -eq 1 ]] &&
        grep -q 'no answer from node-gone and also-gone, of .*/hosts. Mend them or remove' "$scratch/out" || return 1
    OMPI_MCA_plm_rsh_agent=$scratch/agent launched "0" --hosts "$scratch/hosts" --restarts 1 cfg.ini
    [[ $code -eq 0 && $(cut -d' ' -f1 <<<"$starts") == 2 ]] &&
        grep -q 'no answer from node-gone and also-gone: the run starts without' "$scratch/out"
}
# Lines may end as on Windows, and the last line has no line feed.
reads_the_last_line()
{
    printf 'localhost slots=2\r\n' >"$scratch/hosts"
    OMPI_MCA_plm_rsh_agent=$scratch/agent launched "0" --hosts "$scratch/hosts" cfg.ini
    [[ $code -eq 0 && $(cut -d' ' -f1 <<<"$starts") == 2 ]] || return 1
    printf 'localhost slots = 2 # not slots=8\n\n# others\nnode2 slots=3' >"$scratch/hosts"
    OMPI_MCA_plm_rsh_agent=$scratch/agent launched "0" --hosts "$scratch/hosts" cfg.ini
    grep -q -- '-np 5 ' "$scratch/out" || return 1 # node2 is nowhere, so mpirun may fail
    printf 'localhost slots=2\nnode-gone' >"$scratch/hosts"
    OMPI_MCA_plm_rsh_agent=$scratch/agent launched "0" --hosts "$scratch/hosts" cfg.ini
    [[ $code -eq 1 && -z $starts ]] && grep -q 'no answer from node-gone, of .*/hosts. Mend it or remove its' "$scratch/out"
}
leaves_out_lost_hosts()
{
    printf 'localhost slots=2\nnode-gone slots=4\n' >"$scratch/hosts"
    OMPI_MCA_plm_rsh_agent=$scratch/agent launched "2 2 0" -np 4 --hosts "$scratch/hosts" --restarts 2 cfg.ini
    [[ $code -eq 2 ]] && n_starts 1 || return 1
    OMPI_MCA_plm_rsh_agent=$scratch/agent launched "1 2 0" -np 4 --hosts "$scratch/hosts" --restarts 2 cfg.ini
    [[ $code -eq 0 && $(cut -d' ' -f1 <<<"$starts" | tr '\n' ' ') == "4 2 1 " ]] &&
        grep -q 'restart 1 of 2 in 0 s with 2 ranks, without node-gone, from' "$scratch/out" &&
        grep -q ': 2 ranks are refused; trying 1$' "$scratch/out"
}
names_hosts_of_which_none_answers()
{
    echo 'node-gone slots=4' >"$scratch/hosts"
    OMPI_MCA_plm_rsh_agent=$scratch/agent launched "0" -np 4 --hosts "$scratch/hosts" cfg.ini
    [[ $code -eq 1 && -z $starts && $(wc -l <"$scratch/out") -eq 1 ]] && grep -q 'no host of .*/hosts answers' "$scratch/out"
}
# A machine whose GPUs are as many as the file `gpus` says for the next time that they are counted. A program that is not
# built with CUDA does not name its functions.
mkdir "$scratch/bin"
cat >"$scratch/bin/nvidia-smi" <<'END'
#!/bin/bash
cd "$(dirname "$0")/.." || exit 99
echo >>counted
n=$(sed -n "$(wc -l <counted)p" gpus)
for ((i = 0; i < n; i++)); do echo "GPU $i: NVIDIA (UUID: GPU-$i)"; done
[[ $n -eq 4 ]] || echo "Unable to determine the device handle for gpu 0000:$n:00.0: GPU is lost."
END
chmod +x "$scratch/bin/nvidia-smi"
# on_gpus COUNTS CODES OPTION...
on_gpus()
{
    tr ' ' '\n' <<<"$1" >"$scratch/gpus"
    : >"$scratch/counted"
    echo '# cudaMalloc' >>"$tree/build/zerotrain"
    PATH=$scratch/bin:$PATH launched "${@:2}"
    sed -i '$d' "$tree/build/zerotrain"
}
leaves_out_lost_gpus()
{
    on_gpus "4 3" "1 2 0" --restarts 2 cfg.ini
    [[ $code -eq 0 && $(cut -d' ' -f1 <<<"$starts" | tr '\n' ' ') == "4 3 2 " ]] &&
        grep -q 'restart 1 of 2 in 0 s with 3 ranks, on 3 of 4 GPUs, from' "$scratch/out" || return 1
    on_gpus "4 4" "1 0" -np 2 --restarts 2 cfg.ini
    [[ $code -eq 0 && $(cut -d' ' -f1 <<<"$starts" | tr '\n' ' ') == "2 2 " ]] || return 1
    on_gpus "4 0" "1 0" --restarts 2 cfg.ini
    [[ $code -eq 1 ]] && n_starts 1 && grep -q 'no GPU or host is left' "$scratch/out"
}
ends_in_time()
{
    launched "wait" -np 1 --max-minutes 0.05 --restarts 2 cfg.ini
    [[ $code -eq 3 ]] && n_starts 1 && grep -q '0.05 minutes are over' "$scratch/out"
}
# The cores are counted twice, for half a second each: when it is decided how many ranks to start, and how.
ends_at_once()
{
    local minutes
    mkdir -p "$scratch/slow" && printf '#!/bin/bash\nsleep 0.5\necho 2\n' >"$scratch/slow/nproc" && chmod +x "$scratch/slow/nproc"
    for minutes in 0.0001 0.0125; do
        PATH=$scratch/slow:$PATH launched "wait" -np 1 --max-minutes "$minutes" cfg.ini
        [[ $code -eq 3 ]] && grep -q "$minutes minutes are over" "$scratch/out" || return 1
    done
}
# The agent that asks for a host sends the signal to the launcher, which is its parent's parent's parent.
cat >"$scratch/signals" <<'END'
#!/bin/bash
pid=$PPID
for _ in timeout room; do pid=$(ps -o ppid= -p $pid); done
kill "-$SIGNAL" $pid
END
chmod +x "$scratch/signals"
starts_nothing_when_stopped()
{
    local signal
    echo localhost >"$scratch/hosts"
    for signal in TERM HUP USR1; do
        SIGNAL=$signal OMPI_MCA_plm_rsh_agent=$scratch/signals launched "0" --hosts "$scratch/hosts" cfg.ini
        [[ $code -eq 3 && -z $starts && $(wc -l <"$scratch/out") -eq 1 ]] &&
            grep -q 'stopped while starting zerotrain. The run has not begun' "$scratch/out" || return 1
    done
}
# quickstart_ends CODE: its training ends with that code. What it runs before does nothing here: packages are installed,
# and there is nothing to build.
quickstart_ends()
{
    local code=0
    mkdir -p "$scratch/quick" "$tree/configs" "$tree/build/quickstart"
    printf '#!/bin/bash\necho installed\n' | tee "$scratch/quick/make" "$scratch/quick/dpkg-query" >/dev/null
    chmod +x "$scratch/quick/make" "$scratch/quick/dpkg-query"
    cp "$repo/launch/quickstart" "$tree/launch/"
    cp "$repo/configs/quickstart.ini" "$tree/configs/"
    echo text | tee "$tree/build/quickstart/train.txt" >"$tree/build/quickstart/val.txt"
    rm -f "$tree/starts"
    echo "$1" >"$tree/codes"
    PATH=$scratch/quick:$PATH "$tree/launch/quickstart" >"$scratch/out" 2>&1 || code=$?
    cat "$scratch/out"
    [[ $code -eq 1 ]] && n_starts 1
}
quickstart_stops()
{
    quickstart_ends 3 && ! grep -q failed "$scratch/out" &&
        grep -q 'launch/quickstart: stopped while 4/4 .* The training is saved' "$scratch/out" &&
        grep -q -- '--stage 3 --resume configs/quickstart.ini' "$scratch/out" || return 1
    quickstart_ends 4 && grep -q 'failed while 4/4 .*zerotrain stopped with exit code 4' "$scratch/out"
}
claim "--help works before zerotrain is built" explains_itself_before_the_build
claim "--help shows the launcher's options and zerotrain's" shows_the_options_of_both
claim "success, mistakes, a saved stop and a state that is not finite are not started again" is_not_restarted
claim "other ends are, with the same options and --auto-resume, later each time, one line each" is_restarted
claim "not more often than --restarts says; the exit code is the last one's" has_a_limit
claim "lines that cannot be written are lost, and nothing else" needs_no_log
claim "nothing is started again, and nothing resumed, without --restarts" is_plain
claim "a number that is none is refused with one line, and so is --chat" refuses
claim "a link to it starts the same" runs_through_a_link
claim "hosts of which none answers are named" names_hosts_of_which_none_answers
claim "a run starts on all hosts that are named, unless it may be restarted" starts_on_all_hosts_or_not_at_all
claim "the last line of a file of hosts may have no line feed" reads_the_last_line
claim "a restart is without the hosts that do not answer, and with fewer ranks while their number is refused" leaves_out_lost_hosts
claim "a restart is with the GPUs that are left; without any it ends and says so" leaves_out_lost_gpus
claim "launch/quickstart that is stopped says how to go on" quickstart_stops
claim "--max-minutes: told to save after so long, and not started again" ends_in_time
claim "--max-minutes: told also if that is over before the ranks are there" ends_at_once
claim "a signal while hosts are asked: nothing is started" starts_nothing_when_stopped

# ---- training ------------------------------------------------------------------------------------------------------
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
steps = 60
global_batch = 4
[checkpoint]
dir = $scratch/checkpoints
every = 10
END
rm "$tree/build/zerotrain"
ln -s "$build/zerotrain" "$tree/build/zerotrain"
text() { sed -nE 's/.*("step": [0-9]+).*("loss": [^,]*, "grad_norm": [^,]*).*/\1 \2/p' "$1"; }
# Kills one of the ranks that train here.
kill_rank()
{
    local pid
    for pid in $(pgrep -x zerotrain); do # so is the launcher called
        if grep -qzx "$scratch/cfg.ini" "/proc/$pid/cmdline" && [[ $(readlink "/proc/$pid/exe") == "$build/zerotrain" ]]; then
            kill -KILL "$pid" && break
        fi
    done
}
goes_on()
{
    local i job code=0
    # So many that the run is still under way when the rank is killed, right after the first checkpoint.
    local long=(--set train.steps=600 --set checkpoint.every=50)
    "$tree/launch/zerotrain" -np 2 "${long[@]}" --set log.metrics="$scratch/want" --set checkpoint.dir="$scratch/other" \
        "$scratch/cfg.ini" || return 1
    "$tree/launch/zerotrain" -np 2 --restarts 2 "${long[@]}" --set log.metrics="$scratch/got" "$scratch/cfg.ini" &
    job=$!
    for ((i = 0; i < 1500; i++)); do
        [[ ! -e $scratch/checkpoints/latest ]] || break
        sleep 0.02
    done
    kill_rank
    wait "$job" || code=$?
    [[ $code -eq 0 && $(text "$scratch/want" | wc -l) -eq 600 ]] && diff <(text "$scratch/want") <(text "$scratch/got") &&
        grep -q 'restart 1 of 2' "$scratch/log" && grep -q 'resuming after step' "$scratch/log"
}
claim "a rank is killed: started again from the newest checkpoint, to the text of an undisturbed run" goes_on
# is_lost_and_found STEPS OPTION...: kills a rank when the run has made step 28, and expects that at most so many steps
# are made again, from a checkpoint in memory as large as planned, to the same text, and nothing left there.
is_lost_and_found()
{
    local i job code=0 steps=$1 size last resumed
    shift
    rm -rf "$scratch/got" "$scratch/checkpoints"
    "$tree/launch/zerotrain" -np 2 --restarts 2 --set log.metrics="$scratch/got" --set checkpoint.memory_dir="$memory" \
        --set checkpoint.memory_every=7 --set train.steps=600 "$@" "$scratch/cfg.ini" >"$scratch/out" 2>&1 &
    job=$!
    for ((i = 0; i < 3000; i++)); do
        ! grep -q '"step": 28,' "$scratch/got" 2>/dev/null || break
        sleep 0.01
    done
    kill_rank
    size=$(cat "$memory"/latest/*.safetensors | wc -c)
    last=$(wc -l <"$scratch/got")
    wait "$job" || code=$?
    cat "$scratch/out"
    resumed=$(sed -nE "s|.*resuming after step ([0-9]+), from $memory/.*|\1|p" "$scratch/out")
    echo "killed after step $last, resumed after step $resumed"
    [[ $code -eq 0 && $((last - resumed)) -le $steps && ! -e $memory && $(text "$scratch/want600" | wc -l) -eq 600 ]] &&
        diff <(text "$scratch/want600") <(text "$scratch/got") && grep -q 'restart 1 of 2' "$scratch/out" &&
        "$build/zerotrain" --plan --set checkpoint.memory_every=7 --set checkpoint.memory_dir="$memory" "$@" \
            "$scratch/cfg.ini" | grep -x "memory checkpoint *$size bytes in .*"
}
trains_undisturbed()
{
    "$tree/launch/zerotrain" -np 2 --set train.steps=600 --set log.metrics="$scratch/want600" \
        --overwrite --set checkpoint.dir="$scratch/other" "$@" "$scratch/cfg.ini"
}
claim "600 steps undisturbed" trains_undisturbed
memory=$(mktemp -d -p /dev/shm) # files in memory, so that they outlive the processes
keeps_in_memory() { is_lost_and_found 7 --set checkpoint.every=1000; }
claim "a rank is killed: seven steps back at most, from memory, as large as planned, and nothing is left there" keeps_in_memory
needs_no_disk() { is_lost_and_found 7 --set checkpoint.dir= --set checkpoint.every=0 --set checkpoint.async=false; }
claim "the same without a disk, where saves are waited for" needs_no_disk
keeps_8_bits()
{
    local adamw8bit=(--set train.optimizer=adamw8bit --set train.precision=bf16)
    trains_undisturbed "${adamw8bit[@]}" && is_lost_and_found 7 --set checkpoint.dir= --set checkpoint.every=0 "${adamw8bit[@]}"
}
claim "the same of 8-bit AdamW" keeps_8_bits
rm -rf "$memory"
exit $status
