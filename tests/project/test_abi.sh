#!/bin/bash
# A program and libzero.so of different versions: programs that are compiled with an older zero.h (its zero_config_t ends
# earlier) and with a newer one (it has more) run with today's library, and print what they print with today's header.
# tests/abi/run finds changes of the ABI.
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
sed '/^    \/\* The most device memory that stages gradients/,/^} zero_config_t;$/{/^} zero_config_t;$/!d}' include/zero.h >"$scratch/older/zero.h"
# With one more, whose 0 means what it meant before there was one.
sed 's/^} zero_config_t;$/    double of_tomorrow;\n&/' include/zero.h >"$scratch/newer/zero.h"

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

# ---- changes of the ABI that tests/abi/run finds ---------------------------------------------------------------------
if tests/abi/run check "$build/libzero.so" 2>&1 | grep '^SKIP: '; then
    exit $status # no abidiff, or a library without debug information
fi

# changed NAME SED: makes the header NAME/zero.h, which is not today's, and a library of its functions.
changed()
{
    mkdir "$scratch/$1"
    sed "$2" include/zero.h >"$scratch/$1/zero.h"
    ! cmp "$scratch/$1/zero.h" include/zero.h && tests/abi/run stub "$scratch/$1/zero.h" "$scratch/$1/libzero.so"
}
# finds NAME SED TEXT: against the record, in a library of the changed header; and against a record of that header in the
# library that is built, of which there is much more debug information.
finds()
{
    changed "$1" "$2" >"$scratch/log" 2>&1 || { echo "FAILED: a changed zero.h compiles: $1"; status=1; return; }
    claim "a changed ABI is found in a library: $1" fails_with "$3" tests/abi/run check "$scratch/$1/libzero.so"
    tests/abi/run record "$scratch/$1/zero.h" "$scratch/$1/record"
    claim "and in the library that is built, if that was the ABI" fails_with "write the record anew: make abi" \
        tests/abi/run check "$build/libzero.so" "$scratch/$1/record"
}
claim "the library that is built has the recorded ABI" tests/abi/run check "$build/libzero.so"
finds "a field is removed" '/^    bool frozen;$/d' "'bool frozen', at offset 472 (in bits)"
finds "a field is added in the middle" 's/^    float offload_ratio;$/&\n    double more;/' "'double more'"
finds "a field is added at the end" 's/^} zero_config_t;$/    double more;\n&/' "'double more'"
finds "a field has another type" 's/^    uint64_t seed; /    double seed; /' "of 'zero_config::seed' changed"
finds "a number of an enum moves" 's/^    ZERO_OPTIMIZER_SGD, /    ZERO_OPTIMIZER_MORE,\n&/' "ZERO_OPTIMIZER_SGD' from value '1' to '2'"
finds "what a function of the caller's gets has more" 's/^    zero_wait_t wait; .*/&\n    double more;/' "'double more'"
finds "an argument has another type" 's/uint32_t notice);/uint64_t notice);/' "zero_set_notice(zero_engine_t*, uint32_t)"
changed "a function is removed" '/zero_comm_launch_rank(void)/d' >"$scratch/log" 2>&1
claim "a function that is missing is found" fails_with "{zero_comm_launch_rank}" \
    tests/abi/run check "$scratch/a function is removed/libzero.so"
changed "a function is new" 's/^ZERO_API int zero_comm_launch_rank(void);/&\nZERO_API int zero_comm_more(void);/' >"$scratch/log" 2>&1
claim "a new function passes" tests/abi/run check "$scratch/a function is new/libzero.so"
exit $status
