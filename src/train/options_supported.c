/* options_supported.c - settings that are in the contract but not in this version: refused, never ignored.
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
        {options->model.arch == ARCH_LLAMA, "[model] arch = llama"},
        {options->data.format == FORMAT_MEGATRON, "[data] format = megatron"},
        {options->zero.offload == OFFLOAD_OPTIMIZER, "[zero] offload = optimizer"},
        {options->zero.reduction == REDUCTION_NCCL, "[zero] reduction = nccl"},
        {options->checkpoint.dir[0] != 0, "[checkpoint] dir"},
        {options->checkpoint.every != 0, "[checkpoint] every"},
        {options->resume, "--resume"},
        {options->log.tensorboard[0] != 0, "[log] tensorboard"},
        {options->log.trace[0] != 0, "[log] trace"},
    };
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++)
        if (missing[i].asked)
            return report_error(ZERO_ERROR_USAGE, "%s is not in this version", missing[i].what);
    return ZERO_OK;
}
