/* kernels_cpu.c - picks the CPU's model kernels at run time: the best instruction set that was built, that the machine
 * has and that ZERO_CPU_ISA allows, by the rule of shard_cpu.c. The builds agree to float tolerance, not to the bit.
 */
#include "train/kernels/kernels_cpu.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "kernels/shard.h"
#include "train/kernels/kernels.h"

extern const zero_model_kernels_t zero_model_kernels_scalar;
#ifdef ZERO_HAVE_X86
extern const zero_model_kernels_t zero_model_kernels_avx2;
extern const zero_model_kernels_t zero_model_kernels_avx512;
#endif

/* Best first; the last runs everywhere. */
static const zero_model_kernels_t *const builds[] = {
#ifdef ZERO_HAVE_X86
    &zero_model_kernels_avx512,
    &zero_model_kernels_avx2,
#endif
    &zero_model_kernels_scalar,
};
#define N_BUILDS (sizeof builds / sizeof builds[0])

/* Asks the shard kernels, which are built for the same instruction sets, what the machine has. */
const zero_model_kernels_t *zero_model_kernels_cpu_named(const char *name)
{
    for (size_t i = 0; i < N_BUILDS; ++i) {
        if (strcmp(builds[i]->name, name) == 0)
            return zero_shard_kernels_cpu_named(name) != NULL ? builds[i] : NULL;
    }
    return NULL;
}

const zero_model_kernels_t *zero_model_kernels_cpu(void)
{
    return zero_model_kernels_cpu_named(zero_shard_kernels_cpu()->name);
}

void zero_model_cpu_kind(char *text, size_t n_bytes)
{
    snprintf(text, n_bytes, "%s, OpenBLAS %s", zero_model_kernels_cpu()->name, openblas_get_corename());
}

bool zero_model_cpu_bits_depend_on_threads(void)
{
    static const char *const independent[] = {"SkylakeX", "Cooperlake"}; /* tried with OpenBLAS 0.3.21 to 0.3.30 */
    for (size_t i = 0; i < sizeof independent / sizeof independent[0]; ++i)
        if (strcmp(openblas_get_corename(), independent[i]) == 0)
            return false;
    return true;
}

/* ---- model select ---- */
/* Returns a device's table of model kernels. Only this file knows which tables the build has. */

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
