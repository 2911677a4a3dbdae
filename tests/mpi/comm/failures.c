/* failures.c - the cases of comm_cases in which one rank does wrong: it exits, is killed, stops, leaves, aborts, or
 * calls something else. The others print to stderr which status they got and when, and exit with code 3. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "tests/mpi/comm/cases.h"
#include "tests/support/clock.h"
#include "zero/device/device.h"

static _Noreturn void report_failure(zero_status_t status, double start_s)
{
    fprintf(stderr, "rank %d got %s after %.2f s\n", comm->rank, zero_status_name(status), now_s() - start_s);
    pause_s(0.5); /* mpirun kills the other ranks as soon as one exits: let them report too */
    leave();      /* must not hang */
    exit(status == ZERO_OK ? EXIT_FAILURE : FAILURE_SEEN);
}

/* What the ranks that do right call, on any transport. */
static _Noreturn void wait_for_the_others(void)
{
    const double start_s = now_s();
    zero_status_t status =
        strcmp(comm->ops->name, "mpi") == 0 ? zero_comm_barrier(comm) : comm->ops->fence(comm, ZERO_LANE_STEP, NULL);
    report_failure(status, start_s);
}

static zero_status_t never(zero_device_t *device, zero_event_t event, bool *reached)
{
    (void)device, (void)event;
    *reached = false;
    return ZERO_OK;
}

/* What the ranks wait for when a device waits for peers, and the host for the device. */
static _Noreturn void wait_for_a_device(void)
{
    const zero_device_ops_t ops = {.event_query = never};
    zero_device_t device = {.ops = &ops};
    const double start_s = now_s();
    report_failure(zero_device_await(&device, comm, NULL, "step 7"), start_s);
}

static void misbehave_while(void (*act)(void), void (*wait)(void))
{
    signal(SIGTERM, SIG_IGN); /* mpirun sends it to the ranks that are left, a while before it kills them */
    EXPECT_OK(zero_comm_barrier(comm));
    if (comm->rank == 1) {
        pause_s(0.3); /* the others are asleep by then */
        fprintf(stderr, "rank 1 goes wrong at %.2f s\n", now_s());
        act();
    }
    wait();
}

static void misbehave(void (*act)(void))
{
    misbehave_while(act, wait_for_the_others);
}

static void act_exit(void)
{
    _exit(0);
}

static void act_kill(void)
{
    raise(SIGKILL);
}

static void act_stop(void)
{
    raise(SIGSTOP);
}

static void act_destroy(void)
{
    leave(); /* as a program does that has failed on its own */
    pause_s(0.5);
    exit(FAILURE_SEEN);
}

static void act_abort(void)
{
    zero_comm_abort(comm, 7);
}

static void act_other_call(void)
{
    report_failure(zero_comm_barrier(comm), now_s());
}

void one_exits(void)
{
    misbehave(act_exit);
}

void one_is_killed(void)
{
    misbehave(act_kill);
}

void one_stops(void)
{
    misbehave(act_stop);
}

void one_stops_beside_devices(void)
{
    misbehave_while(act_stop, wait_for_a_device);
}

void one_is_killed_beside_devices(void)
{
    misbehave_while(act_kill, wait_for_a_device);
}

/* Messages for which a wait would go without sleeps for longer than the deadline that test_comm.c gives. */
static _Noreturn void wait_for_much(void)
{
    const size_t n_bytes = (size_t)48 << 20, n_all = (size_t)comm->size * n_bytes;
    char *all = memset(allocate(n_all), 0, n_all);
    const double start_s = now_s();
    report_failure(comm->ops->host_all_gather(comm, all + (size_t)comm->rank * n_bytes, n_bytes, all), start_s);
}

void one_stops_before_much(void)
{
    misbehave_while(act_stop, wait_for_much);
}

static zero_window_t window_of_chunks;

static _Noreturn void wait_in_a_gather(void)
{
    void *all = allocate(window_of_chunks.n_bytes * (size_t)comm->size);
    const double start_s = now_s();
    zero_status_t status = comm->ops->all_gather(comm, ZERO_LANE_GATHER, &window_of_chunks, zero_comm_all(comm), 0, 0,
                                                 all, window_of_chunks.n_bytes, NULL);
    EXPECT(comm->failed);
    comm->ops->window_destroy(comm, &window_of_chunks);
    report_failure(status, start_s);
}

void one_stops_before_a_gather(void)
{
    EXPECT_OK(comm->ops->window_create(comm, 50000, &window_of_chunks));
    misbehave_while(act_stop, wait_in_a_gather);
}

void one_leaves(void)
{
    misbehave(act_destroy);
}

void one_aborts(void)
{
    misbehave(act_abort);
}

void one_calls_something_else(void)
{
    misbehave(act_other_call);
}
