/* step_time.c - see step_time.h. Letters are those of fit_shape_t; N ranks. Times are in seconds until the end. */
#include "train/predict/step_time.h"

#include <math.h>
#include <string.h>

#include "train/predict/step_work.h"

#define BACKWARD_ATTENTION 2.5 /* products in backward for each in forward: five and two */
#define LOGITS_OF_CPU 0x1p23   /* elements */

/* Returns the rate for heads of this size: proportional to it below 64, then a line to 128. */
static double attention_rate(const double rates[2], double head_dim)
{
    if (head_dim <= 64.0)
        return rates[0] * head_dim / 64.0;
    return rates[0] + (rates[1] - rates[0]) * (fmin(head_dim, 128.0) - 64.0) / 64.0;
}

/* Returns the seconds of casting n_elems to fp8: reading bytes_read of each, and writing `copies`. */
static double cast_s(const fit_rates_t *rates, double n_elems, double bytes_read, double copies)
{
    return n_elems * (bytes_read + copies) / rates->cast;
}

/* Returns of how many of a row's inputs, or output gradients, the maximum takes a pass of its own. On GPUs the kernel
 * that writes them finds most (arch_linear_t.x_is_recorded, dy_is_recorded). */
static double apart_inputs(const fit_shape_t *s, double inputs)
{
    return s->on_gpu ? s->A : inputs;
}
static double apart_outputs(const fit_shape_t *s)
{
    return !s->on_gpu ? s->outputs : s->is_llama && !s->has_head_norms ? 0.0 : s->qkv;
}

/* Casts of a block in forward, once more if backward runs it again. Weights: their maximum is found once. */
static double casts_forward(const fit_shape_t *s, const fit_rates_t *rates, bool gathered, bool again)
{
    bool keeps = !s->light && !s->full && !s->is_frozen;
    double inputs = again ? s->inputs - s->F : s->inputs, matrices = again ? s->matrices - s->last_matrix : s->matrices;
    if (!s->fp8)
        return 0.0;
    return cast_s(rates, s->R * inputs, s->act_bytes, keeps ? 2.0 : 1.0) +
           cast_s(rates, s->R * apart_inputs(s, inputs), s->act_bytes, 0.0) +
           (gathered ? 0.0 : cast_s(rates, matrices, (again ? 1.0 : 2.0) * s->param_bytes, 1.0));
}

static double casts_backward(const fit_shape_t *s, const fit_rates_t *rates, bool gathered)
{
    bool casts_inputs = (s->light || s->full) && !s->is_frozen;
    if (!s->fp8)
        return 0.0;
    return cast_s(rates, s->R * s->outputs, s->act_bytes, s->is_frozen ? 1.0 : 2.0) +
           cast_s(rates, s->R * apart_outputs(s), s->act_bytes, 0.0) +
           (casts_inputs ? cast_s(rates, s->R * s->inputs, s->act_bytes, 1.0) : 0.0) +
           cast_s(rates, s->matrices, gathered ? 1.0 : s->param_bytes, 1.0);
}

/* Returns how many outputs of a row have a bias; the CPU adds it in a pass of its own. */
static double biased(const fit_shape_t *s)
{
    return s->is_llama ? s->qkv : s->outputs;
}

/* Elements that norms, activation function, rotation and adapters, whose products are as narrow as their rank, read and
 * write for a row of a block. Adapters that cover a layer without a bias write its output, and the product adds to
 * that in passing; others come behind the product, and read its output, too. Those that a gated MLP's activation
 * function adds write nothing. */
static double forward_elems(const fit_shape_t *s)
{
    double biases = s->has_bias && !s->on_gpu ? 2.0 * biased(s) : 0.0;
    double adapters = s->low_outputs + s->low_read + s->low_x;
    return 8.0 * s->C + (s->is_llama ? 3.0 : 2.0) * s->F + 2.0 * s->rotated + (s->has_head_norms ? 2.0 * s->qkv : 0.0) +
           biases + adapters;
}

/* With biases: q's, k's and v's gradients take a pass of their own, on the CPU all of them. With head norms: each
 * head's gradient is read with its input and written. light: the outputs of norms and of the activation function are
 * written again. (If recompute is full, the block's forward does that.) */
static double backward_elems(const fit_shape_t *s)
{
    double normed_again = s->light ? 2.0 * s->qkv + 2.0 * s->rotated : 0.0;
    double of_heads = s->has_head_norms ? normed_again + 3.0 * s->rotated : 0.0;
    double biases = !s->has_bias || s->is_frozen ? 0.0 : s->on_gpu ? s->qkv : biased(s);
    double adapters = s->low_inputs + s->low_d_x + s->low_dy;
    return 8.0 * s->C + (s->is_llama ? 5.0 : 3.0) * s->F + 2.0 * s->rotated + biases + of_heads + adapters +
           (s->light ? 2.0 * s->C + s->F : 0.0);
}

static double product_rate(const fit_rates_t *rates, const options_t *o, bool in_fp8)
{
    if (in_fp8)
        return rates->fp8 > 0.0 ? rates->fp8 : rates->half;
    return o->train.precision == ZERO_FP32 ? rates->single : rates->half;
}

/* Returns what share of a device's rate a product of so many FLOPs reaches: a line between the sizes. */
static double size_share(const fit_rates_t *rates, double flops)
{
    double at = (log2(flops) - FIT_LEAST_SIZE) / FIT_SIZE_STEP;
    int below = (int)fmin(fmax(at, 0.0), FIT_SIZES - 2.0);
    double part = fmin(fmax(at - below, 0.0), 1.0);
    return rates->size_share[below] + part * (rates->size_share[below + 1] - rates->size_share[below]);
}

/* Returns the seconds of a product [m, n] of sums over k, at a rate for large products. */
static double product_s(const fit_rates_t *rates, double rate, double m, double n, double k)
{
    double flops = 2.0 * m * n * k;
    double elements = rates->is_gpu ? 0.0 : rates->element * fit_elements_per_multiply(m, n, k, rates->threads);
    return flops * (1.0 + elements) / (rate * size_share(rates, flops));
}

/* Returns the seconds of multiplying R rows with the first n matrices of a block. */
static double products_s(const fit_rates_t *rates, double rate, const fit_shape_t *s, int n)
{
    double seconds = 0.0;
    for (int i = 0; i < n; i++)
        seconds += product_s(rates, rate, s->R, s->products[i] / s->inner[i], s->inner[i]);
    return seconds;
}

/* Returns the seconds of the gradients of a block's inputs and, unless they are frozen, matrices. */
static double gradients_s(const fit_rates_t *rates, double rate, const fit_shape_t *s)
{
    double seconds = 0.0;
    for (int i = 0; i < FIT_N_PRODUCTS; i++) {
        double inner = s->inner[i], outer = s->products[i] / inner;
        seconds += product_s(rates, rate, s->R, inner, outer);
        seconds += s->is_frozen ? 0.0 : product_s(rates, rate, inner, outer, s->R);
    }
    return seconds;
}

/* Returns the seconds of the head's three products, two if it is frozen. The CPU has logits of some rows at a time
 * (src/train/kernels/loss.c).
 */
static double head_products_s(const fit_rates_t *rates, double rate, const fit_shape_t *s)
{
    double rows = s->on_gpu ? s->R : fmin(s->R, fmax(LOGITS_OF_CPU / s->V, 64.0));
    return s->R / rows *
           (product_s(rates, rate, rows, s->V, s->C) + product_s(rates, rate, rows, s->C, s->V) +
            (s->is_frozen ? 0.0 : product_s(rates, rate, s->V, s->C, rows)));
}

static double attention_flops(const fit_shape_t *s, const fit_rates_t *rates) /* of a block, forward */
{
    return 4.0 * s->R * s->keys * s->A * (1.0 + rates->tile / s->T);
}

/* With 262,144 keys a row and more, attention on a GPU takes so much longer: two steps were measured, of 524,288 and 2M
 * tokens. With 131,072 it does not (262,144 tokens); between them a line is assumed. */
#define LONG_KEYS 0x1p17
#define LONG_SLOWER 0.17

/* Returns the seconds of attention in all blocks, for `times` forward's operations. */
static double attention_s(const fit_shape_t *s, const fit_rates_t *rates, const double rate[2], double times)
{
    const double share = s->on_gpu ? fmin(fmax(log2(s->keys / LONG_KEYS), 0.0), 1.0) : 0.0;
    return s->L * times * attention_flops(s, rates) / attention_rate(rate, s->head_dim) * (1.0 + LONG_SLOWER * share);
}

/* Blocks' forward in one micro-step. */
static fit_compute_t forward(const options_t *o, const fit_rates_t *rates, const fit_shape_t *s)
{
    double kernels = s->L * (s->is_llama ? 9.0 : 8.0) + s->L * (s->fp8 ? 12.0 : 0.0);
    return (fit_compute_t){
        .products = s->L * products_s(rates, product_rate(rates, o, s->fp8), s, FIT_N_PRODUCTS),
        .attention = attention_s(s, rates, rates->attention_forward, 1.0),
        .passes = s->L * (s->R * forward_elems(s) * s->act_bytes / rates->pass +
                          casts_forward(s, rates, o->zero.gather == GATHER_FP8, false)) +
                  kernels * rates->kernel_s,
    };
}

/* What backward runs again with recompute = full: a block's forward but for its last product. */
static void add_recomputation(const options_t *o, const fit_rates_t *rates, const fit_shape_t *s,
                              fit_compute_t *backward)
{
    if (!s->full)
        return;
    backward->products += s->L * products_s(rates, product_rate(rates, o, s->fp8), s, FIT_N_PRODUCTS - 1);
    if (!o->model.keep_attention)
        backward->attention += attention_s(s, rates, rates->attention_forward, 1.0);
    backward->passes += s->L * (s->R * (forward_elems(s) - 2.0 * s->C) * s->act_bytes / rates->pass +
                                casts_forward(s, rates, o->zero.gather == GATHER_FP8, true) + 7.0 * rates->kernel_s);
}

/* The head's forward and backward in one micro-step, and the sums of gradients. */
static fit_compute_t head(const options_t *o, const fit_machine_t *machine, const fit_shape_t *s)
{
    const fit_rates_t *rates = &machine->rates;
    double N = (double)machine->n_ranks, half = product_rate(rates, o, false);
    const double n_heads = o->train.objective == OBJECTIVE_DPO ? 1.5 : 1.0; /* the reference's has one product of two */
    double products = n_heads * head_products_s(rates, half, s);
    double loss = n_heads * s->R * (2.0 * s->V + 9.0 * s->C) * s->act_bytes;
    /* Every rank reads N slices of its shard and adds them to its sums, which later micro-steps read again. */
    double later = s->micro_steps > 1.0 ? sizeof(float) * (s->micro_steps - 1.0) / s->micro_steps : 0.0;
    double sums = fit_n_trained(s) * (s->grad_bytes + (sizeof(float) + later) / N);
    return (fit_compute_t){.products = products,
                           .passes = loss / rates->pass + sums / rates->sum + 10.0 * rates->kernel_s};
}

/* Blocks' backward in one micro-step. */
static fit_compute_t backward(const options_t *o, const fit_rates_t *rates, const fit_shape_t *s)
{
    double kernels = s->L * (16.0 + (s->fp8 ? 12.0 : 0.0));
    fit_compute_t c = {
        .products = s->L * gradients_s(rates, product_rate(rates, o, s->fp8), s),
        .attention = attention_s(s, rates, rates->attention_backward, BACKWARD_ATTENTION),
        .passes = s->L * (s->R * backward_elems(s) * s->act_bytes / rates->pass +
                          casts_backward(s, rates, o->zero.gather == GATHER_FP8)) +
                  kernels * rates->kernel_s,
    };
    add_recomputation(o, rates, s, &c);
    return c;
}

/* Returns the shape of one block of which so much is recomputed. */
static fit_shape_t block_of(const fit_shape_t *s, options_recompute_t recompute)
{
    fit_shape_t block = *s;
    block.light = recompute == RECOMPUTE_LIGHT;
    block.full = recompute == RECOMPUTE_FULL;
    block.L = 1.0;
    return block;
}

static void add(fit_compute_t *sum, double times, const fit_compute_t *of)
{
    sum->products += times * of->products;
    sum->attention += times * of->attention;
    sum->passes += times * of->passes;
}

void fit_work_of(const options_t *o, const fit_machine_t *machine, fit_work_t *work)
{
    *work = (fit_work_t){.options = o, .machine = machine, .shape = fit_shape_of(o, machine)};
    work->head = head(o, machine, &work->shape);
    for (int recompute = RECOMPUTE_NONE; recompute < FIT_N_RECOMPUTES; recompute++) {
        fit_shape_t block = block_of(&work->shape, (options_recompute_t)recompute);
        work->forward[recompute] = forward(o, &machine->rates, &block);
        work->backward[recompute] = backward(o, &machine->rates, &block);
        if (o->train.objective == OBJECTIVE_DPO) /* the reference's */
            add(&work->forward[recompute], 1.0, &work->forward[recompute]);
    }
}

static double sum_of(const fit_compute_t *c)
{
    return c->products + c->attention + c->passes;
}

fit_time_t fit_resident_time(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t *with_waits)
{
    const double ms = 1e3, k = work->shape.micro_steps;
    fit_compute_t f = {0}, b = work->head;
    for (int recompute = RECOMPUTE_NONE; recompute < FIT_N_RECOMPUTES; recompute++) {
        add(&f, (double)variant->blocks[recompute], &work->forward[recompute]);
        add(&b, (double)variant->blocks[recompute], &work->backward[recompute]);
    }
    fit_passes_t passes = {sum_of(&f), sum_of(&b)};
    fit_wire_t wire = fit_wire_s(work, variant, passes);
    *with_waits = (fit_passes_t){passes.forward + wire.in_forward, passes.backward + wire.in_backward};
    fit_time_t t = {.products = k * (f.products + b.products) * ms,
                    .attention = k * (f.attention + b.attention) * ms,
                    .passes = k * (f.passes + b.passes) * ms,
                    .wire = wire.all * ms};
    t.total = t.products + t.attention + t.passes + t.wire;
    return t;
}

fit_time_t fit_add_offload(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t with_waits, fit_time_t t)
{
    t.optimizer = fit_optimizer_s(work, variant) * 1e3;
    t.pcie = fit_offload_s(work, variant, with_waits) * 1e3;
    t.total = t.products + t.attention + t.passes + t.optimizer + t.wire + t.pcie;
    return t;
}

fit_time_t fit_work_time(const fit_work_t *work, const fit_variant_t *variant)
{
    fit_passes_t with_waits;
    fit_time_t t = fit_resident_time(work, variant, &with_waits);
    return fit_add_offload(work, variant, with_waits, t);
}

fit_time_t fit_step_time(const options_t *o, const fit_machine_t *machine, double activation_bytes)
{
    fit_work_t work;
    fit_variant_t variant = {
        .offload_ratio = o->zero.offload_ratio, .keep = o->zero.keep, .activation_bytes = activation_bytes};
    fit_work_of(o, machine, &work);
    for (int64_t l = 0; l < o->model.layers; l++)
        variant.blocks[options_block_recompute(&o->model, l)]++;
    return fit_work_time(&work, &variant);
}
