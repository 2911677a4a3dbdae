/* cudnn_slices.c - see cudnn_slices.h. */
#include "kernels/model/cuda/attention/cudnn_slices.h"

#include "kernels/model/cuda/attention/attention_cudnn.h"

/* For each lane, more than cuDNN needs beside what slice_bytes counts. */
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
    zero_attention_shape_t s = {limits->n_rows / limits->seq_len, limits->seq_len, limits->n_heads, n_kv_heads,
                                limits->head_dim};
    zero_attention_shape_t p = zero_attention_padded(s);
    if (!zero_cudnn_may_serve(limits->dtype, &s, NULL))
        return 0;
    zero_attention_slices_t slices = zero_attention_slices_within(&p, ZERO_ATTENTION_SLICES_MAX_BYTES);
    return zero_attention_copies_bytes(&s, &p) + zero_attention_delta_bytes(&p) + ZERO_ATTENTION_LANES * OWN_BYTES +
           slices.n_lanes * slices.bytes;
}
