"""Writes a model with random weights, as Hugging Face would: random_model.py MODEL FOLDER

Needs no package. Large models repeat a block of numbers.
"""
import array
import json
import os
import random
import struct
import sys


def gpt2(layers, dim, heads, vocab, positions):
    names = [("wte.weight", vocab, dim), ("wpe.weight", positions, dim)]
    for l in range(layers):
        for name, rows, columns in (("ln_1", 0, dim), ("attn.c_attn", dim, 3 * dim), ("attn.c_proj", dim, dim),
                                    ("ln_2", 0, dim), ("mlp.c_fc", dim, 4 * dim), ("mlp.c_proj", 4 * dim, dim)):
            names += [(f"h.{l}.{name}.weight", rows, columns), (f"h.{l}.{name}.bias", 0, columns)]
    names += [("ln_f.weight", 0, dim), ("ln_f.bias", 0, dim)]
    return ([("transformer." + n, r, c) for n, r, c in names],
            dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_layer=layers, n_embd=dim, n_head=heads,
                 n_positions=positions, n_ctx=positions, vocab_size=vocab, activation_function="gelu_new",
                 layer_norm_epsilon=1e-5))


def llama(family, layers, dim, heads, kv_heads, head_dim, ffn, vocab, positions, **config):
    q, kv, norms = heads * head_dim, kv_heads * head_dim, family == "qwen3"
    names = [("model.embed_tokens.weight", vocab, dim)]
    for l in range(layers):
        for name, rows, columns in (("input_layernorm", 0, dim), ("self_attn.q_proj", q, dim),
                                    ("self_attn.k_proj", kv, dim), ("self_attn.v_proj", kv, dim),
                                    ("self_attn.q_norm", 0, head_dim), ("self_attn.k_norm", 0, head_dim),
                                    ("self_attn.o_proj", dim, q), ("post_attention_layernorm", 0, dim),
                                    ("mlp.gate_proj", ffn, dim), ("mlp.up_proj", ffn, dim),
                                    ("mlp.down_proj", dim, ffn)):
            if norms or name[-6:] not in ("q_norm", "k_norm"):
                names.append((f"model.layers.{l}.{name}.weight", rows, columns))
    names += [("model.norm.weight", 0, dim), ("lm_head.weight", vocab, dim)]
    kind = {"llama": "Llama", "qwen3": "Qwen3", "mistral": "Mistral"}[family] + "ForCausalLM"
    return names, dict(model_type=family, architectures=[kind], num_hidden_layers=layers, hidden_size=dim,
                       num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                       intermediate_size=ffn, vocab_size=vocab, max_position_embeddings=positions, rms_norm_eps=1e-5,
                       rope_theta=500000.0, hidden_act="silu", tie_word_embeddings=False, **config)


MODELS = {  # std: large for texts, so that the likeliest token is well ahead of the next and texts do not repeat at once
    "gpt2": (0.3, "F32", gpt2(3, 64, 4, 256, 1024)),
    "llama": (0.3, "F32", llama("llama", 3, 64, 4, 2, 16, 128, 256, 1024)),
    "qwen3": (0.5, "F32", llama("qwen3", 4, 64, 4, 2, 32, 128, 256, 1024)),
    "mistral": (0.3, "F32", llama("mistral", 3, 64, 4, 2, 16, 128, 256, 1024, sliding_window=300)),
    "gpt2-124m": (0.02, "BF16", gpt2(12, 768, 12, 50257, 1024)),
    "llama-1b": (0.02, "BF16", llama("llama", 16, 2048, 32, 8, 64, 8192, 128256, 4096)),
}
std, dtype, (tensors, config) = MODELS[sys.argv[1]]
random.seed(3)
floats = array.array("f", (random.gauss(0.0, std) for _ in range(1 << 19)))
ones = array.array("f", [1.0]) * len(floats)
if dtype == "BF16":
    floats, ones = (array.array("H", struct.unpack(f"<{2 * len(a)}H", a.tobytes())[1::2]) for a in (floats, ones))
size = floats.itemsize
header, at = {}, 0
for name, rows, columns in tensors:
    n = max(rows, 1) * columns * size
    header[name] = dict(dtype=dtype, shape=[rows, columns] if rows else [columns], data_offsets=[at, at + n])
    at += n
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
os.makedirs(sys.argv[2], exist_ok=True)
with open(os.path.join(sys.argv[2], "model.safetensors"), "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for name, rows, columns in tensors:
        bytes_ = (floats if rows else ones).tobytes()
        if name.endswith(".bias"):
            bytes_ = bytes(len(bytes_))
        skip = random.randrange(len(floats) // 2) * size if rows else 0
        left = max(rows, 1) * columns * size
        while left > 0:
            part = bytes_[skip:skip + left]
            file.write(part)
            left, skip = left - len(part), 0
with open(os.path.join(sys.argv[2], "config.json"), "w") as file:
    json.dump(config, file)
if config["vocab_size"] > 256:  # a tokenizer of bytes
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable}
    vocab.update({chr(256 + i): byte for i, byte in enumerate(others)})
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    with open(os.path.join(sys.argv[2], "tokenizer.json"), "w") as file:
        json.dump(dict(version="1.0", added_tokens=[], normalizer=None, pre_tokenizer=level, post_processor=None,
                       decoder=level, model=dict(type="BPE", dropout=None, unk_token=None, fuse_unk=False,
                                                 byte_fallback=False, vocab=vocab, merges=[])), file)
