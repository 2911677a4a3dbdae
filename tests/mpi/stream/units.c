/* units.c - the toy model of stream_cases, and what a unit's compute does in the stream: it reads parameters, writes
 * gradients by formula, and keeps bytes. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tests/mpi/settings.h"
#include "tests/mpi/stream/cases.h"
#include "tests/support/fp64/fp8_reference.h"

static void add(toy_t *toy, zero_unit_t unit, int64_t rows, int64_t columns)
{
    char name[32];
    zero_tensor_t tensor;
    int at = toy->n_of_unit[unit]++;
    snprintf(name, sizeof name, "%d.%d", unit, at);
    zero_tensor_desc_t desc = {
        .name = name, .n_dims = 2, .shape = {rows, columns}, .init = ZERO_INIT_NORMAL, .init_std = 0.5f, .decay = true};
    desc.fp8 = toy->has_fp8 && columns == WIDTH;
    desc.frozen = (toy->has_frozen && (unit == 2 || ((unit == 1 || unit == 3) && columns == WIDTH))) ||
                  (unit < 32 && (toy->whole >> unit & 1) != 0);
    OK(zero_model_add_tensor(toy->model, unit, &desc, &tensor));
    toy->of_unit[unit][at] = tensor;
    toy->in_fp8[tensor] = desc.fp8;
    toy->frozen[tensor] = desc.frozen;
    toy->n_elems[tensor] = (uint64_t)(rows * columns);
}

/* An embedding, twins, and a head that uses the embedding's table or, untied, has one of its own, and a norm before it,
 * as a Llama's. */
toy_t toy_create(const settings_t *s)
{
    const int n_blocks = s->blocks, rows = s->rows;
    const bool untied = s->untied;
    toy_t toy = {
        .n_units = n_blocks + 2, .has_fp8 = s->fp8 != NO_FP8, .has_frozen = s->frozen, .whole = (unsigned)s->whole};
    CHECK(n_blocks >= 0 && n_blocks <= MAX_BLOCKS, "%d blocks", n_blocks);
    OK(zero_model_create(&toy.model));
    for (zero_unit_t u = 0; u < toy.n_units; u++) {
        zero_unit_t unit;
        char name[32];
        snprintf(name, sizeof name, "unit %d", u);
        OK(zero_model_add_unit(toy.model, name, &unit));
        bool is_head = u == toy.n_units - 1;
        if (is_head && untied)
            add(&toy, unit, 64, 1);
        add(&toy, unit, u == 0 || (is_head && untied) ? rows : WIDTH, is_head && !untied ? 1 : WIDTH);
        if (u > 0 && !is_head)
            add(&toy, unit, 1, 7);
    }
    OK(zero_model_set_unshard_in_backward(toy.model, 0, s->unshard));
    if (untied)
        return toy;
    zero_unit_t head = toy.n_units - 1;
    toy.of_unit[head][toy.n_of_unit[head]++] = toy.of_unit[0][0];
    OK(zero_model_share_tensor(toy.model, head, toy.of_unit[0][0]));
    return toy;
}

/* A unit's backward may not read its parameters. */
bool is_read(const use_t *use)
{
    return use->param || use->fp8.data;
}

/* Of a matrix in fp8. */
static uint8_t byte_of(const use_t *use, uint64_t e)
{
    return use->fp8.data ? use->fp8.data[e] : fp8_byte((double)element_load(use->param, ZERO_BF16, e) * use->scale);
}

static float value_of(const compute_t *c, const use_t *use, uint64_t e)
{
    if (use->fp8.data)
        return (float)fp8_value(byte_of(use, e)) * use->fp8.scales->inverse;
    if (use->scale > 0.0)
        return (float)(fp8_value(byte_of(use, e)) / use->scale);
    return element_load(use->param, c->dtype, e);
}

static void find_scales(compute_t *c)
{
    for (int i = 0; i < c->n_uses; i++) {
        use_t *use = &c->uses[i];
        double absmax = 0.0;
        for (uint64_t e = 0; e < use->n_elems && use->scale > 0.0; e++)
            absmax = fmax(absmax, fabs((double)element_load(use->param, ZERO_BF16, e)));
        use->scale = use->scale > 0.0 ? fp8_scale(absmax) : 0.0;
    }
}

static double checksum(const compute_t *c)
{
    double sum = 0.0;
    for (int i = 0; i < c->n_uses; i++)
        for (uint64_t e = 0; e < c->uses[i].n_elems && is_read(&c->uses[i]); e++)
            sum += (double)value_of(c, &c->uses[i], e) * (double)(e % 13 + 1);
    return sum;
}

static void write_grads(const compute_t *c)
{
    for (int i = 0; i < c->n_uses; i++) {
        const use_t *use = &c->uses[i];
        for (uint64_t e = 0; e < use->n_elems && use->grad.data; e++) {
            float value = (is_read(use) ? 0.25f * value_of(c, use, e) : 0.0f) +
                          (float)((int)((e * 37 + (uint64_t)c->rank * 11 + (uint64_t)c->step * 5) % 31) - 15) / 64.0f;
            value *= c->loss_scale[0];
            element_store(use->grad.data, use->grad.dtype, e,
                          use->grad.accumulate ? element_load(use->grad.data, use->grad.dtype, e) + value : value);
        }
    }
    if (c->makes_nan)
        element_store(c->uses[0].grad.data, c->uses[0].grad.dtype, 0, NAN);
}

/* What this unit keeps in this pass. */
static unsigned char kept_byte(const compute_t *c, size_t i)
{
    return (unsigned char)(((size_t)c->kept_key * 97 + i * 31 + i / 251) % 255);
}

void keep(const compute_t *c)
{
    for (size_t i = 0; i < c->n_kept; i++)
        c->kept[i] = kept_byte(c, i);
}

static void check_kept(const compute_t *c)
{
    for (size_t i = 0; i < c->n_kept; i++)
        CHECK(c->kept[i] == kept_byte(c, i), "byte %zu of what was kept for backward has changed", i);
}

static void hash_use(const compute_t *c, const use_t *use)
{
    bool is_fp8 = use->fp8.data || use->scale > 0.0;
    for (uint64_t b = 0; b < use->n_elems * (is_fp8 ? 1 : zero_dtype_size(c->dtype)); b++)
        *c->hash =
            (*c->hash ^ (is_fp8 ? byte_of(use, b) : ((const unsigned char *)use->param)[b])) * UINT64_C(1099511628211);
}

void compute(void *args)
{
    compute_t *c = args;
    find_scales(c);
    double first = checksum(c);
    if (c->is_backward)
        check_kept(c);
    else
        keep(c);
    for (int i = 0; i < c->n_uses && c->is_backward; i++)
        for (uint64_t e = 0; e < c->uses[i].n_elems && c->uses[i].grad.data && !c->uses[i].grad.accumulate; e++)
            element_store(c->uses[i].grad.data, c->uses[i].grad.dtype, e, NAN);
    if (c->pause_us > 0)
        usleep(c->pause_us);
    check_kept(c);
    double last = checksum(c);
    CHECK(memcmp(&first, &last, sizeof first) == 0, "parameters changed while they were in use: %g, %g", first, last);
    if (c->hash)
        for (int i = 0; i < c->n_uses; i++)
            hash_use(c, &c->uses[i]);
    else if (!c->is_backward)
        *c->loss += first * 1e-3 / (double)(c->rank + 1);
    if (c->is_backward)
        write_grads(c);
}

void clear(void *args)
{
    **(double **)args = 0.0;
}
