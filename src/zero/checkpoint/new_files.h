/* new_files.h - the files of a new checkpoint: lists them, and makes all but the arrays' elements. One rank makes them:
 * the tensors' files in full size and with their headers, index, config.json, state.json and the caller's own. The list
 * is the manifest, of which sizes and hashes are still missing. Used by checkpoint_save.c. */
#ifndef ZERO_NEW_FILES_H
#define ZERO_NEW_FILES_H

#include "zero/checkpoint/checkpoint_extents.h"
#include "zero/checkpoint/checkpoint_layout.h"
#include "zero/disk/manifest.h"
#include "zero/runtime/context.h"

typedef struct zero_new_files {
    zero_checkpoint_layout_t layout;
    zero_manifest_t manifest; /* the layout's files come first, so a file has the same number in both */
    json_t *state;            /* of state.json */
} zero_new_files_t;

/* Checks what the caller wants saved and lists all files in *files, which is empty. */
zero_status_t zero_new_files_list(const zero_context_t *context, uint64_t step, const zero_step_state_t *state,
                                  const zero_save_options_t *options, zero_new_files_t *files);
/* Makes them in a directory that exists. What is written is recorded in `written`, unless that is NULL. */
zero_status_t zero_new_files_make(const zero_new_files_t *files, const zero_model_t *model, const char *directory,
                                  const zero_save_options_t *options, zero_extents_t *written);
void zero_new_files_destroy(zero_new_files_t *files); /* all zeros is allowed */

#endif
