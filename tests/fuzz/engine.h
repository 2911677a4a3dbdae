/* engine.h - an engine for targets that load: one rank on the CPU, fp16, three small tensors. Created once, through the
 * public API, and never stepped, so that it can load again and again. */
#ifndef ZERO_FUZZ_ENGINE_H
#define ZERO_FUZZ_ENGINE_H

#include "zero.h"

enum { FUZZ_N_TENSORS = 3, FUZZ_MOST_ELEMS = 4 };

typedef struct fuzz_tensor {
    const char *name;
    int n_dims;
    int64_t shape[2];
    size_t n_elems;
} fuzz_tensor_t;

extern const fuzz_tensor_t fuzz_tensors[FUZZ_N_TENSORS];

zero_comm_t *fuzz_comm(void);
zero_engine_t *fuzz_engine(void);

/* What the engine holds of the tensors now. */
typedef struct fuzz_state {
    float master[FUZZ_N_TENSORS][FUZZ_MOST_ELEMS], m[FUZZ_N_TENSORS][FUZZ_MOST_ELEMS],
        v[FUZZ_N_TENSORS][FUZZ_MOST_ELEMS];
} fuzz_state_t;

void fuzz_get_state(fuzz_state_t *state);

/* Writes a complete checkpoint of step 10, without its manifest, to a folder of the scratch directory. The files are
 * the same in every run, so that a manifest in the corpus stays valid. */
#define FUZZ_CHECKPOINT "step-00000010"
#define FUZZ_STATE_JSON                                                                                                \
    "{\"adam_step\": 9, \"data\": {\"sequences\": 80}, \"dtype\": \"fp16\", \"good_steps\": 3, \"library\": "          \
    "\"0.1.0\", "                                                                                                      \
    "\"loss_scale\": 1024.0, \"overflows\": 1, \"seed\": 1, \"skipped_in_row\": 0, \"step\": 10}\n"
#define FUZZ_INDEX_JSON "{\"metadata\": {\"total_size\": 14}, \"weight_map\": {}}\n"
void fuzz_make_checkpoint(void);
/* Requires that the engine holds what the checkpoint's files do. */
void fuzz_check_loaded(void);

#endif
