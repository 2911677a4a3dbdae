/* compare.c - see compare.h. */
#include "zero/engine/compare.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "zero/plan/declaration.h"

/* Hashes field by field, so that padding does not count. user_bytes, check, offload_threads and offload_ram are each
 * rank's own. */
static uint64_t config_hash(const zero_config_t *c)
{
    uint64_t hash = zero_hash_fold(0, &c->stage, sizeof c->stage);
    hash = zero_hash_fold(hash, &c->dtype, sizeof c->dtype);
    hash = zero_hash_fold(hash, &c->micro_steps, sizeof c->micro_steps);
    hash = zero_hash_fold(hash, &c->prefetch, sizeof c->prefetch);
    hash = zero_hash_fold(hash, &c->keep, sizeof c->keep);
    hash = zero_hash_fold(hash, &c->overlap, sizeof c->overlap);
    hash = zero_hash_fold(hash, &c->reduce_every_micro_step, sizeof c->reduce_every_micro_step);
    hash = zero_hash_fold(hash, &c->nccl_reduction, sizeof c->nccl_reduction);
    hash = zero_hash_fold(hash, &c->shard_group, sizeof c->shard_group);
    hash = zero_hash_fold(hash, &c->gather_fp8, sizeof c->gather_fp8);
    hash = zero_hash_fold(hash, &c->forward_only, sizeof c->forward_only);
    hash = zero_hash_fold(hash, &c->seed, sizeof c->seed);
    hash = zero_hash_fold(hash, &c->optimizer, sizeof c->optimizer);
    if (c->optimizer == ZERO_OPTIMIZER_OWN && c->own_optimizer && c->own_optimizer->name) { /* not checked yet */
        hash = zero_hash_fold(hash, c->own_optimizer->name, strlen(c->own_optimizer->name));
        hash = zero_hash_fold(hash, &c->own_optimizer->n_arrays, sizeof c->own_optimizer->n_arrays);
        const bool sees_matrices = c->own_optimizer->whole != NULL;
        hash = zero_hash_fold(hash, &sees_matrices, sizeof sees_matrices);
    }
    const bool hooks[] = {c->hooks && c->hooks->reduced, c->hooks && c->hooks->updated};
    hash = zero_hash_fold(hash, hooks, sizeof hooks);
    hash = zero_hash_fold(hash, &c->momentum, sizeof c->momentum);
    hash = zero_hash_fold(hash, &c->muon_momentum, sizeof c->muon_momentum);
    hash = zero_hash_fold(hash, &c->muon_steps, sizeof c->muon_steps);
    hash = zero_hash_fold(hash, &c->beta1, sizeof c->beta1);
    hash = zero_hash_fold(hash, &c->beta2, sizeof c->beta2);
    hash = zero_hash_fold(hash, &c->eps, sizeof c->eps);
    hash = zero_hash_fold(hash, &c->weight_decay, sizeof c->weight_decay);
    hash = zero_hash_fold(hash, &c->grad_clip, sizeof c->grad_clip);
    hash = zero_hash_fold(hash, &c->max_skipped_steps, sizeof c->max_skipped_steps);
    hash = zero_hash_fold(hash, &c->offload, sizeof c->offload);
    hash = zero_hash_fold(hash, &c->offload_ratio, sizeof c->offload_ratio);
    hash = zero_hash_fold(hash, &c->offload_update, sizeof c->offload_update);
    hash = zero_hash_fold(hash, &c->offload_buffer_bytes, sizeof c->offload_buffer_bytes);
    hash = zero_hash_fold(hash, &c->staging_bytes, sizeof c->staging_bytes);
    hash = zero_hash_fold(hash, &c->loss_scale_window, sizeof c->loss_scale_window);
    hash = zero_hash_fold(hash, &c->loss_scale_hysteresis, sizeof c->loss_scale_hysteresis);
    return zero_hash_fold(hash, &c->initial_loss_scale, sizeof c->initial_loss_scale);
}

zero_status_t zero_compare_across_ranks(zero_comm_t *comm, const zero_model_t *model, const zero_config_t *config)
{
    uint64_t mine[2] = {zero_model_hash(model), config_hash(config)};
    uint64_t *all = malloc((size_t)comm->size * sizeof mine); /* [size][2] */
    if (!all)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to compare %d ranks", comm->size);
    zero_status_t status = comm->ops->host_all_gather(comm, mine, sizeof mine, all);
    for (int r = 1; r < comm->size && status == ZERO_OK; r++)
        for (int k = 0; k < 2 && status == ZERO_OK; k++)
            if (all[2 * r + k] != all[k])
                status =
                    zero_fail_alike(ZERO_ERROR_MISMATCH,
                                    "rank %d has another %s than rank 0 (%016llx, not %016llx): give every rank the "
                                    "same program and arguments",
                                    r, k == 0 ? "declaration of units and tensors" : "configuration",
                                    (unsigned long long)all[2 * r + k], (unsigned long long)all[k]);
    free(all);
    return status;
}

zero_status_t zero_compare_number(zero_comm_t *comm, const char *what, int64_t number)
{
    int64_t *all = comm->scratch;
    ZERO_TRY(comm->ops->host_all_gather(comm, &number, sizeof number, all));
    for (int r = 1; r < comm->size; r++)
        if (all[r] != all[0])
            return zero_fail_alike(ZERO_ERROR_MISMATCH,
                                   "%s: %s is %lld on rank %d and %lld on rank 0: it must be the same on every rank",
                                   comm->call.name, what, (long long)all[r], r, (long long)all[0]);
    return ZERO_OK;
}
