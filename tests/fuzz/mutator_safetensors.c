/* mutator_safetensors.c - libFuzzer's mutator for safetensors files: changes the header as a JSON tree and corrects the
 * length and data around it, so that not every change ends at the header's length; sometimes changes bytes. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "mutate_json.h"

#define LENGTH_BYTES 8

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n_bytes, size_t most_bytes, unsigned seed);

/* Returns the end of the data by the header's largest offset; 0 if it has none. */
static uint64_t end_of_data(const char *header, size_t n_bytes)
{
    uint64_t end = 0;
    const char *name;
    json_t *tensor, *tensors = json_loadb(header, n_bytes, 0, NULL);
    json_object_foreach(tensors, name, tensor)
    {
        json_int_t own = json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 1));
        if (own > 0 && (uint64_t)own > end)
            end = (uint64_t)own;
    }
    json_decref(tensors);
    return end;
}

/* Joins header and data, in buffers of most_bytes, to a file. Returns its size; 0 if it would be too long. */
static size_t join(uint8_t *file, size_t most_bytes, const uint8_t *header, uint64_t n_header, size_t n_data)
{
    if (n_header + n_data + LENGTH_BYTES > most_bytes)
        return 0;
    memmove(file + LENGTH_BYTES, header, n_header);
    memcpy(file, &n_header, LENGTH_BYTES);
    memset(file + LENGTH_BYTES + n_header, 0x5a, n_data);
    return LENGTH_BYTES + n_header + n_data;
}

static size_t mutate_header(uint8_t *file, size_t n_bytes, size_t most_bytes, unsigned seed)
{
    uint64_t n_header;
    if (n_bytes < LENGTH_BYTES)
        return 0;
    memcpy(&n_header, file, LENGTH_BYTES);
    if (n_header > n_bytes - LENGTH_BYTES)
        return 0;
    uint8_t *header = malloc(most_bytes);
    if (!header)
        return 0;
    memcpy(header, file + LENGTH_BYTES, n_header);
    size_t n_data = n_bytes - LENGTH_BYTES - n_header, n_mutated = 0;
    n_header = fuzz_mutate_json(header, n_header, most_bytes, seed);
    if (n_header > 0) {
        uint64_t end = end_of_data((char *)header, n_header);
        if (seed % 4 && end <= most_bytes)
            n_data = end;
        n_mutated = join(file, most_bytes, header, n_header, n_data);
    }
    free(header);
    return n_mutated;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n_bytes, size_t most_bytes, unsigned seed)
{
    size_t n_mutated = seed % 8 ? mutate_header(data, n_bytes, most_bytes, seed) : 0;
    return n_mutated > 0 ? n_mutated : LLVMFuzzerMutate(data, n_bytes, most_bytes);
}
