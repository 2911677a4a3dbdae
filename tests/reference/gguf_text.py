"""Checks that llama.cpp runs what zerotrain saves: gguf_text.py ZEROTRAIN SCRATCH.

A random Llama, Qwen2 and Qwen3 are trained for a few steps with a byte-level tokenizer of their own, and llama.cpp's converter
makes an fp32 GGUF file of each checkpoint. llama.cpp must cut prompts into the same tokens, and its likeliest tokens
behind them must be those of `zerotrain generate`. The converter does not know the tokenizer; it is told that it splits text
as GPT-2's does.

llama.cpp comes from llama-cpp-python's wheel, which pip puts into build/llama.cpp/site. Where there is none, the test is
skipped, unless LLAMA_CPP_BUILD=1: then pip builds it once from source, with cmake and a C++ compiler, in 10 to 30 minutes
on two cores. Prints "ok: claim", "FAILED: claim" or "SKIP: reason"."""

import json
import os
import shutil
import subprocess
import sys

import numpy
import tokenizers
import torch
from gguf_file import PACKAGE, PACKAGES, PARTS, ROOM, claim, find_converter
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

SITE = os.path.join(ROOM, "site")
BUILDS = os.environ.get("LLAMA_CPP_BUILD") == "1"
LIMIT_S = 2400 if BUILDS else 120
BUILD = "-DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAMA_CURL=OFF"
N_TOKENS, VOCAB = 40, 600
PROMPTS = ["typedef struct", "/* Returns the", "zero_status_t zero_engine", "static int n = 12345;", "for (int i = 0; i < n; i++)"]

SIZES = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2, "bos_token_id": None,
         "eos_token_id": None, "tie_word_embeddings": False}
MODELS = {"llama": (LlamaConfig, LlamaForCausalLM, {}), "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
          "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32})}

CONFIG = """[model]
init = {init}
seq_len = 64
[data]
train = {tokens}
format = uint32
[train]
steps = 3
global_batch = 4
micro_batch = 4
lr = 1e-3
precision = fp32
[checkpoint]
dir = {directory}
[device]
type = cpu
"""

# The converter, with an answer to which published tokenizer splits text as this one does.
CONVERT = """import runpy, sys
sys.path[:0] = [{folder!r}, {folder!r} + "/gguf-py", {packages!r}]
import conversion.base
for value in list(vars(conversion.base).values()):
    if isinstance(value, type) and "get_vocab_base_pre" in vars(value):
        value.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv = [{script!r}, {source!r}, "--outtype", "f32", "--outfile", {out!r}]
runpy.run_path({script!r}, run_name="__main__")
"""


def find_llama():
    """Returns the module llama_cpp, built if need be; None, after a line, if it cannot be."""
    sys.path.insert(0, os.path.abspath(SITE))
    if not os.path.exists(os.path.join(SITE, "llama_cpp")):
        environment = {**os.environ, "CMAKE_ARGS": BUILD, "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))}
        binary = [] if BUILDS else ["--only-binary", ":all:"]
        try:
            done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *binary, "--target", SITE,
                                   PACKAGE, "diskcache==5.6.3"], capture_output=True, text=True, timeout=LIMIT_S,
                                  env=environment)
            why = (done.stderr.strip() or "?").splitlines()[-1] if done.returncode else None
        except subprocess.TimeoutExpired:
            why = "it took more than %d s" % LIMIT_S
        if why:
            shutil.rmtree(SITE, ignore_errors=True)
            print("SKIP: llama.cpp's text: pip could not install %s (LLAMA_CPP_BUILD=1 builds it): %s" % (PACKAGE, why))
            return None
    try:
        import llama_cpp  # noqa: PLC0415
        return llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        print("SKIP: llama.cpp's text: %s cannot be loaded: %s" % (PACKAGE, error))
        return None


def make_tokenizer(folder, source):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<|endoftext|>"], show_progress=False,
                                             initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator([source], trainer)
    os.makedirs(folder)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}, file)
    return tokenizer


def make_checkpoint(zerotrain, folder, name, tokenizer, source):
    """Trains a random model of transformers', which says only what is ASCII, and returns where zerotrain has saved it."""
    torch.manual_seed(5)
    make_config, make_model, more = MODELS[name]
    model = make_model(make_config(**SIZES, **more))
    model.lm_head.weight.data[[i for token, i in tokenizer.get_vocab().items() if not token.replace("Ġ", " ").isascii()]] = 0
    model.save_pretrained(folder)
    numpy.array(tokenizer.encode(source).ids, dtype="<u4").tofile(folder + ".bin")
    with open(folder + ".ini", "w", encoding="utf-8") as file:
        file.write(CONFIG.format(init=folder, tokens=folder + ".bin", directory=folder + "-ck"))
    subprocess.run([zerotrain, folder + ".ini"], capture_output=True, check=True, timeout=300)
    return folder + "-ck/latest"


def convert(llama_cpp_folder, source, out):
    code = CONVERT.format(folder=llama_cpp_folder, packages=os.path.abspath(PACKAGES), source=source, out=out,
                          script=os.path.join(llama_cpp_folder, PARTS[0]))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)


def texts_of(zerotrain, source, folder):
    path = folder + ".jsonl"
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)
    done = subprocess.run([zerotrain, "generate", "--temperature", "0", "--max-tokens", str(N_TOKENS), "--prompts", path, source],
                          capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line)["text"] for line in done.stdout.splitlines()]


def theirs(llama, tokens):
    made = []
    llama.reset()
    for token in llama.generate(tokens, temp=0.0, repeat_penalty=1.0):
        made.append(token)
        if len(made) == N_TOKENS:
            return made


def compare(llama_cpp, name, out, tokenizer, texts):
    llama = llama_cpp.Llama(model_path=out, n_ctx=128, n_threads=1, type_k=0, type_v=0, seed=1, verbose=False)  # fp32 cache
    ids = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    claim("%s: llama.cpp cuts %d prompts into the tokens of `tokenizers`" % (name, len(ids)),
          [llama.tokenize(prompt.encode(), add_bos=False, special=False) for prompt in PROMPTS] == ids)
    made = [tokenizer.decode(theirs(llama, tokens), skip_special_tokens=False) for tokens in ids]
    wrong = [(a, b) for a, b in zip(made, texts) if a != b]
    claim("%s: llama.cpp's %d likeliest tokens behind %d prompts are zerotrain's%s" %
          (name, N_TOKENS, len(ids), "" if not wrong else ": %r, not %r" % wrong[0]),
          not wrong and len(set(texts)) == len(texts) and all(len(set(text)) > 5 for text in texts))


def main():
    zerotrain, scratch = sys.argv[1:]
    folder = find_converter()
    if not folder:
        print("SKIP: llama.cpp's text: $LLAMA_CPP is no clone of it, or pip could not download " + PACKAGE)
        return
    llama_cpp = find_llama()
    if not llama_cpp:
        return
    with open("include/zero.h", encoding="utf-8") as file:
        source = file.read()
    for name in MODELS:
        model = os.path.join(scratch, name)
        tokenizer = make_tokenizer(model, source)
        checkpoint = make_checkpoint(zerotrain, model, name, tokenizer, source)
        made = convert(folder, checkpoint, model + ".gguf")
        if made.returncode:
            claim("%s: the converter takes the checkpoint: %s" % (name, (made.stderr.strip() or "?").splitlines()[-1]), False)
            continue
        compare(llama_cpp, name, model + ".gguf", tokenizer, texts_of(zerotrain, checkpoint, model))


if __name__ == "__main__":
    main()
