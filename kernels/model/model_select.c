/* model_select.c - returns a device's table of model kernels. Only this file knows which tables the build has. */
#include "kernels/model/model.h"

#include <stddef.h>

const zero_model_kernels_t *zero_model_kernels(zero_device_type_t type)
{
    if (type == ZERO_DEVICE_AUTO || type == ZERO_DEVICE_CPU)
        return zero_model_kernels_cpu();
#ifdef ZERO_HAVE_CUDA
    return zero_model_kernels_cuda();
#else
    return NULL;
#endif
}
