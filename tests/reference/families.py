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
from transformers import (AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, GraniteConfig,
                          GraniteMoeHybridConfig, LlamaConfig, MinistralConfig, MistralConfig, Olmo2Config, Olmo3Config, Phi3Config, Qwen2Config, Qwen3Config,
                          SeedOssConfig, SmolLM3Config)

SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 112, "vocab_size": 256, "max_position_embeddings": 512, "bos_token_id": 3,
         "eos_token_id": [4, 5], "pad_token_id": 6}
FOUR_LAYERS = {**SIZES, "num_hidden_layers": 4}
SIX_LAYERS = {**SIZES, "num_hidden_layers": 6}
PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
# With 64 positions, pairs of a head are in all three ranges of wavelengths.
LLAMA3 = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
FULL, WINDOW = "full_attention", "sliding_attention"


def rope(kind, theta=5000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def rope_by_layer(full, local_theta):
    return {"rope_parameters": {FULL: full["rope_parameters"], WINDOW: rope("default", local_theta)["rope_parameters"]}}


# Granite 4 without experts and Mamba layers; what is said of those must fit together all the same.
DENSE4 = {**SIZES, "shared_intermediate_size": 80, "num_local_experts": 0, "layer_types": [FULL, FULL], "mamba_n_heads": 1}
YARN = rope("yarn", 500.0, factor=4.0, original_max_position_embeddings=32)
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
    "llama-biases": (lambda: LlamaConfig(**SIZES, **PLAIN, **UNTIED, attention_bias=True, mlp_bias=True), "float32", 0),
    "llama-linear": (lambda: LlamaConfig(**SIZES, **rope("linear", factor=4.0), **UNTIED), "float32", 0),
    "llama-yarn": (lambda: LlamaConfig(**SIZES, **YARN, **UNTIED), "float32", 0),
    "qwen3-biases": (lambda: Qwen3Config(**SIZES, **PLAIN, **UNTIED, head_dim=24, attention_bias=True), "float32", 0),
    "qwen3-yarn-bf16": (lambda: Qwen3Config(**SIZES, **rope(
        "yarn", 500.0, factor=4.0, original_max_position_embeddings=32, beta_fast=4.0, attention_factor=1.2,
        truncate=False), **TIED, head_dim=16), "bfloat16", 0),
    "qwen2-windows": (lambda: Qwen2Config(**SIZES, **PLAIN, **UNTIED, use_sliding_window=True, sliding_window=20,
                                          max_window_layers=1), "float32", 0),
    "qwen3-windows": (lambda: Qwen3Config(**SIZES, **PLAIN, **UNTIED, head_dim=24, use_sliding_window=True,
                                          sliding_window=20, layer_types=[WINDOW, FULL]), "float32", 0),
    "ministral": (lambda: MinistralConfig(**SIZES, head_dim=16, **PLAIN, **UNTIED, sliding_window=20, layer_types=[WINDOW, FULL]),
                  "float32", 0),
    "smollm3": (lambda: SmolLM3Config(**FOUR_LAYERS, **PLAIN, **TIED), "float32", 0),
    "smollm3-windows-bf16-sharded": (lambda: SmolLM3Config(**FOUR_LAYERS, **PLAIN, **UNTIED, attention_bias=True,
                                                           no_rope_layers=[1, 0, 1, 0], use_sliding_window=True,
                                                           sliding_window=20), "bfloat16", 100000),
    "phi3": (lambda: Phi3Config(**SIZES, **PLAIN, **UNTIED, sliding_window=20), "float32", 0),
    "phi4-mini": (lambda: Phi3Config(**SIZES, **rope(
        "longrope", 500.0, short_factor=[1.0, 1.1, 1.5, 2.0, 3.0, 5.0], long_factor=[2.0] * 6, partial_rotary_factor=0.75),
        **TIED, original_max_position_embeddings=128), "float32", 0),
    "granite": (lambda: GraniteConfig(**SIZES, **PLAIN, **TIED, embedding_multiplier=12.0, residual_multiplier=0.22,
                                      attention_multiplier=0.1, logits_scaling=8.0), "float32", 0),
    "granite-biases-bf16": (lambda: GraniteConfig(**SIZES, **PLAIN, **UNTIED, attention_bias=True, mlp_bias=True,
                                                  embedding_multiplier=3.0, residual_multiplier=0.5,
                                                  attention_multiplier=0.25, logits_scaling=2.0), "bfloat16", 0),
    "granite4": (lambda: GraniteMoeHybridConfig(**DENSE4, **PLAIN, **TIED, position_embedding_type="rope",
                                                embedding_multiplier=12.0, residual_multiplier=0.22,
                                                attention_multiplier=0.1, logits_scaling=8.0), "float32", 0),
    "granite4-unrotated-bf16-sharded": (lambda: GraniteMoeHybridConfig(**DENSE4, **UNTIED, attention_bias=True), "bfloat16",
                                        100000),
    "olmo2": (lambda: Olmo2Config(**SIZES, **PLAIN, **UNTIED), "float32", 0),
    "olmo2-bf16-sharded": (lambda: Olmo2Config(**{**SIZES, "num_key_value_heads": 4}, **PLAIN, **TIED), "bfloat16", 100000),
    "olmo3": (lambda: Olmo3Config(**FOUR_LAYERS, **UNTIED, **rope_by_layer(YARN, 5000.0), sliding_window=20), "float32", 0),
    "gemma3": (lambda: Gemma3TextConfig(**SIX_LAYERS, **TIED, head_dim=24, sliding_window=20, query_pre_attn_scalar=24,
                                        **rope_by_layer(rope("linear", 5000.0, factor=8.0), 100.0)), "float32", 0),
    "gemma3-scalar-bf16-sharded": (lambda: Gemma3TextConfig(
        **SIZES, **UNTIED, head_dim=16, sliding_window=20, query_pre_attn_scalar=10, layer_types=[WINDOW, FULL],
        **rope_by_layer(rope("default"), 100.0)), "bfloat16", 100000),
    "seed-oss": (lambda: SeedOssConfig(**SIZES, **PLAIN, **UNTIED, head_dim=24, attention_dropout=0.0,
                                       residual_dropout=0.0), "float32", 0),
    "seed-oss-biases-bf16": (lambda: SeedOssConfig(**SIZES, **PLAIN, **UNTIED, head_dim=16, attention_bias=False,
                                                   attention_out_bias=True, mlp_bias=True, attention_dropout=0.0,
                                                   residual_dropout=0.0), "bfloat16", 0),
    "llama-3.2-untied-fp16-sharded": (lambda: LlamaConfig(**SIZES, **LLAMA3, **UNTIED, head_dim=8), "float16", 100000),
    "qwen3-tied-bf16-sharded": (lambda: Qwen3Config(**SIZES, **PLAIN, **TIED, head_dim=16), "bfloat16", 100000),
}


def randomize(model, generator):
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = name.endswith("weight") and parameter.ndim == 1
        adds_one = model.config.model_type == "gemma3_text"  # itself, to the weights of norms
        parameter.data = (1 if is_norm and not adds_one else 0) + 0.1 * noise


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
