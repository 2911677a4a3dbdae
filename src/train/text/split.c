/* split.c - see split.h. Patterns are Oniguruma's, of which PCRE2 matches those that mean the same to both (split.h),
 * but for white space: PCRE2 counts U+180E, which Unicode no longer does. So \s is written out as Unicode's
 * White_Space.
 *
 * Both have tables of Unicode, of different years. A character that PCRE2's does not know may be a letter, which
 * decides how text is split, so text with one is refused.
 */
#include "train/text/split.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "train/report/report.h"
#include "train/report/utf8.h"

/* ---- pattern ---- */
/* A list of what is allowed, since the two dialects have a long list of differences:
 *
 *     {1,3}+ and {1,3}?      possessive and lazy in PCRE2; repeated and optional in Ruby's syntax
 *     [a&&b], [[:alpha:]]    an intersection and a nested set in Ruby's syntax, also [a[b]]
 *     ^, $, \h, \b, \w, (?m) lines, hexadecimal digits, word characters and flags of another meaning
 *     \p{Han}                scripts or script extensions, by PCRE2's version
 *
 * Allowed: literals; \r \n \t, escaped punctuation; \s, \S, \d; \p and \P of general categories; classes of these, but
 * for \S, which PCRE2 has otherwise; groups, (?: ), (?! ), (?= ), and (?i: ) around ASCII text; alternatives; ? * + as
 * they are, lazy or possessive; {n}, {n,} and {n,m}. */

typedef struct parser {
    const char *at;
    const char *why; /* what is not allowed; NULL: nothing so far */
    int depth;       /* of groups */
    bool ignores_case;
} parser_t;

#define MAX_DEPTH 16

static bool refuse(parser_t *parser, const char *why)
{
    if (!parser->why)
        parser->why = why;
    return false;
}

static bool accept(parser_t *parser, const char *text)
{
    const size_t n = strlen(text);
    if (strncmp(parser->at, text, n) != 0)
        return false;
    parser->at += n;
    return true;
}

/* ---- single characters ---- */

/* \p{L} and the like: general categories, which both know by one or two letters. */
static bool parse_property(parser_t *parser)
{
    static const char *const known[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
                                        "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
                                        "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
    for (size_t i = 0; i < sizeof known / sizeof known[0] && *parser->at == '{'; i++) {
        const size_t n = strlen(known[i]);
        if (strncmp(parser->at + 1, known[i], n) == 0 && parser->at[n + 1] == '}') {
            parser->at += n + 2;
            return true;
        }
    }
    return refuse(parser, "a property other than a general category such as \\p{L}");
}

/* Parses what follows a backslash. is_single: it stands for one character, so it may begin or end a range. */
static bool parse_escape(parser_t *parser, bool in_class, bool *is_single)
{
    static const char punctuation[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ";
    const char c = *parser->at;
    *is_single = false;
    if (c)
        parser->at++;
    if (parser->ignores_case)
        return refuse(parser, "an escape where case is ignored");
    if (c == 'p' || c == 'P')
        return parse_property(parser);
    if (c == 's' || c == 'd' || (c == 'S' && !in_class))
        return true;
    *is_single = true;
    if (c && (strchr("rnt", c) || strchr(punctuation, c)))
        return true;
    return refuse(parser, in_class && c == 'S' ? "\\S within a class"
                                               : "an escape other than \\s \\S \\d \\p \\P \\r \\n "
                                                 "\\t and punctuation");
}

/* Parses one literal character: a sequence of UTF-8 or an ASCII character that means itself. */
static bool parse_literal(parser_t *parser)
{
    /* Oniguruma folds the letter U+00DF to "ss", and ligatures likewise. */
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    const unsigned char *c = (const unsigned char *)parser->at;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && parser->ignores_case; i++)
        if (strncasecmp(parser->at, pairs[i], 2) == 0)
            return refuse(parser, "letters that fold to one, such as ss, where case is ignored");
    if (*c >= 0x80 && parser->ignores_case)
        return refuse(parser, "other than ASCII characters where case is ignored");
    parser->at++;
    while (*c >= 0xc0 && ((unsigned char)*parser->at & 0xc0) == 0x80)
        parser->at++;
    return true;
}

/* ---- classes ---- */

/* Parses one member of a class: a character, or an escape that may stand for many. */
static bool parse_member(parser_t *parser, bool *is_single)
{
    *is_single = true;
    if (accept(parser, "\\"))
        return parse_escape(parser, true, is_single);
    if (*parser->at == '[' || strncmp(parser->at, "&&", 2) == 0)
        return refuse(parser, "[ or && within a class");
    return parse_literal(parser);
}

/* Parses the rest of a class whose [ has been parsed. */
static bool parse_class(parser_t *parser)
{
    if (parser->ignores_case)
        return refuse(parser, "a class where case is ignored");
    accept(parser, "^");
    if (*parser->at == ']')
        return refuse(parser, "a class that begins with ]");
    while (*parser->at && *parser->at != ']') {
        bool is_first = false, is_last = false;
        if (!parse_member(parser, &is_first))
            return false;
        if (*parser->at != '-' || parser->at[1] == ']')
            continue;
        parser->at++;
        if (!*parser->at || !parse_member(parser, &is_last))
            return refuse(parser, "a class without its end");
        if (!is_first || !is_last)
            return refuse(parser, "a range that begins or ends with a class");
    }
    return accept(parser, "]") || refuse(parser, "a class without its end");
}

/* ---- repetition, groups, alternatives ---- */

static bool parse_alternatives(parser_t *parser, bool *is_empty);

/* Parses {n}, {n,} or {n,m}. */
static bool parse_bounds(parser_t *parser, bool *may_be_none)
{
    const char *c = parser->at + 1, *least = c;
    c += strspn(c, "0123456789");
    const size_t n_least = (size_t)(c - least);
    if (*c == ',')
        c += 1 + strspn(c + 1, "0123456789");
    if (n_least == 0 || n_least > 4 || *c != '}')
        return refuse(parser, "a { that begins no {n}, {n,} or {n,m}");
    *may_be_none = strtol(least, NULL, 10) == 0;
    parser->at = c + 1;
    return *parser->at != '+' && *parser->at != '?' ? true : refuse(parser, "+ or ? behind {n,m}");
}

static bool parse_repetition(parser_t *parser, bool *may_be_none)
{
    const char c = *parser->at;
    *may_be_none = c == '?' || c == '*';
    if (c == '{')
        return parse_bounds(parser, may_be_none);
    if (!c || !strchr("?*+", c))
        return true;
    parser->at++;
    if (*parser->at == '?' || *parser->at == '+')
        parser->at++;
    return !*parser->at || !strchr("?*+{", *parser->at) ? true : refuse(parser, "a repetition of a repetition");
}

/* Parses the rest of a group whose ( has been parsed. is_empty: it may match empty text. */
static bool parse_group(parser_t *parser, bool *is_empty)
{
    const bool ignored_case = parser->ignores_case;
    bool is_look = false;
    if (accept(parser, "?i:"))
        parser->ignores_case = true;
    else if (accept(parser, "?!") || accept(parser, "?="))
        is_look = true;
    else if (!accept(parser, "?:") && *parser->at == '?')
        return refuse(parser, "a group other than (?: (?i: (?! and (?=");
    if (++parser->depth > MAX_DEPTH)
        return refuse(parser, "groups within groups within groups");
    if (!parse_alternatives(parser, is_empty))
        return false;
    parser->depth--;
    parser->ignores_case = ignored_case;
    *is_empty |= is_look;
    if (!accept(parser, ")"))
        return refuse(parser, "a group without its end");
    return !is_look || !*parser->at || !strchr("?*+{", *parser->at) ? true : refuse(parser, "a repeated look-ahead");
}

/* Parses a character, class or group and its repetition. */
static bool parse_item(parser_t *parser, bool *is_empty)
{
    bool is_single, may_be_none;
    *is_empty = false;
    if (accept(parser, "\\")) {
        if (!parse_escape(parser, false, &is_single))
            return false;
    } else if (accept(parser, "[")) {
        if (!parse_class(parser))
            return false;
    } else if (accept(parser, "(")) {
        if (!parse_group(parser, is_empty))
            return false;
    } else if (strchr("^$.?*+{", *parser->at)) {
        return refuse(parser, "^ $ . or a repetition of nothing");
    } else if (!parse_literal(parser)) {
        return false;
    }
    if (!parse_repetition(parser, &may_be_none))
        return false;
    *is_empty |= may_be_none;
    return true;
}

static bool parse_alternatives(parser_t *parser, bool *is_empty)
{
    *is_empty = false;
    do {
        bool all_empty = true;
        while (*parser->at && *parser->at != '|' && *parser->at != ')') {
            bool item_is_empty;
            if (!parse_item(parser, &item_is_empty))
                return false;
            all_empty &= item_is_empty;
        }
        *is_empty |= all_empty;
    } while (accept(parser, "|"));
    return true;
}

const char *pattern_differs(const char *pattern)
{
    parser_t parser = {.at = pattern};
    bool is_empty;
    if (!parse_alternatives(&parser, &is_empty))
        return parser.why;
    if (*parser.at)
        return "a ) that ends no group";
    return is_empty ? "a pattern that matches empty text" : NULL;
}

/* ---- split ---- */

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
            ZERO_TRY(splitter_run(splitter, step + 1, text + done, begin - done, fn, user));
        if (end > begin)
            ZERO_TRY(splitter_run(splitter, step + 1, text + begin, end - begin, fn, user));
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
