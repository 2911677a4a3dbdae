/* test_attention.c - tests causal attention, plain and with shared key/value heads, against fp64 loops over whole rows
 * of scores; backward against the closed form in fp64 and, at a small size, against central differences. With documents
 * the reference is each document on its own.
 */
#include "tests/support/model_fixture.h"
#include "train/kernels/common.h"

typedef zero_attention_shape_t shape_t;

/* One token; GPT-2 at dim 36 with 3 heads; shared heads; several blocks of rows, the last one short; exactly one. */
static const shape_t shapes[] = {
    {1, 1, 1, 1, 1}, {3, 17, 3, 3, 12}, {2, 33, 6, 2, 5}, {1, 64, 2, 1, 8}, {2, 201, 4, 4, 40}, {1, 130, 4, 1, 64},
};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static size_t qkv_width(shape_t s)
{
    return (s.n_heads + 2 * s.n_kv_heads) * s.head_dim;
}

static size_t qkv_elems(shape_t s)
{
    return s.n_batch * s.seq_len * qkv_width(s);
}

static size_t out_elems(shape_t s)
{
    return s.n_batch * s.seq_len * s.n_heads * s.head_dim;
}

static zero_model_limits_t limits_of(shape_t s)
{
    return (zero_model_limits_t){.n_rows = s.n_batch * s.seq_len,
                                 .seq_len = s.seq_len,
                                 .max_linear = 1,
                                 .max_width = 1,
                                 .n_heads = s.n_heads,
                                 .head_dim = s.head_dim,
                                 .vocab_size = 1};
}

/* ---- The reference, one query row at a time ---- */

typedef struct row {
    size_t q, k, v, out, lse; /* k and v: of position 0 */
    size_t first_key, last_key;
} row_t;

/* How a test cuts sequences: with the first of `documents` at position 0, a 0 ends it; every sequence after the first
 * has each of its documents begin one position later, if there is one. */
typedef struct cut {
    size_t documents[8], window;
} cut_t;

static const cut_t WHOLE = {{0}, 0};

/* Returns where the document of position t begins. */
static size_t start_of(const cut_t *cut, size_t b, size_t t)
{
    size_t start = 0;
    for (size_t i = 0; cut->documents[i] > 0; ++i)
        if (cut->documents[i] + b <= t)
            start = cut->documents[i] + b;
    return start;
}

/* Returns int32 [n_batch, seq_len]; free it. */
static int32_t *starts_of(const cut_t *cut, shape_t s)
{
    int32_t *starts = malloc(s.n_batch * s.seq_len * sizeof *starts);
    ck_assert_ptr_nonnull(starts);
    for (size_t i = 0; i < s.n_batch * s.seq_len; ++i)
        starts[i] = (int32_t)start_of(cut, i / s.seq_len, i % s.seq_len);
    return starts;
}

static row_t row_at(shape_t s, const cut_t *cut, size_t b, size_t h, size_t t)
{
    size_t kv = h / (s.n_heads / s.n_kv_heads), width = qkv_width(s), start = start_of(cut, b, t);
    size_t seen = cut->window > 0 && cut->window < t - start + 1 ? cut->window : t - start + 1;
    return (row_t){.q = (b * s.seq_len + t) * width + h * s.head_dim,
                   .k = b * s.seq_len * width + (s.n_heads + kv) * s.head_dim,
                   .v = b * s.seq_len * width + (s.n_heads + s.n_kv_heads + kv) * s.head_dim,
                   .out = ((b * s.seq_len + t) * s.n_heads + h) * s.head_dim,
                   .lse = (b * s.n_heads + h) * s.seq_len + t,
                   .first_key = t + 1 - seen,
                   .last_key = t};
}

/* Computes the probabilities of one row. Returns the logarithm of the sum of exponentials. */
static double row_probs(shape_t s, row_t row, const double *qkv, double *probs)
{
    double sum = 0.0;
    for (size_t j = row.first_key; j <= row.last_key; ++j) {
        double dot = 0.0;
        for (size_t d = 0; d < s.head_dim; ++d)
            dot += qkv[row.q + d] * qkv[row.k + j * qkv_width(s) + d];
        probs[j] = exp(dot / sqrt((double)s.head_dim));
        sum += probs[j];
    }
    for (size_t j = row.first_key; j <= row.last_key; ++j)
        probs[j] /= sum;
    return log(sum);
}

static void row_forward(shape_t s, row_t row, const double *qkv, double *probs, double *out, double *lse)
{
    lse[row.lse] = row_probs(s, row, qkv, probs);
    for (size_t d = 0; d < s.head_dim; ++d) {
        out[row.out + d] = 0.0;
        for (size_t j = row.first_key; j <= row.last_key; ++j)
            out[row.out + d] += probs[j] * qkv[row.v + j * qkv_width(s) + d];
    }
}

static void row_backward(shape_t s, row_t row, const double *qkv, const double *dout, double *probs, double *dprobs,
                         double *dqkv)
{
    double mean = 0.0, scale = 1.0 / sqrt((double)s.head_dim);
    row_probs(s, row, qkv, probs);
    for (size_t j = row.first_key; j <= row.last_key; ++j) {
        dprobs[j] = 0.0;
        for (size_t d = 0; d < s.head_dim; ++d)
            dprobs[j] += dout[row.out + d] * qkv[row.v + j * qkv_width(s) + d];
        mean += probs[j] * dprobs[j];
    }
    for (size_t j = row.first_key; j <= row.last_key; ++j)
        for (size_t d = 0; d < s.head_dim; ++d) {
            size_t at = j * qkv_width(s) + d;
            double dscore = probs[j] * (dprobs[j] - mean) * scale;
            dqkv[row.v + at] += probs[j] * dout[row.out + d];
            dqkv[row.q + d] += dscore * qkv[row.k + at];
            dqkv[row.k + at] += dscore * qkv[row.q + d];
        }
}

static void reference_forward(shape_t s, const cut_t *cut, const double *qkv, double *out, double *lse)
{
    double *probs = fixture_doubles(s.seq_len);
    for (size_t b = 0; b < s.n_batch; ++b)
        for (size_t h = 0; h < s.n_heads; ++h)
            for (size_t t = 0; t < s.seq_len; ++t)
                row_forward(s, row_at(s, cut, b, h, t), qkv, probs, out, lse);
    free(probs);
}

static double *reference_backward(shape_t s, const cut_t *cut, const double *qkv, const double *dout)
{
    double *dqkv = fixture_doubles(qkv_elems(s));
    double *probs = fixture_doubles(2 * s.seq_len);
    for (size_t b = 0; b < s.n_batch; ++b)
        for (size_t h = 0; h < s.n_heads; ++h)
            for (size_t t = 0; t < s.seq_len; ++t)
                row_backward(s, row_at(s, cut, b, h, t), qkv, dout, probs, probs + s.seq_len, dqkv);
    free(probs);
    return dqkv;
}

/* ---- The kernels ---- */

typedef struct result {
    array_t out, lse, dqkv;
} result_t;

static result_t run(fixture_t *f, shape_t s, const cut_t *cut, const array_t *qkv, const array_t *dout)
{
    int32_t *starts = starts_of(cut, s);
    const zero_mask_t mask = {cut->documents[0] > 0 ? starts : NULL, cut->window};
    const zero_mask_t *given = cut == &WHOLE ? NULL : &mask;
    result_t r = {array_poison(out_elems(s), ZERO_FP32), array_poison(s.n_batch * s.n_heads * s.seq_len, ZERO_FP32),
                  array_poison(qkv_elems(s), ZERO_FP32)};
    ck_assert_int_eq(f->kernels->attention(&f->ctx, r.out.data, r.lse.data, qkv->data, given, &s), ZERO_OK);
    ck_assert_int_eq(
        f->kernels->attention_backward(&f->ctx, r.dqkv.data, dout->data, qkv->data, r.out.data, r.lse.data, given, &s),
        ZERO_OK);
    free(starts);
    return r;
}

static void result_free(result_t *r)
{
    array_free(&r->out), array_free(&r->lse), array_free(&r->dqkv);
}

static void check(int isa, shape_t s, const cut_t *cut, double std)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s);
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t qkv = array_normal(qkv_elems(s), ZERO_FP32, 0.0, std, 1);
    array_t dout = array_normal(out_elems(s), ZERO_FP32, 0.0, 1.0, 2);
    result_t got = run(&f, s, cut, &qkv, &dout), again = run(&f, s, cut, &qkv, &dout);
    double *out = fixture_doubles(got.out.n), *lse = fixture_doubles(got.lse.n);
    reference_forward(s, cut, qkv.values, out, lse);
    double *dqkv = reference_backward(s, cut, qkv.values, dout.values);
    /* A score of size S errs by about S u, and its exponential by as much, relatively. Scores reach about 5 std^2. */
    double bound = (16.0 + 16.0 * std * std) * 0x1p-24;
    array_expect(&got.out, out, bound, "out");
    array_expect(&got.lse, lse, bound, "logsumexp");
    array_expect(&got.dqkv, dqkv, 2 * bound, "dqkv");
    array_expect_same_bits(&got.out, &again.out, "out, run to run");
    array_expect_same_bits(&got.lse, &again.lse, "logsumexp, run to run");
    array_expect_same_bits(&got.dqkv, &again.dqkv, "dqkv, run to run");
    free(out), free(lse), free(dqkv);
    result_free(&got), result_free(&again);
    array_free(&qkv), array_free(&dout);
    fixture_close(&f);
}

START_TEST(forward_and_backward_equal_fp64)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        check(_i, shapes[s], &WHOLE, 1.0);
}
END_TEST

START_TEST(sharp_softmax_equals_fp64)
{
    check(_i, (shape_t){2, 70, 3, 3, 12}, &WHOLE, 4.0);
}
END_TEST

/* Scores of thousands would overflow exp without the shift by the maximum. */
START_TEST(huge_scores_stay_finite)
{
    const shape_t s = {1, 70, 1, 1, 8};
    fixture_t f;
    zero_model_limits_t limits = limits_of(s);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t qkv = array_normal(qkv_elems(s), ZERO_FP32, 0.0, 60.0, 3);
    array_t dout = array_normal(out_elems(s), ZERO_FP32, 0.0, 1.0, 4);
    result_t got = run(&f, s, &WHOLE, &qkv, &dout);
    for (size_t i = 0; i < got.out.n; ++i)
        ck_assert(isfinite(array_get(&got.out, i)));
    for (size_t i = 0; i < got.dqkv.n; ++i)
        ck_assert(isfinite(array_get(&got.dqkv, i)));
    result_free(&got);
    array_free(&qkv), array_free(&dout);
    fixture_close(&f);
}
END_TEST

/* The first rows of a long sequence keep their bits whatever follows. */
START_TEST(later_positions_have_no_influence)
{
    const shape_t s = {1, 90, 2, 2, 12};
    const size_t n_seen = 40;
    fixture_t f;
    zero_model_limits_t limits = limits_of(s);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t qkv = array_normal(qkv_elems(s), ZERO_FP32, 0.0, 1.0, 5), changed = array_copy(&qkv);
    for (size_t i = n_seen * qkv_width(s); i < changed.n; ++i)
        array_set(&changed, i, -3.0 * qkv.values[i]);
    array_t dout = array_normal(out_elems(s), ZERO_FP32, 0.0, 1.0, 6);
    result_t a = run(&f, s, &WHOLE, &qkv, &dout), b = run(&f, s, &WHOLE, &changed, &dout);
    ck_assert(memcmp(a.out.data, b.out.data, n_seen * s.n_heads * s.head_dim * sizeof(float)) == 0);
    result_free(&a), result_free(&b);
    array_free(&qkv), array_free(&changed), array_free(&dout);
    fixture_close(&f);
}
END_TEST

typedef struct scalar {
    shape_t s;
    const cut_t *cut;
    const double *qkv, *dout;
    double *out, *lse;
} scalar_t;

static double scalar_loss(void *arg)
{
    const scalar_t *p = arg;
    double loss = 0.0;
    reference_forward(p->s, p->cut, p->qkv, p->out, p->lse);
    for (size_t i = 0; i < out_elems(p->s); ++i)
        loss += p->dout[i] * p->out[i];
    return loss;
}

static void check_slopes(int isa, const cut_t *cut)
{
    const shape_t s = {1, 9, 4, 2, 3};
    fixture_t f;
    zero_model_limits_t limits = limits_of(s);
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t qkv = array_normal(qkv_elems(s), ZERO_FP32, 0.0, 1.0, 7);
    array_t dout = array_normal(out_elems(s), ZERO_FP32, 0.0, 1.0, 8);
    result_t got = run(&f, s, cut, &qkv, &dout);
    scalar_t scalar = {s, cut, qkv.values, dout.values, fixture_doubles(got.out.n), fixture_doubles(got.lse.n)};
    double *dqkv = fixture_slopes(scalar_loss, &scalar, qkv.values, qkv.n);
    array_expect(&got.dqkv, dqkv, 2e-6, "dqkv"); /* fp32 arithmetic; the differences are more exact */
    free(dqkv), free(scalar.out), free(scalar.lse);
    result_free(&got);
    array_free(&qkv), array_free(&dout);
    fixture_close(&f);
}

START_TEST(backward_equals_central_differences)
{
    check_slopes(_i, &WHOLE);
}
END_TEST

/* ---- Documents and windows ---- */

/* Documents of one token; borders at, before and behind those of blocks of rows; a window of one key, across blocks,
 * and wider than a document; both. */
static const cut_t cuts[] = {
    {{1, 2, 60}, 0}, {{63, 64, 65, 130}, 0}, {{0}, 1}, {{0}, 50}, {{0}, 64}, {{3, 90}, 70}, {{199}, 2},
};
#define N_CUTS (sizeof cuts / sizeof cuts[0])

START_TEST(documents_and_windows_equal_fp64)
{
    for (size_t i = 0; i < N_CUTS; ++i) {
        check(_i, (shape_t){2, 201, 4, 2, 20}, &cuts[i], 1.0);
        check(_i, (shape_t){3, 17, 3, 3, 12}, &cuts[i], 4.0);
    }
}
END_TEST

START_TEST(backward_of_documents_and_windows_equals_central_differences)
{
    static const cut_t small[] = {{{4}, 0}, {{1, 2, 7}, 0}, {{0}, 3}, {{5}, 2}};
    for (size_t i = 0; i < sizeof small / sizeof small[0]; ++i)
        check_slopes(_i, &small[i]);
}
END_TEST

/* Whatever the other documents hold; and their gradients do not see this one's. */
START_TEST(a_documents_bits_do_not_depend_on_the_others)
{
    const shape_t s = {1, 150, 2, 1, 12};
    const cut_t cut = {{30, 100}, 0};
    const size_t from = 30 * qkv_width(s), to = 100 * qkv_width(s), n_out = s.n_heads * s.head_dim;
    fixture_t f;
    zero_model_limits_t limits = limits_of(s);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t qkv = array_normal(qkv_elems(s), ZERO_FP32, 0.0, 1.0, 9), changed = array_copy(&qkv);
    for (size_t i = 0; i < changed.n; ++i)
        if (i < from || i >= to)
            array_set(&changed, i, -3.0 * qkv.values[i]);
    array_t dout = array_normal(out_elems(s), ZERO_FP32, 0.0, 1.0, 10);
    result_t a = run(&f, s, &cut, &qkv, &dout), b = run(&f, s, &cut, &changed, &dout);
    ck_assert(memcmp((float *)a.out.data + 30 * n_out, (float *)b.out.data + 30 * n_out, 70 * n_out * sizeof(float)) ==
              0);
    ck_assert(memcmp((float *)a.dqkv.data + from, (float *)b.dqkv.data + from, (to - from) * sizeof(float)) == 0);
    ck_assert(memcmp(a.out.data, b.out.data, 30 * n_out * sizeof(float)) != 0);
    result_free(&a), result_free(&b);
    array_free(&qkv), array_free(&changed), array_free(&dout);
    fixture_close(&f);
}
END_TEST

/* One document, or a window as long as the sequence, is no mask: the same bits. */
START_TEST(a_mask_that_hides_nothing_changes_no_bit)
{
    const shape_t s = {2, 130, 4, 2, 20};
    const cut_t wide = {{0}, s.seq_len}, one = {{500}, 0};
    const cut_t *const masks[] = {&wide, &one};
    fixture_t f;
    zero_model_limits_t limits = limits_of(s);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t qkv = array_normal(qkv_elems(s), ZERO_FP32, 0.0, 1.0, 11);
    array_t dout = array_normal(out_elems(s), ZERO_FP32, 0.0, 1.0, 12);
    result_t want = run(&f, s, &WHOLE, &qkv, &dout);
    for (int i = 0; i < 2; ++i) {
        result_t got = run(&f, s, masks[i], &qkv, &dout);
        array_expect_same_bits(&got.out, &want.out, "out");
        array_expect_same_bits(&got.lse, &want.lse, "logsumexp");
        array_expect_same_bits(&got.dqkv, &want.dqkv, "dqkv");
        result_free(&got);
    }
    result_free(&want);
    array_free(&qkv), array_free(&dout);
    fixture_close(&f);
}
END_TEST

/* A text that grows by chunks, as in generating, and one that is there at once. Their sums are taken in other orders.
 */
START_TEST(a_cache_sees_the_same_window)
{
    static const size_t windows[] = {0, 1, 7, 64, 200}, chunks[] = {1, 40, 3, 1, 45};
    const shape_t s = {1, 90, 4, 2, 20};
    const size_t width = 2 * s.n_kv_heads * s.head_dim;
    fixture_t f;
    zero_model_limits_t limits = limits_of(s);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t qkv = array_normal(qkv_elems(s), ZERO_FP32, 0.0, 1.0, 13);
    array_t out = array_poison(out_elems(s), ZERO_FP32);
    float *cache = calloc(s.seq_len * width, sizeof *cache), *unread = calloc(s.n_heads * s.seq_len, sizeof *unread);
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; ++w) {
        const cut_t cut = {{0}, windows[w]};
        double *want = fixture_doubles(out.n), *lse = fixture_doubles(s.n_heads * s.seq_len);
        reference_forward(s, &cut, qkv.values, want, lse);
        memset(cache, 0xff, s.seq_len * width * sizeof *cache);
        for (size_t i = 0, first = 0; i < sizeof chunks / sizeof chunks[0]; first += chunks[i++]) {
            int32_t starts[90];
            for (size_t t = 0; t < chunks[i]; ++t)
                starts[t] = -(int32_t)first;
            const zero_mask_t mask = {first > 0 ? starts : NULL, windows[w]};
            const shape_t new_rows = {1, chunks[i], s.n_heads, s.n_kv_heads, s.head_dim};
            ck_assert_int_eq(f.kernels->attention_cached(&f.ctx, (float *)out.data + first * s.n_heads * s.head_dim,
                                                         unread, cache, (float *)qkv.data + first * qkv_width(s), &mask,
                                                         &new_rows),
                             ZERO_OK);
        }
        array_expect(&out, want, 32.0 * 0x1p-24, "out");
        for (size_t t = 0; t < s.seq_len; ++t)
            ck_assert(memcmp(cache + t * width, (float *)qkv.data + (t + 1) * qkv_width(s) - width,
                             width * sizeof *cache) == 0);
        free(want), free(lse);
    }
    free(cache), free(unread);
    array_free(&qkv), array_free(&out);
    fixture_close(&f);
}
END_TEST

/* ---- which shapes the fast kernels take, tested without a GPU ---- */

typedef bool (*may_serve_fn)(zero_dtype_t dtype, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);

START_TEST(a_shape_that_is_refused_is_named_with_one_that_is_taken)
{
    static const struct {
        may_serve_fn may_serve;
        zero_dtype_t dtype;
        size_t seq_len, head_dim;
        const char *says[3]; /* none: the shape is taken */
    } cases[] = {
        {zero_cudnn_may_serve, ZERO_BF16, 1024, 64, {NULL}},
        {zero_cudnn_may_serve, ZERO_FP16, 128, 8, {NULL}},
        {zero_cudnn_may_serve, ZERO_BF16, 4096, 128, {NULL}},
        {zero_cudnn_may_serve, ZERO_BF16, 1024, 80, {NULL}},
        {zero_cudnn_may_serve, ZERO_FP32, 1024, 64, {"cuDNN", "fp32", "bf16"}},
        {zero_cudnn_may_serve, ZERO_BF16, 1000, 64, {NULL}},
        {zero_cudnn_may_serve, ZERO_FP16, 17, 136, {NULL}},
        {zero_cudnn_may_serve, ZERO_BF16, 1025, 256, {NULL}},
        {zero_cudnn_may_serve, ZERO_BF16, 1024, 12, {"heads of 12 elements", "not a multiple of 8", "at most 256"}},
        {zero_cudnn_may_serve, ZERO_BF16, 1024, 264, {"heads of 264 elements", "more than 256"}},
        {zero_cudnn_may_serve, ZERO_BF16, 1024, 257, {"heads of 257 elements", "more than 256", "multiple of 8"}},
        {zero_cudnn_may_serve, ZERO_BF16, 1 << 24, 1 << 20, {"heads of 1048576 elements"}},
        {zero_attention_mma_may_serve, ZERO_BF16, 1, 8, {NULL}},
        {zero_attention_mma_may_serve, ZERO_FP16, 1001, 128, {NULL}},
        {zero_attention_mma_may_serve, ZERO_FP32, 1024, 64, {"tensor cores", "fp32", "bf16"}},
        {zero_attention_mma_may_serve, ZERO_BF16, 1024, 20, {"heads of 20 elements", "multiple of 8", "at most 128"}},
        {zero_attention_mma_may_serve, ZERO_FP16, 1024, 136, {"heads of 136 elements", "more than 128"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        zero_attention_shape_t shape = {2, cases[i].seq_len, 4, 2, cases[i].head_dim};
        char why[ZERO_MODEL_WHY] = "";
        bool may_serve = cases[i].may_serve(cases[i].dtype, &shape, why);
        ck_assert_int_eq(may_serve, cases[i].says[0] == NULL);
        ck_assert_int_eq(cases[i].may_serve(cases[i].dtype, &shape, NULL), may_serve);
        ck_assert_msg((why[0] == 0) == may_serve && !strchr(why, '\n'), "case %zu: '%s'", i, why);
        for (size_t part = 0; part < 3 && cases[i].says[part] != NULL; ++part)
            ck_assert_msg(strstr(why, cases[i].says[part]) != NULL, "no '%s' in '%s'", cases[i].says[part], why);
    }
}
END_TEST

/* Kinds are asked in order; a build without cuDNN leaves that out. */
static zero_attention_kind_t first_that_takes(const zero_attention_call_t *call, bool has_cudnn)
{
    int kind = 0;
    while (!zero_attention_takes(kind, call, NULL) || (kind == ZERO_ATTENTION_CUDNN && !has_cudnn))
        ++kind;
    return kind;
}

START_TEST(each_call_goes_to_the_kernels_that_are_made_for_it)
{
    enum { NOTHING, OUT, QKV }; /* what is not aligned */
    enum { HOPPER = ZERO_ATTENTION_HOPPER, CUDNN = ZERO_ATTENTION_CUDNN };
    enum { MMA = ZERO_ATTENTION_MMA, SIMT = ZERO_ATTENTION_SIMT };
    static const struct {
        zero_dtype_t dtype;
        size_t n_batch, seq_len, head_dim;
        bool is_hopper, hides;
        int unaligned;
        int with_cudnn, without;
    } cases[] = {
        {ZERO_BF16, 2, 1024, 64, true, false, NOTHING, HOPPER, HOPPER},
        {ZERO_FP16, 2, 17, 128, true, false, NOTHING, HOPPER, HOPPER},
        {ZERO_BF16, 65535, 1024, 64, true, false, NOTHING, HOPPER, HOPPER},
        {ZERO_BF16, 65536, 1024, 64, true, false, NOTHING, MMA, MMA}, /* a grid's limits */
        {ZERO_BF16, 1, 65535 * 64, 64, true, false, NOTHING, HOPPER, HOPPER},
        {ZERO_BF16, 1, 65535 * 64 + 1, 64, true, false, NOTHING, MMA, MMA},
        {ZERO_BF16, 2, 1024, 64, true, true, NOTHING, MMA, MMA},
        {ZERO_BF16, 2, 1024, 64, true, false, OUT, SIMT, SIMT}, /* such heads are not cuDNN's on a Hopper */
        {ZERO_BF16, 2, 1024, 64, false, false, NOTHING, CUDNN, MMA},
        {ZERO_BF16, 2, 1024, 64, false, false, OUT, CUDNN, SIMT},
        {ZERO_BF16, 2, 1024, 64, false, false, QKV, SIMT, SIMT},
        {ZERO_FP16, 2, 1024, 80, true, false, NOTHING, CUDNN, MMA},
        {ZERO_FP16, 2, 1024, 80, true, true, NOTHING, MMA, MMA},
        {ZERO_BF16, 2, 1024, 136, true, false, NOTHING, CUDNN, SIMT},
        {ZERO_BF16, 2, 1024, 256, true, true, NOTHING, SIMT, SIMT},
        {ZERO_BF16, 2, 1024, 20, true, false, NOTHING, SIMT, SIMT},
        {ZERO_FP32, 2, 1024, 64, true, false, NOTHING, SIMT, SIMT},
        {ZERO_FP32, 2, 1024, 64, false, true, NOTHING, SIMT, SIMT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const zero_attention_call_t call = {.dtype = cases[i].dtype,
                                            .shape = {cases[i].n_batch, cases[i].seq_len, 4, 2, cases[i].head_dim},
                                            .is_hopper = cases[i].is_hopper,
                                            .hides = cases[i].hides,
                                            .qkv_aligned = cases[i].unaligned != QKV,
                                            .all_aligned = cases[i].unaligned == NOTHING};
        ck_assert_msg((int)first_that_takes(&call, true) == cases[i].with_cudnn, "case %zu, with cuDNN", i);
        ck_assert_msg((int)first_that_takes(&call, false) == cases[i].without, "case %zu, without", i);
    }
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_test(tests, each_call_goes_to_the_kernels_that_are_made_for_it);
    tcase_add_test(tests, a_shape_that_is_refused_is_named_with_one_that_is_taken);
    tcase_add_loop_test(tests, forward_and_backward_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, sharp_softmax_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, huge_scores_stay_finite, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, later_positions_have_no_influence, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_equals_central_differences, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, documents_and_windows_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_of_documents_and_windows_equals_central_differences, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, a_documents_bits_do_not_depend_on_the_others, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, a_mask_that_hides_nothing_changes_no_bit, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, a_cache_sees_the_same_window, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("attention", add_tests);
}
