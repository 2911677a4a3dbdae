"""growth.py - measures how the host's time to queue a step, and memory, grow with layers, width and ranks. Neither may
grow faster than linearly."""

from bench import failures, power, print_head, print_row, scaled, write_csv

SIZE = ("config", "layers", "dim", "ranks", "stage")
MEASURED = ("params_m", "step_ms", "host_ms", "host_least_ms", "device_bytes", "host_bytes")
CSV_COLUMNS = ("machine", "varied", *SIZE, *MEASURED, "date", "note")
TABLE = (
    ("config", 12, None, lambda row: row["config"]),
    ("varied", 6, None, lambda row: row["varied"]),
    ("layers", 6, 0, lambda row: row["layers"]),
    ("width", 5, 0, lambda row: row["dim"]),
    ("ranks", 5, 0, lambda row: row["ranks"]),
    ("stage", 5, 0, lambda row: row["stage"]),
    ("M params", 9, 2, lambda row: row.get("params_m")),
    ("step ms", 9, 2, lambda row: row.get("step_ms")),
    ("host ms", 8, 3, lambda row: row.get("host_ms")),
    ("host %", 6, 1, lambda row: row["host_ms"] / row["step_ms"] * 100 if row.get("host_ms") is not None else None),
    ("device MiB", 10, 1, lambda row: scaled(row, "device_bytes", 2**-20)),
    ("host MiB", 9, 1, lambda row: scaled(row, "host_bytes", 2**-20)),
)
# What is varied: the effects, and the cause of each. The host's time is that of the quickest step, since disturbances
# only add time.
POWERS = (
    ("layers", (("host_least_ms", "layers"), ("device_bytes", "params_m"), ("host_bytes", "params_m"))),
    ("width", (("host_least_ms", "params_m"), ("device_bytes", "params_m"), ("host_bytes", "params_m"))),
    ("ranks", (("host_least_ms", "ranks"), ("device_bytes", "ranks"), ("host_bytes", "ranks"))),
)
# No power may exceed 1; these bounds leave room for errors of measurement. On the CPU the host's time includes other
# processes and the device's work, so tests/unit/zero/test_calls.c is the sharper test there.
STEEPEST = {"device_bytes": 1.05, "host_bytes": 1.1, "host_least_ms": 1.2}
STEEPEST_ON_THE_CPU = {**STEEPEST, "host_least_ms": 1.6}
ON_THE_CPU = """\
On the CPU the host also does the device's work. host ms is all that no other row of the trace shows, such as sums of
gradients, so it grows with the parameters. host MiB includes device MiB."""


def cases_of(bench):
    """Yields cases in which one size grows, starting from the configuration's own on two ranks (or one)."""
    for config in bench.configs:
        settings = bench.config(config)
        layers, dim, heads = (int(settings[f"model.{key}"]) for key in ("layers", "dim", "heads"))
        micro_batch = bench.micro_batch(config)
        usual = 2 if 2 in bench.ranks else bench.ranks[-1]
        sizes = [("layers", layers * k, 1, usual) for k in (1, 2, 4, 8)]
        sizes += [("width", layers, k, usual) for k in (1, 2, 4)]
        sizes += [("ranks", layers, 1, n) for n in bench.ranks]
        for stage in bench.options.stages or [3]:
            for varied, n_layers, wider, ranks in sizes:
                shape = {"model.layers": n_layers, "model.dim": dim * wider, "model.heads": heads * wider}
                for key in ("model.kv_heads", "model.ffn_dim"):
                    if int(settings.get(key, 0)) > 0:
                        shape[key] = int(settings[key]) * wider
                size = {"config": config, "layers": n_layers, "dim": dim * wider, "ranks": ranks, "stage": stage}
                batch = {"micro_batch": micro_batch, "global_batch": micro_batch * ranks}
                yield {"impl": "zerotrain", "varied": varied, **size, **batch, "settings": {**bench.settings, **shape}}


def powers(rows):
    """Returns [(varied, effect, cause, power)]. One rank is left out of `ranks`, since it does not communicate."""
    found = []
    for varied, pairs in POWERS:
        mine = [row for row in rows if row["varied"] == varied and (varied != "ranks" or row["ranks"] > 1)]
        found += [(varied, effect, cause, power(mine, cause, effect)) for effect, cause in pairs]
    return [one for one in found if one[3] is not None]


def print_powers(rows, steepest):
    """Prints the powers; returns how many are too steep."""
    found = powers(rows)
    steep = [one for one in found if one[3] > steepest[one[1]]]
    for varied in dict.fromkeys(one[0] for one in found):
        words = [f"{effect} as {cause}^{p:.2f}" for other, effect, cause, p in found if other == varied]
        print(f"{rows[0]['config']}, stage {rows[0]['stage']}, more {varied}: {', '.join(words)}")
    for varied, effect, cause, p in steep:
        print(f"TOO STEEP: more {varied}, {effect} as {cause}^{p:.2f}, above {steepest[effect]}")
    return len(steep)


def measure(bench):
    path = f"{bench.options.out}/growth.csv"
    rows = []
    print(bench.about)
    if not bench.machine.n_gpus:
        print(ON_THE_CPU)
    print_head(TABLE)
    for case in cases_of(bench):
        # All three begin with the same size, which is measured once.
        known = next((row for row in rows if all(row[name] == case[name] for name in SIZE)), None)
        if known is None and bench.time_is_over():
            print("the budget is used up")
            break
        label = f"{case['layers']}x{case['dim']}"
        row = {**known, "varied": case["varied"]} if known else bench.run(case, label, True)
        rows.append(row)
        write_csv(path, CSV_COLUMNS, rows)
        print_row(TABLE, row)
    steepest = STEEPEST if bench.machine.n_gpus else STEEPEST_ON_THE_CPU
    n_steep = 0
    for config in bench.configs:
        for stage in bench.options.stages or [3]:
            n_steep += print_powers([row for row in rows if (row["config"], row["stage"]) == (config, stage)], steepest)
    print("written:", path)
    return failures(rows) or int(n_steep > 0)
