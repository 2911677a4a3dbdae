/* main.c - zerotrain: ranks, arguments, run, exit code. */
#include <stdlib.h>

#include "train/hf_config.h"
#include "train/loop.h"
#include "train/options.h"
#include "train/report.h"

static zero_status_t run(int argc, char **argv, options_t *options, zero_comm_t *comm)
{
    options_action_t action;
    TRY(options_parse(argc, argv, options, &action));
    if (action == OPTIONS_EXIT_OK)
        return ZERO_OK;
    TRY(zero_comm_agree(comm, hf_config_apply(options)));
    TRY(options_resolve(options, zero_comm_size(comm)));
    return options->plan ? loop_print_plan(options, comm) : loop_run(options, comm);
}

int main(int argc, char **argv)
{
    static options_t options; /* large: paths */
    zero_comm_t *comm;
    zero_status_t status = zero_comm_create(ZERO_COMM_AUTO, &comm);
    if (status != ZERO_OK)
        return report_exit_code(status);
    report_init(zero_comm_rank(comm), zero_comm_size(comm));
    status = run(argc, argv, &options, comm);
    int exit_code = report_exit_code(status);
    /* Usage errors are seen by every rank alike and end in good order; after any other, peers may be waiting. */
    if (status != ZERO_OK && status != ZERO_ERROR_USAGE)
        zero_comm_abort(comm, exit_code);
    zero_comm_destroy(comm);
    return exit_code;
}
