/* checkpoint_removal.h - recognizes directories that are libzero's, and removes no others.
 *
 * A user may keep anything next to checkpoints, under any name. So a directory is removed only if it has a manifest of
 * libzero's, or the marker that a save's temporary directory has until there is a manifest, or if it is empty. It is
 * examined and emptied through one descriptor: if something else takes its name meanwhile, such as a link, that is
 * neither followed nor emptied. Used by checkpoint_directory.c. */
#ifndef ZERO_CHECKPOINT_REMOVAL_H
#define ZERO_CHECKPOINT_REMOVAL_H

#include "zero.h"

#define ZERO_MARKER_NAME ".libzero-temporary"

/* Marks an empty directory as a temporary one of libzero's. path: its path, for error lines. */
zero_status_t zero_marker_make(int directory, const char *path);
/* Removes the marker, once there is a manifest. */
zero_status_t zero_marker_remove(const char *path);

/* Returns whether `name` in the directory `parent` is a directory, not a link, with a manifest of libzero's. */
bool zero_checkpoint_is_there(int parent, const char *name);
/* Returns whether it is a directory that zero_checkpoint_remove may remove. */
bool zero_checkpoint_may_go(int parent, const char *name);
/* Removes a directory and everything in it, but does not cross into other file systems. Manifest and marker go last. It
 * is ZERO_OK if there is no such directory, and ZERO_ERROR_IO if it is not libzero's. */
zero_status_t zero_checkpoint_remove(const char *parent, const char *name);

#endif
