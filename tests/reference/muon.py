"""Trains a small GPT-2 and a small Llama by Muon in zerotrain, and in PyTorch in fp64 by the formula at zero_step.

    muon.py ZEROTRAIN SCRATCH        prints "ok: claim" or "FAILED: claim" for each

Hidden matrices are updated by Muon, the rest by torch.optim.AdamW. A step sees the whole text, so no order of data is
rebuilt. Losses and gradient norms of 30 steps are compared, at two stages and on two numbers of ranks; and once more with
a deliberate mistake in the reference, which must be found.
"""
import json
import math
import os
import pathlib
import subprocess
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from write_golden import GPT2, HERE, Llama

STEPS, BATCH, SEQ, LR, DECAY, MOMENTUM = 30, 8, 32, 2e-3, 0.1, 0.95
BOUND = 2e-4  # four times what was measured: the iteration grows small singular values, and their rounding, 485-fold


def orthogonalized(u, n_steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = u.T if u.shape[0] > u.shape[1] else u
    x = x / max(float(x.norm()), 1e-7)
    for _ in range(n_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if u.shape[0] > u.shape[1] else x


class Muon:
    def __init__(self, params, nesterov):
        self.params, self.nesterov = params, nesterov
        self.m = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.params, self.m):
            m.mul_(MOMENTUM).add_(p.grad, alpha=1 - MOMENTUM)
            u = MOMENTUM * m + (1 - MOMENTUM) * p.grad if self.nesterov else m
            p.mul_(1 - LR * DECAY).sub_(LR * 0.2 * math.sqrt(max(p.shape)) * orthogonalized(u))


def reference(arch, text, nesterov=True):
    """Returns loss and gradient norm of every step."""
    torch.manual_seed(0)
    model = arch.make(arch.settings | arch.defaults, torch.float64)
    from safetensors.torch import load_file
    missing, extra = model.load_state_dict(load_file(HERE / arch.name / "model.safetensors"), strict=False)
    assert not extra and all("lm_head" in name or "rotary" in name for name in missing), (missing, extra)
    named = [(name, p) for name, p in model.named_parameters()]
    hidden = [p for name, p in named if arch.is_in_layer(name) and p.ndim == 2]
    others = [p for _, p in named if not any(p is h for h in hidden)]
    adamw = torch.optim.AdamW([{"params": [p for p in others if p.ndim >= 2], "weight_decay": DECAY},
                               {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0}],
                              lr=LR, betas=(0.9, 0.95), eps=1e-8)
    muon, rows = Muon(hidden, nesterov), []
    tokens = torch.tensor(list(text))
    inputs, targets = tokens[:-1].view(BATCH, SEQ), tokens[1:].view(BATCH, SEQ)
    for _ in range(STEPS):
        model.zero_grad()
        loss = F.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in named], 1.0)
        adamw.step()
        muon.step()
        rows.append((float(loss.detach()), float(norm)))
    return rows


def zerotrain(program, scratch, arch, n_ranks, stage):
    metrics = os.path.join(scratch, f"{arch.name}.{n_ranks}.{stage}.metrics")
    command = [program, os.path.join(scratch, f"{arch.name}.ini"), "--stage", str(stage), "--set", f"log.metrics={metrics}"]
    if n_ranks > 1:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(n_ranks), *command]
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"FAILED: Muon: {arch.name}: {done.stderr.strip().splitlines()[-1]}")
    with open(metrics) as file:
        rows = [json.loads(line) for line in file]
    return [(row["loss"], row["grad_norm"]) for row in rows if "grad_norm" in row]


def distance(ours, theirs):
    if len(ours) != len(theirs):
        return math.inf
    return max(abs(a / b - 1) for row, wanted in zip(ours, theirs) for a, b in zip(row, wanted))


def main():
    program, scratch = sys.argv[1:3]
    text = (HERE / "tiny.txt").read_bytes()[:BATCH * SEQ + 1]
    passed = True

    def claim(holds, words):
        nonlocal passed
        passed &= bool(holds)
        print(f"{'ok' if holds else 'FAILED'}: Muon: {words}", flush=True)

    with open(os.path.join(scratch, "muon.txt"), "wb") as file:
        file.write(text)
    for arch in (GPT2, Llama):
        with open(os.path.join(scratch, f"{arch.name}.ini"), "w") as file:
            file.write(f"[model]\ninit = {HERE / arch.name}\nseq_len = {SEQ}\n[data]\ntrain = {scratch}/muon.txt\nformat = text\n"
                       f"[train]\nsteps = {STEPS}\nmicro_batch = 2\nglobal_batch = {BATCH}\noptimizer = muon\nlr = {LR}\n"
                       f"warmup_steps = 0\nschedule = constant\nweight_decay = {DECAY}\nprecision = fp32\ngrad_clip = 1.0\n"
                       f"beta1 = 0.9\nbeta2 = 0.95\n[device]\ntype = cpu\n[checkpoint]\nevery = 0\ndir =\n")
        wanted = reference(arch, text)
        for n_ranks, stage in ((1, 0), (2, 3)):
            ours = zerotrain(program, scratch, arch, n_ranks, stage)
            off = distance(ours, wanted)
            claim(off < BOUND and ours[-1][0] < ours[0][0] - 0.3,
                  f"{arch.name}, {STEPS} steps on {n_ranks} ranks at stage {stage}: loss and norm of fp64 within {off:.1e} "
                  f"(bound {BOUND:g}), loss {ours[0][0]:.3f} to {ours[-1][0]:.3f}")
        off = distance(ours, reference(arch, text, nesterov=False))
        claim(off > 5 * BOUND, f"{arch.name}: ... and not of momentum that is not Nesterov's: {off:.1e}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
