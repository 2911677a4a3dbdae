/* split.c - see split.h. Patterns are Oniguruma's, of which PCRE2 matches those that mean the same to both (pattern.h),
 * but for white space: PCRE2 counts U+180E, which Unicode no longer does. So \s is written out as Unicode's
 * White_Space.
 *
 * Both have tables of Unicode, of different years. A character that PCRE2's does not know may be a letter, which
 * decides how text is split, so text with one is refused.
 */
#include "train/tokenizer/split.h"

#include <string.h>

#include "train/report/report.h"
#include "train/report/utf8.h"
#include "train/tokenizer/pattern.h"

#if defined(ZERO_HAVE_PCRE2)
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define MAX_PATTERN 4096
#define WHITE_SPACE                                                                                                    \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* Appends text; returns false if there is no room. */
static bool append(char *out, size_t *n, const char *text, size_t n_bytes)
{
    if (*n + n_bytes >= MAX_PATTERN)
        return false;
    memcpy(out + *n, text, n_bytes);
    *n += n_bytes;
    out[*n] = 0;
    return true;
}

/* Writes out \s and \S, which are within no class. */
static bool write_out_spaces(const char *pattern, char out[MAX_PATTERN])
{
    bool in_class = false, fits = true;
    size_t n = 0;
    for (const char *c = pattern; *c && fits; c++) {
        const bool escaped = *c == '\\' && c[1];
        if (escaped && c[1] == 's')
            fits = in_class ? append(out, &n, WHITE_SPACE, sizeof WHITE_SPACE - 1)
                            : append(out, &n, "[" WHITE_SPACE "]", sizeof WHITE_SPACE + 1);
        else if (escaped && c[1] == 'S' && !in_class)
            fits = append(out, &n, "[^" WHITE_SPACE "]", sizeof WHITE_SPACE + 2);
        else
            fits = append(out, &n, c, escaped ? 2 : 1);
        if (!escaped && (*c == '[' || *c == ']'))
            in_class = *c == '[';
        c += escaped;
    }
    return fits;
}

zero_status_t splitter_add(splitter_t *splitter, const char *path, const char *pattern)
{
    char written[MAX_PATTERN], why[128] = "it is too long";
    int error = 0;
    PCRE2_SIZE at = 0;
    const char *differs = pattern_differs(pattern);
    if (splitter->n_steps == SPLIT_MAX_STEPS)
        return report_error(ZERO_ERROR_USAGE, "'%s': pre_tokenizer has more than %d steps", path, SPLIT_MAX_STEPS);
    if (differs)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s': pre_tokenizer: the pattern '%.100s' is not known to mean here what it means to "
                            "tokenizers: it has %s",
                            path, pattern, differs);
    pcre2_code *code = NULL;
    if (write_out_spaces(pattern, written)) {
        code = pcre2_compile((PCRE2_SPTR)written, PCRE2_ZERO_TERMINATED,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
    }
    if (!code)
        return report_error(ZERO_ERROR_USAGE, "'%s': pre_tokenizer: the pattern '%.100s' cannot be used: %s", path,
                            pattern, why);
    if (!splitter->unknown)
        splitter->unknown = pcre2_compile((PCRE2_SPTR) "\\p{Cn}", PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where there is none, matching takes longer */
    splitter->steps[splitter->n_steps++].pattern = code;
    return splitter->unknown ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory");
}

void splitter_destroy(splitter_t *splitter)
{
    for (int i = 0; i < splitter->n_steps; i++)
        pcre2_code_free(splitter->steps[i].pattern);
    pcre2_code_free(splitter->unknown);
    *splitter = (splitter_t){0};
}

/* Refuses text with a character that PCRE2's tables do not know. Those that Unicode will never assign are no letters.
 */
static zero_status_t check_known(const splitter_t *splitter, pcre2_match_data *match, const char *text, size_t n_bytes)
{
    char version[64] = "";
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(match);
    for (size_t done = 0;
         pcre2_match(splitter->unknown, (PCRE2_SPTR)text, n_bytes, done, PCRE2_NO_UTF_CHECK, match, NULL) > 0;
         done = found[1]) {
        uint32_t code;
        utf8_read((const unsigned char *)text + found[0], n_bytes - found[0], &code);
        if ((code & 0xfffe) == 0xfffe || (code >= 0xfdd0 && code <= 0xfdef))
            continue;
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
        return report_error(
            ZERO_ERROR_FORMAT,
            "the text has U+%04X, which PCRE2 does not know (its Unicode is %s): whether it is a letter "
            "decides the tokens, so use a newer PCRE2 or leave it out",
            (unsigned)code, version);
    }
    return ZERO_OK;
}

static zero_status_t cut(const splitter_t *splitter, int step, pcre2_match_data *match, const char *text,
                         size_t n_bytes, split_fn fn, void *user)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(match);
    size_t done = 0;
    while (done < n_bytes) {
        int result = pcre2_match(splitter->steps[step].pattern, (PCRE2_SPTR)text, n_bytes, done,
                                 PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match, NULL);
        if (result < 0 && result != PCRE2_ERROR_NOMATCH)
            return report_rank_error(ZERO_ERROR_FORMAT, "tokenizer: PCRE2 gives up on the text with error %d", result);
        size_t begin = result < 0 ? n_bytes : found[0], end = result < 0 ? n_bytes : found[1];
        if (begin > done)
            TRY(splitter_run(splitter, step + 1, text + done, begin - done, fn, user));
        if (end > begin)
            TRY(splitter_run(splitter, step + 1, text + begin, end - begin, fn, user));
        done = end;
    }
    return ZERO_OK;
}

zero_status_t splitter_run(const splitter_t *splitter, int first, const char *text, size_t n_bytes, split_fn fn,
                           void *user)
{
    if (first >= splitter->n_steps)
        return n_bytes > 0 ? fn(user, text, n_bytes) : ZERO_OK;
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (!match)
        return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory to match");
    zero_status_t status = first == 0 ? check_known(splitter, match, text, n_bytes) : ZERO_OK;
    if (status == ZERO_OK)
        status = cut(splitter, first, match, text, n_bytes, fn, user);
    pcre2_match_data_free(match);
    return status;
}

#else /* without PCRE2 */

zero_status_t splitter_add(splitter_t *splitter, const char *path, const char *pattern)
{
    (void)splitter;
    (void)pattern;
    return report_error(ZERO_ERROR_USAGE,
                        "'%s': this build cannot read tokenizers: install libpcre2-dev and build zerotrain again",
                        path);
}

void splitter_destroy(splitter_t *splitter)
{
    *splitter = (splitter_t){0};
}

zero_status_t splitter_run(const splitter_t *splitter, int first, const char *text, size_t n_bytes, split_fn fn,
                           void *user)
{
    (void)splitter;
    (void)first;
    return fn(user, text, n_bytes);
}

#endif
