/* test_zerotrain_refusals.c - what is wrong before the first step ends zerotrain on all ranks, with one line that says
 * what, where and what to do. */
#include "tests/unit/train/zerotrain_runs.h"

#define N_AT_ONCE 4
#define ANY (-1) /* ranks */

/* What is refused without GPUs is refused on every machine's tests. */
static void hide_gpus(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
}

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
        {"[zero] shard_group", "2 ranks to a group", "3 ranks", "take a number that does"}, 3},
    {"groups of two on one rank", 2, "", "--set zero.shard_group=2", {"[zero] shard_group", "the 1 rank:"}, ALONE},
    {"a tokenizer that is not there", 2, "", "--set model.tokenizer=nosuch",
        {"[model] tokenizer", "'nosuch'", "No such file", "name a directory"}, ANY},
    {"a file as the tokenizer's directory", 2, "", "--set model.tokenizer=text.txt",
        {"[model] tokenizer", "'text.txt'", "Not a directory"}, ANY},
    {"a directory without a tokenizer", 2, "", "--set model.tokenizer=/usr",
        {"[model] tokenizer", "'/usr' has none", "tokenizer.json", "leave it out"}, ANY},
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

/* Runs two ranks with cfg.ini, and a third, rank 2, after `before` and with `arguments`. */
static outcome_t run_odd_one_out(const char *before, const char *arguments)
{
    outcome_t outcome;
    outcome.exit_code = support_mpirun(&outcome.output, RUN_LIMIT_S, 3,
                                       "--wdir %s sh -c 'if [ " SUPPORT_RANK
                                       " = 2 ]; then %s; else set -- cfg.ini; fi; exec %s/zerotrain \"$@\"' sh %s",
                                       scratch, before, support_build(), arguments);
    return outcome;
}

#define ELSEWHERE "rm -rf lone && mkdir lone && cp * lone 2>/dev/null; cd lone"

/* One host may have other files than the others: the rank that reads them reports it, although it is not rank 0. */
START_TEST(one_rank_alone_with_bad_input_speaks_for_itself)
{
    static const struct {
        const char *before, *arguments, *says;
    } cases[] = {
        {":", "nosuch.ini", "rank 2: cannot read 'nosuch.ini'"},
        {":", "--set model.hedas=3 cfg.ini", "rank 2: --set model.hedas=3: unknown key 'hedas'"},
        {ELSEWHERE " && rm text.txt", "cfg.ini", "rank 2: cannot read data file 'text.txt'"},
        {ELSEWHERE " && >text.txt", "cfg.ini", "rank 2: data file 'text.txt' is empty"},
        {":", "--set data.train=empty.txt cfg.ini", "rank 2: [data] train: 'empty.txt', but 'text.txt' on rank 0"},
        {":", "--set device.type=cuda cfg.ini", "rank 2: [device] type: 'cuda', but 'auto' on rank 0"},
        {":", "--set model.norm_eps=1e-6 cfg.ini", "rank 2: [model] norm_eps: '1e-06', but '1e-05' on rank 0"},
        {ELSEWHERE " && sed -i s/seq_len.*/seq_len=8/ cfg.ini", "cfg.ini", "rank 2: [model] seq_len: '8', but '17' on"},
        {":", "--stage 2 cfg.ini", "rank 2: [zero] stage: '2', but '3' on rank 0"},
        {":", "--overwrite cfg.ini", "rank 2: --overwrite: 'true', but 'false' on rank 0"},
        {":", "fit cfg.ini", "rank 2: the command: 'fit', but 'train' on rank 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome_t outcome = run_odd_one_out(cases[i].before, cases[i].arguments);
        const char *line = only_line(outcome.output.err);
        ck_assert_msg(outcome.exit_code == 1 || outcome.exit_code == 2, "%s: exit code %d", cases[i].arguments,
                      outcome.exit_code); /* of whichever rank ended first */
        ck_assert_msg(line && strstr(line, cases[i].says), "%s: %s", cases[i].arguments, outcome.output.err);
        forget(&outcome);
    }
}
END_TEST

/* Its base model may have been fetched at another time. */
START_TEST(one_rank_alone_with_another_model_is_refused)
{
    static const char CONFIG_JSON[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_attention_heads\": 4, "
        "\"num_hidden_layers\": 1, \"rms_norm_eps\": 1e-05, \"max_position_embeddings\": 16, \"vocab_size\": 256}";
    outcome_t outcome;
    write_file("config.json", CONFIG_JSON, sizeof CONFIG_JSON - 1);
    const int made =
        support_run(NULL, RUN_LIMIT_S,
                    "cd %s && mkdir m && mv config.json m && mkdir other && cp -r m text.txt other && "
                    "printf '[model]\\ninit=m\\n[data]\\ntrain=text.txt\\n' | tee m.ini >other/m.ini && "
                    "sed -i s/1e-05/1e-06/ other/m/config.json && ! cmp -s m/config.json other/m/config.json",
                    scratch);
    ck_assert_int_eq(made, 0);
    outcome.exit_code = support_mpirun(
        &outcome.output, RUN_LIMIT_S, 2,
        "--wdir %s sh -c '[ " SUPPORT_RANK " = 0 ] || cd other; exec %s/zerotrain m.ini'", scratch, support_build());
    const char *line = only_line(outcome.output.err);
    ck_assert_msg(outcome.exit_code == 2 && line &&
                      strstr(line, "rank 1: [model] norm_eps: '1e-06', but '1e-05' on rank 0"),
                  "%d: %s", outcome.exit_code, outcome.output.err);
    forget(&outcome);
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

static Suite *suite(void)
{
    Suite *s = suite_create("zerotrain_refusals");
    TCase *refusals = tcase_create("refusals");
    tcase_add_checked_fixture(refusals, set_up, NULL);
    tcase_add_checked_fixture(refusals, hide_gpus, NULL);
    tcase_set_timeout(refusals, 10 * RUN_LIMIT_S);
    tcase_add_test(refusals, bad_input_is_refused_with_one_line);
    tcase_add_test(refusals, bad_input_is_refused_with_one_line_by_three_ranks);
    tcase_add_test(refusals, processes_that_no_mpi_joins_are_refused);
    tcase_add_test(refusals, one_rank_alone_with_bad_input_speaks_for_itself);
    tcase_add_test(refusals, groups_of_hosts_that_differ_are_refused);
    tcase_add_test(refusals, one_rank_alone_with_another_model_is_refused);
    tcase_add_test(refusals, memory_that_hosts_share_is_refused);
    tcase_add_test(refusals, more_threads_than_a_machine_has_are_refused);
    suite_add_tcase(s, refusals);
    return s;
}

int main(void)
{
    return support_main(suite());
}
