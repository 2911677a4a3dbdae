"""fit.py - the cases of tests/gpu/run that hold what `zerotrain fit` predicts against what a run takes.

Each row fixes a model and a step's batch, and perhaps a limit on memory, and leaves the rest to fit. Then it trains with
the same settings set to auto and compares the median step (of 8 after 4) and the memory that nvidia-smi shows beyond what
was in use before. A row named `largest` takes the largest micro-batch that fit names: it must train, and one more
sequence must be refused. No predicted time fails a row."""

import argparse
import json
import re
import time

from harness import ROOT, programs, settings

AUTO = "stage=auto model.recompute=auto train.micro_batch=auto"
ALL_AUTO = f"{AUTO} offload=optimizer offload_ratio=auto keep=auto"
LARGEST = "train.micro_batch=largest model.recompute=none"
CHOICES = ("stage", "recompute", "recompute_none", "recompute_light", "micro_batch", "offload_ratio", "keep")
# name: (config, sequences per step and GPU, settings)
ROWS = {
    "124m": ("gpt2-124m", 64, AUTO),
    "124m-fixed": ("gpt2-124m", 16, "train.micro_batch=16"),
    "1558m": ("gpt2-1558m", 32, AUTO),
    "1558m-16": ("gpt2-1558m", 32, "train.micro_batch=16 stage=0"),
    "1558m-light": ("gpt2-1558m", 32, "train.micro_batch=32 model.recompute=light"),
    "1558m-in-50": ("gpt2-1558m", 32, f"{AUTO} device.memory=50"),
    "1558m-in-30": ("gpt2-1558m", 32, f"{AUTO} device.memory=30"),
    "1558m-fp8": ("gpt2-1558m", 32, f"{AUTO} train.fp8=linear"),
    "1558m-offload": ("gpt2-1558m", 16, "train.micro_batch=16 offload=optimizer model.recompute=none"),
    "124m-muon": ("gpt2-124m", 16, "train.micro_batch=16 train.optimizer=muon"),
    "1558m-muon": ("gpt2-1558m", 16, "train.micro_batch=16 train.optimizer=muon"),
    "1558m-joint-20": ("gpt2-1558m", 32, f"{ALL_AUTO} device.memory=20"),
    "8b-joint-40": ("llama-8b", 2, f"{ALL_AUTO} device.memory=40"),
    "1b": ("llama-1b", 16, AUTO),
    "1b-fp8": ("llama-1b", 16, f"{AUTO} train.fp8=linear"),
    "3b": ("llama-3b", 8, AUTO),
    "8b": ("llama-8b", 1, AUTO),
    "124m-largest": ("gpt2-124m", 1, f"stage=0 {LARGEST}"),
    "1558m-largest": ("gpt2-1558m", 1, f"stage=0 {LARGEST}"),
    "1b-largest": ("llama-1b", 1, f"stage=0 {LARGEST}"),
    "3b-largest": ("llama-3b", 1, f"stage=2 {LARGEST}"),
    "8b-largest": ("llama-8b", 1, "stage=3 train.micro_batch=largest model.recompute=light"),
}


def batch(case, words, sequences):
    return f"{words} train.global_batch={sequences * case.gpus}"


def said_by_fit(case, config, words, *options):
    command = [f"{case.bin}/zerotrain", "fit", "--json", "--gpus", case.gpus, *options, *settings(words), case.ini(config)]
    done = case.run(*command, limit=60)
    if case.dry_run:
        return {"chosen": {**dict.fromkeys(CHOICES, 0), "ms": 1.0, "bytes": 1}, "points": []}
    if done.code:
        raise RuntimeError(done.said)
    return json.loads(done.out)


def train(case, config, words, steps):
    """Trains; the result also has the GiB on the fullest GPU beyond those in use before."""
    gpus = () if case.dry_run or case.device == "cpu" else range(case.gpus)
    before = programs.GpuMemory(gpus)
    time.sleep(0.5 if gpus else 0)
    idle, watch = before.stop() or 0, programs.GpuMemory(gpus)
    result = case.train(config, words, "--steps", str(steps), limit=150)
    result.used = ((watch.stop() or idle) - idle) / 1024
    return result


def largest(case, config, words):
    """Returns the largest micro-batch that fits by --plan and by what a run that is refused says may be used."""
    stage, low, high = int(re.search(r"stage=(\d)", words)[1]), 1, 4096

    def of(n):
        return batch(case, words.replace("=largest", f"={n}"), n)

    free = re.search(r"and ([0-9.]+) GiB may be used", train(case, config, of(high), 1).said)
    while high - low > 1 and free:
        middle = (low + high) // 2
        command = [f"{case.bin}/zerotrain", "--plan", "--json", *settings(of(middle)), case.ini(config)]
        planned = json.loads(case.run(*command, ranks=case.gpus).out)["stages"][stage]["total"]
        low, high = (middle, high) if planned <= float(free[1]) * 2**30 else (low, middle)
    return low


def row(case, name, n_neighbours):
    """Measures a row; returns its line of the table."""
    config, sequences, words = ROWS[name]
    config, words = f"{ROOT}/configs/{config}.ini", f"{words} {case.common}"
    steps, fits_any, one_more = 12, (), None
    if "largest" in words:
        sequences, form = largest(case, config, words), words
        one_more = batch(case, form.replace("=largest", f"={sequences + 1}"), sequences + 1)
        words, steps, fits_any = form.replace("=largest", f"={sequences}"), 20, ("--gpu-memory", "1000GiB")
    words = batch(case, words, sequences)
    found = said_by_fit(case, config, words, *fits_any)
    chosen = found["chosen"]
    recompute = "auto" if is_mixed(chosen) else chosen["recompute"]
    result = train(case, config, f"stage={chosen['stage']} model.recompute={recompute} {words}", steps)
    measured, planned = result.median_ms(4), chosen["bytes"] / 2**30
    case.claim(len(result.rows) == steps, f"{name}: {steps} steps", result)
    # The context and the libraries take up to 0.8 GiB.
    case.claim(result.used <= planned * 1.02 + 0.8, f"{name}: {result.used:.2f} GiB used, {planned:.2f} planned")
    if one_more:
        refused = train(case, config, one_more, 1)
        case.claim(refused.code != 0 and not refused.rows, f"{name}: a micro-batch of one more is refused", refused)
    for other in neighbours(found, 0 if one_more else n_neighbours):
        took = train(case, config, f"{words} {every_choice(other)}", 12).median_ms(4)
        what = " ".join(str(other[key]) for key in CHOICES)
        case.figure(f"beside it: {what} | {other['ms']:.1f} predicted | {took:.1f} measured")
        case.claim(measured <= 1.03 * took, f"{name}: the choice is at most 3% slower than {what}")
    how = " ".join(str(chosen[key]) for key in CHOICES)
    error = chosen["ms"] / measured - 1
    return f"| {name} | {how} | {chosen['ms']:.1f} | {measured:.1f} | {error:+.1%} | {planned:.2f} | {result.used:.2f} |"


def every_choice(point):
    """Returns a point of fit's table as settings, its micro-batch, too."""
    return f"stage={point['stage']} train.micro_batch={point['micro_batch']} model.recompute={point['recompute']}"


def is_mixed(point):
    """Returns whether blocks recompute differently, which only recompute = auto chooses."""
    return point["recompute_none"] + point["recompute_light"] > 0


def neighbours(found, n):
    """Returns the n points that fit expects to be the fastest beside the one it chose, of those that fit and can be set.
    On one GPU stages do the same work: points that differ in the stage alone count once."""

    def key(point):
        return tuple(point[choice] for choice in CHOICES[1:])

    points, seen = [], {key(found["chosen"])}
    for point in sorted(found["points"], key=lambda point: point["ms"]):
        if point["fits"] and not is_mixed(point) and key(point) not in seen:
            seen.add(key(point))
            points.append(point)
    return points[:n]


def prepared(case):
    case.common = f"data.train={case.random_data()} train.precision=bf16 device.type={case.device} log.every=0"


def fit(case):
    """-- [--only NAME,...] [--neighbours K] [--budget SECONDS]: also runs the K other settings that fit expects to be the
    fastest, and fails if one of them is faster than its choice by more than 3%. Starts no row that would end later."""
    parser = argparse.ArgumentParser(prog="fit")
    parser.add_argument("--only", default=",".join(ROWS))
    parser.add_argument("--neighbours", type=int, default=0)
    parser.add_argument("--budget", type=float, default=570)
    options, ends = parser.parse_args(case.words), time.monotonic() - 45
    ends += options.budget
    prepared(case)
    lines = [f"| case | {', '.join(CHOICES)} | predicted ms | measured ms | error | plan, GiB | nvidia-smi, GiB |", "|---" * 7 + "|"]
    for name in options.only.split(","):
        if time.monotonic() > ends:
            case.skip(f"{name}: no time left")
            continue
        lines.append(row(case, name, options.neighbours))
        case.figure(lines[-1])
        with open(f"{case.out}/fit.md", "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def fit_limits(case):
    """Trains layers of Llama-3-8B (-- [LAYERS]; 8, of all 32) without recomputation, with recompute=full, and with
    recompute=auto within four limits of memory between the two. Each step may take at most 1% more than a straight line
    between the two says, and all must give equal text."""
    layers, config = int((case.words or ["8"])[0]), f"{ROOT}/configs/llama-8b.ini"
    prepared(case)
    words = batch(case, f"{case.common} model.layers={layers} stage=3 train.micro_batch=2", 2)

    def measure(more):
        result = train(case, config, f"{words} {more}", 12)
        case.claim(len(result.rows) == 12, f"{layers} layers, {more}: 12 steps", result)
        return result.median_ms(4), result.text

    ends = {}
    for recompute in ("none", "full"):
        more = f"model.recompute={recompute}"
        ends[recompute] = (*measure(more), said_by_fit(case, config, f"{words} {more}")["chosen"]["bytes"] / 2**30)
        case.figure(f"{layers} layers, {more}: {ends[recompute][0]:.1f} ms, {ends[recompute][2]:.2f} GiB")
    (fast, want, most), (slow, text, least) = ends["none"], ends["full"]
    case.claim(text == want, f"{layers} layers: full recomputation and none give equal text")
    for i in range(1, 5):
        limit, line = least + (most - least) * i / 5, slow + (fast - slow) * i / 5
        ms, text = measure(f"model.recompute=auto device.memory={limit:.2f}")
        title = f"{layers} layers in {limit:.2f} GiB: {ms:.1f} ms, {line:.1f} on the line, equal text"
        case.claim(ms <= 1.01 * line and text == want, title)
        case.figure(title)
