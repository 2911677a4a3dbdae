/* fuzz_tokens.c - a single token file, read in every format: llm.c's, nanoGPT's, our own, text, and the one that auto
 * chooses, which decides whether the input counts as accepted. */
#include "input.h"
#include "tokens.h"

int fuzz_tokens(const uint8_t *data, size_t n_bytes)
{
    static const struct {
        const char *name;
        options_format_t format;
    } WAYS[] = {{"t.bin", FORMAT_LLMC}, {"t.bin", FORMAT_NANOGPT}, {"t.bin", FORMAT_ZEROTRAIN},
                {"t.txt", FORMAT_TEXT}, {"t.txt", FORMAT_AUTO},    {"t.bin", FORMAT_AUTO}};
    fuzz_begin();
    fuzz_write("t.bin", data, n_bytes);
    fuzz_write("t.txt", data, n_bytes);
    for (size_t i = 0; i < sizeof WAYS / sizeof WAYS[0]; i++)
        fuzz_token_file(fuzz_path(WAYS[i].name), WAYS[i].format, data, n_bytes);
    return 0;
}
