#!/bin/bash
# Tests how launch/check divides time among its parts and counts them: a copy of it in a tree of its own, whose parts are
# scripts of one line, on a machine that has every package.
# Run by tests/run-all; prints "ok: claim" or "FAILED: claim" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
tree=$scratch/tree
mkdir -p "$tree"/launch "$tree"/tests/{hosts,random,reference,gpu/emulated} "$scratch/bin" "$tree/.ci"
cp launch/check launch/setup.sh "$tree/launch/"
cp .ci/run "$tree/.ci/" 2>/dev/null
printf '#!/bin/sh\necho installed\n' >"$scratch/bin/dpkg-query"
printf '#!/bin/sh\nexit 0\n' >"$scratch/bin/apt-get"
chmod +x "$scratch"/bin/*
PATH=$scratch/bin:$PATH
unset MAKEFLAGS MAKELEVEL ZERO_CHECK_LIMIT

# Prints the path of the script that replaces a part.
part_script()
{
    case $1 in
    slurm) echo "$tree/tests/hosts/slurm" ;;
    long) echo "$tree/tests/run-all" ;;
    emulated) echo "$tree/tests/gpu/emulated/run" ;;
    random | hosts | reference) echo "$tree/tests/$1/run" ;;
    *) echo "$tree/tests/$1" ;;
    esac
}

# parts [PART=COMMAND...]: every part prints "1 passed" at once, but for those named here.
parts()
{
    local part file
    for part in build lint tests valgrind sanitize long emulated random hosts slurm fuzz reference; do
        file=$(part_script $part)
        printf '#!/bin/bash\necho "%s: 1 passed, 0 failed, 0 skipped"\n' $part >"$file"
        chmod +x "$file"
    done
    for part in "$@"; do
        printf '#!/bin/bash\n%s\n' "${part#*=}" >"$(part_script "${part%%=*}")"
    done
    cat >"$tree/Makefile" <<'END'
tests: ; @tests/build
check: ; @$(if $(SANITIZE),tests/sanitize,tests/tests)
fuzz: ; @tests/fuzz
.PHONY: tests check fuzz
END
}

# runs CODE ROWS ARGUMENT...: launch/check ends with this exit code, and its table is ROWS ("part passed failed skipped",
# separated by commas).
runs()
{
    local code=$1 rows=$2 status=0
    shift 2
    "$tree/launch/check" "$@" >"$scratch/out" 2>&1 </dev/null || status=$?
    cat "$scratch/out"
    [[ $status -eq $code ]] || { echo "exit code $status"; return 1; }
    table_is "$rows"
}
table_is()
{
    diff <(tr ',' '\n' <<<"$1" | sed 's/^ *//') \
        <(sed '1,/^part .* seconds$/d; / passed, /,$d' "$scratch/out" | awk '{ print $1, $2, $3, $4 }')
}
takes() # LEAST_S MOST_S COMMAND...
{
    local begin=$SECONDS
    "${@:3}" || return 1
    [[ $((SECONDS - begin)) -ge $1 && $((SECONDS - begin)) -le $2 ]] || { echo "it took $((SECONDS - begin)) s"; return 1; }
}
# Succeeds if no process runs this file, within two seconds.
is_gone()
{
    local i
    for ((i = 0; i < 20; i++)); do
        pgrep -f "$1" >/dev/null || return 0
        sleep 0.1
    done
    return 1
}

parts
claim "without arguments it runs the quick parts" runs 0 "build 1 0 0, lint 1 0 0, tests 1 0 0, valgrind 1 0 0"
claim "slow names the slow parts, the most valuable first" \
    runs 0 "build 1 0 0, sanitize 1 0 0, long 1 0 0, emulated 1 0 0, random 1 0 0, hosts 1 0 0, slurm 1 0 0, fuzz 1 0 0, reference 1 0 0" slow
parts lint='exit 3'
claim "a part without counts fails by its exit code, and the next ones run" \
    runs 1 "build 1 0 0, lint 0 1 0, tests 1 0 0, valgrind 1 0 0"
parts build='exit 3'
claim "when the build fails, every part counts as failed" runs 1 "build 0 1 0, lint 0 1 0, valgrind 0 1 0" lint valgrind

# A program that does not end by itself.
hang=$scratch/hang
# shellcheck disable=SC2016 # expanded when it runs
printf '#!/bin/bash\nexec -a "$0" sleep 100\n' >"$hang"
chmod +x "$hang"
parts sanitize="$hang & $hang"
export ZERO_CHECK_LIMIT=10
claim "a part that exceeds its share is ended; the others run" takes 1 9 \
    runs 1 "build 1 0 0, sanitize 0 1 0, long 1 0 0, emulated 1 0 0, random 1 0 0, hosts 1 0 0, slurm 1 0 0, fuzz 1 0 0, reference 1 0 0" slow
claim "a part that was ended leaves no process behind" is_gone "$hang"
says_the_share() { grep -q '^FAILED: sanitize was ended: its share of 10 s is [1234] s$' "$scratch/out"; }
claim "a line names the part that exceeded its share, and the share" says_the_share
parts lint="echo 'lint: 5 passed, 0 failed, 0 skipped'; $hang"
export ZERO_CHECK_LIMIT=6
claim "a part that hangs after its tests passed fails" runs 1 "build 1 0 0, lint 5 1 0" lint
export ZERO_CHECK_LIMIT=0
claim "without time, every part counts as failed" runs 1 "build 0 1 0, lint 0 1 0, tests 0 1 0, valgrind 0 1 0"
unset ZERO_CHECK_LIMIT

parts reference="[[ \${1:-} != install ]] || { touch $scratch/installing; exec $hang; }
until [[ -e $scratch/installing ]]; do sleep 0.1; done; echo 'reference: 1 passed, 0 failed, 0 skipped'"
claim "what reference needs is installed beside hosts" runs 0 "build 1 0 0, hosts 1 0 0, reference 1 0 0" hosts reference
claim "an installation that outlasts the parts is ended" is_gone "$hang"

parts lint="setsid $hang & echo \$! >$scratch/pid"
claim "a process that leaves the part's process group holds nothing up" takes 0 30 \
    runs 0 "build 1 0 0, lint 1 0 0, valgrind 1 0 0" lint valgrind
kill "$(<"$scratch/pid")"

parts tests="$hang"
is_stopped()
{
    local pid status=0 i
    "$tree/launch/check" >"$scratch/out" 2>&1 </dev/null &
    pid=$!
    for ((i = 0; i < 300; i++)); do
        pgrep -f "$hang" >/dev/null && break
        sleep 0.1
    done
    kill -TERM "$pid" || echo "it had ended by itself"
    wait "$pid" || status=$?
    cat "$scratch/out"
    [[ $status -eq 130 ]] && table_is "build 1 0 0, lint 1 0 0, tests 0 1 0, valgrind 0 1 0" && is_gone "$hang"
}
claim "SIGTERM ends the part that runs; it and the rest count as failed" is_stopped

# ---- CI ------------------------------------------------------------------------------------------------------------
if [[ ! -x $tree/.ci/run ]]; then
    echo "SKIP: a release has no .ci/run"
    exit $status
fi
ci() # CODE LINE: its exit code and its last line
{
    local status=0
    "$tree/.ci/run" >"$scratch/out" 2>&1 </dev/null || status=$?
    cat "$scratch/out"
    [[ $status -eq $1 && $(tail -n 1 "$scratch/out") == "$2" ]]
}
parts
claim "CI adds up the quick parts and the slow ones" ci 0 "13 passed, 0 failed, 0 skipped"
parts fuzz="echo 'fuzz: 8 passed, 1 failed, 2 skipped'; exit 1"
claim "CI fails if a slow part fails" ci 1 "20 passed, 1 failed, 2 skipped"
printf '#!/bin/bash\nexit 0\n' >"$tree/launch/check"
claim "CI fails if launch/check does not count anything" ci 1 "0 passed, 0 failed, 0 skipped"
exit $status
