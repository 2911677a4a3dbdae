#!/bin/bash
# Tests what another user of the same host can reach of a run (SECURITY.md, Other users of the host): not its memory, and
# only those files that umask allows.
# Run by tests/run-all; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

head -c 100000 Makefile >"$scratch/text.txt"
cat >"$scratch/long.ini" <<END
[model]
layers = 1
dim = 32
heads = 2
seq_len = 32
[data]
train = $scratch/text.txt
[train]
steps = 1000000
global_batch = 2
[checkpoint]
dir = $scratch/private/checkpoints
every = 20
[log]
every = 0
metrics = $scratch/private/metrics
trace = $scratch/private/trace
tensorboard = $scratch/private/tensorboard
END
mkdir "$scratch/private"
chmod 755 "$scratch" "$scratch/private"

# Each rank writes its process number before it becomes zerotrain.
(umask 077 && exec mpirun --oversubscribe --bind-to none -np 2 \
    sh -c "echo \$\$ >$scratch/pid.\${OMPI_COMM_WORLD_RANK:-\$PMIX_RANK}; exec $build/zerotrain --stage 3 $scratch/long.ini") \
    >"$scratch/run.log" 2>&1 </dev/null &
job=$!
for ((i = 0; i < 300; i++)); do
    [[ ! -e $scratch/private/checkpoints/latest ]] || break
    sleep 0.1
done
pids=("$(cat "$scratch/pid.0")" "$(cat "$scratch/pid.1")")

trains()
{
    cat "$scratch/run.log"
    [[ -e $scratch/private/checkpoints/latest ]] && kill -0 "${pids[@]}"
}
claim "2 ranks train and save" trains

# Memory that is shared through a file: everything mapped so must be ours without a name, or closed to others.
shared_mappings() { awk '$2 ~ /s$/ && $6 ~ /^\// { print $6 }' "/proc/${pids[0]}/maps" "/proc/${pids[1]}/maps" | sort -u; }
shares_without_a_name() { shared_mappings | grep '^/memfd:zero' && ! shared_mappings | grep -v '^/memfd:' | grep -i 'zero[^/]*$'; }
claim "libzero shares memory that has no name in a file system" shares_without_a_name
if [[ $(id -u) -eq 0 ]]; then
    as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
    claim "user nobody can run commands here" as_nobody cat "$scratch/text.txt"
    others_read_nothing()
    {
        local path pid status=0
        for pid in "${pids[@]}"; do
            ! as_nobody ls "/proc/$pid/fd" || status=1
            ! as_nobody cat "/proc/$pid/maps" || status=1
        done
        while read -r path; do
            [[ $path != /memfd:* ]] || continue
            ! as_nobody dd if="$path" of=/dev/null bs=1 count=1 || { echo "$path is open to others"; status=1; }
        done < <(shared_mappings)
        return "$status"
    }
    claim "another user can open neither libzero's shared memory nor Open MPI's" others_read_nothing
else
    echo "SKIP: only root can look as another user would"
fi

kill -TERM "${pids[0]}"
for ((i = 0; i < 200; i++)); do
    kill -0 "$job" 2>/dev/null || break
    sleep 0.1
done
kill -KILL "$job" "${pids[@]}" 2>/dev/null
wait "$job" 2>/dev/null
all_kinds() { [[ -s $scratch/private/trace && -s $scratch/private/metrics && -e $scratch/private/checkpoints/latest/manifest.json ]] && ls "$scratch/private/tensorboard/"*; }
claim "the run has written metrics, trace, TensorBoard's file and checkpoints" all_kinds
open_to_others() { find "$scratch/private" -mindepth 1 ! -type l -perm /077; }
claim "under umask 077 others can open none of the run's files" diff /dev/null <(open_to_others)
exit $status
