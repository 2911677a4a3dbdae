/* metaspace.c - see metaspace.h. */
#include "train/tokenizer/metaspace.h"

#include <stdlib.h>
#include <string.h>

#include "train/report/report.h"
#include "train/tokenizer/normalize.h"

static zero_status_t split_at_marks(const char *mark, const char *text, size_t n_bytes, split_fn fn, void *user)
{
    const size_t n_mark = strlen(mark);
    for (size_t begin = 0, end; begin < n_bytes; begin = end) {
        const size_t from = begin + 1;
        const char *next = memmem(text + from, n_bytes - from, mark, n_mark);
        end = next ? (size_t)(next - text) : n_bytes;
        TRY(fn(user, text + begin, end - begin));
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
