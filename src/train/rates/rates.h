/* rates.h - how fast a device computes and moves data: the numbers that the time model (step_time.h) multiplies by.
 *
 * Each is what whole training steps reach under load, not a peak. Those of the H200 were measured
 * (docs/performance.md); docs/fit.md says where the others come from. `zerotrain calibrate` measures most of them for
 * one machine (rates_cache.h).
 */
#ifndef ZEROTRAIN_RATES_H
#define ZEROTRAIN_RATES_H

#include "zero.h"

/* Sizes of matrix products, in FLOPs: 2^28, 2^31, 2^34 and 2^37, of cubes of 512, 1024, 2048 and 4096. */
#define FIT_SIZES 4
#define FIT_LEAST_SIZE 28 /* log2 */
#define FIT_SIZE_STEP 3

typedef struct fit_rates {
    char name[64];   /* as --gpu takes it */
    char title[192]; /* with its source, for people */
    bool is_gpu;
    double memory_bytes;          /* of the device; 0: only the machine knows */
    double half, fp8, single;     /* large matrix products in bf16 or fp16, fp8, fp32: FLOP/s; fp8 0: none */
    double size_share[FIT_SIZES]; /* of these, what products of each size reach */
    double element;               /* CPU: multiply-adds that cost as much as an element of a product's matrices */
    double threads;               /* CPU: of a rank; among them a product is cut */
    double attention_forward[2];  /* heads of 64, of 128: FLOP/s of the causal half */
    double attention_backward[2]; /* deterministic */
    double tile;                  /* on the causal diagonal attention computes about this many keys too many */
    double pass, cast, adam;      /* passes over memory, casts to fp8, AdamW: bytes/s read and written */
    double sum;                   /* sums of gradients: bytes/s read and written */
    double kernel_s;              /* start and tail of a kernel, in which the device is not full */
    double wait_s;                /* compute waits for an event */
    double link, nccl, network;   /* what a rank receives: copy engines, NCCL in a host, between hosts */
    /* Compute that is lost to communication, by second of it, and a share of compute, since links take power and ranks
     * wait for the slowest GPU. */
    double link_lost, nccl_lost, awake;
    double pcie, host_pcie, host_adam; /* bytes/s: of a GPU, of a host's GPUs together, of the host's AdamW */
    double host_memory;                /* bytes/s: of a host's GPUs together, both ways at once */
} fit_rates_t;

#define FIT_ADAMW_HOST_BYTES 34.0   /* that the host's AdamW moves for a parameter: 18, and two arrays of 8 */
#define FIT_HOST_UNKNOWN UINT64_MAX /* fit_machine_t's host_bytes: anything fits */
#define FIT_CUDA_BYTES 590000000.0  /* what CUDA, its libraries and graphs need in addition to a plan; on H200s */

/* The machine that a plan is for. */
typedef struct fit_machine {
    fit_rates_t rates;
    int n_ranks, ranks_per_host;
    uint64_t host_bytes;   /* of a host's memory that its ranks together may take for offload */
    zero_comm_kind_t kind; /* what carries bulk data on the CPU, as zero_plan has it */
} fit_machine_t;

/* Returns how many elements of its matrices a product has for each multiply-add, when every thread computes a block of
 * [m, n], as square as may be, of the sums over k. What packs, reads and writes them is lost to it. */
double fit_elements_per_multiply(double m, double n, double k, double threads);

extern const fit_rates_t fit_rates_table[]; /* GPUs, then the CPU */
extern const int n_fit_rates;

const fit_rates_t *fit_rates_find(const char *name); /* in upper or lower case; NULL: unknown */
/* Returns the row of a GPU by what its vendor calls it, such as "NVIDIA H100 80GB HBM3"; NULL: unknown. */
const fit_rates_t *fit_rates_known_gpu(const char *vendor_name);
/* The same, but of an unknown one the first row, since what is chosen depends on the ratios of rates. */
const fit_rates_t *fit_rates_of_gpu(const char *vendor_name);
const fit_rates_t *fit_rates_of_cpu(void);

/* A rate that can be measured. */
typedef struct fit_rate_row {
    const char *key;   /* in the cache */
    size_t offset;     /* in fit_rates_t */
    int n;             /* numbers */
    bool is_of_thread; /* on the CPU it grows with a rank's threads */
    double unit;       /* that people read it in */
    const char *unit_name, *title;
} fit_rate_row_t;
extern const fit_rate_row_t fit_rate_rows[];
extern const int n_fit_rate_rows;

#endif
