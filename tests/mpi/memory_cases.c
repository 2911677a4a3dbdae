/* memory_cases.c - what a training run allocates and holds, counted and measured, on one rank or several.
 *
 *     memory_cases held [options] CFG.ini         trains two steps as zerotrain would; checks on every rank that the
 *         engine's counters of memory and of traffic equal the plan. Rank 0 prints a line per category, "NAME: BYTES",
 *         and then what the processes really use, the mean over ranks: "measured: BYTES" (no such line if the kernel
 *         does not report it)
 *     memory_cases allocations [options] CFG.ini  runs zerotrain's whole loop for 2, 4 and 14 steps, the last with one
 *         rank once 250 ms late; fails unless the last two make the same number of heap allocations on every rank
 *
 * Options and file are zerotrain's. Exit code 0 if every check held.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include "tests/mpi/expect.h"
#include "tests/support/allocations.h"
#include "tests/support/trainer.h"
#include "train/data/data.h"
#include "train/run.h"

/* ---- measuring ---- */

#define NOT_TOLD (-1.0)

static double rollup_bytes(const char *text, const char *key)
{
    unsigned long long kib;
    const char *line = strstr(text, key);
    return line && sscanf(line + strlen(key), " %llu kB", &kib) == 1 ? (double)kib * 1024 : NOT_TOLD;
}

/* Returns the bytes of memory that the ranks hold together, without pages of files (code). A page that k processes have
 * mapped and touched counts 1/k in each one's proportional set size (Pss). So windows, which peers map too, count once
 * in the sum; in a sum of resident sizes they would count once per rank. NOT_TOLD before Linux 5.9. [collective] */
static double measure_all_ranks(zero_comm_t *comm)
{
    static char text[8192];
    OK(zero_comm_barrier(comm)); /* no rank faults pages in while others count */
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    if (!file)
        return NOT_TOLD;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    double anonymous = rollup_bytes(text, "Pss_Anon:"), shared = rollup_bytes(text, "Pss_Shmem:");
    if (anonymous < 0 || shared < 0)
        return NOT_TOLD;
    double bytes = anonymous + shared;
    OK(zero_comm_barrier(comm));
    OK(zero_comm_sum(comm, &bytes, 1));
    return bytes;
}

/* ---- cases ---- */

static void read_options(int argc, char **argv, options_t *options, zero_comm_t **comm)
{
    options_action_t action;
    OK(options_parse(argc, argv, options, &action));
    OK(zero_comm_create((zero_comm_kind_t)options->zero.comm, comm));
    allocations_leave_out_other_threads();
    report_init(zero_comm_rank(*comm), zero_comm_size(*comm));
    OK(data_choose_packing(&options->data));
    OK(options_resolve(options, zero_comm_size(*comm)));
}

static zero_memory_t plan_of(const trainer_t *t)
{
    zero_memory_t plan;
    zero_config_t config = options_config(t->options, zero_comm_size(t->comm));
    OK(zero_plan(t->model.declaration, &config, ZERO_DEVICE_CPU, zero_comm_get_kind(t->comm), zero_comm_size(t->comm),
                 &plan));
    model_plan(&t->model, &plan);
    return plan;
}

static void check_held(const trainer_t *t)
{
    zero_memory_t plan = plan_of(t), held = zero_engine_memory(t->engine);
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++)
        CHECK(held.bytes[c] == plan.bytes[c], "%s: %" PRIu64 " bytes held, %" PRIu64 " planned",
              zero_memory_name((zero_memory_category_t)c), held.bytes[c], plan.bytes[c]);
}

static uint64_t received_bytes(const zero_stats_t *stats)
{
    return stats->gathered_bytes + stats->part_gathered_bytes + stats->reduced_bytes;
}

/* Checks what this rank received in a step. Its counters leave out the ranks' contributions to norm and loss. */
static void check_traffic(const trainer_t *t, const zero_stats_t *before)
{
    const int n_ranks = zero_comm_size(t->comm), rank = zero_comm_rank(t->comm);
    const zero_stats_t after = zero_engine_stats(t->engine);
    const uint64_t received = received_bytes(&after) - received_bytes(before);
    zero_config_t config = options_config(t->options, n_ranks);
    int *hosts = calloc((size_t)n_ranks, sizeof *hosts);
    zero_traffic_t *traffic = calloc((size_t)n_ranks, sizeof *traffic);
    CHECK(hosts && traffic, "no memory");
    CHECK(zero_comm_hosts(t->comm, hosts) == 1, "several hosts");
    OK(zero_plan_traffic(t->model.declaration, &config, ZERO_DEVICE_CPU, zero_comm_get_kind(t->comm), n_ranks, hosts,
                         traffic));
    const uint64_t planned = traffic[rank].local_bytes;
    CHECK(planned >= received && planned - received < 256 * (uint64_t)n_ranks,
          "%" PRIu64 " bytes received in a step, %" PRIu64 " planned", received, planned);
    free(hosts);
    free(traffic);
}

/* The values of the tokens do not matter; that every buffer is used does. */
static void two_steps(trainer_t *t)
{
    const options_t *o = t->options;
    int64_t n_tokens = o->train.global_batch / zero_comm_size(t->comm) * o->model.seq_len;
    int32_t *tokens = malloc((size_t)n_tokens * sizeof *tokens);
    zero_step_result_t result;
    CHECK(tokens, "no memory");
    for (int64_t i = 0; i < n_tokens; i++)
        tokens[i] = (int32_t)(i * 7919 % o->model.vocab_size);
    OK(trainer_step(t, tokens, tokens, 1e-4, &result));
    const zero_stats_t before = zero_engine_stats(t->engine);
    OK(trainer_step(t, tokens, tokens, 1e-4, &result));
    check_traffic(t, &before);
    free(tokens);
}

static void open_and_train(trainer_t *trainer, const options_t *options, zero_comm_t *comm)
{
    OK(trainer_open(trainer, options, comm));
    OK(zero_init_parameters(trainer->engine));
    two_steps(trainer);
}

static void print_held(const trainer_t *trainer)
{
    zero_memory_t memory = zero_engine_memory(trainer->engine);
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++)
        printf("%s: %" PRIu64 "\n", zero_memory_name((zero_memory_category_t)c), memory.bytes[c]);
    printf("total: %" PRIu64 "\n", zero_memory_total(&memory));
    printf("n_params: %" PRIu64 "\n", zero_model_n_params(trainer->model.declaration));
}

static int held(const options_t *options, zero_comm_t *comm)
{
    trainer_t trainer;
    /* One layer first: what libraries keep for the process, such as OpenBLAS's packing buffers (2.5 MB), is theirs. */
    options_t one_layer = *options;
    one_layer.model.layers = 1;
    open_and_train(&trainer, &one_layer, comm);
    trainer_close(&trainer);

    double before = measure_all_ranks(comm);
    open_and_train(&trainer, options, comm);
    double after = measure_all_ranks(comm);
    check_held(&trainer);
    if (zero_comm_rank(comm) == 0) {
        print_held(&trainer);
        if (before >= 0 && after >= 0)
            printf("measured: %.0f\n", (after - before) / zero_comm_size(comm));
    }
    trainer_close(&trainer);
    return 0;
}

/* Long enough for the peers to check this rank. At which point of the run it happens is chance: none of them may
 * allocate. */
static void be_late(int signal)
{
    (void)signal;
    nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
}

static void be_late_soon(void)
{
    const struct itimerval soon = {.it_value.tv_usec = 5000};
    CHECK(signal(SIGALRM, be_late) != SIG_ERR && setitimer(ITIMER_REAL, &soon, NULL) == 0, "no timer");
}

static unsigned long allocations_of(const options_t *options, zero_comm_t *comm, int64_t n_steps)
{
    options_t run = *options;
    run.stop_after = n_steps;
    allocations_start();
    loop_end_t end;
    int lock = 0;
    OK(loop_run(&run, comm, &lock, &end));
    return allocations_stop();
}

/* Runs that differ in ten steps, and in that a rank of several is late once: if these steps or waiting for it allocate,
 * the totals differ. The first run is there for what libraries allocate once in a process. */
static int allocations(const options_t *options, zero_comm_t *comm)
{
    allocations_of(options, comm, 2);
    unsigned long fewer = allocations_of(options, comm, 4);
    if (zero_comm_rank(comm) == 1)
        be_late_soon();
    unsigned long more = allocations_of(options, comm, 14);
    printf("%s\n", fewer == 0 ? "nothing counted" : "counted"); /* a sanitizer replaces malloc itself */
    CHECK(more == fewer, "4 steps: %lu allocations, 14 steps: %lu", fewer, more);
    return 0;
}

static const options_t *mix_blocks(options_t *options)
{
    options->model.recompute = RECOMPUTE_FULL;
    options->model.recompute_none = 1;
    return options;
}

int main(int argc, char **argv)
{
    static options_t options;
    zero_comm_t *comm;
    CHECK(argc > 2, "which case, and which file?");
    const char *name = argv[1];
    read_options(argc - 1, argv + 1, &options, &comm);
    int code = 1;
    if (strcmp(name, "held") == 0)
        code = held(&options, comm);
    else if (strcmp(name, "allocations") == 0)
        code = allocations(&options, comm);
    else if (strcmp(name, "mixed") == 0) /* allocations of a model whose blocks recompute differently */
        code = allocations(mix_blocks(&options), comm);
    else
        CHECK(false, "no case %s", name);
    zero_comm_destroy(comm);
    return code;
}
