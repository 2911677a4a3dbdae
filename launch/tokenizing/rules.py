"""A hash of what decides a tokenizer.json's tokens, however it is written. src/train/data/tokenizer_rules.h says what is
counted, and in which form; zerotrain computes the same of a model's tokenizer.json."""

import struct


def is_default(key, value):
    """A setting of the model that is as good as absent."""
    return value is None or value == "" or value == 0 or (key, value) == ("type", "BPE")  # False is 0


def encoded(value):
    if value is None or isinstance(value, bool):
        return {None: b"n", True: b"t", False: b"f"}[value]
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        return b"r" + struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode()
        return b"s%d:%s" % (len(text), text)
    if isinstance(value, list):
        return b"[" + b"".join(map(encoded, value)) + b"]"
    members = sorted((key.encode(), encoded(member)) for key, member in value.items())
    return b"{" + b"".join(b"s%d:%s%s" % (len(key), key, member) for key, member in members) + b"}"


def pair(merge):
    """Returns "a b" as ["a", "b"]."""
    return merge.split(" ") if isinstance(merge, str) and merge.count(" ") == 1 else merge


def hash_of(content):
    import xxhash

    model = content.get("model")
    if isinstance(model, dict):
        model = {key: value for key, value in model.items() if not is_default(key, value)}
        if isinstance(model.get("merges"), list):
            model["merges"] = [pair(merge) for merge in model["merges"]]
    parts = [model] + [content.get(key) for key in ("added_tokens", "normalizer", "pre_tokenizer")]
    return xxhash.xxh3_64_intdigest(b"".join(map(encoded, parts)))
