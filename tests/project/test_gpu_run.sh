#!/bin/bash
# tests/gpu/run, which runs the tests that need GPUs, without any: its options, its table, what it prints and its exit
# codes, and cases on the CPU.
# Run by tests/run-all; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
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
export OMP_NUM_THREADS=1

run() { tests/gpu/run "$@" >"$scratch/out" 2>"$scratch/err"; }
exits() # CODE TEXT ARGUMENT... : the text is in what it prints
{
    local code=$1 text=$2
    shift 2
    run "$@"
    [[ $? -eq $code ]] && grep -qE -- "$text" "$scratch/out" "$scratch/err"
}

claim "a case that does not exist is refused" exits 2 "no case nonsense: --list" "$build" "$scratch/logs" nonsense
claim "without BIN and OUT it is refused" exits 2 "BIN and OUT are missing"
claim "words for several cases are refused" exits 2 "are for one case" "$build" "$scratch/logs" stop own -- 1
claim "--list prints the table of cases" exits 0 "^stages\* +1 +[0-9]+ +cpu" --list

cases=$(tests/gpu/run --list | awk 'NR > 1 { sub(/\*/, "", $1); print $1 }')
# shellcheck disable=SC2086 # names are words
claim "--dry-run runs nothing of any case" run "$scratch/bin" "$scratch/logs" --dry-run --gpus 2 $cases
cp "$scratch/out" "$scratch/commands"
prints_commands() # CASE : a command follows its headline
{
    sed -n "/^# $1: /,/^# /p" "$scratch/commands" | grep -v '^# ' | grep -E 'mpirun|zerotrain|tests/gpu|python|test_' && [[ ! -e $scratch/logs/$1.log ]]
}
for case in $cases; do claim "$case: --dry-run prints its commands" prints_commands "$case"; done
takes_words() { run "$scratch/bin" "$scratch/logs" --dry-run quality -- gpt2-124m 20 4-5 --set train.lr=1e-3 && grep -c 'train.seed=5.*train.lr=1e-3.*gpt2-124m.ini' "$scratch/out"; }
claim "words behind -- are the case's own" takes_words

claim "a case that needs a GPU is skipped on the CPU" exits 0 "^1 cases: 0 passed, 0 failed, 1 skipped" "$build" "$scratch/logs" shard --device cpu
claim "a case runs on the CPU" exits 0 "^1 cases: 2 passed, 0 failed, 0 skipped" "$build" "$scratch/logs" stop --device cpu --gpus 2
claim "its log has the claims" grep -q "^ok: 2 ranks, stopped after step" "$scratch/logs/stop.log"
mkdir -p "$scratch/bin" && printf '#!/bin/sh\necho broken\nexit 1\n' >"$scratch/bin/zerotrain" && chmod +x "$scratch/bin/zerotrain"
claim "a program that fails fails the run" exits 1 "^1 cases: 0 passed, [1-9][0-9]* failed" "$scratch/bin" "$scratch/logs" stop --device cpu
claim "the log of a failed case has what the program said" grep -q "^broken" "$scratch/logs/stop.log"
exit $status
