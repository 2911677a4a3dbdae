/* test_host_memory.c - how much memory a host has and leaves: of trees that look like /proc and /sys in containers and
 * under Slurm, with the answer by hand; and inside a real control group, where root may make one.
 *
 * With arguments this program is one rank of a test: see run_rank.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/host/shared_block.h"
#include "tests/mpi/expect.h"
#include "tests/support/support.h"

#define RUN_LIMIT_S 60.0
#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

/* ---- trees ---- */

#define MEMINFO                                                                                                        \
    {                                                                                                                  \
        "proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1024 kB\nMemAvailable: 33554432 kB\n"                         \
    } /* 64, 32 GiB */
#define ROOT_MOUNT "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
#define V2_MOUNT ROOT_MOUNT "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT                                                                                                       \
    ROOT_MOUNT "31 22 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"                                           \
               "32 22 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
#define V1_NO_LIMIT "9223372036854771712\n"

typedef struct tree {
    const char *what;
    uint64_t total, available;
    struct {
        const char *path, *text;
    } files[16];
} tree_t;

static const tree_t trees[] = {
    {"no groups", 64 * GIB, 32 * GIB, {MEMINFO}},
    {"version 2, no limit",
     64 * GIB,
     32 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "0::/a\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/memory.max", "max\n"},
      {"sys/fs/cgroup/a/memory.current", "1000\n"}}},
    {"version 2, its own limit; page cache is free, a tmpfs is not",
     8 * GIB,
     8 * GIB - 5 * GIB + 3 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "0::/a/b\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/b/memory.max", "8589934592\n"},
      {"sys/fs/cgroup/a/b/memory.current", "5368709120\n"},
      {"sys/fs/cgroup/a/b/memory.stat",
       "anon 1048576\nfile 4294967296\nshmem 1073741824\ninactive_anon 1073741824\nactive_anon 1048576\n"
       "inactive_file 2147483648\nactive_file 1073741824\nunevictable 0\n"}}},
    {"version 2, the limit of a group two above, which holds what others use",
     16 * GIB,
     4 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "0::/slurm/job_1/step_0\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/slurm/memory.max", "17179869184\n"},
      {"sys/fs/cgroup/slurm/memory.current", "12884901888\n"},
      {"sys/fs/cgroup/slurm/job_1/memory.max", "max\n"},
      {"sys/fs/cgroup/slurm/job_1/memory.current", "4096\n"},
      {"sys/fs/cgroup/slurm/job_1/step_0/memory.max", "max\n"},
      {"sys/fs/cgroup/slurm/job_1/step_0/memory.current", "4096\n"}}},
    {"version 2, the outer total is less, the inner leaves less",
     8 * GIB,
     GIB,
     {MEMINFO,
      {"proc/self/cgroup", "0::/a/b\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/memory.max", "8589934592\n"},
      {"sys/fs/cgroup/a/memory.current", "0\n"},
      {"sys/fs/cgroup/a/b/memory.max", "10737418240\n"},
      {"sys/fs/cgroup/a/b/memory.current", "9663676416\n"}}},
    {"version 2, memory.high",
     2 * GIB,
     2 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "0::/a\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/memory.max", "4294967296\n"},
      {"sys/fs/cgroup/a/memory.high", "2147483648\n"},
      {"sys/fs/cgroup/a/memory.current", "0\n"}}},
    {"version 2, more used than the limit",
     2 * GIB,
     0,
     {MEMINFO,
      {"proc/self/cgroup", "0::/a\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/a/memory.max", "2147483648\n"},
      {"sys/fs/cgroup/a/memory.current", "3221225472\n"}}},
    {"a container with a name space of its own: its group is the top",
     8 * GIB,
     6 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "0::/\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/memory.max", "8589934592\n"},
      {"sys/fs/cgroup/memory.current", "2147483648\n"}}},
    {"a process outside of its name space",
     8 * GIB,
     6 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "0::/../other\n"},
      {"proc/self/mountinfo", V2_MOUNT},
      {"sys/fs/cgroup/memory.max", "8589934592\n"},
      {"sys/fs/cgroup/memory.current", "2147483648\n"}}},
    {"version 1, nested, with an outer limit",
     4 * GIB,
     3 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "5:cpu:/x\n4:blkio,memory:/a/b\n1:name=systemd:/y\n0::/\n"},
      {"proc/self/mountinfo", V1_MOUNT},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NO_LIMIT},
      {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4294967296\n"},
      {"sys/fs/cgroup/memory/a/memory.usage_in_bytes", "2147483648\n"},
      {"sys/fs/cgroup/memory/a/memory.stat", "cache 0\ninactive_file 0\ntotal_cache 1073741824\ntotal_inactive_file "
                                             "536870912\ntotal_active_file 536870912\n"},
      {"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", V1_NO_LIMIT},
      {"sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1073741824\n"}}},
    {"version 1 in a container that sees its group alone, by the host's name",
     4 * GIB,
     3 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "4:memory:/docker/abc/inner\n"},
      {"proc/self/mountinfo", ROOT_MOUNT "32 22 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NO_LIMIT},
      {"sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "4294967296\n"},
      {"sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "1073741824\n"}}},
    {"both versions at once, the memory in version 1",
     4 * GIB,
     3 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "4:memory:/a\n0::/a\n"},
      {"proc/self/mountinfo", V1_MOUNT "41 22 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
      {"sys/fs/cgroup/unified/a/cgroup.procs", "1\n"},
      {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4294967296\n"},
      {"sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1073741824\n"}}},
    {"a mount with a blank in its name, another first that does not show the group",
     4 * GIB,
     3 * GIB,
     {MEMINFO,
      {"proc/self/cgroup", "0::/a b/c\n"},
      {"proc/self/mountinfo", "29 22 0:26 /elsewhere /other rw - cgroup2 cgroup2 rw\n"
                              "30 22 0:26 /a\\040b /my\\040groups rw - cgroup2 cgroup2 rw\n"},
      {"other/memory.max", "1048576\n"},
      {"my groups/c/memory.max", "4294967296\n"},
      {"my groups/c/memory.current", "1073741824\n"}}},
};
#define N_TREES ((int)(sizeof trees / sizeof trees[0]))

static void plant(const char *top, const tree_t *tree)
{
    char path[1200];
    for (int i = 0; tree->files[i].path; i++) {
        snprintf(path, sizeof path, "%s/%s", top, tree->files[i].path);
        *strrchr(path, '/') = '\0';
        ck_assert_int_eq(support_run(NULL, RUN_LIMIT_S, "mkdir -p '%s'", path), 0);
        path[strlen(path)] = '/';
        support_write_file(path, tree->files[i].text, strlen(tree->files[i].text));
    }
}

START_TEST(every_limit_counts_and_page_cache_is_free)
{
    uint64_t total, available;
    char *top = support_scratch();
    plant(top, &trees[_i]);
    zero_memory_set_root(top);
    zero_host_memory(&total, &available);
    zero_memory_set_root("");
    ck_assert_msg(total == trees[_i].total && available == trees[_i].available,
                  "%s: %.3f GiB of %.3f instead of %.3f of %.3f", trees[_i].what, (double)available / (double)GIB,
                  (double)total / (double)GIB, (double)trees[_i].available / (double)GIB,
                  (double)trees[_i].total / (double)GIB);
    free(top);
}
END_TEST

/* Without a kernel that says what is available, that is not known; sysconf still knows the machine's. */
START_TEST(what_the_kernel_does_not_say_is_not_known)
{
    uint64_t total, available;
    char *top = support_scratch();
    zero_memory_set_root(top);
    zero_host_memory(&total, &available);
    zero_memory_set_root("");
    ck_assert_uint_eq(available, UINT64_MAX);
    ck_assert_uint_eq(total, (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
    zero_host_memory(NULL, NULL);
    free(top);
}
END_TEST

/* ---- what a plan may take ---- */

START_TEST(a_plan_leaves_a_reserve)
{
    static const uint64_t sizes[][2] = {
        {0, 0}, {8 * MIB, 7 * MIB}, {8 * GIB, 7 * GIB}, {64 * GIB, 63 * GIB}, {128 * GIB, 126 * GIB}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        ck_assert_uint_eq(zero_bytes_to_plan(sizes[i][0]), sizes[i][1]);
}
END_TEST

START_TEST(ranks_of_a_host_share_what_may_be_pinned)
{
    ck_assert_uint_eq(zero_pinned_to_plan(0.5, 1, 128 * GIB, 128 * GIB), 64 * GIB);
    ck_assert_uint_eq(zero_pinned_to_plan(0.5, 8, 128 * GIB, 128 * GIB), 8 * GIB);
    ck_assert_uint_eq(zero_pinned_to_plan(1.0, 2, 128 * GIB, 128 * GIB), 63 * GIB); /* less the reserve */
    ck_assert_uint_eq(zero_pinned_to_plan(0.5, 1, 128 * GIB, 8 * GIB), 7 * GIB);    /* others use the rest */
    ck_assert_uint_eq(zero_pinned_to_plan(0.5, 1, 128 * GIB, UINT64_MAX), 64 * GIB);
    ck_assert_uint_eq(zero_pinned_to_plan(0.5, 0, 2 * GIB, 128 * GIB), GIB);
}
END_TEST

/* ---- a real group ---- */

#define LIMIT "300M"
#define BLOCK_BYTES ((size_t)200 << 20) /* of each of two ranks: together more than the limit */

static char outer[200]; /* a group with the limit, in which there is one without; "": none can be made */

/* Writes a shell command that enters the inner group. */
#define ENTER "echo $$ > %s/inner/cgroup.procs && "

/* Makes both groups, of whichever version has memory here. Those of version 2 need the controller handed down. */
static void make_groups(void)
{
    static const char *const kinds[][2] = {{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                                           {"/sys/fs/cgroup", "memory.max"}};
    for (int i = 0; i < 2; i++) {
        snprintf(outer, sizeof outer, "%s/zero-test-%d", kinds[i][0], (int)getpid());
        if (geteuid() == 0 &&
            support_run(NULL, RUN_LIMIT_S,
                        "{ mkdir %s && echo " LIMIT " > %s/%s && mkdir %s/inner && [ -e %s/inner/cgroup.procs ]; } "
                        "2>/dev/null",
                        outer, outer, kinds[i][1], outer, outer) == 0)
            return;
        support_run(NULL, RUN_LIMIT_S, "rmdir %s/inner %s 2>/dev/null", outer, outer);
    }
    outer[0] = '\0';
}

static void remove_groups(void)
{
    if (outer[0])
        support_run(NULL, RUN_LIMIT_S, "for i in 1 2 3 4 5 6 7 8 9; do rmdir %s/inner %s && break; sleep 0.1; done",
                    outer, outer);
}

static bool has_groups(void)
{
    if (!outer[0])
        printf("SKIP: no control group with a limit can be made here (root, and the memory controller)\n");
    return outer[0] != '\0';
}

#define CONFIG                                                                                                         \
    "[model]\nlayers = 4\ndim = 1024\nheads = 8\nseq_len = 64\n[data]\ntrain = text.txt\n[train]\nsteps = 2\n"         \
    "micro_batch = 2\n[device]\ntype = cpu\n"

/* As a container or Slurm kills: exit code 137 without a word, in the middle of a step. */
START_TEST(a_run_over_a_limit_above_its_group_is_refused_and_not_killed)
{
    support_output_t output;
    char path[512], text[8000], *top;
    if (!has_groups())
        return;
    top = support_scratch();
    memset(text, 'a', sizeof text);
    snprintf(path, sizeof path, "%s/text.txt", top);
    support_write_file(path, text, sizeof text);
    snprintf(path, sizeof path, "%s/cfg.ini", top);
    support_write_file(path, CONFIG, strlen(CONFIG));
    int code = support_run(&output, RUN_LIMIT_S, ENTER "cd %s && OMP_NUM_THREADS=1 exec %s/zerotrain cfg.ini", outer,
                           top, support_build());
    ck_assert_msg(code == 1 && strstr(output.err, "this does not fit") && strstr(output.err, "may be used"),
                  "exit code %d\n%s", code, output.err);
    support_output_free(&output);
    free(top);
}
END_TEST

START_TEST(a_shared_block_over_the_limit_is_refused_and_not_killed)
{
    support_output_t output;
    if (!has_groups())
        return;
    int code = support_run(&output, RUN_LIMIT_S,
                           ENTER "exec mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 "
                                 "%s/tests/unit/base/test_host_memory block",
                           outer, support_build());
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    ck_assert_msg(support_count(output.err, "no memory for shared blocks of 209715200 bytes on each of 2 ranks") == 1,
                  "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* One rank: asks for a block that does not fit, and then for one that does. */
static int run_rank(void)
{
    zero_comm_t *comm;
    zero_shared_block_t *block = NULL;
    OK(zero_comm_create(ZERO_COMM_AUTO, &comm));
    CHECK(zero_shared_block_create(comm, BLOCK_BYTES, true, ZERO_LOG_ERROR, &block) ==
              (zero_comm_rank(comm) == 0 ? ZERO_ERROR_MEMORY : ZERO_ERROR_PEER),
          "a block over the limit is made");
    OK(zero_shared_block_create(comm, BLOCK_BYTES / 100, true, ZERO_LOG_ERROR, &block));
    zero_shared_block_destroy(block);
    zero_comm_destroy(comm);
    return 0;
}

static Suite *suite(void)
{
    Suite *s = suite_create("host_memory");
    TCase *c = tcase_create("trees");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, every_limit_counts_and_page_cache_is_free, 0, N_TREES);
    tcase_add_test(c, what_the_kernel_does_not_say_is_not_known);
    tcase_add_test(c, a_plan_leaves_a_reserve);
    tcase_add_test(c, ranks_of_a_host_share_what_may_be_pinned);
    suite_add_tcase(s, c);
    c = tcase_create("groups");
    tcase_set_timeout(c, 120);
    tcase_add_unchecked_fixture(c, make_groups, remove_groups);
    tcase_add_test(c, a_run_over_a_limit_above_its_group_is_refused_and_not_killed);
    tcase_add_test(c, a_shared_block_over_the_limit_is_refused_and_not_killed);
    suite_add_tcase(s, c);
    return s;
}

int main(int argc, char **argv)
{
    (void)argv;
    return argc > 1 ? run_rank() : support_main(suite());
}
