/* config.h - which values a configuration may have. */
#ifndef ZERO_CONFIG_H
#define ZERO_CONFIG_H

#include "zero.h"

/* Returns ZERO_ERROR_USAGE, with a line, if a setting is out of range. */
zero_status_t zero_config_check(const zero_config_t *config);

#endif
