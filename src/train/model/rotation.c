/* rotation.c - how a model's heads are rotated, as its options say: what the kernel `rope` is given.
 */
#include <math.h>
#include <stdlib.h>

#include "train/model/arch.h"

size_t arch_rope_divisors(const model_options_t *model, float divisors[ARCH_MAX_DIVISORS])
{
    const char *text = model->rope_divisors;
    size_t n = 0;
    while (n < ARCH_MAX_DIVISORS && *text) {
        char *end;
        divisors[n++] = strtof(text, &end);
        text = *end ? end + 1 : end;
    }
    return n;
}

/* Returns the pair that turns so often within the positions that the model was made for: a real number. */
static double pair_that_turns(const model_options_t *model, double n_rotated, double turns)
{
    const double two_pi = 6.283185307179586;
    return n_rotated * log((double)model->rope_original / (turns * two_pi)) / (2.0 * log(model->rope_theta));
}

/* Sets the range over which yarn's scaling grows, as transformers' find_correction_range does. */
static void set_yarn_range(const model_options_t *model, double n_rotated, zero_rope_t *rope)
{
    double first = pair_that_turns(model, n_rotated, model->rope_beta_fast),
           last = pair_that_turns(model, n_rotated, model->rope_beta_slow);
    if (model->rope_truncate) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0.0);
    last = fmin(last, n_rotated - 1.0);
    rope->last_kept = (float)first;
    rope->first_scaled = (float)(last == first ? last + 0.001 : last);
}

/* Returns what q is multiplied by before attention, which multiplies by 1 / sqrt(head_dim). */
static double q_scale_of(const model_options_t *o)
{
    const double scale = options_score_scale(o) * sqrt((double)options_head_dim(o));
    return fabs(scale - 1.0) > 1e-12 ? scale : 1.0;
}

bool arch_turns_heads(const model_t *model, int layer)
{
    return options_is_rotated(&model->options->model, layer) || q_scale_of(&model->options->model) != 1.0;
}

zero_rope_t arch_rotation(const model_t *model, int layer, const float *divisors)
{
    static const zero_rope_kind_t KINDS[] = {[ROPE_LLAMA3] = ZERO_ROPE_LLAMA3,
                                             [ROPE_LINEAR] = ZERO_ROPE_LINEAR,
                                             [ROPE_YARN] = ZERO_ROPE_YARN,
                                             [ROPE_LONGROPE] = ZERO_ROPE_LONGROPE};
    const model_options_t *o = &model->options->model;
    zero_rope_t rope = {.theta = (float)o->rope_theta,
                        .starts = arch_starts(model),
                        .kind = KINDS[o->rope],
                        .factor = (float)o->rope_factor,
                        .low_freq = (float)o->rope_low_freq,
                        .high_freq = (float)o->rope_high_freq,
                        .original = (float)o->rope_original,
                        .divisors = divisors,
                        .n_rotated = (size_t)options_n_rotated(o),
                        .scale = (float)o->rope_scale};
    if (q_scale_of(o) != 1.0)
        rope.q_scale = (float)q_scale_of(o);
    if (!options_is_rotated(o, layer)) { /* by an angle of 0, for the sake of q_scale */
        rope.kind = ZERO_ROPE_LINEAR;
        rope.factor = INFINITY;
        rope.scale = 1.0f;
        return rope;
    }
    if (o->rope_local_theta > 0.0 && options_window(o, layer) > 0) {
        rope.theta = (float)o->rope_local_theta;
        rope.kind = ZERO_ROPE_LLAMA3;
        rope.factor = rope.scale = 1.0f; /* not scaled */
        return rope;
    }
    if (o->rope == ROPE_YARN)
        set_yarn_range(o, (double)options_n_rotated(o), &rope);
    return rope;
}
