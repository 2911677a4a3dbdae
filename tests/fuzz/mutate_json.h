/* mutate_json.h - changes JSON as a tree, so that the result is JSON again and reaches the code behind the parser. */
#ifndef ZERO_FUZZ_MUTATE_JSON_H
#define ZERO_FUZZ_MUTATE_JSON_H

#include <stddef.h>
#include <stdint.h>

/* libFuzzer's own mutation of bytes. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t n_bytes, size_t most_bytes);

/* Changes a few values or keys of the text in place. Returns its new size; 0 if it is not JSON, or is too long
 * afterwards. */
size_t fuzz_mutate_json(uint8_t *text, size_t n_bytes, size_t most_bytes, unsigned seed);

#endif
