"""traces.py - zerotrain's traces: spans, and what a step's add up to. For run and trace_check."""

import collections
import json

# Work of the device; the rest is the host's. On the CPU the host does both.
DEVICE_KINDS = ("compute", "wait", "gather", "reduce", "update")

Span = collections.namedtuple("Span", "rank row kind name step begin_us end_us")


def read(path):
    """All spans of the file, by rank, row and beginning."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    spans = [
        Span(e["pid"], e["tid"], e["cat"], e["name"], e["args"]["step"], e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["ph"] == "X"
    ]
    return sorted(spans, key=lambda span: (span.rank, span.row, span.begin_us))


def sums_ms(spans):
    """{(rank, step, kind): milliseconds}"""
    sums = collections.defaultdict(float)
    for span in spans:
        sums[span.rank, span.step, span.kind] += (span.end_us - span.begin_us) * 1e-3
    return sums


def steps(spans):
    """Numbers of the steps that were trained, in order."""
    return sorted({span.step for span in spans if span.kind == "host"})


def device_is_host(spans):
    """Whether the host did the device's work: the update of a step ends before the step is queued."""
    queued = {(span.rank, span.step): span.end_us for span in spans if span.kind == "host"}
    return all(
        span.end_us <= queued[span.rank, span.step] + 1
        for span in spans
        if span.kind == "update" and (span.rank, span.step) in queued
    )


def host_ms(spans, sums, rank, step):
    """What the step took of the host's time: on the CPU, less the work that it did as the device."""
    work = sum(sums[rank, step, kind] for kind in DEVICE_KINDS) if device_is_host(spans) else 0.0
    return max(sums[rank, step, "host"] - work, 0.0)
