/* attention.c - trains an attention layer whose one sequence all ranks share (Ulysses, arXiv:2309.14509): each rank has
 * some tokens of it, and for attention some heads of all tokens. zero_all_to_all exchanges the two.
 *
 *     mpirun -np 4 build/examples/attention         prints the loss of some steps; also on 1, 2 or 3 ranks
 *
 * The layer is y = O W_o^T, O = causal attention of the heads of x W_q^T, x W_k^T and x W_v^T. It learns to copy the
 * token three positions back. N_TOKENS is no multiple of the ranks: parts differ by one token, and slices have room for
 * the largest.
 */
#include "zero.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 41, DIM = 24, N_HEADS = 12, HEAD = DIM / N_HEADS, MAX_RANKS = 12, N_STEPS = 120, LAG = 3 };

static zero_comm_t *comm;
static zero_engine_t *engine;
static zero_all_to_all_t *exchange;
static int n_ranks, rank, first, n; /* this rank's tokens: first .. first + n */
static int heads;                   /* and heads: rank * heads .. + heads */
static zero_tensor_t w[4];          /* W_q, W_k, W_v, W_o [DIM][DIM] */

/* Of this rank's tokens, and of all tokens for its heads. */
static float x[N_TOKENS][DIM], want[N_TOKENS][DIM], qkv[3][N_TOKENS][DIM], o[N_TOKENS][DIM], dy[N_TOKENS][DIM];
static float dqkv[3][N_TOKENS][DIM], d_o[N_TOKENS][DIM];
static float head_qkv[3][N_TOKENS][DIM], head_o[N_TOKENS][DIM], head_dqkv[3][N_TOKENS][DIM], head_d_o[N_TOKENS][DIM];
static float p[N_HEADS][N_TOKENS][N_TOKENS]; /* attention's probabilities */

static void check(zero_status_t status)
{
    if (status == ZERO_OK)
        return;
    if (comm)
        zero_comm_abort(comm, 1);
    exit(1);
}

static int begin_of(int r)
{
    return N_TOKENS * r / n_ranks;
}

/* A number from -1 to 1. */
static float number(int i)
{
    return (float)((i * 104729 + i * i % 8191 * 31) % 2003) / 1001.0f - 1.0f;
}

/* ---- tokens to heads, and back ---- */

#define SLICE_BYTES (3 * sizeof(float) * (size_t)((N_TOKENS + n_ranks - 1) / n_ranks) * (size_t)(heads * HEAD))

/* heads' rows of all tokens = the ranks' rows of all heads; n_arrays: q, k and v, or one */
static void to_heads(float (*all)[N_TOKENS][DIM], float (*mine)[N_TOKENS][DIM], int n_arrays)
{
    void *slices[MAX_RANKS];
    const void *received[MAX_RANKS];
    const size_t width = (size_t)(heads * HEAD);
    check(zero_all_to_all_slices(exchange, slices));
    for (int r = 0; r < n_ranks; r++)
        for (int a = 0; a < n_arrays; a++)
            for (int t = 0; t < n; t++)
                memcpy((float *)slices[r] + (size_t)(a * n + t) * width, &mine[a][t][(size_t)r * width],
                       width * sizeof(float));
    check(zero_all_to_all(exchange, SLICE_BYTES, received, NULL));
    for (int r = 0; r < n_ranks; r++)
        for (int a = 0, of_r = begin_of(r + 1) - begin_of(r); a < n_arrays; a++)
            for (int t = 0; t < of_r; t++)
                memcpy(all[a][begin_of(r) + t], (const float *)received[r] + (size_t)(a * of_r + t) * width,
                       width * sizeof(float));
}

static void to_tokens(float (*mine)[N_TOKENS][DIM], float (*all)[N_TOKENS][DIM], int n_arrays)
{
    void *slices[MAX_RANKS];
    const void *received[MAX_RANKS];
    const size_t width = (size_t)(heads * HEAD);
    check(zero_all_to_all_slices(exchange, slices));
    for (int r = 0; r < n_ranks; r++)
        for (int a = 0, of_r = begin_of(r + 1) - begin_of(r); a < n_arrays; a++)
            for (int t = 0; t < of_r; t++)
                memcpy((float *)slices[r] + (size_t)(a * of_r + t) * width, all[a][begin_of(r) + t],
                       width * sizeof(float));
    check(zero_all_to_all(exchange, SLICE_BYTES, received, NULL));
    for (int r = 0; r < n_ranks; r++)
        for (int a = 0; a < n_arrays; a++)
            for (int t = 0; t < n; t++)
                memcpy(&mine[a][t][(size_t)r * width], (const float *)received[r] + (size_t)(a * n + t) * width,
                       width * sizeof(float));
}

/* ---- attention of this rank's heads ---- */

static void attend(void)
{
    for (int h = 0; h < heads; h++)
        for (int t = 0; t < N_TOKENS; t++) {
            float sum = 0.0f, *out = &head_o[t][h * HEAD];
            for (int u = 0; u <= t; u++) {
                float score = 0.0f;
                for (int i = h * HEAD; i < (h + 1) * HEAD; i++)
                    score += head_qkv[0][t][i] * head_qkv[1][u][i];
                sum += p[h][t][u] = expf(score / sqrtf(HEAD));
            }
            memset(out, 0, HEAD * sizeof *out);
            for (int u = 0; u <= t; u++) {
                p[h][t][u] /= sum;
                for (int i = 0; i < HEAD; i++)
                    out[i] += p[h][t][u] * head_qkv[2][u][h * HEAD + i];
            }
        }
}

static void attend_backward(void)
{
    memset(head_dqkv, 0, sizeof head_dqkv);
    for (int h = 0; h < heads; h++)
        for (int t = 0; t < N_TOKENS; t++) {
            const int begin = h * HEAD;
            float total = 0.0f; /* the sum of p dp */
            for (int i = begin; i < begin + HEAD; i++)
                total += head_d_o[t][i] * head_o[t][i];
            for (int u = 0; u <= t; u++) {
                float dp = 0.0f;
                for (int i = begin; i < begin + HEAD; i++)
                    dp += head_d_o[t][i] * head_qkv[2][u][i];
                const float ds = p[h][t][u] * (dp - total) / sqrtf(HEAD);
                for (int i = begin; i < begin + HEAD; i++) {
                    head_dqkv[0][t][i] += ds * head_qkv[1][u][i];
                    head_dqkv[1][u][i] += ds * head_qkv[0][t][i];
                    head_dqkv[2][u][i] += p[h][t][u] * head_d_o[t][i];
                }
            }
        }
}

/* ---- linear layers of this rank's tokens ---- */

/* out = in W^T */
static void multiply(float (*out)[DIM], float (*in)[DIM], const float *weight)
{
    for (int t = 0; t < n; t++)
        for (int i = 0; i < DIM; i++) {
            out[t][i] = 0.0f;
            for (int k = 0; k < DIM; k++)
                out[t][i] += weight[i * DIM + k] * in[t][k];
        }
}

/* dW = dout^T in, and din = dout W unless it is NULL */
static void multiply_backward(float (*din)[DIM], float (*dout)[DIM], float (*in)[DIM], zero_tensor_t tensor)
{
    float *grad = zero_grad(engine, tensor).data; /* one micro-step, one use: overwritten */
    const float *weight = zero_param(engine, tensor);
    memset(grad, 0, sizeof(float) * DIM * DIM);
    for (int t = 0; t < n; t++) {
        if (din)
            memset(din[t], 0, sizeof din[t]);
        for (int i = 0; i < DIM; i++)
            for (int k = 0; k < DIM; k++) {
                grad[i * DIM + k] += dout[t][i] * in[t][k];
                if (din)
                    din[t][k] += dout[t][i] * weight[i * DIM + k];
            }
    }
}

/* Returns this rank's share of the loss: the mean square over the whole sequence. */
static double step(zero_step_result_t *result)
{
    double loss = 0.0;
    check(zero_begin(engine, ZERO_PASS_TRAIN, NULL));
    check(zero_acquire(engine, 0, NULL));
    for (int a = 0; a < 3; a++)
        multiply(qkv[a], x, zero_param(engine, w[a]));
    to_heads(head_qkv, qkv, 3);
    attend();
    to_tokens(&o, &head_o, 1);
    multiply(dy, o, zero_param(engine, w[3]));
    check(zero_release(engine, 0, NULL));
    for (int t = 0; t < n; t++)
        for (int i = 0; i < DIM; i++) {
            const float error = dy[t][i] - want[t][i];
            loss += (double)error * error / (N_TOKENS * DIM);
            dy[t][i] = 2.0f * error / (N_TOKENS * DIM);
        }
    check(zero_acquire(engine, 0, NULL));
    multiply_backward(d_o, dy, o, w[3]);
    to_heads(&head_d_o, &d_o, 1);
    attend_backward();
    to_tokens(dqkv, head_dqkv, 3);
    for (int a = 0; a < 3; a++)
        multiply_backward(NULL, dqkv[a], x, w[a]);
    check(zero_grad_ready(engine, 0, NULL));
    check(zero_step(engine, 0.01f, &loss, NULL));
    check(zero_step_wait(engine, result));
    return loss;
}

int main(void)
{
    static const char *const names[] = {"q", "k", "v", "o"};
    zero_device_t *device;
    zero_model_t *model;
    zero_unit_t unit;
    zero_memory_t user = {0};
    zero_config_t config = zero_config_default();
    check(zero_comm_create(ZERO_COMM_AUTO, &comm));
    check(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    n_ranks = zero_comm_size(comm);
    rank = zero_comm_rank(comm);
    if (n_ranks > MAX_RANKS || N_HEADS % n_ranks != 0) {
        if (rank == 0)
            fprintf(stderr, "attention: %d heads cannot be shared by %d ranks\n", N_HEADS, n_ranks);
        zero_comm_destroy(comm);
        return 2;
    }
    first = begin_of(rank);
    n = begin_of(rank + 1) - first;
    heads = N_HEADS / n_ranks;
    for (int t = 0; t < n; t++)
        for (int i = 0; i < DIM; i++) { /* a token, and in its last elements its position */
            const int at = first + t;
            x[t][i] = i < DIM / 2 ? number(at * DIM + i) : cosf((float)at * powf(0.6f, (float)(i - DIM / 2)));
            want[t][i] = at >= LAG && i < DIM / 2 ? number((at - LAG) * DIM + i) : 0.0f;
        }
    check(zero_model_create(&model));
    check(zero_model_add_unit(model, "attention", &unit));
    for (int a = 0; a < 4; a++) {
        const zero_tensor_desc_t desc = {
            .name = names[a], .n_dims = 2, .shape = {DIM, DIM}, .init = ZERO_INIT_NORMAL, .init_std = 0.3f};
        check(zero_model_add_tensor(model, unit, &desc, &w[a]));
    }
    config.dtype = ZERO_FP32;
    check(zero_all_to_all_plan(ZERO_DEVICE_CPU, zero_comm_get_kind(comm), n_ranks, SLICE_BYTES, &user));
    config.user_bytes = zero_memory_total(&user);
    check(zero_engine_create(comm, device, model, &config, &engine));
    check(zero_all_to_all_create(engine, n_ranks, SLICE_BYTES, &exchange));
    check(zero_init_parameters(engine));
    for (int s = 1; s <= N_STEPS; s++) {
        zero_step_result_t result;
        step(&result);
        if (rank == 0 && (s == 1 || s % 20 == 0))
            printf("step %d: loss %.5f\n", s, (double)result.loss);
    }
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    zero_device_destroy(device);
    zero_comm_destroy(comm);
    return 0;
}
