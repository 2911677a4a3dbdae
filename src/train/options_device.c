/* options_supported.c - settings that are in the contract but not in this version, or not with this device: refused,
 * never ignored.
 *
 * When one arrives its row here goes.
 */
#include "train/options_table.h"
#include "train/report.h"

zero_status_t options_check_supported(const options_t *options)
{
    const struct {
        bool asked;
        const char *what;
    } missing[] = {
        {options->zero.reduction == REDUCTION_NCCL, "[zero] reduction = nccl"},
    };
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++)
        if (missing[i].asked)
            return report_error(ZERO_ERROR_USAGE, "%s is not in this version", missing[i].what);
    return ZERO_OK;
}

/* On the CPU the optimizer's state is in host memory anyway: there offload asks for nothing. */
zero_status_t options_check_device(const options_t *options)
{
    bool on_gpu = options->device.type == ZERO_DEVICE_CUDA;
    if (on_gpu && options->zero.offload == OFFLOAD_OPTIMIZER && options->zero.stage == 0 && !options->plan)
        return report_error(ZERO_ERROR_USAGE, "[zero] offload = optimizer: there is none at stage 0, where every rank "
                                              "holds all state: take stage 1, 2 or 3");
    if (!on_gpu && options->zero.comm == ZERO_COMM_NCCL)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] comm = nccl: NCCL is for GPUs, and this run is on the CPU: use auto "
                            "or mpi");
    return ZERO_OK;
}
