/* fuzz_state.c - a checkpoint's state.json, which the manifest vouches for. What is taken leaves the engine with a loss
 * scale that is a finite number above 0 and the run with counts that do not overflow. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine.h"
#include "input.h"
#include "train/checkpoints.h"
#include "train/options/options_table.h"

static const char *const FILES[] = {"state.json", "model.safetensors.index.json",
                                    "optimizer-00001-of-00001.safetensors"};

static void write_manifest(void)
{
    json_t *files = json_object();
    for (size_t i = 0; i < sizeof FILES / sizeof FILES[0]; i++) {
        char path[128], hash[17];
        size_t n_bytes;
        snprintf(path, sizeof path, FUZZ_CHECKPOINT "/%s", FILES[i]);
        char *data = fuzz_read(path, &n_bytes);
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(data, n_bytes));
        json_object_set_new(files, FILES[i], json_pack("{s:I, s:s}", "bytes", (json_int_t)n_bytes, "xxh3", hash));
        free(data);
    }
    json_t *manifest = json_pack("{s:s, s:i, s:o}", "format", "libzero checkpoint", "version", 1, "files", files);
    char *text = json_dumps(manifest, 0);
    FUZZ_REQUIRE(text, "out of memory");
    fuzz_write_text(FUZZ_CHECKPOINT "/manifest.json", text);
    free(text);
    json_decref(manifest);
}

static void set_options(options_t *options)
{
    options_set_defaults(options);
    options->model.layers = 2;
    options->model.dim = 32;
    options->model.heads = 4;
    options->resume = true;
    options->force = true; /* the data and settings in state.json are compared, which refuses nothing here */
    strcpy(options->resume_dir, fuzz_path(FUZZ_CHECKPOINT));
    FUZZ_REQUIRE(options_resolve(options, 1) == ZERO_OK, "the target's own settings are refused");
}

static void check_counts(const checkpoints_t *checkpoints)
{
    int64_t n_tokens;
    FUZZ_REQUIRE(checkpoints->first_step > 0 && checkpoints->last_saved == checkpoints->first_step - 1, "no step");
    int64_t n_sequences = checkpoints_sequences(checkpoints, checkpoints->first_step);
    FUZZ_REQUIRE(n_sequences == checkpoints->sequences_before + checkpoints->options->train.global_batch,
                 "%lld sequences", (long long)n_sequences);
    FUZZ_REQUIRE(n_sequences > 0 &&
                     !__builtin_mul_overflow(n_sequences, checkpoints->options->model.seq_len, &n_tokens),
                 "%lld sequences have more than 2^63 tokens", (long long)n_sequences);
}

int fuzz_state(const uint8_t *data, size_t n_bytes)
{
    options_t options;
    checkpoints_t checkpoints;
    int lock = 0;
    fuzz_begin();
    zero_engine_t *engine = fuzz_engine();
    fuzz_make_checkpoint();
    fuzz_write(FUZZ_CHECKPOINT "/state.json", data, n_bytes);
    write_manifest();
    set_options(&options);
    const data_identity_t trains_on = {.n_tokens = 1000, .sample = 42};
    zero_status_t status = checkpoints_open(&options, fuzz_comm(), &lock, &trains_on, &trains_on, &checkpoints);
    if (status == ZERO_OK) {
        check_counts(&checkpoints);
        fuzz_begin();
        status = checkpoints_load(&checkpoints, engine);
    }
    checkpoints_close(&checkpoints);
    if (status != ZERO_OK) {
        fuzz_refused(status);
        return 0;
    }
    fuzz_accepted = true;
    fuzz_check_loaded();
    float loss_scale = *zero_loss_scale(engine);
    FUZZ_REQUIRE(isfinite(loss_scale) && loss_scale > 0, "the loss scale is %g", (double)loss_scale);
    return 0;
}
