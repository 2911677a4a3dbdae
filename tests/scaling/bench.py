"""bench.py - what both measurements of `run` need: options, the machine, running one case, and tables on screen and
as CSV.

A row is a dict with a case and its result. Rows that are read from a CSV file equal those that were written.
"""

import concurrent.futures
import csv
import datetime
import math
import os
import statistics
import sys
import time
import types

import programs

GRACE_S = 15  # for a run that exceeds the budget
HERE = os.path.dirname(os.path.abspath(__file__))


class Bench:
    """Options, the machine, and what all runs share."""

    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.machine = programs.Machine(options.device)
        self.program = os.path.join(os.path.abspath(options.bin), "zerotrain")
        if not os.access(self.program, os.X_OK):
            sys.exit(f"{self.program} does not exist or is no program")
        on_gpus = self.machine.n_gpus > 0
        names = (options.configs or ("gpt2-124m,gpt2-1558m" if on_gpus else "tiny")).split(",")
        self.configs = {os.path.basename(name).removesuffix(".ini"): find_config(name) for name in names}
        self.ranks = sorted(options.ranks or [n for n in (1, 2, 4, 8) if n <= (self.machine.n_gpus or 2)])
        self.env = programs.environment(self.machine, max(self.ranks))
        self.settings = dict(word.split("=", 1) for word in options.set)
        self.rows = []  # everything measured
        self.ends = time.monotonic() + options.budget
        self.date = datetime.date.today().isoformat()
        self.about = f"{self.machine.name}; medians of {options.steps} steps after {options.warm_up}"
        self.runs = options.runs or f"{options.out}/runs"
        os.makedirs(options.out, exist_ok=True)
        os.makedirs(self.runs, exist_ok=True)

    def config(self, name):
        return {**programs.read_config(self.configs[name]), **self.settings}

    def micro_batch(self, config):
        return self.options.micro_batch or int(self.config(config).get("train.micro_batch", 8))

    def time_is_over(self):
        return time.monotonic() > self.ends

    def data(self, config):
        vocab_size = int(config.get("model.vocab_size", 256))
        path = f"{self.scratch}/tokens-{vocab_size}.bin"
        if not os.path.exists(path):
            programs.write_tokens(path, vocab_size)
        return path

    def run(self, case, label, traced=False, gpus=None, paced=None):
        """Runs a case and returns its row. label tells its files in OUT/runs apart. gpus: the first ones by default."""
        return self.measured(case, self.place(case, label, traced, gpus, paced))

    def run_beside(self, jobs):
        """Runs jobs [(case, label, traced, gpus)] on different GPUs at the same time; returns their rows."""
        places = [self.place(*job) for job in jobs]
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            return list(pool.map(self.measured, [job[0] for job in jobs], places))

    def place(self, case, label, traced=False, gpus=None, paced=None):
        """Returns where a case runs and what is measured. paced: also the host's own time, which takes another run."""
        if gpus is None:
            gpus = range(case["ranks"]) if self.machine.n_gpus else []
        on_gpus = self.machine.n_gpus > 0
        stem = "-".join(str(word) for word in (case["config"], case["impl"], label, case["ranks"], case["stage"]))
        return types.SimpleNamespace(
            machine=self.machine,
            program=self.program,
            config_path=self.configs[case["config"]],
            data_path=self.data({**self.config(case["config"]), **case["settings"]}),
            scratch=self.scratch,
            stem=f"{self.runs}/{stem}",
            steps=self.options.steps,
            warm_up=self.options.warm_up,
            traced=traced,
            paced=on_gpus and traced if paced is None else paced,
            gpus=gpus,
            env=programs.with_gpus(self.env, gpus),
            limit_s=min(programs.RUN_LIMIT_S, self.ends - time.monotonic() + GRACE_S),
        )

    def measured(self, case, place):
        result = (programs.fsdp2 if case["impl"] == "fsdp2" else programs.zerotrain)(case, place)
        row = {**case, "machine": self.machine.name, "date": self.date, **result}
        self.rows.append(row)
        return row


def find_config(name):
    paths = (name, f"{HERE}/{name}.ini", f"{HERE}/../../configs/{name}.ini")
    found = next((path for path in paths if os.path.isfile(path)), None)
    return found or sys.exit(f"--configs {name}: none of {', '.join(paths)} exists")


# ---- numbers that may be missing -------------------------------------------------------------------------------------


def scaled(row, name, factor):
    return None if row.get(name) is None else row[name] * factor


def failures(rows):
    """Reports failed cases; returns the exit code."""
    n_failed = sum(not row.get("step_ms") for row in rows)
    if n_failed:
        print(f"{n_failed} cases failed: see their notes and OUT/runs")
    return int(n_failed > 0)


# ---- on screen -------------------------------------------------------------------------------------------------------

# A column: its head, its width, its decimals (None: text), and a function that takes its value from a row.


def print_head(columns):
    print(" ".join(head.ljust(width) if digits is None else head.rjust(width) for head, width, digits, _ in columns))


def print_row(columns, row):
    cells = []
    for _, width, digits, value in columns:
        found = value(row)
        if digits is None:
            cells.append((found or "-").ljust(width))
        else:
            cells.append(("-" if found is None else f"{found:,.{digits}f}").rjust(width))
    print(" ".join(cells), row.get("note") or "", flush=True)


# ---- as CSV ----------------------------------------------------------------------------------------------------------


def read_value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text or None


def read_csv(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [{key: read_value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def write_csv(path, columns, rows):
    with open(f"{path}.new", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            values = [row.get(column) for column in columns]
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])
    os.replace(f"{path}.new", path)


def power(rows, cause, effect):
    """Fits p of effect = c cause^p by least squares over all rows. None if a value is missing or all causes are equal."""
    pairs = [(row.get(cause), row.get(effect)) for row in rows]
    if any(value is None or value <= 0 for pair in pairs for value in pair) or len({x for x, _ in pairs}) < 2:
        return None
    return statistics.linear_regression([math.log(x) for x, _ in pairs], [math.log(y) for _, y in pairs]).slope
