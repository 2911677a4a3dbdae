/* step_moves.c - a model's sizes, and what a step does in addition to the model's compute: bytes between ranks, copies
 * from and to host memory, the optimizer. See step_work.h. */
#include "train/planning/step_work.h"

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

/* Adds what [lora] asks for. An input that several matrices share is read once. */
static void add_adapters(const lora_options_t *lora, fit_shape_t *s)
{
    matrix_t matrices[MOST_MATRICES];
    const int n = lora->rank > 0 ? list_matrices(s, matrices) : 0;
    int last = -1;
    s->is_frozen = lora->rank > 0;
    for (int i = 0; i < n; i++) {
        if (!(lora->target_set >> i & 1))
            continue;
        s->adapters += (double)lora->rank * (matrices[i].rows + matrices[i].columns);
        s->low_outputs += matrices[i].columns;
        s->low_inputs += matrices[i].product == last ? 0.0 : matrices[i].rows;
        last = matrices[i].product;
    }
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
    add_adapters(&o->lora, &s);
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

static double excess(double a, double b)
{
    return a > b ? a - b : 0.0;
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
    fit_wire_t wire = {.in_forward = excess(in_forward + in_step, forward),
                       .in_backward = excess(in_backward, backward)};
    double exposed =
        (k - 1.0) * excess(in_forward, forward) + wire.in_forward + k * wire.in_backward + receive_s(machine, t.last);
    wire.all = exposed + exchange + all * (one_host ? rates->link_lost : rates->nccl_lost) +
               rates->awake * k * (forward + backward) + waits;
    return wire;
}

/* ---- host memory ---- */

/* Returns the share of AdamW's state that is in host memory. */
static double offloaded_share(const fit_work_t *work, const fit_variant_t *variant)
{
    const options_t *o = work->options;
    bool offloads = o->zero.offload != OFFLOAD_NONE && work->shape.on_gpu && o->zero.stage > 0;
    return offloads ? fmax(variant->offload_ratio, 0.0) : 0.0;
}

/* Returns the bytes of the optimizer's state arrays per parameter. */
static double array_bytes(const options_t *o)
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

/* Bytes of a rank from host memory to its GPU, and back. */
typedef struct copies {
    double in, out;
} copies_t;

/* Returns the seconds of copies that run at once. Each direction has a link of its own, of which the GPUs of a host
 * share what its root complexes carry. The host's memory carries both directions of all of them. */
static double copy_s(const fit_machine_t *machine, copies_t c)
{
    const fit_rates_t *rates = &machine->rates;
    const double in_host = fmin((double)machine->ranks_per_host, (double)machine->n_ranks);
    const double one_way = fmin(rates->pcie, rates->host_pcie / in_host);
    const double both = rates->host_memory / in_host;
    return fmax(fmax(c.in, c.out) / one_way, (c.in + c.out) / both);
}

/* What the GPU's update copies, in elements of a rank. Chunks of state are in forward order; idle activations take the
 * first of them, `staged`, and the planned buffers the rest, in turn. */
typedef struct streamed {
    double state, grad;  /* bytes of an element: of its state, of its gradient if that leaves the GPU */
    double share;        /* that is offloaded, of the units in backward's order the first */
    double params;       /* bytes of offloaded parameters, which every pass fetches */
    double sums;         /* bytes of sums that wait in host memory for the last micro-step */
    double staged, rest; /* elements */
    double returning;    /* staged, but with gradients that were sent before their buffer was idle */
} streamed_t;

/* Returns the share of the parameters that is in host memory. */
static double params_share(const fit_work_t *work, const fit_variant_t *variant)
{
    return work->shape.on_gpu ? fit_params_ratio(work->options, variant->offload_ratio) : 0.0;
}

/* Returns the bytes of a rank's offloaded parameters, frozen ones included. */
static double params_bytes(const fit_work_t *work, const fit_variant_t *variant)
{
    const fit_shape_t *s = &work->shape;
    const bool in_fp8 = s->is_frozen && work->options->lora.base == BASE_FP8;
    const double less = in_fp8 ? s->L * s->matrices * (s->param_bytes - 1.0) : 0.0;
    return params_share(work, variant) * (fit_n_params(s) * s->param_bytes - less) / (double)work->machine->n_ranks;
}

/* Returns the bytes of a reduced gradient, as plan.c decides if a step reduces once. */
static double reduced_bytes(const fit_work_t *work)
{
    const options_t *o = work->options;
    const bool alone = work->machine->n_ranks == 1;
    const bool is_passed_on = alone && o->train.precision == ZERO_BF16 && !work->shape.adds_locally;
    return is_passed_on || o->zero.gradients == ZERO_BF16 ? 2.0 : 4.0;
}

/* Returns the bytes of a rank's sums that wait in host memory between micro-steps, of n offloaded elements. */
static double sums_bytes(const fit_work_t *work, double n)
{
    const bool wait = work->options->zero.offload_grads == ZERO_OFFLOAD_GRADS_HOST && work->shape.micro_steps > 1.0 &&
                      !work->shape.adds_locally;
    return wait ? n * sizeof(float) : 0.0;
}

/* Gradients leave at once if a unit is reduced once a step. Buffers fall idle from the last unit down. So the gradients
 * of a unit find their chunk's buffer idle if that is in the activations of no earlier unit (state_staging.c,
 * find_grads). Both lie evenly over the units: chunk x of 0..1 belongs to unit (1 - share) + x staged_share, and has a
 * buffer of unit (1 - used) + x used. */
static streamed_t stream_of(const fit_work_t *work, const fit_variant_t *variant, double n)
{
    const options_t *o = work->options;
    const double master_lo = o->train.precision == ZERO_FP32 ? 0.0 : o->train.precision == ZERO_BF16 ? 2.0 : 4.0;
    const bool is_once = work->shape.micro_steps == 1.0 || work->shape.adds_locally;
    /* Where trained parameters are offloaded, the GPU updates them, too. Frozen ones only passes fetch. */
    const double with_param = params_share(work, variant) / offloaded_share(work, variant);
    const double sums = sums_bytes(work, n); /* grad: 4 bytes, too, if they are not 0 */
    streamed_t s = {.state = array_bytes(o) + master_lo + with_param * work->shape.param_bytes,
                    .params = params_bytes(work, variant),
                    .sums = sums,
                    .grad = is_once ? reduced_bytes(work) : sums / n,
                    .share = offloaded_share(work, variant)};
    const double room = variant->activation_bytes / (s.state + s.grad);
    s.staged = fmin(n, room);
    s.rest = n - s.staged;
    const double used = s.staged > 0.0 ? s.staged / room : 0.0, staged_share = s.share * s.staged / n;
    const double late = used - s.share - 1.0 / (work->shape.L + 2.0); /* for the first chunk, beyond a unit */
    if (late > 0.0)
        s.returning = s.staged * fmin(late / (used - staged_share), 1.0);
    return s;
}

/* Returns what backward waits for: fetching what is staged, and sending gradients. Those of the rest leave first, in
 * the backward of their own units, which two buffers hold up if that is too short. */
static double fetch_s(const fit_machine_t *machine, const streamed_t *s, double backward)
{
    const double of_rest = s->share * s->rest / (s->staged + s->rest);
    const copies_t first = {.in = of_rest * s->staged * s->state, .out = s->rest * s->grad};
    const copies_t all = {.in = s->staged * s->state + s->params + s->sums, .out = (s->rest + s->returning) * s->grad};
    return fmax(excess(copy_s(machine, first), of_rest * backward), excess(copy_s(machine, all), backward));
}

/* Returns what the next forward waits for. The stream that stores takes chunks in order, and the rest is fetched into
 * buffers that have been stored: so first what is staged leaves, and then the rest comes in and leaves at once. A unit
 * waits only for its own chunks, so all of it overlaps forward. */
static double store_s(const fit_machine_t *machine, const streamed_t *s, double forward)
{
    const copies_t staged = {.in = s->returning * s->grad + s->params, .out = s->staged * s->state};
    const copies_t rest = {.in = s->rest * (s->state + s->grad), .out = s->rest * s->state};
    return excess(copy_s(machine, staged) + copy_s(machine, rest), forward);
}

/* Returns what backward waits for if it updates: a unit's state comes and leaves while the units behind it compute, of
 * all offloaded units, which backward comes to first. */
static double in_backward_s(const fit_machine_t *machine, const streamed_t *s, double backward)
{
    const double bytes = (s->staged + s->rest) * s->state;
    return excess(copy_s(machine, (copies_t){.in = bytes + s->params + s->sums, .out = bytes}), backward);
}

/* Returns what offloaded state and parameters cost a step. link: the passes' time in which the link is free for them.
 */
static double offloaded_state_s(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t passes,
                                fit_passes_t link)
{
    const options_t *o = work->options;
    const fit_machine_t *machine = work->machine;
    const double in_host = fmin((double)machine->ranks_per_host, (double)machine->n_ranks);
    const double n = offloaded_share(work, variant) * fit_n_trained(&work->shape) / (double)machine->n_ranks;
    if (n == 0.0)
        return 0.0;
    const double fetch = copy_s(machine, (copies_t){.in = params_bytes(work, variant)}); /* of one pass */
    const double sums = sums_bytes(work, n); /* leave and come back in backward */
    const double back = copy_s(machine, (copies_t){.in = params_bytes(work, variant) + sums, .out = sums});
    const double others = (work->shape.micro_steps - 1.0) * (excess(fetch, link.forward) + excess(back, link.backward));
    if (o->zero.offload_update == ZERO_OFFLOAD_UPDATE_HOST) {
        const double update = n * (18.0 + 2.0 * array_bytes(o)) / (machine->rates.host_adam / in_host);
        const double copies = copy_s(machine, (copies_t){.in = params_bytes(work, variant), .out = n * sizeof(float)});
        return others + excess(back, link.backward) +
               fmax(excess(update, passes.forward), excess(copies, link.forward));
    }
    const streamed_t s = stream_of(work, variant, n);
    if (o->zero.update == ZERO_UPDATE_IN_BACKWARD)
        return others + excess(fetch, link.forward) + in_backward_s(machine, &s, link.backward);
    return others + fetch_s(machine, &s, link.backward) + store_s(machine, &s, link.forward);
}

/* Returns how long a micro-step's passes copy activations that wait in host memory: they leave behind forward and come
 * back in backward. */
static fit_passes_t stash_copies(const fit_work_t *work)
{
    const fit_shape_t *s = &work->shape;
    const double n =
        s->on_gpu ? fmax((double)options_offloaded_blocks(&work->options->model) - OPTIONS_STASH_SLOTS, 0.0) : 0.0;
    const double bytes = n * s->R * s->C * s->act_bytes;
    return (fit_passes_t){.forward = copy_s(work->machine, (copies_t){.out = bytes}),
                          .backward = copy_s(work->machine, (copies_t){.in = bytes})};
}

/* Activations come first: they take the link in every micro-step. */
double fit_offload_s(const fit_work_t *work, const fit_variant_t *variant, fit_passes_t passes)
{
    const fit_passes_t stash = stash_copies(work);
    const fit_passes_t link = {.forward = excess(passes.forward, stash.forward),
                               .backward = excess(passes.backward, stash.backward)};
    return offloaded_state_s(work, variant, passes, link) +
           work->shape.micro_steps * (excess(stash.forward, passes.forward) + excess(stash.backward, passes.backward));
}

double fit_optimizer_s(const fit_work_t *work, const fit_variant_t *variant)
{
    const options_t *o = work->options;
    const fit_shape_t *s = &work->shape;
    double gradient_and_weight = o->train.precision == ZERO_FP16 ? 14.0 : 12.0;
    double elem_bytes = gradient_and_weight + 2.0 * array_bytes(o), updated = fit_n_trained(s);
    if (o->zero.offload_update == ZERO_OFFLOAD_UPDATE_HOST)
        updated *= 1.0 - offloaded_share(work, variant);
    double bytes = updated * elem_bytes;
    if (is_muon(work)) /* of hidden matrices one array is updated, and the update written and read */
        bytes += s->L * s->matrices * (gradient_and_weight + 8.0 + 2.0 * update_bytes(s) - elem_bytes);
    if (o->zero.stage > 0)
        bytes /= (double)work->machine->n_ranks;
    return bytes / work->machine->rates.adam + (is_muon(work) ? muon_s(work) : 0.0);
}
