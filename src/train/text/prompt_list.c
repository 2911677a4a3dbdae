/* prompt_list.c - see prompt_list.h. Rank 0 reads the file; the other ranks get the tokens. */
#include "train/text/prompt_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/hub/adapter_config.h"
#include "train/options/input_file.h"
#include "train/report/process.h"
#include "train/report/report.h"
#include "train/report/utf8.h"

#define MAX_FILE_BYTES ((size_t)1 << 30)
#define WHERE_BYTES (OPTIONS_MAX_PATH + 64)

/* ---- reading ---- */

typedef struct reading {
    const options_t *options;
    prompt_t *prompt;
    int64_t n_line, longest_line, longest; /* the line at hand; the longest prompt's, and its tokens */
    int64_t capacity;                      /* of prompt->list */
} reading_t;

static void name_line(const reading_t *reading, int64_t line, char where[WHERE_BYTES])
{
    snprintf(where, WHERE_BYTES, "--prompts: '%s', line %lld", reading->options->generate.prompts, (long long)line);
}

/* Encodes a dialogue up to its answer; what it needs of it has been checked by launch/chat-template. */
static zero_status_t encode_messages(reading_t *reading, const char *where, const json_t *record)
{
    prompt_t *prompt = reading->prompt;
    if (!prompt->chat) {
        ZERO_TRY(chat_template_open(adapter_texts_directory(reading->options), &prompt->chat));
        ZERO_TRY(prompt_find_end(prompt));
    }
    return prompt_encode_dialogue(prompt, where, record);
}

/* Checks a line's object and encodes its prompt. */
static zero_status_t encode_record(reading_t *reading, const char *where, const json_t *record)
{
    const json_t *text = json_object_get(record, "prompt"), *messages = json_object_get(record, "messages");
    prompt_t *prompt = reading->prompt;
    if (!json_is_object(record) || !text == !messages)
        return report_error(ZERO_ERROR_USAGE, "%s: this is no object with either \"prompt\" or \"messages\"", where);
    if (json_object_get(record, "text") || json_object_get(record, "finish_reason"))
        return report_error(ZERO_ERROR_USAGE, "%s: \"text\" and \"finish_reason\" are names of the result: rename them",
                            where);
    if (messages)
        return encode_messages(reading, where, record);
    if (!json_is_string(text))
        return report_error(ZERO_ERROR_USAGE, "%s: \"prompt\" is no text", where);
    return prompt_encode(prompt->tokenizer, where, json_string_value(text), json_string_length(text), &prompt->tokens);
}

static zero_status_t add_record(reading_t *reading, json_t *record, int64_t n_tokens)
{
    prompt_t *prompt = reading->prompt;
    if (prompt->n_prompts == reading->capacity) {
        int64_t capacity = reading->capacity > 0 ? 2 * reading->capacity : 64;
        listed_prompt_t *list = realloc(prompt->list, (size_t)capacity * sizeof *list);
        if (!list)
            return report_rank_error(ZERO_ERROR_MEMORY, "--prompts: no memory for %lld prompts", (long long)capacity);
        prompt->list = list;
        reading->capacity = capacity;
    }
    if (json_array_append(prompt->records, record) != 0)
        return report_rank_error(ZERO_ERROR_MEMORY, "--prompts: no memory for line %lld", (long long)reading->n_line);
    prompt->list[prompt->n_prompts++] =
        (listed_prompt_t){.n_tokens = (int32_t)n_tokens, .end = json_object_get(record, "messages") ? prompt->end : -1};
    if (n_tokens > reading->longest) {
        reading->longest = n_tokens;
        reading->longest_line = reading->n_line;
    }
    return ZERO_OK;
}

static zero_status_t take_line(reading_t *reading, const char *line, size_t n_bytes)
{
    char where[WHERE_BYTES];
    json_error_t error;
    const size_t before = reading->prompt->tokens.n;
    reading->n_line++;
    if (strspn(line, " \t\r\n") >= n_bytes)
        return ZERO_OK;
    name_line(reading, reading->n_line, where);
    json_t *record = json_loadb(line, n_bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (!record)
        return report_error(ZERO_ERROR_USAGE, "%s: this is no JSON: %s", where, error.text);
    zero_status_t status = encode_record(reading, where, record);
    const int64_t n_tokens = (int64_t)(reading->prompt->tokens.n - before);
    if (status == ZERO_OK && n_tokens == 0)
        status = report_error(ZERO_ERROR_USAGE, "%s: the prompt is empty", where);
    if (status == ZERO_OK)
        status = add_record(reading, record, n_tokens);
    json_decref(record);
    return status;
}

static zero_status_t take_lines(reading_t *reading, const char *text, size_t n_bytes)
{
    for (const char *line = text, *end; line < text + n_bytes; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + n_bytes - line));
        end = end ? end : text + n_bytes;
        ZERO_TRY(take_line(reading, line, (size_t)(end - line)));
    }
    if (reading->prompt->n_prompts == 0)
        return report_error(ZERO_ERROR_USAGE, "--prompts: '%s' has no prompt", reading->options->generate.prompts);
    return ZERO_OK;
}

static zero_status_t read_here(options_t *options, prompt_t *prompt)
{
    static const input_words_t words = {"--prompts: ", ""};
    reading_t reading = {.options = options, .prompt = prompt};
    int64_t max_tokens = options->generate.max_tokens;
    char *text, where[WHERE_BYTES];
    size_t n_bytes;
    ZERO_TRY(tokenizer_open(adapter_texts_directory(options), options->model.vocab_size, &prompt->tokenizer));
    if (!(prompt->records = json_array()))
        return report_rank_error(ZERO_ERROR_MEMORY, "--prompts: no memory");
    ZERO_TRY(input_file_read(options->generate.prompts, MAX_FILE_BYTES, words, &text, &n_bytes));
    const size_t n_mark = strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* the byte order mark of some editors */
    zero_status_t status = take_lines(&reading, text + n_mark, n_bytes - n_mark);
    free(text);
    ZERO_TRY(status);
    name_line(&reading, reading.longest_line, where);
    return prompt_fit(&options->model, where, reading.longest, &max_tokens);
}

/* Gives rank 0's list to all ranks. */
static zero_status_t share_list(zero_comm_t *comm, prompt_t *prompt)
{
    zero_status_t status = ZERO_OK;
    ZERO_TRY(zero_comm_broadcast(comm, &prompt->n_prompts, sizeof prompt->n_prompts, 0));
    const size_t n_bytes = (size_t)prompt->n_prompts * sizeof *prompt->list;
    if (zero_comm_rank(comm) != 0 && !(prompt->list = malloc(n_bytes)))
        status =
            report_rank_error(ZERO_ERROR_MEMORY, "--prompts: no memory for %lld prompts", (long long)prompt->n_prompts);
    ZERO_TRY(report_agree(comm, status));
    return zero_comm_broadcast(comm, prompt->list, n_bytes, 0);
}

zero_status_t prompt_list_read(options_t *options, zero_comm_t *comm, prompt_t *prompt)
{
    zero_status_t status = zero_comm_rank(comm) == 0 ? read_here(options, prompt) : ZERO_OK;
    ZERO_TRY(report_agree(comm, status));
    ZERO_TRY(zero_comm_broadcast(comm, &options->model.seq_len, sizeof options->model.seq_len, 0));
    ZERO_TRY(share_list(comm, prompt));
    return prompt_share(comm, &prompt->tokens);
}

/* ---- running ---- */

/* Returns the line of a result, for free(); NULL: no memory. */
static char *result_of(const generator_t *g, const json_t *record)
{
    const bool is_answer = json_object_get(record, "messages") != NULL;
    size_t n_bytes = 0, n_repaired = 0;
    char *text = generator_text(g, is_answer, &n_bytes);
    char *repaired = text ? utf8_repaired(text, n_bytes, &n_repaired) : NULL;
    json_t *result = json_copy((json_t *)record);
    char *line = NULL;
    if (repaired && json_object_set_new(result, "text", json_stringn(repaired, n_repaired)) == 0 &&
        json_object_set_new(result, "finish_reason", json_string(g->has_stopped ? "stop" : "length")) == 0)
        line = json_dumps(result, 0);
    json_decref(result);
    free(repaired);
    free(text);
    return line;
}

/* Prints a line of JSON, with the control characters that jansson leaves as they are, DEL and U+0080 to U+009F, as
 * \u00xx: a terminal may obey them. They can only be in strings, as all that is not ASCII. */
static void print_json(const char *line)
{
    for (size_t n_left = strlen(line), n; n_left > 0; line += n, n_left -= n) {
        uint32_t code;
        n = utf8_read((const unsigned char *)line, n_left, &code);
        if (code >= 0x7f && code <= 0x9f)
            printf("\\u%04X", (unsigned)code);
        else
            fwrite(line, 1, n, stdout);
    }
    putchar('\n');
}

static zero_status_t show_result(const generator_t *g, const json_t *record)
{
    char *line = result_of(g, record);
    if (!line)
        return report_rank_error(ZERO_ERROR_MEMORY, "--prompts: no memory for a result");
    print_json(line);
    fflush(stdout);
    free(line);
    return ZERO_OK;
}

zero_status_t prompt_list_run(generator_t *generator, prompt_t *prompt)
{
    const uint64_t seed = (uint64_t)generator->session.options->generate.seed;
    const int32_t *tokens = prompt->tokens.at;
    const double began_s = clock_now_s();
    const int n_stops = generator->n_stops; /* of the model's, to which a dialogue adds its template's */
    int64_t n_new = 0;
    for (int64_t i = 0; i < prompt->n_prompts; i++) {
        const listed_prompt_t *at = &prompt->list[i];
        generator->n_stops = n_stops;
        generator_add_stop(generator, at->end);
        ZERO_TRY(generator_run(generator, tokens, at->n_tokens, seed, false));
        tokens += at->n_tokens;
        n_new += generator->n_all - generator->n_prompt;
        zero_status_t status =
            report_is_speaker() ? show_result(generator, json_array_get(prompt->records, (size_t)i)) : ZERO_OK;
        ZERO_TRY(zero_comm_agree(generator->session.comm, status));
    }
    report("%lld tokens behind %lld prompts of %zu tokens, %.1f tokens/s", (long long)n_new,
           (long long)prompt->n_prompts, prompt->tokens.n, (double)n_new / (clock_now_s() - began_s));
    return ZERO_OK;
}
