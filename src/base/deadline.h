/* deadline.h - how long a rank waits for its peers before it says which of them it waited for, and stops. */
#ifndef ZERO_DEADLINE_H
#define ZERO_DEADLINE_H

#include "zero.h"

int64_t zero_now_ns(void); /* monotonic */

/* ZERO_TIMEOUT_S from the environment, in seconds (fractions allowed), else 600: more than the longest step and the
 * longest checkpoint. */
zero_status_t zero_timeout_ns(int64_t *timeout_ns);

#endif
