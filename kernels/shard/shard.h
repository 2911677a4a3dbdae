/* shard.h - the arithmetic of a sharded step: one table of functions per device.
 *
 * What libzero needs of a device beside copies: AdamW over a flat shard, the rank-ordered sum of gradient slices, the
 * norm's fixed tree, casts, initial values. Every function gives the same bits on every device and instruction set:
 * each output element is a fixed expression of IEEE fp32 operations (fma, +, *, /, sqrt, round to nearest even; no
 * reassociation, no contraction beyond the written fma), so results do not depend on how work is sliced over threads,
 * blocks or ranks either. Denormals are kept. A NaN that arithmetic makes is stored as 0x7fc00000, since devices differ
 * in which one they make.
 *
 * Called by src/zero/ only. All pointers are device memory; all calls are ordered in `stream` (NULL on the CPU, where
 * the work is done on return). Arrays may start at any element-aligned address. Functions cannot fail on the CPU; CUDA
 * launchers return ZERO_ERROR_DEVICE.
 */
#ifndef ZERO_SHARD_H
#define ZERO_SHARD_H

#include "zero.h"

/* One run of elements that AdamW treats alike. Offsets are in elements from the base pointers of zero_adam_t. */
typedef struct zero_adam_segment {
    uint64_t n_elems;
    uint64_t param; /* in param */
    uint64_t state; /* in low / master, m and v */
    uint64_t grad;  /* in grad */
    float decay;    /* weight decay of this run, 0 for none */
} zero_adam_segment_t;

/* What one step multiplies by, the same on every rank. On CUDA it lies in device memory, so that the host need not know
 * the norm. */
typedef struct zero_adam_scalars {
    float lr, beta1, beta2, eps;
    float one_minus_beta1, one_minus_beta2; /* 1.0f - beta, rounded once */
    float inv_bias1, inv_sqrt_bias2;        /* 1/(1-beta1^t), 1/sqrt(1-beta2^t), computed in double, rounded once */
    float grad_scale;                       /* clip coefficient / loss scale */
    uint32_t skip;                          /* not 0: write nothing */
} zero_adam_scalars_t;

/* AdamW over a flat shard, in one launch. Per element, in this order, all fp32:
 *     g = grad * grad_scale
 *     m = fma(beta1, m, one_minus_beta1 * g)
 *     v = fma(beta2, v, one_minus_beta2 * (g * g))
 *     d = fma(sqrt(v), inv_sqrt_bias2, eps)
 *     w = fma(-(lr * decay), w, w)
 *     w = fma(-lr, (m * inv_bias1) / d, w)
 * Master weights w by `param_dtype`:
 *     fp32: param is w itself; low is NULL.
 *     bf16: w's bits are (param << 16) + low, low a signed 16-bit number: param is w rounded to the nearest bf16, ties
 *           away from zero, and no bit of w is stored twice (master + parameter take 4 bytes, not 6).
 *     fp16: low is float *, w itself; param is w rounded to nearest even. */
typedef struct zero_adam {
    zero_dtype_t param_dtype;
    void *param; /* written; read too unless fp16 */
    void *low;   /* bf16: int16_t *; fp16: float *; fp32: NULL */
    float *m, *v;
    const float *grad; /* summed over ranks and micro-steps, still with the loss scale */
    /* In ascending order of state, each beginning where the one before ends or behind it. Device memory, as is scalars:
     * what a launcher must know without reading them is that they lie in [state_begin, state_end) of the state arrays,
     * gaps included (not read on the CPU). */
    const zero_adam_segment_t *segments;
    size_t n_segments;
    uint64_t state_begin, state_end;
    const zero_adam_scalars_t *scalars;
} zero_adam_t;

/* ---- The end of a step: step_math.h says how it is decided ---- */

typedef struct zero_step_rules { /* constant for a run */
    float beta1, beta2, eps, grad_clip;
    bool dynamic_loss_scale;        /* fp16 */
    uint32_t loss_scale_window;     /* doubled after this many good steps in a row */
    uint32_t loss_scale_hysteresis; /* overflows that are borne before it is halved, the halving one included */
} zero_step_rules_t;

typedef struct zero_agreed { /* what must be the same on all ranks */
    uint64_t calls;          /* a hash of those in which ranks have met so far */
    float lr;
} zero_agreed_t;

typedef struct zero_contribution { /* a rank's share of what a step decides for all of them */
    double sum_of_squares;         /* of its shard of the summed gradient, loss scale included */
    double loss;
    uint64_t calls; /* zero_agreed_t's, as is lr */
    float lr;
    uint32_t notice; /* zero_set_notice's */
} zero_contribution_t;

typedef struct zero_step_state { /* carried from step to step */
    uint64_t adam_step;          /* updates so far */
    float loss_scale;            /* of the step at hand; 1 unless fp16 */
    uint32_t good_steps;         /* in a row, since loss_scale last changed */
    uint32_t overflows;          /* since loss_scale last grew */
    uint32_t skipped_in_row;
} zero_step_state_t;

typedef struct zero_step_outcome {
    uint64_t adam_step; /* after the step */
    float loss, grad_norm;
    float loss_scale; /* that the step used */
    uint32_t skipped, skipped_in_row;
    uint32_t notice;     /* the largest of all ranks' */
    uint32_t odd_rank;   /* the first with which rank 0 does not agree, and the step changed nothing; 0: all agree */
    uint32_t odd_lr;     /* ... upon the learning rate, not the calls */
    float lr, lr_of_odd; /* rank 0's and its */
} zero_step_outcome_t;

/* Norms. n_elems numbers are cut into chunks of ZERO_NORM_CHUNK. In a chunk, lane l of ZERO_NORM_LANES adds the squares
 * of elements l, l + LANES, l + 2 LANES ... in order, acc = fma(x, x, acc) in fp32 from 0; then lanes are folded in
 * halves (acc[l] += acc[l + s] for s = LANES/2 ... 1). A chunk's sum is stored as double. Missing elements count as 0.
 */
#define ZERO_NORM_CHUNK 8192
#define ZERO_NORM_LANES 1024
static inline size_t zero_norm_n_partials(size_t n_elems)
{
    return n_elems / ZERO_NORM_CHUNK + (n_elems % ZERO_NORM_CHUNK != 0);
}

/* Quiet, so that nothing changes it on its way, and with a payload of its own, in bf16, fp16 and, twice, in fp32. */
#define ZERO_POISON ((uint16_t)0xffd5)

typedef struct zero_shard_kernels {
    const char *name; /* "scalar", "avx2", "avx512", "cuda" */

    zero_status_t (*adam)(const zero_adam_t *args, zero_stream_t stream);

    /* slices itself, the array of pointers, is host memory. At most 256 slices on CUDA.
     * t = 0; t += slices[r][i] for r = 0..n_slices-1, in fp32 (the first is taken as is, not added to 0);
     * out[i] = accumulate ? out[i] + t : t. out may be one of the slices where dtype is fp32 and accumulate is false.
     * partials: NULL, or zero_norm_n_partials(n_elems) doubles that receive the sums of squares of the new out. */
    zero_status_t (*sum_slices)(float *out, const void *const *slices, int n_slices, zero_dtype_t dtype, size_t n_elems,
                                bool accumulate, double *partials, zero_stream_t stream);
    /* mine->sum_of_squares = partials added in a fixed order: 256 lanes as above (lane l adds l, l + 256 ... from 0),
     * folded in halves, in double; calls and lr = agreed's, which is host memory, read before the call returns. The
     * rest of *mine stays. */
    zero_status_t (*contribute)(const double *partials, size_t n_partials, const zero_agreed_t *agreed,
                                zero_contribution_t *mine, zero_stream_t stream);

    /* Takes the contributions[n_ranks] together, in rank order, decides, and takes *state to the next step; where ranks
     * do not agree it stays, and *scalars say to skip. rules are
     * host memory; the rest is device memory. outcome may be host memory that the device can write (pinned). */
    zero_status_t (*decide_step)(const zero_step_rules_t *rules, float lr, const zero_contribution_t *contributions,
                                 int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                 zero_step_outcome_t *outcome, zero_stream_t stream);

    /* dst[i] = src[i] in another dtype, round to nearest even; overflow gives infinity; NaN stays NaN, made quiet. Same
     * dtype copies. dst and src do not overlap. */
    zero_status_t (*cast)(void *dst, zero_dtype_t dst_dtype, const void *src, zero_dtype_t src_dtype, size_t n_elems,
                          zero_stream_t stream);

    /* Takes fp32 master weights apart into what zero_adam_t holds, and puts them together again, exactly. fp32: plain
     * copies into / from param, low is NULL. */
    zero_status_t (*split_master)(void *param, void *low, zero_dtype_t param_dtype, const float *master, size_t n_elems,
                                  zero_stream_t stream);
    zero_status_t (*join_master)(float *master, const void *param, const void *low, zero_dtype_t param_dtype,
                                 size_t n_elems, zero_stream_t stream);

    /* data[0 .. n_elems) become a NaN that no arithmetic makes: every 16 bits of it are ZERO_POISON. */
    zero_status_t (*poison)(void *data, zero_dtype_t dtype, size_t n_elems, zero_stream_t stream);
    /* *n_found (device memory) = how many of data's elements are that NaN, bit for bit. */
    zero_status_t (*count_poison)(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                  zero_stream_t stream);

    /* dst[i] = std * normal(seed, key, first + i), i < n_elems: element e takes Philox4x32-10 with counter
     * (e / 4 as 64 bits, key as 64 bits) and the 64-bit seed as key, word e % 4; words 2k and 2k+1 become two normals
     * by Box-Muller. The transform is written with this header's own log, sin and cos, so all devices agree to the bit.
     */
    zero_status_t (*fill_normal)(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first, float std,
                                 zero_stream_t stream);
} zero_shard_kernels_t;

/* The CPU's table, of the best instruction set this machine has. ZERO_CPU_ISA=scalar|avx2|avx512 in the environment
 * takes a lesser one (for tests). */
const zero_shard_kernels_t *zero_shard_kernels_cpu(void);
/* One by name; NULL where it was not built or the machine lacks it. */
const zero_shard_kernels_t *zero_shard_kernels_cpu_named(const char *name);

/* CUDA's table, in a library that was built with CUDA (ZERO_HAVE_CUDA). Launches go to the calling thread's current
 * device, which the streams and arrays must belong to. */
const zero_shard_kernels_t *zero_shard_kernels_cuda(void);

#endif
