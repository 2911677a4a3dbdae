/* generator.c - see generator.h. */
#include "train/text/generator.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/hub/adapter_config.h"
#include "train/options/input_file.h"
#include "train/report/process.h"
#include "train/report/report.h"
#include "train/text/draw.h"
#include "train/text/generate.h"

/* ---- the prompt ---- */

void prompt_close(prompt_t *prompt)
{
    chat_template_close(prompt->chat);
    json_decref(prompt->dialogue);
    json_decref(prompt->records);
    free(prompt->list);
    tokens_free(&prompt->tokens);
    tokenizer_close(prompt->tokenizer);
    *prompt = (prompt_t){0};
}

/* Removes the beginning of text that the tokenizer puts before a prompt that brings its own, as chat templates do. */
static void drop_second_begin(const tokenizer_t *tokenizer, tokens_t *tokens, size_t first)
{
    int32_t *at = tokens->at + first;
    const size_t n = tokens->n - first;
    if (n < 2 || at[0] != at[1] || tokenizer_text_bytes(tokenizer, at[0], true) > 0)
        return;
    tokens->n--;
    memmove(at, at + 1, (n - 1) * sizeof *at);
}

zero_status_t prompt_encode(const tokenizer_t *tokenizer, const char *where, const char *text, size_t n_bytes,
                            tokens_t *tokens)
{
    const size_t first = tokens->n;
    ZERO_TRY(tokenizer_encode(tokenizer, text, n_bytes, true, tokens));
    drop_second_begin(tokenizer, tokens, first);
    if (tokens->n == first)
        return report_error(ZERO_ERROR_USAGE, "%s: the prompt is empty: give at least one character", where);
    return ZERO_OK;
}

zero_status_t prompt_encode_dialogue(prompt_t *prompt, const char *where, const json_t *dialogue)
{
    char *text;
    size_t n_bytes;
    ZERO_TRY(chat_template_render(prompt->chat, where, dialogue, &text, &n_bytes));
    zero_status_t status = tokenizer_encode(prompt->tokenizer, text, n_bytes, false, &prompt->tokens);
    free(text);
    return status;
}

zero_status_t prompt_find_end(prompt_t *prompt)
{
    static const char answer[] = "(zerotrain's answer)";
    char *text = NULL;
    size_t n_bytes;
    tokens_t tokens = {0};
    prompt->end = -1;
    json_t *dialogue = json_pack("{s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]}", "messages", "role", "user", "content", "a",
                                 "role", "assistant", "content", answer, "role", "user", "content", "a");
    zero_status_t status = chat_template_render(prompt->chat, NULL, dialogue, &text, &n_bytes);
    const char *behind = status == ZERO_OK ? strstr(text, answer) : NULL;
    if (behind) {
        behind += strlen(answer);
        behind += strspn(behind, " \n\t");
        status = tokenizer_encode(prompt->tokenizer, behind, strlen(behind), false, &tokens);
    }
    if (status == ZERO_OK && tokens.n > 0 && tokenizer_text_bytes(prompt->tokenizer, tokens.at[0], false) == 0)
        prompt->end = tokens.at[0];
    tokens_free(&tokens);
    free(text);
    json_decref(dialogue);
    return status == ZERO_ERROR_USAGE ? ZERO_OK : status;
}

int64_t prompt_named_positions(const model_options_t *model)
{
    char path[OPTIONS_MAX_PATH + 32];
    snprintf(path, sizeof path, "%s/config.json", model->init);
    json_t *config = input_file_is_there(path) ? json_load_file(path, 0, NULL) : NULL;
    const int64_t positions = json_integer_value(json_object_get(config, "max_position_embeddings"));
    json_decref(config);
    return positions > 0 ? positions : 0;
}

const char *prompt_limit_note(const model_options_t *model)
{
    return model->longest > 0 && model->seq_len == model->longest
               ? " (longrope's long_factor, for longer texts, is not implemented)"
               : "";
}

zero_status_t prompt_fit(model_options_t *model, const char *where, int64_t n_prompt, int64_t *max_tokens)
{
    const int64_t n_all = n_prompt + *max_tokens, longest = model->longest;
    char limit[160];
    if (model->seq_len == 0)
        model->seq_len = longest > 0 && n_all > longest ? longest : n_all;
    snprintf(limit, sizeof limit, "the model has %lld positions%s", (long long)model->seq_len,
             prompt_limit_note(model));
    if (n_prompt >= model->seq_len)
        return report_error(ZERO_ERROR_USAGE, "%s: the prompt has %lld tokens, and %s: give a shorter one", where,
                            (long long)n_prompt, limit);
    if (n_all > model->seq_len) {
        *max_tokens = model->seq_len - n_prompt;
        report("%s: at most %lld tokens, since %s and the prompt takes %lld", where, (long long)*max_tokens, limit,
               (long long)n_prompt);
    }
    const int64_t named = prompt_named_positions(model);
    if (named > 0 && n_prompt + *max_tokens > named)
        report("%s: up to %lld tokens, where config.json's max_position_embeddings is %lld: the model may not have "
               "learned the positions beyond: give a lower --max-tokens",
               where, (long long)(n_prompt + *max_tokens), (long long)named);
    return ZERO_OK;
}

zero_status_t prompt_share(zero_comm_t *comm, tokens_t *tokens)
{
    uint64_t n = tokens->n;
    zero_status_t status = ZERO_OK;
    ZERO_TRY(zero_comm_broadcast(comm, &n, sizeof n, 0));
    if (zero_comm_rank(comm) != 0) {
        tokens->n = 0;
        for (uint64_t i = 0; i < n && status == ZERO_OK; i++)
            status = tokens_add(tokens, 0);
    }
    ZERO_TRY(zero_comm_agree(comm, status));
    return n > 0 ? zero_comm_broadcast(comm, tokens->at, n * sizeof *tokens->at, 0) : ZERO_OK;
}

/* ---- tokens that end a text ---- */

/* Takes eos_token_id, a number or several. */
static zero_status_t take_stops(const char *path, const json_t *eos, generator_t *g)
{
    const bool is_list = json_is_array(eos);
    const size_t n = is_list ? json_array_size(eos) : eos && !json_is_null(eos);
    if (n > GENERATOR_MAX_STOPS)
        return report_error(ZERO_ERROR_FORMAT, "'%s': eos_token_id has %zu tokens; it can have %d", path, n,
                            GENERATOR_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *token = is_list ? json_array_get(eos, i) : eos;
        if (!json_is_integer(token))
            return report_error(ZERO_ERROR_FORMAT, "'%s': eos_token_id is neither a whole number nor a list of them",
                                path);
        g->stops[g->n_stops++] = (int32_t)json_integer_value(token);
    }
    return ZERO_OK;
}

void generator_add_stop(generator_t *generator, int32_t token)
{
    if (token >= 0 && generator->n_stops < GENERATOR_MAX_STOPS)
        generator->stops[generator->n_stops++] = token;
}

/* Takes those that a file of the model's names, if it is there. */
static zero_status_t read_stops(const char *directory, const char *name, generator_t *g)
{
    char path[OPTIONS_MAX_PATH + 32];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (!input_file_is_there(path))
        return ZERO_OK;
    json_t *file = json_load_file(path, 0, &error);
    if (!json_is_object(file)) {
        const char *why = file ? "it is no object" : error.text;
        report_error(ZERO_ERROR_FORMAT, "'%s' cannot be read as JSON: %s", path, why);
        json_decref(file);
        return ZERO_ERROR_FORMAT;
    }
    zero_status_t status = take_stops(path, json_object_get(file, "eos_token_id"), g);
    json_decref(file);
    return status;
}

/* Takes those of the first file that names any. */
static zero_status_t find_stops(const options_t *options, generator_t *g)
{
    const char *const model = options->model.init;
    const char *const files[][2] = {{adapter_texts_directory(options), "generation_config.json"},
                                    {model, "generation_config.json"},
                                    {model, "config.json"}};
    for (size_t i = 0; i < sizeof files / sizeof files[0] && g->n_stops == 0; i++)
        ZERO_TRY(read_stops(files[i][0], files[i][1], g));
    return ZERO_OK;
}

/* ---- generating ---- */

#define WARM_UP 16 /* tokens, in which libraries choose their algorithms and CUDA graphs are captured */

zero_status_t generator_open(const options_t *options, zero_comm_t *comm, const tokenizer_t *tokenizer,
                             generator_t *generator)
{
    *generator = (generator_t){.tokenizer = tokenizer};
    zero_status_t status = report_agree(comm, find_stops(options, generator));
    if (status == ZERO_OK)
        status = session_open_forward(options, comm, &generator->session);
    report_hold_errors(false);
    ZERO_TRY(status);
    generator->tokens = malloc((size_t)options->model.seq_len * sizeof *generator->tokens);
    return zero_comm_agree(
        comm, generator->tokens ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "generate: no memory for tokens"));
}

void generator_close(generator_t *generator, bool failed)
{
    session_close(&generator->session, failed);
    free(generator->tokens);
}

/* Notes when a token came. */
static void note_time(generator_t *g)
{
    g->last_s = clock_now_s();
    if (g->n_all - g->n_prompt == 1)
        g->first_s = g->last_s;
    if (g->n_all - g->n_prompt == WARM_UP)
        g->warm_s = g->last_s;
}

static bool take_token(void *user, int32_t token)
{
    generator_t *g = user;
    g->n_all++;
    note_time(g);
    for (int i = 0; i < g->n_stops; i++)
        g->has_stopped |= g->stops[i] == token;
    if (g->is_shown && !g->has_stopped && report_is_speaker()) {
        print_text(g->tokenizer, &token, 1, false);
        fflush(stdout);
    }
    return !g->has_stopped;
}

/* Returns how many tokens a text has in common with the last one. */
static int common_beginning(const generator_t *g, const int32_t *prompt, int n_prompt)
{
    int n = 0;
    while (n < n_prompt && n < g->n_all && prompt[n] == g->tokens[n])
        n++;
    return n;
}

zero_status_t generator_run(generator_t *generator, const int32_t *prompt, int n_prompt, uint64_t seed, bool continues)
{
    generator_t *g = generator;
    const generate_options_t *o = &g->session.options->generate;
    const int64_t room = g->session.options->model.seq_len - n_prompt;
    const sample_spec_t spec = {.n_tokens = (int)(o->max_tokens < room ? o->max_tokens : room),
                                .temperature = (float)o->temperature,
                                .top_k = (int)o->top_k,
                                .top_p = o->top_p,
                                .seed = seed,
                                .n_kept = continues ? common_beginning(g, prompt, n_prompt) : 0,
                                .take = take_token,
                                .user = g};
    int n_all;
    memcpy(g->tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    g->n_prompt = g->n_all = n_prompt;
    g->has_stopped = false;
    g->began_s = clock_now_s();
    ZERO_TRY(sample_generate(&g->session.model, g->session.comm, &spec, g->tokens, n_prompt, &n_all));
    if (g->is_shown && report_is_speaker()) {
        print_text_end();
        fflush(stdout); /* before the next line on stderr */
    }
    return ZERO_OK;
}

char *generator_text(const generator_t *generator, bool is_answer, size_t *n_bytes)
{
    const generator_t *g = generator;
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return NULL;
    for (int i = g->n_prompt; i < g->n_all - g->has_stopped; i++) {
        size_t n;
        const char *bytes = tokenizer_bytes(g->tokenizer, g->tokens[i], &n);
        size_t n_text = is_answer ? tokenizer_text_bytes(g->tokenizer, g->tokens[i], i == g->n_prompt) : n;
        fwrite(bytes + n - n_text, 1, n_text, file);
    }
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    *n_bytes = size;
    return text;
}

void generator_report(const generator_t *generator)
{
    const generator_t *g = generator;
    const int n_taken = g->n_all - g->n_prompt;
    const double all_s = clock_now_s() - g->began_s;
    char later[64] = "";
    if (n_taken > WARM_UP)
        snprintf(later, sizeof later, ", %.3f ms each after %d", (g->last_s - g->warm_s) / (n_taken - WARM_UP) * 1e3,
                 WARM_UP);
    report("%d token%s behind a prompt of %d, %.1f tokens/s: the first after %.1f ms%s", n_taken,
           n_taken == 1 ? "" : "s", g->n_prompt, n_taken / all_s, (g->first_s - g->began_s) * 1e3, later);
}
