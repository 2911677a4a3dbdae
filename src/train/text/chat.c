/* chat.c - see chat.h.
 *
 * Rank 0 reads stdin, renders the dialogue anew at each turn and encodes it; the other ranks get the tokens:
 *
 *   rank 0    wait for a line ... | render, encode | tokens | generate | add the answer to the dialogue
 *   others    wait for a turn ... |                | tokens | generate |
 *
 * While rank 0 waits for somebody to type, it says so to the others several times a second: who waits for a peer gives
 * up after ZERO_TIMEOUT_S.
 */
#include "train/text/chat.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/hub/adapter_config.h"
#include "train/hub/hf_keys.h"
#include "train/options/input_file.h"
#include "train/report/report.h"

#define MOST_POSITIONS 4096 /* unless [model] seq_len asks for more: they are allocated ahead */
#define MAX_LINE_BYTES ((size_t)64 << 20)
#define WAIT_MS 200

/* ---- the dialogue ---- */

/* Encodes the dialogue up to the answer. */
static zero_status_t encode_dialogue(prompt_t *prompt)
{
    prompt->tokens.n = 0;
    return prompt_encode_dialogue(prompt, "generate --chat", prompt->dialogue);
}

/* Removes the last message. */
static void drop_message(prompt_t *prompt)
{
    json_t *messages = json_object_get(prompt->dialogue, "messages");
    json_array_remove(messages, json_array_size(messages) - 1);
}

/* Renders a first message, so that a template that cannot be used is refused before weights are loaded. */
static zero_status_t try_template(const options_t *options, prompt_t *prompt)
{
    const char *system = options->generate.system;
    if (!(prompt->dialogue = json_pack("{s:[]}", "messages")))
        return report_rank_error(ZERO_ERROR_MEMORY, "generate --chat: no memory");
    if (system)
        ZERO_TRY(chat_add_message(prompt->dialogue, "system", system, strlen(system)));
    ZERO_TRY(chat_add_message(prompt->dialogue, "user", "a", 1));
    ZERO_TRY(encode_dialogue(prompt));
    drop_message(prompt);
    return ZERO_OK;
}

static int64_t positions_of(const model_options_t *model)
{
    int64_t positions = prompt_named_positions(model);
    if (positions <= 0)
        positions = hf_families[model->arch].positions;
    if (positions > MOST_POSITIONS)
        positions = MOST_POSITIONS;
    return model->longest > 0 && model->longest < positions ? model->longest : positions;
}

static zero_status_t open_here(const options_t *options, prompt_t *prompt)
{
    const model_options_t *model = &options->model;
    ZERO_TRY(tokenizer_open(adapter_texts_directory(options), model->vocab_size, &prompt->tokenizer));
    ZERO_TRY(chat_template_open(adapter_texts_directory(options), &prompt->chat));
    ZERO_TRY(try_template(options, prompt));
    return prompt_find_end(prompt);
}

zero_status_t chat_read(options_t *options, zero_comm_t *comm, prompt_t *prompt)
{
    prompt->end = -1;
    zero_status_t status = zero_comm_rank(comm) == 0 ? open_here(options, prompt) : ZERO_OK;
    ZERO_TRY(report_agree(comm, status));
    ZERO_TRY(zero_comm_broadcast(comm, &prompt->end, sizeof prompt->end, 0));
    if (options->model.seq_len == 0)
        options->model.seq_len = positions_of(&options->model);
    return zero_comm_broadcast(comm, &options->model.seq_len, sizeof options->model.seq_len, 0);
}

/* ---- lines of stdin ---- */

typedef struct lines {
    char *bytes;
    size_t n, capacity, n_taken; /* of n bytes, those of the last line */
    bool at_end;
} lines_t;

typedef enum turn_kind { TURN_WAITS, TURN_ASKS, TURN_ENDS } turn_kind_t;

/* Reads what is there. */
static zero_status_t read_more(lines_t *lines)
{
    if (lines->n == lines->capacity) {
        size_t capacity = lines->capacity > 0 ? 2 * lines->capacity : 4096;
        char *bytes = capacity > MAX_LINE_BYTES ? NULL : realloc(lines->bytes, capacity);
        if (!bytes)
            return report_error(ZERO_ERROR_USAGE, "generate --chat: a line of stdin has more than %zu bytes", lines->n);
        lines->bytes = bytes;
        lines->capacity = capacity;
    }
    ssize_t n = read(STDIN_FILENO, lines->bytes + lines->n, lines->capacity - lines->n);
    if (n < 0 && errno != EINTR && errno != EAGAIN)
        return report_error(ZERO_ERROR_USAGE, "generate --chat: cannot read stdin: %s", strerror(errno));
    lines->at_end = n == 0;
    lines->n += n > 0 ? (size_t)n : 0;
    return ZERO_OK;
}

/* Waits for a line, at most wait_ms; -1: without limit. Sets its text, which stays until the next call, without the end
 * of line. */
static zero_status_t next_line(lines_t *lines, int wait_ms, turn_kind_t *kind, const char **text, size_t *n_bytes)
{
    lines->n -= lines->n_taken;
    if (lines->n > 0)
        memmove(lines->bytes, lines->bytes + lines->n_taken, lines->n);
    lines->n_taken = 0;
    for (;;) {
        const char *end = lines->n > 0 ? memchr(lines->bytes, '\n', lines->n) : NULL;
        if (end || (lines->at_end && lines->n > 0)) {
            *kind = TURN_ASKS;
            *text = lines->bytes;
            *n_bytes = end ? (size_t)(end - lines->bytes) : lines->n;
            lines->n_taken = *n_bytes + (end != NULL);
            *n_bytes -= *n_bytes > 0 && lines->bytes[*n_bytes - 1] == '\r';
            return ZERO_OK;
        }
        *kind = lines->at_end ? TURN_ENDS : TURN_WAITS;
        if (lines->at_end || poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, wait_ms) == 0)
            return ZERO_OK;
        ZERO_TRY(read_more(lines));
    }
}

static bool is_blank(const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (!isspace((unsigned char)text[i]))
            return false;
    return true;
}

/* ---- a turn ---- */

typedef struct chat {
    generator_t *generator;
    prompt_t *prompt;
    zero_comm_t *comm;
    lines_t lines;
    int64_t n_turns;
    bool is_terminal, has_asked; /* there is a sign that it waits for a line */
} chat_t;

/* What rank 0 tells the others. */
typedef struct turn {
    int32_t kind;   /* turn_kind_t */
    int32_t status; /* zero_status_t */
} turn_t;

/* Encodes the dialogue with the user's message. */
static zero_status_t add_question(chat_t *chat, const char *text, size_t n_bytes)
{
    const model_options_t *model = &chat->generator->session.options->model;
    const int64_t positions = model->seq_len;
    const char *note = prompt_limit_note(model);
    prompt_t *prompt = chat->prompt;
    ZERO_TRY(chat_add_message(prompt->dialogue, "user", text, n_bytes));
    ZERO_TRY(encode_dialogue(prompt));
    if (prompt->tokens.n == 0)
        return report_error(ZERO_ERROR_USAGE, "generate --chat: the chat template gives an empty text");
    if ((int64_t)prompt->tokens.n < positions)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "generate --chat: turn %lld ends the dialogue: with it there are %zu tokens, and the model has "
                        "%lld positions%s",
                        (long long)chat->n_turns + 1, prompt->tokens.n, (long long)positions,
                        positions == MOST_POSITIONS && !note[0] ? " (--set model.seq_len=N gives it more)" : note);
}

/* Rank 0's part: a line of stdin becomes tokens. */
static zero_status_t take_question(chat_t *chat, turn_kind_t *kind)
{
    const char *text;
    size_t n_bytes;
    const int wait_ms = zero_comm_size(chat->comm) > 1 ? WAIT_MS : -1;
    if (chat->is_terminal && !chat->has_asked)
        fputs("> ", stderr);
    chat->has_asked = true;
    ZERO_TRY(next_line(&chat->lines, wait_ms, kind, &text, &n_bytes));
    if (*kind == TURN_ENDS && chat->is_terminal)
        fputs("\n", stderr);
    if (*kind != TURN_ASKS)
        return ZERO_OK;
    chat->has_asked = false;
    if (!is_blank(text, n_bytes))
        return add_question(chat, text, n_bytes);
    *kind = TURN_WAITS;
    return ZERO_OK;
}

/* Says why an answer is not whole. */
static void report_cut(const chat_t *chat)
{
    const generator_t *g = chat->generator;
    const int64_t positions = g->session.options->model.seq_len;
    if (g->has_stopped)
        return;
    if (g->n_all >= positions)
        report("generate --chat: the answer is cut at the last of %lld positions", (long long)positions);
    else
        report("generate --chat: the answer is cut after --max-tokens %lld",
               (long long)g->session.options->generate.max_tokens);
}

static zero_status_t add_answer(chat_t *chat)
{
    size_t n_bytes = 0;
    char *text = generator_text(chat->generator, true, &n_bytes);
    if (!text)
        return report_rank_error(ZERO_ERROR_MEMORY, "generate --chat: no memory for an answer");
    zero_status_t status = chat_add_message(chat->prompt->dialogue, "assistant", text, n_bytes);
    free(text);
    return status;
}

static zero_status_t answer(chat_t *chat)
{
    generator_t *g = chat->generator;
    const uint64_t seed = (uint64_t)(g->session.options->generate.seed + chat->n_turns);
    ZERO_TRY(prompt_share(chat->comm, &chat->prompt->tokens));
    ZERO_TRY(generator_run(g, chat->prompt->tokens.at, (int)chat->prompt->tokens.n, seed, chat->n_turns > 0));
    chat->n_turns++;
    generator_report(g);
    report_cut(chat);
    return zero_comm_agree(chat->comm, report_is_speaker() ? add_answer(chat) : ZERO_OK);
}

static zero_status_t take_turn(chat_t *chat, turn_kind_t *kind)
{
    turn_t turn = {0};
    if (report_is_speaker()) {
        turn.status = (int32_t)take_question(chat, kind);
        turn.kind = (int32_t)*kind;
    }
    ZERO_TRY(zero_comm_broadcast(chat->comm, &turn, sizeof turn, 0));
    *kind = (turn_kind_t)turn.kind;
    ZERO_TRY((zero_status_t)turn.status);
    return *kind == TURN_ASKS ? answer(chat) : ZERO_OK;
}

zero_status_t chat_run(generator_t *generator, prompt_t *prompt)
{
    chat_t chat = {.generator = generator,
                   .prompt = prompt,
                   .comm = generator->session.comm,
                   .is_terminal = isatty(STDIN_FILENO) == 1};
    turn_kind_t kind = TURN_WAITS;
    zero_status_t status = ZERO_OK;
    generator->is_shown = true;
    generator_add_stop(generator, prompt->end);
    while (status == ZERO_OK && kind != TURN_ENDS)
        status = take_turn(&chat, &kind);
    free(chat.lines.bytes);
    return status;
}
