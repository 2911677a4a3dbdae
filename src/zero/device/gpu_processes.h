/* gpu_processes.h - asks the driver which processes hold a GPU's memory. */
#ifndef ZERO_GPU_PROCESSES_H
#define ZERO_GPU_PROCESSES_H

#include "zero.h"

/* Sets the processes of *usage, or why they are not known. pci_address: as /sys names it, "0000:3b:00.0". */
void zero_gpu_find_processes(const char *pci_address, zero_device_usage_t *usage);

#endif
