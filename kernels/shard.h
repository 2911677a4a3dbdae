/* shard.h - the arithmetic of a sharded step: one table of functions per device.
 *
 * The table has what libzero needs of a device in addition to copies: AdamW over a flat shard, the sum of gradient
 * slices in order, the norm's exact sum, casts and initial values. Every function gives the same bits on every device
 * and instruction set: each output element is a fixed expression of IEEE fp32 operations (fma, +, *, /, sqrt, round to
 * nearest even), without reassociation and without contraction beyond the fma as written. So results do not depend
 * either on how work is split over threads, blocks or ranks. Denormals are kept. A NaN that arithmetic makes is stored
 * as 0x7fc00000, since devices make different ones.
 *
 * Only src/zero/ calls these functions. All pointers are device memory unless a comment says otherwise, and all calls
 * are ordered in `stream` (NULL on the CPU, where the work is done on return). Arrays may start at any element-aligned
 * address. Functions cannot fail on the CPU. On CUDA they return ZERO_ERROR_DEVICE if a launch fails.
 */
#ifndef ZERO_SHARD_H
#define ZERO_SHARD_H

#include "zero.h"

/* One run of elements that the optimizer treats in the same way. Offsets are in elements from the base pointers of
 * zero_adam_t. */
typedef struct zero_adam_segment {
    uint64_t n_elems;
    uint64_t param; /* in param */
    uint64_t state; /* in master_lo and m */
    uint64_t v_gap; /* in v these are at state - v_gap: it lacks so many before them. A multiple of 64, as a rule 0 */
    uint64_t grad;  /* in grad */
    float decay;    /* weight decay of this run, 0 for none */
    uint32_t tensor;
} zero_adam_segment_t;

/* The scalars of one step's update, the same on every rank. On CUDA they are in device memory, so that the host need
 * not know the norm. */
typedef struct zero_adam_scalars {
    float lr, beta1, beta2, eps;
    float one_minus_beta1, one_minus_beta2; /* 1.0f - beta, rounded once */
    float inv_bias1, inv_sqrt_bias2;        /* 1/(1-beta1^t), 1/sqrt(1-beta2^t), computed in double, rounded once */
    uint64_t adam_step;                     /* t */
    float grad_scale;                       /* clip coefficient / loss scale */
    uint32_t skip;                          /* if not 0, nothing is written */
} zero_adam_scalars_t;

/* What takes their place for one tensor, and that of its segments' decay. */
typedef struct zero_tensor_scalars {
    zero_adam_scalars_t scalars;
    float decay;
} zero_tensor_scalars_t;

/* AdamW over a flat shard, in one launch. Per element, in this order, all fp32:
 *     g = grad * grad_scale
 *     m = fma(beta1, m, one_minus_beta1 * g)
 *     v = fma(beta2, v, one_minus_beta2 * (g * g))
 *     d = fma(sqrt(v), inv_sqrt_bias2, eps)
 *     w = fma(-(lr * decay), w, w)
 *     w = fma(-lr, (m * inv_bias1) / d, w)
 * Master weights w by `param_dtype`:
 *     fp32: param is w itself; master_lo is NULL.
 *     bf16: w's bits are (param << 16) + master_lo, with master_lo a signed 16-bit number. param is w rounded to the
 *           nearest bf16, ties away from zero. No bit of w is stored twice: both take 4 bytes together, not 6.
 *     fp16: master_lo is w itself, as float; param is w rounded to nearest even. */
typedef struct zero_adam {
    zero_dtype_t param_dtype;
    void *param;             /* written; also read unless fp16 */
    void *master_lo;         /* bf16: int16_t *; fp16: float *; fp32: NULL */
    float *m, *v;            /* v: NULL for optimizers with one state array; adam8: arrays of zero_block8_t */
    const void *grad;        /* summed over ranks and micro-steps, still with the loss scale */
    zero_dtype_t grad_dtype; /* fp32 or bf16 */
    /* In ascending order of state, without overlap. The segments, like the scalars, are device memory, which launchers
     * cannot read. So [state_begin, state_end) gives the range of the state arrays that they cover, gaps included (not
     * used on the CPU). */
    const zero_adam_segment_t *segments;
    size_t n_segments;
    uint64_t state_begin, state_end;
    const zero_adam_scalars_t *scalars;
    /* NULL: every segment has `scalars` and its own decay. Else, by tensor, what the segments of each have instead. */
    const zero_tensor_scalars_t *by_tensor;
} zero_adam_t;

/* 64 numbers of m or v in 8 bits each, of which element i's is value(codes[i % 64]) * scale. Values are those of
 * dynamic tree quantization (Dettmers et al. 2022, arXiv:2110.02861), as bitsandbytes has them: in adam8_math.h. Zero
 * bytes are zeros. Blocks begin at multiples of 64 in the unit's flat buffer, as tensors and shards do; so no block has
 * elements of two tensors or two shards. */
#define ZERO_BLOCK8_ELEMS 64
typedef struct zero_block8 {
    float scale; /* of m: the number with the largest magnitude, sign included; of v: the largest number */
    uint8_t codes[ZERO_BLOCK8_ELEMS];
} zero_block8_t;

/* Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the momentum of a hidden layer's matrix is made all but
 * orthogonal before the weights step by it. The two ends work element by element, on the rank that holds the element,
 * and orthogonalize works on whole matrices. */

/* One run of elements. Offsets are in elements. */
typedef struct zero_muon_segment {
    uint64_t n_elems;
    uint64_t param, state, grad; /* as in zero_adam_segment_t */
    uint64_t at;                 /* in zero_muon_t's update */
    float decay, scale;          /* scale: of the update, in addition to lr */
    uint32_t tensor;
} zero_muon_segment_t;

typedef struct zero_muon {
    zero_dtype_t param_dtype;
    void *param, *master_lo; /* as in zero_adam_t */
    float *m;
    const float *grad;
    void *update; /* muon_momentum writes it, unless it is NULL; muon_apply reads it */
    zero_dtype_t update_dtype;
    const zero_muon_segment_t *segments;
    size_t n_segments;
    uint64_t longest; /* elements of the longest one */
    float momentum, one_minus_momentum;
    const zero_adam_scalars_t *scalars;
    const zero_tensor_scalars_t *by_tensor; /* as in zero_adam_t: muon_apply takes lr and decay of them */
} zero_muon_t;

/* The coefficients of the quintic iteration, which are Jordan's: singular values end between 0.7 and 1.2 or so. The
 * least norm that a matrix is divided by is torch.optim.Muon's. */
#define ZERO_MUON_A 3.4445f
#define ZERO_MUON_B (-4.7750f)
#define ZERO_MUON_C 2.0315f
#define ZERO_MUON_EPS 1e-7f

/* What products on CUDA need in addition to memory. */
typedef struct zero_orthogonalizer zero_orthogonalizer_t;
#define ZERO_ORTHOGONALIZE_WORKSPACE_BYTES ((size_t)8 << 20)
/* As many matrices are orthogonalized side by side at most. GPT-2 1558M's on an H200, one to four at a
 * time: 76.1, 68.1, 71.6 and 67.7 ms (bench_muon_cuda). */
enum { ZERO_ORTHOGONALIZE_LANES = 2 };

/* A matrix x[rows][cols] that is made all but orthogonal, in place:
 *     x = x / max(Frobenius norm of x, ZERO_MUON_EPS)
 *     n_steps times: g = x x^T, x = A x + (B g + C g g) x; if rows > cols instead g = x^T x, x = A x + x (B g + C g g)
 * On the CPU x and scratch are fp32 and bits are the same with every instruction set and number of threads. On CUDA x
 * is bf16, products are cuBLASLt's in fp16 with sums in fp32, and bits are the same on GPUs of one kind. On CUDA x and
 * scratch must be aligned to 256 bytes, and the members below are needed. */
typedef struct zero_orthogonalize {
    void *x, *scratch;                     /* scratch: zero_orthogonalize_scratch elements of x's size */
    zero_orthogonalizer_t *orthogonalizer; /* CUDA; NULL on the CPU, as is workspace */
    void *workspace;                       /* ZERO_ORTHOGONALIZE_WORKSPACE_BYTES */
    uint64_t rows, cols;
    int n_steps;
    const uint32_t *skip; /* if not 0, x may have any numbers, and is left as it is or not */
} zero_orthogonalize_t;

/* Returns the elements that a matrix of so many takes in scratch: what follows is aligned, too. */
static inline uint64_t zero_orthogonalize_room(uint64_t n_elems)
{
    return (n_elems + 127) / 128 * 128;
}

/* Returns whether CUDA joins several steps, for which it needs memory: if one side is more than 1.5 times the other. */
static inline bool zero_orthogonalize_joins(uint64_t rows, uint64_t cols)
{
    return 2 * rows > 3 * cols || 2 * cols > 3 * rows;
}

static inline uint64_t zero_orthogonalize_scratch(uint64_t rows, uint64_t cols, bool on_cuda)
{
    uint64_t r = rows < cols ? rows : cols, n_squares = on_cuda && zero_orthogonalize_joins(rows, cols) ? 4 : 2;
    return zero_orthogonalize_room(rows * cols) + n_squares * zero_orthogonalize_room(r * r);
}

/* A part of a matrix in fp8. */
typedef struct zero_fp8_segment {
    uint64_t param; /* in bf16 parameters, in elements */
    uint64_t byte;  /* in fp8 parameters */
    uint64_t n_elems;
    uint32_t matrix;
} zero_fp8_segment_t;

/* This rank's parts of matrices first_matrix, first_matrix + 1 ... Arrays by matrix begin at matrix 0. */
typedef struct zero_fp8_parts {
    const zero_fp8_segment_t *segments; /* at most one for each matrix */
    size_t n_segments;
    uint64_t largest; /* of them, in elements */
    uint32_t first_matrix, n_matrices;
    const uint16_t *param; /* bf16 */
    uint8_t *bytes;        /* E4M3 */
} zero_fp8_parts_t;

/* ---- The gradient's norm, in step_math.h ---- */

/* The sum of squares of gradients, exactly. ZERO_NORM_CELL numbers are one cell, from a multiple of it in their unit's
 * flat buffer on, so that every shard has whole cells; missing numbers and padding count as 0. Group g of 16 in a cell
 * adds the squares of elements 4 g .. 4 g + 3 in order, acc = fma(x, x, acc) in fp32 from 0. Then groups are folded in
 * halves (acc[g] += acc[g + s] for s = 8, 4, 2, 1). The cells' sums are added exactly:
 *     sum = 2^-149 (words[0] + words[1] 2^24 + words[2] 2^48 + ...)
 * words[ZERO_NORM_DIGITS] counts cells whose sum is infinite or NaN. Each cell adds less than 2^24 to two words at
 * most, so that 2^40 cells, 2^46 numbers, fit. */
#define ZERO_NORM_CELL 64
#define ZERO_NORM_DIGIT_BITS 24
#define ZERO_NORM_DIGITS 12
#define ZERO_NORM_WORDS (ZERO_NORM_DIGITS + 1)
typedef struct zero_norm {
    uint64_t words[ZERO_NORM_WORDS];
} zero_norm_t;

/* ---- The end of a step, decided in step_math.h ---- */

typedef struct zero_step_rules { /* constant for a run */
    float beta1, beta2, eps, grad_clip;
    bool dynamic_loss_scale;        /* fp16 */
    uint32_t loss_scale_window;     /* the scale is doubled after this many good steps in a row */
    uint32_t loss_scale_hysteresis; /* the scale is halved by this overflow since it last grew, and by later ones */
} zero_step_rules_t;

/* What one tensor's scalars are computed from, together with those of the step. */
typedef struct zero_tensor_rules {
    float lr_scale, beta1, beta2, eps, decay;
} zero_tensor_rules_t;

typedef struct zero_agreed { /* what must be the same on all ranks */
    uint64_t calls;          /* a hash of the calls in which ranks have met so far */
    uint64_t groups;         /* a hash of all tensors' rules; 0 without */
    float lr;
} zero_agreed_t;

typedef struct zero_contribution { /* a rank's share of what a step decides for all of them */
    zero_norm_t norm;              /* of its shards of the summed gradient, loss scale included */
    double loss;
    uint64_t calls, groups; /* as in zero_agreed_t, as is lr */
    float lr;
    uint32_t notice; /* of zero_set_notice */
} zero_contribution_t;

typedef struct zero_step_state { /* carried from step to step */
    uint64_t adam_step;          /* updates so far */
    float loss_scale;            /* of the current step; 1 unless fp16 */
    uint32_t good_steps;         /* in a row, since loss_scale last changed */
    uint32_t overflows;          /* since loss_scale last grew */
    uint32_t skipped_in_row;
    uint32_t stopped_unit; /* update = backward: 1 + the unit whose gradient was the first that is not finite */
} zero_step_state_t;

typedef struct zero_step_outcome {
    uint64_t adam_step; /* after the step */
    float loss, grad_norm;
    float loss_scale; /* that the step used */
    uint32_t skipped, skipped_in_row;
    uint32_t notice;       /* the largest of all ranks */
    uint32_t odd_rank;     /* the first rank that disagrees with rank 0; the step then changed nothing. 0: all agree */
    uint32_t odd_lr;       /* they disagree on the learning rate, not on the calls */
    uint32_t odd_groups;   /* they disagree on the tensors' rules */
    float lr, lr_of_odd;   /* of rank 0 and of odd_rank */
    uint32_t stopped_unit; /* as in zero_step_state_t; not 0: the step's update was cut off */
} zero_step_outcome_t;

/* What one block of GPU threads, or one turn of a CPU thread, sums. Whoever cuts a sum into calls cuts at multiples. */
#define ZERO_SUM_CHUNK 8192

/* Slices that are added in order: out[i] = out[i] + slices[0][i] + slices[1][i] + ... in fp32, from left to right, or
 * without the old out[i] if accumulates is false: then the sum starts from slices[0][i] itself (a -0 stays one). So
 * sums that accumulate continue one running sum, however many slices each brings. out may be one of the slices if both
 * have the same dtype and accumulates is false.
 * norm: NULL, or to what the squares of the new out are added, in cells that begin at out; sums in several streams may
 * add to one norm at once. */
typedef struct zero_sum {
    void *out;
    zero_dtype_t out_dtype; /* fp32, or bf16: then the sum is rounded to nearest even, and nothing accumulates */
    bool is_rounded;        /* fp32 that bf16 could hold: the bits of a sum to bf16 */
    bool accumulates;
    const void *const *slices; /* the array is host memory; on CUDA it has at most 256 entries */
    int n_slices;
    zero_dtype_t dtype; /* of the slices */
    size_t n_elems;
    zero_norm_t *norm;
} zero_sum_t;

/* A NaN in bf16 and fp16 and, twice, in fp32. It is quiet, so that copies and casts do not change it, and has a payload
 * that no arithmetic makes. */
#define ZERO_POISON ((uint16_t)0xffd5)

typedef struct zero_shard_kernels {
    const char *name; /* "scalar", "avx2", "avx512", "cuda" */

    zero_status_t (*adam)(const zero_adam_t *args, zero_stream_t stream);

    /* Optimizers with one state array, m, as AdamW in all else. Per element, in this order, all fp32:
     *     sgd       g = fma(decay, w, grad * grad_scale)
     *               m = fma(beta1, m, g)
     *               w = fma(-lr, m, w)
     *     nesterov  g and m as sgd
     *               w = fma(-lr, fma(beta1, m, g), w)
     *     lion      g = grad * grad_scale
     *               c = fma(beta1, m, one_minus_beta1 * g)
     *               m = fma(beta2, m, one_minus_beta2 * g)
     *               w = fma(-(lr * decay), w, w)
     *               w = fma(-lr, sign(c), w), where sign is 1, -1 or 0 (of 0 and NaN) */
    zero_status_t (*sgd)(const zero_adam_t *args, zero_stream_t stream);
    zero_status_t (*nesterov)(const zero_adam_t *args, zero_stream_t stream);
    zero_status_t (*lion)(const zero_adam_t *args, zero_stream_t stream);

    /* AdamW with m and v in blocks of 8-bit numbers. Each element is updated as by adam, from the decoded m and v, and
     * its new m and v are encoded. Every segment's state is a multiple of ZERO_BLOCK8_ELEMS, and no block is in two
     * segments. What a segment's last block has beyond it becomes 0. */
    zero_status_t (*adam8)(const zero_adam_t *args, zero_stream_t stream);
    /* Encode numbers, which may be decoded ones: then they give the same blocks again, to the bit. Decode blocks. Both
     * work on host memory, whatever the device: NULL on CUDA, take the CPU's. is_signed: m, else v. */
    void (*encode8)(zero_block8_t *blocks, const float *values, size_t n_elems, bool is_signed);
    void (*decode8)(float *values, const zero_block8_t *blocks, size_t n_elems, bool is_signed);

    /* Muon, as AdamW in all else. Per element, in this order, all fp32:
     *     muon_momentum  g = grad * grad_scale
     *                    m = fma(momentum, m, one_minus_momentum * g)
     *                    update = fma(momentum, m, one_minus_momentum * g), rounded to update_dtype
     *     muon_apply     w = fma(-(lr * decay), w, w)
     *                    w = fma(-(lr * scale), update, w)
     * and between the two orthogonalize, of the matrices that updates make up. */
    zero_status_t (*muon_momentum)(const zero_muon_t *args, zero_stream_t stream);
    zero_status_t (*muon_apply)(const zero_muon_t *args, zero_stream_t stream);
    /* Each matrix has its own x, scratch and workspace; its bits do not depend on the others. */
    zero_status_t (*orthogonalize)(const zero_orthogonalize_t *matrices, int n_matrices, zero_stream_t stream);
    /* Create and destroy what orthogonalize needs on the device, and prepare it for a shape, so that no step allocates.
     * NULL on the CPU, which needs nothing. */
    zero_status_t (*orthogonalizer_create)(zero_orthogonalizer_t **orthogonalizer);
    zero_status_t (*orthogonalizer_prepare)(zero_orthogonalizer_t *orthogonalizer, uint64_t rows, uint64_t cols);
    void (*orthogonalizer_destroy)(zero_orthogonalizer_t *orthogonalizer); /* NULL is allowed */

    zero_status_t (*sum_slices)(const zero_sum_t *sum, zero_stream_t stream);
    /* Moves *norm to mine->norm: *norm is 0 afterwards, for the next step. Sets calls, groups and lr to those of
     * *agreed, which is host memory and is read before the call returns. The rest of *mine is unchanged. */
    zero_status_t (*contribute)(zero_norm_t *norm, const zero_agreed_t *agreed, zero_contribution_t *mine,
                                zero_stream_t stream);

    /* Adds the contributions[n_ranks], decides the step, and advances *state to the next one. If the
     * ranks disagree, *state is unchanged and the update is skipped. rules is host memory, the rest device memory.
     * outcome may also be host memory that the device can write (pinned). */
    zero_status_t (*decide_step)(const zero_step_rules_t *rules, float lr, const zero_contribution_t *contributions,
                                 int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                 zero_step_outcome_t *outcome, zero_stream_t stream);
    /* Decides whether a unit is updated while backward goes on (zero_unit_decide): nonfinite[r * stride] is rank r's
     * number of cells that are not finite, in all gradients of the step that it has reduced up to this unit. rules is
     * host memory, the rest device memory. Comes before decide_step, which advances *state. */
    zero_status_t (*decide_unit)(const zero_step_rules_t *rules, float lr, const uint64_t *nonfinite, size_t stride,
                                 int n_ranks, uint32_t unit, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                 zero_stream_t stream);
    /* Sets by_tensor[0 .. n_tensors) for what decide_step or decide_unit has decided: *scalars with the rules of each
     * tensor, at the same t. All device memory. */
    zero_status_t (*tensor_scalars)(const zero_tensor_rules_t *rules, size_t n_tensors,
                                    const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor,
                                    zero_stream_t stream);

    /* Sets dst[i] = src[i] in another dtype, rounded to nearest even. Overflow gives infinity; a NaN stays a NaN and
     * becomes quiet. With equal dtypes it copies all bits. dst and src must not overlap. */
    zero_status_t (*cast)(void *dst, zero_dtype_t dst_dtype, const void *src, zero_dtype_t src_dtype, size_t n_elems,
                          zero_stream_t stream);

    /* Split fp32 master weights into what zero_adam_t holds, and join them again, exactly. With fp32 they are plain
     * copies to and from param, and master_lo is NULL. */
    zero_status_t (*split_master)(void *param, void *master_lo, zero_dtype_t param_dtype, const float *master,
                                  size_t n_elems, zero_stream_t stream);
    zero_status_t (*join_master)(float *master, const void *param, const void *master_lo, zero_dtype_t param_dtype,
                                 size_t n_elems, zero_stream_t stream);

    /* Parameters in fp8, in three steps (the arithmetic is in kernels/float_bits.h). Sets absmaxes[] of the matrices to
     * the largest |x| of their parts, as bits; 0 for one without a part. */
    zero_status_t (*fp8_absmax)(const zero_fp8_parts_t *parts, uint32_t *absmaxes, zero_stream_t stream);
    /* Sets scales[0 .. n_matrices) from the maxima of all ranks, absmaxes[n_ranks][n_matrices]. */
    zero_status_t (*fp8_scale)(zero_fp8_scales_t *scales, const uint32_t *absmaxes, int n_ranks, uint32_t n_matrices,
                               zero_stream_t stream);
    /* Casts the parts to bytes, with scales[] of their matrices. */
    zero_status_t (*fp8_cast)(const zero_fp8_parts_t *parts, const zero_fp8_scales_t *scales, zero_stream_t stream);

    /* Fills data[0 .. n_elems) with a NaN that no arithmetic makes: every 16 bits are ZERO_POISON. */
    zero_status_t (*poison)(void *data, zero_dtype_t dtype, size_t n_elems, zero_stream_t stream);
    /* Sets *n_found (device memory) to the number of elements that are bit for bit that NaN. */
    zero_status_t (*count_poison)(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                  zero_stream_t stream);

    /* Sets dst[i] = std * normal(seed, key, first + i) for i < n_elems. Element e uses word e % 4 of Philox4x32-10 with
     * the counter (e / 4 as 64 bits, key as 64 bits) and the 64-bit seed as its key. Box-Muller turns words 2k and
     * 2k + 1 into two normals. log, sin and cos are shard_math.h's own, so that all devices agree to the bit. */
    zero_status_t (*fill_normal)(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first, float std,
                                 zero_stream_t stream);
} zero_shard_kernels_t;

/* Returns the CPU's table for the best instruction set of this machine. ZERO_CPU_ISA=scalar|avx2|avx512 in the
 * environment selects another one (for tests). */
const zero_shard_kernels_t *zero_shard_kernels_cpu(void);
/* Returns the table of that name; NULL if it was not built or the machine cannot run it. */
const zero_shard_kernels_t *zero_shard_kernels_cpu_named(const char *name);

/* Returns CUDA's table, in libraries built with CUDA (ZERO_HAVE_CUDA). Launches go to the calling thread's current
 * device, to which streams and arrays must belong. */
const zero_shard_kernels_t *zero_shard_kernels_cuda(void);

#endif
