/* measure_kernels.c - the rates of a model's kernels: products by size, attention, passes over memory, casts to fp8.
 *
 * They are counted as step_time.c counts them: a product is a third of forward and both halves of backward; a pass is
 * what the two norms and the activation function of a GPT-2 block read and write, there and back.
 */
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "train/calibrate/probe.h"
#include "train/report/clock.h"
#include "train/report/report.h"

/* Sizes that a step has: large enough to fill the device, small enough to take a moment. Products are of rows with a
 * square matrix, each 8 times as large as the one before. A GPU's are cubes. On the CPU more rows than the matrix is
 * wide, as in training: OpenBLAS packs operands anew for each thread's block, which costs a weight's gradient most. */
typedef struct sizes {
    int n_products;
    size_t edge, aspect;       /* the smallest matrix is edge x edge, and its rows are aspect * edge */
    size_t rows, dim, ffn;     /* of passes */
    size_t width;              /* of attention: heads * head_dim */
    size_t seq_len, seq_least; /* two, to tell what attention computes on the diagonal */
} sizes_t;

static const sizes_t SIZES_CPU = {3, 256, 8, 2048, 768, 3072, 512, 1024, 256};
static const sizes_t SIZES_GPU = {4, 512, 1, 16384, 2048, 8192, 2048, 2048, 512};

#define WARM_UP_S 1.0 /* until a GPU's clock has settled under load */

typedef struct bench {
    probe_t probe;
    const zero_model_kernels_t *kernels;
    sizes_t sizes;
    zero_model_context_t ctx;
    bool has_ctx;
    void *workspace, *x, *y, *dx, *dy; /* activations, each of most elements */
    void *weight, *dweight, *vectors;  /* weights: a matrix, its gradient, and two vectors of ffn */
    float *rows;                       /* fp32: two numbers a row, or attention's logsumexp */
    zero_fp8_t x8, w8, dy8;
    size_t n, head_dim, at_len; /* of what is being measured */
    size_t turn;                /* calls of multiply */
} bench_t;

/* ---- memory ---- */

static size_t edge_of(const bench_t *b, int product)
{
    return b->sizes.edge << product;
}

static size_t last_edge(const bench_t *b)
{
    return edge_of(b, b->sizes.n_products - 1);
}

static size_t most_rows(const bench_t *b)
{
    size_t rows = b->sizes.aspect * last_edge(b);
    return b->sizes.rows > rows ? b->sizes.rows : rows;
}

static zero_model_limits_t limits_of(const bench_t *b, zero_dtype_t dtype, size_t head_dim, bool fp8)
{
    size_t edge = last_edge(b);
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
    size_t edge = last_edge(b), product = b->sizes.aspect * edge * edge;
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
            TRY(probe_alloc(&b->probe, parts[i].bytes, parts[i].data));
    }
    return ZERO_OK;
}

static zero_status_t set_up(bench_t *b, zero_dtype_t dtype, bool fp8)
{
    zero_dtype_t act = b->kernels->activation_dtype(dtype);
    size_t n_bytes;
    TRY(allocate(b, dtype, fp8, &n_bytes));
    void *const activations[] = {b->x, b->dx, b->dy};
    for (int i = 0; i < 3; i++)
        TRY(probe_fill(&b->probe, activations[i], act, most_elems(b)));
    TRY(probe_fill(&b->probe, b->weight, dtype, limits_of(b, dtype, 64, fp8).max_linear));
    TRY(probe_fill(&b->probe, b->vectors, dtype, 2 * b->sizes.ffn));
    b->x8.format = b->w8.format = ZERO_E4M3;
    b->dy8.format = ZERO_E5M2;
    return ZERO_OK;
}

/* Opens a device's memory for kernels of one dtype. */
static zero_status_t bench_open(zero_comm_t *comm, zero_device_t *device, zero_dtype_t dtype, bool fp8, bench_t *b)
{
    bool on_gpu = zero_device_get_type(device) != ZERO_DEVICE_CPU;
    size_t n_bytes;
    *b =
        (bench_t){.sizes = on_gpu ? SIZES_GPU : SIZES_CPU, .kernels = zero_model_kernels(zero_device_get_type(device))};
    TRY(allocate(b, dtype, fp8, &n_bytes));
    probe_sizes_t sizes = {.n_units = 1, .unit_elems = 64, .user_bytes = n_bytes};
    TRY(probe_open(comm, device, dtype, &sizes, &b->probe));
    return report_agree(comm, set_up(b, dtype, fp8));
}

static zero_status_t use_heads(bench_t *b, size_t head_dim, bool fp8)
{
    zero_model_limits_t limits = limits_of(b, b->probe.dtype, head_dim, fp8);
    if (b->has_ctx)
        b->kernels->context_destroy(&b->ctx);
    b->has_ctx = false;
    b->head_dim = head_dim;
    TRY(b->kernels->context_create(&b->ctx, b->probe.stream, b->workspace, &limits));
    b->has_ctx = true;
    return ZERO_OK;
}

static void bench_close(bench_t *b)
{
    if (b->has_ctx)
        b->kernels->context_destroy(&b->ctx);
    if (b->probe.engine)
        probe_close(&b->probe);
}

/* ---- products ---- */

static zero_weight_t weight_of(const bench_t *b)
{
    return (zero_weight_t){.data = b->weight, .dtype = b->probe.dtype};
}

static zero_grad_t gradient_of(const bench_t *b)
{
    return (zero_grad_t){.data = b->dweight, .dtype = b->probe.dtype};
}

/* On the CPU multiplies other operands each time, so that those of small products come from memory as in a step. */
static zero_status_t multiply(void *args)
{
    bench_t *b = args;
    const zero_model_kernels_t *k = b->kernels;
    const zero_linear_layout_t layout = ZERO_LINEAR_OUT_IN;
    const size_t n = b->n, rows = b->sizes.aspect * n, of_largest = b->probe.on_gpu ? 1 : last_edge(b) / n;
    const size_t part = b->turn++ % (of_largest * of_largest);
    const size_t at = part * rows * n * zero_dtype_size(k->activation_dtype(b->probe.dtype));
    const size_t weight_at = part * n * n * zero_dtype_size(b->probe.dtype);
    void *x = (char *)b->x + at, *y = (char *)b->y + at, *dx = (char *)b->dx + at, *dy = (char *)b->dy + at;
    zero_weight_t weight = weight_of(b);
    zero_grad_t gradient = gradient_of(b);
    weight.data = (const char *)b->weight + weight_at;
    gradient.data = (char *)b->dweight + weight_at;
    TRY(k->linear(&b->ctx, y, x, weight, layout, (zero_weight_t){0}, rows, n, n));
    TRY(k->linear_backward_input(&b->ctx, dx, false, dy, weight, layout, rows, n, n));
    return k->linear_backward_weight(&b->ctx, gradient, layout, (zero_grad_t){0}, x, dy, rows, n, n);
}

static zero_status_t multiply_fp8(void *args)
{
    bench_t *b = args;
    const zero_model_kernels_t *k = b->kernels;
    const zero_linear_layout_t layout = ZERO_LINEAR_OUT_IN;
    size_t n = b->n;
    TRY(k->linear_fp8(&b->ctx, b->y, &b->x8, &b->w8, layout, (zero_weight_t){0}, n, n, n));
    TRY(k->linear_fp8_backward_input(&b->ctx, b->dx, &b->dy8, &b->w8, layout, n, n, n));
    return k->linear_fp8_backward_weight(&b->ctx, gradient_of(b), layout, &b->x8, &b->dy8, n, n, n);
}

/* Returns the elements for each multiply-add of the i-th size's three products, on average. */
static double elements_of(const bench_t *b, int i)
{
    double n = (double)edge_of(b, i), rows = (double)b->sizes.aspect * n, threads = (double)omp_get_max_threads();
    return (2.0 * fit_elements_per_multiply(rows, n, n, threads) + fit_elements_per_multiply(n, n, rows, threads)) /
           3.0;
}

/* Sets what an element costs, from the CPU's seconds for a FLOP at each size: a line over elements. Returns the rate
 * without them. */
static double line_through(const bench_t *b, const double rate[FIT_SIZES], double *element)
{
    int n = b->sizes.n_products;
    double x = 0.0, y = 0.0, xx = 0.0, xy = 0.0;
    for (int i = 0; i < n; i++) {
        double elements = elements_of(b, i);
        x += elements / n;
        y += 1.0 / rate[i] / n;
        xx += elements * elements / n;
        xy += elements / rate[i] / n;
    }
    double slope = fmax((xy - x * y) / (xx - x * x), 0.0), at_none = y - slope * x;
    *element = at_none > 0.0 ? slope / at_none : 0.0;
    return at_none > 0.0 ? 1.0 / at_none : 1.0 / y;
}

/* Returns the rate of large products, without what elements cost on the CPU. */
static double rate_of_large(const bench_t *b, const double rate[FIT_SIZES], double element)
{
    int last = b->sizes.n_products - 1;
    return b->probe.on_gpu ? rate[FIT_SIZES - 1] : rate[last] * (1.0 + element * elements_of(b, last));
}

/* Sets rate[i] for each size, largest first, when the clock has settled. */
static zero_status_t measure_products(bench_t *b, probe_fn fn, double rate[FIT_SIZES])
{
    double seconds, warm_until = clock_now_s() + (b->probe.on_gpu ? WARM_UP_S : 0.0);
    int last = b->sizes.n_products - 1;
    b->n = last_edge(b);
    for (double s = 0.0; s < 1.0;) { /* until the slowest rank is warm */
        TRY(probe_time(&b->probe, fn, b, &seconds));
        s = clock_now_s() >= warm_until ? 1.0 : 0.0;
        TRY(zero_comm_broadcast(b->probe.comm, &s, sizeof s, 0));
    }
    for (int i = last; i >= 0; i--) {
        b->n = edge_of(b, i);
        double n = (double)b->n, rows = (double)b->sizes.aspect * n;
        TRY(probe_time(&b->probe, fn, b, &seconds));
        rate[i] = 3.0 * 2.0 * rows * n * n / seconds;
    }
    for (int i = last + 1; i < FIT_SIZES; i++)
        rate[i] = rate[last];
    return ZERO_OK;
}

/* ---- attention ---- */

static zero_status_t attend(void *args)
{
    bench_t *b = args;
    size_t heads = b->sizes.width / b->head_dim, n_batch = b->sizes.rows / b->at_len;
    return b->kernels->attention(&b->ctx, b->y, b->rows, b->x, NULL, n_batch, b->at_len, heads, heads, b->head_dim);
}

static zero_status_t attend_back(void *args)
{
    bench_t *b = args;
    size_t heads = b->sizes.width / b->head_dim, n_batch = b->sizes.rows / b->at_len;
    return b->kernels->attention_backward(&b->ctx, b->dx, b->dy, b->x, b->y, b->rows, NULL, n_batch, b->at_len, heads,
                                          heads, b->head_dim);
}

static zero_status_t time_attention(bench_t *b, size_t seq_len, double *forward, double *backward)
{
    b->at_len = seq_len;
    TRY(probe_time(&b->probe, attend, b, forward));
    return probe_time(&b->probe, attend_back, b, backward);
}

/* For as many rows, time grows with seq_len + tile: two lengths tell the tile. */
static double tile_of(const bench_t *b, double at_least, double at_most)
{
    double least = (double)b->sizes.seq_least, most = (double)b->sizes.seq_len;
    double slope = (at_most - at_least) / (most - least);
    return slope > 0.0 ? fmin(fmax(at_least / slope - least, 0.0), most) : most;
}

static zero_status_t measure_attention(bench_t *b, fit_rates_t *rates)
{
    double forward, backward, shorter[2];
    for (int i = 0; i < 2; i++) {
        TRY(use_heads(b, i == 0 ? 64 : 128, false));
        TRY(time_attention(b, b->sizes.seq_len, &forward, &backward));
        if (i == 0) {
            TRY(time_attention(b, b->sizes.seq_least, &shorter[0], &shorter[1]));
            rates->tile = tile_of(b, shorter[0] + shorter[1], forward + backward);
        }
        double flops = 2.0 * (double)b->sizes.rows * (double)b->sizes.width * ((double)b->sizes.seq_len + rates->tile);
        rates->attention_forward[i] = flops / forward;
        rates->attention_backward[i] = 2.5 * flops / backward;
    }
    return ZERO_OK;
}

/* ---- passes ---- */

static zero_status_t pass_forward(bench_t *b)
{
    const zero_model_kernels_t *k = b->kernels;
    size_t rows = b->sizes.rows, dim = b->sizes.dim;
    zero_weight_t w = {.data = b->vectors, .dtype = b->probe.dtype};
    for (int norm = 0; norm < 2; norm++)
        TRY(k->layernorm(&b->ctx, b->y, b->rows, b->rows + rows, b->dx, b->x, b->dy, w, w, 1e-5f, rows, dim));
    return k->gelu(&b->ctx, b->y, b->x, rows * b->sizes.ffn);
}

static zero_status_t pass(void *args)
{
    bench_t *b = args;
    const zero_model_kernels_t *k = b->kernels;
    size_t rows = b->sizes.rows, dim = b->sizes.dim, ffn = b->sizes.ffn;
    zero_weight_t w = {.data = b->vectors, .dtype = b->probe.dtype};
    zero_grad_t dw = gradient_of(b), dbias = dw, none = {0};
    dbias.data = (char *)dw.data + ffn * zero_dtype_size(dw.dtype);
    TRY(pass_forward(b));
    TRY(k->layernorm_backward(&b->ctx, b->dx, dw, dbias, none, NULL, b->dy, b->x, b->rows, b->rows + rows, w, w, rows,
                              dim));
    TRY(k->layernorm_backward(&b->ctx, b->dx, dw, dbias, none, NULL, b->dy, b->x, b->rows, b->rows + rows, w, w, rows,
                              dim));
    return k->gelu_backward(&b->ctx, b->y, none, NULL, b->dy, b->x, rows, ffn);
}

static zero_status_t cast_fp8(void *args)
{
    bench_t *b = args;
    return b->kernels->fp8_cast(&b->ctx, &b->x8, b->x, false, b->n, b->n);
}

static zero_status_t measure_passes(bench_t *b, fit_rates_t *rates)
{
    double seconds, rows = (double)b->sizes.rows;
    double act = (double)zero_dtype_size(b->kernels->activation_dtype(b->probe.dtype));
    TRY(probe_time(&b->probe, pass, b, &seconds));
    rates->pass = rows * (16.0 * (double)b->sizes.dim + 5.0 * (double)b->sizes.ffn) * act / seconds;
    return ZERO_OK;
}

/* ---- all of them ---- */

static zero_status_t measure_half(bench_t *b, fit_rates_t *rates)
{
    double rate[FIT_SIZES];
    TRY(use_heads(b, 64, false));
    TRY(measure_products(b, multiply, rate));
    if (!b->probe.on_gpu)
        rates->half = line_through(b, rate, &rates->element);
    else
        rates->half = rate[FIT_SIZES - 1];
    for (int i = 0; i < FIT_SIZES && b->probe.on_gpu; i++)
        rates->size_share[i] = rate[i] / rates->half;
    TRY(measure_passes(b, rates));
    return measure_attention(b, rates);
}

static zero_status_t measure_single(bench_t *b, fit_rates_t *rates)
{
    double rate[FIT_SIZES];
    TRY(use_heads(b, 64, false));
    if (!b->probe.on_gpu)
        b->sizes.n_products = 2; /* the CPU's products are fp32 whatever the weights are */
    TRY(measure_products(b, multiply, rate));
    rates->single = rate_of_large(b, rate, rates->element);
    return ZERO_OK;
}

static zero_status_t prepare_fp8(bench_t *b)
{
    const zero_model_kernels_t *k = b->kernels;
    size_t edge = last_edge(b);
    TRY(k->fp8_cast(&b->ctx, &b->x8, b->x, false, edge, edge));
    TRY(k->fp8_cast(&b->ctx, &b->dy8, b->dy, false, edge, edge));
    return k->fp8_cast_weight(&b->ctx, &b->w8, weight_of(b), false, edge, edge);
}

/* On GPUs that multiply in fp8. */
static zero_status_t measure_fp8(bench_t *b, fit_rates_t *rates)
{
    double rate[FIT_SIZES], seconds;
    char why[ZERO_MODEL_WHY];
    TRY(use_heads(b, 64, true));
    if (!b->kernels->fp8_is_available(&b->ctx, why))
        return ZERO_OK;
    TRY(prepare_fp8(b));
    TRY(measure_products(b, multiply_fp8, rate));
    rates->fp8 = rate[FIT_SIZES - 1];
    b->n = last_edge(b);
    double n = (double)b->n, act = (double)zero_dtype_size(b->kernels->activation_dtype(b->probe.dtype));
    TRY(probe_time(&b->probe, cast_fp8, b, &seconds));
    rates->cast = n * n * (2.0 * act + 2.0) / seconds;
    return ZERO_OK;
}

static zero_status_t measure_with(zero_comm_t *comm, zero_device_t *device, zero_dtype_t dtype, bool fp8,
                                  zero_status_t (*measure)(bench_t *b, fit_rates_t *rates), fit_rates_t *rates)
{
    bench_t b;
    zero_status_t status = bench_open(comm, device, dtype, fp8, &b);
    if (status == ZERO_OK)
        status = report_agree(comm, measure(&b, rates));
    bench_close(&b);
    return status;
}

zero_status_t measure_kernels(zero_comm_t *comm, zero_device_t *device, fit_rates_t *rates)
{
    bool on_gpu = zero_device_get_type(device) != ZERO_DEVICE_CPU;
    TRY(measure_with(comm, device, ZERO_BF16, false, measure_half, rates));
    TRY(measure_with(comm, device, ZERO_FP32, false, measure_single, rates));
    if (on_gpu)
        return measure_with(comm, device, ZERO_BF16, true, measure_fp8, rates);
    rates->fp8 = rates->half; /* the CPU multiplies what fp8 was rounded to */
    rates->cast = rates->pass;
    return ZERO_OK;
}
