#!/bin/bash
# Tests how many steps are lost with a process when a run keeps checkpoints in memory: at most [checkpoint] memory_every,
# whenever a rank is killed and however long a copy takes. The schedule alone is tested by test_memory_schedule.
# shellcheck disable=SC2317 # functions are called through claim
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
export OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
memory=$(mktemp -d -p /dev/shm)
trap 'rm -rf "$scratch" "$memory"' EXIT

cp README.md "$scratch/text"
cat >"$scratch/cfg.ini" <<END
[model]
layers = 2
dim = 64
heads = 4
seq_len = 64
[data]
train = $scratch/text
[train]
steps = 1000000
global_batch = 12
[checkpoint]
memory_dir = $memory/run
memory_every = 6
[log]
metrics = $scratch/metrics
END
# Memory is synced at once, a disk or another host is not: each of a rank's four files takes so long.
cat >"$scratch/slow.c" <<END
#include <unistd.h>
int fsync(int fd)
{
    (void)fd;
    return usleep(50000);
}
END
cc -shared -fPIC -o "$scratch/slow.so" "$scratch/slow.c" || exit 1
rows() { wc -l 2>/dev/null <"$scratch/metrics" || echo 0; }
# lose STEP OPTION...: kills a rank when the run has made the step. Sets `made` and `kept`, the newest checkpoint's step.
lose()
{
    local step=$1 job pid
    shift
    rm -rf "$memory/run" "$scratch/metrics"
    OF_TEST=$scratch mpirun --oversubscribe --bind-to none -np 2 "$@" "$build/zerotrain" "$scratch/cfg.ini" \
        </dev/null >"$scratch/out" 2>&1 &
    job=$!
    while kill -0 "$job" 2>/dev/null && [[ $(rows) -lt $step ]]; do sleep 0.002; done
    for pid in $(pgrep -x zerotrain); do
        if grep -sqzx "OF_TEST=$scratch" "/proc/$pid/environ"; then kill -KILL "$pid" && break; fi
    done
    wait "$job"
    made=$(rows) kept=$(readlink "$memory/run/latest")
    kept=$((10#0${kept#step-}))
}
loses_at_most_six() # OPTION...
{
    local step made kept worst=0
    for step in {1..12}; do
        lose "$step" "$@"
        echo "killed after step $made, step $kept is kept"
        [[ $made -ge $step && $((made - kept)) -le 6 ]] || { cat "$scratch/out"; return 1; }
        worst=$((made - kept > worst ? made - kept : worst))
    done
    [[ $worst -ge 3 && $kept -gt 3 ]] # the claim is about something
}
claim "a rank is killed after each of twelve steps: at most six are lost" loses_at_most_six
claim "the same where a copy takes longer than six steps" loses_at_most_six -x LD_PRELOAD="$scratch/slow.so" -x ASAN_OPTIONS=verify_asan_link_order=0
exit $status
