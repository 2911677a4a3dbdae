/* call.c - see call.h. */
#include "comm/call.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"

_Static_assert(sizeof(zero_call_t) == 32 + 64 + 6 * 4 + 8 + 32 + 8 + 8, "padding would be compared too");

void zero_call_set_text(char *text, size_t n_bytes, const char *value)
{
    for (size_t i = 0; i + 1 < n_bytes && value[i] != '\0'; i++)
        text[i] = value[i];
}

uint64_t zero_call_hash(const zero_call_t *call)
{
    return zero_hash_fold(0, call, sizeof *call);
}

/* ---- Text ---- */

/* Appends to `text` as much as fits. */
static void append(char text[ZERO_CALL_TEXT_BYTES], const char *format, ...) ZERO_PRINTF(2, 3);
static void append(char text[ZERO_CALL_TEXT_BYTES], const char *format, ...)
{
    size_t length = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + length, ZERO_CALL_TEXT_BYTES - length, format, args);
    va_end(args);
}

const char *zero_call_text(const zero_call_t *call, char text[ZERO_CALL_TEXT_BYTES])
{
    float lr;
    memcpy(&lr, &call->lr_bits, sizeof lr);
    snprintf(text, ZERO_CALL_TEXT_BYTES, "%s", call->name[0] != '\0' ? call->name : call->what);
    if (!call->has_engine)
        return text;
    append(text, "(engine %" PRIu32, call->engine);
    if (call->unit_name[0] != '\0')
        append(text, ", unit %s", call->unit_name);
    if (call->pass == ZERO_PASS_EVAL)
        append(text, ", eval pass");
    if (call->pass == ZERO_PASS_INPUT_GRAD)
        append(text, ", input-grad pass");
    if (call->step > 0)
        append(text, ", step %" PRIu64, call->step);
    if (call->unit_name[0] != '\0' && call->pass == ZERO_PASS_TRAIN)
        append(text, ", micro-step %" PRIu32, call->micro_step);
    if (strcmp(call->name, "zero_step") == 0)
        append(text, ", lr %.9g", (double)lr);
    append(text, ")");
    return text;
}

zero_status_t zero_call_mismatch(int rank, const zero_call_t *call, int other_rank, const zero_call_t *other)
{
    char mine[ZERO_CALL_TEXT_BYTES], others[ZERO_CALL_TEXT_BYTES];
    zero_call_text(call, mine);
    zero_call_text(other, others);
    if (strcmp(mine, others) != 0)
        return zero_fail(ZERO_ERROR_MISMATCH, "ranks call different things: rank %d is in %s, rank %d is in %s", rank,
                         mine, other_rank, others);
    return zero_fail(ZERO_ERROR_MISMATCH,
                     "ranks call different things: rank %d is in %s (%s, %" PRIu64 " bytes, root %" PRId64
                     "), rank %d is in %s (%s, %" PRIu64 " bytes, root %" PRId64 ")",
                     rank, mine, call->what, call->n_bytes, call->root, other_rank, others, other->what, other->n_bytes,
                     other->root);
}
