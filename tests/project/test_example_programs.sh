#!/bin/bash
# Programs in examples/ compute what double precision does, alone and on several ranks.
# Run by tests/run-all; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
export OMP_NUM_THREADS=1

ranks() { timeout 60 mpirun --bind-to none --map-by :OVERSUBSCRIBE -np "$@"; }

# AdaGrad on the same function in awk's double precision. Prints "step N loss X".
adagrad_fp64()
{
    awk 'BEGIN {
        for (step = 1; step <= 40; step++) {
            loss = 0
            for (i = 0; i < 1000; i++) {
                a = 1 + i % 7; distance = w[i] - (i % 11) / 10; g = a * distance
                loss += 0.5 * g * distance; m[i] += g * g
                if (g != 0) w[i] -= 0.1 * g / (sqrt(m[i]) + 1e-8)
            }
            printf "step %d loss %.12g\n", step, loss
        }
    }'
}

# agrees COMMAND...: its 40 losses are those of double precision within 1e-4, and end far below the first. Errors of
# fp32 weights, some 1e-7, are divided by distances that fall to 1e-3.
agrees()
{
    paste -d ' ' "$scratch/fp64" <("$@") | awk '
        $2 != $6 || $8 == "" { bad = 1 }
        { off = $8 / $4 - 1; if (off < -1e-4 || off > 1e-4) bad = 1 }
        NR == 1 { first = $8 }
        END { exit bad || NR != 40 || !($8 < first / 10) }'
}

adagrad_fp64 >"$scratch/fp64"
claim "examples/own_optimizer.c agrees with double precision" agrees timeout 60 "$build/examples/own_optimizer"
for stage in 0 1 2 3; do
    claim "... on 3 ranks at stage $stage" agrees ranks 3 "$build/examples/own_optimizer" "$stage"
done
wrong() { ! agrees sed '7s/loss ./loss 9/' "$scratch/fp64"; }
claim "... which a wrong number does not" wrong

# shares RANKS: ranks that share the sequence have one rank's 7 losses within 1e-3 (they round differently, and 120 steps
# of AdamW amplify that), which end below a fiftieth of the first.
shares()
{
    paste -d ' ' <("$build/examples/attention") <(ranks "$1" "$build/examples/attention") | awk '
        { off = $8 / $4 - 1; if (off * off > 1e-6 || $8 == "") bad = 1 }
        NR == 1 { first = $8 }
        END { exit bad || NR != 7 || !($8 < first / 50) }'
}
for n in 2 3 4; do
    claim "examples/attention.c: $n ranks share a sequence, with the losses of one" shares "$n"
done

# matches FILE COMMAND...: the command prints FILE's words, with its numbers within 1e-6: 5 times what was measured, on one
# rank and on three.
matches()
{
    paste -d ' ' "$1" <("${@:2}") | awk '
        { n = NF / 2; for (i = 1; i <= n; i++) if ($i ~ /\./) { off = $(n + i) / $i - 1; if (!(off * off < 1e-12)) bad = 1 }
                      else if ($i != $(n + i)) bad = 1 }
        END { exit bad || NR < 40 || n < 4 }'
}

if python3 -c '' 2>/dev/null; then
    for name in mlp gan own_matrices; do
        python3 tests/project/examples_fp64.py "$name" >"$scratch/$name"
        claim "examples/$name.c agrees with double precision" matches "$scratch/$name" timeout 60 "$build/examples/$name"
        for stage in 0 1 2 3; do
            claim "... on 3 ranks at stage $stage" matches "$scratch/$name" ranks 3 "$build/examples/$name" "$stage"
        done
        altered() { ! matches "$scratch/$name" sed '7s/\(.*\)\./\19./' "$scratch/$name"; }
        claim "... which another number does not" altered
    done
else
    echo "SKIP: examples/mlp.c, gan.c and own_matrices.c: their reference needs python3"
fi
exit $status
