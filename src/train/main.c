/* main.c - zerotrain: arguments, ranks, run, exit code. */
#include "train/hf_config.h"
#include "train/loop.h"
#include "train/options.h"
#include "train/report.h"

static zero_status_t run(options_t *options, zero_comm_t *comm)
{
    TRY(report_agree(comm, hf_config_apply(options)));
    TRY(options_resolve(options, zero_comm_size(comm)));
    return options->plan ? loop_print_plan(options, comm) : loop_run(options, comm);
}

int main(int argc, char **argv)
{
    static options_t options; /* large: paths */
    options_action_t action;
    zero_comm_t *comm;

    /* Before there is a communicator, so that --help and a bad command line need none. */
    report_init(zero_comm_launch_rank(), 1);
    zero_status_t status = options_parse(argc, argv, &options, &action);
    if (status != ZERO_OK || action == OPTIONS_EXIT_OK)
        return report_exit_code(status);

    status = zero_comm_create((zero_comm_kind_t)options.zero.comm, &comm);
    if (status != ZERO_OK)
        return report_exit_code(status);
    report_init(zero_comm_rank(comm), zero_comm_size(comm));
    status = run(&options, comm);
    int exit_code = report_exit_code(status);
    /* Usage errors are seen by every rank alike and end in good order; after any other, peers may be waiting. */
    if (status != ZERO_OK && status != ZERO_ERROR_USAGE)
        zero_comm_abort(comm, exit_code);
    zero_comm_destroy(comm);
    return exit_code;
}
