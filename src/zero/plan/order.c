/* order.c - see order.h. */
#include "zero/plan/order.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

bool zero_order_needs(const zero_model_t *model, int position, zero_unit_t flat)
{
    zero_unit_t unit = zero_order_unit(position, model->n_units);
    for (int i = 0; i < zero_model_n_flats(model, unit); i++)
        if (zero_model_flat(model, unit, i) == flat)
            return true;
    return false;
}

/* INT_MAX: none of the positions begin, begin + 1 ... end - 1. */
static int first_use_between(const zero_model_t *model, int begin, int end, zero_unit_t flat)
{
    for (int position = begin; position < end; position++)
        if (zero_order_needs(model, position, flat))
            return position;
    return INT_MAX;
}

/* The users lie between the unit itself and the last of them: nobody else is asked, so that a step of many units looks
 * no longer for each. */
int zero_order_next_use(const zero_model_t *model, zero_pass_t pass, int from, zero_unit_t flat)
{
    int n_both = 2 * model->n_units, last_user = model->units[flat].last_user;
    int backward = n_both - 1 - last_user;
    int next = first_use_between(model, from > flat ? from : flat, last_user + 1, flat);
    if (next < INT_MAX || pass != ZERO_PASS_TRAIN)
        return next;
    return first_use_between(model, from > backward ? from : backward, n_both - flat, flat);
}

int zero_order_first_grad(const zero_model_t *model, zero_unit_t flat)
{
    return 2 * model->n_units - 1 - model->units[flat].last_user;
}

/* Adds the flats of the unit at `position` to their classes' counts, but for those that the window had before. */
static void count_new(const zero_model_t *model, const zero_layout_t *layout, int window_begin, int position,
                      int *resident)
{
    zero_unit_t unit = zero_order_unit(position, model->n_units);
    for (int i = 0; i < zero_model_n_flats(model, unit); i++) {
        zero_unit_t flat = zero_model_flat(model, unit, i);
        if (first_use_between(model, window_begin, position, flat) == INT_MAX)
            resident[layout->units[flat].slot_class]++;
    }
}

zero_status_t zero_order_param_slots(const zero_model_t *model, const zero_layout_t *layout, int prefetch, int *n_slots)
{
    int n_positions = zero_order_n_positions(ZERO_PASS_TRAIN, model->n_units);
    int n_ahead = prefetch < model->n_units ? prefetch : model->n_units;
    int *resident = calloc((size_t)layout->n_slot_classes, sizeof *resident);
    if (!resident)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to plan %d slot classes", layout->n_slot_classes);
    memset(n_slots, 0, (size_t)layout->n_slot_classes * sizeof *n_slots);
    for (int begin = 0; begin < n_positions; begin++) {
        memset(resident, 0, (size_t)layout->n_slot_classes * sizeof *resident);
        for (int position = begin; position <= begin + n_ahead && position < n_positions; position++)
            count_new(model, layout, begin, position, resident);
        for (int c = 0; c < layout->n_slot_classes; c++)
            n_slots[c] = resident[c] > n_slots[c] ? resident[c] : n_slots[c];
    }
    free(resident);
    return ZERO_OK;
}

void zero_order_grad_slots(const zero_model_t *model, const zero_layout_t *layout, int n_spare, int *n_slots)
{
    for (int c = 0; c < layout->n_slot_classes; c++) {
        int most = 0;
        for (int position = model->n_units; position < 2 * model->n_units; position++) {
            int in_use = 0;
            for (int u = 0; u < layout->n_units; u++) {
                int complete = 2 * model->n_units - 1 - u;
                in_use += layout->units[u].slot_class == c && zero_order_first_grad(model, u) <= position &&
                          position <= complete + n_spare;
            }
            most = in_use > most ? in_use : most;
        }
        n_slots[c] = most;
    }
}
