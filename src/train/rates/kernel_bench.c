/* kernel_bench.c - see kernel_bench.h. */
#include "train/rates/kernel_bench.h"

#include "train/report/report.h"

static const bench_sizes_t SIZES_CPU = {3, 256, 8, 2048, 768, 3072, 512, 1024, 256};
static const bench_sizes_t SIZES_GPU = {4, 512, 1, 16384, 2048, 8192, 2048, 2048, 512};

size_t bench_edge(const bench_t *b, int product)
{
    return b->sizes.edge << product;
}

size_t bench_last_edge(const bench_t *b)
{
    return bench_edge(b, b->sizes.n_products - 1);
}

static size_t most_rows(const bench_t *b)
{
    size_t rows = b->sizes.aspect * bench_last_edge(b);
    return b->sizes.rows > rows ? b->sizes.rows : rows;
}

static zero_model_limits_t limits_of(const bench_t *b, zero_dtype_t dtype, size_t head_dim, bool fp8)
{
    size_t edge = bench_last_edge(b);
    return (zero_model_limits_t){.n_rows = most_rows(b),
                                 .seq_len = b->sizes.seq_len,
                                 .max_linear = edge * edge,
                                 .max_width = b->sizes.ffn > edge ? b->sizes.ffn : edge,
                                 .n_heads = b->sizes.width / head_dim,
                                 .head_dim = head_dim,
                                 .n_kv_heads = b->sizes.width / head_dim,
                                 .vocab_size = 256,
                                 .dtype = dtype,
                                 .fp8 = fp8};
}

static size_t most_elems(const bench_t *b)
{
    size_t edge = bench_last_edge(b), product = b->sizes.aspect * edge * edge;
    size_t widest = b->sizes.ffn > 3 * b->sizes.width ? b->sizes.ffn : 3 * b->sizes.width;
    size_t passes = b->sizes.rows * widest;
    return passes > product ? passes : product;
}

static size_t workspace_of(const bench_t *b, zero_dtype_t dtype, bool fp8)
{
    zero_model_limits_t narrow = limits_of(b, dtype, 64, fp8), wide = limits_of(b, dtype, 128, fp8);
    size_t bytes = b->kernels->workspace_bytes(&narrow), others = b->kernels->workspace_bytes(&wide);
    return bytes > others ? bytes : others;
}

/* Counts the bytes of everything, and allocates it if there is an engine. */
static zero_status_t allocate(bench_t *b, zero_dtype_t dtype, bool fp8, size_t *n_bytes)
{
    size_t n = most_elems(b), matrix = limits_of(b, dtype, 64, fp8).max_linear, weight = zero_dtype_size(dtype);
    size_t of_act = zero_dtype_size(b->kernels->activation_dtype(dtype)), n_fp8 = fp8 ? n : 0;
    const struct {
        void **data;
        size_t bytes;
    } parts[] = {
        {&b->workspace, workspace_of(b, dtype, fp8)},
        {&b->x, n * of_act},
        {&b->y, n * of_act},
        {&b->dx, n * of_act},
        {&b->dy, n * of_act},
        {&b->weight, matrix * weight},
        {&b->dweight, matrix * weight},
        {&b->vectors, 2 * b->sizes.ffn * weight},
        {(void **)&b->rows, (2 + b->sizes.width / 64) * b->sizes.rows * sizeof(float)},
        {(void **)&b->x8.rows, n_fp8},
        {(void **)&b->x8.columns, n_fp8},
        {(void **)&b->dy8.rows, n_fp8},
        {(void **)&b->dy8.columns, n_fp8},
        {(void **)&b->w8.rows, fp8 ? matrix : 0},
        {(void **)&b->w8.columns, fp8 ? matrix : 0},
        {(void **)&b->x8.scales, fp8 ? sizeof(zero_fp8_scales_t) : 0},
        {(void **)&b->dy8.scales, fp8 ? sizeof(zero_fp8_scales_t) : 0},
        {(void **)&b->w8.scales, fp8 ? sizeof(zero_fp8_scales_t) : 0},
    };
    *n_bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *n_bytes += (parts[i].bytes + 255) / 256 * 256;
        if (b->probe.engine && parts[i].bytes > 0)
            ZERO_TRY(probe_alloc(&b->probe, parts[i].bytes, parts[i].data));
    }
    return ZERO_OK;
}

static zero_status_t set_up(bench_t *b, zero_dtype_t dtype, bool fp8)
{
    zero_dtype_t act = b->kernels->activation_dtype(dtype);
    size_t n_bytes;
    ZERO_TRY(allocate(b, dtype, fp8, &n_bytes));
    void *const activations[] = {b->x, b->dx, b->dy};
    for (int i = 0; i < 3; i++)
        ZERO_TRY(probe_fill(&b->probe, activations[i], act, most_elems(b)));
    ZERO_TRY(probe_fill(&b->probe, b->weight, dtype, limits_of(b, dtype, 64, fp8).max_linear));
    ZERO_TRY(probe_fill(&b->probe, b->vectors, dtype, 2 * b->sizes.ffn));
    b->x8.format = b->w8.format = ZERO_E4M3;
    b->dy8.format = ZERO_E5M2;
    return ZERO_OK;
}

zero_status_t bench_open(zero_comm_t *comm, zero_device_t *device, zero_dtype_t dtype, bool fp8, bench_t *b)
{
    bool on_gpu = zero_device_get_type(device) != ZERO_DEVICE_CPU;
    size_t n_bytes;
    *b =
        (bench_t){.sizes = on_gpu ? SIZES_GPU : SIZES_CPU, .kernels = zero_model_kernels(zero_device_get_type(device))};
    ZERO_TRY(allocate(b, dtype, fp8, &n_bytes));
    probe_sizes_t sizes = {.n_units = 1, .unit_elems = 64, .user_bytes = n_bytes};
    ZERO_TRY(probe_open(comm, device, dtype, &sizes, &b->probe));
    return report_agree(comm, set_up(b, dtype, fp8));
}

zero_status_t bench_use_heads(bench_t *b, size_t head_dim, bool fp8)
{
    zero_model_limits_t limits = limits_of(b, b->probe.dtype, head_dim, fp8);
    if (b->has_ctx)
        b->kernels->context_destroy(&b->ctx);
    b->has_ctx = false;
    b->head_dim = head_dim;
    ZERO_TRY(b->kernels->context_create(&b->ctx, b->probe.stream, b->workspace, &limits));
    b->has_ctx = true;
    return ZERO_OK;
}

void bench_close(bench_t *b)
{
    if (b->has_ctx)
        b->kernels->context_destroy(&b->ctx);
    if (b->probe.engine)
        probe_close(&b->probe);
}

zero_weight_t bench_weight(const bench_t *b)
{
    return (zero_weight_t){.data = b->weight, .dtype = b->probe.dtype};
}

zero_grad_t bench_gradient(const bench_t *b)
{
    return (zero_grad_t){.data = b->dweight, .dtype = b->probe.dtype};
}
