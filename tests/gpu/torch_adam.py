"""Measures PyTorch's fused AdamW in fp32 beside a copy, in bytes per second, to compare bench_adam_cuda.c with.

torch_adam.py [N_PARAMS]: 10^9 by default. 28 bytes per parameter count: gradient, parameter, m and v are read, all but
the gradient are written.
"""
import sys
import torch

N_WARMUP, N_ROUNDS = 3, 21


def median_ms(run):
    times = []
    for _ in range(N_WARMUP + N_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times[N_WARMUP:])[N_ROUNDS // 2]


n_params = int(sys.argv[1]) if len(sys.argv) > 1 else 10**9
param = torch.nn.Parameter(torch.randn(n_params, device="cuda") * 0.02)
param.grad = torch.randn(n_params, device="cuda") * 1e-3
other = torch.empty(n_params, device="cuda")
optimizer = torch.optim.AdamW([param], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

copy_ms = median_ms(lambda: other.copy_(param.data))
adam_ms = median_ms(optimizer.step)
copy_rate = n_params * 8 / copy_ms * 1e-9
adam_rate = n_params * 28 / adam_ms * 1e-9
print(f"PyTorch {torch.__version__}, copy      {copy_ms:16.4f} {copy_rate:8.3f}")
print(f"PyTorch fused AdamW, fp32      {adam_ms:9.4f} {adam_rate:8.3f} {100 * adam_rate / copy_rate:11.1f}%")
