#!/bin/bash
# What tests/run-all counts as passed, failed and skipped: a copy of it in a tree of its own, whose tests are scripts of
# one line.
# Run by tests/run-all; prints "ok: claim" or "FAILED: claim" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
mkdir -p "$scratch/tests" "$scratch/build"
cp tests/run-all "$scratch/tests/"

# counts EXIT_CODE PASSED FAILED SKIPPED LINE...: of a run of scripts, one a LINE.
counts()
{
    local code=$1 line="tests of build: $2 passed, $3 failed, $4 skipped," n=0 status=0 script
    shift 4
    rm -f "$scratch"/tests/test_*.sh
    for script in "$@"; do
        n=$((n + 1))
        printf '#!/bin/bash\n%s\n' "$script" >"$scratch/tests/test_$n.sh"
        chmod +x "$scratch/tests/test_$n.sh"
    done
    local -a names
    mapfile -t names < <(cd "$scratch/tests" && printf '%s\n' test_*.sh | sed 's/\.sh$//')
    "$scratch/tests/run-all" "$scratch/build" "${names[@]}" >"$scratch/out" 2>&1 || status=$?
    cat "$scratch/out"
    [[ $status -eq $code ]] && grep -q "^$line" "$scratch/out"
}

claim "a line ok: counts as passed" counts 0 1 0 0 "echo 'ok: this'"
claim "each line ok: counts" counts 0 3 0 0 "echo 'ok: this'; echo 'ok: that'" "echo 'ok: other'"
claim "a line FAILED: counts as failed" counts 1 1 1 0 "echo 'ok: this'; echo 'FAILED: that'; exit 1"
claim "a line FAILED: counts as failed even if the script exits with 0" counts 1 0 1 0 "echo 'FAILED: that'"
claim "a script that prints nothing fails: it has tested nothing" counts 1 0 1 0 "true"
claim "a script that prints only other lines fails" counts 1 1 1 0 "echo hello" "echo 'ok: this'"
claim "a skipped test counts, but not as a failure" counts 0 1 0 1 "echo 'SKIP: no such thing here'" "echo 'ok: this'"
claim "a script that exits with another code than 0 fails, whatever it printed" counts 1 1 1 0 "echo 'ok: this'; exit 3"
claim "a script that leaves a process behind fails" counts 1 1 1 0 "echo 'ok: this'; sleep 100 &"
claim "the totals of a Check program are added" counts 1 3 1 0 "echo '75%: Checks: 4, Failures: 1, Errors: 0'; exit 1"
exit $status
