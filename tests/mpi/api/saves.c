/* saves.c - calls of api_random on checkpoints, the communicator and the device. */
#include <math.h>
#include <string.h>

#include "tests/mpi/api/calls.h"

/* ---- saves and checkpoints ---- */

/* A failure on rank 0 alone is ERROR_PEER on the others. */
static statuses_t on_rank_0(statuses_t status)
{
    return record.rank == 0 ? status : MAY(ERROR_PEER);
}

void save_prepare(session_t *s)
{
    int how = any(6);
    bool wrong = how <= 1;
    statuses_t allowed = expected(wrong, false);
    if (!wrong && s->save)
        allowed = on_rank_0(MAY(ERROR_IO));
    if (how == 2)
        allowed = on_rank_0(MAY(ERROR_IO));
    note(CALL_save_prepare, "way %d", how);
    judge(CALL_save_prepare,
          zero_save_prepare(how == 0 ? NULL : s->comm, how == 1   ? NULL
                                                       : how == 2 ? "/proc/nowhere"
                                                                  : s->directory),
          allowed);
}

void save_begin(session_t *s)
{
    zero_save_t *save = NULL;
    int how = s->n_saves < MAX_SAVES ? any(12) : any(5);
    zero_save_options_t options = {.keep = how == 4 ? -1 : 0,
                                   .background = one_in(2),
                                   .config_json = "{}",
                                   .state_json = one_in(2) ? NULL : "{\"mine\": 1}",
                                   .max_file_bytes = one_in(2) ? 0 : 100};
    bool is_null = !s->engine || how == 0;
    bool wrong_order = !is_null && (!between_steps(s) || n_unwaited(s) > 0 || s->is_partial);
    statuses_t allowed = expected(is_null || how <= 4, wrong_order);
    if (allowed == MAY(OK) && (s->save || how == 5))
        allowed = on_rank_0(MAY(ERROR_IO));
    note(CALL_save_begin, "way %d, background %d", how, options.background);
    zero_status_t status = zero_save_begin(is_null ? NULL : s->engine,
                                           how == 1   ? NULL
                                           : how == 5 ? "/proc/nowhere"
                                                      : s->directory,
                                           how == 2 ? NULL : &options, how == 3 ? NULL : &save);
    judge_as(CALL_save_begin, status, allowed, s->is_partial);
    EXPECT((status == ZERO_OK) == (save != NULL), "an output is set only on ZERO_OK");
    if (status != ZERO_OK)
        return;
    s->save = save;
    s->n_saves++;
    s->saving = (kept_t){s->n_waited, s->adam_step, s->n_skipped_in_row};
}

void save_poll(session_t *s)
{
    bool done = false, is_null = !s->save || one_in(10), has_no_done = one_in(10);
    note(CALL_save_poll, "%d %d", is_null, has_no_done);
    judge(CALL_save_poll, zero_save_poll(is_null ? NULL : s->save, has_no_done ? NULL : &done),
          expected(is_null || has_no_done, false));
}

/* Also ends the engine, if that was destroyed before. */
void save_end(session_t *s)
{
    note(CALL_save_end, "%s", s->save ? "" : "NULL");
    judge(CALL_save_end, zero_save_end(s->save), MAY(OK));
    if (!s->save)
        return;
    s->save = NULL;
    s->saves_another = false;
    s->has_saved = true;
    s->saved = s->saving;
}

static void checkpoint_close(session_t *s)
{
    zero_checkpoint_close(s->checkpoint);
    s->checkpoint = NULL;
}

void checkpoint_open(session_t *s)
{
    zero_checkpoint_t *checkpoint = NULL;
    int how = any(8);
    if (s->checkpoint)
        checkpoint_close(s);
    statuses_t allowed = expected(how <= 2, false);
    if (how > 2 && (how == 3 || !s->has_saved))
        allowed = MAY(ERROR_USAGE);
    note(CALL_checkpoint_open, "way %d", how);
    zero_status_t status = zero_checkpoint_open(how == 0 ? NULL : s->comm,
                                                how == 1   ? NULL
                                                : how == 3 ? "/nowhere"
                                                           : s->directory,
                                                how == 2 ? NULL : &checkpoint);
    judge(CALL_checkpoint_open, status, allowed);
    EXPECT((status == ZERO_OK) == (checkpoint != NULL), "an output is set only on ZERO_OK");
    if (status != ZERO_OK)
        return;
    s->checkpoint = checkpoint;
    s->in_checkpoint = s->saved;
    EXPECT(zero_checkpoint_step(checkpoint) == s->saved.step, "step %llu",
           (unsigned long long)zero_checkpoint_step(checkpoint));
    EXPECT(strstr(zero_checkpoint_path(checkpoint), s->directory) && zero_checkpoint_state(checkpoint)[0] == '{',
           "text");
}

void load(session_t *s)
{
    bool is_null = !s->engine || one_in(10), wrong_order = !is_null && s->started;
    note(CALL_load, "%d %d", is_null, s->checkpoint != NULL);
    zero_status_t status = zero_load(is_null ? NULL : s->engine, s->checkpoint);
    if (judge(CALL_load, status, expected(is_null || !s->checkpoint, wrong_order)) != ZERO_OK)
        return;
    s->is_partial = false;
    s->n_steps = s->n_waited = s->in_checkpoint.step;
    s->adam_step = s->in_checkpoint.adam_step;
    s->n_skipped_in_row = s->in_checkpoint.n_skipped_in_row;
}

/* ---- communicator and device ---- */

void communicate(session_t *s)
{
    double values[3] = {1.0, 2.0, (double)record.rank};
    int how = any(8), n = record.n_ranks;
    switch (any(4)) {
    case 0:
        note(CALL_comm_sum, "way %d", how);
        if (judge(CALL_comm_sum, zero_comm_sum(how == 0 ? NULL : s->comm, how == 1 ? NULL : values, 3),
                  expected(how <= 1, false)) == ZERO_OK)
            EXPECT(values[0] == n && values[1] == 2.0 * n && values[2] == 0.5 * n * (n - 1), "a sum");
        break;
    case 1:
        note(CALL_comm_broadcast, "way %d", how);
        if (judge(CALL_comm_broadcast,
                  zero_comm_broadcast(how == 0 ? NULL : s->comm, how == 1 ? NULL : values, sizeof values,
                                      how == 2   ? -1
                                      : how == 3 ? n
                                                 : n - 1),
                  expected(how <= 3, false)) == ZERO_OK)
            EXPECT(values[2] == n - 1, "a broadcast");
        break;
    case 2:
        note(CALL_comm_barrier, "way %d", how);
        judge(CALL_comm_barrier, zero_comm_barrier(how == 0 ? NULL : s->comm), expected(how == 0, false));
        break;
    default:
        note(CALL_comm_agree, "way %d", how);
        if (how == 0)
            judge(CALL_comm_agree, zero_comm_agree(NULL, ZERO_OK), MAY(ERROR_ARGUMENT));
        else
            judge_as(CALL_comm_agree, zero_comm_agree(s->comm, how == 1 ? ZERO_ERROR_IO : ZERO_OK),
                     how == 1 ? MAY(ERROR_IO) : MAY(OK), true);
    }
}

void use_device(session_t *s)
{
    zero_stream_t stream = NULL;
    void *data = NULL;
    char bytes[2][16] = {"from here", "to there"};
    int how = s->device ? any(8) : 0;
    zero_device_t *device = how == 0 ? NULL : s->device;
    switch (any(4)) {
    case 0:
        note(CALL_device_synchronize, "way %d", how);
        judge(CALL_device_synchronize, zero_device_synchronize(device), expected(how == 0, false));
        break;
    case 1:
        note(CALL_device_copy, "way %d", how);
        judge(CALL_device_copy,
              zero_device_copy(device, how == 1 ? NULL : bytes[1], how == 2 ? NULL : bytes[0], 16, NULL),
              expected(how <= 2, false));
        EXPECT((strcmp(bytes[1], bytes[0]) == 0) == (how > 2), "a copy");
        break;
    case 2:
        note(CALL_host_alloc, "way %d", how);
        judge(CALL_host_alloc, zero_host_alloc(device, 100, how == 1 ? NULL : &data), expected(how <= 1, false));
        zero_host_free(s->device, data);
        break;
    default:
        note(CALL_stream_create, "way %d", how);
        judge(CALL_stream_create, zero_stream_create(device, how == 1 ? NULL : &stream), expected(how <= 1, false));
        zero_stream_destroy(s->device, stream);
    }
}
