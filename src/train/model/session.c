/* session.c - see session.h. */
#include "train/model/session.h"

#include "train/report/report.h"

zero_status_t session_open(const options_t *options, zero_comm_t *comm, session_t *session)
{
    *session = (session_t){.options = options, .comm = comm};
    TRY(report_agree(comm, model_create(options, &session->model)));
    return report_agree(comm, zero_device_create((zero_device_type_t)options->device.type, comm, &session->device));
}

zero_status_t session_create_engine(session_t *session, int64_t n_in_flight)
{
    zero_memory_t user = {0};
    zero_config_t config = options_config(session->options, zero_comm_size(session->comm));
    model_plan(&session->model, &user);
    config.user_bytes = zero_memory_total(&user);
    TRY(zero_engine_create(session->comm, session->device, session->model.declaration, &config, &session->engine));
    return zero_comm_agree(session->comm, model_attach(&session->model, session->device, session->engine, n_in_flight));
}

zero_status_t session_open_forward(const options_t *options, zero_comm_t *comm, session_t *session)
{
    TRY(session_open(options, comm, session));
    session->model.may_skip_targets = true; /* data are opened later, and may have a mask */
    TRY(report_agree(comm, session_create_engine(session, 1)));
    TRY(report_agree(comm, zero_load_weights(session->engine, options->model.init)));
    return model_compare_cpus(session->device, comm);
}

void session_close(session_t *session, bool failed)
{
    if (failed && session->engine && zero_comm_size(session->comm) > 1)
        return;
    model_destroy(&session->model);
    zero_engine_destroy(session->engine);
    zero_device_destroy(session->device);
}
