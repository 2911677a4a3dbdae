/* memory.h - how much memory this host has and may still be taken, and what a plan may take of it. The functions are
 * zero.h's (zero_host_memory, zero_bytes_to_plan, zero_pinned_to_plan); this is the only reader of those facts.
 *
 * What must hold: a limit counts wherever it is set. A process is in a control group, which is in others; each may
 * have a limit, of version 2 or 1, and all of them bind. Page cache that the kernel can give back is not used memory.
 * What lies in a tmpfs (/dev/shm, memfd) is.
 */
#ifndef ZERO_BASE_MEMORY_H
#define ZERO_BASE_MEMORY_H

/* For tests: reads /proc and /sys below this directory; "": the machine's own. */
void zero_memory_set_root(const char *directory);

#endif
