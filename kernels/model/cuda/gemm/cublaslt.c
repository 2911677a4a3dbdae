/* cublaslt.c - loads cuBLASLt. */
#include "kernels/model/cuda/gemm/cublaslt.h"

#include <dlfcn.h>
#include <string.h>

#define TEXT_OF(number) #number
#define LIBRARY(major) "libcublasLt.so." TEXT_OF(major)

/* Sets *pointer, a function pointer of any type, to the library's function. */
static zero_status_t find(void *library, const char *name, void *pointer)
{
    void *address = dlsym(library, name);
    if (address == NULL)
        return zero_fail(ZERO_ERROR_DEVICE, "%s has no %s: install the version that this program was built with",
                         LIBRARY(CUBLAS_VER_MAJOR), name);
    memcpy(pointer, &address, sizeof address); /* C has no conversion from an object's address to a function's */
    return ZERO_OK;
}

zero_status_t zero_cublaslt_load(zero_cublaslt_t *functions)
{
    void *library = dlopen(LIBRARY(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return zero_fail(ZERO_ERROR_DEVICE,
                         "cuBLASLt could not be loaded: %s. Install it, or add its folder to LD_LIBRARY_PATH",
                         dlerror());
#define FIND(name) ZERO_TRY(find(library, "cublasLt" #name, &functions->name));
    ZERO_CUBLASLT_FUNCTIONS(FIND)
#undef FIND
    return ZERO_OK;
}
