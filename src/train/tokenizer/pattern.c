/* pattern.c - see pattern.h. A list of what is allowed, since the two dialects have a long list of differences:
 *
 *     {1,3}+ and {1,3}?      possessive and lazy in PCRE2; repeated and optional in Ruby's syntax
 *     [a&&b], [[:alpha:]]    an intersection and a nested set in Ruby's syntax, also [a[b]]
 *     ^, $, \h, \b, \w, (?m) lines, hexadecimal digits, word characters and flags of another meaning
 *     \p{Han}                scripts or script extensions, by PCRE2's version
 *
 * Allowed: literals; \r \n \t, escaped punctuation; \s, \S, \d; \p and \P of general categories; classes of these, but
 * for \S, which PCRE2 has otherwise; groups, (?: ), (?! ), (?= ), and (?i: ) around ASCII text; alternatives; ? * + as
 * they are, lazy or possessive; {n}, {n,} and {n,m}.
 */
#include "train/tokenizer/pattern.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

static bool take(parser_t *parser, const char *text)
{
    const size_t n = strlen(text);
    if (strncmp(parser->at, text, n) != 0)
        return false;
    parser->at += n;
    return true;
}

/* ---- single characters ---- */

/* \p{L} and the like: general categories, which both know by one or two letters. */
static bool take_property(parser_t *parser)
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

/* Takes what follows a backslash. is_single: it stands for one character, so it may begin or end a range. */
static bool take_escape(parser_t *parser, bool in_class, bool *is_single)
{
    static const char punctuation[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ";
    const char c = *parser->at;
    *is_single = false;
    if (c)
        parser->at++;
    if (parser->ignores_case)
        return refuse(parser, "an escape where case is ignored");
    if (c == 'p' || c == 'P')
        return take_property(parser);
    if (c == 's' || c == 'd' || (c == 'S' && !in_class))
        return true;
    *is_single = true;
    if (c && (strchr("rnt", c) || strchr(punctuation, c)))
        return true;
    return refuse(parser, in_class && c == 'S' ? "\\S within a class"
                                               : "an escape other than \\s \\S \\d \\p \\P \\r \\n "
                                                 "\\t and punctuation");
}

/* Takes one literal character: a sequence of UTF-8 or an ASCII character that means itself. */
static bool take_literal(parser_t *parser)
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

/* Takes one member of a class: a character, or an escape that may stand for many. */
static bool take_member(parser_t *parser, bool *is_single)
{
    *is_single = true;
    if (take(parser, "\\"))
        return take_escape(parser, true, is_single);
    if (*parser->at == '[' || strncmp(parser->at, "&&", 2) == 0)
        return refuse(parser, "[ or && within a class");
    return take_literal(parser);
}

/* Takes the rest of a class whose [ has been taken. */
static bool take_class(parser_t *parser)
{
    if (parser->ignores_case)
        return refuse(parser, "a class where case is ignored");
    take(parser, "^");
    if (*parser->at == ']')
        return refuse(parser, "a class that begins with ]");
    while (*parser->at && *parser->at != ']') {
        bool is_first = false, is_last = false;
        if (!take_member(parser, &is_first))
            return false;
        if (*parser->at != '-' || parser->at[1] == ']')
            continue;
        parser->at++;
        if (!*parser->at || !take_member(parser, &is_last))
            return refuse(parser, "a class without its end");
        if (!is_first || !is_last)
            return refuse(parser, "a range that begins or ends with a class");
    }
    return take(parser, "]") || refuse(parser, "a class without its end");
}

/* ---- repetition, groups, alternatives ---- */

static bool take_alternatives(parser_t *parser, bool *is_empty);

/* Takes {n}, {n,} or {n,m}. */
static bool take_bounds(parser_t *parser, bool *may_be_none)
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

static bool take_repetition(parser_t *parser, bool *may_be_none)
{
    const char c = *parser->at;
    *may_be_none = c == '?' || c == '*';
    if (c == '{')
        return take_bounds(parser, may_be_none);
    if (!c || !strchr("?*+", c))
        return true;
    parser->at++;
    if (*parser->at == '?' || *parser->at == '+')
        parser->at++;
    return !*parser->at || !strchr("?*+{", *parser->at) ? true : refuse(parser, "a repetition of a repetition");
}

/* Takes the rest of a group whose ( has been taken. is_empty: it may match empty text. */
static bool take_group(parser_t *parser, bool *is_empty)
{
    const bool ignored_case = parser->ignores_case;
    bool is_look = false;
    if (take(parser, "?i:"))
        parser->ignores_case = true;
    else if (take(parser, "?!") || take(parser, "?="))
        is_look = true;
    else if (!take(parser, "?:") && *parser->at == '?')
        return refuse(parser, "a group other than (?: (?i: (?! and (?=");
    if (++parser->depth > MAX_DEPTH)
        return refuse(parser, "groups within groups within groups");
    if (!take_alternatives(parser, is_empty))
        return false;
    parser->depth--;
    parser->ignores_case = ignored_case;
    *is_empty |= is_look;
    if (!take(parser, ")"))
        return refuse(parser, "a group without its end");
    return !is_look || !*parser->at || !strchr("?*+{", *parser->at) ? true : refuse(parser, "a repeated look-ahead");
}

/* Takes a character, class or group and its repetition. */
static bool take_item(parser_t *parser, bool *is_empty)
{
    bool is_single, may_be_none;
    *is_empty = false;
    if (take(parser, "\\")) {
        if (!take_escape(parser, false, &is_single))
            return false;
    } else if (take(parser, "[")) {
        if (!take_class(parser))
            return false;
    } else if (take(parser, "(")) {
        if (!take_group(parser, is_empty))
            return false;
    } else if (strchr("^$.?*+{", *parser->at)) {
        return refuse(parser, "^ $ . or a repetition of nothing");
    } else if (!take_literal(parser)) {
        return false;
    }
    if (!take_repetition(parser, &may_be_none))
        return false;
    *is_empty |= may_be_none;
    return true;
}

static bool take_alternatives(parser_t *parser, bool *is_empty)
{
    *is_empty = false;
    do {
        bool all_empty = true;
        while (*parser->at && *parser->at != '|' && *parser->at != ')') {
            bool item_is_empty;
            if (!take_item(parser, &item_is_empty))
                return false;
            all_empty &= item_is_empty;
        }
        *is_empty |= all_empty;
    } while (take(parser, "|"));
    return true;
}

const char *pattern_differs(const char *pattern)
{
    parser_t parser = {.at = pattern};
    bool is_empty;
    if (!take_alternatives(&parser, &is_empty))
        return parser.why;
    if (*parser.at)
        return "a ) that ends no group";
    return is_empty ? "a pattern that matches empty text" : NULL;
}
