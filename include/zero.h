/* zero.h - libzero: ZeRO stages 0-3 (FSDP) for C training codes.
 *
 * libzero holds a model's parameters, gradients and AdamW state sharded over the ranks of an MPI job and makes them
 * whole, unit by unit, while your code computes. You write the forward and backward pass; libzero decides who holds
 * what, moves it, sums gradients and updates weights.
 *
 *     zero_comm_create(ZERO_COMM_AUTO, &comm);                    ranks from mpirun, or one rank without it
 *     zero_device_create(ZERO_DEVICE_AUTO, comm, &device);
 *     zero_model_create(&model);                                  declare units and tensors in forward order
 *     zero_model_add_unit(model, "layer.0", &unit);
 *     zero_model_add_tensor(model, unit, &(zero_tensor_desc_t){...}, &weight);
 *     zero_engine_create(comm, device, model, &config, &engine);
 *     zero_init_parameters(engine);
 *     for each step:
 *         for each micro-step:
 *             zero_begin(engine, ZERO_PASS_TRAIN, stream);
 *             for each unit, first to last:                       forward
 *                 zero_acquire(engine, unit, stream);             ... zero_param(engine, weight) ...
 *                 zero_release(engine, unit, stream);
 *             for each unit, last to first:                       backward
 *                 zero_acquire(engine, unit, stream);             ... zero_param, zero_grad ...
 *                 zero_grad_ready(engine, unit, stream);
 *         zero_step(engine, lr, local_loss, stream);
 *         zero_step_wait(engine, &result);
 *
 * examples/linear.c is a complete program of this shape; examples/linear.cu is the same on GPUs.
 *
 * Words. rank, world size: as in MPI. unit: tensors that are gathered and released together (one transformer block,
 * say), stored as one flat, padded buffer. shard: one rank's 1/N slice of that buffer. acquire / release: make a unit's
 * full parameters resident / give them up. slot: a full-unit buffer that units take turns in. Stage 0 is plain data
 * parallel; stage 1 shards the optimizer state, 2 also gradients, 3 also parameters (Rajbhandari et al. 2020,
 * arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277).
 *
 * Status. Every call that can fail returns a zero_status_t and sets its outputs only on ZERO_OK. Whoever detects a
 * failure writes one log line (rank, object, numbers, what to do); callers just pass the status up. The library never
 * exits, aborts or prints to stdout.
 *
 * Wrong arguments. A call that returns a status refuses NULL, where it is not said to be allowed, and what is out of
 * range, with ZERO_ERROR_ARGUMENT and a log line that names function and argument; where the call is out of order, too,
 * it may be ZERO_ERROR_ORDER. Nothing has changed then. A call that returns a value returns one that means nothing for
 * NULL: 0, -1 for a rank, NULL, "" for a text, ZERO_DEVICE_AUTO for a type. One that returns nothing does nothing.
 *
 * Lifetimes. Engines use their communicator and device, saves their engine and its communicator, checkpoints the
 * communicator that they were opened with. What is destroyed before its users is kept until the last of them is gone,
 * and an error line names them; its handle must not be used any more, but theirs work on.
 *
 * Threads. An engine, its communicator and its device belong to one host thread at a time. Nothing here is a signal
 * handler's business.
 *
 * Streams. A zero_stream_t names an ordered queue of device work: a cudaStream_t on CUDA; on the CPU, where work is
 * done when the call returns, NULL. Calls that take a stream order themselves after the work already in it, and what
 * you queue there afterwards is ordered after them. Passes and steps of one engine take one stream, or streams whose
 * work you order after each other yourself.
 *
 * Collective calls, marked [collective], must be made by every rank in the same order. Where one rank's call is refused
 * for an argument, the others return ZERO_ERROR_PEER from zero_engine_create, zero_set_state, zero_load_weights,
 * zero_load, zero_save_prepare, zero_save_begin and zero_checkpoint_open. In the others, which every step makes, they
 * wait for it as for any rank that does not come: until it calls zero_comm_abort or ends, or ZERO_TIMEOUT_S at most.
 *
 * Where ranks meet in a collective call they compare what they are in: the call, of which engine, with which unit,
 * pass, step, micro-step, learning rate and number of bytes. Where that differs they get ZERO_ERROR_MISMATCH, a line
 * names two ranks with their calls, and what they have is not used. This costs no message and no wait:
 *     - ranks that share memory: at once, in every call that communicates;
 *     - MPI messages: likewise, when a rank has waited for a second, since it takes none of another call;
 *     - GPUs, for which the host does not wait: once a step, the learning rate and all calls so far in which GPUs met.
 *       zero_step_wait returns it, and the step has changed nothing.
 * A call in which nobody waits for another is not compared: an eval pass of one rank alone where parameters are whole,
 * or are read from the peers' memory, say.
 */
#ifndef ZERO_H
#define ZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_VERSION_MAJOR 0
#define ZERO_VERSION_MINOR 1
#define ZERO_VERSION_PATCH 0

#if defined(__GNUC__)
#define ZERO_API __attribute__((visibility("default")))
#else
#define ZERO_API
#endif

/* "0.1.0": the version of the library that is linked, which may be newer than this header. */
ZERO_API const char *zero_version(void);

/* ---- Status --------------------------------------------------------------------------------------------------------
 */

/* Name, number and text of every status stand here and nowhere else. */
#define ZERO_STATUS_MAP(X)                                                                                             \
    X(OK, 0, "success")                                                                                                \
    X(ERROR_ARGUMENT, 1, "invalid argument")                                                                           \
    X(ERROR_USAGE, 2, "invalid configuration")                                                                         \
    X(ERROR_MEMORY, 3, "out of memory")                                                                                \
    X(ERROR_OVERFLOW, 4, "size does not fit the arithmetic")                                                           \
    X(ERROR_ORDER, 5, "call out of the declared order")                                                                \
    X(ERROR_MISMATCH, 6, "ranks disagree")                                                                             \
    X(ERROR_IO, 7, "input or output failed")                                                                           \
    X(ERROR_FORMAT, 8, "malformed file")                                                                               \
    X(ERROR_COMM, 9, "communication failed")                                                                           \
    X(ERROR_PEER, 10, "another rank failed")                                                                           \
    X(ERROR_TIMEOUT, 11, "a rank did not answer in time")                                                              \
    X(ERROR_DEVICE, 12, "device error")                                                                                \
    X(ERROR_NONFINITE, 13, "too many steps in a row with non-finite gradients")                                        \
    X(ERROR_UNSUPPORTED, 14, "not supported")                                                                          \
    X(ERROR_INTERNAL, 15, "internal error: please report it")

typedef enum zero_status {
#define ZERO_STATUS_ENUM(name, number, text) ZERO_##name = (number),
    ZERO_STATUS_MAP(ZERO_STATUS_ENUM)
#undef ZERO_STATUS_ENUM
} zero_status_t;

ZERO_API const char *zero_status_name(zero_status_t status); /* "ZERO_ERROR_IO"; "ZERO_UNKNOWN" for other numbers */
ZERO_API const char *zero_status_text(zero_status_t status); /* "input or output failed" */

/* ---- Log -----------------------------------------------------------------------------------------------------------
 */

typedef enum zero_log_level { ZERO_LOG_ERROR, ZERO_LOG_WARNING, ZERO_LOG_INFO, ZERO_LOG_DEBUG } zero_log_level_t;

/* Receives one line, without newline or prefix. Control characters and bytes that are not UTF-8, which may come from
 * names in files, are escaped: \x1b, say. Called from the thread that made the library call, but for
 * zero_comm_create's warning while that thread waits in MPI. */
typedef void (*zero_log_fn)(void *user, zero_log_level_t level, int rank, const char *line);

/* Sends log lines up to `level` to `fn`. fn = NULL restores the default: "zero: rank R: line" on stderr. Before this is
 * called the level is ZERO_LOG_WARNING. */
ZERO_API void zero_log_set(zero_log_level_t level, zero_log_fn fn, void *user);

/* ---- Communicator --------------------------------------------------------------------------------------------------
 */

typedef struct zero_comm zero_comm_t;

typedef enum zero_comm_kind {
    ZERO_COMM_AUTO, /* the fastest that serves: shared memory between ranks of one host, else MPI messages */
    ZERO_COMM_MPI,  /* MPI messages, whatever the topology; between GPUs by way of host memory, which is slow */
    ZERO_COMM_NCCL, /* as auto between hosts' memories; NCCL between GPUs, which it asks for */
} zero_comm_kind_t;

/* Joins all ranks that mpirun started (MPI_COMM_WORLD); a program started without mpirun is one rank and MPI is not
 * touched.
 * Initializes MPI where the program has not, and then also finalizes it in zero_comm_destroy.
 * ZERO_ERROR_TIMEOUT, with a line that names the ranks that have not come after ZERO_TIMEOUT_S seconds;
 * ZERO_ERROR_MISMATCH where they ask for different kinds. MPI's own start, which waits for all ranks, cannot be left:
 * there a warning names those of this host, from a thread that watches, and the wait goes on.
 * If mpirun started all ranks on one host, nothing but its own daemon need listen on the network: before MPI_Init this
 * sets OMPI_MCA_pml and OMPI_MCA_btl in the environment so that Open MPI uses shared memory alone, and
 * NCCL_SOCKET_IFNAME to loopback, unless they are set already. Where the program has initialized MPI (or used NCCL)
 * itself, that is for the program to do. Like setenv, it must not run beside threads that read the environment.
 * [collective] */
ZERO_API zero_status_t zero_comm_create(zero_comm_kind_t kind, zero_comm_t **comm);
ZERO_API void zero_comm_destroy(zero_comm_t *comm); /* NULL is allowed. [collective] */

/* The rank that the launcher will give this process, from its environment; 0 without a launcher. For what must be said
 * by one rank before there is a communicator, such as a bad command line. */
ZERO_API int zero_comm_launch_rank(void);

ZERO_API int zero_comm_rank(const zero_comm_t *comm);
ZERO_API int zero_comm_size(const zero_comm_t *comm);
ZERO_API int zero_comm_local_rank(const zero_comm_t *comm); /* among the ranks of this host */
ZERO_API int zero_comm_local_size(const zero_comm_t *comm);
/* How bulk data travels between the ranks' host memories: "self" (one rank), "node" (shared memory) or "mpi". What
 * joins GPUs is found out by zero_engine_create: zero_engine_transport. */
ZERO_API const char *zero_comm_name(const zero_comm_t *comm);
/* The same for zero_plan: ZERO_COMM_MPI if it travels as MPI messages, else ZERO_COMM_AUTO. */
ZERO_API zero_comm_kind_t zero_comm_get_kind(const zero_comm_t *comm);

/* The next four are for small data in host memory, and block the host. They wait for a peer ZERO_TIMEOUT_S seconds
 * (environment; 600) at most: then ZERO_ERROR_TIMEOUT, and ZERO_ERROR_PEER as soon as one is gone where that shows. */

/* values[i] becomes the sum over ranks, added in rank order 0..N-1, so every rank holds the same bits. [collective] */
ZERO_API zero_status_t zero_comm_sum(zero_comm_t *comm, double *values, size_t n_values);
/* The n_bytes at `data` of rank `root` to every rank's `data`. [collective] */
ZERO_API zero_status_t zero_comm_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root);
/* Returns when every rank has called it. [collective] */
ZERO_API zero_status_t zero_comm_barrier(zero_comm_t *comm);

/* Makes all ranks take the same way: returns ZERO_OK when `mine` is ZERO_OK on every rank, `mine` where it is not, and
 * ZERO_ERROR_PEER on ranks that were fine themselves (the failing rank has logged why). Put it after steps that can
 * fail on one rank alone, such as opening a file. [collective] */
ZERO_API zero_status_t zero_comm_agree(zero_comm_t *comm, zero_status_t mine);

/* Ends every rank of the job soon, from any rank, without waiting for the others: peers inside a call return
 * ZERO_ERROR_PEER where they can, and MPI ends the rest. Returns only where MPI is not in use; then exit yourself. */
ZERO_API void zero_comm_abort(zero_comm_t *comm, int exit_code);

/* ---- Device --------------------------------------------------------------------------------------------------------
 */

typedef struct zero_device zero_device_t;
typedef struct zero_stream *zero_stream_t; /* a cudaStream_t on CUDA (cast it); NULL on the CPU */

typedef enum zero_device_type {
    ZERO_DEVICE_AUTO,
    ZERO_DEVICE_CPU,
    ZERO_DEVICE_CUDA,
    ZERO_DEVICE_CUDA_SHARED /* as CUDA, but several ranks may share a GPU: to try more ranks than there are GPUs */
} zero_device_type_t;

/* What ZERO_DEVICE_AUTO means here: never ZERO_DEVICE_AUTO. Looks for GPUs but opens none. */
ZERO_API zero_device_type_t zero_device_resolve(zero_device_type_t type, const zero_comm_t *comm);

/* Opens the device of this rank: on CUDA the GPU with the number of the local rank, which is counted round where GPUs
 * are shared, which becomes the calling thread's current one. ZERO_DEVICE_AUTO takes CUDA where the library was built
 * with it and the host has a GPU, else the CPU. ZERO_ERROR_USAGE where there are fewer GPUs than ranks that may have
 * one. */
ZERO_API zero_status_t zero_device_create(zero_device_type_t type, const zero_comm_t *comm, zero_device_t **device);
ZERO_API void zero_device_destroy(zero_device_t *device);                      /* NULL is allowed */
ZERO_API zero_device_type_t zero_device_get_type(const zero_device_t *device); /* ZERO_DEVICE_CPU or _CUDA */
ZERO_API zero_status_t zero_device_synchronize(zero_device_t *device);         /* waits for all streams of the device */

/* A queue of its own for the device's work; on the CPU there is none and *stream is NULL. */
ZERO_API zero_status_t zero_stream_create(zero_device_t *device, zero_stream_t *stream);
ZERO_API void zero_stream_destroy(zero_device_t *device, zero_stream_t stream);

/* Copies n_bytes between any two of host and device memory, in stream order. Host memory must stay as it is until the
 * stream has passed the copy. */
ZERO_API zero_status_t zero_device_copy(zero_device_t *device, void *dst, const void *src, size_t n_bytes,
                                        zero_stream_t stream);

/* Zeroed host memory that zero_device_copy reads and writes without the host waiting (pinned, on CUDA). */
ZERO_API zero_status_t zero_host_alloc(zero_device_t *device, size_t n_bytes, void **data);
ZERO_API void zero_host_free(zero_device_t *device, void *data); /* NULL is allowed */

/* ---- Model declaration ---------------------------------------------------------------------------------------------
 */

typedef struct zero_model zero_model_t;
typedef int zero_unit_t;   /* 0, 1, 2 ... in the order of zero_model_add_unit: the order of the forward pass */
typedef int zero_tensor_t; /* 0, 1, 2 ... in the order of zero_model_add_tensor */

#define ZERO_MAX_DIMS 4
#define ZERO_MAX_NAME 128 /* bytes of a unit's or tensor's name, its closing zero included */

typedef enum zero_init { ZERO_INIT_ZEROS, ZERO_INIT_ONES, ZERO_INIT_NORMAL } zero_init_t;

typedef struct zero_tensor_desc {
    const char *name;             /* unique in the model; copied. Use the checkpoint's name, Hugging Face's say */
    int n_dims;                   /* 1..ZERO_MAX_DIMS */
    int64_t shape[ZERO_MAX_DIMS]; /* row-major, each at least 1 */
    zero_init_t init;             /* what zero_init_parameters writes */
    float init_std;               /* of ZERO_INIT_NORMAL, mean 0; finite */
    bool decay;                   /* weight decay applies */
    bool packed; /* starts where the unit's tensor before it ends, without padding: the two can be used as one matrix */
} zero_tensor_desc_t;

ZERO_API zero_status_t zero_model_create(zero_model_t **model);
ZERO_API void zero_model_destroy(zero_model_t *model); /* NULL is allowed; engines keep their own copy */
ZERO_API zero_status_t zero_model_add_unit(zero_model_t *model, const char *name, zero_unit_t *unit);
ZERO_API zero_status_t zero_model_add_tensor(zero_model_t *model, zero_unit_t unit, const zero_tensor_desc_t *desc,
                                             zero_tensor_t *tensor);
/* Lets `unit` use a tensor that an earlier unit owns (tied embeddings). Acquiring `unit` also makes the owner's
 * parameters resident, and the gradient of the tensor is summed over all units that use it before it is reduced. */
ZERO_API zero_status_t zero_model_share_tensor(zero_model_t *model, zero_unit_t unit, zero_tensor_t tensor);
ZERO_API int zero_model_n_units(const zero_model_t *model);
/* The name that the unit was declared with, which is the model's; NULL where there is no such unit. */
ZERO_API const char *zero_model_unit_name(const zero_model_t *model, zero_unit_t unit);
ZERO_API int zero_model_n_tensors(const zero_model_t *model);
ZERO_API uint64_t zero_model_n_params(const zero_model_t *model); /* elements, shared tensors counted once */

/* ---- Configuration -------------------------------------------------------------------------------------------------
 */

typedef enum zero_dtype { ZERO_FP32, ZERO_BF16, ZERO_FP16 } zero_dtype_t;
ZERO_API size_t zero_dtype_size(zero_dtype_t dtype); /* bytes of an element; 0 for other numbers */
ZERO_API const char *zero_dtype_name(zero_dtype_t dtype);

#define ZERO_OFFLOAD_AUTO (-1.0f)
#define ZERO_MAX_OFFLOAD_THREADS 1024

/* Who updates optimizer state that lies on the host. */
typedef enum zero_offload_update {
    ZERO_OFFLOAD_UPDATE_AUTO,   /* the device, where the host's memory can be pinned; else the host */
    ZERO_OFFLOAD_UPDATE_DEVICE, /* the state passes through the device, piece by piece, and returns */
    ZERO_OFFLOAD_UPDATE_HOST,   /* the CPU, where it lies; new parameters then go to the device */
} zero_offload_update_t;

typedef struct zero_config {
    int stage;                    /* 0..3 */
    zero_dtype_t dtype;           /* of parameters, and of gradients on the wire */
    int micro_steps;              /* per step, at least 1: gradient accumulation */
    int prefetch;                 /* stage 3: how many units are gathered ahead of their use; 0 turns it off */
    bool overlap;                 /* communication beside compute; on the CPU, which works in order, no difference */
    bool reduce_every_micro_step; /* stages 0-1: reduce as stages 2-3 do, for equal bits with accumulation */
    /* GPUs: NCCL adds the ranks' gradients, in dtype, for clusters whose network reduces; then the bits are NCCL's and
     * not the same at every stage. NCCL also carries the rest, which copy engines might otherwise. On the CPU it means
     * nothing: there gradients are summed in rank order. */
    bool nccl_reduction;
    uint64_t seed;                         /* of zero_init_parameters */
    float beta1, beta2, eps, weight_decay; /* AdamW, decoupled decay (Loshchilov & Hutter 2019, arXiv:1711.05101);
                                            * eps above 0: it divides where all gradients so far were 0 */
    float grad_clip;                       /* largest global gradient norm; 0 turns clipping off */
    int max_skipped_steps;                 /* this many non-finite steps in a row end the run (ZERO_ERROR_NONFINITE) */
    /* fp16 only: dynamic loss scaling starts at initial_loss_scale, doubles after loss_scale_window good steps in a
     * row, and halves at the loss_scale_hysteresis-th overflow since it last grew and at every one after that. */
    float initial_loss_scale;
    int loss_scale_window, loss_scale_hysteresis;
    /* GPUs, stages 1-3: the AdamW state of the last units in forward order, at least offload_ratio (0..1) of all, stays
     * in pinned host memory: the same bits, fewer bytes on the GPU. ZERO_OFFLOAD_AUTO: the smallest share with which
     * the plan fits what the devices have free when the engine is created. On the CPU it means nothing: there all state
     * is in host memory. */
    bool offload;
    float offload_ratio;
    zero_offload_update_t offload_update;
    size_t offload_buffer_bytes; /* DEVICE: of device memory that state passes through, at most, beside activations */
    int offload_threads; /* HOST: a rank's; 0: as many as its share of the cores near its GPU, but one; with more than
                          * cores all their hardware threads are used */
    float offload_ram;   /* what it may take at most of the host's memory, all ranks of a host together, above 0..1 */
    /* Where gradient slices are brought together before they are summed, the most that lies there at once; units with
     * more transfer in pieces, to the same bits. Large units need not fit: what does not is summed on the way, which
     * takes a little from compute. */
    size_t staging_bytes;
    size_t user_bytes; /* zero_alloc will ask for this much in all: counted in the plan's limit */
    /* Finds gradients that nobody writes, an unused branch's say, which would be summed as they were left before:
     * zero_acquire fills with a NaN of its own what is to be overwritten (zero_grad_t), and zero_grad_ready waits for
     * the stream and returns ZERO_ERROR_ARGUMENT, with a line that names unit and tensor, where an element still is
     * that NaN; the unit stays acquired. Gradients that are to be added to are not looked at. For tests: it takes time.
     * ZERO_CHECK=1 in the environment turns it on, too. */
    bool check;
} zero_config_t;

/* Stage 3, bf16, one micro-step, prefetch 1, overlap, seed 1, AdamW(0.9, 0.95, 1e-8, 0.1), clip 1.0, an end after 20
 * skipped steps; fp16's loss scale from 65536, window 1000, hysteresis 1; no offload (if it is turned on: ratio 1,
 * 256 MiB of buffers, half of the host's memory at most); 512 MiB of staging; no check. */
ZERO_API zero_config_t zero_config_default(void);

/* ---- Memory plan ---------------------------------------------------------------------------------------------------
 */

#define ZERO_MEMORY_MAP(X)                                                                                             \
    X(PARAMETERS, "parameters", "full copy, or this rank's shard at stage 3")                                          \
    X(UNSHARDED_PARAMETERS, "parameter slots", "full units in turn, stage 3")                                          \
    X(GRADIENTS, "gradients", "full copy at stages 0-1; fp32 sums of this rank's shard")                               \
    X(UNSHARDED_GRADIENTS, "gradient slots", "full units in turn, stages 2-3")                                         \
    X(OPTIMIZER, "optimizer state", "fp32 master weights (with bf16: their low halves), m, v; offload's buffers")      \
    X(COMMUNICATION, "communication", "staging of gradient slices, tables, norm partials")                             \
    X(ACTIVATIONS, "activations", "the caller's: kept from forward to backward")                                       \
    X(WORKSPACE, "workspace", "the caller's: scratch of kernels")                                                      \
    X(DATA, "data", "the caller's: batches")

typedef enum zero_memory_category {
#define ZERO_MEMORY_ENUM(name, text, what) ZERO_MEMORY_##name,
    ZERO_MEMORY_MAP(ZERO_MEMORY_ENUM)
#undef ZERO_MEMORY_ENUM
        ZERO_MEMORY_N_CATEGORIES
} zero_memory_category_t;

ZERO_API const char *zero_memory_name(zero_memory_category_t category); /* "parameter slots" */

typedef struct zero_memory {
    uint64_t bytes[ZERO_MEMORY_N_CATEGORIES]; /* on the rank's device (host memory when that is the CPU) */
    uint64_t pinned_bytes;                    /* of host memory beside a GPU, for offload */
} zero_memory_t;

ZERO_API uint64_t zero_memory_total(const zero_memory_t *memory); /* on the device */

/* What an engine with this configuration will hold on each rank, by pure arithmetic: no device, no communication. The
 * same on every rank.
 * device: the type of the ranks' devices, resolved (zero_device_resolve): not ZERO_DEVICE_AUTO.
 * kind: what carries bulk data between ranks on the CPU (zero_comm_get_kind): ZERO_COMM_MPI for messages, else
 * ZERO_COMM_AUTO. It makes no difference for GPUs.
 * ZERO_OFFLOAD_AUTO, which needs a device to decide, is planned as ratio 1, the least that the device can hold;
 * ZERO_OFFLOAD_UPDATE_AUTO as ZERO_OFFLOAD_UPDATE_DEVICE. */
ZERO_API zero_status_t zero_plan(const zero_model_t *model, const zero_config_t *config, zero_device_type_t device,
                                 zero_comm_kind_t kind, int world_size, zero_memory_t *plan);

/* ---- Engine --------------------------------------------------------------------------------------------------------
 */

typedef struct zero_engine zero_engine_t;

/* Lays out and allocates everything the plan names; afterwards steps allocate nothing. Declaration and configuration
 * are hashed and compared: ZERO_ERROR_MISMATCH names the first rank that differs. ZERO_ERROR_USAGE where a number of
 * the configuration is out of its range, ZERO_ERROR_MEMORY when the plan does not fit, with the numbers. comm and
 * device must outlive the engine (see Lifetimes); model may go. [collective] */
ZERO_API zero_status_t zero_engine_create(zero_comm_t *comm, zero_device_t *device, const zero_model_t *model,
                                          const zero_config_t *config, zero_engine_t **engine);
ZERO_API void zero_engine_destroy(zero_engine_t *engine); /* NULL is allowed. [collective] */

/* Initial values from the declaration: a counter-based generator (Philox4x32-10, Salmon et al. 2011) keyed by seed,
 * tensor and element, so they depend neither on the world size nor on the stage. With no step unwaited. [collective] */
ZERO_API zero_status_t zero_init_parameters(zero_engine_t *engine);

/* A run of one tensor's elements [first, first + n_elems) in row-major order, as fp32. */
typedef struct zero_chunk {
    zero_tensor_t tensor;
    uint64_t first;
    size_t n_elems;
    float *master; /* weights */
    float *m;      /* AdamW's first moment; NULL where only weights are meant */
    float *v;      /* AdamW's second moment; likewise */
} zero_chunk_t;

typedef zero_status_t (*zero_chunk_fn)(void *user, const zero_chunk_t *chunk);

/* Writes the state, between steps: calls `fill` for every run this rank owns (each element is owned by exactly one
 * rank, at every stage); it fills chunk->master, m and v. Then publishes the state to all ranks. Without with_moments,
 * which takes that no step is unwaited, m and v are NULL and become zero, as does AdamW's t.
 *
 * Where `fill` fails on a rank, that rank returns its status and the others ZERO_ERROR_PEER. The weights are incomplete
 * then: until this, zero_init_parameters, zero_load_weights or zero_load succeeds, zero_begin, zero_get_state and
 * zero_save_begin return ZERO_ERROR_ORDER. [collective] */
ZERO_API zero_status_t zero_set_state(zero_engine_t *engine, bool with_moments, zero_chunk_fn fill, void *user);
/* The same from a directory in Hugging Face's layout: model.safetensors, or model.safetensors.index.json and the files
 * it names, with F32, BF16 or F16 tensors of the declared names and shapes ("transformer." or "model." in front is
 * tolerated on either side). Each rank reads only what it owns. Moments become zero, as does AdamW's t. A number that
 * is not finite is ZERO_ERROR_FORMAT, with a line that names it; weights may be overwritten in part by then, and the
 * engine refuses to use them. With no step unwaited. [collective] */
ZERO_API zero_status_t zero_load_weights(zero_engine_t *engine, const char *directory);
/* Reads it, between steps: calls `visit` for every run this rank owns, in order of tensor and element. */
ZERO_API zero_status_t zero_get_state(zero_engine_t *engine, zero_chunk_fn visit, void *user);

typedef enum zero_pass {
    ZERO_PASS_TRAIN, /* forward through all units, then backward in reverse */
    ZERO_PASS_EVAL,  /* forward only */
} zero_pass_t;

/* Starts a micro-step (train) or a forward pass (eval). Eval passes are allowed between steps. ZERO_ERROR_ORDER inside
 * a pass, or where zero_step is due. [collective] */
ZERO_API zero_status_t zero_begin(zero_engine_t *engine, zero_pass_t pass, zero_stream_t stream);
/* Makes the unit's parameters resident, and in backward gives its gradients a place. Units come in the declared order,
 * one at a time; anything else is ZERO_ERROR_ORDER at once. [collective] */
ZERO_API zero_status_t zero_acquire(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* Ends the unit's use in forward. */
ZERO_API zero_status_t zero_release(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* Ends it in backward: every gradient of the unit is written; they leave for their owners. ZERO_ERROR_ARGUMENT where
 * zero_config_t's check finds one that is not. [collective] */
ZERO_API zero_status_t zero_grad_ready(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);

/* The tensor's full parameter in device memory: row-major, of the configured dtype, aligned to 128 bytes unless it is
 * packed. Valid until the unit is released, for work queued in the stream that it was acquired in; another acquire may
 * give another address. NULL unless a unit that uses it is acquired. */
ZERO_API const void *zero_param(const zero_engine_t *engine, zero_tensor_t tensor);

typedef struct zero_grad {
    void *data;         /* the tensor's full gradient: memory, layout and life as zero_param's; NULL outside backward */
    zero_dtype_t dtype; /* the configured dtype, or fp32 where micro-steps are accumulated before they are reduced */
    bool accumulate;    /* true: add to what is there; false: overwrite every element */
} zero_grad_t;
/* Gradients are summed over ranks and micro-steps, not averaged: scale the loss by 1 / (global batch). */
ZERO_API zero_grad_t zero_grad(const zero_engine_t *engine, zero_tensor_t tensor);

/* fp16: multiply the loss's gradient by this; the norm and the update are free of it. 1 for fp32 and bf16. Device
 * memory, constant between steps. */
ZERO_API const float *zero_loss_scale(const zero_engine_t *engine);

/* Ends the step: global gradient norm, clipping, AdamW on this rank's shard, new parameters to all that hold them.
 * With norm the root of the sum of squares of all gradients, g = gradient * min(1, grad_clip / (norm + 1e-6)), and t
 * counting the steps that were not skipped:
 *
 *     m = beta1 m + (1 - beta1) g                  v = beta2 v + (1 - beta2) g^2
 *     w = w - lr decay w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * where decay is weight_decay for tensors declared with it, else 0. A non-finite norm skips the update. lr: learning
 * rate of this step, a finite number. local_loss: one double in device memory, this rank's share of the loss (summed
 * over ranks in rank order), or NULL. At most two steps may be unwaited: a third is ZERO_ERROR_ORDER, as is a step with
 * micro-steps missing. [collective] */
ZERO_API zero_status_t zero_step(zero_engine_t *engine, float lr, const double *local_loss, zero_stream_t stream);

/* A number for all ranks to know, without a wait: it goes with this rank's part of every zero_step from now on, and
 * each result has the largest of all ranks', so that what one rank learns (a signal has come, a limit is near) all can
 * act upon after the same step. 0 until it is set. Costs nothing in steps in which it stays. */
ZERO_API void zero_set_notice(zero_engine_t *engine, uint32_t notice);

typedef struct zero_step_result {
    uint64_t step;    /* counts from 1 */
    float loss;       /* sum of local_loss over ranks */
    float grad_norm;  /* before clipping */
    float loss_scale; /* that this step used */
    bool skipped;     /* the norm was not finite: weights and moments are unchanged */
    uint32_t notice;  /* the largest that a rank gave zero_set_notice before this zero_step */
    double step_ms; /* by this rank's device: from the step before's end, or from the first zero_begin where none was */
                    /* under way then, to the end of the update on all ranks */
    /* This rank's: compute stood still for communication, in this step. Within a pass that is counted from a unit's end
     * on, so work of yours between it and the next acquire is taken for standing still, where communication takes
     * longer. */
    double exposed_comm_ms;
} zero_step_result_t;

/* The oldest unwaited step's result, waiting for it if need be; every rank gets the same bits. ZERO_ERROR_NONFINITE
 * after max_skipped_steps skipped steps in a row; the result is set then, too. ZERO_ERROR_MISMATCH where ranks came to
 * the step by different calls, or with different learning rates. */
ZERO_API zero_status_t zero_step_wait(zero_engine_t *engine, zero_step_result_t *result);

/* Steps that changed the weights, AdamW's t, as of the last step that zero_step_wait returned; and setting it when a
 * run resumes, between steps. */
ZERO_API uint64_t zero_get_adam_step(const zero_engine_t *engine);
ZERO_API zero_status_t zero_set_adam_step(zero_engine_t *engine, uint64_t adam_step);

/* Memory of the rank's device for the caller's own use, counted under `category`, zeroed, 256-byte aligned, freed with
 * the engine. Only before the first zero_begin. */
ZERO_API zero_status_t zero_alloc(zero_engine_t *engine, zero_memory_category_t category, size_t n_bytes, void **data);
/* The same, as ZERO_MEMORY_ACTIVATIONS, for what matters only from zero_acquire(first) in a forward pass to
 * zero_grad_ready(last) in its backward (or the end of an eval pass). At other times the engine may write there: memory
 * that is idle between the passes of two steps is where optimizer state from the host waits for its update, and after
 * it for its way back. Undefined at every zero_acquire(first). */
ZERO_API zero_status_t zero_alloc_activations(zero_engine_t *engine, zero_unit_t first, zero_unit_t last,
                                              size_t n_bytes, void **data);

/* What is held now, by the engine's own counters. */
ZERO_API zero_memory_t zero_engine_memory(const zero_engine_t *engine);

typedef struct zero_stats {
    uint64_t n_gathers, gathered_bytes; /* units gathered, and bytes that came from other ranks */
    uint64_t n_reduces, reduced_bytes;  /* units reduced, and bytes of gradient slices from other ranks */
    uint64_t n_gathers_saved;           /* acquired while still resident: no gather */
    double exposed_comm_ms;             /* compute stood still for communication, over the steps waited for */
} zero_stats_t;
ZERO_API zero_stats_t zero_engine_stats(const zero_engine_t *engine); /* since creation */

/* What carries parameters and gradients between ranks: "copy-engine", "nccl" or "through-host" between GPUs, else as
 * zero_comm_name; "self" for one rank. */
ZERO_API const char *zero_engine_transport(const zero_engine_t *engine);

/* ---- Checkpoints ---------------------------------------------------------------------------------------------------
 *
 * A directory of checkpoints holds one directory a step, step-00000010 say, and `latest`, a link to the newest. A
 * step's directory appears under its name, by rename, when all in it is on the disk; whatever ends a save before that
 * leaves the earlier checkpoints as they were. In it:
 *
 *     model-00001-of-0000n.safetensors, model.safetensors.index.json     weights in the configured dtype, in Hugging
 *                                                                        Face's layout, by declared name
 *     optimizer-00001-of-0000n.safetensors                               fp32: NAME.master, NAME.m, NAME.v
 *     state.json                                                         step, AdamW's t, loss scale; the caller's own
 *     config.json                                                        the caller's
 *     manifest.json                                                      size and XXH3 of every other file, which are
 *                                                                        those of what was meant to be written
 *
 * Where a number stands depends on neither stage nor world size: any number of ranks at any stage and of any dtype
 * goes on from it, with the same weights and moments to the bit. All ranks must see the same directory.
 *
 * What else is kept beside checkpoints is safe: a directory is removed only if it has a manifest of libzero's, or the
 * mark that it was being written, or is empty; and what is not libzero's but has the name of the step to be saved is
 * renamed, to step-00000010.moved say, with a warning.
 */

typedef struct zero_save_options {
    /* Texts of JSON objects, without a key twice; else zero_save_begin returns ZERO_ERROR_ARGUMENT. */
    const char *config_json; /* config.json, written as it is; NULL: no such file */
    const char *state_json;  /* its keys are added to state.json's, none of which it may have; NULL: none */
    int keep;                /* newest checkpoints that stay when this one is complete; 0: all; at least 0 */
    uint64_t max_file_bytes; /* of data in a file; 0: 4 GiB. One tensor's array is never split */
    bool background;         /* write from a copy in host memory (12 bytes for each element that this rank owns) */
} zero_save_options_t;

typedef struct zero_save zero_save_t;

/* Makes `directory`, with its parents, where it is missing, removes what saves that were killed have left in it, and
 * finds out whether it can be written: better before step 0 than after a day. ZERO_ERROR_IO while a save into it is
 * under way, and where `latest` is there and no link. [collective] */
ZERO_API zero_status_t zero_save_prepare(zero_comm_t *comm, const char *directory);

/* Begins to save the step that zero_step_wait returned last, with no step unwaited. With `background` steps may follow
 * while a thread writes; without, the writing is done on return. zero_save_end must follow, and before another save
 * into the same directory: that is ZERO_ERROR_IO, and takes nothing from this one. options may go. [collective] */
ZERO_API zero_status_t zero_save_begin(zero_engine_t *engine, const char *directory, const zero_save_options_t *options,
                                       zero_save_t **save);
/* Takes the save on as far as it goes without waiting; call it now and then, after each step say. *done: it is complete
 * and zero_save_end will not wait. A failure, which zero_save_end returns again, leaves nothing behind. [collective] */
ZERO_API zero_status_t zero_save_poll(zero_save_t *save, bool *done);
/* Waits until it is complete; frees `save` in any case. NULL is allowed. [collective] */
ZERO_API zero_status_t zero_save_end(zero_save_t *save);

typedef struct zero_checkpoint zero_checkpoint_t;

/* Opens a step's directory, or the latest in a directory of checkpoints, and compares every file with the manifest; the
 * ranks share that work. ZERO_ERROR_USAGE where there is no checkpoint, ZERO_ERROR_IO or _FORMAT, with a line that
 * names the file, where one is not as it was written. [collective] */
ZERO_API zero_status_t zero_checkpoint_open(zero_comm_t *comm, const char *directory, zero_checkpoint_t **checkpoint);
ZERO_API void zero_checkpoint_close(zero_checkpoint_t *checkpoint); /* NULL is allowed */
ZERO_API const char *zero_checkpoint_path(const zero_checkpoint_t *checkpoint);
ZERO_API uint64_t zero_checkpoint_step(const zero_checkpoint_t *checkpoint);
ZERO_API const char *zero_checkpoint_state(const zero_checkpoint_t *checkpoint); /* state.json, one object, as text */

/* Weights, moments and everything else a step depends on, as they were: the next zero_step is step
 * zero_checkpoint_step + 1. Before the first zero_begin. ZERO_ERROR_FORMAT where the checkpoint's tensors are not those
 * that were declared; and where a weight or moment is not finite, or a second moment negative: then with a line that
 * names it, and weights may be overwritten in part. [collective] */
ZERO_API zero_status_t zero_load(zero_engine_t *engine, const zero_checkpoint_t *checkpoint);

/* ---- Trace ---------------------------------------------------------------------------------------------------------
 */

#define ZERO_WORK_MAP(X)                                                                                               \
    X(COMPUTE, "compute", "between a unit's acquire and its release or grad_ready")                                    \
    X(WAIT, "wait", "compute stands still for communication")                                                          \
    X(GATHER, "gather", "full parameters (stage 0: sums) of a unit from all ranks")                                    \
    X(REDUCE, "reduce", "gradient slices of a unit from all ranks")                                                    \
    X(UPDATE, "update", "norm, clipping and AdamW")

typedef enum zero_work {
#define ZERO_WORK_ENUM(name, text, what) ZERO_WORK_##name,
    ZERO_WORK_MAP(ZERO_WORK_ENUM)
#undef ZERO_WORK_ENUM
        ZERO_N_WORKS
} zero_work_t;

ZERO_API const char *zero_work_name(zero_work_t work); /* "gather" */

typedef struct zero_trace_span {
    zero_work_t work;
    zero_unit_t unit;        /* -1: of no unit */
    uint64_t step;           /* counts from 1; 0: between steps (evaluation, initial values) */
    double begin_ms, end_ms; /* CLOCK_MONOTONIC of this host */
} zero_trace_span_t;

/* Called from zero_step_wait and other calls of the engine; spans of one work in the order in which they began. */
typedef void (*zero_trace_fn)(void *user, const zero_trace_span_t *span);

/* Sends what the device does from now on to `fn`, some steps later: the works whose bit (1u << ZERO_WORK_UPDATE, say)
 * is set. Costs a few events per unit, which the host records; before the first zero_begin. */
#define ZERO_ALL_WORKS ((1u << ZERO_N_WORKS) - 1)
ZERO_API zero_status_t zero_engine_trace(zero_engine_t *engine, unsigned works, zero_trace_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
