/* test_adam8.c - tests AdamW with 8-bit moments on the CPU: codes stand for the published values, numbers get the
 * nearest one, decoded numbers are encoded to the same bits again, and a step is AdamW's, in fp64, on what was decoded.
 */
#include <math.h>
#include <omp.h>

#include "kernels/adam8_tables.h"
#include "kernels/step_math.h"
#include "tests/support/shard_support.h"
#include "tests/support/stderr_capture.h"
#include "tests/unit/optimizer/adam8_fp64.h"

#define N_ELEMS ((size_t)200003)
#define N_BLOCKS ((N_ELEMS + ZERO_BLOCK8_ELEMS - 1) / ZERO_BLOCK8_ELEMS)

/* ---- Codes ---- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

START_TEST(the_codes_stand_for_the_published_values)
{
    const bool is_signed = _i;
    double want[256];
    float got[256];
    zero_block8_t blocks[4];
    for (int i = 0; i < 256; ++i) {
        blocks[i / 64].scale = 1.0f;
        blocks[i / 64].codes[i % 64] = (uint8_t)i;
    }
    zero_shard_kernels_cpu()->decode8(got, blocks, 256, is_signed);
    qsort(got, 256, sizeof *got, by_value);
    adam8_fp64_values(is_signed, want);
    for (int i = 0; i < 256; ++i)
        ck_assert_double_le(fabs((double)got[i] - want[i]), 3e-7 * fabs(want[i])); /* 3 roundings, and a difference */
}
END_TEST

/* Blocks of ordinary numbers of all magnitudes, with zeros; every fifth block is tiny, every seventh huge. */
static float *numbers(size_t n, bool is_signed, uint64_t seed)
{
    float *x = shard_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; ++i) {
        const size_t block = i / ZERO_BLOCK8_ELEMS;
        const int low = block % 5 == 4 ? -120 : block % 7 == 6 ? 90 : -30;
        x[i] = shard_ordinary_float(&seed, low, low + 30);
        x[i] = i % 11 == 10 ? 0.0f : is_signed ? x[i] : fabsf(x[i]);
    }
    return x;
}

START_TEST(numbers_get_the_nearest_value)
{
    const bool is_signed = _i;
    float *x = numbers(N_ELEMS, is_signed, 3), *got = shard_alloc(N_ELEMS * sizeof *got);
    double *want = shard_alloc(N_ELEMS * sizeof *want);
    bool *unsure = memset(shard_alloc(N_ELEMS), 0, N_ELEMS);
    zero_block8_t *blocks = shard_alloc(N_BLOCKS * sizeof *blocks);
    size_t n_unsure = 0;
    for (size_t i = 0; i < N_ELEMS; ++i)
        want[i] = (double)x[i];
    adam8_fp64_round(want, N_ELEMS, is_signed, unsure);
    zero_shard_kernels_cpu()->encode8(blocks, x, N_ELEMS, is_signed);
    zero_shard_kernels_cpu()->decode8(got, blocks, N_ELEMS, is_signed);
    for (size_t i = 0; i < N_ELEMS; ++i) {
        n_unsure += unsure[i];
        if (!unsure[i] && !(fabs((double)got[i] - want[i]) <= 4e-7 * fabs(want[i])))
            ck_abort_msg("element %zu, %a: %a, not %a", i, (double)x[i], (double)got[i], want[i]);
        if (!is_signed && blocks[i / ZERO_BLOCK8_ELEMS].scale > 0.0f)
            ck_assert((got[i] > 0.0f) == (x[i] > 0.0f)); /* AdamW divides by its root */
    }
    ck_assert_uint_lt(n_unsure, N_ELEMS / 100);
    free(x);
    free(got);
    free(want);
    free(unsure);
    free(blocks);
}
END_TEST

/* State passes through fp32 when it is saved, loaded, or moved to another number of ranks. */
START_TEST(decoded_numbers_are_encoded_to_the_same_bits)
{
    const bool is_signed = _i % 2;
    uint64_t seed = 5;
    float *x = _i < 2 ? numbers(N_ELEMS, is_signed, 4) : shard_any_floats(&seed, N_ELEMS);
    float *decoded = shard_alloc(N_ELEMS * sizeof *decoded);
    zero_block8_t *once = shard_alloc(N_BLOCKS * sizeof *once), *twice = shard_alloc(N_BLOCKS * sizeof *twice);
    for (size_t i = 0; i < N_ELEMS && !is_signed; ++i)
        x[i] = fabsf(x[i]);
    zero_shard_kernels_cpu()->encode8(once, x, N_ELEMS, is_signed);
    zero_shard_kernels_cpu()->decode8(decoded, once, N_ELEMS, is_signed);
    for (size_t i = 0; i < N_ELEMS; ++i)
        ck_assert(isfinite(decoded[i]) && (is_signed || decoded[i] >= 0.0f));
    zero_shard_kernels_cpu()->encode8(twice, decoded, N_ELEMS, is_signed);
    shard_assert_same_bits(twice, once, N_BLOCKS * sizeof *once, "blocks", is_signed ? "m" : "v");
    free(x);
    free(decoded);
    free(once);
    free(twice);
}
END_TEST

/* What a GPU looks up is what the CPU computes: for numbers all over fp32, and for those next to each border between
 * two decades. */
static void expect_equal_codes(const zero_tables8_t *tables, float x)
{
    ck_assert_uint_eq(zero_quick_key8(x), zero_scale8_key(x));
    ck_assert_msg(zero_look_up_code8_signed(tables, x, 1.0f) == zero_encode8_signed(x, 1.0f), "m: %a", (double)x);
    ck_assert_msg(zero_look_up_code8_unsigned(tables, x, 1.0f) == zero_encode8_unsigned(x, 1.0f), "v: %a", (double)x);
}

START_TEST(tables_hold_what_is_computed)
{
    static zero_tables8_t tables;
    static const float scales[] = {1.0f, -0.37f, 3e-20f, -7e30f, NAN, 0.0f, INFINITY};
    for (uint32_t worker = 0; worker < 5; ++worker)
        zero_tables8_fill(&tables, worker, 5);
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4093)
        expect_equal_codes(&tables, zero_float_of_bits((uint32_t)bits | 0x00400000u)); /* NaN is quiet */
    for (uint64_t bits = zero_bits_of_float(0x1p-26f); bits <= 0x3f800000u; bits += 211)
        expect_equal_codes(&tables, zero_float_of_bits((uint32_t)bits));
    for (uint32_t i = 1; i < 7; ++i)
        for (uint32_t log_first = 0; log_first < 2; ++log_first)
            for (uint32_t near = 0; near < 33; ++near)
                expect_equal_codes(&tables,
                                   zero_float_of_bits(zero_bits_of_float(zero_border8(i, log_first)) + near - 16));
    for (unsigned code = 0; code < 256; ++code) {
        for (size_t s = 0; s < sizeof scales / sizeof *scales; ++s) {
            float m = zero_decode8_signed((uint8_t)code, scales[s]),
                  v = zero_decode8_unsigned((uint8_t)code, scales[s]);
            float looked_up[] = {zero_look_up8_signed(&tables, (uint8_t)code, scales[s]),
                                 zero_look_up8_unsigned(&tables, (uint8_t)code, scales[s])};
            ck_assert(memcmp(&looked_up[0], &m, sizeof m) == 0);
            ck_assert(memcmp(&looked_up[1], &v, sizeof v) == 0);
        }
    }
}
END_TEST

/* Every code with scales of every magnitude, beside the one that has the scale. */
START_TEST(every_code_survives_with_every_scale)
{
    const bool is_signed = _i;
    for (int exponent = -104; exponent < 128; ++exponent)
        for (int code = 0; code < 256; ++code) {
            zero_block8_t block = {.scale = ldexpf(1.0f + 0x1p-23f * (float)(code * 32749 % (1 << 23)), exponent)},
                          again;
            float values[2];
            if (is_signed && code % 3 == 0)
                block.scale = -block.scale;
            block.codes[0] = (uint8_t)code;
            block.codes[1] = is_signed ? 128 : 1;
            zero_shard_kernels_cpu()->decode8(values, &block, 2, is_signed);
            zero_shard_kernels_cpu()->encode8(&again, values, 2, is_signed);
            shard_assert_same_bits(&again, &block, sizeof block, "block", "code");
        }
}
END_TEST

/* ---- A shard ---- */

static size_t n_blocks_of(size_t n_elems)
{
    return (n_elems + ZERO_BLOCK8_ELEMS - 1) / ZERO_BLOCK8_ELEMS;
}

static float *ordinary(uint64_t seed, size_t n, int low, int high)
{
    float *x = shard_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; ++i)
        x[i] = shard_ordinary_float(&seed, low, high);
    return x;
}

static shard_t shard_of(zero_dtype_t dtype, size_t n_elems, uint64_t seed)
{
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    shard_t s = {.dtype = dtype, .n_elems = n_elems, .state_bytes = n_blocks_of(n_elems) * sizeof(zero_block8_t)};
    float *master = ordinary(seed, n_elems, -12, 2), *m = ordinary(seed + 1, n_elems, -14, 2);
    float *v = ordinary(seed + 2, n_elems, -28, 2);
    for (size_t i = 0; i < n_elems; ++i)
        v[i] = fabsf(v[i]);
    s.param = memset(shard_alloc(n_elems * sizeof(float)), 0, n_elems * sizeof(float));
    s.low = memset(shard_alloc(n_elems * sizeof(float)), 0, n_elems * sizeof(float));
    s.m = shard_alloc(s.state_bytes);
    s.v = shard_alloc(s.state_bytes);
    s.grad = ordinary(seed + 3, n_elems, -14, 2);
    kernels->split_master(s.param, dtype == ZERO_FP32 ? NULL : s.low, dtype, master, n_elems, NULL);
    kernels->encode8((void *)s.m, m, n_elems, true);
    kernels->encode8((void *)s.v, v, n_elems, false);
    free(master);
    free(m);
    free(v);
    return s;
}

static void update(const zero_shard_kernels_t *kernels, const shard_t *s, const zero_adam_segment_t *segments,
                   size_t n_segments, const zero_adam_scalars_t *scalars, const zero_tensor_scalars_t *by_tensor)
{
    zero_adam_t args = {.param_dtype = s->dtype,
                        .param = s->param,
                        .master_lo = s->dtype == ZERO_FP32 ? NULL : s->low,
                        .m = s->m,
                        .v = s->v,
                        .grad = s->grad,
                        .segments = segments,
                        .n_segments = n_segments,
                        .scalars = scalars,
                        .by_tensor = by_tensor};
    ck_assert_int_eq(kernels->adam8(&args, NULL), ZERO_OK);
}

static zero_adam_scalars_t usual_scalars(float grad_norm)
{
    zero_adam_scalars_t s;
    zero_adam_scalars_decide(&s, 3e-2f, 0.9f, 0.99f, 1e-8f, grad_norm, 1.0f, 4.0f, 7);
    return s;
}

/* ---- The bits ---- */

/* Offsets that differ by array, a gap, tensors that end within a block, any number of threads, and cuts between blocks.
 */
START_TEST(instruction_sets_threads_and_slicing_give_the_same_bits)
{
    const zero_adam_scalars_t scalars = usual_scalars(2.0f);
    const zero_adam_segment_t whole[] = {
        {.n_elems = 199001, .param = 3, .state = 64, .grad = 5, .decay = 0.1f},
        {.n_elems = 17, .param = 199980, .state = 199104, .grad = 199100},
        {.n_elems = 64, .param = 199800, .state = 199168, .grad = 199200},
    };
    const zero_adam_segment_t cut[] = {
        {.n_elems = 1024, .param = 3, .state = 64, .grad = 5, .decay = 0.1f},
        {.n_elems = 0, .state = 1088},
        {.n_elems = 199001 - 1024, .param = 1027, .state = 1088, .grad = 1029, .decay = 0.1f},
        {.n_elems = 17, .param = 199980, .state = 199104, .grad = 199100},
        {.n_elems = 64, .param = 199800, .state = 199168, .grad = 199200},
    };
    shard_t before = shard_of((zero_dtype_t)_i, N_ELEMS, 21), want = shard_clone(&before);
    omp_set_num_threads(1);
    update(zero_shard_kernels_cpu_named("scalar"), &want, whole, 3, &scalars, NULL);
    ck_assert_int_ne(memcmp(want.m, before.m, want.state_bytes), 0);
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        for (size_t t = 0; kernels != NULL && t < 2 * SHARD_N_THREAD_COUNTS; ++t) {
            shard_t got = shard_clone(&before);
            omp_set_num_threads(shard_thread_counts[t / 2]);
            update(kernels, &got, t % 2 ? cut : whole, t % 2 ? 5 : 3, &scalars, NULL);
            shard_assert_same(&got, &want, kernels->name);
            shard_free(&got);
        }
    }
    shard_free(&want);
    shard_free(&before);
}
END_TEST

START_TEST(every_build_has_the_same_codes)
{
    const bool is_signed = _i;
    uint64_t seed = 9;
    float *x = shard_any_floats(&seed, N_ELEMS), *want = shard_alloc(N_ELEMS * sizeof *want);
    float *got = shard_alloc(N_ELEMS * sizeof *got);
    zero_block8_t *want_blocks = shard_alloc(N_BLOCKS * sizeof *want_blocks);
    zero_block8_t *got_blocks = shard_alloc(N_BLOCKS * sizeof *got_blocks);
    for (size_t b = 0; b < SHARD_N_BUILDS; ++b) {
        const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu_named(shard_build_names[b]);
        if (kernels == NULL)
            continue;
        kernels->encode8(b ? got_blocks : want_blocks, x, N_ELEMS, is_signed);
        kernels->decode8(b ? got : want, b ? got_blocks : want_blocks, N_ELEMS, is_signed);
        if (b > 0) {
            shard_assert_same_bits(got_blocks, want_blocks, N_BLOCKS * sizeof *got_blocks, "blocks", kernels->name);
            shard_assert_same_bits(got, want, N_ELEMS * sizeof *got, "numbers", kernels->name);
        }
    }
    free(x);
    free(want);
    free(got);
    free(want_blocks);
    free(got_blocks);
}
END_TEST

/* Each segment by itself with the scalars of its tensor as the step's must give what one call with all of them does. */
START_TEST(segments_have_the_scalars_of_their_tensor)
{
    const zero_adam_scalars_t unused = usual_scalars(2.0f);
    const zero_adam_segment_t segments[] = {
        {.n_elems = 99001, .param = 3, .state = 0, .grad = 5, .decay = 0.7f, .tensor = 2},
        {.n_elems = 17, .param = 99080, .state = 99072, .grad = 99090, .decay = 0.7f, .tensor = 0},
        {.n_elems = 70, .param = 199400, .state = 199488, .grad = 199600, .decay = 0.7f, .tensor = 3},
    };
    shard_t before = shard_of((zero_dtype_t)_i, N_ELEMS, 41), want = shard_clone(&before), got = shard_clone(&before);
    zero_tensor_scalars_t by_tensor[4];
    for (int t = 0; t < 4; ++t) {
        zero_adam_scalars_decide(&by_tensor[t].scalars, 0.01f * (float)t, 0.2f * (float)t, 0.8f, 1e-4f, 2.0f, 1.0f,
                                 1.0f, 7);
        by_tensor[t].decay = 0.1f * (float)t;
    }
    for (int i = 0; i < 3; ++i) {
        zero_adam_segment_t alone = segments[i];
        alone.decay = by_tensor[alone.tensor].decay;
        update(zero_shard_kernels_cpu(), &want, &alone, 1, &by_tensor[alone.tensor].scalars, NULL);
    }
    update(zero_shard_kernels_cpu(), &got, segments, 3, &unused, by_tensor);
    shard_assert_same(&got, &want, "by tensor");
    shard_free(&got);
    shard_free(&want);
    shard_free(&before);
}
END_TEST

START_TEST(a_skipped_step_writes_nothing)
{
    const zero_adam_scalars_t scalars = usual_scalars(INFINITY);
    const zero_adam_segment_t segment = {.n_elems = 1001, .decay = 0.1f};
    shard_t before = shard_of((zero_dtype_t)_i, 1001, 31), after = shard_clone(&before);
    update(zero_shard_kernels_cpu(), &after, &segment, 1, &scalars, NULL);
    shard_assert_same(&after, &before, "skipped");
    shard_free(&after);
    shard_free(&before);
}
END_TEST

/* ---- The numbers ---- */

typedef struct numbers {
    float *w, *m, *v;
} numbers_t;

static numbers_t numbers_of(const shard_t *s)
{
    const zero_shard_kernels_t *kernels = zero_shard_kernels_cpu();
    const size_t n_bytes = s->n_elems * sizeof(float);
    numbers_t n = {shard_alloc(n_bytes), shard_alloc(n_bytes), shard_alloc(n_bytes)};
    kernels->join_master(n.w, s->param, s->dtype == ZERO_FP32 ? NULL : s->low, s->dtype, s->n_elems, NULL);
    kernels->decode8(n.m, (const void *)s->m, s->n_elems, true);
    kernels->decode8(n.v, (const void *)s->v, s->n_elems, false);
    return n;
}

static void numbers_free(numbers_t *n)
{
    free(n->w);
    free(n->m);
    free(n->v);
}

/* AdamW (Loshchilov & Hutter 2019) on the decoded moments. */
START_TEST(numbers_are_those_of_the_formulas_in_fp64)
{
    enum { N = 20003 };
    const float lr = 6e-3f, decay = 0.1f, loss_scale = 1024.0f;
    const double b1 = (double)0.9f, b2 = (double)0.98f, eps = (double)1e-8f;
    const zero_adam_segment_t segment = {.n_elems = N, .decay = decay};
    double *m = shard_alloc(N * sizeof *m), *v = shard_alloc(N * sizeof *v);
    bool *unsure = shard_alloc(N);
    size_t n_unsure = 0;
    shard_t s = shard_of((zero_dtype_t)_i, N, 71);
    for (int t = 1; t <= 8; ++t) {
        free(s.grad);
        s.grad = ordinary((uint64_t)(172 + t), N, -4, 12);
        numbers_t old = numbers_of(&s);
        zero_adam_scalars_t scalars;
        zero_adam_scalars_decide(&scalars, lr, 0.9f, 0.98f, 1e-8f, 0.5f, 0.0f, loss_scale, (uint64_t)t);
        update(zero_shard_kernels_cpu(), &s, &segment, 1, &scalars, NULL);
        numbers_t new = numbers_of(&s);
        memset(unsure, 0, N);
        for (size_t i = 0; i < N; ++i) {
            const double g = (double)(s.grad[i] / loss_scale);
            m[i] = b1 * (double)old.m[i] + (1 - b1) * g;
            v[i] = b2 * (double)old.v[i] + (1 - b2) * g * g;
            const double d = sqrt(v[i] / (1 - pow(b2, t))) + eps;
            const double step = (double)lr * (m[i] / (1 - pow(b1, t))) / d;
            const double w = (double)old.w[i] * (1 - (double)lr * (double)decay) - step;
            /* m may cancel; the rest has a few roundings each */
            const double parts = (double)lr * (fabs((double)old.m[i]) + fabs(g)) / (1 - pow(b1, t)) / d;
            if (!(fabs((double)new.w[i] - w) <= 0x1p-23 * (fabs(w) + fabs((double)old.w[i]) + 6 * parts)))
                ck_abort_msg("step %d, element %zu: w is %.9g, not %.9g", t, i, (double)new.w[i], w);
        }
        adam8_fp64_round(m, N, true, unsure);
        adam8_fp64_round(v, N, false, unsure);
        for (size_t i = 0; i < N; ++i) {
            n_unsure += unsure[i];
            if (!unsure[i] && !(fabs((double)new.m[i] - m[i]) <= 1e-6 * fabs(m[i]) &&
                                fabs((double)new.v[i] - v[i]) <= 1e-6 * fabs(v[i])))
                ck_abort_msg("step %d, element %zu: m, v are %.9g, %.9g, not %.9g, %.9g", t, i, (double)new.m[i],
                             (double)new.v[i], m[i], v[i]);
        }
        numbers_free(&old);
        numbers_free(&new);
    }
    ck_assert_uint_lt(n_unsure, 8 * N / 50);
    free(m);
    free(v);
    free(unsure);
    shard_free(&s);
}
END_TEST

/* ---- The library ---- */

#define MUST(call) ck_assert_int_eq(call, ZERO_OK)

/* Two units, or one whose second tensor is packed behind the first. */
static zero_model_t *model_of(int64_t n_elems, bool packed)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    MUST(zero_model_create(&model));
    for (int i = 0; i < 2; ++i) {
        const zero_tensor_desc_t desc = {
            .name = i ? "b" : "a", .n_dims = 1, .shape = {n_elems}, .init = ZERO_INIT_ONES, .packed = packed && i == 1};
        if (i == 0 || !packed)
            MUST(zero_model_add_unit(model, i ? "second" : "first", &unit));
        MUST(zero_model_add_tensor(model, unit, &desc, &tensor));
    }
    return model;
}

static zero_memory_t plan_of(const zero_model_t *model, zero_optimizer_t optimizer, zero_dtype_t dtype, int n_ranks)
{
    zero_memory_t plan;
    zero_config_t config = zero_config_default();
    config.optimizer = optimizer;
    config.dtype = dtype;
    MUST(zero_plan(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, n_ranks, &plan));
    return plan;
}

/* 68 bytes for 64 elements of m, and of v; bf16 has 2 bytes of master weights beside. Sizes are whole pages. */
START_TEST(the_plan_has_2125_bytes_for_1000_elements)
{
    const int64_t n = 1 << 20;
    zero_model_t *model = model_of(n, false);
    for (int n_ranks = 1; n_ranks <= 4; n_ranks *= 2) {
        const uint64_t blocks = 2 * (uint64_t)n / 64 / (uint64_t)n_ranks, pages = (68 * blocks + 4095) / 4096;
        zero_memory_t fp32 = plan_of(model, ZERO_OPTIMIZER_ADAMW8BIT, ZERO_FP32, n_ranks);
        zero_memory_t bf16 = plan_of(model, ZERO_OPTIMIZER_ADAMW8BIT, ZERO_BF16, n_ranks);
        zero_memory_t adamw = plan_of(model, ZERO_OPTIMIZER_ADAMW, ZERO_BF16, n_ranks);
        ck_assert_uint_eq(fp32.bytes[ZERO_MEMORY_OPTIMIZER], 2 * 4096 * pages);
        ck_assert_uint_eq(bf16.bytes[ZERO_MEMORY_OPTIMIZER], 2 * 4096 * pages + 128 * blocks);
        ck_assert_uint_eq(adamw.bytes[ZERO_MEMORY_OPTIMIZER], 10 * 64 * blocks);
        for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; ++c)
            ck_assert(c == ZERO_MEMORY_OPTIMIZER || bf16.bytes[c] == adamw.bytes[c]);
    }
    zero_model_destroy(model);
}
END_TEST

/* Moments that are set get the nearest values, and keep them when they are set to what was read. */
START_TEST(moments_are_read_and_set_as_numbers)
{
    enum { N = 1003 };
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    zero_config_t config = zero_config_default();
    zero_model_t *model = model_of(N, false);
    float *x = numbers(N, false, 8), got[N], again[N], other[N];
    double want[N];
    bool unsure[N] = {false};
    config.optimizer = ZERO_OPTIMIZER_ADAMW8BIT;
    MUST(zero_comm_create(ZERO_COMM_AUTO, &comm));
    MUST(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    MUST(zero_engine_create(comm, device, model, &config, &engine));
    MUST(zero_init_parameters(engine));
    for (int array = ZERO_ARRAY_M; array <= ZERO_ARRAY_V; ++array) {
        const bool is_signed = array == ZERO_ARRAY_M;
        for (int i = 0; i < N; ++i)
            want[i] = (double)(x[i] = is_signed && i % 2 ? -x[i] : fabsf(x[i]));
        memset(unsure, 0, sizeof unsure);
        adam8_fp64_round(want, N, is_signed, unsure);
        MUST(zero_set_tensor(engine, 1, (zero_array_t)array, 0, x));
        MUST(zero_get_tensor(engine, 1, (zero_array_t)array, 0, got));
        for (int i = 0; i < N; ++i)
            ck_assert(unsure[i] || fabs((double)got[i] - want[i]) <= 4e-7 * fabs(want[i]));
        MUST(zero_set_tensor(engine, 1, (zero_array_t)array, 0, got));
        MUST(zero_get_tensor(engine, 1, (zero_array_t)array, 0, again));
        shard_assert_same_bits(again, got, sizeof got, "read", "again");
        MUST(zero_get_tensor(engine, 0, (zero_array_t)array, 0, other));
        for (int i = 0; i < N; ++i)
            ck_assert(other[i] == 0.0f);
    }
    free(x);
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
}
END_TEST

START_TEST(tensors_that_share_a_block_are_refused)
{
    zero_memory_t plan;
    zero_config_t config = zero_config_default();
    config.optimizer = ZERO_OPTIMIZER_ADAMW8BIT;
    for (int i = 0; i < 3; ++i) {
        zero_model_t *model = model_of(i == 1 ? 128 : 130, true);
        config.forward_only = i == 2; /* has no state */
        capture_begin();
        zero_status_t status = zero_plan(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 2, &plan);
        const char *said = capture_end();
        ck_assert_int_eq(status, i ? ZERO_OK : ZERO_ERROR_USAGE);
        ck_assert_msg(i || strstr(said, "adamw8bit: tensor b is packed behind 130 elements of its unit"), "%s", said);
        zero_model_destroy(model);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("adam8");
    TCase *tcase = tcase_create("adam8");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, the_codes_stand_for_the_published_values, 0, 2);
    tcase_add_loop_test(tcase, numbers_get_the_nearest_value, 0, 2);
    tcase_add_loop_test(tcase, decoded_numbers_are_encoded_to_the_same_bits, 0, 4);
    tcase_add_test(tcase, tables_hold_what_is_computed);
    tcase_add_loop_test(tcase, every_code_survives_with_every_scale, 0, 2);
    tcase_add_loop_test(tcase, every_build_has_the_same_codes, 0, 2);
    tcase_add_loop_test(tcase, instruction_sets_threads_and_slicing_give_the_same_bits, 0, 3);
    tcase_add_loop_test(tcase, segments_have_the_scalars_of_their_tensor, 0, 3);
    tcase_add_loop_test(tcase, a_skipped_step_writes_nothing, 0, 3);
    tcase_add_loop_test(tcase, numbers_are_those_of_the_formulas_in_fp64, 0, 3);
    tcase_add_test(tcase, the_plan_has_2125_bytes_for_1000_elements);
    tcase_add_test(tcase, moments_are_read_and_set_as_numbers);
    tcase_add_test(tcase, tensors_that_share_a_block_are_refused);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return support_main(suite());
}
