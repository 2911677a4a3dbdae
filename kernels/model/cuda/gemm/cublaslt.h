/* cublaslt.h - the functions of cuBLASLt that gemm_cuda.c calls.
 *
 * The library is loaded when the first GPU is used. A program linked with it would spend 0.1 s at every start on
 * relocating it (CUDA 13), on machines without a GPU and for `zerotrain --help`, too.
 */
#ifndef ZERO_CUBLASLT_H
#define ZERO_CUBLASLT_H

#include <cublasLt.h>

#include "base/log.h"

#define ZERO_CUBLASLT_FUNCTIONS(X)                                                                                     \
    X(Create)                                                                                                          \
    X(Destroy)                                                                                                         \
    X(GetStatusString)                                                                                                 \
    X(Matmul)                                                                                                          \
    X(MatmulAlgoGetHeuristic)                                                                                          \
    X(MatmulDescCreate)                                                                                                \
    X(MatmulDescDestroy)                                                                                               \
    X(MatmulDescSetAttribute)                                                                                          \
    X(MatmulPreferenceCreate)                                                                                          \
    X(MatmulPreferenceDestroy)                                                                                         \
    X(MatmulPreferenceSetAttribute)                                                                                    \
    X(MatrixLayoutCreate)                                                                                              \
    X(MatrixLayoutDestroy)

/* cublasLtCreate is Create, and so on. */
typedef struct zero_cublaslt {
#define ZERO_CUBLASLT_POINTER(name) __typeof__(&cublasLt##name) name;
    ZERO_CUBLASLT_FUNCTIONS(ZERO_CUBLASLT_POINTER)
#undef ZERO_CUBLASLT_POINTER
} zero_cublaslt_t;

/* Fills `functions`. The library stays loaded until the process ends. Fails with ZERO_ERROR_DEVICE if it is not
 * installed, or is too old to have a function. */
zero_status_t zero_cublaslt_load(zero_cublaslt_t *functions);

#endif
