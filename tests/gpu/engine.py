"""engine.py - the cases of tests/gpu/run without zerotrain's models: kernels, transports, engine, examples, libzero.torch.
What a program prints must be the text of the CPU, of stage 0 or of stage 3: equal text means equal bits."""

import os
import re
import shutil

from harness import HERE, ROOT, apart

# ---- kernels ---------------------------------------------------------------------------------------------------------


def tests_and_benches(case, tests, sanitized, benches):
    """Runs tests, some under compute-sanitizer if it is installed, then measurements."""
    case.say(case.run("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").out)
    for name in tests:
        case.measure(f"{case.bin}/{name}", limit=1200)
    if not case.dry_run and not shutil.which("compute-sanitizer"):
        case.skip(f"{case.name} under compute-sanitizer: it is not installed")
        sanitized = ()
    for tool, name, *arguments in sanitized:
        options = [word for word in arguments if "=" in word]
        words = [word for word in arguments if "=" not in word]
        kernels = [option for word in options for option in ("--kernel-name", word)]
        api = ("--report-api-errors", "no") if tool == "memcheck" else ()  # a test asks for more memory than there is
        result = case.run(
            "compute-sanitizer", "--tool", tool, *api, "--error-exitcode", "1", *kernels, f"{case.bin}/{name}", *words,
            limit=1200
        )  # fmt: skip
        summary = re.search(r".*SUMMARY.*", result.said)
        case.claim(result.code == 0, f"compute-sanitizer {tool} {name} {' '.join(words)}: {summary and summary[0]}", result)
    for name in benches:
        case.measure(f"{case.bin}/{name}", limit=600, env={"OMP_NUM_THREADS": "8"})


def shard(case):
    tests = ("test_shard_cuda", "test_muon_cuda", "test_adam8_cuda")
    both = [(tool, *words) for tool in ("memcheck", "racecheck") for words in (("test_shard_cuda", "small"), ("test_adam8_cuda",))]
    tests_and_benches(case, tests, both, ("bench_adam_cuda", "bench_muon_cuda"))
    if case.has("torch"):
        case.measure(case.python(), f"{HERE}/torch_adam.py", limit=300)


OWN_KERNELS = ("layernorm", "rmsnorm", "head_norm", "projection_norm", "rope", "swiglu", "geglu", "gated adapters", "elementwise", "embed", "blocks")


def model(case):
    """racecheck and synccheck run on our own kernels only: they report those of libraries, and crash on some of them."""
    tests = ("test_model_cuda", "test_fp8_model_cuda", "test_absmax_model_cuda")
    own = [("racecheck", tests[0], "small", name) for name in OWN_KERNELS]
    sanitized = (
        *(("memcheck", name, "small") for name in tests),
        ("racecheck", tests[1], "small", "casts"),
        ("racecheck", tests[2], "small"),
        *own,
        ("racecheck", "racecheck_attention", "kns=causal", "small", "attention"),
        ("synccheck", tests[0], "kns=causal", "small", "attention"),
        ("racecheck", tests[0], "kns=narrow_", "small", "narrow"),
        ("racecheck", tests[0], "kns=low_rank", "small", "product"),
        ("racecheck", tests[0], "kns=cross_entropy", "kns=add_losses", "small", "loss"),
        # In bf16 it ended in cuBLAS's product, of 513 x 64 x 1000 (CUDA 13.0): "failed to handle a hardware exception".
        ("racecheck", tests[0], "kns=compute_pairs", "kns=add_pairs", "kns=scale_rows", "small", "fp32", "pairs"),
    )
    tests_and_benches(case, tests, sanitized, ("bench_model_cuda", "bench_fp8_model_cuda"))


def collectives(case):
    """The transports between GPUs do what comm/comm.h promises; host memory and copy engines also with two and four ranks
    per GPU. Then NCCL and copy engines are measured."""
    env = {"ZERO_TIMEOUT_S": "15"}

    def keeps_promises(ranks, *words):
        result = case.run(f"{case.bin}/test_collectives", *words, ranks=ranks, env=env)
        case.say(result.said)
        case.claim(result.code == 0, f"{ranks} ranks: {' '.join(words)}", result)

    keeps_promises(case.gpus, "nccl")
    for ranks in sorted({1, case.gpus, 2 * case.gpus, 4 * case.gpus}):
        keeps_promises(ranks, "copy-engine")
        keeps_promises(ranks, "through-host")
    if case.gpus > 1:
        keeps_promises(case.gpus, "nccl", "a_stuck_peer_can_be_left")
        keeps_promises(case.gpus, "copy-engine", "a_stuck_peer_can_be_left")
        case.measure(f"{case.bin}/bench_collectives", ranks=case.gpus, env=env)


# ---- the engine ------------------------------------------------------------------------------------------------------

# nan_at: a step that is skipped; staging: a large unit that is reduced in chunks; hooks: functions of the caller's on
# reduced gradients and updated weights; schedule: settings of single tensors, which change from step to step.
ENGINE = (
    "dtype=bf16", "dtype=fp32", "dtype=fp16 nan_at=3", "micro_steps=3 every=1", "micro_steps=3 dtype=fp32 every=1",
    "rows=4096 staging=1", "hooks=noise", "hooks=both dtype=fp16", "schedule=1 poison=1",
    "schedule=1 dtype=fp16 nan_at=3 optimizer=lion", "optimizer=sgd", "optimizer=nesterov", "optimizer=adamw8bit fill=1",
    "schedule=1 optimizer=adamw8bit dtype=fp32",
)  # fmt: skip
PLACES = (
    *(f"stage={stage}" for stage in range(4)), *(f"stage={stage} nccl=1" for stage in range(4)),
    "stage=1 offload=100", "stage=2 offload=50", "stage=3 offload=100", "stage=3 offload=100 update=host",
)  # fmt: skip
# Against bf16 gathers and a cast by tests/support/fp64/fp8_reference.h on the CPU.
GATHERS_IN_FP8 = ("steps=6", "micro_steps=2 every=1 rows=4096 nan_at=3")
FP8_PLACES = ("stage=0", "stage=1", "stage=2", "stage=3", "stage=3 prefetch=0", "stage=2 offload=50", "stage=3 offload=100 update=host")
# Muon's matrices have other bits than the CPU's: against stage 3 on the same GPUs.
MUON = ("dtype=bf16", "dtype=fp32 fill=1", "dtype=fp16 nan_at=3", "micro_steps=3 every=1 schedule=1")
FROZEN_FP8_CASES = ("stage=0", "stage=2", "stage=3", "stage=3 offload=1")
OTHER_CASES = ("stage=0 dtype=bf16", "stage=1 dtype=fp16", "stage=2", "stage=3 dtype=bf16", "stage=3")


def number_of_ranks(case):
    return [int(word) for word in case.words] or sorted({1, case.gpus})


def why_not(case, n, place, settings):
    """Returns why a place of engine_cases is left out; "" if the case `offload` has it, None if it is not."""
    if "offload" in place and settings != "dtype=fp16 nan_at=3" and not settings.startswith("schedule"):
        return ""
    if "nccl" in place and n > 4:
        return "sums of more than four ranks depend on NCCL's order"
    return "NCCL takes one rank per GPU" if "nccl" in place and case.device != "cuda" else None


def engine(case):
    """-- [RANKS...]"""
    env = {"OMP_NUM_THREADS": "1", "ZERO_CHECK": "1"}

    def steps(n, words):
        return case.run(f"{case.bin}/tests/mpi/engine_cases", "train", *words.split(), ranks=n, env=env)

    def same(n, want, words, title):
        got = steps(n, f"{words} device={case.device} poison=1")
        case.claim(len(got.said.splitlines()) == 6 and got.said == want.said, f"{n} ranks, {title}", got)

    for n in number_of_ranks(case):
        for settings in ENGINE:
            want = steps(n, f"stage=3 device=cpu {settings}")
            for place in PLACES:
                why = why_not(case, n, place, settings)
                if why:
                    case.skip(f"{n} ranks, {place}, {settings}: {why}")
                elif why is None:
                    same(n, want, f"{place} {settings}", f"{place}, {settings}: the text of stage 3 on the CPU")
        for settings in GATHERS_IN_FP8:
            want = steps(n, f"stage=3 device=cpu fp8=bf16 {settings}")
            for place in FP8_PLACES:
                title = f"{place}, {settings}, gathers in fp8: the text of bf16 gathers at stage 3 on the CPU"
                same(n, want, f"{place} fp8=fp8 {settings}", title)
        for settings in MUON:
            want = steps(n, f"optimizer=muon stage=3 device={case.device} {settings}")
            for stage in range(3):
                same(n, want, f"optimizer=muon stage={stage} {settings}", f"stage={stage}, {settings}, optimizer=muon: the text of stage 3")
        other_cases(case, n, env)


def other_cases(case, n, env):
    """Frozen tensors, also in fp8, unused units, passes without gradients, cancelled steps, tensors that are read and set."""
    for name, all_settings in {
        "frozen_cases": OTHER_CASES, "frozen_fp8_cases": FROZEN_FP8_CASES, "pass_cases": OTHER_CASES, "tensor_cases": OTHER_CASES,
    }.items():  # fmt: skip
        for settings in all_settings:
            places = ("cpu", case.device)
            want, got = (
                case.run(f"{case.bin}/tests/mpi/{name}", *settings.split(), f"device={place}", ranks=n, env=env) for place in places
            )
            ok = got.code == 0 and got.out and got.out == want.out
            case.claim(ok, f"{n} ranks, {name}, {settings}: the text of the CPU", got)


OWN = (
    "adamw dtype=bf16", "adamw dtype=fp32", "adamw dtype=fp16 skip_at=3", "momentum dtype=bf16",
    "momentum dtype=fp32 skip_at=2", "momentum dtype=fp16 skip_at=3", "rows dtype=bf16", "rows dtype=fp32",
    "rows dtype=fp16 skip_at=3",
)  # fmt: skip


def own(case):
    """A caller's AdamW, momentum and normalized rows of whole matrices in CUDA, at every stage: the text of libzero's own
    AdamW and SGD on the CPU; of the rows, that of the caller's functions on the CPU at stage 0. -- [RANKS...]"""
    env = {"OMP_NUM_THREADS": "1", "ZERO_CHECK": "1"}

    def steps(n, *words):
        return case.run(f"{case.bin}/test_own_optimizer", *words, ranks=n, env=env)

    for n in number_of_ranks(case):
        for settings in OWN:
            words = f"optimizer={settings}".split()
            want = steps(1, "device=cpu", "stage=0", f"own={int(settings.startswith('rows'))}", *words)
            for stage in range(4):
                got = steps(n, f"device={case.device}", f"stage={stage}", *words)
                ok = len(got.out.splitlines()) == 5 and got.out == want.out
                case.claim(ok, f"{n} ranks, stage={stage}, a caller's own {settings}: the text of one rank on the CPU", got)
        got = steps(n, f"device={case.device}", "fails_at=2")
        ok = got.code == 3 and re.search("^failed as it should", got.out, re.MULTILINE)
        ok = ok and "optimizer own: its update of tensor table failed" in got.said
        case.claim(ok, f"{n} ranks: a function of the last rank's that fails ends the job, with a line", got)


# ---- examples and libzero.torch --------------------------------------------------------------------------------------


def losses_of(result):
    return [" ".join(["loss", line.split()[3]]) for line in result.out.splitlines() if line.startswith("step")]


def example(case):
    """linear.cu's last loss must be as small as bf16 allows. The bound: if each parameter (0.1, 0.2 ... 0.9 and 1) is one
    unit in its last place off, in the worst direction for every sample of examples/linear.c, the mean square is 4.05e-4.
    Emulated on the CPU it is 6.0e-5 to 6.4e-5 on 1 to 8 ranks. -- [RANKS...]"""
    shared = ["shared"] if case.device == "cuda-shared" else []

    def run(name, n, *words):
        return case.run(f"{case.bin}/examples/{name}", *words, ranks=n, limit=60, env={"ZERO_CHECK": "1"})

    def stages(name, n, n_losses, *words):
        found = [run(name, n, str(stage), *words) for stage in range(4)]
        for stage, got in enumerate(found):
            ok = len(losses_of(got)) == n_losses and got.said == found[0].said
            case.claim(ok, f"{name}, {n} ranks, stage {stage}: {n_losses} losses, the text of stage 0", got)
        return found[3]

    for n in number_of_ranks(case):
        cpu, own_matrices = run("own_matrices", 1), stages("own_matrices_cuda", n, 40, *shared)
        off = 0.0 if case.dry_run else apart(losses_of(cpu), losses_of(own_matrices))
        case.claim(off < 1e-5, f"own_matrices.cu, {n} ranks: losses within {off:.1e} of own_matrices.c's", own_matrices)
        if shared:
            case.skip(f"linear.cu, {n} ranks: it takes one rank per GPU")
            continue
        last = (losses_of(stages("linear_cuda", n, 10)) or ["loss inf"])[-1]
        case.claim(float(last.split()[1]) < 4.1e-4, f"linear.cu, {n} ranks: the last {last} is below 4.1e-4")


def torch_module(case):
    """tests/reference/torch_module.py with module and reference on GPUs, at every stage."""
    if not os.path.exists(f"{case.bin}/libzero.so") and not case.dry_run:
        case.skip(f"libzero.torch: {case.bin} has no libzero.so")
    elif case.has("torch", "numpy"):
        path = f"{case.bin}:{case.env['LD_LIBRARY_PATH']}"
        env = {"ZERO_TORCH_DEVICE": case.device, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "LD_LIBRARY_PATH": path}
        numbers = [str(n) for n in (1, 2, 3, 6) if n <= case.gpus]
        case.count(case.python(), f"{ROOT}/tests/reference/torch_module.py", case.bin, *numbers, env=env)


def lora(case):
    """LoRA by libzero.torch beside PyTorch and peft (tests/scaling/lora.py). First losses must agree within 1e-3, those
    after 20 steps within 2e-3, of compiled blocks within 5e-3, since they round elsewhere: on one H200 they were 1e-3
    (libzero), 1e-4 (peft) and 1.5e-3 (compiled) from torch's. -- [OPTION...] of lora.py; on the CPU, say:
    --device cpu --dim 64 --layers 3 --heads 4 --kv 2 --ffn 96 --vocab 199 --seq 33 --mb 2 --rank 3"""
    if not case.has("torch", "numpy"):
        return
    env = {"LD_LIBRARY_PATH": f"{case.bin}:{case.env['LD_LIBRARY_PATH']}"}
    found = {}
    for name, by, bound in (
        ("torch", "--by torch", 1.0), ("libzero", "--by libzero", 2e-3), ("torch compiled", "--by torch --compile", 5e-3),
        ("libzero compiled", "--by libzero --compile", 5e-3), ("peft", "--by peft", 2e-3),
        ("peft compiled", "--by peft --compile", 5e-3),
    ):  # fmt: skip
        if name.startswith("peft") and not case.has("peft"):
            continue
        program = [case.python(), f"{ROOT}/tests/scaling/lora.py", "--build", case.bin]
        result = case.run(*program, *by.split(), *case.words, limit=600, env=env)
        line = re.search(r"^RESULT .*$", result.out, re.MULTILINE)
        got = found[name] = dict(re.findall(r"(\w+)=(\S+)", line[0])) if line else {}
        if not case.dry_run:
            case.figure(line[0] if line else f"{name}: nothing")
        case.claim(result.code == 0 and got and agrees(found.get("torch"), got, bound), f"LoRA by {name}: the losses of torch", result)


def agrees(torch, got, bound):
    """Returns whether the first losses are within 1e-3, and the last ones within the bound, and whether the loss fell."""
    if not torch:
        return False
    (a, b), (c, d) = ([float(losses[key]) for losses in (torch, got)] for key in ("first_loss", "last_loss"))
    return min(a, b, c, d) > 0 and max(a / b, b / a) - 1 < 1e-3 and max(c / d, d / c) - 1 < bound and d < b
