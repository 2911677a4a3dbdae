/* tokenizer.h - text to tokens and back, by the tokenizer.json next to a model's weights.
 *
 * Hugging Face's BPE is read: byte-level, as that of GPT-2, Llama 3, SmolLM and Qwen, and SentencePiece's, as that of
 * Llama 2, Mistral and Gemma. Whatever else such a file may ask for is refused by its name. A model of 256 tokens
 * without the file has bytes as tokens.
 *
 *   tokenizer.c       the steps in order, and tokens back to bytes
 *   tokenizer_file.c  reads tokenizer.json: the vocabulary; tokenizer_parts.c what is done to text around it
 *   normalize.c       normalizers: what is put before text or in place of its characters; normalize.c composes those
 *   split.c           pre-tokenizers: text into words, by PCRE2
 *   normalize.c       the pre-tokenizer that marks spaces
 *   bpe.c             a word into tokens; tokenizer.c is their list
 *   report/utf8.c     what is not UTF-8 becomes U+FFFD
 */
#ifndef ZEROTRAIN_TOKENIZER_H
#define ZEROTRAIN_TOKENIZER_H

#include "train/text/bpe.h"
#include "zero.h"

typedef struct tokenizer tokenizer_t;

/* Opens the tokenizer of a model's directory. vocab_size: the model's; the file may have fewer tokens, not more.
 * Returns ZERO_ERROR_USAGE if there is none or it asks for what is not implemented, ZERO_ERROR_FORMAT if it is
 * malformed; one log line says what. */
zero_status_t tokenizer_open(const char *directory, int64_t vocab_size, tokenizer_t **tokenizer);
void tokenizer_close(tokenizer_t *tokenizer);

/* Appends the text's tokens. with_special: as `tokenizers` does by default, with those that the file puts before it,
 * such as <|begin_of_text|>. Bytes that are not UTF-8 become U+FFFD, unless tokens are bytes. */
zero_status_t tokenizer_encode(const tokenizer_t *tokenizer, const char *text, size_t n_bytes, bool with_special,
                               tokens_t *tokens);
/* Returns a token's bytes, which may be a part of a character; none for a token that the file does not have. */
const char *tokenizer_bytes(const tokenizer_t *tokenizer, int32_t token, size_t *n_bytes);
/* Returns how many bytes of text a token stands for: none for a special token, such as <|endoftext|>. begins: it is the
 * first of a text, where the space that some tokenizers put before it does not count. */
size_t tokenizer_text_bytes(const tokenizer_t *tokenizer, int32_t token, bool begins);

#endif
