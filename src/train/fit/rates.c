/* rates.c - the table of devices. */
#include "train/fit/rates.h"

#include <string.h>
#include <strings.h>

#define GIB 1073741824.0

/* The H200's row was measured. From it the others follow: arithmetic in proportion to the published peaks of the tensor
 * cores, passes and AdamW in proportion to the bandwidth of memory, links in proportion to NVLink's. */
#define GPU(name_, title_, gib, peak, bandwidth, nvlink, pcie_, fp8_)                                                  \
    {                                                                                                                  \
        .name = name_, .title = title_, .is_gpu = true, .memory_bytes = (gib)*GIB, .half = 685e12 * (peak) / 989.4,    \
        .fp8 = fp8_, .single = 47e12 * (peak) / 989.4,                                                                 \
        .attention_forward = {370e12 * (peak) / 989.4, 600e12 * (peak) / 989.4},                                       \
        .attention_backward = {300e12 * (peak) / 989.4, 480e12 * (peak) / 989.4}, .pass = 3.6e12 * (bandwidth) / 4.8,  \
        .cast = 3.9e12 * (bandwidth) / 4.8, .adam = 4.2e12 * (bandwidth) / 4.8, .kernel_s = 3e-6, .wait_s = 8e-6,      \
        .link = 300e9 * (nvlink) / 900, .nccl = 180e9 * (nvlink) / 900, .network = 45e9, .link_lost = 0.05,            \
        .nccl_lost = 0.4, .awake = 0.03, .pcie = pcie_, .host_pcie = 3 * (pcie_), .host_adam = 206e9                   \
    }

const fit_rates_t fit_rates_table[] = {
    GPU("H200", "H200, as measured", 140.4, 989.4, 4.8, 900, 50e9, 1242e12),
    GPU("H100", "H100 SXM, from the H200 by published peaks", 79.6, 989.4, 3.35, 900, 50e9, 1242e12),
    GPU("A100", "A100 SXM 80 GB, from the H200 by published peaks", 80.0, 312.0, 2.04, 600, 25e9, 0),
    GPU("A100-40GB", "A100 SXM 40 GB, from the H200 by published peaks", 40.0, 312.0, 1.555, 600, 25e9, 0),
    /* Two cores with AVX-512 (docs/performance.md). Half precision saves memory there, not time. */
    {.name = "CPU",
     .title = "CPU of two cores with AVX-512",
     .half = 260e9,
     .fp8 = 260e9,
     .single = 260e9,
     .attention_forward = {60e9, 60e9},
     .attention_backward = {60e9, 60e9},
     .pass = 17e9,
     .cast = 17e9,
     .adam = 50e9,
     .kernel_s = 20e-6,
     .link = 8e9,
     .nccl = 8e9,
     .network = 1e9},
};
const int n_fit_rates = (int)(sizeof fit_rates_table / sizeof fit_rates_table[0]);

const fit_rates_t *fit_rates_find(const char *name)
{
    for (int i = 0; i < n_fit_rates; i++)
        if (strcasecmp(fit_rates_table[i].name, name) == 0)
            return &fit_rates_table[i];
    return NULL;
}

const fit_rates_t *fit_rates_of_gpu(const char *vendor_name)
{
    for (int i = 0; i < n_fit_rates; i++)
        if (fit_rates_table[i].is_gpu && strcasestr(vendor_name, fit_rates_table[i].name))
            return &fit_rates_table[i];
    return &fit_rates_table[0];
}

const fit_rates_t *fit_rates_of_cpu(void)
{
    return &fit_rates_table[n_fit_rates - 1];
}
