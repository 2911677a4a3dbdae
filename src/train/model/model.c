/* model.c - a model's life: declared, planned, given its memory, freed. */
#include "train/model/model.h"

#include <stdlib.h>
#include <string.h>

#include "train/model/arch.h"
#include "train/model/cuda_graphs.h"
#include "train/model/fp8.h"
#include "train/report/report.h"

static const model_ops_t *const architectures[] = {
    [ARCH_GPT2] = &gpt2_ops,   [ARCH_LLAMA] = &llama_ops, [ARCH_MISTRAL] = &llama_ops,
    [ARCH_QWEN2] = &llama_ops, [ARCH_QWEN3] = &llama_ops,
};

static zero_model_limits_t limits(const model_t *model)
{
    const options_t *o = model->options;
    size_t dim = (size_t)o->model.dim, ffn_dim = (size_t)o->model.ffn_dim, vocab = (size_t)o->model.vocab_size;
    size_t mlp = (size_t)model->ops->mlp_inputs * ffn_dim;
    size_t qkv = (size_t)((o->model.heads + 2 * o->model.kv_heads) * options_head_dim(&o->model));
    size_t narrow = qkv > 3 * dim ? qkv : 3 * dim, widest = mlp > narrow ? mlp : narrow;
    return (zero_model_limits_t){
        .n_rows = (size_t)(o->train.micro_batch * o->model.seq_len),
        .seq_len = (size_t)o->model.seq_len,
        .max_linear = dim * (widest > vocab ? widest : vocab),
        .max_width = widest,
        .n_heads = (size_t)o->model.heads,
        .head_dim = (size_t)options_head_dim(&o->model),
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
    ZERO_TRY(zero_model_create(&model->declaration));
    model->arch = calloc(1, ops->bytes + n_layers * ops->block_bytes);
    model->layers = calloc(n_layers, sizeof *model->layers);
    if (!model->arch || !model->layers)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for the tables of %zu layers", n_layers);
    ZERO_TRY(fp8_create(model));
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

/* Returns how many arrays a batch has: inputs, targets and, if documents are separate or a text grows, where they
 * begin. */
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
    return (size_t)(o->model.layers * o->model.seq_len * 2 * o->model.kv_heads * options_head_dim(&o->model)) *
           arch_largest_sizes(model).element_bytes;
}

void model_plan(const model_t *model, zero_memory_t *memory)
{
    zero_model_limits_t sizes = limits(model);
    activations_t counter = {0};
    model->ops->allocate(model, &counter);
    memory->bytes[ZERO_MEMORY_ACTIVATIONS] += counter.n_bytes + cache_bytes(model);
    memory->pinned_bytes += counter.pinned_bytes;
    memory->bytes[ZERO_MEMORY_WORKSPACE] += model->kernels->workspace_bytes(&sizes);
    memory->bytes[ZERO_MEMORY_DATA] +=
        n_batch_arrays(model) * batch_bytes(model) + sizeof(double) + sizes.vocab_size * sizeof(float);
}

/* Warns if attention takes the slow kernel. Rank 0 warns for all, since all compute the same; but every rank looks the
 * kernel up, so that the library's plans for these sizes exist before the first step. */
static void report_attention(model_t *model)
{
    const options_t *o = model->options;
    const zero_mask_t mask = arch_mask(model);
    const zero_attention_shape_t shape = {(size_t)o->train.micro_batch, (size_t)o->model.seq_len,
                                          (size_t)o->model.heads, (size_t)o->model.kv_heads,
                                          (size_t)options_head_dim(&o->model)};
    char why[ZERO_MODEL_WHY];
    if (model->kernels->attention_is_slow && model->kernels->attention_is_slow(&model->ctx, &mask, &shape, why))
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
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_WORKSPACE, workspace_bytes, &workspace));
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, batch_bytes(model), &tokens));
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, batch_bytes(model), &targets));
    if (n_batch_arrays(model) > 2)
        ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, batch_bytes(model), &starts));
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, sizeof(double), &loss));
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, sizes.vocab_size * sizeof(float), &logits));
    model->tokens = tokens;
    model->targets = targets;
    model->starts = starts;
    model->loss = loss;
    model->logits = logits;
    ZERO_TRY(zero_host_alloc(device, (size_t)n_in_flight * n_batch_arrays(model) * batch_bytes(model), &uploads));
    model->uploads = uploads;
    model->n_uploads = n_in_flight;
    ZERO_TRY(zero_stream_create(device, &model->stream));
    ZERO_TRY(model->kernels->context_create(&model->ctx, model->stream, workspace, &sizes));
    model->attached = true;
    report_attention(model);
    if (model->options->device.graphs)
        ZERO_TRY(cuda_graphs_create(model->kernels, zero_model_n_units(model->declaration), &model->graphs));
    model->ops->allocate(model, &activations);
    ZERO_TRY(activations.status);
    model->stash = activations.stash;
    model->pinned_bytes = activations.pinned_bytes;
    if (cache_bytes(model) > 0)
        ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_ACTIVATIONS, cache_bytes(model), &model->cache));
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

/* ---- model cpus ---- */
/* Whether the ranks' CPUs compute the same bits. */

zero_status_t model_compare_cpus(zero_device_t *device, zero_comm_t *comm)
{
    char mine[64], first[64];
    if (zero_device_get_type(device) != ZERO_DEVICE_CPU)
        return ZERO_OK;
    zero_model_cpu_kind(mine, sizeof mine);
    memcpy(first, mine, sizeof first);
    ZERO_TRY(zero_comm_broadcast(comm, first, sizeof first, 0));
    double n_others = strncmp(mine, first, sizeof first) != 0;
    ZERO_TRY(zero_comm_sum(comm, &n_others, 1));
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

/* ---- model flops ---- */
/* How much a model computes, and which share of the devices' peak that is. */

double model_flops_per_token(const model_t *model)
{
    const options_t *o = model->options;
    double params = (double)zero_model_n_params(model->declaration) - (double)model->ops->n_lookup_params(model);
    int64_t width = o->model.heads * options_head_dim(&o->model), seq_len = o->model.seq_len;
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

/* ---- session ---- */

zero_status_t session_open(const options_t *options, zero_comm_t *comm, session_t *session)
{
    *session = (session_t){.options = options, .comm = comm};
    ZERO_TRY(report_agree(comm, model_create(options, &session->model)));
    return report_agree(comm, zero_device_create((zero_device_type_t)options->device.type, comm, &session->device));
}

zero_status_t session_create_engine(session_t *session, int64_t n_in_flight)
{
    zero_memory_t user = {0};
    zero_config_t config = options_config(session->options, zero_comm_size(session->comm));
    model_plan(&session->model, &user);
    config.user_bytes = zero_memory_total(&user);
    config.user_pinned_bytes = user.pinned_bytes;
    ZERO_TRY(zero_engine_create(session->comm, session->device, session->model.declaration, &config, &session->engine));
    return zero_comm_agree(session->comm, model_attach(&session->model, session->device, session->engine, n_in_flight));
}

zero_status_t session_open_forward(const options_t *options, zero_comm_t *comm, session_t *session)
{
    ZERO_TRY(session_open(options, comm, session));
    session->model.may_skip_targets = true; /* data are opened later, and may have a mask */
    ZERO_TRY(report_agree(comm, session_create_engine(session, 1)));
    ZERO_TRY(report_agree(comm, zero_load_weights(session->engine, options->model.init)));
    return model_compare_cpus(session->device, comm);
}

void session_close(session_t *session, bool failed)
{
    if (failed && session->engine && zero_comm_size(session->comm) > 1)
        return;
    model_destroy(&session->model);
    zero_engine_destroy(session->engine);
    zero_device_destroy(session->device);
}
