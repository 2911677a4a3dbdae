/* model.c - walks a model through libzero, unit by unit: the same for every architecture. */
#include "train/model/model.h"

#include <stdlib.h>
#include <string.h>

#include "train/model/arch.h"
#include "train/model/fp8.h"
#include "train/report/report.h"

static const model_ops_t *const architectures[] = {
    [ARCH_GPT2] = &gpt2_ops,   [ARCH_LLAMA] = &llama_ops, [ARCH_MISTRAL] = &llama_ops,
    [ARCH_QWEN2] = &llama_ops, [ARCH_QWEN3] = &llama_ops,
};

/* ---- building ---- */

static zero_model_limits_t limits(const model_t *model)
{
    const options_t *o = model->options;
    size_t dim = (size_t)o->model.dim, ffn_dim = (size_t)o->model.ffn_dim, vocab = (size_t)o->model.vocab_size;
    size_t mlp = (size_t)model->ops->mlp_inputs * ffn_dim;
    size_t qkv = (size_t)((o->model.heads + 2 * o->model.kv_heads) * options_head_dim(o));
    size_t narrow = qkv > 3 * dim ? qkv : 3 * dim, widest = mlp > narrow ? mlp : narrow;
    return (zero_model_limits_t){
        .n_rows = (size_t)(o->train.micro_batch * o->model.seq_len),
        .seq_len = (size_t)o->model.seq_len,
        .max_linear = dim * (widest > vocab ? widest : vocab),
        .max_width = widest,
        .n_heads = (size_t)o->model.heads,
        .head_dim = (size_t)options_head_dim(o),
        .n_kv_heads = (size_t)o->model.kv_heads,
        .vocab_size = vocab,
        .dtype = (zero_dtype_t)o->train.precision,
        .fp8 = o->train.fp8 != FP8_NONE,
        .may_skip_targets = model->may_skip_targets,
    };
}

static zero_status_t declare(model_t *model)
{
    const model_ops_t *ops = model->ops;
    size_t n_layers = (size_t)model->options->model.layers;
    TRY(zero_model_create(&model->declaration));
    model->arch = calloc(1, ops->bytes + n_layers * ops->block_bytes);
    model->layers = calloc(n_layers, sizeof *model->layers);
    if (!model->arch || !model->layers)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for the tables of %zu layers", n_layers);
    TRY(fp8_create(model));
    return ops->declare(model);
}

zero_status_t model_create(const options_t *options, model_t *model)
{
    *model = (model_t){.options = options,
                       .ops = architectures[options->model.arch],
                       .kernels = zero_model_kernels((zero_device_type_t)options->device.type),
                       .declaration = NULL};
    if (!model->kernels)
        return report_error(ZERO_ERROR_USAGE,
                            "GPUs ([device] type = cuda, --gpus): this build has no CUDA: use the CPU, or build where "
                            "nvcc is; fit and --plan then need no GPU");
    zero_status_t status = declare(model);
    if (status != ZERO_OK)
        model_destroy(model);
    return status;
}

static size_t batch_bytes(const model_t *model)
{
    return (size_t)(model->options->train.micro_batch * model->options->model.seq_len) * sizeof(int32_t);
}

/* Returns how many arrays a batch has: inputs, targets and, if documents are apart or a text grows, where they begin.
 */
static size_t n_batch_arrays(const model_t *model)
{
    return model->options->data.documents == DOCUMENTS_SEPARATE || options_generate(model->options) ? 3 : 2;
}

/* Keys and values of one sequence, for generating. */
static size_t cache_bytes(const model_t *model)
{
    const options_t *o = model->options;
    if (!options_generate(o))
        return 0;
    return (size_t)(o->model.layers * o->model.seq_len * 2 * o->model.kv_heads * options_head_dim(o)) *
           arch_largest_sizes(model).element_bytes;
}

void model_plan(const model_t *model, zero_memory_t *memory)
{
    zero_model_limits_t sizes = limits(model);
    activations_t counter = {0};
    model->ops->allocate(model, &counter);
    memory->bytes[ZERO_MEMORY_ACTIVATIONS] += counter.n_bytes + cache_bytes(model);
    memory->bytes[ZERO_MEMORY_WORKSPACE] += model->kernels->workspace_bytes(&sizes);
    memory->bytes[ZERO_MEMORY_DATA] +=
        n_batch_arrays(model) * batch_bytes(model) + sizeof(double) + sizes.vocab_size * sizeof(float);
}

/* Warns if attention takes the slow kernel. Rank 0 warns for all, since all compute alike; but every rank asks, so that
 * the library's plans for these sizes exist before the first step. */
static void report_attention(model_t *model)
{
    const options_t *o = model->options;
    const zero_mask_t mask = arch_mask(model);
    char why[ZERO_MODEL_WHY];
    if (model->kernels->attention_is_slow &&
        model->kernels->attention_is_slow(&model->ctx, &mask, (size_t)o->train.micro_batch, (size_t)o->model.seq_len,
                                          (size_t)o->model.heads, (size_t)o->model.kv_heads,
                                          (size_t)options_head_dim(o), why))
        report("warning: attention is computed without tensor cores, and takes several times as long: %s", why);
}

zero_status_t model_attach(model_t *model, zero_device_t *device, zero_engine_t *engine, int64_t n_in_flight)
{
    zero_model_limits_t sizes = limits(model);
    activations_t activations = {.engine = engine};
    size_t workspace_bytes = model->kernels->workspace_bytes(&sizes);
    void *workspace, *tokens, *targets, *starts = NULL, *loss, *logits, *uploads;
    model->device = device;
    model->engine = engine;
    TRY(zero_alloc(engine, ZERO_MEMORY_WORKSPACE, workspace_bytes, &workspace));
    TRY(zero_alloc(engine, ZERO_MEMORY_DATA, batch_bytes(model), &tokens));
    TRY(zero_alloc(engine, ZERO_MEMORY_DATA, batch_bytes(model), &targets));
    if (n_batch_arrays(model) > 2)
        TRY(zero_alloc(engine, ZERO_MEMORY_DATA, batch_bytes(model), &starts));
    TRY(zero_alloc(engine, ZERO_MEMORY_DATA, sizeof(double), &loss));
    TRY(zero_alloc(engine, ZERO_MEMORY_DATA, sizes.vocab_size * sizeof(float), &logits));
    model->tokens = tokens;
    model->targets = targets;
    model->starts = starts;
    model->loss = loss;
    model->logits = logits;
    TRY(zero_host_alloc(device, (size_t)n_in_flight * n_batch_arrays(model) * batch_bytes(model), &uploads));
    model->uploads = uploads;
    model->n_uploads = n_in_flight;
    TRY(zero_stream_create(device, &model->stream));
    TRY(model->kernels->context_create(&model->ctx, model->stream, workspace, &sizes));
    model->attached = true;
    report_attention(model);
    if (model->options->device.graphs)
        TRY(cuda_graphs_create(model->kernels, zero_model_n_units(model->declaration), &model->graphs));
    model->ops->allocate(model, &activations);
    TRY(activations.status);
    if (cache_bytes(model) > 0)
        TRY(zero_alloc(engine, ZERO_MEMORY_ACTIVATIONS, cache_bytes(model), &model->cache));
    return fp8_attach(model, n_in_flight);
}

void model_destroy(model_t *model)
{
    free(model->arch);
    free(model->layers);
    fp8_destroy(model);
    cuda_graphs_destroy(model->graphs);
    if (model->attached)
        model->kernels->context_destroy(&model->ctx);
    if (model->device) {
        zero_stream_destroy(model->device, model->stream);
        zero_host_free(model->device, model->uploads);
    }
    zero_model_destroy(model->declaration);
    *model = (model_t){0};
}

double model_flops_per_token(const model_t *model)
{
    const options_t *o = model->options;
    double params = (double)zero_model_n_params(model->declaration) - (double)model->ops->n_lookup_params(model);
    int64_t width = o->model.heads * options_head_dim(o), seq_len = o->model.seq_len;
    double seen = o->model.window > 0 && o->model.window < seq_len ? (double)o->model.window : (double)seq_len;
    double keys = seen - 0.5 * seen * seen / (double)seq_len; /* of a query, on average; without a window half of all */
    return 6.0 * params + 12.0 * (double)(o->model.layers * width) * keys;
}

double model_flops_utilization(const model_t *model, double tokens_per_s, int n_devices)
{
    double peak = model->kernels->peak_flops
                      ? model->kernels->peak_flops((zero_dtype_t)model->options->train.precision) * n_devices
                      : 0.0;
    return peak > 0.0 ? model_flops_per_token(model) * tokens_per_s / peak : -1.0;
}

zero_weight_t model_weight(const model_t *model, zero_tensor_t tensor)
{
    zero_weight_t weight = {.data = zero_param(model->engine, tensor),
                            .dtype = (zero_dtype_t)model->options->train.precision};
    cuda_graphs_note_weight(model->graphs, tensor, weight);
    return weight;
}

zero_fp8_param_t model_fp8_weight(const model_t *model, zero_tensor_t tensor)
{
    zero_fp8_param_t weight = zero_param_fp8(model->engine, tensor);
    if (weight.data)
        cuda_graphs_note_fp8_weight(model->graphs, tensor, weight);
    return weight;
}

zero_grad_t model_grad(const model_t *model, zero_tensor_t tensor)
{
    zero_grad_t grad = zero_grad(model->engine, tensor);
    cuda_graphs_note_grad(model->graphs, tensor, grad);
    return grad;
}

/* ---- passes ---- */

static zero_status_t forward_unit(model_t *model, zero_unit_t unit)
{
    if (unit == 0)
        return model->ops->embed_forward(model);
    if (unit <= model->options->model.layers)
        return model->ops->block_forward(model, unit - 1);
    return model->ops->head_forward(model);
}

static zero_status_t backward_unit(model_t *model, zero_unit_t unit)
{
    if (unit == 0)
        return model->ops->embed_backward(model);
    if (unit <= model->options->model.layers)
        return model->ops->block_backward(model, unit - 1);
    return model->ops->head_backward(model);
}

/* Returns whether a unit's kernels get other numbers in every step. */
static bool varies(const model_t *model, zero_unit_t unit)
{
    return model->may_skip_targets && unit > model->options->model.layers;
}

/* Computes a unit of a pass that continues a text by one position: a graph of its own. */
static zero_status_t continue_unit(model_t *model, zero_unit_t unit)
{
    return forward_unit(model, unit);
}

/* Returns whether the pass has one position, which others precede: what differs from pass to pass is on the device. */
static bool continues_by_one(const model_t *model)
{
    return model->pass == MODEL_LOGITS && model->continues && model->n_cached > 0 && model->seq_len == 1;
}

/* Computes one unit. Every training pass is the same, and so is every pass that continues a text by one position; so
 * after a warm-up each unit's kernels run as a CUDA graph, but for a head whose loss_weight varies. */
static zero_status_t compute(model_t *model, zero_unit_t unit, zero_status_t (*fn)(model_t *model, zero_unit_t unit))
{
    if (model->graphs && continues_by_one(model) && model->n_continued == CUDA_GRAPHS_WARM_UP)
        return cuda_graphs_run(model->graphs, model, unit, continue_unit);
    if (model->graphs && model->pass == MODEL_TRAIN && model->n_trained == CUDA_GRAPHS_WARM_UP && !varies(model, unit))
        return cuda_graphs_run(model->graphs, model, unit, fn);
    return fn(model, unit);
}

static zero_status_t forward(model_t *model, zero_pass_t pass)
{
    zero_stream_t stream = model->ctx.stream;
    TRY(zero_begin(model->engine, pass, stream));
    for (zero_unit_t unit = 0; unit < zero_model_n_units(model->declaration); unit++) {
        TRY(trace_pause(model->trace, model->device));
        TRY(zero_acquire(model->engine, unit, stream));
        TRY(compute(model, unit, forward_unit));
        TRY(zero_release(model->engine, unit, stream));
    }
    return ZERO_OK;
}

static zero_status_t backward(model_t *model)
{
    zero_stream_t stream = model->ctx.stream;
    for (zero_unit_t unit = zero_model_n_units(model->declaration) - 1; unit >= 0; unit--) {
        TRY(trace_pause(model->trace, model->device));
        TRY(zero_acquire(model->engine, unit, stream));
        TRY(compute(model, unit, backward_unit));
        TRY(zero_grad_ready(model->engine, unit, stream));
    }
    return ZERO_OK;
}

static zero_status_t upload(model_t *model, void *dst, const void *src, size_t n_bytes)
{
    return zero_device_copy(model->device, dst, src, n_bytes, model->ctx.stream);
}

/* Copies a batch to the device. It is staged in pinned memory, so that neither the caller nor the host has to wait for
 * the copy. Training never has more batches in flight than the ring has entries. Evaluation might, since its passes are
 * not waited for one by one; so it waits for the device once per turn of the ring. */
static zero_status_t upload_batch(model_t *model, model_pass_t pass, model_batch_t batch)
{
    size_t n_bytes = batch_bytes(model), n_tokens = n_bytes / sizeof *batch.inputs;
    if (pass == MODEL_LOSS && model->next_upload == 0)
        TRY(zero_device_synchronize(model->device));
    int32_t *staged = model->uploads + (size_t)model->next_upload * n_batch_arrays(model) * n_tokens;
    model->next_upload = (model->next_upload + 1) % model->n_uploads;
    memcpy(staged, batch.inputs, n_bytes);
    memcpy(staged + n_tokens, batch.targets, n_bytes);
    TRY(upload(model, model->tokens, staged, n_bytes));
    TRY(upload(model, model->targets, staged + n_tokens, n_bytes));
    if (!model->starts)
        return ZERO_OK;
    memcpy(staged + 2 * n_tokens, batch.starts, n_bytes);
    return upload(model, model->starts, staged + 2 * n_tokens, n_bytes);
}

static zero_status_t set_batch(model_t *model, model_pass_t pass, model_batch_t batch, double loss_weight)
{
    model->pass = pass;
    model->n_batch = (size_t)model->options->train.micro_batch;
    model->seq_len = (size_t)model->options->model.seq_len;
    model->loss_weight = loss_weight;
    return upload_batch(model, pass, batch);
}

zero_status_t model_train(model_t *model, model_batch_t batch, double loss_weight)
{
    TRY(set_batch(model, MODEL_TRAIN, batch, loss_weight));
    TRY(forward(model, ZERO_PASS_TRAIN));
    TRY(backward(model));
    model->n_trained += model->n_trained < CUDA_GRAPHS_WARM_UP;
    return ZERO_OK;
}

zero_status_t model_loss(model_t *model, model_batch_t batch, double loss_weight)
{
    TRY(set_batch(model, MODEL_LOSS, batch, loss_weight));
    return forward(model, ZERO_PASS_EVAL);
}

zero_status_t model_loss_of(model_t *model, size_t n_sequences, model_batch_t batch, double loss_weight)
{
    TRY(set_batch(model, MODEL_LOSS, batch, loss_weight));
    model->n_batch = n_sequences;
    return forward(model, ZERO_PASS_EVAL);
}

/* Lengths are rounded up to a multiple of this, so that a growing text has few different shapes: a GPU's libraries plan
 * each one anew. The positions after the text change nothing before them, since attention is causal. */
#define LOGITS_ROUND 64

static size_t rounded_length(const model_t *model, size_t n_tokens)
{
    size_t longest = (size_t)model->options->model.seq_len;
    size_t rounded = (n_tokens + LOGITS_ROUND - 1) / LOGITS_ROUND * LOGITS_ROUND;
    return rounded < longest ? rounded : longest;
}

/* Sets the tokens of a pass: zeros behind the n_tokens given. */
static zero_status_t set_tokens(model_t *model, const int32_t *tokens, size_t n_tokens)
{
    size_t n_rows = model->n_batch * model->seq_len;
    if (n_tokens < n_rows)
        TRY(model->kernels->zero_fill(&model->ctx, model->tokens, n_rows * sizeof *tokens));
    return upload(model, model->tokens, tokens, n_tokens * sizeof *tokens);
}

/* Computes the pass and waits for the logits of row n_tokens - 1. */
static zero_status_t take_logits(model_t *model, size_t n_tokens, float *logits)
{
    model->logits_at = n_tokens - 1;
    TRY(forward(model, ZERO_PASS_EVAL));
    TRY(zero_device_copy(model->device, logits, model->logits, (size_t)model->options->model.vocab_size * sizeof(float),
                         model->ctx.stream));
    return zero_device_synchronize(model->device);
}

zero_status_t model_logits(model_t *model, const int32_t *tokens, size_t n_tokens, float *logits)
{
    model->pass = MODEL_LOGITS;
    model->n_batch = 1;
    model->seq_len = rounded_length(model, n_tokens);
    if (model->fp8 && model->seq_len % OPTIONS_FP8_MULTIPLE != 0) { /* a whole batch has rows enough */
        model->n_batch = (size_t)model->options->train.micro_batch;
        model->seq_len = (size_t)model->options->model.seq_len;
    }
    TRY(set_tokens(model, tokens, n_tokens));
    return take_logits(model, n_tokens, logits);
}

void model_forget(model_t *model)
{
    model->n_cached = 0;
}

/* Sets the new tokens and, for each, how many positions precede them. They are staged in pinned memory, which is free:
 * the last pass has been waited for. */
static zero_status_t set_new_tokens(model_t *model, const int32_t *tokens, size_t n_tokens)
{
    int32_t *staged = model->uploads, *starts = staged + n_tokens;
    memcpy(staged, tokens, n_tokens * sizeof *tokens);
    TRY(set_tokens(model, staged, n_tokens));
    if (model->n_cached == 0)
        return ZERO_OK;
    for (size_t i = 0; i < n_tokens; i++)
        starts[i] = -(int32_t)model->n_cached;
    return upload(model, model->starts, starts, n_tokens * sizeof *starts);
}

zero_status_t model_next_logits(model_t *model, const int32_t *tokens, size_t n_tokens, float *logits)
{
    size_t n_new = n_tokens - model->n_cached;
    bool rounds = model->n_cached == 0 && zero_device_get_type(model->device) != ZERO_DEVICE_CPU;
    if (!model->cache)
        return model_logits(model, tokens, n_tokens, logits);
    model->pass = MODEL_LOGITS;
    model->n_batch = 1;
    model->seq_len = rounds ? rounded_length(model, n_new) : n_new;
    TRY(set_new_tokens(model, tokens + model->n_cached, n_new));
    model->continues = true;
    zero_status_t status = take_logits(model, n_new, logits);
    model->n_continued += continues_by_one(model) && model->n_continued < CUDA_GRAPHS_WARM_UP;
    model->continues = false;
    TRY(status);
    model->n_cached = n_tokens;
    return ZERO_OK;
}

zero_status_t model_clear_loss(model_t *model)
{
    return model->kernels->zero_fill(&model->ctx, model->loss, sizeof *model->loss);
}

zero_status_t model_take_loss(model_t *model, double *loss)
{
    TRY(zero_device_copy(model->device, loss, model->loss, sizeof *loss, model->ctx.stream));
    TRY(zero_device_synchronize(model->device));
    return model_clear_loss(model);
}

/* ---- between hosts ---- */

zero_status_t model_compare_cpus(zero_device_t *device, zero_comm_t *comm)
{
    char mine[64], first[64];
    if (zero_device_get_type(device) != ZERO_DEVICE_CPU)
        return ZERO_OK;
    zero_model_cpu_kind(mine, sizeof mine);
    memcpy(first, mine, sizeof first);
    TRY(zero_comm_broadcast(comm, first, sizeof first, 0));
    double n_others = strncmp(mine, first, sizeof first) != 0;
    TRY(zero_comm_sum(comm, &n_others, 1));
    if (n_others > 0.0)
        report("the CPUs are of different kinds (rank 0: %s; %g ranks: others), so bits depend on which host computes "
               "what: set OPENBLAS_CORETYPE and ZERO_CPU_ISA alike on all hosts",
               first, n_others);
    return ZERO_OK;
}

bool model_bits_depend_on_threads(void)
{
    return zero_model_cpu_bits_depend_on_threads();
}
