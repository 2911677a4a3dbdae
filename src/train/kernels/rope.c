/* rope.c - rotary position embedding on the CPU (Su et al. 2021, arXiv:2104.09864).
 *
 * Frequencies and angles are rounded to fp32 where Hugging Face rounds them (common.h), so that its models behave the
 * same here; sines and cosines of those angles are exact to the last bit. All heads and sequences share the angles of a
 * position, unless each sequence has documents of its own. Threads take positions. The rotation has no fused
 * operations, so every build gives the same bits.
 */
#include "train/kernels/kernels_cpu.h"

#include <math.h>

#include "train/kernels/common.h"

#define ROPE_PAIRS ((size_t)64) /* angles that are kept at a time */

typedef struct angles {
    float cosines[ROPE_PAIRS], sines[ROPE_PAIRS];
} angles_t;

static void set_frequencies(float *frequencies, size_t first, size_t n, const zero_rope_t *rope, size_t n_rotated)
{
    for (size_t i = 0; i < n; ++i)
        frequencies[i] = zero_rope_frequency(rope, first + i, n_rotated);
}

static void set_angles(angles_t *angles, const float *frequencies, size_t n, size_t position, bool inverse, float scale)
{
    for (size_t i = 0; i < n; ++i) {
        double angle = (double)((float)position * frequencies[i]);
        angles->cosines[i] = (float)cos(angle) * scale;
        angles->sines[i] = (float)(inverse ? -sin(angle) : sin(angle)) * scale;
    }
}

/* Rotates the pairs (x[i], y[i]), and multiplies them by factor. */
static void rotate(float *x, float *y, const angles_t *angles, size_t n, float factor)
{
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float a = x[i], b = y[i];
        x[i] = (a * angles->cosines[i] - b * angles->sines[i]) * factor;
        y[i] = (b * angles->cosines[i] + a * angles->sines[i]) * factor;
    }
}

zero_status_t ZERO_MODEL_FN(rope)(zero_model_context_t *ctx, void *qkv, bool inverse, const zero_rope_t *rope,
                                  const zero_attention_shape_t *shape)
{
    const size_t n_rotated = zero_rope_n_rotated(rope, shape), half = n_rotated / 2;
    const size_t n_turned = shape->n_heads + shape->n_kv_heads,
                 width = (n_turned + shape->n_kv_heads) * shape->head_dim;
    const float scale = rope->scale != 0.0f ? rope->scale : 1.0f,
                q_scale = rope->q_scale != 0.0f ? rope->q_scale : 1.0f;
    ZERO_TRY(zero_rope_check(rope, shape));
#pragma omp parallel if (shape->n_batch * shape->seq_len * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t first = 0; first < half; first += ROPE_PAIRS) {
        float frequencies[ROPE_PAIRS];
        angles_t angles;
        size_t n = half - first < ROPE_PAIRS ? half - first : ROPE_PAIRS;
        set_frequencies(frequencies, first, n, rope, n_rotated);
#pragma omp for schedule(static) nowait
        for (size_t position = 0; position < shape->seq_len; ++position) {
            set_angles(&angles, frequencies, n, position, inverse, scale);
            for (size_t batch = 0; batch < shape->n_batch; ++batch) {
                size_t at = batch * shape->seq_len + position;
                float *row = (float *)qkv + at * width + first;
                if (rope->starts != NULL)
                    set_angles(&angles, frequencies, n, position - (size_t)rope->starts[at], inverse, scale);
                for (size_t head = 0; head < n_turned; ++head)
                    rotate(row + head * shape->head_dim, row + head * shape->head_dim + half, &angles, n,
                           head < shape->n_heads ? q_scale : 1.0f);
            }
        }
    }
    ZERO_ISA(zero_model_raise_absmax)(ctx, qkv, shape->n_batch * shape->seq_len * width);
    return ZERO_OK;
}
