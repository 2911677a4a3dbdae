/* test_sampling.c - tokens are drawn by the softmax, of those that top_k and top_p leave; a model continues a text as
 * fp64 says. */
#include <omp.h>

#include "tests/unit/train/model_beside_fp64.h"
#include "train/text/draw.h"

/* draw_token maps [0, 1) onto tokens: on a regular grid of n numbers each token's share is its probability, give or
 * take one draw at each end of its interval. Random draws could not reach such a bound. */
static void check_shares(const float *logits, int n, const sample_spec_t *spec, const double *want)
{
    enum { N_DRAWS = 100000 };
    draw_scratch_t scratch;
    int counts[16] = {0};
    ck_assert(draw_scratch_create(16, &scratch));
    for (int i = 0; i < N_DRAWS; i++)
        counts[draw_token(logits, n, spec, (i + 0.5) / N_DRAWS, &scratch)]++;
    draw_scratch_free(&scratch);
    for (int token = 0; token < n; token++)
        ck_assert_msg(fabs(counts[token] - N_DRAWS * want[token]) <= 2.0,
                      "temperature %g, top_k %d, top_p %g: token %d %d times, expected %.1f", (double)spec->temperature,
                      spec->top_k, spec->top_p, token, counts[token], N_DRAWS * want[token]);
}

/* Softmax over the `k` largest logits, by sorting nothing: a token is in when fewer than k are above it. */
static void softmax_of_top(const float *logits, int n, double temperature, int k, double *probabilities)
{
    double total = 0.0;
    for (int i = 0; i < n; i++) {
        int n_above = 0;
        for (int j = 0; j < n; j++)
            n_above += logits[j] > logits[i] || (j < i && logits[j] == logits[i]);
        probabilities[i] = n_above < k ? exp((double)logits[i] / temperature) : 0.0;
        total += probabilities[i];
    }
    for (int i = 0; i < n; i++)
        probabilities[i] /= total;
}

START_TEST(draws_follow_the_softmax)
{
    static const float logits[] = {0.3f, -1.0f, 2.5f, 2.5f, -7.0f, 1.25f, 0.0f, -0.5f, 1.0f};
    enum { N = sizeof logits / sizeof logits[0] };
    static const int top_ks[] = {0, 1, 2, 3, 5, N, N + 5};
    static const float temperatures[] = {0.5f, 1.0f, 3.0f};
    const sample_spec_t one = {.temperature = 1.0f};
    double want[N];
    for (size_t k = 0; k < sizeof top_ks / sizeof top_ks[0]; k++)
        for (size_t t = 0; t < sizeof temperatures / sizeof temperatures[0]; t++) {
            softmax_of_top(logits, N, (double)temperatures[t], top_ks[k] ? top_ks[k] : N, want);
            check_shares(logits, N, &(sample_spec_t){.temperature = temperatures[t], .top_k = top_ks[k]}, want);
        }
    draw_scratch_t scratch;
    ck_assert(draw_scratch_create(N, &scratch));
    for (double random = 0.0; random < 1.0; random += 0.0625) /* temperature 0: the likeliest, the first of equals */
        ck_assert_int_eq(draw_token(logits, N, &(sample_spec_t){.temperature = 0.0f}, random, &scratch), 2);
    ck_assert_int_eq(draw_token(logits, N, &one, 0x1.fffffffffffffp-1, &scratch), N - 1);
    static const float huge[] = {3e38f, -3e38f, 0.0f};
    ck_assert_int_eq(draw_token(huge, 3, &one, 0.999999, &scratch), 0);
    draw_scratch_free(&scratch);
}
END_TEST

/* Several chunks of weights: the token is where the sum of the weights, here one after another, comes to the share that
 * was asked for, whatever the number of threads. Both sums round; 1e-12 is a thousand times that. */
START_TEST(a_large_vocabulary_is_drawn_from_alike)
{
    enum { N = 5 * DRAW_CHUNK + 77, N_DRAWS = 3000 };
    static float logits[N];
    static double reached[N];
    const sample_spec_t spec = {.temperature = 0.7f};
    const int n_threads = omp_get_max_threads();
    draw_scratch_t scratch;
    uint64_t state = 5;
    double sum = 0.0;
    ck_assert(draw_scratch_create(N, &scratch));
    for (int i = 0; i < N; i++) {
        logits[i] = (float)(support_random(&state) % 1000) * 0.01f;
        reached[i] = sum += exp((double)logits[i] / (double)spec.temperature);
    }
    for (int i = 0; i < N_DRAWS; i++) {
        const double random = (double)support_random(&state) * 0x1p-64, wanted = random * sum;
        omp_set_num_threads(1 + i % 3);
        const int32_t token = draw_token(logits, N, &spec, random, &scratch);
        ck_assert_msg((token == 0 || reached[token - 1] <= wanted + 1e-12 * sum) &&
                          reached[token] > wanted - 1e-12 * sum,
                      "%.17g: token %d", random, (int)token);
    }
    omp_set_num_threads(n_threads);
    draw_scratch_free(&scratch);
}
END_TEST

/* Probabilities 0.4, 0.3, 0.2 and 0.1: top_p takes the fewest likeliest tokens that add up to it, of those that top_k
 * leaves. */
START_TEST(top_p_takes_the_fewest_that_add_up_to_it)
{
    const float logits[] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    static const struct {
        double top_p;
        int top_k;
        double want[4];
    } tops[] = {{0.39, 0, {0, 1, 0, 0}},
                {0.41, 0, {0, 4 / 7.0, 0, 3 / 7.0}},
                {0.69, 0, {0, 4 / 7.0, 0, 3 / 7.0}},
                {0.71, 0, {0, 4 / 9.0, 2 / 9.0, 3 / 9.0}},
                {1.0, 0, {0.1, 0.4, 0.2, 0.3}},
                {0.56, 2, {0, 1, 0, 0}}, /* of two, the first has 4/7 */
                {0.58, 2, {0, 4 / 7.0, 0, 3 / 7.0}}};
    for (size_t i = 0; i < sizeof tops / sizeof tops[0]; i++)
        check_shares(logits, 4, &(sample_spec_t){.temperature = 1.0f, .top_p = tops[i].top_p, .top_k = tops[i].top_k},
                     tops[i].want);
}
END_TEST

/* The text that fp64 finds likeliest, past the model's context: the window slides. */
START_TEST(temperature_zero_continues_with_the_likeliest)
{
    enum { N_PROMPT = 3, N_TOKENS = 12 };
    int n_all;
    fixture_t *f = fixture_open(tiny[_i], ZERO_FP32);
    size_t vocab_size = (size_t)tiny[_i].vocab_size;
    int32_t got[N_PROMPT + N_TOKENS] = {5, 0, 36};
    double *logits = malloc((size_t)tiny[_i].seq_len * vocab_size * sizeof *logits);
    sample_spec_t spec = {.n_tokens = N_TOKENS, .temperature = 0.0f, .seed = 1};
    ck_assert_int_eq(sample_generate(&f->trainer.model, f->trainer.comm, &spec, got, N_PROMPT, &n_all), ZERO_OK);
    for (size_t n = N_PROMPT; n < N_PROMPT + N_TOKENS; n++) {
        size_t context = n < (size_t)tiny[_i].seq_len ? n : (size_t)tiny[_i].seq_len, best = 0;
        fp64_batch_t batch = {
            .tokens = got + n - context, .targets = got, .n_sequences = 1, .seq_len = context}; /* any targets */
        fp64_model_loss(f->reference, &batch, logits);
        const double *row = logits + (context - 1) * vocab_size;
        for (size_t token = 1; token < vocab_size; token++)
            best = row[token] > row[best] ? token : best;
        ck_assert_int_eq(got[n], (int)best);
    }
    free(logits);
    fixture_close(f);
}
END_TEST

/* One token a seed: the generator's own numbers through the model, against fp64's softmax. The bound is the 0.999
 * quantile of chi-square with 36 degrees of freedom; seeds are fixed, so the test passes always or never. */
START_TEST(generated_tokens_follow_the_softmax)
{
    enum { N_DRAWS = 4000, VOCAB = 37 };
    int n_all;
    fixture_t *f = fixture_open(tiny[GPT2], ZERO_FP32);
    int32_t tokens[2] = {7};
    int counts[VOCAB] = {0};
    double logits[VOCAB], total = 0.0, chi_square = 0.0;
    fp64_batch_t batch = {.tokens = tokens, .targets = tokens, .n_sequences = 1, .seq_len = 1};
    fp64_model_loss(f->reference, &batch, logits);
    for (int i = 0; i < VOCAB; i++)
        total += exp(logits[i]);
    for (uint64_t seed = 1; seed <= N_DRAWS; seed++) {
        sample_spec_t spec = {.n_tokens = 1, .temperature = 1.0f, .seed = seed};
        ck_assert_int_eq(sample_generate(&f->trainer.model, f->trainer.comm, &spec, tokens, 1, &n_all), ZERO_OK);
        counts[tokens[1]]++;
    }
    for (int i = 0; i < VOCAB; i++) {
        double want = N_DRAWS * exp(logits[i]) / total;
        chi_square += (counts[i] - want) * (counts[i] - want) / want;
    }
    ck_assert_msg(chi_square < 67.99, "chi-square %.1f", chi_square);
    fixture_close(f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sampling");
    TCase *sampling = tcase_create("sampling");
    tcase_set_timeout(sampling, 60);
    tcase_add_test(sampling, draws_follow_the_softmax);
    tcase_add_test(sampling, a_large_vocabulary_is_drawn_from_alike);
    tcase_add_test(sampling, top_p_takes_the_fewest_that_add_up_to_it);
    tcase_add_loop_test(sampling, temperature_zero_continues_with_the_likeliest, 0, N_ARCHS);
    tcase_add_test(sampling, generated_tokens_follow_the_softmax);
    suite_add_tcase(s, sampling);
    return s;
}

int main(void)
{
    return support_main(suite());
}
