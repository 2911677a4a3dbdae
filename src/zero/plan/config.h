/* config.h - which values a configuration may have, and configurations of programs with another zero.h. */
#ifndef ZERO_CONFIG_H
#define ZERO_CONFIG_H

#include "zero.h"

/* Returns the defaults, in a struct of this library's size. */
zero_config_t zero_config_defaults(void);

/* Returns ZERO_ERROR_USAGE, with a line, if a setting is out of range. */
zero_status_t zero_config_check(const zero_config_t *config);

/* Reads a caller's configuration: fields that its struct does not have get their defaults. Returns ZERO_ERROR_ARGUMENT
 * if its struct_size was never one, and ZERO_ERROR_UNSUPPORTED if it sets what this library does not know. Public
 * functions begin with it. */
zero_status_t zero_config_read(const char *call, const zero_config_t *callers, zero_config_t *config);
/* The same checks alone. */
zero_status_t zero_config_check_size(const char *call, const zero_config_t *callers);
/* Writes a configuration to a caller's struct of struct_size, which zero_config_read has accepted. */
void zero_config_write(const zero_config_t *config, size_t struct_size, zero_config_t *callers);

#endif
