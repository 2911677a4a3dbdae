/* compare.h - refuses ranks that were given different models, settings or numbers. */
#ifndef ZERO_COMPARE_H
#define ZERO_COMPARE_H

#include "comm/comm.h"

/* Returns ZERO_ERROR_MISMATCH on every rank if two ranks differ: they would wait for each other forever. [collective]
 */
zero_status_t zero_compare_across_ranks(zero_comm_t *comm, const zero_model_t *model, const zero_config_t *config);
/* The same if two ranks gave another number to the call that they are in. what: names the number. [collective] */
zero_status_t zero_compare_number(zero_comm_t *comm, const char *what, int64_t number);

#endif
