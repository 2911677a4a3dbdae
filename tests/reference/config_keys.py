#!/usr/bin/env python3
"""Sets every key of config.json, for every family that zerotrain reads, to a value that is not its default, and compares
the loss with transformers'. tests/reference/run calls it.

    config_keys.py ZEROTRAIN DIR [FAMILY...]

The keys are those of transformers' configuration classes and those of src/train/hub/hf_keys.c: one that has no
value in CASES fails, so a new version's keys are noticed. Of each value CASES says what must hold:

    harmless    transformers' loss is that of the unchanged model, and so is ours, without a line about the key
    moves       transformers' loss is another, and ours is the same as its
    refused     zerotrain ends with exit code 1 or 2 and a line that names the key
    other       the same, but the line names what no longer fits: a tensor, or another key
    unknown     as harmless, with a line that names the key

Prints "ok: claim" or "FAILED: claim".
"""
import json
import os
import pathlib
import re
import subprocess
import sys

import torch
import torch.nn.functional as F
from transformers import (AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, GraniteConfig,
                          GraniteMoeHybridConfig, LlamaConfig, MinistralConfig, MistralConfig, Olmo2Config, Olmo3Config, Phi3Config, Qwen2Config, Qwen3Config,
                          SeedOssConfig, SmolLM3Config)
from transformers.utils import logging

SEQ_LEN = 64
SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 112, "vocab_size": 256, "max_position_embeddings": 512,
         "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
FULL, WINDOW, G4 = "full_attention", "sliding_attention", "granitemoehybrid"
BY_LAYER = {FULL: {"rope_type": "default", "rope_theta": 5000.0}, WINDOW: {"rope_type": "default", "rope_theta": 500.0}}
MODELS = {
    "gpt2": lambda: GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=SEQ_LEN, bos_token_id=3,
                               eos_token_id=4),
    "llama": lambda: LlamaConfig(**SIZES),
    "mistral": lambda: MistralConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=24),
    "ministral": lambda: MinistralConfig(**SIZES, head_dim=16, sliding_window=SEQ_LEN),
    "smollm3": lambda: SmolLM3Config(**{**SIZES, "num_hidden_layers": 4}, pad_token_id=0),
    "phi3": lambda: Phi3Config(**SIZES, pad_token_id=0),
    "seed_oss": lambda: SeedOssConfig(**SIZES, head_dim=24),
    "granite": lambda: GraniteConfig(**SIZES, attention_multiplier=0.2),
    G4: lambda: GraniteMoeHybridConfig(**SIZES, shared_intermediate_size=80, num_local_experts=0, layer_types=[FULL, FULL],
                                       position_embedding_type="rope", mamba_n_heads=1, attention_multiplier=0.2),
    "olmo2": lambda: Olmo2Config(**SIZES),
    "olmo3": lambda: Olmo3Config(**{**SIZES, "rope_parameters": BY_LAYER}, layer_types=[WINDOW, FULL], sliding_window=20),
    "gemma3_text": lambda: Gemma3TextConfig(**{**SIZES, "rope_parameters": BY_LAYER}, head_dim=24, sliding_window=20,
                                            layer_types=[WINDOW, FULL]),
}
# A Ministral is a Mistral with layer_types: so transformers reads one.
CLASSES = {"gpt2": [GPT2Config], "llama": [LlamaConfig], "mistral": [MistralConfig, MinistralConfig],
           "qwen2": [Qwen2Config], "qwen3": [Qwen3Config], "ministral": [MinistralConfig], "smollm3": [SmolLM3Config],
           "phi3": [Phi3Config], "seed_oss": [SeedOssConfig], "granite": [GraniteConfig], G4: [GraniteMoeHybridConfig],
           "olmo2": [Olmo2Config],
           "olmo3": [Olmo3Config], "gemma3_text": [Gemma3TextConfig]}
ONE_ROPE = ("llama", "mistral", "qwen2", "qwen3", "ministral", "smollm3", "seed_oss", "granite", G4, "olmo2")
BY_LAYERS = ("olmo3", "gemma3_text")  # whose layers with a window rotate otherwise
FULLY_ROTARY = (*ONE_ROPE, *BY_LAYERS)
ROTARY, QWEN = (*FULLY_ROTARY, "phi3"), ("qwen2", "qwen3")
ALL = ("gpt2", *ROTARY)
MISTRALS, WINDOWLESS = ("mistral", "ministral"), ("llama", "seed_oss", "granite", G4, "olmo2")
PLAIN = (*WINDOWLESS, "phi3")
TIED = ("smollm3", "gemma3_text")
EIGHT_PAIRS = ("llama", "mistral", "qwen2", "ministral", "smollm3", "phi3", "granite", G4, "olmo2")  # the others' heads are wider
GONE = object()  # the key is not in the file
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **more}}


def by_layer(kind, **more):
    return {"rope_parameters": {**BY_LAYER, kind: {**BY_LAYER[kind], **more}}}


# families, what must hold, keys with values; the first key is the one that is tested
CASES = [
    # ---- sizes and settings
    (ROTARY, "other", {"hidden_size": 32}), (tuple(f for f in ROTARY if f != G4), "other", {"intermediate_size": 96}),
    (ROTARY, "other", {"num_key_value_heads": 4}), (ROTARY, "other", {"num_attention_heads": 8}),
    (ROTARY, "other", {"num_hidden_layers": 3}), (ALL, "other", {"vocab_size": 250}),
    (ROTARY, "other", {"head_dim": 8}), (ROTARY, "moves", {"rms_norm_eps": 0.01}),
    (("gpt2",), "other", {"n_embd": 32}), (("gpt2",), "other", {"n_inner": 96}), (("gpt2",), "other", {"n_layer": 3}),
    (("gpt2",), "moves", {"n_head": 2}), (("gpt2",), "refused", {"n_positions": 32}),
    (("gpt2",), "moves", {"layer_norm_epsilon": 0.01}),
    (("gpt2",), "refused", {"hidden_size": 32}), (("gpt2",), "refused", {"num_attention_heads": 2}),
    (("gpt2",), "refused", {"num_hidden_layers": 1}), (("gpt2",), "refused", {"max_position_embeddings": 128}),
    (ALL, "refused", {"model_type": "gpt_neox"}), (("mistral",), "harmless", {"model_type": "ministral"}),
    (("gpt2",), "refused", {"tie_word_embeddings": False}), (tuple(f for f in ROTARY if f not in TIED), "other", {"tie_word_embeddings": True}),
    (TIED, "other", {"tie_word_embeddings": False}),
    # ---- what is computed
    (("gpt2",), "refused", {"activation_function": "gelu"}), (tuple(f for f in ROTARY if f != "gemma3_text"), "refused", {"hidden_act": "gelu"}),
    (("gpt2",), "refused", {"scale_attn_weights": False}), (("gpt2",), "harmless", {"reorder_and_upcast_attn": True}),
    (("gpt2",), "refused", {"scale_attn_by_inverse_layer_idx": True}),
    (("gpt2",), "refused", {"add_cross_attention": True}), (ROTARY, "harmless", {"add_cross_attention": True}),
    (("llama", "qwen3", "smollm3", "granite", G4, "olmo2", "olmo3", "gemma3_text"), "other", {"attention_bias": True}), (("seed_oss",), "other", {"attention_out_bias": True}),
    (("mistral", "qwen2", "ministral", "phi3"), "refused", {"attention_bias": True}),
    (("seed_oss",), "harmless", {"attention_bias": GONE}),
    (("llama", "smollm3", "seed_oss", "granite"), "other", {"mlp_bias": True}),
    (("mistral", "qwen2", "qwen3", "ministral", "phi3", G4, "olmo2", "olmo3", "gemma3_text"), "refused", {"mlp_bias": True}),
    (ALL, "refused", {"is_causal": False}), (ALL, "harmless", {"is_causal": True}),
    (ALL, "refused", {"is_encoder_decoder": True}), (ALL, "refused", {"pruned_heads": {"0": [1]}}),
    (ALL, "harmless", {"pruned_heads": {}}), (ALL, "refused", {"per_layer_config": {"0": {"vocab_size": 9}}}),
    (ALL, "refused", {"quantization_config": {"quant_method": "fp8"}}), (ALL, "harmless", {"quantization_config": None}),
    (ALL, "refused", {"compression_config": {"format": "dense"}}),
    # ---- rotary positions
    ((*ONE_ROPE, "phi3"), "moves", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    (ONE_ROPE, "moves", rope(**{"kind": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}})),
    ((*ONE_ROPE, "phi3"), "moves", {"rope_parameters": None}),  # theta is 10,000
    (ONE_ROPE, "moves", rope("linear", factor=2.0)), ((*ONE_ROPE, "phi3"), "refused", rope("dynamic", factor=2.0)),
    (ONE_ROPE, "moves", rope("yarn", factor=2.0, original_max_position_embeddings=64)),
    (ONE_ROPE, "moves", rope("yarn", factor=2.0)),  # max_position_embeddings are the original ones
    (ONE_ROPE, "moves", rope("yarn", factor=2.0, beta_fast=8.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=0.5,
                                 original_max_position_embeddings=64)),
    (("phi3",), "refused", rope("linear", factor=2.0)),
    (EIGHT_PAIRS, "moves", rope("longrope", factor=2.0, short_factor=[1.5] * 8, long_factor=[2.0] * 8)),
    (EIGHT_PAIRS, "moves", rope("longrope", short_factor=[1.0 + 0.1 * i for i in range(8)], long_factor=[2.0] * 8,
                                attention_factor=1.1)),
    (ONE_ROPE, "other", rope("longrope", factor=2.0, short_factor=[1.5] * 8, long_factor=[2.0] * 8,
                                   original_max_position_embeddings=32)),
    (("phi3",), "refused", {"original_max_position_embeddings": 32, **rope(
        "longrope", short_factor=[1.5] * 8, long_factor=[2.0] * 8)}),
    (("phi3",), "harmless", {"original_max_position_embeddings": 32}),
    (("phi3",), "moves", rope("default", partial_rotary_factor=0.5)),
    (("phi3",), "moves", {"partial_rotary_factor": 0.5, "rope_parameters": GONE, "rope_theta": 5000.0}),
    ((*ONE_ROPE, "phi3"), "refused", {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 50.0}}}),
    (FULLY_ROTARY, "refused", {"partial_rotary_factor": 0.5}), (ROTARY, "harmless", {"partial_rotary_factor": 1.0}),
    ((*ONE_ROPE, "phi3"), "refused", {"rope_theta": 50.0}), ((*ONE_ROPE, "phi3"), "harmless", {"rope_theta": 5000}),
    ((*ONE_ROPE, "phi3"), "moves", {"rope_theta": 50.0, "rope_parameters": GONE}),
    ((*ONE_ROPE, "phi3"), "refused", {"rope_scaling": LLAMA3}),
    (ONE_ROPE, "moves", {"rope_scaling": LLAMA3, "rope_theta": 500.0, "rope_parameters": GONE}),
    (ONE_ROPE, "moves", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500.0, "rope_parameters": GONE}),
    (ONE_ROPE, "moves", {"rope_scaling": {**LLAMA3, "rope_theta": 5000.0},
                       "rope_parameters": {**LLAMA3, "rope_theta": 5000.0}}),
    ((*ONE_ROPE, "phi3"), "refused", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    (FULLY_ROTARY, "refused", {"original_max_position_embeddings": 32}), (ROTARY, "refused", {"rope_interleaved": True}),
    (ROTARY, "refused", {"use_mrope": True}), (ROTARY, "harmless", {"max_position_embeddings": 32}),
    (BY_LAYERS, "moves", by_layer(FULL, rope_theta=50.0)), (BY_LAYERS, "moves", by_layer(WINDOW, rope_theta=50.0)),
    (BY_LAYERS, "moves", by_layer(FULL, rope_type="linear", factor=4.0)),
    (BY_LAYERS, "moves", by_layer(FULL, rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    (BY_LAYERS, "refused", by_layer(WINDOW, rope_type="linear", factor=4.0)),
    (BY_LAYERS, "refused", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    (BY_LAYERS, "moves", {"rope_theta": 50.0, "rope_parameters": GONE}),
    (BY_LAYERS, "refused", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    (("gemma3_text",), "moves", {"rope_local_base_freq": 50.0, "rope_parameters": GONE}),
    (("gemma3_text",), "moves", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_parameters": GONE}),
    # ---- multipliers and Gemma's own
    (("granite", G4), "moves", {"embedding_multiplier": 3.0}), (("granite", G4), "moves", {"residual_multiplier": 0.3}),
    (("granite", G4), "moves", {"attention_multiplier": 0.5}), (("granite", G4), "moves", {"logits_scaling": 4.0}),
    ((G4,), "other", {"shared_intermediate_size": 96}), ((G4,), "harmless", {"intermediate_size": 96}),
    ((G4,), "refused", {"num_local_experts": 2}), ((G4,), "refused", {"num_local_experts": GONE}),
    ((G4,), "refused", {"layer_types": GONE}), ((G4,), "refused", {"layer_types": [FULL, "linear_attention"]}),
    ((G4,), "harmless", {"layer_types": ["attention", "attention"]}),
    ((G4,), "moves", {"position_embedding_type": None}), ((G4,), "moves", {"position_embedding_type": "nope"}),
    ((G4,), "harmless", {"mamba_n_heads": 2, "mamba_d_head": "auto"}),
    ((G4,), "harmless", {"output_router_logits": False}),  # true asks transformers for routers' outputs, of which it has none
    ((G4,), "harmless", {"mamba_expand": 4, "mamba_d_head": "auto"}),
    (("gemma3_text",), "moves", {"query_pre_attn_scalar": 5}),
    (("gemma3_text",), "refused", {"final_logit_softcapping": 20.0}),
    (("gemma3_text",), "refused", {"attn_logit_softcapping": 20.0}),
    (("gemma3_text",), "refused", {"use_bidirectional_attention": True}),
    (("gemma3_text",), "refused", {"hidden_activation": "gelu"}),
    (BY_LAYERS, "moves", {"sliding_window": 5}), (BY_LAYERS, "moves", {"layer_types": [WINDOW, WINDOW]}),
    (("gemma3_text",), "moves", {"sliding_window_pattern": 1, "layer_types": GONE}),
    (("gemma3_text",), "harmless", {"_sliding_window_pattern": 1}),
    (("gemma3_text",), "harmless", {"cache_implementation": "hybrid"}),
    # ---- windows
    (("mistral",), "moves", {"sliding_window": 20}), (("mistral",), "harmless", {"sliding_window": None}),
    (("mistral",), "moves", {"layer_types": [WINDOW, WINDOW], "sliding_window": 20}),
    (MISTRALS, "moves", {"sliding_window": 20, "layer_types": [FULL, WINDOW]}),
    (MISTRALS, "harmless", {"sliding_window": 20, "layer_types": [FULL, FULL]}),
    (("ministral",), "moves", {"sliding_window": 20, "layer_types": GONE}), (("phi3",), "moves", {"sliding_window": 20}),
    (MISTRALS, "refused", {"sliding_window": None, "layer_types": [WINDOW, WINDOW]}),
    (("mistral",), "harmless", {"layer_types": [FULL, WINDOW], "sliding_window": SEQ_LEN}),
    (("mistral",), "refused", {"layer_types": [FULL]}),
    ((*MISTRALS, *QWEN), "refused", {"layer_types": [FULL, "chunked_attention"]}),
    (QWEN, "harmless", {"sliding_window": 20}), (QWEN, "harmless", {"max_window_layers": 0}),
    (QWEN, "harmless", {"use_sliding_window": True}),
    (QWEN, "moves", {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 1, "layer_types": GONE}),
    (QWEN, "harmless", {"sliding_window": SEQ_LEN, "use_sliding_window": True, "max_window_layers": 1,
                        "layer_types": GONE}),
    (QWEN, "harmless", {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 2, "layer_types": GONE}),
    (QWEN, "moves", {"sliding_window": 20, "use_sliding_window": True, "layer_types": [FULL, WINDOW]}),
    (QWEN, "refused", {"sliding_window": 20, "layer_types": [FULL, WINDOW]}),
    (("smollm3",), "moves", {"no_rope_layers": [1, 1, 1, 1]}), (("smollm3",), "refused", {"no_rope_layers": [1, 1]}),
    (("smollm3",), "moves", {"no_rope_layer_interval": 2, "no_rope_layers": GONE}),
    (("smollm3",), "harmless", {"no_rope_layer_interval": 2}), (("smollm3",), "harmless", {"sliding_window": 20}),
    (("smollm3",), "moves", {"use_sliding_window": True, "sliding_window": 20, "layer_types": GONE}),
    (("smollm3",), "moves", {"layer_types": [WINDOW, FULL, FULL, WINDOW], "use_sliding_window": True, "sliding_window": 20}),
    (("smollm3",), "refused", {"layer_types": [WINDOW, FULL, FULL, WINDOW], "sliding_window": None}),
    (WINDOWLESS, "unknown", {"sliding_window": 20}), (PLAIN, "harmless", {"layer_types": [FULL, FULL]}),
    (PLAIN, "refused", {"layer_types": [FULL, WINDOW], "sliding_window": 20}),
    # ---- what no class knows
    (ALL, "unknown", {"attention_sinks": 4}), (("llama",), "unknown", {"use_sliding_window": True}),
]
# Keys that change no loss, each with another value than its default.
HARMLESS = {
    "_attn_implementation": "eager", "_attn_implementation_autoset": True, "_commit_hash": "0", "_name_or_path": "x",
    "_num_labels": 3, "architectures": ["SomeModel"], "attention_dropout": 0.5, "attn_implementation": "eager",
    "attn_pdrop": 0.5, "bad_words_ids": [[1]], "begin_suppress_tokens": [1], "bos_token_id": 32,
    "chunk_size_feed_forward": 3, "classifier_dropout": 0.5, "cross_attention_hidden_size": 8,
    "decoder_start_token_id": 5, "diversity_penalty": 0.5, "do_sample": True, "dtype": "float16", "early_stopping": True,
    "embd_pdrop": 0.5, "encoder_no_repeat_ngram_size": 2, "eos_token_id": 33, "exponential_decay_length_penalty": [5, 1.5],
    "finetuning_task": "x", "forced_bos_token_id": 5, "forced_eos_token_id": 5, "gradient_checkpointing": True,
    "id2label": {"0": "a", "1": "b", "2": "c"}, "initializer_range": 1.0, "is_decoder": True, "is_llama_config": True,
    "keys_to_ignore_at_inference": ["x"], "label2id": {"a": 0, "b": 1, "c": 2}, "length_penalty": 2.0, "mamba_chunk_size": 128, "mamba_conv_bias": False, "mamba_d_conv": 2,
    "mamba_d_state": 128, "mamba_n_groups": 2, "mamba_proj_bias": True, "num_experts_per_tok": 1,
    "router_aux_loss_coef": 0.5, "time_step_limit": [0.0, 1.0], "max_length": 9,
    "min_length": 9, "n_ctx": 32, "name_or_path": "x", "no_repeat_ngram_size": 2, "num_beam_groups": 2, "num_beams": 2,
    "num_labels": 3, "num_return_sequences": 2, "output_attentions": True, "output_hidden_states": True,
    "output_past": False, "output_scores": True, "pad_token_id": 32, "prefix": "x", "pretraining_tp": 2,
    "problem_type": "regression", "remove_invalid_values": True, "repetition_penalty": 2.0, "residual_dropout": 0.5, "resid_pdrop": 0.5,
    "return_dict": False, "return_dict_in_generate": True, "sep_token_id": 32, "summary_activation": "tanh",
    "summary_first_dropout": 0.5, "summary_proj_to_labels": False, "summary_type": "last", "summary_use_proj": False,
    "suppress_tokens": [1], "task_specific_params": {"x": 1}, "temperature": 2.0, "tf_legacy_loss": True,
    "tie_encoder_decoder": True, "tokenizer_class": "x", "top_k": 3, "top_p": 0.5, "torch_dtype": "float16",
    "torchscript": True, "transformers.js_config": {"x": 1}, "transformers_version": "4.30.0", "typical_p": 0.5,
    "unsloth_fixed": True, "unsloth_version": "x", "use_bfloat16": True, "use_cache": False,
}


def table_keys(family):
    """Returns the keys that hf_keys.c has for a family, with their kinds."""
    source = (pathlib.Path(__file__).parents[2] / "src/train/hub/hf_keys.c").read_text()
    sets = {"EVERY": set(ALL), "ROTARY": set(ROTARY), "GPT2": {"gpt2"}, "MISTRAL": {"mistral"}, "QWEN2": {"qwen2"},
            "QWEN3": {"qwen3"}, "MINISTRAL": {"ministral"}, "SMOLLM3": {"smollm3"}, "PHI3": {"phi3"}, "SEED_OSS": {"seed_oss"},
            "GRANITE": {"granite"}, "GRANITE4": {G4}, "OLMO2": {"olmo2"}, "OLMO3": {"olmo3"}, "GEMMA3": {"gemma3_text"}, "FULLY_ROTARY": set(FULLY_ROTARY), "WINDOWED": set(ROTARY) - set(WINDOWLESS)}
    rows = re.findall(r'^    \{"([^"]+)", ([A-Z0-9_ |]+), (ANY|READ|ONE|SAME),', source, re.M)
    assert len(rows) > 90, len(rows)
    return {key: use for key, names, use in rows if family in set().union(*(sets[n] for n in names.split(" | ")))}


def cases_of(family):
    cases = [(wanted, changes) for families, wanted, changes in CASES if family in families]
    table = table_keys(family)
    of_class = set().union(*(cls().to_dict() for cls in CLASSES[family]))
    tested = {key for _, changes in cases for key in changes}
    for key in sorted((of_class | table.keys()) - tested):
        if key in HARMLESS:
            cases.append(("harmless", {key: HARMLESS[key]}))
        else:
            yield "FAILED", f"{key} has no value in CASES"
    yield from cases


class Reference:
    """A model of a family, whose config.json is changed, and its losses by transformers and by zerotrain."""

    def __init__(self, family, number, zerotrain, folder):
        self.zerotrain, self.folder = zerotrain, folder / family
        model = AutoModelForCausalLM.from_config(MODELS[family](), dtype=torch.float32)
        generator = torch.Generator().manual_seed(number)
        for name, parameter in model.named_parameters():  # also norms and biases, so that a missing part moves the loss
            is_norm = name.endswith("weight") and parameter.ndim == 1
            parameter.data = (1 if is_norm else 0) + 0.1 * torch.randn(parameter.shape, generator=generator)
        model.save_pretrained(self.folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        text = torch.randint(32, 127, (8 * SEQ_LEN + 1,), generator=generator)
        self.batch = text.unfold(0, SEQ_LEN + 1, SEQ_LEN)
        (folder / "text").write_bytes(bytes(text.tolist()))
        self.ini = folder / "cfg.ini"
        self.ini.write_text(f"[model]\nseq_len = {SEQ_LEN}\n[data]\ntrain = {folder}/text\nval = {folder}/text\n"
                            "[train]\nmicro_batch = 8\nprecision = fp32\n")

    def change(self, changes):
        config = {key: value for key, value in {**self.config, **changes}.items() if value is not GONE}
        (self.folder / "config.json").write_text(json.dumps(config))

    def theirs(self):
        model, info = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32, output_loading_info=True)
        assert not info["missing_keys"] and not info["mismatched_keys"], info
        model.config.return_dict = True  # forward of some families needs it
        with torch.no_grad():
            logits = model.eval()(input_ids=self.batch[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1).double(), self.batch[:, 1:].flatten()).item()

    def ours(self):
        run = subprocess.run([self.zerotrain, "evaluate", "--json", "--set", f"model.init={self.folder}", self.ini],
                             capture_output=True, text=True, timeout=60, check=False)
        return run.returncode, json.loads(run.stdout)["loss"] if run.returncode == 0 else None, run.stderr

    def fault(self, wanted, changes):
        """Returns why zerotrain does not do what is wanted; None if it does."""
        key = next(iter(changes))
        self.change(changes)
        code, loss, said = self.ours()
        if wanted in ("refused", "other"):
            names_it = wanted == "other" or any(name in said for name in changes)
            return None if code in (1, 2) and said.strip() and names_it else f"exit code {code}, loss {loss}: {said.strip()}"
        if code != 0:
            return f"exit code {code}: {said.strip()}"
        if (f"not heeded: {key}" in said) != (wanted == "unknown"):
            return f"it says: {said.strip()}"
        theirs = self.theirs()
        if abs(loss - theirs) > 1e-6 * theirs:
            return f"our loss is {loss:.9g}, transformers' {theirs:.9g}"
        has_moved = abs(theirs - self.base) > 1e-5 * self.base
        if has_moved != (wanted == "moves"):
            return f"transformers' loss is {theirs:.9g}, and {self.base:.9g} of the unchanged model"
        return None


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    os.environ["OMP_NUM_THREADS"] = "1"
    zerotrain, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).absolute()
    only = sys.argv[3:] or MODELS
    for number, family in enumerate(MODELS):
        if family not in only:
            continue
        reference, n_good = Reference(family, number, zerotrain, folder), 0
        reference.base = reference.theirs()
        for wanted, changes in cases_of(family):
            try:
                fault = changes if wanted == "FAILED" else reference.fault(wanted, changes)
            except Exception as error:  # transformers' own, of any kind
                fault = f"{type(error).__name__}: {error}"
            n_good += not fault
            if fault:
                shown = {k: "(none)" if v is GONE else v for k, v in changes.items()} if wanted != "FAILED" else ""
                print(f"FAILED: config.json of {family}: {shown} ({wanted}): {fault}")
        print(f"ok: config.json of {family}: {n_good} values of its keys do what transformers does, or are refused")


if __name__ == "__main__":
    main()
