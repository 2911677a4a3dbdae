#!/bin/bash
# Tests what a shell or another program may have left around a run: variables of a launcher, numbers of threads, a
# locale with a decimal comma, and pipes where files should be.
# Run by tests/run-all; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
# shellcheck disable=SC2317 # functions are called through claim
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
root=$PWD
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cp README.md "$scratch/text"
cat >"$scratch/cfg.ini" <<END
[model]
layers = 1
dim = 16
heads = 2
seq_len = 16
[data]
train = text
[train]
steps = 2
global_batch = 1
[checkpoint]
dir = ck
END
cd "$scratch" || exit 1

# Runs zerotrain with variables; expects exit code 2 and one line that has all of the words.
refused() # "NAME=VALUE ..." WORD...
{
    local variables=$1 word
    shift
    # shellcheck disable=SC2086 # several
    env $variables timeout 60 "$build/zerotrain" --overwrite cfg.ini >log 2>&1
    [[ $? -eq 2 && $(grep -c '^zerotrain: ' log) -eq 1 ]] || return 1
    for word; do
        grep -qF -- "$word" log || return 1
    done
}

stale_variables()
{
    refused "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4" "OMPI_COMM_WORLD_SIZE=4" "env -u OMPI_COMM_WORLD_SIZE" &&
        refused "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4" "OMPI_COMM_WORLD_SIZE=4" &&
        refused "PMI_RANK=2 PMI_SIZE=4" "PMI_SIZE=4"
}

cause_is_named()
{
    refused "SLURM_STEP_NUM_TASKS=3 PMI_RANK=1 PMI_SIZE=4" "PMI_SIZE=4" && ! grep -q SLURM log
}

threads()
{
    local value
    for value in abc 0 -1 2x; do
        refused "OMP_NUM_THREADS=$value" "OMP_NUM_THREADS=$value" || return 1
    done
    OMP_NUM_THREADS=1,1 timeout 60 "$build/zerotrain" --overwrite cfg.ini >log 2>&1
}

comma()
{
    cat >comma.c <<'END'
#include <locale.h>
#include <stdlib.h>
#include <zero.h>
int main(void)
{
    zero_config_t config = zero_config_default();
    zero_comm_t *comm;
    if (!setlocale(LC_ALL, "comma") || strtod("0,5", NULL) != 0.5)
        return 2;
    if (zero_config_set(&config, "grad_clip", "0.5") != ZERO_OK || config.grad_clip != 0.5f)
        return 3;
    if (zero_config_set(&config, "grad_clip", "0,5") == ZERO_OK)
        return 4;
    return zero_comm_create(ZERO_COMM_AUTO, &comm) == ZERO_OK ? (zero_comm_destroy(comm), 0) : 5;
}
END
    "${CC:-cc}" comma.c -I"$root/include" -L"$build" -lzero -Wl,-rpath,"$build" -o comma_program &&
        LOCPATH=$scratch ZERO_TIMEOUT_S=33.5 timeout 60 ./comma_program >log 2>&1
}

# A pipe would be waited for until someone writes into it.
pipes()
{
    local name
    timeout 60 "$build/zerotrain" --overwrite cfg.ini >log 2>&1 || return 1
    for name in generation_config.json tokenizer.json; do
        mkfifo "ck/latest/$name"
        timeout 30 "$build/zerotrain" generate --max-tokens 2 --prompt a ck/latest >log 2>&1
        code=$?
        [[ $code -ne 124 ]] || return 1
        rm "ck/latest/$name"
    done
    [[ $code -eq 2 ]] && grep -q "tokenizer.json': it is not a regular file" log || return 1
    rm ck/latest/state.json && mkfifo ck/latest/state.json
    timeout 30 "$build/zerotrain" report --output page.html ck/latest >log 2>&1
    [[ $? -eq 2 ]]
}

claim "what a launcher has left behind is named by every process that meets it" stale_variables
claim "the variable that is named is the one that was read" cause_is_named
claim "OMP_NUM_THREADS that is no number is refused" threads
claim "pipes instead of a model's files make no command wait" pipes
printf 'LC_NUMERIC\ndecimal_point ","\nthousands_sep ""\ngrouping -1\nEND LC_NUMERIC\n' >comma.source
localedef -c -i comma.source -f UTF-8 "$scratch/comma" >/dev/null 2>&1
if [[ ! -d $scratch/comma ]]; then
    echo "SKIP: localedef makes no locale with a decimal comma here"
elif [[ ! -e $build/libzero.so ]]; then
    echo "SKIP: no shared library"
else
    claim "libzero reads numbers with a decimal point in a locale that has a comma" comma
fi
exit $status
