"""kernel_times.py - shows where a step's time goes, by part of the step, from the records of kernel_times.c.

kernel_times.py RECORDS TRACED UNTRACED STEPS: the records, the metrics of the recorded run, and those of a run without
recording. Only the last STEPS steps of both count, since earlier ones choose algorithms for matrix products.

A step lasts from the end of one decide_step_kernel to the end of the next. The stream with most kernels is the compute
stream. A kernel may begin while the one before it ends; the time they share is counted for the first. So the stream's
kernels and the gaps between them add up to the step.
"""

import collections
import ctypes
import json
import re
import statistics
import sys

Record = collections.namedtuple("Record", "stream begin end name")

# The first pattern that matches a kernel's name, without return type and parameters, decides its part.
PARTS = (
    ("attention", r"(attention|dot_rows|attention_\w+|causal_numbers|attend|combine)<|.*(cudnn|sdpa|flash|fmha)"),
    ("matrix products", r"nvjet|fill_rows<|fingerprint_rows<|.*(cublas|cutlass|gemm|gemv|splitK)"),
    ("adapters, their casts", r"(narrow_|low_rank<)"),
    ("norms, residual sums", r"(layernorm|rmsnorm|norm_backward|(head|projection)_norm(_backward)?|add_scaled)<"),
    ("GELU, SwiGLU, RoPE", r"((gelu|swiglu|gated)(_backward)?|gated_low_rank|rope)<"),
    ("cross-entropy", r"(cross_entropy|skip_rows)<|add_losses$"),
    ("preferences", r"(compute|add)_pairs$|scale_rows<"),
    ("embedding", r"(embed|sum_chunks|add_chunks|sum_positions|sum_document_positions)<|(count_tokens|\w+_buckets)$"),
    ("sequences that ranks share", r"sum_blocks\b"),
    ("bias and norm gradients", r"sum_part<|put_(partials|grad)$"),
    ("fp8 casts", r"find_absmax$|(write_tile|widen)\b|(absmax|scale)_kernel$|cast_kernel$"),
    ("gradient sums and norm", r"sum_slices_kernel<|contribute_kernel$|decide_(step|unit)_kernel$"),
    ("AdamW", r"adam_kernel<|adam8_kernel\b"),
    ("SGD, Lion, Muon", r"(momentum|apply|squares|divide|add_diagonal)_kernel\b"),
    ("settings of tensors", r"tensor_scalars_kernel"),
    ("NCCL", r"nccl"),
    ("copies, fills, casts", r"mem(cpy|set)|cast_kernel<|(split|join)_bf16_kernel$|fill_normal_kernel$|(count_)?poison_kernel$"),
    ("rest", r""),
)
BEGINS_A_STEP = "decide_step_kernel"
LONG_GAP_NS = 5000  # a longer gap is more than the delay of a launch


def demangled(name, standard=ctypes.CDLL("libstdc++.so.6")):
    """Returns f<T> for void f<T>(T *), mangled or not; and any other name unchanged."""
    standard.__cxa_demangle.restype = ctypes.c_char_p
    text = standard.__cxa_demangle(name.encode(), None, None, None) if name.startswith("_Z") else None
    whole = (text or name.encode()).decode().replace("(anonymous namespace)", "[anonymous namespace]")
    depth, begin = 0, 0
    for i, c in enumerate(whole if text else ""):
        depth += (c in "<([") - (c in ">)]")
        if c == " " and depth == 0:
            begin = i + 1
        elif c == "(" and depth == 1:
            return whole[begin:i]
    return whole[begin:]


def part_of(name):
    return next(part for part, pattern in PARTS if re.match(pattern, name))


def read_records(path):
    names = {}
    with open(path, encoding="utf-8") as file:
        for stream, begin, end, name in (line.rstrip("\n").split(" ", 3) for line in file):
            names[name] = names.get(name) or demangled(name)
            yield Record(int(stream), int(begin), int(end), names[name])


def last_steps(records, n_steps):
    """Returns begin and end of the last n_steps, and the records that began between, in order."""
    marks = sorted(r.end for r in records if r.name == BEGINS_A_STEP)
    if len(marks) <= n_steps:
        sys.exit(f"kernel-times: {len(marks)} steps were recorded, but the last {n_steps} are asked for")
    begin, end = marks[-1 - n_steps], marks[-1]
    return begin, end, sorted((r for r in records if begin <= r.begin < end), key=lambda r: r.begin)


def share_out(records, begin, end):
    """Divides the time from begin to end into [(name, ns)] of one stream's records and [ns] of its gaps."""
    times, gaps, covered = [], [], begin
    for r in records:
        gaps.append(max(0, r.begin - covered))
        times.append((r.name, max(0, min(r.end, end) - max(r.begin, covered))))
        covered = max(covered, min(r.end, end))
    return times, [ns for ns in [*gaps, end - covered] if ns > 0]


def add_up(times, key):
    """Returns {key(name): (n, ns)}, most time first."""
    n, ns = collections.Counter(), collections.Counter()
    for name, own_ns in times:
        n[key(name)] += 1
        ns[key(name)] += own_ns
    return {what: (n[what], ns[what]) for what, _ in ns.most_common()}


def step_ms(path, n_steps):
    with open(path, encoding="utf-8") as file:
        return statistics.median([json.loads(line)["step_ms"] for line in file][-n_steps:])


def main():
    records_path, traced_path, untraced_path, n_steps = *sys.argv[1:4], int(sys.argv[4])
    begin, end, records = last_steps(list(read_records(records_path)), n_steps)
    kernels = collections.Counter(r.stream for r in records if not r.name.startswith("mem"))
    main_stream = kernels.most_common(1)[0][0]
    times, gaps = share_out([r for r in records if r.stream == main_stream], begin, end)
    beside = [(r.name, r.end - r.begin) for r in records if r.stream != main_stream]
    untraced = step_ms(untraced_path, n_steps)

    def row(what, n, ns):
        ms = ns / n_steps / 1e6
        print(f"| {what} | {n / n_steps:.1f} | {ms:.3f} | {100 * ms / untraced:.1f}% |")

    print("| part | a step | ms | of the step |\n|---|---|---|---|")
    for part, (n, ns) in add_up(times, part_of).items():
        row(part, n, ns)
    all_ns, step_ns = sum(ns for _, ns in times), untraced * 1e6 * n_steps
    row("gaps", len(gaps), step_ns - all_ns)
    row("the step", len(times), step_ns)
    for part, (n, ns) in add_up(beside, part_of).items():
        row(f"beside it, on other streams: {part}", n, ns)

    long_gaps = [ns for ns in gaps if ns >= LONG_GAP_NS]
    print(
        f"\nThe step is that of the run without recording, {untraced:.2f} ms by its metrics; gaps are the rest of it."
        f"\nRecorded, a step takes {(end - begin) / n_steps / 1e6:.2f} ms, {step_ms(traced_path, n_steps):.2f} by "
        f"its metrics: {sum(gaps) / n_steps / 1e6:.3f} ms of gaps,\nof which {sum(long_gaps) / n_steps / 1e6:.3f} ms "
        f"in {len(long_gaps) / n_steps:.1f} of {LONG_GAP_NS / 1e3:.0f} us or more."
    )
    print(f"\n{'kernels, most time first':24} {'a step':>7} {'ms':>8} {'us each':>8}")
    for where, several in (("", times), ("beside: ", beside)):
        for name, (n, ns) in add_up(several, str).items():
            times_of = f"{n / n_steps:7.1f} {ns / n_steps / 1e6:8.3f} {ns / n / 1e3:8.1f}"
            print(f"{part_of(name):24} {times_of} {where}{name[:100]}")


if __name__ == "__main__":
    main()
