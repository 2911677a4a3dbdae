/* bench_model_cuda.c - times of every CUDA model kernel at the sizes of GPT-2 124M and 1558M, 16 x 1024 tokens, bf16,
 * each beside the chip's ceiling as measured here: TFLOP/s beside a large square product, TB/s beside a copy.
 *
 * Each row is the median of several timed runs over several input sets, so that nothing stays in the cache from one run
 * to the next. Bytes are the fewest that the work must move: each input read once, each output written once. The last
 * line is the sum over a training step's calls, without the optimizer.
 *
 *     bench_model_cuda [124m|1558m]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/model.h"

#define BATCH 16
#define SEQ 1024
#define ROWS ((size_t)BATCH * SEQ)
#define VOCAB 50304
#define N_SETS 3
#define N_RUNS 21

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "bench_model_cuda: %s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
    exit(1);
}

#define NEED(call)                                                                                                     \
    do {                                                                                                               \
        if (!(call))                                                                                                   \
            give_up(#call);                                                                                            \
    } while (0)

typedef struct model {
    const char *name;
    size_t layers, dim, heads;
} model_t;

static const model_t models[] = {{"124m", 12, 768, 12}, {"1558m", 48, 1600, 25}};

/* One set of tensors; the sets take turns. Activations are bf16 [ROWS, 4 dim], large enough for every use. */
typedef struct set {
    void *in, *out, *third, *fourth;
    void *weight, *dweight; /* [VOCAB, dim] */
    void *bias, *dbias;     /* [4 dim] */
    float *mean, *rstd;     /* [ROWS, heads] */
} set_t;

typedef struct bench {
    const zero_model_kernels_t *k;
    zero_model_context_t ctx;
    cudaStream_t stream;
    const model_t *model;
    set_t sets[N_SETS], *s; /* s: the one at hand */
    int32_t *tokens;
    double *loss;
    float *scale;
} bench_t;

static zero_weight_t weight_of(const void *data)
{
    return (zero_weight_t){data, ZERO_BF16};
}
static zero_grad_t grad_of(void *data)
{
    return (zero_grad_t){data, ZERO_BF16, false};
}

/* ---- One function for a kind of row; sizes as the row gives them ---- */

static zero_status_t linear(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear(&b->ctx, b->s->out, b->s->in, weight_of(b->s->weight), ZERO_LINEAR_IN_OUT,
                        weight_of(b->s->bias), ROWS, n_in, n_out);
}
static zero_status_t linear_input(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear_backward_input(&b->ctx, b->s->out, false, b->s->in, weight_of(b->s->weight), ZERO_LINEAR_IN_OUT,
                                       ROWS, n_in, n_out);
}
static zero_status_t linear_weight(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear_backward_weight(&b->ctx, grad_of(b->s->dweight), ZERO_LINEAR_IN_OUT,
                                        (zero_grad_t){NULL, ZERO_BF16, false}, b->s->in, b->s->third, ROWS, n_in,
                                        n_out);
}
static zero_status_t linear_weight_bias(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear_backward_weight(&b->ctx, grad_of(b->s->dweight), ZERO_LINEAR_IN_OUT, grad_of(b->s->dbias),
                                        b->s->in, b->s->third, ROWS, n_in, n_out);
}
static zero_status_t attention(bench_t *b, size_t heads, size_t head_dim)
{
    return b->k->attention(&b->ctx, b->s->out, b->s->mean, b->s->in, BATCH, SEQ, heads, heads, head_dim);
}
static zero_status_t attention_backward(bench_t *b, size_t heads, size_t head_dim)
{
    return b->k->attention_backward(&b->ctx, b->s->fourth, b->s->third, b->s->in, b->s->out, b->s->mean, BATCH, SEQ,
                                    heads, heads, head_dim);
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
static zero_status_t layernorm_backward_again(bench_t *b, size_t rows, size_t dim)
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
static zero_status_t gelu_backward_again(bench_t *b, size_t rows, size_t width)
{
    return b->k->gelu_backward(&b->ctx, b->s->third, grad_of(b->s->dbias), b->s->out, b->s->third, b->s->in, rows,
                               width);
}
static zero_status_t put_grad(bench_t *b, size_t rows, size_t dim)
{
    (void)rows;
    return b->k->put_grad(&b->ctx, grad_of(b->s->dbias), b->s->mean, dim);
}
static zero_status_t embed(bench_t *b, size_t rows, size_t dim)
{
    return b->k->embed(&b->ctx, b->s->out, b->tokens, weight_of(b->s->weight), weight_of(b->s->in), rows / SEQ, SEQ,
                       dim);
}
static zero_status_t embed_backward(bench_t *b, size_t rows, size_t dim)
{
    zero_grad_t tied = {b->s->dweight, ZERO_BF16, true};
    return b->k->embed_backward(&b->ctx, tied, grad_of(b->s->out), b->s->third, b->tokens, rows / SEQ, SEQ, dim, VOCAB);
}
static zero_status_t head_loss(bench_t *b, size_t dim, size_t vocab_size)
{
    return b->k->head_loss(&b->ctx, b->loss, b->s->out, grad_of(b->s->dweight), b->s->in, weight_of(b->s->weight),
                           b->tokens, 1.0 / (double)ROWS, b->scale, ROWS, dim, vocab_size);
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

static double median_ms(bench_t *b, row_fn run, size_t first, size_t second)
{
    float times[N_RUNS];
    cudaEvent_t start, end;
    NEED(cudaEventCreate(&start) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
    for (int i = -2 * N_SETS; i < N_RUNS; ++i) {
        b->s = &b->sets[(i + 2 * N_SETS) % N_SETS];
        NEED(cudaEventRecord(start, b->stream) == cudaSuccess);
        NEED(run(b, first, second) == ZERO_OK);
        NEED(cudaEventRecord(end, b->stream) == cudaSuccess);
        NEED(cudaEventSynchronize(end) == cudaSuccess);
        if (i >= 0)
            NEED(cudaEventElapsedTime(&times[i], start, end) == cudaSuccess);
    }
    cudaEventDestroy(start), cudaEventDestroy(end);
    qsort(times, N_RUNS, sizeof *times, compare_floats);
    return times[N_RUNS / 2];
}

/* ---- Setting up ---- */

/* bf16 of about [-1, 1): made on the host once, repeated over the tensor. */
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
    NEED(cudaMalloc((void **)&data, n * 2) == cudaSuccess);
    for (size_t at = 0; at < n; at += BLOCK)
        NEED(cudaMemcpy(data + 2 * at, block, 2 * (n - at < BLOCK ? n - at : BLOCK), cudaMemcpyHostToDevice) ==
             cudaSuccess);
    return data;
}

static void open_bench(bench_t *b, const model_t *model)
{
    size_t dim = model->dim;
    zero_model_limits_t limits = {.n_rows = ROWS,
                                  .seq_len = SEQ,
                                  .max_linear = (size_t)VOCAB * dim,
                                  .max_width = 4 * dim,
                                  .n_heads = model->heads,
                                  .head_dim = dim / model->heads,
                                  .vocab_size = VOCAB,
                                  .dtype = ZERO_BF16};
    void *workspace;
    static int32_t tokens[ROWS];
    uint64_t state = 7;
    *b = (bench_t){.k = zero_model_kernels_cuda(), .model = model};
    NEED(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(cudaMalloc(&workspace, b->k->workspace_bytes(&limits)) == cudaSuccess);
    NEED(b->k->context_create(&b->ctx, (zero_stream_t)b->stream, workspace, &limits) == ZERO_OK);
    for (size_t i = 0; i < N_SETS; ++i) {
        set_t *s = &b->sets[i];
        void **activations[] = {&s->in, &s->out, &s->third, &s->fourth};
        for (size_t a = 0; a < 4; ++a)
            *activations[a] = random_tensor(ROWS * 4 * dim, 1.0);
        s->weight = random_tensor((size_t)VOCAB * dim, 0.05);
        s->dweight = random_tensor((size_t)VOCAB * dim, 1.0);
        s->bias = random_tensor(4 * dim, 1.0);
        s->dbias = random_tensor(4 * dim, 1.0);
        s->mean = random_tensor(2 * ROWS * model->heads, 1.0);
        s->rstd = random_tensor(2 * ROWS * model->heads, 1.0);
    }
    for (size_t i = 0; i < ROWS; ++i) { /* frequent tokens are very frequent, as in text */
        state = state * 6364136223846793005u + 1442695040888963407u;
        double u = (double)(state >> 33) * 0x1p-31;
        tokens[i] = (int32_t)(VOCAB * u * u * u * u);
    }
    float one = 1.0f;
    NEED(cudaMalloc((void **)&b->tokens, sizeof tokens) == cudaSuccess);
    NEED(cudaMemcpy(b->tokens, tokens, sizeof tokens, cudaMemcpyHostToDevice) == cudaSuccess);
    NEED(cudaMalloc((void **)&b->loss, sizeof *b->loss) == cudaSuccess);
    NEED(cudaMalloc((void **)&b->scale, sizeof *b->scale) == cudaSuccess);
    NEED(cudaMemcpy(b->scale, &one, sizeof one, cudaMemcpyHostToDevice) == cudaSuccess);
    printf("\nGPT-2 %s, %d x %d, bf16; workspace %.0f MiB\n", model->name, BATCH, SEQ,
           (double)b->k->workspace_bytes(&limits) / 1048576.0);
}

static void close_bench(bench_t *b)
{
    b->k->context_destroy(&b->ctx);
    NEED(cudaDeviceReset() == cudaSuccess); /* frees the rest */
}

/* ---- Ceilings ---- */

static zero_status_t copy(bench_t *b, size_t n_bytes, size_t unused)
{
    (void)unused;
    return cudaMemcpyAsync(b->s->out, b->s->in, n_bytes, cudaMemcpyDeviceToDevice, b->stream) == cudaSuccess
               ? ZERO_OK
               : ZERO_ERROR_DEVICE;
}
static zero_status_t square(bench_t *b, size_t n, size_t unused)
{
    (void)unused;
    return b->k->linear(&b->ctx, b->s->out, b->s->in, weight_of(b->s->third), ZERO_LINEAR_IN_OUT,
                        (zero_weight_t){NULL, ZERO_BF16}, n, n, n);
}

/* ---- The table ---- */

typedef struct row {
    const char *name;
    row_fn run;
    size_t first, second;
    double flops, bytes; /* one of them 0 */
    size_t n_per_step;
} row_t;

#define MAX_ROWS 32

static size_t rows_of(const model_t *m, row_t *rows)
{
    size_t C = m->dim, L = m->layers, n = 0, head = C / m->heads;
    double R = (double)ROWS, c = (double)C;
    const struct {
        const char *forward, *input, *weight, *with_bias;
        size_t n_in, n_out;
    } layers[] = {
        {"qkv", "qkv, input gradient", "qkv, weight gradient", "qkv, weight and bias gradient", C, 3 * C},
        {"attention out", "attention out, input g.", "attention out, weight g.", "attention out, w. and b. g.", C, C},
        {"fc", "fc, input gradient", "fc, weight gradient", "fc, weight and bias gradient", C, 4 * C},
        {"proj", "proj, input gradient", "proj, weight gradient", "proj, weight and bias gradient", 4 * C, C}};
    for (size_t i = 0; i < 4; ++i) {
        double flops = 2.0 * R * (double)(layers[i].n_in * layers[i].n_out);
        rows[n++] = (row_t){layers[i].forward, linear, layers[i].n_in, layers[i].n_out, flops, 0, L};
        rows[n++] = (row_t){layers[i].input, linear_input, layers[i].n_in, layers[i].n_out, flops, 0, L};
        bool sums = i == 0; /* the others' biases are summed by what makes dy */
        rows[n++] = (row_t){layers[i].weight, linear_weight, layers[i].n_in, layers[i].n_out, flops, 0, sums ? 0 : L};
        if (sums)
            rows[n++] = (row_t){layers[i].with_bias, linear_weight_bias, layers[i].n_in, layers[i].n_out, flops, 0, L};
    }
    double product = 2.0 * R * SEQ / 2.0 * c; /* causal: half */
    rows[n++] = (row_t){"attention", attention, m->heads, head, 2 * product, 0, L};
    rows[n++] = (row_t){"attention backward", attention_backward, m->heads, head, 5 * product, 0, L};
    rows[n++] = (row_t){"layernorm with sum", layernorm, ROWS, C, 0, 4 * 2 * R * c, 2 * L + 1};
    rows[n++] = (row_t){"layernorm backward", layernorm_backward, ROWS, C, 0, 4 * 2 * R * c, 2 * L + 1};
    rows[n++] = (row_t){"layernorm backward and y", layernorm_backward_again, ROWS, C, 0, 5 * 2 * R * c, 0};
    rows[n++] = (row_t){"gelu", gelu, ROWS, 4 * C, 0, 2 * 2 * R * 4 * c, L};
    rows[n++] = (row_t){"gelu backward", gelu_backward, ROWS, 4 * C, 0, 3 * 2 * R * 4 * c, L};
    rows[n++] = (row_t){"gelu backward and y", gelu_backward_again, ROWS, 4 * C, 0, 4 * 2 * R * 4 * c, 0};
    rows[n++] = (row_t){"put bias gradient", put_grad, ROWS, C, 0, 6 * c, L};
    rows[n++] = (row_t){"embed", embed, ROWS, C, 0, 2 * 2 * R * c, 1};
    rows[n++] = (row_t){"embed backward, tied", embed_backward, ROWS, C, 0, 2 * R * c, 1};
    rows[n++] = (row_t){"zero fill", zero_fill, ROWS, C, 0, 2 * R * c, 1};
    rows[n++] = (row_t){"head and loss, both passes", head_loss, C, VOCAB, 6.0 * R * c * VOCAB, 0, 1};
    return n;
}

static void run_model(const model_t *model)
{
    static bench_t b;
    row_t rows[MAX_ROWS];
    open_bench(&b, model);
    size_t n_bytes = ROWS * 4 * model->dim * 2, n = model->dim == 768 ? 6144 : 8192;
    double copy_tbs = 2.0 * (double)n_bytes / median_ms(&b, copy, n_bytes, 0) * 1e-9;
    double peak_tflops = 2.0 * (double)n * (double)n * (double)n / median_ms(&b, square, n, 0) * 1e-9;
    printf("ceilings: copy %.2f TB/s, product of %zu squares %.0f TFLOP/s\n", copy_tbs, n, peak_tflops);
    printf("%-30s %9s %16s %6s %9s\n", "kernel", "ms", "rate", "of top", "ms/step");
    double step = 0.0;
    size_t n_rows = rows_of(model, rows);
    for (size_t i = 0; i < n_rows; ++i) {
        double ms = median_ms(&b, rows[i].run, rows[i].first, rows[i].second);
        bool products = rows[i].flops > 0.0;
        double rate = (products ? rows[i].flops : rows[i].bytes) / ms * 1e-9, top = products ? peak_tflops : copy_tbs;
        step += ms * (double)rows[i].n_per_step;
        printf("%-30s %9.4f %8.2f %-7s %5.0f%% %9.3f\n", rows[i].name, ms, rate, products ? "TFLOP/s" : "TB/s",
               100.0 * rate / top, ms * (double)rows[i].n_per_step);
    }
    printf("%-30s %9s %16s %6s %9.3f\n", "forward and backward", "", "", "", step);
    close_bench(&b);
}

int main(int argc, char **argv)
{
    zero_log_set(ZERO_LOG_DEBUG, NULL, NULL); /* says who computes attention */
    for (size_t i = 0; i < sizeof models / sizeof models[0]; ++i)
        if (argc < 2 || strcmp(argv[1], models[i].name) == 0)
            run_model(&models[i]);
    return 0;
}
