/* own_muon.h - Muon, and AdamW for what is no hidden matrix, as a caller's own optimizer that sees matrices whole. So
 * what holds for libzero's own Muon must hold for it. Orthogonalizes in double precision. */
#ifndef TEST_OWN_MUON_H
#define TEST_OWN_MUON_H

#include <math.h>

#include "tests/mpi/expect.h"
#include "tests/unit/optimizer/muon_fp64.h"
#include "zero.h"

typedef struct own_muon {
    const zero_config_t *config;
    const float *scales; /* by tensor: of a matrix's step */
} own_muon_t;

static inline zero_status_t own_muon_prepare(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    const double momentum = (double)((const own_muon_t *)user)->config->muon_momentum;
    (void)stream;
    CHECK(update->direction && update->weight, "tensor %d: nothing to prepare", update->tensor);
    for (size_t i = 0; i < update->n_elems && !*update->skip; i++) {
        const double g = (double)update->grad[i] * (double)*update->grad_scale;
        const double m = (double)update->m[i] + (1.0 - momentum) * (g - (double)update->m[i]);
        update->m[i] = (float)m;
        update->direction[i] = (float)(g + momentum * (m - g));
    }
    return ZERO_OK;
}

static inline zero_status_t own_muon_whole(void *user, const zero_own_whole_t *whole, zero_stream_t stream)
{
    const size_t n = (size_t)(whole->rows * whole->cols);
    (void)stream;
    double *x = malloc(n * sizeof *x);
    CHECK(x, "no memory for %zu elements", n);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)whole->direction[i];
    muon_fp64_orthogonalize(x, (size_t)whole->rows, (size_t)whole->cols,
                            ((const own_muon_t *)user)->config->muon_steps);
    for (size_t i = 0; i < n && !*whole->skip; i++)
        whole->direction[i] = (float)x[i];
    free(x);
    return ZERO_OK;
}

static inline zero_status_t own_muon_update(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    const own_muon_t *own = user;
    const zero_config_t *c = own->config;
    const double b1 = (double)c->beta1, b2 = (double)c->beta2, t = (double)*update->step, lr = (double)update->lr;
    const double scale = (double)own->scales[update->tensor];
    (void)stream;
    CHECK((update->direction != NULL) == (scale != 0.0), "tensor %d: direction", update->tensor);
    for (size_t i = 0; i < update->n_elems && !*update->skip; i++) {
        const double g = (double)update->grad[i] * (double)*update->grad_scale, w = (double)update->weight[i];
        if (update->direction) {
            update->weight[i] =
                (float)(w * (1.0 - lr * (double)update->decay) - lr * scale * (double)update->direction[i]);
            continue;
        }
        const double m = b1 * (double)update->m[i] + (1.0 - b1) * g, v = b2 * (double)update->v[i] + (1.0 - b2) * g * g;
        update->m[i] = (float)m;
        update->v[i] = (float)v;
        update->weight[i] =
            (float)(w - lr * (m / (1.0 - pow(b1, t))) / (sqrt(v / (1.0 - pow(b2, t))) + (double)c->eps));
    }
    return ZERO_OK;
}

#endif
