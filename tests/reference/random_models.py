#!/usr/bin/env python3
"""Draws tiny models of every family, with any keys of config.json that transformers reads: each is refused by name, or it
has transformers' losses before, during and after 5 steps of AdamW on any ranks and stage, its checkpoint is transformers'
model with the same settings, and its likeliest tokens are transformers'.

    random_models.py ZEROTRAIN FOLDER [--seed S] [--cases N] [--seconds T] [--family NAME]

Each case follows from its own number, which a failure names with the command that repeats it.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

import families
from documents import write_tokens
from random_configs import FULL, SEQUENCES, Case

STEPS, N_TOKENS = 5, 20


# ---- transformers

def save(case, folder):
    """Writes the model, as one file or several, and returns it in fp32."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case.config))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32,
                                             attn_implementation="eager")
    generator = torch.Generator().manual_seed(case.r.randrange(1 << 30))
    families.randomize(model, generator)
    tensors = {n: p.data.to(getattr(torch, case.dtype)).clone() for n, p in model.named_parameters()}
    names = sorted(tensors)
    if case.maybe(0.3):  # as the base model is saved, which has no head
        bare = {n: n.removeprefix(model.base_model_prefix + ".") for n in names}
        tensors = {bare[n]: tensors[n] for n in names}
        names = sorted(tensors)
    if case.maybe(0.15):
        for name in names[::3]:
            tensors[name] = tensors[name].float()
    if model.config.tie_word_embeddings and case.family != "gpt2" and case.maybe(0.2):  # a file may repeat the embedding
        tensors["lm_head.weight"] = tensors[next(n for n in names if "embed_tokens" in n)].clone()
        if case.maybe(0.3):
            tensors["lm_head.weight"][0, 0] += 1
            case.refused.add("lm_head")
    if case.maybe(0.2):  # old files have constants
        prefix = names[-1].split("layers.")[0].split("h.")[0] if case.family != "gpt2" else ""
        extra = "h.0.attn.bias" if case.family == "gpt2" else prefix + "layers.0.self_attn.rotary_emb.inv_freq"
        tensors[extra] = torch.ones(4)
    names = sorted(tensors)
    n_files = min(case.r.choice([1, 1, 2, 5]), len(names))
    parts = [names[i::n_files] for i in range(n_files)]
    files = ["model.safetensors"] if n_files == 1 else [f"model-{i + 1:05}-of-{n_files:05}.safetensors" for i in range(n_files)]
    for file, part in zip(files, parts):
        save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
    if n_files > 1:
        index = {"metadata": {"total_size": 1}, "weight_map": {n: f for f, part in zip(files, parts) for n in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if case.maybe(0.2):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": case.r.choice([9, [9, 10], None])}))
    return load(folder)


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
    left = {kind: [n for n in names if not n.endswith(("attn.bias", "inv_freq"))] for kind, names in info.items() if names}
    left = {kind: names for kind, names in left.items() if names}
    assert not left, f"transformers loads it with {left}"
    model.config.return_dict = True
    model.get_input_embeddings().padding_idx = None  # docs/limits.md: it is trained like any other
    return model.eval()


def scaling_of(config):
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get(FULL) or rope


def loss_of(model, rows):
    logits = model(input_ids=rows[0]).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), rows[1].flatten())


def train(model, rows):
    """Yields the loss before each step of AdamW, and after the last."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, rows)
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in parameters if p.grad is not None))
        for p in parameters:
            if p.grad is not None:
                p.grad *= min(1.0, 1.0 / norm.item())
        optimizer.step()
        yield loss.item()
    with torch.no_grad():
        yield loss_of(model, rows).item()


def spread(losses, case, folder, rows):
    """How far apart losses are if all weights are changed in their last bit: some of the models that are drawn are chaotic."""
    model = load(folder / "model")
    for p in model.parameters():
        p.data *= 1 + 1e-7 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    return max(abs(a - b) / b for a, b in zip(train(model, rows), losses))


# ---- zerotrain

def run_training(program, case, folder):
    data = folder / "data.tokens"
    write_tokens(data, case.tokens, case.begins, case.mask, case.config["vocab_size"])
    packing = "packing = pad" if case.packing == "pad" else f"packing = cut\ndocuments = {case.packing}"
    (folder / "cfg.ini").write_text(f"""[model]
init = {folder}/model
seq_len = {case.seq_len}
[data]
train = {data}
val = {data}
{packing}
[train]
steps = {STEPS}
global_batch = {SEQUENCES}
micro_batch = {case.micro_batch}
eval_batches = 1
lr = 1e-3
schedule = constant
warmup_steps = 0
eps = 1e-3
precision = fp32
[zero]
stage = {case.stage}
[checkpoint]
dir = {folder}/ck
[log]
metrics = {folder}/metrics
""")
    command = [program, folder / "cfg.ini"]
    if case.ranks > 1:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(case.ranks), *command]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (folder / "metrics").read_text().splitlines()] if run.returncode == 0 else []
    losses = [row["loss"] for row in rows if "loss" in row] + [row["val_loss"] for row in rows if "val_loss" in row]
    said = "\n".join(line for line in run.stderr.splitlines() if line.startswith("zerotrain: "))
    return run.returncode, losses, said


def differ(first, second, bound):
    return len(first) != len(second) or any(not abs(a - b) <= bound * abs(b) for a, b in zip(first, second))


def config_fault(case, folder, model):
    """Returns what the checkpoint's config.json says otherwise than the model's."""
    kept = json.loads((folder / "ck/latest/config.json").read_text())
    for key, value in case.config.items():
        if key not in ("dtype", "torch_dtype", "architectures", "max_position_embeddings", "rope_scaling", "rope_parameters",
                       "hidden_act") and (key not in kept or kept[key] != value):
            return f"its config.json has {key} = {kept.get(key, 'nothing')} instead of {value}"
    before, after = (AutoConfig.from_pretrained(folder / name).to_dict() for name in ("model", "ck/latest"))
    for config in (before, after):
        for key in ("dtype", "_name_or_path", "transformers_version", "architectures", "hidden_act"):
            config.pop(key, None)
    for key in before.keys() | after.keys():
        first, second = before.get(key), after.get(key)
        if key == "head_dim":
            first = first or before["hidden_size"] // before["num_attention_heads"]
        if key == "n_inner":
            first, second = first or 4 * before["n_embd"], second or 4 * before["n_embd"]
        if key == "rope_parameters" and (scaling_of(model.config).get("factor") == 1.0 or
                                         FULL in first and FULL not in before["layer_types"]):
            continue  # nothing is scaled, whatever the original length
        if key == "max_position_embeddings":
            if second != max(first, case.seq_len):
                return f"max_position_embeddings was {first} and is {second}, for sequences of {case.seq_len}"
        elif first != second:
            return f"transformers' configuration had {key} = {first} and has {second}"
    return None


def generate_fault(program, case, folder, model):
    prompt = [case.r.randint(97, 122) for _ in range(case.r.randint(1, 12))]
    n = N_TOKENS
    if case.family == "gpt2":
        n = min(n, case.config["n_positions"] - len(prompt))
    rope = scaling_of(model.config)
    if rope.get("rope_type") == "longrope":
        n = min(n, rope["original_max_position_embeddings"] - len(prompt))
    if n < 1:
        return None
    out = model.generate(torch.tensor([prompt]), max_new_tokens=n, do_sample=False, output_logits=True,
                         return_dict_in_generate=True, use_cache=False)
    wanted = out.sequences[0, len(prompt):].tolist()
    margins = [(top[0] - top[1]).item() for top in (step[0].topk(2).values for step in out.logits)]
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    if wanted and wanted[-1] in ends:
        wanted.pop()
    printed = [token if token > 31 and token != 127 or token in (9, 10) else ord("?") for token in wanted]
    printed = list(re.sub(rb"\xc2[\x80-\x9f]", b"?", bytes(printed)))  # two bytes of a control character
    run = subprocess.run([program, "generate", "--temperature", "0", "--max-tokens", str(n), "--prompt",
                          bytes(prompt).decode(), folder / "model"], capture_output=True, timeout=60, check=False)
    got = list(run.stdout[:-1])
    if run.returncode == 0 and got == printed:
        return None
    at = next((i for i, (a, b) in enumerate(zip(got, printed)) if a != b), min(len(got), len(printed)))
    if run.returncode == 0 and at < len(margins) and margins[at] < 1e-4:
        return None
    return f"generate {bytes(prompt).decode()}: {got} instead of {printed}, eos {ends}: {run.stderr.decode()[-500:]}"


def fault_of(program, case, folder):
    """Returns why zerotrain does not do what is wanted, or None; and which of the outcomes it was."""
    rows = case.rows()
    model = None
    try:
        model = save(case, folder / "model")
        losses = list(train(load(folder / "model"), rows))
        assert all(loss == loss for loss in losses), "its loss is NaN"
    except Exception as error:  # transformers' own, of any kind
        losses, reason = None, f"{type(error).__name__}: {str(error)[-300:]}"
    if model is None and not list((folder / "model").glob("*.safetensors")):
        return None, f"transformers fails: {reason} {case.config}"
    rope = scaling_of(model.config)
    if rope.get("rope_type") == "longrope" and rope["original_max_position_embeddings"] < case.seq_len:
        case.refused.add("original_max_position_embeddings")
    code, ours, said = run_training(program, case, folder)
    if code in (1, 2) and case.refused:
        return (None if any(key in said for key in case.refused) else f"a refusal that names none of {case.refused}: {said}"), "refused"
    if code in (1, 2) and any(key in said for key in case.may_refuse | case.refused):
        return None, "refused"
    if code not in (0, 1, 2) or not said.strip():
        return f"exit code {code}: {said}", "crash"
    if losses is None:
        return None, f"transformers fails on the model: {reason}; ours: {code} {said[-300:] if code else ''}"
    if code:
        return f"refused: {said}", "refused"
    if case.refused:
        return f"not refused: {case.refused}", "not refused"
    if differ(ours[:1], losses[:1], 1e-6) and differ(ours[:1], losses[:1], 2 * spread(losses, case, folder, rows)):
        return f"the first loss is {ours[0]:.9g} instead of {losses[0]:.9g}", "loss"
    if differ(ours, losses, 1e-5) and differ(ours, losses, 10 * spread(losses, case, folder, rows)):
        return f"losses are {ours} instead of {losses}", "losses"
    if (f"not heeded: " in said) != (case.unknown is not None) or (case.unknown and case.unknown not in said):
        return f"a line about unknown keys: {said}", "unknown"
    try:
        with torch.no_grad():
            again = loss_of(load(folder / "ck/latest"), rows).item()
    except Exception as error:
        return f"transformers cannot load the checkpoint: {error}", "checkpoint"
    if differ([again], ours[-1:], 1e-6):
        return f"the checkpoint's loss is {ours[-1]:.9g}, and transformers' {again:.9g}", "checkpoint"
    fault = config_fault(case, folder, model)
    if not fault and case.config["vocab_size"] == 256:
        fault = generate_fault(program, case, folder, model)
    return fault, "trained"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program"), parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1), parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=1e9), parser.add_argument("--family")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    os.environ["OMP_NUM_THREADS"] = "1"
    program, folder = os.path.abspath(args.program), pathlib.Path(args.folder).absolute() / "random_models"
    begin, n_failed, outcomes = time.monotonic(), 0, {}
    for seed in range(args.seed, args.seed + args.cases):
        if time.monotonic() - begin > args.seconds:
            break
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        case = Case(seed, args.family)
        try:
            fault, outcome = fault_of(program, case, folder)
        except subprocess.TimeoutExpired as error:
            fault, outcome = str(error), "hang"
        kind = outcome.split(":")[0]
        outcomes[kind] = outcomes.get(kind, 0) + 1
        if args.verbose and not fault:
            print(f"{seed} {case.family}: {outcome}", flush=True)
        if fault:
            n_failed += 1
            print(f"FAILED: {' '.join(sys.argv[:3])} --cases 1 --seed {seed}{f' --family {args.family}' if args.family else ''}: "
                  f"{case.config}, seq_len {case.seq_len}, {case.packing}, {case.ranks} ranks, stage {case.stage}: {fault}",
                  flush=True)
    print(f"{'FAILED' if n_failed else 'ok'}: random models: {sum(outcomes.values())} cases, {n_failed} failed: {outcomes}")
    sys.exit(n_failed > 0)


if __name__ == "__main__":
    main()
