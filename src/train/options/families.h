/* families.h - what makes a member of the Llama family: a row of traits for each model_type of Hugging Face's.
 * Declaring, computing and planning a model read it, and so do the functions that read and write config.json. What
 * differs between models of one type is in model_options_t.
 */
#ifndef ZEROTRAIN_FAMILIES_H
#define ZEROTRAIN_FAMILIES_H

#include "train/options/options.h"

/* What is normalized of q and k before they are rotated. */
typedef enum family_qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEADS,       /* every head on its own, with one weight [head_dim] for all of q's and one for k's */
    QK_NORM_PROJECTIONS, /* all of q as one, and all of k */
} family_qk_norm_t;

/* Where RMSNorms are: before attention and the MLP, behind them, or both. */
typedef enum family_norms { NORMS_BEFORE, NORMS_BEHIND, NORMS_AROUND } family_norms_t;

typedef struct family {
    const char *model_type; /* Hugging Face's, and the value of [model] arch */
    const char *title;      /* as its users write it */
    family_qk_norm_t qk_norm;
    family_norms_t norms;
    bool adds_one;         /* to the weights of its norms */
    bool has_gelu;         /* in the MLP, its tanh form in place of silu */
    bool scales_embedding; /* by the square root of dim */
    bool has_qkv_bias;     /* always, whatever [model] says */
    bool fuses_qkv;        /* one tensor for q, k and v */
    const char *gate_up;   /* the one tensor for gate and up; NULL: there are two */
    const char *down;      /* NULL: mlp.down_proj */
    bool heads_divide_dim; /* though head_dim is set: so says the family's class in transformers */
    bool may_window;       /* attention may have a window, of all layers or of some */
    /* The kinds of layers (options_layer_kind_t), repeated, where neither config.json nor the user says; NULL: all see
     * everything. */
    const char *kinds;
    double local_theta;    /* of RoPE in layers with a window, if they have one of their own */
    bool local_is_general; /* from scratch theirs is rope_theta, too; local_theta is that of a file that lacks it */
} family_t;

extern const family_t families[]; /* by options_arch_t */
extern const int n_families;

/* Returns the row of a model. */
static inline const family_t *family_of(const model_options_t *model)
{
    return &families[model->arch];
}

/* Sets what a family has by default, and checks what it cannot have. For options_resolve. */
zero_status_t family_resolve(model_options_t *model);

#endif
