"""Checks launch/to-wandb with W&B's own package, offline: to_wandb.py BUILD SCRATCH.

A small run is trained, copied, and read back from the file that `wandb sync` would send, whose records are in the format
of LevelDB's logs: every number of every row, its step and time, configuration and machine. pip installs the package once
in build/wandb, unless $WANDB_PYTHON names a Python that has it. Prints "ok: claim", "FAILED: claim" or "SKIP: reason".
"""

import glob
import json
import os
import struct
import subprocess
import sys

ROOM = os.path.join("build", "wandb")
PACKAGE = "wandb==0.31.0"
BLOCK = 32768
FIRST_BYTES = 7  # of the file, W&B's own
WHOLE, LAST = 1, 4  # kinds of a record's pieces

CONFIG = """[model]
layers = 2
dim = 32
heads = 2
seq_len = 32
[data]
train = {text}
val = {text}
[train]
steps = {steps}
global_batch = 4
eval_every = 5
[checkpoint]
dir = {scratch}/wandb.ck
[log]
metrics = {scratch}/wandb.jsonl
[device]
type = cpu
"""

# Run by the Python that has wandb: reads the records of a file as JSON.
READ = """
import json, sys
from wandb.proto import wandb_internal_pb2 as pb
rows, config = [], {}
for line in sys.stdin:
    record = pb.Record()
    record.ParseFromString(bytes.fromhex(line))
    if record.WhichOneof("record_type") == "history":
        rows.append({(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item})
    if record.WhichOneof("record_type") == "config":
        config.update({(u.key or ".".join(u.nested_key)): json.loads(u.value_json) for u in record.config.update})
print(json.dumps([rows, config]))
"""


def claim(text, holds):
    print(("ok: " if holds else "FAILED: ") + text, flush=True)


def find_python():
    """Returns a Python that has wandb; None: there is none."""
    python = os.environ.get("WANDB_PYTHON") or os.path.join(ROOM, "bin", "python")
    if os.path.exists(python) and subprocess.run([python, "-c", "import wandb"], check=False).returncode == 0:
        return python
    if os.environ.get("WANDB_PYTHON"):
        return None
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", ROOM], capture_output=True, check=False).returncode == 0
    pip = [python, "-m", "pip", "install", "--quiet", PACKAGE]
    return python if made and subprocess.run(pip, capture_output=True, check=False, timeout=600).returncode == 0 else None


def records(path):
    """Returns the records of a log: pieces with a header of 7 bytes (sum, length, kind), in blocks."""
    with open(path, "rb") as file:
        data = file.read()
    at, found, begun = FIRST_BYTES, [], b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, n_bytes, kind = struct.unpack("<IHB", data[at:at + 7])
        begun += data[at + 7:at + 7 + n_bytes]
        at += 7 + n_bytes
        if kind in (WHOLE, LAST):
            found.append(begun)
            begun = b""
    return found


def train(build, scratch, steps, *options):
    path = os.path.join(scratch, "wandb.ini")
    with open(path, "w", encoding="utf-8") as file:
        file.write(CONFIG.format(text=os.path.abspath("include/zero.h"), scratch=scratch, steps=steps))
    subprocess.run([f"{build}/zerotrain", *options, path], capture_output=True, check=True, timeout=120)


def is_same(row, logged):
    """Whether W&B has the row's values, and none besides its own."""
    values = {key: value for key, value in row.items() if key not in ("run", "step", "time") and value is not None}
    theirs = {key: value for key, value in logged.items() if not key.startswith("_")}
    return theirs == values and logged["_step"] == row["step"] and logged["_timestamp"] == row["time"]


def main():
    build, scratch = sys.argv[1:]
    python = find_python()
    if not python:
        print(f"SKIP: launch/to-wandb: pip could not install {PACKAGE}")
        return
    train(build, scratch, 20, "--steps", "12")
    train(build, scratch, 20, "--resume")
    metrics = os.path.join(scratch, "wandb.jsonl")
    with open(metrics, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    with open(metrics, "a", encoding="utf-8") as file:
        file.write('{"step": 21, "lo')  # a run that still writes
    command = [python, "launch/to-wandb", "--dir", scratch]
    subprocess.run([*command, metrics], capture_output=True, check=True, timeout=120)
    (path,) = glob.glob(f"{scratch}/wandb/offline-run-*/run-*.wandb")
    text = "\n".join(record.hex() for record in records(path))
    read = subprocess.run([python, "-c", READ], input=text, capture_output=True, check=True, text=True)
    logged, config = json.loads(read.stdout)
    claim(f"W&B has all {len(rows)} rows of a resumed run, with their steps and times",
          len(rows) == len(logged) == 20 and all(map(is_same, rows, logged)))
    last = rows[12]["run"]
    settings = {f"{s}.{k}": v for s, keys in last.pop("config").items() for k, v in keys.items()}
    claim("W&B has the run's configuration, and its machine when it was resumed",
          config.pop("run") == last and settings.items() <= config.items() and len(settings) > 50)
    for name, says in (("nosuch", "cannot read"), ("include/zero.h", "line 1 is no row"), ("/dev/null", "has no rows")):
        refused = subprocess.run([*command, name], capture_output=True, check=False, text=True)
        claim(f"launch/to-wandb says what is wrong with {name}",
              refused.returncode in (1, 2) and says in refused.stderr and refused.stderr.count("\n") == 1)


if __name__ == "__main__":
    main()
