/* host_memory.h - host memory for offload: how much a host has, and one large mapping in huge pages. Its user touches
 * it first, so that pages are near the threads that will use them. */
#ifndef ZERO_HOST_MEMORY_H
#define ZERO_HOST_MEMORY_H

#include <stddef.h>

#include "zero.h"

/* Returns what all processes here may use together: the machine's memory, or a container's limit if that is lower. */
uint64_t zero_host_ram_bytes(void);

/* Returns ZERO_ERROR_MEMORY, with the numbers, if n_ranks blocks of n_bytes are more than `share` (0..1) of ram_bytes.
 */
zero_status_t zero_host_check_share(uint64_t n_bytes, int n_ranks, double share, uint64_t ram_bytes);

/* Maps memory that is zero and not yet touched. */
zero_status_t zero_host_map(size_t n_bytes, void **data);
void zero_host_unmap(void *data, size_t n_bytes);

/* Reads a number from a file of /sys or /proc; UINT64_MAX if there is none ("max", no such file). */
uint64_t zero_host_read_number(const char *path);

#endif
