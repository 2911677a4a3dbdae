#!/usr/bin/env python3
"""Sets every key of config.json, for every family that zerotrain reads, to a value that is not its default, and compares
the loss with transformers'. tests/reference/run calls it.

    config_keys.py ZEROTRAIN DIR

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
from transformers import (AutoModelForCausalLM, GPT2Config, LlamaConfig, MinistralConfig, MistralConfig, Qwen2Config,
                          Qwen3Config)
from transformers.utils import logging

SEQ_LEN = 64
SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 112, "vocab_size": 256, "max_position_embeddings": 512,
         "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
MODELS = {
    "gpt2": lambda: GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=SEQ_LEN, bos_token_id=3,
                               eos_token_id=4),
    "llama": lambda: LlamaConfig(**SIZES),
    "mistral": lambda: MistralConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=24),
}
# A Ministral is a Mistral with layer_types: so transformers reads one.
CLASSES = {"gpt2": [GPT2Config], "llama": [LlamaConfig], "mistral": [MistralConfig, MinistralConfig],
           "qwen2": [Qwen2Config], "qwen3": [Qwen3Config]}
ROTARY, QWEN = ("llama", "mistral", "qwen2", "qwen3"), ("qwen2", "qwen3")
ALL = ("gpt2", *ROTARY)
GONE = object()  # the key is not in the file
FULL, WINDOW = "full_attention", "sliding_attention"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **more}}


# families, what must hold, keys with values; the first key is the one that is tested
CASES = [
    # ---- sizes and settings
    (ROTARY, "other", {"hidden_size": 32}), (ROTARY, "other", {"intermediate_size": 96}),
    (ROTARY, "other", {"num_key_value_heads": 4}), (ROTARY, "other", {"num_attention_heads": 8}),
    (ROTARY, "other", {"num_hidden_layers": 3}), (ALL, "other", {"vocab_size": 250}),
    (ROTARY, "other", {"head_dim": 8}), (ROTARY, "moves", {"rms_norm_eps": 0.01}),
    (("gpt2",), "other", {"n_embd": 32}), (("gpt2",), "other", {"n_inner": 96}), (("gpt2",), "other", {"n_layer": 3}),
    (("gpt2",), "moves", {"n_head": 2}), (("gpt2",), "refused", {"n_positions": 32}),
    (("gpt2",), "moves", {"layer_norm_epsilon": 0.01}),
    (("gpt2",), "refused", {"hidden_size": 32}), (("gpt2",), "refused", {"num_attention_heads": 2}),
    (("gpt2",), "refused", {"num_hidden_layers": 1}), (("gpt2",), "refused", {"max_position_embeddings": 128}),
    (ALL, "refused", {"model_type": "gpt_neox"}), (("mistral",), "refused", {"model_type": "ministral"}),
    (("gpt2",), "refused", {"tie_word_embeddings": False}), (ROTARY, "other", {"tie_word_embeddings": True}),
    # ---- what is computed
    (("gpt2",), "refused", {"activation_function": "gelu"}), (ROTARY, "refused", {"hidden_act": "gelu"}),
    (("gpt2",), "refused", {"scale_attn_weights": False}), (("gpt2",), "harmless", {"reorder_and_upcast_attn": True}),
    (("gpt2",), "refused", {"scale_attn_by_inverse_layer_idx": True}),
    (("gpt2",), "refused", {"add_cross_attention": True}), (ROTARY, "harmless", {"add_cross_attention": True}),
    (ROTARY, "refused", {"attention_bias": True}), (ROTARY, "refused", {"mlp_bias": True}),
    (ALL, "refused", {"is_causal": False}), (ALL, "harmless", {"is_causal": True}),
    (ALL, "refused", {"is_encoder_decoder": True}), (ALL, "refused", {"pruned_heads": {"0": [1]}}),
    (ALL, "harmless", {"pruned_heads": {}}), (ALL, "refused", {"per_layer_config": {"0": {"vocab_size": 9}}}),
    (ALL, "refused", {"quantization_config": {"quant_method": "fp8"}}), (ALL, "harmless", {"quantization_config": None}),
    (ALL, "refused", {"compression_config": {"format": "dense"}}),
    # ---- rotary positions
    (ROTARY, "moves", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    (ROTARY, "moves", rope(**{"kind": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}})),
    (ROTARY, "moves", {"rope_parameters": None}),  # theta is 10,000
    (ROTARY, "refused", rope("linear", factor=2.0)), (ROTARY, "refused", rope("dynamic", factor=2.0)),
    (ROTARY, "refused", rope("yarn", factor=2.0, original_max_position_embeddings=64)),
    (ROTARY, "refused", rope("longrope", factor=2.0, short_factor=[1.0] * 8, long_factor=[2.0] * 8)),
    (ROTARY, "refused", {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 50.0}}}),
    (ROTARY, "refused", {"partial_rotary_factor": 0.5}), (ROTARY, "harmless", {"partial_rotary_factor": 1.0}),
    (ROTARY, "refused", {"rope_theta": 50.0}), (ROTARY, "harmless", {"rope_theta": 5000}),
    (ROTARY, "moves", {"rope_theta": 50.0, "rope_parameters": GONE}),
    (ROTARY, "refused", {"rope_scaling": LLAMA3}),
    (ROTARY, "moves", {"rope_scaling": LLAMA3, "rope_theta": 500.0, "rope_parameters": GONE}),
    (ROTARY, "moves", {"rope_scaling": {**LLAMA3, "rope_theta": 5000.0},
                       "rope_parameters": {**LLAMA3, "rope_theta": 5000.0}}),
    (ROTARY, "refused", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    (ROTARY, "refused", {"original_max_position_embeddings": 32}), (ROTARY, "refused", {"rope_interleaved": True}),
    (ROTARY, "refused", {"use_mrope": True}), (ROTARY, "harmless", {"max_position_embeddings": 32}),
    # ---- windows
    (("mistral",), "moves", {"sliding_window": 20}), (("mistral",), "harmless", {"sliding_window": None}),
    (("mistral",), "moves", {"layer_types": [WINDOW, WINDOW], "sliding_window": 20}),
    (("mistral",), "refused", {"sliding_window": 20, "layer_types": [FULL, WINDOW]}),
    (("mistral",), "refused", {"sliding_window": 20, "layer_types": [FULL, FULL]}),
    (("mistral",), "refused", {"sliding_window": None, "layer_types": [WINDOW, WINDOW]}),
    (("mistral",), "harmless", {"layer_types": [FULL, WINDOW], "sliding_window": SEQ_LEN}),
    (("mistral",), "refused", {"layer_types": [FULL]}),
    (("mistral", *QWEN), "refused", {"layer_types": [FULL, "chunked_attention"]}),
    (QWEN, "harmless", {"sliding_window": 20}), (QWEN, "harmless", {"max_window_layers": 0}),
    (QWEN, "harmless", {"use_sliding_window": True}),
    (QWEN, "refused", {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 1, "layer_types": GONE}),
    (QWEN, "harmless", {"sliding_window": SEQ_LEN, "use_sliding_window": True, "max_window_layers": 1,
                        "layer_types": GONE}),
    (QWEN, "harmless", {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 2, "layer_types": GONE}),
    (QWEN, "refused", {"sliding_window": 20, "use_sliding_window": True, "layer_types": [FULL, WINDOW]}),
    (("llama",), "harmless", {"sliding_window": 20}), (("llama",), "harmless", {"layer_types": [FULL, FULL]}),
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
    "keys_to_ignore_at_inference": ["x"], "label2id": {"a": 0, "b": 1, "c": 2}, "length_penalty": 2.0, "max_length": 9,
    "min_length": 9, "n_ctx": 32, "name_or_path": "x", "no_repeat_ngram_size": 2, "num_beam_groups": 2, "num_beams": 2,
    "num_labels": 3, "num_return_sequences": 2, "output_attentions": True, "output_hidden_states": True,
    "output_past": False, "output_scores": True, "pad_token_id": 32, "prefix": "x", "pretraining_tp": 2,
    "problem_type": "regression", "remove_invalid_values": True, "repetition_penalty": 2.0, "resid_pdrop": 0.5,
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
            "QWEN3": {"qwen3"}}
    rows = re.findall(r'^    \{"([^"]+)", ([A-Z0-9 |]+), (ANY|READ|ONE|SAME),', source, re.M)
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


def generated_line(zerotrain, folder, changes):
    """Returns what generate says of a Qwen with these keys."""
    reference = Reference("qwen2", 9, zerotrain, folder)
    reference.change(changes)
    run = subprocess.run([zerotrain, "generate", "--prompt", "0123456789", "--max-tokens", "40", reference.folder],
                         capture_output=True, text=True, errors="replace", timeout=60, check=False)
    return run.stderr


def main():
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    os.environ["OMP_NUM_THREADS"] = "1"
    zerotrain, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).absolute()
    for number, family in enumerate(MODELS):
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
    line = "at most 10 tokens, since some of the model's layers see 20 tokens"
    window = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1, "layer_types": GONE}
    for changes, is_said in ((window, True), ({**window, "use_sliding_window": False}, False)):
        said = generated_line(zerotrain, folder, changes)
        good = (line in said) == is_said and f"{10 if is_said else 40} tokens behind a prompt" in said
        print(f"{'ok' if good else 'FAILED'}: a text generated by a Qwen {'ends' if is_said else 'does not end'} at a "
              f"window that its layers {'have' if is_said else 'do not have'}{'' if good else ': ' + said}")


if __name__ == "__main__":
    main()
