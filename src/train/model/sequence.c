/* sequence.c - see sequence.h.
 *
 * A slice is what a rank sends to another in one exchange: before attention [B, Tp of the sender, the receiver's q, k
 * and v heads], behind it [B, Tp of the receiver, the sender's heads]. Slices are copied into the exchange's memory,
 * head by head or part by part, and out of it where they belong: sum_blocks of one block. All slices have room for the
 * largest, so that ranks with unequal parts or heads make the same call.
 */
#include "train/model/sequence.h"

#include <stdlib.h>

#include "train/model/model.h"
#include "train/report/report.h"

/* What a rank has: rows first .. + n_rows of every sequence, and heads. In elements of a row of its heads: q, k and v,
 * and those that attention gives. */
typedef struct part {
    size_t first, n_rows;
    options_heads_t heads;
    size_t qkv, out;
} part_t;

struct sequence {
    int n, me;
    zero_all_to_all_t *exchange; /* NULL until sequence_attach */
    void *qkv;                   /* [R, qkv] rotated, on their way into slices */
    void *d_heads_qkv;           /* [B, T, own qkv] */
    void *d_heads_out;           /* [B, T, own out] */
    part_t parts[OPTIONS_MAX_SEQUENCE_RANKS];
};

static part_t part_of(const options_t *o, int n, int i)
{
    const size_t head_dim = (size_t)options_head_dim(&o->model);
    const options_heads_t heads = options_heads_of(&o->model, n, i);
    const int64_t first = options_part_begin(o->model.seq_len, n, i);
    return (part_t){.first = (size_t)first,
                    .n_rows = (size_t)(options_part_begin(o->model.seq_len, n, i + 1) - first),
                    .heads = heads,
                    .qkv = (size_t)(heads.n_heads + 2 * heads.n_kv) * head_dim,
                    .out = (size_t)heads.n_heads * head_dim};
}

/* Returns the sizes of the largest part, which all buffers have room for. */
static part_t largest_part(const model_t *model)
{
    const options_t *o = model->options;
    const int n = (int)options_sequence_ranks(&o->train);
    part_t most = {.n_rows = (size_t)options_longest_part(o)};
    for (int i = 0; i < n; i++) {
        const part_t part = part_of(o, n, i);
        most.qkv = part.qkv > most.qkv ? part.qkv : most.qkv;
        most.out = part.out > most.out ? part.out : most.out;
    }
    return most;
}

zero_status_t sequence_create(model_t *model, int rank)
{
    const int n = (int)options_sequence_ranks(&model->options->train);
    if (n == 1)
        return ZERO_OK;
    sequence_t *made = calloc(1, sizeof *made);
    if (!made)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for a sequence of %d ranks", n);
    made->n = n;
    made->me = rank % n;
    for (int i = 0; i < n; i++)
        made->parts[i] = part_of(model->options, n, i);
    model->sequence = made;
    return ZERO_OK;
}

void sequence_destroy(model_t *model)
{
    free(model->sequence);
    model->sequence = NULL;
}

bool sequence_is_shared(const model_t *model)
{
    return model->sequence && model->pass != MODEL_LOGITS;
}

size_t sequence_begin(const model_t *model)
{
    return model->sequence ? model->sequence->parts[model->sequence->me].first : 0;
}

size_t sequence_len(const model_t *model)
{
    return model->sequence ? model->sequence->parts[model->sequence->me].n_rows : (size_t)model->options->model.seq_len;
}

/* ---- memory ---- */

static size_t slice_bytes(const model_t *model, size_t row_elems)
{
    return (size_t)model->options->train.micro_batch * largest_part(model).n_rows * row_elems *
           arch_largest_sizes(model).element_bytes;
}

zero_status_t sequence_plan(const model_t *model, zero_memory_t *memory)
{
    const options_t *o = model->options;
    const int n = (int)options_sequence_ranks(&o->train);
    const zero_comm_kind_t kind = o->zero.comm == ZERO_COMM_MPI ? ZERO_COMM_MPI : ZERO_COMM_AUTO;
    const zero_device_type_t device = o->device.type == ZERO_DEVICE_CPU ? ZERO_DEVICE_CPU : ZERO_DEVICE_CUDA;
    return n > 1 ? zero_all_to_all_plan(device, kind, n, slice_bytes(model, largest_part(model).qkv), memory) : ZERO_OK;
}

zero_status_t sequence_attach(model_t *model)
{
    return model->sequence
               ? zero_all_to_all_create(model->engine, model->sequence->n, slice_bytes(model, largest_part(model).qkv),
                                        &model->sequence->exchange)
               : ZERO_OK;
}

uint64_t sequence_exchanged_bytes(const model_t *model)
{
    const options_t *o = model->options;
    const part_t most = largest_part(model);
    uint64_t n_passes = 0; /* over a block: forward, backward, forward again */
    for (int64_t l = 0; l < o->model.layers; l++)
        n_passes += options_block_recompute(&o->model, l) == RECOMPUTE_FULL ? 3 : 2;
    return n_passes * (uint64_t)(options_sequence_ranks(&o->train) - 1) *
           (slice_bytes(model, most.qkv) + slice_bytes(model, most.out));
}

/* Returns B * T of a training pass. */
static size_t all_rows(const model_t *model)
{
    return (size_t)(model->options->train.micro_batch * model->options->model.seq_len);
}

void sequence_allocate_shared(const model_t *model, activations_t *a)
{
    const arch_sizes_t s = arch_largest_sizes(model);
    const part_t most = largest_part(model);
    if (options_sequence_ranks(&model->options->train) == 1)
        return;
    void *qkv = activations_alloc(a, s.R * s.qkv, s.element_bytes);
    void *d_heads_qkv = activations_alloc(a, all_rows(model) * most.qkv, s.element_bytes);
    void *d_heads_out = activations_alloc(a, all_rows(model) * most.out, s.element_bytes);
    if (!model->sequence) /* only counted */
        return;
    model->sequence->qkv = qkv;
    model->sequence->d_heads_qkv = d_heads_qkv;
    model->sequence->d_heads_out = d_heads_out;
}

void sequence_allocate_kept(const model_t *model, activations_t *a, layer_activations_t *layer)
{
    layer->heads_out =
        activations_alloc(a, all_rows(model) * largest_part(model).out, arch_largest_sizes(model).element_bytes);
}

void sequence_allocate_layer(const model_t *model, activations_t *a, bool with_out, layer_activations_t *layer)
{
    const arch_sizes_t s = arch_largest_sizes(model);
    const part_t most = largest_part(model);
    if (options_sequence_ranks(&model->options->train) == 1)
        return;
    layer->heads_qkv = activations_alloc(a, all_rows(model) * most.qkv, s.element_bytes);
    if (with_out)
        sequence_allocate_kept(model, a, layer);
}

void *sequence_qkv(const model_t *model)
{
    return model->sequence ? model->sequence->qkv : NULL;
}

/* ---- the exchange ---- */

static const part_t *own(const model_t *model)
{
    return &model->sequence->parts[model->sequence->me];
}

static void *at(const model_t *model, const void *data, size_t n_elems)
{
    return (unsigned char *)(uintptr_t)data + n_elems * arch_sizes(model).element_bytes;
}

static zero_status_t copy(model_t *model, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                          size_t n_rows, size_t n_columns)
{
    const zero_block_t block = {src, src_stride};
    return model->kernels->sum_blocks(&model->ctx, dst, dst_stride, &block, 1, n_rows, n_columns);
}

/* A run of heads: where they are in a row of all heads, and in a row of their rank's. */
typedef struct run {
    size_t in_all, in_own, n_columns;
} run_t;

/* Lists a rank's q heads and, with_kv, its k and v heads. Returns how many runs these are. */
static int runs_of(const model_t *model, const part_t *part, bool with_kv, run_t runs[3])
{
    const arch_sizes_t s = arch_sizes(model);
    const size_t q = (size_t)part->heads.n_heads * s.head_dim, kv = (size_t)part->heads.n_kv * s.head_dim;
    const size_t first_kv = (size_t)part->heads.first_kv * s.head_dim;
    runs[0] = (run_t){(size_t)part->heads.first_head * s.head_dim, 0, q};
    runs[1] = (run_t){s.A + first_kv, q, kv};
    runs[2] = (run_t){s.A + s.kv_heads * s.head_dim + first_kv, q + kv, kv};
    return with_kv ? 3 : 1;
}

/* Returns the elements of a row of a rank's heads. */
static size_t width_of(const part_t *part, bool with_kv)
{
    return with_kv ? part->qkv : part->out;
}

static zero_status_t exchange(model_t *model, bool with_kv, const void **received)
{
    const part_t most = largest_part(model);
    return zero_all_to_all(model->sequence->exchange, slice_bytes(model, width_of(&most, with_kv)), received,
                           model->ctx.stream);
}

/* heads[B, T, own heads] = the ranks' rows[B, Tp, all heads] */
static zero_status_t rows_to_heads(model_t *model, bool with_kv, void *heads, const void *rows)
{
    const sequence_t *q = model->sequence;
    const arch_sizes_t s = arch_sizes(model);
    const size_t all = with_kv ? s.qkv : s.A, width = width_of(own(model), with_kv);
    const size_t T = (size_t)model->options->model.seq_len;
    void *slices[OPTIONS_MAX_SEQUENCE_RANKS];
    const void *received[OPTIONS_MAX_SEQUENCE_RANKS];
    ZERO_TRY(zero_all_to_all_slices(q->exchange, slices));
    for (int i = 0; i < q->n; i++) {
        run_t runs[3];
        const int n_runs = runs_of(model, &q->parts[i], with_kv, runs);
        for (int r = 0; r < n_runs; r++)
            ZERO_TRY(copy(model, at(model, slices[i], runs[r].in_own), width_of(&q->parts[i], with_kv),
                          at(model, rows, runs[r].in_all), all, s.R, runs[r].n_columns));
    }
    ZERO_TRY(exchange(model, with_kv, received));
    for (int i = 0; i < q->n; i++)
        for (size_t b = 0; b < s.B; b++)
            ZERO_TRY(copy(model, at(model, heads, (b * T + q->parts[i].first) * width), width,
                          at(model, received[i], b * q->parts[i].n_rows * width), width, q->parts[i].n_rows, width));
    return ZERO_OK;
}

/* Sets a run of all heads in rows: the sum, in rank order, of what each rank that has the run has sent. Only k and v
 * heads can be of several. */
static zero_status_t collect_run(model_t *model, bool with_kv, void *rows, const void **received, int first, int r)
{
    const sequence_t *q = model->sequence;
    const arch_sizes_t s = arch_sizes(model);
    zero_block_t blocks[OPTIONS_MAX_SEQUENCE_RANKS];
    run_t mine[3], runs[3];
    int n = 0;
    runs_of(model, &q->parts[first], with_kv, mine);
    for (int i = first; i < q->n; i++) {
        runs_of(model, &q->parts[i], with_kv, runs);
        if (i == first || (r > 0 && runs[r].in_all == mine[r].in_all))
            blocks[n++] = (zero_block_t){at(model, received[i], runs[r].in_own), width_of(&q->parts[i], with_kv)};
    }
    return model->kernels->sum_blocks(&model->ctx, at(model, rows, mine[r].in_all), with_kv ? s.qkv : s.A, blocks, n,
                                      s.R, mine[r].n_columns);
}

/* rows[B, Tp, all heads] = the ranks' heads[B, T, own heads] */
static zero_status_t heads_to_rows(model_t *model, bool with_kv, void *rows, const void *heads)
{
    const sequence_t *q = model->sequence;
    const arch_sizes_t s = arch_sizes(model);
    const size_t width = width_of(own(model), with_kv), T = (size_t)model->options->model.seq_len;
    void *slices[OPTIONS_MAX_SEQUENCE_RANKS];
    const void *received[OPTIONS_MAX_SEQUENCE_RANKS];
    ZERO_TRY(zero_all_to_all_slices(q->exchange, slices));
    for (int i = 0; i < q->n; i++)
        for (size_t b = 0; b < s.B; b++)
            ZERO_TRY(copy(model, at(model, slices[i], b * q->parts[i].n_rows * width), width,
                          at(model, heads, (b * T + q->parts[i].first) * width), width, q->parts[i].n_rows, width));
    ZERO_TRY(exchange(model, with_kv, received));
    for (int i = 0; i < q->n; i++) {
        const bool has_same_kv = i > 0 && q->parts[i].heads.first_kv == q->parts[i - 1].heads.first_kv;
        for (int r = 0; r < (with_kv && !has_same_kv ? 3 : 1); r++)
            ZERO_TRY(collect_run(model, with_kv, rows, received, i, r));
    }
    return ZERO_OK;
}

/* ---- attention ---- */

zero_attention_shape_t sequence_attention_shape(const model_t *model, size_t n_batch)
{
    const options_heads_t heads = own(model)->heads;
    return (zero_attention_shape_t){n_batch, (size_t)model->options->model.seq_len, (size_t)heads.n_heads,
                                    (size_t)heads.n_kv, (size_t)options_head_dim(&model->options->model)};
}

zero_status_t sequence_attention(model_t *model, int layer, const void *qkv)
{
    const layer_activations_t *a = &model->layers[layer];
    const zero_attention_shape_t shape = sequence_attention_shape(model, model->n_batch);
    const zero_mask_t mask = arch_mask(model, layer);
    ZERO_TRY(rows_to_heads(model, true, a->heads_qkv, qkv));
    ZERO_TRY(model->kernels->attention(&model->ctx, a->heads_out, a->logsumexp, a->heads_qkv, &mask, &shape));
    return heads_to_rows(model, false, a->attention, a->heads_out);
}

zero_status_t sequence_attention_again(model_t *model, int layer, const void *qkv)
{
    const layer_activations_t *a = &model->layers[layer];
    ZERO_TRY(rows_to_heads(model, true, a->heads_qkv, qkv));
    return heads_to_rows(model, false, a->attention, a->heads_out);
}

zero_status_t sequence_attention_backward(model_t *model, int layer, void *d_qkv, const void *d_out)
{
    const sequence_t *q = model->sequence;
    const layer_activations_t *a = &model->layers[layer];
    const zero_attention_shape_t shape = sequence_attention_shape(model, model->n_batch);
    const zero_mask_t mask = arch_mask(model, layer);
    ZERO_TRY(rows_to_heads(model, false, q->d_heads_out, d_out));
    ZERO_TRY(model->kernels->attention_backward(&model->ctx, q->d_heads_qkv, q->d_heads_out, a->heads_qkv, a->heads_out,
                                                a->logsumexp, &mask, &shape));
    return heads_to_rows(model, true, d_qkv, q->d_heads_qkv);
}
