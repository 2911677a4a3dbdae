/* model_files.h - the files that came with a model and stay with it: its tokenizer's, and how to generate with it. They
 * are read once and written into every checkpoint, so that a checkpoint can be used, and trained on, without the model
 * that it came from. */
#ifndef ZEROTRAIN_MODEL_FILES_H
#define ZEROTRAIN_MODEL_FILES_H

#include "zero.h"

#define MODEL_TEMPLATES "additional_chat_templates" /* where transformers has named chat templates: NAME.jinja */
#define MODEL_TEMPLATES_MAX 16
#define MODEL_FILES_MAX (9 + MODEL_TEMPLATES_MAX)

typedef struct model_files {
    int n_files;
    zero_save_file_t files[MODEL_FILES_MAX]; /* names and data are owned */
    uint64_t n_bytes;                        /* of all */
    uint64_t tokenizer;                      /* XXH3 of tokenizer.json; 0: there is none */
    const void *tokenizer_text;              /* its content, of files */
    uint64_t tokenizer_bytes;
    const char *vocabulary; /* name of the first of files that has one, of any kind of tokenizer; NULL: there is none */
} model_files_t;

/* Reads those files that the directory has: tokenizer.json, vocab.json and so on, and the named chat templates. Leaves
 * out, with a line, what is not a regular file, empty, larger than 64 MiB, or a link that leads out of the directory;
 * but links to the blobs of Hugging Face's cache, in which every file of a model is one, are followed. */
zero_status_t model_files_read(const char *directory, model_files_t *files);
void model_files_free(model_files_t *files);

#endif
