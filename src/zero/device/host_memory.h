/* host_memory.h - host memory for offload: one large mapping in huge pages. Its user touches it first, so that pages
 * are near the threads that will use them. */
#ifndef ZERO_HOST_MEMORY_H
#define ZERO_HOST_MEMORY_H

#include <stddef.h>

#include "zero.h"

/* Maps memory that is zero and not yet touched. */
zero_status_t zero_host_map(size_t n_bytes, void **data);
void zero_host_unmap(void *data, size_t n_bytes);

#endif
