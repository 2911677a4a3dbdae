/* cublaslt.h - the functions of cuBLASLt that matrix products on GPUs call, loaded when the first GPU is used.
 *
 * A program linked with the library would spend 0.1 s at every start on relocating it (CUDA 13), on machines without a
 * GPU and for `zerotrain --help`, too; and libzero, which needs it for Muon alone, would need it for everything.
 */
#ifndef ZERO_CUBLASLT_H
#define ZERO_CUBLASLT_H

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdint.h>
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

/* Ends the calling function with ZERO_ERROR_DEVICE if a call fails; needs the functions as `lt`. */
#define ZERO_TRY_CUBLASLT(call)                                                                                        \
    do {                                                                                                               \
        cublasStatus_t cublaslt_status = (call);                                                                       \
        if (cublaslt_status != CUBLAS_STATUS_SUCCESS)                                                                  \
            return zero_fail(ZERO_ERROR_DEVICE, "%s: %s", #call, lt->GetStatusString(cublaslt_status));                \
    } while (0)

/* A product as cuBLASLt describes it; all NULL before it is made. */
typedef struct zero_cublaslt_product {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
} zero_cublaslt_product_t;

static inline void zero_cublaslt_product_destroy(const zero_cublaslt_t *lt, zero_cublaslt_product_t *product)
{
    if (product->operation != NULL)
        lt->MatmulDescDestroy(product->operation);
    if (product->a != NULL)
        lt->MatrixLayoutDestroy(product->a);
    if (product->b != NULL)
        lt->MatrixLayoutDestroy(product->b);
    if (product->c != NULL)
        lt->MatrixLayoutDestroy(product->c);
}

/* Asks for algorithms that take at most so much workspace and whose sums have an order and a type of their own: none by
 * atomics, which add in any order, and none in a narrow type. */
static inline cublasStatus_t zero_cublaslt_prefer(const zero_cublaslt_t *lt, cublasLtMatmulPreference_t preference,
                                                  size_t workspace_bytes)
{
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* not INPLACE: that is by atomics */
    cublasStatus_t status = lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                             &workspace_bytes, sizeof workspace_bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                  sizeof reductions);
    return status;
}

#endif
