/* attention_cudnn.h - attention by cuDNN, in builds that have it. */
#ifndef ZERO_ATTENTION_CUDNN_H
#define ZERO_ATTENTION_CUDNN_H

#include "kernels/model/attention_shape.h"
#include "kernels/model/cuda/context.h"

zero_status_t zero_cudnn_create(zero_model_context_t *ctx, zero_cudnn_t **cudnn);
void zero_cudnn_destroy(zero_cudnn_t *cudnn); /* NULL is allowed */

/* Returns whether cuDNN can compute this shape here, both passes, deterministically and within the workspace. The
 * answer for a shape never changes. May build the shape's plans. `why` is as for zero_cudnn_may_serve. */
bool zero_cudnn_serves(zero_model_context_t *ctx, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);
/* Returns the workspace that runs within the limits take, or 0 if cuDNN does not serve them. */
size_t zero_cudnn_workspace(const zero_model_limits_t *limits);
/* Only for shapes that zero_cudnn_serves accepts. qkv is aligned to 16 bytes. */
zero_status_t zero_cudnn_attention(zero_model_context_t *ctx, const zero_attention_shape_t *shape, void *out,
                                   float *logsumexp, const void *qkv);
zero_status_t zero_cudnn_attention_backward(zero_model_context_t *ctx, const zero_attention_shape_t *shape, void *dqkv,
                                            const void *dout, const void *qkv, const void *out, const float *logsumexp);

#endif
