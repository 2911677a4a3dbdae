"""Compares zerotrain export --vocab-size with transformers' resize_token_embeddings: grow.py ZEROTRAIN SCRATCH

Models are saved by transformers: tied and not, in one file and in several, in fp32 and bf16. Grown by zerotrain they must
have the shapes of transformers' own, the logits of all tokens that they had, and new rows that are the mean of
the old ones. zerotrain then trains on the new tokens. Prints "ok: claim" or "FAILED: claim" for each."""

import copy
import os
import subprocess
import sys

import numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

OLD, NEW, SEQ_LEN = 131, 150, 32
LLAMA = {"vocab_size": OLD, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None}
MODELS = {  # configuration, dtype, most bytes of a file
    "gpt2": (GPT2Config(vocab_size=OLD, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=None, eos_token_id=None), "float32", "5GB"),
    "llama in several files": (LlamaConfig(**LLAMA, tie_word_embeddings=False), "float32", "20KB"),
    "llama in bf16": (LlamaConfig(**LLAMA, tie_word_embeddings=False), "bfloat16", "5GB"),
    "tied qwen2": (Qwen2Config(**LLAMA, tie_word_embeddings=True), "float32", "5GB"),
}
CONFIG = """[model]
init = {folder}
seq_len = {seq_len}
[data]
train = {tokens}
format = uint32
[train]
steps = 2
global_batch = 2
micro_batch = 2
lr = 1e-3
precision = fp32
[checkpoint]
dir = {folder}-ck
[device]
type = cpu
"""


def rows_of(model):
    """Embedding and head, which may be one."""
    return {"embedding": model.get_input_embeddings().weight.data, "head": model.get_output_embeddings().weight.data}


def is_grown_right(before, grown):
    """Whether new rows are the mean of the old, rounded to the dtype, and old rows are as they were."""
    for name, old in rows_of(before).items():
        new = rows_of(grown)[name]
        mean = old.double().mean(0).to(old.dtype).expand(NEW - OLD, -1)
        if not torch.equal(new[:OLD], old) or not torch.equal(new[OLD:], mean):
            return False
    return True


def trains(zerotrain, folder):
    """Whether zerotrain trains the model on all its tokens, and saves as many rows."""
    rng = numpy.random.default_rng(1)
    rng.integers(0, NEW, 40 * SEQ_LEN).astype("<u4").tofile(folder + ".bin")
    with open(folder + ".ini", "w", encoding="utf-8") as file:
        file.write(CONFIG.format(folder=folder, tokens=folder + ".bin", seq_len=SEQ_LEN))
    done = subprocess.run([zerotrain, folder + ".ini"], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode == 0 and AutoConfig.from_pretrained(folder + "-ck/latest").vocab_size == NEW


def main():
    zerotrain, scratch = sys.argv[1:]
    failed = 0
    for name, (config, dtype, file_bytes) in MODELS.items():
        torch.manual_seed(2)
        folder = os.path.join(scratch, "grow-" + name.replace(" ", "-"))
        AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder, max_shard_size=file_bytes)
        done = subprocess.run([zerotrain, "export", "--vocab-size", str(NEW), folder, folder + "-new"], capture_output=True,
                              text=True, timeout=60, check=False)
        holds = done.returncode == 0
        if holds:
            before = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
            theirs = copy.deepcopy(before)
            theirs.resize_token_embeddings(NEW, mean_resizing=True)
            grown = AutoModelForCausalLM.from_pretrained(folder + "-new", dtype="auto").eval()
            tokens = torch.randint(OLD, (2, SEQ_LEN))
            shapes = {key: value.shape for key, value in grown.state_dict().items()}
            with torch.no_grad():
                equal = torch.allclose(grown(tokens).logits[..., :OLD], before(tokens).logits, rtol=1e-6, atol=1e-6)
            holds = (equal and shapes == {key: value.shape for key, value in theirs.state_dict().items()} and
                     is_grown_right(before, grown) and trains(zerotrain, folder + "-new"))
        failed += not holds
        print("%s: export --vocab-size, %s: shapes are transformers', old tokens have their logits, new rows the mean%s" %
              ("ok" if holds else "FAILED", name, "" if holds else ": " + done.stderr.strip()), flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
