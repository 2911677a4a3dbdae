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
        claim "... and draws every run, in a color of its own, with names of axes and numbers in units" draws "rows $runs" "charts 3" "lines $((4 * runs))" \
            "colors $runs" "points $((runs * (3 * 3999 + 39)))" "bad 0" "parts 0" \
            "first $scratch/run1.jsonl|3,999||1.5 min|0.0023|1.0000|||" "axes step|nats per token|step|rate|step|ms"
    else
        echo "SKIP: a report's script is run: node is not installed"
    fi
done
# Cells of a column have one unit, the largest value's, and as many digits behind the point.
has_one_unit()
{
    printf '{"step": 1, "loss": 2, "step_ms": 7200000, "tokens_per_s": 47123.4, "device_bytes": 64424509440, "tokens": 1234567}\n' \
        >"$scratch/run1.jsonl"
    printf '{"step": 1, "loss": 2, "step_ms": 36000, "device_bytes": 1073741824, "host_bytes": 23068672, "val_loss": 3, "val_loss.code": 2.5}\n' \
        >"$scratch/run2.jsonl"
    report && node tests/project/page_dom.js "$scratch/report.html" >"$scratch/drawn" &&
        grep -qxF "first $scratch/run1.jsonl|1|1,234,567|2.000 h|2.0000|||47,123|60.0 GiB|" "$scratch/drawn" &&
        sed -i 's/^{"step": 1, "loss": 2, "step_ms": 7200000/{"step": 1, "loss": 2, "step_ms": 15000/' "$scratch/run1.jsonl" &&
        mv "$scratch/run1.jsonl" "$scratch/run3.jsonl" && report &&
        node tests/project/page_dom.js "$scratch/report.html" >"$scratch/drawn" &&
        grep -qxF "first $scratch/run2.jsonl|1||36 s|2.0000|3.0000|2.5000||1.0 GiB|22 MiB" "$scratch/drawn"
}
if command -v node >/dev/null; then
    rm -f "$scratch"/run*.jsonl
    claim "numbers of a column have one unit" has_one_unit
else
    echo "SKIP: a report's script is run: node is not installed"
fi
exit $status
