/* bench_model.c - measures milliseconds and GFLOP/s of every CPU model kernel for a 10-million-parameter GPT-2 in fp32,
 * and their sum over a training step without the optimizer. Llama's own kernels are measured at the same sizes and are
 * not in the sum.
 *
 * Dimension 320, 8 heads, 8 layers, vocabulary 256, 256 positions, batch 4. The best of several rounds counts, since
 * other work on the machine only slows a round down. FLOP/s are printed for matrix products; attention counts only the
 * scores that are not masked.
 *
 *     OMP_NUM_THREADS=2 bench_model [ROUNDS]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <omp.h>

#include "tests/support/clock.h"
#include "train/kernels/kernels.h"

enum { DIM = 320, HEADS = 8, LAYERS = 8, VOCAB = 256, SEQ = 256, BATCH = 4, ROWS = BATCH * SEQ, FFN = 4 * DIM };

typedef struct bench {
    const zero_model_kernels_t *k;
    zero_model_context_t ctx;
    float *in, *out, *third, *fourth; /* [ROWS, FFN] each: activations and their gradients */
    float *weight, *dweight;          /* [DIM, FFN] */
    float *bias, *mean, *rstd;
    int32_t *tokens; /* [ROWS] */
} bench_t;

static zero_weight_t weight_of(const float *data)
{
    return (zero_weight_t){.data = data, .dtype = ZERO_FP32};
}

static zero_grad_t grad_of(float *data)
{
    return (zero_grad_t){data, ZERO_FP32, false};
}

/* ---- One row of the table each ---- */

static zero_status_t linear_forward(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear(&b->ctx, b->out, false, b->in, weight_of(b->weight), ZERO_LINEAR_IN_OUT, weight_of(b->bias),
                        ROWS, n_in, n_out);
}

static zero_status_t linear_input(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear_backward_input(&b->ctx, b->out, false, b->in, weight_of(b->weight), ZERO_LINEAR_IN_OUT, ROWS,
                                       n_in, n_out);
}

static zero_status_t linear_weight(bench_t *b, size_t n_in, size_t n_out)
{
    return b->k->linear_backward_weight(&b->ctx, grad_of(b->dweight), ZERO_LINEAR_IN_OUT, grad_of(b->bias), b->in,
                                        b->third, ROWS, n_in, n_out);
}

static zero_attention_shape_t shape_of(size_t heads, size_t head_dim)
{
    return (zero_attention_shape_t){BATCH, SEQ, heads, heads, head_dim};
}

static zero_status_t attention(bench_t *b, size_t heads, size_t head_dim)
{
    const zero_attention_shape_t shape = shape_of(heads, head_dim);
    return b->k->attention(&b->ctx, b->out, b->mean, b->in, NULL, &shape);
}

static zero_status_t attention_backward(bench_t *b, size_t heads, size_t head_dim)
{
    const zero_attention_shape_t shape = shape_of(heads, head_dim);
    return b->k->attention_backward(&b->ctx, b->fourth, b->third, b->in, b->out, b->mean, NULL, &shape);
}

static zero_status_t layernorm(bench_t *b, size_t n_rows, size_t dim)
{
    return b->k->layernorm(&b->ctx, b->out, b->mean, b->rstd, b->fourth, b->in, b->third, weight_of(b->weight),
                           weight_of(b->bias), 1e-5f, n_rows, dim);
}

static zero_status_t layernorm_backward(bench_t *b, size_t n_rows, size_t dim)
{
    return b->k->layernorm_backward(&b->ctx, b->out, grad_of(b->dweight), grad_of(b->dweight + dim),
                                    grad_of(b->dweight + 2 * dim), NULL, b->third, b->in, b->mean, b->rstd,
                                    weight_of(b->weight), weight_of(b->bias), n_rows, dim);
}

static zero_status_t gelu(bench_t *b, size_t n_rows, size_t width)
{
    return b->k->gelu(&b->ctx, b->out, b->in, n_rows * width);
}

static zero_status_t gelu_backward(bench_t *b, size_t n_rows, size_t width)
{
    return b->k->gelu_backward(&b->ctx, b->out, grad_of(b->bias), NULL, b->third, b->in, n_rows, width);
}

static zero_status_t rmsnorm(bench_t *b, size_t n_rows, size_t dim)
{
    return b->k->rmsnorm(&b->ctx, b->out, b->rstd, b->fourth, b->in, b->third, weight_of(b->weight), 1e-5f, n_rows,
                         dim);
}

static zero_status_t rmsnorm_backward(bench_t *b, size_t n_rows, size_t dim)
{
    return b->k->rmsnorm_backward(&b->ctx, b->out, grad_of(b->dweight), NULL, b->third, b->in, b->rstd,
                                  weight_of(b->weight), n_rows, dim);
}

static zero_status_t rope(bench_t *b, size_t heads, size_t head_dim)
{
    const zero_attention_shape_t shape = shape_of(heads, head_dim);
    return b->k->rope(&b->ctx, b->out, false, &(zero_rope_t){.theta = 1e4f}, &shape);
}

static zero_status_t swiglu(bench_t *b, size_t n_rows, size_t width)
{
    return b->k->swiglu(&b->ctx, b->out, b->in, n_rows, width);
}

static zero_status_t swiglu_backward(bench_t *b, size_t n_rows, size_t width)
{
    return b->k->swiglu_backward(&b->ctx, b->out, NULL, b->third, b->in, n_rows, width);
}

static zero_status_t embed(bench_t *b, size_t n_rows, size_t dim)
{
    return b->k->embed(&b->ctx, b->out, b->tokens, NULL, weight_of(b->weight), weight_of(b->in), n_rows / SEQ, SEQ, dim,
                       VOCAB);
}

static zero_status_t embed_backward(bench_t *b, size_t n_rows, size_t dim)
{
    return b->k->embed_backward(&b->ctx, grad_of(b->dweight), grad_of(b->out), b->third, b->tokens, NULL, n_rows / SEQ,
                                SEQ, SEQ, dim, VOCAB);
}

static zero_status_t head_loss(bench_t *b, size_t dim, size_t vocab_size)
{
    double loss = 0.0;
    const float scale = 1.0f;
    return b->k->head_loss(&b->ctx, &loss, b->out, grad_of(b->dweight), b->in, weight_of(b->weight), b->tokens,
                           1.0 / ROWS, &scale, ROWS, dim, vocab_size);
}

typedef struct row {
    const char *name;
    zero_status_t (*run)(bench_t *b, size_t first, size_t second); /* with the two sizes below */
    size_t first, second;
    double flops;   /* 0: not counted */
    int n_per_step; /* calls in one forward and backward pass */
} row_t;

#define LINEAR_FLOPS(n_in, n_out) (2.0 * ROWS * (n_in) * (n_out))
#define ATTENTION_FLOPS (2.0 * ROWS * (SEQ + 1) / 2.0 * DIM) /* of each of its products: 2 forward, 5 backward */

static const row_t rows[] = {
    {"linear c_attn", linear_forward, DIM, 3 * DIM, LINEAR_FLOPS(DIM, 3 * DIM), LAYERS},
    {"linear c_proj", linear_forward, DIM, DIM, LINEAR_FLOPS(DIM, DIM), LAYERS},
    {"linear c_fc", linear_forward, DIM, FFN, LINEAR_FLOPS(DIM, FFN), LAYERS},
    {"linear mlp c_proj", linear_forward, FFN, DIM, LINEAR_FLOPS(FFN, DIM), LAYERS},
    {"input gradient c_attn", linear_input, DIM, 3 * DIM, LINEAR_FLOPS(DIM, 3 * DIM), LAYERS},
    {"input gradient c_proj", linear_input, DIM, DIM, LINEAR_FLOPS(DIM, DIM), LAYERS},
    {"input gradient c_fc", linear_input, DIM, FFN, LINEAR_FLOPS(DIM, FFN), LAYERS},
    {"input gradient mlp c_proj", linear_input, FFN, DIM, LINEAR_FLOPS(FFN, DIM), LAYERS},
    {"weight gradient c_attn", linear_weight, DIM, 3 * DIM, LINEAR_FLOPS(DIM, 3 * DIM), LAYERS},
    {"weight gradient c_proj", linear_weight, DIM, DIM, LINEAR_FLOPS(DIM, DIM), LAYERS},
    {"weight gradient c_fc", linear_weight, DIM, FFN, LINEAR_FLOPS(DIM, FFN), LAYERS},
    {"weight gradient mlp c_proj", linear_weight, FFN, DIM, LINEAR_FLOPS(FFN, DIM), LAYERS},
    {"attention", attention, HEADS, DIM / HEADS, 2 * ATTENTION_FLOPS, LAYERS},
    {"attention backward", attention_backward, HEADS, DIM / HEADS, 5 * ATTENTION_FLOPS, LAYERS},
    {"layernorm", layernorm, ROWS, DIM, 0.0, 2 * LAYERS + 1},
    {"layernorm backward", layernorm_backward, ROWS, DIM, 0.0, 2 * LAYERS + 1},
    {"gelu", gelu, ROWS, FFN, 0.0, LAYERS},
    {"gelu backward", gelu_backward, ROWS, FFN, 0.0, LAYERS},
    {"embed", embed, ROWS, DIM, 0.0, 1},
    {"embed backward", embed_backward, ROWS, DIM, 0.0, 1},
    {"head and loss, both passes", head_loss, DIM, VOCAB, 3 * LINEAR_FLOPS(DIM, VOCAB), 1},
    {"rmsnorm", rmsnorm, ROWS, DIM, 0.0, 0},
    {"rmsnorm backward", rmsnorm_backward, ROWS, DIM, 0.0, 0},
    {"rope", rope, HEADS, DIM / HEADS, 0.0, 0},
    {"swiglu", swiglu, ROWS, FFN / 2, 0.0, 0},
    {"swiglu backward", swiglu_backward, ROWS, FFN / 2, 0.0, 0},
};
#define N_BENCH_ROWS (sizeof rows / sizeof rows[0])

/* ---- Setting up and timing ---- */

static float *random_floats(size_t n, uint64_t *state)
{
    float *x = aligned_alloc(64, n * sizeof *x);
    for (size_t i = 0; x != NULL && i < n; ++i) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(int32_t)(*state >> 32) * 0x1p-31f;
    }
    return x;
}

static bool bench_create(bench_t *b)
{
    const zero_model_limits_t limits = {.n_rows = ROWS,
                                        .seq_len = SEQ,
                                        .max_linear = (size_t)DIM * FFN,
                                        .max_width = FFN,
                                        .n_heads = HEADS,
                                        .head_dim = DIM / HEADS,
                                        .vocab_size = VOCAB,
                                        .dtype = ZERO_FP32};
    uint64_t state = 1;
    b->k = zero_model_kernels_cpu();
    size_t n = (size_t)ROWS * FFN;
    float **const activations[] = {&b->in, &b->out, &b->third, &b->fourth, &b->mean, &b->rstd};
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; ++i) {
        if ((*activations[i] = random_floats(n, &state)) == NULL)
            return false;
    }
    b->weight = random_floats((size_t)DIM * FFN, &state);
    b->dweight = random_floats((size_t)DIM * FFN, &state);
    b->bias = random_floats(FFN, &state);
    b->tokens = malloc(ROWS * sizeof *b->tokens);
    void *workspace = aligned_alloc(256, b->k->workspace_bytes(&limits));
    if (b->weight == NULL || b->dweight == NULL || b->bias == NULL || b->tokens == NULL || workspace == NULL)
        return false;
    for (size_t i = 0; i < ROWS; ++i)
        b->tokens[i] = (int32_t)(i * i % VOCAB);
    return b->k->context_create(&b->ctx, NULL, workspace, &limits) == ZERO_OK;
}

/* Seconds of the best call; negative when it fails. */
static double best_time(bench_t *b, const row_t *row, int n_rounds)
{
    double best = -1.0;
    for (int round = -1; round < n_rounds; ++round) { /* the first warms up */
        double start = now_s();
        if (row->run(b, row->first, row->second) != ZERO_OK)
            return -1.0;
        double seconds = now_s() - start;
        if (round >= 0 && (best < 0.0 || seconds < best))
            best = seconds;
    }
    return best;
}

int main(int argc, char **argv)
{
    static bench_t bench; /* freed by the process's end */
    int n_rounds = argc > 1 ? atoi(argv[1]) : 9;
    if (n_rounds < 1 || !bench_create(&bench)) {
        fprintf(stderr, "usage: bench_model [ROUNDS]; or out of memory\n");
        return 1;
    }
    printf("model kernels: %s, %d threads\n", bench.k->name, omp_get_max_threads());
    printf("%-28s %9s %9s %9s\n", "kernel", "ms", "GFLOP/s", "ms/step");
    double step_s = 0.0, flops = 0.0;
    for (size_t i = 0; i < N_BENCH_ROWS; ++i) {
        double seconds = best_time(&bench, &rows[i], n_rounds);
        if (seconds < 0.0)
            return 1;
        step_s += seconds * rows[i].n_per_step;
        flops += rows[i].flops * rows[i].n_per_step;
        printf("%-28s %9.3f", rows[i].name, seconds * 1e3);
        if (rows[i].flops > 0.0)
            printf(" %9.1f", rows[i].flops / seconds * 1e-9);
        else
            printf(" %9s", "-");
        printf(" %9.2f\n", seconds * 1e3 * rows[i].n_per_step);
    }
    printf("%-28s %9s %9.1f %9.2f\n", "forward and backward", "", flops / step_s * 1e-9, step_s * 1e3);
    return 0;
}
