#!/usr/bin/env python3
"""Measures an fp32 training step of GPT-2 in PyTorch eager on the CPU, which `make bench` compares zerotrain with.

The step is forward, backward, clip_grad_norm_ and AdamW, written as a good PyTorch program would: one GEMM for q, k
and v, scaled_dot_product_attention, the tied head, gradients set to None, and the faster of the fused and the foreach
optimizer. Data loading and logging are left out, so that only the step is timed.

    tests/bench/torch_gpt2.py --layers 8 --dim 320 --heads 8 --vocab 256 --seq 256 --batch 8 --threads 2

prints a name and a value per line: torch_step_ms (median), torch_tokens_per_s, and torch_gemm_gflops, the rate of the
model's largest product alone. Needs only torch (any 2.x) from PyPI.
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attn_proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, 4 * dim)
        self.mlp_proj = nn.Linear(4 * dim, dim)

    def forward(self, x):  # [batch, seq, dim]
        batch, seq, dim = x.shape
        q, k, v = (t.view(batch, seq, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(dim, dim=2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(attended.transpose(1, 2).reshape(batch, seq, dim))
        return x + self.mlp_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, dim, heads, vocab, seq):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Embedding(seq, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02)
        self.register_buffer("positions", torch.arange(seq))

    def forward(self, tokens, targets):  # both [batch, seq]; the mean loss
        x = self.wte(tokens) + self.wpe(self.positions)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_optimizer(model, **kind):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, **kind)


def timed_step_ms(model, optimizer, tokens, targets):
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss = model(tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return (time.perf_counter() - start) * 1e3


def median_step_ms(model, optimizer, args):
    batches = torch.randint(args.vocab, (args.batch, args.seq + 1))
    tokens, targets = batches[:, :-1].contiguous(), batches[:, 1:].contiguous()
    for _ in range(args.warmup):
        timed_step_ms(model, optimizer, tokens, targets)
    return statistics.median(timed_step_ms(model, optimizer, tokens, targets) for _ in range(args.steps))


def gemm_gflops(rows, inner, columns, repeats=40):
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    out = torch.empty(rows, columns)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        seconds.append(time.perf_counter() - start)
    return 2e-9 * rows * inner * columns / statistics.median(seconds[5:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [("layers", 8), ("dim", 320), ("heads", 8), ("vocab", 256), ("seq", 256), ("batch", 8),
                          ("threads", 2), ("warmup", 5), ("steps", 20)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = GPT2(args.layers, args.dim, args.heads, args.vocab, args.seq)

    kinds = {"fused": {"fused": True}, "foreach": {"foreach": True}}
    step_ms = {name: median_step_ms(model, make_optimizer(model, **kind), args) for name, kind in kinds.items()}
    best = min(step_ms, key=step_ms.get)
    print(f"torch_version {torch.__version__}")
    print(f"torch_params {sum(p.numel() for p in model.parameters())}")
    for name, ms in step_ms.items():
        print(f"torch_{name}_step_ms {ms:.2f}")
    print(f"torch_step_ms {step_ms[best]:.2f}")
    print(f"torch_tokens_per_s {args.batch * args.seq / step_ms[best] * 1e3:.0f}")
    print(f"torch_gemm_gflops {gemm_gflops(args.batch * args.seq, args.dim, 4 * args.dim):.1f}")


if __name__ == "__main__":
    main()
