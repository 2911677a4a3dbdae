/* bootstrap.c - how ranks find each other, and what every communicator can do whatever its transport.
 *
 * A rank that mpirun (or another PMI launcher) started knows it from its environment; without that MPI is not touched,
 * so a program runs alone as on any machine. The transport is chosen once, here, and the small operations of zero.h are
 * written on the transport's host_all_gather and host_broadcast, so that their results do not depend on it.
 *
 * When a collective has failed (comm->failed) peers may be gone or elsewhere in their program, and anything collective
 * could hang: MPI is then left unfinalized, which launchers take as the failure that it is.
 */
#include <stdlib.h>

#include "comm/comm.h"
#include "base/deadline.h"
#include "comm/host/mpi_status.h"
#include "comm/bootstrap/one_host.h"
#include "comm/bootstrap/roll_call.h"
#include "base/log.h"
#include "comm/bootstrap/start_watch.h"

/* MPI is one per process: communicators share it, and it can be neither started twice nor used once it is finalized. */
static struct {
    int n_users;      /* communicators that use it now */
    bool initialized; /* by us, so finalizing is ours too */
} mpi_use;

/* The number in the first of these variables that the environment has; `missing` where it has none. */
static int from_environment(const char *const *names, int missing)
{
    for (; *names; names++)
        if (getenv(*names))
            return atoi(getenv(*names));
    return missing;
}

/* The rank that a launcher gave this process, known before MPI runs; -1 without a launcher. */
static int launched_rank(void)
{
    return from_environment((const char *const[]){"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL}, -1);
}

int zero_comm_launch_rank(void)
{
    const int rank = launched_rank();
    return rank >= 0 ? rank : from_environment((const char *const[]){"SLURM_PROCID", NULL}, 0);
}

/* How many processes a launcher says that it has started; 1 where it does not say. */
static int launched_size(void)
{
    return from_environment((const char *const[]){"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL}, 1);
}

/* Slurm's srun starts what it cannot tell a rank (no PMIx, or one that this MPI does not speak) all the same, and each
 * would be a job of one rank, all writing the same files. `speaker`: the rank as it was before MPI took each for rank
 * 0. */
static zero_status_t check_not_left_alone(const zero_comm_t *comm, int speaker, int n_launched)
{
    if (comm->size > 1 || n_launched <= 1)
        return ZERO_OK;
    zero_log_set_rank(speaker);
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
    ZERO_TRY(zero_roll_call(comm)); /* what follows has no end of its own where one is missing */
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

/* Between hosts' memories. With NCCL, which joins GPUs once there is a device (zero/device.c), as with auto. */
static zero_status_t create_transport(zero_comm_t *comm)
{
    const bool messages_only = comm->kind == ZERO_COMM_MPI;
    if (!comm->uses_mpi || (comm->size == 1 && !messages_only))
        return zero_comm_self_create(comm);
    ZERO_TRY(zero_comm_mpi_create(comm));
    if (messages_only || comm->local_size != comm->size)
        return ZERO_OK;
    zero_status_t status = zero_comm_node_create(comm);
    if (status == ZERO_OK || status == ZERO_ERROR_UNSUPPORTED) /* the latter on all ranks alike: they stay with mpi */
        return ZERO_OK;
    comm->ops->destroy(comm);
    return status;
}

zero_status_t zero_comm_create(zero_comm_kind_t kind, zero_comm_t **comm)
{
    ZERO_REQUIRE(comm);
    if (kind != ZERO_COMM_AUTO && kind != ZERO_COMM_MPI && kind != ZERO_COMM_NCCL)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_comm_create: there is no kind %d", (int)kind);
    const int rank = launched_rank(), speaker = zero_comm_launch_rank(), n_launched = launched_size();
    zero_log_set_rank(speaker);

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
    ZERO_TRY_GOTO(check_not_left_alone(made, speaker, n_launched), leave);
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
    made->failed = true; /* whether the others came as far is not known */
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

int zero_comm_rank(const zero_comm_t *comm)
{
    return comm ? comm->rank : -1;
}

int zero_comm_size(const zero_comm_t *comm)
{
    return comm ? comm->size : 0;
}

int zero_comm_local_rank(const zero_comm_t *comm)
{
    return comm ? comm->local_rank : -1;
}

int zero_comm_local_size(const zero_comm_t *comm)
{
    return comm ? comm->local_size : 0;
}

const char *zero_comm_name(const zero_comm_t *comm)
{
    return comm ? comm->ops->name : "";
}

zero_comm_kind_t zero_comm_get_kind(const zero_comm_t *comm)
{
    return comm && comm->ops->staging_bytes(2, 1) > 0 ? ZERO_COMM_MPI : ZERO_COMM_AUTO;
}

/* ---- Small collectives ----
 * Each goes by its own name, unless it is part of a larger call (comm->call_covers). */

static zero_call_t begin_small(zero_comm_t *comm, const char *name)
{
    const zero_comm_t *host = comm->host ? comm->host : comm;
    const zero_call_t before = host->call;
    zero_call_t call = {.name = ""};
    zero_call_set_text(call.name, sizeof call.name, name);
    if (!host->call_covers)
        zero_comm_enter(comm, &call, false);
    return before;
}

static zero_status_t end_small(zero_comm_t *comm, const zero_call_t *before, zero_status_t status)
{
    const zero_comm_t *host = comm->host ? comm->host : comm;
    zero_comm_enter(comm, before, host->call_covers);
    return status;
}

static zero_status_t gather_small(zero_comm_t *comm, const char *name, const void *mine, size_t n_bytes, void *all)
{
    const zero_call_t before = begin_small(comm, name);
    return end_small(comm, &before, comm->ops->host_all_gather(comm, mine, n_bytes, all));
}

zero_status_t zero_comm_sum(zero_comm_t *comm, double *values, size_t n_values)
{
    ZERO_REQUIRE(comm);
    if (n_values > 0)
        ZERO_REQUIRE(values);
    const size_t max_values = ZERO_COMM_SCRATCH_BYTES / sizeof(double);
    double *all = comm->scratch;
    for (size_t first = 0; first < n_values; first += max_values) {
        size_t n = n_values - first < max_values ? n_values - first : max_values;
        ZERO_TRY(gather_small(comm, "zero_comm_sum", values + first, n * sizeof(double), all));
        for (size_t i = 0; i < n; i++) {
            double sum = all[i];
            for (int rank = 1; rank < comm->size; rank++)
                sum += all[(size_t)rank * n + i];
            values[first + i] = sum;
        }
    }
    return ZERO_OK;
}

zero_status_t zero_comm_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root)
{
    ZERO_REQUIRE(comm);
    if (n_bytes > 0)
        ZERO_REQUIRE(data);
    if (root < 0 || root >= comm->size)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_comm_broadcast: there is no rank %d among %d", root, comm->size);
    if (n_bytes == 0)
        return ZERO_OK;
    const zero_call_t before = begin_small(comm, "zero_comm_broadcast");
    return end_small(comm, &before, comm->ops->host_broadcast(comm, data, n_bytes, root));
}

zero_status_t zero_comm_barrier(zero_comm_t *comm)
{
    ZERO_REQUIRE(comm);
    const char here = 1; /* who has everyone's byte knows that everyone came */
    return gather_small(comm, "zero_comm_barrier", &here, 1, comm->scratch);
}

zero_status_t zero_comm_agree(zero_comm_t *comm, zero_status_t mine)
{
    ZERO_REQUIRE(comm);
    const int32_t word = (int32_t)mine;
    int32_t *all = comm->scratch;
    zero_status_t status = gather_small(comm, "zero_comm_agree", &word, sizeof(word), all);
    if (mine != ZERO_OK || status != ZERO_OK)
        return mine != ZERO_OK ? mine : status;
    for (int rank = 0; rank < comm->size; rank++) {
        if (all[rank] != ZERO_OK) {
            zero_log(ZERO_LOG_DEBUG, "rank %d failed: %s", rank, zero_status_text((zero_status_t)all[rank]));
            return ZERO_ERROR_PEER;
        }
    }
    return ZERO_OK;
}

void zero_comm_abort(zero_comm_t *comm, int exit_code)
{
    if (!comm)
        return;
    comm->ops->abort(comm, exit_code);
    if (mpi_is_running()) /* one rank under mpirun, whose transport knows no MPI */
        MPI_Abort(MPI_COMM_WORLD, exit_code != 0 ? exit_code : 1);
}

size_t zero_comm_staging_bytes(int size, size_t n_bytes)
{
    return size > 1 ? (size_t)size * n_bytes : 0;
}
