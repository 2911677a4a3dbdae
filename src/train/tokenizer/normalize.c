/* normalize.c - see normalize.h. */
#include "train/tokenizer/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "train/report/report.h"
#include "train/tokenizer/normal_form.h"

zero_status_t normalizer_add(normalizer_t *normalizer, const char *path, const char *from, const char *to)
{
    if (normalizer->n_steps == NORMALIZE_MAX_STEPS)
        return report_error(ZERO_ERROR_USAGE, "'%s': normalizer has more than %d steps", path, NORMALIZE_MAX_STEPS);
    const normalize_step_t step = {.from = from ? strdup(from) : NULL, .to = to ? strdup(to) : NULL};
    normalizer->steps[normalizer->n_steps++] = step;
    return (step.to || !to) && (step.from || !from) ? ZERO_OK
                                                    : report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory");
}

void normalizer_destroy(normalizer_t *normalizer)
{
    for (int i = 0; i < normalizer->n_steps; i++) {
        free(normalizer->steps[i].from);
        free(normalizer->steps[i].to);
    }
    *normalizer = (normalizer_t){0};
}

static char *copy_behind(const char *prefix, size_t n_prefix, const char *text, size_t n_bytes)
{
    char *copy = malloc(n_prefix + n_bytes + 1);
    if (!copy)
        return NULL;
    memcpy(copy, prefix, n_prefix);
    memcpy(copy + n_prefix, text, n_bytes);
    copy[n_prefix + n_bytes] = 0;
    return copy;
}

char *normalize_replaced(const char *text, size_t n_bytes, const char *from, const char *to, size_t *n_out)
{
    if (!from) {
        *n_out = n_bytes;
        return copy_behind("", 0, text, n_bytes);
    }
    const size_t n_from = strlen(from), n_to = strlen(to);
    const char *end = text + n_bytes, *at, *found;
    size_t n = n_bytes;
    for (at = text; (found = memmem(at, (size_t)(end - at), from, n_from)); at = found + n_from)
        n = n - n_from + n_to;
    char *replaced = malloc(n + 1), *out = replaced;
    if (!replaced)
        return NULL;
    for (at = text; (found = memmem(at, (size_t)(end - at), from, n_from)); at = found + n_from) {
        memcpy(out, at, (size_t)(found - at));
        out += found - at;
        memcpy(out, to, n_to);
        out += n_to;
    }
    memcpy(out, at, (size_t)(end - at));
    replaced[n] = 0;
    *n_out = n;
    return replaced;
}

/* Applies a step. Returns the new text for free(); NULL: no memory. */
static char *apply(const normalize_step_t *step, const char *text, size_t n_bytes, size_t *n_out)
{
    if (!step->to)
        return normal_form_c(text, n_bytes, n_out);
    if (step->from)
        return normalize_replaced(text, n_bytes, step->from, step->to, n_out);
    const size_t n_prefix = n_bytes > 0 ? strlen(step->to) : 0;
    *n_out = n_prefix + n_bytes;
    return copy_behind(step->to, n_prefix, text, n_bytes);
}

zero_status_t normalizer_run(const normalizer_t *normalizer, const char *text, size_t n_bytes, char **out,
                             size_t *n_out)
{
    char *now = copy_behind("", 0, text, n_bytes);
    size_t n_now = n_bytes;
    for (int i = 0; now && i < normalizer->n_steps; i++) {
        char *next = apply(&normalizer->steps[i], now, n_now, &n_now);
        free(now);
        now = next;
    }
    if (!now)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for %zu bytes", n_bytes);
    *out = now;
    *n_out = n_now;
    return ZERO_OK;
}
