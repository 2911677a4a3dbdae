"""Checks that llama.cpp's converter takes a saved Llama with its tokenizer: gguf_file.py BUILD SCRATCH.

A small Llama is trained on tokens of Llama 3's published tokenizer, and convert_hf_to_gguf.py makes a GGUF file of its
checkpoint. The file is read back: every weight is that of the checkpoint, bit for bit, and so are sizes, angles, tokens,
their kinds and merges. zerotrain's tied model has no output.weight there.

The converter is $LLAMA_CPP's, a clone of llama.cpp, else of the sources of the package llama-cpp-python, which contain
llama.cpp and which pip downloads once into build/llama.cpp (77 MB), with sentencepiece, which the converter imports.
Needs torch and transformers. Prints "ok: claim", "FAILED: claim" or "SKIP: reason".
"""

import fcntl
import glob
import json
import os
import subprocess
import sys
import tarfile
import tempfile

import numpy
import torch
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
ROOM = os.path.join("build", "llama.cpp")
PACKAGE = "llama-cpp-python==0.3.36"
PACKAGES = os.path.join(ROOM, "packages")
PARTS = ("convert_hf_to_gguf.py", "conversion", "gguf-py")
HEADS, KV_HEADS = 4, 2

CONFIG = """[model]
arch = llama
layers = 2
dim = 64
heads = 4
kv_heads = 2
tied = {tied}
vocab_size = {vocab_size}
seq_len = 64
rope_theta = 500000
tokenizer = {tokenizer}
[data]
train = {tokens}
format = uint32
[train]
steps = 3
global_batch = 4
precision = {precision}
[checkpoint]
dir = {directory}
[device]
type = cpu
"""

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers.": "blk."}


def claim(text, holds):
    print(("ok: " if holds else "FAILED: ") + text, flush=True)


def find_converter():
    """Returns the folder of the converter; None: there is none. Two scripts look for it at a time."""
    os.makedirs(os.path.dirname(ROOM), exist_ok=True)
    with open(ROOM + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return find_or_download()


def find_or_download():
    folder = os.environ.get("LLAMA_CPP", ROOM)
    if os.path.exists(os.path.join(folder, PARTS[0])):
        return os.path.abspath(folder)
    if "LLAMA_CPP" in os.environ:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        # The sources, not the wheel. What pip needs to read them stays wheels: to build that takes minutes.
        name = PACKAGE.partition("==")[0]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, "--dest", scratch]
        try:
            subprocess.run([*pip, PACKAGE], capture_output=True, check=True, timeout=300)
            subprocess.run([*pip[:3], "install", "--quiet", "--no-deps", "--target", PACKAGES, "sentencepiece==0.2.2"],
                           capture_output=True, check=True, timeout=300)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
        with tarfile.open(glob.glob(scratch + "/*.tar.gz")[0]) as archive:
            for member in archive.getmembers():
                inside = member.name.partition("/vendor/llama.cpp/")[2]
                if inside.split("/")[0] in PARTS and ".." not in inside and member.isfile():
                    path = os.path.join(ROOM, inside)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as file:
                        file.write(archive.extractfile(member).read())
    return os.path.abspath(ROOM)


def write_tokenizer(folder):
    """Writes Llama 3's tokenizer, and returns it."""
    sys.path.insert(0, os.path.join(HERE, "tokenizers"))
    import write  # noqa: PLC0415 # tests/reference/tokenizers/write.py
    tokenizer = write.llama3()
    os.makedirs(folder)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
                   "eos_token": "<|end_of_text|>", "model_max_length": 64}, file)
    return tokenizer


def unpermuted(name, weight):
    """Undoes what the converter does to q and k: Hugging Face's halves of a head become llama.cpp's pairs."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
    if not heads:
        return weight
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def weights_of(directory):
    """Returns the checkpoint's weights by llama.cpp's names."""
    found = {}
    for path in glob.glob(directory + "/model*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                ours = name
                for theirs, short in NAMES.items():
                    ours = ours.replace(theirs, short)
                found[ours] = file.get_tensor(name).to(torch.float32).numpy()
    return found


def check(name, directory, gguf_path, gguf, tokenizer, vocab_size):
    reader = gguf.GGUFReader(gguf_path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {t.name: t for t in reader.tensors}
    weights = weights_of(directory)
    wrong = [w for w in weights if w not in tensors or not numpy.array_equal(
        unpermuted(w, gguf.dequantize(tensors[w].data, tensors[w].tensor_type).reshape(weights[w].shape)), weights[w])]
    extra = sorted(set(tensors) - set(weights) - {"rope_freqs.weight"})
    print("\n".join(f"  differs: {w}" for w in wrong + extra), end="\n" if wrong or extra else "")
    claim(f"{name}: the GGUF file has the checkpoint's {len(weights)} weights, bit for bit", len(weights) >= 20 and not wrong and not extra)
    expected = {"general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64,
                "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV_HEADS, "llama.context_length": 64,
                "llama.rope.freq_base": 500000.0, "llama.vocab_size": vocab_size, "tokenizer.ggml.pre": "llama-bpe"}
    different = {key: fields.get(key) for key, value in expected.items() if fields.get(key) != value}
    claim(f"{name}: its sizes are the model's" + (f", but for {different}" if different else ""), not different)
    tokens = tokenizer.get_vocab(with_added_tokens=True)
    file_tokens = fields["tokenizer.ggml.tokens"]
    claim(f"{name}: its {len(tokens)} tokens are the tokenizer's, with its merges and its first and last token",
          all(file_tokens[i] == token for token, i in tokens.items()) and len(file_tokens) == vocab_size
          and len(fields["tokenizer.ggml.merges"]) > 100000
          and fields["tokenizer.ggml.bos_token_id"] == tokenizer.token_to_id("<|begin_of_text|>")
          and fields["tokenizer.ggml.eos_token_id"] == tokenizer.token_to_id("<|end_of_text|>"))


def main():
    build, scratch = sys.argv[1:]
    llama_cpp = find_converter()
    if not llama_cpp:
        print("SKIP: llama.cpp's converter: $LLAMA_CPP is no clone of it, or pip could not download " + PACKAGE)
        return
    sys.path.insert(0, os.path.join(llama_cpp, "gguf-py"))
    import gguf  # noqa: PLC0415 # the converter's own
    folder = os.path.join(scratch, "llama3-tokenizer")
    tokenizer = write_tokenizer(folder)
    vocab_size = tokenizer.get_vocab_size()
    tokens = os.path.join(scratch, "gguf.bin")
    with open("include/zero.h", encoding="utf-8") as file:
        numpy.array(tokenizer.encode(file.read()).ids, dtype="<u4").tofile(tokens)
    for name, precision, tied, kind in (("fp32", "fp32", "false", "f32"), ("tied, bf16", "bf16", "true", "bf16")):
        directory = os.path.join(scratch, "gguf-" + precision)
        path = directory + ".ini"
        with open(path, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(tied=tied, vocab_size=vocab_size, tokenizer=folder, tokens=tokens, precision=precision,
                                     directory=directory))
        subprocess.run([f"{build}/zerotrain", path], capture_output=True, check=True, timeout=300)
        out = directory + ".gguf"
        environment = {**os.environ, "PYTHONPATH": os.path.abspath(PACKAGES)}
        made = subprocess.run([sys.executable, os.path.join(llama_cpp, PARTS[0]), directory + "/latest", "--outtype", kind,
                               "--outfile", out], capture_output=True, text=True, check=False, timeout=600,
                              env=environment)
        claim(f"{name}: convert_hf_to_gguf.py takes the checkpoint", made.returncode == 0)
        if made.returncode != 0:
            print("    | " + "\n    | ".join(made.stderr.strip().split("\n")[-12:]))
            continue
        check(name, directory + "/latest", out, gguf, tokenizer, vocab_size)


if __name__ == "__main__":
    main()
