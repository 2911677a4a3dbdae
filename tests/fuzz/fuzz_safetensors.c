/* fuzz_safetensors.c - one safetensors file. What is taken fills the data section with tensors side by side, each of
 * which can be read to its last element and no further. */
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "zero/format/safetensors.h"

#define MOST_ELEMS ((size_t)1 << 16)

/* Numbers that are fp32 in the file are read as they are. */
static void check_values(const zero_safetensors_t *file, const zero_safetensors_tensor_t *tensor, const uint8_t *data)
{
    float beyond = 0;
    if (!tensor->dtype->loadable || tensor->n_elems > MOST_ELEMS)
        return;
    float *values = malloc(tensor->n_elems * sizeof *values + 1);
    FUZZ_REQUIRE(values && zero_safetensors_read(file, tensor, 0, tensor->n_elems, values) == ZERO_OK,
                 "tensor %s cannot be read", tensor->name);
    if (tensor->dtype->n_bytes == sizeof *values)
        FUZZ_REQUIRE(memcmp(values, data + file->data_offset + tensor->begin, tensor->n_elems * sizeof *values) == 0,
                     "tensor %s is not as it is in the file", tensor->name);
    free(values);
    FUZZ_REQUIRE(zero_safetensors_read(file, tensor, tensor->n_elems, 1, &beyond) == ZERO_ERROR_ARGUMENT,
                 "tensor %s was read beyond its end", tensor->name);
}

static void check_tensor(const zero_safetensors_t *file, const zero_safetensors_tensor_t *tensor, uint64_t begin)
{
    uint64_t n_elems = 1;
    FUZZ_REQUIRE(zero_safetensors_name_is_safe(tensor->name), "an unsafe name");
    FUZZ_REQUIRE(zero_safetensors_find(file, tensor->name) == tensor, "tensor %s is there twice", tensor->name);
    FUZZ_REQUIRE(tensor->begin == begin && tensor->end >= begin && tensor->end <= file->data_bytes,
                 "tensor %s is not behind the one before it", tensor->name);
    for (int d = 0; d < tensor->n_dims; d++)
        FUZZ_REQUIRE(tensor->shape[d] >= 0 && !__builtin_mul_overflow(n_elems, (uint64_t)tensor->shape[d], &n_elems),
                     "tensor %s has no size", tensor->name);
    FUZZ_REQUIRE(n_elems == tensor->n_elems && n_elems * tensor->dtype->n_bytes == tensor->end - tensor->begin,
                 "tensor %s has not the bytes of its shape", tensor->name);
}

int fuzz_safetensors(const uint8_t *data, size_t n_bytes)
{
    zero_safetensors_t file = {0};
    uint64_t end = 0;
    fuzz_begin();
    fuzz_write("a.safetensors", data, n_bytes);
    zero_status_t status = zero_safetensors_open(fuzz_path("a.safetensors"), &file);
    if (status != ZERO_OK) {
        fuzz_refused(status);
        return 0;
    }
    fuzz_accepted = true;
    FUZZ_REQUIRE(file.data_offset + file.data_bytes == n_bytes, "the data do not end with the file");
    for (size_t i = 0; i < file.n_tensors; i++) {
        check_tensor(&file, &file.tensors[i], end);
        check_values(&file, &file.tensors[i], data);
        end = file.tensors[i].end;
    }
    FUZZ_REQUIRE(end == file.data_bytes, "bytes behind the last tensor");
    zero_safetensors_close(&file);
    return 0;
}
