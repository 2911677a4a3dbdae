/* test_zerotrain.c - zerotrain as a user meets it: what it prints where, its exit codes, its files; and that any
 * failure ends the run soon, on all ranks, with one line that says what, where and what to do.
 *
 * Lines of zerotrain begin "zerotrain: "; what mpirun adds about a job that failed is not counted. Without mpirun there
 * is one rank and no other output, so all of stderr is checked.
 */
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/support.h"
#include "tests/unit/train/event_file.h"

#define RUN_LIMIT_S 60.0
#define N_AT_ONCE 4
#define ALONE 0 /* ranks: one, without mpirun */
#define ANY (-1)

/* 14 lines: what a case adds begins in line 15. */
#define CONFIG                                                                                                         \
    "[model]\nlayers = 2\ndim = 36\nheads = 3\nvocab_size = 259\nseq_len = 17\n"                                       \
    "[data]\ntrain = text.txt\n"                                                                                       \
    "[train]\nsteps = 12\nglobal_batch = 24\nlr = 3e-3\n"                                                              \
    "[log]\nmetrics = metrics.jsonl\n"
#define N_STEPS 12

#define N_TOKENS 6000

static char scratch[400];

/* ---- Files ---- */

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t n_bytes)
{
    support_write_file(path_of(name), data, n_bytes);
}

static bool exists(const char *name)
{
    return access(path_of(name), F_OK) == 0;
}

/* The bytes of text.txt: also the tokens of the binary files. */
static unsigned char text_byte(int i)
{
    static const char words[] = "static int n_bytes = 0;\nif (n_bytes) { return; }\n";
    return (unsigned char)words[(i * 7 + i / 50) % (int)(sizeof words - 1)];
}

/* Writes an llm.c file whose header claims n_named tokens and that has n_tokens of `width` bytes; the one at `bad` is
 * `token`. */
static void write_llmc(const char *name, int width, int n_named, int n_tokens, int bad, int token)
{
    static unsigned char bytes[1024 + 4 * N_TOKENS];
    memset(bytes, 0, sizeof bytes);
    int32_t header[3] = {width == 2 ? 20240520 : 20240801, width == 2 ? 1 : 7, n_named};
    memcpy(bytes, header, sizeof header);
    for (int i = 0; i < n_tokens; i++) {
        int value = i == bad ? token : text_byte(i);
        bytes[1024 + i * width] = (unsigned char)value;
        bytes[1024 + i * width + 1] = (unsigned char)(value >> 8);
    }
    write_file(name, bytes, (size_t)(1024 + n_tokens * width));
}

/* Megatron-LM's NAME.bin, of uint16 tokens, and NAME.idx, of one sequence of N_TOKENS that is one document. */
static void write_megatron(const char *name, const unsigned char *tokens, size_t n_bytes)
{
    unsigned char index[34 + 4 + 8 + 2 * 8] = "MMIDIDX";
    const int32_t size = N_TOKENS;
    char file[64];
    index[9] = 1;  /* version */
    index[17] = 8; /* uint16 */
    index[18] = 1; /* sequence */
    index[26] = 2; /* bounds of documents, */
    memcpy(index + 34, &size, sizeof size);
    index[54] = 1; /* whose first pointer, the only one, is 0 */
    snprintf(file, sizeof file, "%s.idx", name);
    write_file(file, index, sizeof index);
    snprintf(file, sizeof file, "%s.bin", name);
    write_file(file, tokens, n_bytes);
}

static void write_data(void)
{
    static unsigned char text[N_TOKENS], nanogpt[2 * N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        nanogpt[2 * i] = text[i] = text_byte(i);
    write_file("text.txt", text, sizeof text);
    write_file("val.txt", text + 1000, 2000);
    write_file("packed.gz", "\x1f\x8b\x08 and what follows", 20);
    write_file("empty.txt", "", 0);
    write_file("short.txt", text, 10);
    write_file("nanogpt.bin", nanogpt, sizeof nanogpt);
    write_file("half.bin", nanogpt, 4001);
    write_llmc("llmc2.bin", 2, N_TOKENS, N_TOKENS, -1, 0);
    write_llmc("llmc4.bin", 4, N_TOKENS, N_TOKENS, -1, 0);
    write_megatron("megatron", nanogpt, sizeof nanogpt);
    write_megatron("cut", nanogpt, sizeof nanogpt / 2);
    write_llmc("count.bin", 2, 1000, 999, -1, 0);
    write_llmc("beyond.bin", 2, 1000, 1000, 900, 300);
    write_llmc("header.bin", 2, 1000, 0, -1, 0);
    ck_assert_int_eq(truncate(path_of("header.bin"), 500), 0);
    write_file("short.bin", text, 3);
    write_file("empty.bin", "", 0);
    write_file("alien.bin", nanogpt, sizeof nanogpt);
    write_file("alien.idx", text, sizeof text);
}

static void set_up(void)
{
    char *directory = support_scratch();
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    write_data();
    write_file("cfg.ini", CONFIG, sizeof CONFIG - 1);
    write_file("a,b.txt", CONFIG, sizeof CONFIG - 1);
}

/* What is refused without GPUs is refused on every machine's tests. */
static void hide_gpus(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
}

/* ---- Runs ---- */

typedef struct outcome {
    int exit_code;
    support_output_t output;
} outcome_t;

/* Runs zerotrain in the scratch directory. */
static outcome_t run_arguments(int n_ranks, const char *arguments)
{
    outcome_t outcome;
    if (n_ranks == ALONE)
        outcome.exit_code = support_run(&outcome.output, RUN_LIMIT_S, "cd %s && exec %s/zerotrain %s", scratch,
                                        support_build(), arguments);
    else
        outcome.exit_code = support_mpirun(&outcome.output, RUN_LIMIT_S, n_ranks, "--wdir %s %s/zerotrain %s", scratch,
                                           support_build(), arguments);
    return outcome;
}

__attribute__((format(printf, 2, 3))) static outcome_t run(int n_ranks, const char *format, ...)
{
    char arguments[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    return run_arguments(n_ranks, arguments);
}

static void forget(outcome_t *outcome)
{
    support_output_free(&outcome->output);
}

static void expect_exit(const outcome_t *outcome, int exit_code)
{
    ck_assert_msg(outcome->exit_code == exit_code, "exit code %d instead of %d\n%s%s", outcome->exit_code, exit_code,
                  outcome->output.out, outcome->output.err);
}

static void expect_success(int n_ranks, const char *arguments)
{
    outcome_t outcome = run_arguments(n_ranks, arguments);
    expect_exit(&outcome, 0);
    forget(&outcome);
}

/* ---- Metrics ---- */

/* The lines of a metrics file as an array of objects. */
static json_t *read_metrics(const char *name)
{
    char *text = support_read_file(path_of(name), NULL), *rest = text;
    json_t *rows = json_array();
    for (char *line; (line = strsep(&rest, "\n")) && line[0];) {
        json_error_t error;
        json_t *row = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        ck_assert_msg(row != NULL, "%s: %s", error.text, line);
        json_array_append_new(rows, row);
    }
    free(text);
    return rows;
}

static double number(const json_t *rows, size_t step, const char *name)
{
    return json_number_value(json_object_get(json_array_get(rows, step - 1), name));
}

static long long integer(const json_t *rows, size_t step, const char *name)
{
    return json_integer_value(json_object_get(json_array_get(rows, step - 1), name));
}

/* ---- Refusals ---- */

typedef struct bad_input {
    const char *what;
    int exit_code;
    const char *lines;     /* added to the configuration */
    const char *arguments; /* before the file's name; if they end in "-", no name follows */
    const char *says[4];   /* each must be in the line */
    int n_ranks;           /* only with so many, or ANY */
} bad_input_t;

/* 2: the command line, the file, or a path in it is wrong; 1: what is in a data file is, whatever its format, or a file
 * cannot be written. */
/* clang-format off */
static const bad_input_t BAD_INPUTS[] = {
    {"an unknown key", 2, "[zero]\nstgae = 3\n", "",
        {".ini:16:", "'stgae'", "[zero]", "did you mean [zero] stage?"}, ANY},
    {"a key of another section", 2, "[zero]\nlr = 1\n", "", {".ini:16:", "'lr'", "[zero]", "[train] lr"}, ANY},
    {"an unknown section", 2, "[zreo]\nstage = 3\n", "", {".ini:15:", "[zreo]", "did you mean [zero]?"}, ANY},
    {"a wrong type", 2, "[zero]\nstage = three\n", "", {".ini:16:", "[zero] stage", "'three'", "0..3 or auto"}, ANY},
    {"a value out of range", 2, "[zero]\nstage = 4\n", "", {".ini:16:", "[zero] stage", "4", "0..3"}, ANY},
    {"a word that is no choice", 2, "[device]\ntype = cup\n", "", {".ini:16:", "'cup'", "auto, cuda, cpu"}, ANY},
    {"a key twice", 2, "[train]\nsteps = 3\n", "", {".ini:16:", "[train] steps", "already set", "line 10"}, ANY},
    {"no configuration", 2, "", "-", {"configuration file is missing", "zerotrain [options] CFG.ini"}, ANY},
    {"a configuration that is not there", 2, "", "nosuch.ini -", {"'nosuch.ini'", "No such file"}, ANY},
    {"a configuration without data", 2, "", "--set data.train=", {"[data] train", "empty"}, ANY},
    {"an unknown option", 2, "", "--stagee 3", {"'--stagee'", "did you mean --stage?"}, ANY},
    {"a bad --set", 2, "", "--set train.lr=fast", {"--set train.lr=fast", "'fast' is not a number"}, ANY},
    {"a bad --stage", 2, "", "--stage 5", {"--stage", "5", "0..3"}, ANY},
    {"a comma in a data file's name", 2, "", "--set data.train=a,b.txt", {"there is a file 'a,b.txt'", "commas separate files"}, ANY},
    {"a data file that is not there", 2, "", "--set data.train=nosuch.txt", {"data file 'nosuch.txt'", "No such file"}, ANY},
    {"GPUs where there are none", 2, "", "--set device.type=cuda", {"CUDA", "use the CPU"}, ANY},
    {"GPUs to share where there are none", 2, "", "--set device.type=cuda-shared", {"CUDA", "use the CPU"}, ANY},
    {"NCCL without GPUs", 2, "", "--set zero.comm=nccl", {"[zero] comm = nccl", "the CPU"}, ANY},
    {"fp8 in fp32", 2, "", "--set train.fp8=linear --set train.precision=fp32", {"[train] fp8", "precision = fp32", "bf16"}, ANY},
    {"fp8 gathers without fp8", 2, "", "--set zero.gather=fp8", {"[zero] gather = fp8", "[train] fp8 = linear"}, ANY},
    {"fp8 and an odd dim", 2, "", "--set train.fp8=linear", {"[model] dim", "36", "multiple of 16", "fp8 = none"}, ANY},
    {"fp8 and an odd MLP", 2, "", "--set train.fp8=linear --set model.dim=48 --set model.ffn_dim=72",
        {"[model] ffn_dim", "72", "multiple of 16"}, ANY},
    {"fp8 and an odd batch", 2, "", "--set train.fp8=linear --set model.dim=48 --set train.micro_batch=1",
        {"[train] micro_batch", "seq_len", "17", "multiple of 16"}, ANY},
    {"a directory as data", 2, "", "--set data.train=/", {"data file '/'", "directory"}, ANY},
    {"a pattern as data", 2, "", "--set data.train=./*.tx", {"'./*.tx'", "patterns are the shell's"}, ANY},
    {"a comma too many", 2, "", "--set data.train=text.txt,", {"[data]", "a comma too many", "'text.txt,'"}, ANY},
    {"packed data", 1, "", "--set data.train=packed.gz", {"'packed.gz'", "as gzip files do", "unpack it"}, ANY},
    {"an empty data file", 1, "", "--set data.train=empty.txt", {"'empty.txt'", "empty"}, ANY},
    {"data shorter than a sequence", 1, "", "--set data.train=short.txt",
        {"'short.txt'", "10 tokens", "seq_len = 17", "18"}, ANY},
    {"validation data that is too short", 1, "", "--set data.val=short.txt",
        {"'short.txt'", "10 tokens", "seq_len = 17"}, ANY},
    {"a truncated llm.c header", 1, "", "--set data.train=header.bin",
        {"'header.bin'", "header is truncated", "500", "1024"}, ANY},
    {"a header that disagrees with the size", 1, "", "--set data.train=count.bin",
        {"'count.bin'", "1000 tokens", "3024", "3022"}, ANY},
    {"half a token", 1, "", "--set data.train=half.bin", {"'half.bin'", "4001 bytes", "uint16"}, ANY},
    {"text as llm.c's tokens", 1, "", "--set data.format=llmc", {"'text.txt'", "not an llm.c token file"}, ANY},
    {"a short file as llm.c's tokens", 1, "", "--set data.format=llmc --set data.train=short.bin",
        {"'short.bin'", "not an llm.c token file"}, ANY},
    {"a short file of tokens", 1, "", "--set data.train=short.bin", {"'short.bin'", "3 bytes", "uint16"}, ANY},
    {"an empty file of tokens", 1, "", "--set data.train=empty.bin", {"'empty.bin'", "empty"}, ANY},
    {"text as a Megatron index", 1, "", "--set data.train=alien", {"'alien.idx'", "not a Megatron index"}, ANY},
    {"a token beyond the vocabulary", 1, "", "--set data.train=beyond.bin",
        {"'beyond.bin'", "token 300", "position 900", "vocab_size is 259"}, ANY},
    {"every token beyond the vocabulary", 1, "", "--set model.vocab_size=10",
        {"'text.txt'", "vocab_size is 10", "256"}, ANY},
    {"heads that do not divide dim", 2, "", "--set model.dim=37", {"[model] dim", "37", "heads = 3"}, ANY},
    {"a batch that does not divide", 2, "", "--set train.global_batch=25 --set train.micro_batch=3",
        {"[train] global_batch", "25", "not divisible"}, ANY},
    {"more ranks than sequences", 2, "", "--set train.global_batch=2",
        {"[train] global_batch", "2 sequences", "3 ranks"}, 3},
    {"groups that do not divide the ranks", 2, "", "--set zero.shard_group=2",
        {"[zero] shard_group", "2 ranks to a group", "3 ranks"}, 3},
    {"evaluation without data", 2, "", "--set train.eval_every=2", {"eval_every", "[data] val"}, ANY},
    {"metrics that cannot be written", 1, "", "--set log.metrics=nosuch/m.jsonl",
        {"[log] metrics", "'nosuch/m.jsonl'", "No such file"}, ANY},
    {"a trace that cannot be written", 1, "", "--trace nosuch/t.json",
        {"[log] trace", "'nosuch/t.json'", "No such file"}, ANY},
    {"TensorBoard's directory a file", 1, "", "--set log.tensorboard=text.txt",
        {"[log] tensorboard", "'text.txt'", "File exists"}, ANY},
    {"Megatron's data without their index", 2, "", "--set data.format=megatron --set data.train=nanogpt.bin",
        {"'nanogpt.bin'", "'nanogpt.idx'", "No such file"}, ANY},
    {"a Megatron index of other data", 1, "", "--set data.train=cut",
        {"'cut.idx'", "ends at byte 12000", "'cut.bin' has 6000 bytes"}, ANY},
};
/* clang-format on */
#define N_BAD_INPUTS ((int)(sizeof BAD_INPUTS / sizeof BAD_INPUTS[0]))

/* Every case has a configuration file of its own. */
static outcome_t run_bad_input(int i, int n_ranks)
{
    const bad_input_t *bad = &BAD_INPUTS[i];
    char arguments[512];
    size_t length = strlen(bad->arguments);
    if (length > 0 && bad->arguments[length - 1] == '-')
        snprintf(arguments, sizeof arguments, "%.*s", (int)length - 1, bad->arguments);
    else
        snprintf(arguments, sizeof arguments, "%s case.%d.ini", bad->arguments, i);
    return run_arguments(n_ranks, arguments);
}

static void write_bad_configurations(void)
{
    for (int i = 0; i < N_BAD_INPUTS; i++) {
        char name[32], text[1024];
        snprintf(name, sizeof name, "case.%d.ini", i);
        int n_bytes = snprintf(text, sizeof text, "%s%s", CONFIG, BAD_INPUTS[i].lines);
        write_file(name, text, (size_t)n_bytes);
    }
}

/* One line, right after a newline or at the start; NULL when there is not exactly one. */
static const char *only_line(const char *err)
{
    static char line[4096];
    const char *found = NULL;
    for (const char *at = err; (at = strstr(at, "zerotrain: ")) != NULL; at++)
        if (at == err || at[-1] == '\n') {
            if (found)
                return NULL;
            found = at;
        }
    if (!found)
        return NULL;
    snprintf(line, sizeof line, "%.*s", (int)strcspn(found, "\n"), found);
    return line;
}

static void expect_refusal(const bad_input_t *bad, int n_ranks, const outcome_t *outcome)
{
    const support_output_t *output = &outcome->output;
    ck_assert_msg(outcome->exit_code == bad->exit_code, "%s, %d ranks: exit code %d instead of %d\n%s", bad->what,
                  n_ranks, outcome->exit_code, bad->exit_code, output->err);
    const char *line = only_line(output->err);
    ck_assert_msg(line != NULL, "%s, %d ranks: not one line of zerotrain:\n%s", bad->what, n_ranks, output->err);
    for (int i = 0; i < 4 && bad->says[i]; i++)
        ck_assert_msg(strstr(line, bad->says[i]) != NULL, "%s, %d ranks: '%s' is not in: %s", bad->what, n_ranks,
                      bad->says[i], line);
    ck_assert_msg(output->out[0] == 0, "%s, %d ranks: stdout has\n%s", bad->what, n_ranks, output->out);
    if (n_ranks == ALONE)
        ck_assert_msg(strlen(output->err) == strlen(line) + 1, "%s: stderr has more than the line:\n%s", bad->what,
                      output->err);
}

static void refuse_all(int n_ranks)
{
    outcome_t outcomes[N_BAD_INPUTS] = {0};
    write_bad_configurations();
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < N_BAD_INPUTS; i++)
        if (BAD_INPUTS[i].n_ranks == ANY || BAD_INPUTS[i].n_ranks == n_ranks)
            outcomes[i] = run_bad_input(i, n_ranks);
    for (int i = 0; i < N_BAD_INPUTS; i++)
        if (outcomes[i].output.err) {
            expect_refusal(&BAD_INPUTS[i], n_ranks, &outcomes[i]);
            forget(&outcomes[i]);
        }
    ck_assert(!exists("metrics.jsonl")); /* none of them has started to train */
}

START_TEST(bad_input_is_refused_with_one_line)
{
    refuse_all(ALONE);
}
END_TEST

START_TEST(bad_input_is_refused_with_one_line_by_three_ranks)
{
    refuse_all(3);
}
END_TEST

/* Runs two ranks with cfg.ini and a third, rank 2, with these arguments. */
static outcome_t run_odd_one_out(const char *arguments)
{
    outcome_t outcome;
    outcome.exit_code =
        support_mpirun(&outcome.output, RUN_LIMIT_S, 3,
                       "--wdir %s sh -c '[ " SUPPORT_RANK " = 2 ] || set -- cfg.ini; exec %s/zerotrain \"$@\"' sh %s",
                       scratch, support_build(), arguments);
    return outcome;
}

/* One host may have another file than the others: the rank that reads it reports it, although it is not rank 0. */
START_TEST(one_rank_alone_with_bad_input_speaks_for_itself)
{
    static const struct {
        const char *arguments, *says;
    } cases[] = {{"nosuch.ini", "rank 2: cannot read 'nosuch.ini'"},
                 {"--set model.hedas=3 cfg.ini", "rank 2: --set model.hedas=3: unknown key 'hedas'"},
                 {"--set data.train=nosuch.txt cfg.ini", "rank 2: cannot read data file 'nosuch.txt'"},
                 {"--set data.train=empty.txt cfg.ini", "rank 2: data file 'empty.txt' is empty"},
                 {"--set device.type=cuda cfg.ini", "it means cuda, on rank 0's cpu"},
                 {"--stage 2 cfg.ini", "rank 2 has another configuration"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome_t outcome = run_odd_one_out(cases[i].arguments);
        const char *line = only_line(outcome.output.err);
        ck_assert_msg(outcome.exit_code == 1 || outcome.exit_code == 2, "%s: exit code %d", cases[i].arguments,
                      outcome.exit_code); /* of whichever rank ended first */
        ck_assert_msg(line && strstr(line, cases[i].says), "%s: %s", cases[i].arguments, outcome.output.err);
        forget(&outcome);
    }
}
END_TEST

/* Groups of a host are of one size. The ranks of the host that has fewest would find nothing wrong. */
START_TEST(groups_of_hosts_that_differ_are_refused)
{
    static const struct {
        int n_ranks;
        const char *host, *command, *says;
    } cases[] = {{3, "$((" SUPPORT_RANK " > 0))", "", "hosts have 1 to 2 ranks"},
                 {3, "$((" SUPPORT_RANK " > 1))", "--plan", "hosts have 1 to 2 ranks"},
                 {4, "$((" SUPPORT_RANK " % 2))", "fit", "the ranks of a host are not consecutive"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome_t outcome;
        outcome.exit_code = support_mpirun(&outcome.output, RUN_LIMIT_S, cases[i].n_ranks,
                                           "--wdir %s sh -c 'export ZERO_HOST_ID=%s; exec %s/zerotrain \"$@\"' sh %s "
                                           "--set zero.shard_group=host cfg.ini",
                                           scratch, cases[i].host, support_build(), cases[i].command);
        const char *line = only_line(outcome.output.err);
        ck_assert_msg(outcome.exit_code == 2, "%zu: exit code %d", i, outcome.exit_code);
        ck_assert_msg(line && strstr(line, "[zero] shard_group = host") && strstr(line, cases[i].says), "%zu: %s", i,
                      outcome.output.err);
        forget(&outcome);
    }
}
END_TEST

/* Hosts that share a directory for checkpoints in memory would write over each other's: found before step 1, without
 * other lines. */
START_TEST(memory_that_hosts_share_is_refused)
{
    outcome_t outcome;
    outcome.exit_code = support_mpirun(&outcome.output, RUN_LIMIT_S, 2,
                                       "--wdir %s sh -c 'export ZERO_HOST_ID=host" SUPPORT_RANK "; exec %s/zerotrain "
                                       "--set checkpoint.memory_dir=%s/shared --set checkpoint.memory_every=2 cfg.ini'",
                                       scratch, support_build(), scratch);
    ck_assert_msg(outcome.exit_code == 2, "exit code %d", outcome.exit_code);
    const char *line = only_line(outcome.output.err);
    ck_assert_msg(line && strstr(line, "ranks 0-1 (here rank 0") &&
                      strstr(line, "shared' is also the directory of rank 1 on host1"),
                  "%s", outcome.output.err);
    ck_assert(!exists("metrics.jsonl"));
    forget(&outcome);
}
END_TEST

/* Slurm's srun without PMIx: every process would be a job of one rank. The first of them reports it. */
START_TEST(processes_that_no_mpi_joins_are_refused)
{
    for (int i = 0; i < 2 * 2; i++) {
        char environment[96];
        int process = i % 2;
        outcome_t outcome;
        snprintf(environment, sizeof environment,
                 i < 2 ? "SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=%d" : "PMI_SIZE=3 PMI_RANK=%d SLURM_PROCID=%d", process,
                 process);
        /* With these set and no launcher, PMIx leaks. */
        outcome.exit_code = support_run(&outcome.output, RUN_LIMIT_S,
                                        "cd %s && env ASAN_OPTIONS=detect_leaks=0 %s %s/zerotrain cfg.ini", scratch,
                                        environment, support_build());
        expect_exit(&outcome, 2);
        const char *line = only_line(outcome.output.err);
        ck_assert_msg(process == 0 ? line && strstr(line, "started 3 processes") && strstr(line, "--mpi=pmix") &&
                                         strstr(line, i < 2 ? "env -u SLURM_STEP_NUM_TASKS" : "env -u PMI_SIZE")
                                   : !line,
                      "%s: %s", environment, outcome.output.err);
        forget(&outcome);
    }
    ck_assert(!exists("metrics.jsonl"));
}
END_TEST

/* libgomp dies of 100,000 threads. A large number that a machine may have is as good as any: bits do not depend on it.
 */
START_TEST(more_threads_than_a_machine_has_are_refused)
{
    static const char *const arguments[] = {"--steps 1 cfg.ini", "--plan cfg.ini"};
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++)
        for (int n_ranks = ALONE; n_ranks <= 3; n_ranks += 3) {
            setenv("OMP_NUM_THREADS", i == 0 ? "100000" : "4097", 1);
            outcome_t outcome = run_arguments(n_ranks, arguments[i]);
            const char *line = only_line(outcome.output.err);
            expect_exit(&outcome, 2);
            ck_assert_msg(line && strstr(line, "OMP_NUM_THREADS") && strstr(line, "the maximum of 4096"), "%s: %s",
                          arguments[i], outcome.output.err);
            forget(&outcome);
        }
    ck_assert(!exists("metrics.jsonl"));
    setenv("OMP_NUM_THREADS", "64", 1);
    expect_success(ALONE, "--steps 1 cfg.ini");
}
END_TEST

/* ---- failures during a run ---- */

#define DIVERGING                                                                                                      \
    "--set train.lr=1000 --set train.grad_clip=0 --set train.steps=100 --set train.schedule=constant --set "           \
    "log.every=0 "

START_TEST(diverging_steps_are_skipped_and_logged_and_many_end_the_run)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, DIVERGING "cfg.ini");
    expect_exit(&outcome, 1);
    ck_assert_msg(support_count(outcome.output.err, "steps in a row") == 1, "%s", outcome.output.err);
    ck_assert_msg(strstr(outcome.output.err, "lower the learning rate") != NULL, "%s", outcome.output.err);
    json_t *rows = read_metrics("metrics.jsonl");
    size_t n_skipped = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        bool skipped = json_is_true(json_object_get(row, "skipped"));
        ck_assert_int_eq(skipped, !json_is_number(json_object_get(row, "grad_norm")));
        n_skipped += skipped;
    }
    ck_assert_uint_gt(n_skipped, 5);
    ck_assert_uint_lt(n_skipped, 99);
    ck_assert_uint_eq(support_count(outcome.output.err, "SKIPPED"), n_skipped);
    json_decref(rows);
    forget(&outcome);
}
END_TEST

/* So that what starts runs again does not repeat one that would end the same way. */
START_TEST(diverging_has_an_exit_code_of_its_own_with_auto_resume)
{
    outcome_t outcome = run(ALONE, DIVERGING "--auto-resume cfg.ini");
    expect_exit(&outcome, 4);
    forget(&outcome);
}
END_TEST

/* fp16's first loss scale is too large for sequences of one token, with a batch of one per rank; three steps later it
 * has settled. */
START_TEST(a_run_of_which_every_step_was_skipped_is_no_success)
{
    static const struct {
        const char *arguments;
        int exit_code;
        bool says;
    } cases[] = {{"--steps 1", 1, true}, {"--set train.steps=1", 1, true}, {"--steps 3", 0, false}};
    const int n_ranks = _i == 0 ? ALONE : 2;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome_t outcome = run(n_ranks,
                                "--set train.precision=fp16 --set model.seq_len=1 --set train.global_batch=0 "
                                "--set train.micro_batch=1 %s cfg.ini",
                                cases[i].arguments);
        expect_exit(&outcome, cases[i].exit_code);
        ck_assert_msg(support_count(outcome.output.err, "all steps of this run (1) were skipped") == cases[i].says,
                      "%s", outcome.output.err);
        json_t *rows = read_metrics("metrics.jsonl");
        ck_assert(json_is_true(json_object_get(json_array_get(rows, 0), "skipped")));
        json_decref(rows);
        forget(&outcome);
    }
}
END_TEST

START_TEST(a_full_disk_ends_the_run_and_is_named)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "--set log.metrics=/dev/full cfg.ini");
    expect_exit(&outcome, 1);
    ck_assert_msg(support_count(outcome.output.err, "[log] metrics: writing '/dev/full' failed: No space left") == 1,
                  "%s", outcome.output.err);
    ck_assert_msg(support_count(outcome.output.err, "a log cannot be written: stopping after step 2 of") == 1, "%s",
                  outcome.output.err);
    forget(&outcome);
}
END_TEST

/* Trains on 3 ranks until 3 steps are in the metrics, sends rank 1 the signal, and waits for the end of the job. */
static const char SIGNAL_SCRIPT[] =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1\n"
    "mpirun --oversubscribe --bind-to none -n 3 sh tell_pid.sh \"$1\" --set train.steps=1000000 "
    "--set log.every=0 cfg.ini &\n"
    "job=$!\n"
    "until [ -s metrics.jsonl ] && [ $(wc -l < metrics.jsonl) -ge 3 ]; do sleep 0.1; done\n"
    "begin=$(date +%s)\n"
    "kill -$2 $(cat pid.1)\n"
    "wait $job\n"
    "code=$?\n"
    "echo took $(($(date +%s) - begin)) s\n"
    "sleep 1\n"
    "for rank in 0 1 2; do\n"
    "    state=$(cut -d ' ' -f 3 /proc/$(cat pid.$rank)/stat 2>/dev/null)\n"
    "    [ \"${state:-Z}\" = Z ] || echo rank $rank lives on\n" /* Z: ended, but not yet waited for */
    "done\n"
    "exit $code\n";
static const char PID_SCRIPT[] = "rank=" SUPPORT_RANK "\n"
                                 "echo $$ > pid.$rank\n"
                                 "exec \"$@\"\n";

/* All ranks are gone within limit_s of the signal, and the exit code shows the failure. */
static outcome_t signal_rank_1(const char *signal_name, int limit_s)
{
    write_file("signal.sh", SIGNAL_SCRIPT, sizeof SIGNAL_SCRIPT - 1);
    write_file("tell_pid.sh", PID_SCRIPT, sizeof PID_SCRIPT - 1);
    outcome_t outcome;
    int took_s = -1;
    outcome.exit_code = support_run(&outcome.output, RUN_LIMIT_S, "cd %s && sh signal.sh %s/zerotrain %s", scratch,
                                    support_build(), signal_name);
    const support_output_t *output = &outcome.output;
    ck_assert_msg(outcome.exit_code != 0 && outcome.exit_code != SUPPORT_TIMED_OUT, "exit code %d\n%s%s",
                  outcome.exit_code, output->out, output->err);
    ck_assert_msg(sscanf(output->out, "took %d s", &took_s) == 1 && took_s <= limit_s, "%s%s", output->out,
                  output->err);
    ck_assert_msg(!strstr(output->out, "lives on"), "%s%s", output->out, output->err);
    return outcome;
}

START_TEST(a_killed_rank_ends_the_job_and_is_named)
{
    outcome_t outcome = signal_rank_1("KILL", 10);
    ck_assert_msg(strstr(outcome.output.err, "rank 1") != NULL, "%s", outcome.output.err);
    forget(&outcome);
}
END_TEST

/* It is given up long before ZERO_TIMEOUT_S, which is minutes. */
START_TEST(a_stuck_rank_ends_the_job_and_is_named)
{
    outcome_t outcome = signal_rank_1("STOP", 5 + 10);
    const char *line = strstr(outcome.output.err, "zerotrain: rank ");
    ck_assert_msg(line && support_count(line, "zerotrain: ") == 1, "%s", outcome.output.err);
    ck_assert_msg(strstr(line, "rank 1 ") && strstr(line, "has been stopped"), "%s", outcome.output.err);
    forget(&outcome);
}
END_TEST

/* Trains on used.bin until 3 steps are in the metrics, changes it as `sh change.sh TRUNCATE|OVERWRITE zerotrain ...`
 * says, and waits for the end. */
static const char CHANGE_SCRIPT[] =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1\n"
    "change=$1\n"
    "shift\n"
    "cp nanogpt.bin used.bin\n"
    "rm -f metrics.jsonl\n"
    "\"$@\" --set data.train=used.bin --set train.steps=1000000 --set log.every=0 cfg.ini &\n"
    "job=$!\n"
    "until [ -s metrics.jsonl ] && [ $(wc -l < metrics.jsonl) -ge 3 ]; do sleep 0.1; done\n"
    "begin=$(date +%s)\n"
    "[ $change = OVERWRITE ] || : > used.bin\n"
    "[ $change = TRUNCATE ] || dd if=beyond.raw of=used.bin conv=notrunc 2>/dev/null\n"
    "wait $job\n"
    "code=$?\n"
    "echo took $(($(date +%s) - begin)) s\n"
    "exit $code\n";

/* One rank may meet it and end the job, or several at once: each has one line. */
START_TEST(a_token_file_that_changes_in_use_ends_the_run_and_is_named)
{
    static const struct {
        const char *change, *says[3];
    } cases[] = {{"TRUNCATE", {"cannot read data file 'used.bin'", "12000 bytes", "truncated while in use"}},
                 {"OVERWRITE", {"'used.bin': token 65535 at position ", "vocab_size is 259", "changed while in use"}}};
    static unsigned char beyond[2 * N_TOKENS];
    const char *launcher = _i == 0 ? "" : "mpirun --oversubscribe --bind-to none -n 3";
    memset(beyond, 0xff, sizeof beyond);
    write_file("beyond.raw", beyond, sizeof beyond);
    write_file("change.sh", CHANGE_SCRIPT, sizeof CHANGE_SCRIPT - 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome_t outcome;
        int took_s = -1;
        outcome.exit_code = support_run(&outcome.output, RUN_LIMIT_S, "cd %s && sh change.sh %s %s %s/zerotrain",
                                        scratch, cases[i].change, launcher, support_build());
        expect_exit(&outcome, 1);
        const char *err = outcome.output.err;
        size_t n_lines = support_count(err, "data file 'used.bin'") + support_count(err, "'used.bin': token");
        ck_assert_msg(n_lines >= 1 && n_lines <= (_i == 0 ? 1 : 3), "%s: %s", cases[i].change, err);
        for (size_t part = 0; part < 3; part++)
            ck_assert_msg(support_count(err, cases[i].says[part]) == n_lines, "%s: '%s': %s", cases[i].change,
                          cases[i].says[part], err);
        ck_assert_msg(sscanf(outcome.output.out, "took %d s", &took_s) == 1 && took_s <= 10, "%s%s", outcome.output.out,
                      err);
        forget(&outcome);
    }
}
END_TEST

/* ---- Help, version, plan ---- */

START_TEST(help_names_every_section_and_option_and_goes_to_stdout)
{
    static const char *const parts[] = {"[model]",
                                        "[data]",
                                        "[train]",
                                        "[zero]",
                                        "[device]",
                                        "[checkpoint]",
                                        "[log]",
                                        "--stage",
                                        "--steps",
                                        "--set",
                                        "--resume",
                                        "--plan",
                                        "--trace",
                                        "--version",
                                        "Exit code",
                                        "seq_len =",
                                        "reduce_every_micro_step ="};
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "--help");
    expect_exit(&outcome, 0);
    ck_assert_uint_eq(support_count(outcome.output.out, "Usage: zerotrain"), 1);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        ck_assert_msg(strstr(outcome.output.out, parts[i]) != NULL, "'%s' is not in\n%s", parts[i], outcome.output.out);
    ck_assert_str_eq(outcome.output.err, "");
    forget(&outcome);
}
END_TEST

START_TEST(version_goes_to_stdout_once)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "--version");
    expect_exit(&outcome, 0);
    ck_assert_str_eq(outcome.output.out, "zerotrain " ZERO_VERSION_STRING "\n");
    ck_assert_str_eq(outcome.output.err, "");
    forget(&outcome);
}
END_TEST

START_TEST(results_that_cannot_be_written_are_a_failure)
{
    static const char *const runs[] = {"--help", "--plan cfg.ini"};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        support_output_t output;
        int exit_code = support_run(&output, RUN_LIMIT_S, "cd %s && exec %s/zerotrain %s > /dev/full", scratch,
                                    support_build(), runs[i]);
        ck_assert_msg(exit_code == 1 && strstr(output.err, "cannot write to stdout: No space left"), "%s: %d, %s",
                      runs[i], exit_code, output.err);
        support_output_free(&output);
    }
}
END_TEST

/* The four numbers of the plan's row of that name; the row must be there once. */
static void read_plan_row(const char *plan, const char *name, long long bytes[4])
{
    char pattern[64];
    snprintf(pattern, sizeof pattern, "\n%s ", name);
    const char *row = strstr(plan, pattern);
    ck_assert_msg(row && support_count(plan, pattern) == 1, "%s: %s", name, plan);
    ck_assert_int_eq(sscanf(row + strlen(pattern), "%lld %lld %lld %lld", &bytes[0], &bytes[1], &bytes[2], &bytes[3]),
                     4);
}

START_TEST(the_plan_adds_up_and_training_uses_what_it_says)
{
    static const char *const categories[] = {"parameters",
                                             "unsharded parameters",
                                             "gradients",
                                             "unsharded gradients",
                                             "optimizer state",
                                             "communication",
                                             "activations",
                                             "workspace",
                                             "data"};
    const int n_ranks = _i == 0 ? ALONE : 8;
    if (support_leaves_out(n_ranks))
        return;
    outcome_t outcome = run(n_ranks, "--plan cfg.ini");
    expect_exit(&outcome, 0);
    ck_assert(!exists("metrics.jsonl")); /* it did not train */
    if (n_ranks == ALONE)
        ck_assert_str_eq(outcome.output.err, "");
    ck_assert(strstr(outcome.output.out, ", on the CPU; ") ||
              strstr(outcome.output.out, ", on GPUs; ")); /* whose it is */

    long long sum[4] = {0}, bytes[4], total[4], state[4];
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++) {
        read_plan_row(outcome.output.out, categories[i], bytes);
        for (int stage = 0; stage < 4; stage++)
            sum[stage] += bytes[stage];
        if (strcmp(categories[i], "optimizer state") == 0)
            memcpy(state, bytes, sizeof state);
    }
    read_plan_row(outcome.output.out, "total", total);
    for (int stage = 0; stage < 4; stage++)
        ck_assert_int_eq(sum[stage], total[stage]);
    if (n_ranks == 8) {
        ck_assert_int_gt(state[0], 7 * state[1]); /* 1/8 and padding */
        ck_assert_int_lt(state[0], 8 * state[1] + 1);
        ck_assert_int_eq(state[1], state[3]);
    } else {
        ck_assert_int_eq(state[0], state[3]);
    }
    forget(&outcome);

    for (int stage = 0; stage < 4; stage += n_ranks == 8 ? 3 : 1) {
        outcome = run(n_ranks, "--stage %d --steps 2 cfg.ini", stage);
        expect_exit(&outcome, 0);
        json_t *rows = read_metrics("metrics.jsonl");
        ck_assert_int_eq(integer(rows, 2, "device_bytes"), total[stage]);
        json_decref(rows);
        forget(&outcome);
    }
}
END_TEST

/* ---- A good run ---- */

/* Compares what a run says of itself with the plan, the configuration and this host. */
static void expect_description(const json_t *run, int n_ranks, uint64_t device_bytes)
{
    char host[256] = "";
    const json_t *config = json_object_get(run, "config"), *first = json_array_get(json_object_get(run, "hosts"), 0);
    const char *category;
    json_t *bytes, *memory = json_object_get(run, "memory");
    uint64_t total = 0;
    json_object_foreach(memory, category, bytes) total +=
        strcmp(category, "pinned host memory") != 0 ? (uint64_t)json_integer_value(bytes) : 0;
    ck_assert_uint_eq(json_object_size(memory), 10);
    ck_assert_uint_eq(total, device_bytes);
    ck_assert_int_eq(gethostname(host, sizeof host - 1), 0);
    ck_assert_str_eq(json_string_value(json_object_get(first, "name")), host);
    ck_assert_int_eq(json_integer_value(json_object_get(first, "ranks")), n_ranks);
    ck_assert_uint_eq(json_array_size(json_object_get(run, "hosts")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(run, "ranks")), n_ranks);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(config, "train"), "global_batch")), "24");
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(config, "log"), "metrics")), "metrics.jsonl");
}

START_TEST(metrics_have_every_field_with_its_type)
{
    static const char *const numbers[] = {"loss",         "grad_norm",       "lr",  "step_ms",
                                          "tokens_per_s", "exposed_comm_ms", "time"};
    static const char *const integers[] = {"step", "tokens", "device_bytes", "host_bytes"};
    static const char earlier[] = "{\"step\": 99, \"loss\": 1.5}\n";
    write_file("metrics.jsonl", earlier, sizeof earlier - 1);
    double before_s = (double)time(NULL);
    expect_success(_i == 0 ? ALONE : 3, "--set data.val=val.txt --set train.eval_every=5 cfg.ini");
    json_t *rows = read_metrics("metrics.jsonl");
    ck_assert_uint_eq(json_array_size(rows), N_STEPS);
    for (size_t step = 1; step <= N_STEPS; step++) {
        const json_t *row = json_array_get(rows, step - 1);
        bool evaluates = step % 5 == 0 || step == N_STEPS;
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
            ck_assert_msg(json_is_number(json_object_get(row, numbers[i])), "step %zu: %s", step, numbers[i]);
        for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
            ck_assert_msg(json_is_integer(json_object_get(row, integers[i])), "step %zu: %s", step, integers[i]);
        ck_assert(json_is_false(json_object_get(row, "skipped")));
        ck_assert(json_is_null(json_object_get(row, "mfu")) || json_is_number(json_object_get(row, "mfu")));
        ck_assert_int_eq(json_is_number(json_object_get(row, "val_loss")), evaluates);
        ck_assert_uint_eq(json_object_size(row), (evaluates ? 14u : 13u) + (step == 1));

        ck_assert_int_eq(integer(rows, step, "step"), (long long)step);
        ck_assert_int_eq(integer(rows, step, "tokens"), (long long)step * 24 * 17);
        ck_assert_double_gt(number(rows, step, "step_ms"), 0.0);
        ck_assert_double_ge(number(rows, step, "time"), step == 1 ? before_s : number(rows, step - 1, "time"));
        ck_assert_double_le(number(rows, step, "time"), (double)time(NULL) + 1.0);
        ck_assert_double_eq_tol(number(rows, step, "tokens_per_s") * number(rows, step, "step_ms") * 1e-3, 24 * 17,
                                0.01);
    }
    expect_description(json_object_get(json_array_get(rows, 0), "run"), _i == 0 ? 1 : 3,
                       (uint64_t)integer(rows, 1, "device_bytes"));
    /* From ln 259 at the start to something better. */
    ck_assert_double_eq_tol(number(rows, 1, "loss"), log(259.0), 0.3);
    ck_assert_double_lt(number(rows, N_STEPS, "loss"), number(rows, 1, "loss") - 0.5);
    ck_assert_double_lt(number(rows, N_STEPS, "val_loss"), number(rows, 5, "val_loss"));
    json_decref(rows);
}
END_TEST

/* One file, whatever the ranks. Both round: the metrics to nine digits, the events to fp32. */
START_TEST(tensorboard_events_equal_the_metrics)
{
    static const char *const tags[] = {"loss",         "grad_norm",       "lr",       "tokens_per_s",
                                       "step_ms",      "exposed_comm_ms", "val_loss", "tokens",
                                       "device_bytes", "host_bytes"};
    expect_success(_i == 0 ? ALONE : 3,
                   "--set data.val=val.txt --set train.eval_every=5 --set log.tensorboard=runs/one cfg.ini");
    char name[512] = "";
    int n_files = 0;
    DIR *listing = opendir(path_of("runs/one"));
    ck_assert_ptr_nonnull(listing);
    for (const struct dirent *entry; (entry = readdir(listing));)
        if (entry->d_name[0] != '.' && ++n_files)
            snprintf(name, sizeof name, "runs/one/%s", entry->d_name);
    closedir(listing);
    ck_assert_int_eq(n_files, 1);
    static event_t events[N_STEPS + 1];
    ck_assert_int_eq(event_file_read(path_of(name), events, N_STEPS + 1), N_STEPS + 1);
    json_t *rows = read_metrics("metrics.jsonl");
    for (size_t step = 1; step <= N_STEPS; step++) {
        const json_t *row = json_array_get(rows, step - 1);
        ck_assert_int_eq(events[step].step, (long long)step);
        ck_assert(*event_scalar(&events[step], "skipped") == 0);
        for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
            const float *value = event_scalar(&events[step], tags[i]);
            const json_t *want = json_object_get(row, tags[i]);
            ck_assert_msg((value != NULL) == (want != NULL), "step %zu: %s", step, tags[i]);
            if (value)
                ck_assert_double_le(fabs(*value - json_number_value(want)), 1e-7 * fabs(json_number_value(want)));
        }
    }
    json_decref(rows);
}
END_TEST

START_TEST(results_go_to_stdout_and_the_log_to_stderr)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "cfg.ini");
    expect_exit(&outcome, 0);
    ck_assert_str_eq(outcome.output.out, "");
    ck_assert_msg(strstr(outcome.output.err, "metrics.jsonl\n") != NULL, "%s", outcome.output.err);
    ck_assert_msg(support_count(outcome.output.err, "step 12/12") == 1, "%s", outcome.output.err); /* only rank 0 */
    double loss, norm, lr, ms, tokens_per_s, memory;
    char unit[4], left[8];
    const char *line = strstr(outcome.output.err, "step 12/12");
    ck_assert_msg(sscanf(line, "step 12/12 loss %lf grad_norm %lf lr %lf %lf ms %lf tokens/s %lf %3s %7s left", &loss,
                         &norm, &lr, &ms, &tokens_per_s, &memory, unit, left) == 8 &&
                      ms > 0.0 && memory > 0.0 && !strcmp(unit, "MiB") && !strcmp(left, "0:00"),
                  "%s", line);
    ck_assert_msg(strstr(outcome.output.err, _i == 0 ? "on 1 rank " : "on 3 ranks ") != NULL, "%s", outcome.output.err);
    if (_i == 0) /* every line of it is zerotrain's */
        ck_assert_uint_eq(support_count(outcome.output.err, "\n"), support_count(outcome.output.err, "zerotrain: "));
    forget(&outcome);
}
END_TEST

START_TEST(a_sample_is_printed_once_as_text)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "--set model.vocab_size=256 --set train.sample_every=12 cfg.ini");
    expect_exit(&outcome, 0);
    const char *out = outcome.output.out, *begin = "--- sample: given this text\n", *end = "\n--- end of sample\n";
    ck_assert_msg(strncmp(out, begin, strlen(begin)) == 0, "%s", out);
    const char *closed = strstr(out, end);
    ck_assert_msg(closed && strlen(closed) == strlen(end), "%s", out); /* once, and nothing else */
    ck_assert_int_ge((int)(closed - out), 100);
    for (const char *at = out; *at; at++)
        ck_assert_msg(*at == '\n' || *at == '\t' || (*at >= 32 && *at < 127), "byte %d", *at);
    forget(&outcome);
}
END_TEST

/* Rows of both, up to the shorter: the same in these fields. */
static void expect_equal_rows(const json_t *a, const json_t *b)
{
    size_t n_a = json_array_size(a), n_b = json_array_size(b), n = n_a < n_b ? n_a : n_b;
    ck_assert_uint_gt(n, 0);
    for (size_t step = 1; step <= n; step++) {
        ck_assert(number(a, step, "loss") == number(b, step, "loss"));
        ck_assert(number(a, step, "grad_norm") == number(b, step, "grad_norm"));
        ck_assert(number(a, step, "lr") == number(b, step, "lr"));
    }
}

START_TEST(steps_stops_early_and_the_schedule_follows_train_steps)
{
    expect_success(ALONE, "--set log.metrics=all.jsonl cfg.ini");
    expect_success(ALONE, "--steps 5 --set log.metrics=five.jsonl cfg.ini");
    expect_success(ALONE, "--set train.steps=5 --set log.metrics=short.jsonl cfg.ini");
    json_t *all = read_metrics("all.jsonl"), *five = read_metrics("five.jsonl"), *shorter = read_metrics("short.jsonl");
    ck_assert_uint_eq(json_array_size(all), N_STEPS);
    ck_assert_uint_eq(json_array_size(five), 5);
    expect_equal_rows(all, five);
    ck_assert_double_gt(number(five, 5, "lr"), 2.0 * number(shorter, 5, "lr")); /* lr / 10 is for the last step */
    ck_assert_double_eq_tol(number(shorter, 5, "lr"), 3e-4, 1e-9);
    json_decref(all);
    json_decref(five);
    json_decref(shorter);
}
END_TEST

START_TEST(the_command_line_goes_before_the_file_and_the_file_before_defaults)
{
    static const char text[] = CONFIG "[zero]\nstage = 1\n";
    static const struct {
        const char *arguments, *says;
    } cases[] = {{"cfg.ini", "stage 3"}, /* the default */
                 {"one.ini", "stage 1"},
                 {"--set zero.stage=2 one.ini", "stage 2"},
                 {"one.ini --stage 0", "stage 0"}};
    write_file("one.ini", text, sizeof text - 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome_t outcome = run(ALONE, "--steps 1 %s", cases[i].arguments);
        expect_exit(&outcome, 0);
        ck_assert_msg(strstr(outcome.output.err, cases[i].says) != NULL, "%s: %s", cases[i].arguments,
                      outcome.output.err);
        forget(&outcome);
    }
}
END_TEST

START_TEST(every_token_format_gives_the_losses_of_the_text)
{
    static const char *const names[] = {"llmc2.bin", "llmc4.bin", "nanogpt.bin", "megatron"};
    expect_success(ALONE, "--set log.metrics=text.jsonl cfg.ini");
    json_t *text = read_metrics("text.jsonl");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        outcome_t outcome = run(ALONE, "--set data.train=%s cfg.ini", names[i]);
        expect_exit(&outcome, 0);
        json_t *rows = read_metrics("metrics.jsonl");
        ck_assert_uint_eq(json_array_size(rows), N_STEPS);
        expect_equal_rows(text, rows);
        json_decref(rows);
        forget(&outcome);
    }
    json_decref(text);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("zerotrain");
    TCase *refusals = tcase_create("refusals"), *failures = tcase_create("failures"), *good = tcase_create("good runs");
    TCase *all[] = {refusals, failures, good};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        tcase_add_checked_fixture(all[i], set_up, NULL);
        tcase_set_timeout(all[i], 10 * RUN_LIMIT_S);
        suite_add_tcase(suite, all[i]);
    }
    tcase_add_checked_fixture(refusals, hide_gpus, NULL);
    tcase_add_test(refusals, bad_input_is_refused_with_one_line);
    tcase_add_test(refusals, bad_input_is_refused_with_one_line_by_three_ranks);
    tcase_add_test(refusals, processes_that_no_mpi_joins_are_refused);
    tcase_add_test(refusals, one_rank_alone_with_bad_input_speaks_for_itself);
    tcase_add_test(refusals, groups_of_hosts_that_differ_are_refused);
    tcase_add_test(refusals, memory_that_hosts_share_is_refused);
    tcase_add_test(refusals, more_threads_than_a_machine_has_are_refused);

    /* Loop tests: one rank, then several under mpirun. */
    tcase_add_loop_test(failures, diverging_steps_are_skipped_and_logged_and_many_end_the_run, 0, 2);
    tcase_add_test(failures, diverging_has_an_exit_code_of_its_own_with_auto_resume);
    tcase_add_loop_test(failures, a_run_of_which_every_step_was_skipped_is_no_success, 0, 2);
    tcase_add_loop_test(failures, a_full_disk_ends_the_run_and_is_named, 0, 2);
    tcase_add_test(failures, a_killed_rank_ends_the_job_and_is_named);
    tcase_add_test(failures, a_stuck_rank_ends_the_job_and_is_named);
    tcase_add_loop_test(failures, a_token_file_that_changes_in_use_ends_the_run_and_is_named, 0, 2);

    tcase_add_loop_test(good, help_names_every_section_and_option_and_goes_to_stdout, 0, 2);
    tcase_add_loop_test(good, version_goes_to_stdout_once, 0, 2);
    tcase_add_test(good, results_that_cannot_be_written_are_a_failure);
    tcase_add_loop_test(good, the_plan_adds_up_and_training_uses_what_it_says, 0, 2);
    tcase_add_loop_test(good, metrics_have_every_field_with_its_type, 0, 2);
    tcase_add_loop_test(good, tensorboard_events_equal_the_metrics, 0, 2);
    tcase_add_loop_test(good, results_go_to_stdout_and_the_log_to_stderr, 0, 2);
    tcase_add_loop_test(good, a_sample_is_printed_once_as_text, 0, 2);
    tcase_add_test(good, steps_stops_early_and_the_schedule_follows_train_steps);
    tcase_add_test(good, the_command_line_goes_before_the_file_and_the_file_before_defaults);
    tcase_add_test(good, every_token_format_gives_the_losses_of_the_text);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
