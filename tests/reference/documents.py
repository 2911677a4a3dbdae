"""Compares [data] documents = separate with transformers, whose attention gets a block-diagonal mask and whose positions
are counted from where a document begins: the losses of 20 steps of AdamW on packed sequences. And packing = fit with
every document alone in a batch that is padded: loss and norm of each step.

    documents.py ZEROTRAIN FOLDER        files are written below FOLDER
"""
import json
import os
import random
import struct
import subprocess
import sys

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

import families

SEQ_LEN, N_SEQUENCES, N_STEPS = 48, 6, 20
COMMON = dict(vocab_size=256, bos_token_id=None, eos_token_id=None)
LLAMA = dict(COMMON, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512)
MODELS = {
    "gpt2": GPT2Config(**COMMON, n_embd=64, n_layer=2, n_head=4, n_positions=60, resid_pdrop=0.0, embd_pdrop=0.0,
                       attn_pdrop=0.0),
    "llama": LlamaConfig(**LLAMA),
    "mistral-window": MistralConfig(**LLAMA, sliding_window=7),
    "qwen3": Qwen3Config(**LLAMA, head_dim=24),
}
CONFIG = """[model]
init = {0}
seq_len = {1}
[data]
train = {2}
{5}
[train]
steps = {3}
global_batch = {4}
lr = 1e-3
schedule = constant
warmup_steps = 0
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.95
eps = 1e-8
grad_clip = 1
precision = fp32
[log]
metrics = {0}.metrics
"""


def write_tokens(path, tokens, begins, mask=None, vocab_size=256):
    """The format of src/train/data/token_format.h."""
    data = struct.pack("<8sIIQQQQI12x", b"ZEROTOK", 1, 2, len(tokens), vocab_size, 0, len(begins), mask is not None)
    data += struct.pack(f"<{len(tokens)}H", *tokens)
    data += bytes(-len(data) % 8) + struct.pack(f"<{len(begins)}Q", *begins)
    if mask is not None:
        data += sum(bit << i for i, bit in enumerate(mask)).to_bytes((len(mask) + 7) // 8, "little")
    with open(path, "wb") as file:
        file.write(data)


def pack(tokens, begins):
    """Returns inputs, targets (-100: none), positions and which keys each query sees, of all sequences."""
    document = torch.cumsum(torch.isin(torch.arange(len(tokens)), torch.tensor(begins)), 0)
    all_tokens = torch.tensor(tokens).unfold(0, SEQ_LEN + 1, SEQ_LEN)
    all_documents = document.unfold(0, SEQ_LEN + 1, SEQ_LEN)
    inputs, own = all_tokens[:, :-1], all_documents[:, :-1]
    targets = all_tokens[:, 1:].masked_fill(all_documents[:, 1:] != own, -100)
    same = own[:, :, None] == own[:, None, :]
    at = torch.arange(SEQ_LEN)
    seen = same & (at[:, None] >= at[None, :])
    return inputs, targets, seen.sum(-1) - 1, seen


def apart(tokens, begins, mask):
    """As pack, with every document in a row of its own, of at most SEQ_LEN + 1 tokens, and padding."""
    rows = [(tokens[a:b][:SEQ_LEN + 1], mask[a:b]) for a, b in zip(begins, begins[1:] + [len(tokens)]) if b - a > 1]
    inputs = torch.zeros(len(rows), SEQ_LEN, dtype=torch.long)
    targets = torch.full_like(inputs, -100)
    for i, (row, counts) in enumerate(rows):
        inputs[i, :len(row) - 1] = torch.tensor(row[:-1])
        targets[i, :len(row) - 1] = torch.tensor([t if c else -100 for t, c in zip(row[1:], counts[1:])])
    at = torch.arange(SEQ_LEN)
    seen = (at[:, None] >= at[None, :]).expand(len(rows), SEQ_LEN, SEQ_LEN)
    return inputs, targets, seen.sum(-1) - 1, seen


def losses_of(model, config, batch, n_steps):
    inputs, targets, positions, seen = batch
    window = getattr(config, "sliding_window", None)
    if window:
        at = torch.arange(SEQ_LEN)
        seen = seen & (at[:, None] - at[None, :] < window)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
    parameters = list(model.train().parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(n_steps):
        optimizer.zero_grad()
        logits = model(input_ids=inputs, position_ids=positions, attention_mask=mask).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in parameters))
        for p in parameters:
            p.grad *= min(1.0, 1.0 / norm.item())
        optimizer.step()
        yield loss.item(), norm.item()


def train(program, path, data, n_sequences, setting):
    """Returns loss and norm of every step on 2 ranks, and what the run said."""
    with open(path + ".ini", "w", encoding="utf-8") as file:
        file.write(CONFIG.format(path, SEQ_LEN, data, N_STEPS, n_sequences, setting))
    run = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", program, path + ".ini"],
                         capture_output=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    said = run.stderr.decode()
    if run.returncode:
        return [], said
    with open(path + ".metrics", encoding="utf-8") as file:
        return [(row["loss"], row["grad_norm"]) for row in map(json.loads, file) if "loss" in row], said


def compare(claim, got, wanted, said):
    worst = max((abs(a - b) / b for x, y in zip(got, wanted) for a, b in zip(x, y)), default=1.0)
    good = len(got) == N_STEPS and worst < 1e-5
    print(f"ok: {claim}, within {worst:.1e}" if good else f"FAILED: {claim}: {got} instead of {wanted} {said[-2000:]}",
          flush=True)
    return good


def main():
    torch.set_num_threads(1)
    program, folder = sys.argv[1:]
    random.seed(1)
    n_tokens = SEQ_LEN * N_SEQUENCES + 1
    tokens = [random.randrange(256) for _ in range(n_tokens)]
    begins = [0] + [i for i in range(1, n_tokens) if random.random() < 0.12]
    mask = [random.random() < 0.6 for _ in tokens]
    for i in range(begins[-3], begins[-2]):  # one document that teaches nothing
        mask[i] = False
    joined, masked = os.path.join(folder, "documents.tokens"), os.path.join(folder, "masked.tokens")
    write_tokens(joined, tokens, begins)
    write_tokens(masked, tokens, begins, mask)
    failed = 0
    for number, (name, config) in enumerate(MODELS.items()):
        path = os.path.join(folder, "documents-" + name)

        def random_model():
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
            families.randomize(model, torch.Generator().manual_seed(number))
            return model
        random_model().save_pretrained(path)
        got, said = train(program, path, joined, N_SEQUENCES, "documents = separate")
        failed += not compare(f"documents apart, {name}: {N_STEPS} steps are torch's with a block-diagonal mask", got,
                              list(losses_of(random_model(), config, pack(tokens, begins), N_STEPS)), said)
        _, said = train(program, path, masked, 2, "packing = fit")
        n_packed = int(said.split(" documents in ")[1].split()[0])
        got, said = train(program, path, masked, n_packed, "packing = fit")
        failed += not compare(f"packed whole, {name}: {N_STEPS} steps are torch's with each document alone", got,
                              list(losses_of(random_model(), config, apart(tokens, begins, mask), N_STEPS)), said)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
