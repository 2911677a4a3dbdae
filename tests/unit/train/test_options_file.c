/* test_options_file.c - the configuration file: its syntax, its mistakes by line, and bytes that are no configuration.
 */
#include "tests/unit/train/parse_options.h"

START_TEST(comments_quotes_case_and_continued_lines_are_iniparsers)
{
    options_t options = must_parse("; a comment\r\n"
                                   "[ MODEL ]\r\n"
                                   "  Layers=2   ; inline\r\n"
                                   "\tDIM\t=\t36 # inline\r\n"
                                   "heads = '3'\r\n"
                                   "[Data]\n"
                                   "train = \"a;b #c.txt\" ; inline\n"
                                   "val = Upper.TXT,\\\n"
                                   "   lower.txt\n"
                                   "[log]\n"
                                   "every = 3", /* no newline */
                                   NULL);
    ck_assert_int_eq(options.model.layers, 2);
    ck_assert_int_eq(options.model.dim, 36);
    ck_assert_int_eq(options.model.heads, 3);
    ck_assert_str_eq(options.data.train, "a;b #c.txt");
    ck_assert_str_eq(options.data.val, "Upper.TXT,   lower.txt");
    ck_assert_int_eq(options.log.every, 3);
}
END_TEST

START_TEST(lines_are_numbered_rightly_after_continued_ones)
{
    expect_refusal("[data]\ntrain = a,\\\n b,\\\n c\n[model]\nlayer = 3\n", NULL,
                   (const char *[]){"cfg.ini:6: ", "did you mean [model] layers?", NULL});
}
END_TEST

START_TEST(a_line_of_the_longest_length_is_read_and_a_longer_one_refused)
{
    static options_t options;
    for (int n_continued = 0; n_continued < 2; n_continued++)
        for (int length = 1018; length <= 1030; length++) {
            char text[4096] = MINIMAL "[log]\n";
            char *line = text + strlen(text);
            strcpy(line, "metrics = ");
            memset(line + strlen(line), 'm', (size_t)length - strlen(line));
            if (n_continued) { /* the backslash and the newline go; the rest is one line */
                memmove(line + 502, line + 500, strlen(line + 500) + 1);
                memcpy(line + 500, "\\\n", 2);
            }
            strcat(text, "\n");
            if (length <= 1022) {
                ck_assert_msg(parse(text, NULL, &options) == ZERO_OK, "length %d", length);
                ck_assert_uint_eq(strlen(options.log.metrics), (size_t)length - 10);
            } else {
                expect_refusal(text, NULL, (const char *[]){"cfg.ini:8: ", "longer than 1022", NULL});
            }
        }
}
END_TEST

START_TEST(mistakes_in_the_file_are_named_with_line_and_near_miss)
{
    static const struct {
        const char *text;
        const char *fragments[4];
    } cases[] = {
        {MINIMAL "[train]\nlearning = 1\n", {"cfg.ini:8: ", "unknown key 'learning' in [train]"}},
        {MINIMAL "[train]\nmicro_bach = 1\n", {"cfg.ini:8: ", "did you mean [train] micro_batch?"}},
        {MINIMAL "[train]\nwarmpu_steps = 1\n", {"did you mean [train] warmup_steps?"}},
        {MINIMAL "[model]\nlr = 1\n", {"cfg.ini:8: ", "'lr' in [model]", "did you mean [train] lr?"}},
        {MINIMAL "[log]\nevry = 1\n", {"did you mean [log] every?"}},
        {MINIMAL "[checkpoint]\nevry = 1\n", {"did you mean [checkpoint] every?"}},
        {"\n\n[modle]\nlayers = 1\n", {"cfg.ini:3: ", "unknown section [modle]", "did you mean [model]?"}},
        {"# x\nlr = 1\n" MINIMAL, {"cfg.ini:2: ", "'lr' comes before any section", "did you mean [train] lr?"}},
        {MINIMAL "[train]\nlr = 1\nlr = 1\n", {"cfg.ini:9: ", "[train] lr is already set in line 8"}},
        {MINIMAL "[train]\nlr = 1\n[zero]\n[train]\n\nLR = 2\n", {"cfg.ini:12: ", "already set in line 8"}},
        {MINIMAL "[train]\nlr = fast\n", {"cfg.ini:8: [train] lr: 'fast' is not a number"}},
        {MINIMAL "[train]\nlr = nan\n", {"cfg.ini:8: [train] lr: 'nan' is not a finite number"}},
        {MINIMAL "[train]\nsteps = many\n", {"[train] steps: 'many' is not a whole number"}},
        {MINIMAL "[zero]\nshard_group = hosts\n",
         {"[zero] shard_group: 'hosts' is not one of 1..1048576 or world or host; did you mean host?"}},
        {MINIMAL "[zero]\nshard_group = 1.5\n", {"[zero] shard_group: '1.5' is not a whole number"}},
        {MINIMAL "[zero]\noffload_ratio = aut\n", {"'aut' is not one of 0..1 or auto; did you mean auto?"}},
        {MINIMAL "[zero]\nstage = 4\n", {"cfg.ini:8: [zero] stage: 4 is out of range 0..3"}},
        {MINIMAL "[zero]\noverlap = perhaps\n", {"[zero] overlap: 'perhaps' is neither true nor false"}},
        {MINIMAL "[train]\nschedule = cosin\n",
         {"[train] schedule: 'cosin' is not one of cosine, linear", "did you mean cosine?"}},
        {MINIMAL "[train]\nbatch_size = 8\n",
         {"cfg.ini:8: unknown key 'batch_size' in [train]; here it is [train] micro_batch"}},
        {MINIMAL "[optimizer]\nlr = 1\n", {"cfg.ini:7: unknown section [optimizer]; did you mean [train]?"}},
        {MINIMAL "[device]\ntype = GPU\n", {"'GPU' is not one of auto, cuda, cpu, cuda-shared; did you mean cuda?"}},
        {"\xef\xbb\xbf" MINIMAL, {"cfg.ini:1: ", "byte order mark"}},
        {MINIMAL "[train]\nlr =\n", {"cfg.ini:8: [train] lr: the value is empty"}},
        {MINIMAL "[checkpoint]\ndir = a;b\n", {"cfg.ini:8: [checkpoint] dir: ", "';b' would be taken for a comment"}},
        {MINIMAL "[checkpoint]\ndir = runs#3 # x\n",
         {"cfg.ini:8: [checkpoint] dir: ", "'#3 # x' would be taken for a comment"}},
        {MINIMAL "[checkpoint]\ndir = runs#\n", {"cfg.ini:8: [checkpoint] dir: ", "'#' would be taken for a comment"}},
        {MINIMAL "[train]\nlr = # 3\n", {"cfg.ini:8: [train] lr: the value is empty"}},
        {MINIMAL "[train]\nlr = \"\"\n", {"cfg.ini:8: [train] lr: the value is empty"}},
        {MINIMAL "[train]\nlr 3\n", {"cfg.ini:8: ", "'lr 3' is neither [section] nor key = value"}},
        {MINIMAL "[train]\n= 3\n", {"cfg.ini:8: ", "without a key"}},
        {MINIMAL "[log]\nmetrics = \"m.jsonl\n", {"cfg.ini:8: ", "[log] metrics: a quote \" that is not closed"}},
        {MINIMAL "[data]\nval = \"a\", \"b\"\n", {"cfg.ini:8: ", "[data] val: ', \"b\"' follows the closing quote"}},
        {MINIMAL "[data]\nval = 'a' b ; c\n", {"cfg.ini:8: ", "[data] val: 'b ; c' follows the closing quote"}},
        {MINIMAL "[train\n", {"cfg.ini:7: ", "[train]"}},
        {MINIMAL "[train] # x\n", {"cfg.ini:7: ", "alone on its line"}},
        {MINIMAL "[train] lr = 1\n", {"cfg.ini:7: ", "alone on its line"}},
        {MINIMAL "[]\n", {"cfg.ini:7: ", "without a name"}},
        {MINIMAL "[train]\nlr = 1\\\n", {"cfg.ini:8: ", "backslash"}},
        {MINIMAL "[train]\nlr = 1 \\", {"cfg.ini:8: ", "backslash"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refusal(cases[i].text, NULL, cases[i].fragments);
}
END_TEST

START_TEST(a_configuration_that_is_no_text_file_is_refused)
{
    static options_t options;
    options_action_t action;
    const char *const paths[][2] = {
        {"/nonexistent/cfg.ini", "No such file"}, {scratch, "is a directory"}, {"/dev/null", "not a regular file"}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        char *argv[] = {(char *)"zerotrain", (char *)paths[i][0]};
        capture_begin();
        zero_status_t status = options_parse(2, argv, &options, &action);
        expect_line(capture_end(), (const char *[]){paths[i][0], paths[i][1], NULL});
        ck_assert_int_eq(status, ZERO_ERROR_USAGE);
    }
    capture_begin();
    ck_assert_int_eq(parse_bytes("[train]\n\0lr = 1\n", 16, NULL, &options), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"cfg.ini", "zero byte", NULL});
    char *big = calloc(1, (2 << 20) + 1);
    memset(big, '#', 2 << 20);
    capture_begin();
    ck_assert_int_eq(parse_bytes(big, 2 << 20, NULL, &options), ZERO_ERROR_USAGE);
    expect_line(capture_end(), (const char *[]){"cfg.ini", "1048576", NULL});
    free(big);
}
END_TEST

/* ---- Fuzz ---- */

/* Whatever the bytes, the answer is success without a word or a usage error in one line. */
static void expect_sound_answer(const char *bytes, size_t n_bytes)
{
    static options_t options;
    capture_begin();
    zero_status_t status = parse_bytes(bytes, n_bytes, NULL, &options);
    const char *said = capture_end();
    if (status == ZERO_OK) {
        ck_assert_str_eq(said, "");
    } else {
        ck_assert_int_eq(status, ZERO_ERROR_USAGE);
        expect_line(said, (const char *[]){NULL});
    }
}

START_TEST(random_bytes_never_crash)
{
    static const char alphabet[] = "[]=;#\"'\\ \n\r\ttrain.lr0123-+e\xff\x01";
    uint64_t state = 21;
    for (int round = 0; round < 3000; round++) {
        char bytes[3000] = {0};
        size_t n = support_random(&state) % (round % 10 ? 60 : sizeof bytes);
        for (size_t i = 0; i < n; i++)
            bytes[i] = alphabet[support_random(&state) % (sizeof alphabet - 1)];
        expect_sound_answer(bytes, n);
    }
}
END_TEST

START_TEST(mutations_of_a_good_file_never_crash)
{
    static const char good[] = MINIMAL "[train]\nlr = 3e-4 # c\nsteps = \"10\"\n[log]\nmetrics = a,\\\n b\n";
    uint64_t state = 22;
    for (int round = 0; round < 5000; round++) {
        char bytes[sizeof good + 16];
        size_t n = sizeof good - 1;
        memcpy(bytes, good, n);
        for (int edits = 1 + (int)(support_random(&state) % 4); edits > 0; edits--) {
            size_t at = support_random(&state) % n;
            switch (support_random(&state) % 3) {
            case 0:
                bytes[at] = (char)support_random(&state);
                break;
            case 1:
                memmove(bytes + at, bytes + at + 1, --n - at);
                break;
            default:
                memmove(bytes + at + 1, bytes + at, n++ - at);
            }
        }
        expect_sound_answer(bytes, n);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("options_file");
    TCase *c = tcase_create("file");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, mistakes_in_the_file_are_named_with_line_and_near_miss);
    tcase_add_test(c, a_configuration_that_is_no_text_file_is_refused);
    tcase_add_test(c, comments_quotes_case_and_continued_lines_are_iniparsers);
    tcase_add_test(c, lines_are_numbered_rightly_after_continued_ones);
    tcase_add_test(c, a_line_of_the_longest_length_is_read_and_a_longer_one_refused);
    tcase_add_test(c, random_bytes_never_crash);
    tcase_add_test(c, mutations_of_a_good_file_never_crash);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
