/* forward.c - see forward.h. */
#include "train/forward/forward.h"

#include "train/report/report.h"

static zero_status_t open_model(forward_t *forward)
{
    const options_t *o = forward->options;
    TRY(report_agree(forward->comm, model_create(o, &forward->model)));
    return report_agree(forward->comm,
                        zero_device_create((zero_device_type_t)o->device.type, forward->comm, &forward->device));
}

static zero_status_t create_engine(forward_t *forward)
{
    zero_memory_t user = {0};
    zero_config_t config = options_config(forward->options, zero_comm_size(forward->comm));
    model_plan(&forward->model, &user);
    forward->model.may_skip_targets = true; /* data are opened later, and may have a mask */
    config.user_bytes = zero_memory_total(&user);
    TRY(zero_engine_create(forward->comm, forward->device, forward->model.declaration, &config, &forward->engine));
    return zero_comm_agree(forward->comm, model_attach(&forward->model, forward->device, forward->engine, 1));
}

zero_status_t forward_open(const options_t *options, zero_comm_t *comm, forward_t *forward)
{
    *forward = (forward_t){.options = options, .comm = comm};
    TRY(open_model(forward));
    TRY(report_agree(comm, create_engine(forward)));
    TRY(report_agree(comm, zero_load_weights(forward->engine, options->model.init)));
    return model_compare_cpus(forward->device, comm);
}

void forward_close(forward_t *forward, bool failed)
{
    if (failed && forward->engine && zero_comm_size(forward->comm) > 1)
        return;
    model_destroy(&forward->model);
    zero_engine_destroy(forward->engine);
    zero_device_destroy(forward->device);
    *forward = (forward_t){0};
}
