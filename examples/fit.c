/* fit.c - plans training without training: which settings of libzero let a model of 8 billion parameters fit GPUs that
 * need not be there, and what its transfers then take.
 *
 *     build/examples/fit [GPUS [GiB of each [GiB of activations]]]
 */
#include <stdio.h>
#include <stdlib.h>

#include "zero.h"

static void check(zero_status_t status)
{
    if (status != ZERO_OK)
        exit(1); /* libzero has logged why */
}

/* The sizes are what counts: an embedding, 32 blocks of 218 million parameters, a head. */
static zero_model_t *declare(void)
{
    zero_model_t *model;
    check(zero_model_create(&model));
    for (int u = 0; u < 34; u++) {
        char name[32];
        zero_unit_t unit;
        zero_tensor_t tensor;
        bool is_block = u > 0 && u < 33;
        snprintf(name, sizeof name, is_block ? "block.%d" : u == 0 ? "embedding" : "head", u);
        zero_tensor_desc_t desc = {
            .name = name, .n_dims = 2, .shape = {is_block ? 53248 : 128256, 4096}, .decay = true};
        check(zero_model_add_unit(model, name, &unit));
        check(zero_model_add_tensor(model, unit, &desc, &tensor));
    }
    return model;
}

int main(int argc, char **argv)
{
    int n_gpus = argc > 1 ? atoi(argv[1]) : 8;
    double gib = argc > 2 ? atof(argv[2]) : 80.0, activations = argc > 3 ? atof(argv[3]) : 24.0;
    zero_model_t *model = declare();
    zero_config_t config = zero_config_default();
    zero_solution_t found;
    config.user_bytes = (size_t)(activations * 0x1p30); /* what the model will take with zero_alloc */
    zero_solve_t limits = {.stage = true,
                           .keep = true,
                           .offload_ratio = true,
                           .device_bytes = (uint64_t)(gib * 0x1p30),
                           .pinned_bytes = (uint64_t)128 << 30,
                           .local_rate = 350e9, /* bytes a second: NVLink, network, PCIe */
                           .network_rate = 45e9,
                           .pcie_rate = 50e9};
    check(zero_solve(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_gpus, &limits, &found));
    printf("%s: stage %d, keep %d, offload_ratio %.3f\n", found.fits ? "fits" : "does not fit", found.config.stage,
           found.config.keep, found.config.offload ? (double)found.config.offload_ratio : 0.0);
    printf("%.2f GiB on each GPU besides activations, %.2f GiB of pinned host memory\n",
           (double)zero_memory_total(&found.memory) / 0x1p30, (double)found.memory.pinned_bytes / 0x1p30);
    printf("transfers take %.1f ms a step\n", found.transfer_s * 1e3);
    zero_model_destroy(model);
    return 0;
}
