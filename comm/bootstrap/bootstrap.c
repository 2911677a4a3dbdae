/* bootstrap.c - creates and destroys communicators: starts MPI, finds the ranks and chooses the transport.
 *
 * mpirun, or another PMI launcher, says in the environment which rank a process is. Without a launcher MPI is not
 * touched, and the program runs alone.
 *
 * After a collective has failed (comm->failed), peers may be gone or elsewhere in their program, and any collective
 * could hang. MPI is then not finalized, which launchers rightly take as a failure.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/system.h"
#include "comm/bootstrap/launcher.h"
#include "comm/bootstrap/roll_call.h"
#include "comm/comm.h"
#include "comm/host/mpi.h"
#include "comm/host/progress.h"

/* A process has one MPI, which its communicators share. It can be started only once, and not be used after it is
 * finalized. */
static struct {
    int n_users;      /* communicators that use it now */
    bool initialized; /* by us, so we also finalize it */
    bool failed;      /* a communicator failed: its peers may never come to MPI_Finalize */
} mpi_use;

/* Fails if a launcher started several processes that MPI does not join. Slurm's srun does so without PMIx, or with one
 * that this MPI does not speak: each process would be a job of one rank, and all would write the same files. Of Slurm's
 * only one logs. launch_rank: the rank before MPI made each process rank 0. With other variables there may be no other
 * process: a program that mpirun had started may have left them. */
static zero_status_t check_not_left_alone(const zero_comm_t *comm, int launch_rank, int n_launched)
{
    const char *variable = zero_launcher_size_variable();
    if (comm->size > 1 || n_launched <= 1)
        return ZERO_OK;
    if (!getenv("SLURM_PROCID") || strncmp(variable, "OMPI_", strlen("OMPI_")) == 0)
        return zero_fail(ZERO_ERROR_USAGE,
                         "%s=%d in the environment, but MPI joins no other process: start with mpirun of the MPI that "
                         "this was built with, or, if no launcher started this process, unset what one has left "
                         "behind (env -u %s)",
                         variable, n_launched, variable);
    zero_log_set_rank(launch_rank);
    return zero_fail_collective(
        ZERO_ERROR_USAGE,
        "the launcher started %d processes, but MPI joins none of them: use srun --mpi=pmix (srun "
        "--mpi=list shows what there is) or mpirun; env -u %s makes each a job of its own",
        n_launched, variable);
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
        return zero_fail_collective(ZERO_ERROR_UNSUPPORTED, "MPI was finalized and cannot be started again in the same "
                                                            "process: keep one communicator for the program's life");
    zero_one_host_restrict_mpi();
    zero_start_watch_begin(&watch, timeout_ns);
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    zero_start_watch_end(&watch);
    if (error != MPI_SUCCESS)
        return zero_mpi_fail(error, "MPI_Init_thread");
    mpi_use.initialized = true;
    if (provided < MPI_THREAD_FUNNELED)
        return zero_fail_collective(ZERO_ERROR_UNSUPPORTED, "this MPI does not allow threads (MPI_THREAD_FUNNELED)");
    ZERO_TRY_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    return ZERO_OK;
}

static zero_status_t find_ranks(zero_comm_t *comm, MPI_Comm mpi)
{
    ZERO_TRY_MPI(MPI_Comm_rank(mpi, &comm->rank));
    ZERO_TRY_MPI(MPI_Comm_size(mpi, &comm->size));
    zero_log_set_rank(comm->first_rank + comm->rank);
    ZERO_TRY(zero_timeout_ns(&comm->timeout_ns));
    ZERO_TRY(zero_roll_call(comm, mpi));
    if (zero_hosts_are_several(comm))
        zero_log_set_host(comm->hosts[comm->rank].name);
    return ZERO_OK;
}

static void leave_mpi(const zero_comm_t *comm)
{
    if (!comm->uses_mpi)
        return;
    mpi_use.n_users--;
    mpi_use.failed |= comm->failed;
    if (mpi_use.n_users == 0 && mpi_use.initialized && mpi_is_running() && !mpi_use.failed)
        MPI_Finalize();
}

/* Creates the transport between host memories. It is the same for NCCL as for auto: NCCL joins the GPUs later, once
 * there is a device (src/zero/device/device.c). */
static zero_status_t create_transport(zero_comm_t *comm, const MPI_Comm *mpi)
{
    const bool messages_only = comm->kind == ZERO_COMM_MPI;
    if (!comm->uses_mpi || (comm->size == 1 && !messages_only))
        return zero_comm_self_create(comm);
    ZERO_TRY(zero_comm_mpi_create(comm, mpi));
    if (messages_only || !zero_hosts_are_shared(comm))
        return ZERO_OK;
    zero_status_t status =
        zero_hosts_are_several(comm) ? zero_comm_hierarchical_create(comm) : zero_comm_node_create(comm);
    if (status == ZERO_OK || status == ZERO_ERROR_UNSUPPORTED) /* if unsupported, all ranks stay with mpi */
        return ZERO_OK;
    comm->ops->destroy(comm);
    return status;
}

/* Allocates a communicator of this process alone, for the call of zero.h that makes it. */
static zero_status_t allocate(zero_comm_kind_t kind, const char *call, zero_comm_t **comm)
{
    if (kind != ZERO_COMM_AUTO && kind != ZERO_COMM_MPI && kind != ZERO_COMM_NCCL)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: there is no kind %d", call, (int)kind);
    zero_comm_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator");
    *made = (zero_comm_t){.kind = kind, .size = 1, .local_size = 1, .job_local_size = 1, .call_covers = true};
    zero_call_set_text(made->call.name, sizeof made->call.name, call);
    *comm = made;
    return ZERO_OK;
}

static void use_mpi(zero_comm_t *comm)
{
    comm->uses_mpi = true;
    mpi_use.n_users++;
}

/* Creates what needs the ranks to be known. */
static zero_status_t complete(zero_comm_t *comm, const MPI_Comm *mpi)
{
    comm->scratch = calloc((size_t)comm->size, ZERO_COMM_SCRATCH_BYTES);
    if (!comm->scratch)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a communicator of %d ranks", comm->size);
    ZERO_TRY(create_transport(comm, mpi));
    zero_log(ZERO_LOG_DEBUG, "communicator %s: rank %d of %d, %d of %d on this host", comm->ops->name, comm->rank,
             comm->size, comm->local_rank, comm->local_size);
    return zero_comm_leave(comm, ZERO_OK);
}

/* Frees a communicator whose creation has failed. Returns `status`. */
static zero_status_t discard(zero_comm_t *comm, zero_status_t status)
{
    comm->failed = true; /* the other ranks may not have come this far */
    leave_mpi(comm);
    free(comm->hosts);
    free(comm->scratch);
    free(comm);
    return status;
}

/* ---- all ranks of the job ---- */

static zero_status_t join_world(zero_comm_t *comm)
{
    const int launch_rank = zero_comm_launch_rank(), n_launched = zero_launcher_size();
    MPI_Comm world = MPI_COMM_WORLD;
    zero_log_set_rank(launch_rank);
    ZERO_TRY(zero_timeout_ns(&comm->timeout_ns));
    if (zero_launcher_rank() >= 0 || mpi_is_running()) {
        use_mpi(comm);
        if (!mpi_is_running())
            ZERO_TRY(initialize_mpi(comm->timeout_ns));
        ZERO_TRY(find_ranks(comm, world));
        if (comm->local_size == comm->size)
            zero_one_host_restrict_nccl();
    }
    comm->is_world = true;
    comm->job_local_rank = comm->local_rank;
    comm->job_local_size = comm->local_size;
    ZERO_TRY(check_not_left_alone(comm, launch_rank, n_launched));
    return complete(comm, &world);
}

zero_status_t zero_comm_create(zero_comm_kind_t kind, zero_comm_t **comm)
{
    zero_comm_t *made = NULL;
    ZERO_REQUIRE(comm);
    ZERO_TRY(allocate(kind, "zero_comm_create", &made));
    zero_status_t status = join_world(made);
    if (status != ZERO_OK)
        return discard(made, status);
    *comm = made;
    return ZERO_OK;
}

/* ---- the caller's ranks ---- */

/* Returns true for MPI_COMM_NULL and for what is no handle: Open MPI's is a pointer, MPICH's an int that is not 0. */
static bool is_null(MPI_Comm mpi)
{
    return mpi == MPI_COMM_NULL || mpi == (MPI_Comm)0;
}

static zero_status_t check_callers(const char *call, const MPI_Comm *mpi)
{
    int is_inter = 0;
    if (!mpi)
        return ZERO_OK;
    if (!mpi_is_running())
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: MPI is not running: call it between MPI_Init and MPI_Finalize",
                         call);
    if (is_null(*mpi))
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: mpi_comm is MPI_COMM_NULL: only ranks of a communicator can join it",
                         call);
    ZERO_TRY_MPI(MPI_Comm_test_inter(*mpi, &is_inter));
    if (is_inter)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: mpi_comm is an intercommunicator: merge it first", call);
    return ZERO_OK;
}

/* NCCL is kept off the network only if the launcher says that the whole job is on this host: other communicators of the
 * process may have ranks elsewhere. */
static zero_status_t join_callers(zero_comm_t *comm, const MPI_Comm *mpi)
{
    if (mpi) {
        use_mpi(comm);
        ZERO_TRY(find_ranks(comm, *mpi));
    } else {
        zero_log_set_rank(comm->first_rank);
        ZERO_TRY(zero_timeout_ns(&comm->timeout_ns));
    }
    zero_launcher_local(&comm->job_local_rank, &comm->job_local_size);
    if (comm->job_local_size < comm->local_size) {
        comm->job_local_rank = comm->local_rank;
        comm->job_local_size = comm->local_size;
    }
    if (zero_one_host_is_launched())
        zero_one_host_restrict_nccl();
    return complete(comm, mpi);
}

/* first_rank: as zero_comm_t has it. */
static zero_status_t create_from(zero_comm_kind_t kind, const char *call, const MPI_Comm *mpi, int first_rank,
                                 zero_comm_t **comm)
{
    zero_comm_t *made = NULL;
    ZERO_TRY(check_callers(call, mpi));
    ZERO_TRY(allocate(kind, call, &made));
    made->first_rank = first_rank;
    zero_status_t status = join_callers(made, mpi);
    if (status != ZERO_OK)
        return discard(made, status);
    *comm = made;
    return ZERO_OK;
}

zero_status_t zero_comm_create_from(zero_comm_kind_t kind, const void *mpi_comm, zero_comm_t **comm)
{
    ZERO_REQUIRE(comm);
    return create_from(kind, "zero_comm_create_from", mpi_comm, 0, comm);
}

zero_status_t zero_comm_create_from_f(zero_comm_kind_t kind, int fortran_comm, zero_comm_t **comm)
{
    ZERO_REQUIRE(comm);
    const MPI_Comm mpi = mpi_is_running() ? MPI_Comm_f2c((MPI_Fint)fortran_comm) : MPI_COMM_NULL;
    return create_from(kind, "zero_comm_create_from_f", &mpi, 0, comm);
}

/* ---- groups ---- */

zero_status_t zero_comm_split(zero_comm_t *comm, int n, const char *call, zero_comm_t **group)
{
    MPI_Comm ranks = MPI_COMM_NULL;
    if (n > 1) {
        ZERO_ASSERT(comm->mpi && comm->size % n == 0);
        ZERO_TRY_MPI(MPI_Comm_split(*(const MPI_Comm *)comm->mpi, comm->rank / n, comm->rank % n, &ranks));
    }
    zero_status_t status = create_from(comm->kind, call, n > 1 ? &ranks : NULL, comm->rank / n * n, group);
    if (n > 1)
        MPI_Comm_free(&ranks);
    return status;
}

/* ---- the end ---- */

static void end(zero_comm_t *comm)
{
    zero_comm_enter(comm, &(zero_call_t){.name = "zero_comm_destroy"}, true);
    if (comm->uses_mpi && !mpi_is_running()) {
        zero_log(ZERO_LOG_ERROR, "zero_comm_destroy after MPI_Finalize: destroy communicators before it");
        comm->failed = true; /* nothing of MPI may be called */
    }
    comm->ops->destroy(comm);
    leave_mpi(comm);
    free(comm->hosts);
    free(comm->scratch);
    free(comm);
}

void zero_comm_destroy(zero_comm_t *comm)
{
    if (comm && zero_users_release(&comm->users, "zero_comm_destroy"))
        end(comm);
}

void zero_comm_drop(zero_comm_t *comm, zero_user_t user)
{
    if (zero_users_leave(&comm->users, user))
        end(comm);
}

/* One rank's transport does not use MPI, so it ends the job here. */
void zero_comm_abort(zero_comm_t *comm, int exit_code)
{
    if (!comm)
        return;
    comm->ops->abort(comm, exit_code);
    if (mpi_is_running() && (comm->is_world || comm->uses_mpi))
        MPI_Abort(comm->is_world ? MPI_COMM_WORLD : MPI_COMM_SELF, exit_code != 0 ? exit_code : 1);
}
