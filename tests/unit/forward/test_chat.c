/* test_chat.c - zerotrain generate --chat and --prompts: a model that has learned dialogues answers turn by turn
 * through its template, with the text that it gives when the whole dialogue is asked at once, on any number of ranks;
 * and every mistake gets a line. Templates are rendered by Jinja2: without it in python3, the tests that need it are
 * skipped.
 */
#define SUPPORT_SANITIZE_SOME
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 60.0

/* Bytes are tokens. An answer ends with ';', byte 59. */
static const char TEMPLATE[] =
    "{% if brief %}S:be brief{% endif %}{% for m in messages %}{% if m.role == 'system' %}S:{{ m.content }}{% elif "
    "m.role == 'user' %}U:{{ m.content }}"
    "{% elif m.content == 'rude' %}{{ raise_exception('be polite') }}{% else %}A:{% generation %}{{ m.content }};"
    "{% endgeneration %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}A:{% endif %}";

static char *scratch;

static void write_file(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    support_write_file(path, text, strlen(text));
}

/* Questions in random order, each with its answer. */
static void write_dialogues(void)
{
    static const char *const turns[] = {"U:who?A:it is me;", "U:what?A:a stone;", "U:when?A:today;"};
    char text[6000] = "";
    uint64_t state = 5;
    for (int i = 0; i < 300; i++)
        strcat(text, turns[support_random(&state) % 3]);
    write_file("train.txt", text);
}

static void set_up(void)
{
    support_output_t output;
    scratch = support_scratch();
    write_dialogues();
    write_file("cfg.ini",
               "[model]\narch = llama\nlayers = 2\ndim = 48\nheads = 4\nkv_heads = 2\nseq_len = 96\n"
               "[data]\ntrain = train.txt\n[train]\nsteps = 100\nmicro_batch = 8\nlr = 5e-3\nprecision = fp32\n"
               "[checkpoint]\ndir = ck\n");
    int code = support_run(&output, LIMIT_S, "cd %s && %s/zerotrain cfg.ini", scratch, support_build());
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
    write_file("ck/latest/generation_config.json", "{\"eos_token_id\": 59}");
    ck_assert_int_eq(support_run(NULL, LIMIT_S, "cp -rL %s/ck/latest %s/plain", scratch, scratch), 0);
    write_file("ck/latest/chat_template.jinja", TEMPLATE);
}

static bool lacks_jinja(void)
{
    support_output_t output;
    const bool lacks = support_run(&output, LIMIT_S, "python3 -c 'import jinja2'") != 0;
    support_output_free(&output);
    if (lacks)
        printf("SKIP: chat templates: python3 has no jinja2\n");
    return lacks;
}

/* Runs generate with a text on stdin. */
static int ask(support_output_t *output, int n_ranks, const char *lines, const char *arguments)
{
    write_file("stdin", lines);
    if (n_ranks == 1)
        return support_run(output, LIMIT_S, "cd %s && %s/zerotrain generate --temperature 0 %s <stdin", scratch,
                           support_build(), arguments);
    return support_run(output, LIMIT_S,
                       "cd %s && OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun "
                       "--oversubscribe --bind-to none -np %d %s/zerotrain generate --temperature 0 %s <stdin",
                       scratch, n_ranks, support_build(), arguments);
}

/* ---- turns ---- */

static const struct {
    int n_ranks;
    const char *arguments;
} CASES[] = {{1, "--chat ck"}, {2, "--chat --stage 3 ck"}, {3, "--chat --stage 1 ck"}};

/* A blank line is none, and the last one needs no end. */
START_TEST(a_model_answers_turn_by_turn)
{
    support_output_t output;
    if (lacks_jinja() || support_leaves_out(CASES[_i].n_ranks))
        return;
    int code = ask(&output, CASES[_i].n_ranks, "who?\r\n\nwhat?\nwhen?", CASES[_i].arguments);
    ck_assert_msg(code == 0, "%s", output.err);
    ck_assert_msg(strcmp(output.out, "it is me\na stone\ntoday\n") == 0, "%s", output.out);
    /* U:who?A: | it is me; | U:what?A: | a stone; | U:when?A: */
    ck_assert_msg(strstr(output.err, "9 tokens behind a prompt of 8,") &&
                      strstr(output.err, "8 tokens behind a prompt of 26,") &&
                      strstr(output.err, "6 tokens behind a prompt of 43,"),
                  "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* The other ranks wait as long as somebody thinks, not for ZERO_TIMEOUT_S. */
START_TEST(who_types_may_take_long)
{
    support_output_t output;
    if (lacks_jinja() || support_leaves_out(2))
        return;
    int code = support_run(
        &output, LIMIT_S,
        "cd %s && { echo who?; sleep 6; echo what?; } | OMP_NUM_THREADS=1 ZERO_TIMEOUT_S=4 "
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --bind-to none -np 2 "
        "%s/zerotrain generate --temperature 0 --chat ck",
        scratch, support_build());
    ck_assert_msg(code == 0 && strcmp(output.out, "it is me\na stone\n") == 0, "%d: %s%s", code, output.out,
                  output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(the_system_message_comes_first)
{
    support_output_t output;
    if (lacks_jinja())
        return;
    int code = ask(&output, 1, "what?\n", "--chat --system 'be brief' ck");
    ck_assert_msg(code == 0 && strstr(output.err, "behind a prompt of 19,"), "%s", output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(a_line_sets_variables_of_the_template)
{
    support_output_t output;
    if (lacks_jinja())
        return;
    write_file("brief.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"what?\"}], "
                              "\"chat_template_kwargs\": {\"brief\": true}}\n");
    int code = ask(&output, 1, "", "--prompts brief.jsonl ck");
    ck_assert_msg(code == 0 && strstr(output.err, "behind 1 prompts of 19 tokens,"), "%s", output.err);
    support_output_free(&output);
    write_file("brief.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"what?\"}], "
                              "\"chat_template_kwargs\": [true]}\n");
    code = ask(&output, 1, "", "--prompts brief.jsonl ck");
    ck_assert_msg(code == 2 && strstr(output.err, "line 1: 'chat_template_kwargs' is no object\n"), "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* By the cache of earlier turns, and without one: --prompts begins anew. */
START_TEST(a_turn_gives_the_answer_of_the_whole_dialogue)
{
    static const char *const last[] = {"who?", "what?", "when?"};
    support_output_t turns, whole;
    char lines[64], prompts[256];
    if (lacks_jinja())
        return;
    snprintf(lines, sizeof lines, "what?\n%s\n", last[_i]);
    snprintf(prompts, sizeof prompts,
             "{\"messages\": [{\"role\": \"user\", \"content\": \"what?\"}, {\"role\": \"assistant\", \"content\": "
             "\"a stone\"}, {\"role\": \"user\", \"content\": \"%s\"}]}\n",
             last[_i]);
    write_file("dialogue.jsonl", prompts);
    ck_assert_int_eq(ask(&turns, 1, lines, "--chat ck"), 0);
    int code = ask(&whole, 1, "", "--prompts dialogue.jsonl ck");
    ck_assert_msg(code == 0, "%s", whole.err);
    char *answer = strstr(turns.out, "\n") + 1, expected[64];
    snprintf(expected, sizeof expected, "\"text\": \"%.*s\", \"finish_reason\": \"stop\"", (int)strlen(answer) - 1,
             answer);
    ck_assert_msg(strlen(answer) > 3 && strstr(whole.out, expected), "%s: %s", expected, whole.out);
    support_output_free(&turns);
    support_output_free(&whole);
}
END_TEST

START_TEST(a_dialogue_ends_where_the_positions_end)
{
    support_output_t output;
    if (lacks_jinja())
        return;
    int code = ask(&output, 1, "who?\nwhat?\n", "--chat --set model.seq_len=25 ck");
    ck_assert_msg(code == 2 && strcmp(output.out, "it is me\n") == 0, "%d: %s", code, output.out);
    ck_assert_msg(strstr(output.err, "turn 2 ends the dialogue: with it there are 26 tokens, and the model has 25 "
                                     "positions"),
                  "%s", output.err);
    support_output_free(&output);
    code = support_run(NULL, LIMIT_S,
                       "cd %s && cp -rL ck/latest long && sed -i 's/\"rope_theta\"/\"rope_scaling\": "
                       "{\"rope_type\": \"longrope\", \"short_factor\": [1, 1, 1, 1, 1, 1], \"long_factor\": [2, 2, 2, "
                       "2, 2, 2], \"original_max_position_embeddings\": 24}, &/' long/config.json",
                       scratch);
    ck_assert_int_eq(code, 0);
    code = ask(&output, 1, "who?\nwhat?\n", "--chat long");
    ck_assert_msg(code == 2 && strstr(output.err, "the model has 24 positions (longrope's long_factor, for longer "
                                                  "texts, is not implemented)\n"),
                  "%d: %s", code, output.err);
    support_output_free(&output);
    /* What is cut says so, and the dialogue goes on. */
    code = ask(&output, 1, "who?\n", "--chat --max-tokens 3 ck");
    ck_assert_msg(code == 0 && strcmp(output.out, "it \n") == 0, "%d: %s", code, output.out);
    ck_assert_msg(strstr(output.err, "the answer is cut after --max-tokens 3\n"), "%s", output.err);
    support_output_free(&output);
    code = ask(&output, 1, "who?\n", "--chat --set model.seq_len=11 ck");
    ck_assert_msg(code == 0 && strcmp(output.out, "it \n") == 0, "%d: %s", code, output.out);
    ck_assert_msg(strstr(output.err, "the answer is cut at the last of 11 positions\n"), "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* Bytes are tokens of tokenizer.json, too, and ';' is a special one. */
static void write_tokenizer(const char *name)
{
    char text[4096] = "{\"added_tokens\": [{\"id\": 59, \"content\": \";\", \"special\": true}], \"pre_tokenizer\": "
                      "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, \"decoder\": "
                      "{\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": "
                      "{\"\u0120\": 32";
    for (int c = '!'; c <= '~'; c++)
        if (c != '"' && c != '\\')
            snprintf(text + strlen(text), sizeof text - strlen(text), ", \"%c\": %d", c, c);
    strcat(text, "}}}");
    write_file(name, text);
}

/* A base model's eos_token_id is not what the template ends answers with. */
START_TEST(an_answer_ends_where_the_template_ends_it)
{
    support_output_t output;
    const int n_ranks = 1 + _i;
    if (lacks_jinja() || support_leaves_out(n_ranks))
        return;
    int code =
        support_run(&output, LIMIT_S,
                    "cd %s && %s/zerotrain --overwrite --set model.vocab_size=257 --set checkpoint.dir=base cfg.ini",
                    scratch, support_build());
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
    write_tokenizer("base/latest/tokenizer.json");
    write_file("base/latest/generation_config.json", "{\"eos_token_id\": 256}");
    write_file("base/latest/chat_template.jinja", TEMPLATE);
    code = ask(&output, n_ranks, "who?\nwhat?\n", "--chat base");
    ck_assert_msg(code == 0 && strcmp(output.out, "it is me\na stone\n") == 0, "%d: %s%s", code, output.out,
                  output.err);
    support_output_free(&output);
    /* In a file of prompts, too; a prompt that is no dialogue goes on. */
    write_file("ends.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"who?\"}]}\n{\"prompt\": "
                             "\"U:who?A:\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"what?\"}]}\n");
    code = ask(&output, n_ranks, "", "--max-tokens 12 --prompts ends.jsonl base");
    ck_assert_msg(code == 0 &&
                      strstr(output.out, "\"text\": \"it is me\", \"finish_reason\": \"stop\"}\n{\"prompt\"") &&
                      strstr(output.out, "\"text\": \"it is me;") &&
                      strstr(output.out, "\"finish_reason\": \"length\"}\n{\"messages\"") &&
                      strstr(output.out, "\"text\": \"a stone\", \"finish_reason\": \"stop\"}\n"),
                  "%d: %s%s", code, output.out, output.err);
    support_output_free(&output);
}
END_TEST

/* ---- a file of prompts ---- */

/* Whatever a line has: JSON allows that control characters are escaped, and other characters stay as they are. */
START_TEST(a_result_controls_no_terminal)
{
    support_output_t output;
    write_file("controls.jsonl",
               "{\"a\x7f\": \"\\u001b\xc2\x80\\u009f\xc2\xa0\xc3\x9b\xe2\x82\xac\", \"prompt\": \"U:who?A:\"}\n");
    int code = ask(&output, 1, "", "--max-tokens 3 --prompts controls.jsonl ck");
    ck_assert_msg(code == 0 &&
                      strcmp(output.out, "{\"a\\u007F\": \"\\u001B\\u0080\\u009F\xc2\xa0\xc3\x9b\xe2\x82\xac\", "
                                         "\"prompt\": \"U:who?A:\", \"text\": \"it \", "
                                         "\"finish_reason\": \"length\"}\n") == 0,
                  "%d: %s%s", code, output.out, output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(each_prompt_of_a_file_has_the_text_that_it_has_alone)
{
    static const char *const prompts[] = {"U:who?A:", "U:", "A:to", "U:what?A:a stone;U:when?A:"};
    static const char sampled[] = "--temperature 1.5 --seed 4 --max-tokens 12";
    support_output_t all, ranks, alone;
    char arguments[256], file[512] = "\xef\xbb\xbf", *line; /* a byte order mark */
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++)
        snprintf(file + strlen(file), sizeof file - strlen(file), "{\"id\": %zu, \"prompt\": \"%s\"}\n", i, prompts[i]);
    write_file("prompts.jsonl", file);
    snprintf(arguments, sizeof arguments, "%s --prompts prompts.jsonl ck", sampled);
    int code = ask(&all, 1, "", arguments);
    ck_assert_msg(code == 0, "%s", all.err);
    line = all.out;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        char expected[256];
        snprintf(arguments, sizeof arguments, "%s --prompt '%s' ck", sampled, prompts[i]);
        ck_assert_int_eq(ask(&alone, 1, "", arguments), 0);
        alone.out[strlen(alone.out) - 1] = 0; /* the line feed that generate adds */
        snprintf(expected, sizeof expected,
                 "{\"id\": %zu, \"prompt\": \"%s\", \"text\": \"%s\", \"finish_reason\": ", i, prompts[i], alone.out);
        ck_assert_msg(strncmp(line, expected, strlen(expected)) == 0, "%s\n%s", expected, line);
        const bool is_whole = strstr(alone.err, "12 tokens behind") != NULL && strlen(alone.out) == 12;
        line = strstr(line, "\"finish_reason\": ") + strlen("\"finish_reason\": ");
        ck_assert(strncmp(line, is_whole ? "\"length\"}\n" : "\"stop\"}\n", is_whole ? 10 : 8) == 0);
        line = strchr(line, '\n') + 1;
        support_output_free(&alone);
    }
    ck_assert_str_eq(line, "");
    if (!support_leaves_out(2)) {
        snprintf(arguments, sizeof arguments, "%s --stage 3 --prompts prompts.jsonl ck", sampled);
        ck_assert_int_eq(ask(&ranks, 2, "", arguments), 0);
        ck_assert_str_eq(ranks.out, all.out);
        support_output_free(&ranks);
    }
    support_output_free(&all);
}
END_TEST

/* ---- mistakes ---- */

static const struct {
    const char *file, *says; /* the last line of prompts.jsonl, which is the third */
} bad_lines[] = {
    {"{\"prompt\": 3}", "line 3: \"prompt\" is no text"},
    {"{\"prompt\": \"\"}", "line 3: the prompt is empty"},
    {"{\"prompt\": \"a\", \"messages\": []}", "line 3: this is no object with either \"prompt\" or \"messages\""},
    {"[\"a\"]", "line 3: this is no object"},
    {"{\"prompt\": ", "line 3: this is no JSON"},
    {"{\"prompt\": \"a\", \"text\": \"b\"}", "line 3: \"text\" and \"finish_reason\" are names of the result"},
    {"{\"prompt\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", "line 3: the prompt has 30 tokens, and the model has 30 "},
};

START_TEST(a_bad_line_is_refused_by_its_number)
{
    support_output_t output;
    char file[256];
    snprintf(file, sizeof file, "{\"prompt\": \"who?\"}\n\n%s\n", bad_lines[_i].file);
    write_file("bad.jsonl", file);
    int code = ask(&output, 1, "", "--set model.seq_len=30 --prompts bad.jsonl ck");
    ck_assert_msg(code == 2 && strstr(output.err, bad_lines[_i].says) && support_count(output.err, "\n") == 1 &&
                      !output.out[0],
                  "%s: exit code %d\n%s", bad_lines[_i].file, code, output.err);
    support_output_free(&output);
}
END_TEST

static const struct {
    const char *arguments, *says;
} refusals[] = {
    {"--chat --prompt a ck", "give one of them"},
    {"--chat --prompts bad.jsonl ck", "give one of them"},
    {"--system a --prompt b ck", "--system: this is an option of --chat"},
    {"--prompts none.jsonl ck", "--prompts: cannot read 'none.jsonl'"},
    {"--prompts stdin ck", "'stdin' has no prompt"},
};

static const struct {
    const char *file, *says; /* of messages */
} bad_dialogues[] = {
    {"[]", "line 1: there is no message"},
    {"null", "line 1: there is no message"},
    {"[{\"role\": \"user\"}]", "line 1: the content of a message is null"},
    {"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]",
     "line 1: the last message is the assistant's"},
    {"[{\"role\": \"assistant\", \"content\": \"rude\"}, {\"role\": \"user\", \"content\": \"a\"}]",
     "line 1: the chat template: be polite"},
};

static void expect_refusal(const char *arguments, const char *says)
{
    support_output_t output;
    int code = ask(&output, 1, "", arguments);
    ck_assert_msg(code == 2 && strstr(output.err, says) && support_count(output.err, "\n") == 1, "%s: exit code %d\n%s",
                  arguments, code, output.err);
    support_output_free(&output);
}

START_TEST(mistakes_are_refused_with_a_line)
{
    expect_refusal(refusals[_i].arguments, refusals[_i].says);
}
END_TEST

START_TEST(a_dialogue_that_has_no_answer_is_refused)
{
    char file[256];
    if (lacks_jinja())
        return;
    snprintf(file, sizeof file, "{\"messages\": %s}\n", bad_dialogues[_i].file);
    write_file("dialogue.jsonl", file);
    expect_refusal("--prompts dialogue.jsonl ck", bad_dialogues[_i].says);
}
END_TEST

static const struct {
    const char *template, *says; /* NULL: none */
} bad_templates[] = {
    {NULL, "'plain' has no chat template"},
    {"{{ messages[0].content }", "the chat template of 'plain' cannot be read: unexpected '}'"},
};

/* By a dialogue, and by a file, of which zerotrain first asks how the template ends answers. */
START_TEST(a_model_without_a_template_that_can_be_read_is_refused)
{
    if (lacks_jinja())
        return;
    if (bad_templates[_i].template)
        write_file("plain/chat_template.jinja", bad_templates[_i].template);
    write_file("question.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
    expect_refusal("--chat plain", bad_templates[_i].says);
    expect_refusal("--prompts question.jsonl plain", bad_templates[_i].says);
}
END_TEST

START_TEST(a_renderer_without_a_model_says_how_it_is_used)
{
    static const char *const arguments[] = {"", "a b"};
    for (int i = 0; i < 2; i++) {
        support_output_t output;
        int code = support_run(&output, LIMIT_S, "launch/chat-template %s </dev/null", arguments[i]);
        ck_assert_msg(code == 2 && strcmp(output.err, "usage: launch/chat-template MODEL_DIR\n") == 0, "%d: %s", code,
                      output.err);
        support_output_free(&output);
    }
}
END_TEST

/* One line with the reason, whatever it was. */
START_TEST(a_renderer_that_ends_is_named)
{
    support_output_t output;
    int code = support_run(&output, LIMIT_S, "cd %s && PATH=/nowhere %s/zerotrain generate --chat ck </dev/null",
                           scratch, support_build());
    ck_assert_msg(code == 1 && strstr(output.err, "has ended: ") && strstr(output.err, "python3") &&
                      support_count(output.err, "\n") == 1,
                  "exit code %d\n%s", code, output.err);
    support_output_free(&output);
    if (lacks_jinja())
        return;
    /* It is killed between two turns. */
    code = support_run(&output, LIMIT_S,
                       "cd %s && { echo who?; sleep 2; kill -9 $(pgrep -f '[c]hat-template ck'); echo what?; } | "
                       "%s/zerotrain generate --temperature 0 --chat ck",
                       scratch, support_build());
    ck_assert_msg(code == 1 && strcmp(output.out, "it is me\n") == 0 && strstr(output.err, "has ended: Killed\n"),
                  "exit code %d\n%s%s", code, output.out, output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("chat");
    TCase *turns = tcase_create("turns");
    tcase_set_timeout(turns, 5 * LIMIT_S);
    tcase_add_unchecked_fixture(turns, set_up, NULL);
    tcase_add_loop_test(turns, a_model_answers_turn_by_turn, 0, sizeof CASES / sizeof CASES[0]);
    tcase_add_test(turns, who_types_may_take_long);
    tcase_add_test(turns, the_system_message_comes_first);
    tcase_add_test(turns, a_line_sets_variables_of_the_template);
    tcase_add_loop_test(turns, a_turn_gives_the_answer_of_the_whole_dialogue, 0, 3);
    tcase_add_test(turns, a_dialogue_ends_where_the_positions_end);
    tcase_add_loop_test(turns, an_answer_ends_where_the_template_ends_it, 0, 2);
    tcase_add_test(turns, a_result_controls_no_terminal);
    tcase_add_test(turns, each_prompt_of_a_file_has_the_text_that_it_has_alone);
    tcase_add_loop_test(turns, a_bad_line_is_refused_by_its_number, 0, sizeof bad_lines / sizeof bad_lines[0]);
    tcase_add_loop_test(turns, mistakes_are_refused_with_a_line, 0, sizeof refusals / sizeof refusals[0]);
    tcase_add_loop_test(turns, a_dialogue_that_has_no_answer_is_refused, 0,
                        sizeof bad_dialogues / sizeof bad_dialogues[0]);
    tcase_add_loop_test(turns, a_model_without_a_template_that_can_be_read_is_refused, 0,
                        sizeof bad_templates / sizeof bad_templates[0]);
    tcase_add_test(turns, a_renderer_without_a_model_says_how_it_is_used);
    tcase_add_test(turns, a_renderer_that_ends_is_named);
    suite_add_tcase(s, turns);
    return s;
}

int main(void)
{
    return support_main(suite());
}
