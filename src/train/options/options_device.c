/* options_device.c - refuses settings that the device cannot fulfil; none is silently ignored.
 *
 * So that one file runs everywhere, the CPU accepts settings that it fulfils anyway: offload (the optimizer state is in
 * host memory already) and reduction (gradients are summed in the order of micro-batches). The run says so (loop.c).
 */
#include "train/options/options.h"
#include "train/report/report.h"

zero_status_t options_check_device(const options_t *options)
{
    bool on_gpu = options->device.type != ZERO_DEVICE_CPU;
    if (on_gpu && options->zero.offload == OFFLOAD_OPTIMIZER && options->zero.stage == 0 && !options->plan)
        return report_error(ZERO_ERROR_USAGE, "[zero] offload = optimizer: stage 0 cannot, since every rank holds "
                                              "all state: use stage 1, 2 or 3");
    if (options->train.optimizer == ZERO_OPTIMIZER_MUON && options->zero.offload == OFFLOAD_OPTIMIZER)
        return report_error(ZERO_ERROR_USAGE,
                            "[train] optimizer = muon cannot be offloaded: use [zero] offload = none");
    if (!on_gpu && options->zero.comm == ZERO_COMM_NCCL)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] comm = nccl: NCCL is for GPUs, and this run is on the CPU: use auto "
                            "or mpi");
    return ZERO_OK;
}
