"""programs.py - starts zerotrain and PyTorch FSDP2 on a case and reads their results.

A case is a dict: config (a name), impl, ranks, stage, micro_batch, global_batch, and settings for zerotrain
({"model.layers": "12", ...}). A result is a dict, too. If the program failed, it has a note and no step_ms.
"""

import array
import configparser
import json
import os
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time

import traces

RUN_LIMIT_S = 600
PACED_STEPS = 5
FSDP2_VALUES = ("step_ms", "tokens_per_s", "mfu", "peak_allocated_gib", "loss", "sharding")
N_TOKENS = 2_000_000  # random ones; a longer run repeats them in another order


class Machine:
    """The machine that is measured: GPUs or CPU cores, and whether it has PyTorch."""

    def __init__(self, device):
        gpus = []
        if device != "cpu" and shutil.which("nvidia-smi"):
            listed = subprocess.run(
                ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
            )
            gpus = listed.stdout.split("\n")[:-1] if listed.returncode == 0 else []
        if device == "cuda" and not gpus:
            sys.exit("--device cuda: nvidia-smi finds no GPU here")
        self.n_gpus = len(gpus)
        self.n_cores = len(os.sched_getaffinity(0))
        self.name = f"{self.n_gpus} x {gpus[0]}" if gpus else f"{self.n_cores} cores of {cpu_name()}"
        self.has_torch = (
            self.n_gpus > 0
            and shutil.which("torchrun") is not None
            and subprocess.run(
                [sys.executable, "-c", "import torch, sys; sys.exit(not torch.cuda.is_available())"],
                capture_output=True,
            ).returncode
            == 0
        )


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = re.findall(r"model name\s*: (.*)", file.read())
    return names[0] if names else os.uname().machine


def read_config(path):
    """Returns {"model.layers": "12", ...}."""
    parser = configparser.ConfigParser(inline_comment_prefixes=(";", "#"))
    with open(path, encoding="utf-8") as file:
        parser.read_file(file)
    return {f"{section}.{key}": value for section in parser.sections() for key, value in parser[section].items()}


def write_tokens(path, vocab_size):
    """Writes random tokens in llm.c's format, the same every time."""
    wide = vocab_size > 65536
    raw = array.array("I", random.Random(1).randbytes(4 * N_TOKENS))
    tokens = array.array("I" if wide else "H", [token % vocab_size for token in raw])
    with open(path, "wb") as file:
        file.write(struct.pack("<3i", 20240801 if wide else 20240520, 7 if wide else 1, N_TOKENS).ljust(1024, b"\0"))
        file.write(tokens.tobytes())


def end(process):
    """Ends a process group: first by SIGTERM, on which launchers end their ranks, then by SIGKILL."""
    for sign, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, None)):
        if process.poll() is None:
            os.killpg(process.pid, sign)
            try:
                process.wait(wait_s)
            except subprocess.TimeoutExpired:
                pass


def run(command, environment, log_path, limit_s=RUN_LIMIT_S):
    """Runs a command; returns its exit code and output, which is also in log_path. Leaves no process behind."""
    with open(log_path, "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            end(process)
    with open(log_path, encoding="utf-8", errors="replace") as log:
        return code, log.read()


class GpuMemory:
    """Watches the GPUs with nvidia-smi. stop() returns the most MiB in use on one of them; None without GPUs."""

    def __init__(self, gpus):
        self.process = None
        if gpus:
            query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", ",".join(map(str, gpus))]
            self.process = subprocess.Popen(
                ["nvidia-smi", *query, "-lms", "200"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )

    def stop(self):
        if not self.process:
            return None
        self.process.terminate()
        values = [int(word) for word in self.process.communicate()[0].split() if word.isdigit()]
        return max(values, default=None)


class FirstLine:
    """Watches a file. stop() returns the seconds from now until it had a whole line; None if it has none."""

    def __init__(self, path):
        self.path, self.begin, self.seconds, self.ended = path, time.monotonic(), None, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while self.seconds is None and not self.ended.wait(0.01):
            if os.path.exists(self.path):
                with open(self.path, encoding="utf-8") as file:
                    if "\n" in file.read(4096):
                        self.seconds = time.monotonic() - self.begin

    def stop(self):
        self.ended.set()
        self.thread.join()
        return self.seconds


def median_of(rows, name):
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.median(values) if values else None


def environment(machine, ranks_at_most):
    """Sets threads per rank for the largest number of ranks, so that a rank has as many on fewer ranks."""
    env = dict(os.environ)
    threads = 4 if machine.n_gpus else max(1, machine.n_cores // ranks_at_most)
    usual = {
        "OMP_NUM_THREADS": str(threads),
        # One machine needs no network, and looking for fast ones takes more than a second.
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "^tcp,openib,ofi,usnic,uct",
        "OMPI_MCA_mtl": "^ofi,psm2",
    }
    env = {**usual, **env}
    env.update(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_ALLOW_RUN_AS_ROOT="1",
        PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMP_WAIT_POLICY="passive",
        NCCL_NVLS_ENABLE="0",
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    return env


def with_gpus(env, gpus):
    return {**env, "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else env


def launcher(ranks):
    return [] if ranks == 1 else ["mpirun", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-np", str(ranks)]


def zerotrain(case, place):
    """Runs zerotrain. place: see Bench.place. The files that it leaves begin with place.stem."""
    trace = f"{place.stem}.trace.json"
    result = train(case, place, place.stem, place.steps, {"log.trace": trace} if place.traced else {}, place.program)
    if "step_ms" not in result:
        return result
    if place.traced:
        result.update(read_trace(trace, place.warm_up))
    if place.paced:
        result.update(paced(case, place))
    return result


def paced_program(program):
    """Returns zerotrain_paced of the folder of zerotrain: it lies beside it (tests/gpu/prepare), or where make puts it."""
    folder = os.path.dirname(program)
    beside = f"{folder}/zerotrain_paced"
    return beside if os.path.exists(beside) else f"{folder}/tests/support/zerotrain_paced"


def paced(case, place):
    """Measures the host's own time and the update's in a short run, in which the host waits for the device before each
    unit. Otherwise it may wait for space in the device's queue, which says nothing about its work."""
    trace = f"{place.scratch}/{os.path.basename(place.stem)}.paced.json"
    result = train(case, place, f"{place.stem}.paced", PACED_STEPS, {"log.trace": trace}, paced_program(place.program))
    return read_trace(trace, place.warm_up) if "step_ms" in result else {"note": f"paced: {result['note']}"}


def train(case, place, stem, steps, more_settings, program):
    metrics = f"{place.scratch}/{os.path.basename(stem)}.jsonl"
    if os.path.exists(metrics):
        os.remove(metrics)
    settings = {
        **case["settings"],
        "zero.stage": case["stage"],
        "train.micro_batch": case["micro_batch"],
        "train.global_batch": case["global_batch"],
        "train.steps": place.warm_up + steps,
        "train.warmup_steps": 0,
        "train.lr": 1e-4,
        "train.schedule": "constant",
        "log.every": 0,
        "log.metrics": metrics,
        "data.train": place.data_path,
        "data.val": "",
        "device.type": "cuda" if place.machine.n_gpus else "cpu",
        **more_settings,
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    memory, first_line = GpuMemory(place.gpus), FirstLine(metrics)
    code, said = run(
        launcher(case["ranks"]) + [program, *options, place.config_path], place.env, f"{stem}.log", place.limit_s
    )
    result = {"gpu_mib": memory.stop(), "first_step_s": first_line.stop()}
    about = re.search(r"of ([0-9.]+)M parameters .* on \d+ ranks? \((\w+[\w-]*)\)", said)
    if about:
        between_gpus = re.search(r"between GPUs: (\S+)", said)
        result.update(params_m=float(about[1]), comm=between_gpus[1] if between_gpus else about[2])
    lines = []
    if os.path.exists(metrics):
        with open(metrics, encoding="utf-8") as file:
            lines = file.readlines()
    rows = [json.loads(line) for line in lines][place.warm_up :]
    if code != 0 or not rows:
        lines = [line for line in said.split("\n") if line.startswith("zerotrain: ")]
        return {**result, "note": lines[-1][11:] if lines else f"exit code {code}"}
    result["text"] = [re.search(r'"loss": [^,]*, "grad_norm": [^,]*', line)[0] for line in lines]
    for name in ("step_ms", "exposed_comm_ms", "device_bytes", "mfu"):
        result[name] = median_of(rows, name)
    result["host_bytes"] = rows[-1]["host_bytes"]
    result["tokens_per_s"] = (rows[-1]["tokens"] / rows[-1]["step"]) / result["step_ms"] * 1e3
    return result


def read_trace(path, warm_up):
    spans = traces.read(path)
    sums = traces.sums_ms(spans)
    steps = [step for step in traces.steps(spans) if step > warm_up]
    host_ms = [traces.host_ms(spans, sums, 0, step) for step in steps]
    return {
        "host_ms": statistics.median(host_ms),
        "host_least_ms": min(host_ms),
        "update_ms": statistics.median([sums[0, step, "update"] for step in steps]),
    }


def fsdp2(case, place):
    """Runs FSDP2. Stage 3 gathers again in backward; stage 2 keeps what forward gathered. One rank is not sharded."""
    settings = {**read_config(place.config_path), **case["settings"]}
    here = os.path.dirname(os.path.abspath(__file__))
    options = {
        "arch": settings.get("model.arch", "gpt2"),
        "dim": settings["model.dim"],
        "layers": settings["model.layers"],
        "heads": settings["model.heads"],
        "kv": settings.get("model.kv_heads", 0),
        "ffn": settings.get("model.ffn_dim", 0),
        "vocab": settings.get("model.vocab_size", 256),
        "seq": settings.get("model.seq_len", 1024),
        "mb": case["micro_batch"],
        "accum": case["global_batch"] // (case["micro_batch"] * case["ranks"]),
        "steps": place.steps,
        "warmup": place.warm_up,
        **case.get("fsdp2", {}),
    }
    command = [sys.executable]
    if case["ranks"] > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case["ranks"])]
    command += [f"{here}/fsdp2.py", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
    if settings.get("model.recompute") == "full":
        command.append("--recompute")
    if case["ranks"] > 1 and case["stage"] != 3:
        command.append("--keep")
    memory = GpuMemory(place.gpus)
    code, said = run(command, place.env, f"{place.stem}.log", place.limit_s)
    gpu_mib = memory.stop()
    told = read_result(said, "fsdp2")
    if "step_ms" not in told:  # a failure after this line, in the process groups' end, does not count
        return {"gpu_mib": gpu_mib, "note": told.get("failed", f"exit code {code}")}
    return {"gpu_mib": gpu_mib, "comm": "nccl", **{name: told.get(name) for name in FSDP2_VALUES}}


def read_result(said, name):
    """Reads key=value pairs from the line 'RESULT name ...', numbers as float; {} if there is no such line."""
    line = re.search(rf"^RESULT {name} (.*)$", said, re.MULTILINE)
    pairs = (word.partition("=")[::2] for word in line[1].split()) if line else ()
    return {key: float(value) if re.fullmatch(r"-?[0-9.]+(e[-+]?\d+)?", value) else value for key, value in pairs}
