/* fuzz_adapter.c - an adapter's files: adapter_config.json beside good tensors, or, if the input does not begin with a
 * brace, adapter_model.safetensors beside a good configuration. Of what is accepted rank and alpha are within the
 * ranges of [lora]; the configuration that a checkpoint gets says the same; and every tensor can be read whole. */
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "train/hub/adapter_config.h"
#include "train/hub/tensor_file.h"
#include "train/options/lora_targets.h"
#include "train/options/options_table.h"

static const char GOOD_CONFIG[] = "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4}";
static const char GOOD_HEADER[] =
    "{\"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight\": {\"dtype\": \"F32\", \"shape\": [2, 2], "
    "\"data_offsets\": [0, 16]}, \"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight\": {\"dtype\": "
    "\"BF16\", \"shape\": [4, 2], \"data_offsets\": [16, 32]}}";

static void write_good_tensors(void)
{
    unsigned char file[8 + sizeof GOOD_HEADER - 1 + 32] = {0};
    const uint64_t length = sizeof GOOD_HEADER - 1;
    memcpy(file, &length, sizeof length);
    memcpy(file + 8, GOOD_HEADER, sizeof GOOD_HEADER - 1);
    fuzz_write(ADAPTER_WEIGHTS_FILE, file, sizeof file);
}

static options_t options_of(void)
{
    options_t options;
    options_set_defaults(&options);
    options.model.arch = ARCH_LLAMA;
    options.model.layers = 2;
    strcpy(options.lora.init, fuzz_path("."));
    return options;
}

static void check_round_trip(options_t *options)
{
    options_t again = options_of();
    FUZZ_REQUIRE(lora_targets_parse(ARCH_LLAMA, options->lora.targets, &options->lora.target_set) == ZERO_OK,
                 "targets are no setting: %s", options->lora.targets);
    char *text = adapter_config_text(options);
    FUZZ_REQUIRE(text, "no text of a good adapter");
    fuzz_write_text(ADAPTER_CONFIG_FILE, text);
    FUZZ_REQUIRE(adapter_config_apply(&again) == ZERO_OK, "what was written is refused: %s", text);
    FUZZ_REQUIRE(again.lora.rank == options->lora.rank && again.lora.alpha == options->lora.alpha &&
                     again.lora.rslora == options->lora.rslora &&
                     strcmp(again.lora.targets, options->lora.targets) == 0,
                 "it is another adapter: %s", text);
    free(text);
}

static void read_tensors(void)
{
    tensor_file_t file;
    FUZZ_REQUIRE(tensor_file_open(fuzz_path(ADAPTER_WEIGHTS_FILE), &file) == ZERO_OK, "what was accepted is not read");
    for (size_t i = 0; i < file.n_tensors; i++) {
        float *values = malloc((size_t)file.tensors[i].n_elems * sizeof *values + 1);
        const bool is_read = tensor_file_read_fp32(&file, &file.tensors[i], values) == ZERO_OK;
        FUZZ_REQUIRE(is_read == file.tensors[i].is_float, "%s is not read whole", file.tensors[i].name);
        free(values);
    }
    tensor_file_close(&file);
}

int fuzz_adapter(const uint8_t *data, size_t n_bytes)
{
    const bool is_config = n_bytes > 0 && data[0] == '{';
    fuzz_begin();
    if (is_config) {
        fuzz_write(ADAPTER_CONFIG_FILE, data, n_bytes);
        write_good_tensors();
    } else {
        fuzz_write(ADAPTER_WEIGHTS_FILE, data, n_bytes);
        fuzz_write_text(ADAPTER_CONFIG_FILE, GOOD_CONFIG);
    }
    options_t options = options_of();
    const zero_status_t status = adapter_config_apply(&options);
    if (status != ZERO_OK) {
        fuzz_refused(status);
        return 0;
    }
    fuzz_accepted = true;
    const option_row_t *rank = option_row_find("lora", "rank"), *alpha = option_row_find("lora", "alpha");
    FUZZ_REQUIRE(options.lora.rank >= rank->low && options.lora.rank <= rank->high, "rank is out of range");
    FUZZ_REQUIRE(options.lora.alpha >= alpha->real_low && options.lora.alpha <= alpha->real_high,
                 "alpha is out of range");
    read_tensors();
    check_round_trip(&options);
    return 0;
}
