"""traces.py - reads zerotrain's traces and sums the spans of a step. For run and trace_check."""

import collections
import json

# Spans of the device; the others are the host's. On the CPU the host does both.
DEVICE_KINDS = ("compute", "wait", "gather", "reduce", "update")

Span = collections.namedtuple("Span", "rank row kind name step begin_us end_us")


def read(path):
    """Returns all spans of the file, ordered by rank, row and beginning."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    spans = [
        Span(e["pid"], e["tid"], e["cat"], e["name"], e["args"]["step"], e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["ph"] == "X"
    ]
    return sorted(spans, key=lambda span: (span.rank, span.row, span.begin_us))


def sums_ms(spans):
    """Returns {(rank, step, kind): milliseconds}."""
    sums = collections.defaultdict(float)
    for span in spans:
        sums[span.rank, span.step, span.kind] += (span.end_us - span.begin_us) * 1e-3
    return sums


def steps(spans):
    """Returns the numbers of the steps that were trained, in order."""
    return sorted({span.step for span in spans if span.kind == "host"})


def device_is_host(spans):
    """Returns whether the host did the device's work: then a step's update ends before the step is queued."""
    queued = {(span.rank, span.step): span.end_us for span in spans if span.kind == "host"}
    return all(
        span.end_us <= queued[span.rank, span.step] + 1
        for span in spans
        if span.kind == "update" and (span.rank, span.step) in queued
    )


def host_ms(spans, sums, rank, step):
    """Returns the host's time in a step; on the CPU without the work that it did as the device."""
    work = sum(sums[rank, step, kind] for kind in DEVICE_KINDS) if device_is_host(spans) else 0.0
    return max(sums[rank, step, "host"] - work, 0.0)
