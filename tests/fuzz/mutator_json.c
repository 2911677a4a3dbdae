/* mutator_json.c - libFuzzer's mutator for targets whose input is JSON: mostly as a tree, sometimes as bytes. */
#include "mutate_json.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n_bytes, size_t most_bytes, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n_bytes, size_t most_bytes, unsigned seed)
{
    size_t n_mutated = seed % 8 ? fuzz_mutate_json(data, n_bytes, most_bytes, seed) : 0;
    return n_mutated > 0 ? n_mutated : LLVMFuzzerMutate(data, n_bytes, most_bytes);
}
