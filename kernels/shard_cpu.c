/* shard_cpu.c - chooses the CPU's shard kernels at run time: the best instruction set that was built and that the
 * machine has, or the one that ZERO_CPU_ISA names. All builds give the same bits, so the choice affects only speed.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/shard.h"

extern const zero_shard_kernels_t zero_shard_kernels_scalar;

static bool always(void)
{
    return true;
}

#ifdef ZERO_HAVE_X86
extern const zero_shard_kernels_t zero_shard_kernels_avx2;
extern const zero_shard_kernels_t zero_shard_kernels_avx512;

/* Does not ask for F16C, which every CPU with AVX2 has: not all compilers know that name here. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

/* Best first. The last one works on every machine. */
static const struct {
    const zero_shard_kernels_t *kernels;
    bool (*is_supported)(void);
} builds[] = {
#ifdef ZERO_HAVE_X86
    {&zero_shard_kernels_avx512, has_avx512},
    {&zero_shard_kernels_avx2, has_avx2},
#endif
    {&zero_shard_kernels_scalar, always},
};
#define N_BUILDS (sizeof builds / sizeof builds[0])

static const zero_shard_kernels_t *best_kernels(void)
{
    size_t i = 0;
    while (i + 1 < N_BUILDS && !builds[i].is_supported())
        ++i;
    return builds[i].kernels;
}

const zero_shard_kernels_t *zero_shard_kernels_cpu_named(const char *name)
{
    for (size_t i = 0; i < N_BUILDS; ++i) {
        if (strcmp(builds[i].kernels->name, name) == 0)
            return builds[i].is_supported() ? builds[i].kernels : NULL;
    }
    return NULL;
}

static pthread_once_t choose_once = PTHREAD_ONCE_INIT;
static const zero_shard_kernels_t *chosen;

static void choose(void)
{
    const char *wanted = getenv("ZERO_CPU_ISA");
    chosen = best_kernels();
    if (wanted == NULL || wanted[0] == '\0')
        return;
    const zero_shard_kernels_t *named = zero_shard_kernels_cpu_named(wanted);
    if (named != NULL)
        chosen = named;
    else
        zero_log(ZERO_LOG_WARNING, "ZERO_CPU_ISA=%s is not available here, using %s", wanted, chosen->name);
}

const zero_shard_kernels_t *zero_shard_kernels_cpu(void)
{
    pthread_once(&choose_once, choose);
    return chosen;
}
