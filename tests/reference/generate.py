"""Compares zerotrain generate with transformers: the 50 likeliest tokens behind a prompt, of every model of families.py.

    generate.py ZEROTRAIN FOLDER        models are written below FOLDER
"""
import os
import subprocess
import sys

import torch
from families import MODELS
from transformers import AutoModelForCausalLM

PROMPT = "int main(void)"
N_TOKENS = 50


def config_of(make):
    """The family's configuration, with large weights, so that the likeliest token is well ahead of the next and texts do
    not repeat at once, and without a token that ends the text."""
    config = make()
    config.initializer_range = 0.3
    config.bos_token_id = config.eos_token_id = None
    return config


failed = 0
for name, (make_config, dtype, file_bytes) in MODELS.items():
    torch.manual_seed(1)
    folder = os.path.join(sys.argv[2], "generate-" + name)
    made = AutoModelForCausalLM.from_config(config_of(make_config), dtype=torch.float32).to(getattr(torch, dtype))
    multiplies = name.startswith("gemma3") or getattr(made.config, "embedding_multiplier", 1.0) != 1.0
    if multiplies:  # else a tied head would repeat its input
        made.get_input_embeddings().weight.data *= 0.1
    made.save_pretrained(folder, max_shard_size=file_bytes or "5GB")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = list(PROMPT.encode())
    wanted = model.generate(torch.tensor([prompt]), max_new_tokens=N_TOKENS, do_sample=False, pad_token_id=0)
    wanted = wanted[0, len(prompt):].tolist()
    run = subprocess.run([sys.argv[1], "generate", "--temperature", "0", "--max-tokens", str(N_TOKENS), "--prompt",
                          PROMPT, folder], capture_output=True, timeout=120, check=False)
    printed = [token if token > 31 and token != 127 or token in (9, 10) else ord("?") for token in wanted]
    same = len(set(wanted)) > 5 and list(run.stdout[:-1]) == printed
    failed += not same
    print(f"ok: generate, {name}: {N_TOKENS} tokens are transformers'" if same else
          f"FAILED: generate, {name}: {list(run.stdout)} instead of {wanted} {run.stderr.decode()}", flush=True)
sys.exit(failed > 0)
