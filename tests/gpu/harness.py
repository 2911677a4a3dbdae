"""harness.py - what the cases of tests/gpu/run share: starting ranks, configurations and data, and counting claims.

Settings are words: "stage=3 model.recompute=light". One without a section is of [zero]. The word "delays" makes streams
stop at random (programs/zerotrain_faults.c).
"""

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import types

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(f"{ROOT}/tests/scaling")
import programs

COUNTS = re.compile(r"^(ok: |FAILED: |SKIP: |skipped: )", re.MULTILINE)
TEXT = re.compile(r'"loss": [^,]*, "grad_norm": [^,]*')
DELAYS = {"ZERO_STREAM_DELAY_US": "300"}


def library_path():
    """Returns the LD_LIBRARY_PATH that programs need on a machine with GPUs."""
    return subprocess.run([f"{HERE}/library-path"], capture_output=True, text=True, check=True).stdout.strip()


def environment():
    usual = {"OMP_NUM_THREADS": "4", "PYTHONDONTWRITEBYTECODE": "1"}
    root = {f"{mpi}_ALLOW_RUN_AS_ROOT{confirm}": "1" for mpi in ("OMPI", "PRTE") for confirm in ("", "_CONFIRM")}
    return {**usual, **os.environ, **root, "NCCL_NVLS_ENABLE": "0", "LD_LIBRARY_PATH": library_path()}


def settings(text):
    """Returns the options of zerotrain for words like "stage=3 train.steps=5"."""
    words = [word if "." in word.partition("=")[0] else f"zero.{word}" for word in text.split() if word != "delays"]
    return [option for word in words for option in ("--set", word)]


def apart(ours, theirs):
    """Returns the largest relative difference of the losses of two texts; infinity if one is shorter."""
    losses = [[float(line.split()[1].rstrip(",")) for line in text] for text in (ours, theirs)]
    if not ours or len(ours) != len(theirs):
        return float("inf")
    return max(abs(a / b - 1) for a, b in zip(*losses))


def read_metrics(path):
    """Returns the rows of a file of metrics that have a step's time, and the text of losses and gradient norms."""
    if not os.path.exists(path):
        return [], []
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file if line.endswith("\n")]
    return [row for row in map(json.loads, lines) if "step_ms" in row], [m[0] for m in map(TEXT.search, lines) if m]


class Result(types.SimpleNamespace):
    """What a command has left: code, out, said (with what it wrote to stderr), and of training rows and text."""

    def last(self):
        return self.text[-1] if self.text else (self.said.strip().splitlines() or ["nothing"])[-1]

    def median_ms(self, first):
        return statistics.median(row["step_ms"] for row in self.rows[first:]) if self.rows[first:] else float("nan")


class Case:
    """One row of the table while it runs. words: the caller's, after --."""

    def __init__(self, name, options, words=()):
        self.name, self.words = name, list(words)
        self.bin, self.out, self.gpus = os.path.abspath(options.bin), os.path.abspath(options.out), options.gpus
        self.device, self.dry_run, self.env = options.device, options.dry_run, options.env
        self.passed = self.failed = self.skipped = 0
        self.folder = tempfile.TemporaryDirectory()
        self.work = self.folder.name
        self.log = sys.stdout if self.dry_run else open(f"{self.out}/{name}.log", "w", encoding="utf-8")

    # ---- claims

    def say(self, text):
        if text:
            print(text, file=self.log, flush=True)

    def figure(self, text):
        """Shows what was measured."""
        if not self.dry_run:
            self.say(text)
            print(f"  {text}", flush=True)

    def claim(self, ok, text, result=None):
        """Counts a claim; shows the end of what the result said if it fails. Returns whether it holds."""
        if self.dry_run:
            return True
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        self.say(f"ok: {text}" if ok else f"FAILED: {text}")
        if not ok:
            print(f"  FAILED: {text}", flush=True)
            self.say("\n".join(result.said.splitlines()[-20:]) if result else "")
        return bool(ok)

    def skip(self, text):
        """Counts a claim that does not apply here. The text has the reason."""
        self.skipped += not self.dry_run
        self.say(f"skipped: {text}")

    def has(self, *modules):
        """Returns whether Python has the modules; else skips the case."""
        done = subprocess.run([self.python(), "-c", f"import {', '.join(modules)}"], capture_output=True, text=True)
        if done.returncode and not self.dry_run:
            self.skip(f"{self.name}: {self.python()}: {(done.stderr.splitlines() or ['it fails'])[-1]}")
        return self.dry_run or not done.returncode

    # ---- commands

    def python(self):
        return os.environ.get("PYTHON", "python3")

    def command(self, words, ranks):
        launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks else []
        return [*launch, *map(str, words)]

    def start(self, *words, ranks=None, env=None, **more):
        """Starts a command, on ranks unless that is None, in a session of its own."""
        command = self.command(words, ranks)
        self.say(" ".join([*(f"{key}={value}" for key, value in (env or {}).items()), shlex.join(command)]))
        if self.dry_run:
            return None
        return subprocess.Popen(
            command, env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL, text=True, errors="replace",
            start_new_session=True, **more
        )  # fmt: skip

    def run(self, *words, ranks=None, limit=100, env=None, **more):
        """Runs a command for at most `limit` seconds and returns its Result. Leaves no process behind."""
        process = self.start(*words, ranks=ranks, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
        if not process:
            return Result(code=0, out="", said="", rows=[], text=[])
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            programs.end(process)
            out, err = process.communicate()
            err += f"it ran longer than {limit} s"
        return Result(code=process.returncode, out=out, said=out + err, rows=[], text=[])

    def count(self, *words, limit=1800, env=None):
        """Runs a program that prints claims of its own ("ok: ", "FAILED: ", "SKIP: ") and counts them."""
        result = self.run(*words, limit=limit, env=env)
        self.say(result.said)
        said = COUNTS.findall(result.said)
        self.passed, self.failed = self.passed + said.count("ok: "), self.failed + said.count("FAILED: ")
        self.skipped += said.count("SKIP: ") + said.count("skipped: ")
        if "ok: " not in said or (result.code and "FAILED: " not in said):
            self.claim(not result.code and said, f"{os.path.basename(words[0])} ends with exit code {result.code}")
        return result

    def measure(self, *words, **more):
        """Runs a benchmark; only its failure fails."""
        result = self.run(*words, **more)
        self.say(result.said)
        self.claim(result.code == 0, f"{os.path.basename(words[0])} runs to its end", result)
        return result

    def train(self, ini, words="", *options, ranks=None, keep=False, limit=280, env=None, metrics=None):
        """Trains on all GPUs unless ranks says otherwise. keep: a run that goes on extends its metrics."""
        metrics = metrics or f"{self.work}/metrics"
        if os.path.exists(metrics) and not keep:
            os.remove(metrics)
        if "delays" in words:
            env = {**DELAYS, **(env or {})}
        program = f"{self.bin}/zerotrain_faults" if env and "ZERO_STREAM_DELAY_US" in env else f"{self.bin}/zerotrain"
        result = self.run(
            program, *settings(words), "--set", f"log.metrics={metrics}", *options, self.ini(ini),
            ranks=ranks or self.gpus, limit=limit, env=env
        )  # fmt: skip
        result.rows, result.text = read_metrics(metrics)
        return result

    def plan(self, ini, words="", ranks=None):
        """Returns what --plan says of the whole and of stage 3; {} if it fails."""
        done = self.run(f"{self.bin}/zerotrain", "--plan", "--json", *settings(words), self.ini(ini), ranks=ranks)
        if self.dry_run or done.code or not done.out:
            return dict.fromkeys(("parameters", "total", "pinned_host_memory"), 1) if self.dry_run else {}
        planned = json.loads(done.out)
        return {**planned["stages"][3], **planned}

    def same_text(self, title, want, variants, train):
        """Claims that each variant of a training run has this text; returns their results."""
        found = {}
        for variant in variants:
            why = None
            if "nccl" in variant and self.device != "cuda":
                why = "NCCL takes one rank per GPU"
            if "delays" in variant and self.device == "cpu":
                why = "only GPUs have streams that are delayed"
            if why:
                self.skip(f"{title}, {variant}: {why}")
                continue
            found[variant] = result = train(variant)
            self.claim(want and result.text == want, f"{title}, {variant}: the same text", result)
        return found

    def trains(self, title, result, steps):
        """Claims that a run has made so many steps; returns its text."""
        self.claim(len(result.text) == steps, f"{title} trains {steps} steps: {result.last()}", result)
        return result.text

    # ---- files

    def ini(self, name):
        return name if name.endswith(".ini") else f"{self.work}/{name}.ini"

    def config(self, name, layers, dim, heads, vocab, seq, *lines):
        """Writes a configuration of a GPT-2, or what more lines of [model] make of it, that trains on train.txt."""
        model = f"layers = {layers}\ndim = {dim}\nheads = {heads}\nvocab_size = {vocab}\nseq_len = {seq}"
        with open(self.ini(name), "w", encoding="utf-8") as file:
            print("[model]", model, *lines, "[data]", f"train = {self.work}/train.txt", sep="\n", file=file)
            print("[device]", f"type = {self.device}", sep="\n", file=file)
        return name

    def headers(self, *folders, n_files=None, held_out=200000):
        """Writes train.txt and val.txt, the last bytes, from this machine's C headers."""
        paths = [f"{at}/{name}" for top in ("/usr/include", *folders) for at, _, names in os.walk(top) for name in names]
        text = bytearray()
        if self.dry_run:
            paths = paths[:1]
        for path in sorted(path for path in paths if path.endswith(".h") and os.path.isfile(path))[:n_files]:
            with open(path, "rb") as file:
                text += file.read()
        held_out = min(held_out, len(text) // 10)
        for name, part in (("train.txt", text[:-held_out]), ("val.txt", text[-held_out:])):
            self.write(name, part)

    def write(self, name, data):
        with open(f"{self.work}/{name}", "wb") as file:
            file.write(data)
        return f"{self.work}/{name}"

    def random_data(self):
        return self.write("data", os.urandom(1000 if self.dry_run else 40000000))

    def tree(self):
        """Makes a tree whose launch/ runs the programs of BIN; returns its folder."""
        tree = f"{self.work}/tree"
        os.mkdir(tree)
        subprocess.run(["cp", "-r", f"{ROOT}/launch", tree], check=True)
        os.symlink(self.bin, f"{tree}/build")
        return tree


def wait_for(condition, process, limit_s):
    """Waits until the condition holds, the process has ended or the time is over; returns the condition."""
    ends = time.monotonic() + limit_s
    while not condition() and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.02)
    return condition()
