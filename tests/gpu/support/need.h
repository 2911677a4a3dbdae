/* need.h - ends a GPU program that cannot go on, and says why. Define PROGRAM, its name, before. */
#ifndef GPU_NEED_H
#define GPU_NEED_H

#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

/* Ends the program unless the call holds. */
#define NEED(call)                                                                                                     \
    do {                                                                                                               \
        if (!(call)) {                                                                                                 \
            fprintf(stderr, PROGRAM ": %s: %s\n", #call, cudaGetErrorString(cudaGetLastError()));                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
