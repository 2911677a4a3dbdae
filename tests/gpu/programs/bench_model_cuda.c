/* bench_model_cuda.c - times every CUDA model kernel in bf16 at the sizes of GPT-2 124M and 1558M, 16 x 1024 tokens,
 * and of Llama-3-8B, 2 x 4096. Each is compared with what the chip reaches here: TFLOP/s with a large square product,
 * TB/s with a copy.
 *
 * Each row is the median of several timed runs over several input sets, so that nothing stays in the cache from one run
 * to the next. Bytes are the fewest that the work must move: each input read once, each output written once. The last
 * lines are sums over a training step's calls, without the optimizer: of matrix products and attention, the step's
 * floor, and of all. They are followed by the time of the same calls one after another for seconds, since single rows
 * run on a cool GPU at its highest clock, and training does not.
 *
 *     bench_model_cuda [124m|1558m|8b [NAME...]]
 *     bench_model_cuda masks
 *     bench_model_cuda lengths
 *
 * With NAMEs, runs only the rows that begin with one of them. The part `masks`, which also runs without arguments,
 * times attention within windows and documents, at the same sizes; its rates count the pairs of query and key that are
 * seen. The part `lengths` times attention over 4096 to a million tokens, each for seconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "train/kernels/kernels.h"
#define PROGRAM "bench_model_cuda"
#include "tests/gpu/support/need.h"

#define N_SETS 3
#define N_RUNS 21
#define LOAD_MS 2000.0

typedef struct model {
    const char *name, *title;
    bool is_llama; /* RMSNorm, rotary positions, SwiGLU, no biases, matrices as in nn.Linear; else GPT-2 */
    size_t layers, dim, heads, kv_heads, ffn_dim, vocab_size, batch, seq_len;
} model_t;

static const model_t models[] = {{"124m", "GPT-2 124M", false, 12, 768, 12, 12, 3072, 50304, 16, 1024},
                                 {"1558m", "GPT-2 1558M", false, 48, 1600, 25, 25, 6400, 50304, 16, 1024},
                                 {"1b", "Llama-3.2-1B", true, 16, 2048, 32, 8, 8192, 128256, 4, 4096},
                                 {"8b", "Llama-3-8B", true, 32, 4096, 32, 8, 14336, 128256, 2, 4096}};

static size_t rows_in(const model_t *m)
{
    return m->batch * m->seq_len;
}

/* Returns the width of the widest activation: GPT-2's hidden layer, Llama's gates and ups. */
static size_t width_of(const model_t *m)
{
    return m->is_llama ? 2 * m->ffn_dim : m->ffn_dim;
}

/* One set of tensors; runs alternate between sets. Activations are bf16 [rows, width], large enough for every use. */
typedef struct set {
    void *in, *out, *third, *fourth;
    void *weight, *dweight; /* [vocab_size, dim] */
    void *bias, *dbias;     /* [width] */
    float *mean, *rstd;     /* [rows, heads] */
} set_t;

typedef struct bench {
    const zero_model_kernels_t *k;
    zero_model_context_t ctx;
    cudaStream_t stream;
    const model_t *model;
    set_t sets[N_SETS], *s; /* s: the current one */
    int32_t *tokens;
    double *loss;
    float *scale;
    const zero_mask_t *mask; /* attention's; NULL: none */
} bench_t;

static zero_weight_t weight_of(const void *data)
{
    return (zero_weight_t){.data = data, .dtype = ZERO_BF16};
}
static zero_grad_t grad_of(void *data)
{
    return (zero_grad_t){data, ZERO_BF16, false};
}

/* ---- One function for each kind of row, whose two sizes it is given ---- */

static zero_status_t copy(bench_t *b, size_t n_bytes, size_t unused)
{
    (void)unused;
    return cudaMemcpyAsync(b->s->out, b->s->in, n_bytes, cudaMemcpyDeviceToDevice, b->stream) == cudaSuccess
               ? ZERO_OK
               : ZERO_ERROR_DEVICE;
}

static zero_linear_layout_t layout_of(const bench_t *b)
{
    return b->model->is_llama ? ZERO_LINEAR_OUT_IN : ZERO_LINEAR_IN_OUT;
}
static zero_status_t linear(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear(&b->ctx, b->s->out, false, b->s->in, weight_of(b->s->weight), layout_of(b),
                        weight_of(b->model->is_llama ? NULL : b->s->bias), rows_in(b->model), n_in, n_out);
}
static zero_status_t linear_input(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear_backward_input(&b->ctx, b->s->out, false, b->s->in, weight_of(b->s->weight), layout_of(b),
                                       rows_in(b->model), n_in, n_out);
}
static zero_status_t linear_weight(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear_backward_weight(&b->ctx, grad_of(b->s->dweight), layout_of(b), grad_of(NULL), b->s->in,
                                        b->s->third, rows_in(b->model), n_in, n_out);
}
static zero_status_t linear_weight_bias(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear_backward_weight(&b->ctx, grad_of(b->s->dweight), layout_of(b), grad_of(b->s->dbias), b->s->in,
                                        b->s->third, rows_in(b->model), n_in, n_out);
}
static zero_status_t attention(bench_t *b, size_t heads, size_t head_dim)
{
    const model_t *m = b->model;
    return b->k->attention(&b->ctx, b->s->out, b->s->mean, b->s->in, b->mask,
                           &(zero_attention_shape_t){m->batch, m->seq_len, heads, m->kv_heads, head_dim});
}
static zero_status_t attention_backward(bench_t *b, size_t heads, size_t head_dim)
{
    const model_t *m = b->model;
    return b->k->attention_backward(&b->ctx, b->s->fourth, b->s->third, b->s->in, b->s->out, b->s->mean, b->mask,
                                    &(zero_attention_shape_t){m->batch, m->seq_len, heads, m->kv_heads, head_dim});
}
static zero_status_t layernorm(bench_t *b, size_t rows, size_t dim)
{
    return b->k->layernorm(&b->ctx, b->s->out, b->s->mean, b->s->rstd, b->s->fourth, b->s->in, b->s->third,
                           weight_of(b->s->weight), weight_of(b->s->bias), 1e-5f, rows, dim);
}
static zero_status_t norm_backward(bench_t *b, void *y, size_t rows, size_t dim)
{
    return b->k->layernorm_backward(&b->ctx, b->s->out, grad_of(b->s->dweight), grad_of(b->s->dbias),
                                    grad_of((char *)b->s->dweight + 2 * dim), y, b->s->third, b->s->in, b->s->mean,
                                    b->s->rstd, weight_of(b->s->weight), weight_of(b->s->bias), rows, dim);
}
static zero_status_t layernorm_backward(bench_t *b, size_t rows, size_t dim)
{
    return norm_backward(b, NULL, rows, dim);
}
static zero_status_t layernorm_backward_recomputed(bench_t *b, size_t rows, size_t dim)
{
    return norm_backward(b, b->s->fourth, rows, dim);
}
static zero_status_t gelu(bench_t *b, size_t rows, size_t width)
{
    return b->k->gelu(&b->ctx, b->s->out, b->s->in, rows * width);
}
static zero_status_t gelu_backward(bench_t *b, size_t rows, size_t width)
{
    return b->k->gelu_backward(&b->ctx, b->s->third, grad_of(b->s->dbias), NULL, b->s->third, b->s->in, rows, width);
}
static zero_status_t gelu_backward_recomputed(bench_t *b, size_t rows, size_t width)
{
    return b->k->gelu_backward(&b->ctx, b->s->third, grad_of(b->s->dbias), b->s->out, b->s->third, b->s->in, rows,
                               width);
}
static zero_status_t put_grad(bench_t *b, size_t rows, size_t dim)
{
    (void)rows;
    return b->k->put_grad(&b->ctx, grad_of(b->s->dbias), b->s->mean, dim);
}
static zero_status_t rmsnorm(bench_t *b, size_t rows, size_t dim)
{
    return b->k->rmsnorm(&b->ctx, b->s->out, b->s->rstd, b->s->fourth, b->s->in, b->s->third, weight_of(b->s->weight),
                         1e-5f, rows, dim);
}
static zero_status_t rmsnorm_backward(bench_t *b, size_t rows, size_t dim)
{
    return b->k->rmsnorm_backward(&b->ctx, b->s->out, grad_of(b->s->dweight), NULL, b->s->third, b->s->in, b->s->rstd,
                                  weight_of(b->s->weight), rows, dim);
}
static zero_status_t rmsnorm_backward_recomputed(bench_t *b, size_t rows, size_t dim)
{
    return b->k->rmsnorm_backward(&b->ctx, b->s->out, grad_of(b->s->dweight), b->s->fourth, b->s->third, b->s->in,
                                  b->s->rstd, weight_of(b->s->weight), rows, dim);
}
static zero_status_t rope(bench_t *b, size_t heads, size_t head_dim)
{
    const model_t *m = b->model;
    return b->k->rope(&b->ctx, b->s->out, false, &(zero_rope_t){.theta = 500000.0f},
                      &(zero_attention_shape_t){m->batch, m->seq_len, heads, m->kv_heads, head_dim});
}
static zero_status_t head_norm(bench_t *b, size_t rows, size_t head_dim)
{
    const model_t *m = b->model;
    return b->k->head_norm(&b->ctx, b->s->out, b->s->in, weight_of(b->s->weight), weight_of(b->s->weight), 1e-5f, rows,
                           m->heads, m->kv_heads, head_dim);
}
static zero_status_t head_norm_backward(bench_t *b, size_t rows, size_t head_dim)
{
    const model_t *m = b->model;
    return b->k->head_norm_backward(&b->ctx, b->s->out, grad_of(b->s->dweight), grad_of(b->s->dbias), b->s->in,
                                    weight_of(b->s->weight), weight_of(b->s->weight), 1e-5f, rows, m->heads,
                                    m->kv_heads, head_dim);
}
static zero_status_t swiglu(bench_t *b, size_t rows, size_t width)
{
    return b->k->swiglu(&b->ctx, b->s->out, b->s->in, rows, width);
}
static zero_status_t swiglu_backward(bench_t *b, size_t rows, size_t width)
{
    return b->k->swiglu_backward(&b->ctx, b->s->out, NULL, b->s->third, b->s->in, rows, width);
}
static zero_status_t swiglu_backward_recomputed(bench_t *b, size_t rows, size_t width)
{
    return b->k->swiglu_backward(&b->ctx, b->s->out, b->s->fourth, b->s->third, b->s->in, rows, width);
}
static zero_status_t embed(bench_t *b, size_t rows, size_t dim)
{
    return b->k->embed(&b->ctx, b->s->out, b->tokens, NULL, weight_of(b->s->weight),
                       weight_of(b->model->is_llama ? NULL : b->s->in), rows / b->model->seq_len, b->model->seq_len,
                       dim, b->model->vocab_size);
}
/* GPT-2's table is also the output head's, whose gradient it already holds. */
static zero_status_t embed_backward(bench_t *b, size_t rows, size_t dim)
{
    const model_t *m = b->model;
    zero_grad_t table = {b->s->dweight, ZERO_BF16, !m->is_llama};
    return b->k->embed_backward(&b->ctx, table, grad_of(m->is_llama ? NULL : b->s->out), b->s->third, b->tokens, NULL,
                                rows / m->seq_len, m->seq_len, m->seq_len, dim, m->vocab_size);
}
static zero_status_t head_loss(bench_t *b, size_t dim, size_t vocab_size)
{
    return b->k->head_loss(&b->ctx, b->loss, b->s->out, grad_of(b->s->dweight), b->s->in, weight_of(b->s->weight),
                           b->tokens, 1.0 / (double)rows_in(b->model), b->scale, rows_in(b->model), dim, vocab_size);
}
static zero_status_t copy_tensor(bench_t *b, size_t rows, size_t dim)
{
    return copy(b, rows * dim * 2, 0);
}
static zero_status_t zero_fill(bench_t *b, size_t rows, size_t dim)
{
    return b->k->zero_fill(&b->ctx, b->s->out, rows * dim * 2);
}

/* ---- Timing ---- */

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

typedef zero_status_t (*row_fn)(bench_t *b, size_t first, size_t second);

/* Queues all runs before waiting for the first, so that no time includes the host's. */
static double median_ms(bench_t *b, row_fn run, size_t first, size_t second)
{
    float times[N_RUNS];
    cudaEvent_t starts[N_RUNS], ends[N_RUNS];
    for (int i = -2 * N_SETS; i < N_RUNS; ++i) {
        b->s = &b->sets[(i + 2 * N_SETS) % N_SETS];
        if (i >= 0) {
            NEED(cudaEventCreate(&starts[i]) == cudaSuccess && cudaEventCreate(&ends[i]) == cudaSuccess);
            NEED(cudaEventRecord(starts[i], b->stream) == cudaSuccess);
        }
        NEED(run(b, first, second) == ZERO_OK);
        if (i >= 0)
            NEED(cudaEventRecord(ends[i], b->stream) == cudaSuccess);
    }
    NEED(cudaStreamSynchronize(b->stream) == cudaSuccess);
    for (int i = 0; i < N_RUNS; ++i) {
        NEED(cudaEventElapsedTime(&times[i], starts[i], ends[i]) == cudaSuccess);
        cudaEventDestroy(starts[i]), cudaEventDestroy(ends[i]);
    }
    qsort(times, N_RUNS, sizeof *times, compare_floats);
    return times[N_RUNS / 2];
}

/* ---- Setting up ---- */

/* Returns a bf16 tensor with values in about [-scale, scale): a block made on the host, repeated. */
static void *random_tensor(size_t n, double scale)
{
    enum { BLOCK = 1 << 20 };
    static uint16_t block[BLOCK];
    static uint64_t state = 1;
    unsigned char *data;
    for (size_t i = 0; i < BLOCK; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        float x = (float)((double)(int32_t)(state >> 32) * 0x1p-31 * scale);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        block[i] = (uint16_t)(bits >> 16);
    }
    size_t done = n < BLOCK ? n : BLOCK;
    NEED(cudaMalloc((void **)&data, n * 2) == cudaSuccess);
    NEED(cudaMemcpy(data, block, 2 * done, cudaMemcpyHostToDevice) == cudaSuccess);
    for (; done < n; done += done < n - done ? done : n - done)
        NEED(cudaMemcpy(data + 2 * done, data, 2 * (done < n - done ? done : n - done), cudaMemcpyDeviceToDevice) ==
             cudaSuccess);
    return data;
}

static void open_bench(bench_t *b, const model_t *model)
{
    size_t dim = model->dim, n_rows = rows_in(model), width = width_of(model);
    zero_model_limits_t limits = {.n_rows = n_rows,
                                  .seq_len = model->seq_len,
                                  .max_linear = model->vocab_size * dim,
                                  .max_width = width,
                                  .n_heads = model->heads,
                                  .head_dim = dim / model->heads,
                                  .n_kv_heads = model->kv_heads,
                                  .vocab_size = model->vocab_size,
                                  .dtype = ZERO_BF16};
    void *workspace;
    int32_t *tokens = malloc(n_rows * sizeof *tokens);
    uint64_t state = 7;
    NEED(tokens != NULL);
    *b = (bench_t){.k = zero_model_kernels_cuda(), .model = model};
    NEED(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(cudaMalloc(&workspace, b->k->workspace_bytes(&limits)) == cudaSuccess);
    NEED(b->k->context_create(&b->ctx, (zero_stream_t)b->stream, workspace, &limits) == ZERO_OK);
    for (size_t i = 0; i < N_SETS; ++i) {
        set_t *s = &b->sets[i];
        void **activations[] = {&s->in, &s->out, &s->third, &s->fourth};
        for (size_t a = 0; a < 4; ++a)
            *activations[a] = random_tensor(n_rows * width, 1.0);
        s->weight = random_tensor(model->vocab_size * dim, 0.05);
        s->dweight = random_tensor(model->vocab_size * dim, 1.0);
        s->bias = random_tensor(width, 1.0);
        s->dbias = random_tensor(width, 1.0);
        s->mean = random_tensor(2 * n_rows * model->heads, 1.0);
        s->rstd = random_tensor(2 * n_rows * model->heads, 1.0);
    }
    for (size_t i = 0; i < n_rows; ++i) { /* some tokens are very frequent, as in text */
        state = state * 6364136223846793005u + 1442695040888963407u;
        double u = (double)(state >> 33) * 0x1p-31;
        tokens[i] = (int32_t)((double)model->vocab_size * u * u * u * u);
    }
    float one = 1.0f;
    NEED(cudaMalloc((void **)&b->tokens, n_rows * sizeof *tokens) == cudaSuccess);
    NEED(cudaMemcpy(b->tokens, tokens, n_rows * sizeof *tokens, cudaMemcpyHostToDevice) == cudaSuccess);
    NEED(cudaMalloc((void **)&b->loss, sizeof *b->loss) == cudaSuccess);
    NEED(cudaMalloc((void **)&b->scale, sizeof *b->scale) == cudaSuccess);
    NEED(cudaMemcpy(b->scale, &one, sizeof one, cudaMemcpyHostToDevice) == cudaSuccess);
    free(tokens);
    printf("\n%s, %zu x %zu, bf16; workspace %.0f MiB\n", model->title, model->batch, model->seq_len,
           (double)b->k->workspace_bytes(&limits) / 1048576.0);
}

static void close_bench(bench_t *b)
{
    b->k->context_destroy(&b->ctx);
    NEED(cudaDeviceReset() == cudaSuccess); /* frees the rest */
}

/* ---- Ceilings ---- */

static zero_status_t square(bench_t *b, size_t n, size_t unused)
{
    (void)unused;
    return b->k->linear(&b->ctx, b->s->out, false, b->s->in, weight_of(b->s->third), ZERO_LINEAR_IN_OUT,
                        (zero_weight_t){.data = NULL, .dtype = ZERO_BF16}, n, n, n);
}

/* ---- The table ---- */

typedef struct row {
    const char *name;
    row_fn run;
    size_t first, second;
    double flops, bytes; /* one of them is 0 */
    size_t n_per_step;
} row_t;

#define MAX_ROWS 32

/* Adds rows for a linear layer: forward, input gradient, weight gradient. With a fourth name, also the weight gradient
 * with the bias's, which then counts for the step: GPT-2's qkv. Other biases' gradients come from the kernel that
 * computes dy. */
static size_t add_linear(const model_t *m, row_t *rows, const char *const *names, size_t n_in, size_t n_out)
{
    double flops = 2.0 * (double)rows_in(m) * (double)(n_in * n_out);
    rows[0] = (row_t){names[0], linear, n_in, n_out, flops, 0, m->layers};
    rows[1] = (row_t){names[1], linear_input, n_in, n_out, flops, 0, m->layers};
    bool with_bias = !m->is_llama && names[3];
    rows[2] = (row_t){names[2], linear_weight, n_in, n_out, flops, 0, with_bias ? 0 : m->layers};
    if (!with_bias)
        return 3;
    rows[3] = (row_t){names[3], linear_weight_bias, n_in, n_out, flops, 0, m->layers};
    return 4;
}

static const char *const qkv_names[] = {"qkv", "qkv, input gradient", "qkv, weight gradient",
                                        "qkv, weight and bias gradient"};
static const char *const out_names[] = {"attention out", "attention out, input g.", "attention out, weight g.", NULL};
static const char *const fc_names[] = {"fc", "fc, input gradient", "fc, weight gradient", NULL};
static const char *const proj_names[] = {"proj", "proj, input gradient", "proj, weight gradient", NULL};

static size_t gpt2_rows(const model_t *m, row_t *rows)
{
    size_t C = m->dim, L = m->layers, R = rows_in(m), n = 0;
    double tensor = 2.0 * (double)(R * C); /* bytes of [rows, dim] */
    n += add_linear(m, rows + n, qkv_names, C, 3 * C);
    n += add_linear(m, rows + n, out_names, C, C);
    n += add_linear(m, rows + n, fc_names, C, 4 * C);
    n += add_linear(m, rows + n, proj_names, 4 * C, C);
    rows[n++] = (row_t){"layernorm with sum", layernorm, R, C, 0, 4 * tensor, 2 * L + 1};
    rows[n++] = (row_t){"layernorm backward", layernorm_backward, R, C, 0, 4 * tensor, 2 * L + 1};
    rows[n++] = (row_t){"layernorm backward, y recomputed", layernorm_backward_recomputed, R, C, 0, 5 * tensor, 0};
    rows[n++] = (row_t){"gelu", gelu, R, 4 * C, 0, 2 * 4 * tensor, L};
    rows[n++] = (row_t){"gelu backward", gelu_backward, R, 4 * C, 0, 3 * 4 * tensor, L};
    rows[n++] = (row_t){"gelu backward, y recomputed", gelu_backward_recomputed, R, 4 * C, 0, 4 * 4 * tensor, 0};
    rows[n++] = (row_t){"put bias gradient", put_grad, R, C, 0, 6 * (double)C, L};
    return n;
}

static size_t llama_rows(const model_t *m, row_t *rows)
{
    static const char *const gate_up_names[] = {"gate and up", "gate and up, input gradient", "gate and up, weight g."};
    static const char *const down_names[] = {"down", "down, input gradient", "down, weight gradient"};
    size_t C = m->dim, F = m->ffn_dim, L = m->layers, R = rows_in(m), n = 0;
    size_t head = C / m->heads, rotated = (m->heads + m->kv_heads) * head;
    double tensor = 2.0 * (double)(R * C), hidden = 2.0 * (double)(R * F);
    n += add_linear(m, rows + n, qkv_names, C, rotated + m->kv_heads * head);
    n += add_linear(m, rows + n, out_names, C, C);
    n += add_linear(m, rows + n, gate_up_names, C, 2 * F);
    n += add_linear(m, rows + n, down_names, F, C);
    rows[n++] = (row_t){"rmsnorm with sum", rmsnorm, R, C, 0, 4 * tensor, 2 * L + 1};
    rows[n++] = (row_t){"rmsnorm backward", rmsnorm_backward, R, C, 0, 4 * tensor, 2 * L + 1};
    rows[n++] = (row_t){"rmsnorm backward, y recomputed", rmsnorm_backward_recomputed, R, C, 0, 5 * tensor, 0};
    rows[n++] = (row_t){"rope", rope, m->heads, head, 0, 2 * 2.0 * (double)(R * rotated), 2 * L};
    rows[n++] = (row_t){"norms of heads, as in Qwen3",
                        head_norm,
                        R,
                        head,
                        0,
                        2 * 2.0 * (double)(R * (rotated + m->kv_heads * head)),
                        0};
    rows[n++] = (row_t){"norms of heads backward", head_norm_backward, R, head, 0, 3 * 2.0 * (double)(R * rotated), 0};
    rows[n++] = (row_t){"swiglu", swiglu, R, F, 0, 3 * hidden, L};
    rows[n++] = (row_t){"swiglu backward", swiglu_backward, R, F, 0, 5 * hidden, L};
    rows[n++] = (row_t){"swiglu backward, y recomputed", swiglu_backward_recomputed, R, F, 0, 6 * hidden, 0};
    return n;
}

static size_t rows_of(const model_t *m, row_t *rows)
{
    size_t C = m->dim, R = rows_in(m), n = m->is_llama ? llama_rows(m, rows) : gpt2_rows(m, rows);
    double tensor = 2.0 * (double)(R * C), table = 2.0 * (double)(m->vocab_size * C);
    double product = 2.0 * (double)(R * C) * (double)m->seq_len / 2.0; /* causal: half */
    rows[n++] = (row_t){"attention", attention, m->heads, C / m->heads, 2 * product, 0, m->layers};
    rows[n++] = (row_t){"attention backward", attention_backward, m->heads, C / m->heads, 5 * product, 0, m->layers};
    rows[n++] = (row_t){"copy, for the cost of a launch", copy_tensor, R, 2 * C, 0, 4 * tensor, 0};
    rows[n++] = (row_t){"embed", embed, R, C, 0, 2 * tensor, 1};
    rows[n++] = (row_t){"embed backward", embed_backward, R, C, 0, tensor + (m->is_llama ? table : 0), 1};
    rows[n++] = (row_t){"zero fill", zero_fill, R, C, 0, tensor, 1};
    rows[n++] = (row_t){"head and loss, both passes", head_loss, C, m->vocab_size, 3.0 * (double)R * table, 0, 1};
    return n;
}

static bool is_named(const row_t *row, char *const *names, size_t n_names)
{
    for (size_t i = 0; i < n_names; ++i)
        if (strncmp(row->name, names[i], strlen(names[i])) == 0)
            return true;
    return n_names == 0;
}

/* Queues a step's calls layer by layer, divided evenly among the layers. */
static void queue_step(bench_t *b, const row_t *rows, size_t n_rows, bool products_only)
{
    size_t layers = b->model->layers;
    for (size_t layer = 0; layer < layers; ++layer) {
        b->s = &b->sets[layer % N_SETS];
        for (size_t i = 0; i < n_rows; ++i) {
            size_t begin = rows[i].n_per_step * layer / layers, end = rows[i].n_per_step * (layer + 1) / layers;
            if (products_only && rows[i].flops <= 0.0)
                continue;
            for (size_t call = begin; call < end; ++call)
                NEED(rows[i].run(b, rows[i].first, rows[i].second) == ZERO_OK);
        }
    }
}

/* Returns the mean time of a step over LOAD_MS, after as long a warm-up with the same calls. */
static double loaded_ms(bench_t *b, const row_t *rows, size_t n_rows, bool products_only, double about_ms)
{
    int n_steps = (int)(LOAD_MS / about_ms) + 1;
    float ms;
    cudaEvent_t start, end;
    NEED(cudaEventCreate(&start) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
    for (int step = 0; step < 2 * n_steps; ++step) {
        if (step == n_steps)
            NEED(cudaEventRecord(start, b->stream) == cudaSuccess);
        queue_step(b, rows, n_rows, products_only);
    }
    NEED(cudaEventRecord(end, b->stream) == cudaSuccess);
    NEED(cudaStreamSynchronize(b->stream) == cudaSuccess);
    NEED(cudaEventElapsedTime(&ms, start, end) == cudaSuccess);
    cudaEventDestroy(start), cudaEventDestroy(end);
    return (double)ms / n_steps;
}

static void run_model(const model_t *model, char *const *names, size_t n_names)
{
    static bench_t b;
    row_t rows[MAX_ROWS];
    open_bench(&b, model);
    size_t n_bytes = rows_in(model) * width_of(model) * 2, n = model->dim == 768 ? 6144 : 8192;
    double copy_tbs = 2.0 * (double)n_bytes / median_ms(&b, copy, n_bytes, 0) * 1e-9;
    double peak_tflops = 2.0 * (double)n * (double)n * (double)n / median_ms(&b, square, n, 0) * 1e-9;
    printf("ceilings: copy %.2f TB/s, product of %zu squares %.0f TFLOP/s\n", copy_tbs, n, peak_tflops);
    printf("%-30s %9s %16s %6s %9s\n", "kernel", "ms", "rate", "of top", "ms/step");
    double step = 0.0, floor = 0.0;
    size_t n_rows = rows_of(model, rows);
    for (size_t i = 0; i < n_rows; ++i) {
        if (!is_named(&rows[i], names, n_names))
            continue;
        double ms = median_ms(&b, rows[i].run, rows[i].first, rows[i].second);
        bool products = rows[i].flops > 0.0;
        double rate = (products ? rows[i].flops : rows[i].bytes) / ms * 1e-9, top = products ? peak_tflops : copy_tbs;
        step += ms * (double)rows[i].n_per_step;
        floor += products ? ms * (double)rows[i].n_per_step : 0.0;
        printf("%-30s %9.4f %8.2f %-7s %5.0f%% %9.3f\n", rows[i].name, ms, rate, products ? "TFLOP/s" : "TB/s",
               100.0 * rate / top, ms * (double)rows[i].n_per_step);
    }
    printf("%-30s %9s %16s %6s %9.3f\n", "products and attention", "", "", "", floor);
    printf("%-30s %9s %16s %6s %9.3f\n", "forward and backward", "", "", "", step);
    if (n_names == 0) {
        printf("%-57s %15.3f\n", "products and attention, one after another for seconds",
               loaded_ms(&b, rows, n_rows, true, floor));
        printf("%-57s %15.3f\n", "forward and backward, one after another for seconds",
               loaded_ms(&b, rows, n_rows, false, step));
    }
    close_bench(&b);
}

/* ---- Masks ---- */

/* Attention alone: what a layer of these models has, of matrices and vocabulary only what the sets need. */
static const model_t masked_models[] = {
    {"masks", "Attention, 32/8 heads of 128", true, 1, 4096, 32, 8, 3072, 256, 2, 4096},
    {"masks", "Attention, 32/8 heads of 128", true, 1, 4096, 32, 8, 3072, 256, 1, 8192},
    {"masks", "Attention, 25 heads of 64", false, 1, 1600, 25, 25, 4800, 256, 16, 1024}};

/* What hides something: documents of up to twice as many positions as their mean, which is `length`; 0: one document.
 * all: the mask hides nothing, but is there, so that the kernel for masks runs. */
typedef struct masked_row {
    const char *name;
    size_t length, window;
    bool all;
} masked_row_t;

static const masked_row_t masked_rows[] = {
    {"causal, no mask", 0, 0, false},        {"causal, by the kernel for masks", 0, 0, true},
    {"window 4096", 0, 4096, false},         {"window 1024", 0, 1024, false},
    {"window 256", 0, 256, false},           {"documents of about 512", 512, 0, false},
    {"documents of about 64", 64, 0, false}, {"documents 512, window 256", 512, 256, false}};

/* Fills starts[batch, seq_len] and returns how many pairs of query and key are seen. */
static double make_documents(int32_t *starts, const model_t *m, const masked_row_t *row)
{
    uint64_t state = 3;
    double n_pairs = 0.0;
    for (size_t i = 0, left = 0; i < rows_in(m); ++i, --left) {
        size_t t = i % m->seq_len, length = row->length > 0 ? row->length : m->seq_len;
        bool begins = t == 0 || left == 0;
        if (begins) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            left = row->length > 0 ? 1 + (size_t)(state >> 33) % (2 * length - 1) : length;
        }
        starts[i] = begins ? (int32_t)t : starts[i - 1];
        size_t n_seen = t + 1 - (size_t)starts[i];
        n_pairs += (double)(row->window > 0 && row->window < n_seen ? row->window : n_seen);
    }
    return n_pairs;
}

static void run_masked(const model_t *m)
{
    static bench_t b;
    size_t head_dim = m->dim / m->heads, n_rows = rows_in(m);
    int32_t *starts = malloc(n_rows * sizeof *starts), *device;
    NEED(starts != NULL);
    open_bench(&b, m);
    NEED(cudaMalloc((void **)&device, n_rows * sizeof *device) == cudaSuccess);
    printf("%-32s %12s %16s %12s %16s\n", "mask", "forward ms", "", "backward ms", "");
    for (size_t i = 0; i < sizeof masked_rows / sizeof masked_rows[0]; ++i) {
        const masked_row_t *row = &masked_rows[i];
        if (row->window >= m->seq_len)
            continue;
        double flops = 2.0 * (double)(m->heads * head_dim) * make_documents(starts, m, row); /* of a product */
        NEED(cudaMemcpy(device, starts, n_rows * sizeof *starts, cudaMemcpyHostToDevice) == cudaSuccess);
        const zero_mask_t mask = {row->length > 0 || row->all ? device : NULL, row->window};
        b.mask = &mask;
        double forward = median_ms(&b, attention, m->heads, head_dim);
        double backward = median_ms(&b, attention_backward, m->heads, head_dim);
        printf("%-32s %12.4f %8.1f TFLOP/s %12.4f %8.1f TFLOP/s\n", row->name, forward, 2.0 * flops / forward * 1e-9,
               backward, 5.0 * flops / backward * 1e-9);
    }
    b.mask = NULL;
    free(starts);
    close_bench(&b);
}

/* ---- Lengths ---- */

/* A quarter of Llama-3-8B's heads: what a rank has of them if four share a sequence. */
static const model_t long_models[] = {
    {"lengths", "Attention, 8/2 heads of 128", true, 1, 1024, 8, 2, 768, 256, 8, 4096},
    {"lengths", "Attention, 8/2 heads of 128", true, 1, 1024, 8, 2, 768, 256, 1, 32768},
    {"lengths", "Attention, 8/2 heads of 128", true, 1, 1024, 8, 2, 768, 256, 1, 131072},
    {"lengths", "Attention, 8/2 heads of 128", true, 1, 1024, 8, 2, 768, 256, 1, 524288},
    {"lengths", "Attention, 8/2 heads of 128", true, 1, 1024, 8, 2, 768, 256, 1, 1048576}};

static void run_length(const model_t *m)
{
    static bench_t b;
    row_t rows[MAX_ROWS];
    open_bench(&b, m);
    size_t n_rows = rows_of(m, rows);
    for (size_t i = 0; i < n_rows; ++i)
        if (strncmp(rows[i].name, "attention", 9) == 0 && strncmp(rows[i].name, "attention out", 13) != 0) {
            double about_ms = rows[i].flops * 2e-12; /* at 500 TFLOP/s */
            double ms = loaded_ms(&b, &rows[i], 1, true, about_ms);
            printf("%-30s %12.4f ms %8.1f TFLOP/s\n", rows[i].name, ms, rows[i].flops / ms * 1e-9);
        }
    close_bench(&b);
}

int main(int argc, char **argv)
{
    zero_log_set(ZERO_LOG_DEBUG, NULL, NULL); /* logs attention's backend */
    for (size_t i = 0; i < sizeof models / sizeof models[0]; ++i)
        if (argc < 2 || strcmp(argv[1], models[i].name) == 0)
            run_model(&models[i], argv + 2, argc < 3 ? 0 : (size_t)argc - 2);
    for (size_t i = 0; i < sizeof masked_models / sizeof masked_models[0]; ++i)
        if (argc < 2 || strcmp(argv[1], masked_models[i].name) == 0)
            run_masked(&masked_models[i]);
    for (size_t i = 0; i < sizeof long_models / sizeof long_models[0]; ++i)
        if (argc < 2 || strcmp(argv[1], long_models[i].name) == 0)
            run_length(&long_models[i]);
    return 0;
}
