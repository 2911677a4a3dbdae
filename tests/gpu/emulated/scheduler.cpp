/* scheduler.cpp - runs the threads of a CUDA grid as fibers of one CPU thread, in an order drawn from a seed.
 *
 * Blocks run one after the other, in a random order. In a block a warp is drawn, whose lanes run until each waits or
 * has ended; then perhaps another warp. A warp may so be as far ahead of others as barriers allow: what lacks a barrier
 * is read before it is written, or written before it was read, with some seed. Shared memory is NaN when a block
 * begins.
 *
 *     warp 0   ====== barrier                        ======= barrier       =: runs
 *     warp 1                    == shuffle == barrier           ...
 *     warp 2          == shuffle                                           its lanes wait for the draw
 *              draws: 0      2        1       1      0 (all are at the barrier, so it opens)
 *
 * What a GPU would hang on or refuse ends the program with a line: a barrier or an exchange for which not all come
 * (a deadlock), a thread that ends before a barrier of others, memory that is not there, and grids and blocks beyond
 * the limits.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <numeric>

#include "tests/gpu/emulated/device.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

/* Saves the registers that a call keeps on the stack, whose pointer it stores, and takes those of another stack.
 * swapcontext would also call the kernel for the signals' mask, each time. */
extern "C" void emulated_switch(void **save, void *load);
asm(".text\n.globl emulated_switch\nemulated_switch:\n"
    "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp, (%rdi)\n"
    "mov %rsi, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
    ".section .note.GNU-stack,\"\",@progbits\n.text\n");

namespace emulated
{
enum { WARP = 32, MOST_THREADS = 1024, STACK_BYTES = 256 << 10 };
enum fiber_state { READY, AT_BARRIER, AT_EXCHANGE, ENDED };
struct fiber {
    void *stack_pointer;
    uint3 thread;
    unsigned index;
    fiber_state state;
};
struct warp {
    unsigned n_lanes;
    uint32_t lanes, waiting; /* one bit for each lane that exists, and for each at an exchange */
    uint32_t masks[WARP];    /* whom each of these waits for */
    unsigned order[WARP];    /* in which the lanes run: threads of the block */
    uint64_t words[WARP];    /* that they exchange */
};

unsigned char *dynamic_shared;
static struct { /* what runs now */
    const char *kernel;
    void (*body)(void *);
    void *user, *scheduler_stack;
    fiber fibers[MOST_THREADS], *current;
    warp warps[MOST_THREADS / WARP];
    unsigned n_threads, n_warps, n_alive, n_at_barrier;
    int votes, last_votes;
    const void *poisoned[16]; /* variables in shared memory that the block has seen */
    unsigned n_poisoned;
} now;

/* Xorshift (Marsaglia 2003), from EMULATED_SEED on. */
static unsigned random_below(unsigned bound)
{
    static uint64_t state = 0;
    if (state == 0) {
        const char *seed = getenv("EMULATED_SEED");
        state = 88172645463325252u ^ strtoull(seed ? seed : "1", nullptr, 10) * 0x9e3779b97f4a7c15u;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 16) % bound);
}

[[noreturn]] static void give_up(const char *why)
{
    printf("FAILED: %s: block %u %u %u: %s (%u threads, %u not ended, %u at a barrier)\n", now.kernel, blockIdx.x,
           blockIdx.y, blockIdx.z, why, now.n_threads, now.n_alive, now.n_at_barrier);
    fflush(stdout);
    _exit(1);
}

/* A kernel's read or write outside of memory. The handler has a stack of its own, as a fiber's may be full. */
static void report_crashes()
{
    static unsigned char memory[64 << 10];
    stack_t stack = {memory, 0, sizeof memory};
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_handler = [](int signal) { give_up(strsignal(signal)); };
    action.sa_flags = SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE})
        sigaction(signal, &action, nullptr);
}

/* ---- what fibers call ---- */

static void leave(fiber_state state)
{
    now.current->state = state;
    emulated_switch(&now.current->stack_pointer, now.scheduler_stack);
}

static void begin_fiber()
{
    now.body(now.user);
    now.n_alive--;
    leave(ENDED);
    abort();
}

unsigned lane()
{
    return now.current->index % WARP;
}

int wait_for_block(int vote)
{
    now.votes += vote;
    now.n_at_barrier++;
    leave(AT_BARRIER);
    return now.last_votes;
}

/* Waits for the lanes of the mask, or of it those that a short warp has. */
static void wait_for_lanes(warp &own, uint32_t mask)
{
    own.masks[lane()] = mask & own.lanes;
    own.waiting |= 1u << lane();
    leave(AT_EXCHANGE);
}

void exchange(unsigned mask, uint64_t own, uint64_t words[WARP])
{
    warp &own_warp = now.warps[now.current->index / WARP];
    if (!(mask >> lane() & 1))
        give_up("a lane that is not in its mask");
    own_warp.words[lane()] = own;
    wait_for_lanes(own_warp, mask);
    for (unsigned i = 0; i < WARP; ++i)
        words[i] = mask >> i & 1 ? own_warp.words[i] : ~(uint64_t)0; /* others' are undefined */
    wait_for_lanes(own_warp, mask); /* nobody gives the next word before all have read these */
}

void poison_once(void *variable, size_t n_bytes)
{
    const void **end = now.poisoned + now.n_poisoned;
    if (std::find((const void **)now.poisoned, end, variable) != end)
        return;
    if (now.n_poisoned == sizeof now.poisoned / sizeof *now.poisoned)
        give_up("too many variables in shared memory");
    now.poisoned[now.n_poisoned++] = variable;
    memset(variable, 0xff, n_bytes);
}

/* ---- the scheduler ---- */

/* Makes a fiber whose first switch returns into begin_fiber, with the stack aligned as after a call. */
static void prepare_fiber(unsigned index)
{
    static unsigned char *stacks =
        (unsigned char *)mmap(nullptr, (size_t)MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED)
        give_up("no memory for stacks");
    void **top = (void **)(stacks + (index + 1) * (size_t)STACK_BYTES) - 1;
    *--top = (void *)begin_fiber;
    for (int i = 0; i < 6; ++i) /* the registers that emulated_switch takes */
        *--top = nullptr;
    now.fibers[index] = {
        top, {index % blockDim.x, index / blockDim.x % blockDim.y, index / blockDim.x / blockDim.y}, index, READY};
}

static void prepare_block()
{
    now.n_threads = now.n_alive = blockDim.x * blockDim.y * blockDim.z;
    now.n_warps = (now.n_threads + WARP - 1) / WARP;
    now.n_at_barrier = now.n_poisoned = 0;
    now.votes = 0;
    for (unsigned i = 0; i < now.n_threads; ++i)
        prepare_fiber(i);
    for (unsigned w = 0; w < now.n_warps; ++w) {
        warp &own = now.warps[w];
        own.n_lanes = std::min<unsigned>(WARP, now.n_threads - w * WARP);
        own.lanes = own.n_lanes == WARP ? ~0u : (1u << own.n_lanes) - 1;
        own.waiting = 0;
        std::iota(own.order, own.order + WARP, w * WARP);
        for (unsigned i = own.n_lanes - 1; i > 0; --i)
            std::swap(own.order[i], own.order[random_below(i + 1)]);
    }
}

/* Lets the lanes go on whose exchange is complete: all whom they wait for are at one with the same mask. */
static void complete_exchanges(warp &own, fiber *lanes)
{
    uint32_t rest = own.waiting;
    for (uint32_t mask; rest != 0; rest &= ~mask) {
        mask = own.masks[__builtin_ctz(rest)];
        bool complete = (own.waiting & mask) == mask;
        for (unsigned i = 0; i < WARP; ++i)
            complete = complete && (!(mask >> i & 1) || own.masks[i] == mask);
        for (unsigned i = 0; complete && i < WARP; ++i)
            if (mask >> i & 1)
                lanes[i].state = READY;
        own.waiting &= complete ? ~mask : ~0u;
    }
}

/* Runs each lane until it waits or has ended. Returns whether any ran. */
static bool run_warp(unsigned index)
{
    warp &own = now.warps[index];
    bool has_run = false;
    for (unsigned i = 0; i < own.n_lanes; ++i) {
        now.current = &now.fibers[own.order[i]];
        if (now.current->state != READY)
            continue;
        threadIdx = now.current->thread;
        emulated_switch(&now.scheduler_stack, now.current->stack_pointer);
        has_run = true;
    }
    complete_exchanges(own, &now.fibers[index * WARP]);
    return has_run;
}

static void open_barrier()
{
    if (now.n_alive < now.n_threads)
        give_up("threads ended before a barrier of others");
    for (unsigned i = 0; i < now.n_threads; ++i)
        now.fibers[i].state = READY;
    now.last_votes = now.votes;
    now.n_at_barrier = 0;
    now.votes = 0;
}

static void run_block()
{
    prepare_block();
    unsigned drawn = random_below(now.n_warps), n_idle = 0;
    while (now.n_alive > 0) {
        bool has_run = run_warp(drawn);
        if (now.n_at_barrier > 0 && now.n_at_barrier == now.n_alive)
            open_barrier();
        n_idle = has_run ? 0 : n_idle + 1;
        if (n_idle > now.n_warps)
            give_up("deadlock");
        if (!has_run)
            drawn = (drawn + 1) % now.n_warps; /* so that all had their turn before it is called a deadlock */
        else if (random_below(8) == 0)
            drawn = random_below(now.n_warps);
    }
}

/* The limits of every GPU since Kepler. */
static void check_limits(const launch_config &config)
{
    const dim3 &grid = config.grid, &block = config.block;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
        give_up("a grid that no GPU takes");
    if (block.x == 0 || block.y == 0 || block.z == 0 || block.z > 64 ||
        (uint64_t)block.x * block.y * block.z > MOST_THREADS)
        give_up("a block that no GPU takes");
    if (config.shared_bytes > 227 << 10)
        give_up("more shared memory than a GPU has");
}

void run_grid(const launch_config &config, const char *kernel, void (*body)(void *), void *user)
{
    alignas(1024) static unsigned char memory[227 << 10];
    if (now.kernel == nullptr)
        report_crashes();
    now.kernel = kernel, now.body = body, now.user = user;
    check_limits(config);
    gridDim = config.grid, blockDim = config.block, dynamic_shared = memory;
    uint64_t n = (uint64_t)gridDim.x * gridDim.y * gridDim.z, at = random_below((unsigned)std::min<uint64_t>(n, ~0u));
    uint64_t stride = 1 + random_below(1000);
    while (std::gcd(stride, n) != 1)
        stride++;
    for (uint64_t i = 0; i < n; ++i, at = (at + stride) % n) { /* each block once */
        blockIdx = {(unsigned)(at % gridDim.x), (unsigned)(at / gridDim.x % gridDim.y),
                    (unsigned)(at / gridDim.x / gridDim.y)};
        memset(memory, 0xff, config.shared_bytes);
        run_block();
    }
}
} // namespace emulated
