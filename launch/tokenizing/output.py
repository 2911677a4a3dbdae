"""The token file: three files that grow in OUT.unfinished, from which a stopped run continues, and their assembly. The
format is in src/train/data/token_format.h. Nothing is replaced but what launch/tokenize has written, and empty files."""

import collections
import contextlib
import fcntl
import json
import os
import shutil
import struct

from tokenizing.faults import Fault, read_json, say, writing

MAGIC = b"ZEROTOK\0"
GROWING = ("tokens", "documents", "counts")
STATE = "state.json"
LOCK = "lock"


def is_ours_or_empty(path):
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) in (b"", MAGIC)


def check_output(output):
    """Refuses, before any work, an output that would replace something else."""
    for path in output, output + ".new":
        if os.path.isdir(path):
            raise Fault("-o: '%s' is a directory: name a file" % path)
        if os.path.lexists(path) and not (os.path.isfile(path) and is_ours_or_empty(path)):
            raise Fault("-o: '%s' exists and does not begin like a token file, so it is left as it is: name another "
                        "file" % path)
    folder = output + ".unfinished"
    names = os.listdir(folder) if os.path.isdir(folder) else [""] if os.path.lexists(folder) else []
    for name in names:
        if name not in (*GROWING, STATE, STATE + ".new", LOCK):
            raise Fault("-o: '%s' is not of a run that was stopped, so it is left as it is: name another file" %
                        os.path.join(folder, name).rstrip(os.sep))


def check_folder(folder, texts):
    """Refuses, before any work, a folder that has anything but a tokenizer of --train-bpe, whose files but for
    tokenizer.json have these texts."""
    if not os.path.isdir(folder):
        if os.path.lexists(folder):
            raise Fault("-o: '%s' is a file: name a folder" % folder)
        return
    own = [*texts, "tokenizer.json"]
    names = sorted(name for name in os.listdir(folder)
                   if name in own or not (name.startswith(".") or name.removesuffix(".new") in own))
    written = [name for name, text in texts.items() if name in names and is_text(os.path.join(folder, name), text)]
    known = written + ["tokenizer.json"] * (len(written) == len(texts))
    for name in names:
        if name not in known:
            raise Fault("-o: '%s' is not a file that --train-bpe has written, so the folder is left as it is: name "
                        "another folder" % os.path.join(folder, name))


def is_text(path, text):
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(text.encode()) + 1) == text.encode()


def lock_folder(folder):
    """Locks a folder, or refuses it if another process is writing it. Returns the file that holds the lock. A lock of
    POSIX: the processes that encode do not have it, so it is free when this one is gone, however it ends. Where files
    cannot be locked, none is."""
    file = open(os.path.join(folder, LOCK), "ab")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise Fault("-o: '%s' is being written by another launch/tokenize: let it end, or name another file" % folder)
    except OSError:
        pass
    return file


class Progress:
    """What is on the disk already, and how much of it belongs to whole parts."""

    def __init__(self, output, identity):
        self.folder = output + ".unfinished"
        self.state_path = os.path.join(self.folder, STATE)
        self.state = {"identity": identity, "parts": 0, "tokens": 0, "documents": 0, "sizes": [0, 0, 0], "stats": {},
                      "bad": []}
        os.makedirs(self.folder, exist_ok=True)
        self.lock = lock_folder(self.folder)
        before = read_json(self.state_path)
        if before.get("identity") == identity:
            self.refuse_what_was_cut(before["sizes"])
            self.state = before
        elif before:
            say("'%s' is of other input, settings, tokenizer or template: it is begun anew" % self.folder)
        self.files = [open(os.path.join(self.folder, name), "ab") for name in GROWING]
        for file, size in zip(self.files, self.state["sizes"]):
            file.truncate(size)
            file.seek(0, os.SEEK_END)

    def refuse_what_was_cut(self, sizes):
        for name, size in zip(GROWING, sizes):
            path = os.path.join(self.folder, name)
            if (os.path.getsize(path) if os.path.exists(path) else 0) < size:
                raise Fault("'%s' has been cut short since it was written: remove '%s' to begin anew" % (path, self.folder))

    def add(self, result):
        starts = []
        for i, length in enumerate(result.lengths):
            if i > 0 or not result.continues:
                starts.append(self.state["tokens"])
            self.state["tokens"] += length
        packed = struct.pack("<%dQ" % len(starts), *starts)
        for file, content in zip(self.files, (b"".join(result.tokens), packed, b"".join(result.counts))):
            with writing(file.name):
                file.write(content)
        self.state["parts"] += 1
        self.state["documents"] += len(starts)
        self.state["stats"] = dict(collections.Counter(self.state["stats"]) + result.stats)
        self.state["bad"] = (self.state["bad"] + [list(bad) for bad in result.bad])[:5]
        self.state["stats"]["bad"] = self.state["stats"].get("bad", 0) + len(result.bad)

    def save(self):
        for file in self.files:
            with writing(file.name):
                file.flush()
                os.fsync(file.fileno())
        self.state["sizes"] = [file.tell() for file in self.files]
        with writing(self.state_path + ".new"), open(self.state_path + ".new", "w", encoding="utf-8") as file:
            json.dump(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.state_path + ".new", self.state_path)

    def n_counted(self):
        import numpy

        counts = numpy.memmap(os.path.join(self.folder, "counts"), "u1", "r")
        return int(sum(counts[at : at + (1 << 24)].sum() for at in range(0, len(counts), 1 << 24)))


def assemble(progress, output, encoder):
    """Joins the three files behind a header. What cannot be written whole is removed."""
    try:
        with writing(output + ".new"):
            write_joined(progress, output + ".new", encoder)
    except (Fault, OSError):
        with contextlib.suppress(OSError):
            os.unlink(output + ".new")
        raise
    os.replace(output + ".new", output)
    shutil.rmtree(progress.folder)


def write_joined(progress, path, encoder):
    import numpy

    state, tokenizer, chat = progress.state, encoder.tokenizer, encoder.options.chat
    is_pairs = encoder.options.format == "preference"
    with open(path, "wb") as out:
        out.write(MAGIC + struct.pack("<IIQQQQIIQ", 1, encoder.width, state["tokens"], tokenizer.vocab_size,
                                             tokenizer.hash, state["documents"], chat, is_pairs, tokenizer.rules))
        for name in ("tokens", "documents"):
            with open(os.path.join(progress.folder, name), "rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
            out.write(bytes(-out.tell() % 8))
        if chat:
            counts = numpy.memmap(os.path.join(progress.folder, "counts"), "u1", "r")
            for at in range(0, len(counts), 1 << 24):
                out.write(numpy.packbits(counts[at : at + (1 << 24)], bitorder="little").tobytes())
        out.flush()
        os.fsync(out.fileno())
