/* host_memory.h - the block of host memory that offload works in, beside a device: how much a host has, and one large
 * mapping in huge pages that its user touches first, so that pages lie near the threads that will use them. */
#ifndef ZERO_HOST_MEMORY_H
#define ZERO_HOST_MEMORY_H

#include <stddef.h>

#include "zero.h"

/* What the processes here may use in all: the machine's, or a container's limit where that is lower. */
uint64_t zero_host_ram_bytes(void);

/* ZERO_ERROR_MEMORY, with the numbers, where n_ranks blocks of n_bytes are more than `share` (0..1) of ram_bytes. */
zero_status_t zero_host_check_share(uint64_t n_bytes, int n_ranks, double share, uint64_t ram_bytes);

/* Zeroed and not yet touched. */
zero_status_t zero_host_map(size_t n_bytes, void **data);
void zero_host_unmap(void *data, size_t n_bytes);

/* A number in a file of /sys or /proc; UINT64_MAX where there is none ("max", no such file). */
uint64_t zero_host_read_number(const char *path);

#endif
