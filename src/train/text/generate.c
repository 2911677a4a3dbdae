/* generate.c - see generate.h. */
#include "train/text/generate.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/model/model.h"
#include "train/options/input_file.h"
#include "train/report/process.h"
#include "train/report/report.h"
#include "train/text/draw.h"

/* ---- print text ---- */

#define N_BYTES 256

tokenizer_t *print_text_open(const char *directory, int64_t vocab_size)
{
    char path[4096 + 32];
    tokenizer_t *tokenizer = NULL;
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    if (vocab_size == N_BYTES || access(path, F_OK) == 0)
        (void)tokenizer_open(directory, vocab_size, &tokenizer); /* leaves it NULL if it fails */
    return tokenizer;
}

static bool is_printable(unsigned char c, bool ascii_only)
{
    return c == '\n' || c == '\t' || (c >= 32 && c < 127) || (c >= 128 && !ascii_only);
}

/* A byte that is printed once the next one is known: a carriage return, which is one with the line feed behind it, or
 * the first byte of a C1 control character, U+0080 to U+009F. EOF: none. */
static int held = EOF;
#define BEFORE_C1 0xc2

static void print_byte(unsigned char c, bool ascii_only)
{
    const int before = held;
    const bool is_c1 = before == BEFORE_C1 && c >= 0x80 && c <= 0x9f;
    held = EOF;
    if (before != EOF)
        putchar(is_c1 || (before == '\r' && c != '\n') ? '?' : before);
    if (is_c1)
        return;
    if (c == '\r' || (c == BEFORE_C1 && !ascii_only))
        held = c;
    else
        putchar(is_printable(c, ascii_only) ? c : '?');
}

void print_text(const tokenizer_t *tokenizer, const int32_t *tokens, int n_tokens, bool ascii_only)
{
    for (int i = 0; i < n_tokens; i++) {
        size_t n_bytes;
        if (!tokenizer) {
            printf("%d ", (int)tokens[i]);
            continue;
        }
        const char *bytes = tokenizer_bytes(tokenizer, tokens[i], &n_bytes);
        for (size_t k = 0; k < n_bytes; k++)
            print_byte((unsigned char)bytes[k], ascii_only);
    }
}

void print_text_end(void)
{
    print_byte('\n', false);
}

/* ---- sample ---- */
/* Where the model has no cache, every token runs the whole context again. Logits come in
 * pinned memory: a vocabulary's take longer on their way into any other. */

/* Returns the next of a sequence of uniform numbers in [0, 1): splitmix64 (Steele et al. 2014). */
static double next_uniform(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

typedef struct scratch {
    void *logits; /* pinned, fp32 [vocab_size] */
    draw_scratch_t draw;
} scratch_t;

/* Computes and draws the token behind the first n. Rank 0 draws for all. */
static zero_status_t next_token(model_t *model, zero_comm_t *comm, const sample_spec_t *spec, int32_t *tokens, int n,
                                double random, scratch_t *scratch)
{
    const int seq_len = (int)model->options->model.seq_len, context = n < seq_len ? n : seq_len;
    const int vocab_size = (int)model->options->model.vocab_size;
    ZERO_TRY(n > seq_len ? model_logits(model, tokens + n - context, (size_t)context, scratch->logits)
                         : model_next_logits(model, tokens, (size_t)n, scratch->logits));
    tokens[n] = draw_token(scratch->logits, vocab_size, spec, random, &scratch->draw);
    return zero_comm_broadcast(comm, &tokens[n], sizeof tokens[n], 0);
}

zero_status_t sample_generate(model_t *model, zero_comm_t *comm, const sample_spec_t *spec, int32_t *tokens,
                              int n_prompt, int *n_all)
{
    const size_t vocab_size = (size_t)model->options->model.vocab_size;
    uint64_t state = spec->seed;
    zero_status_t status = ZERO_OK;
    bool goes_on = true;
    scratch_t scratch = {0};
    *n_all = n_prompt;
    if (zero_host_alloc(model->device, vocab_size * sizeof(float), &scratch.logits) != ZERO_OK ||
        !draw_scratch_create(vocab_size, &scratch.draw))
        status = report_rank_error(ZERO_ERROR_MEMORY, "no memory to sample from %zu logits", vocab_size);
    status = zero_comm_agree(comm, status);
    model_forget(model);
    while (status == ZERO_OK && goes_on && *n_all < n_prompt + spec->n_tokens) {
        status = next_token(model, comm, spec, tokens, *n_all, next_uniform(&state), &scratch);
        if (status == ZERO_OK)
            goes_on = !spec->take || spec->take(spec->user, tokens[*n_all]);
        *n_all += status == ZERO_OK;
    }
    zero_host_free(model->device, scratch.logits);
    draw_scratch_free(&scratch.draw);
    return status;
}

/* ---- generate ---- */

#define MAX_PROMPT_BYTES ((size_t)64 << 20)
#define MAX_STOPS 16

/* ---- the prompt ---- */

/* Reads a whole file for free(), with the line feed at its end: a dialogue's answer begins behind one. */
static zero_status_t read_text(const char *path, char **text, size_t *n_bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return report_error(ZERO_ERROR_USAGE, "--prompt-file: cannot open '%s': %s", path, strerror(errno));
    char *bytes = malloc(MAX_PROMPT_BYTES + 1);
    size_t n = bytes ? fread(bytes, 1, MAX_PROMPT_BYTES + 1, file) : 0;
    const int error = ferror(file) ? errno : 0;
    fclose(file);
    if (!bytes || error || n > MAX_PROMPT_BYTES) {
        free(bytes);
        return report_error(ZERO_ERROR_USAGE, "--prompt-file: cannot read '%s': %s", path,
                            error    ? strerror(error)
                            : !bytes ? "no memory"
                                     : "it has more than 64 MiB");
    }
    *text = bytes;
    *n_bytes = n;
    return ZERO_OK;
}

static zero_status_t encode_prompt(const generate_options_t *options, prompt_t *prompt)
{
    char *text = NULL;
    const char *given = options->prompt;
    size_t n_bytes = given ? strlen(given) : 0;
    if (!given)
        ZERO_TRY(read_text(options->prompt_file, &text, &n_bytes));
    zero_status_t status = tokenizer_encode(prompt->tokenizer, given ? given : text, n_bytes, true, &prompt->tokens);
    free(text);
    ZERO_TRY(status);
    if (prompt->tokens.n == 0)
        return report_error(ZERO_ERROR_USAGE, "generate: the prompt is empty: give at least one character");
    return ZERO_OK;
}

zero_status_t generate_read_prompt(generate_options_t *options, model_options_t *model, prompt_t *prompt)
{
    ZERO_TRY(tokenizer_open(model->init, model->vocab_size, &prompt->tokenizer));
    ZERO_TRY(encode_prompt(options, prompt));
    const int64_t n_prompt = (int64_t)prompt->tokens.n, n_all = n_prompt + options->max_tokens;
    const int64_t longest = model->longest;
    char limit[96];
    if (model->seq_len == 0)
        model->seq_len = longest > 0 && n_all > longest ? longest : n_all;
    snprintf(limit, sizeof limit,
             model->seq_len == longest ? "some of the model's layers see %lld tokens" : "the model has %lld positions",
             (long long)model->seq_len);
    if (n_prompt >= model->seq_len)
        return report_error(ZERO_ERROR_USAGE, "generate: the prompt has %lld tokens, and %s: give a shorter one",
                            (long long)n_prompt, limit);
    if (n_all > model->seq_len) {
        options->max_tokens = model->seq_len - n_prompt;
        report("generate: at most %lld tokens, since %s and the prompt takes %lld", (long long)options->max_tokens,
               limit, (long long)n_prompt);
    }
    return ZERO_OK;
}

void prompt_close(prompt_t *prompt)
{
    tokens_free(&prompt->tokens);
    tokenizer_close(prompt->tokenizer);
    prompt->tokenizer = NULL;
}

void generate_choose(train_options_t *train, zero_device_type_t device)
{
    if (train->precision == PRECISION_OF_DEVICE)
        train->precision = device == ZERO_DEVICE_CPU ? ZERO_FP32 : ZERO_BF16;
}

/* ---- tokens that end a text ---- */

typedef struct stops {
    int32_t tokens[MAX_STOPS];
    int n;
} stops_t;

static void add_stop(stops_t *stops, const json_t *token)
{
    if (json_is_integer(token) && stops->n < MAX_STOPS)
        stops->tokens[stops->n++] = (int32_t)json_integer_value(token);
}

/* Takes eos_token_id of a file of the model's, a number or several. Returns whether there is one. */
static bool read_stops(const char *directory, const char *name, stops_t *stops)
{
    char path[OPTIONS_MAX_PATH + 32];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    json_t *file = input_file_is_there(path) ? json_load_file(path, 0, NULL) : NULL;
    const json_t *eos = json_object_get(file, "eos_token_id");
    add_stop(stops, eos);
    for (size_t i = 0; i < json_array_size(eos); i++)
        add_stop(stops, json_array_get(eos, i));
    json_decref(file);
    return stops->n > 0;
}

/* ---- generating ---- */

#define WARM_UP 16 /* tokens, in which libraries choose their algorithms and CUDA graphs are captured */

typedef struct generation {
    const prompt_t *prompt;
    stops_t stops;
    double began_s, first_s, warm_s, last_s; /* by the clock: before the prompt; at tokens 1, WARM_UP and the last */
    int n_taken;
} generation_t;

/* Notes when a token came. */
static void note_time(generation_t *g)
{
    g->last_s = clock_now_s();
    g->n_taken++;
    if (g->n_taken == 1)
        g->first_s = g->last_s;
    if (g->n_taken == WARM_UP)
        g->warm_s = g->last_s;
}

static bool take_token(void *user, int32_t token)
{
    generation_t *g = user;
    note_time(g);
    for (int i = 0; i < g->stops.n; i++)
        if (g->stops.tokens[i] == token)
            return false;
    if (report_is_speaker()) {
        print_text(g->prompt->tokenizer, &token, 1, false);
        fflush(stdout);
    }
    return true;
}

static void report_times(const generation_t *g)
{
    const double all_s = clock_now_s() - g->began_s;
    char later[64] = "";
    if (g->n_taken > WARM_UP)
        snprintf(later, sizeof later, ", %.3f ms each after %d", (g->last_s - g->warm_s) / (g->n_taken - WARM_UP) * 1e3,
                 WARM_UP);
    report("%d tokens behind a prompt of %d, %.1f tokens/s: the first after %.1f ms%s", g->n_taken,
           (int)g->prompt->tokens.n, g->n_taken / all_s, (g->first_s - g->began_s) * 1e3, later);
}

static zero_status_t continue_prompt(session_t *session, generation_t *g)
{
    const options_t *o = session->options;
    const sample_spec_t spec = {.n_tokens = (int)o->generate.max_tokens,
                                .temperature = (float)o->generate.temperature,
                                .top_k = (int)o->generate.top_k,
                                .top_p = o->generate.top_p,
                                .seed = (uint64_t)o->generate.seed,
                                .take = take_token,
                                .user = g};
    const int n_prompt = (int)g->prompt->tokens.n;
    int n_all = 0;
    int32_t *tokens = malloc((size_t)(n_prompt + spec.n_tokens) * sizeof *tokens);
    g->began_s = clock_now_s();
    ZERO_TRY(zero_comm_agree(
        session->comm, tokens ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "generate: no memory for tokens")));
    memcpy(tokens, g->prompt->tokens.at, (size_t)n_prompt * sizeof *tokens);
    zero_status_t status = sample_generate(&session->model, session->comm, &spec, tokens, n_prompt, &n_all);
    free(tokens);
    ZERO_TRY(status);
    if (report_is_speaker()) {
        print_text_end();
        fflush(stdout); /* before the line on stderr */
    }
    report_times(g);
    return ZERO_OK;
}

zero_status_t generate(const options_t *options, zero_comm_t *comm, const prompt_t *prompt)
{
    generation_t g = {.prompt = prompt};
    session_t session;
    if (!read_stops(options->model.init, "generation_config.json", &g.stops))
        read_stops(options->model.init, "config.json", &g.stops);
    zero_status_t status = session_open_forward(options, comm, &session);
    report_hold_errors(false);
    if (status == ZERO_OK)
        status = continue_prompt(&session, &g);
    session_close(&session, status != ZERO_OK);
    return status;
}
