/* input.h - what all fuzz targets share.
 *
 * A target is the function fuzz_NAME in fuzz_NAME.c. It gives its input to one of the readers as a file and requires
 * what the reader promises: accepted input is consistent; refused input is refused in one line. libFuzzer calls it as
 * LLVMFuzzerTestOneInput (the Makefile names it so), tests/fuzz/test_fuzz_corpus.c once for every file of corpus/NAME.
 * The same input always has the same effect, whatever came before it.
 */
#ifndef ZERO_FUZZ_INPUT_H
#define ZERO_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "zero.h"

#define FUZZ_TARGETS(X)                                                                                                \
    X(safetensors)                                                                                                     \
    X(config_json) X(tokenizer) X(index) X(manifest) X(state) X(ini) X(tokens) X(megatron) X(metrics) X(adapter)

#define FUZZ_DECLARE(name) int fuzz_##name(const uint8_t *data, size_t n_bytes);
FUZZ_TARGETS(FUZZ_DECLARE)
#undef FUZZ_DECLARE

/* Begins an input: what the trainer and the library log from here on is kept and not printed. */
void fuzz_begin(void);
/* Ends the process with this line unless the condition holds. */
#define FUZZ_REQUIRE(condition, ...) ((condition) ? (void)0 : fuzz_give_up(__FILE__, __LINE__, __VA_ARGS__))
_Noreturn void fuzz_give_up(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Requires that a refusal was logged in one line, without control characters. */
void fuzz_refused(zero_status_t status);
/* Sets whether the reader accepted the input, for tests/fuzz/test_fuzz_corpus.c; fuzz_begin resets it. */
extern bool fuzz_accepted;

/* The path of a file in the scratch directory, which is below TMPDIR or else in memory; for the next few calls. */
const char *fuzz_path(const char *name);
void fuzz_write(const char *name, const void *data, size_t n_bytes);
void fuzz_write_text(const char *name, const char *text);
/* The whole file, closed by a zero that *n_bytes does not count; for free(). */
char *fuzz_read(const char *name, size_t *n_bytes);

#endif
