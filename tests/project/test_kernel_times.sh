#!/bin/bash
# tests/gpu/kernel_times.py, which tells where a step's time goes, on records of two steps that were made up: real names
# of kernels (of our build, cuBLASLt 13, cuDNN 9), times that can be added up by hand.
# Run by tests/run-all; prints "ok: claim" or "FAILED: claim" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
if ! command -v python3 >/dev/null; then
    echo "SKIP: python3 is not installed"
    exit 0
fi
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh

# step BEGIN_US: 1000 us from one decision's end to the next one's; in stream 7 kernels for 880, and gaps of 20 and 100.
# Two kernels overlap, by 10.
step()
{
    while read -r stream begin end name; do
        echo "$stream $(($1 + begin))000 $(($1 + end))000 $name"
    done <<END
7 0 100 _Z11adam_kernelI11bf16_masterEv9zero_adamm
7 100 130 _Z10sum_chunksI13__nv_bfloat16Li8EEv9zero_gradPfPKT_PK16zero_embed_entrymmm
13 200 400 memcpy PtoP
7 150 450 nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT
7 440 460 _Z4geluI13__nv_bfloat16Li8EEvPT_PKS1_m
7 460 500 _ZN8cublasLt8epilogue4impl12globalKernelILi8ELi32E6__halfS3_S3_Lb1ELb0ELi1EEEviilPT1_18cublasLtEpilogue_tiPT2_lPvlllPT3_lPi
7 500 600 cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31_64x64x64_4x1x1_kernel0_0
7 600 640 _Z13norm_backwardI10layer_norm13__nv_bfloat16Li8ELi2ELi2ELb0ELb1ELi512EEv9norm_rowsIT0_Ei
7 640 650 _Z9layernormI13__nv_bfloat16Li8ELi3EEvPT_PfS3_S2_PKS1_S5_S5_S5_fmii
7 650 660 _Z12put_partials11put_targetsPKfmmm
7 660 700 _Z13cross_entropyI13__nv_bfloat16Li8ELb1EEvPT_PdPKiPKfdmm
7 700 800 _ZN7library13unknown_thingIiLi8EEEvPT_
7 900 990 _Z17sum_slices_kernelIL10zero_dtype1EtEvPf16zero_cuda_slicesimbbPd
7 990 1000 _Z18decide_step_kernel15zero_step_rulesfPK17zero_contributioniP15zero_step_stateP17zero_adam_scalarsP17zero_step_outcome
END
}
# The first has a candidate for a matrix product. They come in any order.
{
    step 2000
    echo 7 500 1500 nvjet_tst_192x192_64x4_2x1_v_bz_coopB_NNT
    step 0
    step 1000
} >"$scratch/records"
printf '{"step": %d, "step_ms": %s}\n' 1 7.5 2 0.94 3 0.96 >"$scratch/untraced"
printf '{"step": %d, "step_ms": %s}\n' 1 9.5 2 1.0 3 1.01 >"$scratch/traced"
told() { python3 -B tests/gpu/kernel_times.py "$scratch/records" "$scratch/traced" "$scratch/untraced" "$1"; }

told 2 >"$scratch/told"
table() { sed -n 's/^| //p' "$scratch/told" | tail -n +2; }
claim "parts and gaps of the last steps add up to the step" diff <(table) - <<'END'
matrix products | 2.0 | 0.340 | 35.8% |
AdamW | 1.0 | 0.100 | 10.5% |
attention | 1.0 | 0.100 | 10.5% |
rest | 1.0 | 0.100 | 10.5% |
gradient sums and norm | 2.0 | 0.100 | 10.5% |
norms, residual sums | 2.0 | 0.050 | 5.3% |
cross-entropy | 1.0 | 0.040 | 4.2% |
embedding | 1.0 | 0.030 | 3.2% |
GELU, SwiGLU, RoPE | 1.0 | 0.010 | 1.1% |
bias and norm gradients | 1.0 | 0.010 | 1.1% |
gaps | 2.0 | 0.070 | 7.4% |
the step | 13.0 | 0.950 | 100.0% |
beside it, on other streams: copies, fills, casts | 1.0 | 0.200 | 21.1% |
END
claim "the gaps of the recorded steps are printed" \
    grep -q "Recorded, a step takes 1.00 ms, 1.00 by its metrics: 0.120 ms of gaps" "$scratch/told"
claim "a kernel that belongs to no part is named" \
    grep -qE "^rest +1.0 +0.100 +100.0 library::unknown_thing<int, 8>$" "$scratch/told"
fails() { ! "$@"; }
claim "asking for more steps than were recorded is an error" fails told 3

homeless() # kernels of ours that belong to no part
{
    PYTHONPATH=tests/gpu python3 -B - <<'END'
import glob, re, sys
from kernel_times import part_of
kernel = re.compile(r"__global__ void (?:__launch_bounds__\([^()]*\)\s+)?(\w+)\(")
paths = [p for root in ("kernels", "src/train/kernels") for p in glob.glob(root + "/**/*.cu*", recursive=True)]
names = [n for path in paths for n in kernel.findall(open(path).read())]
found = [n for n in names if {part_of(n), part_of(f"{n}<float>"), part_of(f"{n}<float, add_op>")} == {"rest"}]
print(len(names), "kernels, without a part:", *found)
sys.exit(len(names) < 30 or bool(found))
END
}
claim "each of our kernels belongs to a part" homeless
exit $status
