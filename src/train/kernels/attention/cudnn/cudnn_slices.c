/* cudnn_slices.c - see attention_cudnn.h. */
#include "train/kernels/attention/cudnn/attention_cudnn.h"

/* ---- cudnn graphs ---- */
/* Attention described to cuDNN, which recognizes it:
 *
 * Forward:   S = scale Q K^T, masked;  P = softmax S, with logsumexp;  O = P V
 * Backward:  P = e^(scale Q K^T - logsumexp), masked;  dV = P^T dO;  dS = scale P (dO V^T - rowsum(dO O));
 *            dK = dS^T Q;  dQ = dS K                            (as in FlashAttention-2, Dao 2023, arXiv:2307.08691)
 * Shared key/value heads: K and V have fewer heads, dK and dV are reduced over the query heads of each. */

/* Extents and strides of a slice's tensors, which are laid out as in kernels.h. */
typedef struct layouts {
    zero_graph_extents_t q, k, v, out, scores, row; /* row: one number per query */
} layouts_t;

static layouts_t layouts_of(const zero_attention_shape_t *s, zero_attention_slice_t slice)
{
    int64_t b = (int64_t)slice.n_batch, h = (int64_t)slice.n_heads, kv = (int64_t)slice.n_kv_heads;
    int64_t t = (int64_t)s->seq_len, d = (int64_t)s->head_dim, every_head = (int64_t)s->n_heads;
    int64_t width = (every_head + 2 * (int64_t)s->n_kv_heads) * d;
    zero_graph_extents_t q = {{b, h, t, d}, {t * width, d, width, 1}}, k = {{b, kv, t, d}, {t * width, d, width, 1}};
    return (layouts_t){.q = q,
                       .k = k,
                       .v = k,
                       .out = {{b, h, t, d}, {t * every_head * d, d, every_head * d, 1}},
                       .scores = zero_extents_dense(b, h, t, t),
                       .row = {{b, h, t, 1}, {every_head * t, t, 1, 1}}};
}

/* Returns scale q k^T, minus `row` if it is not NULL, with -infinity for keys that come after the query. */
static zero_descriptor_t masked_scores(zero_cudnn_graph_t *g, const layouts_t *l, zero_descriptor_t q,
                                       zero_descriptor_t k, zero_descriptor_t row)
{
    zero_descriptor_t products = zero_graph_between(g, CUDNN_DATA_FLOAT, l->scores);
    zero_graph_matmul(g, q, k, products);
    zero_descriptor_t scores =
        zero_graph_computed(g, CUDNN_POINTWISE_MUL, l->scores, products, zero_graph_scalar(g, ID_SCALE));
    if (row != NULL)
        scores = zero_graph_computed(g, CUDNN_POINTWISE_SUB, l->scores, scores, row);
    zero_descriptor_t query = zero_graph_between(g, CUDNN_DATA_INT32, l->scores),
                      key = zero_graph_between(g, CUDNN_DATA_INT32, l->scores);
    zero_descriptor_t seen = zero_graph_between(g, CUDNN_DATA_BOOLEAN, l->scores),
                      masked = zero_graph_between(g, CUDNN_DATA_FLOAT, l->scores);
    zero_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, query, scores, NULL, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, key, scores, NULL, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, seen, query, key, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, masked, scores,
                         zero_graph_scalar(g, ID_MINUS_INF), seen);
    return masked;
}

void zero_attention_forward_graph(zero_cudnn_graph_t *g, const zero_attention_shape_t *s, zero_attention_slice_t slice)
{
    layouts_t l = layouts_of(s, slice);
    zero_descriptor_t q = zero_graph_stored(g, ID_Q, l.q), k = zero_graph_stored(g, ID_K, zero_extents_transposed(l.k)),
                      v = zero_graph_stored(g, ID_V, l.v);
    zero_descriptor_t scores = masked_scores(g, &l, q, k, NULL);
    zero_descriptor_t max = zero_graph_between(g, CUDNN_DATA_FLOAT, l.row),
                      sum = zero_graph_between(g, CUDNN_DATA_FLOAT, l.row),
                      probs = zero_graph_between(g, g->dtype, l.scores);
    zero_descriptor_t lse = zero_graph_stored_fp32(g, ID_LSE, l.row);
    zero_graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, max, scores);
    zero_descriptor_t shifted = zero_graph_computed(g, CUDNN_POINTWISE_SUB, l.scores, scores, max);
    zero_descriptor_t exponentials = zero_graph_computed(g, CUDNN_POINTWISE_EXP, l.scores, shifted, NULL);
    zero_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sum, exponentials);
    zero_descriptor_t log_sum = zero_graph_computed(g, CUDNN_POINTWISE_LOG, l.row, sum, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, lse, max, log_sum, NULL);
    zero_graph_pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, probs, exponentials, sum, NULL);
    zero_graph_matmul(g, probs, v, zero_graph_stored(g, ID_OUT, l.out));
}

/* Adds gradient = weights^T x, summed over the query heads that share a key/value head. */
static void key_gradient(zero_cudnn_graph_t *g, const layouts_t *l, zero_attention_slice_t slice,
                         zero_descriptor_t weights, zero_descriptor_t x, zero_descriptor_t gradient)
{
    zero_descriptor_t flipped = zero_graph_reshaped(g, weights, zero_extents_transposed(l->scores));
    if (slice.n_heads == slice.n_kv_heads) {
        zero_graph_matmul(g, flipped, x, gradient);
        return;
    }
    const int64_t *dims = l->q.dims;
    zero_descriptor_t every_head =
        zero_graph_between(g, g->dtype, zero_extents_dense(dims[0], dims[1], dims[2], dims[3]));
    zero_graph_matmul(g, flipped, x, every_head);
    zero_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, gradient, every_head);
}

void zero_attention_backward_graph(zero_cudnn_graph_t *g, const zero_attention_shape_t *s, zero_attention_slice_t slice)
{
    layouts_t l = layouts_of(s, slice);
    zero_descriptor_t q = zero_graph_stored(g, ID_Q, l.q), k = zero_graph_stored(g, ID_K, zero_extents_transposed(l.k));
    zero_descriptor_t v = zero_graph_stored(g, ID_V, zero_extents_transposed(l.v)),
                      out = zero_graph_stored(g, ID_OUT, l.out);
    zero_descriptor_t dout = zero_graph_stored(g, ID_DOUT, l.out), lse = zero_graph_stored_fp32(g, ID_LSE, l.row);

    /* delta = rowsum(dO O). cuDNN wants it in memory, and multiplied by something. */
    zero_descriptor_t products = zero_graph_between(
        g, CUDNN_DATA_FLOAT, zero_extents_dense(l.out.dims[0], l.out.dims[1], l.out.dims[2], l.out.dims[3]));
    zero_descriptor_t sums = zero_graph_between(g, CUDNN_DATA_FLOAT, l.row),
                      delta = zero_graph_stored_fp32(g, ID_DELTA, l.row);
    zero_graph_pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, products, dout, out, NULL);
    zero_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sums, products);
    zero_graph_pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, delta, sums, zero_graph_scalar(g, ID_ONE), NULL);

    zero_descriptor_t probs =
        zero_graph_computed(g, CUDNN_POINTWISE_EXP, l.scores, masked_scores(g, &l, q, k, lse), NULL);
    key_gradient(g, &l, slice, probs, dout, zero_graph_stored(g, ID_DV, l.v));

    zero_descriptor_t dprobs = zero_graph_between(g, CUDNN_DATA_FLOAT, l.scores);
    zero_graph_matmul(g, dout, v, dprobs);
    zero_descriptor_t centered = zero_graph_computed(g, CUDNN_POINTWISE_SUB, l.scores, dprobs, delta);
    zero_descriptor_t unscaled = zero_graph_computed(g, CUDNN_POINTWISE_MUL, l.scores, centered, probs);
    zero_descriptor_t dscores =
        zero_graph_computed(g, CUDNN_POINTWISE_MUL, l.scores, unscaled, zero_graph_scalar(g, ID_SCALE));
    key_gradient(g, &l, slice, dscores, q, zero_graph_stored(g, ID_DK, l.k));
    zero_graph_matmul(g, dscores, zero_graph_reshaped(g, k, l.k), zero_graph_stored(g, ID_DQ, l.q));
}

/* ---- cudnn slices ---- */

/* For each lane, more than cuDNN needs in addition to slice_bytes. */
#define OWN_BYTES ((size_t)4 << 20)

size_t zero_attention_delta_bytes(const zero_attention_shape_t *s)
{
    return zero_scratch_bytes(s->n_batch * s->n_heads * s->seq_len * sizeof(float));
}

/* Returns what a slice stores: dS and, for key/value heads that are shared, dK and dV of every query head. */
static size_t slice_bytes(const zero_attention_shape_t *s, zero_attention_slice_t slice)
{
    size_t columns = s->seq_len + (s->n_heads > s->n_kv_heads ? 2 * s->head_dim : 0);
    return slice.n_batch * slice.n_heads * s->seq_len * columns * sizeof(uint16_t);
}

/* Returns the largest divisor of n that is at most `most`, and at least 1. */
static size_t divisor_up_to(size_t n, size_t most)
{
    size_t divisor = most < n ? most : n;
    while (divisor > 1 && n % divisor != 0)
        --divisor;
    return divisor > 0 ? divisor : 1;
}

/* Returns the largest slice within `most` bytes, or the smallest: whole sequences, or else some key/value heads of one,
 * each with its query heads. All slices are equal, so that one plan serves them all. */
static zero_attention_slice_t slice_within(const zero_attention_shape_t *s, size_t most)
{
    zero_attention_slice_t slice = {1, s->n_heads, s->n_kv_heads};
    size_t sequence = slice_bytes(s, slice);
    if (sequence <= most) {
        slice.n_batch = divisor_up_to(s->n_batch, most / sequence);
        return slice;
    }
    slice.n_kv_heads = divisor_up_to(s->n_kv_heads, most / (sequence / s->n_kv_heads));
    slice.n_heads = s->n_heads / s->n_kv_heads * slice.n_kv_heads;
    return slice;
}

zero_attention_slices_t zero_attention_slices_within(const zero_attention_shape_t *s, size_t bytes)
{
    size_t whole = slice_bytes(s, (zero_attention_slice_t){s->n_batch, s->n_heads, s->n_kv_heads}), most_used = 0;
    size_t most = bytes > ZERO_ATTENTION_LANES * OWN_BYTES ? bytes - ZERO_ATTENTION_LANES * OWN_BYTES : 0;
    most = most < whole ? most : whole;
    zero_attention_slices_t best = {slice_within(s, most), 1, 0};
    for (size_t n_lanes = 2; n_lanes <= ZERO_ATTENTION_LANES && most < whole; ++n_lanes) {
        zero_attention_slice_t slice = slice_within(s, most / n_lanes);
        size_t n_slices = s->n_batch / slice.n_batch * (s->n_heads / slice.n_heads);
        size_t used = n_lanes * slice_bytes(s, slice);
        if (used > most || used <= most_used || n_slices < n_lanes)
            continue;
        best = (zero_attention_slices_t){slice, n_lanes, 0};
        most_used = used;
    }
    best.bytes = zero_scratch_bytes(slice_bytes(s, best.slice)) + OWN_BYTES;
    return best;
}

/* Sequences that are no multiple of this are padded: some versions of cuDNN mask them wrongly (9.15 and before,
 * backward). */
#define POSITIONS ((size_t)128)

zero_attention_shape_t zero_attention_padded(zero_attention_shape_t s)
{
    s.seq_len = (s.seq_len + POSITIONS - 1) / POSITIONS * POSITIONS;
    return s;
}

size_t zero_attention_copies_bytes(const zero_attention_shape_t *s, const zero_attention_shape_t *p)
{
    if (s->seq_len == p->seq_len)
        return 0;
    size_t rows = p->n_batch * p->seq_len;
    return 2 * zero_scratch_bytes(rows * zero_attention_width(p) * sizeof(uint16_t)) +
           2 * zero_scratch_bytes(rows * p->n_heads * p->head_dim * sizeof(uint16_t)) +
           zero_scratch_bytes(rows * p->n_heads * sizeof(float));
}

/* The largest shape takes all of it. For smaller ones backward is cut into slices for which it is enough. */
size_t zero_cudnn_workspace(const zero_model_limits_t *limits)
{
    size_t n_kv_heads = limits->n_kv_heads > 0 ? limits->n_kv_heads : limits->n_heads;
    size_t n_batch = limits->n_batch > 0 ? limits->n_batch : limits->n_rows / limits->seq_len;
    zero_attention_shape_t s = {n_batch, limits->seq_len, limits->n_heads, n_kv_heads, limits->head_dim};
    zero_attention_shape_t p = zero_attention_padded(s);
    if (!zero_cudnn_may_serve(limits->dtype, &s, NULL))
        return 0;
    zero_attention_slices_t slices = zero_attention_slices_within(&p, ZERO_ATTENTION_SLICES_MAX_BYTES);
    return zero_attention_copies_bytes(&s, &p) + zero_attention_delta_bytes(&p) + ZERO_ATTENTION_LANES * OWN_BYTES +
           slices.n_lanes * slices.bytes;
}
