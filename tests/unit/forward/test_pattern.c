/* test_pattern.c - which patterns of a tokenizer.json are taken: those of published tokenizers, and none whose meaning
 * Oniguruma and PCRE2 do not share.
 *
 *   test_pattern PATTERNS TEXT      prints for each line of PATTERNS the words' ends in TEXT as byte offsets, or
 * "refused: WHY"; tests/reference/patterns.py compares them with those of `tokenizers`
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "train/text/split.h"

static const char *const TAKEN[] = {
    SPLIT_GPT2,
    /* Llama 3; Qwen 2 and 3; Mistral's and GPT-4o's tokenizers; DeepSeek; OLMo 2; Falcon */
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?"
    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|"
    "'d)?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+"
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+",
    "\\p{N}{1,3}",
    "[0-9][0-9][0-9]",
    "\\p{L}++|\\s++(?!\\S)|a*+b|c?+d|x+?y",
    "\\d{2,}|(?:ab|cd)+|(ef)",
};

static const struct {
    const char *pattern, *why;
} REFUSED[] = {
    {"[\\w&&[^\\d]]", "an escape other than"},
    {"[a-z&&b]", "&& within a class"},
    {"[[:alpha:]]+", "[ or && within"},
    {"[a[bc]]", "[ or && within"},
    {"[]a]", "begins with ]"},
    {"a{1,3}+", "+ or ? behind {n,m}"},
    {"a{2}?", "+ or ? behind {n,m}"},
    {"a{,3}", "a { that begins no"},
    {"\\h+", "an escape other than"},
    {"\\bword", "an escape other than"},
    {"\\w+", "an escape other than"},
    {"\\R|x", "an escape other than"},
    {"\\x41", "an escape other than"},
    {"^a", "^ $ ."},
    {"a$", "^ $ ."},
    {"a.b", "^ $ ."},
    {"(?m)^a", "a group other than"},
    {"(?m:a)", "a group other than"},
    {"(?<=a)b", "a group other than"},
    {"(?>a)b", "a group other than"},
    {"(?<n>a)", "a group other than"},
    {"\\p{Han}+", "a property other than"},
    {"\\p{Alphabetic}", "a property other than"},
    {"\\p{^L}", "a property other than"},
    {"\\pL", "a property other than"},
    {"[\\S]", "\\S within a class"},
    {"[\\s-x]", "a range that begins or ends with a class"},
    {"[a-\\s]", "a range that begins or ends with a class"},
    {"(?i:straSSe)", "letters that fold to one"},
    {"(?i:\xc3\x9f)", "other than ASCII"},
    {"(?i:[a-z])", "a class where case"},
    {"(?i:\\p{Lu})", "an escape where case"},
    {"(?!a)*b", "a repeated look-ahead"},
    {"a**", "a repetition of a repetition"},
    {"a*", "matches empty text"},
    {"a|", "matches empty text"},
    {"a|(?=b)", "matches empty text"},
    {"(?:a?b{0,2})", "matches empty text"},
    {"", "matches empty text"},
    {"(a", "without its end"},
    {"a)", "ends no group"},
    {"[a", "without its end"},
    {"a\\", "an escape other than"},
};

START_TEST(patterns_of_published_tokenizers_are_taken)
{
    const char *why = pattern_differs(TAKEN[_i]);
    ck_assert_msg(!why, "%s: %s", TAKEN[_i], why);
}
END_TEST

START_TEST(what_the_two_read_otherwise_is_refused)
{
    const char *why = pattern_differs(REFUSED[_i].pattern);
    ck_assert_msg(why && strstr(why, REFUSED[_i].why), "%s: %s", REFUSED[_i].pattern, why ? why : "taken");
}
END_TEST

/* Every prefix of a pattern ends the parser. */
START_TEST(what_is_cut_short_is_an_answer)
{
    char cut[512];
    for (size_t i = 0; i < sizeof TAKEN / sizeof TAKEN[0]; i++)
        for (size_t n = 0; n <= strlen(TAKEN[i]); n++) {
            snprintf(cut, sizeof cut, "%.*s", (int)n, TAKEN[i]);
            const char *why = pattern_differs(cut);
            ck_assert(!why || why[0]);
        }
}
END_TEST

static zero_status_t print_end(void *user, const char *word, size_t n_bytes)
{
    printf(" %d", (int)(word + n_bytes - (const char *)user));
    return ZERO_OK;
}

static int print_words(char **argv)
{
    size_t n_patterns, n_text;
    char *patterns = support_read_file(argv[1], &n_patterns), *text = support_read_file(argv[2], &n_text),
         *rest = patterns;
    for (char *line = strsep(&rest, "\n"); line && line[0]; line = strsep(&rest, "\n")) {
        splitter_t splitter = {0};
        const char *why = pattern_differs(line);
        if (why)
            printf("refused: %s", why);
        else if (splitter_add(&splitter, argv[1], line) != ZERO_OK ||
                 splitter_run(&splitter, 0, text, n_text, print_end, text) != ZERO_OK)
            return 1;
        printf("\n");
        splitter_destroy(&splitter);
    }
    free(patterns);
    free(text);
    return 0;
}

static Suite *suite(void)
{
    Suite *suite = suite_create("patterns");
    TCase *tcase = tcase_create("patterns");
    tcase_add_loop_test(tcase, patterns_of_published_tokenizers_are_taken, 0, (int)(sizeof TAKEN / sizeof TAKEN[0]));
    tcase_add_loop_test(tcase, what_the_two_read_otherwise_is_refused, 0, (int)(sizeof REFUSED / sizeof REFUSED[0]));
    tcase_add_test(tcase, what_is_cut_short_is_an_answer);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(int argc, char **argv)
{
    return argc == 3 ? print_words(argv) : support_main(suite());
}
