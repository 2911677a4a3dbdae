/* fuzz_ini.c - a configuration file. What is accepted is written by options_dump and read back as the same settings,
 * and if options_resolve accepts them, its promises hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "tests/support/options_dump.h"
#include "train/options/options_table.h"

static void write_dump(const options_t *options)
{
    FILE *file = fopen(fuzz_path("dump.ini"), "we");
    FUZZ_REQUIRE(file, "cannot write dump.ini");
    options_dump(options, file);
    fclose(file);
}

/* A value that fills almost a whole line, of which iniparser reads 1022 bytes, does not fit with the dump's spaces. */
static bool fits_into_lines(const options_t *options)
{
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++)
        if (row->type == OPTION_TEXT && strlen((const char *)options + row->offset) > 1000)
            return false;
    return true;
}

static void check_dump(const options_t *options)
{
    options_t again;
    if (!fits_into_lines(options))
        return;
    options_set_defaults(&again);
    write_dump(options);
    FUZZ_REQUIRE(options_read_file(fuzz_path("dump.ini"), &again) == ZERO_OK, "the dump is refused");
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++) {
        char before[OPTIONS_MAX_PATH + 2], after[OPTIONS_MAX_PATH + 2];
        option_format(row, options, before);
        option_format(row, &again, after);
        FUZZ_REQUIRE(strcmp(before, after) == 0, "[%s] %s was %s and is %s", row->section, row->key, before, after);
    }
}

static void check_resolved(const options_t *o, int64_t world_size)
{
    int64_t micro_steps = options_micro_steps(&o->train, (int)world_size);
    FUZZ_REQUIRE(o->model.layers > 0 && o->model.dim > 0 && o->model.heads > 0 && o->model.seq_len > 0 &&
                     o->model.ffn_dim > 0 && o->model.vocab_size > 0,
                 "a size is missing");
    FUZZ_REQUIRE(o->model.dim % o->model.heads == 0 && o->model.heads % o->model.kv_heads == 0, "heads do not divide");
    FUZZ_REQUIRE(micro_steps > 0 && o->train.micro_batch > 0 &&
                     o->train.global_batch == o->train.micro_batch * world_size * micro_steps,
                 "%lld sequences are not %lld micro-steps", (long long)o->train.global_batch, (long long)micro_steps);
    FUZZ_REQUIRE(o->train.min_lr >= 0 && o->train.min_lr <= o->train.lr, "min_lr is above lr");
    FUZZ_REQUIRE(o->train.epochs > 0.0 || o->train.warmup_steps <= o->train.steps,
                 "the warm-up is longer than the run");
}

int fuzz_ini(const uint8_t *data, size_t n_bytes)
{
    options_t options;
    fuzz_begin();
    fuzz_write("run.ini", data, n_bytes);
    options_set_defaults(&options);
    zero_status_t status = options_read_file(fuzz_path("run.ini"), &options);
    if (status != ZERO_OK) {
        fuzz_refused(status);
        return 0;
    }
    fuzz_accepted = true;
    check_dump(&options);
    for (int world_size = 1; world_size <= 3; world_size++) {
        options_t resolved = options;
        fuzz_begin();
        status = options_resolve(&resolved, world_size);
        if (status == ZERO_OK)
            check_resolved(&resolved, world_size);
        else
            fuzz_refused(status);
    }
    fuzz_accepted = true;
    return 0;
}
