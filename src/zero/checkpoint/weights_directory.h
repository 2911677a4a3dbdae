/* weights_directory.h - a directory of weights in Hugging Face's layout: model.safetensors, or
 * model.safetensors.index.json and the files that it names. Finds every declared tensor in it, with its shape, in files
 * with good headers. Used by weights_directory.c.
 *
 * Names are compared without a leading "transformer." or "model.": Hugging Face saves base models without it, and the
 * same models with a head with it.
 */
#ifndef ZERO_WEIGHTS_DIRECTORY_H
#define ZERO_WEIGHTS_DIRECTORY_H

#include "zero/format/safetensors.h"
#include "zero/plan/declaration.h"

#define ZERO_WEIGHTS_UNKNOWN_BYTES 320

/* A linked list, because sources keep the files' addresses. */
typedef struct zero_weights_file {
    zero_safetensors_t file;
    struct zero_weights_file *next;
} zero_weights_file_t;

typedef struct zero_weights {
    const char *directory;
    const zero_model_t *model;
    zero_names_t declared;              /* of the declared tensors, without prefix */
    zero_safetensors_source_t *sources; /* by declared tensor */
    zero_safetensors_source_t head;     /* "lm_head.weight", if the files have it and the model does not declare it */
    bool is_partial;                    /* tensors may be missing */
    bool *found;                        /* by declared tensor */
    zero_weights_file_t *files;
    size_t n_unknown;                         /* tensors of the files that the model does not declare */
    size_t n_listed;                          /* how many of them fit into `unknown` */
    char unknown[ZERO_WEIGHTS_UNKNOWN_BYTES]; /* "a, b, c" */
} zero_weights_t;

/* Opens everything and finds every declared tensor. weights->is_partial says whether some may be missing; the rest of
 * *weights is set here. */
zero_status_t zero_weights_open(zero_weights_t *weights, const zero_model_t *model, const char *directory);
void zero_weights_close(zero_weights_t *weights); /* all zeros is allowed */

/* Returns a name without a leading "transformer." or "model.". */
const char *zero_weights_bare_name(const char *name);
/* Finds the declared tensor for a name in a file; -1 if there is none. If declared tensors differ only in the prefix,
 * takes the one with exactly this name, else the first. */
zero_tensor_t zero_weights_find(const zero_weights_t *weights, const char *name);

#endif
