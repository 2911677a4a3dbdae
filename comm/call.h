/* call.h - what a rank is in, in the words of zero.h. Ranks compare it where they meet, so that those that are in
 * different calls, or in calls of different engines, learn that there rather than take each other's bytes for something
 * else; and it is what is said of a rank that others wait for.
 */
#ifndef ZERO_CALL_H
#define ZERO_CALL_H

#include "zero.h"

/* Compared as bytes: there is no padding, and what is not used is zero. */
typedef struct zero_call {
    char name[32]; /* "zero_grad_ready"; "": the transport was called by none of zero.h's functions */
    /* Of an engine's call; has_engine 0: of none. */
    char unit_name[64]; /* as much as fits; "": it is about no unit */
    int32_t unit;
    uint32_t has_engine, engine; /* which: counted in the order of their creation, from 0 */
    uint32_t pass, micro_step;   /* zero_pass_t */
    uint32_t lr_bits;            /* zero_step's */
    uint64_t step;               /* from 1 */
    /* What is asked of the transport: its to fill. */
    char what[32]; /* "fence" */
    uint64_t n_bytes;
    int64_t root;
} zero_call_t;

/* Fills one of the names, cut where it is longer. `call` was all zero before. */
void zero_call_set_text(char *text, size_t n_bytes, const char *value);

/* The same for calls that are the same; another for others, but once in 2^64. */
uint64_t zero_call_hash(const zero_call_t *call);

/* "zero_grad_ready(engine 1, unit layer.3, step 2, micro-step 0)", or the transport's word. Returns `text`. */
#define ZERO_CALL_TEXT_BYTES 192
const char *zero_call_text(const zero_call_t *call, char text[ZERO_CALL_TEXT_BYTES]);

/* Logs which two ranks are in what. Returns ZERO_ERROR_MISMATCH. */
zero_status_t zero_call_mismatch(int rank, const zero_call_t *call, int other_rank, const zero_call_t *other);

#endif
