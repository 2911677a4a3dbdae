/* normalize.c - see normalize.h. */
#include "train/text/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "train/report/report.h"

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

/* ---- normal form ---- */

#if defined(ZERO_HAVE_UTF8PROC)
#include <utf8proc.h>

bool normal_form_is_there(void)
{
    return true;
}

/* Composes text and appends it. Returns false if there is no memory. */
static bool append_composed(const char *text, size_t n_bytes, char **out, size_t *n_out)
{
    utf8proc_uint8_t *composed = NULL;
    const utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n_bytes, &composed,
                                            UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    char *longer = n < 0 ? NULL : realloc(*out, *n_out + (size_t)n + 1);
    if (longer) {
        memcpy(longer + *n_out, composed, (size_t)n + 1);
        *n_out += (size_t)n;
        *out = longer;
    }
    free(composed);
    return longer;
}

/* utf8proc 2.8 drops U+11A7 behind a syllable of Hangul. That character composes with none, so text is cut before it.
 */
char *normal_form_c(const char *text, size_t n_bytes, size_t *n_out)
{
    static const char alone[] = "\u11a7";
    const char *end = text + n_bytes, *next;
    char *out = NULL;
    *n_out = 0;
    do {
        const char *from = text < end ? text + 1 : end;
        next = memmem(from, (size_t)(end - from), alone, sizeof alone - 1);
        const size_t n = (size_t)((next ? next : end) - text);
        if (!append_composed(text, n, &out, n_out)) {
            free(out);
            return NULL;
        }
        text += n;
    } while (next);
    return out;
}

#else /* without utf8proc */

bool normal_form_is_there(void)
{
    return false;
}

char *normal_form_c(const char *text, size_t n_bytes, size_t *n_out)
{
    (void)text;
    (void)n_bytes;
    *n_out = 0;
    return NULL;
}

#endif

/* ---- metaspace ---- */

static zero_status_t split_at_marks(const char *mark, const char *text, size_t n_bytes, split_fn fn, void *user)
{
    const size_t n_mark = strlen(mark);
    for (size_t begin = 0, end; begin < n_bytes; begin = end) {
        const size_t from = begin + 1;
        const char *next = memmem(text + from, n_bytes - from, mark, n_mark);
        end = next ? (size_t)(next - text) : n_bytes;
        ZERO_TRY(fn(user, text + begin, end - begin));
    }
    return ZERO_OK;
}

zero_status_t metaspace_run(const metaspace_t *metaspace, bool is_first, const char *text, size_t n_bytes, split_fn fn,
                            void *user)
{
    const size_t n_mark = strlen(metaspace->mark);
    size_t n_marked;
    if (n_bytes == 0)
        return ZERO_OK;
    char *marked = normalize_replaced(text, n_bytes, " ", metaspace->mark, &n_marked), *all = NULL;
    bool begins_with_mark = marked && n_marked >= n_mark && memcmp(marked, metaspace->mark, n_mark) == 0;
    bool is_prefixed = !begins_with_mark &&
                       (metaspace->prefix == METASPACE_ALWAYS || (metaspace->prefix == METASPACE_FIRST && is_first));
    if (marked && is_prefixed && (all = malloc(n_mark + n_marked))) {
        memcpy(all, metaspace->mark, n_mark);
        memcpy(all + n_mark, marked, n_marked);
        n_marked += n_mark;
    }
    const char *words = is_prefixed ? all : marked;
    zero_status_t status;
    if (!words)
        status = report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for %zu bytes", n_bytes);
    else if (metaspace->splits)
        status = split_at_marks(metaspace->mark, words, n_marked, fn, user);
    else
        status = fn(user, words, n_marked);
    free(marked);
    free(all);
    return status;
}
