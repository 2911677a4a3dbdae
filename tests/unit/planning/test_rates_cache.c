/* test_rates_cache.c - measured rates: what is kept is found again for the machine it is of, and for no other; a file
 * that cannot be used costs a line; zerotrain calibrate fills it, and fit reads it.
 */
#include "train/rates/rates_cache.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"

#define RUN_LIMIT_S 240.0

static char scratch[400], cache[512];

static void set_up(void)
{
    char *directory = support_scratch();
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    snprintf(cache, sizeof cache, "%s/zerotrain/rates.json", scratch);
    setenv("XDG_CACHE_HOME", scratch, 1);
}

/* Every number differs: half 100, single 101, ... times scale. */
static fit_measured_t measured_of(const char *device, bool is_gpu, int threads, int ranks, double scale)
{
    fit_measured_t m = {.is_gpu = is_gpu, .threads = threads, .ranks = ranks, .date = "2026-01-31T12:00:00Z"};
    double next = 100.0;
    fit_measured_clear(&m);
    snprintf(m.device, sizeof m.device, "%s", device);
    for (int i = 0; i < n_fit_rate_rows; i++)
        for (int k = 0; k < fit_rate_rows[i].n; k++)
            ((double *)((char *)&m.rates + fit_rate_rows[i].offset))[k] = scale * next++;
    return m;
}

static fit_rates_t look_up(fit_wanted_t wanted)
{
    fit_rates_t rates;
    ck_assert(fit_rates_look_up(&wanted, &rates));
    return rates;
}

/* ---- what is kept ---- */

START_TEST(what_is_kept_is_found)
{
    fit_measured_t m = measured_of("Some CPU, 8 cores", false, 4, 2, 1.0);
    ck_assert_int_eq(fit_cache_save(&m), ZERO_OK);
    fit_rates_t rates = look_up((fit_wanted_t){.vendor_name = "Some CPU, 8 cores", .threads = 4, .ranks = 2});
    for (int i = 0; i < n_fit_rate_rows; i++) {
        const char *at = (const char *)&rates + fit_rate_rows[i].offset;
        ck_assert_int_eq(
            memcmp(at, (char *)&m.rates + fit_rate_rows[i].offset, (size_t)fit_rate_rows[i].n * sizeof(double)), 0);
    }
    ck_assert_msg(strstr(rates.title, "Some CPU, 8 cores, measured 2026-01-31 with 2 ranks of 4 threads"), "%s",
                  rates.title);
    ck_assert_str_eq(rates.name, "CPU");
    rates = look_up((fit_wanted_t){.vendor_name = "Some CPU, 16 cores", .threads = 4, .ranks = 2});
    ck_assert_double_eq(rates.half, 2.0 * fit_rates_of_cpu()->half); /* built in are those of two threads */
    ck_assert_double_eq(rates.link, fit_rates_of_cpu()->link);
    ck_assert_str_eq(rates.title, fit_rates_of_cpu()->title);
}
END_TEST

/* The same machine is measured anew in place; others stay. Nothing else is left in the folder. */
START_TEST(an_entry_is_replaced_and_others_stay)
{
    const fit_measured_t all[] = {measured_of("A", false, 1, 1, 1.0), measured_of("A", false, 1, 2, 2.0),
                                  measured_of("B", false, 1, 1, 3.0), measured_of("A", false, 1, 1, 4.0)};
    char folder[450];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(fit_cache_save(&all[i]), ZERO_OK);
    ck_assert_double_eq(look_up((fit_wanted_t){.vendor_name = "A", .threads = 1, .ranks = 1}).half, 400.0);
    ck_assert_double_eq(look_up((fit_wanted_t){.vendor_name = "A", .threads = 1, .ranks = 2}).half, 200.0);
    ck_assert_double_eq(look_up((fit_wanted_t){.vendor_name = "B", .threads = 1, .ranks = 1}).half, 300.0);
    snprintf(folder, sizeof folder, "%s/zerotrain", scratch);
    DIR *directory = opendir(folder);
    const struct dirent *entry;
    int n_files = 0;
    while ((entry = readdir(directory)))
        n_files += entry->d_name[0] != '.';
    closedir(directory);
    ck_assert_int_eq(n_files, 1);
    json_error_t error;
    json_t *file = json_load_file(cache, JSON_REJECT_DUPLICATES, &error);
    ck_assert_int_eq((int)json_array_size(json_object_get(file, "devices")), 3);
    json_decref(file);
}
END_TEST

/* A rank with twice the threads computes twice as fast; what travels does not change. */
START_TEST(the_nearest_ranks_serve_others)
{
    fit_measured_t one = measured_of("A", false, 8, 1, 1.0), four = measured_of("A", false, 2, 4, 2.0);
    ck_assert_int_eq(fit_cache_save(&one), ZERO_OK);
    ck_assert_int_eq(fit_cache_save(&four), ZERO_OK);
    fit_rates_t rates = look_up((fit_wanted_t){.vendor_name = "A", .threads = 1, .ranks = 8});
    ck_assert_double_eq(rates.half, 0.5 * four.rates.half);
    ck_assert_double_eq(rates.adam, 0.5 * four.rates.adam);
    ck_assert_double_eq(rates.link, four.rates.link);
    ck_assert_double_eq(rates.size_share[2], four.rates.size_share[2]);
    ck_assert_double_eq(rates.tile, four.rates.tile);
}
END_TEST

/* Threads beyond the cores share them: of 4 cores 8 ranks of a thread have a half each, and measured rates of 4 ranks
 * of 2 threads are those of one core. */
START_TEST(ranks_beyond_the_cores_share_them)
{
    fit_measured_t four = measured_of("A", false, 2, 4, 1.0);
    fit_wanted_t eight = {.vendor_name = "A", .threads = 1, .ranks = 8, .cores = 4}, four_alike = eight;
    four_alike.threads = 2;
    four_alike.ranks = 4;
    ck_assert_double_eq(look_up(eight).half, 0.25 * fit_rates_of_cpu()->half); /* built in are those of two cores */
    ck_assert_double_eq(look_up(eight).threads, 1.0);
    ck_assert_int_eq(fit_cache_save(&four), ZERO_OK);
    ck_assert_double_eq(look_up(four_alike).half, four.rates.half);
    ck_assert_double_eq(look_up(eight).half, 0.5 * four.rates.half);
    eight.ranks = 1;
    ck_assert_double_eq(look_up(eight).half, four.rates.half);
    eight.threads = 4;
    ck_assert_double_eq(look_up(eight).half, 4.0 * four.rates.half);
}
END_TEST

/* What one rank cannot measure is built in. */
START_TEST(what_was_not_measured_is_built_in)
{
    fit_measured_t m = measured_of("NVIDIA H100 80GB HBM3", true, 0, 1, 1.0);
    m.rates.link = m.rates.host_pcie = (double)NAN;
    ck_assert_int_eq(fit_cache_save(&m), ZERO_OK);
    fit_rates_t rates = look_up((fit_wanted_t){.is_gpu = true, .gpu = "h100", .ranks = 8});
    ck_assert_double_eq(rates.half, m.rates.half);
    ck_assert_double_eq(rates.link, fit_rates_find("H100")->link);
    ck_assert_double_eq(rates.host_pcie, fit_rates_find("H100")->host_pcie);
    ck_assert_double_eq(rates.memory_bytes, fit_rates_find("H100")->memory_bytes);
    ck_assert_double_eq(rates.kernel_s, fit_rates_find("H100")->kernel_s);
}
END_TEST

static const struct {
    const char *vendor_name, *gpu; /* wanted */
    int found;                     /* the entry; -1: built in; -2: unknown */
    const char *name;
} gpus[] = {
    {NULL, "A100-40GB", 0, "A100-40GB"},
    {NULL, "A100", -1, "A100"},
    {NULL, "h200", -1, "H200"},
    {NULL, "L40S", 1, "NVIDIA L40S"},
    {NULL, "K80", -2, NULL},
    {NULL, "", 1, "NVIDIA L40S"}, /* measured last */
    {"NVIDIA L40S", NULL, 1, "NVIDIA L40S"},
    {"NVIDIA H100 80GB HBM3", NULL, -1, "H100"},
    {"NVIDIA T4", NULL, -1, "H200"},
    {NULL, "CPU", -2, NULL},
};

START_TEST(a_gpu_is_found_by_its_name)
{
    const double halves[] = {100.0, 200.0};
    fit_measured_t first = measured_of("NVIDIA A100-SXM4-40GB", true, 0, 1, 1.0);
    fit_measured_t second = measured_of("NVIDIA L40S", true, 0, 1, 2.0);
    second.rates.memory_bytes = 48e9;
    memcpy(second.date, "2026-02-01", 10);
    ck_assert_int_eq(fit_cache_save(&second), ZERO_OK);
    ck_assert_int_eq(fit_cache_save(&first), ZERO_OK);
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        fit_wanted_t wanted = {.is_gpu = true, .vendor_name = gpus[i].vendor_name, .gpu = gpus[i].gpu, .ranks = 1};
        fit_rates_t rates;
        bool is_known = fit_rates_look_up(&wanted, &rates);
        ck_assert_msg(is_known == (gpus[i].found != -2), "row %zu", i);
        if (!is_known)
            continue;
        ck_assert_str_eq(rates.name, gpus[i].name);
        double half = gpus[i].found >= 0 ? halves[gpus[i].found] : fit_rates_find(gpus[i].name)->half;
        ck_assert_double_eq(rates.half, half);
        ck_assert_double_eq(rates.memory_bytes, gpus[i].found == 1 ? 48e9 : fit_rates_find(gpus[i].name)->memory_bytes);
    }
}
END_TEST

/* ---- what cannot be used ---- */

#define ENTRY                                                                                                          \
    "{\"version\": 2, \"devices\": [{\"device\": \"A\", \"gpu\": false, \"threads\": 1, \"ranks\": 1, "                \
    "\"date\": \"2026-01-31T12:00:00Z\", \"memory_bytes\": 0, \"rates\": {\"half\": "

static const struct {
    const char *text, *says;
} damaged[] = {
    {"", "no JSON"},
    {"{\"version\": 2, \"devices\": [", "no JSON"},
    {"[]", "no file of rates"},
    {"{\"version\": 1, \"devices\": []}", "another version"},
    {"{\"version\": 3, \"devices\": []}", "another version"},
    {"{\"version\": 2, \"devices\": {}}", "no list"},
    {"{\"version\": 2, \"devices\": [7]}", "damaged"},
    {ENTRY "\"fast\"}}]}", "damaged"},
    {ENTRY "-5}}]}", "damaged"},
    {ENTRY "0}}]}", "damaged"},
    {"{\"version\": 2, \"version\": 2, \"devices\": []}", "no JSON"},
};

START_TEST(a_damaged_file_costs_a_line)
{
    char folder[450];
    snprintf(folder, sizeof folder, "%s/zerotrain", scratch);
    mkdir(folder, 0777);
    support_write_file(cache, damaged[_i].text, strlen(damaged[_i].text));
    capture_begin();
    fit_rates_t rates = look_up((fit_wanted_t){.vendor_name = "A", .threads = 1, .ranks = 1});
    expect_line(capture_end(), (const char *const[]){cache, damaged[_i].says, "built-in", "zerotrain calibrate", NULL});
    ck_assert_double_eq(rates.half, 0.5 * fit_rates_of_cpu()->half);
    fit_measured_t m = measured_of("A", false, 1, 1, 1.0);
    ck_assert_int_eq(fit_cache_save(&m), ZERO_OK); /* the file is made anew */
    ck_assert_double_eq(look_up((fit_wanted_t){.vendor_name = "A", .threads = 1, .ranks = 1}).half, 100.0);
}
END_TEST

START_TEST(an_intact_file_is_read_without_a_line)
{
    char folder[450];
    const char *text = ENTRY "5}}]}";
    snprintf(folder, sizeof folder, "%s/zerotrain", scratch);
    mkdir(folder, 0777);
    support_write_file(cache, text, strlen(text));
    capture_begin();
    fit_rates_t rates = look_up((fit_wanted_t){.vendor_name = "A", .threads = 1, .ranks = 1});
    ck_assert_str_eq(capture_end(), "");
    ck_assert_double_eq(rates.half, 5.0);
    ck_assert_double_eq(rates.pass, 0.5 * fit_rates_of_cpu()->pass);
}
END_TEST

START_TEST(a_place_that_cannot_be_written_is_an_error)
{
    char blocked[450];
    fit_measured_t m = measured_of("A", false, 1, 1, 1.0);
    snprintf(blocked, sizeof blocked, "%s/file", scratch);
    support_write_file(blocked, "x", 1);
    setenv("XDG_CACHE_HOME", blocked, 1);
    capture_begin();
    ck_assert_int_eq(fit_cache_save(&m), ZERO_ERROR_IO);
    expect_line(capture_end(), (const char *const[]){blocked, NULL});
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "relative", 1);
    capture_begin();
    ck_assert_int_eq(fit_cache_save(&m), ZERO_ERROR_IO);
    expect_line(capture_end(), (const char *const[]){"XDG_CACHE_HOME", NULL});
    setenv("HOME", scratch, 1);
    ck_assert_int_eq(fit_cache_save(&m), ZERO_OK);
    snprintf(blocked, sizeof blocked, "%s/.cache/zerotrain/rates.json", scratch);
    ck_assert_int_eq(access(blocked, R_OK), 0);
}
END_TEST

/* ---- the program ---- */

#define CONFIG                                                                                                         \
    "[model]\nlayers = 2\ndim = 64\nheads = 2\nseq_len = 64\n[data]\ntrain = text.txt\n[device]\ntype = cpu\n"

static void set_up_program(void)
{
    char path[512], text[4000];
    set_up();
    memset(text, 'a', sizeof text);
    snprintf(path, sizeof path, "%s/text.txt", scratch);
    support_write_file(path, text, sizeof text);
    snprintf(path, sizeof path, "%s/cfg.ini", scratch);
    support_write_file(path, CONFIG, strlen(CONFIG));
}

static double number_of(const json_t *entry, const char *key)
{
    return json_number_value(json_object_get(json_object_get(entry, "rates"), key));
}

/* A rank alone, and two: what they measure is what fit then says it uses. Any CPU of these decades multiplies between
 * 1e8 and 1e13 operations a second, and moves between 1e7 and 1e13 bytes. */
START_TEST(fit_uses_what_calibrate_measured)
{
    static const char *const launch[] = {"", "mpirun --oversubscribe --bind-to none -n 2 "};
    static const char *const flops[] = {"half", "single"}, *const bytes[] = {"pass", "sum", "adam", "link"};
    support_output_t output;
    json_error_t error;
    int n_ranks = _i + 1;
    if (n_ranks == 1 && support_is_left_to_plain_build())
        return;
    int code = support_run(&output, RUN_LIMIT_S,
                           "cd %s && OMP_NUM_THREADS=1 exec %s%s/zerotrain calibrate --set "
                           "device.type=cpu",
                           scratch, launch[_i], support_build());
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    ck_assert_msg(strstr(output.out, "AdamW") && strstr(output.out, cache), "%s", output.out);
    support_output_free(&output);
    json_t *file = json_load_file(cache, 0, &error);
    const json_t *entry = json_array_get(json_object_get(file, "devices"), 0);
    ck_assert_int_eq((int)json_integer_value(json_object_get(entry, "ranks")), n_ranks);
    for (int i = 0; i < 2; i++)
        ck_assert(number_of(entry, flops[i]) > 1e8 && number_of(entry, flops[i]) < 1e13);
    for (int i = 0; i < (n_ranks > 1 ? 4 : 3); i++)
        ck_assert_msg(number_of(entry, bytes[i]) > 1e7 && number_of(entry, bytes[i]) < 1e13, "%s", bytes[i]);
    json_decref(file);
    code = support_run(&output, RUN_LIMIT_S, "cd %s && OMP_NUM_THREADS=1 exec %s%s/zerotrain fit cfg.ini", scratch,
                       launch[_i], support_build());
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    char says[64];
    snprintf(says, sizeof says, "with %d rank%s of 1 thread)", n_ranks, n_ranks > 1 ? "s" : "");
    ck_assert_msg(strstr(output.out, ", measured 20") && strstr(output.out, says), "%s", output.out);
    support_output_free(&output);
}
END_TEST

/* Keeps this test and what it starts to one core. */
static void stay_on_one_core(void)
{
    cpu_set_t allowed, one;
    int core = 0;
    CPU_ZERO(&one);
    ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    while (!CPU_ISSET(core, &allowed))
        core++;
    CPU_SET(core, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
}

/* A loop on the only core takes half of it. */
START_TEST(calibrate_says_if_others_ran)
{
    support_output_t output;
    if (support_is_left_to_plain_build())
        return;
    stay_on_one_core();
    int code = support_run(&output, RUN_LIMIT_S,
                           "cd %s && { timeout %.0f sh -c 'while :; do :; done' & } && OMP_NUM_THREADS=1 %s/zerotrain "
                           "calibrate; code=$?; kill $!; exit $code",
                           scratch, RUN_LIMIT_S, support_build());
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    const char *says = strstr(output.out, "waited for a core ");
    ck_assert_msg(says && atof(says + strlen("waited for a core ")) >= 20.0, "%s", output.out);
    support_output_free(&output);
}
END_TEST

START_TEST(calibrate_reads_no_file)
{
    support_output_t output;
    int code =
        support_run(&output, RUN_LIMIT_S, "cd %s && exec %s/zerotrain calibrate cfg.ini", scratch, support_build());
    ck_assert_int_eq(code, 2);
    ck_assert_msg(strstr(output.err, "calibrate: it reads no file") && support_count(output.err, "\n") == 1, "%s",
                  output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("rates_cache");
    TCase *c = tcase_create("file");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_test(c, what_is_kept_is_found);
    tcase_add_test(c, an_entry_is_replaced_and_others_stay);
    tcase_add_test(c, the_nearest_ranks_serve_others);
    tcase_add_test(c, ranks_beyond_the_cores_share_them);
    tcase_add_test(c, what_was_not_measured_is_built_in);
    tcase_add_test(c, a_gpu_is_found_by_its_name);
    tcase_add_loop_test(c, a_damaged_file_costs_a_line, 0, sizeof damaged / sizeof damaged[0]);
    tcase_add_test(c, an_intact_file_is_read_without_a_line);
    tcase_add_test(c, a_place_that_cannot_be_written_is_an_error);
    suite_add_tcase(s, c);
    c = tcase_create("program");
    tcase_set_timeout(c, 2 * RUN_LIMIT_S);
    tcase_add_checked_fixture(c, set_up_program, NULL);
    tcase_add_loop_test(c, fit_uses_what_calibrate_measured, 0, 2);
    tcase_add_test(c, calibrate_says_if_others_ran);
    tcase_add_test(c, calibrate_reads_no_file);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
