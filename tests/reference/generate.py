"""Compares zerotrain generate with transformers: the 50 likeliest tokens behind a prompt, of small random models.

    generate.py ZEROTRAIN FOLDER        models are written below FOLDER
"""
import os
import subprocess
import sys

import torch
from transformers import (AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config)

PROMPT = "int main(void)"
N_TOKENS = 50
# Large weights, so that the likeliest token is well ahead of the next and texts do not repeat at once.
COMMON = dict(vocab_size=256, initializer_range=0.3, bos_token_id=None, eos_token_id=None)
LLAMA = dict(COMMON, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256)
SCALED = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
FAMILIES = {
    "gpt2": GPT2Config(**COMMON, n_embd=64, n_layer=3, n_head=4, n_positions=128),
    "llama": LlamaConfig(**LLAMA),
    "llama-tied-scaled": LlamaConfig(**LLAMA, tie_word_embeddings=True, rope_parameters=SCALED),
    "mistral": MistralConfig(**LLAMA, sliding_window=None),
    "mistral-window": MistralConfig(**LLAMA, sliding_window=16),
    "qwen2": Qwen2Config(**LLAMA),
    "qwen3": Qwen3Config(**LLAMA, head_dim=32),
}

failed = 0
for name, config in FAMILIES.items():
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    folder = os.path.join(sys.argv[2], "generate-" + name)
    model.save_pretrained(folder)
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
