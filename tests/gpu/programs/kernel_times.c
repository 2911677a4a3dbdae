/* kernel_times.c - records what the GPU of rank 0 runs without changing the program. CUDA's driver loads this library
 * if the environment has CUDA_INJECTION64_PATH=.../kernel_times.so, and calls InitializeInjection before anything runs.
 * From then on CUPTI reports every kernel, copy and fill, and a line "STREAM BEGIN_NS END_NS NAME" for each goes to the
 * file KERNEL_TIMES; kernels have their mangled names. Any failure ends the program, since it runs for this record
 * only. For tests/gpu/kernel-times.
 *
 * Kernels in CUDA graphs are reported one by one unless CUPTI_ACTIVITY_KIND_GRAPH_TRACE is requested.
 */
#include <cupti.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUPTI_CALLS(X)                                                                                                 \
    X(cuptiActivityRegisterCallbacks)                                                                                  \
    X(cuptiActivityEnable)                                                                                             \
    X(cuptiActivityGetNextRecord)                                                                                      \
    X(cuptiActivityGetNumDroppedRecords)                                                                               \
    X(cuptiActivityFlushAll)                                                                                           \
    X(cuptiGetResultString)

/* A machine with GPUs may have CUPTI only in a Python package; where the other programs here run there may be none. */
static struct {
#define MEMBER(name) __typeof__(&name) name;
    CUPTI_CALLS(MEMBER)
#undef MEMBER
} cupti;

static FILE *file;
static size_t n_dropped;

enum { BUFFER_BYTES = 8 << 20 };

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *n_bytes, size_t *n_records_at_most)
{
    *buffer = malloc(BUFFER_BYTES); /* returned below; CUPTI drops records if it is NULL */
    *n_bytes = *buffer ? BUFFER_BYTES : 0;
    *n_records_at_most = 0; /* as many as fit */
}

/* Records grow at their end from release to release: of these types, older than the header, all fields stay. */
static void write_record(const CUpti_Activity *record)
{
#define WRITE(type, name_of)                                                                                           \
    do {                                                                                                               \
        const type *r = (const type *)record;                                                                          \
        fprintf(file, "%" PRIu32 " %" PRIu64 " %" PRIu64 " %s\n", r->streamId, r->start, r->end, name_of);             \
    } while (0)
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        WRITE(CUpti_ActivityKernel9, r->name);
    else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY)
        WRITE(CUpti_ActivityMemcpy5, r->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "memcpy HtoD"
                                     : r->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "memcpy DtoH"
                                                                                      : "memcpy DtoD");
    else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY2)
        WRITE(CUpti_ActivityMemcpyPtoP4, "memcpy PtoP");
    else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET)
        WRITE(CUpti_ActivityMemset4, "memset");
#undef WRITE
}

/* On a thread of CUPTI's; one buffer at a time. */
static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t n_bytes, size_t n_valid)
{
    CUpti_Activity *record = NULL;
    size_t n_more = 0;
    (void)n_bytes;
    while (n_valid > 0 && cupti.cuptiActivityGetNextRecord(buffer, n_valid, &record) == CUPTI_SUCCESS)
        write_record(record);
    cupti.cuptiActivityGetNumDroppedRecords(context, stream, &n_more);
    n_dropped += n_more;
    free(buffer);
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "kernel_times: %s: %s\n", what, why);
    _Exit(1);
}

static void require(CUptiResult result, const char *what)
{
    const char *why = "?";
    if (result == CUPTI_SUCCESS)
        return;
    cupti.cuptiGetResultString(result, &why);
    fail(what, why);
}

static void open_cupti(void)
{
    char name[32];
    snprintf(name, sizeof name, "libcupti.so.%d", CUDA_VERSION / 1000);
    void *library = dlopen(name, RTLD_NOW), *symbol;
    if (!library)
        fail("no CUPTI, which the CUDA toolkit and PyTorch's packages bring", dlerror());
#define FIND(name)                                                                                                     \
    if (!(symbol = dlsym(library, #name)))                                                                             \
        fail("another CUPTI than ours", dlerror());                                                                    \
    memcpy(&cupti.name, &symbol, sizeof symbol);
    CUPTI_CALLS(FIND)
#undef FIND
}

static void end_records(void)
{
    require(cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "the last records");
    if (n_dropped > 0)
        fail("records", "CUPTI has dropped some");
    if (fclose(file) != 0)
        fail("records", strerror(errno));
}

/* Returns 1: the driver continues. */
__attribute__((visibility("default"))) int InitializeInjection(void);
int InitializeInjection(void)
{
    static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                               CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};
    const char *path = getenv("KERNEL_TIMES"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (file || !path || (rank && strcmp(rank, "0") != 0))
        return 1;
    open_cupti();
    file = fopen(path, "w");
    if (!file)
        fail(path, strerror(errno));
    require(cupti.cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "CUPTI does not start");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        require(cupti.cuptiActivityEnable(kinds[i]), "CUPTI does not start");
    atexit(end_records); /* before CUPTI and the driver, which are loaded by now, shut down */
    return 1;
}
