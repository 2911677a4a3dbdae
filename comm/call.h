/* call.h - the call of zero.h that a rank is in. Ranks compare their calls where they meet. If they are in different
 * calls, or in calls of different engines, they find out there and do not mistake each other's bytes for something
 * else. Error lines about a rank that others wait for also name the call.
 */
#ifndef ZERO_CALL_H
#define ZERO_CALL_H

#include "zero.h"

/* Compared as bytes: it has no padding, and unused fields are zero. */
typedef struct zero_call {
    char name[32]; /* "zero_grad_ready"; "" if none of zero.h's functions called the transport */
    /* For calls on an engine; has_engine is 0 for others. */
    char unit_name[64]; /* as much as fits; "" if the call is not about a unit */
    int32_t unit;
    uint32_t has_engine, engine; /* engine: its number in order of creation, from 0 */
    uint32_t pass, micro_step;   /* pass: a zero_pass_t */
    uint32_t lr_bits;            /* zero_step's lr */
    uint64_t step;               /* from 1 */
    /* What the call asks of the transport, filled in by the transport. */
    char what[32]; /* "fence" */
    uint64_t n_bytes;
    int64_t root;
} zero_call_t;

/* Copies `value` into one of the names, truncated to fit. The name must be all zero before. */
void zero_call_set_text(char *text, size_t n_bytes, const char *value);

/* Returns a hash: equal for equal calls, and different for others except once in 2^64. */
uint64_t zero_call_hash(const zero_call_t *call);

/* Writes "zero_grad_ready(engine 1, unit layer.3, step 2, micro-step 0)", or `what` if there is no name. Returns
 * `text`. */
#define ZERO_CALL_TEXT_BYTES 192
const char *zero_call_text(const zero_call_t *call, char text[ZERO_CALL_TEXT_BYTES]);

/* Logs that two ranks are in different calls, and in which. Returns ZERO_ERROR_MISMATCH. */
zero_status_t zero_call_mismatch(int rank, const zero_call_t *call, int other_rank, const zero_call_t *other);

#endif
