/* cases.h - what the parts of stream_cases share: settings, the toy and its run. */
#ifndef ZERO_TEST_STREAM_CASES_H
#define ZERO_TEST_STREAM_CASES_H

#include "tests/support/elements.h"

#define MAX_BLOCKS 48
#define MAX_UNITS (MAX_BLOCKS + 2)
#define MAX_USES 4 /* tensors of a unit, the shared one included */
#define WIDTH 40

typedef struct settings {
    int stage, prefetch, micro_steps, every, steps, overlap, nan_at, seed, delay_us, fault, trace, is_async, offload,
        params, nccl, threads, pins, available, update, buffer, activations, spans, slots, asks, slow_gathers;
    int frozen, whole, rows, untied, staging, blocks, calls, idle_ms, late, loses, check, group, keep, lookup, unshard,
        gathers, cancels, created, schedule, hooks, clip, backward, gradients, sums;
    const char *load, *save;
    zero_optimizer_t optimizer;
    zero_dtype_t dtype;
    enum { NO_FP8, FP8_AS_BF16, FP8 } fp8;
} settings_t;

typedef struct toy {
    zero_model_t *model;
    int n_units;
    zero_tensor_t of_unit[MAX_UNITS][MAX_USES];
    int n_of_unit[MAX_UNITS];
    uint64_t n_elems[MAX_UNITS * MAX_USES];
    bool in_fp8[MAX_UNITS * MAX_USES], frozen[MAX_UNITS * MAX_USES];
    bool has_frozen; /* of blocks: the first's and third's matrix, and all of the second */
    unsigned whole;  /* a bit for each unit that is frozen as a whole */
    bool has_fp8;    /* its matrices */
} toy_t;

typedef struct use {
    const void *param;
    zero_fp8_param_t fp8; /* of a matrix that was gathered in fp8 */
    double scale;         /* of one that is cast here; 0: it is used as it is */
    zero_grad_t grad;
    uint64_t n_elems;
} use_t;

typedef struct compute {
    use_t uses[MAX_USES];
    int n_uses, rank;
    zero_dtype_t dtype;
    unsigned pause_us;
    bool is_backward, makes_nan;
    int64_t step;
    double *loss;
    const float *loss_scale;
    uint64_t *hash;      /* of an eval pass; NULL else */
    unsigned char *kept; /* from forward to backward */
    size_t n_kept;
    int kept_key;
} compute_t;

typedef struct run {
    const settings_t *s;
    toy_t toy;
    zero_comm_t *comm;
    zero_device_t *device;
    zero_engine_t *engine;
    zero_stream_t stream;
    double *loss;
    unsigned char *kept[MAX_UNITS];
    zero_stash_t *stash; /* which has them, with slots; else NULL */
    uint64_t hash, seed;
    /* What the trace has reported so far. */
    int n_spans[ZERO_N_WORKS];
    double ended_ms[ZERO_N_WORKS]; /* the last span's end */
    double waited_ms[2];           /* of steps whose results are still to come: for ranks, and for what is offloaded */
    double least_exposed_ms;       /* of the steps behind a pause */
    zero_unit_t computed;          /* last */
    uint64_t n_acquired;           /* flats' parameters, so far */
    int n_passes;                  /* so far */
} run_t;

extern run_t *hooked_run;
extern const zero_hooks_t gradient_hooks;
extern const zero_hooks_t all_hooks;

/* stream/units.c */
toy_t toy_create(const settings_t *s);
bool is_read(const use_t *use);
void keep(const compute_t *c);
void compute(void *args);
void clear(void *args);

/* stream/passes.c */
void pass(run_t *run, zero_pass_t kind, int64_t step, int micro_step, uint64_t *hash);
void cancel(run_t *run, int64_t step);

/* stream/checks.c */
void on_span(void *user, const zero_trace_span_t *span);
void check_pcie_bytes(const run_t *run, const zero_step_result_t *result);
void check_memory(const run_t *run, const zero_config_t *of_run);
void check_transport(const run_t *run);
void check_spans(const run_t *run, zero_work_t work);
void check_same_hash_on_all_ranks(const run_t *run);

/* stream_cases.c */
void queue(const run_t *run, void (*work)(void *), const void *args, size_t n_bytes);
void load(run_t *run);
void save(run_t *run);
zero_config_t make_config(const settings_t *s);

#endif
