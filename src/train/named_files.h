/* named_files.h - what a configuration names to be written must be nothing that it names otherwise. */
#ifndef ZEROTRAIN_NAMED_FILES_H
#define ZEROTRAIN_NAMED_FILES_H

#include "train/options/options.h"

/* Whether metrics and trace can be written where they are to go: to two files, neither of which is the configuration,
 * data, of a model or checkpoint that is read, or where checkpoints will be, by whatever path or link; and to files
 * that are theirs (metrics_check, trace_check). ZERO_ERROR_USAGE with a line that names both. Changes nothing. For the
 * rank that writes them. */
zero_status_t named_files_check(const options_t *options);

#endif
