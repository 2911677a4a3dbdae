#!/bin/bash
# A report of many long runs draws itself: nothing in its script takes a list of values as arguments, of which engines
# allow some 100,000, and run by node it draws every run.
# Run by tests/run-all; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh

# Writes metrics of $1 runs of 3,999 rows, of which every 100th has a validation loss.
write_runs()
{
    rm -f "$scratch"/run*.jsonl
    for ((run = 1; run <= $1; run++)); do
        awk -v run="$run" 'BEGIN { for (step = 1; step < 4000; step++)
            printf "{\"step\": %d, \"loss\": %g, \"lr\": %g, \"step_ms\": %d%s}\n", step, 9 / (step + run), step / 1e6,
                20 + step % 7, step % 100 ? "" : ", \"val_loss\": " 1 / run }' >"$scratch/run$run.jsonl"
    done
}

report() { "$build/zerotrain" report --output "$scratch/report.html" "$scratch"/run*.jsonl 2>"$scratch/log"; }
passes_no_list() { ! grep -nE '(Math\.(min|max)|push|apply)\([^()]*\.\.\.' "$scratch/report.html"; }
draws() { diff <(printf '%s\n' "${@}") <(node tests/project/page_dom.js "$scratch/report.html" 2>&1 | tail -n 20); }

for runs in 1 64; do
    write_runs "$runs"
    claim "a report of $runs runs of 3,999 rows is written" report
    claim "... whose script passes no list as arguments" passes_no_list
    # Charts: loss with validation, learning rate, milliseconds. A run has 3 * 3,999 points and 39 of validation.
    if command -v node >/dev/null; then
        claim "... and draws every run, in a color of its own" draws "rows $runs" "charts 3" "lines $((4 * runs))" \
            "colors $runs" "points $((runs * (3 * 3999 + 39)))" "bad 0" "parts 0"
    else
        echo "SKIP: a report's script is run: node is not installed"
    fi
done
exit $status
