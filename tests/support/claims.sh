#!/bin/bash
# For tests/test_*.sh, which source it: a scratch folder, and claims. They exit with $status.
# shellcheck disable=SC2034 # status is read by who sources this

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0

# claim TEXT COMMAND... : the command's success is the claim; its output is shown when it fails.
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
