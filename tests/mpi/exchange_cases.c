/* exchange_cases.c - zero_all_to_all among groups of ranks, inside passes and between them. Usage:
 * exchange_cases CASE KIND DEVICE SEED [HOSTS], DEVICE cpu or async (async_device.h), or async-no-fence, whose fences
 * do not wait; HOSTS as in host_ids.h.
 *
 *     random     every group size that divides the ranks, two exchanges at once, random sizes; every byte is checked
 *     mismatch   ranks that ask for other sizes, or that exchange other numbers of bytes
 *     misuse     what must be refused
 *
 * A rank queues many exchanges before it looks at what has come, so that devices run at their own speed. Prints "ok".
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mpi/expect.h"
#include "tests/mpi/host_ids.h"
#include "tests/support/async/async_device.h"
#include "zero.h"

#define N_EXCHANGES 24
#define MOST_BYTES 3000
#define MAX_RANKS 16

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = (*state ^ (*state >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* What rank `from` sends to rank `to` in an exchange, by their ranks in the communicator. */
static unsigned char byte_of(int exchange, int from, int to, size_t i)
{
    uint64_t key = (uint64_t)exchange * 1000003 + (uint64_t)from * 1009 + (uint64_t)to * 31 + i / 8;
    return (unsigned char)(next_random(&key) >> (8 * (i % 8)));
}

typedef struct parts {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
    zero_stream_t stream;
} parts_t;

static parts_t open_parts(const char *kind, const char *device, uint64_t seed)
{
    parts_t p = {0};
    zero_unit_t unit;
    zero_tensor_t tensor;
    zero_config_t config = zero_config_default();
    config.dtype = ZERO_FP32;
    OK(zero_comm_create(strcmp(kind, "mpi") == 0 ? ZERO_COMM_MPI : ZERO_COMM_AUTO, &p.comm));
    if (strncmp(device, "async", 5) == 0)
        OK(async_device_create(p.comm,
                               &(async_options_t){.seed = seed * 17 + (uint64_t)zero_comm_rank(p.comm),
                                                  .max_delay_us = 300,
                                                  .pins = true,
                                                  .fault = device[5] ? ASYNC_NO_FENCE : ASYNC_NO_FAULT},
                               &p.device));
    else
        OK(zero_device_create(ZERO_DEVICE_CPU, p.comm, &p.device));
    OK(zero_model_create(&p.model));
    OK(zero_model_add_unit(p.model, "unit", &unit));
    OK(zero_model_add_tensor(p.model, unit, &(zero_tensor_desc_t){.name = "w", .n_dims = 1, .shape = {37}}, &tensor));
    OK(zero_engine_create(p.comm, p.device, p.model, &config, &p.engine));
    OK(zero_init_parameters(p.engine));
    OK(zero_stream_create(p.device, &p.stream));
    return p;
}

static void close_parts(parts_t *p)
{
    zero_stream_destroy(p->device, p->stream);
    zero_engine_destroy(p->engine);
    zero_model_destroy(p->model);
    zero_device_destroy(p->device);
    zero_comm_destroy(p->comm);
}

/* One exchange: what was sent and what came, in host memory until the device is done. */
typedef struct record {
    int group;
    size_t n_bytes;
    unsigned char *sent, *received; /* [group][n_bytes] */
} record_t;

static void queue_exchange(const parts_t *p, zero_all_to_all_t *all_to_all, int number, int group, size_t n_bytes,
                           record_t *record)
{
    void *slices[MAX_RANKS];
    const void *received[MAX_RANKS];
    const int rank = zero_comm_rank(p->comm), first = rank / group * group;
    *record = (record_t){group, n_bytes, malloc((size_t)group * n_bytes), malloc((size_t)group * n_bytes)};
    CHECK(record->sent && record->received, "no memory");
    OK(zero_all_to_all_slices(all_to_all, slices));
    for (int i = 0; i < group; i++) {
        unsigned char *sent = record->sent + (size_t)i * n_bytes;
        for (size_t b = 0; b < n_bytes; b++)
            sent[b] = byte_of(number, rank, first + i, b);
        CHECK((uintptr_t)slices[i] % 256 == 0, "slice %d", i);
        OK(zero_device_copy(p->device, slices[i], sent, n_bytes, p->stream));
    }
    OK(zero_all_to_all(all_to_all, n_bytes, received, p->stream));
    for (int i = 0; i < group; i++)
        OK(zero_device_copy(p->device, record->received + (size_t)i * n_bytes, received[i], n_bytes, p->stream));
}

static void check_exchange(const parts_t *p, int number, record_t *record)
{
    const int rank = zero_comm_rank(p->comm), first = rank / record->group * record->group;
    for (int i = 0; i < record->group; i++)
        for (size_t b = 0; b < record->n_bytes; b++)
            CHECK(record->received[(size_t)i * record->n_bytes + b] == byte_of(number, first + i, rank, b),
                  "exchange %d, rank %d: byte %zu of %zu from rank %d", number, rank, b, record->n_bytes, first + i);
    free(record->sent);
    free(record->received);
}

/* A step of training, in whose passes exchanges may be made. */
static void begin_pass(const parts_t *p)
{
    OK(zero_begin(p->engine, ZERO_PASS_TRAIN, p->stream));
    OK(zero_acquire(p->engine, 0, p->stream));
}

static void end_pass(const parts_t *p)
{
    static const float zeros[37];
    zero_step_result_t result;
    OK(zero_release(p->engine, 0, p->stream));
    OK(zero_acquire(p->engine, 0, p->stream));
    OK(zero_device_copy(p->device, zero_grad(p->engine, 0).data, zeros, sizeof zeros, p->stream));
    OK(zero_grad_ready(p->engine, 0, p->stream));
    OK(zero_step(p->engine, 0.1f, NULL, p->stream));
    OK(zero_step_wait(p->engine, &result));
}

static void exchange_at_random(const parts_t *p, bool is_async, bool has_hosts, uint64_t seed)
{
    const int size = zero_comm_size(p->comm);
    zero_all_to_all_t *all_to_alls[MAX_RANKS + 1] = {0};
    record_t records[N_EXCHANGES];
    uint64_t state = seed;
    zero_memory_t planned = zero_engine_memory(p->engine), held;
    for (int group = 1; group <= size; group++) {
        if (size % group != 0)
            continue;
        OK(zero_all_to_all_create(p->engine, group, MOST_BYTES, &all_to_alls[group]));
        OK(zero_all_to_all_plan(is_async ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU, zero_comm_get_kind(p->comm), group,
                                MOST_BYTES, &planned));
    }
    held = zero_engine_memory(p->engine);
    /* A group within one of several hosts needs no staging. */
    CHECK(held.bytes[ZERO_MEMORY_COMMUNICATION] == planned.bytes[ZERO_MEMORY_COMMUNICATION] ||
              (has_hosts && held.bytes[ZERO_MEMORY_COMMUNICATION] < planned.bytes[ZERO_MEMORY_COMMUNICATION]),
          "%llu bytes held, %llu planned", (unsigned long long)held.bytes[ZERO_MEMORY_COMMUNICATION],
          (unsigned long long)planned.bytes[ZERO_MEMORY_COMMUNICATION]);
    for (int i = 0; i < N_EXCHANGES; i++) {
        int group = 1 + (int)(next_random(&state) % (uint64_t)size);
        while (size % group != 0)
            group--;
        if (i % 6 == 2)
            begin_pass(p);
        queue_exchange(p, all_to_alls[group], i, group, 1 + next_random(&state) % MOST_BYTES, &records[i]);
        if (i % 6 == 4)
            end_pass(p);
    }
    OK(zero_device_synchronize(p->device));
    for (int i = 0; i < N_EXCHANGES; i++)
        check_exchange(p, i, &records[i]);
}

#define REFUSED(call, status, text)                                                                                    \
    do {                                                                                                               \
        CHECK((call) == (status), "%s", zero_last_error());                                                            \
        CHECK(strstr(zero_last_error(), text), "%s", zero_last_error());                                               \
    } while (0)

static void misuse(const parts_t *p)
{
    const int size = zero_comm_size(p->comm);
    zero_all_to_all_t *all_to_all;
    zero_memory_t memory = {0};
    void *slices[MAX_RANKS];
    const void *received[MAX_RANKS];
    REFUSED(zero_all_to_all_create(p->engine, size + 1, 8, &all_to_all), ZERO_ERROR_ARGUMENT, "do not divide");
    REFUSED(zero_all_to_all_create(p->engine, 0, 8, &all_to_all), ZERO_ERROR_ARGUMENT, "a group of 0 ranks");
    REFUSED(zero_all_to_all_create(p->engine, size, 0, &all_to_all), ZERO_ERROR_ARGUMENT, "slices of 0 bytes");
    REFUSED(zero_all_to_all_create(p->engine, size, SIZE_MAX / 8, &all_to_all), ZERO_ERROR_OVERFLOW, "be counted");
    REFUSED(zero_all_to_all_create(p->engine, size, 8, NULL), ZERO_ERROR_ARGUMENT, "all_to_all");
    REFUSED(zero_all_to_all_plan(ZERO_DEVICE_AUTO, ZERO_COMM_AUTO, 2, 8, &memory), ZERO_ERROR_ARGUMENT,
            "resolve it first");
    OK(zero_all_to_all_create(p->engine, size, 1000, &all_to_all));
    REFUSED(zero_all_to_all(all_to_all, 1001, received, p->stream), ZERO_ERROR_ARGUMENT, "of 1 to ");
    REFUSED(zero_all_to_all(all_to_all, 0, received, p->stream), ZERO_ERROR_ARGUMENT, "0 bytes");
    REFUSED(zero_all_to_all(NULL, 8, received, p->stream), ZERO_ERROR_ARGUMENT, "all_to_all");
    REFUSED(zero_all_to_all_slices(NULL, slices), ZERO_ERROR_ARGUMENT, "all_to_all");
    OK(zero_all_to_all_slices(all_to_all, slices));
    OK(zero_all_to_all(all_to_all, 1000, received, p->stream));
    begin_pass(p);
    end_pass(p);
    REFUSED(zero_all_to_all_create(p->engine, size, 8, &all_to_all), ZERO_ERROR_ORDER, "after the first zero_begin");
}

/* The last rank asks for something else; then it exchanges another number of bytes, which those of its group find out.
 * Lines name the ranks of the whole communicator. */
static void mismatch(const parts_t *p)
{
    const int rank = zero_comm_rank(p->comm), size = zero_comm_size(p->comm), group = size / 2;
    const bool is_odd = rank == size - 1;
    zero_all_to_all_t *all_to_all;
    const void *received[MAX_RANKS];
    zero_status_t status = zero_all_to_all_create(p->engine, group, is_odd ? 1000 : 2000, &all_to_all);
    CHECK(status == ZERO_ERROR_MISMATCH, "%s", zero_last_error());
    OK(zero_all_to_all_create(p->engine, group, 2000, &all_to_all));
    if (rank < group)
        return;
    CHECK(zero_all_to_all(all_to_all, is_odd ? 700 : 1700, received, p->stream) == ZERO_ERROR_MISMATCH, "%s",
          zero_last_error());
    CHECK(strstr(zero_last_error(), "zero_all_to_all"), "%s", zero_last_error());
}

int main(int argc, char **argv)
{
    CHECK(argc == 5 || argc == 6, "usage: exchange_cases CASE KIND DEVICE SEED [HOSTS]");
    if (argc == 6)
        OK(host_ids_set(argv[5]));
    const uint64_t seed = strtoull(argv[4], NULL, 10);
    parts_t p = open_parts(argv[2], argv[3], seed);
    if (strcmp(argv[1], "random") == 0)
        exchange_at_random(&p, strncmp(argv[3], "async", 5) == 0, argc == 6, seed);
    else if (strcmp(argv[1], "mismatch") == 0)
        mismatch(&p);
    else
        misuse(&p);
    if (zero_comm_rank(p.comm) == 0)
        puts("ok");
    close_parts(&p);
    return 0;
}
