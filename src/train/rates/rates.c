/* rates.c - the table of devices. */
#include "train/rates/rates.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define GIB 1073741824.0

/* The H200's row was measured. From it the others follow: arithmetic in proportion to the published peaks of the tensor
 * cores, passes and AdamW in proportion to the bandwidth of memory, links in proportion to NVLink's. On Hopper our own
 * kernels compute attention, elsewhere cuDNN's, whose rates are those that the H200 had with them. */
#define GPU(name_, title_, gib, peak, bandwidth, nvlink, pcie_, fp8_, forward_64, forward_128, back_64, back_128)      \
    {                                                                                                                  \
        .name = name_, .title = title_, .is_gpu = true, .memory_bytes = (gib)*GIB, .half = 685e12 * (peak) / 989.4,    \
        .fp8 = fp8_, .single = 47e12 * (peak) / 989.4, .size_share = {1, 1, 1, 1}, .tile = 384,                        \
        .sum = 3.6e12 * (bandwidth) / 4.8,                                                                             \
        .attention_forward = {(forward_64) * (peak) / 989.4, (forward_128) * (peak) / 989.4},                          \
        .attention_backward = {(back_64) * (peak) / 989.4, (back_128) * (peak) / 989.4},                               \
        .pass = 3.6e12 * (bandwidth) / 4.8, .cast = 3.9e12 * (bandwidth) / 4.8, .adam = 4.2e12 * (bandwidth) / 4.8,    \
        .kernel_s = 3e-6, .wait_s = 8e-6, .link = 300e9 * (nvlink) / 900, .nccl = 180e9 * (nvlink) / 900,              \
        .network = 45e9, .link_lost = 0.05, .nccl_lost = 0.4, .awake = 0.03, .pcie = pcie_, .host_pcie = 3 * (pcie_),  \
        .host_adam = 206e9, .host_memory = 123e9                                                                       \
    }

const fit_rates_t fit_rates_table[] = {
    GPU("H200", "H200, as measured", 140.4, 989.4, 4.8, 900, 50e9, 1242e12, 450e12, 670e12, 445e12, 560e12),
    GPU("H100", "H100 SXM, from the H200 by published peaks", 79.6, 989.4, 3.35, 900, 50e9, 1242e12, 450e12, 670e12,
        445e12, 560e12),
    GPU("A100", "A100 SXM 80 GB, from the H200 by published peaks", 80.0, 312.0, 2.04, 600, 25e9, 0, 370e12, 600e12,
        300e12, 480e12),
    GPU("A100-40GB", "A100 SXM 40 GB, from the H200 by published peaks", 40.0, 312.0, 1.555, 600, 25e9, 0, 370e12,
        600e12, 300e12, 480e12),
    /* Two cores of an AMD EPYC (docs/fit.md): arithmetic is twice that of one, passes are of two threads, from other
     * ranks is what each of two received. Half precision saves memory there, not time. */
    {.name = "CPU",
     .title = "CPU with AVX-512, built in; zerotrain calibrate measures this one",
     .half = 508e9,
     .fp8 = 508e9,
     .single = 508e9,
     .size_share = {1, 1, 1, 1},
     .element = 22,
     .threads = 2,
     .tile = 100,
     .sum = 30e9,
     .attention_forward = {298e9, 330e9},
     .attention_backward = {344e9, 355e9},
     .pass = 33e9,
     .cast = 33e9,
     .adam = 59e9,
     .kernel_s = 20e-6,
     .link = 11.5e9,
     .nccl = 11.5e9,
     .network = 1e9},
};
const int n_fit_rates = (int)(sizeof fit_rates_table / sizeof fit_rates_table[0]);

double fit_elements_per_multiply(double m, double n, double k, double threads)
{
    double shorter = fmin(m, n), side = fmin(sqrt(m * n / threads), shorter);
    return 1.0 / side + side * threads / (m * n) + 1.0 / k;
}

const fit_rates_t *fit_rates_find(const char *name)
{
    for (int i = 0; i < n_fit_rates; i++)
        if (strcasecmp(fit_rates_table[i].name, name) == 0)
            return &fit_rates_table[i];
    return NULL;
}

/* Returns whether a vendor's name has both parts of one like "A100-40GB". */
static bool is_called(const char *vendor_name, const char *name)
{
    const char *size = strchr(name, '-');
    char kind[64];
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(name, "-"), name);
    return strcasestr(vendor_name, kind) && (!size || strcasestr(vendor_name, size + 1));
}

const fit_rates_t *fit_rates_known_gpu(const char *vendor_name)
{
    const fit_rates_t *found = NULL;
    for (int i = 0; i < n_fit_rates; i++) /* the one that says more comes later */
        if (fit_rates_table[i].is_gpu && is_called(vendor_name, fit_rates_table[i].name))
            found = &fit_rates_table[i];
    return found;
}

const fit_rates_t *fit_rates_of_gpu(const char *vendor_name)
{
    const fit_rates_t *known = fit_rates_known_gpu(vendor_name);
    return known ? known : &fit_rates_table[0];
}

const fit_rates_t *fit_rates_of_cpu(void)
{
    return &fit_rates_table[n_fit_rates - 1];
}

#define ROW(field, n_, is_of_thread_, unit_, unit_name_, title_)                                                       \
    {                                                                                                                  \
        .key = #field, .offset = offsetof(fit_rates_t, field), .n = n_, .is_of_thread = is_of_thread_, .unit = unit_,  \
        .unit_name = unit_name_, .title = title_                                                                       \
    }

const fit_rate_row_t fit_rate_rows[] = {
    ROW(half, 1, true, 1e9, "GFLOP/s", "matrix products, bf16"),
    ROW(single, 1, true, 1e9, "GFLOP/s", "matrix products, fp32"),
    ROW(fp8, 1, true, 1e9, "GFLOP/s", "matrix products, fp8"),
    ROW(size_share, FIT_SIZES, false, 0.01, "%", "... of 2^28, 2^31, 2^34, 2^37"),
    ROW(element, 1, false, 1.0, "multiply-adds", "... an element costs as much as"),
    ROW(attention_forward, 2, true, 1e9, "GFLOP/s", "attention, heads of 64, 128"),
    ROW(attention_backward, 2, true, 1e9, "GFLOP/s", "... backward"),
    ROW(tile, 1, false, 1.0, "keys", "... computed beside the triangle"),
    ROW(pass, 1, true, 1e9, "GB/s", "passes over memory"),
    ROW(cast, 1, true, 1e9, "GB/s", "casts to fp8"),
    ROW(sum, 1, true, 1e9, "GB/s", "sums of gradients"),
    ROW(adam, 1, true, 1e9, "GB/s", "AdamW"),
    ROW(link, 1, false, 1e9, "GB/s", "from ranks of the host"),
    ROW(network, 1, false, 1e9, "GB/s", "from other hosts"),
    ROW(pcie, 1, false, 1e9, "GB/s", "host memory, one GPU"),
    ROW(host_pcie, 1, false, 1e9, "GB/s", "... all GPUs of a host"),
    ROW(host_adam, 1, false, 1e9, "GB/s", "AdamW on the host"),
};
const int n_fit_rate_rows = (int)(sizeof fit_rate_rows / sizeof fit_rate_rows[0]);
