/* update_settings.c - what an update cannot do with other settings: gradients in bf16, updates within backward, Muon
 * with offload. libzero refuses the same (config.c), in the words of its API; here are those of the file. Called by
 * options_resolve.
 */
#include "train/options/options.h"
#include "train/report/report.h"

static zero_status_t check_gradients(const options_t *o)
{
    if (o->zero.gradients == ZERO_FP32)
        return ZERO_OK;
    if (o->train.precision != ZERO_BF16)
        return report_error(ZERO_ERROR_USAGE,
                            "[zero] gradients = bf16: [train] precision = %s: it is for bf16, use that or gradients = "
                            "fp32",
                            zero_dtype_name((zero_dtype_t)o->train.precision));
    if (o->zero.stage == 0)
        return report_error(ZERO_ERROR_USAGE, "[zero] gradients = bf16: stage 0 gathers reduced gradients in fp32: "
                                              "take stage 1, 2 or 3, or gradients = fp32");
    if (o->train.optimizer == ZERO_OPTIMIZER_MUON)
        return report_error(ZERO_ERROR_USAGE, "[zero] gradients = bf16: [train] optimizer = muon reads gradients in "
                                              "fp32: use gradients = fp32, or another optimizer");
    return ZERO_OK;
}

/* Refuses what must see all gradients before the first unit is updated, or skips steps. */
static zero_status_t check_backward(const options_t *o)
{
    if (o->zero.update == ZERO_UPDATE_IN_STEP)
        return ZERO_OK;
    if (o->train.grad_clip != 0.0)
        return report_error(
            ZERO_ERROR_USAGE,
            "[zero] update = backward: [train] grad_clip = %g: units are updated before the norm of all "
            "gradients is known: set grad_clip = 0, or use update = step",
            o->train.grad_clip);
    if (o->zero.stage == 0)
        return report_error(ZERO_ERROR_USAGE, "[zero] update = backward: at stage 0 every rank updates everything, and "
                                              "needs all gradients for it: take stage 1, 2 or 3, or update = step");
    if (o->train.precision == ZERO_FP16)
        return report_error(ZERO_ERROR_USAGE, "[zero] update = backward: [train] precision = fp16: its loss scale "
                                              "skips steps: use bf16, or update = step");
    if (o->train.optimizer == ZERO_OPTIMIZER_MUON)
        return report_error(ZERO_ERROR_USAGE, "[zero] update = backward: [train] optimizer = muon updates in rounds of "
                                              "all units: use update = step, or another optimizer");
    if (o->zero.offload != OFFLOAD_NONE && o->zero.offload_update == ZERO_OFFLOAD_UPDATE_HOST)
        return report_error(ZERO_ERROR_USAGE, "[zero] update = backward: offload_update = host updates whole steps: "
                                              "use offload_update = device, or update = step");
    return ZERO_OK;
}

zero_status_t options_check_update(const options_t *options)
{
    if (options->train.optimizer == ZERO_OPTIMIZER_MUON && options->zero.offload != OFFLOAD_NONE)
        return report_error(ZERO_ERROR_USAGE, "[train] optimizer = muon cannot be offloaded: its matrices are updated "
                                              "whole, on the device: use [zero] offload = none, or another optimizer");
    if (options_are_forward_only(options))
        return ZERO_OK;
    ZERO_TRY(check_gradients(options));
    return check_backward(options);
}
