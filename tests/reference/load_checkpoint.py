"""Loads a checkpoint of zerotrain as any user of transformers would, and prints its loss on a text.

    python tests/reference/load_checkpoint.py CHECKPOINT TEXT SEQ_LEN

CHECKPOINT is a step's directory, or the link `latest`. Prints the mean loss in fp32 over the text's sequences of SEQ_LEN
byte tokens. tests/reference/run compares it with zerotrain's val_loss of the same step over the whole text.
"""
import sys

import torch
from transformers import AutoModelForCausalLM

path, text, seq_len = sys.argv[1], sys.argv[2], int(sys.argv[3])
model, info = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
left = {kind: sorted(names) for kind, names in info.items() if names}
print(f"{type(model).__name__}, {sum(p.numel() for p in model.parameters())} parameters, not matched: {left or 'none'}")
assert not left

data = open(text, "rb").read()
n_sequences = (len(data) - 1) // seq_len
tokens = torch.tensor(list(data[: n_sequences * seq_len + 1]))
inputs = tokens[:-1].view(n_sequences, seq_len)
targets = tokens[1:].view(n_sequences, seq_len)
with torch.no_grad():
    losses = [
        torch.nn.functional.cross_entropy(model.eval()(x[None]).logits[0].double(), y) for x, y in zip(inputs, targets)
    ]
print(f"loss {torch.stack(losses).mean().item():.6f} over {n_sequences} sequences")
