"""offload.py - the cases of tests/gpu/run with state, parameters and activations in host memory: bits, speed, the
largest model, growth."""

import os
import re
import subprocess
import threading

from harness import programs

UPDATES = ("device", "host")
ADAMW = """import sys, time, torch
threads = int(sys.argv[1])
n = 128_000_000 // (8 if threads == 1 else 1)
torch.set_num_threads(threads)
p = torch.nn.Parameter(torch.randn(n) * 0.02)
p.grad = torch.randn(n) * 1e-3
adam = torch.optim.AdamW([p], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
times = []
for _ in range(8):
    begin = time.perf_counter()
    adam.step()
    times.append(time.perf_counter() - begin)
took = sorted(times[1:])[3]
print(f"ADAMW torch {torch.__version__} fused, fp32, {threads} threads: {28e-9 * n / took:.1f} GB/s; {took / n * 1e9:.3f} ns a parameter")
"""


def offload(ratio, update):
    return f"offload=optimizer offload_ratio={ratio} offload_update={update}"


def offload_all(ratio, update):
    return f"stage=3 offload=all offload_params_ratio={ratio} offload_update={update}"


def text(case):
    """100 steps of a small GPT-2, some of them clipped: the text of the run without offload. -- [UPDATE...]"""
    case.headers(n_files=2000)
    case.config("small", 4, 256, 4, 256, 128)
    batch, four = (f"train.steps=100 train.global_batch={n * case.gpus} train.grad_clip=0.5" for n in (2, 4))
    four += " train.micro_batch=1"

    def train(words, of=batch):
        return case.train("small", f"{of} {words}", limit=100)

    want = {}
    for precision in ("bf16", "fp16"):
        found = train(f"train.precision={precision}")
        n_skipped = sum(bool(row["skipped"]) for row in found.rows)
        n_clipped = sum((row["grad_norm"] or 0) > 0.5 for row in found.rows)
        want[precision] = case.trains(f"{precision} without offload, {n_skipped} skipped, {n_clipped} clipped,", found, 100)
    want["four"] = train("", four).text
    for update in case.words or UPDATES:
        variants = [f"stage={stage} {offload(ratio, update)}" for stage in (1, 2, 3) for ratio in (0.3, 1)]
        variants += [offload("auto", update), f"delays {offload(1, update)}"]
        variants += [offload_all(ratio, update) for ratio in (0.4, 1, "auto")]
        variants += [f"delays {offload_all(1, update)} prefetch=3", f"{offload_all(1, update)} overlap=false"]
        case.same_text("100 steps", want["bf16"], variants, train)
        case.same_text("100 steps", want["fp16"], [f"train.precision=fp16 {offload(1, update)}"], train)
        case.same_text("100 steps, 4 micro-steps", want["four"], [offload(1, update), offload_all(1, update)],
                       lambda words: train(words, four))
    for share in (0.5, 1):
        inputs = f"model.recompute=full model.offload_activations={share}"
        variants = [f"stage=3 {inputs}", f"delays stage=1 {inputs}", f"{offload_all(1, 'device')} {inputs}"]
        variants.append(f"delays stage=3 model.recompute=light model.offload_activations={share}")
        case.same_text("100 steps", want["bf16"], variants, train)
        case.same_text("100 steps, 4 micro-steps", want["four"], [f"stage=3 {inputs}"], lambda words: train(words, four))
    case.same_text("100 steps, 3 threads a rank", want["bf16"], [f"{offload(1, 'host')} offload_threads=3"], train)


def sums(case):
    """Sums of gradients leave where the run does not fit with them: below what is planned by half of them. -- [UPDATE...]"""
    case.headers(n_files=2000)
    case.config("deep", 24, 128, 4, 256, 128)
    batch = f"train.steps=20 train.micro_batch=1 train.global_batch={4 * case.gpus} train.grad_clip=0.5"
    want = case.train("deep", batch, limit=100)
    for update in case.words or UPDATES:
        words = f"{batch} {offload_all(1, update)}"
        planned = case.plan("deep", words, case.gpus)
        limit = planned.get("total", 1) - 2 * planned.get("parameters", 1) / case.gpus
        found = case.train("deep", f"{words} device.memory={limit / 2**30:.9f}", limit=100)
        case.claim(want.text and found.text == want.text, f"4 micro-steps, {update}, sums on the host: the same text", found)
        case.claim("does not fit with the sums of gradients" in found.said, f"{update}: the run says that its sums left", found)


def speed(case):
    """GPT-2 1558M, 16 x 1024 per GPU, at stage 3, without offload and with half and all of the state on the host."""
    case.headers(n_files=2000)
    case.config("1558m", 48, 1600, 25, 50304, 1024)
    four, found = f"train.global_batch={64 * case.gpus}", {}

    def run(name, steps, what, words):
        result = found[name] = case.train("1558m", f"stage=3 train.micro_batch=16 train.steps={steps} {words}", limit=100)
        result.host_bytes = max((row["host_bytes"] for row in result.rows), default=0)
        case.figure(f"SPEED {what}: median {result.median_ms(3):.2f} ms a step, {result.host_bytes} host bytes")
        case.say("\n".join([line for line in result.said.splitlines() if "offload" in line.lower()][:3]))

    run("plain", 12, f"1558M 16x1024, {case.gpus} GPUs, no offload", "")
    run("plain-4", 6, "4 micro-steps, no offload", four)
    for update in case.words or UPDATES:
        run("all", 12, f"{update}: all of the state on the host", offload(1, update))
        run("half", 12, f"{update}: half of the state on the host", offload(0.5, update))
        run("all-4", 6, f"{update}: 4 micro-steps, all of the state on the host", f"{four} {offload(1, update)}")
        pairs = [("all", "plain"), ("half", "plain"), ("all-4", "plain-4")]
        case.claim(all(found[a].text and found[a].text == found[b].text for a, b in pairs), f"1558M, {update}: the text of the run without offload")
        ratios = [f"{found[a].median_ms(3) / found[b].median_ms(3):.3f}" for a, b in pairs]
        case.figure(f"RATIO {update}: all {ratios[0]} (1.35 on 4 GPUs, 1.2 on 8), half {ratios[1]} (1.05), all with 4 micro-steps {ratios[2]} (1.08)")
        planned = case.plan("1558m", f"stage=3 train.micro_batch=16 {offload(1, update)}", case.gpus).get("pinned_host_memory", 0)
        more = found["all"].host_bytes - found["plain"].host_bytes
        case.claim(0.98 * planned < more < 1.02 * planned, f"1558M, {update}: {more} host bytes more than without offload, {planned} planned")


def bench(case):
    """The host's AdamW beside a triad loop, PyTorch's fused AdamW and DeepSpeed's (BIN/../peers/deepspeed_adam, made by
    peers/build-deepspeed-adam); copies beside bare ones."""
    result = case.measure(f"{case.bin}/bench_offload", ranks=case.gpus)
    case.figure("\n  ".join(sorted(result.out.splitlines(), key=lambda line: line.split()[:1])))
    case.claim("COPY both" in result.said, "bench_offload measures copies in both directions")
    # With one thread, and with as many as a rank of bench_offload has; each on a core of its own, with huge pages.
    threads = re.search(r"^CORES rank 0: .* (\d+) threads", result.out, re.MULTILINE)
    pinned = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    deepspeed = f"{case.bin}/../peers/deepspeed_adam"
    for n in (1, int(threads[1]) if threads else 16 // case.gpus):
        env = {**pinned, "OMP_NUM_THREADS": str(n)}
        if os.path.exists(deepspeed):
            case.figure(case.measure(deepspeed, "128", limit=60, env=env).out.strip())
        else:
            case.skip(f"DeepSpeed's Adam on {n} threads: there is no {deepspeed}")
        if case.has("torch"):
            case.figure(case.measure(case.python(), "-c", ADAMW, str(n), limit=60, env=env).out.strip())


def most(low, high, fits):
    """Returns the largest number from low to high - 1 that fits, by halving; low is taken to fit."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest(case):
    """The largest Llama (dim 5120, 1 x 2048, recompute=full) that fits one GPU by --plan, without and with offload."""
    case.headers(n_files=2000)
    more = ("arch = llama", "kv_heads = 8", "ffn_dim = 13824", "recompute = full", "[train]", "micro_batch = 1")
    case.config("llama", 1, 5120, 40, 32000, 2048, *more)
    query = ["nvidia-smi", "-i", "0", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    memory = int(case.run(*query).out or 80000) * 2**20 - 1500000000  # less the context and libraries
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # offload_ram's default

    def sizes(layers, words):
        planned = case.plan("llama", f"model.layers={layers} {words}")
        return [planned.get(key, float("inf")) for key in ("parameters", "total", "pinned_host_memory")]

    def share(layers):
        """Returns the settings of the largest ratio that fits the host, which leaves most room on the GPU."""
        return offload(most(0, 101, lambda n: sizes(layers, offload(n / 100, "auto"))[2] < ram) / 100, "auto")

    def fits(layers, words):
        _, on_gpu, pinned = sizes(layers, words)
        return on_gpu < memory and pinned < ram

    for kind, words in (("without", lambda _: ""), ("with", share)):
        layers = most(1, 400, lambda n: fits(n, words(n)))
        watch = programs.GpuMemory([] if case.dry_run else [0])
        settings = f"model.layers={layers} {words(layers)}"
        result = case.train("llama", settings, "--steps", "3", ranks=1, limit=150, env={"CUDA_VISIBLE_DEVICES": "0"})
        used = watch.stop() or 0
        ok = len(result.text) == 3 and not any("nan" in line for line in result.text)
        case.claim(ok, f"largest {kind} offload: {settings}: three steps", result)
        parameters, on_gpu, pinned = sizes(layers, words(layers))
        ms = result.median_ms(1)
        case.figure(
            f"LARGEST {kind} offload: {parameters / 1e9:.2f}G parameters, {ms / 1000:.2f} s a step, {2048000 / ms:.0f} tokens/s; "
            f"planned {on_gpu / 2**30:.1f} GiB on the GPU and {pinned / 2**30:.1f} pinned, nvidia-smi {used / 1024:.1f} GiB"
        )


def soak(case):
    """2,000 steps of a small GPT-2 with all of the state on the host: no rank's memory grows, nor the GPUs'."""
    case.headers(n_files=2000)
    case.config("soak", 12, 768, 12, 256, 256)
    ended, taken = threading.Event(), []  # once a second: KiB of all ranks, MiB of the GPUs

    def total(*command):
        return sum(map(int, subprocess.run(command, capture_output=True, text=True).stdout.split()))

    def watch():
        while not ended.wait(1):
            gpus = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
            taken.append((total("ps", "-C", "zerotrain", "-o", "rss="), total(*gpus)))

    watching = threading.Thread(target=watch)
    if not case.dry_run:
        watching.start()
    words = f"stage=3 train.steps=2000 train.global_batch={8 * case.gpus} train.grad_clip=0.5 {offload(1, 'auto')}"
    result = case.train("soak", words, limit=100)
    ended.set()
    case.trains("soak: all of the state on the host", result, 2000)
    if case.dry_run:
        return
    watching.join()
    n = len(taken) - 1  # the last may be of ranks that are ending
    if n < 8:
        case.claim(False, f"soak: {n} s are too few to see growth")
        return
    (rss, gpu), (last_rss, last_gpu) = taken[n // 4], taken[n - 1]
    case.figure(
        f"SOAK resident memory of all ranks {rss / 1024:.1f} MiB after a quarter of {n} s, {last_rss / 1024:.1f} at the end; "
        f"the GPUs {gpu} and {last_gpu} MiB"
    )
    case.claim(last_rss < 1.005 * rss and last_gpu <= gpu, "soak: no growth")
