#!/usr/bin/env python3
"""Makes small models of every family that zerotrain trains, as transformers saves them, and judges what zerotrain made
of them. tests/reference/run calls it.

    families.py make DIR TEXT SEQ_LEN     writes DIR/NAME for every row of MODELS; prints "NAME LOSS", LOSS on TEXT in fp32;
                                          writes DIR/NAME.losses, those of 20 steps of torch's AdamW, all of TEXT a step
    families.py check DIR TEXT SEQ_LEN    prints "NAME LOSS" of each checkpoint DIR/NAME.ck/latest; fails if one is of
                                          another class, or has lost a setting of the model it was made from
    families.py same DIR [NAME MODEL]...  prints "same: NAME" of each checkpoint DIR/NAME.ck/latest that has the tensors of
                                          the directory MODEL, to the byte, and "other: NAME: reason" of the others

Every tensor is random, also norms and biases, so that a missing part moves the loss.
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import (AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config,
                          Qwen3Config)

SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 112, "vocab_size": 256, "max_position_embeddings": 512, "bos_token_id": 3,
         "eos_token_id": [4, 5], "pad_token_id": 6}
PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
# With 64 positions, pairs of a head are in all three ranges of wavelengths.
LLAMA3 = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
# name: configuration, data type, bytes of a file (0: all in one)
MODELS = {
    "gpt2": (lambda: GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=64, resid_pdrop=0.0,
                                embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=3, eos_token_id=4), "float32", 0),
    "gpt2-fp16-sharded": (lambda: GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=64,
                                             resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=3,
                                             eos_token_id=4), "float16", 100000),
    "gpt2-cropped": (lambda: GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=100, resid_pdrop=0.0,
                                        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=3, eos_token_id=4), "float32", 0),
    "llama": (lambda: LlamaConfig(**SIZES, **PLAIN, **UNTIED), "float32", 0),
    "llama-bf16-sharded": (lambda: LlamaConfig(**SIZES, **PLAIN, **UNTIED), "bfloat16", 100000),
    "llama-3.1": (lambda: LlamaConfig(**SIZES, **LLAMA3, **UNTIED), "float32", 0),
    "llama-3.2": (lambda: LlamaConfig(**SIZES, **LLAMA3, **TIED), "bfloat16", 0),
    "llama-head_dim": (lambda: LlamaConfig(**SIZES, **PLAIN, **UNTIED, head_dim=24), "float32", 0),
    "smollm2": (lambda: LlamaConfig(**SIZES, **PLAIN, **TIED), "float32", 0),
    "smollm2-fp16-sharded": (lambda: LlamaConfig(**SIZES, **PLAIN, **TIED), "float16", 100000),
    "mistral": (lambda: MistralConfig(**SIZES, **PLAIN, **UNTIED, sliding_window=64), "float32", 0),
    "mistral-head_dim-bf16": (lambda: MistralConfig(**SIZES, **PLAIN, **UNTIED, head_dim=8, sliding_window=None),
                              "bfloat16", 100000),
    "mistral-window": (lambda: MistralConfig(**SIZES, **PLAIN, **UNTIED, sliding_window=20), "float32", 0),
    "qwen2-tied": (lambda: Qwen2Config(**SIZES, **PLAIN, **TIED), "float32", 0),
    "qwen2-bf16-sharded": (lambda: Qwen2Config(**SIZES, **PLAIN, **UNTIED), "bfloat16", 100000),
    "qwen3": (lambda: Qwen3Config(**SIZES, **PLAIN, **UNTIED, head_dim=24), "float32", 0),
    "llama-3.2-untied-fp16-sharded": (lambda: LlamaConfig(**SIZES, **LLAMA3, **UNTIED, head_dim=8), "float16", 100000),
    "qwen3-tied-bf16-sharded": (lambda: Qwen3Config(**SIZES, **PLAIN, **TIED, head_dim=16), "bfloat16", 100000),
}


def randomize(model, generator):
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = name.endswith("weight") and parameter.ndim == 1
        parameter.data = (1 if is_norm else 0) + 0.1 * noise


def mean_loss(model, text, seq_len):
    tokens = torch.tensor(list(text), dtype=torch.int64)
    batch = tokens.unfold(0, seq_len + 1, seq_len)
    with torch.no_grad():
        logits = model.eval()(input_ids=batch[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1).double(), batch[:, 1:].flatten()).item()


def train(model, text, seq_len, n_steps=20, lr=1e-3, weight_decay=0.1, clip=1.0):
    """Yields the loss of every step, as zerotrain trains with tests/reference/run's settings: matrices decay, other
    parameters do not."""
    batch = torch.tensor(list(text), dtype=torch.int64).unfold(0, seq_len + 1, seq_len)
    parameters = list(model.train().parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
                                   {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0}],
                                  lr=lr, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(n_steps):
        optimizer.zero_grad()
        logits = model(input_ids=batch[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in parameters))
        for p in parameters:
            p.grad *= min(1.0, clip / norm.item())
        optimizer.step()
        yield loss.item()


def make(folder, text, seq_len):
    for number, (name, (config, dtype, file_bytes)) in enumerate(MODELS.items()):
        model = AutoModelForCausalLM.from_config(config(), dtype=torch.float32)
        randomize(model, torch.Generator().manual_seed(number))
        model = model.to(getattr(torch, dtype))
        model.save_pretrained(folder / name, max_shard_size=file_bytes or "5GB")
        loaded = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
        print(f"{name} {mean_loss(loaded, text, seq_len):.9f}")
        (folder / f"{name}.losses").write_text("".join(f"{loss:.9g}\n" for loss in train(loaded, text, seq_len)))


def check(folder, text, seq_len):
    for name in MODELS:
        before = AutoModelForCausalLM.from_pretrained(folder / name)
        after, info = AutoModelForCausalLM.from_pretrained(folder / f"{name}.ck" / "latest", dtype=torch.float32,
                                                           output_loading_info=True)
        assert type(before) is type(after), f"{name}: {type(after)}"
        for key in before.config.to_dict().keys() - {"dtype", "_name_or_path", "transformers_version"}:
            kept, wanted = getattr(after.config, key, None), getattr(before.config, key)
            assert kept == wanted, f"{name}: {key} was {wanted} and is {kept}"
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], (name, info)
        print(f"{name} {mean_loss(after, text, seq_len):.9f}")


def tensors(folder):
    return {name: tensor for file in sorted(folder.glob("*model*.safetensors")) for name, tensor in load_file(file).items()}


def same(folder, name, model):
    ours, theirs = tensors(folder / f"{name}.ck" / "latest"), tensors(pathlib.Path(model))
    assert theirs and ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    for tensor, wanted in theirs.items():
        assert ours[tensor].dtype == wanted.dtype, f"{tensor} is {ours[tensor].dtype}, not {wanted.dtype}"
        assert torch.equal(ours[tensor].view(torch.uint8), wanted.view(torch.uint8)), f"{tensor} differs"


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "same":
        for name, model in zip(sys.argv[3::2], sys.argv[4::2]):
            try:
                same(pathlib.Path(sys.argv[2]), name, model)
                print(f"same: {name}")
            except (AssertionError, OSError, SafetensorError) as fault:
                print(f"other: {name}: {fault}")
        return
    command, folder, text, seq_len = sys.argv[1:]
    {"make": make, "check": check}[command](pathlib.Path(folder), pathlib.Path(text).read_bytes(), int(seq_len))


if __name__ == "__main__":
    main()
