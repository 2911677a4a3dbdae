/* checkpoint_removal.h - which directories are libzero's, and removing those alone.
 *
 * A user may keep anything beside checkpoints, under any name. So a directory is removed only where it shows that
 * libzero made it: by a manifest, or by the marker that a save's temporary directory carries until it has one; or where
 * it is empty, so that nothing is lost. It is looked at and emptied through one descriptor: what is put in its place
 * meanwhile, a link to elsewhere say, is neither followed nor removed. Used by checkpoint_directory.c. */
#ifndef ZERO_CHECKPOINT_REMOVAL_H
#define ZERO_CHECKPOINT_REMOVAL_H

#include "zero.h"

#define ZERO_MARKER_NAME ".libzero-temporary"

/* Marks an empty directory as a temporary one of libzero's; path: for the line of a failure. */
zero_status_t zero_marker_make(int directory, const char *path);
/* Takes the mark away, once there is a manifest. */
zero_status_t zero_marker_remove(const char *path);

/* Whether `name` in the directory `parent` is a directory, no link, with a manifest of libzero's. */
bool zero_checkpoint_is_there(int parent, const char *name);
/* Whether it is one that zero_checkpoint_remove removes. */
bool zero_checkpoint_may_go(int parent, const char *name);
/* Removes a directory with all that is in it, on its own file system, manifest and marker last; not there is fine, and
 * one that is not libzero's is ZERO_ERROR_IO. */
zero_status_t zero_checkpoint_remove(const char *parent, const char *name);

#endif
