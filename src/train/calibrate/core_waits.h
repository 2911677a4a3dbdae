/* core_waits.h - how long threads waited for a core: a sign that other processes took it. For calibrate. */
#ifndef ZEROTRAIN_CALIBRATE_CORE_WAITS_H
#define ZEROTRAIN_CALIBRATE_CORE_WAITS_H

/* Returns the seconds that this process's threads, added up, could have run and had no core; 0 if the system does not
 * say. */
double core_waits_s(void);

#endif
