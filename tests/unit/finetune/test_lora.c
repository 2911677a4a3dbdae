/* test_lora.c - adapters as a user of zerotrain meets them: the same text at every stage, on any number of ranks and
 * with every recomputation; a run that stops and resumes equals one that never stopped; the model stays as it was and
 * is in no checkpoint; a merged model is the model with its adapter; what does not belong together is refused by name.
 *
 * That the numbers are those of PEFT is tested by tests/reference/lora.py.
 */
#define SUPPORT_SANITIZE_SOME
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "tests/unit/finetune/tuning_runs.h"

#define N_STEPS 8
#define SEQ_LEN 17

/* Models of three families, one with sizes without common divisors: heads of 6 that are normalized, tied, biases. */
static const struct {
    const char *name, *model;
} MODELS[] = {
    {"gpt2", "layers = 3\ndim = 36\nheads = 3\nvocab_size = 259\n"},
    {"qwen2", "arch = qwen2\ntied = true\nlayers = 2\ndim = 24\nheads = 4\nkv_heads = 2\nffn_dim = 40\n"},
    {"qwen3", "arch = qwen3\nlayers = 2\ndim = 36\nheads = 3\nhead_dim = 10\nkv_heads = 1\nffn_dim = 56\n"},
};
enum { N_MODELS = sizeof MODELS / sizeof MODELS[0] };

/* Makes every model, of two steps of training, and a configuration that tunes it. */
static void set_up(void)
{
    char tuning[512];
    snprintf(tuning, sizeof tuning,
             "[data]\ntrain = text.txt\nval = text.txt\n"
             "[train]\nsteps = %d\nglobal_batch = 12\nmicro_batch = 1\nlr = 1e-2\nprecision = fp32\n"
             "[lora]\nrank = 3\nalpha = 5\n[log]\nevery = 0\nmetrics = m.jsonl\n",
             N_STEPS);
    make_scratch(8999);
    for (int m = 0; m < N_MODELS; m++)
        make_model(MODELS[m].name, MODELS[m].model, SEQ_LEN, tuning);
}

/* ---- the same text ---- */

/* Expects the rows of two files to be the same, or to differ. */
static void expect_rows(const char *what, const char *a, const char *b, bool same)
{
    char *rows_a = support_metric_rows(path_of(a)), *rows_b = support_metric_rows(path_of(b));
    ck_assert_uint_eq(support_count(rows_a, "\n"), N_STEPS);
    ck_assert_msg((strcmp(rows_a, rows_b) == 0) == same, "%s:\n%s\nand\n%s", what, rows_b, rows_a);
    free(rows_a);
    free(rows_b);
}

static void compare_rows(const char *what, const char *name)
{
    char file[80];
    snprintf(file, sizeof file, "%s.jsonl", name);
    expect_rows(what, "v0.jsonl", file, true);
}

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
    };
    static const char *const common[] = {"", "--set train.precision=bf16 --set lora.targets=v,down,up",
                                         "--set train.precision=bf16 --set lora.rslora=true"};
    expect_same(MODELS[_i].name, common[_i], variants, sizeof variants / sizeof variants[0], compare_rows);
}
END_TEST

START_TEST(every_optimizer_trains_adapters_alike_on_any_number_of_ranks)
{
    static const char *const common[] = {"--set train.optimizer=muon",
                                         "--set train.optimizer=adamw8bit --set lora.rank=8",
                                         "--set train.optimizer=lion", "--set train.optimizer=nesterov"};
    variant_t variants[] = {{1, "--stage 0", 0, {0}}, {3, "--stage 1", 0, {0}}, {4, "--stage 3", 0, {0}}};
    if (_i > 1 && support_is_left_to_plain_build())
        return;
    expect_same("qwen2", common[_i], variants, 3, compare_rows);
}
END_TEST

/* Of sizes that are multiples of 16. Products of fp8 keep no input in fp8: the adapters' gradients need it in fp32. */
START_TEST(fp8_products_change_no_bit_over_stages_and_recomputation)
{
    variant_t variants[] = {{1, "--stage 0", 0, {0}},
                            {2, "--stage 1 --set model.recompute=light", 0, {0}},
                            {3, "--stage 3 --set model.recompute=full", 0, {0}}};
    expect_shell("sed 's/^init = .*/layers = 2\\ndim = 48\\nheads = 3\\narch = llama/; s/seq_len = 17/seq_len = 16/; "
                 "s/precision = fp32/precision = bf16/' qwen2.ini >fp8.ini");
    expect_same("fp8", "--set train.fp8=linear", variants, 3, compare_rows);
    expect_shell("$Z --set log.metrics=bf16.jsonl fp8.ini");
    expect_rows("fp8", "v0.jsonl", "bf16.jsonl", false);
    /* A base that is held in fp8 has the bytes that each product else casts from bf16. */
    expect_shell("$Z --set train.fp8=linear --set lora.base=fp8 --set log.metrics=base.jsonl fp8.ini");
    expect_rows("fp8 base", "v0.jsonl", "base.jsonl", true);
}
END_TEST

/* An adapter of more elements than any matrix of the model: products of bf16 take it from room that is planned. */
START_TEST(a_rank_may_be_larger_than_the_model)
{
    static const char *const targets[] = {"down", "o", "gate"};
    for (int i = 0; i < 3; i++)
        expect_shell("sed 's/^init = .*/layers = 1\\ndim = 24\\nheads = 3\\nhead_dim = 100\\nffn_dim = 400\\n"
                     "arch = llama/; s/precision = fp32/precision = bf16/' qwen2.ini >wide.ini && "
                     "$Z --steps 1 --set lora.rank=512 --set lora.targets=%s wide.ini",
                     targets[i]);
}
END_TEST

/* Products in bf16 of a base in fp8: of odd sizes, too, and each rank holds another part of a matrix. */
START_TEST(a_base_in_fp8_has_the_same_bits_at_every_stage)
{
    variant_t variants[] = {
        {1, "--stage 0", 0, {0}},
        {2, "--stage 0 --set model.recompute=full", 0, {0}},
        {3, "--stage 1", 0, {0}},
        {4, "--stage 2 --set model.recompute=light", 0, {0}},
        {4, "--stage 3 --set zero.shard_group=2", 0, {0}},
        {3, "--stage 3 --set zero.prefetch=0", 0, {0}},
    };
    expect_same(MODELS[_i].name, "--set train.precision=bf16 --set lora.base=fp8", variants, 6, compare_rows);
    expect_shell("$Z --set train.precision=bf16 --set log.metrics=bf16.jsonl %s.ini", MODELS[_i].name);
    expect_rows("another base", "v0.jsonl", "bf16.jsonl", false);
}
END_TEST

/* ---- files ---- */

START_TEST(a_run_stopped_and_resumed_equals_one_never_stopped)
{
    const char *model = MODELS[_i].name, *precision = _i == 1 ? "bf16" : "fp32";
    char options[256];
    snprintf(options, sizeof options, "--set train.precision=%s --set checkpoint.dir=ck", precision);
    expect_shell("rm -rf ck");
    if (_i == 1) /* bf16, from a base in fp8 */
        strcat(options, " --set lora.base=fp8");
    expect_shell("$Z %s --set checkpoint.dir= --set log.metrics=whole.jsonl %s.ini", options, model);
    expect_shell("$Z %s --stage %d --steps 5 %s.ini", options, _i, model);
    expect_shell("$Z %s --stage 3 --resume %s.ini", options, model);
    expect_rows(model, "whole.jsonl", "m.jsonl", true);
    expect_shell("ls ck/latest/adapter_model.safetensors && ! ls ck/latest/model* && ! ls ck/latest/config.json && "
                 "! grep -qE 'embed|wte|norm|ln_' ck/latest/*.safetensors");
    if (support_leaves_out(3))
        return;
    expect_shell("mpirun --oversubscribe --bind-to none -np 3 $Z %s --stage 1 --resume ck/step-00000005 %s.ini",
                 options, model);
    expect_rows(model, "whole.jsonl", "m.jsonl", true);
}
END_TEST

/* Saved as one text, resumed as another. all-linear is all seven. */
START_TEST(targets_are_the_same_in_any_words)
{
    static const char *const same[][2] = {{"q,k", "k,q"},
                                          {"q,k", "q_proj,k_proj"},
                                          {"self_attn.q_proj,k", "q, k"},
                                          {"all-linear", "down,up,gate,o,v,k,q"},
                                          {"q,k,v,o,gate,up,down", "all-linear"}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        expect_shell("rm -rf ck; $Z --set checkpoint.dir=ck --set 'lora.targets=%s' --steps 2 qwen3.ini && "
                     "$Z --set checkpoint.dir=ck --set 'lora.targets=%s' --resume --steps 3 qwen3.ini 2>log && "
                     "! grep 'resume:' log",
                     same[i][0], same[i][1]);
    expect_refusals((const refusal_t[]){{"$Z --set checkpoint.dir=ck --resume --set lora.targets=q,k qwen3.ini",
                                         {"[lora] targets = q,k", "was made with all-linear"}}},
                    1);
}
END_TEST

static double evaluate(const char *model, const char *options)
{
    support_output_t output;
    const int code = shell(&output, "$Z evaluate --json %s %s.ini", options, model);
    ck_assert_msg(code == 0, "%s", output.err);
    json_t *got = json_loads(output.out, 0, NULL);
    const double loss = json_number_value(json_object_get(got, "loss"));
    json_decref(got);
    support_output_free(&output);
    return loss;
}

/* A merged matrix is rounded once, W + B A is not: some 2^-24 of the logits. */
START_TEST(a_merged_model_is_the_model_with_its_adapter)
{
    const char *model = MODELS[_i].name;
    char options[256];
    expect_shell("rm -rf ck out; $Z --set checkpoint.dir=ck %s.ini && $Z merge %s ck out && ls out/config.json", model,
                 model);
    snprintf(options, sizeof options, "--resume %s", model);
    const double base = evaluate(model, options), of_run = evaluate(model, "--set checkpoint.dir=ck");
    snprintf(options, sizeof options, "--resume %s --adapter ck/latest", model);
    const double together = evaluate(model, options), merged = evaluate(model, "--resume out");
    ck_assert_double_gt(base - of_run, 0.02);
    ck_assert(together == of_run);
    expect_shell("rm -rf beside; cp -rL ck/latest beside; cp %s/latest/config.json beside", model);
    ck_assert(evaluate(model, "--resume beside") == of_run);
    /* Its tokenizer and template go with it; how to generate, of which it says nothing, is the model's. */
    expect_shell(
        "rm -rf beside/generation_config.json texts with; cp -rL %s/latest with; echo model >with/chat_template.jinja; "
        "echo '{}' >with/generation_config.json; echo tuned >beside/tokenizer.json; "
        "echo tuned >beside/chat_template.jinja;  $Z merge with beside texts && "
        "grep tuned texts/tokenizer.json texts/chat_template.jinja && cmp with/generation_config.json "
        "texts/generation_config.json",
        model);
    /* base is bf16, and so is what is merged: its matrices are rounded to 2^-9 */
    ck_assert_double_lt(fabs(merged - of_run), 0.01);
    ck_assert_double_lt(fabs(merged - of_run), 0.2 * (base - of_run));
    expect_shell("$Z --set lora.init=ck --set train.lr=0 --set train.min_lr=0 %s.ini && ! ls ck/latest/model*", model);
    expect_shell(
        "rm -rf again whole; $Z merge %s ck again/ && diff -r out again && $Z export %s whole// && ls whole && "
        "! ls -d *.partial",
        model, model);
}
END_TEST

/* Writes an adapter of gpt2's layers 0 .. n_layers - 1, random in the first and zeros in the others. */
static void write_adapter(const char *name, int n_layers)
{
    static const struct {
        const char *module;
        int n_in, n_out;
    } matrices[] = {{"attn.c_attn", 36, 108}, {"mlp.c_proj", 144, 36}};
    static float data[3 * 4 * 3 * 180];
    char header[4096], file[64];
    size_t n_bytes = 0, n_elems = 0;
    uint64_t random = 11;
    memset(data, 0, sizeof data);
    for (int i = 0; i < 4 * n_layers; i++) {
        const bool is_a = i % 2 == 0;
        const int n_in = matrices[i / 2 % 2].n_in, n_out = matrices[i / 2 % 2].n_out, n = 3 * (is_a ? n_in : n_out);
        n_bytes += (size_t)snprintf(
            header + n_bytes, sizeof header - n_bytes,
            "%c\"base_model.model.transformer.h.%d.%s.lora_%c.weight\": {\"dtype\": \"F32\", \"shape\": [%d, %d], "
            "\"data_offsets\": [%zu, %zu]}",
            i ? ',' : '{', i / 4, matrices[i / 2 % 2].module, is_a ? 'A' : 'B', is_a ? 3 : n_out, is_a ? n_in : 3,
            4 * n_elems, 4 * (n_elems + (size_t)n));
        for (int k = 0; k < n; k++)
            data[n_elems + (size_t)k] = i < 4 ? (float)support_normal(&random) : 0.0f;
        n_elems += (size_t)n;
    }
    header[n_bytes++] = '}';
    expect_shell("rm -rf %s; cp -rL ck/latest %s", name, name);
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", name);
    support_write_safetensors(path_of(file), header, n_bytes, data, 4 * n_elems);
}

/* As PEFT has them, of modules named one by one: layers without adapters are as with those that change nothing. */
START_TEST(an_adapter_may_be_of_some_layers)
{
    static const refusal_t refusals[] = {
        {"$Z --set lora.init=first gpt2.ini", {"adapters of some layers only, 4 of the 12 tensors", "zerotrain merge"}},
        {"$Z evaluate --resume gpt2 --adapter half gpt2.ini", {"is damaged", "lora_A.weight", "but no"}},
    };
    expect_shell("rm -rf ck out; $Z --set checkpoint.dir=ck --steps 1 gpt2.ini");
    write_adapter("first", 1);
    write_adapter("all", 3);
    const double base = evaluate("gpt2", "--resume gpt2"), some = evaluate("gpt2", "--resume gpt2 --adapter first");
    ck_assert_double_gt(fabs(some - base), 0.1);
    ck_assert(some == evaluate("gpt2", "--resume gpt2 --adapter all"));
    expect_shell("$Z merge gpt2 first out");
    ck_assert_double_lt(fabs(evaluate("gpt2", "--resume out") - some), 0.1 * fabs(some - base)); /* it is rounded */
    expect_shell("cp -r first half && LC_ALL=C sed -i "
                 "'s/h.0.mlp.c_proj.lora_B/h.1.mlp.c_proj.lora_B/' half/adapter_model.safetensors");
    expect_refusals(refusals, 2);
}
END_TEST

START_TEST(adapters_begin_as_a_directory_has_them)
{
    expect_shell("rm -rf ck; $Z --set checkpoint.dir=ck --set lora.targets=c_fc,attn.c_proj gpt2.ini");
    const double trained = evaluate("gpt2", "--set checkpoint.dir=ck");
    expect_shell("sed 's/^rank.*/init = ck/; /^alpha/d' gpt2.ini >continued.ini && "
                 "$Z --set log.metrics=c.jsonl continued.ini");
    json_t *first = NULL;
    char *text = support_read_file(path_of("c.jsonl"), NULL);
    *strchr(text, '\n') = 0;
    first = json_loads(text, 0, NULL);
    const double loss = json_number_value(json_object_get(first, "loss"));
    json_decref(first);
    free(text);
    ck_assert_double_lt(fabs(loss - trained), 0.1); /* one batch of the same text */
}
END_TEST

/* ---- refusals ---- */

static const refusal_t REFUSALS[] = {
    {"$Z --set lora.targets=q,x qwen3.ini", {"[lora] targets", "no matrix 'x'", "q, k, v, o, gate, up, down"}},
    {"$Z --set lora.targets=q gpt2.ini", {"[lora] targets", "'q'", "attn.c_attn"}},
    {"$Z --set lora.rank=0 gpt2.ini", {"[lora] alpha", "no adapters", "set [lora] rank"}},
    {"$Z --set zero.gather=fp8 --set train.fp8=linear gpt2.ini", {"[zero] gather = fp8", "frozen"}},
    {"$Z --set lora.init=ck qwen2.ini", {"do not belong together", "qwen2", "transformer.h.0"}},
    {"$Z --set lora.init=ck --set lora.rank=4 gpt2.ini", {"[lora] rank = 4", "has 3", "adapter_config.json"}},
    {"$Z --set lora.init=ck --set lora.targets=c_fc gpt2.ini", {"[lora] targets = mlp.c_fc", "has all-linear"}},
    {"$Z --set model.init=ck gpt2.ini", {"'ck/latest' is an adapter of", "[lora] init", "zerotrain merge"}},
    {"$Z --set lora.init=other --set model.init=gpt2 gpt2.ini",
     {"'other/latest'", "do not belong together", "gpt2-2/step-00000001': give that as [model] init"}},
    {"$Z evaluate --resume gpt2 --adapter other gpt2.ini",
     {"'gpt2/latest' and the adapter 'other/latest'", "gpt2-2/step-00000001': name that model"}},
    {"$Z --set lora.init=of-moved --set model.init=moved gpt2.ini",
     {"'of-moved/latest'", "moved/step-00000002', which had them then"}},
    {"rm -r moved && $Z --set lora.init=of-moved --set model.init=gpt2-2 gpt2.ini",
     {"moved/step-00000002', which is not here"}},
    {"$Z --resume rand --set model.init=gpt2 random.ini",
     {"'gpt2/latest' and the adapter 'rand/step-00000008'", "random model of [train] seed = 1: leave [model] init"}},
    {"$Z --resume ck random.ini",
     {"[model] init = random", "'ck/step-00000008' was trained on the weights of",
      "gpt2/step-00000002': give that as [model] init"}},
    {"$Z --resume rand --force --set train.seed=5 random.ini",
     {"[train] seed = 5", "'rand/step-00000008' was trained on the random model of seed = 1"}},
    {"$Z --set lora.init=rand/latest --set train.seed=5 random.ini",
     {"[train] seed = 5", "'rand/latest' was trained on the random model of seed = 1"}},
    {"$Z evaluate --resume gpt2 --adapter rand/latest gpt2.ini",
     {"do not belong together", "random model of [train] seed = 1, which only training makes"}},
    {"$Z generate --prompt a rand", {"'rand/latest/adapter_config.json'", "an adapter of a random model"}},
    {"$Z merge gpt2 odd-pissa out",
     {"odd-pissa/adapter_config.json", "init_lora_weights is \"pissa\"", "need one of [true"}},
    {"$Z --set lora.init=odd-alora gpt2.ini",
     {"odd-alora/adapter_config.json", "alora_invocation_tokens is [5]", "null"}},
    {"$Z generate --prompt a --adapter odd-texts gpt2", {"'odd-texts/tokenizer.json'"}},
    {"$Z merge gpt2 odd-bin new", {"odd-bin/adapter_model.bin'", "only safetensors are read", "save_pretrained"}},
    {"$Z --set lora.init=odd-bin gpt2.ini", {"odd-bin/adapter_model.bin'", "only safetensors are read"}},
    {"$Z export bin new", {"'bin/pytorch_model.bin'", "only safetensors are read", "save_pretrained"}},
    {"rm bin/pytorch_model.bin; $Z export bin new", {"cannot find weights in 'bin'", "model.safetensors.index.json"}},
    {"$Z merge gpt2 odd-rs out", {"use_rslora is 1", "need one of [true]"}},
    {"$Z merge gpt2 odd-wide new 2>first; $Z merge gpt2 odd-wide new", {"do not belong together", "rank 4 need"}},
    {"$Z merge gpt2 odd-nan new", {".weight of 'gpt2/latest' with the adapter 'odd-nan' is", "nan", "finite number"}},
    {"$Z merge qwen2 ck out", {"do not belong together", "transformer.h.0"}},
    {"$Z merge gpt2 ck gpt2", {"'gpt2' is there already"}},
    {"$Z merge ck gpt2 new", {"'ck/latest' is an adapter", "its model first", "BASE ADAPTER OUT"}},
    {"$Z evaluate --resume ck --adapter other gpt2.ini", {"'ck/latest' is an adapter: name the model"}},
    {"$Z evaluate --resume gpt2 --set train.sequence_ranks=2 gpt2.ini",
     {"sequence_ranks: 2", "--set train.sequence_ranks=1 evaluates"}},
    {"$Z --set train.optimizer=adamw8bit qwen2.ini",
     {"[train] optimizer = adamw8bit: [lora] rank = 3", "rank * 24 elements", "a multiple of 8"}},
    {"$Z --set train.optimizer=adamw8bit --set lora.rank=8 qwen3.ini",
     {"[lora] rank = 8", "rank * 36 elements", "a multiple of 16"}},
    {"$Z merge gpt2 ck", {"missing", "BASE ADAPTER OUT"}},
    {"$Z generate --prompt a --adapter gpt2 gpt2", {"gpt2/latest/adapter_config.json", "No such file"}},
    {"$Z --set checkpoint.dir=ck --resume --set lora.rank=2 gpt2.ini",
     {"[lora] rank = 2", "was made with 3", "the same one\n"}},
    {"$Z --set checkpoint.dir=ck --resume --set model.init=gpt2-2 gpt2.ini",
     {"do not belong together", "other weights"}},
    {"$Z --set lora.base=fp8 gpt2.ini", {"[lora] base = fp8", "precision = fp32", "base = bf16"}},
    {"$Z --adapter ck gpt2.ini", {"--adapter", "zerotrain evaluate, zerotrain generate"}},
};

/* An adapter of gpt2, gpt2's twin after another step, and an adapter of the twin. */
START_TEST(what_does_not_belong_together_is_refused_by_name)
{
    expect_shell("rm -rf ck other gpt2-2; $Z --set checkpoint.dir=ck gpt2.ini");
    expect_shell("sed '/^rank/d; /^alpha/d; s/^steps.*/steps = 1/' gpt2.ini >full.ini && "
                 "$Z --set checkpoint.dir=gpt2-2 full.ini && "
                 "$Z --set checkpoint.dir=other --set model.init=gpt2-2 gpt2.ini");
    expect_shell("rm -rf moved of-moved rand; cp -r gpt2 moved && "
                 "$Z --set model.init=moved --set checkpoint.dir=of-moved gpt2.ini && rm -r moved/step-00000002 && "
                 "cp -r gpt2-2/step-00000001 moved/step-00000002");
    expect_shell("sed 's/^init = .*/layers = 3\\ndim = 36\\nheads = 3\\nvocab_size = 259/' gpt2.ini >random.ini && "
                 "$Z --set checkpoint.dir=rand --set train.steps=7 random.ini && "
                 "$Z --set checkpoint.dir=rand --resume random.ini");
    expect_shell(
        "for kind in pissa alora rs wide nan texts bin; do rm -rf odd-$kind; cp -rL ck/latest odd-$kind; done; echo no "
        ">odd-texts/tokenizer.json; "
        "mv odd-bin/adapter_model.safetensors odd-bin/adapter_model.bin; rm -rf bin; cp -rL gpt2/latest bin; "
        "rm bin/model*; touch bin/pytorch_model.bin; "
        "sed -i 's/\"init_lora_weights\": true/\"init_lora_weights\": \"pissa\"/' odd-pissa/adapter_config.json && "
        "sed -i '1a \"alora_invocation_tokens\": [5],' odd-alora/adapter_config.json && "
        "sed -i 's/\"use_rslora\": false/\"use_rslora\": 1/' odd-rs/adapter_config.json && "
        "sed -i 's/\"r\": 3/\"r\": 4/' odd-wide/adapter_config.json && cd odd-nan && printf '\\0\\0\\300\\177' | "
        "dd of=adapter_model.safetensors bs=1 seek=$(($(stat -c %%s adapter_model.safetensors) - 4)) conv=notrunc "
        "2>first");
    expect_refusals(REFUSALS, sizeof REFUSALS / sizeof REFUSALS[0]);
}
END_TEST

/* Adapters are nothing without their model. A checkpoint of it where they are saved would be replaced; a copy that has
 * a name of its own stays. */
START_TEST(adapters_do_not_replace_their_model)
{
    static const refusal_t refusals[] = {
        {"$Z --overwrite --set checkpoint.dir=own gpt2.ini",
         {"[checkpoint] dir: 'own'", "[model] init = 'own/latest'", "name another directory"}},
        {"$Z --overwrite --set checkpoint.dir=./link/ --set model.init=own/step-00000002 gpt2.ini",
         {"[checkpoint] dir: './link/'", "own/step-00000002"}},
        {"$Z --overwrite --set checkpoint.dir=own --set model.init=own/best gpt2.ini",
         {"[checkpoint] dir: 'own/best'", "own/best/latest"}},
        {"$Z --set checkpoint.dir=new --set checkpoint.memory_every=2 --set checkpoint.memory_dir=own gpt2.ini",
         {"[checkpoint] memory_dir: 'own'", "own/latest"}},
    };
    expect_shell("rm -rf own before link new; cp -r gpt2 own && cp -r gpt2 own/best && ln -s own link && "
                 "cp -r own before && sed -i 's/^init = gpt2$/init = own/' gpt2.ini");
    expect_refusals(refusals, sizeof refusals / sizeof refusals[0]);
    expect_shell(
        "diff -r own before && test ! -e new && mv own/step-00000002 own/model && rm -r own/latest own/best && "
        "$Z --set checkpoint.dir=own --set model.init=own/model gpt2.ini && "
        "diff -r own/model before/step-00000002 && sed -i 's/^init = own$/init = gpt2/' gpt2.ini");
}
END_TEST

/* Which of two models is meant, that cannot be known: a model and what was made of it, or it and an adapter beside. */
START_TEST(a_directory_of_two_models_is_refused)
{
    static const refusal_t refusals[] = {
        {"$Z --set model.init=home --set checkpoint.dir=home full.ini",
         {"[checkpoint] dir: 'home'", "the directory of a model ('home/config.json')", "'home/checkpoints'"}},
        {"$Z --set model.init=home --set checkpoint.dir=made full.ini 2>log; cp -r made/* home; $Z generate --prompt a "
         "home",
         {"'home' is a model ('home/config.json')", "has checkpoints of a run, such as 'home/latest'"}},
        {"$Z --set model.init=home full.ini", {"'home' is a model", "such as 'home/latest'"}},
        {"$Z evaluate --set checkpoint.dir=home full.ini", {"'home' is a model", "such as 'home/latest'"}},
        {"$Z export home new", {"'home' is a model", "such as 'home/latest'"}},
        {"rm home/latest; $Z export home new", {"'home' is a model", "such as 'home/step-00000001'"}},
        {"$Z generate --prompt a both", {"'both' has a whole model and an adapter (adapter_config.json)"}},
        {"$Z --set model.init=both full.ini", {"'both' has a whole model and an adapter"}},
        {"$Z evaluate --resume both full.ini", {"'both' has a whole model and an adapter"}},
        {"$Z --set lora.init=both gpt2.ini", {"'both' has a whole model and an adapter"}},
        {"$Z --set checkpoint.dir=both gpt2.ini", {"the directory of a model ('both/config.json')"}},
    };
    expect_shell("rm -rf home made both ck new && $Z --set checkpoint.dir=ck gpt2.ini && "
                 "sed '/^rank/d; /^alpha/d; s/^steps.*/steps = 1/' gpt2.ini >full.ini && "
                 "cp -rL gpt2/latest home && cp -rL gpt2/latest both && cp ck/latest/adapter_* both");
    expect_refusals(refusals, sizeof refusals / sizeof refusals[0]);
    /* A file of another program's named latest makes no checkpoints. */
    expect_shell("rm -r home/step-* && echo 'global_step2' >home/latest && $Z export home new");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("lora");
    TCase *c = tcase_create("program");
    tcase_set_timeout(c, 5 * LIMIT_S);
    tcase_add_unchecked_fixture(c, set_up, NULL);
    tcase_add_loop_test(c, stages_ranks_and_recomputation_change_no_bit, 0, N_MODELS);
    tcase_add_loop_test(c, every_optimizer_trains_adapters_alike_on_any_number_of_ranks, 0, 4);
    tcase_add_test(c, fp8_products_change_no_bit_over_stages_and_recomputation);
    tcase_add_test(c, a_rank_may_be_larger_than_the_model);
    tcase_add_loop_test(c, a_base_in_fp8_has_the_same_bits_at_every_stage, 0, N_MODELS);
    tcase_add_loop_test(c, a_run_stopped_and_resumed_equals_one_never_stopped, 0, N_MODELS);
    tcase_add_test(c, targets_are_the_same_in_any_words);
    tcase_add_loop_test(c, a_merged_model_is_the_model_with_its_adapter, 0, N_MODELS);
    tcase_add_test(c, an_adapter_may_be_of_some_layers);
    tcase_add_test(c, adapters_begin_as_a_directory_has_them);
    tcase_add_test(c, what_does_not_belong_together_is_refused_by_name);
    tcase_add_test(c, adapters_do_not_replace_their_model);
    tcase_add_test(c, a_directory_of_two_models_is_refused);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
