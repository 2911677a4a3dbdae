/* test_shard_cuda.c - the CUDA shard kernels give the CPU's bits, whatever the numbers (denormals, infinities, NaNs),
 * sizes, alignment and segments. The CPU kernels are the reference; tests/unit/kernels/test_adam.c and its neighbours
 * compare those with formulas. Whole arrays are compared, so that a write outside the requested range shows too.
 *
 *     test_shard_cuda [small]
 *
 * Prints a line "ok: claim" or "FAILED: claim" each. small leaves out the runs over 10^8 elements (compute-sanitizer
 * would take hours for them). Needs a GPU and only its driver: no Check, no MPI.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/shard.h"
#include "kernels/step_math.h"

#define LARGE ((size_t)100000000)
#define N_OF(array) (sizeof(array) / sizeof(array)[0])

static const zero_shard_kernels_t *cpu, *cuda;

/* What the tests themselves cannot do without. */
#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "test_shard_cuda: line %d: %s does not hold (CUDA: %s)\n", __LINE__, #condition,           \
                    cudaGetErrorString(cudaPeekAtLastError()));                                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Runs one function of both tables. */
#define ON_BOTH(function, cpu_args, cuda_args)                                                                         \
    do {                                                                                                               \
        REQUIRE(cpu->function cpu_args == ZERO_OK);                                                                    \
        REQUIRE(cuda->function cuda_args == ZERO_OK);                                                                  \
    } while (0)

/* ---- Numbers of every kind -----------------------------------------------------------------------------------------
 */

/* Number i of a stream (Steele, Lea, Flood: SplitMix, OOPSLA'14). */
static uint64_t random_at(uint64_t stream, uint64_t i)
{
    uint64_t x = (stream << 40) + (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Returns a float's bits: of 16, four are special, two lie half way between two fp16 or bf16 numbers, six are ordinary
 * (2^-40 to 2^8) and four are random bits. */
static uint32_t any_float_bits(uint64_t draw)
{
    static const uint32_t special[] = {0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000,
                                       0x7f800001, 0x7fc00000, 0x7fffffff, 0x7fc12345, 0x3f800000, 0x00012345};
    const uint32_t bits = (uint32_t)(draw >> 32), sign = bits & 0x80000000u;
    const unsigned kind = draw % 16;
    if (kind < 4)
        return special[(draw >> 8) % N_OF(special)] | sign;
    if (kind == 4)
        return (bits & ~0x1fffu) | 0x1000u;
    if (kind == 5)
        return (bits & ~0xffffu) | 0x8000u;
    if (kind < 12)
        return (bits & 0x807fffffu) | (uint32_t)(87 + (draw >> 8) % 48) << 23;
    return bits;
}

/* ---- The same array in host and device memory ----------------------------------------------------------------------
 */

typedef struct twin {
    char *host, *device;
    size_t n_bytes;
} twin_t;

static uint64_t last_stream;

static twin_t twin_of_any_floats(size_t n_bytes)
{
    const size_t n_words = n_bytes / 4 + 1;
    twin_t twin = {.host = malloc(n_words * 4), .n_bytes = n_bytes};
    REQUIRE(twin.host != NULL && cudaMalloc((void **)&twin.device, n_words * 4) == cudaSuccess);
    const uint64_t stream = ++last_stream;
    uint32_t *words = (uint32_t *)twin.host;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n_words; ++i)
        words[i] = any_float_bits(random_at(stream, i));
    REQUIRE(cudaMemcpy(twin.device, twin.host, n_words * 4, cudaMemcpyHostToDevice) == cudaSuccess);
    return twin;
}

static void twin_upload(const twin_t *twin)
{
    REQUIRE(cudaMemcpy(twin->device, twin->host, twin->n_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
}

static bool twin_is_same(const twin_t *twin, const char *what)
{
    char *device = malloc(twin->n_bytes + 1);
    REQUIRE(device != NULL);
    REQUIRE(cudaMemcpy(device, twin->device, twin->n_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    size_t at = 0;
    if (memcmp(device, twin->host, twin->n_bytes) == 0)
        at = twin->n_bytes;
    while (at < twin->n_bytes && device[at] == twin->host[at])
        ++at;
    free(device);
    if (at < twin->n_bytes)
        printf("%s: first difference in byte %zu of %zu\n", what, at, twin->n_bytes);
    return at == twin->n_bytes;
}

static void twin_free(twin_t *twin)
{
    free(twin->host);
    REQUIRE(cudaFree(twin->device) == cudaSuccess);
}

/* ---- Optimizers ----------------------------------------------------------------------------------------------------
 */

typedef enum optimizer { ADAM, SGD, NESTEROV, LION, N_OPTIMIZERS } optimizer_t;

static zero_status_t run_update(optimizer_t optimizer, const zero_shard_kernels_t *kernels, const zero_adam_t *args)
{
    if (optimizer == SGD)
        return kernels->sgd(args, NULL);
    if (optimizer == NESTEROV)
        return kernels->nesterov(args, NULL);
    if (optimizer == LION)
        return kernels->lion(args, NULL);
    return kernels->adam(args, NULL);
}

typedef struct shard {
    twin_t param, low, m, v, grad, segments, scalars, by_tensor;
    zero_dtype_t dtype, grad_dtype;
    size_t n_elems, n_segments;
} shard_t;

/* How segments lie: starts are multiples of `align`; param and grad are shifted against the state. */
typedef struct cut {
    size_t n_elems, align, max_segment, base; /* base: elements by which every array's own start is moved */
    uint64_t param_shift, grad_shift;
    zero_dtype_t grad_dtype;
} cut_t;

enum { MARGIN = 64 }; /* elements behind the last one, and room for shifts */
enum { N_TENSORS = 5 };

static shard_t shard_create(zero_dtype_t dtype, const cut_t *cut, zero_adam_scalars_t scalars)
{
    const size_t n = cut->n_elems + 2 * MARGIN;
    const size_t max_segments = 4 + 4 * cut->n_elems / cut->max_segment;
    shard_t s = {.dtype = dtype, .grad_dtype = cut->grad_dtype, .n_elems = cut->n_elems};
    s.param = twin_of_any_floats(n * zero_dtype_size(dtype));
    s.low = twin_of_any_floats(n * sizeof(float));
    s.m = twin_of_any_floats(n * sizeof(float));
    s.v = twin_of_any_floats(n * sizeof(float));
    s.grad = twin_of_any_floats(n * sizeof(float));
    s.segments = twin_of_any_floats(max_segments * sizeof(zero_adam_segment_t));
    s.scalars = twin_of_any_floats(sizeof scalars);
    memcpy(s.scalars.host, &scalars, sizeof scalars);
    twin_upload(&s.scalars);
    s.by_tensor = twin_of_any_floats(N_TENSORS * sizeof(zero_tensor_scalars_t));
    for (int t = 0; t < N_TENSORS; ++t) {
        const zero_tensor_rules_t rules = {.lr_scale = 0.5f * (float)t,
                                           .beta1 = 0.1f * (float)t,
                                           .beta2 = 0.9f,
                                           .eps = 1e-6f,
                                           .decay = 0.2f * (float)t};
        zero_tensor_scalars_decide(&rules, &scalars, &((zero_tensor_scalars_t *)s.by_tensor.host)[t]);
    }
    twin_upload(&s.by_tensor);
    /* AdamW's v is not negative: leave one in 16 so. */
    for (size_t i = 0; i < n; ++i)
        if (i % 16 != 0)
            ((float *)s.v.host)[i] = fabsf(((float *)s.v.host)[i]);
    twin_upload(&s.v);

    zero_adam_segment_t *segments = (zero_adam_segment_t *)s.segments.host;
    for (uint64_t at = cut->align, i = 0; at < cut->n_elems && s.n_segments < max_segments; ++i) {
        uint64_t length = random_at(99, i) % cut->max_segment; /* 0 among them */
        length = length < cut->n_elems - at ? length : cut->n_elems - at;
        segments[s.n_segments++] = (zero_adam_segment_t){.n_elems = length,
                                                         .param = at + cut->param_shift,
                                                         .state = at,
                                                         .grad = at + cut->grad_shift,
                                                         .decay = i % 3 == 0 ? 0.0f : 0.1f,
                                                         .tensor = (uint32_t)(i % N_TENSORS)};
        at = (at + length + i % 2 + cut->align - 1) / cut->align * cut->align;
    }
    twin_upload(&s.segments);
    return s;
}

static bool shard_is_same(const shard_t *s)
{
    bool same = twin_is_same(&s->param, "param");
    same = twin_is_same(&s->low, "low") && same;
    same = twin_is_same(&s->m, "m") && same;
    return twin_is_same(&s->v, "v") && same;
}

static void shard_free(shard_t *s)
{
    twin_t *const twins[] = {&s->param, &s->low, &s->m, &s->v, &s->grad, &s->segments, &s->scalars, &s->by_tensor};
    for (size_t i = 0; i < N_OF(twins); ++i)
        twin_free(twins[i]);
}

static void shard_update(const shard_t *s, optimizer_t optimizer, size_t base, bool by_tensor,
                         const zero_shard_kernels_t *kernels, size_t memory)
{
    char *const arrays[2][8] = {{s->param.host, s->low.host, s->m.host, s->v.host, s->grad.host, s->segments.host,
                                 s->scalars.host, s->by_tensor.host},
                                {s->param.device, s->low.device, s->m.device, s->v.device, s->grad.device,
                                 s->segments.device, s->scalars.device, s->by_tensor.device}};
    char *const *a = arrays[memory];
    const size_t low_size = s->dtype == ZERO_BF16 ? 2 : 4;
    const zero_adam_t args = {.param_dtype = s->dtype,
                              .param = a[0] + base * zero_dtype_size(s->dtype),
                              .master_lo = s->dtype == ZERO_FP32 ? NULL : a[1] + base * low_size,
                              .m = (float *)a[2] + base,
                              .v = (float *)a[3] + base,
                              .grad = a[4] + base * zero_dtype_size(s->grad_dtype),
                              .grad_dtype = s->grad_dtype,
                              .segments = (const zero_adam_segment_t *)a[5],
                              .n_segments = s->n_segments,
                              .state_begin = ((const zero_adam_segment_t *)s->segments.host)[0].state,
                              .state_end = s->n_elems,
                              .scalars = (const zero_adam_scalars_t *)a[6],
                              .by_tensor = by_tensor ? (const zero_tensor_scalars_t *)a[7] : NULL};
    REQUIRE(run_update(optimizer, kernels, &args) == ZERO_OK);
}

static zero_adam_scalars_t usual_scalars(void)
{
    zero_adam_scalars_t s;
    zero_adam_scalars_decide(&s, 3e-4f, 0.9f, 0.95f, 1e-8f, 2.0f, 1.0f, 1.0f, 7);
    return s;
}

/* The reference must have changed m, a good part of it to ordinary numbers, or the comparison proves little. */
static bool is_telling(const float *before, const float *after, size_t n)
{
    size_t n_telling = 0;
    for (size_t i = 0; i < n; ++i)
        n_telling += isfinite(after[i]) && memcmp(&before[i], &after[i], sizeof after[i]) != 0;
    if (n_telling < n / 4)
        printf("only %zu of %zu elements changed to finite numbers\n", n_telling, n);
    return n_telling >= n / 4;
}

static bool check_update(optimizer_t optimizer, zero_dtype_t dtype, const cut_t *cut, bool by_tensor)
{
    shard_t s = shard_create(dtype, cut, usual_scalars());
    float *m_before = malloc(s.m.n_bytes);
    REQUIRE(m_before != NULL && s.n_segments > 0);
    memcpy(m_before, s.m.host, s.m.n_bytes);
    shard_update(&s, optimizer, cut->base, by_tensor, cpu, 0);
    shard_update(&s, optimizer, cut->base, by_tensor, cuda, 1);
    bool same = shard_is_same(&s);
    if (cut->n_elems >= 100000)
        same = is_telling(m_before, (const float *)s.m.host, cut->n_elems) && same;
    free(m_before);
    shard_free(&s);
    return same;
}

static bool adam_large(void)
{
    const cut_t cut = {.n_elems = LARGE, .align = 64, .max_segment = 400000, .param_shift = 64};
    bool same = true;
    for (zero_dtype_t dtype = ZERO_FP32; dtype <= ZERO_FP16; ++dtype)
        same = check_update(ADAM, dtype, &cut, false) && same;
    return same;
}

static bool is_same_of_any_segments(optimizer_t optimizer, bool by_tensor)
{
    static const cut_t cuts[] = {
        {.n_elems = 300007, .align = 64, .max_segment = 5000, .grad_shift = 64},
        {.n_elems = 100003, .align = 1, .max_segment = 400},                     /* groups cut by segments' ends */
        {.n_elems = 30011, .align = 1, .max_segment = 3, .param_shift = 1},      /* several segments a group */
        {.n_elems = 100003, .align = 4, .max_segment = 3000, .grad_shift = 2},   /* state aligned, gradients not */
        {.n_elems = 100003, .align = 64, .max_segment = 3000, .param_shift = 3}, /* parameters not */
        {.n_elems = 100003, .align = 64, .max_segment = 3000, .base = 1},        /* nothing aligned */
        {.n_elems = 5, .align = 1, .max_segment = 5},
        {.n_elems = 1025, .align = 1024, .max_segment = 2},
    };
    bool same = true;
    for (size_t c = 0; c < 2 * N_OF(cuts); ++c) {
        cut_t cut = cuts[c / 2];
        cut.grad_dtype = c % 2 ? ZERO_BF16 : ZERO_FP32;
        for (zero_dtype_t dtype = ZERO_FP32; dtype <= ZERO_FP16; ++dtype)
            if (!check_update(optimizer, dtype, &cut, by_tensor)) {
                printf("... in cut %zu, %s, gradients in %s\n", c / 2, zero_dtype_name(dtype),
                       zero_dtype_name(cut.grad_dtype));
                same = false;
            }
    }
    return same;
}

static bool adam_of_any_segments(void)
{
    return is_same_of_any_segments(ADAM, false);
}

static bool others_of_any_segments(void)
{
    bool same = true;
    for (optimizer_t optimizer = SGD; optimizer < N_OPTIMIZERS; ++optimizer)
        if (!is_same_of_any_segments(optimizer, false)) {
            printf("... of %s\n", optimizer == SGD ? "SGD" : optimizer == NESTEROV ? "Nesterov's SGD" : "Lion");
            same = false;
        }
    return same;
}

static bool updates_by_tensor(void)
{
    bool same = true;
    for (optimizer_t optimizer = ADAM; optimizer < N_OPTIMIZERS; ++optimizer)
        same = is_same_of_any_segments(optimizer, true) && same;
    return same;
}

static bool updates_skip(void)
{
    const cut_t cut = {.n_elems = 10007, .align = 64, .max_segment = 1000};
    zero_adam_scalars_t scalars = usual_scalars();
    scalars.skip = 1;
    shard_t s = shard_create(ZERO_BF16, &cut, scalars);
    for (optimizer_t optimizer = ADAM; optimizer < N_OPTIMIZERS; ++optimizer)
        shard_update(&s, optimizer, 0, false, cuda, 1);
    bool same = shard_is_same(&s);
    shard_free(&s);
    return same;
}

/* ---- Sums ----------------------------------------------------------------------------------------------------------
 */

typedef struct sum {
    zero_dtype_t dtype;
    int n_slices;
    size_t n_elems, offset; /* offset: of all arrays, in elements from an aligned address */
    bool accumulate, with_norm, is_rounded;
    zero_dtype_t out_dtype;
} sum_t;

static bool check_sum(const sum_t *sum)
{
    enum { MAX_SLICES = 256 };
    const size_t elem = zero_dtype_size(sum->dtype);
    static twin_t slices[MAX_SLICES];
    const void *host[MAX_SLICES], *device[MAX_SLICES];
    for (int r = 0; r < sum->n_slices; ++r) {
        slices[r] = twin_of_any_floats((sum->n_elems + sum->offset) * elem);
        host[r] = slices[r].host + sum->offset * elem;
        device[r] = slices[r].device + sum->offset * elem;
    }
    twin_t out = twin_of_any_floats((sum->n_elems + sum->offset + MARGIN) * sizeof(float));
    twin_t norm = twin_of_any_floats(sizeof(zero_norm_t)); /* what is there is added to */
    twin_t total = twin_of_any_floats(sizeof(zero_contribution_t));
    const size_t out_offset = sum->offset * zero_dtype_size(sum->out_dtype);
    void *host_out = out.host + out_offset, *device_out = out.device + out_offset;
    zero_norm_t *host_norm = sum->with_norm ? (zero_norm_t *)norm.host : NULL;
    zero_norm_t *device_norm = sum->with_norm ? (zero_norm_t *)norm.device : NULL;
    zero_sum_t on_host = {.out = host_out,
                          .out_dtype = sum->out_dtype,
                          .is_rounded = sum->is_rounded,
                          .accumulates = sum->accumulate,
                          .slices = host,
                          .n_slices = sum->n_slices,
                          .dtype = sum->dtype,
                          .n_elems = sum->n_elems,
                          .norm = host_norm};
    zero_sum_t on_device = on_host;
    on_device.out = device_out;
    on_device.slices = device;
    on_device.norm = device_norm;
    ON_BOTH(sum_slices, (&on_host, NULL), (&on_device, NULL));
    const zero_agreed_t agreed = {.calls = 0x123456789abcdef0u, .lr = 3e-4f};
    bool same = twin_is_same(&out, "out");
    same = twin_is_same(&norm, "norm") && same;
    ON_BOTH(contribute, ((zero_norm_t *)norm.host, &agreed, (zero_contribution_t *)total.host, NULL),
            ((zero_norm_t *)norm.device, &agreed, (zero_contribution_t *)total.device, NULL));
    same = twin_is_same(&norm, "norm that was taken") && same;
    same = twin_is_same(&total, "contribution") && same;
    for (int r = 0; r < sum->n_slices; ++r)
        twin_free(&slices[r]);
    twin_free(&out);
    twin_free(&norm);
    twin_free(&total);
    if (!same)
        printf("... of %d slices of %zu %s, offset %zu, accumulate %d\n", sum->n_slices, sum->n_elems,
               zero_dtype_name(sum->dtype), sum->offset, sum->accumulate);
    return same;
}

static bool sums_large(void)
{
    bool same = true;
    for (zero_dtype_t dtype = ZERO_FP32; dtype <= ZERO_FP16; ++dtype)
        same = check_sum(&(sum_t){dtype, 4, LARGE, 0, true, true, false, ZERO_FP32}) && same;
    return same;
}

static bool sums_of_any_size(void)
{
    static const size_t sizes[] = {1, 3, 1023, 1025, 8191, 8192, 8193, 5 * 8192 + 77, 100003};
    static const int counts[] = {1, 2, 3, 8, 17};
    bool same = true;
    for (size_t i = 0; i < N_OF(sizes) * N_OF(counts) * 3 * 2; ++i) {
        sum_t sum = {.n_elems = sizes[i % 9], .n_slices = counts[i / 9 % 5], .dtype = (zero_dtype_t)(i / 45 % 3)};
        sum.offset = i / 135 % 2;
        for (int form = 0; form < 4; ++form) {
            sum.accumulate = form & 1;
            sum.with_norm = form & 2;
            same = check_sum(&sum) && same;
        }
        sum.accumulate = false;
        sum.out_dtype = ZERO_BF16;
        same = check_sum(&sum) && same;
        sum.out_dtype = ZERO_FP32;
        sum.is_rounded = sum.accumulate = true;
        same = check_sum(&sum) && same;
        sum.is_rounded = false;
    }
    return check_sum(&(sum_t){ZERO_BF16, 256, 20001, 0, false, true, false, ZERO_FP32}) && same;
}

static bool reduced_in_place(void)
{
    const size_t n = 50021;
    twin_t a = twin_of_any_floats(n * 4), b = twin_of_any_floats(n * 4);
    const void *host[] = {a.host, b.host}, *device[] = {a.device, b.device};
    const zero_sum_t on_host = {.out = b.host, .slices = host, .n_slices = 2, .n_elems = n};
    const zero_sum_t on_device = {.out = b.device, .slices = device, .n_slices = 2, .n_elems = n};
    ON_BOTH(sum_slices, (&on_host, NULL), (&on_device, NULL));
    bool same = twin_is_same(&b, "sum in place of the second slice");
    twin_free(&a);
    twin_free(&b);
    return same;
}

static void count_lines(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)level;
    (void)rank;
    *(int *)user += strstr(line, "257") != NULL;
}

static bool too_many_slices_are_refused(void)
{
    const void *slices[257] = {NULL};
    int n_lines = 0;
    zero_log_set(ZERO_LOG_ERROR, count_lines, &n_lines);
    zero_status_t status = cuda->sum_slices(&(zero_sum_t){.slices = slices, .n_slices = 257, .n_elems = 1}, NULL);
    zero_log_set(ZERO_LOG_WARNING, NULL, NULL);
    return status == ZERO_ERROR_UNSUPPORTED && n_lines == 1;
}

/* Compares sums of squares of n floats from `offset`, taken as the engine takes them if the network has summed the
 * gradients: a sum of one slice, in place. `ordinary` numbers are for sums that one NaN would hide. */
static bool check_squares(size_t n, size_t offset, bool ordinary)
{
    twin_t x = twin_of_any_floats((n + offset) * sizeof(float));
    uint32_t *bits = (uint32_t *)x.host;
    for (size_t i = 0; ordinary && i < n + offset; ++i)
        bits[i] = (bits[i] & 0x807fffffu) | (uint32_t)(97 + bits[i] % 40) << 23;
    twin_upload(&x);
    const zero_norm_t none = {{0}};
    twin_t norm = twin_of_any_floats(sizeof none);
    memcpy(norm.host, &none, sizeof none);
    twin_upload(&norm);
    float *host = (float *)x.host + offset, *device = (float *)x.device + offset;
    const void *host_slice[] = {host}, *device_slice[] = {device};
    const zero_sum_t on_host = {
        .out = host, .slices = host_slice, .n_slices = 1, .n_elems = n, .norm = (zero_norm_t *)norm.host};
    const zero_sum_t on_device = {
        .out = device, .slices = device_slice, .n_slices = 1, .n_elems = n, .norm = (zero_norm_t *)norm.device};
    ON_BOTH(sum_slices, (&on_host, NULL), (&on_device, NULL));
    bool same = twin_is_same(&norm, "norm");
    same = twin_is_same(&x, "slice in place") && same;
    const double sum = zero_norm_value((zero_norm_t *)norm.host);
    if (ordinary && n > 0)
        same = isfinite(sum) && sum > 0.0 && same;
    twin_free(&x);
    twin_free(&norm);
    return same;
}

static bool squares_large(void)
{
    bool same = check_squares(LARGE, 0, true);
    return check_squares(LARGE, 0, false) && same;
}

static bool squares_of_any_size(void)
{
    static const size_t sizes[] = {0, 1, 2, 1000, 8191, 8192, 8193, 257 * 8192 + 1, 3000003};
    bool same = true;
    for (size_t i = 0; i < N_OF(sizes) * 4; ++i)
        same = check_squares(sizes[i / 4], i % 2, i % 4 < 2) && same;
    return same;
}

/* ---- Other forms ---------------------------------------------------------------------------------------------------
 */

static bool check_cast(zero_dtype_t to, zero_dtype_t from, size_t n, size_t offset, bool all_halves)
{
    const size_t to_size = zero_dtype_size(to), from_size = zero_dtype_size(from);
    twin_t src = twin_of_any_floats((n + offset) * from_size);
    for (size_t i = 0; all_halves && i < n; ++i)
        ((uint16_t *)src.host)[offset + i] = (uint16_t)i;
    twin_upload(&src);
    twin_t dst = twin_of_any_floats((n + offset + MARGIN) * to_size);
    ON_BOTH(cast, (dst.host + offset * to_size, to, src.host + offset * from_size, from, n, NULL),
            (dst.device + offset * to_size, to, src.device + offset * from_size, from, n, NULL));
    bool same = twin_is_same(&dst, "cast");
    if (!same)
        printf("... of %zu from %s to %s, offset %zu\n", n, zero_dtype_name(from), zero_dtype_name(to), offset);
    twin_free(&src);
    twin_free(&dst);
    return same;
}

/* Every pair of dtypes over these sizes. */
static bool check_casts(const size_t *sizes, size_t n_sizes, size_t offset)
{
    bool same = true;
    for (zero_dtype_t to = ZERO_FP32; to <= ZERO_FP16; ++to)
        for (zero_dtype_t from = ZERO_FP32; from <= ZERO_FP16; ++from)
            for (size_t i = 0; i < n_sizes; ++i)
                same = check_cast(to, from, sizes[i], offset, from != ZERO_FP32 && sizes[i] == 65536) && same;
    return same;
}

static bool casts_large(void)
{
    static const size_t sizes[] = {LARGE};
    return check_casts(sizes, 1, 0);
}

static bool casts_of_any_size(void)
{
    static const size_t sizes[] = {0, 1, 5, 1023, 1024, 1025, 65536, 100003};
    bool same = check_casts(sizes, N_OF(sizes), 0);
    return check_casts(sizes, N_OF(sizes), 1) && same;
}

static bool check_split(zero_dtype_t dtype, size_t n, size_t offset)
{
    const size_t size = zero_dtype_size(dtype), low_size = dtype == ZERO_BF16 ? 2 : 4;
    twin_t master = twin_of_any_floats((n + offset) * sizeof(float)), back = twin_of_any_floats(master.n_bytes);
    twin_t param = twin_of_any_floats((n + offset + MARGIN) * size);
    twin_t low = twin_of_any_floats((n + offset + MARGIN) * low_size);
    void *host_low = dtype == ZERO_FP32 ? NULL : low.host + offset * low_size;
    void *device_low = dtype == ZERO_FP32 ? NULL : low.device + offset * low_size;
    char *host_param = param.host + offset * size, *device_param = param.device + offset * size;
    ON_BOTH(split_master, (host_param, host_low, dtype, (float *)master.host + offset, n, NULL),
            (device_param, device_low, dtype, (float *)master.device + offset, n, NULL));
    ON_BOTH(join_master, ((float *)back.host + offset, host_param, host_low, dtype, n, NULL),
            ((float *)back.device + offset, device_param, device_low, dtype, n, NULL));
    bool same = twin_is_same(&param, "param");
    same = twin_is_same(&low, "low") && same;
    same = twin_is_same(&back, "joined") && same;
    same = memcmp(back.host + offset * 4, master.host + offset * 4, n * 4) == 0 && same;
    twin_free(&master);
    twin_free(&back);
    twin_free(&param);
    twin_free(&low);
    return same;
}

static bool splits_large(void)
{
    bool same = true;
    for (zero_dtype_t dtype = ZERO_FP32; dtype <= ZERO_FP16; ++dtype)
        same = check_split(dtype, LARGE, 0) && same;
    return same;
}

static bool splits_of_any_size(void)
{
    static const size_t sizes[] = {0, 1, 255, 257, 100003};
    bool same = true;
    for (zero_dtype_t dtype = ZERO_FP32; dtype <= ZERO_FP16; ++dtype)
        for (size_t i = 0; i < N_OF(sizes) * 2; ++i)
            same = check_split(dtype, sizes[i / 2], i % 2) && same;
    return same;
}

/* ---- Initial values ------------------------------------------------------------------------------------------------
 */

static bool check_fill(size_t n, uint64_t first, size_t offset)
{
    twin_t x = twin_of_any_floats((n + offset + MARGIN) * sizeof(float));
    const uint64_t seed = 0x123456789abcdefu + n, key = 0xfedcba9876543210u;
    ON_BOTH(fill_normal, ((float *)x.host + offset, n, seed, key, first, 0.02f, NULL),
            ((float *)x.device + offset, n, seed, key, first, 0.02f, NULL));
    bool same = twin_is_same(&x, "normal numbers");
    if (!same)
        printf("... %zu from %llu, offset %zu\n", n, (unsigned long long)first, offset);
    twin_free(&x);
    return same;
}

static bool fills_large(void)
{
    return check_fill(LARGE, 3, 0) && check_fill(LARGE, ((uint64_t)1 << 34) - LARGE / 2, 0);
}

static bool fills_of_any_size(void)
{
    static const size_t sizes[] = {0, 1, 2, 3, 4, 5, 1023, 1024, 100003};
    static const uint64_t firsts[] = {0, 1, 2, 3, 4, 1022, ((uint64_t)1 << 34) - 3};
    bool same = true;
    for (size_t i = 0; i < N_OF(sizes) * N_OF(firsts) * 2; ++i)
        same = check_fill(sizes[i / 2 % N_OF(sizes)], firsts[i / 2 / N_OF(sizes)], i % 2) && same;
    return same;
}

/* ---- The end of a step --------------------------------------------------------------------------------------------
 */

/* Returns words of all sizes, as after many additions. */
static zero_norm_t random_norm(bool finite)
{
    static uint64_t n_made;
    zero_norm_t norm = {{0}};
    for (int i = 0; i < ZERO_NORM_DIGITS; ++i, ++n_made)
        norm.words[i] = random_at(7, 2 * n_made) >> random_at(7, 2 * n_made + 1) % 64;
    norm.words[ZERO_NORM_DIGITS] = !finite;
    return norm;
}

/* odd: the rank with another learning rate or, if negative, with other calls; 0: none. */
static bool check_decision(int n_ranks, int odd, bool finite)
{
    const zero_step_rules_t rules = {.beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .eps = 1e-8f,
                                     .grad_clip = 1.0f,
                                     .dynamic_loss_scale = true,
                                     .loss_scale_window = 5,
                                     .loss_scale_hysteresis = 1};
    const zero_step_state_t before = {.adam_step = 7, .loss_scale = 1024.0f, .good_steps = 4};
    twin_t contributions = twin_of_any_floats((size_t)n_ranks * sizeof(zero_contribution_t));
    twin_t state = twin_of_any_floats(sizeof before), scalars = twin_of_any_floats(sizeof(zero_adam_scalars_t));
    twin_t outcome = twin_of_any_floats(sizeof(zero_step_outcome_t));
    zero_contribution_t *of_rank = (zero_contribution_t *)contributions.host;
    for (int r = 0; r < n_ranks; ++r)
        of_rank[r] = (zero_contribution_t){.norm = random_norm(finite || r != n_ranks / 2),
                                           .loss = 0.1 * r,
                                           .calls = 0x123456789abcdef0u + (r > 0 && r == -odd),
                                           .lr = r > 0 && r == odd ? 0.5f : 3e-4f,
                                           .notice = (uint32_t)(r * 7 % 5)};
    memcpy(state.host, &before, sizeof before);
    twin_upload(&contributions);
    twin_upload(&state);
    ON_BOTH(decide_step,
            (&rules, 3e-4f, of_rank, n_ranks, (zero_step_state_t *)state.host, (zero_adam_scalars_t *)scalars.host,
             (zero_step_outcome_t *)outcome.host, NULL),
            (&rules, 3e-4f, (zero_contribution_t *)contributions.device, n_ranks, (zero_step_state_t *)state.device,
             (zero_adam_scalars_t *)scalars.device, (zero_step_outcome_t *)outcome.device, NULL));
    bool same = twin_is_same(&state, "state") && twin_is_same(&scalars, "scalars") && twin_is_same(&outcome, "outcome");
    const zero_step_outcome_t *decided = (zero_step_outcome_t *)outcome.host;
    same = decided->odd_rank == (uint32_t)abs(odd) && decided->odd_lr == (odd > 0) && same;
    same = (((zero_adam_scalars_t *)scalars.host)->skip != 0) == (odd != 0 || !finite) && same;
    same = (memcmp(state.host, &before, sizeof before) == 0) == (odd != 0) && same;
    twin_t *const twins[] = {&contributions, &state, &scalars, &outcome};
    for (size_t i = 0; i < N_OF(twins); ++i)
        twin_free(twins[i]);
    if (!same)
        printf("... of %d ranks, odd %d, finite %d\n", n_ranks, odd, finite);
    return same;
}

/* More tensors than a block has threads. */
static bool tensors_scalars(void)
{
    enum { N = 1001 };
    const zero_adam_scalars_t step = usual_scalars();
    twin_t rules = twin_of_any_floats(N * sizeof(zero_tensor_rules_t));
    twin_t scalars = twin_of_any_floats(sizeof step);
    twin_t by_tensor = twin_of_any_floats((N + 1) * sizeof(zero_tensor_scalars_t));
    for (int t = 0; t < N; ++t)
        ((zero_tensor_rules_t *)rules.host)[t] = (zero_tensor_rules_t){.lr_scale = 0.01f * (float)t,
                                                                       .beta1 = (float)(t % 10) / 10.0f,
                                                                       .beta2 = (float)(t % 17) / 17.0f,
                                                                       .eps = 1e-8f * (float)(1 + t),
                                                                       .decay = 0.1f * (float)(t % 3)};
    memcpy(scalars.host, &step, sizeof step);
    twin_t *const twins[] = {&rules, &scalars, &by_tensor};
    for (size_t i = 0; i < N_OF(twins); ++i)
        twin_upload(twins[i]);
    ON_BOTH(tensor_scalars,
            ((zero_tensor_rules_t *)rules.host, N, (zero_adam_scalars_t *)scalars.host,
             (zero_tensor_scalars_t *)by_tensor.host, NULL),
            ((zero_tensor_rules_t *)rules.device, N, (zero_adam_scalars_t *)scalars.device,
             (zero_tensor_scalars_t *)by_tensor.device, NULL));
    bool same = twin_is_same(&by_tensor, "scalars of tensors");
    for (size_t i = 0; i < N_OF(twins); ++i)
        twin_free(twins[i]);
    return same;
}

/* Of a unit in backward, whose counts are every third word: all finite, a rank's are not, stopped before. */
static bool unit_decisions(void)
{
    enum { N_RANKS = 5, STRIDE = 3 };
    const zero_step_rules_t rules = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
    bool same = true;
    for (uint32_t i = 0; i < 8; ++i) {
        twin_t counts = twin_of_any_floats(N_RANKS * STRIDE * sizeof(uint64_t));
        twin_t state = twin_of_any_floats(sizeof(zero_step_state_t));
        twin_t scalars = twin_of_any_floats(sizeof(zero_adam_scalars_t));
        for (int r = 0; r < N_RANKS; ++r)
            ((uint64_t *)counts.host)[r * STRIDE] = i % 2 && r == 3;
        const zero_step_state_t before = {.adam_step = i, .loss_scale = 1.0f, .stopped_unit = i / 4 * 9};
        memcpy(state.host, &before, sizeof before);
        twin_upload(&counts);
        twin_upload(&state);
        ON_BOTH(decide_unit,
                (&rules, 3e-4f, (uint64_t *)counts.host, STRIDE, N_RANKS, i, (zero_step_state_t *)state.host,
                 (zero_adam_scalars_t *)scalars.host, NULL),
                (&rules, 3e-4f, (uint64_t *)counts.device, STRIDE, N_RANKS, i, (zero_step_state_t *)state.device,
                 (zero_adam_scalars_t *)scalars.device, NULL));
        const zero_adam_scalars_t *decided = (zero_adam_scalars_t *)scalars.host;
        same = twin_is_same(&state, "state") && twin_is_same(&scalars, "scalars of a unit") && same;
        same = decided->skip == (i % 2 || i / 4) && decided->adam_step == i + 1 && same;
        twin_free(&counts);
        twin_free(&state);
        twin_free(&scalars);
    }
    return same;
}

static bool decisions(void)
{
    static const int odds[] = {0, 1, -1, 3, -3};
    bool same = true;
    for (size_t i = 0; i < N_OF(odds) * 2; ++i)
        same = check_decision(5, odds[i / 2], i % 2 == 0) && same;
    return check_decision(1, 0, true) && same;
}

/* ---- Gradients that were not written --------------------------------------------------------------------------------
 */

/* All of it is poisoned, and then every third element and the last written over, with any bits. */
static bool check_poison(zero_dtype_t dtype, size_t n, size_t offset)
{
    const size_t size = zero_dtype_size(dtype);
    twin_t data = twin_of_any_floats((n + offset + MARGIN) * size), found = twin_of_any_floats(sizeof(uint64_t));
    char *host = data.host + offset * size, *device = data.device + offset * size;
    ON_BOTH(count_poison, (host, dtype, n, (uint64_t *)found.host, NULL),
            (device, dtype, n, (uint64_t *)found.device, NULL));
    size_t n_before = 0; /* any bits may be these */
    for (size_t i = 0; i < n; ++i)
        n_before += memcmp(host + i * size, "\xd5\xff\xd5\xff", size) == 0;
    bool same = twin_is_same(&found, "few") && *(uint64_t *)found.host == n_before;
    ON_BOTH(poison, (host, dtype, n, NULL), (device, dtype, n, NULL));
    same = twin_is_same(&data, "poison") && same;
    ON_BOTH(count_poison, (host, dtype, n, (uint64_t *)found.host, NULL),
            (device, dtype, n, (uint64_t *)found.device, NULL));
    same = twin_is_same(&found, "all") && *(uint64_t *)found.host == n && same;
    size_t n_left = n;
    for (size_t i = 0; i < n; ++i)
        if (i % 3 == 0 || i == n - 1) {
            memset(host + i * size, (int)(random_at(31, i) % 200), size); /* not 0xd5 */
            n_left--;
        }
    twin_upload(&data);
    ON_BOTH(count_poison, (host, dtype, n, (uint64_t *)found.host, NULL),
            (device, dtype, n, (uint64_t *)found.device, NULL));
    same = twin_is_same(&found, "some") && *(uint64_t *)found.host == n_left && same;
    twin_free(&data);
    twin_free(&found);
    if (!same)
        printf("... of %zu %s, offset %zu\n", n, zero_dtype_name(dtype), offset);
    return same;
}

static bool poison_of_any_size(void)
{
    static const size_t sizes[] = {0, 1, 2, 255, 256, 257, 100003};
    bool same = true;
    for (zero_dtype_t dtype = ZERO_FP32; dtype <= ZERO_FP16; ++dtype)
        for (size_t i = 0; i < N_OF(sizes) * 2; ++i)
            same = check_poison(dtype, sizes[i / 2], i % 2) && same;
    return same;
}

static bool poison_large(void)
{
    return check_poison(ZERO_BF16, LARGE, 0) && check_poison(ZERO_FP32, LARGE, 0);
}

/* ---- Parameters in fp8 ---------------------------------------------------------------------------------------------
 */

enum { MAX_MATRICES = 6, N_CASTING = 3 };

/* Writes what `rank` holds of the matrices; returns its parts, without arrays. */
static zero_fp8_parts_t cut_matrices(const size_t *sizes, int n_matrices, size_t shard, size_t rank,
                                     zero_fp8_segment_t *segments)
{
    zero_fp8_parts_t parts = {.n_matrices = (uint32_t)n_matrices};
    size_t begin = 0;
    for (int m = 0; m < n_matrices; begin += sizes[m++]) {
        size_t from = begin > rank * shard ? begin : rank * shard, to = begin + sizes[m];
        to = to < (rank + 1) * shard ? to : (rank + 1) * shard;
        if (from >= to)
            continue;
        segments[parts.n_segments++] = (zero_fp8_segment_t){from, from, to - from, (uint32_t)m};
        parts.largest = to - from > parts.largest ? to - from : parts.largest;
    }
    return parts;
}

/* Numbers from 2^-27 to 2^13 in place of any in the first half: a matrix with a NaN has scale 1. */
static twin_t some_parameters(size_t n)
{
    twin_t param = twin_of_any_floats((n + MARGIN) * sizeof(uint16_t));
    uint16_t *halves = (void *)param.host;
    for (size_t i = 0; i < n / 2; ++i)
        halves[i] = (uint16_t)((halves[i] & 0x807fu) | (100 + random_at(43, i) % 40) << 7);
    twin_upload(&param);
    return param;
}

/* Matrices cut among ranks: maxima, scales and bytes of each rank in turn. param_offset, byte_offset: elements by which
 * the arrays' own starts are moved. */
static bool check_fp8(const size_t *sizes, int n_matrices, size_t param_offset, size_t byte_offset)
{
    size_t n = 0;
    for (int m = 0; m < n_matrices; ++m)
        n += sizes[m];
    twin_t param = some_parameters(n), bytes = twin_of_any_floats(n + MARGIN);
    twin_t absmaxes = twin_of_any_floats(sizeof(uint32_t) * N_CASTING * MAX_MATRICES);
    twin_t scales = twin_of_any_floats(sizeof(zero_fp8_scales_t) * MAX_MATRICES);
    twin_t segments = twin_of_any_floats(sizeof(zero_fp8_segment_t) * N_CASTING * MAX_MATRICES);
    zero_fp8_parts_t on_cpu[N_CASTING], on_cuda[N_CASTING];
    for (size_t rank = 0; rank < N_CASTING; ++rank) {
        zero_fp8_segment_t *host = (zero_fp8_segment_t *)(void *)segments.host + rank * MAX_MATRICES;
        on_cpu[rank] = cut_matrices(sizes, n_matrices, (n + N_CASTING - 1) / N_CASTING, rank, host);
        on_cuda[rank] = on_cpu[rank];
        on_cpu[rank].segments = host;
        on_cpu[rank].param = (uint16_t *)(void *)param.host + param_offset;
        on_cpu[rank].bytes = (uint8_t *)bytes.host + byte_offset;
        on_cuda[rank].segments = (zero_fp8_segment_t *)(void *)segments.device + rank * MAX_MATRICES;
        on_cuda[rank].param = (uint16_t *)(void *)param.device + param_offset;
        on_cuda[rank].bytes = (uint8_t *)bytes.device + byte_offset;
    }
    twin_upload(&segments);
    uint32_t *host_maxima = (void *)absmaxes.host, *cuda_maxima = (void *)absmaxes.device;
    zero_fp8_scales_t *host_scales = (void *)scales.host, *cuda_scales = (void *)scales.device;
    for (int rank = 0; rank < N_CASTING; ++rank)
        ON_BOTH(fp8_absmax, (&on_cpu[rank], host_maxima + rank * n_matrices, NULL),
                (&on_cuda[rank], cuda_maxima + rank * n_matrices, NULL));
    ON_BOTH(fp8_scale, (host_scales, host_maxima, N_CASTING, (uint32_t)n_matrices, NULL),
            (cuda_scales, cuda_maxima, N_CASTING, (uint32_t)n_matrices, NULL));
    for (int rank = 0; rank < N_CASTING; ++rank)
        ON_BOTH(fp8_cast, (&on_cpu[rank], host_scales, NULL), (&on_cuda[rank], cuda_scales, NULL));
    bool same = twin_is_same(&absmaxes, "maxima");
    same = twin_is_same(&scales, "scales") && same;
    same = twin_is_same(&bytes, "bytes") && same;
    twin_t *const twins[] = {&param, &bytes, &absmaxes, &scales, &segments};
    for (size_t i = 0; i < N_OF(twins); ++i)
        twin_free(twins[i]);
    if (!same)
        printf("... of %zu elements, offsets %zu and %zu\n", n, param_offset, byte_offset);
    return same;
}

static bool fp8_of_any_size(void)
{
    static const size_t sizes[] = {8192, 1, 100003, 64, 24576, 7};
    bool same = check_fp8(sizes, N_OF(sizes), 0, 0);
    same = check_fp8(sizes + 1, 1, 0, 0) && same;
    return check_fp8(sizes, N_OF(sizes), 1, 0) && check_fp8(sizes, N_OF(sizes), 4, 3) && same;
}

static bool fp8_large(void)
{
    static const size_t sizes[] = {LARGE / 2, LARGE / 4, LARGE / 4};
    return check_fp8(sizes, N_OF(sizes), 0, 0);
}

/* ---- All of them ---------------------------------------------------------------------------------------------------
 */

/* What libzero's device does when there is no memory: the next kernel is not to blame. */
static bool a_failed_allocation_fails_no_later_kernel(void)
{
    zero_comm_t *comm = NULL;
    zero_device_t *device = NULL;
    zero_config_t config = zero_config_default();
    zero_model_t *model = NULL;
    zero_engine_t *engine = NULL;
    zero_unit_t unit;
    zero_tensor_t tensor;
    void *data;
    const zero_tensor_desc_t desc = {
        .name = "w", .n_dims = 1, .shape = {1000}, .init = ZERO_INIT_NORMAL, .init_std = 1.0f};
    bool holds = zero_comm_create(ZERO_COMM_AUTO, &comm) == ZERO_OK &&
                 zero_device_create(ZERO_DEVICE_CUDA, comm, &device) == ZERO_OK &&
                 zero_model_create(&model) == ZERO_OK && zero_model_add_unit(model, "u", &unit) == ZERO_OK &&
                 zero_model_add_tensor(model, unit, &desc, &tensor) == ZERO_OK &&
                 zero_engine_create(comm, device, model, &config, &engine) == ZERO_OK;
    holds = holds && zero_alloc(engine, ZERO_MEMORY_DATA, (size_t)1 << 45, &data) != ZERO_OK;
    holds = holds && cudaPeekAtLastError() == cudaSuccess && zero_init_parameters(engine) == ZERO_OK;
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return holds;
}

static const struct {
    const char *claim;
    bool (*check)(void);
    bool is_large;
} claims[] = {
    {"a failed allocation fails no later kernel", a_failed_allocation_fails_no_later_kernel, false},
    {"AdamW: the CPU's bits over segments of any size, start and alignment", adam_of_any_segments, false},
    {"SGD, Nesterov's and Lion: likewise", others_of_any_segments, false},
    {"optimizers: a skipped step writes nothing", updates_skip, false},
    {"slices: the CPU's sums and norms at any size, count and alignment", sums_of_any_size, false},
    {"slices: out may be one of them", reduced_in_place, false},
    {"slices: more than 256 are refused, with one line that says so", too_many_slices_are_refused, false},
    {"sum of squares: the CPU's bits at any size and alignment", squares_of_any_size, false},
    {"casts: the CPU's bits between all dtypes, for all 65536 halves", casts_of_any_size, false},
    {"split and join of master weights: the CPU's bits, and back exactly", splits_of_any_size, false},
    {"normal numbers: the CPU's bits from any element on", fills_of_any_size, false},
    {"units decided in backward: the CPU's bits", unit_decisions, false},
    {"scalars of single tensors: the CPU's bits", tensors_scalars, false},
    {"optimizers with scalars of single tensors: the CPU's bits", updates_by_tensor, false},
    {"a step's decision: the CPU's bits, whether ranks agree or not", decisions, false},
    {"poison: written and counted as on the CPU, to the element", poison_of_any_size, false},
    {"parameters in fp8: the CPU's maxima, scales and bytes at any size, cut and alignment", fp8_of_any_size, false},
    {"AdamW over 10^8 elements: the CPU's bits in fp32, bf16 and fp16", adam_large, true},
    {"slices, 4 of 10^8 elements: the CPU's bits in fp32, bf16 and fp16", sums_large, true},
    {"sum of squares of 10^8 elements: the CPU's bits", squares_large, true},
    {"casts of 10^8 elements: the CPU's bits between all dtypes", casts_large, true},
    {"split and join of 10^8 master weights: the CPU's bits", splits_large, true},
    {"10^8 normal numbers: the CPU's bits", fills_large, true},
    {"poison in 10^8 elements: counted as on the CPU", poison_large, true},
    {"10^8 parameters in fp8: the CPU's scales and bytes", fp8_large, true},
};

int main(int argc, char **argv)
{
    const bool small = argc == 2 && strcmp(argv[1], "small") == 0;
    if (argc > 1 && !small) {
        fprintf(stderr, "usage: test_shard_cuda [small]\n");
        return 2;
    }
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("SKIP: no GPU here\n");
        return 0;
    }
    cpu = zero_shard_kernels_cpu();
    cuda = zero_shard_kernels_cuda();
    int n_failed = 0;
    for (size_t i = 0; i < N_OF(claims); ++i) {
        if (claims[i].is_large && small)
            continue;
        bool holds = claims[i].check();
        printf("%s: %s\n", holds ? "ok" : "FAILED", claims[i].claim);
        fflush(stdout);
        n_failed += !holds;
    }
    return n_failed != 0;
}
