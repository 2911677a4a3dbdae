"""What users of PyTorch put around units and into modules: torch.utils.checkpoint, hooks, autocast are served as by torch
alone; what libzero cannot serve is refused by name. Run by torch_module.py.
"""

import copy
import weakref

import libzero
import libzero.torch
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

DIM, ROWS = 8, 5


class Witness(torch.autograd.Function):
    """Its node in the graph lives as long as what the module saves for backward."""
    alive = weakref.WeakSet()

    class Token:
        pass

    @staticmethod
    def forward(ctx, x):
        ctx.token = Witness.Token()
        Witness.alive.add(ctx.token)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(DIM, 3 * DIM), torch.nn.Linear(3 * DIM, DIM)
        self.drop, self.n_calls, self.fails_at = torch.nn.Dropout(0.3), 0, 0

    def forward(self, x):
        self.n_calls += 1
        if self.n_calls == self.fails_at:
            raise ValueError("a bad batch")
        return x + self.down(self.drop(torch.tanh(Witness.apply(self.up(x)))))


def around(block, x):
    """Saves tensors before and behind the block."""
    return torch.sin(x) * block(x.cos()).exp()


WAYS = {
    "with use_reentrant=True": (Block.__call__, lambda b, x: checkpoint(b, x, use_reentrant=True)),
    "with use_reentrant=False": (Block.__call__, lambda b, x: checkpoint(b, x, use_reentrant=False)),
    "to its end": (Block.__call__, lambda b, x: checkpoint(b, x, use_reentrant=False, early_stop=False)),
    "of more than the unit": (around, lambda b, x: checkpoint(around, b, x, use_reentrant=False)),
    "of more than the unit, use_reentrant=True": (around, lambda b, x: checkpoint(around, b, x, use_reentrant=True)),
    "in a checkpoint": (Block.__call__, lambda b, x: checkpoint(
        lambda b, x: checkpoint(b, x, use_reentrant=False), b, x, use_reentrant=False)),
    "whose result has no gradient": (lambda b, x: x * around(b, x).detach() + x, lambda b, x: checkpoint(
        lambda b, x: x * around(b, x).detach() + x, b, x, use_reentrant=False)),
}


class Net(torch.nn.Module):
    """Three blocks, of which the first is used again, between two layers."""

    def __init__(self, call=Block.__call__):
        super().__init__()
        torch.manual_seed(11)
        self.first, self.last = torch.nn.Linear(DIM, DIM), torch.nn.Linear(DIM, 1)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(3)])
        self.call = call

    def forward(self, x):
        x = self.first(x)
        for block in (*self.blocks, self.blocks[0]):
            x = self.call(block, x)
        return self.last(x)

    def uses(self):
        return [self.first, *self.blocks, self.blocks[0], self.last]


def batch(device):
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(12)).to(device)


def gradients(sharded):
    """Returns the reduced gradients, between the pass and the step."""
    return {name: torch.from_numpy(sharded.engine.get_tensor(tensor, libzero.GRAD).copy()).flatten()
            for tensor, name in enumerate(sharded.names)}


def by_torch(net, device, context):
    torch.manual_seed(13)
    with context():
        loss = net(batch(device)).float().square().mean()
    loss.backward()
    return {name: torch.zeros(value.numel()) if value.grad is None else value.grad.cpu().flatten()
            for name, value in net.named_parameters()}


def by_libzero(comm, sharded, device, context):
    """Every rank has the same batch, and its share of the mean."""
    torch.manual_seed(13)
    with sharded.micro_step():
        with context():
            loss = sharded.net(batch(device)).float().square().mean() / comm.size
        n_alive = len(Witness.alive)
        sharded.backward(loss)
    return gradients(sharded), n_alive


def no_context():
    return torch.enable_grad()


def distance(ours, theirs):
    """Of two dicts of gradients, relative to each tensor's largest."""
    return max(float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1e-20)) for name in theirs)


def checkpoints(comm, claim, stage, device):
    for way, (plain, wrapped) in WAYS.items():
        wanted = by_torch(Net(plain).to(device), device, no_context)
        found, calls, alive = [], [], []
        for call in (plain, wrapped):
            net = Net(call).to(device)
            sharded = libzero.torch.Sharded(comm, net, net.uses(), stage=stage)
            grads, n_alive = by_libzero(comm, sharded, device, no_context)
            found.append(grads)
            calls.append([block.n_calls for block in net.blocks])
            alive.append(n_alive)
            sharded.close()
        far = distance(found[1], wanted)
        # Ranks add equal gradients, of which each has its share: 1 / 3 is rounded.
        claim(f"stage {stage}: a checkpoint around a unit {way} has the bits of the plain unit, torch's within 1e-6: {far:.1e}",
              all(torch.equal(found[0][name], found[1][name]) for name in wanted) and far < 1e-6)
        claim(f"stage {stage}: ... which runs again, and keeps nothing until then: {alive[0]} graphs without, {alive[1]} with",
              calls == [[2, 1, 1], [4, 2, 2]] and alive == [0 if "no gradient" in way else 4, 0])


def failing_checkpoint(comm, claim, stage, device):
    """An exception in a unit that is run again, then training as if nothing had been."""
    net = Net(WAYS["with use_reentrant=False"][1]).to(device)
    sharded = libzero.torch.Sharded(comm, net, net.uses(), stage=stage)
    wanted = by_torch(Net().to(device), device, no_context)
    net.blocks[1].fails_at = 2 if comm.rank == comm.size - 1 else 0
    try:
        by_libzero(comm, sharded, device, no_context)
        raised = None
    except (ValueError, libzero.torch.Cancelled) as error:
        raised = type(error)
    grads, _ = by_libzero(comm, sharded, device, no_context)
    claim(f"stage {stage}: an exception in a unit that a checkpoint runs again is raised there, and training goes on",
          raised is (ValueError if comm.rank == comm.size - 1 else libzero.torch.Cancelled) and distance(grads, wanted) < 1e-6)
    sharded.close()


def contexts(comm, claim, stage, device):
    """Autocast and hooks have torch's effect, also in a checkpoint."""
    def autocast():
        return torch.autocast(device, torch.bfloat16, cache_enabled=False)  # it adds the gradients of two uses in bf16

    def hooked(net):
        net.blocks[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        net.blocks[1].register_forward_hook(lambda module, args, output: output * 3)
        net.blocks[2].up.register_full_backward_hook(lambda module, before, behind: (before[0] * 5,))
        net.last.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 7,))
        return net

    plain, wrapped = WAYS["with use_reentrant=False"]
    for name, context, prepare in (("autocast", autocast, lambda net: net), ("hooks of modules", no_context, hooked)):
        wanted = by_torch(prepare(Net(plain).to(device)), device, context)
        fars = []
        for call in (plain, wrapped):
            net = prepare(Net(call).to(device))
            sharded = libzero.torch.Sharded(comm, net, net.uses(), stage=stage)
            fars.append(distance(by_libzero(comm, sharded, device, context)[0], wanted))
            sharded.close()
        # In bf16 sums of 8 and 24 products round to 8 bits; the same code rounds the same, up to each rank's share.
        most = 1e-6 if context is no_context or comm.size & (comm.size - 1) == 0 else 2 ** -6
        claim(f"stage {stage}: {name} around units, plain and checkpointed, have torch's gradients: {max(fars):.1e}",
              max(fars) < most)


class Recurrent(torch.nn.Module):
    """Two layers in both directions, used twice, between two linear ones."""

    def __init__(self, kind, call):
        super().__init__()
        torch.manual_seed(15)
        self.first, self.last = torch.nn.Linear(DIM, DIM), torch.nn.Linear(DIM, 1)
        self.layers = kind(DIM, DIM // 2, num_layers=2, batch_first=True, bidirectional=True)
        self.call = call

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = self.call(lambda layers, x: layers(x)[0], self.layers, x[None])[0]
        return self.last(x)

    def uses(self):
        return [self.first, self.layers, self.layers, self.last]


def recurrent(comm, claim, stage, device):
    def plain(call, *args):
        return call(*args)

    def checkpointed(call, *args):
        return checkpoint(call, *args, use_reentrant=False)

    for kind in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
        wanted = by_torch(Recurrent(kind, plain).to(device), device, no_context)
        fars = []
        for call in (plain, checkpointed):
            net = Recurrent(kind, call).to(device)
            sharded = libzero.torch.Sharded(comm, net, net.uses(), stage=stage)
            with sharded.evaluation():
                net(batch(device))
            fars.append(distance(by_libzero(comm, sharded, device, no_context)[0], wanted))
            sharded.close()
        claim(f"stage {stage}: {kind.__name__} has torch's gradients, also in a checkpoint: {max(fars):.1e}", max(fars) < 1e-6)
    parametrized(comm, claim, stage, device)


def parametrized(comm, claim, stage, device):
    """Of a recurrent layer: a weight that is computed from parameters."""
    def plain(call, *args):
        return call(*args)

    def make():
        net = Recurrent(torch.nn.LSTM, plain).to(device)
        torch.nn.utils.parametrizations.weight_norm(net.layers, "weight_hh_l0")
        return net

    wanted, net = by_torch(make(), device, no_context), make()
    sharded = libzero.torch.Sharded(comm, net, net.uses(), stage=stage)
    net.layers.flatten_parameters()
    net.call = lambda call, layers, x: (layers.flatten_parameters(), call(layers, x))[1]
    with sharded.evaluation():
        net(batch(device))
    far = distance(by_libzero(comm, sharded, device, no_context)[0], wanted)
    claim(f"stage {stage}: an LSTM with weight_norm has torch's gradients, and flatten_parameters() moves nothing: {far:.1e}",
          far < 1e-6 and len(wanted) == 21)
    sharded.close()


class Flattened(torch.nn.LSTM):
    def forward(self, *args):
        self.flatten_parameters()
        return super().forward(*args)


def flattened(comm, claim, device):
    """Within the unit: on a GPU, torch would move the parameters."""
    net = Recurrent(Flattened, lambda call, *args: call(*args)).to(device)
    plain = Recurrent(torch.nn.LSTM, net.call).to(device)
    sharded = libzero.torch.Sharded(comm, net, net.uses())
    far = distance(by_libzero(comm, sharded, device, no_context)[0], by_torch(plain, device, no_context))
    claim(f"an LSTM that flattens its parameters in its forward has torch's gradients: {far:.1e}", far < 1e-6)
    sharded.close()


def shared_frozen(comm, claim, device):
    """A frozen base that a reference of DPO's shares, by itself and in a Sharded of its own. Integers are frozen."""
    def make(base):
        net = torch.nn.Sequential(base, torch.nn.Linear(3, 2)).to(device)
        with torch.no_grad():
            net[1].weight.fill_(0.5)
        return net

    x, base = torch.ones(4, 3, device=device), torch.nn.Linear(3, 3).to(device).requires_grad_(False)
    base.count = torch.nn.Parameter(torch.ones(3, dtype=torch.int32, device=device), requires_grad=False)
    net, reference = make(base), make(torch.nn.Linear(3, 3))
    reference[0].weight, reference[0].bias = base.weight, base.bias  # torch ties them
    wanted = reference(x).detach().clone()
    policy = libzero.torch.Sharded(comm, net, list(net), dtype=libzero.FP32)
    with policy.micro_step():
        policy.backward(net(x).square().mean())
    policy.step(0.1)
    claim("a frozen parameter that another module shares still computes there", torch.equal(reference(x), wanted))
    other = libzero.torch.Sharded(comm, reference, list(reference))
    with other.evaluation():
        found = reference(x)
    claim("... also as a second Sharded's", bool((found - wanted).abs().max() < 1e-5))
    other.close()
    policy.close()


class Extra(torch.nn.Linear):
    """Has a state of its own beside its tensors'."""
    n_seen = 0

    def get_extra_state(self):
        return {"seen": self.n_seen}

    def set_extra_state(self, state):
        self.n_seen = state["seen"]


def extra_state(comm, claim, device):
    net = torch.nn.Sequential(Extra(3, 3), torch.nn.Linear(3, 1)).to(device)
    sharded = libzero.torch.Sharded(comm, net, list(net))
    net[0].n_seen = 7
    state = sharded.state_dict()
    net[0].n_seen = 0
    sharded.load_state_dict(state)
    claim("what get_extra_state returns is in state_dict, and load_state_dict brings it back",
          state["0._extra_state"] == {"seen": 7} and net[0].n_seen == 7)
    sharded.close()


class Tied(torch.nn.Module):
    """As in transformers' T5, `shared` has the embedding's weight, first, and is never called."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(16)
        self.shared, self.embed, self.head = torch.nn.Embedding(7, 3), torch.nn.Embedding(7, 3), Extra(3, 7)
        self.embed.weight = self.shared.weight
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        return self.head(self.embed(x))


def tied_outside_units(comm, claim, device):
    """The weight of a module that no unit has is that of the unit it is tied to."""
    x = torch.arange(7, device=device)
    for kind in ("trained", "frozen"):
        plain, net = Tied().to(device), Tied().to(device)
        for each in (plain, net):
            each.shared.weight.requires_grad_(kind == "trained")
        sgd = torch.optim.SGD([value for value in plain.parameters() if value.requires_grad], 0.1)
        torch.nn.functional.cross_entropy(plain(x), x).backward()
        sgd.step()
        sharded = libzero.torch.Sharded(comm, net, [net.embed, net.head], optimizer=libzero.SGD, momentum=0.0,
                                        weight_decay=0.0, grad_clip=0.0)
        with sharded.micro_step():
            sharded.backward(torch.nn.functional.cross_entropy(net(x), x) / comm.size)
        sharded.step(0.1)
        state, wanted = sharded.state_dict(), plain.state_dict()
        del wanted["head._extra_state"], state["head._extra_state"]
        far = distance(state, {name: value.cpu() for name, value in wanted.items()})
        claim(f"a {kind} weight that a module in no unit has, too, is in state_dict under both names, torch's: {far:.1e}",
              far < 1e-6 and torch.equal(state["shared.weight"], state["embed.weight"]))
        doubled = {name: 2 * value + 1 for name, value in state.items()} | {"head._extra_state": {"seen": 1}}
        sharded.load_state_dict(doubled)
        claim("... and load_state_dict sets it",
              all(torch.equal(value, doubled[name]) for name, value in sharded.state_dict().items() if name in state))
        claim("... which is computed with in its unit only",
              raises("shared.weight is used outside its unit", lambda net=net: net.shared(x)))
        if kind == "trained":
            loads_all_or_nothing(claim, sharded, state)
        sharded.close()


def loads_all_or_nothing(claim, sharded, state):
    before, good = sharded.state_dict(), state | {"head._extra_state": {"seen": 1}}
    for what, spoilt in (("a value on the meta device", {"count": torch.empty(1, device="meta")}),
                         ("a value that is no tensor", {"count": 1.0}),
                         ("what set_extra_state refuses", {"head._extra_state": {}})):
        try:
            sharded.load_state_dict(good | spoilt)
            refused = False
        except (ValueError, KeyError):
            refused = True
        after = sharded.state_dict()
        claim(f"a state_dict with {what} is refused, and nothing of it is loaded",
              refused and all(torch.equal(after[name], before[name]) for name in state))


def raises(text, function):
    try:
        function()
    except RuntimeError as error:
        if text in str(error):
            return True
        print(f"another error than '{text}': {error}", flush=True)
    return False


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


class Listed(torch.nn.Module):
    """Computes with a parameter that it keeps in a list, too."""

    def __init__(self):
        super().__init__()
        self.linear, self.tanh = torch.nn.Linear(3, 3), torch.nn.Tanh()
        self.weights, self.uses_list = [self.linear.weight], False

    def forward(self, x):
        x = self.tanh(self.linear(x))
        return x @ self.weights[0] if self.uses_list else x


def hooks_with_parameters(comm, claim, device):
    """The old spectral_norm computes a Linear's weight in a hook of its own."""
    def make(wrap):
        torch.manual_seed(17)
        return torch.nn.Sequential(wrap(torch.nn.utils.spectral_norm(torch.nn.Linear(DIM, DIM))), torch.nn.Linear(DIM, 1))

    plain, nets = make(torch.nn.Sequential).to(device), [make(wrap).to(device) for wrap in (torch.nn.Sequential, lambda part: part)]
    wrapped, bare = (libzero.torch.Sharded(comm, net, list(net)) for net in nets)
    wanted = by_torch(plain, device, no_context)
    far = distance(by_libzero(comm, wrapped, device, no_context)[0], wanted)
    claim(f"a hook that uses parameters, within a unit, has torch's gradients: {far:.1e}", far < 1e-6)
    claim("... of a unit's own module: refused with the remedy", raises(
        "0.weight_orig is used outside its unit, where libzero holds it: list the module that uses it in `units`; if a hook of "
        "the unit's own module uses it, wrap that module", lambda: by_libzero(comm, bare, device, no_context)))
    wrapped.close()
    bare.close()


def refusals(comm, claim, device):
    """What would have no effect, or another than in torch."""
    def make():
        torch.manual_seed(14)
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), Listed())
        net.to(device)
        return net, libzero.torch.Sharded(comm, net, list(net))

    x = torch.ones(4, 3, device=device)
    zeros = {"0.weight": torch.zeros(3, 3, device=device)}

    def replace(net, name, value):
        setattr(net[0], name, value)

    in_a_pass = (
        ("functional_call with other weights", "0: Linear.weight is not the parameter",
         lambda net: torch.func.functional_call(net, zeros, (x,))),
        ("a parameter that was replaced", "0: Linear.weight is not the parameter",
         lambda net: (replace(net, "weight", torch.nn.Parameter(zeros["0.weight"])), net(x))),
        ("a parameter that came later", "0: Linear.new is not the parameter",
         lambda net: (replace(net, "new", torch.nn.Parameter(zeros["0.weight"])), net(x))),
        ("a parameter that is gone", "0: the parameter 0.weight is gone", lambda net: (net[0]._parameters.pop("weight"), net(x))),
        ("two units in a checkpoint", "0 and 1 are in one torch.utils.checkpoint",
         lambda net: checkpoint(net, x, use_reentrant=False)),
        ("two units in one with use_reentrant=True", "0 and 1 are in one torch.utils.checkpoint",
         lambda net: checkpoint(net, x.clone().requires_grad_(), use_reentrant=True)),
        ("two units in a checkpoint_sequential", "0 and 1 are in one torch.utils.checkpoint",
         lambda net: checkpoint_sequential(list(net), 1, x, use_reentrant=False)),
        ("a parameter from a list", "1.linear.weight is the one that the module had before Sharded",
         lambda net: (setattr(net[1], "uses_list", True), net(x))),
        ("torch.func.vmap", "vmap, grad or another transform", lambda net: torch.func.vmap(net)(x)),
        ("torch.func.grad", "vmap, grad or another transform", lambda net: torch.func.grad(lambda x: net(x).sum())(x)),
    )
    outside = (
        ("zero_grad", "0.weight has no .grad", lambda net: net.zero_grad()),
        ("clip_grad_norm_", "0.weight has no .grad", lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)),
        ("torch's optimizers", "0.weight has no .grad", lambda net: torch.optim.SGD(net.parameters(), 0.1).step()),
        ("deepcopy", "0.weight is used outside its unit", copy.deepcopy),
        ("requires_grad_", "requires_grad of 0.weight cannot change: what is trained is settled when Sharded is made",
         lambda net: net[0].requires_grad_(False)),
        ("requires_grad = False", "what is trained is settled when Sharded is made",
         lambda net: setattr(net[0].bias, "requires_grad", False)),
        ("hooks of parameters", "0.weight is used outside its unit", lambda net: net[0].weight.register_hook(print)),
        ("parametrizations", "0.weight is used outside its unit",
         lambda net: torch.nn.utils.parametrize.register_parametrization(net[0], "weight", Doubled())),
    )
    for name, text, call in in_a_pass:
        net, sharded = make()

        def pass_through(call=call, net=net, sharded=sharded):
            with sharded.micro_step():
                call(net)

        claim(f"{name}: refused by name", raises(text, pass_through))
        sharded.close()
    for name, text, call in outside:
        net, sharded = make()
        claim(f"{name}: refused by name", raises(text, lambda call=call, net=net: call(net)))
        sharded.close()
    net, sharded = make()
    net[0] = torch.nn.Linear(3, 3).to(device)

    def micro_step():
        with sharded.micro_step():
            pass

    claim("a unit that was replaced: refused by name", raises("Linear.weight has come into the module after Sharded", micro_step))
    sharded.close()
