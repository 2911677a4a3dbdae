/* options_device.c - what hangs on the device: refused where it cannot be had, never ignored.
 *
 * A setting that asks for what the CPU has anyway, or that GPUs alone have a choice of, is not refused there, so that
 * one file runs everywhere: offload (on the CPU the optimizer's state is in host memory), reduction (there gradients
 * are summed in rank order). The run says so (loop.c).
 */
#include "train/options/options.h"
#include "train/report/report.h"

zero_status_t options_check_device(const options_t *options)
{
    bool on_gpu = options->device.type != ZERO_DEVICE_CPU;
    if (on_gpu && options->zero.offload == OFFLOAD_OPTIMIZER && options->zero.stage == 0 && !options->plan)
        return report_error(ZERO_ERROR_USAGE, "[zero] offload = optimizer: there is none at stage 0, where every rank "
                                              "holds all state: take stage 1, 2 or 3");
    if (!on_gpu && options->zero.comm == ZERO_COMM_NCCL)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] comm = nccl: NCCL is for GPUs, and this run is on the CPU: use auto "
                            "or mpi");
    return ZERO_OK;
}
