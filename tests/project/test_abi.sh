#!/bin/bash
# A program and libzero.so of different versions: programs that are compiled with an older zero.h (its zero_config_t ends
# earlier) and with a newer one (it has more) run with today's library, and print what they print with today's header.
# Run by tests/run-all; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
export LD_LIBRARY_PATH=$build OMP_NUM_THREADS=1

prints() { diff "$1" <("${@:2}"); } # prints FILE COMMAND...
# fails_with TEXT COMMAND...: the command fails, and what it says has the text.
fails_with()
{
    "${@:2}" >"$scratch/said" 2>&1 && return 1
    cat "$scratch/said"
    grep -qF -- "$1" "$scratch/said"
}
# compiles HEADERS PROGRAM SOURCE
compiles() { gcc -std=c17 -Wall -Wextra -Werror -I"$scratch/$1" -o "$scratch/$2" "$3" -L"$build" -lzero; }

# ---- headers -------------------------------------------------------------------------------------------------------
mkdir "$scratch/today" "$scratch/older" "$scratch/newer"
cp include/zero.h "$scratch/today"
# Without the last fields of zero_config_t.
sed '/^    \/\* The most device memory that stages gradients/,/^    uint8_t reserved\[6\];$/d' include/zero.h >"$scratch/older/zero.h"
# With one more, whose 0 means what it meant before there was one.
sed 's/^    uint8_t reserved\[6\];$/&\n    double of_tomorrow;/' include/zero.h >"$scratch/newer/zero.h"

cat >"$scratch/sizes.c" <<'C'
#include <stdio.h>
#include <zero.h>
int main(void)
{
    const zero_config_t config = zero_config_default();
    printf("%zu %zu\n", sizeof config, config.struct_size);
    return 0;
}
C
size_of() { "$scratch/sizes_$1" | cut -d ' ' -f 1; }
for of in today older newer; do
    claim "a program compiles with the zero.h of $of" compiles $of sizes_$of "$scratch/sizes.c"
    claim "its configuration has the size of that zero.h" eval "[[ \$('$scratch/sizes_$of') == '$(size_of $of) $(size_of $of)' ]]"
done
claim "the older zero_config_t is shorter than today's, the newer one longer" \
    test "$(size_of older)" -lt "$(size_of today)" -a "$(size_of today)" -lt "$(size_of newer)"

# ---- programs ------------------------------------------------------------------------------------------------------
"$build/examples/linear" 1 >"$scratch/linear"
# What fit.c sets last, the older header does not have.
sed 's/config\.user_bytes = [^;]*;/(void)activations;/' examples/fit.c >"$scratch/fit.c"
compiles today fit_today "$scratch/fit.c" && "$scratch/fit_today" 4 48 24 >"$scratch/fit"
claim "examples/fit.c finds what fits" grep -q '^fits: stage ' "$scratch/fit"
for of in older newer; do
    claim "examples/linear.c compiles with the $of zero.h" compiles $of linear_$of examples/linear.c
    claim "and trains to the same text with today's library" prints "$scratch/linear" timeout 60 "$scratch/linear_$of" 1
    claim "examples/fit.c compiles with the $of zero.h" compiles $of fit_$of "$scratch/fit.c"
    claim "and finds the same configuration" prints "$scratch/fit" timeout 60 "$scratch/fit_$of" 4 48 24
done

# What the program sets beyond today's library is not silently left out.
sed 's/^    config\.dtype = ZERO_FP32;$/&\n    config.of_tomorrow = 0.5;/' examples/linear.c >"$scratch/tomorrow.c"
claim "a program that sets what only a newer zero.h has compiles with that" compiles newer tomorrow "$scratch/tomorrow.c"
claim "today's library refuses it, and names both sizes" \
    fails_with "zero_engine_create: the program's zero_config_t has $(size_of newer) bytes, that of libzero $(sed -n 's/^VERSION *:= *//p' Makefile) has $(size_of today)," \
    "$scratch/tomorrow"
# So is a struct that was not begun with the defaults.
sed 's/zero_config_default()/{.stage = 3, .micro_steps = 1}/' examples/linear.c >"$scratch/zeros.c"
claim "a program that fills the struct itself compiles" gcc -I"$scratch/today" -o "$scratch/zeros" "$scratch/zeros.c" -L"$build" -lzero
claim "it is told to begin with zero_config_default" \
    fails_with "zero_engine_create: struct_size is 0, and no zero.h has such a zero_config_t" "$scratch/zeros"
exit $status
