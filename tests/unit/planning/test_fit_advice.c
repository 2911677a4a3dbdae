/* test_fit_advice.c - the largest sizes that fit beside a choice, and what is advised when nothing fits. */
#include "tests/unit/planning/fit_cases.h"
#include "train/planning/advice.h"

static const tried_t *best_of(const tried_t *tried, int n, uint64_t budget)
{
    const tried_t *best = NULL;
    double least = 1e300;
    for (int i = 0; i < n; i++)
        if (tried[i].bytes <= budget && tried[i].ms < least)
            least = tried[i].ms;
    for (int i = 0; i < n; i++)
        if (tried[i].bytes <= budget && tried[i].ms <= 1.005 * least &&
            (!best || is_simpler(&tried[i].choice, &best->choice)))
            best = &tried[i];
    return best;
}

/* ---- the largest sizes ---- */

START_TEST(one_more_of_the_largest_does_not_fit)
{
    fit_case_t c = case_of(3, ON_CPU); /* Llama, two ranks */
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_choice_t choice = {.stage = 3, .recompute = RECOMPUTE_LIGHT, .micro_batch = 4};
    tried_t as_chosen = try_choice(&o, &machine, 3, RECOMPUTE_LIGHT, 4);
    uint64_t budget = as_chosen.bytes * 3;
    fit_largest_t largest;
    fit_t *fit;
    ck_assert_int_eq(fit_create(&o, &machine, budget, &fit), ZERO_OK);
    ck_assert_int_eq(fit_find_largest(fit, &choice, &largest), ZERO_OK);
    ck_assert_int_gt(largest.micro_batch, 4);
    ck_assert_int_gt(largest.layers, 6);
    ck_assert_int_gt(largest.seq_len, 256);
    for (int more = 0; more <= 1; more++) {
        options_t changed = o;
        changed.train.global_batch = (largest.micro_batch + more) * 3 * c.n_ranks; /* as many micro-steps: three */
        tried_t t = try_choice(&changed, &machine, 3, RECOMPUTE_LIGHT, largest.micro_batch + more);
        ck_assert_int_eq(t.bytes <= budget, !more);
        changed = o;
        changed.model.layers = largest.layers + more;
        ck_assert_int_eq(try_choice(&changed, &machine, 3, RECOMPUTE_LIGHT, 4).bytes <= budget, !more);
        changed = o;
        changed.model.seq_len = largest.seq_len + more * FIT_SEQ_LEN_MULTIPLE;
        ck_assert_int_eq(try_choice(&changed, &machine, 3, RECOMPUTE_LIGHT, 4).bytes <= budget, !more);
    }
    fit_destroy(fit);
}
END_TEST

/* ---- advice ---- */

#define CHANGES_ALL (FIT_CHANGES_KEEP_ATTENTION * 2)

/* What is tried of one set of changes. */
typedef struct brute {
    bool fits[CHANGES_ALL];
} brute_t;

static int n_bits(unsigned changes)
{
    int n = 0;
    for (; changes; changes &= changes - 1)
        n++;
    return n;
}

/* Plans one choice from nothing, with settings beyond it. */
static tried_t try_settings(const options_t *o, const fit_machine_t *machine, const fit_choice_t *choice)
{
    options_t changed = *o;
    changed.zero.offload_params_ratio =
        choice->params_ratio < choice->offload_ratio ? choice->params_ratio : choice->offload_ratio;
    return try_mix(&changed, machine, *choice);
}

static unsigned changes_of(const options_t *asked, const options_t *o, const fit_choice_t *given, const fit_choice_t *c)
{
    const bool offloads = o->zero.offload > asked->zero.offload && c->offload_ratio > 0.0;
    return (c->stage != given->stage ? FIT_CHANGES_STAGE : 0u) |
           (c->recompute != given->recompute || c->none != given->none || c->light != given->light
                ? FIT_CHANGES_RECOMPUTE
                : 0u) |
           (c->keep_attention != given->keep_attention ? FIT_CHANGES_KEEP_ATTENTION : 0u) |
           (c->micro_batch != given->micro_batch ? FIT_CHANGES_MICRO_BATCH : 0u) |
           (c->keep != given->keep ? FIT_CHANGES_KEEP : 0u) | (offloads ? FIT_CHANGES_OFFLOAD : 0u) |
           (offloads && c->params_ratio > 0.0 ? FIT_CHANGES_OFFLOAD_PARAMS : 0u) |
           (o->zero.update != asked->zero.update ? FIT_CHANGES_UPDATE : 0u) |
           (o->train.grad_clip != asked->train.grad_clip ? FIT_CHANGES_CLIP : 0u) |
           (o->train.optimizer != asked->train.optimizer ? FIT_CHANGES_OPTIMIZER : 0u) |
           (c->activations > 0.0 ? FIT_CHANGES_ACTIVATIONS : 0u) |
           (o->train.sequence_ranks != asked->train.sequence_ranks ? FIT_CHANGES_SEQUENCES : 0u);
}

/* Tries every stage, kind of recomputation and micro-batch with these settings, and a few shares of offload. */
static void try_stages(const options_t *asked, const options_t *o, const fit_machine_t *machine, uint64_t budget,
                       const fit_choice_t *given, double activations, brute_t *brute)
{
    static const double shares[][2] = {{0, 0}, {0.5, 0}, {1, 0}, {1, 0.125}, {1, 0.5}, {1, 1}};
    const int64_t share = o->train.global_batch / machine->n_ranks * o->train.sequence_ranks;
    const int first = o->zero.offload == OFFLOAD_ALL                                                 ? 3
                      : o->zero.offload != OFFLOAD_NONE || o->zero.update == ZERO_UPDATE_IN_BACKWARD ? 1
                                                                                                     : 0;
    const int n_shares = o->zero.offload == OFFLOAD_ALL ? 6 : o->zero.offload == OFFLOAD_OPTIMIZER ? 3 : 1;
    for (int s = 0; s < n_shares; s++)
        for (int stage = first; stage <= 3; stage++)
            for (int recompute = activations > 0.0 ? RECOMPUTE_FULL : RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL;
                 recompute++)
                for (int64_t micro = 1; micro <= share; micro++) {
                    const fit_choice_t c = {.stage = stage,
                                            .recompute = recompute,
                                            .micro_batch = micro,
                                            .keep = o->zero.keep,
                                            .offload_ratio = shares[s][0],
                                            .params_ratio = shares[s][1],
                                            .activations = activations};
                    const unsigned changes = changes_of(asked, o, given, &c);
                    if (share % micro == 0 && !brute->fits[changes])
                        brute->fits[changes] = try_settings(o, machine, &c).bytes <= budget;
                }
}

/* Tries every share of offloaded activations, with sums of gradients on the device and, if state is offloaded, on the
 * host. */
static void try_shares(const options_t *asked, const options_t *settings, const fit_machine_t *machine, uint64_t budget,
                       const fit_choice_t *given, int most_quarters, brute_t *brute)
{
    options_t o = *settings;
    const int last = o.zero.offload != OFFLOAD_NONE ? ZERO_OFFLOAD_GRADS_HOST : ZERO_OFFLOAD_GRADS_DEVICE;
    for (int grads = ZERO_OFFLOAD_GRADS_DEVICE; grads <= last; grads++)
        for (int quarters = 0; quarters <= most_quarters; quarters++) {
            o.zero.offload_grads = grads;
            try_stages(asked, &o, machine, budget, given, quarters / 4.0, brute);
        }
}

/* Tries every combination of the other settings. */
static void try_everything(const options_t *asked, const fit_machine_t *machine, uint64_t budget,
                           const fit_choice_t *given, bool offloads, brute_t *brute)
{
    for (int i = 0; i < 24; i++) {
        options_t o = *asked;
        o.zero.offload = i / 8;
        o.zero.keep = i & 1 ? 0 : given->keep;
        o.zero.update = i & 2 ? ZERO_UPDATE_IN_BACKWARD : asked->zero.update;
        o.train.grad_clip = i & 2 ? 0.0 : asked->train.grad_clip;
        o.train.optimizer = i & 4 ? ZERO_OPTIMIZER_ADAMW8BIT : asked->train.optimizer;
        if (o.zero.offload < asked->zero.offload || (o.zero.offload > asked->zero.offload && !offloads) ||
            (i & 1 && given->keep == 0))
            continue;
        try_shares(asked, &o, machine, budget, given, offloads ? 4 : 0, brute);
    }
}

/* Tries the fewest ranks that can share sequences so that anything fits, with every offload and keep. */
static void try_sequences(const options_t *asked, const fit_machine_t *machine, uint64_t budget,
                          const fit_choice_t *given, brute_t *brute)
{
    for (int i = 0; i < 12; i++) {
        options_t o = *asked;
        bool fits = false;
        o.zero.offload = i / 2 % 3;
        o.zero.keep = i & 1 ? 0 : given->keep;
        const int most_quarters = i / 6 ? 4 : 0;
        if (((o.zero.offload > OFFLOAD_NONE || most_quarters > 0) && !machine->rates.is_gpu) ||
            (i & 1 && given->keep == 0))
            continue;
        for (int64_t n = 2; n <= machine->n_ranks && !fits; n++) {
            static brute_t shared;
            shared = (brute_t){0};
            o.train.sequence_ranks = n;
            if (machine->n_ranks % n == 0)
                try_shares(asked, &o, machine, budget, given, most_quarters, &shared);
            for (unsigned c = 0; c < CHANGES_ALL; c++) {
                fits = fits || shared.fits[c];
                brute->fits[c] = brute->fits[c] || shared.fits[c];
            }
        }
    }
}

/* Returns how few changes are enough; 99: no number. with, without: changes to make, and not to. */
static int fewest(const brute_t *brute, unsigned with, unsigned without)
{
    int least = 99;
    for (unsigned c = 0; c < CHANGES_ALL; c++)
        if (brute->fits[c] && (with == 0 || (c & with)) && !(c & without) && n_bits(c) < least)
            least = n_bits(c);
    return least;
}

/* Checks that what is advised is planned to the byte, fits, and changes what it says. */
static void expect_planned(const options_t *asked, const fit_machine_t *machine, uint64_t budget,
                           const fit_choice_t *given, const fit_advised_t *advised)
{
    options_t o = *asked;
    const unsigned changes = advised->changes;
    o.model.keep_attention = advised->point.choice.keep_attention; /* which recompute = auto chooses, too */
    o.zero.offload = changes & FIT_CHANGES_OFFLOAD_PARAMS ? OFFLOAD_ALL
                     : changes & FIT_CHANGES_OFFLOAD      ? OFFLOAD_OPTIMIZER
                                                          : asked->zero.offload;
    o.zero.update = changes & FIT_CHANGES_UPDATE ? ZERO_UPDATE_IN_BACKWARD : asked->zero.update;
    o.train.grad_clip = changes & FIT_CHANGES_UPDATE ? 0.0 : asked->train.grad_clip;
    o.train.optimizer = changes & FIT_CHANGES_OPTIMIZER ? ZERO_OPTIMIZER_ADAMW8BIT : asked->train.optimizer;
    o.train.sequence_ranks = advised->sequence_ranks;
    const tried_t t = try_settings(&o, machine, &advised->point.choice);
    ck_assert_uint_eq(t.bytes, advised->point.bytes);
    ck_assert_uint_le(t.bytes, budget);
    ck_assert_double_eq_tol(t.ms, advised->point.time.total, 1e-9 * t.ms);
    ck_assert_uint_eq(changes, changes_of(asked, &o, given, &advised->named));
}

/* Returns the least number of times the ranks with which a choice fits that takes little; 0: none of 16. */
static int fewest_times(const options_t *asked, const fit_machine_t *machine, uint64_t budget)
{
    for (int n = 2; n <= 16; n++) {
        options_t o = *asked;
        fit_machine_t more = *machine;
        more.n_ranks *= n;
        o.train.global_batch *= n;
        o.zero.keep = 0;
        for (int stage = 0; stage <= 3; stage++)
            for (int64_t micro = 1, share = asked->train.global_batch / machine->n_ranks; micro <= share; micro++)
                if (share % micro == 0 && try_choice(&o, &more, stage, RECOMPUTE_FULL, micro).bytes <= budget)
                    return n;
    }
    return 0;
}

/* Returns whether the fewest changes on more ranks are also enough without these. */
static bool are_needless(const options_t *asked, const fit_machine_t *machine, uint64_t budget,
                         const fit_choice_t *given, int times, const fit_advice_t *advice)
{
    static brute_t brute;
    options_t o = *asked;
    fit_machine_t more = *machine;
    bool found = false;
    more.n_ranks *= times;
    o.train.global_batch *= times;
    brute = (brute_t){0};
    try_everything(&o, &more, budget, given, false, &brute);
    const int least = fewest(&brute, 0, FIT_CHANGES_RESULTS | FIT_CHANGES_UPDATE);
    for (unsigned c = 0; c < CHANGES_ALL; c++)
        for (int i = 0; i < advice->n_points && brute.fits[c] && n_bits(c) == least; i++)
            found = found || (advice->points[i].changes & ~c) == 0;
    return found;
}

/* Random settings that do not fit, on CPUs and GPUs, in budgets between nearly nothing and what they take. */
START_TEST(advice_is_that_of_brute_force)
{
    int n_points = 0, n_others = 0, n_shared = 0, n_more = 0, n_none = 0;
    uint64_t random = 40;
    for (int round = 0; round < 96; round++) {
        static const int64_t micros[] = {1, 2, 3, 4, 6, 12};
        fit_case_t c = case_of((int)(support_random(&random) % N_SEARCHES), round % 2 ? ON_GPU : ON_CPU);
        c.n_ranks = 1 + (int)(support_random(&random) % 4);
        options_t o = options_of(&c);
        fit_machine_t machine = machine_of(&c);
        o.zero.stage = (int64_t)(support_random(&random) % 4);
        o.model.recompute = (int)(support_random(&random) % 3);
        o.train.micro_batch = micros[support_random(&random) % 6];
        if (round % 4 == 1) { /* long sequences, one a rank */
            o.model.seq_len = 4096;
            o.model.positions = o.model.arch == ARCH_GPT2 ? o.model.seq_len : 0;
            o.train.global_batch = c.n_ranks;
            o.train.micro_batch = 1;
        }
        o.zero.keep = o.zero.stage == 3 && round % 3 == 0 ? 2 : 0;
        o.train.grad_clip = round % 4 < 2 ? 1.0 : 0.0;
        const fit_choice_t choice = fit_choice_of(&o);
        const uint64_t needed = try_settings(&o, &machine, &choice).bytes;
        const uint64_t budget =
            (uint64_t)((0.2 + 0.79 * (double)(support_random(&random) % 1000) / 1000.0) * (double)needed);
        static brute_t brute;
        brute = (brute_t){0};
        try_everything(&o, &machine, budget, &choice, machine.rates.is_gpu, &brute);
        try_sequences(&o, &machine, budget, &choice, &brute);
        fit_point_t given;
        fit_advice_t advice;
        fit_t *fit = open_fit(&o, &machine, budget);
        ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
        ck_assert(!given.fits);
        ck_assert_int_eq(fit_advise(fit, &given, &advice), ZERO_OK);
        int least = 99;
        for (int i = 0; i < advice.n_points; i++) {
            expect_planned(&o, &machine, budget, &choice, &advice.points[i]);
            ck_assert(!(advice.points[i].changes & FIT_CHANGES_RESULTS));
            ck_assert(i == 0 || advice.points[i - 1].point.time.total <= advice.points[i].point.time.total);
            least = n_bits(advice.points[i].changes) < least ? n_bits(advice.points[i].changes) : least;
        }
        ck_assert_int_eq(least, fewest(&brute, 0, FIT_CHANGES_RESULTS));
        const unsigned host = FIT_CHANGES_OFFLOAD | FIT_CHANGES_ACTIVATIONS;
        const bool fits_without = fewest(&brute, 0, FIT_CHANGES_RESULTS | host) < 99;
        int other = fewest(&brute, FIT_CHANGES_RESULTS, host);
        if (other == 99 && least == 99)
            other = fewest(&brute, FIT_CHANGES_RESULTS, 0);
        ck_assert_int_eq(advice.other.changes ? n_bits(advice.other.changes) : 99, fits_without ? 99 : other);
        if (advice.other.changes)
            expect_planned(&o, &machine, budget, &choice, &advice.other);
        const int times = fewest_times(&o, &machine, budget);
        if (advice.n_ranks > 0 && advice.n_ranks <= 16 * c.n_ranks)
            ck_assert_int_eq(times * c.n_ranks, advice.n_ranks);
        else if (times > 0)
            ck_assert(are_needless(&o, &machine, budget, &choice, times, &advice));
        n_shared += (advice.other.changes & FIT_CHANGES_SEQUENCES) != 0;
        n_points += advice.n_points, n_others += advice.other.changes != 0, n_more += advice.n_ranks > 0;
        n_none += advice.n_points == 0;
        fit_destroy(fit);
    }
    printf("of 96 cases: %d changes, %d that change the results, %d by sharing sequences, %d with more ranks; %d "
           "without\n",
           n_points, n_others, n_shared, n_more, n_none);
    ck_assert(n_points > 80 && n_others > 10 && n_shared > 1 && n_more > 50 && n_none > 10);
}
END_TEST

/* Long sequences on GPUs, with recompute and keep_attention given, in budgets from what recomputing everything takes to
 * what is needed. To keep what attention gives is a change of its own. So is not to, where a user who keeps it is told
 * of less recomputation, with which options_resolve refuses it. */
START_TEST(what_attention_gives_is_kept_only_if_that_is_advised)
{
    static const struct {
        int recompute;
        bool keeps;
    } asked[] = {{RECOMPUTE_NONE, false}, {RECOMPUTE_LIGHT, false}, {RECOMPUTE_FULL, false}, {RECOMPUTE_FULL, true}};
    int n_kept = 0, n_left = 0, n_as_asked = 0;
    for (int i = 0; i < 4 * 8; i++) {
        const fit_case_t c = {.arch = ARCH_LLAMA, .n_ranks = 2, .dtype = ZERO_BF16, .open = ON_GPU};
        options_t o = options_of(&c);
        fit_machine_t machine = machine_of(&c);
        fit_point_t given;
        fit_advice_t advice;
        o.model.seq_len = 65536;
        o.zero.stage = 0;
        o.train.micro_batch = 1;
        o.train.global_batch = 2;
        const uint64_t least = try_choice(&o, &machine, 3, RECOMPUTE_FULL, 1).bytes;
        o.model.recompute = asked[i / 8].recompute;
        o.model.keep_attention = asked[i / 8].keeps;
        const fit_choice_t choice = fit_choice_of(&o);
        const uint64_t needed = try_settings(&o, &machine, &choice).bytes;
        fit_t *fit = open_fit(&o, &machine, least + (needed - least) / 8 * (uint64_t)(i % 8));
        ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
        ck_assert(!given.fits);
        ck_assert_int_eq(fit_advise(fit, &given, &advice), ZERO_OK);
        ck_assert_int_gt(advice.n_points, 0);
        for (int p = 0; p < advice.n_points; p++) {
            const fit_advised_t *advised = &advice.points[p];
            const bool changes = (advised->changes & FIT_CHANGES_KEEP_ATTENTION) != 0;
            const bool keeps = o.model.keep_attention != changes;
            expect_planned(&o, &machine, fit->budget, &choice, advised);
            ck_assert(!keeps || advised->named.recompute == RECOMPUTE_FULL);
            n_kept += changes && keeps;
            n_left += changes && !keeps;
            n_as_asked += !changes;
        }
        fit_destroy(fit);
    }
    printf("advice: attention is to be kept in %d, not to be in %d, as it is in %d\n", n_kept, n_left, n_as_asked);
    ck_assert(n_kept > 0 && n_left > 0 && n_as_asked > 0);
}
END_TEST

START_TEST(advice_fits_and_is_by_time)
{
    fit_case_t c = case_of(2 + _i, ON_CPU); /* GPT-2 and Llama, two and four ranks */
    static tried_t tried[6 * 4 * 3];
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_advice_t advice;
    fit_point_t given;
    fit_t *fit;
    int n = try_all(&o, &machine, tried);
    o.zero.stage = 1;
    o.model.recompute = RECOMPUTE_NONE;
    o.train.micro_batch = 12;
    fit_choice_t choice = fit_choice_of(&o);
    ck_assert_int_eq(fit_create(&o, &machine, budget_of(tried, n, 0.2), &fit), ZERO_OK);
    ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
    ck_assert(!given.fits);
    ck_assert_int_eq(fit_advise(fit, &given, &advice), ZERO_OK);
    ck_assert_int_ge(advice.n_points, 1);
    for (int i = 0; i < advice.n_points; i++) {
        const fit_choice_t *a = &advice.points[i].point.choice;
        tried_t t = try_mix(&o, &machine, *a);
        ck_assert_uint_eq(t.bytes, advice.points[i].point.bytes);
        ck_assert_uint_le(t.bytes, fit->budget);
        ck_assert(i == 0 || advice.points[i - 1].point.time.total <= advice.points[i].point.time.total);
    }
    /* The first is the fastest that fits, unless one with fewer changes takes at most 2% longer. */
    const tried_t *fastest = best_of(tried, n, fit->budget);
    ck_assert_double_le(advice.points[0].point.time.total, 1.03 * fastest->ms);
    fit_destroy(fit);
}
END_TEST

START_TEST(more_ranks_are_advised_where_they_help)
{
    fit_case_t c = case_of(0, ON_CPU);
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_advice_t advice;
    fit_point_t given;
    fit_t *fit;
    o.zero.stage = 3;
    o.model.recompute = RECOMPUTE_FULL;
    o.train.micro_batch = 1;
    fit_choice_t choice = fit_choice_of(&o);
    tried_t on_one = try_choice(&o, &machine, 3, RECOMPUTE_FULL, 1);
    fit_machine_t four = machine;
    options_t shared = o;
    four.n_ranks = 4;
    shared.train.global_batch *= 4;
    tried_t on_four = try_choice(&shared, &four, 3, RECOMPUTE_FULL, 1);
    ck_assert_uint_lt(on_four.bytes, on_one.bytes);
    ck_assert_int_eq(fit_create(&o, &machine, on_four.bytes, &fit), ZERO_OK);
    ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
    ck_assert_int_eq(fit_advise(fit, &given, &advice), ZERO_OK);
    ck_assert_int_eq(advice.n_points, 0);
    ck_assert_int_eq(advice.n_ranks, 4);
    ck_assert_uint_eq(advice.on_ranks.point.bytes, on_four.bytes);
    ck_assert_double_eq_tol(advice.on_ranks.point.time.total, on_four.ms, 1e-9 * on_four.ms);
    fit_destroy(fit);
}
END_TEST

/* 126 layers, as Llama 3.1 405B has, on a rank that has too little, and far too little. */
START_TEST(advice_for_the_largest_model_takes_less_than_a_second)
{
    fit_case_t c = {.arch = ARCH_LLAMA, .n_ranks = 1, .dtype = ZERO_BF16, .open = _i % 2 ? ON_GPU : ON_CPU};
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_point_t given;
    fit_advice_t advice;
    o.model.layers = 126;
    o.zero.stage = 3;
    o.model.recompute = RECOMPUTE_NONE;
    o.train.micro_batch = 12;
    o.train.grad_clip = _i < 2 ? 1.0 : 0.0;
    const fit_choice_t choice = fit_choice_of(&o);
    static const double parts[] = {0.9, 0.5, 0.1, 0.04, 0.02};
    for (int i = 0; i < 5; i++) {
        const uint64_t budget = (uint64_t)(parts[i] * (double)try_settings(&o, &machine, &choice).bytes);
        fit_t *fit = open_fit(&o, &machine, budget);
        ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
        const double begin = cpu_seconds();
        ck_assert_int_eq(fit_advise(fit, &given, &advice), ZERO_OK);
        const double seconds = cpu_seconds() - begin;
        printf("%d, %g: %.3f s, %d changes, %d ranks\n", _i, parts[i], seconds, advice.n_points, advice.n_ranks);
        ck_assert_double_lt(seconds, IN_SECONDS);
        fit_destroy(fit);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fit_advice");
    TCase *c = tcase_create("advice");
    tcase_set_timeout(c, 240);
    tcase_add_test(c, one_more_of_the_largest_does_not_fit);
    tcase_add_test(c, advice_is_that_of_brute_force);
    tcase_add_test(c, what_attention_gives_is_kept_only_if_that_is_advised);
    tcase_add_loop_test(c, advice_fits_and_is_by_time, 0, 4);
    tcase_add_test(c, more_ranks_are_advised_where_they_help);
    tcase_add_loop_test(c, advice_for_the_largest_model_takes_less_than_a_second, 0, 4);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
