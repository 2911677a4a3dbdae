/* main.c - zerotrain's main: reads the options, joins the ranks, runs, and returns the exit code. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "train/checkpoints.h"
#include "train/data/data.h"
#include "train/hub/adapter_config.h"
#include "train/hub/hf_config.h"
#include "train/hub/merge.h"
#include "train/options/lora_targets.h"
#include "train/options/options.h"
#include "train/options/options_table.h"
#include "train/page/page.h"
#include "train/planning/auto_settings.h"
#include "train/planning/fit_command.h"
#include "train/planning/show_plan.h"
#include "train/rates/calibrate_command.h"
#include "train/report/process.h"
#include "train/report/report.h"
#include "train/run.h"
#include "train/run_directory.h"
#include "train/text/evaluate.h"
#include "train/text/generate.h"

/* Opens descriptors 0 to 2 if the program was started without them: the next file to be opened would get one of them,
 * and log lines would be written into it. stdin is opened for writing and the others for reading, so that using them
 * fails as if they were closed, and lost output is noticed. */
static bool take_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

/* Lets error lines name this host if there are several. */
static void name_host(const zero_comm_t *comm)
{
    char host[64] = "?";
    if (zero_comm_local_size(comm) == zero_comm_size(comm))
        return;
    gethostname(host, sizeof host - 1);
    report_set_host(host);
}

/* Ends this rank, and with it the job, since others do not start. Called while MPI's start waits for them. */
static void end_late_start(void *unused)
{
    (void)unused;
    int exit_code = report_exit_code(
        report_rank_error(ZERO_ERROR_TIMEOUT, "not every rank has started: this one ends, and with it the job"));
    report_flush();
    _exit(exit_code);
}

/* Resolves [device] type on each rank's host. Hosts with different results cannot train together. */
static zero_status_t resolve_device(options_t *options, zero_comm_t *comm)
{
    static const char *const NAMES[] = {
        [ZERO_DEVICE_CPU] = "cpu", [ZERO_DEVICE_CUDA] = "cuda", [ZERO_DEVICE_CUDA_SHARED] = "cuda-shared"};
    zero_device_type_t mine = zero_device_resolve((zero_device_type_t)options->device.type, comm), first = mine;
    zero_status_t status = ZERO_OK;
    char host[256] = "?";
    ZERO_TRY(zero_comm_broadcast(comm, &first, sizeof first, 0));
    gethostname(host, sizeof host - 1);
    if (mine != first)
        status = report_error(ZERO_ERROR_USAGE,
                              "[device] type: on host %s, with %d ranks, it means %s, on rank 0's %s: set it to "
                              "cpu, or use hosts that all have GPUs",
                              host, zero_comm_local_size(comm), NAMES[mine], NAMES[first]);
    options->device.type = (int)mine;
    return report_agree(comm, status);
}

/* Turns --auto-resume into --resume if there is a checkpoint in checkpoint.dir or memory_dir; a --resume DIR given as
 * well is for the case that there is none. */
static zero_status_t find_checkpoint(options_t *options, zero_comm_t *comm)
{
    checkpoints_found_t found;
    if (!options->auto_resume)
        return ZERO_OK;
    ZERO_TRY(checkpoints_find(&options->checkpoint, comm, &found));
    if (found.on_disk > 0 || found.in_memory > 0) {
        options->resume = true;
        options->resume_dir[0] = 0;
    }
    return ZERO_OK;
}

/* What every command but fit needs: settings that fit each other, and a device. */
static zero_status_t resolve(options_t *options, zero_comm_t *comm)
{
    ZERO_TRY(report_agree(comm, options_resolve(options, zero_comm_size(comm))));
    ZERO_TRY(report_agree(comm, placement_check_groups(options, comm)));
    ZERO_TRY(resolve_device(options, comm));
    generate_choose(&options->train, (zero_device_type_t)options->device.type);
    return report_agree(comm, options_check_device(options));
}

/* Chooses what depends on the data's headers: as rank 0 finds them, since a host may have other files. */
static zero_status_t choose_packing(options_t *options, zero_comm_t *comm)
{
    if (options->command == COMMAND_GENERATE)
        return ZERO_OK;
    ZERO_TRY(report_agree(comm, data_choose_packing(&options->data)));
    ZERO_TRY(zero_comm_broadcast(comm, &options->data.packing, sizeof options->data.packing, 0));
    return zero_comm_broadcast(comm, options->data.val_packing, sizeof options->data.val_packing, 0);
}

static zero_status_t run_generate(options_t *options, zero_comm_t *comm)
{
    prompt_t prompt = {0};
    zero_status_t status = generate_read(options, comm, &prompt);
    if (status == ZERO_OK)
        status = resolve(options, comm);
    if (status == ZERO_OK && options->plan) {
        status = report_agree(comm, show_plan(options, comm));
    } else if (status == ZERO_OK) {
        status = fit_check_forward(options, comm);
        status = status == ZERO_OK ? generate(options, comm, &prompt) : status;
    }
    prompt_close(&prompt);
    return status;
}

static zero_status_t calibrate(options_t *options, zero_comm_t *comm)
{
    ZERO_TRY(resolve_device(options, comm));
    return calibrate_command((zero_device_type_t)options->device.type, comm);
}

/* Fills in what the model's and the adapter's own files say. */
static zero_status_t find_model(options_t *options)
{
    ZERO_TRY(adapter_find(options));
    ZERO_TRY(hf_config_apply(options));
    return adapter_config_apply(options);
}

/* Rank 0 writes the model alone. */
static zero_status_t merge(options_t *options, zero_comm_t *comm)
{
    zero_status_t status = ZERO_OK;
    if (zero_comm_rank(comm) == 0)
        status = find_model(options);
    if (zero_comm_rank(comm) == 0 && status == ZERO_OK && !options_init_is_random(options->lora.init))
        status = lora_targets_parse(options->model.arch, options->lora.targets, &options->lora.target_set);
    if (zero_comm_rank(comm) == 0 && status == ZERO_OK)
        status = merge_write(options);
    return report_agree(comm, status);
}

static zero_status_t run(options_t *options, zero_comm_t *comm, loop_end_t *end)
{
    int lock = 0;
    ZERO_TRY(options_compare(options, comm));
    if (options->command == COMMAND_REPORT)
        return report_agree(comm, zero_comm_rank(comm) == 0 ? page_write(&options->report) : ZERO_OK);
    if (options->command == COMMAND_CALIBRATE)
        return calibrate(options, comm);
    if (options_write_model(options))
        return merge(options, comm);
    if (options->command == COMMAND_TRAIN && !options->plan) /* the run before may be saving its last checkpoint */
        ZERO_TRY(run_directory_lock(options->checkpoint.dir, comm, &lock));
    ZERO_TRY(find_checkpoint(options, comm));
    ZERO_TRY(report_agree(comm, find_model(options)));
    ZERO_TRY(options_compare(options, comm));
    ZERO_TRY(choose_packing(options, comm));
    if (options->command == COMMAND_FIT)
        return report_agree(comm, fit_command(options, comm));
    if (options->command == COMMAND_GENERATE)
        return run_generate(options, comm);
    ZERO_TRY(resolve(options, comm));
    if (options->plan)
        return report_agree(comm, show_plan(options, comm));
    if (options->command == COMMAND_EVALUATE) {
        ZERO_TRY(fit_check_forward(options, comm));
        return evaluate(options, comm);
    }
    ZERO_TRY(fit_choose_auto(options, comm));
    zero_status_t status = loop_run(options, comm, &lock, end);
    run_directory_unlock(&lock);
    return status;
}

/* Returns the exit code. A run that a signal stopped has its own code if it was saved, so that a batch script can tell
 * that nothing is lost. With --auto-resume so has one whose state is not finite: repeated, it would end so again. */
static int exit_code_of(zero_status_t status, loop_end_t end, bool auto_resume)
{
    static const int codes[] = {[LOOP_COMPLETE] = 0,
                                [LOOP_STOPPED_SAVED] = STOP_EXIT_CODE,
                                [LOOP_STOPPED_UNSAVED] = 1,
                                [LOOP_ALL_SKIPPED] = 1,
                                [LOOP_NOT_LOGGED] = 1};
    if (status == ZERO_ERROR_NONFINITE)
        return auto_resume ? 4 : 1;
    return status == ZERO_OK ? codes[end] : report_exit_code(status);
}

/* Flushes stdout. Returns 0, or why it could not all be written. */
static int flush_stdout(void)
{
    if (fflush(stdout) != 0)
        return errno;
    if (!ferror(stdout))
        return 0;
    /* An earlier write failed, whose reason is lost; another one fails for the same. */
    clearerr(stdout);
    return putchar('\n') == EOF || fflush(stdout) != 0 ? errno : EIO;
}

/* If help, a plan or samples could not be written, the program has failed. */
static int finish_output(int exit_code)
{
    int error = flush_stdout();
    if (error == 0)
        return exit_code;
    report_rank_error(ZERO_ERROR_IO, "cannot write to stdout: %s", strerror(error));
    report_flush();
    return exit_code != 0 ? exit_code : report_exit_code(ZERO_ERROR_IO);
}

int main(int argc, char **argv)
{
    static options_t options; /* large: paths */
    options_action_t action;
    zero_comm_t *comm;
    loop_end_t end = LOOP_COMPLETE;

    phases_begin();
    if (!take_standard_descriptors())
        return report_exit_code(report_rank_error(ZERO_ERROR_IO, "cannot open /dev/null: %s", strerror(errno)));
    stop_with_launcher();
    signal(SIGXFSZ, SIG_IGN); /* writing beyond a file size limit then fails with a log line */
    report_init(zero_comm_launch_rank(), 1);
    report_hold_errors(true);
    zero_status_t parsed = options_parse(argc, argv, &options, &action);
    if (parsed == ZERO_OK && action == OPTIONS_EXIT_OK) /* --help needs no communicator */
        return finish_output(report_exit_code(parsed));
    if (options.command == COMMAND_TRAIN && !options.plan)
        stop_at_start();

    /* The ranks meet even after a bad configuration: the first rank to exit would end the job before rank 0 has printed
     * the error, and a rank that finds one alone (its host has another file) must print it itself. */
    zero_comm_on_late_start(end_late_start, NULL);
    zero_status_t status =
        zero_comm_create(parsed == ZERO_OK ? (zero_comm_kind_t)options.zero.comm : ZERO_COMM_AUTO, &comm);
    if (status != ZERO_OK) {
        report_flush();
        return report_exit_code(status);
    }
    phases_end("joining ranks");
    name_host(comm);
    report_init(zero_comm_rank(comm), zero_comm_size(comm));
    status = report_agree(comm, parsed);
    if (status == ZERO_OK)
        status = run(&options, comm, &end);
    report_hold_errors(false);
    int exit_code = finish_output(exit_code_of(status, end, options.auto_resume));
    /* All ranks return a usage error together, and end normally. After any other error peers may be waiting. */
    if (status != ZERO_OK && status != ZERO_ERROR_USAGE)
        zero_comm_abort(comm, exit_code); /* returns only without MPI */
    zero_comm_destroy(comm);
    return exit_code;
}
