/* mpi_status.c - see mpi_status.h. */
#include "comm/host/mpi_status.h"

#include <string.h>
#include <time.h>

#include "base/deadline.h"
#include "base/log.h"

#define POLL_NS 200000

zero_status_t zero_mpi_fail(int error, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return zero_fail(ZERO_ERROR_COMM, "%.*s: %s", (int)strcspn(call, "("), call, text);
}

zero_status_t zero_mpi_await(MPI_Request *request, int64_t timeout_ns)
{
    const int64_t end = zero_now_ns() + timeout_ns;
    for (int done = 0;;) {
        ZERO_TRY_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done)
            return ZERO_OK;
        if (zero_now_ns() > end)
            return ZERO_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}
