#!/usr/bin/env python3
"""Repeats a training run of zerotrain in PyTorch and compares the metrics step by step.

    torch_model.py make DIR --arch gpt2 --layers 12 --dim 768 --heads 12 --vocab 256 --seq 1024
        writes a random GPT-2 or Llama in transformers' format, for [model] init = DIR
    torch_model.py compare DIR TEXT METRICS --steps 100 --global-batch 8 --precision bf16 --lr 6e-4 ...
        trains it on TEXT's bytes with zerotrain's batches and schedule, and compares loss and gradient norm

The reference is independent of zerotrain's code: transformers' model, PyTorch's AdamW and clip_grad_norm_. Only the
order of sequences is rebuilt here, from the description in src/train/data/shuffle.c.

PyTorch can train in bf16 in two ways, both with fp32 weights for the optimizer. --mixed parameters casts them to bf16
and computes everything in bf16, the residual stream too, as FSDP2's MixedPrecisionPolicy(param_dtype=bfloat16) and
zerotrain do. --mixed autocast computes products in bf16, but norms and residuals in fp32.

--fp8 multiplies the matrices of a Llama's blocks in float8 by torchao, with one scale per tensor, as zerotrain's
[train] fp8 = linear does. torchao's scales are not powers of two, so the two round differently: losses must agree
within 1%; gradient norms were seen to differ by 21%.
"""
import argparse
import copy
import json
import math
import sys

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

MASK = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def shuffle_index(seed, epoch, n, index):
    half = 1
    while (1 << (2 * half)) < n:
        half += 1
    key, mask, x = mix(mix(seed) ^ epoch), (1 << half) - 1, index
    while True:
        left, right = x >> half, x & mask
        for r in range(8):
            left, right = right, left ^ (mix(mix((key + r) & MASK) ^ right) & mask)
        x = left << half | right
        if x < n:
            return x


def lr_at(a, step):
    if step <= a.warmup:
        return a.lr * step / a.warmup
    low = a.lr / 10
    return low + 0.5 * (a.lr - low) * (1 + math.cos(math.pi * (step - a.warmup) / (a.total_steps - a.warmup)))


def make(a):
    torch.manual_seed(1)
    if a.arch == "llama":
        config = LlamaConfig(num_hidden_layers=a.layers, hidden_size=a.dim, num_attention_heads=a.heads,
                             num_key_value_heads=a.heads // 2, intermediate_size=a.dim * 11 // 4 // 16 * 16,
                             vocab_size=a.vocab, max_position_embeddings=a.seq)
        LlamaForCausalLM(config).save_pretrained(a.dir)
        return
    config = GPT2Config(n_layer=a.layers, n_embd=a.dim, n_head=a.heads, vocab_size=a.vocab, n_positions=a.seq,
                        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    GPT2LMHeadModel(config).save_pretrained(a.dir)


def compare(a):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(a.dir, dtype=torch.float32, attn_implementation="sdpa").to(device)
    model.train()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=a.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    text = torch.frombuffer(bytearray(open(a.text, "rb").read()), dtype=torch.uint8)
    seq = model.config.max_position_embeddings
    n_sequences = (len(text) - 1) // seq
    rows = [json.loads(line) for line in open(a.metrics)]
    autocast = a.precision == "bf16" and a.mixed == "autocast"
    computing = copy.deepcopy(model).bfloat16() if a.precision == "bf16" and not autocast else model
    if a.fp8:
        from torchao.float8 import convert_to_float8_training
        convert_to_float8_training(computing, module_filter_fn=lambda module, name: name != "lm_head")
        computing.compile()
    worst_loss = worst_norm = 0.0
    for step in range(1, a.steps + 1):
        total = 0.0
        places = range((step - 1) * a.global_batch, step * a.global_batch)
        starts = [seq * shuffle_index(a.seed, p // n_sequences, n_sequences, p % n_sequences) for p in places]
        if computing is not model:
            with torch.no_grad():
                for low, master in zip(computing.parameters(), model.parameters()):
                    low.copy_(master)
        for i in range(0, len(starts), a.micro_batch):
            window = torch.stack([text[s:s + seq + 1] for s in starts[i:i + a.micro_batch]]).long().to(device)
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                logits = computing(window[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
            (loss * window.shape[0] / a.global_batch).backward()
            total += loss.item() * window.shape[0] / a.global_batch
        if computing is not model:
            for low, master in zip(computing.parameters(), model.parameters()):
                master.grad = low.grad.float()
                low.grad = None
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        for group in optimizer.param_groups:
            group["lr"] = lr_at(a, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ours = rows[step - 1]
        assert ours["step"] == step
        loss_error, norm_error = abs(ours["loss"] / total - 1), abs(ours["grad_norm"] / norm - 1)
        worst_loss, worst_norm = max(worst_loss, loss_error), max(worst_norm, norm_error)
        if step % 10 == 0 or step == 1:
            print(f"step {step:4d}  torch {total:.6f} {norm:.5f}  zerotrain {ours['loss']:.6f} {ours['grad_norm']:.5f}  "
                  f"off by {loss_error:.2e} {norm_error:.2e}", flush=True)
    bounds = (1e-2, math.inf) if a.fp8 else {"bf16": (5e-3, 3e-2), "fp32": (1e-4, 1e-3)}[a.precision]
    ok = worst_loss < bounds[0] and worst_norm < bounds[1]
    way = "fp8" if a.fp8 else f"bf16 ({a.mixed})" if a.precision == "bf16" else a.precision
    print(f"{'ok' if ok else 'FAILED'}: {way}, {a.steps} steps: loss within {worst_loss:.2e} "
          f"(bound {bounds[0]:g}), grad norm within {worst_norm:.2e} (bound {bounds[1]:g})")
    sys.exit(0 if ok else 1)


parser = argparse.ArgumentParser()
commands = parser.add_subparsers(required=True)
m = commands.add_parser("make")
m.add_argument("dir")
for key, value in dict(layers=12, dim=768, heads=12, vocab=256, seq=1024).items():
    m.add_argument("--" + key, type=int, default=value)
m.add_argument("--arch", choices=("gpt2", "llama"), default="gpt2")
m.set_defaults(run=make)
c = commands.add_parser("compare")
for key in ("dir", "text", "metrics"):
    c.add_argument(key)
for key, value in dict(steps=100, total_steps=1000, warmup=20, global_batch=8, micro_batch=8, seed=1).items():
    c.add_argument("--" + key.replace("_", "-"), type=int, default=value)
c.add_argument("--lr", type=float, default=6e-4)
c.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
c.add_argument("--mixed", choices=("parameters", "autocast"), default="parameters")
c.add_argument("--fp8", action="store_true")
c.set_defaults(run=compare)
arguments = parser.parse_args()
arguments.run(arguments)
