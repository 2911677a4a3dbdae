"""libzero.torch beside torch.optim.AdamW: the same transformer, trained by both.

    torch_module.py BUILD [RANKS...]        on 1, 2 and 3 ranks; prints "ok: claim" or "FAILED: claim" for each

With ZERO_TORCH_DEVICE=cuda both train on GPUs (tests/gpu/run BIN OUT torch-module).

The transformer has tied embeddings, a block that is used twice, a frozen block and a frozen bias, learned positions
that a module returns as a view of its parameter, and a block that recomputes. A step has 6 micro-batches.
"""

import io
import os
import subprocess
import sys
import tempfile

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVICE = os.environ.get("ZERO_TORCH_DEVICE", "cpu")
VOCAB, DIM, HEADS, HIDDEN, LENGTH, N_MICRO, N_STEPS, LR = 61, 30, 3, 77, 16, 6, 12, 3e-3


class Positions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(0.1 * torch.randn(LENGTH + 3, DIM))

    def forward(self, length):
        return self.table[:length]


class Block(torch.nn.Module):
    def __init__(self, recomputes=False):
        super().__init__()
        self.recomputes, self.hook = recomputes, None
        self.norm1, self.norm2 = torch.nn.LayerNorm(DIM), torch.nn.LayerNorm(DIM)
        self.qkv, self.out = torch.nn.Linear(DIM, 3 * DIM), torch.nn.Linear(DIM, DIM)
        self.up, self.down = torch.nn.Linear(DIM, HIDDEN), torch.nn.Linear(HIDDEN, DIM)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))  # of no dimension

    def inner(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        if self.hook is not None and q.requires_grad:
            q.register_hook(self.hook)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.scale * self.down(functional.gelu(self.up(self.norm2(x))))

    def forward(self, x, *, info):
        x = checkpoint(self.inner, x, use_reentrant=False) if self.recomputes else self.inner(x)
        return {"x": x, "info": [info, x.detach().argmax()]}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(VOCAB, DIM), Positions()
        self.blocks = torch.nn.ModuleList([Block(), Block(recomputes=True), Block()])
        self.norm, self.head = torch.nn.LayerNorm(DIM), torch.nn.Linear(DIM, VOCAB, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("calls", torch.zeros(1))
        self.blocks[2].requires_grad_(False)
        self.norm.bias.requires_grad_(False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(tokens.shape[1])
        for number, block in enumerate((*self.blocks, self.blocks[0])):
            x = block(x, info=str(number))["x"]
        return self.head(self.norm(x))

    def uses(self):
        return [self.tokens, self.positions, *self.blocks, self.blocks[0], self.norm, self.head]


def make_net():
    torch.manual_seed(3)
    return Net().to(DEVICE)


def batch(step, micro):
    """Tokens of which the next follows from the last two, nearly."""
    generator = torch.Generator().manual_seed(1000 * step + micro)
    tokens = torch.randint(VOCAB, (2, LENGTH + 1), generator=generator)
    for i in range(2, LENGTH + 1):
        tokens[:, i] = (tokens[:, i - 1] + 2 * tokens[:, i - 2]) % VOCAB
    tokens = tokens.to(DEVICE)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(net, step, micro):
    inputs, targets = batch(step, micro)
    return functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten()) / N_MICRO


def decays(name, parameter):
    return parameter.dim() >= 2


def reference():
    """Trains with torch alone. Returns losses and gradient norms, and the net."""
    net = make_net()
    trained = [p for p in net.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if decays("", p)], "weight_decay": 0.1},
              {"params": [p for p in trained if not decays("", p)], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    numbers = []
    for step in range(N_STEPS):
        adamw.zero_grad()
        total = 0.0
        for micro in range(N_MICRO):
            loss = loss_of(net, step, micro)
            loss.backward()
            total += float(loss.detach().double())
        numbers.append((total, float(torch.nn.utils.clip_grad_norm_(trained, 1.0))))
        adamw.step()
    return numbers, net


# ---- on ranks ------------------------------------------------------------------------------------------------------


def shard(comm, stage, net=None, **settings):
    net = net or make_net()
    settings = {"micro_steps": N_MICRO // comm.size, **settings}
    return libzero.torch.Sharded(comm, net, net.uses(), decay=decays, stage=stage, **settings)


def micro_step(sharded, comm, step, j):
    with sharded.micro_step():
        sharded.backward(loss_of(sharded.net, step, j * comm.size + comm.rank))


def train(sharded, comm, steps):
    results = []
    for step in steps:
        for j in range(N_MICRO // comm.size):
            micro_step(sharded, comm, step, j)
        result = sharded.step(LR)
        results.append((result.loss, result.grad_norm))
    return results


def evaluate(sharded):
    with sharded.evaluation():
        return float(loss_of(sharded.net, 99, 0))


def distance(results, wanted):
    return max(abs(x / y - 1) for ours, theirs in zip(results, wanted) for x, y in zip(ours, theirs))


def raises(kind, text, function, *args):
    try:
        function(*args)
    except kind as error:
        if text in str(error):
            return True
        print(f"another error than '{text}': {error}", flush=True)
    return False


class Stop(Exception):
    pass


class Claims:
    """A claim holds if it does on every rank."""

    def __init__(self, comm):
        self.comm, self.failed = comm, 0

    def __call__(self, text, holds):
        holds = self.comm.agree(bool(holds))
        self.failed += not holds
        if self.comm.rank == 0:
            print(f"{'ok' if holds else 'FAILED'}: libzero.torch, {self.comm.size} ranks: {text}", flush=True)


def agrees_with_adamw(comm, claim):
    """Prints losses and norms as "bits: ...", by which numbers of ranks are compared."""
    wanted, reference_net = reference()
    stage_results = []
    for stage in range(4):
        sharded = shard(comm, stage)
        results = train(sharded, comm, range(N_STEPS))
        stage_results.append(results)
        far = distance(results, wanted)
        claim(f"stage {stage}: {len(results)} losses and norms are torch.optim.AdamW's within 1e-6: {far:.1e}",
              far < 1e-6)
        state = sharded.state_dict()
        theirs = {name: value.cpu() for name, value in reference_net.state_dict().items()}
        # k's bias has no effect on the loss: its gradient is rounding errors, by which AdamW goes either way.
        far = max(float((state[name] - theirs[name]).abs().max()) for name in theirs if "qkv.bias" not in name)
        claim(f"stage {stage}: state_dict has torch's names and, within 1e-5, weights: {far:.1e}",
              state.keys() == theirs.keys() and far < 1e-5)
        claim(f"stage {stage}: frozen weights are as they were, trained ones are not",
              torch.equal(state["blocks.2.up.weight"], make_net().blocks[2].up.weight.cpu()) and
              torch.equal(state["norm.bias"], torch.zeros(DIM)) and
              not torch.equal(state["blocks.0.up.weight"], make_net().blocks[0].up.weight.cpu()))
        plain = make_net()
        plain.load_state_dict(state)
        with torch.no_grad():
            claim(f"stage {stage}: evaluation() has the bits of the plain module with these weights",
                  evaluate(sharded) == float(loss_of(plain, 99, 0)))
        rooted = sharded.state_dict(root=comm.size - 1)
        claim(f"stage {stage}: a state_dict with a root is there alone", (rooted is None) == (comm.rank < comm.size - 1))
        sharded.close()
    claim("stages have the same bits", all(results == stage_results[0] for results in stage_results))
    sharded = shard(comm, 1, reduce_every_micro_step=False)
    far = distance(train(sharded, comm, range(3)), wanted)
    claim(f"micro-steps that are added before they are reduced: {far:.1e}", far < 1e-6)
    sharded.close()
    if comm.rank == 0:
        print("bits:", *(f"{x:.9g}" for pair in stage_results[0] for x in pair))


def half_precision(comm, claim):
    fp32 = shard(comm, 3)
    wanted = train(fp32, comm, range(4))
    fp32.close()
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        stage_results = []
        for stage in (0, 3):
            sharded = shard(comm, stage, make_net().to(dtype), initial_loss_scale=256.0)
            stage_results.append(train(sharded, comm, range(4)))
            sharded.close()
        far = distance([pair[:1] for pair in stage_results[0]], wanted)
        # Losses of some 20, of logits that have 8 bits in bf16: 0.4% each, less in the mean.
        claim(f"{name}: losses are fp32's within 1%: {far:.1e}; stages 0 and 3 have the same bits",
              far < 1e-2 and stage_results[0] == stage_results[1])


class Deep(torch.nn.Module):
    """Eight equal blocks."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = torch.nn.Embedding(VOCAB, DIM), torch.nn.Linear(DIM, VOCAB)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(8)])

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, info="")["x"]
        return self.head(x)

    def uses(self):
        return [self.tokens, *self.blocks, self.head]


class Counting:
    """A backend of torch.compile that counts graphs."""

    def __init__(self):
        torch._dynamo.reset()
        self.n_graphs, self.backend = 0, torch._dynamo.lookup_backend("aot_eager")

    def __call__(self, graph, inputs):
        self.n_graphs += 1
        return self.backend(graph, inputs)


def compiled(comm, claim):
    """Units whose forward is compiled: what is in them, not libzero's calls around them."""
    plain = shard(comm, 3)
    wanted = train(plain, comm, range(4))
    plain.close()
    stage_results, count = [], Counting()
    for stage in (0, 3):
        net = make_net()
        for block in net.blocks:
            block.forward = torch.compile(block.forward, backend=count)
        sharded = shard(comm, stage, net)
        stage_results.append(train(sharded, comm, range(4)))
        sharded.close()
    far = distance(stage_results[0], wanted)
    claim(f"compiled units: losses and norms are those of plain ones within 1e-6: {far:.1e}; stages 0 and 3 have the same bits",
          far < 1e-6 and stage_results[0] == stage_results[1])
    claim(f"... and they were compiled, in {count.n_graphs} graphs", count.n_graphs >= len(net.blocks))


def ways_to_compile(comm, claim):
    """Equal units share a graph, however they are compiled; a compiled net has its graphs between units."""
    def deep(compile_net=lambda net, count: net, n_frozen=0, **settings):
        torch.manual_seed(4)
        net, count = Deep().to(DEVICE), Counting()
        net.tokens.requires_grad_(n_frozen == 0)
        for block in net.blocks[:n_frozen]:
            block.requires_grad_(False)
        compile_net(net, count)
        if settings.pop("compiles", False):
            settings["compile"] = {"backend": count, "fullgraph": True}
        sharded = shard(comm, 3, net, **settings)
        sharded.net = torch.compile(net, backend=count) if compile_net is whole else net
        results = train(sharded, comm, range(3))
        n_graphs, loss = count.n_graphs, evaluate(sharded)
        sharded.close()
        return results + [(loss, loss)], n_graphs

    def forwards(net, count):
        for block in net.blocks:
            block.forward = torch.compile(block.forward, backend=count)

    def modules(net, count):
        for i, block in enumerate(net.blocks):
            net.blocks[i] = torch.compile(block, backend=count)

    def whole(net, count):
        pass

    wanted = deep()[0]
    for name, most, made in (("each forward", 1, deep(forwards)), ("each module", 1, deep(modules)),
                             ("Sharded(compile=)", 3, deep(compiles=True)), ("the whole net", 9, deep(whole))):
        far = distance(made[0], wanted)
        claim(f"eight equal blocks, compiled by {name}: {made[1]} graphs in all, losses and norms within 1e-6: {far:.1e}",
              far < 1e-6 and made[1] <= most and (made[1] > 0 or most == 9))
    wanted, made = deep(n_frozen=3)[0], deep(forwards, n_frozen=3)
    claim(f"... of which three are frozen: {made[1]} graphs: of the first, frozen and trained ones",
          distance(made[0], wanted) < 1e-6 and 1 < made[1] <= 3)
    net = Deep()
    net.blocks[5].compile()
    claim("a unit compiled by its compile() is refused, with what to do", raises(
        ValueError, "unit blocks.5 is compiled by its compile()", libzero.torch.Sharded, comm, net, net.uses()))


def given_away(comm, claim):
    """Tensors of libzero's as torch's and CuPy's own, without a copy. On CPUs a DeviceArray of other memory stands for
    an engine's."""
    from libzero import _device_array

    for kind, dtype in ((libzero.FP32, torch.float32), (libzero.BF16, torch.bfloat16), (libzero.FP16, torch.float16)):
        model = libzero.Model()
        unit = model.add_unit("unit")
        tensor = model.add_tensor(unit, "tensor", (3, 5), init=libzero.INIT_ONES)
        with libzero.Device(comm, libzero.DEVICE_AUTO if DEVICE == "cuda" else libzero.DEVICE_CPU) as device, \
                libzero.Engine(comm, device, model, dtype=kind, optimizer=libzero.SGD, momentum=0.0, grad_clip=0.0,
                               initial_loss_scale=1.0) as engine:
            stream = torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else None

            def view(array, address):
                if DEVICE == "cuda":
                    return torch.from_dlpack(array)
                assert array.dtype.name == str(dtype).removeprefix("torch.") and array.ctypes.data == address, array
                return torch.from_dlpack(libzero.DeviceArray(address, kind, (3, 5), is_cpu=True))

            engine.init_parameters()
            engine.begin(stream=stream)
            with engine.forward(unit, stream):
                address = engine.param_address(tensor)
                weight = view(engine.param(tensor), address)
                holds = weight.data_ptr() == address and weight.dtype == dtype and bool((weight == 1).all())
                if DEVICE == "cuda" and kind != libzero.BF16:
                    import cupy

                    holds = holds and cupy.asarray(engine.param(tensor)).data.ptr == address
                del weight
            with engine.backward(unit, stream):
                address, _, _ = engine.grad_address(tensor)
                view(engine.grad(tensor), address).fill_(2.0)
            engine.step(0.25, stream=stream)
            engine.wait()
            after = engine.get_tensor(tensor)
        claim(f"{dtype}: tensors given away by DLPack are where libzero has them, and gradients arrive",
              holds and (after == 1 - 0.25 * 2 * comm.size).all() and not _device_array._alive)


# ---- exceptions ----------------------------------------------------------------------------------------------------


def exceptions(comm, claim, stage):
    """The last rank's exceptions. Training then goes on as if nothing had been."""
    sharded, undisturbed = shard(comm, stage), shard(comm, stage)
    train(sharded, comm, range(2))
    train(undisturbed, comm, range(2))
    is_mine = comm.rank == comm.size - 1

    def fail(*_):
        raise ValueError("a bad batch")

    def failing(where):
        if where == "in the second micro-step" and comm.size < N_MICRO:
            micro_step(sharded, comm, 50, 0)
        net = sharded.net
        hooked = net.blocks[2].out.register_forward_hook(fail) if is_mine and where == "in forward" else None
        net.blocks[1].hook = fail if is_mine and where == "in backward" else None
        try:
            with sharded.micro_step():
                sharded.backward(loss_of(net, 51, comm.rank))
                if is_mine:
                    fail()
        finally:
            net.blocks[1].hook = None
            if hooked:
                hooked.remove()

    def failing_evaluation():
        with sharded.evaluation():
            loss_of(sharded.net, 51, 0)
            if is_mine:
                fail()

    kind, text = (ValueError, "a bad batch") if is_mine else (libzero.torch.Cancelled, "another rank")
    for where in ("in forward", "in backward", "behind backward", "in the second micro-step"):
        claim(f"stage {stage}: an exception {where} is raised there, Cancelled elsewhere",
              raises(kind, text, failing, where))
    claim(f"stage {stage}: so is one in an evaluation", raises(kind, text, failing_evaluation))
    claim(f"stage {stage}: the steps that follow have the bits of a run without exceptions",
          train(sharded, comm, range(2, 6)) == train(undisturbed, comm, range(2, 6)))
    sharded.close()
    undisturbed.close()


class Twisted(torch.nn.Module):
    def __init__(self, twist):
        super().__init__()
        self.inner, self.twist, self.kept = torch.nn.Linear(3, 3), twist, None

    def forward(self, x):
        return self.twist(self, x)


def keeps_a_view(self, x):
    self.kept = self.inner.weight[1]
    return self.inner(x)


def changes_a_parameter(self, x):
    with torch.no_grad():
        self.inner.bias.add_(1)
    return self.inner(x)


def changes_what_is_saved(self, x):
    y = self.inner(x)
    z = y * y
    with torch.no_grad():
        y.add_(1)
    return z


def hides_its_graph(self, x):
    self.kept = self.inner(x).sum()
    return x.clone()


def uses_another_unit(self, x):
    return self.inner(self.other[0](x))


def refusals(comm, claim, stage):
    """What would compute with memory that is used for something else is an error; then training goes on."""
    for twist, where, text in ((keeps_a_view, 1, "1 leaves a view of its parameter 1.inner.weight"),
                               (changes_a_parameter, 1, "1 changed its parameter 1.inner.bias in place"),
                               (changes_what_is_saved, 1, "a tensor of shape (2, 3) that backward needs was changed"),
                               (hides_its_graph, 1, "outside"),
                               (uses_another_unit, 1, "0 is used inside 1: one unit at a time")):
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), Twisted(twist), torch.nn.Linear(3, 3)).to(DEVICE)
        net[1].other = [net[0]]  # in a list, so that it is no part
        sharded = libzero.torch.Sharded(comm, net, list(net), stage=stage)

        def pass_through(net=net, sharded=sharded):
            with sharded.micro_step():
                loss = net(torch.ones(2, 3, device=DEVICE)).sum()
                sharded.backward(loss if net[1].kept is None or net[1].kept.dim() else loss + net[1].kept)

        claim(f"stage {stage}: a module that {twist.__name__.replace('_', ' ')} is refused by name",
              raises(RuntimeError, text, pass_through))
        net[1].twist, net[1].kept = (lambda self, x: self.inner(x)), None
        pass_through()
        claim(f"stage {stage}: ... and training goes on", sharded.step(0.1).grad_norm > 0)
        sharded.close()


def misuse(comm, claim):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 3)), torch.nn.ReLU())
    net.to(DEVICE)
    make = lambda *units: libzero.torch.Sharded(comm, net, units)
    claim("a parameter without a unit is named",
          raises(ValueError, "no unit has the parameter 1.0.weight, nor 1 others", make, net[0]))
    claim("a unit in a unit is named",
          raises(ValueError, "unit 1 contains another unit, 1.0", make, net[0], net[1], net[1][0]))
    claim("a unit without parameters is named", raises(ValueError, "unit 2 has no parameters", make, *net))
    claim("a unit of another module is refused", raises(ValueError, "is not in the module", make, torch.nn.Linear(3, 3)))
    net[0].half()
    claim("mixed dtypes are refused", raises(ValueError, "torch.float16, torch.float32", make, net[0], net[1]))
    net.float()
    spectral = torch.nn.Linear(3, 3, dtype=torch.cfloat)
    claim("complex parameters are refused, with a dtype of libzero's, too",
          raises(ValueError, "weight is complex", lambda: libzero.torch.Sharded(comm, spectral, [spectral],
                                                                                dtype=libzero.FP32)))
    for field, value, kind, text in (
            ("stage", "3", TypeError, "stage is '3', but zero_config_t.stage is a whole number"),
            ("optimizer", "lion", TypeError, "optimizer is 'lion', but zero_config_t.optimizer is a whole number, or one"),
            ("weight_decay", "0", TypeError, "weight_decay is '0', but zero_config_t.weight_decay is a number"),
            ("dtype", torch.float64, ValueError, "dtype is torch.float64: it must be libzero.FP32, BF16 or FP16"),
            ("dtype", "bf16", ValueError, "dtype is 'bf16': it must be libzero.FP32, BF16 or FP16")):
        claim(f"{field} = {value!r}: refused by name",
              raises(kind, text, lambda: libzero.torch.Sharded(comm, net, net[:2], **{field: value})))
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).to(DEVICE)
    narrow = libzero.torch.Sharded(comm, other, other.children(), dtype=torch.bfloat16)
    with narrow.evaluation():
        dtype = other(torch.ones(2, 3, device=DEVICE, dtype=torch.bfloat16)).dtype
    claim("units may be a generator, and dtype torch's", dtype is torch.bfloat16)
    narrow.close()
    sharded, x = make(net[0], net[1]), torch.ones(2, 3, device=DEVICE)
    claim("a second Sharded of a module is refused",
          raises(ValueError, "0.weight is already libzero's, and so are 3 others", make, net[0], net[1]))
    claim("the module outside a pass is refused", raises(RuntimeError, "0 is used outside micro_step()", net, x))
    claim("a parameter outside its unit computes nothing",
          all(raises(RuntimeError, "0.weight is used outside its unit", use) for use in (
              lambda: x @ net[0].weight, lambda: functional.linear(x, net[0].weight), lambda: net[0].weight.data + 1,
              lambda: net[0].weight.T, net.double, lambda: net[0].weight.detach() + 1,
              lambda: torch.save(net.state_dict(), io.BytesIO()))) and net[0].weight.shape == (3, 3))
    claim("net.state_dict() has the names", list(net.state_dict()) == list(sharded.state_dict()))
    claim("net.load_state_dict is refused", raises(RuntimeError, "use Sharded.load_state_dict", net.load_state_dict,
                                                   sharded.state_dict()))

    def twice():
        with sharded.micro_step():
            net[0](net[1](net[0](x)))

    def other_backward():
        with sharded.micro_step():
            net(x).sum().backward()

    def backward_twice():
        with sharded.micro_step():
            sharded.backward(net(x).sum())
            sharded.backward(net(x).sum())

    def vector_loss():
        with sharded.micro_step():
            sharded.backward(net(x))

    claim("a loss that is no scalar is refused", raises(ValueError, "the loss has the shape (2, 3)", vector_loss))
    claim("a use that is not listed is refused", raises(RuntimeError, "0 is used after 1, but `units` does not", twice))
    claim("another backward is refused", raises(RuntimeError, "use Sharded.backward(loss)", other_backward))
    claim("a second backward is refused", raises(RuntimeError, "used in forward after backward()", backward_twice))
    claim("a step without a pass is libzero's error", raises(libzero.Error, "zero_step after 0 of 1", sharded.step, 0.1))
    sharded.close()


# ---- ranks that do different things, and weights in and out --------------------------------------------------------


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(5, 5), torch.nn.Linear(5, 1)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(5, 5) for _ in range(3)])

    def forward(self, x, which):
        x = self.first(x)
        return self.last(x if which is None else torch.tanh(self.experts[which](x)))


def differing_ranks(comm, claim, stage):
    """Rank r uses expert r, and the first micro-step of the last rank has no data."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, comm.size, 4, 5, generator=generator).to(DEVICE)
    torch.manual_seed(6)
    net = Experts().to(DEVICE)
    torch.manual_seed(6)
    plain = Experts().to(DEVICE)
    sgd = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    sharded = libzero.torch.Sharded(comm, net, [net.first, *net.experts, net.last], stage=stage, micro_steps=2,
                                    optimizer=libzero.SGD, momentum=0.9, weight_decay=0.0, grad_clip=0.0)
    far = 0.0
    for step in range(5):
        sgd.zero_grad()
        total = 0.0
        for j in range(2):
            with sharded.micro_step():
                if j == 1 or comm.rank < comm.size - 1:
                    sharded.backward(net(x[j, comm.rank], comm.rank if j == 0 else None).square().mean())
            for rank in range(comm.size):
                if j == 1 or rank < comm.size - 1:
                    loss = plain(x[j, rank], rank if j == 0 else None).square().mean()
                    loss.backward()
                    total += float(loss.detach())
        sgd.step()
        far = max(far, abs(sharded.step(0.1).loss / total - 1))
    claim(f"stage {stage}: experts that some ranks use, a rank without data, SGD: torch.optim.SGD's losses: {far:.1e}",
          far < 1e-6)
    sharded.close()


def settings_of_parameters(comm, claim, stage):
    """One step of Muon moves a matrix by orthogonal ones, whose singular values Newton-Schulz leaves in 0.6..1.3; AdamW's
    step moves every element by the learning rate."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 6, bias=False), torch.nn.Linear(6, 6, bias=False)).to(DEVICE)
    near_identity = lambda seed: torch.eye(6) + 0.1 * torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():  # so that the gradients have no small singular value
        for seed, part in enumerate(net):
            part.weight.copy_(near_identity(seed))
    before = [part.weight.detach().cpu().clone() for part in net]
    claim("Muon without hidden_matrix is refused",
          raises(ValueError, "Muon needs hidden_matrix", lambda: libzero.torch.Sharded(comm, net, list(net),
                                                                                       optimizer=libzero.MUON)))
    sharded = libzero.torch.Sharded(comm, net, list(net), stage=stage, optimizer=libzero.MUON, weight_decay=0.0,
                                    hidden_matrix=lambda name, _: name == "0.weight")
    x = near_identity(7).to(DEVICE)

    def step():
        with sharded.micro_step():
            sharded.backward(net(x).square().sum())
        sharded.step(0.1)
        return [sharded.state_dict()[f"{i}.weight"] for i in range(2)]

    after = step()
    sizes = torch.linalg.svdvals((after[0] - before[0]).double()) / (0.1 * 0.2 * 6 ** 0.5)
    claim(f"stage {stage}: hidden_matrix's matrix is Muon's, and the other AdamW's",
          bool(((0.6 < sizes) & (sizes < 1.3)).all()) and
          bool(((after[1] - before[1]).abs() - 0.1).abs().max() < 1e-4))
    claim("a name that no parameter has is refused", raises(KeyError, "no parameter has the name 2.weight",
                                                            sharded.set_group, "2.weight"))
    sharded.set_group("1.weight", lr_scale=0.0)
    kept = step()
    claim(f"stage {stage}: set_group's lr_scale is one parameter's",
          torch.equal(kept[1], after[1]) and not torch.equal(kept[0], after[0]))
    sharded.set_group("1.weight")
    claim(f"stage {stage}: ... until it is taken back", not torch.equal(step()[1], after[1]))
    sharded.close()


def hooks(comm, claim, stage):
    """One that raises on a rank ends the pass or, for the first unit, whose gradients come last, the step on all ranks."""
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to(DEVICE)
    wanted = []

    def reduced(run):
        if comm.rank == comm.size - 1 and run.tensor in wanted:
            raise Stop(f"tensor {run.tensor}")

    sharded = libzero.torch.Sharded(comm, net, list(net), stage=stage, hooks=libzero.Hooks(reduced=reduced))

    def step():
        with sharded.micro_step():
            sharded.backward(net(torch.ones(2, 64, device=DEVICE)).square().sum())
        return sharded.step(0.01).step

    is_last = comm.rank == comm.size - 1
    for number, tensors in enumerate(((6, 7), (0, 1)), 1):
        wanted[:] = tensors
        claim(f"stage {stage}: a hook that raises for unit {tensors[0] // 2} ends the step on all ranks",
              raises(Stop, "tensor ", step) if is_last else raises(libzero.torch.Cancelled, "another rank gave up", step))
        wanted.clear()
        claim(f"stage {stage}: ... which then begins anew", step() == number)
    sharded.close()


def loading_a_part(comm, claim, folder):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3))
    sharded = libzero.torch.Sharded(comm, net, list(net), device=DEVICE)
    saved = sharded.state_dict()
    sharded.save(folder)
    sharded.close()
    with torch.device("meta"):
        empty = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    sharded = libzero.torch.Sharded(comm, empty, list(empty), device=DEVICE)
    claim("a part is not loaded for parameters on the meta device",
          raises(RuntimeError, "2 parameters are not in", sharded.load_weights_partial, f"{folder}/latest"))
    sharded.close()
    larger = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    with torch.no_grad():
        larger[1].weight.fill_(0.5)
    sharded = libzero.torch.Sharded(comm, larger, list(larger), device=DEVICE)
    partial = sharded.load_weights_partial(f"{folder}/latest")
    state = sharded.state_dict()
    claim("load_weights_partial loads what there is and keeps a new head",
          (partial.n_loaded, partial.n_kept, partial.n_ignored) == (2, 2, 0) and bool((state["1.weight"] == 0.5).all())
          and all(torch.equal(state[name], saved[name]) for name in saved))
    sharded.close()


def saving(comm, claim, folder):
    whole = shard(comm, 2)
    train(whole, comm, range(3))
    whole.save(folder, state={"note": "mine"})
    wanted = train(whole, comm, range(3, 6))
    again = shard(comm, 3, seed=9)
    state = again.load(folder)
    claim("a checkpoint of stage 2 goes on at stage 3 with the same bits",
          state["step"] == 3 and state["note"] == "mine" and train(again, comm, range(3, 6)) == wanted)
    for sharded in (whole, again):
        sharded.close()

    fresh = shard(comm, 3)
    wanted, weights = train(fresh, comm, range(2)), make_net().state_dict()
    weights["calls"].fill_(7.0)
    fresh.close()
    with torch.device("meta"):
        empty = Net()
    sharded = shard(comm, 3, empty, device=DEVICE)
    claim("weights on the meta device are waited for", raises(RuntimeError, "was on the meta device", evaluate, sharded))
    claim("... by state_dict and save, too", raises(RuntimeError, "was on the meta device", sharded.state_dict) and
          raises(RuntimeError, "was on the meta device", sharded.save, folder))
    sharded.load_state_dict(weights)
    claim("... and load_state_dict brings them", train(sharded, comm, range(2)) == wanted)
    weights.pop("head.weight")
    claim("a state_dict that lacks a name is refused",
          raises(KeyError, "head.weight is not in the state_dict", sharded.load_state_dict, weights))
    claim("... also a buffer", torch.equal(sharded.state_dict()["calls"], torch.full((1,), 7.0)))
    before, spoilt = sharded.state_dict(), sharded.state_dict()
    for value in spoilt.values():
        value.mul_(2.0)
    list(spoilt.values())[-1].view(-1)[0] = float("inf")
    claim("a state_dict with infinite numbers is refused, and nothing of it is loaded",
          raises(ValueError, ": nothing is loaded", sharded.load_state_dict, spoilt)
          and all(torch.equal(value, before[name]) for name, value in sharded.state_dict().items()))
    sharded.close()


def imports(comm, claim):
    """torch's NCCL must be loaded before the one that libzero brings, however the imports are ordered."""
    code = ("import libzero, libzero.torch; maps = lambda: open('/proc/self/maps').read(); early = 'libzero.so' in maps(); "
            "print('libtorch' in maps(), early, libzero.version, 'libzero.so' in maps())")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    claim(f"import libzero, libzero.torch loads torch, and libzero.so is loaded at the first call: {run.stdout.strip()}",
          run.stdout.split() == ["True", "False", libzero.version, "True"])


def run_on_ranks(folder, what):
    """what: "once" for what does not depend on the number of ranks, too."""
    torch.set_num_threads(1)
    torch.backends.cuda.enable_flash_sdp(False)  # their backward adds in an order that differs from run to run
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    comm = libzero.Comm()
    if DEVICE == "cuda":
        torch.cuda.set_device(comm.local_rank % torch.cuda.device_count())
    claim = Claims(comm)
    agrees_with_adamw(comm, claim)
    for stage in (0, 3):
        exceptions(comm, claim, stage)
        refusals(comm, claim, stage)
        differing_ranks(comm, claim, stage)
        settings_of_parameters(comm, claim, stage)
        hooks(comm, claim, stage)
        torch_around.checkpoints(comm, claim, stage, DEVICE)
        torch_around.failing_checkpoint(comm, claim, stage, DEVICE)
        torch_around.contexts(comm, claim, stage, DEVICE)
        torch_around.recurrent(comm, claim, stage, DEVICE)
    torch_around.refusals(comm, claim, DEVICE)
    torch_around.hooks_with_parameters(comm, claim, DEVICE)
    torch_around.flattened(comm, claim, DEVICE)
    torch_around.shared_frozen(comm, claim, DEVICE)
    torch_around.extra_state(comm, claim, DEVICE)
    torch_around.tied_outside_units(comm, claim, DEVICE)
    half_precision(comm, claim)
    compiled(comm, claim)
    given_away(comm, claim)
    misuse(comm, claim)
    if what == "once":
        ways_to_compile(comm, claim)
        imports(comm, claim)
    saving(comm, claim, folder)
    loading_a_part(comm, claim, f"{folder}/part")
    if comm.rank == 0:
        print("done")


def main(build, numbers):
    """Runs this file on these numbers of ranks, which must agree in their bits."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = dict(os.environ, LIBZERO=os.path.join(build, "libzero.so"), PYTHONPATH=os.path.join(root, "python"),
                       ZERO_CHECK="1", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    lines, failed = [], False
    once = numbers[len(numbers) // 2]  # on several ranks, if there are
    for n_ranks in numbers:
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(n_ranks), sys.executable,
                                  os.path.abspath(__file__), "ranks", folder, "once" if n_ranks == once else "again"],
                                 capture_output=True, text=True, env=environment, timeout=600, check=False)
        printed = run.stdout.splitlines()
        print(*(line for line in printed if line.startswith(("ok: ", "FAILED: "))), sep="\n", flush=True)
        lines += [line for line in printed if line.startswith("bits: ")]
        if run.returncode or "done" not in printed:
            print(f"FAILED: libzero.torch, {n_ranks} ranks: exit code {run.returncode}: {run.stderr[-2000:]!r}")
            failed = True
        failed |= "FAILED: " in run.stdout
    same = len(lines) == len(numbers) and len(set(lines)) == 1
    print(f"{'ok' if same else 'FAILED'}: libzero.torch: {', '.join(map(str, numbers))} ranks have the same bits")
    return failed or not same


if __name__ == "__main__":
    if sys.argv[1] == "ranks":
        import libzero
        import libzero.torch
        import torch_around
        run_on_ranks(*sys.argv[2:])
    else:
        sys.exit(main(os.path.abspath(sys.argv[1]), [int(number) for number in sys.argv[2:]] or [1, 2, 3]))
