"""Writes a small random GPT-2 and tokens where llm.c's train_gpt2.c looks for them, to try the port without downloads.

    tiny.py FOLDER
"""

import array
import os
import random
import sys

LENGTH, VOCAB, PADDED, LAYERS, HEADS, DIM = 64, 97, 128, 3, 4, 32


def header(*numbers):
    return array.array("i", list(numbers) + [0] * (256 - len(numbers))).tobytes()


def tensors():
    """Yields llm.c's sixteen tensors, as (elements, standard deviation, mean)."""
    yield PADDED * DIM, 0.05, 0.0
    yield LENGTH * DIM, 0.02, 0.0
    for n, spread, mean in ((DIM, 0.1, 1.0), (DIM, 0.1, 0.0), (3 * DIM * DIM, 0.1, 0.0), (3 * DIM, 0.1, 0.0),
                            (DIM * DIM, 0.1, 0.0), (DIM, 0.1, 0.0), (DIM, 0.1, 1.0), (DIM, 0.1, 0.0),
                            (4 * DIM * DIM, 0.1, 0.0), (4 * DIM, 0.1, 0.0), (4 * DIM * DIM, 0.1, 0.0), (DIM, 0.1, 0.0)):
        yield LAYERS * n, spread, mean
    yield DIM, 0.1, 1.0
    yield DIM, 0.1, 0.0


def tokens(n):
    """Mostly, a token follows from the one before."""
    made = [0]
    while len(made) < n:
        made.append(random.randrange(VOCAB) if random.random() < 0.2 else (5 * made[-1] + 7) % VOCAB)
    return header(20240520, 1, n) + array.array("H", made).tobytes()


random.seed(1)
folder = os.path.join(sys.argv[1], "dev", "data", "tinyshakespeare")
os.makedirs(folder, exist_ok=True)
with open(os.path.join(sys.argv[1], "gpt2_124M.bin"), "wb") as file:
    file.write(header(20240326, 3, LENGTH, VOCAB, LAYERS, HEADS, DIM, PADDED))
    for n, spread, mean in tensors():
        file.write(array.array("f", (random.gauss(mean, spread) for _ in range(n))).tobytes())
for name, n in (("train", 40000), ("val", 8000)):
    with open(os.path.join(folder, f"tiny_shakespeare_{name}.bin"), "wb") as file:
        file.write(tokens(n))
