/* sequence_cases.c - ranks that share sequences compute what plain fp64 computes with the whole sequence. Usage:
 * sequence_cases K SEED, on a multiple of K ranks.
 *
 * Draws a small model of any architecture and a batch of odd length, with documents across the cuts and the MLP in
 * tiles, and trains one step of 1 or 2 micro-steps. Loss and gradients are compared with fp64's loss and its central
 * differences; ranks share these. Prints the case and "ok".
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mpi/expect.h"
#include "tests/support/fp64/fp64_model.h"
#include "tests/support/support.h"
#include "tests/support/trainer.h"

#define N_SAMPLED 48 /* elements of each tensor */
#define DIFFERENCE_STEP 1e-5
#define DIFFERENCE_ERROR 1e-9 /* as fp64_model.h says */
/* Of a gradient, relative to the largest of its tensor, as in test_model.c: fp32 sums over two layers. */
#define TOLERANCE 5e-6
#define LEAST 5e-2 /* where all of a tensor's cancel: with a window of 1, those of q and k */
#define LOSS_TOLERANCE 2e-7

typedef struct batch {
    int32_t *tokens, *targets, *starts; /* [n_sequences, seq_len]; starts NULL: no documents */
    size_t n_sequences, seq_len;
} batch_t;

static int64_t pick(uint64_t *random, int64_t low, int64_t high)
{
    return low + (int64_t)(support_random(random) % (uint64_t)(high - low + 1));
}

static options_t draw_options(uint64_t *random, int64_t n_ranks, int n_all)
{
    static const options_arch_t archs[] = {ARCH_GPT2, ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3, ARCH_MISTRAL};
    const options_arch_t arch = archs[support_random(random) % 5];
    /* At least one head a rank, and kv heads that fewer, as many or more ranks share. */
    const int64_t kv_heads = pick(random, 1, 3),
                  per_kv = pick(random, (n_ranks + kv_heads - 1) / kv_heads, 4 + n_ranks);
    const int64_t heads = kv_heads * per_kv;
    /* Norms of heads of two elements are so large at times that fp32 shows it. */
    const int64_t head_dim = 2 * pick(random, arch == ARCH_QWEN3 ? 3 : 1, 4);
    options_t o =
        trainer_options(pick(random, 1, 2), heads * head_dim, heads, 37, pick(random, n_ranks, 3 * n_ranks + 5));
    o.model.arch = (int)arch;
    o.model.kv_heads = arch == ARCH_GPT2 ? heads : kv_heads;
    o.model.head_dim = head_dim;
    o.model.ffn_dim = pick(random, 1, 30);
    if (arch == ARCH_GPT2)
        o.model.ffn_dim = 4 * o.model.dim;
    if (arch == ARCH_GPT2 && support_random(random) % 2)
        o.model.positions = o.model.seq_len + 3;
    o.model.window = arch == ARCH_MISTRAL ? pick(random, 1, o.model.seq_len) : 0;
    o.model.tied = arch != ARCH_GPT2 && support_random(random) % 2;
    o.model.recompute = (int)pick(random, RECOMPUTE_NONE, RECOMPUTE_FULL);
    o.model.norm_eps = 1e-4;
    o.model.rope_theta = 100.0;
    o.train.sequence_ranks = n_ranks;
    o.train.micro_batch = pick(random, 1, 2);
    o.train.global_batch = o.train.micro_batch * (n_all / n_ranks) * pick(random, 1, 2);
    o.train.grad_clip = 0.0;
    if (arch != ARCH_GPT2 && support_random(random) % 2)
        o.train.mlp_tile = pick(random, 1, o.model.seq_len);
    o.data.documents = support_random(random) % 3 ? DOCUMENTS_SEPARATE : DOCUMENTS_JOIN;
    o.zero.stage = pick(random, 0, 3);
    OK(options_resolve(&o, n_all));
    return o;
}

static fp64_model_t *make_reference(const options_t *o, uint64_t *random)
{
    const fp64_sizes_t sizes = {.layers = (size_t)o->model.layers,
                                .dim = (size_t)o->model.dim,
                                .heads = (size_t)o->model.heads,
                                .kv_heads = (size_t)o->model.kv_heads,
                                .ffn_dim = (size_t)o->model.ffn_dim,
                                .vocab_size = (size_t)o->model.vocab_size,
                                .max_seq_len = (size_t)options_positions(&o->model),
                                .norm_eps = o->model.norm_eps,
                                .window = (size_t)o->model.window,
                                .head_dim = (size_t)o->model.head_dim,
                                .qkv_bias = o->model.arch == ARCH_QWEN2,
                                .head_norms = o->model.arch == ARCH_QWEN3,
                                .tied = o->model.tied,
                                .rope_theta = o->model.rope_theta,
                                .rope_factor = 1.0};
    fp64_model_t *reference = o->model.arch == ARCH_GPT2 ? gpt2_fp64_create(&sizes) : llama_fp64_create(&sizes);
    for (size_t t = 0; t < reference->n_tensors; t++) {
        fp64_tensor_t *tensor = &reference->tensors[t];
        bool is_norm_weight = tensor->n_dims == 1 && strstr(tensor->name, ".weight");
        for (size_t i = 0; i < tensor->n_elems; i++)
            tensor->values[i] = (double)(float)(support_normal(random) * (tensor->n_dims == 2 ? 0.2 : 0.1) +
                                                (is_norm_weight ? 1.0 : 0.0));
    }
    return reference;
}

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    const fp64_tensor_t *tensor = &((fp64_model_t *)user)->tensors[chunk->tensor];
    for (size_t i = 0; i < chunk->n_elems; i++)
        chunk->master[i] = (float)tensor->values[chunk->first + i];
    return ZERO_OK;
}

static batch_t draw_batch(const options_t *o, uint64_t *random)
{
    batch_t b = {.n_sequences = (size_t)o->train.global_batch, .seq_len = (size_t)o->model.seq_len};
    const size_t n = b.n_sequences * b.seq_len;
    b.tokens = calloc(n, sizeof *b.tokens);
    b.targets = calloc(n, sizeof *b.targets);
    b.starts = o->data.documents == DOCUMENTS_SEPARATE ? calloc(n, sizeof *b.starts) : NULL;
    CHECK(b.tokens && b.targets, "no memory");
    for (size_t i = 0; i < n; i++) {
        b.tokens[i] = (int32_t)pick(random, 0, o->model.vocab_size - 1);
        b.targets[i] = (int32_t)pick(random, 0, o->model.vocab_size - 1);
        if (b.starts && i % b.seq_len > 0)
            b.starts[i] = support_random(random) % 4 == 0 ? (int32_t)(i % b.seq_len) : b.starts[i - 1];
    }
    return b;
}

/* Copies this rank's columns of rows first .. first + n_sequences. */
static int32_t *part_of(const trainer_t *t, const int32_t *all, size_t first)
{
    const size_t T = (size_t)t->options->model.seq_len, n = sequence_len(&t->model), begin = sequence_begin(&t->model);
    const size_t n_batch = (size_t)t->options->train.micro_batch;
    int32_t *part = malloc(n_batch * n * sizeof *part);
    CHECK(part, "no memory");
    for (size_t b = 0; b < n_batch; b++)
        memcpy(part + b * n, all + (first + b) * T + begin, n * sizeof *part);
    return part;
}

/* Runs the passes of one step; its gradients can be read then. */
static void run_passes(trainer_t *t, const batch_t *batch)
{
    const options_t *o = t->options;
    const int n_groups = zero_comm_size(t->comm) / (int)o->train.sequence_ranks;
    const int group = zero_comm_rank(t->comm) / (int)o->train.sequence_ranks;
    OK(model_clear_loss(&t->model));
    for (int k = 0; k < options_micro_steps(&o->train, zero_comm_size(t->comm)); k++) {
        const size_t first = (size_t)((k * n_groups + group) * o->train.micro_batch);
        int32_t *inputs = part_of(t, batch->tokens, first), *targets = part_of(t, batch->targets, first);
        const int32_t *starts = batch->starts ? batch->starts + first * batch->seq_len : NULL;
        OK(model_train(&t->model, (model_batch_t){.inputs = inputs, .targets = targets, .starts = starts},
                       1.0 / (double)(batch->n_sequences * batch->seq_len)));
        free(inputs);
        free(targets);
    }
}

static double check_tensor(const trainer_t *t, fp64_model_t *reference, const fp64_batch_t *batch, size_t tensor)
{
    fp64_tensor_t *values = &reference->tensors[tensor];
    float *grad = malloc(values->n_elems * sizeof *grad);
    const size_t stride = values->n_elems / N_SAMPLED + 1;
    double largest = 0.0, worst = 0.0;
    CHECK(grad, "no memory");
    OK(zero_get_tensor(t->engine, (zero_tensor_t)tensor, ZERO_ARRAY_GRAD, ZERO_ALL_RANKS, grad));
    for (size_t i = 0; i < values->n_elems; i++)
        largest = fmax(largest, fabs((double)grad[i]));
    for (size_t i = 0; i < values->n_elems; i += stride) {
        if (i / stride % (size_t)zero_comm_size(t->comm) != (size_t)zero_comm_rank(t->comm))
            continue;
        const double want = fp64_model_numeric_grad(reference, batch, values, i, DIFFERENCE_STEP);
        const double error = fabs((double)grad[i] - want);
        CHECK(error <= TOLERANCE * fmax(largest, LEAST) + DIFFERENCE_ERROR,
              "%s[%zu]: %.9g, fp64 has %.9g (largest %.3g)", values->name, i, (double)grad[i], want, largest);
        worst = fmax(worst, error / (largest + 1e-30));
    }
    free(grad);
    return worst;
}

int main(int argc, char **argv)
{
    trainer_t t;
    zero_comm_t *comm;
    zero_step_result_t result;
    CHECK(argc == 3, "usage: sequence_cases K SEED");
    uint64_t random = strtoull(argv[2], NULL, 10) * 1000003 + 7;
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    const options_t o = draw_options(&random, atoi(argv[1]), zero_comm_size(comm));
    if (zero_comm_rank(comm) == 0)
        printf(
            "arch %d, %d layers, %d heads, %d kv, %d tokens, micro-batch %d of %d, window %d, recompute %d, stage %d, "
            "tile %d%s%s\n",
            o.model.arch, (int)o.model.layers, (int)o.model.heads, (int)o.model.kv_heads, (int)o.model.seq_len,
            (int)o.train.micro_batch, (int)o.train.global_batch, (int)o.model.window, o.model.recompute,
            (int)o.zero.stage, (int)o.train.mlp_tile, o.model.tied ? ", tied" : "",
            o.data.documents == DOCUMENTS_SEPARATE ? ", documents" : "");
    fflush(stdout);
    OK(trainer_open(&t, &o, comm));
    fp64_model_t *reference = make_reference(&o, &random);
    CHECK((int)reference->n_tensors == zero_model_n_tensors(t.model.declaration), "%zu tensors", reference->n_tensors);
    OK(zero_set_state(t.engine, false, fill, reference));
    const batch_t batch = draw_batch(&o, &random);
    const fp64_batch_t whole = {batch.tokens, batch.targets, batch.n_sequences, batch.seq_len, batch.starts};
    run_passes(&t, &batch);
    double worst = 0.0;
    for (size_t tensor = 0; tensor < reference->n_tensors; tensor++)
        worst = fmax(worst, check_tensor(&t, reference, &whole, tensor));
    OK(zero_step(t.engine, 0.0f, t.model.loss, t.model.ctx.stream));
    OK(zero_step_wait(t.engine, &result));
    const double want = fp64_model_loss(reference, &whole, NULL);
    CHECK(fabs((double)result.loss - want) <= LOSS_TOLERANCE * want, "loss %.9g, fp64 has %.9g", (double)result.loss,
          want);
    if (zero_comm_rank(comm) == 0)
        printf("ok: gradients off by %.2g of a tensor's largest at most, the loss by %.2g\n", worst,
               fabs((double)result.loss - want) / want);
    fp64_model_destroy(reference);
    free(batch.tokens);
    free(batch.targets);
    free(batch.starts);
    trainer_close(&t);
    zero_comm_destroy(comm);
    return 0;
}
