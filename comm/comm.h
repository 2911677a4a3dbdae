/* comm.h - how ranks move bytes: one small table of functions per transport.
 *
 * The idea is published memory. A window is a block of memory of the same size on every rank, from which peers read.
 * What a rank wrote into its windows before fence() may be read by any peer's all_gather() or all_to_all() after the
 * peer's fence(), for as long as the writer leaves it as it is; and the writer may change it again only after a later
 * fence(), which every peer reaches when its reads are done. A transport that can read peers' memory (shared memory on
 * a host, copy engines between GPUs) makes fence a barrier and the rest plain reads; one that sends messages (MPI,
 * NCCL) makes fence nothing and the rest collectives. Callers keep to the contract and need not know which.
 *
 * A lane is work that may be under way beside other lanes' work, in a stream of its own. In a lane, all ranks make the
 * same calls in the same order; between lanes there is no order but what the caller makes (by events), and a fence
 * speaks for what its stream did before it, on every rank, up to that same fence.
 *
 * Every function here is collective: all ranks call it in the same order with matching sizes. Asynchronous ones take
 * the stream they are ordered in. Used by src/zero/; knows nothing of units, stages or tensors but the words in which
 * ranks tell each other what they are in (call.h). Between host memories those are compared in every collective that
 * ranks meet in, before its bytes are used; between GPUs, where the host does not wait, comm->paired sums them up.
 */
#ifndef ZERO_COMM_H
#define ZERO_COMM_H

#include "comm/call.h"
#include "comm/users.h"
#include "zero.h"

typedef struct zero_window {
    void *local;     /* this rank's block, zeroed, aligned to 4096 bytes; owned by the transport */
    size_t n_bytes;  /* the same on every rank */
    void *transport; /* the transport's own record of the peers' blocks */
} zero_window_t;

typedef enum zero_lane { ZERO_LANE_GATHER, ZERO_LANE_REDUCE, ZERO_LANE_STEP, ZERO_N_LANES } zero_lane_t;

typedef struct zero_comm_ops {
    const char *name;
    bool blocks; /* calls return when their bytes have moved, and the host with them: nothing can be beside them */

    zero_status_t (*window_create)(zero_comm_t *comm, size_t n_bytes, zero_window_t *window);
    void (*window_destroy)(zero_comm_t *comm, zero_window_t *window);

    /* See above. */
    zero_status_t (*fence)(zero_comm_t *comm, zero_lane_t lane, zero_stream_t stream);

    /* dst[r * n_bytes .. + n_bytes) = rank r's window at src_offset + r * src_stride, for every r.
     * src_stride is 0 (each rank publishes its shard at the same place) or n_bytes (each publishes its slice of a full
     * buffer); then dst may be that full buffer in the window itself, and the rank's own slice stays where it is. */
    zero_status_t (*all_gather)(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                size_t src_stride, void *dst, size_t n_bytes, zero_stream_t stream);

    /* Brings together what a reduce-scatter adds: slices[r] = where rank r's window bytes
     * [src_offset + me * src_stride, + n_bytes) can be read until the next fence: in the peer's own memory, or in
     * staging (staging_bytes(size, n_bytes) bytes of device memory). src_stride is n_bytes, or more where only a piece
     * of every slice is meant. */
    zero_status_t (*all_to_all)(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                size_t src_stride, size_t n_bytes, void *staging, const void **slices,
                                zero_stream_t stream);
    size_t (*staging_bytes)(int size, size_t n_bytes);
    /* The whole of a reduce-scatter, for networks that add: this rank's slice of the full buffer at src_offset, n_elems
     * of dtype, becomes the sum of what all ranks published there, added in dtype in an order of the transport's own.
     * Other slices stay as they are, and may be read until the next fence. NULL where a transport only carries bytes.
     */
    zero_status_t (*reduce_scatter)(zero_comm_t *comm, zero_lane_t lane, const zero_window_t *window, size_t src_offset,
                                    size_t n_elems, zero_dtype_t dtype, zero_stream_t stream);

    /* Small host data: all[r * n_bytes ..] = rank r's `mine`. Blocks the host. */
    zero_status_t (*host_all_gather)(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all);
    zero_status_t (*host_broadcast)(zero_comm_t *comm, void *data, size_t n_bytes, int root);
    /* While the host waits for its device: whether a peer that shares this host has ended or stays stopped, which the
     * device would wait for forever. To be called again and again. NULL where peers cannot be seen. */
    zero_status_t (*check_peers)(const zero_comm_t *comm, const char *waiting_in);
    /* After a failure: ends what waits for peers in this rank's streams, so that these run empty and memory can be
     * freed; sets comm->failed. NULL where nothing waits but the host. */
    void (*release)(zero_comm_t *comm);
    void (*abort)(zero_comm_t *comm, int exit_code); /* tells peers, then ends the job where the transport can */
    void (*destroy)(zero_comm_t *comm);
} zero_comm_ops_t;

#define ZERO_COMM_SCRATCH_BYTES 512
struct zero_comm {
    const zero_comm_ops_t *ops;
    zero_comm_kind_t kind;      /* as asked for */
    int rank, size;             /* in the job */
    int local_rank, local_size; /* on this host */
    void *transport;            /* the transport's state */
    zero_comm_t *host;          /* what a transport between GPUs stands beside; NULL for the others */
    bool failed;                /* a collective failed: peers may be gone, so nothing collective may follow */
    bool uses_mpi;              /* counts among those that keep MPI running */
    int64_t timeout_ns;         /* the longest that a collective waits for a peer */
    void *scratch;              /* bootstrap.c's: ZERO_COMM_SCRATCH_BYTES for each rank */
    zero_call_t call;           /* what this rank is in; of a transport beside a host's, the host's counts */
    bool call_covers;           /* what is called of zero_comm_* within it is part of it */
    uint32_t n_engines;         /* created over it so far */
    /* Transports that compare nothing themselves: a hash of all calls so far in which ranks meet, in order. Equal on
     * all ranks; step.c compares it. */
    uint64_t paired;
    zero_users_t users;
};

/* Names what this rank is in from now on: one of zero.h's functions, until the next or zero_comm_leave. covers: the
 * small collectives (zero_comm_agree ...) that it calls go by its name, too; it then must end in zero_comm_leave, but
 * where it fails alike on all ranks. */
void zero_comm_enter(zero_comm_t *comm, const zero_call_t *call, bool covers);
/* Ends it. Returns `status`. */
zero_status_t zero_comm_leave(zero_comm_t *comm, zero_status_t status);
/* What this rank is in, and what its transport is asked for there. */
zero_call_t zero_comm_call(const zero_comm_t *comm, const char *what, size_t n_bytes, int root);
/* Notes in comm->paired that ranks meet here. */
void zero_comm_pair(zero_comm_t *comm, const char *what, size_t n_bytes);
/* What a program made with the communicator is gone. [collective] where it is the last after zero_comm_destroy */
void zero_comm_drop(zero_comm_t *comm, zero_user_t user);

/* The transports. Each fills *comm. */
zero_status_t zero_comm_self_create(zero_comm_t *comm); /* one rank */
zero_status_t zero_comm_mpi_create(zero_comm_t *comm);  /* MPI messages; comm->rank etc. from bootstrap */
/* Shared memory between the ranks of one host; ZERO_ERROR_UNSUPPORTED (on all ranks alike, logged at debug level) where
 * that cannot be had. Takes over an mpi communicator, which then only starts and ends the job. */
zero_status_t zero_comm_node_create(zero_comm_t *comm);

/* NCCL between the ranks' GPUs, each of which is the current CUDA device; destroyed before `host`, whose ranks it
 * joins. In builds with CUDA. [collective] */
zero_status_t zero_comm_nccl_create(zero_comm_t *host, zero_comm_t **comm);
/* Copy engines between the GPUs of one host, likewise: they read peers' memory and leave the SMs alone.
 * ZERO_ERROR_UNSUPPORTED, on all ranks alike and logged at debug level, where they cannot serve. [collective] */
zero_status_t zero_comm_copy_engine_create(zero_comm_t *host, zero_comm_t **comm);

/* Returns the staging of an all_to_all over a transport that copies slices to this rank: the others need none. */
size_t zero_comm_staging_bytes(int size, size_t n_bytes);

#endif
