/* test_memory_schedule.c - how many steps are lost with a process at any moment, over saves that take random times. */
#include "tests/support/support.h"
#include "train/schedules.h"

#include <stdlib.h>

/* A run that saves as src/train/checkpoints.c does. As there, a result may be waited for when the next step is queued
 * already (n_late 1), unless a save was known to begin or end there. */
typedef struct simulation {
    memory_schedule_t schedule;
    bool async;
    int64_t disk_every;  /* 0: none */
    int64_t begun, done; /* of the save in progress: after `done` it is found to be whole */
    bool in_memory;
    int64_t whole;            /* newest checkpoint */
    int64_t most_lost;        /* if a process is lost at the worst moment */
    int64_t n_begun, n_waits; /* in memory; saves that were waited for although they are written beside training */
} simulation_t;

static int64_t between(int64_t least, int64_t most)
{
    return least + rand() % (most - least + 1);
}

static void end(simulation_t *s, int64_t step)
{
    s->n_waits += s->async && step < s->done;
    s->whole = s->begun;
    s->begun = 0;
    memory_schedule_end(&s->schedule, step, s->in_memory);
}

static bool is_due_on_disk(const simulation_t *s, int64_t step)
{
    return s->disk_every > 0 && step % s->disk_every == 0;
}

static void begin(simulation_t *s, int64_t step, int64_t takes, bool in_memory)
{
    ck_assert_int_eq(s->begun, 0);
    s->begun = step;
    s->done = step + takes;
    s->in_memory = in_memory;
    s->n_begun += in_memory;
    memory_schedule_begin(&s->schedule, step);
    if (!s->async || memory_schedule_must_end(&s->schedule, step))
        end(s, step);
}

/* What checkpoints_after_step does. is_queued: the step after this one is. */
static void after_step(simulation_t *s, int64_t step, int64_t takes, bool is_queued)
{
    const bool on_disk = is_due_on_disk(s, step);
    if (step - s->whole > s->most_lost)
        s->most_lost = step - s->whole;
    if (s->begun > 0 && (step >= s->done || memory_schedule_must_end(&s->schedule, step)))
        end(s, step);
    if (on_disk && s->begun > 0)
        end(s, step);
    if (!on_disk && !memory_schedule_is_due(&s->schedule, step))
        return;
    ck_assert_msg(!is_queued, "a save begins after step %lld, when the next is queued", (long long)step);
    begin(s, step, takes, !on_disk);
}

static simulation_t simulate(int64_t every, int64_t first, int64_t n_steps, int64_t disk_every, bool async, int late,
                             int64_t least, int64_t most)
{
    simulation_t s = {.schedule = memory_schedule_make(every, first - 1, async),
                      .async = async,
                      .disk_every = disk_every,
                      .whole = first - 1};
    int64_t waited = first - 1;
    for (int64_t step = first; step < first + n_steps; step++)
        while (step - waited > (is_due_on_disk(&s, step) || memory_schedule_is_due(&s.schedule, step) ||
                                        memory_schedule_must_end(&s.schedule, step)
                                    ? 0
                                    : late)) {
            waited++;
            after_step(&s, waited, between(least, most), waited < step);
        }
    return s;
}

START_TEST(never_are_more_steps_lost_than_allowed)
{
    for (int i = 0; i < 20000; i++) {
        int64_t every = between(1, 40), disk_every = between(0, 1) * between(1, 50), least = between(1, 60);
        simulation_t s = simulate(every, between(1, 100), 300, disk_every, between(0, 3) > 0, (int)between(0, 1), least,
                                  least + between(0, 60));
        ck_assert_msg(s.most_lost <= every, "%lld steps of %lld are lost", (long long)s.most_lost, (long long)every);
    }
}
END_TEST

START_TEST(saves_that_are_waited_for_are_as_rare_as_allowed)
{
    for (int64_t every = 1; every <= 30; every++) {
        simulation_t s = simulate(every, 1, 600, 0, false, 0, 1, 1);
        ck_assert_int_eq(s.n_begun, 600 / every);
        ck_assert_int_eq(s.most_lost, every);
    }
}
END_TEST

/* A save that takes d steps, always, is begun d + 1 steps before it is needed: after the first, one in every
 * k - d - 1 steps, and training never waits. */
START_TEST(saves_beside_training_begin_as_late_as_they_can)
{
    for (int64_t every = 4; every <= 40; every++)
        for (int64_t takes = 1; takes <= every / 2 - 1; takes++) {
            simulation_t s = simulate(every, 1, 4000, 0, true, 0, takes, takes);
            ck_assert_int_eq(s.n_waits, 0);
            ck_assert_int_le(s.n_begun, 2 + 4000 / (every - takes - 1));
        }
}
END_TEST

START_TEST(a_save_that_takes_longer_than_allowed_is_waited_for)
{
    simulation_t s = simulate(20, 1, 4000, 0, true, 0, 100, 100);
    ck_assert_int_eq(s.most_lost, 20);
    ck_assert_int_gt(s.n_waits, 0);
}
END_TEST

START_TEST(nothing_is_saved_in_memory_unless_asked_for)
{
    ck_assert_int_eq(simulate(0, 1, 500, 7, true, 1, 1, 20).n_begun, 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("memory schedule");
    TCase *c = tcase_create("steps lost");
    tcase_add_test(c, never_are_more_steps_lost_than_allowed);
    tcase_add_test(c, saves_that_are_waited_for_are_as_rare_as_allowed);
    tcase_add_test(c, saves_beside_training_begin_as_late_as_they_can);
    tcase_add_test(c, a_save_that_takes_longer_than_allowed_is_waited_for);
    tcase_add_test(c, nothing_is_saved_in_memory_unless_asked_for);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
