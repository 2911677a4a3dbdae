/* fuzz_megatron.c - a pair of Megatron-LM's files. The input is the size of m.bin in two bytes, least first, m.bin and
 * m.idx. */
#include "input.h"
#include "tokens.h"

int fuzz_megatron(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes < 2)
        return 0;
    size_t n_bin = data[0] | (size_t)data[1] << 8, n_files = n_bytes - 2;
    if (n_bin > n_files)
        n_bin = n_files;
    fuzz_begin();
    fuzz_write("m.bin", data + 2, n_bin);
    fuzz_write("m.idx", data + 2 + n_bin, n_files - n_bin);
    fuzz_token_file(fuzz_path("m.bin"), FORMAT_MEGATRON, data + 2, n_bin);
    bool accepted = fuzz_accepted;
    fuzz_token_file(fuzz_path("m"), FORMAT_AUTO, data + 2, n_bin);
    FUZZ_REQUIRE(fuzz_accepted == accepted, "megatron and auto differ");
    return 0;
}
