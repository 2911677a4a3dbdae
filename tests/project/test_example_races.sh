#!/bin/bash
# Programs in examples/ run without a data race, under ThreadSanitizer, alone and on several ranks. Builds
# them in BUILD/thread.
# Run by tests/run-all for the sanitizer build; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=$(realpath "${ZERO_BUILD:-build}")/thread
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
# OpenMP's threads wait for each other in ways that ThreadSanitizer does not see, so there are none.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TSAN_OPTIONS=exitcode=66

programs=(mlp gan own_optimizer own_matrices lora recurrence)
printf '#include <pthread.h>\nstatic int n;\nstatic void *add(void *p) { n++; return p; }\nint main(void) { pthread_t t; %s }\n' \
    'pthread_create(&t, 0, add, 0); n++; pthread_join(t, 0); return n != 2;' >"$scratch/race.c"
if ! gcc -fsanitize=thread -pthread -o "$scratch/race" "$scratch/race.c" 2>"$scratch/why"; then
    echo "SKIP: races: gcc has no ThreadSanitizer: $(tail -n 1 "$scratch/why")"
    exit 0
fi
"$scratch/race" 2>"$scratch/why"
if ! grep -q 'WARNING: ThreadSanitizer: data race' "$scratch/why"; then
    echo "SKIP: races: ThreadSanitizer does not work on this machine: $(head -n 1 "$scratch/why")"
    exit 0
fi
# Called by make, whose variables would reach this one.
claim "the examples compile for ThreadSanitizer" env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL \
    make -s -j "${JOBS:-2}" SANITIZE=thread CUDA=0 CFLAGS="-O1 -g" BUILD="$build" "${programs[@]/#/$build/examples/}"
[[ $status -eq 0 ]] || exit 1

ranks() { timeout 120 mpirun --bind-to none --map-by :OVERSUBSCRIBE -np "$@"; }

# is_quiet COMMAND...: the command ends well, prints its losses, and the sanitizer says nothing.
is_quiet()
{
    "$@" >"$scratch/out" 2>"$scratch/err"
    local code=$?
    head -n 40 "$scratch/err"
    [[ $code -eq 0 ]] && grep -qE "loss|generator" "$scratch/out" && ! grep -q ThreadSanitizer "$scratch/err"
}

for name in "${programs[@]}"; do
    claim "examples/$name.c has no race" is_quiet timeout 120 "$build/examples/$name"
    for stage in 1 3; do
        claim "... on 3 ranks at stage $stage" is_quiet ranks 3 "$build/examples/$name" "$stage"
    done
done
noisy() { ! is_quiet sh -c "echo loss; '$scratch/race'"; }
claim "... which a program with a race has" noisy
exit "$status"
