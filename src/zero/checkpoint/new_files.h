/* new_files.h - the files of a new checkpoint: lists them, and makes all but the arrays' elements. One rank makes them:
 * the tensors' files in full size and with their headers, index, config.json, state.json and the caller's own. The list
 * is the manifest, of which sizes and hashes are still missing. Used by checkpoint_save.c. */
#ifndef ZERO_NEW_FILES_H
#define ZERO_NEW_FILES_H

#include "zero/checkpoint/checkpoint_extents.h"
#include "zero/checkpoint/checkpoint_layout.h"
#include "zero/format/manifest.h"
#include "zero/runtime/context.h"

/* ---- array writer ---- */
/* Writes runs of tensors' elements into the files of a new checkpoint. Used by checkpoint_save.c.
 *
 * The files exist, in full size; every rank writes its own elements at their offsets. Arrays come in declared order, so
 * one file of each kind of array is open at a time. */

/* The file that is being written. */
typedef struct zero_array_file {
    int file; /* in the layout; -1: none */
    int fd;
    char *path;
} zero_array_file_t;

typedef struct zero_array_writer {
    const zero_checkpoint_layout_t *layout;
    const zero_model_t *model;
    const char *directory;
    zero_dtype_t dtype;
    zero_extents_t *written; /* by kind of array: what is written is recorded here; NULL: another rank vouches for it */
    void *weights, *master_lo; /* of a run: weights in the dtype, and split_master's other output */
    zero_array_file_t files[ZERO_N_KEPT];
} zero_array_writer_t;

/* Makes a writer in *writer, of which the caller has set nothing. layout, model and directory outlive it. */
zero_status_t zero_array_writer_create(const zero_checkpoint_layout_t *layout, const zero_model_t *model,
                                       const char *directory, zero_dtype_t dtype, zero_array_writer_t *writer);
/* Writes a chunk's array of one kind, if it has that; returns ZERO_ERROR_NONFINITE, with a log line, if a number of it
 * is not finite. Threads may write different kinds at once. */
zero_status_t zero_array_writer_write_kept(zero_array_writer_t *writer, const zero_chunk_t *chunk, zero_kept_t kept);
/* Writes a chunk's arrays. A zero_chunk_fn; user: the writer. */
zero_status_t zero_array_writer_write(void *user, const zero_chunk_t *chunk);
/* Syncs and closes what is open. */
zero_status_t zero_array_writer_close(zero_array_writer_t *writer);
/* Closes and frees. All zeros is allowed. */
void zero_array_writer_destroy(zero_array_writer_t *writer);

/* ---- new files ---- */

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
