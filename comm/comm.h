/* comm.h - how ranks move bytes: one small table of functions per transport.
 *
 * The idea is published memory. A window is a block of memory, of the same size on every rank, from which peers read.
 * What a rank wrote to its window before its fence() may be read by a peer's all_gather() or all_to_all() after the
 * peer's fence(). The writer must leave it unchanged until a later fence(), which every peer reaches only when its
 * reads are done. In a transport that reads peers' memory directly (shared memory on a host, copy engines between
 * GPUs), fence is a barrier and the rest are plain reads. In one that sends messages (MPI, NCCL), fence does nothing
 * and the rest are collectives. One of both kinds (gpu/rails.c) has a barrier inside each host. Callers keep to the
 * contract and need not know which it is.
 *
 * A lane is a sequence of communication in a stream of its own, which may overlap other lanes. Within a lane, all ranks
 * make the same calls in the same order. Between lanes there is no order unless the caller makes one with events. A
 * fence covers what its stream did before it, on every rank, up to that same fence.
 *
 * Every function here is collective: all ranks call it in the same order with matching sizes. Asynchronous ones take
 * the stream in which they are ordered.
 *
 * Used by src/zero/. Knows nothing of units, stages or tensors, except as text in the call that a rank is in (call.h).
 * Between host memories, ranks compare their calls in every collective in which they meet, before they use its bytes.
 * Between GPUs the host does not wait, so comm->paired folds the calls into a hash that each step compares.
 */
#ifndef ZERO_COMM_H
#define ZERO_COMM_H

#include "comm/call.h"
#include "comm/hosts.h"
#include "comm/users.h"
#include "zero.h"

typedef struct zero_window {
    void *local;     /* this rank's block, zeroed, aligned to 4096 bytes; owned by the transport */
    size_t n_bytes;  /* the same on every rank */
    void *transport; /* the transport's own record of the peers' blocks */
} zero_window_t;

typedef enum zero_lane { ZERO_LANE_GATHER, ZERO_LANE_REDUCE, ZERO_LANE_STEP, ZERO_N_LANES } zero_lane_t;

/* A message each way: n_bytes at src to the rank, and as many from it to dst. */
typedef struct zero_exchange {
    int rank;
    const void *src;
    void *dst;
} zero_exchange_t;

/* A copy out of the window of a rank of this host, which may be this rank itself. */
typedef struct zero_pull {
    int rank;
    size_t src_offset;
    void *dst;
    size_t n_bytes;
} zero_pull_t;

/* n of a communicator's ranks: first, first + stride ... */
typedef struct zero_ranks {
    int first, stride, n;
} zero_ranks_t;

typedef struct zero_comm_ops {
    const char *name;
    bool blocks; /* calls block the host until their bytes have moved, so nothing can overlap them */

    zero_status_t (*window_create)(zero_comm_t *comm, size_t n_bytes, zero_window_t *window);
    void (*window_destroy)(zero_comm_t *comm, zero_window_t *window);

    /* See the top of this file. */
    zero_status_t (*fence)(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream);

    /* Gathers among `ranks`, of which this rank is one: sets dst[i * n_bytes .. + n_bytes) to the window of the i-th of
     * them at src_offset + i * src_stride. All ranks of the communicator make the call, each among its own `ranks`;
     * these are equally many everywhere. If src_stride is 0, each rank publishes its shard at the same offset. If it is
     * n_bytes, each publishes its slice of a full buffer; dst may then be that full buffer in the window itself, and
     * the rank's own slice is not copied. */
    zero_status_t (*all_gather)(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, zero_ranks_t ranks,
                                size_t src_offset, size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream);

    /* Collects the slices that a reduce-scatter adds. Sets slices[r] to where rank r's window bytes
     * [src_offset + me * src_stride, + n_bytes) can be read until the next fence: in the peer's own memory, or in
     * `staging` (staging_bytes(size, n_bytes) bytes of device memory). me: this rank's slice, zero_comm_slice_of(rank,
     * size, group). src_stride is n_bytes, or more if only a chunk of every slice is wanted. */
    zero_status_t (*all_to_all)(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, int group,
                                size_t src_offset, size_t src_stride, size_t n_bytes, void *staging,
                                const void **slices, zero_stream_t stream);
    size_t (*staging_bytes)(int size, size_t n_bytes);
    /* Does a whole reduce-scatter, in networks that add. This rank's slice of the full buffer at src_offset, n_elems of
     * dtype, becomes the sum of what all ranks published there, added in dtype and in the transport's own order. The
     * other slices stay as they are, and may be read until the next fence. NULL if the transport only carries bytes. */
    zero_status_t (*reduce_scatter)(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                    size_t n_elems, zero_dtype_t dtype, zero_stream_t stream);

    /* What the transport of several hosts is made of (gpu/rails.c); NULL in others than these. A transport that reads
     * peers' memory copies from it, from ranks of this host alone. */
    zero_status_t (*pull)(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, const zero_pull_t *pulls,
                          int n, zero_stream_t stream);
    /* A transport that sends messages exchanges n_bytes with each of n other ranks. All ranks of the communicator make
     * the call, each with its own list; who lists a rank is listed by it. The bytes need not be in a window. When the
     * stream has come to the end of the call, src may be overwritten. */
    zero_status_t (*exchange)(zero_comm_t *comm, zero_lane_t lane, const zero_exchange_t *exchanges, int n,
                              size_t n_bytes, zero_stream_t stream);

    /* Sets all[r * n_bytes ..] to rank r's `mine`. For small data in host memory; blocks the host. */
    zero_status_t (*host_all_gather)(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all);
    zero_status_t (*host_broadcast)(zero_comm_t *comm, void *data, size_t n_bytes, int root);
    /* Fails if a peer on this host has ended or stays stopped, if the network has lost one, and at the deadline if one
     * has not been heard from: the device would wait for it forever. Called again and again while the host waits for
     * its device, waited_ns so far. NULL if peers cannot be seen. */
    zero_status_t (*check_peers)(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns);
    /* After a failure: ends the waits for peers in this rank's streams, so that the streams drain and memory can be
     * freed. Sets comm->failed. NULL if only the host ever waits. */
    void (*release)(zero_comm_t *comm);
    void (*abort)(zero_comm_t *comm, int exit_code); /* notifies peers, then ends the job if the transport can */
    void (*destroy)(zero_comm_t *comm);
} zero_comm_ops_t;

#define ZERO_COMM_SCRATCH_BYTES 512
struct zero_comm {
    const zero_comm_ops_t *ops;
    zero_comm_kind_t kind; /* as asked for */
    int rank, size;
    int first_rank; /* of a group (zero_comm_split): lines name its ranks from this one on, as the whole does; else 0 */
    int local_rank, local_size; /* of its ranks, those on this host */
    zero_host_t *hosts;         /* [size] where each rank is; NULL without MPI */
    /* Among the job's processes on this host, which share its GPUs, cores and memory. */
    int job_local_rank, job_local_size;
    void *transport;    /* the transport's state */
    zero_comm_t *host;  /* of a transport between GPUs: its host communicator; else NULL */
    bool failed;        /* a collective failed: peers may be gone, so no collective may follow */
    bool uses_mpi;      /* is one of the communicators that keep MPI running */
    const void *mpi;    /* an MPI_Comm of its ranks, which its messages use; NULL: there are no messages */
    bool is_world;      /* made by zero_comm_create, of all ranks of the job */
    int64_t timeout_ns; /* the longest that a collective waits for a peer */
    void *scratch;      /* of collectives.c: ZERO_COMM_SCRATCH_BYTES for each rank */
    zero_call_t call;   /* the call that this rank is in; unused if `host` is set, whose call counts */
    bool call_covers;   /* small collectives made within the call go by its name */
    uint32_t n_engines; /* created over it so far */
    /* For transports that do not compare calls themselves: a hash of all calls so far in which ranks meet, in order. It
     * is equal on all ranks; the end of each step compares it (kernels/step_math.h). */
    uint64_t paired;
    zero_users_t users;
};

static inline zero_ranks_t zero_comm_all(const zero_comm_t *comm)
{
    return (zero_ranks_t){.stride = 1, .n = comm->size};
}

/* Returns the i-th of `ranks`; the place that `rank` has among them. */
static inline int zero_ranks_at(zero_ranks_t ranks, int i)
{
    return ranks.first + i * ranks.stride;
}
static inline int zero_ranks_index(zero_ranks_t ranks, int rank)
{
    return (rank - ranks.first) / ranks.stride;
}

/* Returns which of a full buffer's `size` slices a rank owns, if groups of `group` consecutive ranks each hold a copy
 * of the buffer: the slices of the i-th ranks of all groups are neighbours, and together they are what each i-th rank
 * holds of its group's copy. With one group it is the rank itself. */
static inline int zero_comm_slice_of(int rank, int size, int group)
{
    return rank % group * (size / group) + rank / group;
}

/* Sets the call of zero.h that this rank is in, and the rank that lines are logged with, until the next zero_comm_enter
 * or zero_comm_leave. If `covers`, the small collectives that it makes (zero_comm_agree ...) go by its name too. Such a
 * call must end in zero_comm_leave, unless it fails on all ranks. */
void zero_comm_enter(zero_comm_t *comm, const zero_call_t *call, bool covers);
/* Ends the call. Returns `status`. */
zero_status_t zero_comm_leave(zero_comm_t *comm, zero_status_t status);
/* Returns the call that this rank is in, with what it asks of its transport. */
zero_call_t zero_comm_call(const zero_comm_t *comm, const char *what, size_t n_bytes, int root);
/* Folds a call in which ranks meet into comm->paired. */
void zero_comm_pair(zero_comm_t *comm, const char *what, size_t n_bytes);
/* Notes that something made with the communicator is gone. [collective] if it was the last after zero_comm_destroy */
void zero_comm_drop(zero_comm_t *comm, zero_user_t user);

/* The transports. Each fills *comm, whose rank, size and timeout are known. */
zero_status_t zero_comm_self_create(zero_comm_t *comm); /* one rank */
/* MPI messages between the ranks of *mpi_comm, an MPI_Comm; they go over a duplicate of it. */
zero_status_t zero_comm_mpi_create(zero_comm_t *comm, const void *mpi_comm);
/* Shared memory between the ranks of one host. Returns ZERO_ERROR_UNSUPPORTED on all ranks, logged at debug level, if
 * memory cannot be shared. Takes over an mpi communicator, which from then on only ends the job. */
zero_status_t zero_comm_node_create(zero_comm_t *comm);

/* Messages between hosts and shared memory inside each. Takes over an mpi communicator, and returns as the one above.
 */
zero_status_t zero_comm_hierarchical_create(zero_comm_t *comm);

/* NCCL between the ranks' GPUs, each of which is its rank's current CUDA device. Joins the ranks of `host` and must be
 * destroyed before it. In builds with CUDA. [collective] */
zero_status_t zero_comm_nccl_create(zero_comm_t *host, zero_comm_t **comm);
/* The same with copy engines, between the GPUs of one host: they read peers' memory and leave the SMs to compute. If
 * `host` joins several hosts, its fences are among the ranks of each, and only these can be reached: of the calls that
 * move bulk data only `pull` may be made. Returns ZERO_ERROR_UNSUPPORTED on all ranks of all hosts, logged, if they
 * cannot be used. [collective] */
zero_status_t zero_comm_copy_engine_create(zero_comm_t *host, zero_comm_t **comm);

/* Returns the staging of an all_to_all over a transport that copies slices to this rank: the others need none. */
size_t zero_comm_staging_bytes(int size, size_t n_bytes);

/* Cuts a communicator into groups of n consecutive ranks; n divides its size. Each group gets one of its own, of the
 * same kind. call: of zero.h, that makes it. [collective] */
zero_status_t zero_comm_split(zero_comm_t *comm, int n, const char *call, zero_comm_t **group);

/* Tells all ranks how rank 0 has fared: returns its status on every rank, where its error is the last one, too. */
zero_status_t zero_comm_tell_status(zero_comm_t *comm, zero_status_t of_rank_0);

#endif
