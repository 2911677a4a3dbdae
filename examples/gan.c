/* gan.c - two models, two engines: a generator learns to make points that a discriminator takes for real ones.
 *
 *     mpirun -np 3 build/examples/gan 2        three ranks at stage 2; without the 2, at stage 3
 *
 * In each step the discriminator learns first, from real points and from what the generator makes in an eval pass. Then
 * the generator learns: its train pass stays open while the discriminator, in ZERO_PASS_INPUT_GRAD, computes the
 * gradient of its input, and none of its own. Both engines use one communicator, and each has a learning rate of its
 * own.
 */
#include "zero.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SAMPLES = 12, N_STEPS = 40, MAX_WIDTH = 8, N_LAYERS = 2 };

/* A network of two layers: tanh between them, and what the last one makes as it is. */
typedef struct network {
    int widths[N_LAYERS + 1];
    zero_engine_t *engine;
    zero_unit_t layers[N_LAYERS];
    zero_tensor_t w[N_LAYERS], b[N_LAYERS];                                                /* [out][in], [out] */
    float a[N_LAYERS + 1][N_SAMPLES][MAX_WIDTH], grad[N_LAYERS + 1][N_SAMPLES][MAX_WIDTH]; /* of each layer's input */
} network_t;

static zero_comm_t *comm;
static network_t g = {.widths = {3, 6, 2}}, d = {.widths = {2, 8, 1}};
static int rank, stride;

static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

/* A number from -1 to 1. */
static float number(int which, int i)
{
    return (float)((which * 7919 + i * 104729 + i * i % 8191 * 31) % 2003) / 1001.0f - 1.0f;
}

static zero_status_t fill(void *user, const zero_chunk_t *chunk)
{
    const int *first_number = user;
    for (size_t e = 0; e < chunk->n_elems; e++)
        chunk->master[e] = 0.6f * number(*first_number + chunk->tensor, (int)(chunk->first + e));
    return ZERO_OK;
}

static void create(network_t *net, zero_device_t *device, int stage, int micro_steps, int first_number)
{
    zero_model_t *model;
    zero_config_t config = zero_config_default();
    check(zero_model_create(&model));
    for (int l = 0; l < N_LAYERS; l++) {
        char name[2][16];
        snprintf(name[0], sizeof name[0], "%d.weight", l);
        snprintf(name[1], sizeof name[1], "%d.bias", l);
        const zero_tensor_desc_t w = {.name = name[0], .n_dims = 2, .shape = {net->widths[l + 1], net->widths[l]}};
        const zero_tensor_desc_t b = {.name = name[1], .n_dims = 1, .shape = {net->widths[l + 1]}};
        check(zero_model_add_unit(model, name[0], &net->layers[l]));
        check(zero_model_add_tensor(model, net->layers[l], &w, &net->w[l]));
        check(zero_model_add_tensor(model, net->layers[l], &b, &net->b[l]));
    }
    config.stage = stage;
    config.dtype = ZERO_FP32;
    config.micro_steps = micro_steps;
    check(zero_engine_create(comm, device, model, &config, &net->engine));
    check(zero_set_state(net->engine, false, fill, &first_number));
    zero_model_destroy(model);
}

/* ---- a pass, over this rank's samples ---- */

static void forward(network_t *net, zero_pass_t pass)
{
    check(zero_begin(net->engine, pass, NULL));
    for (int l = 0; l < N_LAYERS; l++) {
        const int n_in = net->widths[l], n_out = net->widths[l + 1];
        check(zero_acquire(net->engine, net->layers[l], NULL));
        const float *w = zero_param(net->engine, net->w[l]), *b = zero_param(net->engine, net->b[l]);
        for (int s = rank; s < N_SAMPLES; s += stride)
            for (int o = 0; o < n_out; o++) {
                float sum = b[o];
                for (int i = 0; i < n_in; i++)
                    sum += w[o * n_in + i] * net->a[l][s][i];
                net->a[l + 1][s][o] = l < N_LAYERS - 1 ? tanhf(sum) : sum;
            }
        check(zero_release(net->engine, net->layers[l], NULL));
    }
}

/* Returns where to add a gradient, which is zero then; NULL if the pass has none. */
static float *cleared(const network_t *net, zero_tensor_t tensor, int n_elems)
{
    const zero_grad_t grad = zero_grad(net->engine, tensor);
    if (grad.data && !grad.accumulate)
        memset(grad.data, 0, (size_t)n_elems * sizeof(float));
    return grad.data;
}

/* grad[N_LAYERS] is set; sets grad[0], of the network's input. */
static void backward(network_t *net)
{
    for (int l = N_LAYERS - 1; l >= 0; l--) {
        const int n_in = net->widths[l], n_out = net->widths[l + 1];
        check(zero_acquire(net->engine, net->layers[l], NULL));
        const float *w = zero_param(net->engine, net->w[l]);
        float *grad_w = cleared(net, net->w[l], n_in * n_out), *grad_b = cleared(net, net->b[l], n_out);
        for (int s = rank; s < N_SAMPLES; s += stride) {
            memset(net->grad[l][s], 0, sizeof net->grad[l][s]);
            for (int o = 0; o < n_out; o++) {
                const float y = net->a[l + 1][s][o];
                const float dz = net->grad[l + 1][s][o] * (l < N_LAYERS - 1 ? 1.0f - y * y : 1.0f);
                for (int i = 0; i < n_in; i++) {
                    net->grad[l][s][i] += w[o * n_in + i] * dz;
                    if (grad_w)
                        grad_w[o * n_in + i] += dz * net->a[l][s][i];
                }
                if (grad_b)
                    grad_b[o] += dz;
            }
        }
        check(zero_grad_ready(net->engine, net->layers[l], NULL));
    }
}

/* ---- a step ---- */

/* Returns this rank's share of the loss, -log of the probability that the discriminator gives to the answer `real`, and
 * sets its gradient. */
static double judge(float is_real)
{
    double loss = 0.0;
    for (int s = rank; s < N_SAMPLES; s += stride) {
        const float z = d.a[N_LAYERS][s][0];
        loss += (double)log1pf(expf(is_real != 0.0f ? -z : z)) / N_SAMPLES;
        d.grad[N_LAYERS][s][0] = (1.0f / (1.0f + expf(-z)) - is_real) / N_SAMPLES;
    }
    return loss;
}

/* The discriminator's input: points of a line, or what the generator has made. */
static void show(int step, const float made[][MAX_WIDTH])
{
    for (int s = rank; s < N_SAMPLES; s += stride) {
        const float t = number(100 + step, s);
        d.a[0][s][0] = made ? made[s][0] : 0.5f + 0.4f * t;
        d.a[0][s][1] = made ? made[s][1] : 0.2f - 0.3f * t;
    }
}

static zero_step_result_t finish(network_t *net, float lr, double loss)
{
    zero_step_result_t result;
    check(zero_step(net->engine, lr, &loss, NULL));
    check(zero_step_wait(net->engine, &result));
    return result;
}

static zero_step_result_t train_discriminator(int step)
{
    forward(&g, ZERO_PASS_EVAL);
    show(step, g.a[N_LAYERS]);
    forward(&d, ZERO_PASS_TRAIN);
    double loss = judge(0.0f);
    backward(&d);
    show(step, NULL);
    forward(&d, ZERO_PASS_TRAIN);
    loss += judge(1.0f);
    backward(&d);
    return finish(&d, 0.02f, loss);
}

static zero_step_result_t train_generator(int step)
{
    forward(&g, ZERO_PASS_TRAIN);
    show(step, g.a[N_LAYERS]);
    forward(&d, ZERO_PASS_INPUT_GRAD);
    const double loss = judge(1.0f);
    backward(&d);
    memcpy(g.grad[N_LAYERS], d.grad[0], sizeof d.grad[0]);
    backward(&g);
    return finish(&g, 0.01f, loss);
}

int main(int argc, char **argv)
{
    zero_device_t *device;
    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(ZERO_DEVICE_CPU, comm, &device)); /* the loops above are plain C */
    rank = zero_comm_rank(comm);
    stride = zero_comm_size(comm);
    create(&g, device, argc > 1 ? atoi(argv[1]) : 3, 1, 10);
    create(&d, device, argc > 1 ? atoi(argv[1]) : 3, 2, 20); /* points that are made, and real ones */

    for (int step = 1; step <= N_STEPS; step++) {
        for (int s = rank; s < N_SAMPLES; s += stride)
            for (int i = 0; i < g.widths[0]; i++)
                g.a[0][s][i] = number(500 + step, s * g.widths[0] + i);
        const zero_step_result_t judged = train_discriminator(step), made = train_generator(step);
        if (rank == 0)
            printf("step %d discriminator %.9g generator %.9g\n", step, (double)judged.loss, (double)made.loss);
    }

    zero_engine_destroy(g.engine);
    zero_engine_destroy(d.engine);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
