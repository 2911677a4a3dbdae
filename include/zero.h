/* zero.h - libzero: ZeRO stages 0-3 (FSDP) for training codes in C.
 *
 * libzero shards a model's parameters, gradients and AdamW state over the ranks of an MPI job. Your code declares the
 * model as a list of units and computes their forward and backward pass. libzero gathers each unit's parameters before
 * you use them, reduces its gradients when you have written them, and updates the weights.
 *
 * A program has this shape:
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
 * Words:
 *
 *     rank, world size        a process of the MPI job; how many there are
 *     unit                    tensors that are gathered and released together, such as a transformer block
 *     flat buffer             a unit's tensors one after another, padded
 *     shard                   one rank's 1/N of a flat buffer, on N ranks
 *     stage                   what is sharded: 0 nothing (plain data parallel), 1 optimizer state, 2 also gradients,
 *                             3 also parameters
 *     acquire, release        make a unit's full parameters resident; give them up (FSDP: unshard, reshard)
 *     unsharded buffer        room for one whole unit, in which units take turns
 *     micro-step              one forward and backward pass; with gradient accumulation a step has several
 *     reduced gradients       summed over ranks in fp32; held in fp32 or bf16 (zero_config_t.gradients)
 *     master weights, m, v    the fp32 weights and the two moments that AdamW updates
 *     offloaded               kept in host memory
 *     transport               how bytes move between ranks, such as "node" (shared memory) or "nccl"
 *
 * The stages are those of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054); units are FSDP's (Zhao et al. 2023,
 * arXiv:2304.11277).
 *
 * Status. A call that can fail returns a zero_status_t, and sets its outputs only if that is ZERO_OK. A failure is
 * logged once, by the code that detects it: one line says what failed, where, and what to do. The library never prints
 * to stdout, and never ends the process unless you call zero_comm_abort.
 *
 * Arguments. No pointer may be NULL unless the call says so. A call that returns a status refuses NULL and values out
 * of range with ZERO_ERROR_ARGUMENT and a log line that names function and argument; if the call is also out of order,
 * the status may be ZERO_ERROR_ORDER instead. A refused call changes nothing. A call that returns a value returns a
 * neutral one for NULL: 0, -1 for a rank, NULL, "" for a text, ZERO_DEVICE_AUTO for a device type. A call that returns
 * nothing does nothing. Texts and structs that you pass are copied or used only during the call.
 *
 * Lifetimes. An engine uses its communicator and its device; a save uses its engine and communicator; an open
 * checkpoint uses its communicator. Destroy the users first. An object that is destroyed while it is in use lives on
 * until the last user is gone, and an error line names the users. They keep working, but you must not use the handle of
 * the destroyed object any more.
 *
 * Threads. Use an engine, its communicator and its device from one host thread at a time. With several ranks the calls
 * use MPI. Unless your program has initialized MPI, zero_comm_create does, with MPI_THREAD_FUNNELED: then call libzero
 * from the main thread alone. To call it from other threads, initialize MPI before, with MPI_THREAD_SERIALIZED, or with
 * MPI_THREAD_MULTIPLE if several call at once. Call nothing of libzero in a signal handler.
 *
 * Streams. A zero_stream_t is an ordered queue of device work: a cudaStream_t on CUDA; NULL on the CPU, where work is
 * done when the call returns. What a call does in a stream comes after the work already queued there and before the
 * work that you queue afterwards. Use one stream for all passes and steps of an engine, or order your streams' work
 * yourself.
 *
 * Collective calls are marked [collective]. Every rank must make them, in the same order. If one rank's call is refused
 * for an argument, the other ranks return ZERO_ERROR_PEER from zero_engine_create, zero_set_state, zero_load_weights,
 * zero_load, zero_save_prepare, zero_save_begin and zero_checkpoint_open. In every other collective call they wait, as
 * for any missing rank, until that rank calls zero_comm_abort or ends. No wait is longer than ZERO_TIMEOUT_S seconds
 * (an environment variable; 600 if it is not set): then the call returns ZERO_ERROR_TIMEOUT.
 *
 * Ranks that meet in a collective call compare what they are doing: the call, its engine, unit, pass, step, micro-step,
 * learning rate and number of bytes. If these differ, the ranks return ZERO_ERROR_MISMATCH, a log line names two ranks
 * and their calls, and the data is not used. Ranks that have not met cannot meet again: later collective calls of their
 * communicator return errors, too. The comparison needs no extra messages or waiting:
 *
 *     - Ranks that share memory compare at once, in every call that communicates.
 *     - Ranks that send MPI messages do so when a rank has waited for one second.
 *     - GPUs compare once per step, because the host does not wait for them: the learning rate, and all calls so far in
 *       which GPUs met. zero_step_wait returns the mismatch, and the step has changed nothing. With
 *       ZERO_UPDATE_IN_BACKWARD it had updated weights by then: they are refused as after a failed zero_set_state.
 *
 * A call in which no rank waits for another is not compared: for example, one rank's own eval pass if it has full
 * parameters or reads them from its peers' memory.
 *
 * Versions. A program runs with every later library of the same soname, such as libzero.so.0, without being compiled
 * again. zero_config_t says how large it is (struct_size), and other structs that may grow have room for it,
 * `reserved`. That must be 0 in what you pass, and is 0 in what you get: begin with a struct of zeros, as a designated
 * initializer does. A program also runs with a library older than its header, as long as it sets nothing that the
 * library lacks (ZERO_ERROR_UNSUPPORTED) and calls nothing that it lacks (the loader says so).
 */
#ifndef ZERO_H
#define ZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. */
#define ZERO_VERSION_MAJOR 0
#define ZERO_VERSION_MINOR 1
#define ZERO_VERSION_PATCH 0

#if defined(__GNUC__)
#define ZERO_API __attribute__((visibility("default")))
#else
#define ZERO_API
#endif

/* Returns the version of the linked library, such as "0.1.0". It may be newer than this header. */
ZERO_API const char *zero_version(void);

/* ---- Status --------------------------------------------------------------------------------------------------------
 */

/* Every status with its name, number and text. */
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

/* Returns a status's name, such as "ZERO_ERROR_IO"; "ZERO_UNKNOWN" for other numbers. */
ZERO_API const char *zero_status_name(zero_status_t status);
/* Returns a status's text, such as "input or output failed". */
ZERO_API const char *zero_status_text(zero_status_t status);

/* ---- Communicator --------------------------------------------------------------------------------------------------
 *
 * This and the next five chapters are all that a training program needs: nearly all calls of examples/linear.c. Each
 * later chapter begins with when you need it.
 */

typedef struct zero_comm zero_comm_t;

typedef enum zero_comm_kind {
    ZERO_COMM_AUTO, /* shared memory inside a host, MPI messages between hosts; GPUs: copy engines, and NCCL */
    ZERO_COMM_MPI,  /* MPI messages only; GPUs stage them through host memory, which is slow */
    ZERO_COMM_NCCL, /* NCCL between GPUs, which an engine then requires; between host memories as ZERO_COMM_AUTO */
} zero_comm_kind_t;

/* Joins all ranks that mpirun started (MPI_COMM_WORLD). Without mpirun the program is one rank and MPI is not touched.
 *
 * Initializes MPI if the program has not; then zero_comm_destroy finalizes it. A process cannot start MPI a second time
 * (ZERO_ERROR_UNSUPPORTED), so keep one communicator for the program's life.
 *
 * Returns ZERO_ERROR_TIMEOUT if ranks are missing after ZERO_TIMEOUT_S seconds; the log line names them. Returns
 * ZERO_ERROR_MISMATCH if ranks ask for different kinds. MPI's own start waits for all ranks and cannot be interrupted:
 * a warning then names the missing ranks of this host, and the wait goes on, unless zero_comm_on_late_start says more.
 *
 * If mpirun started all ranks on one host, only mpirun's own daemon needs to listen on the network. Unless they are set
 * already, this call sets OMPI_MCA_pml and OMPI_MCA_btl in the environment before MPI_Init, so that Open MPI uses
 * shared memory alone, and NCCL_SOCKET_IFNAME to loopback. If the program initializes MPI or NCCL itself, it must set
 * them itself. Like setenv, this call must not run while another thread reads the environment. [collective] */
ZERO_API zero_status_t zero_comm_create(zero_comm_kind_t kind, zero_comm_t **comm);

ZERO_API void zero_comm_destroy(zero_comm_t *comm); /* NULL is allowed. [collective] */

ZERO_API int zero_comm_rank(const zero_comm_t *comm); /* this process's rank: 0..size - 1 */
ZERO_API int zero_comm_size(const zero_comm_t *comm); /* the world size */

/* ---- Device --------------------------------------------------------------------------------------------------------
 */

typedef struct zero_device zero_device_t;
typedef struct zero_stream *zero_stream_t; /* a cudaStream_t on CUDA (cast it); NULL on the CPU */

typedef enum zero_device_type {
    ZERO_DEVICE_AUTO, /* CUDA if the library was built with it and the host has a GPU, else the CPU */
    ZERO_DEVICE_CPU,
    ZERO_DEVICE_CUDA,
    ZERO_DEVICE_CUDA_SHARED /* as CUDA, but ranks may share a GPU: for trying more ranks than there are GPUs */
} zero_device_type_t;

/* Opens this rank's device. On CUDA that is the GPU numbered local_rank, modulo the number of GPUs if ranks share them,
 * and it becomes the calling thread's current device. Returns ZERO_ERROR_USAGE if this host has fewer GPUs than ranks,
 * unless they may share. With zero_comm_create_from all processes that the launcher started on this host count as
 * ranks, so that groups take different GPUs; if there are too few GPUs for that, only the communicator's. A device may
 * serve engines over several communicators. If the calling thread's OpenMP regions would have more threads than the
 * rank's share of the host's cores, they get that many, unless OMP_NUM_THREADS is set. */
ZERO_API zero_status_t zero_device_create(zero_device_type_t type, const zero_comm_t *comm, zero_device_t **device);
ZERO_API void zero_device_destroy(zero_device_t *device); /* NULL is allowed */

/* ---- Model declaration ---------------------------------------------------------------------------------------------
 */

typedef struct zero_model zero_model_t;
typedef int zero_unit_t;   /* 0, 1, 2 ... in the order of zero_model_add_unit: the order of the forward pass */
typedef int zero_tensor_t; /* 0, 1, 2 ... in the order of zero_model_add_tensor */

#define ZERO_MAX_DIMS 4   /* of a tensor's shape */
#define ZERO_MAX_NAME 128 /* bytes of a unit's or tensor's name, with the closing zero */

typedef enum zero_init { ZERO_INIT_ZEROS, ZERO_INIT_ONES, ZERO_INIT_NORMAL } zero_init_t;

typedef struct zero_tensor_desc {
    /* Unique in the model; checkpoints use it, so take Hugging Face's for its models. zero_save_begin refuses one that
     * is not UTF-8, has a control character, '/' or "..", is __metadata__ or, of a tensor that is trained, ends in '.'.
     */
    const char *name;
    int n_dims;                   /* 1..ZERO_MAX_DIMS */
    int64_t shape[ZERO_MAX_DIMS]; /* row-major, each at least 1 */
    zero_init_t init;             /* what zero_init_parameters writes */
    float init_std;               /* ZERO_INIT_NORMAL: standard deviation, finite; the mean is 0 */
    bool decay;                   /* weight decay applies */
    bool packed;                  /* no padding after the unit's previous tensor: the two can be used as one matrix */
    /* A matrix that compute uses in fp8 (E4M3), with one scale. A run of packed tensors is one such matrix, and they
     * must agree in it. See zero_config_t's gather_fp8. */
    bool fp8;
    /* Not trained. Only its weight is kept, rounded to the configured dtype: no gradient (zero_grad's data is NULL), no
     * optimizer state, nothing to send after an update. A run of packed tensors must agree in it. fp8 has no effect on
     * it: it is gathered in the configured dtype, unless frozen_fp8. */
    bool frozen;
    /* The weight of a hidden linear layer, with two dimensions: ZERO_OPTIMIZER_MUON updates it as one matrix, and so
     * does an optimizer of your own with `whole`. Not an embedding, a head, or several layers' weights in one tensor.
     * Other optimizers ignore it. */
    bool hidden_matrix;
    /* Frozen, and left out of checkpoints: the program gets it from elsewhere, such as the model that an adapter
     * belongs to. See Checkpoints. */
    bool not_saved;
    /* Frozen, and held and gathered only in fp8 (E4M3): 1 byte an element, with one scale for the matrix
     * (zero_param_fp8). A run of packed tensors is one such matrix, and they must agree in it. The configured dtype
     * must be bf16; the matrix is rounded from it once all of the matrix is set. The number of elements must be
     * even. */
    bool frozen_fp8;
    uint8_t reserved[33];
} zero_tensor_desc_t;

/* Creates an empty declaration. */
ZERO_API zero_status_t zero_model_create(zero_model_t **model);
ZERO_API void zero_model_destroy(zero_model_t *model); /* NULL is allowed; engines have their own copy */
/* Adds a unit at the end of the forward order. Its name must be unique among units. */
ZERO_API zero_status_t zero_model_add_unit(zero_model_t *model, const char *name, zero_unit_t *unit);
/* Adds a tensor to a unit, which then owns it. Returns ZERO_ERROR_OVERFLOW if the model would have more than 2^56
 * elements. */
ZERO_API zero_status_t zero_model_add_tensor(zero_model_t *model, zero_unit_t unit, const zero_tensor_desc_t *desc,
                                             zero_tensor_t *tensor);

/* ---- Configuration -------------------------------------------------------------------------------------------------
 *
 * Begin with zero_config_default and set the stage; most programs also need dtype, micro_steps, optimizer and its
 * numbers.
 */

typedef enum zero_dtype { ZERO_FP32, ZERO_BF16, ZERO_FP16 } zero_dtype_t;

#define ZERO_SHARD_GROUP_WORLD 0   /* shard_group: all ranks */
#define ZERO_SHARD_GROUP_HOST (-1) /* the ranks of a host; every host must have as many, numbered one after another */
#define ZERO_OFFLOAD_AUTO (-1.0f)  /* offload_ratio, offload_params: as little as makes the plan fit */
#define ZERO_KEEP_AUTO (-1)        /* keep: as many units as fit */
#define ZERO_MAX_OFFLOAD_THREADS 1024
#define ZERO_MAX_MUON_STEPS 99

/* What updates the offloaded optimizer state. */
typedef enum zero_offload_update {
    ZERO_OFFLOAD_UPDATE_AUTO,   /* the device if all ranks can pin their host memory, else the host */
    ZERO_OFFLOAD_UPDATE_DEVICE, /* the GPU: state is copied in and out again, chunk by chunk */
    ZERO_OFFLOAD_UPDATE_HOST,   /* the CPU, in place: new parameters are then copied to the GPU */
} zero_offload_update_t;

/* Where the sums of gradients of units whose state is offloaded wait from one micro-step to the next. */
typedef enum zero_offload_grads {
    ZERO_OFFLOAD_GRADS_AUTO,   /* on the device, unless the plan does not fit with them there */
    ZERO_OFFLOAD_GRADS_DEVICE, /* 4 bytes an element */
    ZERO_OFFLOAD_GRADS_HOST,   /* they leave as they are made, and come back for the next micro-step's backward pass */
} zero_offload_grads_t;

/* When a unit's weights are updated. */
typedef enum zero_update_time {
    ZERO_UPDATE_IN_STEP,     /* in zero_step, when the norm of all gradients is known */
    ZERO_UPDATE_IN_BACKWARD, /* in the last micro-step's backward pass, as soon as the unit's gradients are summed */
} zero_update_time_t;

/* What updates the weights: see Optimizers below for the formulas. A state array has 4 bytes per element, except
 * ZERO_OPTIMIZER_ADAMW8BIT's. */
typedef enum zero_optimizer {
    ZERO_OPTIMIZER_ADAMW,    /* state arrays m and v */
    ZERO_OPTIMIZER_SGD,      /* with momentum; state array m */
    ZERO_OPTIMIZER_NESTEROV, /* SGD with Nesterov's momentum; m */
    ZERO_OPTIMIZER_LION,     /* the sign of a moving average (Chen et al. 2023, arXiv:2302.06675); m */
    ZERO_OPTIMIZER_OWN,      /* a function of yours: zero_config_t's own_optimizer */
    /* Orthogonalized momentum (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for tensors declared with
     * hidden_matrix, AdamW for the others; m and v, of which v stays 0 for hidden matrices. Not with offload.
     */
    ZERO_OPTIMIZER_MUON,
    /* AdamW with m and v in 8 bits (Dettmers et al. 2022, arXiv:2110.02861; bitsandbytes' AdamW8bit): blocks of 64
     * numbers with one scale, 2.125 bytes for both. They are decoded for the update, and its result is encoded
     * again. Reading m and v as fp32 and writing them back changes nothing. Packed tensors must
     * begin at a multiple of 64 elements of their unit. */
    ZERO_OPTIMIZER_ADAMW8BIT,
    ZERO_N_OPTIMIZERS
} zero_optimizer_t;

typedef struct zero_own_optimizer zero_own_optimizer_t; /* see An optimizer of your own */
typedef struct zero_hooks zero_hooks_t;                 /* see Hooks */

/* How an engine works. All ranks must have the same values, except offload_threads, offload_ram, user_bytes,
 * user_pinned_bytes and check. Start from zero_config_default. */
typedef struct zero_config {
    size_t struct_size; /* sizeof(zero_config_t) in this header: zero_config_default sets it */
    int stage;          /* 0..3 */
    /* Of parameters, and of gradients on the wire. bf16 parameters are the master weights rounded to nearest, and ties
     * away from zero; others have ties to even. */
    zero_dtype_t dtype;
    int micro_steps; /* per step, at least 1: gradient accumulation */
    int prefetch;    /* stage 3: how many units are gathered ahead of their use; 0 turns it off */
    /* Stage 3: the last `keep` units stay resident from forward to backward, so that each is gathered once in a
     * micro-step (FSDP2: reshard_after_forward = False). That takes an unsharded buffer for each. The bits stay the
     * same. ZERO_KEEP_AUTO keeps as many as fit into the free device memory when the engine is created; on the CPU
     * none. */
    int keep;
    bool overlap; /* GPUs: communicate while computing */
    /* Stages 0-1 with several micro-steps: reduce in every micro-step, as stages 2-3 do (true, the default), for the
     * same bits at every stage and on any number of ranks. false: add micro-steps locally, in fp32, and reduce once per
     * step, for slow networks. */
    bool reduce_every_micro_step;
    /* GPUs: NCCL sums the ranks' gradients, in dtype, and moves all other data too. For clusters whose network can sum.
     * Results then have NCCL's bits, which differ between stages and numbers of ranks. Without it, and always on the
     * CPU, gradients are summed in fp32 and in the order of micro-batches. */
    bool nccl_reduction;
    /* Stage 3: how many consecutive ranks hold one copy of the parameters between them: groups of so many ranks each
     * have a copy, and gather units only among themselves (FSDP's HYBRID_SHARD, ZeRO++'s secondary partition). A number
     * that divides the world size, ZERO_SHARD_GROUP_WORLD or ZERO_SHARD_GROUP_HOST. Gradients and AdamW's state stay
     * spread over all ranks, and the bits stay the same: a rank updates its 1/N, and once a step the groups exchange
     * what they have updated. Takes parameter memory of 1/shard_group instead of 1/N. Below stage 3 it does nothing.
     * Not with nccl_reduction. */
    int shard_group;
    /* bf16: parameters that are declared with fp8 are gathered and resident in fp8, 1 byte an element (zero_param_fp8).
     * Each rank casts its own shard after every update, with the scale of the whole matrix. So the bytes are those of a
     * cast of the full bf16 parameter, and training has the same bits with and without it. Groups of shard_group
     * exchange and gather bytes, too. */
    bool gather_fp8;
    uint64_t seed; /* of zero_init_parameters */
    zero_optimizer_t optimizer;
    /* For ZERO_OPTIMIZER_OWN, NULL with others: it and what it points to must outlive the engine. Takes 4 MiB to update
     * a run at a time. Ranks must agree on name and n_arrays. Not with offload. */
    const zero_own_optimizer_t *own_optimizer;
    const zero_hooks_t *hooks; /* NULL: none. It must outlive the engine; ranks must agree on which functions it has */
    /* AdamW with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101). eps must be above 0: it is the
     * divisor for weights whose gradients were all 0 so far. Lion uses beta1, beta2 and weight_decay; both kinds of
     * SGD use momentum and weight_decay. See Optimizers below for the formulas. */
    float beta1, beta2, eps, weight_decay, momentum;
    float muon_momentum;   /* Muon's, for hidden matrices; beta1, beta2 and eps are for what AdamW updates */
    int muon_steps;        /* of its Newton-Schulz iteration: 1..ZERO_MAX_MUON_STEPS */
    float grad_clip;       /* largest global gradient norm; 0 turns clipping off */
    int max_skipped_steps; /* after this many non-finite steps in a row zero_step_wait returns ZERO_ERROR_NONFINITE */
    /* fp16: dynamic loss scaling. The scale starts at initial_loss_scale and doubles after loss_scale_window good steps
     * in a row, up to 2^24. It halves, down to 1, at the loss_scale_hysteresis-th overflow since it last grew and at
     * every later one. */
    float initial_loss_scale; /* at least 1; above 2^24 it never grows */
    int loss_scale_window, loss_scale_hysteresis;
    /* GPUs, stages 1-3: keeps AdamW's state of the last units in forward order in pinned host memory, at least
     * offload_ratio (0..1) of the whole state. The bits stay the same. ZERO_OFFLOAD_AUTO takes the smallest share with
     * which the plan fits into the free device memory when the engine is created. ZERO_ERROR_USAGE at stage 0; ignored
     * on the CPU, where all state is in host memory anyway. */
    bool offload;
    float offload_ratio;
    zero_offload_update_t offload_update;
    /* ZERO_OFFLOAD_UPDATE_DEVICE: stages the state in idle activations, and in at most this much device memory. With
     * ZERO_UPDATE_IN_BACKWARD no activations are idle: for units of 100 million parameters or more, 1 GiB makes steps
     * shorter than 256 MiB. */
    size_t offload_buffer_bytes;
    /* ZERO_OFFLOAD_UPDATE_HOST: threads per rank. 0: one less than the rank's share of the cores near its GPU. If it is
     * more than there are cores, all their hardware threads are used. */
    int offload_threads;
    float offload_ram; /* most of the host's memory that all its ranks may take together: above 0, at most 1 */
    /* The most device memory that stages gradients on their way to the rank that sums them. Larger units are copied in
     * chunks, and summed chunk by chunk, to the same bits; that takes a little time from compute. */
    size_t staging_bytes;
    size_t user_bytes; /* bytes that zero_alloc will ask for in all: the plan must fit with them */
    /* For tests, because it takes time: finds gradients that you forgot to write, for example of an unused branch, and
     * that would otherwise be summed with whatever was in their buffer. zero_acquire fills gradients that are to be
     * overwritten with a special NaN. zero_grad_ready waits for the stream and looks for it; if an element still has
     * it, it returns ZERO_ERROR_ARGUMENT with a line that names unit and tensor, and the unit stays acquired. Gradients
     * that are to be added to are not checked. ZERO_CHECK=1 in the environment has the same effect. */
    bool check;
    /* For evaluating and generating: the engine has only parameters, no gradients and no AdamW state, and runs only
     * ZERO_PASS_EVAL and ZERO_PASS_INPUT_GRAD. Weights come from zero_init_parameters, zero_load_weights or
     * zero_set_state without moments, rounded to dtype. ZERO_PASS_TRAIN, saving, zero_load, zero_get_state,
     * zero_get_tensor and zero_set_tensor are ZERO_ERROR_ORDER. There is no state to offload, but there are parameters.
     */
    bool forward_only;
    uint8_t unused[2]; /* 0 */
    /* GPUs, stage 3: keeps the parameters of the last units, trained and frozen ones, in pinned host memory: at least
     * this share (0..1) of all. They are copied to the GPU ahead of every use (`prefetch`): by one rank into the
     * unsharded buffer; of several ranks, each copies its shard, and then they gather as usual. The bits stay the same.
     * ZERO_OFFLOAD_AUTO takes the smallest share with which the plan fits. Unless forward_only, it needs `offload`, and
     * only units whose state is offloaded, too, are taken: state costs less to move. Not with gather_fp8 or groups of
     * shard_group. On the CPU it is checked and does nothing. */
    float offload_params;
    /* Bytes of pinned host memory that zero_stash_create will ask for in all: the host must have room for them in
     * addition to offload's, within offload_ram. Ignored on the CPU. */
    size_t user_pinned_bytes;
    /* ZERO_UPDATE_IN_BACKWARD (LOMO, Lv et al. 2023, arXiv:2306.09782): if a step reduces once, reduced gradients are
     * held for one unit only (two with offload, three with several ranks). With more micro-steps all are held, but for
     * those of offload_grads, and offloaded state still moves during backward. The bits are those of
     * ZERO_UPDATE_IN_STEP without clipping. Call zero_set_lr before zero_begin of the last micro-step. A gradient that
     * is not finite ends training: its unit and those before it are unchanged, those after it have been updated, and
     * zero_step_wait returns ZERO_ERROR_NONFINITE. After the first update zero_cancel fails, too. For both, set weights
     * and moments (zero_set_state), or load a checkpoint into a new engine. A step that was queued by then is skipped.
     * Needs grad_clip 0 and stages 1-3. Not with fp16, Muon, own optimizers, hooks and ZERO_OFFLOAD_UPDATE_HOST. */
    zero_update_time_t update;
    /* What reduced gradients are rounded to, once, when they are summed over all ranks and micro-steps: ZERO_FP32, not
     * at all, or ZERO_BF16, for dtype bf16. The bits stay equal at all stages and on any number of ranks, and norms are
     * those of the rounded gradients. Where a step reduces once, they are held in 2 bytes instead of 4. (So they are
     * with fp32, at no loss, on one rank with one micro-step, which uses them as backward has written them.) Not with
     * Muon, own optimizers and hooks, and not at stage 0. */
    zero_dtype_t gradients;
    /* With offload, where a step reduces several times (more than one micro-step, and not stage 1 with
     * reduce_every_micro_step = false): ZERO_OFFLOAD_GRADS_HOST keeps the sums of gradients of units whose state is
     * offloaded in pinned host memory between micro-steps, 4 bytes an element of this rank's shard. The device then
     * holds them for two units (with updates in backward, several ranks: three), and the buffers of
     * offload_buffer_bytes have room for gradients, too. Sums are added up on the device, in the same order: the bits
     * stay the same. Otherwise it changes nothing. */
    zero_offload_grads_t offload_grads;
    uint8_t reserved[4];
} zero_config_t;

/* Sets the defaults: stage 3, bf16, one micro-step, prefetch 1, keep 0, overlap, seed 1; AdamW with beta1 0.9, beta2
 * 0.95, eps 1e-8, weight_decay 0.1 (momentum 0.9 for SGD, 0.95 and 5 steps for Muon); grad_clip 1.0; an end after 20
 * skipped steps; fp16's loss scale from 65536, window 1000, hysteresis 1; no offload (but if you turn it on: ratio 1,
 * no parameters, 256 MiB of buffers, at most half of the host's memory); 512 MiB of staging; no check; no gather_fp8;
 * not forward_only; gradients in fp32, updates in zero_step; offload_grads auto.
 *
 * struct_size: the size of the struct at `config`; nothing beyond it is written. C and C++ need only
 * zero_config_default; this is for bindings to other languages. In a smaller struct, of an older header, the missing
 * fields have their defaults. In a larger one, fields that the library does not know must be 0 (ZERO_ERROR_UNSUPPORTED
 * otherwise). ZERO_ERROR_ARGUMENT if no header has a struct of that size. */
ZERO_API zero_status_t zero_config_init(zero_config_t *config, size_t struct_size);
/* Returns the defaults. */
static inline zero_config_t zero_config_default(void)
{
    zero_config_t config;
    config.struct_size = 0; /* refused wherever it is used */
    (void)zero_config_init(&config, sizeof config);
    return config;
}
/* Sets one field by its name above, from text, as it comes from a command line or a file: "stage" to "3" ("zero.stage"
 * is the same), "dtype" to "bf16", "overlap" to "false", "optimizer" to a name of zero_optimizer_name ("own" excepted).
 * keep, offload_ratio and offload_params also take "auto", and shard_group "host"; offload_update and offload_grads
 * take "auto", "device" or "host", update "step" or "backward". Fields that point to functions of yours cannot be set.
 * An unknown name, or a text that is not a value of the field's type, is ZERO_ERROR_ARGUMENT, and nothing has changed.
 * Ranges are checked by zero_engine_create. */
ZERO_API zero_status_t zero_config_set(zero_config_t *config, const char *name, const char *value);

/* ---- Engine --------------------------------------------------------------------------------------------------------
 *
 * An engine owns the memory of one model on this rank and trains it. The order of its calls is in the example at the
 * top. "Between steps" means: outside a pass, and after zero_step if a micro-step has run. "With all results read"
 * means in addition that zero_step_wait has returned the result of every zero_step. A call made at another time returns
 * ZERO_ERROR_ORDER.
 */

typedef struct zero_engine zero_engine_t;

/* Plans and allocates all memory; steps allocate nothing afterwards. Compares declaration and configuration over ranks:
 * ZERO_ERROR_MISMATCH names the first rank that differs. Returns ZERO_ERROR_USAGE if a number of the configuration is
 * out of its range, and ZERO_ERROR_MEMORY, with the numbers, if the plan does not fit. The model may be destroyed
 * afterwards; comm and device must outlive the engine. [collective] */
ZERO_API zero_status_t zero_engine_create(zero_comm_t *comm, zero_device_t *device, const zero_model_t *model,
                                          const zero_config_t *config, zero_engine_t **engine);
ZERO_API void zero_engine_destroy(zero_engine_t *engine); /* NULL is allowed. [collective] */

/* Writes initial values as declared; moments and AdamW's step count become zero. Random values come from a
 * counter-based generator (Philox4x32-10, Salmon et al. 2011) keyed by seed, tensor and element, so they depend neither
 * on the world size nor on the stage. Call it between steps, with all results read. [collective] */
ZERO_API zero_status_t zero_init_parameters(zero_engine_t *engine);

/* ---- Passes and steps ----------------------------------------------------------------------------------------------
 */

typedef enum zero_pass {
    ZERO_PASS_TRAIN, /* forward through all units, then backward in reverse */
    ZERO_PASS_EVAL,  /* forward only */
    /* Forward and backward without this model's gradients, for the gradient of its input: a GAN's discriminator while
     * the generator learns, a reward model. zero_grad says NULL, nothing is reduced, and no step counts it. */
    ZERO_PASS_INPUT_GRAD,
} zero_pass_t;

/* Begins a micro-step (train) or another pass, which is allowed between steps. Returns ZERO_ERROR_ORDER inside a pass,
 * and if zero_step is due. [collective] */
ZERO_API zero_status_t zero_begin(zero_engine_t *engine, zero_pass_t pass, zero_stream_t stream);
/* Makes the unit's full parameters resident (in backward: unless zero_model_set_unshard_in_backward says that they are
 * not read there) and, in backward, provides a buffer for its gradients. Acquire one unit at a time, in the declared
 * order; another order is ZERO_ERROR_ORDER at once. [collective] */
ZERO_API zero_status_t zero_acquire(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* Ends the unit's use in forward. Work that is already queued in the stream still finds its parameters. */
ZERO_API zero_status_t zero_release(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
/* Ends the unit's use in backward: all its gradients are written (by work queued in the stream), and their reduction
 * starts. Returns ZERO_ERROR_ARGUMENT if zero_config_t's check finds one that is not written. [collective] */
ZERO_API zero_status_t zero_grad_ready(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);

/* Returns the tensor's full parameter in device memory: row-major, in the configured dtype, aligned to 128 bytes unless
 * the tensor is packed. NULL unless a unit that uses the tensor is acquired. The engine owns the memory. It is valid
 * until the unit is released, for work queued in the stream in which the unit was acquired. Ask again after every
 * acquire: the address may change. NULL, with a line in the log, for a tensor that is gathered in fp8: zero_param_fp8
 * has it. */
ZERO_API const void *zero_param(const zero_engine_t *engine, zero_tensor_t tensor);

typedef struct zero_grad_buffer {
    /* The tensor's full gradient: memory, layout and lifetime as zero_param's. NULL in forward, if it is frozen,
     * and in a unit that uses another unit's tensors but does not share this one (zero_model_share_tensor). */
    void *data;
    zero_dtype_t dtype; /* the configured dtype; fp32 if stages 0-1 accumulate micro-steps before reducing them */
    bool accumulate;    /* true: add to what is there; false: overwrite every element */
} zero_grad_t;
/* Returns where and how to write the tensor's gradient. Gradients are summed over ranks and micro-steps, not averaged:
 * divide the loss by the global batch.
 *
 * The sum is taken in fp32, in the order of v = micro-step * world size + rank, from v = 0 on. So a program has the
 * same bits on any number of ranks that divides the micro-batches of a step if it does three things: micro-step j of
 * rank r computes micro-batch v of the step; what it computes depends on v and the weights alone; and what it sums
 * itself, such as the loss (zero_step), has no order. */
ZERO_API zero_grad_t zero_grad(const zero_engine_t *engine, zero_tensor_t tensor);

/* Ends the step, after config.micro_steps micro-steps: computes the global gradient norm, clips, updates this rank's
 * shards by the optimizer, and publishes the new parameters. A non-finite norm skips the update. The work is queued in
 * the stream; zero_step_wait returns the result. The formulas are under Optimizers below.
 *
 * lr: the learning rate of this step; finite and the same on every rank. local_loss: one double in device memory, this
 * rank's share of the loss, or NULL. It is read in stream order, and summed over ranks in rank order. Round what each
 * micro-batch adds to it to a multiple of one power of two, such as 2^-42: then all sums are exact, and the loss is the
 * same on any number of ranks. The norm needs no such care: it is exact except for one rounding of every 64
 * squares, which are fp32: a norm below about 1e-19 is 0, and one above about 1e19 counts as not finite.
 *
 * Up to two steps may wait for their results to be read. A third is ZERO_ERROR_ORDER, as is a step whose micro-steps
 * are not all done. [collective] */
ZERO_API zero_status_t zero_step(zero_engine_t *engine, float lr, const double *local_loss, zero_stream_t stream);

typedef struct zero_step_result {
    uint64_t step;    /* counts from 1 */
    float loss;       /* sum of local_loss over ranks */
    float grad_norm;  /* before clipping */
    float loss_scale; /* that this step used */
    /* The norm was not finite: weights and moments are unchanged, but for units updated in backward. */
    bool skipped;
    uint32_t notice; /* the largest that any rank had set by zero_set_notice before this zero_step */
    /* Time on this rank's device, from the end of the previous step to the end of the update on all ranks. If no step
     * was pending at this step's first zero_begin, it counts from there. */
    double step_ms;
    /* How long this rank's compute waited in this step: for other ranks, and for copies and updates of what is
     * offloaded. Inside a pass a wait counts from the end of a unit's compute, so your own work between two units is
     * included if what it waits for takes longer. */
    double exposed_comm_ms, exposed_host_ms;
    /* That offload and stashes copied between GPU and host memory since the previous step, both ways. */
    uint64_t pcie_bytes;
    uint64_t reserved[2];
} zero_step_result_t;

/* Waits for the oldest step whose result has not been read, and returns its result: except for the times, the same bits
 * on every rank. On GPUs call it one step late, so that the host can queue work ahead.
 *
 * Returns ZERO_ERROR_NONFINITE after max_skipped_steps skipped steps in a row; the result is set then, too. Returns
 * ZERO_ERROR_MISMATCH if ranks came to the step by different calls or with different learning rates, and
 * ZERO_ERROR_ORDER if there is no result to read. */
ZERO_API zero_status_t zero_step_wait(zero_engine_t *engine, zero_step_result_t *result);

/* ---- Log -----------------------------------------------------------------------------------------------------------
 *
 * For programs that do not want libzero to print to stderr, or that show its errors themselves.
 */

typedef enum zero_log_level { ZERO_LOG_ERROR, ZERO_LOG_WARNING, ZERO_LOG_INFO, ZERO_LOG_DEBUG } zero_log_level_t;

/* Receives one log line, without prefix or newline; `line` is valid during the call. rank: this process's in the
 * communicator that the call is about; -1 while it is not known. Control characters and bytes that are not UTF-8, which
 * names in files may contain, are escaped, such as \x1b. Called from the thread that made the library call, with one
 * exception: while zero_comm_create waits in MPI, its warning comes from another thread. */
typedef void (*zero_log_fn)(void *user, zero_log_level_t level, int rank, const char *line);

/* Sends log lines of `level` and below to `fn`, with `user` as its first argument. fn = NULL restores the default,
 * which prints "zero: rank R: line" to stderr. The level is ZERO_LOG_WARNING until you set another. */
ZERO_API void zero_log_set(zero_log_level_t level, zero_log_fn fn, void *user);

/* Returns the text of the last error of the calling thread; "" if there was none. Usually that is its last error line.
 * A failure that concerns all ranks, such as different calls or a rank that has ended, may be logged by one rank only,
 * but its text is here on every rank whose call fails. After ZERO_ERROR_PEER of a call about which ranks agree, the
 * text names the rank that failed. An error status that your own callback returns does not change the text. It is never
 * cleared, so read it only after a failure. The library owns the text, which the thread's next error overwrites. */
ZERO_API const char *zero_last_error(void);

/* ---- Small data between ranks --------------------------------------------------------------------------------------
 *
 * For a program that has something of its own to agree on, sum or send; and for its end after a failure.
 */

/* Replaces values[i] on every rank by the sum over ranks. Adds in rank order, so that every rank gets the same bits.
 *
 * This and the next three calls are meant for small data in host memory, and block the host. They return
 * ZERO_ERROR_TIMEOUT if a rank does not come within ZERO_TIMEOUT_S seconds, and ZERO_ERROR_PEER as soon as a rank is
 * known to be gone. [collective] */
ZERO_API zero_status_t zero_comm_sum(zero_comm_t *comm, double *values, size_t n_values);
/* Copies n_bytes at `data` of rank `root` to `data` of every rank. [collective] */
ZERO_API zero_status_t zero_comm_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root);
/* Waits until every rank has called it. [collective] */
ZERO_API zero_status_t zero_comm_barrier(zero_comm_t *comm);

/* Makes ranks succeed or fail together. Returns ZERO_OK if `mine` is ZERO_OK on every rank. Otherwise returns `mine` on
 * the ranks that failed, which have logged why, and ZERO_ERROR_PEER on the others. Use it after a step that one rank
 * can fail alone, such as opening a file. [collective] */
ZERO_API zero_status_t zero_comm_agree(zero_comm_t *comm, zero_status_t mine);

/* Ends the whole job from any rank, without waiting for the others: ranks inside a call return ZERO_ERROR_PEER if they
 * can, and MPI ends the rest. Returns only if MPI is not in use; then exit yourself.
 *
 * On a communicator of zero_comm_create_from it aborts that communicator alone. What else ends is up to MPI: the
 * standard asks for at least its ranks, and Open MPI ends the whole job. If it was made from NULL, there is nothing to
 * end, and the call returns. */
ZERO_API void zero_comm_abort(zero_comm_t *comm, int exit_code);

/* ---- Ranks and their hosts -----------------------------------------------------------------------------------------
 *
 * For programs that must know where their ranks are, or that start before there is a communicator.
 */

/* Returns the rank that the launcher gave this process, read from the environment; 0 without a launcher. Use it before
 * there is a communicator, for example to report a bad command line from one rank only. */
ZERO_API int zero_comm_launch_rank(void);
ZERO_API int zero_comm_local_rank(const zero_comm_t *comm); /* among the ranks of this host */
ZERO_API int zero_comm_local_size(const zero_comm_t *comm); /* how many ranks run on this host */
/* Sets hosts[r] to the host of rank r, numbered from 0 in the order of their first ranks, for each of the
 * communicator's ranks. Returns how many hosts there are. */
ZERO_API int zero_comm_hosts(const zero_comm_t *comm, int *hosts);
/* Returns the transport between the ranks' host memories: "self" (one rank), "node" (shared memory), "mpi"
 * (messages) or "hierarchical" (messages between hosts, shared memory inside). For the transport between GPUs see
 * zero_engine_transport. */
ZERO_API const char *zero_comm_name(const zero_comm_t *comm);
/* The same for zero_plan: ZERO_COMM_MPI if it travels as MPI messages, else ZERO_COMM_AUTO. */
ZERO_API zero_comm_kind_t zero_comm_get_kind(const zero_comm_t *comm);

/* Sets a function that zero_comm_create calls after its warning that ranks are missing, from a thread of its own, while
 * it goes on waiting. A program that does not want to wait calls _exit in it; mpirun and srun then end the job. libzero
 * itself never ends a process. `user` is passed to it. NULL, the default: none. Call it before zero_comm_create. */
typedef void (*zero_late_start_fn)(void *user);
ZERO_API void zero_comm_on_late_start(zero_late_start_fn fn, void *user);

/* ---- Communicators of your own ranks -------------------------------------------------------------------------------
 *
 * For programs that use MPI themselves, and for several models or groups of ranks in one job.
 */

/* Joins the ranks of a communicator of your own. mpi_comm: a pointer to an MPI_Comm; NULL: this process alone, and MPI
 * is not used. zero_comm_create_from_f takes the handle of a Fortran program instead.
 *
 * For groups of ranks that train models of their own, and for several models in one process, each with its own
 * communicators and engines. A process may have any number of communicators at once, with the same, other or
 * overlapping ranks. Ranks and sizes everywhere are those of the communicator. Its collective calls concern no others,
 * but each waits for its ranks: two ranks that share two communicators must not wait in one for each other's call in
 * the other.
 *
 * MPI must be running, by MPI_Init or by zero_comm_create, until zero_comm_destroy. The library sends its messages over
 * a duplicate of mpi_comm, which you may free after the call. It makes collective calls on mpi_comm during this call
 * only, and touches no other communicator, MPI_COMM_WORLD included. An invalid handle, MPI_COMM_NULL and
 * intercommunicators are ZERO_ERROR_ARGUMENT on the rank that passes them. [collective over mpi_comm] */
ZERO_API zero_status_t zero_comm_create_from(zero_comm_kind_t kind, const void *mpi_comm, zero_comm_t **comm);
ZERO_API zero_status_t zero_comm_create_from_f(zero_comm_kind_t kind, int fortran_comm, zero_comm_t **comm);

/* ---- Streams and memory of a device --------------------------------------------------------------------------------
 *
 * For programs that compute on GPUs, or that choose their sizes by what a device has.
 */

/* Returns what `type` means on this host: another type than ZERO_DEVICE_AUTO. Looks for GPUs but opens none. */
ZERO_API zero_device_type_t zero_device_resolve(zero_device_type_t type, const zero_comm_t *comm);
ZERO_API zero_device_type_t zero_device_get_type(const zero_device_t *device); /* ZERO_DEVICE_CPU or _CUDA */
/* Returns what the vendor calls a GPU, such as "NVIDIA H200"; "" for the CPU. The device owns the text. */
ZERO_API const char *zero_device_name(const zero_device_t *device);
ZERO_API zero_status_t zero_device_synchronize(zero_device_t *device); /* waits for all streams of the device */

/* Creates a stream on the device; on the CPU *stream is NULL. A cudaStream_t of your own serves as well. */
ZERO_API zero_status_t zero_stream_create(zero_device_t *device, zero_stream_t *stream);
ZERO_API void zero_stream_destroy(zero_device_t *device, zero_stream_t stream);

/* Copies n_bytes in stream order; each of dst and src is host or device memory. Leave host memory alone until the
 * stream has finished the copy. */
ZERO_API zero_status_t zero_device_copy(zero_device_t *device, void *dst, const void *src, size_t n_bytes,
                                        zero_stream_t stream);

/* Allocates zeroed host memory that zero_device_copy can use without blocking the host (pinned, on CUDA). Free it with
 * zero_host_free. */
ZERO_API zero_status_t zero_host_alloc(zero_device_t *device, size_t n_bytes, void **data);
ZERO_API void zero_host_free(zero_device_t *device, void *data); /* NULL is allowed */
/* Returns the bytes that this rank may take of the device's memory now: its share, if ranks share it. On the CPU that
 * is the host's memory. */
ZERO_API uint64_t zero_device_available(const zero_device_t *device);
/* Finds the host's memory, all processes together, and what can be taken of it now without swapping. Either may be
 * NULL. Both are within the limits of the control groups (versions 1 and 2) that this process is in, at every level,
 * as containers and Slurm set them. Page cache that the kernel can give back counts as free. UINT64_MAX in
 * *available_bytes: the kernel does not say. */
ZERO_API void zero_host_memory(uint64_t *total_bytes, uint64_t *available_bytes);
/* Returns what a plan may take of available bytes of a device. The rest, a 64th, but at least 1 GiB and at most an
 * eighth, stays free for what is created after it: libraries, graphs, streams and events. nvidia-smi shows 0.6 GiB over
 * the plan on an H200. */
ZERO_API uint64_t zero_bytes_to_plan(uint64_t available_bytes);
/* Returns the host memory that each of a host's n_ranks ranks, with a GPU each, may use for offload (zero_memory_t's
 * pinned_bytes): together `share` (zero_config_t's offload_ram) of total_bytes, and no more than
 * zero_bytes_to_plan(available_bytes). Both are zero_host_memory's. zero_engine_create refuses a plan that takes more.
 */
ZERO_API uint64_t zero_pinned_to_plan(double share, int n_ranks, uint64_t total_bytes, uint64_t available_bytes);

#define ZERO_MAX_PROCESSES 16

/* A device's memory now, of all processes together. Numbers that are not known are 0. */
typedef struct zero_device_usage {
    uint64_t free_bytes, total_bytes; /* as CUDA says (cudaMemGetInfo); on the CPU the host's, or a container's */
    int n_processes;                  /* those that compute on the GPU, the largest first, as the driver says (NVML) */
    struct {
        int64_t pid; /* in a container it may be another than ps shows */
        uint64_t n_bytes;
        char name[32]; /* "" if there is no such process here */
    } processes[ZERO_MAX_PROCESSES];
    char why_unknown[128]; /* why processes are not known; "": they are */
    uint64_t reserved[4];
} zero_device_usage_t;

/* Finds who holds a device's memory: for a message after ZERO_ERROR_MEMORY. Loads the driver's library for it. */
ZERO_API zero_status_t zero_device_find_usage(const zero_device_t *device, zero_device_usage_t *usage);

/* ---- Tied tensors, and questions about a model ---------------------------------------------------------------------
 */

/* Lets `unit` use a tensor that an earlier unit owns (tied embeddings). Acquiring `unit` then also makes the owner's
 * parameters resident, and the tensor's gradient is summed over all units that use it before it is reduced. The owner's
 * other tensors have no gradient there (zero_grad's data is NULL) unless a later unit shares them. */
ZERO_API zero_status_t zero_model_share_tensor(zero_model_t *model, zero_unit_t unit, zero_tensor_t tensor);
/* Says whether the backward pass of `unit` reads the parameters that the unit owns; by default it does. Use false for
 * an embedding, whose backward only writes gradients: zero_acquire then gathers none of the unit's own parameters in
 * backward, and zero_param returns NULL for them, at every stage. Units that share its tensors still get them. (FSDP2:
 * set_unshard_in_backward.) */
ZERO_API zero_status_t zero_model_set_unshard_in_backward(zero_model_t *model, zero_unit_t unit, bool unshard);
ZERO_API int zero_model_n_units(const zero_model_t *model);
/* Returns a unit's name, which the model owns; NULL if there is no such unit. */
ZERO_API const char *zero_model_unit_name(const zero_model_t *model, zero_unit_t unit);
ZERO_API int zero_model_n_tensors(const zero_model_t *model);
ZERO_API uint64_t zero_model_n_params(const zero_model_t *model); /* elements; shared tensors count once */
ZERO_API size_t zero_dtype_size(zero_dtype_t dtype);              /* bytes per element; 0 for other numbers */
ZERO_API const char *zero_dtype_name(zero_dtype_t dtype);         /* "fp32", "bf16" or "fp16" */

/* ---- Within a pass -------------------------------------------------------------------------------------------------
 *
 * For units that a pass leaves out, for fp16 and fp8, for micro-steps whose number changes, and for steps that are
 * abandoned.
 */

/* Says that this rank does not use the unit in this pass: a branch that is not taken, an expert without tokens. Call it
 * instead of zero_acquire and zero_release in forward, and instead of zero_acquire and zero_grad_ready in backward,
 * where it adds zero to the gradients that the unit would write. Other ranks may use the unit, and a unit may be used
 * in forward and not in backward. Its gathers and its reduction still take place. [collective, with zero_acquire ...]
 */
ZERO_API zero_status_t zero_unused(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);

/* The same for programs that compute in fp32. NULL, and a line in the log, if the configured dtype is another: numbers
 * in bf16 would be taken for floats. */
ZERO_API const float *zero_param_fp32(const zero_engine_t *engine, zero_tensor_t tensor);

/* The scales of a matrix in fp8: scale is the largest power of two with which no element passes the format's largest
 * number, E4M3's 448. In device memory they are aligned to 16 bytes, as cuBLASLt wants inverse. */
typedef struct zero_fp8_scales {
    float inverse, scale; /* byte = element * scale, rounded; inverse is NaN if an element is infinite or NaN */
    uint32_t absmax;      /* the bits of the largest |element| as fp32, by which NaN > infinity > numbers */
    uint32_t unused;      /* 0; makes the next one of an array aligned */
} zero_fp8_scales_t;

typedef struct zero_fp8_param {
    const uint8_t *data;             /* E4M3, rounded to nearest even: memory, layout and lifetime as zero_param's */
    const zero_fp8_scales_t *scales; /* in device memory: one array of all matrices, as declared */
} zero_fp8_param_t;
/* Returns the tensor's full parameter in fp8: element = value of its byte * scales->inverse. data is NULL unless a unit
 * that uses the tensor is acquired, and if it is not gathered in fp8 (zero_config_t's gather_fp8, or frozen_fp8). The
 * array of scales is one of all trained matrices, or of all frozen ones. */
ZERO_API zero_fp8_param_t zero_param_fp8(const zero_engine_t *engine, zero_tensor_t tensor);

/* Returns the address of one float in device memory: multiply the loss's gradient by it. The engine divides it out
 * again before norm and update. It is 1 for fp32 and bf16; for fp16 it changes only in zero_step. */
ZERO_API const float *zero_loss_scale(const zero_engine_t *engine);

/* Sets how many micro-steps a step has, from the next step on: config.micro_steps until the first call. Any number from
 * 1 on if the engine was created with micro_steps of 2 or more. If it was created with 1, its memory is planned for one
 * reduction a step, and a larger number is ZERO_ERROR_USAGE. Call it between steps; results may be pending. Numbers
 * that differ over ranks are ZERO_ERROR_MISMATCH. [collective] */
ZERO_API zero_status_t zero_set_micro_steps(zero_engine_t *engine, int micro_steps);

/* Sets the learning rate of the step at hand: for ZERO_UPDATE_IN_BACKWARD, after the previous zero_step or zero_cancel
 * and before zero_begin of the last micro-step, which is ZERO_ERROR_ORDER otherwise. zero_step must then get the same.
 * ZERO_ERROR_ARGUMENT if lr is not finite; ZERO_ERROR_USAGE with ZERO_UPDATE_IN_STEP, where zero_step alone sets it. */
ZERO_API zero_status_t zero_set_lr(zero_engine_t *engine, float lr);

/* Abandons the current step, in a pass or between its passes: after a bad batch, an exception, a refused gradient. The
 * engine is then as the previous zero_step left it, and the next zero_begin begins the step again, with the same
 * number. An eval pass ends likewise. Between steps it changes nothing. With ZERO_UPDATE_IN_BACKWARD call zero_set_lr
 * again; and if a unit of the step has been updated, its weights cannot be had back: see the end.
 *
 *     gathers in flight           are waited for and forgotten; the next acquire gathers again
 *     gradients                   of the step are discarded, also those of earlier micro-steps
 *     weights, moments, t, loss scale, notices, settings of tensors      stay as they are
 *     results not read            stay pending; zero_step_wait returns them as before
 *     pointers of zero_param and zero_grad          end, also those of a unit that is still acquired
 *     times                       exposed_comm_ms of the next result includes what the cancelled passes waited
 *
 * Waits for the device. All ranks must have come to the same place, as they do on the way through a pass: otherwise it
 * is ZERO_ERROR_MISMATCH, and nothing has changed. So let ranks find out together whether one of them cannot go on, by
 * zero_comm_agree at a fixed place (before zero_begin, after forward). Or let a rank that fails go through the rest of
 * the pass without computing, and agree before zero_step. After a communication or device error nothing can be
 * cancelled: the call returns an error again. If zero_step has failed with some weights updated and others not, or
 * backward has updated units (ZERO_UPDATE_IN_BACKWARD), the step ends, but the call returns ZERO_ERROR_ORDER: weights
 * must be loaded or set first. [collective] */
ZERO_API zero_status_t zero_cancel(zero_engine_t *engine);

/* Announces a number to all ranks without extra communication. It travels with each later zero_step of this rank, and
 * every result has the largest number of all ranks. So all ranks learn after the same step what one rank knows: a
 * signal has come, or a time limit is near. It is 0 until you set it. */
ZERO_API void zero_set_notice(zero_engine_t *engine, uint32_t notice);

/* ---- Optimizers ----------------------------------------------------------------------------------------------------
 *
 * What zero_step computes, and settings of single tensors.
 *
 * With norm the square root of the sum of squares of all gradients, g = gradient * min(1, grad_clip / (norm + 1e-6)),
 * and t the number of steps that were not skipped:
 *
 *     AdamW     m = beta1 m + (1 - beta1) g                  v = beta2 v + (1 - beta2) g^2
 *               w = w - lr decay w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *     SGD       h = g + decay w       m = momentum m + h     w = w - lr m
 *     Nesterov  h = g + decay w       m = momentum m + h     w = w - lr (h + momentum m)
 *     Lion      w = w - lr decay w - lr sign(beta1 m + (1 - beta1) g)     m = beta2 m + (1 - beta2) g
 *     Muon      m = mu m + (1 - mu) g      u = mu m + (1 - mu) g          (mu: muon_momentum)
 *               w = w - lr decay w - lr 0.2 sqrt(max(rows, columns)) orthogonalized(u)
 *
 * where decay is weight_decay for tensors declared with it, else 0; zero_set_group has others for single tensors. 8-bit
 * AdamW is AdamW, from the m and v that its codes stand for. SGD and Nesterov are torch.optim.SGD's, with dampening 0:
 * their decay is part of the gradient, and so of the momentum.
 *
 * Muon is torch.optim.Muon (2.9), with Nesterov's momentum and adjust_lr_fn = "match_rms_adamw" (Liu et al. 2025,
 * arXiv:2502.16982): its updates are about as large as AdamW's, so that both use one lr and one weight_decay.
 * orthogonalized(u) is X after muon_steps times X = a X + (b G + c G G) X, with G = X X^T, from X = u / max(|u|, 1e-7)
 * on, |u| Frobenius's norm, a, b, c = 3.4445, -4.7750, 2.0315 (if there are more rows than columns, of the transpose).
 * Products are computed in fp32 on CPUs, in fp16 with sums in fp32 on GPUs. One rank computes each matrix, which it
 * gets whole; units take turns, so that all ranks are busy.
 */

/* Returns "adamw", "sgd", "nesterov", "lion", "own", "muon" or "adamw8bit". */
ZERO_API const char *zero_optimizer_name(zero_optimizer_t optimizer);

/* Settings of the optimizer for one tensor. Those that the optimizer does not have are ignored: momentum is SGD's, the
 * betas AdamW's and Lion's, eps AdamW's. For hidden matrices Muon uses lr_scale and weight_decay. */
typedef struct zero_group {
    float lr_scale;     /* the tensor's learning rate is zero_step's times this, in fp32: finite, at least 0 */
    float weight_decay; /* whether the tensor is declared with decay or not */
    float beta1, beta2, eps, momentum; /* as in zero_config_t */
    uint8_t reserved[40];
} zero_group_t;
/* Gives one tensor settings of its own, from the next step on, such as a smaller learning rate for an embedding or
 * other betas for a head. group: NULL removes them. Call it before every step for a schedule: a call costs no memory
 * and no waiting. While any tensor has settings of its own, a step runs one more small kernel. The norm is still that
 * of all gradients. An optimizer of your own finds the tensor's lr and decay in zero_own_update_t.
 *
 * A zero_load or zero_init_parameters leaves the settings as they are. Checkpoints do not have them, as they do not
 * have zero_config_t: set them again when you resume.
 *
 * Call it between steps, on every rank with the same settings; results may be pending. Ranks compare the settings of
 * all tensors in the next step: zero_step_wait returns ZERO_ERROR_MISMATCH if they differ, and the step has changed
 * nothing (with ZERO_UPDATE_IN_BACKWARD see the beginning of this file). A frozen tensor is ZERO_ERROR_ARGUMENT. */
ZERO_API zero_status_t zero_set_group(zero_engine_t *engine, zero_tensor_t tensor, const zero_group_t *group);
/* Returns the settings that the next step takes: those of zero_set_group, else lr_scale 1 and the configuration's, with
 * weight_decay 0 if the tensor is declared without decay. Change what it returns and set that. */
ZERO_API zero_status_t zero_get_group(const zero_engine_t *engine, zero_tensor_t tensor, zero_group_t *group);

/* Returns t, AdamW's step count: the steps that were not skipped, as of the last result that was read. */
ZERO_API uint64_t zero_get_adam_step(const zero_engine_t *engine);
/* Sets t when a run resumes; zero_load does so itself. Set the same on every rank, between steps, with all results
 * read. The next step compares it: zero_step_wait returns ZERO_ERROR_MISMATCH, as for other calls that differ. */
ZERO_API zero_status_t zero_set_adam_step(zero_engine_t *engine, uint64_t adam_step);

/* ---- An optimizer of your own --------------------------------------------------------------------------------------
 *
 * For an update that libzero does not have, on sharded state, at every stage.
 */

/* Elements [first, first + n_elems) of one tensor, to be updated in place. All pointers are device memory, and the
 * arrays have n_elems elements. */
typedef struct zero_own_update {
    zero_tensor_t tensor;
    uint64_t first;
    size_t n_elems;
    float *weight;     /* fp32 master weights */
    float *m, *v;      /* state arrays, 0 at first; v: NULL if there is one, and for Muon's matrices */
    const float *grad; /* reduced: of all ranks and micro-steps; times *grad_scale it is what to step by */
    float lr, decay;   /* zero_step's; weight_decay for tensors declared with it, else 0; or as zero_set_group says */
    const float *grad_scale; /* clipping's factor / loss scale */
    const uint64_t *step;    /* t: the updates so far, this one included */
    const uint32_t *skip;    /* not 0: a gradient is not finite, so write nothing */
    float *direction;        /* NULL, or see zero_own_optimizer_t's whole: prepare writes it, update reads it */
} zero_own_update_t;
/* Queues the update of a run of elements in the stream (NULL on the CPU: do it at once). Called on each rank in
 * zero_step, for every run that the rank holds. How a tensor is cut into runs depends on the stage and the number of
 * ranks. The bits do not if each element's new values depend on no other element. Any status but ZERO_OK ends
 * zero_step. */
typedef zero_status_t (*zero_own_update_fn)(void *user, const zero_own_update_t *update, zero_stream_t stream);

/* The direction of a whole matrix, to be changed in place: row-major, in device memory. */
typedef struct zero_own_whole {
    zero_tensor_t tensor;
    uint64_t rows, cols;
    float *direction;        /* [rows][cols] */
    const float *grad_scale; /* these three as in zero_own_update_t */
    const uint64_t *step;
    const uint32_t *skip;
} zero_own_whole_t;
/* Queues the change of one matrix in the stream (NULL on the CPU: do it at once). */
typedef zero_status_t (*zero_own_whole_fn)(void *user, const zero_own_whole_t *whole, zero_stream_t stream);

/* An optimizer of your own. With `prepare` and `whole`, it sees the matrices declared with hidden_matrix whole. A step
 * of such a matrix has three parts; for other tensors only `update` is called, with direction NULL:
 *
 *     prepare   by runs: advances m and v by the gradient and writes `direction`, such as m; must not write weights
 *     whole     on one rank per matrix, the matrix at once: changes its direction, for example normalizes rows
 *     update    by runs: steps the weight along `direction`, which it only reads
 *
 * Units take turns, so that all ranks are busy. Directions are sent in fp32 (zero_plan_traffic counts them), through
 * buffers that zero_plan counts. The bits are the same at every stage and number of ranks if prepare and update change
 * each element by values of that element only. */
struct zero_own_optimizer {
    const char *name; /* checkpoints store it, and load only under the same name */
    int n_arrays;     /* of its state: 1 (m) or 2 (m and v) */
    zero_own_update_fn update;
    void *user;                 /* passed to all three */
    zero_own_update_fn prepare; /* NULL, and whole too: matrices are like other tensors */
    zero_own_whole_fn whole;
    uint8_t reserved[16];
};

/* ---- Hooks ---------------------------------------------------------------------------------------------------------
 *
 * For a look at reduced gradients, or at weights that have just been updated.
 */

/* Elements [first, first + n_elems) of the gradient of one tensor, which this rank has reduced. Device memory. */
typedef struct zero_reduced {
    zero_tensor_t tensor;
    uint64_t first;
    size_t n_elems;
    float *grad; /* the sum over all ranks and micro-steps, to be read or changed in place, not yet clipped */
    const float *loss_scale; /* it is still multiplied by this (zero_loss_scale) */
    uint64_t step;           /* of the zero_step that will use it, from 1 */
} zero_reduced_t;

/* Functions of yours that are called at two places of a step, for all trained tensors, run by run; each may be NULL.
 * They queue their work in the stream that they get (on the CPU it is NULL, and they do it at once), and libzero
 * continues after it in that stream. Of libzero they may call only zero_device_copy. They are called from within calls
 * of the engine, on the same thread, and if one returns a status other than ZERO_OK, so does that call. After a failure
 * of `reduced` the step cannot be taken. The call has still done what other ranks wait for (a zero_grad_ready has ended
 * its unit), so continue the pass with the next unit; its gradients no longer matter. zero_step then returns that
 * status here and ZERO_ERROR_PEER on the other ranks, and zero_cancel abandons the step. After a failure of `updated`
 * or of an own optimizer zero_step returns the same, but some weights have changed and others not: load or set all
 * before the engine is used again (zero_cancel). How tensors are cut into runs depends on the stage and the
 * number of ranks. The bits do not, if each element is changed by values of that element only, such as noise from a
 * generator keyed by tensor, element and step. A function that changes nothing changes no bit. With hooks, as
 * with an own optimizer, the ranks' hosts wait for each other in zero_step, to learn whether a function has failed. */
struct zero_hooks {
    /* Gets each reduced gradient, once per step, before norm and clipping: for noise, compression, logging. Each
     * element is seen by one rank, at every stage. Called in the last micro-step's backward, some units after
     * zero_grad_ready, or in zero_step. The norm is computed after it, which reads the reduced gradients once more. */
    zero_status_t (*reduced)(void *user, const zero_reduced_t *reduced, zero_stream_t stream);
    /* Gets each weight after its update, before it is published: for averages, or projections such as clipping. Sees
     * the updated update->weight, m and v, and may change them. Called in zero_step on each rank for what it holds,
     * which at stage 0 is all; also in a step that is skipped (update->skip). In bf16 and fp16 it takes 4 MiB, and one
     * pass over the master weights in and one out. Not with offload. */
    zero_own_update_fn updated;
    void *user; /* passed to both */
    uint8_t reserved[32];
};

/* ---- State ---------------------------------------------------------------------------------------------------------
 *
 * For weights from elsewhere, and for whoever reads weights, moments or gradients.
 */

/* Loads weights from a directory in Hugging Face's layout: model.safetensors, or model.safetensors.index.json and the
 * files that it names, or an adapter's adapter_model.safetensors. Tensors must have the declared names and shapes, and
 * dtype F32, BF16 or F16; a leading "transformer." or "model." in a name, here or there, is ignored. Each rank reads
 * only what it owns. Moments and AdamW's step count become zero. Call it between steps, with all results read.
 *
 * A model with tensors that are declared with not_saved gets these, and the others keep their weights: initialize them
 * before, or load them by zero_load_weights_partial.
 *
 * A "lm_head.weight" that is not declared must equal the token embedding ("wte.weight" or "embed_tokens.weight"), which
 * the model uses in its place: otherwise returns ZERO_ERROR_FORMAT.
 *
 * Returns ZERO_ERROR_MISMATCH if samples of every tensor show that ranks have opened different weights, for example
 * because hosts have different files under one path; nothing has changed.
 *
 * Returns ZERO_ERROR_FORMAT if a number is not finite; the log line names it. Some weights may be overwritten by then,
 * and the engine refuses to use them as after a failed zero_set_state. [collective] */
ZERO_API zero_status_t zero_load_weights(zero_engine_t *engine, const char *directory);
/* What a partial load did, in tensors. Those that are declared with not_saved count as if they were not declared. */
typedef struct zero_partial {
    int n_loaded;  /* declared and found */
    int n_kept;    /* declared and not found: as they were */
    int n_ignored; /* found and not declared */
    int reserved[5];
} zero_partial_t;
/* As zero_load_weights, for a model of which the directory lacks tensors, such as adapters or a new head: these keep
 * their weights, so initialize them before. At least one declared tensor must be there, and those that are must have
 * the declared shapes: ZERO_ERROR_FORMAT otherwise, and nothing has changed. [collective] */
ZERO_API zero_status_t zero_load_weights_partial(zero_engine_t *engine, const char *directory, zero_partial_t *partial);

/* The fp32 arrays of a tensor. */
typedef enum zero_array {
    ZERO_ARRAY_WEIGHT, /* master weights */
    ZERO_ARRAY_M,      /* AdamW's first moment, or the optimizer's one array */
    ZERO_ARRAY_V,      /* AdamW's second moment; ZERO_ERROR_ARGUMENT with an optimizer that has none. Muon keeps none of
                        * hidden matrices: theirs is 0, and what is set is dropped */
    ZERO_ARRAY_GRAD    /* reduced gradient: of all ranks and micro-steps, without the loss scale, not clipped */
} zero_array_t;

#define ZERO_ALL_RANKS (-1) /* root: every rank */

/* Reads one array of one tensor whole, in row-major order, to host memory: `data` has room for its elements on rank
 * `root`, or on every rank with ZERO_ALL_RANKS; elsewhere it may be NULL. The bits are the same at every stage and on
 * any number of ranks. Waits for the device; meant for tests, logs and tools, not for every step.
 *
 * Call it between steps; for a gradient after the last pass of a step and before zero_step, and not of a tensor whose
 * state is offloaded (ZERO_ERROR_UNSUPPORTED). A frozen tensor has a weight alone: anything else is
 * ZERO_ERROR_ARGUMENT. All ranks give the same tensor, array and root: ZERO_ERROR_MISMATCH otherwise. [collective] */
ZERO_API zero_status_t zero_get_tensor(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array, int root,
                                       float *data);
/* Writes one array of one tensor whole, from host memory of rank `root`; with ZERO_ALL_RANKS from every rank's, which
 * must be the same and are not compared. Weights are published to all ranks. The tensor's other arrays and AdamW's step
 * count stay. Numbers must be finite, AdamW's ZERO_ARRAY_V not negative: ZERO_ERROR_ARGUMENT names the first that is
 * not, and nothing has changed. Gradients cannot be set. With a root every rank needs host memory for the tensor during
 * the call.
 *
 * Call it between steps. All ranks give the same tensor, array and root. A frozen tensor that is held in fp8 is
 * ZERO_ERROR_UNSUPPORTED: zero_set_state and zero_load_weights set all of its matrix. [collective] */
ZERO_API zero_status_t zero_set_tensor(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array, int root,
                                       const float *data);

/* Elements [first, first + n_elems) of one tensor, in row-major order, as fp32. The arrays have n_elems elements,
 * belong to the engine, and are valid only during the callback. */
typedef struct zero_chunk {
    zero_tensor_t tensor;
    uint64_t first;
    size_t n_elems;
    float *master; /* weights */
    float *m;      /* AdamW's first moment, or the optimizer's one array; NULL if only weights are wanted, or frozen */
    float *v;      /* AdamW's second moment; NULL with m, and for optimizers with one array */
} zero_chunk_t;

/* Fills or reads one chunk. Another status than ZERO_OK ends the call that it came from. */
typedef zero_status_t (*zero_chunk_fn)(void *user, const zero_chunk_t *chunk);

/* Writes weights, and with_moments also AdamW's moments. Calls `fill` for every chunk that this rank owns, which sets
 * chunk->master, m and v; then publishes the state to all ranks. Each element is owned by exactly one rank, at every
 * stage. Without with_moments, m and v are NULL and the moments and AdamW's step count become zero. Ranks that differ
 * in with_moments get ZERO_ERROR_MISMATCH. Call it between steps; without with_moments also with all results read.
 *
 * If `fill` fails on a rank, that rank returns fill's status and the others return ZERO_ERROR_PEER; a number that is
 * not finite, or a negative second moment of an optimizer that takes its root, is ZERO_ERROR_ARGUMENT. The weights are
 * then incomplete: until this call, zero_init_parameters, zero_load_weights or zero_load succeeds, zero_begin,
 * zero_get_state and zero_save_begin return ZERO_ERROR_ORDER. So does a load that leaves tensors as they are, because
 * it is partial or they are declared with not_saved: call zero_init_parameters or zero_set_state before it.
 * [collective] */
ZERO_API zero_status_t zero_set_state(zero_engine_t *engine, bool with_moments, zero_chunk_fn fill, void *user);
/* Reads weights and moments: calls `visit` for every chunk that this rank owns, in order of tensor and element. Waits
 * for the device. Call it between steps. */
ZERO_API zero_status_t zero_get_state(zero_engine_t *engine, zero_chunk_fn visit, void *user);

/* ---- Memory plan ---------------------------------------------------------------------------------------------------
 *
 * To know what an engine will take, before there is one, and to choose what fits.
 */

/* What memory is used for: constant, name, meaning. */
#define ZERO_MEMORY_MAP(X)                                                                                             \
    X(PARAMETERS, "parameters", "all parameters; at stage 3 this rank's shards")                                       \
    X(UNSHARDED_PARAMETERS, "unsharded parameters", "stage 3: buffers in which whole units take turns")                \
    X(GRADIENTS, "gradients", "stages 0-1: all gradients; every stage: reduced gradients")                             \
    X(UNSHARDED_GRADIENTS, "unsharded gradients", "stages 2-3: buffers in which whole units take turns")               \
    X(OPTIMIZER, "optimizer state",                                                                                    \
      "master weights (with bf16: 16 low bits), state arrays; offload's, Muon's buffers")                              \
    X(COMMUNICATION, "communication", "staging buffers of gradients, Muon's exchange, tables, partial norms")          \
    X(ACTIVATIONS, "activations", "yours: kept from forward to backward")                                              \
    X(WORKSPACE, "workspace", "yours: scratch of kernels")                                                             \
    X(DATA, "data", "yours: batches")

typedef enum zero_memory_category {
#define ZERO_MEMORY_ENUM(name, text, what) ZERO_MEMORY_##name,
    ZERO_MEMORY_MAP(ZERO_MEMORY_ENUM)
#undef ZERO_MEMORY_ENUM
        ZERO_MEMORY_N_CATEGORIES
} zero_memory_category_t;

ZERO_API const char *zero_memory_name(zero_memory_category_t category); /* such as "unsharded parameters" */

#define ZERO_MEMORY_MAX_CATEGORIES 16 /* room for later ones */

typedef struct zero_memory {
    uint64_t
        bytes[ZERO_MEMORY_MAX_CATEGORIES]; /* on the rank's device: GPU memory, or host memory if that is the CPU */
    uint64_t pinned_bytes;                 /* of host memory, if the device is a GPU: offload, stashes */
    uint64_t reserved[3];
} zero_memory_t;

ZERO_API uint64_t zero_memory_total(const zero_memory_t *memory); /* bytes on the device, all categories */

/* Computes what an engine with this configuration will hold on each rank. Pure arithmetic: no device, no communication,
 * the same on every rank.
 * device: the type of the ranks' devices, resolved (zero_device_resolve): not ZERO_DEVICE_AUTO.
 * kind: what carries bulk data between ranks on the CPU (zero_comm_get_kind): ZERO_COMM_MPI for messages, else
 * ZERO_COMM_AUTO. For GPUs ZERO_COMM_MPI means several hosts, or that all is sent through host memory, and adds 16 MiB,
 * in which gathers between hosts are staged.
 * ZERO_SHARD_GROUP_HOST is ZERO_ERROR_USAGE: give the number of ranks that a host has (zero_comm_local_size).
 * ZERO_OFFLOAD_AUTO and ZERO_KEEP_AUTO, which need a device to decide, are planned as ratio 1 and keep 0, the least
 * that the device can hold; ZERO_OFFLOAD_UPDATE_AUTO as ZERO_OFFLOAD_UPDATE_DEVICE, and ZERO_OFFLOAD_GRADS_AUTO as
 * ZERO_OFFLOAD_GRADS_DEVICE. */
ZERO_API zero_status_t zero_plan(const zero_model_t *model, const zero_config_t *config, zero_device_type_t device,
                                 zero_comm_kind_t kind, int world_size, zero_memory_t *plan);

/* The bytes of parameters and gradients that a rank moves in one step of training. Not counted: headers of the network,
 * and the few small messages by which ranks wait for each other. */
typedef struct zero_traffic {
    uint64_t local_bytes;                 /* from ranks of its own host, over NVLink, PCIe or shared memory */
    uint64_t received_bytes;              /* from other hosts, over the network */
    uint64_t sent_bytes;                  /* to other hosts */
    uint64_t to_gpu_bytes, to_host_bytes; /* between a GPU and its host's memory: what is offloaded */
    uint64_t reserved[3];
} zero_traffic_t;

/* Sets traffic[r] for each of world_size ranks, by pure arithmetic. hosts[r]: the host that rank r is on, any number
 * (zero_comm_hosts). The other arguments are zero_plan's; for GPUs ZERO_COMM_NCCL means NCCL alone. In one group of N
 * ranks, with P bytes of parameters and G bytes of a rank's gradients, a rank receives
 *
 *     stage 3      P (N - 1) / N for each gather: two in a micro-step, less what a buffer still has
 *     stages 1-2   P (N - 1) / N once
 *     stage 0      the same of reduced gradients, in fp32
 *     all stages   G (N - 1) / N in each micro-step; 0-1 once in a step without reduce_every_micro_step
 *
 * and less than 1 KiB a rank in addition. Gradients of offloaded units that find idle activations do not leave the GPU,
 * and are then fewer to_gpu_bytes and to_host_bytes than planned. For groups see docs/design.md. What ranks gather from
 * another host crosses the network once: each of a host's l ranks receives one l-th of it, and gets the rest from the
 * others. This does not hold on the CPU if kind is ZERO_COMM_MPI, nor between GPUs if hosts have unequal parts of the
 * gather or kind is ZERO_COMM_NCCL. NCCL then passes what all ranks gather around rings, and every slice but one enters
 * each host, even those that its own ranks hold. */
ZERO_API zero_status_t zero_plan_traffic(const zero_model_t *model, const zero_config_t *config,
                                         zero_device_type_t device, zero_comm_kind_t kind, int world_size,
                                         const int *hosts, zero_traffic_t *traffic);

/* What zero_solve may choose, and within what. */
typedef struct zero_solve_limits {
    bool stage, keep, offload_ratio, shard_group; /* those that are true are chosen; the others stay as configured */
    uint64_t device_bytes;                        /* of its device that each rank may take, with config->user_bytes */
    uint64_t pinned_bytes; /* of host memory that each rank may use for offload, with config->user_pinned_bytes */
    /* Bytes a second that a rank receives from ranks of its own host and from other hosts, and that offload copies to
     * the GPU and back at once. Above 0. */
    double local_rate, network_rate, pcie_rate;
    const int *hosts; /* the host of each rank, as for zero_plan_traffic; NULL: all on one */
    uint8_t reserved[32];
} zero_solve_t;

typedef struct zero_solution {
    bool fits;            /* false: nothing does, and this is what takes the least of the device */
    double transfer_s;    /* a step's: local bytes, those of other hosts and pinned_bytes, each over its rate, added */
    zero_memory_t memory; /* zero_plan of it */
    uint64_t reserved[4];
    zero_config_t config; /* ready for zero_engine_create; as large as the one that it was made from */
} zero_solution_t;

/* Finds the configuration within these bytes whose transfers take the least time in a step, counted as if none were
 * hidden under compute; of equal ones the lower stage, then the group of all ranks, then what offloads least. Pure
 * arithmetic: no device, no communication, the same on every rank. Sums of gradients leave (offload_grads) only if
 * nothing fits else. For choices that depend on your model, such as larger batches or recomputation, call it once for
 * each. config: zero_config_default with your dtype, micro_steps and so on. The other arguments are zero_plan's. */
ZERO_API zero_status_t zero_solve(const zero_model_t *model, const zero_config_t *config, zero_device_type_t device,
                                  zero_comm_kind_t kind, int world_size, const zero_solve_t *limits,
                                  zero_solution_t *solution);

/* ---- Memory of your own, and what an engine holds ------------------------------------------------------------------
 *
 * For activations that the plan counts, and that offload may use while they are idle.
 */

/* Allocates zeroed device memory for your own use, aligned to 256 bytes and counted under `category`. The engine owns
 * it and frees it when it is destroyed. Only before the first zero_begin. */
ZERO_API zero_status_t zero_alloc(zero_engine_t *engine, zero_memory_category_t category, size_t n_bytes, void **data);
/* Allocates activations in the same way, under ZERO_MEMORY_ACTIVATIONS. Their contents are needed only from
 * acquire(first) in a forward pass to grad_ready(last) in its backward pass, or to the end of an eval pass. At other
 * times the engine may overwrite them: it stages offloaded optimizer state there. So they are undefined at every
 * acquire(first). */
ZERO_API zero_status_t zero_alloc_activations(zero_engine_t *engine, zero_unit_t first, zero_unit_t last,
                                              size_t n_bytes, void **data);

/* A stash: buffers that wait in host memory from a forward pass to its backward pass, such as the inputs of layers that
 * recompute their activations. On GPUs they take turns in n_slots pieces of device memory, buffer i always in the same
 * one. Its content is copied to pinned host memory once forward has written it, and back ahead of its use in backward,
 * by copy engines. The last n_slots buffers stay where they are. In each micro-step, with n buffers:
 *
 *     for i = 0 .. n - 1:                                 forward
 *         zero_stash_begin_write(stash, i, stream);       ... compute that writes zero_stash_buffer(stash, i) ...
 *         zero_stash_end_write(stash, i, stream);
 *     for i = n - 1 .. 0:                                 backward
 *         zero_stash_begin_read(stash, i, stream);        ... compute that reads it, and may write it ...
 *         zero_stash_end_read(stash, i, stream);
 *
 * Compute waits in the begin calls: until the slot's earlier content has been copied out, or until the buffer is back.
 * Results say for how long (exposed_host_ms). With n_slots = 3, a copy has as long as it takes to compute two buffers.
 * The copies run in streams of their own, after the work in `stream` that writes what they copy. Use one stream for all
 * calls.
 *
 * A pass may end anywhere, cancelled for example: write 0 begins the next one. A pass without backward, as in
 * evaluation, may use the slots without any of these calls if the pass before made all of them or was cancelled. On the
 * CPU each buffer has memory of its own and nothing is copied; the calls check their order. */
typedef struct zero_stash zero_stash_t;

/* Allocates memory for n_buffers buffers of buffer_bytes each, which begin at multiples of 256 bytes. Device memory
 * counts as ZERO_MEMORY_ACTIVATIONS, host memory as pinned_bytes. The latter must be announced in zero_config_t's
 * user_pinned_bytes: ZERO_ERROR_MEMORY otherwise. The engine owns the stash and frees it when it is destroyed. Only
 * before the first zero_begin, with the same numbers on every rank. [collective] */
ZERO_API zero_status_t zero_stash_create(zero_engine_t *engine, int n_buffers, size_t buffer_bytes, int n_slots,
                                         zero_stash_t **stash);
/* Adds to *memory what that takes on a device of this type (resolved, as for zero_plan), for user_bytes and
 * user_pinned_bytes. */
ZERO_API zero_status_t zero_stash_plan(zero_device_type_t device, int n_buffers, size_t buffer_bytes, int n_slots,
                                       zero_memory_t *memory);
/* Returns the address of a buffer's slot in device memory: always the same. NULL if there is no such buffer. */
ZERO_API void *zero_stash_buffer(const zero_stash_t *stash, int buffer);
/* Each returns ZERO_ERROR_ORDER, and says which call comes now, if it is not this one's turn. After its read a buffer's
 * content is undefined. */
ZERO_API zero_status_t zero_stash_begin_write(zero_stash_t *stash, int buffer, zero_stream_t stream);
ZERO_API zero_status_t zero_stash_end_write(zero_stash_t *stash, int buffer, zero_stream_t stream);
ZERO_API zero_status_t zero_stash_begin_read(zero_stash_t *stash, int buffer, zero_stream_t stream);
ZERO_API zero_status_t zero_stash_end_read(zero_stash_t *stash, int buffer, zero_stream_t stream);

/* ---- An all-to-all of your own -------------------------------------------------------------------------------------
 *
 * For data of yours that ranks exchange within a pass: heads and positions of a sequence that several ranks share
 * (Jacobs et al. 2023, arXiv:2309.14509), tokens and experts. examples/attention.c trains a layer that way.
 *
 *     void *slices[4]; const void *received[4];
 *     zero_all_to_all_create(engine, 4, slice_bytes, &exchange);  groups of 4 consecutive ranks; before the first pass
 *     for each exchange:
 *         zero_all_to_all_slices(exchange, slices);               ... compute that writes n_bytes at each slices[i] ...
 *         zero_all_to_all(exchange, n_bytes, received, stream);   ... compute that reads n_bytes at each received[i]
 * ...
 *
 * slices[i] is what this rank sends to the i-th rank of its group, received[i] what that rank has sent here; i counts
 * from the group's first rank. Both are device memory, aligned to 256 bytes, and belong to the engine. A rank's own
 * slice is not copied.
 *
 * Two sets of slices take turns, so that a rank may write the next one while others still read the last:
 *
 *     this rank's stream | write set 0 | exchange, read | write set 1 | exchange, read | write set 0 ...
 *     the others read                  | set 0 ...................... | set 1 ...
 *
 * What must hold: the slices of zero_all_to_all_slices may be written until the next zero_all_to_all, and received
 * slices may be read until then, both in `stream` order. Use one stream for all calls. The transport is
 * zero_engine_transport's: copy engines between GPUs of one host, which leave the SMs to compute. The stream waits for
 * the group's slowest rank; results count that in exposed_comm_ms. A call cannot be captured in a CUDA graph. */
typedef struct zero_all_to_all_exchange zero_all_to_all_t; /* not the function's name, which C++ would hide */

/* Allocates what exchanges of up to slice_bytes from rank to rank take. group: how many consecutive ranks make one, a
 * divisor of the world size; 1: nothing is moved. The memory counts as ZERO_MEMORY_COMMUNICATION, and must be in
 * zero_config_t's user_bytes for the plan to count it. The engine owns the exchange and frees it when it is destroyed.
 * Only before the first zero_begin, with the same numbers on every rank (ZERO_ERROR_MISMATCH). [collective] */
ZERO_API zero_status_t zero_all_to_all_create(zero_engine_t *engine, int group, size_t slice_bytes,
                                              zero_all_to_all_t **all_to_all);
/* Adds to *memory the most that this takes: among several hosts, a group that is within one host takes less. device and
 * kind are zero_plan's. */
ZERO_API zero_status_t zero_all_to_all_plan(zero_device_type_t device, zero_comm_kind_t kind, int group,
                                            size_t slice_bytes, zero_memory_t *memory);
/* Sets slices[i], for each rank of the group, to where the next exchange reads what is for that rank. */
ZERO_API zero_status_t zero_all_to_all_slices(const zero_all_to_all_t *all_to_all, void **slices);
/* Exchanges the first n_bytes of each slice, and sets received[i] for each rank of the group. Every rank of the engine
 * makes the call, in all groups with the same n_bytes, 1 to slice_bytes; it may be inside a pass. [collective] */
ZERO_API zero_status_t zero_all_to_all(zero_all_to_all_t *all_to_all, size_t n_bytes, const void **received,
                                       zero_stream_t stream);

/* Returns what the engine holds now, by its own counters. */
ZERO_API zero_memory_t zero_engine_memory(const zero_engine_t *engine);

/* Counts since the engine was created. */
typedef struct zero_stats {
    uint64_t n_gathers, gathered_bytes; /* units gathered, and the bytes that came from other ranks */
    /* shard_group: parts of units brought up to date after an update, and the bytes that came from other groups */
    uint64_t n_part_gathers, part_gathered_bytes;
    uint64_t n_reduces, reduced_bytes;    /* units reduced, and the bytes of gradients that came from other ranks */
    uint64_t n_gathers_avoided;           /* acquires that found the unit still resident */
    double exposed_comm_ms;               /* sum of the results' exposed_comm_ms */
    uint64_t to_gpu_bytes, to_host_bytes; /* that offload and stashes copied, when they were queued */
    uint64_t reserved[6];
} zero_stats_t;
ZERO_API zero_stats_t zero_engine_stats(const zero_engine_t *engine);

/* Returns the transport of parameters and gradients: "copy-engine", "nccl", "rails" (copy engines inside hosts, NCCL
 * between them) or "through-host" between GPUs, "self" for one rank, else zero_comm_name's. */
ZERO_API const char *zero_engine_transport(const zero_engine_t *engine);

/* ---- Checkpoints ---------------------------------------------------------------------------------------------------
 *
 * A directory of checkpoints holds one directory per saved step, such as step-00000010, and `latest`, a link to the
 * newest. A checkpoint is complete or absent: its directory gets its name by rename, after everything in it is on the
 * disk. A save that is interrupted leaves the earlier checkpoints as they were. A checkpoint consists of:
 *
 *     model-00001-of-0000n.safetensors ...        weights in the configured dtype, under the declared names, in Hugging
 *     model.safetensors.index.json                Face's layout
 *     optimizer-00001-of-0000n.safetensors ...    fp32: NAME.master, NAME.m, NAME.v; of frozen tensors nothing
 *     state.json                                  step, AdamW's t, loss scale; the caller's own keys
 *     config.json                                 the caller's own
 *     manifest.json                               size and XXH3 of every other file
 *
 * The position of a number in these files depends neither on the stage nor on the world size. So any number of ranks,
 * at any stage and in any dtype, resumes from a checkpoint, with the same master weights and moments to the bit. All
 * ranks must see the same directory.
 *
 * Of tensors that are declared with not_saved there is nothing. Then the weights of all others are in one file,
 * adapter_model.safetensors, where PEFT looks for an adapter, and there is no index. zero_load leaves tensors that are
 * not saved as they are.
 *
 * You may keep other things next to checkpoints. libzero removes a directory only if it is empty, has libzero's
 * manifest, or has the marker of a checkpoint that is being written. If something else has the name of the step to be
 * saved, it is renamed (to step-00000010.moved, for example), with a warning.
 */

/* A file that a checkpoint gets in addition to libzero's own, such as a tokenizer's. */
typedef struct zero_save_file {
    /* FILE or FOLDER/FILE, without ".."; not hidden, no name of libzero's files, and none that zero_load_weights reads
     */
    const char *name;
    const void *data;
    size_t n_bytes; /* at least 1 */
} zero_save_file_t;

/* The same on every rank: ZERO_ERROR_MISMATCH if ranks differ in keep, max_file_bytes, background, per_host, the names
 * of files, or whether there is a config_json. What is written is rank 0's; with per_host that of each host's first. */
typedef struct zero_save_options {
    /* The first two are texts of JSON objects without a repeated key; anything else is ZERO_ERROR_ARGUMENT. */
    const char *config_json; /* written to config.json as it is; NULL: no such file */
    /* Its keys are added to state.json, and must not be libzero's own: adam_step, dtype, good_steps, library,
     * loss_scale, optimizer, overflows, skipped_in_row and step. NULL: none. */
    const char *state_json;
    int keep;                /* how many checkpoints stay when this one is complete, the newest ones; 0: all */
    uint64_t max_file_bytes; /* most data in one file; 0: 4 GiB. A single array is never split, however large */
    /* Write from a copy in host memory: 12 bytes for each element that this rank owns. Where that is more than is free,
     * a warning says so, and this save is as without. */
    bool background;
    bool per_host; /* see zero_host_copies_prepare */
    /* Written as they are, and in the manifest like all other files. Used only during zero_save_begin. */
    const zero_save_file_t *files;
    int n_files;
    uint8_t reserved[36];
} zero_save_options_t;

typedef struct zero_save zero_save_t;

/* Creates `directory` and its parents if they are missing, removes what interrupted saves have left in it, and checks
 * that it can be written and that all hosts share it. Call it before step 0, so that a bad directory shows then and not
 * at the first save. Returns ZERO_ERROR_IO if it cannot be written, if a save into it is under way, if `latest` exists
 * and is not a link, or if a host has another directory by that name.
 * [collective] */
ZERO_API zero_status_t zero_save_prepare(zero_comm_t *comm, const char *directory);

/* Begins to save the step that zero_step_wait returned last. Call it between steps, with all results read. With
 * options->background a thread writes and steps may follow at once; without, this call writes. Either way zero_save_end
 * must follow. A second save into the same directory before that is ZERO_ERROR_IO, and does the first no harm.
 *
 * A weight or moment that is not finite, also when it is rounded to the configured dtype, cannot be saved, since it
 * could not be loaded: this call or zero_save_end returns ZERO_ERROR_NONFINITE on the rank that owns it, with a line
 * that names it, and ZERO_ERROR_PEER on the others. Earlier checkpoints stay. [collective] */
ZERO_API zero_status_t zero_save_begin(zero_engine_t *engine, const char *directory, const zero_save_options_t *options,
                                       zero_save_t **save);
/* Continues a save as far as possible without waiting. Call it now and then, for example after each step. *done: the
 * save is complete, and zero_save_end will not wait. If the save has failed, returns why (so does zero_save_end), and
 * nothing of it is left in the directory. [collective] */
ZERO_API zero_status_t zero_save_poll(zero_save_t *save, bool *done);
/* Waits until the save is complete or has failed, and frees it in both cases. NULL is allowed. [collective] */
ZERO_API zero_status_t zero_save_end(zero_save_t *save);

typedef struct zero_checkpoint zero_checkpoint_t;

/* Opens a checkpoint: a step's directory, or the latest one in a directory of checkpoints. Compares every file with the
 * manifest; the ranks share that work. Returns ZERO_ERROR_USAGE if there is no checkpoint, and ZERO_ERROR_IO or
 * ZERO_ERROR_FORMAT, with a line that names the file, if one is missing or not as it was written. [collective] */
ZERO_API zero_status_t zero_checkpoint_open(zero_comm_t *comm, const char *directory, zero_checkpoint_t **checkpoint);
ZERO_API void zero_checkpoint_close(zero_checkpoint_t *checkpoint); /* NULL is allowed */
/* Returns the directory of the checkpoint's step. The checkpoint owns the text. */
ZERO_API const char *zero_checkpoint_path(const zero_checkpoint_t *checkpoint);
ZERO_API uint64_t zero_checkpoint_step(const zero_checkpoint_t *checkpoint);
/* Returns the object in state.json as text, with your keys of zero_save_options_t. The checkpoint owns the text. */
ZERO_API const char *zero_checkpoint_state(const zero_checkpoint_t *checkpoint);

/* Loads weights, moments and everything else that a step depends on: the next zero_step is the one after
 * zero_checkpoint_step. Only before the first zero_begin. The checkpoint may be closed afterwards.
 *
 * Other tensors may have been frozen than are now. One that is frozen gets its weight, rounded from the master weight
 * if there is one. One that was frozen gets its weight from the model's files, and moments of zero.
 *
 * Returns ZERO_ERROR_MISMATCH if ranks have opened different checkpoints, for example because hosts have different
 * files under one path, and ZERO_ERROR_FORMAT if the checkpoint's tensors are not the declared ones; then nothing has
 * changed. It also does, with a line that names the number, if a weight or moment is not finite or a second moment is
 * negative. Some weights may be overwritten by then, and the engine refuses to use them as after a failed
 * zero_set_state. [collective]
 */
ZERO_API zero_status_t zero_load(zero_engine_t *engine, const zero_checkpoint_t *checkpoint);
/* The same for a model whose tensors differ from the checkpoint's: those that the checkpoint lacks keep their weights
 * and moments. The step count t of zero_step is one for all tensors, the checkpoint's: it corrects the moments of a new
 * tensor, which begin at zero, too little. Its first AdamW updates are larger than those of a new run, about 3 lr with
 * beta2 = 0.999 (torch, which counts steps by tensor: 1 lr), which lr_scale of zero_set_group can balance; a line in
 * the log says so. The rest is as in zero_load_weights_partial. [collective] */
ZERO_API zero_status_t zero_load_partial(zero_engine_t *engine, const zero_checkpoint_t *checkpoint,
                                         zero_partial_t *partial);

/* ---- Checkpoints in host memory ------------------------------------------------------------------------------------
 *
 * With zero_save_options_t.per_host, a save makes a whole checkpoint on every host, in a directory that each host has
 * for itself: below /dev/shm, say, which is memory and outlives the processes of the job. Ranks of other hosts send
 * what they own. Over MPI each rank of a host receives all of it, and zero_save_begin waits for that. Any one of the
 * hosts then has all that a restart needs.
 */

/* Returns the bytes of a checkpoint's arrays, that is of its .safetensors files together. The other files are small.
 * They depend on config's dtype and optimizer alone. */
ZERO_API zero_status_t zero_checkpoint_bytes(const zero_model_t *model, const zero_config_t *config, uint64_t *n_bytes);
/* Creates `directory` on every host, removes all checkpoints in it but that of step `but`, if there is one, and what
 * interrupted saves have left, and checks that a new copy of n_bytes fits in next to an old one. Returns
 * ZERO_ERROR_MEMORY if it does not, with the numbers, and ZERO_ERROR_USAGE if two hosts share the directory. Warns if
 * it is not in memory (tmpfs). [collective] */
ZERO_API zero_status_t zero_host_copies_prepare(zero_comm_t *comm, const char *directory, uint64_t n_bytes,
                                                uint64_t but);
/* Finds the newest step of which a host has a checkpoint; 0: none. A step of which hosts have different ones does not
 * count. [collective] */
ZERO_API zero_status_t zero_host_copies_find(zero_comm_t *comm, const char *directory, uint64_t *step);
/* Opens that step's checkpoint as zero_checkpoint_open does. A host that lacks it gets it from another first.
 * [collective]
 */
ZERO_API zero_status_t zero_host_copies_open(zero_comm_t *comm, const char *directory, uint64_t step,
                                             zero_checkpoint_t **checkpoint);
/* Removes the checkpoints on every host, and the directory if nothing else is in it. [collective] */
ZERO_API zero_status_t zero_host_copies_remove(zero_comm_t *comm, const char *directory);

/* ---- Trace ---------------------------------------------------------------------------------------------------------
 *
 * To see what the device did when, and what it waited for.
 */

/* Kinds of device work that can be traced. */
#define ZERO_WORK_MAP(X)                                                                                               \
    X(COMPUTE, "compute", "from a unit's acquire to its release or grad_ready")                                        \
    X(WAIT, "wait", "compute waits for communication")                                                                 \
    X(GATHER, "gather", "a unit's full parameters (stage 0: its reduced gradients) come from all ranks")               \
    X(REDUCE, "reduce", "slices of a unit's gradients come from all ranks")                                            \
    X(UPDATE, "update", "norm, clipping and AdamW")

typedef enum zero_work {
#define ZERO_WORK_ENUM(name, text, what) ZERO_WORK_##name,
    ZERO_WORK_MAP(ZERO_WORK_ENUM)
#undef ZERO_WORK_ENUM
        ZERO_N_WORKS
} zero_work_t;

ZERO_API const char *zero_work_name(zero_work_t work); /* such as "gather" */

/* The part of a step in which work was queued. A gather may be for a later part. */
#define ZERO_PHASE_MAP(X)                                                                                              \
    X(FORWARD, "forward", "of a pass, also of one that has no backward")                                               \
    X(BACKWARD, "backward", "of a pass")                                                                               \
    X(UPDATE, "update", "zero_step; also initial values and the like, outside a pass")

typedef enum zero_phase {
#define ZERO_PHASE_ENUM(name, text, what) ZERO_PHASE_##name,
    ZERO_PHASE_MAP(ZERO_PHASE_ENUM)
#undef ZERO_PHASE_ENUM
        ZERO_N_PHASES
} zero_phase_t;

ZERO_API const char *zero_phase_name(zero_phase_t phase); /* such as "forward" */

/* What a span of ZERO_WORK_WAIT waits for. */
#define ZERO_WAIT_MAP(X)                                                                                               \
    X(NONE, "", "it is no wait")                                                                                       \
    X(GATHER, "gather", "a gather that has not come, or that does not overlap compute")                                \
    X(REDUCE, "reduce", "slices of gradients that have not come, or that do not overlap compute")                      \
    X(READERS, "readers", "peers that still read the buffer that is to be written")                                    \
    X(RANKS, "ranks", "the slowest rank, where all ranks meet: at the norm, and when new parameters are ready")        \
    X(OFFLOAD, "offload", "copies and updates of what is in host memory")                                              \
    X(EXCHANGE, "exchange", "slices of an all-to-all of yours")

typedef enum zero_wait {
#define ZERO_WAIT_ENUM(name, text, what) ZERO_WAIT_##name,
    ZERO_WAIT_MAP(ZERO_WAIT_ENUM)
#undef ZERO_WAIT_ENUM
        ZERO_N_WAITS
} zero_wait_t;

ZERO_API const char *zero_wait_name(zero_wait_t wait); /* such as "gather" */

/* One piece of device work. */
typedef struct zero_trace_span {
    zero_work_t work;
    zero_unit_t unit;        /* -1: not of one unit */
    uint64_t step;           /* counts from 1; 0: between steps (evaluation, initial values) */
    double begin_ms, end_ms; /* CLOCK_MONOTONIC of this host */
    zero_phase_t phase;
    zero_wait_t wait; /* ZERO_WAIT_NONE unless it is a wait */
    /* Of a gather or reduction, or of compute that stands still during one: the n_ranks ranks that take part are
     * first_rank, first_rank + rank_stride ... Else n_ranks is 0. */
    int first_rank, rank_stride, n_ranks;
} zero_trace_span_t;

/* Receives one span, which is valid during the call. Called from zero_step_wait and other calls of the engine. Spans of
 * one kind come in the order in which they began. */
typedef void (*zero_trace_fn)(void *user, const zero_trace_span_t *span);

#define ZERO_ALL_WORKS ((1u << ZERO_N_WORKS) - 1) /* all kinds */
/* Sends spans of what the device does from now on to `fn`, some steps later. works: the kinds to send, a bit for each,
 * such as 1u << ZERO_WORK_UPDATE; 0: none, and fn may be NULL. Costs a few events per unit, which the host records.
 * Only before the first zero_begin. */
ZERO_API zero_status_t zero_engine_trace(zero_engine_t *engine, unsigned works, zero_trace_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
