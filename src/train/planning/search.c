/* search.c - see search.h. */
#include "train/planning/search.h"

#include <math.h>
#include <stdlib.h>

#include "train/report/report.h"

/* ---- bytes of activations ---- */

/* For every number of blocks of each kind: a line or a plane through its corners, since blocks of a kind take as
 * much, and what blocks share depends only on which kinds there are. */
typedef struct mix_bytes {
    int64_t layers;
    uint64_t uniform[FIT_N_RECOMPUTES]; /* all blocks of one kind */
    uint64_t two[FIT_N_RECOMPUTES][2];  /* none of this kind: one block that recomputes less, all but one do */
    uint64_t three[FIT_N_RECOMPUTES];   /* one block of each, and all others of this kind */
} mix_bytes_t;

static uint64_t activations_of(fit_t *fit, int64_t full, int64_t light, int64_t none)
{
    zero_memory_t user = {0};
    fit->options.model.recompute = full > 0 ? RECOMPUTE_FULL : light > 0 ? RECOMPUTE_LIGHT : RECOMPUTE_NONE;
    fit->options.model.recompute_none = none;
    fit->options.model.recompute_light = full > 0 ? light : 0;
    model_plan(&fit->model, &user);
    return user.bytes[ZERO_MEMORY_ACTIVATIONS];
}

static void measure_mixes(fit_t *fit, mix_bytes_t *m)
{
    const int64_t L = m->layers;
    m->uniform[RECOMPUTE_NONE] = activations_of(fit, 0, 0, L);
    m->uniform[RECOMPUTE_LIGHT] = activations_of(fit, 0, L, 0);
    m->uniform[RECOMPUTE_FULL] = activations_of(fit, L, 0, 0);
    if (L > 1) {
        m->two[RECOMPUTE_NONE][0] = activations_of(fit, L - 1, 1, 0);
        m->two[RECOMPUTE_NONE][1] = activations_of(fit, 1, L - 1, 0);
        m->two[RECOMPUTE_LIGHT][0] = activations_of(fit, L - 1, 0, 1);
        m->two[RECOMPUTE_LIGHT][1] = activations_of(fit, 1, 0, L - 1);
        m->two[RECOMPUTE_FULL][0] = activations_of(fit, 0, L - 1, 1);
        m->two[RECOMPUTE_FULL][1] = activations_of(fit, 0, 1, L - 1);
    }
    if (L > 2) {
        m->three[RECOMPUTE_NONE] = activations_of(fit, 1, 1, L - 2);
        m->three[RECOMPUTE_LIGHT] = activations_of(fit, 1, L - 2, 1);
        m->three[RECOMPUTE_FULL] = activations_of(fit, L - 2, 1, 1);
    }
}

/* Returns how many bytes x blocks more are, of n that lead from one corner to the other. */
static int64_t along(uint64_t from, uint64_t to, int64_t x, int64_t n)
{
    return n > 0 ? ((int64_t)to - (int64_t)from) / n * x : 0;
}

/* Returns what activations take. blocks: by recomputation. */
static uint64_t bytes_of_mix(const mix_bytes_t *m, const int64_t blocks[FIT_N_RECOMPUTES])
{
    const int64_t L = m->layers;
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++)
        if (blocks[r] == L)
            return m->uniform[r];
    for (int absent = RECOMPUTE_NONE; absent <= RECOMPUTE_FULL; absent++)
        if (blocks[absent] == 0) {
            const uint64_t *ends = m->two[absent];
            int64_t lower = blocks[absent == RECOMPUTE_NONE ? RECOMPUTE_LIGHT : RECOMPUTE_NONE];
            return ends[0] + (uint64_t)along(ends[0], ends[1], lower - 1, L - 2);
        }
    const uint64_t *corners = m->three;
    return corners[RECOMPUTE_NONE] +
           (uint64_t)along(corners[RECOMPUTE_NONE], corners[RECOMPUTE_LIGHT], blocks[RECOMPUTE_LIGHT] - 1, L - 3) +
           (uint64_t)along(corners[RECOMPUTE_NONE], corners[RECOMPUTE_FULL], blocks[RECOMPUTE_FULL] - 1, L - 3);
}

/* ---- all that a search needs ---- */

typedef struct search {
    fit_t *fit;
    fit_choice_t choice;
    fit_work_t work;
    fit_open_t open;
    bool
        rises; /* more offload takes no less time, but for a few gradients that would have to return (step_offload.c) */
    mix_bytes_t mixes;
    double most_ratio;                    /* that the host has room for */
    int n_ratios;                         /* 0: the one that is given needs more of the host than there is */
    uint64_t ratio_bytes[FIT_RATIOS + 1]; /* libzero's plan and the model's others, nothing kept that is not given */
    uint64_t *keep_bytes;                 /* [layers + 1] that kept blocks add */
    int64_t most_keep;                    /* 0: keep is given */
    double best_ms;                       /* of all candidates so far */
} search_t;

static double ratio_of(const search_t *s, int i)
{
    return s->open.ratio ? fit_nth_ratio(i, s->most_ratio) : s->choice.offload_ratio;
}

static int64_t keep_of(const search_t *s, int64_t kept)
{
    return s->open.keep ? kept : s->choice.keep;
}

static zero_status_t plan_bytes(search_t *s, double ratio, int64_t keep, uint64_t *bytes)
{
    const zero_memory_t *plan;
    s->fit->options.zero.offload_ratio = ratio;
    s->fit->options.zero.keep = keep;
    ZERO_TRY(fit_plan_of(s->fit, &plan));
    *bytes = zero_memory_total(plan);
    return ZERO_OK;
}

/* Finds how many ratios there are. A given one that the host has no room for leaves none. */
static zero_status_t count_ratios(search_t *s)
{
    const zero_memory_t *plan;
    if (s->open.ratio) {
        ZERO_TRY(fit_find_most_ratio(s->fit, &s->most_ratio));
        s->n_ratios = (int)ceil(s->most_ratio * FIT_RATIOS) + 1;
        return ZERO_OK;
    }
    s->fit->options.zero.offload_ratio = s->choice.offload_ratio;
    ZERO_TRY(fit_plan_of(s->fit, &plan));
    s->n_ratios = fit_host_has_room(s->fit, plan) ? 1 : 0;
    return ZERO_OK;
}

static zero_status_t prepare(search_t *s)
{
    fit_t *fit = s->fit;
    zero_memory_t user = {0};
    fit_apply(&s->choice, &fit->options);
    s->open = fit_find_open(fit, &s->choice);
    s->choice.offload_ratio = s->open.offloads ? s->choice.offload_ratio : 0.0;
    s->choice.keep = s->choice.keep == ZERO_KEEP_AUTO ? 0 : s->choice.keep;
    s->rises = fit->options.zero.offload_update != ZERO_OFFLOAD_UPDATE_HOST;
    s->most_keep = s->open.keep ? fit->options.model.layers : 0;
    s->mixes.layers = fit->options.model.layers;
    fit_work_of(&fit->options, &fit->machine, &s->work);
    model_plan(&fit->model, &user);
    user.bytes[ZERO_MEMORY_ACTIVATIONS] = 0;
    s->fit->options.zero.keep = keep_of(s, 0);
    ZERO_TRY(count_ratios(s));
    for (int i = 0; i < s->n_ratios; i++) {
        ZERO_TRY(plan_bytes(s, ratio_of(s, i), keep_of(s, 0), &s->ratio_bytes[i]));
        s->ratio_bytes[i] += zero_memory_total(&user);
    }
    uint64_t least, kept;
    ZERO_TRY(plan_bytes(s, ratio_of(s, 0), keep_of(s, 0), &least));
    for (int64_t keep = 0; keep <= s->most_keep; keep++) {
        ZERO_TRY(plan_bytes(s, ratio_of(s, 0), keep_of(s, keep), &kept));
        s->keep_bytes[keep] = kept - least;
    }
    return ZERO_OK;
}

/* Returns the most blocks that can be kept in so many bytes. Each takes as much as before, or more. */
static int64_t keep_within(const search_t *s, uint64_t bytes)
{
    int64_t fits = 0, most = s->most_keep;
    if (s->keep_bytes[most] <= bytes)
        return most;
    while (fits < most) {
        int64_t middle = fits + (most - fits + 1) / 2;
        if (s->keep_bytes[middle] <= bytes)
            fits = middle;
        else
            most = middle - 1;
    }
    return fits;
}

/* ---- candidates ---- */

static void keep_faster(search_t *s, fit_group_t *group, int i, const fit_variant_t *variant, double ms)
{
    fit_candidate_t *c = &group->candidates[i];
    if (ms >= c->ms)
        return;
    *c = (fit_candidate_t){.ms = ms,
                           .none = group->is_mix ? variant->blocks[RECOMPUTE_NONE] : s->choice.none,
                           .light = group->is_mix && variant->blocks[RECOMPUTE_FULL] > 0
                                        ? variant->blocks[RECOMPUTE_LIGHT]
                                        : s->choice.light,
                           .keep = variant->keep};
    s->best_ms = fmin(s->best_ms, ms);
}

/* Returns whether a mix may be left out, as it takes so many milliseconds at least. */
static bool is_too_slow(const search_t *s, const fit_group_t *group, double ms)
{
    return group->is_mix && ms > s->best_ms * (1.0 + FIT_TIE);
}

/* Returns whether so many bytes of activations fit with any ratio: with the most offloaded or with nothing, which needs
 * no buffers. */
static bool has_room(const search_t *s, const fit_group_t *group, uint64_t bytes)
{
    return group->n > 0 &&
           (s->ratio_bytes[0] + bytes <= s->fit->budget || s->ratio_bytes[group->n - 1] + bytes <= s->fit->budget);
}

/* Tries a mix with every ratio. With all kept, more offload frees memory that nothing uses; and a mix that is too slow
 * even with all kept is so with more offload, too. */
static void try_mix(search_t *s, fit_group_t *group, fit_variant_t variant)
{
    uint64_t bytes = bytes_of_mix(&s->mixes, variant.blocks);
    fit_passes_t passes;
    if (!has_room(s, group, bytes))
        return;
    variant.activation_bytes = (double)bytes;
    variant.keep = keep_of(s, s->most_keep);
    const fit_time_t resident = fit_resident_time(&s->work, &variant, &passes);
    if (is_too_slow(s, group, resident.total))
        return;
    for (int i = 0; i < group->n; i++) {
        uint64_t needed = s->ratio_bytes[i] + bytes;
        if (needed > s->fit->budget)
            continue;
        variant.offload_ratio = ratio_of(s, i);
        variant.keep = keep_of(s, s->most_keep);
        double ms = fit_add_offload(&s->work, &variant, passes, resident).total;
        if (is_too_slow(s, group, ms)) {
            if (s->rises)
                return;
            continue;
        }
        int64_t kept = keep_within(s, s->fit->budget - needed);
        if (kept < s->most_keep) {
            variant.keep = kept;
            ms = fit_work_time(&s->work, &variant).total;
        }
        keep_faster(s, group, i, &variant, ms);
        if (kept == s->most_keep && s->rises)
            return;
    }
}

static void open_group(const search_t *s, int recompute, bool is_mix, fit_group_t *group)
{
    *group = (fit_group_t){
        .choice = s->choice, .is_mix = is_mix, .n = s->n_ratios, .most_ratio = s->open.ratio ? s->most_ratio : NAN};
    group->choice.recompute = recompute;
    for (int i = 0; i < group->n; i++)
        group->candidates[i].ms = INFINITY;
}

/* Tries the blocks as they are given. */
static void try_given(search_t *s, fit_group_t *group)
{
    options_t *o = &s->fit->options;
    fit_variant_t variant = {0};
    zero_memory_t user = {0};
    fit_apply(&s->choice, o);
    open_group(s, s->choice.recompute, false, group);
    model_plan(&s->fit->model, &user);
    for (int64_t l = 0; l < o->model.layers; l++)
        variant.blocks[options_block_recompute(&o->model, l)]++;
    for (int r = 0; r < FIT_N_RECOMPUTES; r++) /* its one mix, wherever that is looked up */
        s->mixes.uniform[r] = s->mixes.two[r][0] = s->mixes.two[r][1] = s->mixes.three[r] =
            user.bytes[ZERO_MEMORY_ACTIVATIONS];
    try_mix(s, group, variant);
}

static void try_all(search_t *s, fit_group_t groups[FIT_N_KINDS])
{
    const int64_t L = s->mixes.layers;
    measure_mixes(s->fit, &s->mixes);
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
        fit_variant_t uniform = {0};
        uniform.blocks[r] = L;
        open_group(s, r, false, &groups[r]);
        try_mix(s, &groups[r], uniform);
    }
    open_group(s, RECOMPUTE_LIGHT, true, &groups[FIT_MIX_LIGHT]);
    open_group(s, RECOMPUTE_FULL, true, &groups[FIT_MIX_FULL]);
    for (int64_t full = 0; full < L; full++)
        for (int64_t none = L - full - (full == 0); none >= (full == 0); none--) {
            fit_variant_t mix = {.blocks = {none, L - full - none, full}};
            try_mix(s, &groups[full > 0 ? FIT_MIX_FULL : FIT_MIX_LIGHT], mix);
        }
}

zero_status_t fit_search(fit_t *fit, const fit_choice_t *choice, fit_group_t groups[FIT_N_KINDS], int *n_groups)
{
    bool is_given = choice->recompute != RECOMPUTE_AUTO;
    search_t s = {.fit = fit, .choice = *choice, .best_ms = INFINITY};
    if (!is_given) {
        s.choice.recompute = RECOMPUTE_NONE;
        s.choice.none = s.choice.light = 0;
    }
    s.keep_bytes = calloc((size_t)fit->options.model.layers + 1, sizeof *s.keep_bytes);
    zero_status_t status =
        s.keep_bytes ? prepare(&s) : report_rank_error(ZERO_ERROR_MEMORY, "no memory to search for settings");
    if (status == ZERO_OK && is_given)
        try_given(&s, &groups[0]);
    else if (status == ZERO_OK)
        try_all(&s, groups);
    *n_groups = is_given ? 1 : FIT_N_KINDS;
    free(s.keep_bytes);
    return status;
}

fit_choice_t fit_candidate_choice(const fit_group_t *group, int i)
{
    fit_choice_t choice = group->choice;
    const fit_candidate_t *c = &group->candidates[i];
    choice.none = c->none;
    choice.light = c->light;
    choice.keep = c->keep;
    choice.offload_ratio = isnan(group->most_ratio) ? choice.offload_ratio : fit_nth_ratio(i, group->most_ratio);
    return choice;
}
