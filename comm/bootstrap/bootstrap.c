/* bootstrap.c - creates and destroys communicators: starts MPI, finds the ranks and chooses the transport.
 *
 * mpirun, or another PMI launcher, says in the environment which rank a process is. Without a launcher MPI is not
 * touched, and the program runs alone.
 *
 * After a collective has failed (comm->failed), peers may be gone or elsewhere in their program, and any collective
 * could hang. MPI is then not finalized, which launchers rightly take as a failure.
 */
#include <stdlib.h>

#include "base/deadline.h"
#include "base/log.h"
#include "comm/bootstrap/one_host.h"
#include "comm/bootstrap/roll_call.h"
#include "comm/bootstrap/start_watch.h"
#include "comm/comm.h"
#include "comm/host/mpi_status.h"

/* A process has one MPI, which its communicators share. It can be started only once, and not be used after it is
 * finalized. */
static struct {
    int n_users;      /* communicators that use it now */
    bool initialized; /* by us, so we also finalize it */
} mpi_use;

/* Returns the number in the first of these variables that is set, or `missing` if none is. */
static int from_environment(const char *const *names, int missing)
{
    for (; *names; names++)
        if (getenv(*names))
            return atoi(getenv(*names));
    return missing;
}

/* Returns the rank that a launcher gave this process, known before MPI runs; -1 without a launcher. */
static int launched_rank(void)
{
    return from_environment((const char *const[]){"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL}, -1);
}

int zero_comm_launch_rank(void)
{
    const int rank = launched_rank();
    return rank >= 0 ? rank : from_environment((const char *const[]){"SLURM_PROCID", NULL}, 0);
}

/* Returns how many processes the launcher says it has started; 1 if it does not say. */
static int launched_size(void)
{
    return from_environment((const char *const[]){"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL}, 1);
}

/* Fails if a launcher started several processes that MPI does not join. Slurm's srun does so without PMIx, or with one
 * that this MPI does not speak: each process would be a job of one rank, and all would write the same files.
 * launch_rank: the rank before MPI made each process rank 0, so that only one of them logs. */
static zero_status_t check_not_left_alone(const zero_comm_t *comm, int launch_rank, int n_launched)
{
    if (comm->size > 1 || n_launched <= 1)
        return ZERO_OK;
    zero_log_set_rank(launch_rank);
    return zero_fail_alike(ZERO_ERROR_USAGE,
                           "the launcher started %d processes, but MPI joins none of them: use srun --mpi=pmix (srun "
                           "--mpi=list shows what there is) or mpirun; env -u SLURM_STEP_NUM_TASKS makes each a job "
                           "of its own",
                           n_launched);
}

static bool mpi_is_running(void)
{
    int initialized = 0, finalized = 0;
    return MPI_Initialized(&initialized) == MPI_SUCCESS && MPI_Finalized(&finalized) == MPI_SUCCESS && initialized &&
           !finalized;
}

static zero_status_t initialize_mpi(int64_t timeout_ns)
{
    zero_start_watch_t watch;
    int finalized = 0, provided = MPI_THREAD_SINGLE;
    ZERO_TRY_MPI(MPI_Finalized(&finalized));
    if (finalized)
        return zero_fail_alike(ZERO_ERROR_UNSUPPORTED, "MPI was finalized and cannot be started again in the same "
                                                       "process: keep one communicator for the program's life");
    zero_one_host_restrict_mpi();
    zero_start_watch_begin(&watch, timeout_ns);
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    zero_start_watch_end(&watch);
    if (error != MPI_SUCCESS)
        return zero_mpi_fail(error, "MPI_Init_thread");
    mpi_use.initialized = true;
    if (provided < MPI_THREAD_FUNNELED)
        return zero_fail_alike(ZERO_ERROR_UNSUPPORTED, "this MPI does not allow threads (MPI_THREAD_FUNNELED)");
    ZERO_TRY_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    return ZERO_OK;
}

static zero_status_t find_ranks(zero_comm_t *comm)
{
    MPI_Comm host;
    ZERO_TRY_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &comm->rank));
    ZERO_TRY_MPI(MPI_Comm_size(MPI_COMM_WORLD, &comm->size));
    zero_log_set_rank(comm->rank);
    ZERO_TRY(zero_roll_call(comm)); /* the calls below would wait forever for a missing rank */
    ZERO_TRY_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    ZERO_TRY_MPI(MPI_Comm_rank(host, &comm->local_rank));
    ZERO_TRY_MPI(MPI_Comm_size(host, &comm->local_size));
    ZERO_TRY_MPI(MPI_Comm_free(&host));
    return ZERO_OK;
}

static void leave_mpi(const zero_comm_t *comm)
{
    if (!comm->uses_mpi)
        return;
    mpi_use.n_users--;
    if (mpi_use.n_users == 0 && mpi_use.initialized && mpi_is_running() && !comm->failed)
        MPI_Finalize();
}

/* Creates the transport between host memories. It is the same for NCCL as for auto: NCCL joins the GPUs later, once
 * there is a device (src/zero/device/device.c). */
static zero_status_t create_transport(zero_comm_t *comm)
{
    const bool messages_only = comm->kind == ZERO_COMM_MPI;
    if (!comm->uses_mpi || (comm->size == 1 && !messages_only))
        return zero_comm_self_create(comm);
    ZERO_TRY(zero_comm_mpi_create(comm));
    if (messages_only || comm->local_size != comm->size)
        return ZERO_OK;
    zero_status_t status = zero_comm_node_create(comm);
    if (status == ZERO_OK || status == ZERO_ERROR_UNSUPPORTED) /* if unsupported, all ranks stay with mpi */
        return ZERO_OK;
    comm->ops->destroy(comm);
    return status;
}

zero_status_t zero_comm_create(zero_comm_kind_t kind, zero_comm_t **comm)
{
    ZERO_REQUIRE(comm);
    if (kind != ZERO_COMM_AUTO && kind != ZERO_COMM_MPI && kind != ZERO_COMM_NCCL)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_comm_create: there is no kind %d", (int)kind);
    const int rank = launched_rank(), launch_rank = zero_comm_launch_rank(), n_launched = launched_size();
    zero_log_set_rank(launch_rank);

    zero_status_t status;
    zero_comm_t *made = calloc(1, sizeof(*made));
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator");
    *made = (zero_comm_t){.kind = kind, .size = 1, .local_size = 1};
    zero_comm_enter(made, &(zero_call_t){.name = "zero_comm_create"}, true);
    ZERO_TRY_GOTO(zero_timeout_ns(&made->timeout_ns), free_comm);
    if (rank >= 0 || mpi_is_running()) {
        made->uses_mpi = true;
        mpi_use.n_users++;
        if (!mpi_is_running())
            ZERO_TRY_GOTO(initialize_mpi(made->timeout_ns), leave);
        ZERO_TRY_GOTO(find_ranks(made), leave);
        if (made->local_size == made->size)
            zero_one_host_restrict_nccl();
    }
    ZERO_TRY_GOTO(check_not_left_alone(made, launch_rank, n_launched), leave);
    made->scratch = calloc((size_t)made->size, ZERO_COMM_SCRATCH_BYTES);
    if (!made->scratch) {
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", made->size);
        goto leave;
    }
    ZERO_TRY_GOTO(create_transport(made), leave);
    zero_log(ZERO_LOG_DEBUG, "communicator %s: rank %d of %d, %d of %d on this host", made->ops->name, made->rank,
             made->size, made->local_rank, made->local_size);
    *comm = made;
    return zero_comm_leave(made, ZERO_OK);

leave:
    made->failed = true; /* the other ranks may not have come this far */
    leave_mpi(made);
free_comm:
    free(made->scratch);
    free(made);
    return status;
}

static void end(zero_comm_t *comm)
{
    zero_comm_enter(comm, &(zero_call_t){.name = "zero_comm_destroy"}, true);
    comm->ops->destroy(comm);
    leave_mpi(comm);
    free(comm->scratch);
    free(comm);
}

void zero_comm_destroy(zero_comm_t *comm)
{
    if (comm && zero_users_let_go(&comm->users, "zero_comm_destroy"))
        end(comm);
}

void zero_comm_drop(zero_comm_t *comm, zero_user_t user)
{
    if (zero_users_leave(&comm->users, user))
        end(comm);
}

void zero_comm_abort(zero_comm_t *comm, int exit_code)
{
    if (!comm)
        return;
    comm->ops->abort(comm, exit_code);
    if (mpi_is_running()) /* one rank under mpirun: its transport does not use MPI */
        MPI_Abort(MPI_COMM_WORLD, exit_code != 0 ? exit_code : 1);
}
