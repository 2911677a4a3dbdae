"""scaling.py - measures weak and strong scaling at every stage, and PyTorch FSDP2: a table, a CSV file, a picture."""

import chart
from bench import failures, print_head, print_row, read_csv, scaled, write_csv

KEY = ("machine", "config", "mode", "impl", "ranks", "stage", "micro_batch", "global_batch")
MEASURED = ("comm", "step_ms", "tokens_per_s", "efficiency", "exposed_comm_ms", "host_ms", "update_ms", "device_bytes")
CSV_COLUMNS = (*KEY, *MEASURED, "gpu_mib", "mfu", "date", "note")
TABLE = (
    ("config", 12, None, lambda row: row["config"]),
    ("mode", 6, None, lambda row: row["mode"]),
    ("impl", 9, None, lambda row: row["impl"]),
    ("ranks", 5, 0, lambda row: row["ranks"]),
    ("stage", 5, 0, lambda row: row["stage"]),
    ("comm", 5, None, lambda row: row.get("comm")),
    ("step ms", 9, 2, lambda row: row.get("step_ms")),
    ("tokens/s", 10, 0, lambda row: row.get("tokens_per_s")),
    ("eff. %", 6, 1, lambda row: scaled(row, "efficiency", 100)),
    ("exposed", 8, 2, lambda row: row.get("exposed_comm_ms")),
    ("plan GiB", 8, 3, lambda row: scaled(row, "device_bytes", 2**-30)),
    ("GPU GiB", 8, 1, lambda row: scaled(row, "gpu_mib", 2**-10)),
    ("mfu %", 6, 1, lambda row: scaled(row, "mfu", 100)),
)


# ---- cases -----------------------------------------------------------------------------------------------------------


def batch_of(mode, micro_batch, global_batch, ranks):
    """Returns sequences per micro-step of a rank and per step; None if the global batch is not divisible."""
    if mode == "weak":
        return micro_batch, micro_batch * ranks
    if global_batch % ranks:
        return None
    each = min(micro_batch, global_batch // ranks)
    return (each, global_batch) if global_batch // ranks % each == 0 else None


def cases_of(bench):
    stages = bench.options.stages or [0, 1, 2, 3]
    programs = [("zerotrain", stage) for stage in stages]
    if bench.machine.has_torch and not bench.options.no_fsdp2:
        programs += [("fsdp2", stage) for stage in stages if stage >= 2]
    for config in bench.configs:
        micro_batch = bench.micro_batch(config)
        global_batch = bench.options.global_batch or micro_batch
        for mode in bench.options.modes.split(","):
            for ranks in bench.ranks:
                batch = batch_of(mode, micro_batch, global_batch, ranks)
                if batch is None:
                    print(f"{config}, {mode}: {global_batch} sequences cannot be divided among {ranks} ranks: left out")
                    continue
                for impl, stage in programs:
                    case = {"config": config, "mode": mode, "impl": impl, "ranks": ranks, "stage": stage}
                    yield {**case, "micro_batch": batch[0], "global_batch": batch[1], "settings": bench.settings}


def add_efficiency(rows):
    """Adds efficiency: tokens per second and rank, divided by those of one rank at the same stage."""

    def line_of(row):
        return row["machine"], row["config"], row["mode"], row["impl"], row["stage"]

    alone = {line_of(row): row["tokens_per_s"] for row in rows if row["ranks"] == 1 and row.get("tokens_per_s")}
    for row in rows:
        measured = row.get("tokens_per_s") and line_of(row) in alone
        row["efficiency"] = row["tokens_per_s"] / row["ranks"] / alone[line_of(row)] if measured else None


# ---- the picture -----------------------------------------------------------------------------------------------------


def series_of(rows, name, factor=1):
    """Returns {name of the line: {ranks: value}}."""
    series = {line: {} for line in chart.STYLES}
    for row in rows:
        line = f"stage {row['stage']}" if row["impl"] == "zerotrain" else f"FSDP2, as stage {row['stage']}"
        if row.get(name) is not None:
            series[line][row["ranks"]] = row[name] * factor
    return series


def floor_of_efficiency(rows):
    """Returns where the axis begins: high enough to tell the last percents apart."""
    least = min((100 * row["efficiency"] for row in rows if row["efficiency"]), default=0)
    return next((floor for floor in (80, 60, 40) if least > floor + 5), 0)


def panels_of(rows, mode, ranks, on_gpus):
    alone = [row["step_ms"] for row in rows if row["ranks"] == 1 and row["impl"] == "zerotrain" and row.get("step_ms")]
    ideal = {n: min(alone) / (n if mode == "strong" else 1) for n in ranks} if alone else None
    # On GPUs what nvidia-smi says, since that is also known of FSDP2; elsewhere the plan.
    memory = (
        {"title": "GPU memory in use, GiB", "unit": "GiB", "series": series_of(rows, "gpu_mib", 2**-10)}
        if on_gpus
        else {"title": "memory by plan, MiB a rank", "unit": "MiB", "series": series_of(rows, "device_bytes", 2**-20)}
    )
    efficiency = {
        "title": "efficiency, % of 1 rank",
        "unit": "%",
        "series": series_of(rows, "efficiency", 100),
        "ideal": {n: 100 for n in ranks},
        "bottom": floor_of_efficiency(rows),
    }
    return [
        {"title": "step time, ms", "unit": "ms", "series": series_of(rows, "step_ms"), "ideal": ideal},
        efficiency,
        {"title": "exposed communication, ms", "unit": "ms", "series": series_of(rows, "exposed_comm_ms")},
        memory,
    ]


def draw(bench, config, rows):
    settings = bench.config(config)
    ranks = sorted({row["ranks"] for row in rows})
    grid = []
    for mode in ("weak", "strong"):
        mine = [row for row in rows if row["mode"] == mode]
        if mine:
            weak, strong = f"{mine[0]['micro_batch']} sequences a rank", f"{mine[0]['global_batch']} over all ranks"
            heading = f"{mode.capitalize()} scaling: {weak if mode == 'weak' else 'sequences of a step: ' + strong}"
            grid.append((heading, panels_of(mine, mode, ranks, bench.machine.n_gpus > 0)))
    dates = sorted({row["date"] for row in rows})
    title = (
        f"{config}: {settings['model.layers']} layers, width {settings['model.dim']}, "
        f"sequences of {settings.get('model.seq_len', 1024)}, {settings.get('train.precision', 'bf16')}"
    )
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    path = f"{bench.options.out}/scaling-{config}.svg"
    subtitle = f"{bench.machine.name}, {when}; medians of {bench.options.steps} steps"
    chart.write(path, title, subtitle, grid, ranks)
    return path


# ---- at the same time ------------------------------------------------------------------------------------------------


def groups_of(bench, cases):
    """Yields lists of cases to run at the same time: with --beside, as many of one number of ranks as the GPUs allow."""
    group = []
    for case in cases:
        n_fit = bench.machine.n_gpus // case["ranks"] if bench.options.beside else 1
        alike = group and [group[0][name] for name in ("config", "ranks")] == [case["config"], case["ranks"]]
        if group and (not alike or len(group) >= n_fit):
            yield group
            group = []
        group.append(case)
    if group:
        yield group


def jobs_of(bench, group):
    for i, case in enumerate(group):
        gpus = range(i * case["ranks"], (i + 1) * case["ranks"]) if bench.machine.n_gpus else []
        yield case, case["mode"], bench.options.trace, gpus


# ---- all of it -------------------------------------------------------------------------------------------------------


def measure(bench):
    path = f"{bench.options.out}/scaling.csv"
    rows = read_csv(path)
    n_left = 0
    print(bench.about)
    print_head(TABLE)

    def key_of(row):
        return [row.get(name, bench.machine.name) for name in KEY]

    known = [key_of(row) for row in rows if row["step_ms"]]
    wanted = list(cases_of(bench))
    for row in rows:
        if key_of(row) in known and key_of(row) in [key_of(case) for case in wanted]:
            print_row(TABLE, row)
    for group in groups_of(bench, [case for case in wanted if key_of(case) not in known]):
        if bench.time_is_over():
            n_left += len(group)
            continue
        found = bench.run_beside(list(jobs_of(bench, group)))
        keys = [key_of(row) for row in found]
        rows = [old for old in rows if key_of(old) not in keys] + found
        add_efficiency(rows)
        write_csv(path, CSV_COLUMNS, rows)
        for row in found:
            print_row(TABLE, row)
    written = [path]
    for config in bench.configs:
        mine = [row for row in rows if (row["config"], row["machine"]) == (config, bench.machine.name)]
        if mine:
            written.append(draw(bench, config, mine))
    print("written:", ", ".join(written))
    if n_left:
        print(f"{n_left} cases are left for another run: the budget is used up")
    return failures(rows)
