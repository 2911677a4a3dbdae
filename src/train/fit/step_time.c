/* step_time.c - see step_time.h. Letters are those of arch.h: R rows of a micro-step, C = dim, F = ffn_dim, V =
 * vocab_size, T = seq_len, A = heads * head_dim; N ranks. Times are in seconds until the end.
 */
#include "train/fit/step_time.h"

#include <math.h>
#include <string.h>

#define N_PRODUCTS 4
#define BACKWARD_ATTENTION 2.5 /* products in backward for each in forward: five and two */

/* What settings mean for the model. Doubles, since all of it is multiplied. */
typedef struct shape {
    bool is_llama, has_bias, has_head_norms, on_gpu, adds_locally, fp8, exact_dw, light, full;
    double L, R, C, A, F, V, T, keys, heads, head_dim, rotated, qkv;
    double products[N_PRODUCTS];    /* elements of a block's matrices; full does not recompute the last */
    double matrices, last_matrix;   /* their sum, and the last */
    double inputs, outputs;         /* widths of a block's four products, summed */
    double block, embed, head;      /* parameters of a unit */
    double param_bytes, grad_bytes; /* of an element, where it travels */
    double act_bytes;               /* of an activation's element */
    double micro_steps;
} shape_t;

typedef struct compute {
    double products, attention, passes;
} compute_t;

static shape_t shape_of(const options_t *o, const fit_machine_t *machine)
{
    shape_t s = {.is_llama = o->model.arch != ARCH_GPT2, .on_gpu = machine->rates.is_gpu};
    s.fp8 = o->train.fp8 != FP8_NONE;
    s.exact_dw = o->train.fp8 == FP8_LINEAR_EXACT_DW;
    s.L = (double)o->model.layers;
    s.R = (double)(o->train.micro_batch * o->model.seq_len);
    s.C = (double)o->model.dim;
    s.F = (double)o->model.ffn_dim;
    s.V = (double)o->model.vocab_size;
    s.T = (double)o->model.seq_len;
    double seen = o->model.window > 0 ? fmin((double)o->model.window, s.T) : s.T;
    s.keys = seen - 0.5 * seen * seen / s.T; /* that a query sees, on average */
    s.heads = (double)o->model.heads;
    s.head_dim = (double)options_head_dim(o);
    s.A = s.heads * s.head_dim;
    s.has_bias = o->model.arch == ARCH_GPT2 || o->model.arch == ARCH_QWEN2;
    s.has_head_norms = o->model.arch == ARCH_QWEN3;
    s.rotated = s.is_llama ? (s.heads + (double)o->model.kv_heads) * s.head_dim : 0.0;
    s.qkv = (s.heads + 2.0 * (double)o->model.kv_heads) * s.head_dim;
    double mlp = s.is_llama ? 2.0 * s.F : s.F, positions = s.is_llama ? 0.0 : (double)options_positions(o) * s.C;
    const double products[N_PRODUCTS] = {s.C * s.qkv, s.A * s.C, s.C * mlp, s.F * s.C};
    memcpy(s.products, products, sizeof products);
    s.last_matrix = products[N_PRODUCTS - 1];
    s.matrices = products[0] + products[1] + products[2] + products[3];
    s.inputs = 2.0 * s.C + s.A + s.F;
    s.outputs = s.qkv + s.C + mlp + s.C;
    s.block = s.matrices + (s.is_llama ? 2.0 * s.C : s.outputs + 4.0 * s.C); /* gpt2: biases, and norms' too */
    if (s.has_head_norms)
        s.block += 2.0 * s.head_dim;
    s.embed = s.V * s.C + positions;
    s.head = s.is_llama ? s.C + (o->model.tied ? 0.0 : s.V * s.C) : 2.0 * s.C;
    s.param_bytes = (double)zero_dtype_size((zero_dtype_t)o->train.precision);
    s.act_bytes = s.on_gpu ? s.param_bytes : sizeof(float);
    s.micro_steps = (double)options_micro_steps(o, machine->n_ranks);
    s.adds_locally = o->zero.stage < 2 && s.micro_steps > 1 && !o->zero.reduce_every_micro_step;
    s.grad_bytes = s.adds_locally ? sizeof(float) : s.param_bytes;
    return s;
}

static double n_params(const shape_t *s)
{
    return s->L * s->block + s->embed + s->head;
}

/* Returns the rate for heads of this size: proportional to it below 64, then a line to 128. */
static double attention_rate(const double rates[2], double head_dim)
{
    if (head_dim <= 64.0)
        return rates[0] * head_dim / 64.0;
    return rates[0] + (rates[1] - rates[0]) * (fmin(head_dim, 128.0) - 64.0) / 64.0;
}

/* Returns the seconds of casting n_elems activations to fp8: one pass for the maximum, one that writes `copies`. */
static double cast_s(const fit_rates_t *rates, double n_elems, double bytes_read, double copies)
{
    return n_elems * (bytes_read + copies) / rates->cast;
}

/* Casts of a block in forward, once more if backward runs it again. Weights: their maximum is found once. */
static double casts_forward(const shape_t *s, const fit_rates_t *rates, bool gathered, bool again)
{
    bool keeps = !s->light && !s->full && !s->exact_dw;
    double inputs = again ? s->inputs - s->F : s->inputs, matrices = again ? s->matrices - s->last_matrix : s->matrices;
    if (!s->fp8)
        return 0.0;
    return cast_s(rates, s->R * inputs, 2.0 * s->act_bytes, keeps ? 2.0 : 1.0) +
           (gathered ? 0.0 : cast_s(rates, matrices, (again ? 1.0 : 2.0) * s->param_bytes, 1.0));
}

static double casts_backward(const shape_t *s, const fit_rates_t *rates, bool gathered)
{
    bool casts_inputs = (s->light || s->full) && !s->exact_dw;
    if (!s->fp8)
        return 0.0;
    return cast_s(rates, s->R * s->outputs, 2.0 * s->act_bytes, s->exact_dw ? 1.0 : 2.0) +
           (casts_inputs ? cast_s(rates, s->R * s->inputs, s->act_bytes, 1.0) : 0.0) +
           cast_s(rates, s->matrices, gathered ? 1.0 : s->param_bytes, 1.0);
}

/* Elements that norms, activation function and rotation read and write for a row of a block. */
static double forward_elems(const shape_t *s)
{
    return 8.0 * s->C + (s->is_llama ? 3.0 : 2.0) * s->F + 2.0 * s->rotated + (s->has_head_norms ? 2.0 * s->qkv : 0.0);
}

/* With biases: q's, k's and v's gradients take a pass of their own. With head norms: forward's are done again (by the
 * block's forward, if recompute is full), and each head's gradient is read with its input and written. light: the
 * norms' outputs and the activation function's are written again. */
static double backward_elems(const shape_t *s)
{
    double normed_again = s->full ? 0.0 : 2.0 * s->qkv + 2.0 * s->rotated;
    double of_heads = s->has_head_norms ? normed_again + 3.0 * s->rotated : 0.0;
    return 8.0 * s->C + (s->is_llama ? 5.0 : 3.0) * s->F + 2.0 * s->rotated + (s->has_bias ? s->qkv : 0.0) + of_heads +
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

/* Returns the seconds of multiplying R rows with a matrix, at a rate for large products. */
static double product_s(const fit_rates_t *rates, double rate, const shape_t *s, double matrix)
{
    double flops = 2.0 * s->R * matrix;
    return flops / (rate * size_share(rates, flops));
}

/* Returns the seconds of the first n products of a block. */
static double products_s(const fit_rates_t *rates, double rate, const shape_t *s, int n)
{
    double seconds = 0.0;
    for (int i = 0; i < n; i++)
        seconds += product_s(rates, rate, s, s->products[i]);
    return seconds;
}

static double attention_flops(const shape_t *s, const fit_rates_t *rates) /* of a block, forward */
{
    return 4.0 * s->R * s->keys * s->A * (1.0 + rates->tile / s->T);
}

/* Blocks' forward in one micro-step. */
static compute_t forward(const options_t *o, const fit_rates_t *rates, const shape_t *s)
{
    double kernels = s->L * (s->is_llama ? 9.0 : 8.0) + s->L * (s->fp8 ? 12.0 : 0.0);
    return (compute_t){
        .products = s->L * products_s(rates, product_rate(rates, o, s->fp8), s, N_PRODUCTS),
        .attention = s->L * attention_flops(s, rates) / attention_rate(rates->attention_forward, s->head_dim),
        .passes = s->L * (s->R * forward_elems(s) * s->act_bytes / rates->pass +
                          casts_forward(s, rates, o->zero.gather == GATHER_FP8, false)) +
                  kernels * rates->kernel_s,
    };
}

/* What backward runs again with recompute = full: a block's forward but for its last product. */
static void add_recomputation(const options_t *o, const fit_rates_t *rates, const shape_t *s, compute_t *backward)
{
    if (!s->full)
        return;
    backward->products += s->L * products_s(rates, product_rate(rates, o, s->fp8), s, N_PRODUCTS - 1);
    backward->attention += s->L * attention_flops(s, rates) / attention_rate(rates->attention_forward, s->head_dim);
    backward->passes += s->L * (s->R * (forward_elems(s) - 2.0 * s->C) * s->act_bytes / rates->pass +
                                casts_forward(s, rates, o->zero.gather == GATHER_FP8, true) + 7.0 * rates->kernel_s);
}

/* The head's forward and backward in one micro-step, and the sums of gradients. */
static compute_t head(const options_t *o, const fit_machine_t *machine, const shape_t *s)
{
    const fit_rates_t *rates = &machine->rates;
    double N = (double)machine->n_ranks, half = product_rate(rates, o, false);
    double products = 3.0 * product_s(rates, half, s, s->V * s->C),
           loss = s->R * (2.0 * s->V + 9.0 * s->C) * s->act_bytes;
    /* Every rank reads N slices of its shard and adds them to its sums, which later micro-steps read again. */
    double later = s->micro_steps > 1.0 ? sizeof(float) * (s->micro_steps - 1.0) / s->micro_steps : 0.0;
    double sums = n_params(s) * (s->grad_bytes + (sizeof(float) + later) / N);
    return (compute_t){.products = products, .passes = loss / rates->pass + sums / rates->sum + 10.0 * rates->kernel_s};
}

/* Blocks' backward in one micro-step. */
static compute_t backward(const options_t *o, const fit_rates_t *rates, const shape_t *s)
{
    double kernels = s->L * (16.0 + (s->fp8 ? 12.0 : 0.0));
    double half = product_rate(rates, o, false), in_fp8 = product_rate(rates, o, s->fp8);
    compute_t c = {
        .products = s->L * (products_s(rates, in_fp8, s, N_PRODUCTS) +
                            products_s(rates, s->exact_dw ? half : in_fp8, s, N_PRODUCTS)),
        .attention = s->L * BACKWARD_ATTENTION * attention_flops(s, rates) /
                     attention_rate(rates->attention_backward, s->head_dim),
        .passes = s->L * (s->R * backward_elems(s) * s->act_bytes / rates->pass +
                          casts_backward(s, rates, o->zero.gather == GATHER_FP8)) +
                  kernels * rates->kernel_s,
    };
    add_recomputation(o, rates, s, &c);
    return c;
}

/* Returns the shape of those blocks alone of which so much is recomputed. */
static shape_t blocks_of(const options_t *o, const shape_t *s, options_recompute_t recompute)
{
    shape_t blocks = *s;
    blocks.light = recompute == RECOMPUTE_LIGHT;
    blocks.full = recompute == RECOMPUTE_FULL;
    blocks.L = 0.0;
    for (int64_t l = 0; l < o->model.layers; l++)
        blocks.L += options_block_recompute(o, l) == recompute ? 1.0 : 0.0;
    return blocks;
}

static compute_t plus(compute_t a, compute_t b)
{
    return (compute_t){a.products + b.products, a.attention + b.attention, a.passes + b.passes};
}

static double sum_of(compute_t c)
{
    return c.products + c.attention + c.passes;
}

/* ---- between ranks ---- */

/* Bytes that a rank receives: in a micro-step's forward and backward; in a step for new parameters, and for reduced
 * gradients, which stage 0 gathers; and those of the last unit's gradients, for which nothing is left to compute. */
typedef struct traffic {
    double forward, backward, step, last;
} traffic_t;

static traffic_t traffic_of(const options_t *o, const fit_machine_t *machine, const shape_t *s)
{
    bool fp8 = s->fp8 && o->zero.gather == GATHER_FP8;
    double N = (double)machine->n_ranks, others = (N - 1.0) / N;
    double group = o->zero.shard_group > 0 ? (double)o->zero.shard_group : N, in_group = (group - 1.0) / group;
    double block = s->block * (fp8 ? 1.0 : s->param_bytes), ends = (s->embed + s->head) * s->param_bytes;
    double all = n_params(s), kept = fmin(fmax((double)o->zero.keep, 1.0), s->L);
    traffic_t t = {0};
    if (o->zero.stage == 3) {
        t.forward = in_group * (s->L * block + ends);
        t.backward = in_group * (s->L - kept) * block;
        t.step = (1.0 / group - 1.0 / N) * all * s->param_bytes; /* parts of other groups */
    } else if (o->zero.stage > 0) {
        t.step = others * (s->L * block + ends);
    } else {
        t.step = others * all * sizeof(float);
    }
    double gradients = others * all * s->grad_bytes;
    t.backward += s->adds_locally ? 0.0 : gradients;
    t.step += s->adds_locally ? gradients : 0.0;
    t.last = others * s->embed * s->grad_bytes;
    return t;
}

/* Returns the seconds of receiving n_bytes: those of this host and those of others arrive at once. */
static double receive_s(const fit_machine_t *machine, double n_bytes)
{
    const fit_rates_t *rates = &machine->rates;
    double N = (double)machine->n_ranks, in_host = fmin((double)machine->ranks_per_host, N);
    if (N <= in_host)
        return n_bytes / rates->link;
    return fmax(n_bytes * (in_host - 1.0) / (N - 1.0) / rates->nccl,
                n_bytes * (N - in_host) / (N - 1.0) / rates->network);
}

static double excess(double a, double b)
{
    return a > b ? a - b : 0.0;
}

/* Returns the seconds a step that communication costs. */
static double wire_s(const options_t *o, const fit_machine_t *machine, const shape_t *s, double forward,
                     double backward)
{
    const fit_rates_t *rates = &machine->rates;
    const double k = s->micro_steps, n_units = s->L + 2.0;
    bool one_host = machine->n_ranks <= machine->ranks_per_host;
    if (machine->n_ranks == 1)
        return 0.0;
    traffic_t t = traffic_of(o, machine, s);
    double in_forward = receive_s(machine, t.forward), in_backward = receive_s(machine, t.backward);
    double in_step = receive_s(machine, t.step), all = k * (in_forward + in_backward) + in_step;
    if (!o->zero.overlap || !s->on_gpu || o->zero.comm == ZERO_COMM_MPI)
        return all;
    double waits = k * n_units * rates->wait_s * (o->zero.stage == 3 ? 4.0 : 2.0);
    double exposed = (k - 1.0) * excess(in_forward, forward) + excess(in_forward + in_step, forward) +
                     k * excess(in_backward, backward) + receive_s(machine, t.last);
    return exposed + all * (one_host ? rates->link_lost : rates->nccl_lost) + rates->awake * k * (forward + backward) +
           waits;
}

/* ---- host memory ---- */

/* Returns the share of AdamW's state that is in host memory. */
static double offloaded_share(const options_t *o, const fit_machine_t *machine)
{
    bool offloads = o->zero.offload == OFFLOAD_OPTIMIZER && machine->rates.is_gpu && o->zero.stage > 0;
    return offloads ? fmax(o->zero.offload_ratio, 0.0) : 0.0;
}

/* Returns the bytes of the optimizer's state arrays per parameter. */
static double array_bytes(const options_t *o)
{
    return o->train.optimizer == ZERO_OPTIMIZER_ADAMW || o->train.optimizer == ZERO_OPTIMIZER_MUON ? 8.0 : 4.0;
}

/* Returns the seconds a step that offload costs. The GPU's update: state comes in under backward and goes out under the
 * next forward, as far as there are idle activations to stage it in; the rest is copied both ways at once, and waited
 * for. The host's: one pass over the state once the norm is known, under the next forward. */
static double offload_s(const options_t *o, const fit_machine_t *machine, const shape_t *s, double activation_bytes,
                        double forward, double backward)
{
    const fit_rates_t *rates = &machine->rates;
    double in_host = fmin((double)machine->ranks_per_host, (double)machine->n_ranks);
    double pcie = fmin(rates->pcie, rates->host_pcie / in_host);
    double n = offloaded_share(o, machine) * n_params(s) / (double)machine->n_ranks;
    double master_lo = o->train.precision == ZERO_FP32 ? 0.0 : o->train.precision == ZERO_BF16 ? 2.0 : 4.0;
    double bytes = n * (array_bytes(o) + master_lo);
    if (n == 0.0)
        return 0.0;
    if (o->zero.offload_update == ZERO_OFFLOAD_UPDATE_HOST)
        return excess(fmax(n * (18.0 + 2.0 * array_bytes(o)) / (rates->host_adam / in_host), n * 4.0 / pcie), forward);
    double staged = fmin(bytes, activation_bytes);
    return excess(staged / pcie, backward) + excess(staged / pcie, forward) + (bytes - staged) / pcie;
}

static double optimizer_s(const options_t *o, const fit_machine_t *machine, const shape_t *s)
{
    double elem_bytes = (o->train.precision == ZERO_FP16 ? 14.0 : 12.0) + 2.0 * array_bytes(o), updated = n_params(s);
    if (o->zero.stage > 0)
        updated /= (double)machine->n_ranks;
    if (o->zero.offload_update == ZERO_OFFLOAD_UPDATE_HOST)
        updated *= 1.0 - offloaded_share(o, machine);
    return updated * elem_bytes / machine->rates.adam;
}

fit_time_t fit_step_time(const options_t *o, const fit_machine_t *machine, double activation_bytes)
{
    shape_t s = shape_of(o, machine);
    compute_t f = {0}, b = head(o, machine, &s);
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
        shape_t blocks = blocks_of(o, &s, (options_recompute_t)recompute);
        f = plus(f, forward(o, &machine->rates, &blocks));
        b = plus(b, backward(o, &machine->rates, &blocks));
    }
    const double ms = 1e3, k = s.micro_steps;
    fit_time_t t = {.products = k * (f.products + b.products) * ms,
                    .attention = k * (f.attention + b.attention) * ms,
                    .passes = k * (f.passes + b.passes) * ms,
                    .optimizer = optimizer_s(o, machine, &s) * ms,
                    .wire = wire_s(o, machine, &s, sum_of(f), sum_of(b)) * ms,
                    .pcie = offload_s(o, machine, &s, activation_bytes, sum_of(f), sum_of(b)) * ms};
    t.total = t.products + t.attention + t.passes + t.optimizer + t.wire + t.pcie;
    return t;
}
