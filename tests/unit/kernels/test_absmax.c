/* test_absmax.c - the absolute maximum that a kernel records of what it writes, against a search of that; and that
 * asking for it changes nothing else. */
#include "kernels/float_bits.h"
#include "tests/support/model_fixture.h"

typedef struct kernel_case {
    size_t n_rows, width;
    bool recompute;
    array_t a, b, weight, mean, rstd, sums; /* a, b [n_rows, 5 * width]; sums [3, width] */
    array_t written, y;                     /* as a; `written` is what the maximum is of */
} kernel_case_t;

static zero_weight_t weight_of(kernel_case_t *t)
{
    return (zero_weight_t){.data = t->weight.data, .dtype = ZERO_FP32};
}
static zero_grad_t sums_of(kernel_case_t *t, size_t i)
{
    return (zero_grad_t){(float *)t->sums.data + i * t->width, ZERO_FP32, false};
}

typedef zero_status_t kernel_run_t(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t);

static zero_status_t run_layernorm(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t)
{
    return k->layernorm(ctx, t->written.data, t->mean.data, t->rstd.data, t->y.data, t->a.data, t->b.data, weight_of(t),
                        weight_of(t), 1e-5f, t->n_rows, t->width);
}
static zero_status_t run_layernorm_backward(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t)
{
    return k->layernorm_backward(ctx, t->written.data, sums_of(t, 0), sums_of(t, 1), sums_of(t, 2),
                                 t->recompute ? t->y.data : NULL, t->a.data, t->b.data, t->mean.data, t->rstd.data,
                                 weight_of(t), weight_of(t), t->n_rows, t->width);
}
static zero_status_t run_rmsnorm(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t)
{
    return k->rmsnorm(ctx, t->written.data, t->rstd.data, t->y.data, t->a.data, t->b.data, weight_of(t), 1e-5f,
                      t->n_rows, t->width);
}
static zero_status_t run_rmsnorm_backward(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t)
{
    return k->rmsnorm_backward(ctx, t->written.data, sums_of(t, 0), t->recompute ? t->y.data : NULL, t->a.data,
                               t->b.data, t->rstd.data, weight_of(t), t->n_rows, t->width);
}
static zero_status_t run_swiglu(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t)
{
    return k->swiglu(ctx, t->written.data, t->a.data, t->n_rows, t->width);
}
static zero_status_t run_swiglu_backward(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t)
{
    return k->swiglu_backward(ctx, t->written.data, t->recompute ? t->y.data : NULL, t->b.data, t->a.data, t->n_rows,
                              t->width);
}
static zero_status_t run_gelu(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t)
{
    return k->gelu(ctx, t->written.data, t->a.data, t->n_rows * t->width);
}
static zero_status_t run_gelu_backward(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t)
{
    return k->gelu_backward(ctx, t->written.data, sums_of(t, 0), t->recompute ? t->y.data : NULL, t->a.data, t->b.data,
                            t->n_rows, t->width);
}
/* 3 heads and 1 for keys and values, in place. */
static zero_status_t run_rope(const zero_model_kernels_t *k, zero_model_context_t *ctx, kernel_case_t *t)
{
    const zero_rope_t rope = {.theta = 10000.0f, .factor = 1.0f};
    return k->rope(ctx, t->written.data, t->recompute, &rope, &(zero_attention_shape_t){1, t->n_rows, 3, 1, t->width});
}

static const struct {
    const char *name;
    kernel_run_t *run;
    size_t widths; /* of what is written, in widths of the case */
} kernels[] = {{"layernorm", run_layernorm, 1},
               {"layernorm_backward", run_layernorm_backward, 1},
               {"rmsnorm", run_rmsnorm, 1},
               {"rmsnorm_backward", run_rmsnorm_backward, 1},
               {"swiglu", run_swiglu, 1},
               {"swiglu_backward", run_swiglu_backward, 2},
               {"gelu", run_gelu, 1},
               {"gelu_backward", run_gelu_backward, 1},
               {"rope (v is the largest)", run_rope, 5}};
#define N_KERNELS (sizeof kernels / sizeof *kernels)

static const zero_model_limits_t limits = {
    .n_rows = 300, .seq_len = 300, .max_linear = 1, .max_width = 5 * 130, .n_heads = 1, .head_dim = 1, .vocab_size = 1};

static kernel_case_t case_new(size_t n_rows, size_t width, bool recompute)
{
    size_t n = n_rows * width * 5;
    kernel_case_t t = {.n_rows = n_rows,
                       .width = width,
                       .recompute = recompute,
                       .a = array_normal(n, ZERO_FP32, 0.0, 2.0, 1),
                       .b = array_normal(n, ZERO_FP32, 0.0, 1.0, 2),
                       .weight = array_normal(width, ZERO_FP32, 1.0, 0.1, 3),
                       .mean = array_normal(n_rows, ZERO_FP32, 0.0, 0.1, 4),
                       .rstd = array_normal(n_rows, ZERO_FP32, 1.0, 0.1, 5),
                       .sums = array_poison(3 * width, ZERO_FP32),
                       .written = array_normal(n, ZERO_FP32, 0.0, 1.0, 6),
                       .y = array_poison(n, ZERO_FP32)};
    array_set(&t.written, n - 1, -100.0); /* rope: of the last v, which is not rotated */
    return t;
}

static void case_free(kernel_case_t *t)
{
    array_free(&t->a), array_free(&t->b), array_free(&t->weight), array_free(&t->mean), array_free(&t->rstd);
    array_free(&t->sums), array_free(&t->written), array_free(&t->y);
}

static void expect_maximum(fixture_t *f, size_t i, size_t n_rows, size_t width, bool recompute)
{
    size_t n = n_rows * width * kernels[i].widths;
    kernel_case_t without = case_new(n_rows, width, recompute), with = case_new(n_rows, width, recompute);
    zero_model_context_t ctx = f->ctx;
    uint32_t absmax = 0, largest = 0, most = 0x7fffffff;
    ck_assert_int_eq(kernels[i].run(f->kernels, &ctx, &without), ZERO_OK);
    ctx.absmax = &absmax;
    ck_assert_int_eq(kernels[i].run(f->kernels, &ctx, &with), ZERO_OK);
    for (size_t k = 0; k < n; ++k) {
        uint32_t magnitude = zero_fp8_magnitude(((const float *)without.written.data)[k]);
        largest = magnitude > largest ? magnitude : largest;
    }
    ck_assert_msg(absmax == largest && largest > 0, "%s of %zu x %zu: %08x, not %08x", kernels[i].name, n_rows, width,
                  absmax, largest);
    array_expect_same_bits(&without.written, &with.written, kernels[i].name);
    ctx.absmax = &most;
    ck_assert_int_eq(kernels[i].run(f->kernels, &ctx, &with), ZERO_OK);
    ck_assert_msg(most == 0x7fffffff, "%s lowers a maximum", kernels[i].name);
    case_free(&without), case_free(&with);
}

START_TEST(the_maximum_of_what_is_written_is_recorded)
{
    static const size_t shapes[][2] = {{1, 2}, {7, 6}, {51, 96}, {300, 130}};
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    for (size_t i = 0; i < N_KERNELS; ++i)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s)
            for (int recompute = 0; recompute < 2; ++recompute)
                expect_maximum(&f, i, shapes[s][0], shapes[s][1], recompute);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, the_maximum_of_what_is_written_is_recorded, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("absmax", add_tests);
}
