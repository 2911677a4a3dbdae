"""tables.py - prints what tests/gpu/tables has measured as Markdown for README. It only reads. A missing number is a dash."""

import collections
import statistics
import sys

# title: in tables; config and settings: of zerotrain; micro_batch: sequences per rank; estimated seconds of a run of
# zerotrain, FSDP2 and llm.c on the same GPUs (0: there is no such peer); llmc: llm.c's name of the model.
Work = collections.namedtuple(
    "Work", "name title config settings micro_batch seconds torch_seconds llmc_seconds llmc", defaults=(0, 0, None)
)
GIB = 2.0**-30


def number(value, digits=1):
    return "-" if value is None else f"{value:,.{digits}f}"


def over(a, b, digits=2):
    return "-" if not a or not b else f"{a / b:.{digits}f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


class Found:
    """Looks up results of one work: found("many", "step_ms") is None if that was not measured."""

    def __init__(self, t, name):
        self.t, self.name = t, name

    def __call__(self, what, value="step_ms"):
        return self.t.found.get((self.name, what), {}).get(value)

    def each_gpu(self):
        """Returns {GPU: step_ms} of the run on all GPUs at the same time."""
        times = {gpu: self(f"one-gpu{gpu}") for gpu in self.t.gpus}
        return {gpu: ms for gpu, ms in times.items() if ms}

    def of_gpu(self, gpu):
        return self(f"one-gpu{gpu}") or self("one-alone")

    def less_update(self, times_ms, host):
        """Returns the time without AdamW, which sharding divides by the number of ranks."""
        update_ms = self(host, "update_ms")
        return None if times_ms is None or update_ms is None else times_ms - update_ms

    def tax(self, alone_ms):
        return over(self.less_update(self("many"), "many-host"), self.less_update(alone_ms, "one-host"), 3)


def works(t):
    seen = dict.fromkeys(name for name, _ in t.found)
    return [(Found(t, name), t.works[name]) for name in seen]


def host_share(found, what, step_ms):
    host_ms = found(what, "host_ms")
    if host_ms is None or not step_ms:
        return "-"
    return f"{host_ms:.2f} ({host_ms / step_ms * 100:.1f}%)"


def one_gpu(t):
    head = ("one GPU, ms a step", "zerotrain, GPU 0 alone", "every GPU at once", "median", "slowest")
    head += ("AdamW's", "host's", "PyTorch compiled", "/ zerotrain", "llm.c", "/ zerotrain", "GPU GiB", "MFU %")
    rows = []
    for index, (found, work) in enumerate(pair for pair in works(t) if pair[0]("one-alone") or pair[0].each_gpu()):
        each, mfu = found.each_gpu(), found("one-alone", "mfu")
        slowest = max(each, key=each.get) if each else None
        torch_ms, llmc_ms = found("one-torch"), found("one-llmc")
        gpus = list(t.gpus) or [0]
        gpu_mib = found("one-alone", "gpu_mib")
        rows.append(
            (
                work.title,
                number(found("one-alone"), 2),
                ", ".join(number(ms, 2) for ms in each.values()) or "-",
                number(statistics.median(each.values()) if each else None, 2),
                f"{each[slowest]:.2f} (GPU {slowest})" if each else "-",
                number(found("one-host", "update_ms"), 2),
                host_share(found, "one-host", found("one-alone")),
                number(torch_ms, 2),
                over(torch_ms, found.of_gpu(gpus[index % len(gpus)])),
                number(llmc_ms, 2),
                over(llmc_ms, found.of_gpu(gpus[-1])),
                number(gpu_mib / 1024 if gpu_mib else None),
                number(mfu * 100 if mfu else None),
            )
        )
    return table(head, rows) if rows else ""


def many_gpus(t):
    head = (f"{t.options.gpus} GPUs, stage 3, ms a step", "zerotrain", "exposed", "AdamW's", "host's")
    head += ("tax, GPU 0 alone", "tax, slowest GPU", "FSDP2 compiled", "/ zerotrain", "llm.c ZeRO-1", "/ zerotrain")
    head += ("MFU %",)
    rows = []
    for found, work in works(t):
        if not any(key == (work.name, "many") for key in t.found):
            continue
        step_ms, fsdp2_ms, llmc_ms, mfu = found("many"), found("many-fsdp2"), found("many-llmc"), found("many", "mfu")
        each = found.each_gpu().values()
        rows.append(
            (
                work.title,
                number(step_ms, 2),
                number(found("many", "exposed_comm_ms"), 2),
                number(found("many-host", "update_ms"), 2),
                host_share(found, "many-host", step_ms),
                found.tax(found("one-alone")),
                found.tax(max(each, default=None)),
                number(fsdp2_ms, 2),
                over(fsdp2_ms, step_ms),
                number(llmc_ms, 2),
                over(llmc_ms, step_ms),
                number(mfu * 100 if mfu else None),
            )
        )
    return table(head, rows) if rows else ""


def memory(t):
    head = (f"{t.options.gpus} GPUs, stage 3, GiB a GPU", "`--plan`", "engine's counters", "nvidia-smi, most")
    head += ("over plan", "FSDP2, nvidia-smi", "FSDP2, allocated", "llm.c, nvidia-smi")
    rows = []
    for found, work in works(t):
        held, seen = found("many", "device_bytes"), found("many", "gpu_mib")
        planned = found("plan", "bytes")
        if held is None and planned is None:
            continue
        peers = (found("many-fsdp2", "gpu_mib"), found("many-llmc", "gpu_mib"))
        fsdp2_mib, llmc_mib = (mib / 1024 if mib else None for mib in peers)
        rows.append(
            (
                work.title,
                number(planned * GIB if planned else None, 2),
                number(held * GIB if held else None, 2),
                number(seen / 1024 if seen else None, 2),
                f"{(seen * 2.0**20 / planned - 1) * 100:+.1f}%" if seen and planned else "-",
                number(fsdp2_mib),
                number(found("many-fsdp2", "peak_allocated_gib")),
                number(llmc_mib),
            )
        )
    return table(head, rows) if rows else ""


FP8_RUNS = ("bf16", "fp8", "fp8-gather", "fsdp2-bf16", "fsdp2-fp8")


def fp8(t):
    head = (f"{t.options.gpus} GPUs, stage 3, ms a step", "bf16", "fp8", "fp8, gathered in fp8", "bf16 / best fp8")
    head += ("FSDP2, bf16", "/ zerotrain", "FSDP2, float8", "/ best fp8", "GPU GiB: bf16, fp8, gathered in fp8, FSDP2 bf16, float8")
    rows = []
    for found, work in works(t):
        if not any(key in t.found for key in ((work.name, what) for what in FP8_RUNS)):
            continue
        times = {what: found(what) for what in FP8_RUNS}
        best = min((times[what] for what in ("fp8", "fp8-gather") if times[what]), default=None)
        mib = [found(what, "gpu_mib") for what in FP8_RUNS]
        rows.append(
            (
                work.title,
                number(times["bf16"], 2),
                number(times["fp8"], 2),
                number(times["fp8-gather"], 2),
                over(times["bf16"], best),
                number(times["fsdp2-bf16"], 2),
                over(times["fsdp2-bf16"], times["bf16"]),
                number(times["fsdp2-fp8"], 2),
                over(times["fsdp2-fp8"], best),
                ", ".join(number(x / 1024 if x else None) for x in mib),
            )
        )
    return table(head, rows) if rows else ""


def start_up(t):
    lines = []
    for (name, what), row in t.found.items():
        if what in ("start", "many") and row.get("first_step_s"):
            how = "a run of one step" if what == "start" else "a longer run, which reports step 1 during step 2"
            lines.append(f"- {t.works[name].title}: {row['first_step_s']:.2f} s ({how})")
    head = f"From starting mpirun to the end of step 1, {t.options.gpus} ranks:"
    return "\n".join([head, "", *lines]) if lines else ""


# ---- texts -----------------------------------------------------------------------------------------------------------


SAME_BITS = ("model.recompute", "zero.gather")  # settings that change no bit


def must_agree(t):
    """Groups zerotrain's rows by all that decides their bits: not stage, recomputation, gathers or GPU."""
    groups = collections.defaultdict(list)
    for row in t.bench.rows:
        if row["impl"] == "zerotrain" and row.get("text"):
            settings = {key: str(value) for key, value in row["settings"].items() if key not in SAME_BITS}
            sizes = (row["config"], row["ranks"], row["micro_batch"], row["global_batch"])
            groups[(*sizes, *sorted(settings.items()))].append(row)
    return groups


def agree(rows):
    """Returns whether all texts are beginnings of the longest one."""
    longest = max((row["text"] for row in rows), key=len)
    return all(row["text"] == longest[: len(row["text"])] for row in rows)


def texts_agree(t):
    return all(agree(rows) for rows in must_agree(t).values())


def equal_text(t):
    lines = []
    for key, rows in must_agree(t).items():
        settings = " ".join(f"{name}={value}" for name, value in key[4:])
        stages = ", ".join(str(stage) for stage in sorted({row["stage"] for row in rows}))
        said = "one run" if len(rows) == 1 else f"{len(rows)} runs equal" if agree(rows) else f"{len(rows)} runs DIFFER"
        lines.append(f"- {key[0]} {settings}, {key[1]} ranks, {key[3]} sequences, stages {stages}: {said}")
    return "\n".join(["Loss and gradient norm, text of every step:", "", *lines]) if lines else ""


# ---- all of it -------------------------------------------------------------------------------------------------------


NOTES = """\
Medians: zerotrain's of {steps} steps after {warm_up}, PyTorch's and FSDP2's of 10 after 4, llm.c's of 15 after 5.
AdamW's and the host's time come from a run of 5 steps in which the host waits for the device before each unit. The tax
is the step time on {gpus} GPUs divided by that on one, both without AdamW. PyTorch on one GPU uses bf16 with fp32
masters and fused AdamW; the whole model is compiled for GPT-2 124M, block by block for the others. The peers on one GPU
ran at the same time, each on its own GPU, and are compared with zerotrain on that GPU. llm.c keeps all parameters and
gradients on each GPU (ZeRO-1)."""


def markdown(t):
    options = t.bench.options
    notes = NOTES.format(steps=options.steps, warm_up=options.warm_up, gpus=t.options.gpus)
    parts = [f"{t.bench.machine.name}, {t.date}: `{' '.join(sys.argv)}`", notes]
    parts += [part(t) for part in (one_gpu, many_gpus, fp8, memory, start_up, equal_text)]
    trouble = [f"- {name}, {what}: {row['note']}" for (name, what), row in t.found.items() if row.get("note")]
    trouble += [f"- left out for time: {what}" for what in t.left_out]
    parts += ["\n".join(["Notes:", "", *trouble])] if trouble else []
    return "\n\n".join(part for part in parts if part) + "\n"
