#!/bin/bash
# A few cases of tests/random/faults, always the same ones: a failing call leaves no wrong checkpoint behind.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
out=$(tests/random/faults --seed 5 --cases 12 "${ZERO_BUILD:-build}" 2>&1)
if grep '^SKIP' <<<"$out"; then
    exit 0
elif [[ $(tail -n 1 <<<"$out") == "12 passed, 0 failed, 0 skipped" ]]; then
    echo "ok: one failing or interrupted call of a run leaves an exit code, or a checkpoint that is right"
else
    echo "FAILED: one failing or interrupted call of a run leaves an exit code, or a checkpoint that is right"
    tail -n 20 <<<"$out" | sed 's/^/    | /'
fi
