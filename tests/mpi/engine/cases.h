/* cases.h - what the parts of engine_cases share: settings, the toy, its reference, passes and hooks. */
#ifndef ZERO_TEST_ENGINE_CASES_H
#define ZERO_TEST_ENGINE_CASES_H

#include "zero.h"

#define N_TENSORS 15
#define N_UNITS 5
#define ROWS 101 /* of the first unit's table, unless given */
#define MAX_ROWS 4096
#define SEQ_STEPS 32

typedef struct settings {
    int stage, prefetch, micro_steps, every, steps, nan_at, poison, nccl, rows, staging, offload, fill, traffic, group,
        schedule;
    enum { NO_FP8, FP8_AS_BF16, FP8 } fp8;
    enum { NO_HOOKS, IDLE, NOISE, CLAMP, BOTH } hooks;
    zero_offload_update_t update;
    zero_optimizer_t optimizer;
    zero_dtype_t dtype;
    zero_comm_kind_t kind;
    zero_device_type_t device;
} settings_t;

typedef struct toy {
    zero_model_t *model;
    zero_tensor_t tensors[N_TENSORS];
    zero_unit_t owner[N_TENSORS];
    uint64_t n_elems[N_TENSORS];
    bool decay[N_TENSORS];
    int64_t rows[N_TENSORS];         /* of a hidden matrix, else 0 */
    uint64_t n_fp8_elems[N_TENSORS]; /* of the matrix in fp8 that begins with it: packed tensors are one */
    int n_tensors;
    zero_tensor_t shared; /* of the first unit, used by the last too */
} toy_t;

#define LARGEST_WEIGHT 0.625

typedef struct reference {
    double *w[N_TENSORS], *m[N_TENSORS], *v[N_TENSORS];
    bool *unsure[N_TENSORS]; /* adamw8bit: fp32 may have other codes (adam8_fp64.h) */
    int t;
} reference_t;

typedef struct filler {
    int rank;
    int n_chunks; /* seen */
    int fails_at; /* at this chunk, from 1; 0: never */
    bool with_moments;
    bool in_8_bits; /* moments are read as the nearest values: steps of 0.9 / 64 of m's largest, 0.9 / 128 of v's */
    const int64_t *without_v; /* by tensor: not 0 if it has no v; NULL: all have */
} filler_t;

typedef struct hooked {
    zero_device_t *device;
    int64_t step;                  /* under way */
    uint64_t n_reduced, n_updated; /* elements seen in it */
    bool adds, clamps;
} hooked_t;

extern hooked_t hooked;
extern const zero_hooks_t see_both;
extern const zero_hooks_t see_gradients;
extern const zero_own_optimizer_t own_optimizer;

/* engine/reference.c */
toy_t toy_create_of(int64_t width, int64_t rows, bool has_fp8);
toy_t toy_create(int64_t width, int64_t rows);
float gradient(int rank, int64_t step, int micro_step, int tensor, uint64_t e, int use);
float noise(int tensor, uint64_t e, int64_t step);
double reference_step(reference_t *ref, const toy_t *toy, int n_ranks, const settings_t *s, const zero_config_t *c,
                      int64_t step, double lr);
double visit_all(zero_engine_t *engine, zero_comm_t *comm, const toy_t *toy, reference_t *ref, bool copy, bool is_lion);
void complete_reference(zero_comm_t *comm, const toy_t *toy, reference_t *ref);

/* engine/passes.c */
zero_status_t fill_chunk(void *user, const zero_chunk_t *chunk);
void make_up_state(zero_engine_t *engine, const toy_t *toy, int rank, bool with_moments, zero_optimizer_t optimizer);
uint64_t hash_params_of(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, zero_dtype_t dtype,
                        bool gathers_fp8);
uint64_t hash_params(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, zero_dtype_t dtype);
void write_grads(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, zero_unit_t unit, int rank,
                 int64_t step, int micro_step, const settings_t *s);
void micro_step_pass(zero_engine_t *engine, zero_device_t *device, const toy_t *toy, int rank, int64_t step, int k,
                     const settings_t *s);
void check_same_on_all_ranks(zero_comm_t *comm, uint64_t hash);

/* engine/hooks.c */
void check_hooks(zero_comm_t *comm, const toy_t *toy, const settings_t *s);

#endif
