/* step_moves.c - a model's sizes, and what a step does in addition to the model's compute: bytes between ranks,
 * the optimizer. See step_work.h. */
#include "train/predict/step_work.h"

#include <math.h>
#include <string.h>

#include "train/options/families.h"

/* ---- a model's sizes ---- */

#define MOST_MATRICES 7 /* of a block */

typedef struct matrix {
    double rows, columns; /* inputs and outputs */
    int product;          /* matrices with equal numbers are multiplied as one */
} matrix_t;

/* Lists a block's matrices in the order of lora_targets. Returns how many. */
static int list_matrices(const fit_shape_t *s, matrix_t matrices[MOST_MATRICES])
{
    const double kv = s->rotated - s->A;
    matrix_t *m = matrices;
    if (s->fuses_qkv) {
        *m++ = (matrix_t){s->C, s->qkv, 0};
    } else {
        *m++ = (matrix_t){s->C, s->A, 0};
        *m++ = (matrix_t){s->C, kv, 0};
        *m++ = (matrix_t){s->C, kv, 0};
    }
    *m++ = (matrix_t){s->A, s->C, 1};
    if (s->fuses_mlp) {
        *m++ = (matrix_t){s->C, s->is_llama ? 2.0 * s->F : s->F, 2};
    } else {
        *m++ = (matrix_t){s->C, s->F, 2};
        *m++ = (matrix_t){s->C, s->F, 2};
    }
    *m++ = (matrix_t){s->F, s->C, 3};
    return (int)(m - matrices);
}

/* Returns whether layer `product` has a bias: of the Llama family q, k and v may have one. */
static bool has_bias(const fit_shape_t *s, int product)
{
    return s->has_bias && (!s->is_llama || product == 0);
}

/* A layer's adapters. */
typedef struct adapted_layer {
    int n;                /* matrices with adapters, of those that are multiplied as one */
    bool is_whole;        /* that is all of these */
    double input, output; /* widths: of the layer's input, and of what the n compute */
} adapted_layer_t;

/* Returns whether the activation function adds what adapters of the matrices around it give (lora_is_fused). */
static bool adapters_are_fused(const options_t *o, const fit_shape_t *s)
{
    const int64_t rank = o->lora.rank;
    return s->on_gpu && s->is_llama && o->train.precision == ZERO_BF16 && rank % 8 == 0 && rank <= 32 &&
           o->model.ffn_dim % 8 == 0;
}

/* Adds what adapters of a layer, one of four, read and write. GPUs have a kernel for bf16 and some ranks that reads the
 * gradient of its output once for both of its products; in fp8 it casts the gradient, and the layer's input, on the
 * way.
 */
static void add_layer(const options_t *o, const adapted_layer_t *layer, int product, fit_shape_t *s)
{
    const int64_t rank = o->lora.rank, all = rank * layer->n;
    const bool has_kernel = s->on_gpu && o->train.precision == ZERO_BF16, fused = adapters_are_fused(o, s);
    const bool writes = layer->is_whole && !has_bias(s, product), adds_later = fused && product == 2;
    const bool takes_x = has_kernel && s->fp8 && (writes || adds_later) && all % 8 == 0 && all <= 48 && all != 40;
    const bool takes_dy = has_kernel && (rank == 8 || rank == 16 || rank == 32);
    s->low_inputs += layer->input;
    s->low_outputs += adds_later ? 0.0 : layer->output;
    s->low_read += adds_later || writes ? 0.0 : layer->output;
    s->low_d_x += fused && product == 3 ? 0.0 : layer->input;
    s->low_x += takes_x ? 0.0 : layer->input;
    s->low_dy += layer->output * (!takes_dy ? 2.0 : s->fp8 && layer->is_whole ? 0.0 : 1.0);
}

/* Adds what [lora] asks for. An input that several matrices share is read once. */
static void add_adapters(const options_t *o, fit_shape_t *s)
{
    const lora_options_t *lora = &o->lora;
    matrix_t matrices[MOST_MATRICES];
    const int n = lora->rank > 0 ? list_matrices(s, matrices) : 0;
    adapted_layer_t layers[FIT_N_PRODUCTS] = {{0}};
    s->is_frozen = lora->rank > 0;
    for (int i = 0; i < FIT_N_PRODUCTS; i++)
        layers[i].is_whole = true;
    for (int i = 0; i < n; i++) {
        adapted_layer_t *layer = &layers[matrices[i].product];
        if (!(lora->target_set >> i & 1)) {
            layer->is_whole = false;
            continue;
        }
        s->adapters += (double)lora->rank * (matrices[i].rows + matrices[i].columns);
        layer->n++;
        layer->input = matrices[i].rows;
        layer->output += matrices[i].columns;
    }
    for (int product = 0; product < FIT_N_PRODUCTS; product++)
        if (layers[product].n > 0)
            add_layer(o, &layers[product], product, s);
}

fit_shape_t fit_shape_of(const options_t *o, const fit_machine_t *machine)
{
    const family_t *family = family_of(&o->model);
    fit_shape_t s = {.is_llama = o->model.arch != ARCH_GPT2,
                     .fuses_qkv = o->model.arch == ARCH_GPT2 || family->fuses_qkv,
                     .fuses_mlp = o->model.arch == ARCH_GPT2 || family->gate_up,
                     .on_gpu = machine->rates.is_gpu};
    s.fp8 = o->train.fp8 != FP8_NONE;
    s.L = (double)o->model.layers;
    s.K = (double)options_sequence_ranks(&o->train);
    s.R = (double)o->train.micro_batch * (double)options_longest_part(o);
    s.C = (double)o->model.dim;
    s.F = (double)o->model.ffn_dim;
    s.V = (double)o->model.vocab_size;
    s.T = (double)o->model.seq_len;
    s.keys = options_mean_keys(&o->model); /* that a query sees, on average */
    s.heads = (double)o->model.heads;
    s.head_dim = (double)options_head_dim(&o->model);
    s.A = s.heads * s.head_dim;
    s.has_bias = o->model.arch == ARCH_GPT2 || o->model.qkv_bias;
    s.has_head_norms = family->qk_norm != QK_NORM_NONE;
    s.rotated = s.is_llama ? (s.heads + (double)o->model.kv_heads) * s.head_dim : 0.0;
    s.qkv = (s.heads + 2.0 * (double)o->model.kv_heads) * s.head_dim;
    double mlp = s.is_llama ? 2.0 * s.F : s.F,
           positions = s.is_llama ? 0.0 : (double)options_positions(&o->model) * s.C;
    const double products[FIT_N_PRODUCTS] = {s.C * s.qkv, s.A * s.C, s.C * mlp, s.F * s.C};
    const double inner[FIT_N_PRODUCTS] = {s.C, s.A, s.C, s.F};
    memcpy(s.products, products, sizeof products);
    memcpy(s.inner, inner, sizeof inner);
    s.last_matrix = products[FIT_N_PRODUCTS - 1];
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
    s.micro_steps = (double)options_micro_steps(&o->train, machine->n_ranks);
    s.adds_locally = o->zero.stage < 2 && s.micro_steps > 1 && !o->zero.reduce_every_micro_step;
    s.grad_bytes = s.adds_locally ? sizeof(float) : s.param_bytes;
    add_adapters(o, &s);
    return s;
}

double fit_n_params(const fit_shape_t *s)
{
    return s->L * (s->block + s->adapters) + s->embed + s->head;
}

double fit_n_trained(const fit_shape_t *s)
{
    return s->is_frozen ? s->L * s->adapters : fit_n_params(s);
}

/* ---- Muon (docs/design.md) ---- */

/* The share of the rate of large products that those of its iteration reach. For each, twice a kernel's start and tail
 * is added. Fitted to two of the H200's steps before products were joined, and right for one since (docs/fit.md);
 * libzero's own products on a CPU reach 0.88 of OpenBLAS's rate. */
#define MUON_SHARE 0.86
/* Reads and writes of the owner of a matrix for each element: joined of parts, its norm, divided by it, copied after an
 * odd number of steps, cut. */
#define MUON_COPIES 9.0

static double update_bytes(const fit_shape_t *s)
{
    return s->on_gpu ? 2.0 : sizeof(float);
}

/* Returns the seconds of orthogonalizing a matrix: the Gram matrix, a polynomial of that, and both multiplied, in each
 * step. GPUs join up to three steps of a matrix with unequal sides: then the first and the last are made once, and a
 * step has up to four products of squares between them (kernels/cuda/orthogonalize_cuda.c). */
static double orthogonalize_s(const fit_work_t *work, matrix_t m)
{
    const fit_rates_t *rates = &work->machine->rates;
    const double steps = (double)work->options->train.muon_steps,
                 rate = work->shape.on_gpu ? rates->half : rates->single;
    const double r = fmin(m.rows, m.columns), c = fmax(m.rows, m.columns);
    const double groups = work->shape.on_gpu && 2.0 * c > 3.0 * r ? ceil(steps / 3.0) : steps;
    const double squares = 4.0 * steps - 3.0 * groups;
    const double flops = groups * 4.0 * r * r * c + squares * 2.0 * r * r * r;
    return flops / (MUON_SHARE * rate) + (2.0 * groups + squares) * 2.0 * rates->kernel_s +
           MUON_COPIES * m.rows * m.columns * update_bytes(&work->shape) / rates->pass;
}

/* Returns the seconds of a block whose matrices so many ranks share out, the most expensive first, each to the one that
 * has the least to do. */
static double orthogonalize_block_s(const fit_work_t *work, int n_ranks)
{
    matrix_t matrices[MOST_MATRICES];
    double left[MOST_MATRICES], load[MOST_MATRICES] = {0}, most = 0.0;
    const int n = list_matrices(&work->shape, matrices), owners = n_ranks < n ? n_ranks : n;
    for (int i = 0; i < n; i++)
        left[i] = orthogonalize_s(work, matrices[i]);
    for (int taken = 0; taken < n; taken++) {
        int largest = 0, idlest = 0;
        for (int i = 1; i < n; i++)
            largest = left[i] > left[largest] ? i : largest;
        for (int owner = 1; owner < owners; owner++)
            idlest = load[owner] < load[idlest] ? owner : idlest;
        load[idlest] += left[largest];
        left[largest] = -1.0;
        most = fmax(most, load[idlest]);
    }
    return most;
}

static bool is_muon(const fit_work_t *work)
{
    return work->options->train.optimizer == ZERO_OPTIMIZER_MUON;
}

/* Rounds in which every rank has a block of its own, and blocks that are left for one more. */
typedef struct rounds {
    int64_t full, left;
} rounds_t;

static rounds_t rounds_of(const fit_work_t *work)
{
    return (rounds_t){work->options->model.layers / work->machine->n_ranks,
                      work->options->model.layers % work->machine->n_ranks};
}

/* Returns the seconds of the rank that has the most to do. Adapters, of low rank, take next to nothing. */
static double muon_s(const fit_work_t *work)
{
    if (work->shape.is_frozen)
        return 0.0;
    const rounds_t rounds = rounds_of(work);
    double seconds = (double)rounds.full * orthogonalize_block_s(work, 1);
    if (rounds.left > 0)
        seconds += orthogonalize_block_s(work, work->machine->n_ranks / (int)rounds.left);
    return seconds;
}

/* Returns what a rank receives: in every round a unit's size twice, or, where all ranks have all state, every rank's
 * results. */
static double muon_bytes(const fit_work_t *work)
{
    const fit_shape_t *s = &work->shape;
    const double N = (double)work->machine->n_ranks, unit = (s->is_frozen ? s->adapters : s->block) * update_bytes(s);
    const rounds_t rounds = rounds_of(work);
    double times = work->options->zero.stage > 0 ? 2.0 * (N - 1.0) / N : N - 1.0;
    return (double)(rounds.full + (rounds.left > 0)) * times * unit;
}

/* ---- between ranks ---- */

/* Bytes that a rank receives: in a micro-step's forward and backward; in a step for new parameters, and for reduced
 * gradients, which stage 0 gathers; and those of the last unit's gradients, for which nothing is left to compute. */
typedef struct traffic {
    double forward, backward, step, last;
} traffic_t;

static traffic_t traffic_of(const fit_work_t *work, int64_t keep)
{
    const options_t *o = work->options;
    const fit_machine_t *machine = work->machine;
    const fit_shape_t *s = &work->shape;
    bool fp8 = s->is_frozen ? o->lora.base == BASE_FP8 : s->fp8 && o->zero.gather == GATHER_FP8;
    double N = (double)machine->n_ranks, others = (N - 1.0) / N;
    double group = o->zero.shard_group > 0 ? (double)o->zero.shard_group : N, in_group = (group - 1.0) / group;
    double adapters = s->adapters * s->param_bytes, block = s->block * (fp8 ? 1.0 : s->param_bytes) + adapters,
           ends = (s->embed + s->head) * s->param_bytes;
    double trained = fit_n_trained(s), changed = s->is_frozen ? s->L * adapters : s->L * block + ends; /* bytes */
    double kept = fmin(fmax((double)keep, 1.0), s->L);
    traffic_t t = {0};
    if (o->zero.stage == 3) {
        t.forward = in_group * (s->L * block + ends);
        t.backward = in_group * (s->L - kept) * block;
        t.step = (1.0 / group - 1.0 / N) * changed; /* parts of other groups */
    } else if (o->zero.stage > 0) {
        t.step = others * changed;
    } else {
        t.step = others * trained * sizeof(float);
    }
    double gradients = others * trained * s->grad_bytes;
    t.backward += s->adds_locally ? 0.0 : gradients;
    t.step += s->adds_locally ? gradients : 0.0;
    t.last = s->is_frozen ? 0.0 : others * s->embed * s->grad_bytes;
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

/* Returns what exchanges of a sequence that ranks share take in one pass over a block: q, k and v one way, what
 * attention gives the other. Compute waits for them, and each time for every other rank. Rows are packed before and
 * unpacked behind. */
static double exchange_s(const fit_work_t *work)
{
    const fit_shape_t *s = &work->shape;
    const fit_rates_t *rates = &work->machine->rates;
    const double n_bytes = s->R * (s->qkv + s->A) * s->act_bytes;
    if (s->K <= 1.0)
        return 0.0;
    return n_bytes * (s->K - 1.0) / s->K / rates->link + 4.0 * n_bytes / rates->pass +
           2.0 * ((s->K - 1.0) * rates->wait_s + 4.0 * s->K * rates->kernel_s);
}

/* Returns what all exchanges of a step take. */
static double all_exchanges_s(const fit_work_t *work, const fit_variant_t *variant)
{
    const double passes = 2.0 * work->shape.L + (double)variant->blocks[RECOMPUTE_FULL];
    return work->shape.micro_steps * passes * exchange_s(work);
}

fit_wire_t fit_wire_s(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t compute)
{
    const options_t *o = work->options;
    const fit_machine_t *machine = work->machine;
    const fit_shape_t *s = &work->shape;
    const fit_rates_t *rates = &machine->rates;
    const double k = s->micro_steps, n_units = s->L + 2.0, forward = compute.forward, backward = compute.backward;
    bool one_host = machine->n_ranks <= machine->ranks_per_host;
    if (machine->n_ranks == 1)
        return (fit_wire_t){0};
    traffic_t t = traffic_of(work, variant->keep);
    double in_forward = receive_s(machine, t.forward), in_backward = receive_s(machine, t.backward);
    double in_step = receive_s(machine, t.step), all = k * (in_forward + in_backward) + in_step;
    double exchange = is_muon(work) ? receive_s(machine, muon_bytes(work)) : 0.0; /* nothing overlaps these */
    exchange += all_exchanges_s(work, variant);
    if (!o->zero.overlap || !s->on_gpu || o->zero.comm == ZERO_COMM_MPI)
        return (fit_wire_t){in_forward, in_backward, all + exchange};
    double waits = k * n_units * rates->wait_s * (o->zero.stage == 3 ? 4.0 : 2.0);
    fit_wire_t wire = {.in_forward = fit_excess(in_forward + in_step, forward),
                       .in_backward = fit_excess(in_backward, backward)};
    double exposed = (k - 1.0) * fit_excess(in_forward, forward) + wire.in_forward + k * wire.in_backward +
                     receive_s(machine, t.last);
    wire.all = exposed + exchange + all * (one_host ? rates->link_lost : rates->nccl_lost) +
               rates->awake * k * (forward + backward) + waits;
    return wire;
}

/* ---- the optimizer ---- */

double fit_offloaded_share(const fit_work_t *work, const fit_variant_t *variant)
{
    const options_t *o = work->options;
    bool offloads = o->zero.offload != OFFLOAD_NONE && work->shape.on_gpu && o->zero.stage > 0;
    return offloads ? fmax(variant->offload_ratio, 0.0) : 0.0;
}

double fit_array_bytes(const options_t *o)
{
    switch (o->train.optimizer) {
    case ZERO_OPTIMIZER_ADAMW:
    case ZERO_OPTIMIZER_MUON:
        return 8.0;
    case ZERO_OPTIMIZER_ADAMW8BIT:
        return 2.125;
    default:
        return 4.0;
    }
}

double fit_optimizer_s(const fit_work_t *work, const fit_variant_t *variant)
{
    const options_t *o = work->options;
    const fit_shape_t *s = &work->shape;
    double gradient_and_weight = o->train.precision == ZERO_FP16 ? 14.0 : 12.0;
    double elem_bytes = gradient_and_weight + 2.0 * fit_array_bytes(o), updated = fit_n_trained(s);
    if (o->zero.offload_update == ZERO_OFFLOAD_UPDATE_HOST)
        updated *= 1.0 - fit_offloaded_share(work, variant);
    double bytes = updated * elem_bytes;
    if (is_muon(work)) /* of hidden matrices one array is updated, and the update written and read */
        bytes += s->L * s->matrices * (gradient_and_weight + 8.0 + 2.0 * update_bytes(s) - elem_bytes);
    if (o->zero.stage > 0)
        bytes /= (double)work->machine->n_ranks;
    return bytes / work->machine->rates.adam + (is_muon(work) ? muon_s(work) : 0.0);
}
