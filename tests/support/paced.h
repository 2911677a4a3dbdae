/* paced.h - a zerotrain that waits for its device before every unit and before the update, so that its trace shows the
 * host's own work: zerotrain_paced.c. */
#ifndef ZERO_TESTS_PACED_H
#define ZERO_TESTS_PACED_H

#include "zero.h"

/* Inside a step of a run that is traced: ends the host's span, waits for the device and begins the next span. Elsewhere
 * it does nothing. For programs that wrap zero_acquire and zero_step in their own way. */
zero_status_t paced_pause(void);

#endif
