/* comm_cases.c - what a communicator promises, one case per promise, as a program to run under mpirun.
 *
 *     comm_cases TRANSPORT CASE [LOG]
 *
 * TRANSPORT: self, node or mpi, or "through-" and one of these: the transport through host memory, with that host
 * transport and the CPU as the device. "hierarchical-" and how the ranks are on hosts (host_ids.h), or "rails-" and
 * that: comm/gpu/rails.c on the device whose streams are threads (async_device.h), waited for after every call. CASE: a
 * name below, or "all" for those that end well. LOG: a file that receives what all ranks write to stderr.
 *
 * Exit code 0: the promise held on every rank. Bytes in windows follow from (rank, round, position) by a formula, so
 * every rank knows what it must find without asking another. In the cases about failure one rank does wrong; the others
 * print to stderr which status they got and when, and exit with code 3. test_comm.c reads that in LOG, because mpirun
 * drops output of ranks when it ends a job. The rank that does wrong first prints the time, on the clock that all
 * processes of the host share.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "comm/gpu/transports.h"
#include "tests/mpi/comm/cases.h"
#include "tests/mpi/host_ids.h"
#include "tests/support/clock.h"
#include "tests/support/support.h"

static const size_t sizes[] = {0, 1, 17, 4095, 65537, 300007};

#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define OFFSET 5 /* windows are used from an odd offset */

static const char *current_case;

zero_comm_t *comm;

zero_comm_t *host; /* the host transport below `comm`, if that joins devices; else NULL */

zero_device_t *cpu; /* with it */

_Noreturn void broken(const char *condition, int line)
{
    fprintf(stderr, "%s, rank %d, line %d: not so: %s\n", current_case, comm ? comm->rank : -1, line, condition);
    if (comm)
        zero_comm_abort(comm, EXIT_FAILURE);
    exit(EXIT_FAILURE);
}

void pause_s(double seconds)
{
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
        NULL);
}

/* ---- Contents by formula ---- */

static unsigned char content(int rank, int round, size_t position)
{
    uint32_t mixed = (uint32_t)position * 2654435761u + (uint32_t)rank * 40503u + (uint32_t)round * 69069u;
    return (unsigned char)(mixed >> 23);
}

static void fill(unsigned char *data, int rank, int round, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        data[i] = content(rank, round, i);
}

/* data[i] is what `rank` has at position first + i. */
static bool holds(const unsigned char *data, int rank, int round, size_t first, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (data[i] != content(rank, round, first + i))
            return false;
    return true;
}

void *allocate(size_t n_bytes)
{
    void *data = malloc(n_bytes + 1);
    EXPECT(data != NULL);
    return data;
}

/* ---- Windows ---- */

static void windows_are_zeroed_and_aligned(void)
{
    for (size_t i = 0; i < N_SIZES; i++) {
        zero_window_t window;
        EXPECT_OK(comm->ops->window_create(comm, sizes[i], &window));
        EXPECT(window.local != NULL && window.n_bytes == sizes[i] && (uintptr_t)window.local % 4096 == 0);
        unsigned char *data = window.local;
        for (size_t at = 0; at < sizes[i]; at++)
            EXPECT(data[at] == 0);
        fill(data, comm->rank, 0, sizes[i]);
        EXPECT(holds(data, comm->rank, 0, 0, sizes[i]));
        comm->ops->window_destroy(comm, &window);
    }
}

/* Each rank publishes its shard at one address; the full buffer is elsewhere, and nothing beyond it is touched. */
static void gather_of_shards(void)
{
    for (size_t i = 0; i < N_SIZES; i++) {
        const size_t n = sizes[i], n_all = n * (size_t)comm->size;
        zero_window_t window;
        unsigned char *all = allocate(n_all);
        EXPECT_OK(comm->ops->window_create(comm, OFFSET + n, &window));
        fill(window.local, comm->rank, 0, OFFSET + n);
        all[n_all] = 77;
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        EXPECT_OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, &window, zero_comm_all(comm), OFFSET, 0, all, n, NULL));
        for (int rank = 0; rank < comm->size; rank++)
            EXPECT(holds(all + (size_t)rank * n, rank, 0, OFFSET, n));
        EXPECT(all[n_all] == 77);
        EXPECT(holds(window.local, comm->rank, 0, 0, OFFSET + n));
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        comm->ops->window_destroy(comm, &window);
        free(all);
    }
}

/* Each rank publishes its slice of a full buffer; the result is in that buffer, or elsewhere. */
static void gather_of_slices(bool in_place)
{
    for (size_t i = 0; i < N_SIZES; i++) {
        const size_t n = sizes[i], n_all = n * (size_t)comm->size, own = (size_t)comm->rank * n;
        zero_window_t window;
        unsigned char *other = allocate(n_all);
        EXPECT_OK(comm->ops->window_create(comm, OFFSET + n_all + 1, &window));
        unsigned char *full = (unsigned char *)window.local + OFFSET;
        for (size_t at = 0; at < n; at++)
            full[own + at] = content(comm->rank, 1, own + at);
        unsigned char *dst = in_place ? full : other;
        dst[n_all] = 77;
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        EXPECT_OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, &window, zero_comm_all(comm), OFFSET, n, dst, n, NULL));
        for (int rank = 0; rank < comm->size; rank++)
            EXPECT(holds(dst + (size_t)rank * n, rank, 1, (size_t)rank * n, n));
        EXPECT(dst[n_all] == 77);
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        comm->ops->window_destroy(comm, &window);
        free(other);
    }
}

static void gather_of_slices_in_place(void)
{
    gather_of_slices(true);
}

static void gather_of_slices_elsewhere(void)
{
    gather_of_slices(false);
}

/* All of it, and the last two thirds. */
static void exchange_brings_my_slice_of_every_rank(void)
{
    const void **slices = allocate((size_t)comm->size * sizeof(*slices));
    for (size_t i = 0; i < N_SIZES; i++) {
        const size_t n = sizes[i], n_all = n * (size_t)comm->size;
        zero_window_t window;
        void *staging = allocate(comm->ops->staging_bytes(comm->size, n));
        EXPECT_OK(comm->ops->window_create(comm, OFFSET + n_all, &window));
        fill(window.local, comm->rank, 2, OFFSET + n_all);
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        for (size_t first = 0; first <= n / 3; first += n / 3 + (n < 3)) {
            EXPECT_OK(comm->ops->all_to_all(comm, ZERO_LANE_REDUCE, &window, comm->size, OFFSET + first, n, n - first,
                                            staging, slices, NULL));
            for (int rank = 0; rank < comm->size; rank++)
                EXPECT(holds(slices[rank], rank, 2, OFFSET + (size_t)comm->rank * n + first, n - first));
        }
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        comm->ops->window_destroy(comm, &window);
        free(staging);
    }
    free(slices);
}

/* A gather among one rank is a copy in the stream, which through host memory is late (copy_late). */
static void settle(void)
{
    EXPECT_OK(wait_for_copies(NULL, NULL));
}

/* As many as `group` consecutive ranks gather among themselves, and those at the same place of every group. */
static void gather_in_groups_of(int group, const zero_window_t *window, size_t n, unsigned char *all)
{
    const int n_groups = comm->size / group, rank = comm->rank;
    const zero_ranks_t near = {.first = rank - rank % group, .stride = 1, .n = group};
    const zero_ranks_t far = {.first = rank % group, .stride = group, .n = n_groups};
    unsigned char *full = (unsigned char *)window->local + OFFSET;
    EXPECT_OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, window, near, OFFSET, 0, all, n, NULL));
    settle();
    for (int i = 0; i < group; i++)
        EXPECT(holds(all + (size_t)i * n, near.first + i, 3, OFFSET, n));
    EXPECT_OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, window, far, OFFSET, n, all, n, NULL));
    settle();
    for (int i = 0; i < n_groups; i++)
        EXPECT(holds(all + (size_t)i * n, rank % group + i * group, 3, OFFSET + (size_t)i * n, n));
    EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL)); /* all have read, before slices are overwritten in place */
    EXPECT_OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, window, far, OFFSET, n, full, n, NULL));
    for (int i = 0; i < n_groups; i++)
        EXPECT(holds(full + (size_t)i * n, rank % group + i * group, 3, OFFSET + (size_t)i * n, n));
}

static void exchange_in_groups_of(int group, const zero_window_t *window, size_t n, void *staging, const void **slices)
{
    const int me = comm->rank % group * (comm->size / group) + comm->rank / group;
    EXPECT_OK(comm->ops->all_to_all(comm, ZERO_LANE_REDUCE, window, group, OFFSET, n, n, staging, slices, NULL));
    for (int rank = 0; rank < comm->size; rank++)
        EXPECT(holds(slices[rank], rank, 3, OFFSET + (size_t)me * n, n));
}

static void groups_gather_among_themselves(void)
{
    const size_t n = 3001, n_all = n * (size_t)comm->size;
    unsigned char *all = allocate(n_all), *staging = allocate(n_all);
    const void **slices = allocate((size_t)comm->size * sizeof *slices);
    zero_window_t window;
    EXPECT_OK(comm->ops->window_create(comm, OFFSET + n_all, &window));
    for (int group = 1; group <= comm->size; group++) {
        if (comm->size % group != 0)
            continue;
        fill(window.local, comm->rank, 3, OFFSET + n_all);
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        exchange_in_groups_of(group, &window, n, staging, slices);
        gather_in_groups_of(group, &window, n, all);
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
    }
    comm->ops->window_destroy(comm, &window);
    free(slices);
    free(staging);
    free(all);
}

/* More than fits into the staging buffers of a transport that has some, twice, so that their turns are over both times.
 */
static void gathers_of_much(void)
{
    const size_t n = 900001;
    unsigned char *all = allocate(n * (size_t)comm->size);
    zero_window_t window;
    EXPECT_OK(comm->ops->window_create(comm, n, &window));
    for (int round = 0; round < 2; round++) {
        fill(window.local, comm->rank, round, n);
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        EXPECT_OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, &window, zero_comm_all(comm), 0, 0, all, n, NULL));
        for (int rank = 0; rank < comm->size; rank++)
            EXPECT(holds(all + (size_t)rank * n, rank, round, 0, n));
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
    }
    comm->ops->window_destroy(comm, &window);
    free(all);
}

/* Ranks of random speed write, fence, read, fence, and write again at once: no round reads another's bytes. */
static void rounds_do_not_mix(void)
{
    const size_t n = 3001;
    uint64_t random = 1 + (uint64_t)comm->rank;
    zero_window_t window;
    unsigned char *all = allocate(n * (size_t)comm->size), *staging = allocate(n * (size_t)comm->size);
    const void **slices = allocate((size_t)comm->size * sizeof(*slices));
    EXPECT_OK(comm->ops->window_create(comm, n * (size_t)comm->size, &window));
    for (int round = 0; round < 60; round++) {
        fill(window.local, comm->rank, round, n * (size_t)comm->size);
        if (support_random(&random) % 4 == 0)
            pause_s(0.002 * support_uniform(&random));
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        if (support_random(&random) % 4 == 0)
            pause_s(0.002 * support_uniform(&random));
        EXPECT_OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, &window, zero_comm_all(comm), 0, 0, all, n, NULL));
        EXPECT_OK(comm->ops->all_to_all(comm, ZERO_LANE_REDUCE, &window, comm->size, 0, n, n, staging, slices, NULL));
        for (int rank = 0; rank < comm->size; rank++) {
            EXPECT(holds(all + (size_t)rank * n, rank, round, 0, n));
            EXPECT(holds(slices[rank], rank, round, (size_t)comm->rank * n, n));
        }
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
    }
    comm->ops->window_destroy(comm, &window);
    free(slices);
    free(staging);
    free(all);
}

/* One rank has no memory left (emulated by a file size limit): all ranks fail alike, and continue without that
 * window. */
static void window_that_one_rank_cannot_have(void)
{
    const int poor = comm->size - 1;
    const bool shared = strcmp(comm->ops->name, "node") == 0 || strcmp(comm->ops->name, "hierarchical") == 0;
    zero_window_t window = {.n_bytes = 123};
    struct rlimit none, before;
    zero_status_t huge = comm->ops->window_create(comm, (size_t)1 << 60, &window);
    EXPECT(huge == ZERO_ERROR_MEMORY || (huge == ZERO_ERROR_PEER && comm->size > 1));
    EXPECT(window.n_bytes == 123);
    if (shared) {
        signal(SIGXFSZ, SIG_IGN);
        EXPECT(getrlimit(RLIMIT_FSIZE, &before) == 0);
        none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
        EXPECT(comm->rank != poor || setrlimit(RLIMIT_FSIZE, &none) == 0);
        zero_status_t status = comm->ops->window_create(comm, 5000, &window);
        EXPECT(setrlimit(RLIMIT_FSIZE, &before) == 0);
        EXPECT(status == (comm->rank == poor ? ZERO_ERROR_MEMORY : ZERO_ERROR_PEER));
        EXPECT(window.n_bytes == 123);
    }
    EXPECT_OK(comm->ops->window_create(comm, 5000, &window));
    comm->ops->window_destroy(comm, &window);
}

/* ---- Small host data ---- */

static void host_gather_in_rank_order(void)
{
    for (size_t i = 0; i < N_SIZES; i++) {
        const size_t n = sizes[i], n_all = n * (size_t)comm->size;
        unsigned char *mine = allocate(n), *all = allocate(n_all);
        fill(mine, comm->rank, 3, n);
        all[n_all] = 77;
        EXPECT_OK(comm->ops->host_all_gather(comm, mine, n, all));
        for (int rank = 0; rank < comm->size; rank++)
            EXPECT(holds(all + (size_t)rank * n, rank, 3, 0, n));
        EXPECT(all[n_all] == 77);
        free(all);
        free(mine);
    }
}

static void broadcast_from_every_root(void)
{
    for (size_t i = 0; i < N_SIZES; i++) {
        unsigned char *data = allocate(sizes[i]);
        for (int root = 0; root < comm->size; root++) {
            fill(data, comm->rank, 4, sizes[i]);
            EXPECT_OK(zero_comm_broadcast(comm, data, sizes[i], root));
            EXPECT(holds(data, root, 4, 0, sizes[i]));
        }
        free(data);
    }
    char byte = 0;
    EXPECT(zero_comm_broadcast(comm, NULL, 1, 0) == ZERO_ERROR_ARGUMENT);
    EXPECT(zero_comm_broadcast(comm, &byte, 1, comm->size) == ZERO_ERROR_ARGUMENT);
    EXPECT(zero_comm_broadcast(comm, &byte, 1, -1) == ZERO_ERROR_ARGUMENT);
}

/* Numbers of very different magnitude, whose sum depends on the order. */
static double term(int rank, size_t i)
{
    uint64_t random = (uint64_t)rank * 1000003u + i;
    double exponent = 60.0 * support_uniform(&random) - 30.0;
    return (support_uniform(&random) - 0.5) * __builtin_exp2(exponent);
}

static void sums_are_in_rank_order(void)
{
    enum { N = 1001 };
    double values[N];
    int n_order_matters = 0;
    for (size_t i = 0; i < N; i++)
        values[i] = term(comm->rank, i);
    EXPECT_OK(zero_comm_sum(comm, values, N));
    for (size_t i = 0; i < N; i++) {
        double forward = term(0, i), backward = term(comm->size - 1, i);
        for (int rank = 1; rank < comm->size; rank++) {
            forward += term(rank, i);
            backward += term(comm->size - 1 - rank, i);
        }
        EXPECT(memcmp(&values[i], &forward, sizeof(forward)) == 0);
        n_order_matters += forward != backward;
    }
    EXPECT(comm->size < 3 || n_order_matters > N / 10); /* else this case could not fail */
    EXPECT_OK(zero_comm_sum(comm, NULL, 0));
    EXPECT(zero_comm_sum(comm, NULL, 1) == ZERO_ERROR_ARGUMENT);
}

static void all_agree_when_one_fails(void)
{
    EXPECT_OK(zero_comm_agree(comm, ZERO_OK));
    for (int bad = 0; bad < comm->size; bad++) {
        zero_status_t status = zero_comm_agree(comm, comm->rank == bad ? ZERO_ERROR_IO : ZERO_OK);
        EXPECT(status == (comm->rank == bad ? ZERO_ERROR_IO : ZERO_ERROR_PEER));
    }
    EXPECT_OK(zero_comm_agree(comm, ZERO_OK));
}

/* No rank leaves the barrier before the last has entered. */
static void barrier_waits_for_the_last(void)
{
    double *came = allocate((size_t)comm->size * sizeof(*came));
    uint64_t random = 99 + (uint64_t)comm->rank;
    for (int round = 0; round < 20; round++) {
        pause_s(0.004 * support_uniform(&random));
        const double mine = now_s();
        EXPECT_OK(zero_comm_barrier(comm));
        const double left = now_s();
        EXPECT_OK(comm->ops->host_all_gather(comm, &mine, sizeof(mine), came));
        for (int rank = 0; rank < comm->size; rank++)
            EXPECT(came[rank] <= left);
    }
    free(came);
}

static void ranks_are_known(void)
{
    EXPECT(zero_comm_rank(comm) >= 0 && zero_comm_rank(comm) < zero_comm_size(comm));
    const bool one_host = strcmp(comm->ops->name, "hierarchical") != 0 && strcmp(comm->ops->name, "rails") != 0;
    int hosts[64];
    EXPECT((zero_comm_local_size(comm) == zero_comm_size(comm)) == one_host);
    EXPECT(zero_comm_size(comm) <= 64 && (zero_comm_hosts(comm, hosts) == 1) == one_host && hosts[0] == 0);
    EXPECT(zero_comm_local_rank(comm) >= 0 && zero_comm_local_rank(comm) < zero_comm_local_size(comm));
    int *seen = allocate((size_t)comm->size * sizeof(*seen));
    EXPECT_OK(comm->ops->host_all_gather(comm, &comm->local_rank, sizeof(int), seen));
    for (int rank = 0; rank < comm->size; rank++)
        for (int other = 0; other < rank; other++)
            EXPECT(seen[rank] != seen[other] || hosts[rank] != hosts[other]);
    free(seen);
}

/* Several communicators share one MPI; it ends with the last of them. */
static void communicators_share_mpi(void)
{
    zero_comm_t *other = NULL;
    EXPECT(zero_comm_create(ZERO_COMM_AUTO, NULL) == ZERO_ERROR_ARGUMENT);
    EXPECT_OK(zero_comm_create(ZERO_COMM_MPI, &other));
    EXPECT_OK(zero_comm_barrier(other));
    EXPECT_OK(zero_comm_barrier(comm));
    zero_comm_destroy(other);
    EXPECT_OK(zero_comm_barrier(comm));
}

void leave(void)
{
    if (host) {
        comm->ops->destroy(comm);
        zero_device_destroy(cpu);
        comm = host;
    }
    zero_comm_destroy(comm);
    comm = host = NULL;
}

/* ---- Speed, for a look: not a test ---- */

static double seconds_per_fence(void)
{
    enum { N = 20000 };
    const double start_s = now_s();
    for (int i = 0; i < N; i++)
        EXPECT_OK(strcmp(comm->ops->name, "mpi") == 0 ? zero_comm_barrier(comm)
                                                      : comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
    return (now_s() - start_s) / N;
}

static double gathered_bytes_per_second(size_t n_bytes, int n_rounds)
{
    zero_window_t window;
    EXPECT_OK(comm->ops->window_create(comm, n_bytes * (size_t)comm->size, &window));
    memset(window.local, comm->rank, window.n_bytes);
    double start_s = 0.0;
    for (int round = -2; round < n_rounds; round++) {
        if (round == 0)
            start_s = now_s();
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
        EXPECT_OK(comm->ops->all_gather(comm, ZERO_LANE_GATHER, &window, zero_comm_all(comm), 0, n_bytes, window.local,
                                        n_bytes, NULL));
        EXPECT_OK(comm->ops->fence(comm, ZERO_LANE_STEP, NULL));
    }
    const double seconds = now_s() - start_s;
    comm->ops->window_destroy(comm, &window);
    return (double)n_bytes * (double)(comm->size - 1) * n_rounds / seconds;
}

static void speed(void)
{
    const double fence_s = seconds_per_fence(), small = gathered_bytes_per_second(64 << 10, 500),
                 large = gathered_bytes_per_second(32 << 20, 20);
    if (comm->rank == 0)
        printf("%s, %d ranks: fence %.2f us, gather in place, bytes received per rank: 64 KiB slices %.2f GB/s, "
               "32 MiB slices %.2f GB/s\n",
               comm->ops->name, comm->size, 1e6 * fence_s, 1e-9 * small, 1e-9 * large);
}

/* ---- The program ---- */

static const struct {
    const char *name;
    void (*run)(void);
    bool ends_well;
} cases[] = {
#define CASE(name, ends_well)                                                                                          \
    {                                                                                                                  \
#name, name, ends_well                                                                                         \
    }
    CASE(ranks_are_known, true),
    CASE(windows_are_zeroed_and_aligned, true),
    CASE(gather_of_shards, true),
    CASE(gather_of_slices_in_place, true),
    CASE(gather_of_slices_elsewhere, true),
    CASE(exchange_brings_my_slice_of_every_rank, true),
    CASE(groups_gather_among_themselves, true),
    CASE(gathers_of_much, true),
    CASE(rounds_do_not_mix, true),
    CASE(host_gather_in_rank_order, true),
    CASE(broadcast_from_every_root, true),
    CASE(sums_are_in_rank_order, true),
    CASE(all_agree_when_one_fails, true),
    CASE(barrier_waits_for_the_last, true),
    CASE(communicators_share_mpi, true),
    CASE(window_that_one_rank_cannot_have, true),
    CASE(one_exits, false),
    CASE(one_is_killed, false),
    CASE(one_stops, false),
    CASE(one_stops_before_much, false),
    CASE(one_stops_before_a_gather, false),
    CASE(one_stops_beside_devices, false),
    CASE(one_is_killed_beside_devices, false),
    CASE(one_leaves, false),
    CASE(one_aborts, false),
    CASE(one_calls_something_else, false),
    CASE(speed, false),
#undef CASE
};

/* "mpi-fallback": shared memory is wanted but rank 0 cannot create any; the program itself has started MPI. */
static void create_without_shared_memory(void)
{
    struct rlimit before;
    MPI_Init(NULL, NULL);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    signal(SIGXFSZ, SIG_IGN);
    EXPECT(getrlimit(RLIMIT_FSIZE, &before) == 0);
    EXPECT(rank != 0 || setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, before.rlim_max}) == 0);
    EXPECT_OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    EXPECT(setrlimit(RLIMIT_FSIZE, &before) == 0);
}

int main(int argc, char **argv)
{
    current_case = "start";
    if (argc < 3 || argc > 4 || (argc == 4 && !freopen(argv[3], "a", stderr))) {
        fprintf(stderr,
                "usage: comm_cases [through-]self|node|mpi|mpi-fallback|hierarchical-HOW|rails-HOW CASE [LOG]\n");
        return 2;
    }
    setvbuf(stderr, NULL, _IOLBF, BUFSIZ); /* whole lines at once, whatever stderr is */
    const bool fallback = strcmp(argv[1], "mpi-fallback") == 0;
    const bool is_through_host = strncmp(argv[1], "through-", 8) == 0;
    const bool is_hierarchical = strncmp(argv[1], "hierarchical-", 13) == 0;
    const bool is_rails = strncmp(argv[1], "rails-", 6) == 0;
    const char *transport = is_hierarchical || is_rails ? "hierarchical"
                            : fallback                  ? "mpi"
                                                        : argv[1] + (is_through_host ? 8 : 0);
    if (is_hierarchical)
        EXPECT_OK(host_ids_set(argv[1] + 13));
    if (is_rails)
        EXPECT_OK(host_ids_set(argv[1] + 6));
    if (fallback)
        create_without_shared_memory();
    else
        EXPECT_OK(zero_comm_create(strcmp(transport, "mpi") == 0 ? ZERO_COMM_MPI : ZERO_COMM_AUTO, &comm));
    EXPECT(strcmp(zero_comm_name(comm), transport) == 0);
    if (is_through_host) {
        host = comm;
        EXPECT_OK(zero_device_create(ZERO_DEVICE_CPU, host, &cpu));
        comm = through_host();
    }
    if (is_rails) {
        host = comm;
        comm = over_rails();
    }

    int n_run = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[2], "all") == 0 ? !cases[i].ends_well : strcmp(argv[2], cases[i].name) != 0)
            continue;
        current_case = cases[i].name;
        cases[i].run();
        n_run++;
    }
    EXPECT(n_run > 0);

    const int rank = comm->rank;
    leave();
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    EXPECT(initialized == (getenv("OMPI_COMM_WORLD_RANK") != NULL)); /* set by mpirun */
    EXPECT(finalized == (initialized && !fallback)); /* the one who starts MPI ends it: here the library */
    if (finalized)
        EXPECT(zero_comm_create(ZERO_COMM_AUTO, &comm) == ZERO_ERROR_UNSUPPORTED && comm == NULL);
    if (fallback)
        MPI_Finalize();
    if (rank == 0)
        printf("%d cases held\n", n_run);
    return EXIT_SUCCESS;
}
