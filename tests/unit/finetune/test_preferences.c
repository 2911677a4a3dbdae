/* test_preferences.c - learning from pairs of answers ([train] objective = dpo) as a user of zerotrain meets it: the
 * same text at every stage, on any number of ranks, with every recomputation, packed or padded, resumed or not; memory
 * as planned; and what is no pair, or would take pairs apart, is refused by name.
 *
 * That the numbers are those of PyTorch and TRL is tested by tests/reference/dpo.py.
 */
#define SUPPORT_SANITIZE_SOME
#include "tests/unit/finetune/tuning_runs.h"

#define N_STEPS 6
#define SEQ_LEN 37

/* ---- data ---- */

enum { MAX_TOKENS = 8192, MAX_DOCUMENTS = 256 };

/* A token file that is made document by document (token_format.h). */
typedef struct writer {
    int n_tokens, n_documents;
    unsigned char tokens[MAX_TOKENS], counts[MAX_TOKENS];
    int begins[MAX_DOCUMENTS];
} writer_t;

static void put(unsigned char **at, uint64_t number, int width)
{
    for (int i = 0; i < width; i++)
        *(*at)++ = (unsigned char)(number >> 8 * i);
}

static void write_tokens(const char *name, const writer_t *w, bool is_pairs)
{
    static unsigned char bytes[64 + 2 * MAX_TOKENS + 8 * MAX_DOCUMENTS];
    unsigned char *at = bytes;
    memset(bytes, 0, sizeof bytes);
    memcpy(at, "ZEROTOK", 8), at += 8;
    put(&at, 1, 4), put(&at, 1, 4), put(&at, (uint64_t)w->n_tokens, 8), put(&at, 256, 8), put(&at, 0, 8);
    put(&at, (uint64_t)w->n_documents, 8), put(&at, 1, 4), put(&at, is_pairs, 4), put(&at, 0, 8);
    for (int i = 0; i < (w->n_tokens + 7) / 8 * 8; i++)
        put(&at, i < w->n_tokens ? w->tokens[i] : 0, 1);
    for (int i = 0; i < w->n_documents; i++)
        put(&at, (uint64_t)w->begins[i], 8);
    for (int i = 0; i < w->n_tokens; i++)
        at[i / 8] |= (unsigned char)(w->counts[i] << i % 8);
    support_write_file(path_of(name), bytes, (size_t)(at - bytes) + (size_t)(w->n_tokens + 7) / 8);
}

/* Adds a pair whose prompt is longer than a sequence. */
static void add_long_pair(writer_t *w)
{
    for (int d = 0; d < 2; d++) {
        w->begins[w->n_documents++] = w->n_tokens;
        memset(w->tokens + w->n_tokens, 'x', SEQ_LEN + 1);
        w->n_tokens += SEQ_LEN + 1;
        w->counts[w->n_tokens++] = 1;
    }
}

/* Chosen answers are of the letters before n, rejected ones of those from n on, so that there is something to learn.
 * n_long: pairs without an answer within a sequence, which are between the first of the others. */
static void make_pairs(const char *name, int n_pairs, int n_long, uint64_t seed, bool is_pairs)
{
    static writer_t w;
    w = (writer_t){0};
    for (int d = 0; d < 2 * (n_pairs > n_long ? n_pairs : n_long); d++) {
        if (d % 2 == 0 && d / 2 < n_long)
            add_long_pair(&w);
        if (d >= 2 * n_pairs)
            continue;
        static int n_prompt;
        static unsigned char prompt[16];
        w.begins[w.n_documents++] = w.n_tokens;
        n_prompt = d % 2 ? n_prompt : 1 + (int)(support_random(&seed) % 9);
        for (int t = 0; t < n_prompt && d % 2 == 0; t++)
            prompt[t] = (unsigned char)('a' + support_random(&seed) % 26);
        memcpy(w.tokens + w.n_tokens, prompt, (size_t)n_prompt);
        w.n_tokens += n_prompt;
        for (int t = 1 + (int)(support_random(&seed) % 12); t > 0; t--) {
            w.tokens[w.n_tokens] = (unsigned char)((d % 2 ? 'n' : 'a') + support_random(&seed) % 13);
            w.counts[w.n_tokens++] = 1;
        }
    }
    write_tokens(name, &w, is_pairs);
}

static const struct {
    const char *name, *model;
} MODELS[] = {
    {"gpt2", "layers = 3\ndim = 36\nheads = 3\nvocab_size = 259\n"},
    {"qwen3", "arch = qwen3\nlayers = 2\ndim = 36\nheads = 3\nhead_dim = 10\nkv_heads = 1\nffn_dim = 56\n"},
    {"olmo2", "arch = olmo2\nlayers = 2\ndim = 24\nheads = 4\nkv_heads = 2\nffn_dim = 40\n"},
};
enum { N_MODELS = sizeof MODELS / sizeof MODELS[0] };

/* Makes every model, of two steps of training, and a configuration that tunes it. */
static void set_up(void)
{
    char tuning[512];
    snprintf(tuning, sizeof tuning,
             "[data]\ntrain = pairs.tokens\nval = val.tokens\n"
             "[train]\nobjective = dpo\nsteps = %d\nglobal_batch = 12\nmicro_batch = 1\nlr = 1e-2\n"
             "precision = fp32\neval_every = 3\n"
             "[lora]\nrank = 3\nalpha = 5\n[log]\nevery = 0\nmetrics = m.jsonl\n",
             N_STEPS);
    make_scratch(3999);
    make_pairs("pairs.tokens", 60, 0, 2, true);
    make_pairs("long.tokens", 60, 9, 2, true);
    make_pairs("cut.tokens", 0, 3, 2, true);
    make_pairs("val.tokens", 17, 0, 3, true);
    make_pairs("lone.tokens", 30, 0, 4, false);
    for (int m = 0; m < N_MODELS; m++)
        make_model(MODELS[m].name, MODELS[m].model, SEQ_LEN, tuning);
}

/* ---- the same text ---- */

/* Writes rows without what depends on time and memory to NAME.rows. */
static void keep_rows(const char *name)
{
    expect_shell("sed -E 's/\"step_ms\".*\"time\": [0-9.]+//; s/, \"(run|fp8_min_scale)\": .*//; s/}$//' %s.jsonl "
                 ">%s.rows && "
                 "test $(grep -c reward_margin %s.rows) = %d && test $(grep -c val_reward_accuracy %s.rows) = 2",
                 name, name, name, N_STEPS, name);
}

static void compare_rows(const char *what, const char *name)
{
    (void)what;
    keep_rows(name);
    expect_shell("diff v0.rows %s.rows", name);
}

/* At first adapters change nothing: a margin is 0 and its loss log 2, to the bit. */
START_TEST(stages_ranks_and_recomputation_change_no_bit)
{
    variant_t variants[] = {
        {1, "--stage 0", 0, {0}},
        {2, "--stage 0", 0, {0}},
        {3, "--stage 1 --set model.recompute=light", 0, {0}},
        {4, "--stage 2", 0, {0}},
        {4, "--stage 3 --set model.recompute=full", 0, {0}},
        {2, "--stage 3 --set zero.prefetch=0 --set zero.keep=1", 0, {0}},
        {4, "--stage 3 --set zero.shard_group=2", 0, {0}},
        {1, "--stage 3 --set model.recompute=full --set zero.offload=optimizer", 0, {0}},
        {2, "--stage 2 --set zero.comm=mpi --set zero.check=true", 0, {0}},
        {2, "--stage 3 --set train.grad_clip=1 --set zero.offload=all", 0, {0}},
    };
    static const char *const common[] = {"", "--set train.precision=bf16 --set lora.base=fp8",
                                         "--set train.precision=bf16 --set data.packing=pad"};
    expect_same(MODELS[_i].name, common[_i], variants, sizeof variants / sizeof variants[0], compare_rows);
    expect_shell("head -n 1 v0.rows | grep -q '\"loss\": 0.693147182, .*\"reward_chosen\": 0, \"reward_rejected\": 0, "
                 "\"reward_margin\": 0, \"reward_accuracy\": 0,'");
    if (_i == 2)
        expect_shell("test $(grep -c '\"pairs\": 12,' v0.rows) = %d", N_STEPS);
}
END_TEST

/* Products in fp8, with a scale for the reference's inputs and one for the model's. */
START_TEST(fp8_products_change_no_bit_over_stages_and_recomputation)
{
    variant_t variants[] = {{1, "--stage 0", 0, {0}},
                            {2, "--stage 1 --set model.recompute=light", 0, {0}},
                            {3, "--stage 3 --set model.recompute=full", 0, {0}}};
    expect_shell("sed 's/^init = .*/layers = 2\\ndim = 48\\nheads = 3\\narch = llama/; s/seq_len = 37/seq_len = 48/; "
                 "s/precision = fp32/precision = bf16/' gpt2.ini >fp8.ini");
    expect_same("fp8", "--set train.fp8=linear", variants, 3, compare_rows);
    expect_shell("head -n 1 v0.rows | grep -q '\"loss\": 0.693147182,'");
}
END_TEST

/* Products in fp8 need whole batches: sequences that fill the last one of an evaluation have no pairs that count. At
 * first a margin is 0, and the loss log 2. */
START_TEST(what_fills_the_last_batch_has_no_pairs)
{
    expect_shell("sed 's/^init = .*/layers = 1\\ndim = 48\\nheads = 3\\narch = llama/; s/seq_len = 37/seq_len = 40/; "
                 "s/precision = fp32/precision = bf16/' gpt2.ini >part.ini");
    expect_shell(
        "$Z --set train.fp8=linear --set train.micro_batch=2 --set data.packing=pad --set train.lr=0 --steps 1 "
        "part.ini && grep '\"val_loss\": 0.693147182,' m.jsonl");
}
END_TEST

/* As in TRL: a pair of which no answer is left within a sequence has no loss, and does not count in the mean. */
START_TEST(pairs_that_are_cut_off_before_their_answers_are_as_if_they_were_not_there)
{
    static const char *const packings[] = {"fit", "pad"};
    for (int i = 0; i < 2; i++) {
        expect_shell("$Z --set data.packing=%s --set log.metrics=v0.jsonl gpt2.ini", packings[i]);
        expect_shell(
            "mpirun --oversubscribe --bind-to none -np 2 $Z --stage 3 --set data.packing=%s --set "
            "data.train=long.tokens gpt2.ini 2>log; grep 'train: packing = .*: 60 pairs in .*; 9 longer than 39 tokens "
            "truncated, which leaves out 702 tokens; 9 of these pairs left out, since an answer was cut off whole' log",
            packings[i]);
        keep_rows("v0");
        compare_rows("", "m");
    }
}
END_TEST

START_TEST(a_run_stopped_and_resumed_equals_one_never_stopped)
{
    const char *model = MODELS[_i].name;
    expect_shell("rm -rf ck; $Z --set log.metrics=whole.jsonl %s.ini", model);
    expect_shell("$Z --set checkpoint.dir=ck --stage %d --steps 3 %s.ini", _i, model);
    expect_shell("$Z --set checkpoint.dir=ck --stage 3 --resume %s.ini", model);
    keep_rows("whole");
    keep_rows("m");
    expect_shell("diff whole.rows m.rows");
}
END_TEST

/* A loss is about log 2 before anything is learned, whatever beta is, and falls by about beta times the margin: with a
 * smaller beta the same model has a larger loss. */
START_TEST(losses_of_another_beta_are_not_compared)
{
    support_output_t output;
    expect_shell("rm -rf ck; $Z --set checkpoint.dir=ck --set checkpoint.best=true --set train.lr=3e-2 --steps 3 "
                 "gpt2.ini && readlink ck/best/latest | grep 3");
    const int code = shell(&output, "$Z --set checkpoint.dir=ck --set checkpoint.best=true --set train.lr=0 --set "
                                    "train.dpo_beta=0.01 --resume gpt2.ini && readlink ck/best/latest | grep 6");
    ck_assert_msg(code == 0 && support_count(output.err, "or of another dpo_beta: the first of this run replaces it"),
                  "%s", output.err);
    support_output_free(&output);
    expect_shell("$Z --set checkpoint.dir=ck --set checkpoint.best=true --set train.dpo_beta=0.01 --set train.lr=0 "
                 "--set train.steps=9 --resume gpt2.ini 2>log && ! grep best log && readlink ck/best/latest | grep 6");
}
END_TEST

START_TEST(answers_that_are_preferred_become_likelier)
{
    support_output_t output;
    expect_shell("$Z --set train.steps=40 --set train.lr=3e-2 --set train.dpo_beta=0.5 gpt2.ini");
    const int code =
        shell(&output, "tail -n 1 m.jsonl | sed -E 's/.*\"val_loss\": ([0-9.]+),.*\"val_reward_accuracy\": "
                       "([0-9.]+).*/\\1 \\2/'");
    double loss = 1.0, accuracy = 0.0;
    ck_assert_msg(code == 0 && sscanf(output.out, "%lf %lf", &loss, &accuracy) == 2, "%s", output.out);
    ck_assert_double_lt(loss, 0.3); /* log 2 at first; on pairs that were not trained on */
    ck_assert_double_gt(accuracy, 0.9);
    support_output_free(&output);
}
END_TEST

/* The reference takes memory, which the plan has: of the same sizes without pairs it is less. */
START_TEST(memory_is_as_planned)
{
    static const char *const settings[] = {"--stage 3",
                                           "--stage 0 --set model.recompute=full --set train.micro_batch=3",
                                           "--stage 2 --set train.precision=bf16 --set lora.base=fp8"};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        expect_shell(
            "$Z %s %s.ini && held=$(head -n 1 m.jsonl | grep -oE '\"device_bytes\": [0-9]+' | cut -d' ' -f2) && "
            "$Z --plan %s %s.ini | grep -E '^total' | grep -qw $held",
            settings[i], MODELS[_i].name, settings[i], MODELS[_i].name);
}
END_TEST

/* ---- refusals ---- */

static const refusal_t REFUSALS[] = {
    {"sed '/^rank/d; /^alpha/d' gpt2.ini >whole.ini; $Z whole.ini", {"[train] objective = dpo", "set [lora] rank"}},
    {"$Z --set data.train=lone.tokens gpt2.ini", {"'lone.tokens' has no pairs", "--format preference"}},
    {"$Z --set data.train=text.txt gpt2.ini", {"'text.txt' has no pairs", "--format preference"}},
    {"$Z --set data.val=lone.tokens gpt2.ini", {"'lone.tokens' has no pairs"}},
    {"$Z --set train.objective=next gpt2.ini", {"'pairs.tokens' has pairs of answers", "objective = dpo"}},
    {"$Z --set train.objective=next --set train.dpo_beta=0.2 gpt2.ini", {"[train] dpo_beta", "objective = dpo"}},
    {"$Z --set data.train=cut.tokens gpt2.ini", {"no pair of 'cut.tokens'", "cut off whole", "raise [model] seq_len"}},
    {"$Z --set data.packing=cut gpt2.ini", {"packing = cut", "pairs of answers apart"}},
    {"$Z --set data.documents=join gpt2.ini", {"documents = join", "pairs of answers apart"}},
    {"$Z --set model.seq_len=2 --set data.long_documents=drop gpt2.ini",
     {"no pair of 'pairs.tokens'", "are longer than [model] seq_len + 2 and dropped", "long_documents = truncate"}},
    {"$Z --set model.seq_len=1 gpt2.ini", {"[model] seq_len: 1", "share a sequence"}},
    {"$Z evaluate --resume gpt2 gpt2.ini", {"'val.tokens' has pairs of answers", "evaluate does not"}},
    {"mpirun --oversubscribe -np 2 $Z --set train.sequence_ranks=2 gpt2.ini",
     {"[train] objective = dpo", "sequence_ranks = 2"}},
    {"mpirun --oversubscribe -np 2 $Z --set train.sequence_ranks=auto --set train.global_batch=1 gpt2.ini",
     {"[train] global_batch: 1 sequences are fewer than the 2 ranks: set a larger one, or start fewer ranks"}},
    {"printf '\\1' | dd of=lone.tokens bs=1 seek=53 conv=notrunc 2>/dev/null; $Z --set data.train=lone.tokens gpt2.ini",
     {"flags of a later version"}},
};

/* The remedy that is named for pairs that are too long is one. */
START_TEST(what_is_no_pair_is_refused_by_name)
{
    expect_shell("$Z --set model.seq_len=2 --set data.long_documents=truncate --steps 1 gpt2.ini");
    expect_refusals(REFUSALS, sizeof REFUSALS / sizeof REFUSALS[0]);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("preferences");
    TCase *c = tcase_create("program");
    tcase_set_timeout(c, 5 * LIMIT_S);
    tcase_add_unchecked_fixture(c, set_up, NULL);
    tcase_add_loop_test(c, stages_ranks_and_recomputation_change_no_bit, 0, N_MODELS);
    tcase_add_test(c, fp8_products_change_no_bit_over_stages_and_recomputation);
    tcase_add_test(c, what_fills_the_last_batch_has_no_pairs);
    tcase_add_test(c, pairs_that_are_cut_off_before_their_answers_are_as_if_they_were_not_there);
    tcase_add_loop_test(c, a_run_stopped_and_resumed_equals_one_never_stopped, 0, N_MODELS);
    tcase_add_test(c, losses_of_another_beta_are_not_compared);
    tcase_add_test(c, answers_that_are_preferred_become_likelier);
    tcase_add_loop_test(c, memory_is_as_planned, 0, N_MODELS);
    tcase_add_test(c, what_is_no_pair_is_refused_by_name);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
