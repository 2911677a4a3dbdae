/* shard_table.c - the table of the shard kernels of one instruction set. shard_cpu.c chooses among the builds' tables.
 */
#include "kernels/shard_isa.h"

#define NAME_OF_(isa) #isa
#define NAME_OF(isa) NAME_OF_(isa)

const zero_shard_kernels_t ZERO_ISA(zero_shard_kernels) = {
    .name = NAME_OF(ZERO_ISA_NAME),
    .adam = ZERO_ISA(zero_shard_adam),
    .sgd = ZERO_ISA(zero_shard_sgd),
    .nesterov = ZERO_ISA(zero_shard_nesterov),
    .lion = ZERO_ISA(zero_shard_lion),
    .adam8 = ZERO_ISA(zero_shard_adam8),
    .encode8 = ZERO_ISA(zero_shard_encode8),
    .decode8 = ZERO_ISA(zero_shard_decode8),
    .muon_momentum = ZERO_ISA(zero_shard_muon_momentum),
    .muon_apply = ZERO_ISA(zero_shard_muon_apply),
    .orthogonalize = ZERO_ISA(zero_shard_orthogonalize),
    .sum_slices = ZERO_ISA(zero_shard_sum_slices),
    .contribute = ZERO_ISA(zero_shard_contribute),
    .decide_step = ZERO_ISA(zero_shard_decide_step),
    .decide_unit = ZERO_ISA(zero_shard_decide_unit),
    .tensor_scalars = ZERO_ISA(zero_shard_tensor_scalars),
    .cast = ZERO_ISA(zero_shard_cast),
    .split_master = ZERO_ISA(zero_shard_split_master),
    .join_master = ZERO_ISA(zero_shard_join_master),
    .fp8_absmax = ZERO_ISA(zero_shard_fp8_absmax),
    .fp8_scale = ZERO_ISA(zero_shard_fp8_scale),
    .fp8_cast = ZERO_ISA(zero_shard_fp8_cast),
    .poison = ZERO_ISA(zero_shard_poison),
    .count_poison = ZERO_ISA(zero_shard_count_poison),
    .fill_normal = ZERO_ISA(zero_shard_fill_normal),
};
