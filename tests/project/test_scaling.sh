#!/bin/bash
# tests/scaling measures what it says, on a model of a few milliseconds a step: a row for every case, a picture that is
# XML, a second run that measures nothing again; and trace_check tells a true trace from a false one.
# Run by tests/run-all; prints "ok: claim" or "FAILED: claim" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

build=$(realpath "${ZERO_BUILD:-build}")
if ! command -v python3 >/dev/null; then
    echo "SKIP: python3 is not installed"
    exit 0
fi
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh

measure() # WHAT [OPTION...]
{
    local what=$1
    shift
    tests/scaling/run "$what" "$build" "$scratch/out" --device cpu --ranks 1,2 --steps 3 --warm-up 1 \
        --set model.layers=1 --set model.dim=32 --set model.heads=2 --set model.seq_len=16 "$@"
}
column() # NAME FILE : its values
{
    python3 -c 'import csv, sys; [print(row[sys.argv[1]]) for row in csv.DictReader(open(sys.argv[2]))]' "$1" "$2"
}
all_positive() { column "$1" "$2" | awk '$1 <= 0 { bad = 1 } END { exit bad || NR == 0 }'; }

# ---- scaling -------------------------------------------------------------------------------------------------------
table=$scratch/out/scaling.csv
claim "one command measures two modes and two numbers of ranks" measure scaling --stages 3 --trace
two_of_each() { [[ $(column mode "$table" | wc -l) -eq 4 && $(column ranks "$table" | grep -c 2) -eq 2 ]]; }
claim "the table has a row for each mode and number of ranks" two_of_each
claim "every row has a step time" all_positive step_ms "$table"
claim "every row has tokens per second" all_positive tokens_per_s "$table"
claim "every row has the device's bytes" all_positive device_bytes "$table"
alone_is_one()
{
    paste <(column ranks "$table") <(column efficiency "$table") | awk '$1 == 1 && $2 != 1 { bad = 1 } END { exit bad }'
}
claim "efficiency is 1 for one rank" alone_is_one
weak_grows()
{
    paste -d ' ' <(column mode "$table") <(column ranks "$table") <(column global_batch "$table") | sort -u |
        diff - <(printf '%s\n' 'strong 1 8' 'strong 2 8' 'weak 1 8' 'weak 2 16')
}
claim "the sequences of a step grow with the ranks only in weak scaling" weak_grows
picture=$scratch/out/scaling-tiny.svg
claim "the picture is XML" python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$picture"
eight_lines() { [[ $(grep -c '<polyline [^>]*stroke="#d55e00"' "$picture") -eq 8 ]]; }
claim "the picture has a line for stage 3 in each of 8 panels" eight_lines
cp "$table" "$scratch/first"
claim "a second run succeeds" measure scaling --stages 3
claim "a second run measures nothing again" cmp "$table" "$scratch/first"

# ---- growth --------------------------------------------------------------------------------------------------------
claim "cost grows at most linearly with layers, width and ranks" measure growth --steps 8
claim "growth has the host's time of each case" all_positive host_ms "$scratch/out/growth.csv"
largest() { column "$1" "$scratch/out/growth.csv" | sort -n | tail -n 1; }
grown() { [[ $(largest layers) -eq 8 && $(largest dim) -eq 128 ]]; }
claim "growth measures up to 8 times the layers and 4 times the width" grown
found_steep() # EFFECT : that grows as the square, with a linear term as large at half the size
{
    PYTHONPATH=tests/scaling python3 -B -c '
import sys, growth
size = dict(config="a", stage=3, varied="layers")
rows = [dict(size, layers=n, params_m=n, **{sys.argv[1]: n / 2 + n * n}) for n in (1, 2, 4, 8)]
sys.exit(growth.print_powers(rows, growth.STEEPEST_ON_THE_CPU) != 1)' "$1"
}
for effect in host_least_ms device_bytes host_bytes; do
    claim "a quadratic term of $effect is found" found_steep $effect
done

# ---- the tables of GPUs, tried without any -----------------------------------------------------------------------------
tables() { tests/gpu/tables "$build" "$scratch/tables" 2 --tiny --no-torch --parts one,many,start; }
claim "tests/gpu/tables runs to its end" tables
told() { grep -q "^| GPT-2 1558M, 16 x 1024 | [0-9.]* | [0-9.]* | [0-9.]* | [0-9.]* ([0-9.]*%) | [0-9.]* |" "$1"; }
claim "tests/gpu/tables prints step, exposed communication, AdamW's and the host's time, and the tax" told "$scratch/tables/tables.md"
all_equal() { grep -q "4 runs equal" "$scratch/tables/tables.md" && ! grep "runs DIFFER" "$scratch/tables/tables.md"; }
claim "tests/gpu/tables finds that runs that must agree do" all_equal

# ---- trace_check ---------------------------------------------------------------------------------------------------
head -c 20000 tests/unit/train/test_resume.c >"$scratch/text"
cat >"$scratch/cfg.ini" <<EOF
[model]
layers = 2
dim = 32
heads = 2
seq_len = 16
[data]
train = $scratch/text
[train]
steps = 4
EOF
trained()
{
    timeout 60 mpirun --bind-to none --map-by :OVERSUBSCRIBE -np 2 "$build/zerotrain" \
        --trace "$scratch/trace.json" --set log.metrics="$scratch/metrics" "$scratch/cfg.ini"
}
OMP_NUM_THREADS=1 claim "2 ranks write a trace" trained
claim "trace_check: the waits of a trace are the metrics' exposed_comm_ms" tests/scaling/trace_check "$scratch/trace.json" "$scratch/metrics"
fails() { ! "$@"; }
sed 's/"exposed_comm_ms": /&1/' "$scratch/metrics" >"$scratch/other"
claim "trace_check finds metrics of another run" fails tests/scaling/trace_check "$scratch/trace.json" "$scratch/other"
# A span that is a second too long runs into its successors.
sed '0,/"cat": "compute"/s/\("cat": "compute", .*"dur": \)/\11000/' "$scratch/trace.json" >"$scratch/long.json"
claim "trace_check finds a span that overlaps the next" fails tests/scaling/trace_check "$scratch/long.json"
exit $status
