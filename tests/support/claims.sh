#!/bin/bash
# claims.sh - a scratch folder, and claims. Sourced by tests/project/test_*.sh, which exit with $status.
# shellcheck disable=SC2034 # the scripts that source this read status

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0

# claim TEXT COMMAND...: claims that the command succeeds. Shows its output if it fails.
claim()
{
    local text=$1
    shift
    if "$@" >"$scratch/log" 2>&1; then
        echo "ok: $text"
    else
        echo "FAILED: $text"
        sed 's/^/    /' "$scratch/log"
        status=1
    fi
}
