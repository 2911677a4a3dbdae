/* test_layout.c - claims about layout and order: pure arithmetic, so checked over many random models. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/random_model.h"
#include "tests/support/support.h"
#include "zero/plan/layout.h"
#include "zero/plan/order.h"
#include "zero/plan/plan.h"

#define N_RANDOM_MODELS 400

START_TEST(every_element_has_one_owner_and_no_tensors_overlap)
{
    uint64_t seed = 1;
    for (int i = 0; i < N_RANDOM_MODELS; i++) {
        zero_model_t *model = random_model(&seed);
        int n_ranks = 1 + (int)(support_random(&seed) % 13);
        zero_layout_t layout;
        ck_assert_int_eq(zero_layout_create(model, n_ranks, &layout), ZERO_OK);
        uint64_t flats = 0, shards = 0;
        for (int u = 0; u < model->n_units; u++) {
            const zero_unit_layout_t *unit = &layout.units[u];
            ck_assert_uint_eq(unit->flat_elems, unit->shard_elems * (uint64_t)n_ranks);
            ck_assert_uint_eq(unit->shard_elems % ZERO_ALIGN_ELEMS, 0);
            ck_assert_uint_eq(unit->flat_offset, flats);
            ck_assert_uint_eq(unit->shard_offset, shards);
            flats += unit->flat_elems;
            shards += unit->shard_elems;
            /* The elements of each tensor, seen shard by shard, are each of its elements once, in order. */
            unsigned char *taken = calloc(unit->flat_elems + 1, 1);
            for (int t = 0; t < model->n_tensors; t++) {
                if (model->tensors[t].owner != u)
                    continue;
                if (model->tensors[t].packed)
                    ck_assert_uint_eq(layout.tensor_offsets[t],
                                      layout.tensor_offsets[t - 1] + model->tensors[t - 1].n_elems);
                else
                    ck_assert_uint_eq(layout.tensor_offsets[t] % ZERO_ALIGN_ELEMS, 0);
                uint64_t seen = 0;
                for (int r = 0; r < n_ranks; r++) {
                    uint64_t begin = (uint64_t)r * unit->shard_elems;
                    zero_span_t span = zero_layout_span(&layout, model, t, begin, begin + unit->shard_elems);
                    if (span.n_elems == 0)
                        continue;
                    ck_assert_uint_eq(span.first, seen);
                    ck_assert_uint_eq(span.flat_offset, layout.tensor_offsets[t] + seen);
                    ck_assert(span.flat_offset >= begin &&
                              span.flat_offset + span.n_elems <= begin + unit->shard_elems);
                    for (uint64_t e = 0; e < span.n_elems; e++)
                        ck_assert_int_eq(taken[span.flat_offset + e]++, 0);
                    seen += span.n_elems;
                }
                ck_assert_uint_eq(seen, model->tensors[t].n_elems);
            }
            free(taken);
        }
        ck_assert_uint_eq(layout.total_flat_elems, flats);
        ck_assert_uint_eq(layout.total_shard_elems, shards);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
}
END_TEST

/* Sets a byte for each element of a buffer that the unit's tensors occupy. */
static void occupy(const zero_model_t *model, const zero_layout_t *layout, zero_unit_t unit, unsigned char *buffer)
{
    for (int t = 0; t < model->n_tensors; t++)
        if (model->tensors[t].owner == unit)
            memset(buffer + layout->tensor_offsets[t], 1, model->tensors[t].n_elems);
}

/* Element by element: of two units of a class, neither writes where the other has padding. Twins are always in one
 * class. */
START_TEST(units_of_a_buffer_class_keep_each_others_padding)
{
    uint64_t seed = 2;
    int n_unlike = 0;
    for (int i = 0; i < N_RANDOM_MODELS; i++) {
        zero_model_t *model = random_model_of(&seed, i % 2 == 1);
        zero_layout_t layout;
        ck_assert_int_eq(zero_layout_create(model, 3, &layout), ZERO_OK);
        for (int a = 0; a < model->n_units; a++)
            for (int b = 0; b < model->n_units; b++) {
                const zero_unit_layout_t *units[2] = {&layout.units[a], &layout.units[b]};
                uint64_t n = zero_layout_buffer_elems(&layout, units[0]->buffer_class);
                uint64_t both =
                    units[0]->flat_elems < units[1]->flat_elems ? units[0]->flat_elems : units[1]->flat_elems;
                ck_assert_uint_ge(n, units[0]->flat_elems);
                unsigned char *buffers[2] = {calloc(n + units[1]->flat_elems + 1, 1),
                                             calloc(n + units[1]->flat_elems + 1, 1)};
                occupy(model, &layout, a, buffers[0]);
                occupy(model, &layout, b, buffers[1]);
                bool same = memcmp(buffers[0], buffers[1], both) == 0;
                if (units[0]->buffer_class == units[1]->buffer_class) {
                    ck_assert(same);
                    ck_assert_uint_le(n, units[1]->flat_elems + units[1]->flat_elems / 16);
                    n_unlike += units[0]->flat_elems != units[1]->flat_elems;
                } else {
                    ck_assert(!same || units[0]->flat_elems != units[1]->flat_elems);
                }
                free(buffers[0]);
                free(buffers[1]);
            }
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
    ck_assert_int_gt(n_unlike, 0); /* some classes were of unlike units */
}
END_TEST

static bool take_turns(const zero_model_t *model, const zero_layout_t *layout, zero_unit_t a, zero_unit_t b)
{
    uint64_t n[2] = {layout->units[a].flat_elems, layout->units[b].flat_elems};
    uint64_t both = n[0] < n[1] ? n[0] : n[1], most = n[0] < n[1] ? n[1] : n[0];
    unsigned char *buffers[2] = {calloc(most + 1, 1), calloc(most + 1, 1)};
    occupy(model, layout, a, buffers[0]);
    occupy(model, layout, b, buffers[1]);
    bool same = memcmp(buffers[0], buffers[1], both) == 0;
    free(buffers[0]);
    free(buffers[1]);
    return same && most - both <= both / 16;
}

/* Compares all pairs, which would take too long for many units. */
START_TEST(a_unit_joins_the_first_buffer_class_that_it_can_share)
{
    uint64_t seed = 12;
    int most_classes = 0;
    for (int i = 0; i < N_RANDOM_MODELS; i++) {
        zero_model_t *model = random_model_of(&seed, i % 2 == 1);
        zero_layout_t layout;
        int class_of[64], n_classes = 0;
        ck_assert_int_eq(zero_layout_create(model, 1 + i % 5, &layout), ZERO_OK);
        for (int unit = 0; unit < model->n_units; unit++) {
            int c = 0, other = 0;
            for (; c < n_classes && other < unit; c += other < unit)
                for (other = 0; other < unit; other++)
                    if (class_of[other] == c && !take_turns(model, &layout, other, unit))
                        break;
            class_of[unit] = c;
            n_classes += c == n_classes;
            ck_assert_int_eq(layout.units[unit].buffer_class, c);
        }
        ck_assert_int_eq(layout.n_buffer_classes, n_classes);
        most_classes = n_classes > most_classes ? n_classes : most_classes;
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
    ck_assert_int_gt(most_classes, 3);
}
END_TEST

/* Llama's table and head: with sizes that divide they make one class, whose one buffer serves both; otherwise padding
 * keeps them apart. */
START_TEST(an_embedding_and_a_head_take_turns)
{
    static const struct {
        int n_ranks;
        int64_t rows;
        bool together;
    } cases[] = {{2, 512, true}, {8, 512, true}, {3, 384, true}, {3, 512, false}, {8, 513, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int n_blocks = 4;
        zero_model_t *model;
        ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
        for (int u = 0; u < n_blocks + 2; u++) {
            char name[2][32];
            zero_unit_t unit;
            zero_tensor_t tensor;
            snprintf(name[0], sizeof name[0], "unit %d", u);
            snprintf(name[1], sizeof name[1], "norm %d", u);
            ck_assert_int_eq(zero_model_add_unit(model, name[0], &unit), ZERO_OK);
            zero_tensor_desc_t norm = {.name = name[1], .n_dims = 1, .shape = {512}};
            bool is_block = u > 0 && u <= n_blocks;
            zero_tensor_desc_t matrix = {.name = name[0], .n_dims = 2, .shape = {is_block ? 200 : cases[i].rows, 128}};
            if (u > 0)
                ck_assert_int_eq(zero_model_add_tensor(model, unit, &norm, &tensor), ZERO_OK);
            ck_assert_int_eq(zero_model_add_tensor(model, unit, &matrix, &tensor), ZERO_OK);
        }
        zero_layout_t layout;
        ck_assert_int_eq(zero_layout_create(model, cases[i].n_ranks, &layout), ZERO_OK);
        ck_assert_msg((layout.units[0].buffer_class == layout.units[n_blocks + 1].buffer_class) == cases[i].together,
                      "%d ranks, %d rows", cases[i].n_ranks, (int)cases[i].rows);
        int n_buffers[3] = {0};
        zero_order_unsharded_grads(model, &layout, 2, n_buffers);
        ck_assert_int_eq(n_buffers[layout.units[0].buffer_class], 1);
        ck_assert_int_eq(n_buffers[layout.units[1].buffer_class], 3);
        ck_assert_int_eq(zero_order_unsharded_params(model, &layout, 0, 1, 0, n_buffers), ZERO_OK);
        ck_assert_int_eq(n_buffers[layout.units[0].buffer_class], 1);
        ck_assert_int_eq(n_buffers[layout.units[1].buffer_class], 2);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
}
END_TEST

/* Freezes a third of the units as a whole. */
static void freeze_some(zero_model_t *model, uint64_t *seed)
{
    for (zero_unit_t unit = 0; unit < model->n_units; unit++) {
        const bool frozen = support_random(seed) % 3 == 0;
        for (zero_tensor_t t = 0; t < model->n_tensors; t++)
            if (model->tensors[t].owner == unit)
                model->tensors[t].frozen = frozen;
    }
}

/* Returns how many buffers a class has in use at a position of backward. A unit's is taken at its first gradient and
 * returned when n_spare reductions have begun behind its own. */
static int buffers_in_use(const zero_model_t *model, const zero_layout_t *layout, int c, int position, int n_spare)
{
    int n = 0;
    for (int flat = 0; flat < model->n_units; flat++) {
        bool is_taken = false;
        int n_behind = 0, own = 2 * model->n_units - 1 - flat;
        for (int p = model->n_units; p <= position; p++)
            is_taken |= zero_order_uses(model, p, flat);
        for (int p = own + 1; p < position; p++)
            n_behind += layout->units[zero_order_unit(p, model->n_units)].shard_elems > 0;
        n += layout->units[flat].buffer_class == c && layout->units[flat].shard_elems > 0 && is_taken &&
             (position <= own || n_behind < n_spare);
    }
    return n;
}

/* With frozen units between others, too: these take none, and what is between two reductions does not count. */
START_TEST(gradient_buffers_are_as_many_as_backward_needs)
{
    uint64_t seed = 6;
    for (int i = 0; i < N_RANDOM_MODELS; i++) {
        zero_model_t *model = random_model(&seed);
        const int n_spare = (int)(support_random(&seed) % 4);
        zero_layout_t layout;
        if (i % 2 == 1)
            freeze_some(model, &seed);
        ck_assert_int_eq(zero_layout_create(model, 2, &layout), ZERO_OK);
        int *n_buffers = calloc((size_t)layout.n_buffer_classes, sizeof *n_buffers);
        ck_assert_int_eq(zero_order_unsharded_grads(model, &layout, n_spare, n_buffers), ZERO_OK);
        for (int c = 0; c < layout.n_buffer_classes; c++) {
            int most = 0;
            for (int position = model->n_units; position < 2 * model->n_units; position++) {
                const int n = buffers_in_use(model, &layout, c, position, n_spare);
                most = n > most ? n : most;
            }
            ck_assert_int_eq(n_buffers[c], most);
        }
        free(n_buffers);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
}
END_TEST

START_TEST(parameter_buffers_hold_every_prefetch_and_not_one_more)
{
    uint64_t seed = 3;
    for (int i = 0; i < N_RANDOM_MODELS; i++) {
        zero_model_t *model = random_model(&seed);
        int prefetch = (int)(support_random(&seed) % 12);
        if (prefetch == 11)
            prefetch = INT_MAX;
        zero_layout_t layout;
        ck_assert_int_eq(zero_layout_create(model, 2, &layout), ZERO_OK);
        int *n_buffers = calloc((size_t)layout.n_buffer_classes, sizeof *n_buffers);
        ck_assert_int_eq(zero_order_unsharded_params(model, &layout, 0, prefetch, 0, n_buffers), ZERO_OK);
        /* By brute force: which flats does each window of positions touch? */
        for (int c = 0; c < layout.n_buffer_classes; c++) {
            int most = 0;
            for (int begin = 0; begin < 2 * model->n_units; begin++) {
                int n = 0;
                for (int flat = 0; flat < model->n_units; flat++) {
                    bool touched = false;
                    for (int p = begin; p < 2 * model->n_units && p - begin <= prefetch && p - begin <= model->n_units;
                         p++)
                        touched |= zero_order_needs(model, p, flat);
                    n += touched && layout.units[flat].buffer_class == c;
                }
                most = n > most ? n : most;
            }
            ck_assert_int_eq(n_buffers[c], most);
        }
        free(n_buffers);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
}
END_TEST

START_TEST(a_unit_that_is_sharded_in_backward_is_needed_in_forward_and_by_those_that_share_it)
{
    zero_model_t *model;
    zero_unit_t embed, block, head;
    zero_tensor_t table, norm;
    const zero_tensor_desc_t desc[] = {{.name = "table", .n_dims = 1, .shape = {8}},
                                       {.name = "norm", .n_dims = 1, .shape = {8}}};
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "embed", &embed), ZERO_OK);
    ck_assert_int_eq(zero_model_add_tensor(model, embed, &desc[0], &table), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "block", &block), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "head", &head), ZERO_OK);
    ck_assert_int_eq(zero_model_add_tensor(model, head, &desc[1], &norm), ZERO_OK);
    ck_assert_int_eq(zero_model_set_unshard_in_backward(model, embed, false), ZERO_OK);
    ck_assert_int_eq(zero_model_set_unshard_in_backward(model, 3, false), ZERO_ERROR_ARGUMENT);
    uint64_t untied = zero_model_hash(model);
    for (int position = 0; position < 6; position++)
        ck_assert_int_eq(zero_order_needs(model, position, embed), position == 0);
    ck_assert_int_eq(zero_order_next_use(model, ZERO_PASS_TRAIN, 1, embed), INT_MAX);
    ck_assert(zero_order_uses(model, 5, embed) && zero_order_first_flat(model, 5) == 1);
    ck_assert_int_eq(zero_model_share_tensor(model, head, table), ZERO_OK);
    for (int position = 0; position < 6; position++)
        ck_assert_int_eq(zero_order_needs(model, position, embed), position == 0 || position == 2 || position == 3);
    ck_assert_int_eq(zero_model_set_unshard_in_backward(model, embed, true), ZERO_OK);
    ck_assert(zero_order_needs(model, 5, embed) && zero_order_first_flat(model, 5) == 0);
    ck_assert(zero_model_hash(model) != untied);
    zero_model_destroy(model);
}
END_TEST

/* Gathers as parameters.c does, into an empty buffer or that of the unit that is needed last, and counts gathers of
 * every unit in backward. */
static void count_gathers(const zero_model_t *model, const zero_layout_t *layout, int prefetch, const int *n_buffers,
                          int *n_in_backward)
{
    zero_unsharded_t unsharded;
    int n_positions = 2 * model->n_units;
    ck_assert_int_eq(zero_unsharded_create(layout, n_buffers, layout->buffer_elems, 0, &unsharded), ZERO_OK);
    for (int position = 0; position < n_positions; position++)
        for (int ahead = position; ahead <= position + prefetch && ahead < n_positions; ahead++)
            for (int flat = 0; flat < model->n_units; flat++) {
                int c = layout->units[flat].buffer_class;
                if (!zero_order_needs(model, ahead, flat) || zero_unsharded_find(&unsharded, flat))
                    continue;
                zero_unsharded_buffer_t *buffer = zero_unsharded_empty(&unsharded, c);
                if (!buffer)
                    buffer = zero_unsharded_farthest(&unsharded, model, ZERO_PASS_TRAIN, position, c);
                ck_assert_ptr_nonnull(buffer);
                zero_unsharded_assign(&unsharded, buffer, flat);
                n_in_backward[flat] += ahead >= model->n_units;
            }
    zero_unsharded_destroy(&unsharded);
}

/* Returns a model of 1..9 units of two sizes, some of which are not read in backward. None shares another's tensors:
 * then it could be better to gather a kept unit again than the shared one. */
static zero_model_t *model_of_twins(uint64_t *seed)
{
    zero_model_t *model;
    zero_tensor_t tensor;
    zero_unit_t unit;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    int n_units = 1 + (int)(support_random(seed) % 9);
    for (int u = 0; u < n_units; u++) {
        char name[32];
        snprintf(name, sizeof name, "unit %d", u);
        zero_tensor_desc_t desc = {.name = name, .n_dims = 1, .shape = {support_random(seed) % 4 ? 512 : 4096}};
        ck_assert_int_eq(zero_model_add_unit(model, name, &unit), ZERO_OK);
        ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
        ck_assert_int_eq(zero_model_set_unshard_in_backward(model, unit, support_random(seed) % 4 > 0), ZERO_OK);
    }
    return model;
}

/* With one buffer less in any class that keep enlarges, one of those units is gathered again. */
START_TEST(the_last_units_stay_from_forward_to_backward_and_no_buffer_is_spare)
{
    uint64_t seed = 12;
    int n_enlarged = 0;
    for (int i = 0; i < N_RANDOM_MODELS; i++) {
        zero_model_t *model = model_of_twins(&seed);
        const int n_units = model->n_units, prefetch = (int)(support_random(&seed) % 4);
        int keep = (int)(support_random(&seed) % (uint64_t)(n_units + 2));
        zero_layout_t layout;
        ck_assert_int_eq(zero_layout_create(model, 2, &layout), ZERO_OK);
        int *least = calloc((size_t)layout.n_buffer_classes, sizeof *least);
        int *counts = calloc((size_t)layout.n_buffer_classes, sizeof *counts);
        ck_assert_int_eq(zero_order_unsharded_params(model, &layout, 0, prefetch, 0, least), ZERO_OK);
        ck_assert_int_eq(zero_order_unsharded_params(model, &layout, 0, prefetch, keep, counts), ZERO_OK);
        for (int c = -1; c < layout.n_buffer_classes; c++) {
            int n_gathers[9] = {0}, n_again = 0;
            if (c >= 0 && counts[c] == least[c])
                continue;
            counts[c >= 0 ? c : 0] -= c >= 0;
            count_gathers(model, &layout, prefetch, counts, n_gathers);
            counts[c >= 0 ? c : 0] += c >= 0;
            for (int position = n_units; position < 2 * n_units && position < n_units + keep; position++)
                for (int flat = 0; flat < n_units; flat++)
                    n_again += zero_order_needs(model, position, flat) && n_gathers[flat] > 0;
            ck_assert_msg((n_again > 0) == (c >= 0), "model %d, prefetch %d, keep %d of %d, class %d: %d", i, prefetch,
                          keep, n_units, c, n_again);
            n_enlarged += c >= 0;
        }
        free(counts);
        free(least);
        zero_layout_destroy(&layout);
        zero_model_destroy(model);
    }
    ck_assert_int_gt(n_enlarged, N_RANDOM_MODELS / 4);
}
END_TEST

START_TEST(the_order_is_forward_then_backward)
{
    for (int n = 1; n < 50; n++) {
        for (int p = 0; p < n; p++) {
            ck_assert_int_eq(zero_order_unit(p, n), p);
            ck_assert(!zero_order_is_backward(p, n));
            ck_assert_int_eq(zero_order_unit(n + p, n), n - 1 - p);
            ck_assert(zero_order_is_backward(n + p, n));
        }
        ck_assert_int_eq(zero_order_n_positions(ZERO_PASS_TRAIN, n), 2 * n);
        ck_assert_int_eq(zero_order_n_positions(ZERO_PASS_EVAL, n), n);
    }
}
END_TEST

START_TEST(the_next_use_is_the_first_position_that_needs_the_flat)
{
    uint64_t seed = 8;
    for (int i = 0; i < N_RANDOM_MODELS; i++) {
        zero_model_t *model = random_model(&seed);
        for (int flat = 0; flat < model->n_units; flat++)
            for (int pass = ZERO_PASS_TRAIN; pass <= ZERO_PASS_EVAL; pass++) {
                int next = INT_MAX;
                for (int p = zero_order_n_positions((zero_pass_t)pass, model->n_units) - 1; p >= 0; p--) {
                    next = zero_order_needs(model, p, flat) ? p : next;
                    ck_assert_int_eq(zero_order_next_use(model, (zero_pass_t)pass, p, flat), next);
                }
            }
        zero_model_destroy(model);
    }
}
END_TEST

START_TEST(sizes_that_overflow_are_refused)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "u", &unit), ZERO_OK);
    zero_tensor_desc_t desc = {.name = "t", .n_dims = 3, .shape = {INT64_C(1) << 32, INT64_C(1) << 32, 2}};
    ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_ERROR_OVERFLOW);
    desc.shape[0] = INT64_MAX;
    ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_ERROR_OVERFLOW);
    desc = (zero_tensor_desc_t){.name = "t", .n_dims = 1, .shape = {INT64_C(1) << 56}};
    ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
    desc = (zero_tensor_desc_t){.name = "one more", .n_dims = 1, .shape = {1}};
    ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_ERROR_OVERFLOW);
    zero_model_destroy(model);
}
END_TEST

START_TEST(bad_declarations_are_refused)
{
    zero_model_t *model;
    zero_unit_t a, b;
    zero_tensor_t in_a, in_b, other;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "a", &a), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "a", &b), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_model_add_unit(model, "", &b), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_model_add_unit(model, "b", &b), ZERO_OK);
    zero_tensor_desc_t desc = {.name = "x", .n_dims = 2, .shape = {3, 4}};
    ck_assert_int_eq(zero_model_add_tensor(model, a, &desc, &in_a), ZERO_OK);
    ck_assert_int_eq(zero_model_add_tensor(model, b, &desc, &in_b), ZERO_ERROR_ARGUMENT); /* the same name */
    desc.name = "y";
    ck_assert_int_eq(zero_model_add_tensor(model, 7, &desc, &other), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_model_add_tensor(model, b, &desc, &in_b), ZERO_OK);
    desc.name = "z";
    desc.shape[1] = 0;
    ck_assert_int_eq(zero_model_add_tensor(model, b, &desc, &other), ZERO_ERROR_ARGUMENT);
    desc.n_dims = ZERO_MAX_DIMS + 1;
    ck_assert_int_eq(zero_model_add_tensor(model, b, &desc, &other), ZERO_ERROR_ARGUMENT);
    desc = (zero_tensor_desc_t){.name = "z", .n_dims = 1, .shape = {1}, .init = ZERO_INIT_NORMAL, .init_std = NAN};
    ck_assert_int_eq(zero_model_add_tensor(model, b, &desc, &other), ZERO_ERROR_ARGUMENT);
    desc.init = (zero_init_t)3;
    ck_assert_int_eq(zero_model_add_tensor(model, b, &desc, &other), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_model_share_tensor(model, a, in_b), ZERO_ERROR_ARGUMENT); /* the owner is declared later */
    ck_assert_int_eq(zero_model_share_tensor(model, b, in_b), ZERO_ERROR_ARGUMENT); /* it is its own */
    ck_assert_int_eq(zero_model_share_tensor(model, b, in_a), ZERO_OK);
    char longest[ZERO_MAX_NAME + 1];
    memset(longest, 'n', ZERO_MAX_NAME);
    longest[ZERO_MAX_NAME] = 0;
    ck_assert_int_eq(zero_model_add_unit(model, longest, &other), ZERO_ERROR_ARGUMENT);
    longest[ZERO_MAX_NAME - 1] = 0;
    ck_assert_int_eq(zero_model_add_unit(model, longest, &other), ZERO_OK);
    zero_model_destroy(model);
}
END_TEST

START_TEST(equal_declarations_have_equal_hashes_and_any_change_shows)
{
    uint64_t seed = 4;
    for (int i = 0; i < 200; i++) {
        zero_model_t *model = random_model(&seed), *copy;
        ck_assert_int_eq(zero_model_copy(model, &copy), ZERO_OK);
        uint64_t hash = zero_model_hash(model);
        ck_assert_uint_eq(hash, zero_model_hash(copy));
        copy->tensors[0].shape[0]++;
        ck_assert_uint_ne(hash, zero_model_hash(copy));
        copy->tensors[0].shape[0]--;
        copy->tensors[0].decay = !copy->tensors[0].decay;
        ck_assert_uint_ne(hash, zero_model_hash(copy));
        copy->tensors[0].decay = !copy->tensors[0].decay;
        copy->tensors[0].fp8 = !copy->tensors[0].fp8;
        ck_assert_uint_ne(hash, zero_model_hash(copy));
        copy->tensors[0].fp8 = !copy->tensors[0].fp8;
        copy->units[0].name[0]++;
        ck_assert_uint_ne(hash, zero_model_hash(copy));
        zero_model_destroy(copy);
        zero_model_destroy(model);
    }
}
END_TEST

/* ---- many units ---- */

typedef enum kind { ALIKE, ALL_DIFFERENT, TIED, N_KINDS } kind_t;

static zero_model_t *large_model(kind_t kind, int n_units)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensors[2];
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    for (int u = 0; u < n_units; u++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d", u);
        ck_assert_int_eq(zero_model_add_unit(model, name, &unit), ZERO_OK);
        for (int t = 0; t < 2; t++) {
            snprintf(name, sizeof name, "model.layers.%d.weight %d", u, t);
            zero_tensor_desc_t desc = {.name = name, .n_dims = 1, .shape = {kind == ALL_DIFFERENT ? 7 * u + 1 : 100}};
            ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensors[t]), ZERO_OK);
        }
        if (kind == TIED && u > 0)
            ck_assert_int_eq(zero_model_share_tensor(model, unit, 0), ZERO_OK);
        ck_assert_int_eq(zero_model_add_unit(model, "model.layers.0", &unit), ZERO_ERROR_ARGUMENT);
    }
    return model;
}

static void say_nothing(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)level, (void)rank, (void)line;
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Declares a model and plans every stage: seconds of this process, the least of three. */
static double seconds_to_plan(kind_t kind, int n_units)
{
    double least = INFINITY;
    for (int i = 0; i < 3; i++) {
        double begin = cpu_seconds();
        zero_model_t *model = large_model(kind, n_units);
        for (int stage = 0; stage < 4; stage++)
            for (int prefetch = 1; prefetch < 100000; prefetch += 99990) {
                zero_config_t config = zero_config_default();
                zero_memory_t plan;
                config.stage = stage;
                config.prefetch = prefetch;
                ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 8, &plan), ZERO_OK);
            }
        zero_model_destroy(model);
        least = fmin(least, cpu_seconds() - begin);
    }
    return least;
}

/* Eight times the units take eight times as long, and somewhat more where caches end; quadratic time would be 64 times
 * as long. If all units differ, each is compared with one unit of every class, of which there are as many: that is
 * quadratic, but mostly compares two numbers. */
START_TEST(models_are_declared_and_planned_in_time_that_grows_with_them)
{
    zero_log_set(ZERO_LOG_ERROR, say_nothing, NULL);
    double few = seconds_to_plan((kind_t)_i, 1250), many = seconds_to_plan((kind_t)_i, 10000);
    printf("%d: 2500 tensors %.3f s, 20000 tensors %.3f s, %.1f times\n", _i, few, many, many / few);
    ck_assert_msg(many < (_i == ALL_DIFFERENT ? 100.0 : 24.0) * few, "%.4f s, %.4f s", few, many);
    ck_assert_msg(many < 15.0, "20,000 tensors take %.1f s", many); /* 0.9 s; with sanitizers on a busy machine 3.3 */
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("layout and order");
    TCase *tc = tcase_create("arithmetic");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, every_element_has_one_owner_and_no_tensors_overlap);
    tcase_add_test(tc, units_of_a_buffer_class_keep_each_others_padding);
    tcase_add_test(tc, a_unit_joins_the_first_buffer_class_that_it_can_share);
    tcase_add_test(tc, an_embedding_and_a_head_take_turns);
    tcase_add_test(tc, gradient_buffers_are_as_many_as_backward_needs);
    tcase_add_test(tc, parameter_buffers_hold_every_prefetch_and_not_one_more);
    tcase_add_test(tc, a_unit_that_is_sharded_in_backward_is_needed_in_forward_and_by_those_that_share_it);
    tcase_add_test(tc, the_last_units_stay_from_forward_to_backward_and_no_buffer_is_spare);
    tcase_add_test(tc, the_order_is_forward_then_backward);
    tcase_add_test(tc, the_next_use_is_the_first_position_that_needs_the_flat);
    tcase_add_test(tc, sizes_that_overflow_are_refused);
    tcase_add_test(tc, bad_declarations_are_refused);
    tcase_add_test(tc, equal_declarations_have_equal_hashes_and_any_change_shows);
    tcase_add_loop_test(tc, models_are_declared_and_planned_in_time_that_grows_with_them, 0, N_KINDS);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
