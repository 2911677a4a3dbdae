/* evaluate.h - zerotrain evaluate: loss, perplexity and bits over all of the validation data. */
#ifndef ZEROTRAIN_EVALUATE_H
#define ZEROTRAIN_EVALUATE_H

#include "train/options/options.h"

/* Prints the numbers to stdout, as text or, with --json, as one object. They have the same bits on any number of ranks
 * and at every stage. [collective] */
zero_status_t evaluate(const options_t *options, zero_comm_t *comm);

#endif
