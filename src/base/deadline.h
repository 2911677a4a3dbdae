/* deadline.h - how long a rank waits for its peers before it gives up and logs which of them did not come. */
#ifndef ZERO_DEADLINE_H
#define ZERO_DEADLINE_H

#include "zero.h"

int64_t zero_now_ns(void); /* monotonic */

/* Reads ZERO_TIMEOUT_S, in seconds (fractions allowed), from the environment. The default is 600: more than the longest
 * step or checkpoint takes. */
zero_status_t zero_timeout_ns(int64_t *timeout_ns);

#endif
