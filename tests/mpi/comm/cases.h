/* cases.h - what the parts of comm_cases share: the communicator under test, expectations and cases. */
#ifndef ZERO_TEST_COMM_CASES_H
#define ZERO_TEST_COMM_CASES_H

#include "zero/device/device.h"

#define FAILURE_SEEN 3

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            broken(#condition, __LINE__);                                                                              \
    } while (0)
#define EXPECT_OK(call) EXPECT((call) == ZERO_OK)

extern zero_comm_t *comm;
extern zero_comm_t *host;  /* the host transport below `comm`, if that joins devices; else NULL */
extern zero_device_t *cpu; /* with it */

/* comm_cases.c */
_Noreturn void broken(const char *condition, int line);
void pause_s(double seconds);
void *allocate(size_t n_bytes);
void leave(void);

/* comm/failures.c */
void one_exits(void);
void one_is_killed(void);
void one_stops(void);
void one_stops_beside_devices(void);
void one_is_killed_beside_devices(void);
void one_stops_before_much(void);
void one_stops_before_a_gather(void);
void one_leaves(void);
void one_aborts(void);
void one_calls_something_else(void);

/* comm/late_devices.c */
zero_status_t wait_for_copies(zero_device_t *device, zero_stream_t stream);
zero_comm_t *through_host(void);
zero_comm_t *over_rails(void);

#endif
