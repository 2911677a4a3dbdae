/* zero_gpt2.h - llm.c's GPT2 on libzero: the part of the port that is new. port.sed includes it in train_gpt2.c, behind
 * the struct GPT2, whose `engine`, `pass` and `global_batch` it uses.
 *
 * Units are the embedding (0), the layers (1 to L) and the head (L + 1), which shares wte. Tensors are numbered as they
 * are declared: wte, wpe, the 12 of each layer, lnfw, lnfb. So the fields of ParameterTensors give their numbers.
 */
static zero_comm_t *comm;
static zero_device_t *device;
static int stage, rank, ranks;

static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

/* Joins the ranks. Rank 0 prints for all. */
static void start(int argc, char **argv)
{
    stage = argc > 1 ? atoi(argv[1]) : 3;
    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    rank = zero_comm_rank(comm);
    ranks = zero_comm_size(comm);
    if (rank != 0 && freopen("/dev/null", "w", stdout) == NULL)
        exit(1);
}

/* Returns field f of ParameterTensors: 0 and 1 are in the embedding, 14 and 15 in the head, the others in layers. */
static size_t n_elems(const GPT2 *model, int f)
{
    return model->param_sizes[f] / (f >= 2 && f < 14 ? model->config.num_layers : 1);
}

static zero_tensor_t tensor_of(const GPT2 *model, int unit, int f)
{
    return f < 2 ? f : f < 14 ? 12 * (unit - 1) + f : 12 * (model->config.num_layers - 1) + f;
}

static bool is_in_unit(const GPT2 *model, int unit, int f)
{
    const int head = model->config.num_layers + 1;
    return unit == 0 ? f < 2 : unit == head ? f == 0 || f >= 14 : f >= 2 && f < 14;
}

/* Reads a run of a tensor's elements from the model's file, where each field has its layers one after another. */
static zero_status_t read_chunk(void *user, const zero_chunk_t *chunk)
{
    const GPT2 *model = ((void **)user)[0];
    FILE *file = ((void **)user)[1];
    for (int unit = 0; unit <= model->config.num_layers + 1; unit++) {
        size_t at = chunk->first;
        for (int f = 0; f < NUM_PARAMETER_TENSORS; at += model->param_sizes[f++]) {
            if (!is_in_unit(model, unit, f) || tensor_of(model, unit, f) != chunk->tensor)
                continue;
            if (f >= 2 && f < 14)
                at += (unit - 1) * n_elems(model, f);
            fseekCheck(file, (long)(256 * sizeof(int) + at * sizeof(float)), SEEK_SET);
            freadCheck(chunk->master, sizeof(float), chunk->n_elems, file);
            return ZERO_OK;
        }
    }
    return ZERO_ERROR_INTERNAL;
}

/* Declares the model and reads its weights, each rank what it holds. AdamW has the settings of llm.c's main. */
static void shard(GPT2 *model, FILE *file)
{
    static const char *const names[NUM_PARAMETER_TENSORS] = {"wte",      "wpe",      "ln1w", "ln1b", "qkvw", "qkvb",
                                                             "attprojw", "attprojb", "ln2w", "ln2b", "fcw",  "fcb",
                                                             "fcprojw",  "fcprojb",  "lnfw", "lnfb"};
    zero_model_t *declared;
    zero_unit_t made;
    zero_tensor_t tensor;
    check(zero_model_create(&declared));
    for (int unit = 0; unit <= model->config.num_layers + 1; unit++) {
        char name[32];
        snprintf(name, sizeof name, "unit.%d", unit);
        check(zero_model_add_unit(declared, name, &made));
        for (int f = 0; f < NUM_PARAMETER_TENSORS; f++) {
            if (!is_in_unit(model, unit, f))
                continue;
            if (f == 0 && unit > 0) {
                check(zero_model_share_tensor(declared, unit, 0));
                continue;
            }
            snprintf(name, sizeof name, f >= 2 && f < 14 ? "h.%2$d.%1$s" : "%1$s", names[f], unit - 1);
            const zero_tensor_desc_t desc = {.name = name, .n_dims = 1, .shape = {(int64_t)n_elems(model, f)}};
            check(zero_model_add_tensor(declared, unit, &desc, &tensor));
        }
    }
    zero_config_t config = zero_config_default();
    config.stage = stage;
    config.dtype = ZERO_FP32;
    config.beta1 = 0.9f, config.beta2 = 0.999f, config.eps = 1e-8f, config.weight_decay = 0.0f;
    config.grad_clip = 0.0f;
    check(zero_engine_create(comm, device, declared, &config, &model->engine));
    check(zero_set_state(model->engine, false, read_chunk, (void *[]){model, file}));
    zero_model_destroy(declared);
    model->pass = ZERO_PASS_EVAL;
}

/* Acquires a unit and returns its parameters; in backward, *grads are its gradients, ready to be added to. */
static ParameterTensors acquire(GPT2 *model, int unit, ParameterTensors *grads)
{
    ParameterTensors params = {0};
    float **param = &params.wte, **into = grads ? &grads->wte : NULL; /* the struct is 16 pointers */
    check(zero_acquire(model->engine, unit, NULL));
    for (int f = 0; f < NUM_PARAMETER_TENSORS; f++) {
        if (!is_in_unit(model, unit, f))
            continue;
        param[f] = (float *)zero_param(model->engine, tensor_of(model, unit, f));
        if (!grads)
            continue;
        const zero_grad_t grad = zero_grad(model->engine, tensor_of(model, unit, f));
        into[f] = grad.data;
        if (!grad.accumulate)
            memset(grad.data, 0, n_elems(model, f) * sizeof(float));
    }
    return params;
}

/* Returns the loss of the whole batch. */
static float mean_loss(const GPT2 *model)
{
    double loss = (double)model->mean_loss * model->batch_size / model->global_batch;
    check(zero_comm_sum(comm, &loss, 1));
    return (float)loss;
}

static void update(GPT2 *model, float learning_rate)
{
    const double loss = (double)model->mean_loss * model->batch_size / model->global_batch;
    zero_step_result_t result;
    check(zero_step(model->engine, learning_rate, &loss, NULL));
    check(zero_step_wait(model->engine, &result));
    model->mean_loss = result.loss;
    model->pass = ZERO_PASS_EVAL;
}

static void finish(GPT2 *model)
{
    zero_engine_destroy(model->engine);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
}
