# port.sed - turns llm.c's train_gpt2.c into a program on libzero (sed -E -f). No function that computes is touched.

# libzero holds parameters, gradients, m and v.
/^#include "llmc\/dataloader\.h"/a #include <zero.h>
/^    GPT2Config config;/a\
    zero_engine_t* engine;\
    zero_pass_t pass; // of the next forward\
    int global_batch; // sequences of all ranks
/^\} GPT2;/a #include "zero_gpt2.h"
/^\/\/ allocate memory for the parameters and point/,/^}/d
/^    ParameterTensors (params|grads);/d
/^    float\* (params|grads|m|v)_memory;/d
/^    model->(grads|m|v)_memory = NULL;/d
/^    free\(model->(params|grads|m)_memory\);/d
s/^    free\(model->v_memory\);/    finish(model);/
/^    model->params_memory = malloc_and_point/d
s/^    freadCheck\(model->params_memory.*/    shard(model, model_file);/

# A layer's pointers are those of its unit.
s/(params|grads)\.([a-z0-9]+) \+ l \*.*;/\1.\2;/

/^void gpt2_forward/,/^}/{
    s/params_memory == NULL/engine == NULL/
    s/^    ParameterTensors params =.*/    check(zero_begin(model->engine, model->pass, NULL));\
    ParameterTensors params = acquire(model, 0, NULL);/
    /^    encoder_forward/a\    check(zero_release(model->engine, 0, NULL));
    /^        residual = l == 0/a\        params = acquire(model, 1 + l, NULL);
    /^        residual_forward\(l_residual3/a\        check(zero_release(model->engine, 1 + l, NULL));
    /^    layernorm_forward\(acts\.lnf/i\    params = acquire(model, L + 1, NULL);
    /^    matmul_forward\(acts\.logits/a\    check(zero_release(model->engine, L + 1, NULL));
}

/^    if\(model->grads_memory != NULL\)/d
/^void gpt2_backward/,/^}/{
    s/model->grads_memory == NULL/model->grads_acts_memory == NULL/
    /malloc_and_point_parameters/d
    s/^    ParameterTensors params =.*/    ParameterTensors params, grads;/
    /^    ParameterTensors grads =/d
    s/float dloss_mean = .*/float dloss_mean = 1.0f \/ (model->global_batch*T);/
    /^    matmul_backward\(grads_acts\.lnf/i\    params = acquire(model, L + 1, \&grads);
    /^    layernorm_backward\(dresidual/a\    check(zero_grad_ready(model->engine, L + 1, NULL));
    /^        dresidual = l == 0/a\        params = acquire(model, 1 + l, \&grads);
    /^        layernorm_backward\(dresidual/a\        check(zero_grad_ready(model->engine, 1 + l, NULL));
    /^    encoder_backward/{
        i\    params = acquire(model, 0, \&grads);
        a\    check(zero_grad_ready(model->engine, 0, NULL));
    }
}
/^void gpt2_update/,/^}/d

# Each rank takes its rows of every batch.
s/^int main\(\) \{/int main(int argc, char** argv) {\
    start(argc, argv);/
/^    int B = 4;/a\
    model.global_batch = B;\
    int first = B * rank / ranks, rows = B * (rank + 1) / ranks - first;\
    if (ranks > B) { fprintf(stderr, "at most %d ranks: each needs a sequence\\n", B); check(ZERO_ERROR_USAGE); }
s/(train|val)_loader\.inputs, (train|val)_loader\.targets, B, T/\1_loader.inputs + first*T, \2_loader.targets + first*T, rows, T/
s/gen_tokens, NULL, B, T/gen_tokens, NULL, rows, T/
s/val_loss \+= model\.mean_loss/val_loss += mean_loss(\&model)/
/dataloader_next_batch\(&train_loader\)/a\        model.pass = ZERO_PASS_TRAIN;
s/gpt2_update\(&model, 1e-4f,.*/update(\&model, 1e-4f);/
