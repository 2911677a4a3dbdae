#!/bin/bash
# llm.c's train_gpt2.c, ported by examples/llmc, prints the losses of the original. LLMC names a checkout of llm.c at the
# commit in examples/llmc/README.md; nothing is written to it.
# Run by tests/run-all; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
export LD_LIBRARY_PATH=$build OMP_NUM_THREADS=1

port=$PWD/examples/llmc/port
head -c 1000 /dev/zero >"$scratch/train_gpt2.c"
refuses() { ! "$port" "$scratch" >"$scratch/out" 2>&1 && grep -q 'is not that of the commit' "$scratch/out"; }
claim "examples/llmc/port refuses a file that it does not know" refuses
if [[ ! -f ${LLMC:-}/train_gpt2.c ]]; then
    echo "SKIP: llm.c: LLMC names no checkout of it (examples/llmc/README.md)"
    exit "$status"
fi
python3 -c '' 2>/dev/null || { echo "SKIP: llm.c: tiny.py needs python3"; exit "$status"; }

mkdir "$scratch/llmc"
cp -r "$LLMC/train_gpt2.c" "$LLMC/llmc" "$scratch/llmc"
chmod -R u+w "$scratch/llmc"
claim "port applies to the checkout" "$port" "$scratch/llmc"
include=$PWD/include
python3 examples/llmc/tiny.py "$scratch/llmc"
cd "$scratch/llmc" || exit 1
claim "the original compiles" gcc -O2 -I. -o original train_gpt2.c -lm
claim "the port compiles without a warning" gcc -O2 -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-sign-compare \
    -Wno-unused-parameter -Wno-unused-function -Wno-unused-variable -Wno-unused-but-set-variable -Wno-unused-result \
    -I. -I"$include" -o port train_gpt2_zero.c -L"$build" -lzero -lm

losses() { grep -oE '(train|val) loss [0-9.]+' "$1"; }

# agrees FILE: it has the original's 46 losses within 1e-6, three units of their last digit, and they fall.
agrees()
{
    paste -d ' ' <(losses original.txt) <(losses "$1") | awk '
        $1 != $4 || $3 <= 0 { bad = 1 }
        { off = $6 / $3 - 1; if (off < -1e-6 || off > 1e-6) bad = 1 }
        NR == 1 { first = $6 }
        END { exit bad || NR != 46 || !($6 < first - 0.05) }'
}

timeout 100 ./original >original.txt 2>&1
while read -r n stages; do
    for stage in 3 $stages; do
        timeout 100 mpirun --bind-to none --map-by :OVERSUBSCRIBE -np "$n" ./port "$stage" >"port.$n.$stage" 2>&1 </dev/null
    done
    claim "$n ranks: the losses of llm.c, within 1e-6" agrees "port.$n.3"
    for stage in $stages; do
        claim "... and their text at stage $stage" diff <(losses "port.$n.$stage") <(losses "port.$n.3")
    done
done <<END
1 0
2 0 1 2
3 1
4 2
END
wrong() { sed '/^step 7:/s/loss [0-9]/loss 9/' port.1.3 >wrong && ! agrees wrong; }
claim "... which a wrong number does not" wrong
exit "$status"
