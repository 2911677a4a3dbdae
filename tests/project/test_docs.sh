#!/bin/bash
# Tests of what is generated: help, man pages, bash's completion, docs/configuration.md and the reference of zero.h say
# the same as the option table and zero.h.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=${ZERO_BUILD:-build}
docs=$build/docs
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh

# ---- the settings ---------------------------------------------------------------------------------------------------
# Lists of section.key, one a line. --help is printed from the table itself, so it is what the others are held to.

help_settings()
{
    awk '/^\[/ { gsub(/[][]/, ""); section = $1 } section && /^  [a-z_0-9]+ = / { print section "." $1 }' "$scratch/help"
}

markdown_settings()
{
    awk '/^### \[/ { gsub(/[][]/, "", $2); section = $2 }
         section && /^\| `/ { gsub(/`/, "", $2); print section "." $2 }' docs/configuration.md
}

man_settings()
{
    awk '/^\.SS / { gsub(/[][]/, "", $2); section = $2 }
         section && /^\.B [a-z_0-9]+ =/ { print section "." $2 }' "$docs/zerotrain.1"
}

# What bash offers for the last WORD: complete_words WORD...
complete_words()
{
    bash -c 'compopt() { :; }; source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _zerotrain
        [[ ${#COMPREPLY[@]} -eq 0 ]] || printf "%s\n" "${COMPREPLY[@]}"' bash "$docs/zerotrain.bash" "$@"
}

completed_settings()
{
    complete_words zerotrain --set "" | sed 's/=$//'
}

# same_list COMMAND LIST: the command prints the lines of LIST, which is sorted and not empty.
same_list()
{
    [[ -s $2 ]] && "$1" | sort | diff "$2" -
}

"$build/zerotrain" --help >"$scratch/help"
help_settings | sort >"$scratch/settings"
n_settings=$(wc -l <"$scratch/settings")
claim "docs/configuration.md has the $n_settings settings of --help and no other" same_list markdown_settings "$scratch/settings"
claim "zerotrain(1) has the $n_settings settings of --help and no other" same_list man_settings "$scratch/settings"
claim "completion offers the $n_settings settings of --help and no other" same_list completed_settings "$scratch/settings"

reference_is_up_to_date()
{
    sed -n '/<!-- begin reference -->/,/<!-- end reference -->/p' docs/configuration.md | sed '1d;$d' |
        diff - <("$docs/options" markdown)
}
claim "docs/configuration.md is up to date with the table (else: make docs/configuration.md)" reference_is_up_to_date

example_is_read()
{
    local zerotrain
    zerotrain=$(realpath "$build/zerotrain")
    mkdir -p "$scratch/example/runs" && cp README.md "$scratch/example/a.txt" || return 1
    cp README.md "$scratch/example/b.txt" && cp README.md "$scratch/example/a;b #c.txt" || return 1
    {
        sed -n '/^## The file/,/^- /s/^    //p' docs/configuration.md
        printf '[MODEL]\nlayers = 1\nDim = 16\nheads = 2\nseq_len = 16\n[Train]\nsteps = 1\n'
        printf '[data]\nformat = text\n[checkpoint]\ndir = "ends in\\"\n'
    } >"$scratch/example/cfg.ini"
    (cd "$scratch/example" && OMP_NUM_THREADS=1 "$zerotrain" cfg.ini) || return 1
    [[ -s $scratch/example/runs/one.jsonl && -d "$scratch/example/ends in\\/latest" ]] &&
        grep -q '"val_loss"' "$scratch/example/runs/one.jsonl"
}
claim "zerotrain reads the file that docs/configuration.md shows, as it says" example_is_read

# ---- the options of the command line --------------------------------------------------------------------------------
man_options()
{
    # shellcheck disable=SC1003 # tr takes a backslash
    sed -n '/^\.SH OPTIONS/,/^\.SH SETTINGS/s/^\.B \(\\-\\-[a-z\\-]*\).*/\1/p' "$docs/zerotrain.1" | tr -d '\\'
}

completed_options()
{
    complete_words zerotrain --
}

sed -n 's/^  \(--[a-z-]*\) .*/\1/p' "$scratch/help" | sort >"$scratch/options"
n_options=$(wc -l <"$scratch/options")
claim "zerotrain(1) has the $n_options options of --help and no other" same_list man_options "$scratch/options"
claim "completion offers the $n_options options of --help and no other" same_list completed_options "$scratch/options"

names_the_signals()
{
    local signal n=0
    while read -r signal; do
        n=$((n + 1))
        grep -qw "$signal" "$scratch/help" || { echo "$signal is missing" && return 1; }
    done < <(grep -o '"SIG[A-Z0-9]*"' src/train/report/process.c | tr -d '"')
    [[ $n -ge 4 ]]
}
claim "--help names the signals that stop a run" names_the_signals

offers()
{
    local want=$1
    shift
    [[ $(complete_words "$@" | tr '\n' ' ') == "$want " ]]
}
claim "completion offers a setting's values" offers "bf16 fp32 fp16" zerotrain --set train.precision = ""
touch "$scratch/model.ini"
claim "completion offers files" offers "$scratch/model.ini" zerotrain "$scratch/mod"

# ---- zero.h ---------------------------------------------------------------------------------------------------------
nm -D --defined-only "$build/libzero.so" | awk '{ print $3 }' | sort >"$scratch/functions"

# has_functions BEFORE AFTER FILE: succeeds if the file has each function between the two.
has_functions()
{
    local name status=0
    [[ -s $scratch/functions ]] || return 1
    while read -r name; do
        grep -q "$1$name$2" "$3" || { echo "$name is missing" && status=1; }
    done <"$scratch/functions"
    return "$status"
}
claim "libzero(3) has the $(wc -l <"$scratch/functions") functions of libzero.so" has_functions '[ *]' '(' "$docs/libzero.3"

has_no_warnings()
{
    ! mandoc -Tlint -Wwarning "$1" | grep -v 'missing date'
}
if command -v mandoc >/dev/null; then
    claim "mandoc reads zerotrain(1) without a warning" has_no_warnings "$docs/zerotrain.1"
    claim "mandoc reads libzero(3) without a warning" has_no_warnings "$docs/libzero.3"
else
    echo "SKIP: man pages: mandoc is not installed"
fi

# docs/Doxyfile makes warnings errors.
run_doxygen()
{
    { cat docs/Doxyfile && echo "OUTPUT_DIRECTORY = $scratch"; } | doxygen -
}
if command -v doxygen >/dev/null; then
    claim "doxygen reads zero.h without a warning" run_doxygen
    claim "doxygen's reference has the functions of libzero.so" has_functions '' '</a>' "$scratch/html/zero_8h.html"
    claim "doxygen's reference shows the program at the top of zero.h as code" grep -q '^<pre class="fragment">  *zero_comm_create(' "$scratch/html/zero_8h.html"
    claim "doxygen's reference has the text of a section" grep -q 'A directory of checkpoints holds' "$scratch/html/group__checkpoints.html"
else
    echo "SKIP: the reference of zero.h: doxygen is not installed"
fi
# ---- tests/README.md -------------------------------------------------------------------------------------------------
named_tests_exist()
{
    local name status=0
    # shellcheck disable=SC2016 # the backticks are Markdown's
    for name in $(grep -oE '`[a-z0-9_]+`' tests/README.md | tr -d '`' | sort -u); do
        case $name in
        test_*) find tests -name "$name.c" -o -name "$name.sh" | grep -q . ;;
        *_*_*_*) grep -rq "^START_TEST($name)" tests ;;
        *) continue ;;
        esac || { echo "there is no $name"; status=1; }
    done
    return "$status"
}
claim "tests/README.md names tests that exist" named_tests_exist
points_are_complete()
{
    local last
    last=$(sed -n 's/^| \([0-9]*\) |.*/\1/p' tests/README.md | tail -n 1)
    [[ -n $last ]] && diff <(seq "$last") <(sed -n 's/^| \([0-9]*\) | .*`.*/\1/p' tests/README.md)
}
claim "tests/README.md names a test for each of its points" points_are_complete
exit $status
