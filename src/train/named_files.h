/* named_files.h - checks that the files a run writes are not files that it reads or writes otherwise. */
#ifndef ZEROTRAIN_NAMED_FILES_H
#define ZEROTRAIN_NAMED_FILES_H

#include "train/options/options.h"

/* Checks whether metrics and trace can be written where the settings say. They must be two different files. Neither may
 * be, by any path or link, the configuration, data, part of a model or checkpoint that is read, or where checkpoints
 * will be. What is there already must be theirs (metrics_check, trace_check). Returns ZERO_ERROR_USAGE, with a log line
 * that names both settings. Changes nothing. For the rank that writes them. */
zero_status_t named_files_check(const options_t *options);

#endif
