/* cudnn_graphs.c - attention described to cuDNN, which recognizes it:
 *
 * Forward:   S = scale Q K^T, masked;  P = softmax S, with logsumexp;  O = P V
 * Backward:  P = e^(scale Q K^T - logsumexp), masked;  dV = P^T dO;  dS = scale P (dO V^T - rowsum(dO O));
 *            dK = dS^T Q;  dQ = dS K                            (as in FlashAttention-2, Dao 2023, arXiv:2307.08691)
 * Shared key/value heads: K and V have fewer heads, dK and dV are reduced over the query heads of each.
 */
#include "kernels/model/cuda/attention/cudnn_graphs.h"

/* Extents and strides of a slice's tensors, which are laid out as in model.h. */
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
