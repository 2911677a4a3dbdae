"""Trains adapters on small models of every family in zerotrain and in PEFT, from equal weights, and exchanges them.

    lora.py ZEROTRAIN SCRATCH        prints "ok: claim" or "FAILED: claim" for each

A step sees the whole text, so no order of data is rebuilt. Losses and gradient norms of 20 steps in fp32 are compared with
PEFT's in fp64, and may be as far from them as PEFT's in fp32; what either has saved is loaded by the other; and a merged
model is compared with PEFT's merge_and_unload, tensor by tensor.
"""
import json
import os
import pathlib
import subprocess
import sys

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from families import MODELS

STEPS, BATCH, SEQ, LR, DECAY = 20, 8, 64, 3e-4, 0.1
BF16_STEPS, BF16_CASES = 100, ("llama-3.2", "phi3")
# How far losses and norms in fp32 may be from fp64's: so many times as far as PyTorch's, and a little. Rounding grows over the
# steps, to 4e-5 in gemma3's norms, in both.
TIMES_PYTORCH, ROUNDING = 4, 1e-6
LLAMA_ALL = "q k v o gate up down".split()
# family: rank, alpha, rsLoRA, targets here, target_modules of PEFT; ranks, stage
CASES = {
    "gpt2": (4, 8, False, "all-linear", ["c_attn", "c_proj", "c_fc"], 2, 2),
    "llama-3.1": (5, 7.5, False, "all-linear", [t + "_proj" for t in LLAMA_ALL], 1, 0),
    "llama-3.2": (8, 16, True, "q, v", ["q_proj", "v_proj"], 4, 3),
    "mistral-window": (3, 3, False, "o,gate,down", ["o_proj", "gate_proj", "down_proj"], 2, 1),
    "qwen2-tied": (4, 4, True, "all-linear", "all-linear", 2, 3),
    "phi3": (4, 8, False, "qkv,o,gate_up", ["qkv_proj", "o_proj", "gate_up_proj"], 1, 1),
    "granite4": (3, 6, False, "all-linear", "all-linear", 2, 1),
    "olmo2": (3, 6, False, "all-linear", "all-linear", 2, 3),
    "gemma3": (2, 2, False, "q,v,down", ["q_proj", "v_proj", "down_proj"], 1, 2),
    "llama-biases": (4, 8, True, "all-linear", "all-linear", 2, 0),
    "qwen3": (1, 2, False, "k,up", r".*\.(k_proj|up_proj)", 1, 3),
}


def settings(base, steps, name, scratch, text, lora, extra="", precision="fp32"):
    path = scratch / f"{name}.ini"
    path.write_text(f"""[model]
init = {base}
seq_len = {SEQ}
[data]
train = {text}
val = {text}
[train]
steps = {steps}
global_batch = {BATCH}
micro_batch = 2
precision = {precision}
lr = {LR}
schedule = constant
[lora]
{lora}
[checkpoint]
dir = {scratch / name}
[log]
metrics = {scratch / name}.metrics
{extra}""")
    return path


def call(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode:
        print(done.stdout, done.stderr)
    return done


def train(zerotrain, ini, ranks=1, stage=0, *options):
    launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", ranks] if ranks > 1 else []
    if call(*launch, zerotrain, "--stage", stage, *options, ini).returncode:
        return []
    rows = [json.loads(line) for line in open(ini.with_suffix(".metrics"))]
    return [(row["loss"], row["grad_norm"]) for row in rows if "loss" in row]


def batch(text):
    tokens = torch.tensor(list(text))
    return tokens[:-1].view(BATCH, SEQ), tokens[1:].view(BATCH, SEQ)


def loss_of(model, text):
    inputs, targets = batch(text)
    logits = model(inputs).logits.flatten(0, 1)
    return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), targets.flatten())


def reference(model, text, steps=STEPS):
    """Trains the adapters; returns loss and gradient norm of every step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    rows = []
    for _ in range(steps):
        model.zero_grad()
        loss = loss_of(model, text)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        adamw.step()
        rows.append((loss.item(), norm.item()))
    return rows


def say(good, claim):
    print(f"{'ok' if good else 'FAILED'}: {claim}", flush=True)


def make_base(name, scratch):
    """A model whose every tensor is random; norms are near one."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[name][0]())
    with torch.no_grad():
        for key, p in model.named_parameters():
            is_scale = p.ndim == 1 and "bias" not in key
            p.copy_(torch.randn(p.shape) * (0.05 if p.ndim > 1 else 0.2) + is_scale)
    model.save_pretrained(scratch / f"{name}.base")
    return scratch / f"{name}.base"


def distances(rows, exact):
    """Root mean squares, over the steps, of the relative differences of losses and of norms; infinite if steps lack."""
    if len(rows) != len(exact):
        return [float("inf")] * 2
    return [(sum((row[i] / other[i] - 1)**2 for row, other in zip(rows, exact)) / len(exact))**0.5 for i in range(2)]


def evaluate(zerotrain, ini, *options):
    done = call(zerotrain, "evaluate", "--json", *options, ini)
    return json.loads(done.stdout)["loss"] if done.returncode == 0 else float("nan")


def largest_gap(ours, theirs):
    if set(ours) != set(theirs):
        return float("inf")
    return max(float((ours[key].double() - theirs[key].double()).abs().max()) for key in ours)


def check(name, zerotrain, scratch, text, text_path):
    rank, alpha, rslora, targets, modules, ranks, stage = CASES[name]
    base = make_base(name, scratch)
    config = LoraConfig(r=rank, lora_alpha=alpha, use_rslora=rslora, target_modules=modules, lora_dropout=0.0,
                        init_lora_weights=False, task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    model.save_pretrained(scratch / f"{name}.peft0")

    ini = settings(base, STEPS, name, scratch, text_path, f"init = {scratch / name}.peft0")
    in_fp64 = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64),
                                        scratch / f"{name}.peft0", is_trainable=True).double()
    exact = reference(in_fp64, text)
    ours, theirs = distances(train(zerotrain, ini, ranks, stage), exact), distances(reference(model, text), exact)
    say(all(mine <= TIMES_PYTORCH * peft + ROUNDING for mine, peft in zip(ours, theirs)),
        f"{name}: losses and norms of {STEPS} steps are PEFT's in fp64, from its adapters: {ours[0]:.1e} {ours[1]:.1e}; "
        f"PEFT's in fp32: {theirs[0]:.1e} {theirs[1]:.1e}")

    # Ours, loaded by PEFT.
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(plain, scratch / name / "latest")
    mine, peft = evaluate(zerotrain, ini), float(loss_of(loaded, text))
    say(abs(mine - peft) <= 2e-6 * peft, f"{name}: PEFT loads ours, to the same loss: {mine} {peft:.9f}")

    # PEFT's, loaded by us, and merged by both.
    model.save_pretrained(scratch / f"{name}.peft")
    mine = evaluate(zerotrain, ini, "--resume", base, "--adapter", scratch / f"{name}.peft")
    peft = float(loss_of(model, text))
    say(abs(mine - peft) <= 2e-6 * peft, f"{name}: zerotrain loads PEFT's, to the same loss: {mine} {peft:.9f}")
    merged = scratch / f"{name}.merged"
    good = call(zerotrain, "merge", base, scratch / f"{name}.peft", merged).returncode == 0
    model.merge_and_unload().save_pretrained(scratch / f"{name}.unloaded")
    gap = largest_gap(load_file(merged / "model.safetensors"),
                      load_file(scratch / f"{name}.unloaded" / "model.safetensors")) if good else float("inf")
    whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32) if good else plain
    say(gap <= 1e-6 and abs(float(loss_of(whole, text)) - peft) <= 2e-6 * peft,
        f"{name}: merge is PEFT's merge_and_unload: {gap:.1e}")

    # Random adapters: A as PEFT's, B zero, so that the first loss is the model's.
    lora = f"rank = {rank}\nalpha = {alpha}\ntargets = {targets}\nrslora = {str(rslora).lower()}"
    ini = settings(base, 1, f"{name}-random", scratch, text_path, lora, "every = 1\n")
    first = train(zerotrain, ini, 1, 0, "--set", "train.lr=0", "--set", "train.min_lr=0")
    tensors = load_file(scratch / f"{name}-random" / "latest" / "adapter_model.safetensors")
    a = [t * t.shape[1]**0.5 for key, t in tensors.items() if "lora_A" in key]  # uniform in -1 .. 1
    everything = torch.cat([t.flatten() for t in a])
    zero = all(not t.any() for key, t in tensors.items() if "lora_B" in key)
    same = set(tensors) == set(load_file(scratch / f"{name}.peft" / "adapter_model.safetensors"))
    expected = float(loss_of(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), text))
    say(zero and same and len(first) == 1 and abs(first[0][0] - expected) <= 2e-6 * expected
        and 0.9 < float(everything.abs().max()) <= 1 and abs(float(everything.std()) - 3**-0.5) < 0.05
        and abs(float(everything.mean())) < 0.08,
        f"{name}: random adapters change nothing yet, and A is uniform as PEFT's")


# What PEFT makes of the model's weights when it loads an adapter, or of some tokens: refused by name, or nothing.
OPTIONS = [("init_lora_weights", "orthogonal", True), ("init_lora_weights", "gaussian", True),
           ("init_lora_weights", "pissa", False), ("init_lora_weights", "olora", False),
           ("alora_invocation_tokens", [32], False), ("layers_to_transform", [1], True),
           ("exclude_modules", r".*\.1\.mlp\.down_proj", True)]


def check_options(zerotrain, scratch, text, text_path):
    base = make_base("llama-3.1", scratch)
    ini = settings(base, 1, "options", scratch, text_path, "")
    for key, value, is_known in OPTIONS:
        config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", **{key: value})
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
        with torch.no_grad():
            for p in model.parameters():
                p += 0.05 * torch.randn(p.shape) * p.requires_grad
        model.save_pretrained(scratch / "options.peft")
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), scratch / "options.peft")
        peft = float(loss_of(loaded, text))
        done = subprocess.run([zerotrain, "evaluate", "--json", "--resume", base, "--adapter", scratch / "options.peft", ini],
                              capture_output=True, text=True, timeout=300)
        good = done.returncode == 0 and abs(json.loads(done.stdout)["loss"] - peft) <= 2e-6 * peft if is_known else \
            done.returncode == 2 and f"{key} is {json.dumps(value)}" in done.stderr
        say(good, f"an adapter with {key} = {value} is {'loaded as by PEFT' if is_known else 'refused by that name'}")


def check_bf16(name, zerotrain, scratch, text, text_path):
    """Compares 100 steps in bf16 with PEFT's in fp32, and the distance with that of PEFT's in bf16. The base is in bf16."""
    rank, alpha, rslora, _, modules, ranks, stage = CASES[name]
    base, curves = scratch / f"{name}.half", {}
    AutoModelForCausalLM.from_pretrained(scratch / f"{name}.base", dtype=torch.bfloat16).save_pretrained(base)
    for dtype in (torch.float32, torch.bfloat16):
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), scratch / f"{name}.peft0",
                                          is_trainable=True)
        curves[dtype] = [loss for loss, _ in reference(model, text, BF16_STEPS)]
    ini = settings(base, BF16_STEPS, f"{name}-bf16", scratch, text_path, f"init = {scratch / name}.peft0", precision="bf16")
    ours = [loss for loss, _ in train(zerotrain, ini, ranks, stage)]
    exact = curves[torch.float32]
    far, spread = ((sum((a / b - 1)**2 for a, b in zip(curve, exact)) / BF16_STEPS)**0.5
                   for curve in (ours, curves[torch.bfloat16]))
    # Either is one draw of a few roundings: ours has been 1.1 and 1.2 of PEFT's.
    say(len(ours) == BF16_STEPS and far <= 1.5 * spread and exact[-1] < 0.95 * exact[0],
        f"{name}: losses of {BF16_STEPS} steps in bf16 are {far:.1e} from PEFT's in fp32 (rms), PEFT's in bf16 "
        f"{spread:.1e}; {exact[0]:.3f} to {exact[-1]:.3f}")


def main():
    zerotrain, scratch = sys.argv[1], pathlib.Path(sys.argv[2])
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    text = (pathlib.Path(__file__).resolve().parent / "tiny.txt").read_bytes()[:BATCH * SEQ + 1]
    (scratch / "lora.txt").write_bytes(text)
    for name in CASES:
        check(name, zerotrain, scratch, text, scratch / "lora.txt")
    check_options(zerotrain, scratch, text, scratch / "lora.txt")
    for name in BF16_CASES:
        check_bf16(name, zerotrain, scratch, text, scratch / "lora.txt")


main()
