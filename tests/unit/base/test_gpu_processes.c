/* test_gpu_processes.c - who holds a GPU's memory, as a driver's library says that the test makes: of today's driver,
 * of an old one, of one that fails; and without any.
 *
 * The loader reads LD_LIBRARY_PATH when a program starts, so each case is this program again, which then prints what it
 * finds.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/support.h"
#include "zero/device/device.h"

#define ADDRESS "0000:3b:00.0"

static char scratch[400], self[512];

/* NVML as nvml.h declares it, of one GPU, with three processes: this test's parent, one that is not here, and one whose
 * bytes are not available. FAKE chooses what is wrong. */
static const char *const FAKE =
    "#include <stdlib.h>\n"
    "#include <string.h>\n"
    "#include <unistd.h>\n"
    "typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } now_t;\n"
    "typedef struct { unsigned pid; unsigned long long bytes; } old_t;\n"
    "static int is(const char *what) { const char *s = getenv(\"FAKE\"); return s && strcmp(s, what) == 0; }\n"
    "int nvmlInit_v2(void) { return is(\"init\") ? 9 : 0; }\n"
    "int nvmlShutdown(void) { return 0; }\n"
    "const char *nvmlErrorString(int e) { return e == 9 ? \"Driver Not Loaded\" : e == 6 ? \"Not Found\" : \"?\"; }\n"
    "int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device)\n"
    "{ *device = (void *)7; return strcmp(address, \"" ADDRESS "\") == 0 ? 0 : 6; }\n"
    "static int all(void *d, unsigned *n, int k, unsigned *pid, unsigned long long *bytes)\n"
    "{ unsigned pids[] = {4000000001u, 4000000002u, (unsigned)getppid()};\n"
    "  unsigned long long sizes[] = {-1ull, 3ull << 30, 5ull << 30};\n"
    "  if (d != (void *)7) return 2;\n"
    "  *pid = pids[k]; *bytes = sizes[k]; (void)n; return 0; }\n"
    "#ifndef OLD\n"
    "int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, now_t *p)\n"
    "{ if (*n < 3) return 7; *n = is(\"none\") ? 0 : 3;\n"
    "  for (unsigned k = 0; k < *n; k++) { p[k].gi = p[k].ci = 0xffffffffu; if (all(d, n, k, &p[k].pid, &p[k].bytes)) "
    "return 2; }\n"
    "  return 0; }\n"
    "#else\n"
    "int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, old_t *p)\n"
    "{ if (*n < 3) return 7; *n = 3; for (unsigned k = 0; k < 3; k++) if (all(d, n, k, &p[k].pid, &p[k].bytes)) "
    "return 2;\n"
    "  return 0; }\n"
    "#endif\n";

static void set_up(void)
{
    char *directory = support_scratch(), path[512];
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    snprintf(path, sizeof path, "%s/fake.c", scratch);
    support_write_file(path, FAKE, strlen(FAKE));
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt((int)n, 0);
}

static void compile(const char *flags)
{
    support_output_t output;
    int code = support_run(&output, 60.0, "cd %s && ${CC:-cc} %s -shared -fPIC -w -o libnvidia-ml.so.1 fake.c", scratch,
                           flags);
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
}

/* Returns what a child prints; its parent is a shell that has replaced itself, or this program. */
static char *found_by(const char *fake, const char *address)
{
    support_output_t output;
    int code =
        support_run(&output, 60.0, "FAKE=%s LD_LIBRARY_PATH=%s exec %s --print %s", fake, scratch, self, address);
    ck_assert_msg(code == 0, "%s", output.err);
    char *text = strdup(output.out);
    support_output_free(&output);
    return text;
}

static void expect(const char *fake, const char *address, const char *const *texts)
{
    char *found = found_by(fake, address);
    for (; *texts; texts++)
        ck_assert_msg(strstr(found, *texts) != NULL, "no '%s' in: %s", *texts, found);
    free(found);
}

static const char *const FLAGS[] = {"", "-DOLD"};

START_TEST(processes_are_found_the_largest_first)
{
    char parent[64];
    compile(FLAGS[_i]);
    char *found = found_by("", ADDRESS);
    snprintf(parent, sizeof parent, "3 processes\nparent 5368709120 test_gpu_");
    ck_assert_msg(strncmp(found, parent, strlen(parent)) == 0, "%s", found);
    ck_assert_msg(strstr(found, "\n4000000002 3221225472 \n4000000001 0 \nwhy: \n") != NULL, "%s", found);
    free(found);
}
END_TEST

START_TEST(what_is_not_known_is_said)
{
    expect("", ADDRESS, (const char *const[]){"0 processes", "why: there is no libnvidia-ml.so.1", NULL});
    compile("");
    expect("init", ADDRESS, (const char *const[]){"0 processes", "why: NVML: Driver Not Loaded", NULL});
    expect("", "0000:3c:00.0", (const char *const[]){"0 processes", "why: NVML: Not Found", NULL});
    expect("none", ADDRESS, (const char *const[]){"0 processes", "why: the driver names no process", NULL});
    compile("-DnvmlInit_v2=another");
    expect("", ADDRESS, (const char *const[]){"0 processes", "why: libnvidia-ml.so.1 lacks a function", NULL});
}
END_TEST

/* The host's memory has no list of processes. */
START_TEST(the_cpu_says_what_is_free)
{
    zero_comm_t *comm;
    zero_device_t *device;
    zero_device_usage_t usage;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, comm, &device), ZERO_OK);
    ck_assert_int_eq(zero_device_find_usage(device, &usage), ZERO_OK);
    ck_assert(usage.free_bytes > 0 && usage.free_bytes <= usage.total_bytes);
    ck_assert_int_eq(usage.n_processes, 0);
    ck_assert_str_eq(usage.why_unknown, "this is not a GPU");
    ck_assert_int_eq(zero_device_find_usage(NULL, &usage), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_device_find_usage(device, NULL), ZERO_ERROR_ARGUMENT);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("gpu_processes");
    TCase *c = tcase_create("nvml");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_loop_test(c, processes_are_found_the_largest_first, 0, 2);
    tcase_add_test(c, what_is_not_known_is_said);
    tcase_add_test(c, the_cpu_says_what_is_free);
    suite_add_tcase(s, c);
    return s;
}

static int print(const char *address)
{
    zero_device_usage_t usage = {0};
    zero_gpu_find_processes(address, &usage);
    printf("%d processes\n", usage.n_processes);
    for (int i = 0; i < usage.n_processes; i++) {
        if (usage.processes[i].pid == getppid())
            printf("parent ");
        else
            printf("%" PRId64 " ", usage.processes[i].pid);
        printf("%" PRIu64 " %s\n", usage.processes[i].n_bytes, usage.processes[i].name);
    }
    printf("why: %s\n", usage.why_unknown);
    return 0;
}

int main(int argc, char **argv)
{
    return argc == 3 && strcmp(argv[1], "--print") == 0 ? print(argv[2]) : support_main(suite());
}
