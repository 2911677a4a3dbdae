/* model_flops.c - how much a model computes, and which share of the devices' peak that is. */
#include "train/model/model.h"

double model_flops_per_token(const model_t *model)
{
    const options_t *o = model->options;
    double params = (double)zero_model_n_params(model->declaration) - (double)model->ops->n_lookup_params(model);
    int64_t width = o->model.heads * options_head_dim(o), seq_len = o->model.seq_len;
    double seen = o->model.window > 0 && o->model.window < seq_len ? (double)o->model.window : (double)seq_len;
    double keys = seen - 0.5 * seen * seen / (double)seq_len; /* of a query, on average; without a window half of all */
    return 6.0 * params + 12.0 * (double)(o->model.layers * width) * keys;
}

double model_flops_utilization(const model_t *model, double tokens_per_s, int n_devices)
{
    double peak = model->kernels->peak_flops
                      ? model->kernels->peak_flops((zero_dtype_t)model->options->train.precision) * n_devices
                      : 0.0;
    return peak > 0.0 ? model_flops_per_token(model) * tokens_per_s / peak : -1.0;
}
