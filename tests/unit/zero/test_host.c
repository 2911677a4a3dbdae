/* test_host.c - the host's side of offload, without a device: which rank gets which cores, that a pool's threads do
 * every part once and run on their cores, and that memory is refused with the numbers. test_offload.c tests them
 * together. */
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/async/async_device.h"
#include "tests/support/checkpoint_session.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "zero/device/device.h"
#include "zero/offload/host_pool.h"

/* ---- cores ---- */

static cpu_set_t cores_from(int first, int n, int step)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        CPU_SET(first + i * step, &set);
    return set;
}

static const struct {
    const char *what;
    struct {
        int first, n, step;
    } could[4], gets[4]; /* by rank */
} share_cases[] = {
    {"one machine for all",
     {{0, 16, 1}, {0, 16, 1}, {0, 16, 1}, {0, 16, 1}},
     {{0, 4, 1}, {4, 4, 1}, {8, 4, 1}, {12, 4, 1}}},
    {"first threads of cores with two",
     {{0, 8, 2}, {0, 8, 2}, {0, 8, 2}, {0, 8, 2}},
     {{0, 2, 2}, {4, 2, 2}, {8, 2, 2}, {12, 2, 2}}},
    {"two sockets of two GPUs",
     {{0, 8, 1}, {0, 8, 1}, {8, 8, 1}, {8, 8, 1}},
     {{0, 4, 1}, {4, 4, 1}, {8, 4, 1}, {12, 4, 1}}},
    {"bound by the launcher",
     {{0, 2, 1}, {2, 2, 1}, {4, 2, 1}, {6, 2, 1}},
     {{0, 2, 1}, {2, 2, 1}, {4, 2, 1}, {6, 2, 1}}},
    {"one whose cores others have too",
     {{0, 6, 1}, {4, 2, 1}, {8, 1, 1}, {0, 0, 1}},
     {{0, 5, 1}, {5, 1, 1}, {8, 1, 1}, {0, 0, 1}}},
    {"fewer cores than ranks",
     {{0, 3, 1}, {0, 3, 1}, {0, 3, 1}, {0, 3, 1}},
     {{0, 0, 1}, {0, 0, 1}, {0, 0, 1}, {0, 0, 1}}},
};

START_TEST(ranks_share_cores_as_the_table_says)
{
    cpu_set_t sets[4], share;
    for (int r = 0; r < 4; r++)
        sets[r] = cores_from(share_cases[_i].could[r].first, share_cases[_i].could[r].n, share_cases[_i].could[r].step);
    for (int r = 0; r < 4; r++) {
        cpu_set_t want =
            cores_from(share_cases[_i].gets[r].first, share_cases[_i].gets[r].n, share_cases[_i].gets[r].step);
        zero_host_cores_share(sets, 4, r, &share);
        ck_assert_msg(CPU_EQUAL(&share, &want), "%s: rank %d has %d cores", share_cases[_i].what, r, CPU_COUNT(&share));
    }
}
END_TEST

/* For random sets of cores: no rank gets a core that it may not use or that another has, and ranks with equal sets get
 * equally many, give or take one. */
START_TEST(no_core_has_two_ranks_and_none_is_favoured)
{
    uint64_t seed = 7;
    for (int round = 0; round < 2000; round++) {
        cpu_set_t sets[6], shares[6], common = cores_from(0, 1 + (int)(support_uniform(&seed) * 40), 1);
        int n_ranks = 1 + (int)(support_uniform(&seed) * 6), n_given[48] = {0};
        for (int r = 0; r < n_ranks; r++)
            sets[r] = r % 2 == 0 ? common : cores_from((int)(support_uniform(&seed) * 30), 1 + r * 3, 1);
        for (int r = 0; r < n_ranks; r++)
            zero_host_cores_share(sets, n_ranks, r, &shares[r]);
        for (int r = 0; r < n_ranks; r++)
            for (int core = 0; core < 48; core++) {
                ck_assert(!CPU_ISSET(core, &shares[r]) || CPU_ISSET(core, &sets[r]));
                n_given[core] += CPU_ISSET(core, &shares[r]) != 0;
                ck_assert_int_le(n_given[core], 1);
            }
        /* For each pair of overlap kinds a rank may get one core less: at most 8 kinds here. */
        for (int r = 2; r < n_ranks; r += 2)
            ck_assert_int_le(abs(CPU_COUNT(&shares[r]) - CPU_COUNT(&shares[0])), 8);
    }
}
END_TEST

/* The system's answer for this process is the bound, whatever hwloc adds. */
START_TEST(cores_found_are_cores_we_may_use)
{
    cpu_set_t cores, allowed, both;
    zero_comm_t *comm;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &comm), ZERO_OK);
    ck_assert_int_eq(zero_host_cores_find(comm, _i ? "0000:ff:1f.7" : NULL, &cores), ZERO_OK);
    ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    CPU_AND(&both, &cores, &allowed);
    ck_assert(CPU_EQUAL(&both, &cores));
    both = cores;
    zero_host_cores_add_siblings(&both);
    CPU_AND(&allowed, &allowed, &both);
    ck_assert(CPU_EQUAL(&allowed, &both)); /* none that this process may not use */
    CPU_AND(&both, &both, &cores);
    ck_assert(CPU_EQUAL(&both, &cores)); /* none is lost */
#ifdef ZERO_HAVE_HWLOC
    ck_assert_int_ge(CPU_COUNT(&cores), 1);
#else
    ck_assert_int_eq(CPU_COUNT(&cores), 0);
#endif
    zero_comm_destroy(comm);
}
END_TEST

START_TEST(threads_leave_a_core_to_the_thread_that_queues_work)
{
    cpu_set_t sixteen = cores_from(0, 16, 1), two = cores_from(4, 2, 1), none = cores_from(0, 0, 1);
    ck_assert_int_eq(zero_host_cores_n_threads(&sixteen, 0, 4), 15);
    ck_assert_int_eq(zero_host_cores_n_threads(&two, 0, 4), 2);
    ck_assert_int_eq(zero_host_cores_n_threads(&sixteen, 5, 4), 5);
    ck_assert_int_eq(zero_host_cores_n_threads(&none, 0, 1 << 20), 1);
}
END_TEST

/* ---- threads ---- */

#define N_ITEMS 23
#define MAX_THREADS 9

typedef struct walked {
    _Atomic int n_done[N_ITEMS][MAX_THREADS];
    pthread_t by[N_ITEMS][MAX_THREADS];
    cpu_set_t stands_on[MAX_THREADS];
    int n_omp_threads[MAX_THREADS];
} walked_t;

static void note(void *args, int item, int part, int n_parts)
{
    walked_t *walked = args;
    ck_assert_int_lt(part, n_parts);
    if (part == item % n_parts) /* one lags behind, another each time */
        sched_yield();
    walked->by[item][part] = pthread_self();
    sched_getaffinity(0, sizeof walked->stands_on[part], &walked->stands_on[part]);
    walked->n_omp_threads[part] = omp_get_max_threads();
    atomic_fetch_add(&walked->n_done[item][part], 1);
}

START_TEST(every_part_is_done_once_by_the_same_thread)
{
    static const int n_threads_of[] = {1, 2, 3, MAX_THREADS};
    int n_threads = n_threads_of[_i];
    cpu_set_t none = cores_from(0, 0, 1);
    zero_host_pool_t *pool;
    walked_t walked = {0};
    ck_assert_int_eq(zero_host_pool_create(&none, n_threads, N_ITEMS, &pool), ZERO_OK);
    ck_assert_int_eq(zero_host_pool_n_threads(pool), n_threads);
    for (int round = 1; round <= 200; round++) {
        int n_items = 1 + round % N_ITEMS;
        memset(&walked, 0, sizeof walked);
        zero_host_pool_start(pool, n_items, note, &walked);
        for (int item = 0; item < n_items; item++) {
            zero_host_pool_await(pool, item);
            for (int part = 0; part < n_threads; part++)
                ck_assert_int_eq(walked.n_done[item][part], 1);
        }
        for (int part = 0; part < n_threads; part++) {
            ck_assert_int_eq(walked.n_omp_threads[part], 1);
            for (int item = 1; item < n_items; item++)
                ck_assert(pthread_equal(walked.by[item][part], walked.by[0][part]));
            for (int other = 0; other < part; other++)
                ck_assert(!pthread_equal(walked.by[0][part], walked.by[0][other]));
        }
    }
    zero_host_pool_destroy(pool);
}
END_TEST

START_TEST(threads_stand_on_the_cores_they_were_given)
{
    cpu_set_t cores;
    walked_t walked = {0};
    ck_assert_int_eq(sched_getaffinity(0, sizeof cores, &cores), 0);
    int n_cores = CPU_COUNT(&cores), n_threads = n_cores < MAX_THREADS ? n_cores : MAX_THREADS;
    for (int more = 0; more <= 1; more++) { /* with more threads than cores each may run on all */
        zero_host_pool_t *pool;
        cpu_set_t taken = cores_from(0, 0, 1), both;
        if (more && n_cores >= MAX_THREADS)
            continue;
        ck_assert_int_eq(zero_host_pool_create(&cores, n_threads + more, 1, &pool), ZERO_OK);
        sched_yield();
        zero_host_pool_start(pool, 1, note, &walked);
        zero_host_pool_await(pool, 0);
        for (int part = 0; part < n_threads + more; part++) {
            CPU_AND(&both, &walked.stands_on[part], &cores);
            ck_assert(CPU_EQUAL(&both, &walked.stands_on[part]));
            ck_assert_int_eq(CPU_COUNT(&both), more ? n_cores : 1);
            CPU_OR(&taken, &taken, &both);
        }
        ck_assert_int_eq(CPU_COUNT(&taken), more ? n_cores : n_threads);
        zero_host_pool_destroy(pool);
    }
}
END_TEST

/* ---- memory ---- */

/* Makes this host one that has so many KiB, all of them free. */
static void set_host_kib(const char *top, uint64_t kib)
{
    char path[600], text[200];
    snprintf(path, sizeof path, "%s/proc/meminfo", top);
    snprintf(text, sizeof text, "MemTotal: %llu kB\nMemAvailable: %llu kB\n", (unsigned long long)kib,
             (unsigned long long)(8 * kib)); /* the share of the total counts */
    support_write_file(path, text, strlen(text));
}

/* An engine that offloads all of a small model's state, on a device whose host memory can be pinned or not. */
typedef struct offloading {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_config_t config;
    char *top; /* of the tree that stands for /proc */
} offloading_t;

static offloading_t begin_offloading(bool pins, float share)
{
    offloading_t o = {
        .model = session_declare(&small_model), .config = zero_config_default(), .top = support_scratch()};
    const async_options_t options = {.seed = 1, .pins = pins};
    char path[600];
    snprintf(path, sizeof path, "%s/proc", o.top);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &o.comm), ZERO_OK);
    ck_assert_int_eq(async_device_create(o.comm, &options, &o.device), ZERO_OK);
    o.config.offload = true;
    o.config.offload_ratio = 1.0f;
    o.config.offload_ram = share;
    return o;
}

static void end_offloading(offloading_t *o)
{
    zero_device_destroy(o->device);
    zero_comm_destroy(o->comm);
    zero_model_destroy(o->model);
    free(o->top);
}

static uint64_t planned_kib(const offloading_t *o, zero_offload_update_t update)
{
    zero_config_t config = o->config;
    zero_memory_t memory;
    config.offload_update = update;
    ck_assert_int_eq(zero_plan(o->model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, 1, &memory), ZERO_OK);
    return memory.pinned_bytes / 1024; /* whole pages */
}

static zero_status_t create_on_host_of(const offloading_t *o, uint64_t kib, zero_engine_t **engine)
{
    set_host_kib(o->top, kib);
    zero_memory_set_root(o->top);
    zero_status_t status = zero_engine_create(o->comm, o->device, o->model, &o->config, engine);
    zero_memory_set_root("");
    return status;
}

START_TEST(offload_that_the_host_has_no_room_for_is_refused_with_the_numbers)
{
    static const char *const fragments[] = {"offload needs 0.00 GiB", "for the 1 rank of this host",
                                            "0.5 (offload_ram)", "offload_ratio"};
    offloading_t o = begin_offloading(true, 0.5f);
    uint64_t kib = planned_kib(&o, ZERO_OFFLOAD_UPDATE_DEVICE);
    zero_engine_t *engine;
    capture_begin();
    zero_status_t status = create_on_host_of(&o, 2 * kib - 1, &engine);
    const char *said = capture_end();
    ck_assert_int_eq(status, ZERO_ERROR_MEMORY);
    for (size_t i = 0; i < sizeof fragments / sizeof fragments[0]; i++)
        ck_assert_msg(strstr(said, fragments[i]), "'%s' is not in: %s", fragments[i], said);
    ck_assert_int_eq(create_on_host_of(&o, 2 * kib, &engine), ZERO_OK);
    zero_engine_destroy(engine);
    end_offloading(&o);
}
END_TEST

/* If memory cannot be pinned the host updates, and has the parameters, too: unless there is no room for them. */
START_TEST(the_host_updates_only_where_it_has_room_for_the_parameters)
{
    for (int has_room = 0; has_room <= 1; has_room++) {
        offloading_t o = begin_offloading(false, 1.0f);
        uint64_t by_device = planned_kib(&o, ZERO_OFFLOAD_UPDATE_DEVICE);
        uint64_t by_host = planned_kib(&o, ZERO_OFFLOAD_UPDATE_HOST);
        zero_engine_t *engine;
        ck_assert_uint_lt(by_device, by_host);
        ck_assert_int_eq(create_on_host_of(&o, has_room ? by_host : by_host - 1, &engine), ZERO_OK);
        ck_assert_uint_eq(zero_engine_memory(engine).pinned_bytes / 1024, has_room ? by_host : by_device);
        zero_engine_destroy(engine);
        end_offloading(&o);
    }
}
END_TEST

START_TEST(mapped_memory_starts_at_a_huge_page_and_is_zero)
{
    static const size_t sizes[] = {1, 4096, 4097, 5 << 20, (2 << 20) - 4096, 2 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *data;
        ck_assert_int_eq(zero_host_map(sizes[i], &data), ZERO_OK);
        ck_assert_uint_eq((uintptr_t)data % (2 << 20), 0);
        for (size_t b = 0; b < sizes[i]; b += 512)
            ck_assert_int_eq(((unsigned char *)data)[b], 0);
        ((unsigned char *)data)[sizes[i] - 1] = 1;
        zero_host_unmap(data, sizes[i]);
    }
}
END_TEST

/* A part that begins and ends within pages: all of its pages are there, and none but theirs. */
START_TEST(touched_memory_has_its_pages_and_keeps_its_numbers)
{
    enum { PAGE = 4096, N_PAGES = 3000, FIRST = 700, LAST = 2299 }; /* of huge pages, too */
    unsigned char resident[N_PAGES];
    void *data;
    ck_assert_int_eq(sysconf(_SC_PAGESIZE), PAGE);
    ck_assert_int_eq(zero_host_map((size_t)N_PAGES * PAGE, &data), ZERO_OK);
    (void)madvise(data, (size_t)N_PAGES * PAGE, MADV_NOHUGEPAGE);
    unsigned char *part = (unsigned char *)data + (size_t)FIRST * PAGE + 77,
                  *end = (unsigned char *)data + (size_t)LAST * PAGE + 5;
    *part = 3;
    zero_host_touch(part, (size_t)(end - part));
    zero_host_touch(end, 0);
    ck_assert_int_eq(*part, 3);
    ck_assert_int_eq(mincore(data, (size_t)N_PAGES * PAGE, resident), 0);
    for (int page = 0; page < N_PAGES; page++)
        ck_assert_msg((resident[page] & 1) == (page >= FIRST && page <= LAST), "page %d: %d", page, resident[page] & 1);
    zero_host_unmap(data, (size_t)N_PAGES * PAGE);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("host");
    TCase *cores = tcase_create("cores"), *pool = tcase_create("pool"), *memory = tcase_create("memory");
    tcase_set_timeout(cores, 60);
    tcase_set_timeout(pool, 60);
    tcase_add_loop_test(cores, ranks_share_cores_as_the_table_says, 0,
                        (int)(sizeof share_cases / sizeof share_cases[0]));
    tcase_add_test(cores, no_core_has_two_ranks_and_none_is_favoured);
    tcase_add_loop_test(cores, cores_found_are_cores_we_may_use, 0, 2);
    tcase_add_test(cores, threads_leave_a_core_to_the_thread_that_queues_work);
    tcase_add_loop_test(pool, every_part_is_done_once_by_the_same_thread, 0, 4);
    tcase_add_test(pool, threads_stand_on_the_cores_they_were_given);
    tcase_add_test(memory, offload_that_the_host_has_no_room_for_is_refused_with_the_numbers);
    tcase_add_test(memory, the_host_updates_only_where_it_has_room_for_the_parameters);
    tcase_add_test(memory, mapped_memory_starts_at_a_huge_page_and_is_zero);
    tcase_add_test(memory, touched_memory_has_its_pages_and_keeps_its_numbers);
    suite_add_tcase(s, cores);
    suite_add_tcase(s, pool);
    suite_add_tcase(s, memory);
    return s;
}

int main(void)
{
    return support_main(suite());
}
