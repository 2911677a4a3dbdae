/* test_golden.c - zerotrain against PyTorch, by numbers that tests/reference/write_golden.py wrote once.
 *
 * First the judges are judged: gpt2_fp64.c and llama_fp64.c, which other tests trust, must give transformers' fp64
 * loss, logits and gradients on the tiny models. Then training must follow PyTorch's curve. Run from the repository's
 * root.
 */
#define SUPPORT_SANITIZE_SOME
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fp64/fp64_model.h"
#include "tests/support/support.h"
#include "tests/support/trainer.h"
#include "train/data/data.h"
#include "train/run.h"

#define REFERENCE "tests/reference/"

typedef struct reference {
    const char *name;
    int arch; /* options_arch_t */
    fp64_model_t *(*create)(const fp64_sizes_t *sizes);
} reference_t;

static const reference_t gpt2_tiny = {"gpt2_tiny", ARCH_GPT2, gpt2_fp64_create};
static const reference_t llama_tiny = {"llama_tiny", ARCH_LLAMA, llama_fp64_create};

static const reference_t *reference;
static json_t *golden;
static fp64_model_t *model;
static int32_t *tokens, *targets; /* [steps, global_batch, seq_len] */
static size_t steps, global_batch, seq_len;

/* ---- Reading the golden files ------------------------------------------------------------------------------------ */

static size_t setting(const char *name)
{
    json_t *value = json_object_get(json_object_get(golden, "settings"), name);
    ck_assert_msg(json_is_integer(value), "%s.json has no integer setting %s", reference->name, name);
    return (size_t)json_integer_value(value);
}

static double number_setting(const char *name)
{
    json_t *value = json_object_get(json_object_get(golden, "settings"), name);
    ck_assert_msg(json_is_number(value), "%s.json has no setting %s", reference->name, name);
    return json_number_value(value);
}

/* REFERENCE/<name><ending>. Free it. */
static char *read_reference(const char *ending, size_t *n_bytes)
{
    char path[256];
    snprintf(path, sizeof path, REFERENCE "%s%s", reference->name, ending);
    return support_read_file(path, n_bytes);
}

/* batches.bin: int32 [steps, global_batch, seq_len + 1]; targets are one position ahead. */
static void read_batches(void)
{
    size_t n_bytes, n_sequences = steps * global_batch;
    char *bytes = support_read_file(REFERENCE "batches.bin", &n_bytes);
    ck_assert_uint_eq(n_bytes, n_sequences * (seq_len + 1) * sizeof(int32_t));
    tokens = malloc(n_sequences * seq_len * sizeof *tokens);
    targets = malloc(n_sequences * seq_len * sizeof *targets);
    ck_assert(tokens != NULL && targets != NULL);
    for (size_t i = 0; i < n_sequences; i++) {
        const char *row = bytes + i * (seq_len + 1) * sizeof(int32_t);
        memcpy(tokens + i * seq_len, row, seq_len * sizeof *tokens);
        memcpy(targets + i * seq_len, row + sizeof(int32_t), seq_len * sizeof *targets);
    }
    free(bytes);
}

/* One entry of a safetensors header, {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}, widened. */
static void read_tensor(const char *name, json_t *entry, const char *data, size_t data_bytes)
{
    fp64_tensor_t *tensor = fp64_model_tensor(model, name);
    ck_assert_msg(tensor != NULL, "model.safetensors has %s, which our %s does not know", name, reference->name);
    const char *dtype;
    json_t *shape;
    json_int_t begin, end;
    ck_assert_int_eq(
        json_unpack(entry, "{s:s, s:o, s:[I, I]}", "dtype", &dtype, "shape", &shape, "data_offsets", &begin, &end), 0);
    ck_assert_str_eq(dtype, "F32");
    ck_assert_uint_eq(json_array_size(shape), tensor->n_dims);
    for (size_t i = 0; i < tensor->n_dims; i++)
        ck_assert_uint_eq((size_t)json_integer_value(json_array_get(shape, i)), tensor->shape[i]);
    ck_assert_uint_eq((size_t)(end - begin), tensor->n_elems * sizeof(float));
    ck_assert_uint_le((size_t)end, data_bytes);
    for (size_t i = 0; i < tensor->n_elems; i++) {
        float value;
        memcpy(&value, data + begin + i * sizeof value, sizeof value);
        tensor->values[i] = (double)value;
    }
}

/* safetensors: the header's length as little-endian uint64, the header in JSON, the data. */
static void read_weights(void)
{
    size_t n_bytes, n_read = 0;
    uint64_t header_bytes;
    char *bytes = read_reference("/model.safetensors", &n_bytes);
    ck_assert_uint_ge(n_bytes, sizeof header_bytes);
    memcpy(&header_bytes, bytes, sizeof header_bytes);
    ck_assert_uint_le(header_bytes, n_bytes - sizeof header_bytes);
    json_t *header = json_loadb(bytes + sizeof header_bytes, (size_t)header_bytes, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(header);
    const char *data = bytes + sizeof header_bytes + header_bytes, *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        read_tensor(name, entry, data, n_bytes - sizeof header_bytes - (size_t)header_bytes);
        n_read++;
    }
    ck_assert_uint_eq(n_read, model->n_tensors); /* names are unique, so all are there */
    json_decref(header);
    free(bytes);
}

/* What the options and the fp64 model of either architecture need. */
static fp64_sizes_t golden_sizes(void)
{
    fp64_sizes_t sizes = {.layers = setting("layers"),
                          .dim = setting("dim"),
                          .heads = setting("heads"),
                          .kv_heads = setting("heads"),
                          .ffn_dim = 4 * setting("dim"),
                          .vocab_size = setting("vocab_size"),
                          .max_seq_len = setting("seq_len")};
    if (reference->arch == ARCH_GPT2) {
        sizes.norm_eps = number_setting("layer_norm_eps");
        sizes.rope_theta = 1.0; /* unused */
    } else {
        sizes.kv_heads = setting("kv_heads");
        sizes.ffn_dim = setting("ffn_dim");
        sizes.norm_eps = number_setting("rms_norm_eps");
        sizes.rope_theta = number_setting("rope_theta");
    }
    return sizes;
}

static void set_up(const reference_t *of)
{
    size_t n_bytes;
    reference = of;
    char *text = read_reference(".json", &n_bytes);
    golden = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    ck_assert_ptr_nonnull(golden);
    steps = setting("steps");
    global_batch = setting("global_batch");
    seq_len = setting("seq_len");
    fp64_sizes_t sizes = golden_sizes();
    model = reference->create(&sizes);
    read_batches();
    read_weights();
}

static void set_up_gpt2(void)
{
    set_up(&gpt2_tiny);
}

static void set_up_llama(void)
{
    set_up(&llama_tiny);
}

static void tear_down(void)
{
    fp64_model_destroy(model);
    free(tokens);
    free(targets);
    json_decref(golden);
}

static fp64_batch_t first_batch(void)
{
    return (fp64_batch_t){.tokens = tokens, .targets = targets, .n_sequences = global_batch, .seq_len = seq_len};
}

/* ---- The fp64 models against transformers in fp64 ---------------------------------------------------------------- */

/* Both sum in fp64 and differ only in order; 3e-16 and 5e-16 were measured. */
#define FP64_TOLERANCE 1e-14
/* Relative, for central differences with this step, which balances truncation and rounding; 6e-8 was measured. */
#define GRADIENT_STEP 1e-5
#define GRADIENT_TOLERANCE 1e-6

START_TEST(fp64_loss_is_that_of_transformers)
{
    json_t *losses = json_object_get(json_object_get(golden, "fp64"), "loss");
    double expected = json_number_value(json_array_get(losses, 0));
    fp64_batch_t batch = first_batch();
    ck_assert_double_eq_tol(fp64_model_loss(model, &batch, NULL), expected, FP64_TOLERANCE * expected);
}
END_TEST

START_TEST(fp64_logits_are_those_of_transformers)
{
    json_t *sample = json_object_get(json_object_get(golden, "step1"), "logits");
    json_t *positions = json_object_get(sample, "positions"), *rows = json_object_get(sample, "fp64");
    size_t vocab_size = setting("vocab_size"), n_positions = json_array_size(positions);
    double *logits = malloc(global_batch * seq_len * vocab_size * sizeof *logits);
    ck_assert_ptr_nonnull(logits);
    fp64_batch_t batch = first_batch();
    fp64_model_loss(model, &batch, logits);

    size_t sequence = (size_t)json_integer_value(json_object_get(sample, "sequence"));
    ck_assert_uint_gt(n_positions, 0);
    for (size_t i = 0; i < n_positions; i++) {
        size_t position = (size_t)json_integer_value(json_array_get(positions, i));
        const double *row = logits + (sequence * seq_len + position) * vocab_size;
        ck_assert_uint_eq(json_array_size(json_array_get(rows, i)), vocab_size);
        for (size_t token = 0; token < vocab_size; token++) {
            double expected = json_number_value(json_array_get(json_array_get(rows, i), token));
            ck_assert_double_eq_tol(row[token], expected, FP64_TOLERANCE);
        }
    }
    free(logits);
}
END_TEST

/* Compares one element of every tensor, the one with the largest gradient: central differences against autograd. */
START_TEST(fp64_numeric_gradients_are_those_of_transformers)
{
    json_t *grads = json_object_get(json_object_get(golden, "step1"), "grads");
    fp64_batch_t batch = first_batch();
    ck_assert_uint_eq(json_object_size(grads), model->n_tensors);
    for (size_t i = 0; i < model->n_tensors; i++) {
        fp64_tensor_t *tensor = &model->tensors[i];
        json_t *row = json_object_get(grads, tensor->name);
        ck_assert_msg(row != NULL, "%s.json has no gradient of %s", reference->name, tensor->name);
        size_t index = (size_t)json_integer_value(json_object_get(row, "largest_index"));
        ck_assert_uint_lt(index, tensor->n_elems);
        double expected = json_number_value(json_object_get(row, "largest_fp64"));
        double numeric = fp64_model_numeric_grad(model, &batch, tensor, index, GRADIENT_STEP);
        ck_assert_msg(fabs(numeric - expected) <= GRADIENT_TOLERANCE * fabs(expected), "%s[%zu]: %.17g, expected %.17g",
                      tensor->name, index, numeric, expected);
    }
}
END_TEST

/* ---- Training against PyTorch ------------------------------------------------------------------------------------ */

/* The issue asks for 1e-4 and 1e-3. These are the bounds that the README beside the numbers derives: tight enough that
 * exact GELU would show, and above PyTorch's own distance from fp64 (GPT-2 2.0e-7, 1.7e-6; Llama 1.8e-7, 3.8e-6). We
 * measured 2.2e-7 and 1.5e-6; 2.5e-7 and 7.9e-6. */
#define LOSS_TOLERANCE 5e-6
#define NORM_TOLERANCE 5e-5
#define MAX_STEPS 64

typedef struct curve {
    float loss[MAX_STEPS], grad_norm[MAX_STEPS];
} curve_t;

static options_t golden_options(void)
{
    fp64_sizes_t sizes = golden_sizes();
    options_t o = trainer_options((int64_t)sizes.layers, (int64_t)sizes.dim, (int64_t)sizes.heads,
                                  (int64_t)sizes.vocab_size, (int64_t)seq_len);
    o.model.arch = reference->arch;
    o.model.kv_heads = (int64_t)sizes.kv_heads;
    o.model.ffn_dim = (int64_t)sizes.ffn_dim;
    o.model.norm_eps = sizes.norm_eps;
    o.model.rope_theta = sizes.rope_theta;
    o.train.steps = (int64_t)steps;
    o.train.global_batch = o.train.micro_batch = (int64_t)global_batch;
    o.train.lr = number_setting("lr");
    o.train.min_lr = number_setting("min_lr");
    o.train.warmup_steps = (int64_t)setting("warmup_steps");
    o.train.schedule = SCHEDULE_COSINE;
    o.train.weight_decay = number_setting("weight_decay");
    o.train.beta1 = number_setting("beta1");
    o.train.beta2 = number_setting("beta2");
    o.train.eps = number_setting("eps");
    o.train.grad_clip = number_setting("grad_clip");
    return o;
}

/* Some steps from the golden weights, by the real model, engine and schedule, in one rank. */
static curve_t train_steps(options_t options, size_t n_steps)
{
    curve_t curve = {0};
    char directory[256];
    zero_comm_t *comm;
    trainer_t trainer;
    snprintf(directory, sizeof directory, REFERENCE "%s", reference->name);
    ck_assert_uint_le(steps, MAX_STEPS);
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &comm), ZERO_OK);
    ck_assert_int_eq(trainer_open(&trainer, &options, comm), ZERO_OK);
    ck_assert_int_eq(zero_load_weights(trainer.engine, directory), ZERO_OK);
    for (size_t step = 1; step <= n_steps; step++) {
        size_t first = (step - 1) * global_batch * seq_len;
        zero_step_result_t result;
        ck_assert_int_eq(
            trainer_step(&trainer, tokens + first, targets + first, lr_at(&options.train, (int64_t)step), &result),
            ZERO_OK);
        ck_assert(!result.skipped);
        curve.loss[step - 1] = result.loss;
        curve.grad_norm[step - 1] = result.grad_norm;
    }
    trainer_close(&trainer);
    zero_comm_destroy(comm);
    return curve;
}

static curve_t train(options_t options)
{
    return train_steps(options, steps);
}

static void check_against_golden(const float *got, const char *name, double tolerance)
{
    json_t *numbers = json_object_get(json_object_get(golden, "fp32"), name);
    double worst = 0.0;
    ck_assert_uint_eq(json_array_size(numbers), steps);
    for (size_t i = 0; i < steps; i++) {
        double want = json_number_value(json_array_get(numbers, i));
        double error = support_relative_error((double)got[i], want);
        ck_assert_msg(error < tolerance, "step %zu: %s %.9g, PyTorch %.9g: relative difference %.3g", i + 1, name,
                      (double)got[i], want, error);
        worst = fmax(worst, error);
    }
    printf("%s, %s: at most %.2g from PyTorch's over %zu steps\n", reference->name, name, worst, steps);
}

START_TEST(the_schedule_is_that_of_the_reference)
{
    options_t options = golden_options();
    for (size_t i = 0; i < steps; i++) {
        double want = json_number_value(json_array_get(json_object_get(golden, "lr"), i));
        ck_assert_double_eq_tol(lr_at(&options.train, (int64_t)i + 1), want, 1e-12 * want);
    }
}
END_TEST

START_TEST(fifty_steps_follow_pytorch)
{
    curve_t curve = train(golden_options());
    check_against_golden(curve.loss, "loss", LOSS_TOLERANCE);
    check_against_golden(curve.grad_norm, "grad_norm", NORM_TOLERANCE);
}
END_TEST

/* Four micro-steps of two sequences: another order of summation, the same mathematics. */
START_TEST(fifty_steps_with_accumulation_follow_pytorch)
{
    options_t options = golden_options();
    options.train.micro_batch = 2;
    curve_t curve = train(options);
    check_against_golden(curve.loss, "loss", LOSS_TOLERANCE);
    check_against_golden(curve.grad_norm, "grad_norm", NORM_TOLERANCE);
}
END_TEST

START_TEST(recomputation_and_stages_change_no_bit)
{
#ifdef __SANITIZE_ADDRESS__
    const size_t n_steps = 5; /* later ones have nothing new for sanitizers */
#else
    const size_t n_steps = steps;
#endif
    static const struct {
        int recompute, stage, none, light; /* none, light: of the last blocks */
    } cases[] = {{RECOMPUTE_LIGHT, 3, 0, 0}, {RECOMPUTE_FULL, 3, 0, 0}, {RECOMPUTE_NONE, 0, 0, 0},
                 {RECOMPUTE_LIGHT, 1, 0, 0}, {RECOMPUTE_FULL, 2, 0, 0}, {RECOMPUTE_FULL, 3, 1, 0},
                 {RECOMPUTE_FULL, 2, 0, 1},  {RECOMPUTE_FULL, 1, 1, 1}, {RECOMPUTE_LIGHT, 3, 1, 0}};
    curve_t want = train_steps(golden_options(), n_steps);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options_t options = golden_options();
        options.model.recompute = cases[i].recompute;
        options.model.recompute_none = cases[i].none;
        options.model.recompute_light = cases[i].light;
        options.zero.stage = cases[i].stage;
        curve_t got = train_steps(options, n_steps);
        ck_assert_msg(memcmp(&got, &want, sizeof got) == 0, "recompute %d, stage %d, none %d, light %d: other bits",
                      cases[i].recompute, cases[i].stage, cases[i].none, cases[i].light);
    }
}
END_TEST

/* The batches that PyTorch was given are those that our reader reads from the text, unshuffled. */
START_TEST(the_reader_makes_the_reference_batches)
{
    const int32_t *got_inputs, *got_targets;
    data_t *data;
    data_spec_t spec = {.paths = REFERENCE "tiny.txt",
                        .format = FORMAT_TEXT,
                        .vocab_size = (int64_t)setting("vocab_size"),
                        .seq_len = (int64_t)seq_len,
                        .global_batch = (int64_t)global_batch,
                        .micro_batch = (int64_t)global_batch,
                        .rank = 0,
                        .world_size = 1,
                        .shuffle = false};
    ck_assert_int_eq(data_open(&spec, &data), ZERO_OK);
    size_t n_bytes = global_batch * seq_len * sizeof(int32_t);
    for (size_t i = 0; i < steps; i++) {
        ck_assert_int_eq(data_batch(data, (int64_t)i, 0, &got_inputs, &got_targets), ZERO_OK);
        ck_assert_mem_eq(got_inputs, tokens + i * global_batch * seq_len, n_bytes);
        ck_assert_mem_eq(got_targets, targets + i * global_batch * seq_len, n_bytes);
    }
    data_close(data);
}
END_TEST

static void add_tests(Suite *suite, const char *name, void (*set_up_reference)(void))
{
    TCase *tests = tcase_create(name);
    tcase_add_unchecked_fixture(tests, set_up_reference, tear_down);
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, fp64_loss_is_that_of_transformers);
    tcase_add_test(tests, fp64_logits_are_those_of_transformers);
    tcase_add_test(tests, fp64_numeric_gradients_are_those_of_transformers);
    tcase_add_test(tests, the_schedule_is_that_of_the_reference);
    tcase_add_test(tests, fifty_steps_follow_pytorch);
    tcase_add_test(tests, fifty_steps_with_accumulation_follow_pytorch);
    tcase_add_test(tests, recomputation_and_stages_change_no_bit);
    tcase_add_test(tests, the_reader_makes_the_reference_batches);
    suite_add_tcase(suite, tests);
}

static Suite *golden_suite(void)
{
    Suite *suite = suite_create("golden");
    add_tests(suite, "gpt2", set_up_gpt2);
    add_tests(suite, "llama", set_up_llama);
    return suite;
}

int main(void)
{
    return support_main(golden_suite());
}
