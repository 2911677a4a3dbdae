/* attention.c - causal self-attention on the CPU, one block of query rows at a time.
 *
 * As in FlashAttention (Dao et al. 2022, arXiv:2205.14135) no T x T matrix exists. A block of ATTENTION_ROWS queries is
 * multiplied with the keys up to its last row, and its scores are in one thread's scratch. For backward, only the
 * logarithm of each row's sum of exponentials is kept, and the scores are recomputed. The products are small
 * single-threaded sgemms that read q, k and v in place, by the length of qkv's rows. Threads take heads (in forward:
 * blocks of heads). One thread computes each output element, in a fixed order.
 *
 * A mask takes away each query's first keys, never fewer than from the query before. So a block's keys begin with those
 * of its first query.
 */
#include <omp.h>
#include <string.h>

#include "train/kernels/kernels_cpu.h"
#include "train/kernels/vector_math.h"

#define ATTENTION_ROWS ((size_t)64)

/* One head of one sequence. The stride of rows t = 0..T-1, in elements, is `width` (q, k, v) or `out_width`. */
typedef struct head {
    size_t seq_len, head_dim, width, out_width;
    float scale;
    size_t q, k, v, out, lse; /* offsets of the head's first elements in qkv, out and logsumexp */
    const int32_t *starts;    /* of the sequence; NULL: it is one document */
    size_t window;            /* at most seq_len */
} head_t;

static head_t head_at(const zero_mask_t *mask, size_t batch, size_t head, const zero_attention_shape_t *shape)
{
    const zero_mask_t m = mask != NULL ? *mask : (zero_mask_t){0};
    size_t width = (shape->n_heads + 2 * shape->n_kv_heads) * shape->head_dim;
    size_t kv_head = head / (shape->n_heads / shape->n_kv_heads);
    size_t first = batch * shape->seq_len * width;
    return (head_t){
        .seq_len = shape->seq_len,
        .head_dim = shape->head_dim,
        .width = width,
        .out_width = shape->n_heads * shape->head_dim,
        .scale = 1.0f / sqrtf((float)shape->head_dim),
        .q = first + head * shape->head_dim,
        .k = first + (shape->n_heads + kv_head) * shape->head_dim,
        .v = first + (shape->n_heads + shape->n_kv_heads + kv_head) * shape->head_dim,
        .out = (batch * shape->seq_len * shape->n_heads + head) * shape->head_dim,
        .lse = (batch * shape->n_heads + head) * shape->seq_len,
        .starts = m.starts != NULL ? m.starts + batch * shape->seq_len : NULL,
        .window = m.window > 0 && m.window < shape->seq_len ? m.window : shape->seq_len,
    };
}

/* Returns the first key that query t sees. */
static size_t first_key(const head_t *h, size_t t)
{
    size_t of_window = t < h->window ? 0 : t - h->window + 1,
           of_document = h->starts != NULL ? (size_t)h->starts[t] : 0;
    return of_window > of_document ? of_window : of_document;
}

/* Returns the stride of the rows of a block of scores: never a power of two, with which rows would share cache sets. */
static size_t score_stride(size_t seq_len)
{
    return (seq_len + 15) / 16 * 16 + 16;
}

static size_t block_rows(const head_t *h, size_t first)
{
    return h->seq_len - first < ATTENTION_ROWS ? h->seq_len - first : ATTENTION_ROWS;
}

static size_t scores_bytes(size_t seq_len)
{
    return zero_scratch_bytes(ATTENTION_ROWS * score_stride(seq_len) * sizeof(float));
}

size_t ZERO_MODEL_FN(attention_workspace)(const zero_model_limits_t *limits)
{
    return (size_t)omp_get_max_threads() * 2 * scores_bytes(limits->seq_len);
}

/* Allocates n_blocks score blocks for each of *n_threads threads: all threads, or as many as the workspace has room
 * for. */
static zero_status_t allocate_scores(zero_model_context_t *ctx, size_t seq_len, size_t n_blocks, int *n_threads,
                                     float **scores)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    size_t bytes = n_blocks * scores_bytes(seq_len);
    size_t n_buffers = scratch.bytes_left / bytes;
    size_t n_wanted = (size_t)omp_get_max_threads();
    size_t n = n_buffers < n_wanted ? n_buffers : n_wanted;
    *n_threads = (int)n;
    return zero_scratch_alloc(&scratch, (n == 0 ? 1 : n) * bytes, scores);
}

static zero_status_t check_shape(const zero_attention_shape_t *shape)
{
    if (shape->n_kv_heads == 0 || shape->n_heads % shape->n_kv_heads != 0)
        return zero_fail(ZERO_ERROR_ARGUMENT, "attention: %zu heads cannot share %zu key/value heads", shape->n_heads,
                         shape->n_kv_heads);
    ZERO_TRY(zero_check_blas_size((shape->n_heads + 2 * shape->n_kv_heads) * shape->head_dim));
    return zero_check_blas_size(score_stride(shape->seq_len));
}

/* ---- Forward ---- */

static void forward_block(const head_t *h, size_t first, float *out, float *logsumexp, const float *qkv, float *scores)
{
    size_t rows = block_rows(h, first), base = first_key(h, first), columns = first + rows - base;
    size_t stride = score_stride(h->seq_len);
    float inverse_sum[ATTENTION_ROWS];
    const float *q = qkv + h->q + first * h->width, *k = qkv + h->k + base * h->width;
    const float *v = qkv + h->v + base * h->width;
    ZERO_ISA(zero_model_sgemm)
    (CblasNoTrans, CblasTrans, rows, columns, h->head_dim, h->scale, q, h->width, k, h->width, 0.0f, scores, stride);
    for (size_t i = 0; i < rows; ++i) {
        /* A query attends to keys up to its own position. */
        size_t hidden = first_key(h, first + i) - base, n = first + i + 1 - base - hidden;
        float *row = scores + i * stride + hidden;
        float max = zero_row_max(row, n);
        float sum = zero_row_exp(row, n, max);
        memset(row - hidden, 0, hidden * sizeof *row);
        memset(row + n, 0, (columns - hidden - n) * sizeof *row);
        inverse_sum[i] = 1.0f / sum;
        logsumexp[h->lse + first + i] = max + logf(sum);
    }
    float *o = out + h->out + first * h->out_width;
    ZERO_ISA(zero_model_sgemm)
    (CblasNoTrans, CblasNoTrans, rows, h->head_dim, columns, 1.0f, scores, stride, v, h->width, 0.0f, o, h->out_width);
    for (size_t i = 0; i < rows; ++i)
        for (size_t d = 0; d < h->head_dim; ++d)
            o[i * h->out_width + d] *= inverse_sum[i];
}

zero_status_t ZERO_MODEL_FN(attention)(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                                       const zero_mask_t *mask, const zero_attention_shape_t *shape)
{
    float *scores;
    int n_threads;
    ZERO_TRY(check_shape(shape));
    ZERO_TRY(allocate_scores(ctx, shape->seq_len, 1, &n_threads, &scores));
    size_t n_all_heads = shape->n_batch * shape->n_heads;
    size_t n_blocks = (shape->seq_len + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    /* The longest blocks first, so that the threads finish together. */
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
    for (size_t task = 0; task < n_blocks * n_all_heads; ++task) {
        size_t first = (n_blocks - 1 - task / n_all_heads) * ATTENTION_ROWS, head = task % n_all_heads;
        head_t h = head_at(mask, head / shape->n_heads, head % shape->n_heads, shape);
        float *own = scores + (size_t)omp_get_thread_num() * (scores_bytes(shape->seq_len) / sizeof *scores);
        forward_block(&h, first, out, logsumexp, qkv, own);
    }
    return ZERO_OK;
}

/* ---- Backward ---- */

typedef struct backward {
    float *dqkv;
    const float *dout, *qkv, *out, *logsumexp;
    float *probs, *dscores; /* one block each */
} backward_t;

/* Turns probs from scores into P, and dscores from dP into dS = scale P (dP - rowsum(dO O)). Columns are the keys from
 * `base` on. */
static void softmax_backward(const head_t *h, const backward_t *t, size_t first, size_t rows, size_t base)
{
    size_t stride = score_stride(h->seq_len), columns = first + rows - base;
    for (size_t i = 0; i < rows; ++i) {
        size_t hidden = first_key(h, first + i) - base, n = first + i + 1 - base - hidden;
        size_t at = h->out + (first + i) * h->out_width;
        float *p = t->probs + i * stride + hidden, *ds = t->dscores + i * stride + hidden;
        float lse = t->logsumexp[h->lse + first + i];
        float delta = zero_row_dot(t->dout + at, t->out + at, h->head_dim);
        for (size_t j = 0; j < n; ++j) {
            p[j] = zero_exp(p[j] - lse);
            ds[j] = h->scale * p[j] * (ds[j] - delta);
        }
        memset(p - hidden, 0, hidden * sizeof *p);
        memset(ds - hidden, 0, hidden * sizeof *ds);
        memset(p + n, 0, (columns - hidden - n) * sizeof *p);
        memset(ds + n, 0, (columns - hidden - n) * sizeof *ds);
    }
}

/* Computes dq of the block's rows, and overwrites (beta 0) or adds to (beta 1) dk and dv of its columns. */
static void backward_block(const head_t *h, const backward_t *t, size_t first, float beta)
{
    size_t rows = block_rows(h, first), base = first_key(h, first), columns = first + rows - base;
    size_t stride = score_stride(h->seq_len), hd = h->head_dim, key = base * h->width;
    const float *q = t->qkv + h->q + first * h->width, *k = t->qkv + h->k + key, *v = t->qkv + h->v + key;
    const float *dout = t->dout + h->out + first * h->out_width;
    float *dq = t->dqkv + h->q + first * h->width, *dk = t->dqkv + h->k + key, *dv = t->dqkv + h->v + key;

    ZERO_ISA(zero_model_sgemm)
    (CblasNoTrans, CblasTrans, rows, columns, hd, h->scale, q, h->width, k, h->width, 0.0f, t->probs, stride);
    ZERO_ISA(zero_model_sgemm)
    (CblasNoTrans, CblasTrans, rows, columns, hd, 1.0f, dout, h->out_width, v, h->width, 0.0f, t->dscores, stride);
    softmax_backward(h, t, first, rows, base);
    ZERO_ISA(zero_model_sgemm)
    (CblasTrans, CblasNoTrans, columns, hd, rows, 1.0f, t->probs, stride, dout, h->out_width, beta, dv, h->width);
    ZERO_ISA(zero_model_sgemm)
    (CblasNoTrans, CblasNoTrans, rows, hd, columns, 1.0f, t->dscores, stride, k, h->width, 0.0f, dq, h->width);
    ZERO_ISA(zero_model_sgemm)
    (CblasTrans, CblasNoTrans, columns, hd, rows, 1.0f, t->dscores, stride, q, h->width, beta, dk, h->width);
}

/* Begins dk and dv with zeros, for blocks that do not cover every key. */
static void clear_keys(const head_t *h, float *dqkv)
{
    for (size_t t = 0; t < h->seq_len; ++t) {
        memset(dqkv + h->k + t * h->width, 0, h->head_dim * sizeof *dqkv);
        memset(dqkv + h->v + t * h->width, 0, h->head_dim * sizeof *dqkv);
    }
}

/* Computes dq of a head, and overwrites (begins) or adds to dk and dv. */
static void backward_head(const head_t *h, const backward_t *t, bool begins)
{
    size_t n_blocks = (h->seq_len + ATTENTION_ROWS - 1) / ATTENTION_ROWS, last = n_blocks - 1;
    bool covers_all = first_key(h, last * ATTENTION_ROWS) == 0;
    if (begins && !covers_all)
        clear_keys(h, t->dqkv);
    /* Without a mask the last block covers every key, so it comes first and overwrites; the others add. */
    for (size_t block = n_blocks; block-- > 0;)
        backward_block(h, t, block * ATTENTION_ROWS, begins && covers_all && block == last ? 0.0f : 1.0f);
}

zero_status_t ZERO_MODEL_FN(attention_backward)(zero_model_context_t *ctx, void *dqkv, const void *dout,
                                                const void *qkv, const void *out, const float *logsumexp,
                                                const zero_mask_t *mask, const zero_attention_shape_t *shape)
{
    float *scores;
    int n_threads;
    ZERO_TRY(check_shape(shape));
    ZERO_TRY(allocate_scores(ctx, shape->seq_len, 2, &n_threads, &scores));
    size_t group = shape->n_heads / shape->n_kv_heads, block_elems = scores_bytes(shape->seq_len) / sizeof *scores;
    /* Query heads that share a key/value head add to the same dk and dv, so one thread takes them, in order. */
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
    for (size_t task = 0; task < shape->n_batch * shape->n_kv_heads; ++task) {
        float *own = scores + (size_t)omp_get_thread_num() * 2 * block_elems;
        backward_t tensors = {dqkv, dout, qkv, out, logsumexp, own, own + block_elems};
        for (size_t member = 0; member < group; ++member) {
            head_t h = head_at(mask, task / shape->n_kv_heads, task % shape->n_kv_heads * group + member, shape);
            backward_head(&h, &tensors, member == 0);
        }
    }
    return ZERO_OK;
}

/* ---- attention cached ---- */
/* Attention of new positions to those before them, on the CPU, with the keys and values of all
 * kept in a cache. For generating: where a text begins, this is attention; then rows are few, so each head's scores are
 * dot products in a thread's scratch. Threads take heads. One thread computes each output element, in a fixed order. */

/* One query head at one position. The stride of `keys` and of the cache's rows is `width`; values follow keys. */
static void attend(float *out, const float *q, const float *keys, const float *values, size_t width, size_t n,
                   size_t head_dim, float *scores)
{
    const float scale = 1.0f / sqrtf((float)head_dim);
    for (size_t t = 0; t < n; ++t)
        scores[t] = scale * zero_row_dot(q, keys + t * width, head_dim);
    float max = zero_row_max(scores, n), inverse = 1.0f / zero_row_exp(scores, n, max);
    memset(out, 0, head_dim * sizeof *out);
    for (size_t t = 0; t < n; ++t) {
        const float *value = values + t * width, weight = scores[t] * inverse;
#pragma omp simd
        for (size_t d = 0; d < head_dim; ++d)
            out[d] = zero_multiply_add(weight, value[d], out[d]);
    }
}

/* Appends the keys and values of qkv's rows to the cache. */
static void put_rows(float *cache, const float *qkv, size_t first, size_t n_new, size_t row, size_t width)
{
    for (size_t t = 0; t < n_new; ++t)
        memcpy(cache + (first + t) * width, qkv + (t + 1) * row - width, width * sizeof *cache);
}

zero_status_t ZERO_MODEL_FN(attention_cached)(zero_model_context_t *ctx, void *out, float *logsumexp, void *cache,
                                              const void *qkv, const zero_mask_t *mask,
                                              const zero_attention_shape_t *shape)
{
    size_t width = 2 * shape->n_kv_heads * shape->head_dim, row = shape->n_heads * shape->head_dim + width,
           window = mask->window;
    size_t first = mask->starts != NULL ? (size_t) - (int64_t)mask->starts[0] : 0, n_all = first + shape->seq_len;
    put_rows(cache, qkv, first, shape->seq_len, row, width);
    if (first == 0)
        return ZERO_MODEL_FN(attention)(ctx, out, logsumexp, qkv, &(zero_mask_t){.window = window}, shape);
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    size_t bytes = zero_scratch_bytes(n_all * sizeof(float)), n_buffers = scratch.bytes_left / bytes;
    size_t n_wanted = (size_t)omp_get_max_threads(), n_threads = n_buffers < n_wanted ? n_buffers : n_wanted;
    float *scores;
    ZERO_TRY(zero_scratch_alloc(&scratch, (n_threads == 0 ? 1 : n_threads) * bytes, &scores));
#pragma omp parallel for schedule(static) num_threads((int)n_threads)
    for (size_t head = 0; head < shape->n_heads; ++head) {
        const float *keys = (float *)cache + head / (shape->n_heads / shape->n_kv_heads) * shape->head_dim;
        const float *values = keys + shape->n_kv_heads * shape->head_dim;
        float *own = scores + (size_t)omp_get_thread_num() * (bytes / sizeof(float));
        for (size_t t = 0; t < shape->seq_len; ++t) {
            size_t n = first + t + 1, hidden = window > 0 && window < n ? n - window : 0;
            attend((float *)out + (t * shape->n_heads + head) * shape->head_dim,
                   (const float *)qkv + t * row + head * shape->head_dim, keys + hidden * width,
                   values + hidden * width, width, n - hidden, shape->head_dim, own);
        }
    }
    return ZERO_OK;
}
