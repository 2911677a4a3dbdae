/* step_work.c - see step_work.h. */
#include "train/predict/step_work.h"

#include <math.h>
#include <string.h>

fit_shape_t fit_shape_of(const options_t *o, const fit_machine_t *machine)
{
    fit_shape_t s = {.is_llama = o->model.arch != ARCH_GPT2, .on_gpu = machine->rates.is_gpu};
    s.fp8 = o->train.fp8 != FP8_NONE;
    s.exact_dw = o->train.fp8 == FP8_LINEAR_EXACT_DW;
    s.L = (double)o->model.layers;
    s.R = (double)(o->train.micro_batch * o->model.seq_len);
    s.C = (double)o->model.dim;
    s.F = (double)o->model.ffn_dim;
    s.V = (double)o->model.vocab_size;
    s.T = (double)o->model.seq_len;
    double seen = o->model.window > 0 ? fmin((double)o->model.window, s.T) : s.T;
    s.keys = seen - 0.5 * seen * seen / s.T; /* that a query sees, on average */
    s.heads = (double)o->model.heads;
    s.head_dim = (double)options_head_dim(o);
    s.A = s.heads * s.head_dim;
    s.has_bias = o->model.arch == ARCH_GPT2 || o->model.arch == ARCH_QWEN2;
    s.has_head_norms = o->model.arch == ARCH_QWEN3;
    s.rotated = s.is_llama ? (s.heads + (double)o->model.kv_heads) * s.head_dim : 0.0;
    s.qkv = (s.heads + 2.0 * (double)o->model.kv_heads) * s.head_dim;
    double mlp = s.is_llama ? 2.0 * s.F : s.F, positions = s.is_llama ? 0.0 : (double)options_positions(o) * s.C;
    const double products[FIT_N_PRODUCTS] = {s.C * s.qkv, s.A * s.C, s.C * mlp, s.F * s.C};
    const double inner[FIT_N_PRODUCTS] = {s.C, s.A, s.C, s.F};
    memcpy(s.products, products, sizeof products);
    memcpy(s.inner, inner, sizeof inner);
    s.last_matrix = products[FIT_N_PRODUCTS - 1];
    s.matrices = products[0] + products[1] + products[2] + products[3];
    s.inputs = 2.0 * s.C + s.A + s.F;
    s.outputs = s.qkv + s.C + mlp + s.C;
    s.block = s.matrices + (s.is_llama ? 2.0 * s.C : s.outputs + 4.0 * s.C); /* gpt2: biases, and norms' too */
    if (s.has_head_norms)
        s.block += 2.0 * s.head_dim;
    s.embed = s.V * s.C + positions;
    s.head = s.is_llama ? s.C + (o->model.tied ? 0.0 : s.V * s.C) : 2.0 * s.C;
    s.param_bytes = (double)zero_dtype_size((zero_dtype_t)o->train.precision);
    s.act_bytes = s.on_gpu ? s.param_bytes : sizeof(float);
    s.micro_steps = (double)options_micro_steps(o, machine->n_ranks);
    s.adds_locally = o->zero.stage < 2 && s.micro_steps > 1 && !o->zero.reduce_every_micro_step;
    s.grad_bytes = s.adds_locally ? sizeof(float) : s.param_bytes;
    return s;
}

double fit_n_params(const fit_shape_t *s)
{
    return s->L * s->block + s->embed + s->head;
}
