/* cublaslt.h - the functions of cuBLASLt that matrix products on GPUs call, loaded when the first GPU is used.
 *
 * A program linked with the library would spend 0.1 s at every start on relocating it (CUDA 13), on machines without a
 * GPU and for `zerotrain --help`, too; and libzero, which needs it for Muon alone, would need it for everything.
 */
#ifndef ZERO_CUBLASLT_H
#define ZERO_CUBLASLT_H

#include <cublasLt.h>
#include <dlfcn.h>
#include <string.h>

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

#define ZERO_CUBLASLT_TEXT_OF(number) #number
#define ZERO_CUBLASLT_LIBRARY(major) "libcublasLt.so." ZERO_CUBLASLT_TEXT_OF(major)

/* Sets *pointer, a function pointer of any type, to the library's function. */
static inline zero_status_t zero_cublaslt_find(void *library, const char *name, void *pointer)
{
    void *address = dlsym(library, name);
    if (address == NULL)
        return zero_fail(ZERO_ERROR_DEVICE, "%s has no %s: install the version that this program was built with",
                         ZERO_CUBLASLT_LIBRARY(CUBLAS_VER_MAJOR), name);
    memcpy(pointer, &address, sizeof address); /* C has no conversion from an object's address to a function's */
    return ZERO_OK;
}

/* Fills `functions`. The library stays loaded until the process ends. Fails with ZERO_ERROR_DEVICE if it is not
 * installed, or is too old to have a function. */
static inline zero_status_t zero_cublaslt_load(zero_cublaslt_t *functions)
{
    void *library = dlopen(ZERO_CUBLASLT_LIBRARY(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return zero_fail(ZERO_ERROR_DEVICE,
                         "cuBLASLt could not be loaded: %s. Install it, or add its folder to LD_LIBRARY_PATH",
                         dlerror());
#define ZERO_CUBLASLT_FIND(name) ZERO_TRY(zero_cublaslt_find(library, "cublasLt" #name, &functions->name));
    ZERO_CUBLASLT_FUNCTIONS(ZERO_CUBLASLT_FIND)
#undef ZERO_CUBLASLT_FIND
    return ZERO_OK;
}

#endif
