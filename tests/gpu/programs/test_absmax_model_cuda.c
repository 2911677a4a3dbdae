/* test_absmax_model_cuda.c - the absolute maxima that kernels record of what they write, against a search of it; and
 * what they write, against what they write without. Of all of a GPU's kernels whose output is cast to fp8: rows of one
 * warp and of several, sizes without whole packs, Inf and NaN. Does not use Check, which machines with GPUs may lack.
 *
 *     test_absmax_model_cuda [small]
 *
 * prints a line for each kernel; exits with 1 if one failed. small: smaller cases, for compute-sanitizer.
 */
#include <math.h>
#include <string.h>

#include "kernels/float_bits.h"
#include "train/kernels/kernels.h"
#define PROGRAM "test_absmax_model_cuda"
#include "tests/gpu/programs/guarded.h"

static struct {
    const zero_model_kernels_t *kernels;
    zero_model_context_t ctx;
    void *workspace;
    cudaStream_t stream;
} gpu;

static void open_gpu(void)
{
    static const zero_model_limits_t limits = {.n_rows = 4096,
                                               .seq_len = 16,
                                               .max_linear = 4096,
                                               .max_width = 8200,
                                               .n_heads = 1,
                                               .head_dim = 16,
                                               .vocab_size = 16,
                                               .dtype = ZERO_BF16,
                                               .fp8 = true};
    gpu.kernels = zero_model_kernels_cuda();
    NEED(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(cudaMalloc(&gpu.workspace, gpu.kernels->workspace_bytes(&limits)) == cudaSuccess);
    NEED(gpu.kernels->context_create(&gpu.ctx, (zero_stream_t)gpu.stream, gpu.workspace, &limits) == ZERO_OK);
}

static void close_gpu(void)
{
    gpu.kernels->context_destroy(&gpu.ctx);
    NEED(cudaFree(gpu.workspace) == cudaSuccess);
    NEED(cudaStreamDestroy(gpu.stream) == cudaSuccess);
}

enum { MOST_WIDTHS = 5 }; /* of what a kernel writes */

typedef struct recorder_case {
    size_t n_rows, width;
    bool recompute;
    unsigned char *a, *b, *weight;     /* bf16 [n_rows, MOST_WIDTHS * width]; weight [width] */
    unsigned char *written, *y;        /* as a; `written` is what the maximum is of */
    unsigned char *mean, *rstd, *sums; /* fp32 [n_rows], [n_rows], [3, width] */
} recorder_case_t;

typedef zero_status_t recorder_t(zero_model_context_t *ctx, const recorder_case_t *t);

static zero_weight_t weight_of(const recorder_case_t *t)
{
    return (zero_weight_t){.data = t->weight, .dtype = ZERO_BF16};
}
static zero_grad_t sums_of(const recorder_case_t *t, size_t i)
{
    return (zero_grad_t){(float *)(void *)t->sums + i * t->width, ZERO_FP32, false};
}
static zero_status_t record_layernorm(zero_model_context_t *ctx, const recorder_case_t *t)
{
    return gpu.kernels->layernorm(ctx, t->written, (float *)(void *)t->mean, (float *)(void *)t->rstd, t->y, t->a, t->b,
                                  weight_of(t), weight_of(t), 1e-5f, t->n_rows, t->width);
}
static zero_status_t record_layernorm_backward(zero_model_context_t *ctx, const recorder_case_t *t)
{
    return gpu.kernels->layernorm_backward(ctx, t->written, sums_of(t, 0), sums_of(t, 1), sums_of(t, 2),
                                           t->recompute ? t->y : NULL, t->a, t->b, (float *)(void *)t->mean,
                                           (float *)(void *)t->rstd, weight_of(t), weight_of(t), t->n_rows, t->width);
}
static zero_status_t record_rmsnorm(zero_model_context_t *ctx, const recorder_case_t *t)
{
    return gpu.kernels->rmsnorm(ctx, t->written, (float *)(void *)t->rstd, t->y, t->a, t->b, weight_of(t), 1e-5f,
                                t->n_rows, t->width);
}
static zero_status_t record_rmsnorm_backward(zero_model_context_t *ctx, const recorder_case_t *t)
{
    return gpu.kernels->rmsnorm_backward(ctx, t->written, sums_of(t, 0), t->recompute ? t->y : NULL, t->a, t->b,
                                         (float *)(void *)t->rstd, weight_of(t), t->n_rows, t->width);
}
static zero_status_t record_swiglu(zero_model_context_t *ctx, const recorder_case_t *t)
{
    return gpu.kernels->swiglu(ctx, t->written, t->a, t->n_rows, t->width);
}
static zero_status_t record_swiglu_backward(zero_model_context_t *ctx, const recorder_case_t *t)
{
    return gpu.kernels->swiglu_backward(ctx, t->written, t->recompute ? t->y : NULL, t->b, t->a, t->n_rows, t->width);
}
static zero_status_t record_gelu(zero_model_context_t *ctx, const recorder_case_t *t)
{
    return gpu.kernels->gelu(ctx, t->written, t->a, t->n_rows * t->width);
}
static zero_status_t record_gelu_backward(zero_model_context_t *ctx, const recorder_case_t *t)
{
    return gpu.kernels->gelu_backward(ctx, t->written, sums_of(t, 0), t->recompute ? t->y : NULL, t->a, t->b, t->n_rows,
                                      t->width);
}
/* 3 heads and 1 for keys and values, in place. */
static zero_status_t record_rope(zero_model_context_t *ctx, const recorder_case_t *t)
{
    const zero_rope_t rope = {.theta = 10000.0f, .factor = 1.0f};
    return gpu.kernels->rope(ctx, t->written, t->recompute, &rope,
                             &(zero_attention_shape_t){1, t->n_rows, 3, 1, t->width});
}

static const struct {
    const char *name;
    recorder_t *run;
    size_t widths; /* of what is written, in widths of the case */
} recorders[] = {{"layernorm", record_layernorm, 1}, {"layernorm_backward", record_layernorm_backward, 1},
                 {"rmsnorm", record_rmsnorm, 1},     {"rmsnorm_backward", record_rmsnorm_backward, 1},
                 {"swiglu", record_swiglu, 1},       {"swiglu_backward", record_swiglu_backward, 2},
                 {"gelu", record_gelu, 1},           {"gelu_backward", record_gelu_backward, 1},
                 {"rope", record_rope, MOST_WIDTHS}};

/* Runs a kernel with a maximum that is `before` already (NULL: without) and gets what it wrote. */
static bool record(size_t i, const recorder_case_t *t, const uint16_t *start, const uint32_t *before, uint16_t *written,
                   uint32_t *absmax)
{
    size_t n = t->n_rows * t->width * MOST_WIDTHS; /* all of it: the guard is behind it */
    unsigned char *word = before != NULL ? device_of(before, sizeof *before) : NULL;
    zero_model_context_t ctx = gpu.ctx;
    ctx.absmax = (uint32_t *)(void *)word;
    NEED(cudaMemcpy(t->written, start, n * sizeof *start, cudaMemcpyHostToDevice) == cudaSuccess);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    NEED(recorders[i].run(&ctx, t) == ZERO_OK);
    bool inside = device_get(written, t->written, n * sizeof *written);
    if (word != NULL)
        inside = device_get(absmax, word, sizeof *absmax) && inside;
    device_free(word);
    return inside;
}

static bool recorder_agrees(size_t i, const recorder_case_t *t, const uint16_t *start)
{
    static const uint32_t none = 0, most = 0x7fff0000u;
    size_t n = t->n_rows * t->width * recorders[i].widths;
    size_t n_all = t->n_rows * t->width * MOST_WIDTHS;
    uint16_t *want = host_new(n_all * sizeof *want), *is = host_new(n_all * sizeof *is);
    uint32_t absmax = 0, kept = 0, largest = 0;
    bool agrees = record(i, t, start, NULL, want, NULL);
    for (size_t j = 0; j < n; ++j) {
        uint32_t magnitude = zero_fp8_magnitude(float_of_bf16(want[j]));
        largest = magnitude > largest ? magnitude : largest;
    }
    agrees = record(i, t, start, &none, is, &absmax) && absmax == largest &&
             memcmp(is, want, n_all * sizeof *is) == 0 && agrees;
    agrees = record(i, t, start, &most, is, &kept) && kept == most && agrees;
    if (!agrees)
        printf("        %s of %zu x %zu, recompute %d: 0x%08x in place of 0x%08x, or 0x%08x of 0x%08x\n",
               recorders[i].name, t->n_rows, t->width, t->recompute, absmax, largest, kept, most);
    free(want), free(is);
    return agrees;
}

/* Fills n numbers of a size that differs from block to block; `odd`, if it is not 0, is put somewhere in the middle. */
static void fill_recorded(uint16_t *x, size_t n, uint16_t odd)
{
    float size = 1.0f;
    for (size_t i = 0; i < n; ++i) {
        size = i % 1999 == 0 ? 0.1f + (float)(random_bits() % 100) * 0.05f : size;
        x[i] = truncated_bf16(size * random_normal());
    }
    if (odd != 0)
        x[n / 3] = odd;
}

static void recorded_maxima_are_those_of_what_is_written(bool small)
{
    /* Rows of one warp and of several, of whole packs and not; the last is read without being fetched ahead. */
    static const size_t shapes[][2] = {{1, 16},    {7, 24},   {130, 38},   {33, 768},   {257, 1040},
                                       {61, 1002}, {5, 2056}, {300, 4096}, {1025, 512}, {3, 8200}};
    static const uint16_t odd[] = {0, 0x7f80, 0xffc0, 0xc700}; /* none, Inf, NaN, -32768 */
    for (size_t i = 0; i < sizeof recorders / sizeof *recorders; ++i) {
        bool agrees = true;
        for (size_t s = 0; s < (small ? 4 : sizeof shapes / sizeof *shapes); ++s)
            for (size_t v = 0; v < 8; ++v) {
                recorder_case_t t = {.n_rows = shapes[s][0], .width = shapes[s][1], .recompute = v % 2 == 1};
                size_t n = t.n_rows * t.width * MOST_WIDTHS, rows = t.n_rows * sizeof(float);
                uint16_t *x = host_new(n * 2);
                float *ones = host_new(rows);
                for (size_t row = 0; row < t.n_rows; ++row)
                    ones[row] = 1.0f;
                fill_recorded(x, n, 0), t.b = device_of(x, n * 2), t.weight = device_of(x, t.width * 2);
                fill_recorded(x, n, i == 8 ? 0 : odd[v / 2]), t.a = device_of(x, n * 2);
                fill_recorded(x, n, i == 8 ? odd[v / 2] : 0), t.written = device_of(x, n * 2), t.y = device_new(n * 2);
                t.mean = device_of(ones, rows), t.rstd = device_of(ones, rows);
                t.sums = device_new(3 * t.width * sizeof(float));
                agrees = recorder_agrees(i, &t, x) && agrees;
                device_free(t.a), device_free(t.b), device_free(t.weight), device_free(t.written), device_free(t.y);
                device_free(t.mean), device_free(t.rstd), device_free(t.sums);
                free(x), free(ones);
            }
        report(agrees, "the recorded maximum is that of what is written, which stays the same: ", recorders[i].name);
    }
}

int main(int argc, char **argv)
{
    open_gpu();
    recorded_maxima_are_those_of_what_is_written(argc > 1 && strcmp(argv[1], "small") == 0);
    close_gpu();
    printf("recorded maxima: %d failed\n", n_failed);
    return n_failed != 0;
}
