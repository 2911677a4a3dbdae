/* measure_engine.c - the rates of libzero's own work: AdamW, sums of gradients, what travels between ranks, copies from
 * and to a GPU.
 *
 * Whole steps of a model without layers are timed, part by part: forward only gathers, backward gathers again,
 * exchanges gradients and adds them, and a step's end updates. They are counted as step_time.c counts them.
 */
#include <math.h>

#include "train/rates/kernel_bench.h"
#include "train/rates/probe.h"
#include "train/report/process.h"
#include "train/report/report.h"

#define N_UNITS 16
#define STEPS 6
#define COPY_BYTES ((size_t)256 << 20)

typedef struct passes {
    probe_t *probe;
    void *copy; /* device memory for copies from and to the host */
    void *host;
} passes_t;

/* Seconds of a step's parts, the least of some steps. */
typedef struct parts {
    double forward, backward, fills, update, step;
} parts_t;

/* ---- a step ---- */

static zero_status_t run_forward(probe_t *probe, zero_pass_t pass)
{
    ZERO_TRY(zero_begin(probe->engine, pass, probe->stream));
    for (zero_unit_t u = 0; u < N_UNITS; u++) {
        ZERO_TRY(zero_acquire(probe->engine, u, probe->stream));
        ZERO_TRY(zero_release(probe->engine, u, probe->stream));
    }
    return ZERO_OK;
}

static zero_status_t fill(const probe_t *probe, void *data, size_t n_bytes)
{
    zero_model_context_t ctx = {.stream = probe->stream};
    return zero_model_kernels(probe->on_gpu ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU)->zero_fill(&ctx, data, n_bytes);
}

static zero_status_t run_backward(probe_t *probe, size_t unit_bytes)
{
    for (zero_unit_t u = N_UNITS - 1; u >= 0; u--) {
        ZERO_TRY(zero_acquire(probe->engine, u, probe->stream));
        ZERO_TRY(fill(probe, zero_grad(probe->engine, u).data, unit_bytes)); /* a unit's one tensor has its number */
        ZERO_TRY(zero_grad_ready(probe->engine, u, probe->stream));
    }
    return ZERO_OK;
}

static zero_status_t finish_step(probe_t *probe, const double *loss)
{
    zero_step_result_t result;
    ZERO_TRY(zero_step(probe->engine, 1e-4f, loss, probe->stream));
    return zero_step_wait(probe->engine, &result);
}

/* Waits for all ranks, and takes the time since *at into *least. */
static zero_status_t lap(probe_t *probe, double *at, double *least)
{
    ZERO_TRY(probe_wait(probe));
    double seconds = clock_now_s() - *at;
    ZERO_TRY(probe_slowest(probe, &seconds));
    *least = fmin(*least, seconds);
    *at = clock_now_s();
    return ZERO_OK;
}

/* One step whose parts are waited for, and one that is not waited for until its end. */
static zero_status_t time_steps(probe_t *probe, size_t unit_bytes, const double *loss, parts_t *parts)
{
    *parts = (parts_t){1e9, 1e9, 1e9, 1e9, 1e9};
    for (int i = 0; i < STEPS; i++) {
        ZERO_TRY(zero_comm_barrier(probe->comm));
        double at = clock_now_s();
        ZERO_TRY(run_forward(probe, ZERO_PASS_TRAIN));
        ZERO_TRY(lap(probe, &at, &parts->forward));
        ZERO_TRY(run_backward(probe, unit_bytes));
        ZERO_TRY(lap(probe, &at, &parts->backward));
        ZERO_TRY(finish_step(probe, loss));
        ZERO_TRY(lap(probe, &at, &parts->update));
        ZERO_TRY(run_forward(probe, ZERO_PASS_TRAIN));
        ZERO_TRY(run_backward(probe, unit_bytes));
        ZERO_TRY(finish_step(probe, loss));
        ZERO_TRY(lap(probe, &at, &parts->step));
    }
    return ZERO_OK;
}

typedef struct fills {
    const probe_t *probe;
    void *data;
    size_t n_bytes;
} fills_t;

static zero_status_t fill_units(void *args)
{
    const fills_t *f = args;
    for (int u = 0; u < N_UNITS; u++)
        ZERO_TRY(fill(f->probe, f->data, f->n_bytes));
    return ZERO_OK;
}

/* ---- rates ---- */

/* Sets what a rank receives a second: if all are on one host, of it, else of other hosts. */
static void set_wire(const zero_comm_t *comm, double bytes, double seconds, fit_rates_t *rates)
{
    double N = (double)zero_comm_size(comm), in_host = (double)zero_comm_local_size(comm);
    if (in_host >= N)
        rates->link = bytes / seconds;
    else
        rates->network = bytes * (N - in_host) / (N - 1.0) / seconds;
}

/* P parameters, of which a rank receives all but its own twice, and of whose bf16 gradients it adds N slices of its
 * share in fp32. What backward gathers again is what forward does, but for one unit. */
static void set_rates(const zero_comm_t *comm, double P, const parts_t *parts, fit_rates_t *rates)
{
    double N = (double)zero_comm_size(comm), received = (N - 1.0) / N * P * 2.0;
    double gathers = N > 1.0 ? parts->forward * (N_UNITS - 1) / N_UNITS : 0.0;
    double exchange = N > 1.0 ? parts->forward : 0.0;
    double backward = parts->backward - parts->fills;
    /* The last unit's sum is queued behind backward. */
    double sums = fmax(backward - gathers - exchange, 0.1 * backward), last = sums / (N_UNITS - 1);
    if (N > 1.0)
        set_wire(comm, received, parts->forward, rates);
    rates->sum = P * (2.0 + 4.0 / N) / (sums + last);
    rates->adam = P / N * 28.0 / fmax(parts->update - last, 0.1 * parts->update);
}

/* ---- a GPU and its host ---- */

static zero_status_t copy_in(void *args)
{
    passes_t *p = args;
    return zero_device_copy(p->probe->device, p->copy, p->host, COPY_BYTES, p->probe->stream);
}

static zero_status_t copy_out(void *args)
{
    passes_t *p = args;
    return zero_device_copy(p->probe->device, p->host, p->copy, COPY_BYTES, p->probe->stream);
}

static zero_status_t nothing(void *args)
{
    (void)args;
    return ZERO_OK;
}

/* All GPUs copy at once; then each host's first alone, if there are more. */
static zero_status_t measure_copies(passes_t *p, fit_rates_t *rates)
{
    double in, out, n = (double)zero_comm_local_size(p->probe->comm);
    ZERO_TRY(probe_time(p->probe, copy_in, p, &in));
    ZERO_TRY(probe_time(p->probe, copy_out, p, &out));
    double together = (double)COPY_BYTES / fmax(in, out);
    rates->pcie = together;
    if (n < 2.0)
        return ZERO_OK;                                    /* what others leave of the host's is not known */
    rates->host_memory *= n * together / rates->host_pcie; /* both ways at once: in proportion */
    rates->host_pcie = n * together;
    bool alone = zero_comm_local_rank(p->probe->comm) == 0;
    ZERO_TRY(probe_time(p->probe, alone ? copy_in : nothing, p, &in));
    ZERO_TRY(probe_time(p->probe, alone ? copy_out : nothing, p, &out));
    rates->pcie = (double)COPY_BYTES / fmax(in, out);
    return ZERO_OK;
}

static zero_status_t measure_host_copies(probe_t *probe, void *copy, fit_rates_t *rates)
{
    passes_t p = {.probe = probe, .copy = copy};
    ZERO_TRY(report_agree(probe->comm, zero_host_alloc(probe->device, COPY_BYTES, &p.host)));
    zero_status_t status = measure_copies(&p, rates);
    zero_host_free(probe->device, p.host);
    return status;
}

/* ---- all of them ---- */

static size_t copy_bytes(const probe_t *probe, size_t unit_bytes)
{
    return probe->on_gpu ? COPY_BYTES : unit_bytes;
}

static zero_status_t measure(probe_t *probe, size_t unit_bytes, parts_t *parts, fit_rates_t *rates)
{
    void *copy, *loss;
    zero_status_t status = probe_alloc(probe, copy_bytes(probe, unit_bytes), &copy);
    if (status == ZERO_OK)
        status = probe_alloc(probe, sizeof(double), &loss);
    ZERO_TRY(report_agree(probe->comm, status));
    if (probe->on_gpu)
        ZERO_TRY(measure_host_copies(probe, copy, rates));
    ZERO_TRY(time_steps(probe, unit_bytes, loss, parts));
    fills_t fills = {probe, copy, unit_bytes};
    return probe_time(probe, fill_units, &fills, &parts->fills);
}

static zero_status_t time_engine(zero_comm_t *comm, zero_device_t *device, const probe_sizes_t *sizes, parts_t *parts,
                                 fit_rates_t *rates)
{
    probe_t probe;
    zero_status_t status = probe_open(comm, device, ZERO_BF16, sizes, &probe);
    if (status == ZERO_OK)
        status = report_agree(comm, measure(&probe, (size_t)sizes->unit_elems * 2, parts, rates));
    probe_close(&probe);
    return status;
}

zero_status_t measure_engine(zero_comm_t *comm, zero_device_t *device, fit_rates_t *rates)
{
    bool on_gpu = zero_device_get_type(device) != ZERO_DEVICE_CPU;
    int64_t unit_elems = (int64_t)(on_gpu ? 16 : 1) << 20;
    probe_sizes_t sizes = {.n_units = N_UNITS,
                           .unit_elems = unit_elems,
                           .user_bytes = (on_gpu ? COPY_BYTES : (size_t)unit_elems * 2) + 256};
    double P = (double)(sizes.n_units * sizes.unit_elems), N = (double)zero_comm_size(comm);
    parts_t parts, offloaded;
    ZERO_TRY(time_engine(comm, device, &sizes, &parts, rates));
    set_rates(comm, P, &parts, rates);
    if (!on_gpu)
        return ZERO_OK;
    sizes.host_update = true;
    ZERO_TRY(time_engine(comm, device, &sizes, &offloaded, rates));
    /* The host's update takes the place of the GPU's. */
    double update = offloaded.step - (parts.step - P / N * 28.0 / rates->adam);
    rates->host_adam =
        (double)zero_comm_local_size(comm) * P / N * FIT_ADAMW_HOST_BYTES / fmax(update, 0.1 * offloaded.step);
    return ZERO_OK;
}
