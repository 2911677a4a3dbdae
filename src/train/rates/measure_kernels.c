/* measure_kernels.c - the rates of a model's kernels: products by size, attention, passes over memory, casts to fp8.
 *
 * They are counted as step_time.c counts them: a pass is what the two norms and the activation function of a GPT-2
 * block read and write, there and back.
 */
#include <math.h>
#include <omp.h>

#include "train/rates/kernel_bench.h"
#include "train/report/process.h"
#include "train/report/report.h"

/* ---- measure products ---- */
/* A product is counted as step_time.c counts it: as a third of forward and
 * both halves of backward. */

#define WARM_UP_S 1.0 /* until a GPU's clock is stable under load */

/* On the CPU multiplies other operands each time, so that those of small products come from memory as in a step. */
static zero_status_t multiply(void *args)
{
    bench_t *b = args;
    const zero_model_kernels_t *k = b->kernels;
    const zero_linear_layout_t layout = ZERO_LINEAR_OUT_IN;
    const size_t n = b->n, rows = b->sizes.aspect * n, of_largest = b->probe.on_gpu ? 1 : bench_last_edge(b) / n;
    const size_t part = b->turn++ % (of_largest * of_largest);
    const size_t at = part * rows * n * zero_dtype_size(k->activation_dtype(b->probe.dtype));
    const size_t weight_at = part * n * n * zero_dtype_size(b->probe.dtype);
    void *x = (char *)b->x + at, *y = (char *)b->y + at, *dx = (char *)b->dx + at, *dy = (char *)b->dy + at;
    zero_weight_t weight = bench_weight(b);
    zero_grad_t gradient = bench_gradient(b);
    weight.data = (const char *)b->weight + weight_at;
    gradient.data = (char *)b->dweight + weight_at;
    ZERO_TRY(k->linear(&b->ctx, y, false, x, weight, layout, (zero_weight_t){0}, rows, n, n));
    ZERO_TRY(k->linear_backward_input(&b->ctx, dx, false, dy, weight, layout, rows, n, n));
    return k->linear_backward_weight(&b->ctx, gradient, layout, (zero_grad_t){0}, x, dy, rows, n, n);
}

static zero_status_t multiply_fp8(void *args)
{
    bench_t *b = args;
    const zero_model_kernels_t *k = b->kernels;
    const zero_linear_layout_t layout = ZERO_LINEAR_OUT_IN;
    size_t n = b->n;
    ZERO_TRY(k->linear_fp8(&b->ctx, b->y, false, &b->x8, &b->w8, layout, (zero_weight_t){0}, n, n, n));
    ZERO_TRY(k->linear_fp8_backward_input(&b->ctx, b->dx, false, &b->dy8, &b->w8, layout, n, n, n));
    return k->linear_fp8_backward_weight(&b->ctx, bench_gradient(b), layout, &b->x8, &b->dy8, n, n, n);
}

/* Returns the elements for each multiply-add of the i-th size's three products, on average. */
static double elements_of(const bench_t *b, int i)
{
    double n = (double)bench_edge(b, i), rows = (double)b->sizes.aspect * n, threads = (double)omp_get_max_threads();
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

/* Sets rate[i] for each size, largest first, once the clock is stable. */
static zero_status_t measure_products(bench_t *b, probe_fn fn, double rate[FIT_SIZES])
{
    double seconds, warm_until = clock_now_s() + (b->probe.on_gpu ? WARM_UP_S : 0.0);
    int last = b->sizes.n_products - 1;
    b->n = bench_last_edge(b);
    for (double s = 0.0; s < 1.0;) { /* until the slowest rank is warm */
        ZERO_TRY(probe_time(&b->probe, fn, b, &seconds));
        s = clock_now_s() >= warm_until ? 1.0 : 0.0;
        ZERO_TRY(zero_comm_broadcast(b->probe.comm, &s, sizeof s, 0));
    }
    for (int i = last; i >= 0; i--) {
        b->n = bench_edge(b, i);
        double n = (double)b->n, rows = (double)b->sizes.aspect * n;
        ZERO_TRY(probe_time(&b->probe, fn, b, &seconds));
        rate[i] = 3.0 * 2.0 * rows * n * n / seconds;
    }
    for (int i = last + 1; i < FIT_SIZES; i++)
        rate[i] = rate[last];
    return ZERO_OK;
}

zero_status_t measure_half_products(bench_t *b, fit_rates_t *rates)
{
    double rate[FIT_SIZES];
    ZERO_TRY(measure_products(b, multiply, rate));
    if (!b->probe.on_gpu)
        rates->half = line_through(b, rate, &rates->element);
    else
        rates->half = rate[FIT_SIZES - 1];
    for (int i = 0; i < FIT_SIZES && b->probe.on_gpu; i++)
        rates->size_share[i] = rate[i] / rates->half;
    return ZERO_OK;
}

zero_status_t measure_single_products(bench_t *b, fit_rates_t *rates)
{
    double rate[FIT_SIZES];
    if (!b->probe.on_gpu)
        b->sizes.n_products = 2; /* the CPU's products are fp32 whatever the weights are */
    ZERO_TRY(measure_products(b, multiply, rate));
    rates->single = rate_of_large(b, rate, rates->element);
    return ZERO_OK;
}

static zero_status_t prepare_fp8(bench_t *b)
{
    const zero_model_kernels_t *k = b->kernels;
    size_t edge = bench_last_edge(b);
    ZERO_TRY(k->fp8_cast(&b->ctx, &b->x8, b->x, false, edge, edge));
    ZERO_TRY(k->fp8_cast(&b->ctx, &b->dy8, b->dy, false, edge, edge));
    return k->fp8_cast_weight(&b->ctx, &b->w8, bench_weight(b), false, edge, edge);
}

zero_status_t measure_fp8_products(bench_t *b, fit_rates_t *rates)
{
    double rate[FIT_SIZES];
    ZERO_TRY(prepare_fp8(b));
    ZERO_TRY(measure_products(b, multiply_fp8, rate));
    rates->fp8 = rate[FIT_SIZES - 1];
    return ZERO_OK;
}

/* ---- measure kernels ---- */

/* ---- attention ---- */

static zero_attention_shape_t shape_at(const bench_t *b)
{
    size_t heads = b->sizes.width / b->head_dim;
    return (zero_attention_shape_t){b->sizes.rows / b->at_len, b->at_len, heads, heads, b->head_dim};
}

static zero_status_t attend(void *args)
{
    bench_t *b = args;
    const zero_attention_shape_t shape = shape_at(b);
    return b->kernels->attention(&b->ctx, b->y, b->rows, b->x, NULL, &shape);
}

static zero_status_t attend_back(void *args)
{
    bench_t *b = args;
    const zero_attention_shape_t shape = shape_at(b);
    return b->kernels->attention_backward(&b->ctx, b->dx, b->dy, b->x, b->y, b->rows, NULL, &shape);
}

static zero_status_t time_attention(bench_t *b, size_t seq_len, double *forward, double *backward)
{
    b->at_len = seq_len;
    ZERO_TRY(probe_time(&b->probe, attend, b, forward));
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
        ZERO_TRY(bench_use_heads(b, i == 0 ? 64 : 128, false));
        ZERO_TRY(time_attention(b, b->sizes.seq_len, &forward, &backward));
        if (i == 0) {
            ZERO_TRY(time_attention(b, b->sizes.seq_least, &shorter[0], &shorter[1]));
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
        ZERO_TRY(k->layernorm(&b->ctx, b->y, b->rows, b->rows + rows, b->dx, b->x, b->dy, w, w, 1e-5f, rows, dim));
    return k->gelu(&b->ctx, b->y, b->x, rows * b->sizes.ffn);
}

static zero_status_t pass(void *args)
{
    bench_t *b = args;
    const zero_model_kernels_t *k = b->kernels;
    size_t rows = b->sizes.rows, dim = b->sizes.dim, ffn = b->sizes.ffn;
    zero_weight_t w = {.data = b->vectors, .dtype = b->probe.dtype};
    zero_grad_t dw = bench_gradient(b), dbias = dw, none = {0};
    dbias.data = (char *)dw.data + ffn * zero_dtype_size(dw.dtype);
    ZERO_TRY(pass_forward(b));
    ZERO_TRY(k->layernorm_backward(&b->ctx, b->dx, dw, dbias, none, NULL, b->dy, b->x, b->rows, b->rows + rows, w, w,
                                   rows, dim));
    ZERO_TRY(k->layernorm_backward(&b->ctx, b->dx, dw, dbias, none, NULL, b->dy, b->x, b->rows, b->rows + rows, w, w,
                                   rows, dim));
    return k->gelu_backward(&b->ctx, b->y, none, NULL, b->dy, b->x, rows, ffn);
}

static zero_status_t measure_passes(bench_t *b, fit_rates_t *rates)
{
    double seconds, rows = (double)b->sizes.rows;
    double act = (double)zero_dtype_size(b->kernels->activation_dtype(b->probe.dtype));
    ZERO_TRY(probe_time(&b->probe, pass, b, &seconds));
    rates->pass = rows * (16.0 * (double)b->sizes.dim + 5.0 * (double)b->sizes.ffn) * act / seconds;
    return ZERO_OK;
}

/* ---- casts ---- */

static zero_status_t cast_fp8(void *args)
{
    bench_t *b = args;
    return b->kernels->fp8_cast(&b->ctx, &b->x8, b->x, false, b->n, b->n);
}

static zero_status_t measure_cast(bench_t *b, fit_rates_t *rates)
{
    double seconds;
    b->n = bench_last_edge(b);
    double n = (double)b->n, act = (double)zero_dtype_size(b->kernels->activation_dtype(b->probe.dtype));
    ZERO_TRY(probe_time(&b->probe, cast_fp8, b, &seconds));
    rates->cast = n * n * (2.0 * act + 2.0) / seconds;
    return ZERO_OK;
}

/* ---- all of them ---- */

static zero_status_t measure_half(bench_t *b, fit_rates_t *rates)
{
    ZERO_TRY(bench_use_heads(b, 64, false));
    ZERO_TRY(measure_half_products(b, rates));
    ZERO_TRY(measure_passes(b, rates));
    return measure_attention(b, rates);
}

static zero_status_t measure_single(bench_t *b, fit_rates_t *rates)
{
    ZERO_TRY(bench_use_heads(b, 64, false));
    return measure_single_products(b, rates);
}

/* On GPUs that multiply in fp8. */
static zero_status_t measure_fp8(bench_t *b, fit_rates_t *rates)
{
    char why[ZERO_MODEL_WHY];
    ZERO_TRY(bench_use_heads(b, 64, true));
    if (!b->kernels->fp8_is_available(&b->ctx, why))
        return ZERO_OK;
    ZERO_TRY(measure_fp8_products(b, rates));
    return measure_cast(b, rates);
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
    ZERO_TRY(measure_with(comm, device, ZERO_BF16, false, measure_half, rates));
    ZERO_TRY(measure_with(comm, device, ZERO_FP32, false, measure_single, rates));
    if (on_gpu)
        return measure_with(comm, device, ZERO_BF16, true, measure_fp8, rates);
    rates->fp8 = rates->half; /* the CPU multiplies what fp8 was rounded to */
    rates->cast = rates->pass;
    return ZERO_OK;
}
