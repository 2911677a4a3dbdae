/* bench_decode_model_cuda.c - times what a GPU computes for one token of a text that grows, in bf16: products of one
 * row, which read every weight once, and attention to the keys and values in the cache.
 *
 * A row of the table is the mean of LAYERS calls in a row, each with its own weights, so that none are in the cache:
 * the time that a kernel adds to a stream of others. The rate is that of the bytes which must be read. The last lines
 * are a whole token with so many positions before it, as one CUDA graph and launched one by one, and the floor: all
 * weights once, at the rate of a copy.
 *
 *     bench_decode_model_cuda [124m|1b|8b]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "train/kernels/kernels.h"
#define PROGRAM "bench_decode_model_cuda"
#include "tests/gpu/support/need.h"

#define N_RUNS 15
#define CAPACITY ((size_t)8192) /* positions */

typedef struct model {
    const char *name, *title;
    bool is_llama;
    size_t layers, dim, heads, kv_heads, ffn_dim, vocab_size;
} model_t;

static const model_t models[] = {{"124m", "GPT-2 124M", false, 12, 768, 12, 12, 3072, 50257},
                                 {"1b", "Llama-3.2-1B", true, 16, 2048, 32, 8, 8192, 128256},
                                 {"8b", "Llama-3-8B", true, 32, 4096, 32, 8, 14336, 128256}};

/* One layer's matrices, and its part of the cache. */
typedef struct layer {
    void *qkv, *out, *in, *proj, *cache;
} layer_t;

typedef struct bench {
    const zero_model_kernels_t *k;
    zero_model_context_t ctx;
    cudaStream_t stream;
    const model_t *m;
    layer_t layers[32];
    void *head, *vector;        /* [vocab_size, dim]; biases and norms' weights: [widest] */
    void *x, *y, *wide, *wide2; /* [1, widest] */
    float *statistics, *logits;
    int32_t *tokens, *starts;
    cudaEvent_t begin, end;
} bench_t;

/* Returns a bf16 tensor of n values in about [-0.05, 0.05): a block made on the host, repeated. */
static void *tensor(size_t n)
{
    enum { BLOCK = 1 << 20 };
    static uint16_t block[BLOCK];
    static uint64_t state = 1;
    unsigned char *data;
    for (size_t i = 0; i < BLOCK && block[BLOCK - 1] == 0; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        float x = (float)((double)(int32_t)(state >> 32) * 0x1p-31 * 0.05);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        block[i] = (uint16_t)(bits >> 16 | 1);
    }
    NEED(cudaMalloc((void **)&data, n * 2) == cudaSuccess);
    for (size_t done = 0, part; done < n; done += part) {
        part = n - done < BLOCK ? n - done : BLOCK;
        NEED(cudaMemcpy(data + 2 * done, block, 2 * part, cudaMemcpyHostToDevice) == cudaSuccess);
    }
    return data;
}

static size_t qkv_width(const model_t *m)
{
    return (m->heads + 2 * m->kv_heads) * (m->dim / m->heads);
}
static size_t mlp_width(const model_t *m)
{
    return m->is_llama ? 2 * m->ffn_dim : m->ffn_dim;
}

static zero_status_t linear(bench_t *b, void *y, const void *x, const void *weight, size_t n_in, size_t n_out)
{
    return b->k->linear(&b->ctx, y, false, x, (zero_weight_t){.data = weight, .dtype = ZERO_BF16},
                        b->m->is_llama ? ZERO_LINEAR_OUT_IN : ZERO_LINEAR_IN_OUT,
                        (zero_weight_t){.data = b->m->is_llama ? NULL : b->vector, .dtype = ZERO_BF16}, 1, n_in, n_out);
}

/* ---- One function for each row of the table ---- */

static zero_status_t qkv(bench_t *b, const layer_t *l)
{
    return linear(b, b->wide, b->x, l->qkv, b->m->dim, qkv_width(b->m));
}
static zero_status_t attention_out(bench_t *b, const layer_t *l)
{
    return linear(b, b->x, b->y, l->out, b->m->dim, b->m->dim);
}
static zero_status_t mlp_in(bench_t *b, const layer_t *l)
{
    return linear(b, b->wide, b->x, l->in, b->m->dim, mlp_width(b->m));
}
static zero_status_t mlp_out(bench_t *b, const layer_t *l)
{
    return linear(b, b->x, b->wide2, l->proj, b->m->ffn_dim, b->m->dim);
}
static zero_status_t norm(bench_t *b, const layer_t *l)
{
    const zero_weight_t weight = {.data = b->vector, .dtype = ZERO_BF16};
    (void)l;
    return b->m->is_llama ? b->k->rmsnorm(&b->ctx, b->x, b->statistics, b->y, b->y, b->x, weight, 1e-5f, 1, b->m->dim)
                          : b->k->layernorm(&b->ctx, b->x, b->statistics, b->statistics + 8, b->y, b->y, b->x, weight,
                                            weight, 1e-5f, 1, b->m->dim);
}
static zero_status_t rope(bench_t *b, const layer_t *l)
{
    (void)l;
    return b->k->rope(&b->ctx, b->wide, false, &(zero_rope_t){.theta = 5e5f, .starts = b->starts},
                      &(zero_attention_shape_t){1, 1, b->m->heads, b->m->kv_heads, b->m->dim / b->m->heads});
}
static zero_status_t attention(bench_t *b, const layer_t *l)
{
    return b->k->attention_cached(
        &b->ctx, b->y, b->statistics, l->cache, b->wide, &(zero_mask_t){b->starts, 0},
        &(zero_attention_shape_t){1, 1, b->m->heads, b->m->kv_heads, b->m->dim / b->m->heads});
}
static zero_status_t activation(bench_t *b, const layer_t *l)
{
    (void)l;
    return b->m->is_llama ? b->k->swiglu(&b->ctx, b->wide2, b->wide, 1, b->m->ffn_dim)
                          : b->k->gelu(&b->ctx, b->wide2, b->wide, b->m->ffn_dim);
}
static zero_status_t head(bench_t *b, const layer_t *l)
{
    (void)l;
    return b->k->head_logits(&b->ctx, b->logits, b->x, (zero_weight_t){.data = b->head, .dtype = ZERO_BF16}, 1,
                             b->m->dim, b->m->vocab_size);
}

typedef zero_status_t (*row_fn)(bench_t *b, const layer_t *l);
static const row_fn gpt2_layer[] = {norm, qkv, attention, attention_out, norm, mlp_in, activation, mlp_out, NULL};
static const row_fn llama_layer[] = {norm, qkv,    rope,       attention, attention_out,
                                     norm, mlp_in, activation, mlp_out,   NULL};

static zero_status_t whole_token(bench_t *b)
{
    const row_fn *rows = b->m->is_llama ? llama_layer : gpt2_layer;
    zero_status_t status =
        b->k->embed(&b->ctx, b->x, b->tokens, b->starts, (zero_weight_t){.data = b->head, .dtype = ZERO_BF16},
                    (zero_weight_t){0}, 1, 1, b->m->dim, b->m->vocab_size);
    for (size_t l = 0; l < b->m->layers; ++l)
        for (size_t i = 0; rows[i] != NULL && status == ZERO_OK; ++i)
            status = rows[i](b, &b->layers[l]);
    if (status == ZERO_OK)
        status = norm(b, NULL);
    return status == ZERO_OK ? head(b, NULL) : status;
}

/* ---- Timing ---- */

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

typedef struct work {
    row_fn row;               /* of every layer; NULL: a whole token */
    zero_cuda_graph_t *graph; /* in its place */
} work_t;

static void queue(bench_t *b, const work_t *w)
{
    if (w->graph != NULL)
        NEED(b->k->replay(&b->ctx, w->graph) == ZERO_OK);
    else if (w->row == NULL)
        NEED(whole_token(b) == ZERO_OK);
    for (size_t l = 0; w->row != NULL && w->graph == NULL && l < b->m->layers; ++l)
        NEED(w->row(b, &b->layers[l]) == ZERO_OK);
}

static double median_ms(bench_t *b, const work_t *w)
{
    float times[N_RUNS];
    for (int i = -3; i < N_RUNS; ++i) {
        NEED(cudaEventRecord(b->begin, b->stream) == cudaSuccess);
        queue(b, w);
        NEED(cudaEventRecord(b->end, b->stream) == cudaSuccess);
        NEED(cudaEventSynchronize(b->end) == cudaSuccess);
        if (i >= 0)
            NEED(cudaEventElapsedTime(&times[i], b->begin, b->end) == cudaSuccess);
    }
    qsort(times, N_RUNS, sizeof *times, compare_floats);
    return (double)times[N_RUNS / 2];
}

/* The work as a graph: without the host's time. */
static double graph_ms(bench_t *b, work_t w)
{
    (void)median_ms(b, &w); /* chooses algorithms */
    NEED(b->k->record_begin(&b->ctx) == ZERO_OK);
    queue(b, &w);
    NEED(b->k->record_end(&b->ctx, &w.graph) == ZERO_OK);
    double ms = median_ms(b, &w);
    b->k->cuda_graph_destroy(w.graph);
    return ms;
}

static void set_first(bench_t *b, size_t first)
{
    const int32_t before = -(int32_t)first;
    NEED(cudaMemcpy(b->starts, &before, sizeof before, cudaMemcpyHostToDevice) == cudaSuccess);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
}

/* ---- Setting up ---- */

static void open_bench(bench_t *b, const model_t *m)
{
    size_t C = m->dim, kept = 2 * m->kv_heads * (C / m->heads), widest = mlp_width(m);
    zero_model_limits_t limits = {.n_rows = CAPACITY,
                                  .seq_len = CAPACITY,
                                  .max_linear = m->vocab_size * C,
                                  .max_width = widest,
                                  .n_heads = m->heads,
                                  .head_dim = C / m->heads,
                                  .n_kv_heads = m->kv_heads,
                                  .vocab_size = m->vocab_size,
                                  .dtype = ZERO_BF16};
    void *workspace;
    *b = (bench_t){.k = zero_model_kernels_cuda(), .m = m};
    NEED(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(cudaMalloc(&workspace, b->k->workspace_bytes(&limits)) == cudaSuccess);
    NEED(b->k->context_create(&b->ctx, (zero_stream_t)b->stream, workspace, &limits) == ZERO_OK);
    for (size_t l = 0; l < m->layers; ++l)
        b->layers[l] = (layer_t){tensor(C * qkv_width(m)), tensor(C * C), tensor(C * mlp_width(m)),
                                 tensor(m->ffn_dim * C), tensor(CAPACITY * kept)};
    b->head = tensor(m->vocab_size * C), b->vector = tensor(widest);
    b->x = tensor(widest), b->y = tensor(widest), b->wide = tensor(widest + qkv_width(m)), b->wide2 = tensor(widest);
    b->statistics = tensor(2 * 64), b->logits = tensor(2 * m->vocab_size);
    NEED(cudaMalloc((void **)&b->tokens, 4) == cudaSuccess && cudaMemset(b->tokens, 0, 4) == cudaSuccess);
    NEED(cudaMalloc((void **)&b->starts, 4) == cudaSuccess);
    NEED(cudaEventCreate(&b->begin) == cudaSuccess && cudaEventCreate(&b->end) == cudaSuccess);
}

static double copy_tbs(bench_t *b)
{
    enum { BYTES = 1 << 30 };
    void *from = tensor(BYTES / 2), *to = tensor(BYTES / 2);
    float ms, least = 1e9f;
    for (int i = 0; i < 5; ++i) {
        NEED(cudaEventRecord(b->begin, b->stream) == cudaSuccess);
        NEED(cudaMemcpyAsync(to, from, BYTES, cudaMemcpyDeviceToDevice, b->stream) == cudaSuccess);
        NEED(cudaEventRecord(b->end, b->stream) == cudaSuccess && cudaEventSynchronize(b->end) == cudaSuccess);
        NEED(cudaEventElapsedTime(&ms, b->begin, b->end) == cudaSuccess);
        least = ms < least ? ms : least;
    }
    cudaFree(from), cudaFree(to);
    return 2.0 * BYTES / (double)least * 1e-9;
}

static void run_model(const model_t *m)
{
    static bench_t b;
    open_bench(&b, m);
    size_t C = m->dim, kept = 2 * m->kv_heads * (C / m->heads);
    double top = copy_tbs(&b), layer = (double)(C * (qkv_width(m) + C + mlp_width(m) + m->ffn_dim));
    double weights = 2.0 * ((double)m->layers * layer + (double)(m->vocab_size * C));
    const struct {
        const char *name;
        row_fn run;
        size_t first, n_elems; /* n_elems: that must be read, of 2 bytes */
    } rows[] = {{"norm", norm, 0, 3 * C},
                {"qkv", qkv, 0, C * qkv_width(m)},
                {"rope", rope, 1000, qkv_width(m)},
                {"attention to 100", attention, 100, 100 * kept},
                {"attention to 1000", attention, 1000, 1000 * kept},
                {"attention to 8000", attention, 8000, 8000 * kept},
                {"attention out", attention_out, 0, C * C},
                {"mlp in", mlp_in, 0, C * mlp_width(m)},
                {"activation", activation, 0, mlp_width(m)},
                {"mlp out", mlp_out, 0, C * m->ffn_dim},
                {"head (again and again)", head, 0, C * m->vocab_size}};
    printf("\n%s, one token; copy %.2f TB/s\n%-24s %9s %9s %8s\n", m->title, top, "kernel", "us", "launched", "TB/s");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        if (rows[i].run == rope && !m->is_llama)
            continue;
        set_first(&b, rows[i].first);
        work_t w = {rows[i].run, NULL};
        double graph = graph_ms(&b, w) / (double)m->layers, launched = median_ms(&b, &w) / (double)m->layers;
        printf("%-24s %9.2f %9.2f %8.2f\n", rows[i].name, 1e3 * graph, 1e3 * launched,
               2e-9 * (double)rows[i].n_elems / graph);
    }
    for (size_t first = 100; first <= 1000; first *= 10) {
        set_first(&b, first);
        work_t token = {NULL, NULL};
        double graph = graph_ms(&b, token), launched = median_ms(&b, &token);
        printf("a token after %4zu: %.3f ms as a graph, %.3f launched one by one; %.2f GB of weights take %.3f\n",
               first, graph, launched, 1e-9 * weights, weights / top * 1e-9);
    }
    b.k->context_destroy(&b.ctx);
    NEED(cudaDeviceReset() == cudaSuccess); /* frees the rest */
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; ++i)
        if (argc < 2 || strcmp(argv[1], models[i].name) == 0)
            run_model(&models[i]);
    return 0;
}
