#!/usr/bin/env bash
# claims.sh - what count-calls, kernel-times, hosts/run and generate/run share: a scratch folder $work, starting ranks,
# counting claims, configurations, and the text of zerotrain's losses. Those that claim end with `closing`.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NCCL_NVLS_ENABLE=0 OMP_NUM_THREADS=4

on_ranks=(mpirun --oversubscribe --bind-to none -np)
# ranks LIMIT_S N COMMAND...: runs COMMAND on N ranks for at most LIMIT_S seconds.
ranks() { timeout -k 3 "$1" "${on_ranks[@]}" "${@:2}"; }

# sixteen GPUS PROGRAM OPTION...: trains with 16 sequences per GPU at stage 3 in bf16. PROGRAM is zerotrain or a variant
# of it. One GPU needs no mpirun.
sixteen() {
    local launch=()
    [ "$1" = 1 ] || launch=("${on_ranks[@]}" "$1")
    "${launch[@]}" "$2" --set train.micro_batch=16 --set train.global_batch=$((16 * $1)) --set train.precision=bf16 \
        --set zero.stage=3 --set log.every=0 "${@:3}"
}

passed=0 failed=0 skipped=0
# claim STATUS TEXT: counts TEXT as passed if STATUS is 0, else as failed.
claim() { if [ "$1" = 0 ]; then passed=$((passed + 1)); echo "ok: $2"; else failed=$((failed + 1)); echo "FAILED: $2"; fi; }
# skip TEXT: counts a claim that does not apply here. TEXT has the reason.
skip() { skipped=$((skipped + 1)); echo "skipped: $1"; }
# closing: prints the counts; fails if a claim did.
closing() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}

# text METRICS: prints loss and gradient norm of every step. Equal text means equal bits.
text() { sed -nE 's/.*("loss": [^,]*, "grad_norm": [^,]*).*/\1/p' "$1"; }

# config NAME LAYERS DIM HEADS VOCAB SEQ: writes $work/NAME.ini for a GPT-2 that trains on $work/train.txt, on GPUs or on
# $DEVICE.
config() {
    printf '[model]\nlayers = %s\ndim = %s\nheads = %s\nvocab_size = %s\nseq_len = %s\n[data]\ntrain = %s\n[device]\ntype = %s\n' \
        "$2" "$3" "$4" "$5" "$6" "$work/train.txt" "${DEVICE:-cuda}" > "$work/$1.ini"
}
