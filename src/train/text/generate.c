/* generate.c - see generate.h. */
#include "train/text/generate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/hub/adapter_config.h"
#include "train/model/model.h"
#include "train/report/report.h"
#include "train/text/chat.h"
#include "train/text/draw.h"
#include "train/text/prompt_list.h"

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
    const int seq_len = (int)model_longest_text(model), context = n < seq_len ? n : seq_len;
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
    model_keep(model, (size_t)(spec->n_kept < n_prompt ? spec->n_kept : n_prompt - 1)); /* the last gives logits */
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

/* ---- the prompt ---- */

#define MAX_PROMPT_BYTES ((size_t)64 << 20)

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

static zero_status_t read_one(options_t *options, prompt_t *prompt)
{
    char *text = NULL;
    const char *given = options->generate.prompt;
    size_t n_bytes = given ? strlen(given) : 0;
    ZERO_TRY(tokenizer_open(adapter_texts_directory(options), options->model.vocab_size, &prompt->tokenizer));
    if (!given)
        ZERO_TRY(read_text(options->generate.prompt_file, &text, &n_bytes));
    zero_status_t status = prompt_encode(prompt->tokenizer, "generate", given ? given : text, n_bytes, &prompt->tokens);
    free(text);
    ZERO_TRY(status);
    return prompt_fit(&options->model, "generate", (int64_t)prompt->tokens.n, &options->generate.max_tokens);
}

zero_status_t generate_read(options_t *options, zero_comm_t *comm, prompt_t *prompt)
{
    if (options->generate.chat)
        return chat_read(options, comm, prompt);
    if (options->generate.prompts[0])
        return prompt_list_read(options, comm, prompt);
    return report_agree(comm, read_one(options, prompt));
}

/* ---- generate ---- */

void generate_choose(train_options_t *train, zero_device_type_t device)
{
    if (train->precision == PRECISION_OF_DEVICE)
        train->precision = device == ZERO_DEVICE_CPU ? ZERO_FP32 : ZERO_BF16;
}

static zero_status_t continue_one(generator_t *generator, prompt_t *prompt)
{
    const uint64_t seed = (uint64_t)generator->session.options->generate.seed;
    generator->is_shown = true;
    ZERO_TRY(generator_run(generator, prompt->tokens.at, (int)prompt->tokens.n, seed, false));
    generator_report(generator);
    return ZERO_OK;
}

zero_status_t generate(const options_t *options, zero_comm_t *comm, prompt_t *prompt)
{
    generator_t generator;
    zero_status_t status = generator_open(options, comm, prompt->tokenizer, &generator);
    if (status == ZERO_OK)
        status = options->generate.chat         ? chat_run(&generator, prompt)
                 : options->generate.prompts[0] ? prompt_list_run(&generator, prompt)
                                                : continue_one(&generator, prompt);
    generator_close(&generator, status != ZERO_OK);
    return status;
}
