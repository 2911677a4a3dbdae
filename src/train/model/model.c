/* model.c - a model's life: declared, planned, given its memory, freed. */
#include "train/model/model.h"

#include <stdlib.h>
#include <string.h>

#include "train/model/arch.h"
#include "train/model/cuda_graphs.h"
#include "train/model/fp8.h"
#include "train/model/lora.h"
#include "train/model/preference.h"
#include "train/model/sequence.h"
#include "train/options/families.h"
#include "train/report/report.h"

static zero_model_limits_t limits(const model_t *model)
{
    const options_t *o = model->options;
    size_t dim = (size_t)o->model.dim, ffn_dim = (size_t)o->model.ffn_dim, vocab = (size_t)o->model.vocab_size;
    size_t mlp = (size_t)model->ops->mlp_inputs * ffn_dim;
    size_t qkv = (size_t)((o->model.heads + 2 * o->model.kv_heads) * options_head_dim(&o->model));
    size_t narrow = qkv > 3 * dim ? qkv : 3 * dim, of_model = mlp > narrow ? mlp : narrow;
    size_t adapters = lora_width(model), widest = adapters > of_model ? adapters : of_model;
    size_t matrix = dim * (of_model > vocab ? of_model : vocab), adapter = lora_largest(model);
    return (zero_model_limits_t){
        .n_rows = (size_t)(o->train.micro_batch * options_longest_part(o)),
        .seq_len = (size_t)o->model.seq_len,
        .n_batch = options_sequence_ranks(&o->train) > 1 ? (size_t)o->train.micro_batch : 0,
        .max_linear = adapter > matrix ? adapter : matrix,
        .max_width = widest,
        .n_heads = (size_t)options_most_heads(o).n_heads,
        .head_dim = (size_t)options_head_dim(&o->model),
        .n_kv_heads = (size_t)options_most_heads(o).n_kv,
        .vocab_size = vocab,
        .dtype = (zero_dtype_t)o->train.precision,
        .fp8 = o->train.fp8 != FP8_NONE,
        .may_skip_targets = model->may_skip_targets,
        .normalizes_projections = family_of(&o->model)->qk_norm == QK_NORM_PROJECTIONS,
        .narrow_width = adapters,
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
    ZERO_TRY(lora_create(model));
    ZERO_TRY(preference_create(model));
    return ops->declare(model);
}

zero_status_t model_create(const options_t *options, model_t *model)
{
    *model = (model_t){.options = options,
                       .ops = options->model.arch == ARCH_GPT2 ? &gpt2_ops : &llama_ops,
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

/* The arrays of a batch, on the device and on their way there: inputs and targets of this rank's rows; if documents are
 * separate or a text grows, where they begin, for all positions; if ranks share sequences, that for this rank's; the
 * rows where documents of pairs begin. */
typedef struct batch_arrays {
    size_t rows, starts, part_starts, documents; /* elements; 0: there is no such array */
} batch_arrays_t;

static batch_arrays_t batch_arrays(const model_t *model)
{
    const options_t *o = model->options;
    const bool has_starts = o->data.documents == DOCUMENTS_SEPARATE || options_generate(o);
    const size_t rows = (size_t)(o->train.micro_batch * options_longest_part(o));
    return (batch_arrays_t){.rows = rows,
                            .starts = has_starts ? (size_t)(o->train.micro_batch * o->model.seq_len) : 0,
                            .part_starts = options_sequence_ranks(&o->train) > 1 ? rows : 0,
                            .documents = model->preference ? rows + 1 : 0};
}

size_t model_batch_elems(const model_t *model)
{
    const batch_arrays_t arrays = batch_arrays(model);
    return 2 * arrays.rows + arrays.starts + arrays.part_starts + arrays.documents;
}

size_t model_n_sums(const model_t *model)
{
    return model->preference ? 1 + ZERO_N_PAIR_SUMS : 1;
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
    memory->bytes[ZERO_MEMORY_DATA] += model_batch_elems(model) * sizeof(int32_t) +
                                       model_n_sums(model) * sizeof(double) + sizes.vocab_size * sizeof(float);
    (void)sequence_plan(model, memory); /* sizes are counted: options_resolve */
}

/* Warns if attention takes the slow kernel. Rank 0 warns for all, since all compute the same; but every rank looks the
 * kernel up, so that the library's plans for these sizes exist before the first step. */
static void report_attention(model_t *model)
{
    const options_t *o = model->options;
    const zero_attention_shape_t whole = {(size_t)o->train.micro_batch, (size_t)o->model.seq_len,
                                          (size_t)o->model.heads, (size_t)o->model.kv_heads,
                                          (size_t)options_head_dim(&o->model)};
    const zero_attention_shape_t shape =
        model->sequence ? sequence_attention_shape(model, (size_t)o->train.micro_batch) : whole;
    char why[ZERO_MODEL_WHY];
    bool is_slow = false;
    for (int l = 0; l < o->model.layers && !is_slow && model->kernels->attention_is_slow; l++) {
        const zero_mask_t mask = arch_mask(model, l);
        if (l > 0 && options_window(&o->model, l) == options_window(&o->model, l - 1))
            continue;
        is_slow = model->kernels->attention_is_slow(&model->ctx, &mask, &shape, why);
    }
    if (is_slow)
        report("warning: attention is computed without tensor cores, and takes several times as long: %s", why);
}

zero_status_t model_attach(model_t *model, zero_device_t *device, zero_engine_t *engine, int64_t n_in_flight)
{
    zero_model_limits_t sizes = limits(model);
    activations_t activations = {.engine = engine};
    size_t workspace_bytes = model->kernels->workspace_bytes(&sizes);
    const batch_arrays_t arrays = batch_arrays(model);
    void *workspace, *tokens, *targets, *starts = NULL, *part_starts = NULL, *documents = NULL, *loss, *logits,
                                        *uploads;
    model->device = device;
    model->engine = engine;
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_WORKSPACE, workspace_bytes, &workspace));
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, arrays.rows * sizeof(int32_t), &tokens));
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, arrays.rows * sizeof(int32_t), &targets));
    if (arrays.starts > 0)
        ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, arrays.starts * sizeof(int32_t), &starts));
    if (arrays.part_starts > 0)
        ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, arrays.part_starts * sizeof(int32_t), &part_starts));
    if (arrays.documents > 0)
        ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, arrays.documents * sizeof(int32_t), &documents));
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, model_n_sums(model) * sizeof(double), &loss));
    ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_DATA, sizes.vocab_size * sizeof(float), &logits));
    model->tokens = tokens;
    model->targets = targets;
    model->starts = starts;
    model->part_starts = part_starts;
    model->documents = documents;
    model->loss = loss;
    model->logits = logits;
    ZERO_TRY(zero_host_alloc(device, (size_t)n_in_flight * model_batch_elems(model) * sizeof(int32_t), &uploads));
    model->uploads = uploads;
    model->n_uploads = n_in_flight;
    ZERO_TRY(zero_stream_create(device, &model->stream));
    ZERO_TRY(model->kernels->context_create(&model->ctx, model->stream, workspace, &sizes));
    model->attached = true;
    report_attention(model);
    if (model->options->device.graphs && !model->sequence) /* an exchange cannot be captured */
        ZERO_TRY(cuda_graphs_create(model->kernels, zero_model_n_units(model->declaration), &model->graphs));
    model->ops->allocate(model, &activations);
    ZERO_TRY(activations.status);
    model->stash = activations.stash;
    model->pinned_bytes = activations.pinned_bytes;
    if (cache_bytes(model) > 0)
        ZERO_TRY(zero_alloc(engine, ZERO_MEMORY_ACTIVATIONS, cache_bytes(model), &model->cache));
    ZERO_TRY(preference_attach(model, n_in_flight));
    return fp8_attach(model, n_in_flight);
}

void model_destroy(model_t *model)
{
    free(model->arch);
    free(model->layers);
    fp8_destroy(model);
    lora_destroy(model);
    preference_destroy(model);
    sequence_destroy(model);
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
    const double adapters = (double)lora_n_params(model), all = (double)zero_model_n_params(model->declaration);
    const double multiplied = all - adapters - (double)model->ops->n_lookup_params(model);
    const double of_params = (model->lora ? 4.0 : 6.0) * multiplied + 6.0 * adapters;
    const int64_t width = o->model.heads * options_head_dim(&o->model);
    const double attention = (double)(o->model.layers * width) * options_mean_keys(&o->model);
    const double reference = model->preference ? 2.0 * multiplied + 4.0 * attention : 0.0;
    return of_params + 12.0 * attention + reference;
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
    ZERO_TRY(report_agree(comm, sequence_create(&session->model, zero_comm_rank(comm))));
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
    ZERO_TRY(
        zero_comm_agree(session->comm, model_attach(&session->model, session->device, session->engine, n_in_flight)));
    return sequence_attach(&session->model);
}

zero_status_t session_load_base(session_t *session)
{
    const char *init = session->options->model.init;
    ZERO_TRY(zero_init_parameters(session->engine));
    return options_init_is_random(init) ? ZERO_OK : zero_load_weights(session->engine, init);
}

zero_status_t session_load_adapters(session_t *session)
{
    const char *init = session->options->lora.init;
    const int n_tensors = lora_n_tensors(&session->model);
    zero_partial_t partial = {0};
    if (options_init_is_random(init))
        return lora_init(&session->model, session->engine);
    ZERO_TRY(zero_load_weights_partial(session->engine, init, &partial));
    if (partial.n_ignored > 0)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s' has %d of the %d tensors that the model's adapters have, and %d others: it is of "
                            "another model, or of adapters that cannot be used here",
                            init, partial.n_loaded, n_tensors, partial.n_ignored);
    if (partial.n_loaded == n_tensors || options_are_forward_only(session->options))
        return ZERO_OK; /* those that are not there are zeros, which change nothing */
    return report_error(ZERO_ERROR_USAGE,
                        "[lora] init: '%s' has adapters of some layers only, %d of the %d tensors that training needs: "
                        "make one model of it by zerotrain merge, and name that in [model] init",
                        init, partial.n_loaded, n_tensors);
}

zero_status_t session_open_forward(const options_t *options, zero_comm_t *comm, session_t *session)
{
    ZERO_TRY(session_open(options, comm, session));
    session->model.may_skip_targets = true; /* data are opened later, and may have a mask */
    ZERO_TRY(report_agree(comm, session_create_engine(session, 1)));
    zero_status_t status =
        session->model.lora ? session_load_base(session) : zero_load_weights(session->engine, options->model.init);
    if (status == ZERO_OK && session->model.lora)
        status = session_load_adapters(session);
    ZERO_TRY(report_agree(comm, status));
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
