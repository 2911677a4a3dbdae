"""libzero.torch: libzero trains a PyTorch module.

    net = Net()                                                     an ordinary nn.Module, the same code on every rank
    sharded = libzero.torch.Sharded(comm, net, [net.embed, *net.blocks, net.head], stage=3, micro_steps=2)
    for inputs, targets in micro_batches:                           this rank's
        with sharded.micro_step():
            sharded.backward(loss_function(net(inputs), targets) / global_batch)
    result = sharded.step(lr=1e-3)

A unit is one use of a module in the forward pass. `units` lists them in order: a module that is used twice is listed
twice. Every parameter is in one of these modules; one that is in several (tied weights) is owned by the first. Those
with requires_grad = False are frozen. Modules that a pass leaves out, on this rank or on all, count as not used.

In a unit, parameters are views of libzero's memory, and they end with it: outside, they have shapes and no data, and to
compute with them is an error. What autograd saves of a parameter for backward is its place, of which the
view is made anew in backward's own acquire. A view that outlives the unit otherwise is an error that names the
parameter, since libzero will use that memory for other units.

The unit's forward is one node of the outer graph. Its backward acquires, runs the graph within, writes gradients into
libzero's memory, and ends with grad_ready: so units come in exactly the reverse order. torch.utils.checkpoint may be in
a unit, or around one: backward's acquire then comes before the unit's second forward.

torch.compile sees what is in a unit: there parameters are inputs of the graph, so units of equal code and shapes share
one. libzero's calls around it are outside, and torch.compile of a whole net breaks its graph there.
"""

import contextlib
import sys

import torch
import torch.utils.checkpoint
from torch.utils._pytree import tree_flatten, tree_unflatten

import libzero

from .units import Absent, Former, Unit, Use, tensor_at

_DTYPES = {libzero.FP32: torch.float32, libzero.BF16: torch.bfloat16, libzero.FP16: torch.float16}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_LOSS_STEP = 2.0 ** -42  # losses are rounded to multiples of it, so that their sum has no order: zero_step


class Cancelled(RuntimeError):
    """Another rank's pass ended in an exception: no rank takes this step, and the next micro_step begins it anew."""


class Sharded:
    """A module whose parameters libzero holds and trains. net's weights on rank 0 are what it begins with; those on the
    meta device wait for load_weights, load or load_state_dict. decay(name, parameter): whether weight decay applies; to
    all, if it is not given. hidden_matrix(name, parameter): whether Muon updates it as a matrix; those that it does not
    name are AdamW's. compile: True, or a dict of torch.compile's options: compiles each unit's forward.
    settings: fields of zero_config_t. The dtype is that of net's parameters, unless dtype= says otherwise, as libzero's
    constant or torch's; the device is theirs, too, or `device`."""

    def __init__(self, comm, net, units, decay=None, device=None, compile=False, hidden_matrix=None, **settings):
        if settings.get("optimizer") == libzero.MUON and hidden_matrix is None:
            raise ValueError("Muon needs hidden_matrix(name, parameter), which says which parameters are hidden layers' "
                             "matrices: AdamW updates the others, such as embeddings and the head")
        self.net, self._comm = net, comm
        self._decay, self._hidden_matrix = decay, hidden_matrix
        self._compile_options = {} if compile is True else compile or None
        parameters = dict(net.named_parameters())
        if not parameters:
            raise ValueError("the module has no parameters")
        held = [name for name, parameter in parameters.items() if isinstance(parameter, Absent)]
        if held:
            others = f", and so are {len(held) - 1} others" if len(held) > 1 else ""
            raise ValueError(f"{held[0]} is already libzero's{others}: use the Sharded that has the module, or close it and "
                             "make the module anew")
        complex_ones = [name for name, parameter in parameters.items() if parameter.is_complex()]
        if complex_ones:
            raise ValueError(f"{complex_ones[0]} is complex, and libzero's numbers are real: make it a real parameter with "
                             "a last dimension of 2, and compute with torch.view_as_complex of it")
        self._device = torch.device(device or next((p.device for p in parameters.values() if not p.is_meta), "cpu"))
        dtype = settings["dtype"] if "dtype" in settings else self._common_dtype(parameters)
        settings["dtype"] = _NUMBERS.get(dtype, dtype)
        if settings["dtype"] not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}: it must be libzero.FP32, BF16 or FP16, or torch.float32, bfloat16 or float16")
        self._dtype, self.stream, self._torch_stream = _DTYPES[settings["dtype"]], None, None
        if self._device.type == "cuda":
            torch.cuda.set_device(comm.local_rank % torch.cuda.device_count())
            self._device = torch.device("cuda", torch.cuda.current_device())
            self._torch_stream = torch.cuda.Stream()
            self.stream = self._torch_stream.cuda_stream
        self.names, self._shapes, self.placeholders, self.trained = [], [], [], set()
        self._ids = {}  # tensor by id of a parameter
        self._units, self._by_module = [], {}
        model = self._declare(parameters, list(units))
        gpu = libzero.DEVICE_CUDA if comm.local_size <= torch.cuda.device_count() else libzero.DEVICE_CUDA_SHARED
        self._libzero_device = libzero.Device(comm, libzero.DEVICE_CPU if self.stream is None else gpu)
        self.engine = libzero.Engine(comm, self._libzero_device, model, **settings)
        self._pass, self.current, self.is_backward, self._next, self._in_backward = None, None, False, 0, False
        # Of torch.utils.checkpoint: the last one's frame with its unit; units in one; the unit whose run backward awaits,
        # and the inputs and outputs of that run.
        self._checkpoint, self._checkpointed, self.wanted, self.recomputed = (None, None), set(), None, None
        self.anchor = torch.zeros((), requires_grad=True, device=self._device)
        self._loss = torch.zeros((), dtype=torch.float64, device=self._device)
        self._scale = None
        if self._dtype is torch.float16:
            self._scale = tensor_at(self.engine.loss_scale_address(), torch.float32, (), self._device)[0]
        self._take_over(parameters)

    # ---- declaration ----

    @staticmethod
    def _common_dtype(parameters):
        found = {parameter.dtype for parameter in parameters.values()}
        if len(found) == 1 and found <= set(_NUMBERS):
            return found.pop()
        raise ValueError(f"parameters have the dtypes {', '.join(sorted(map(str, found)))}: make them one of float32, "
                         "bfloat16 and float16, or give dtype=libzero.FP32, BF16 or FP16")

    def _declare(self, parameters, units):
        model = libzero.Model()
        names = {id(parameter): name for name, parameter in parameters.items()}
        module_names = {id(module): name for name, module in self.net.named_modules()}
        for module in units:
            if id(module) not in module_names:
                raise ValueError(f"a unit, {type(module).__name__}, is not in the module")
            if module._compiled_call_impl is not None:
                raise ValueError(f"unit {module_names[id(module)]} is compiled by its compile(), which would compile libzero's "
                                 "calls, too: leave that out, and give Sharded compile=True, or a dict of the options")
            uses = self._by_module.setdefault(id(module), [])
            name = (module_names[id(module)] or type(module).__name__) + (f"#{len(uses) + 1}" if uses else "")
            unit = Unit(self, model.add_unit(name), name, module)
            self._units.append(unit)
            uses.append(unit)
            for part in module.modules():
                if part is not module and any(part is other for other in units):
                    raise ValueError(f"unit {name} contains another unit, {module_names[id(part)]}: units are acquired "
                                     "one at a time, so list either")
                for attribute, parameter in part._parameters.items():
                    if parameter is not None:
                        self._add(model, unit, (part, attribute), parameter, names[id(parameter)])
            if not unit.places:
                raise ValueError(f"unit {name} has no parameters: leave it out")
        left = [name for name, parameter in parameters.items() if id(parameter) not in self._ids]
        if left:
            others = f", nor {len(left) - 1} others" if len(left) > 1 else ""
            raise ValueError(f"no unit has the parameter {left[0]}{others}: list the modules that use it; one of the "
                             "module itself needs a small module of its own")
        return model

    def _add(self, model, unit, place, parameter, name):
        tensor = self._ids.get(id(parameter))
        if tensor is None:
            shape = tuple(parameter.shape)
            declared = shape if 0 < len(shape) <= 4 else (1,) if not shape else (shape[0], parameter[0].numel())
            decays = self._decay is None or bool(self._decay(name, parameter))
            is_hidden = self._hidden_matrix is not None and bool(self._hidden_matrix(name, parameter))
            tensor = model.add_tensor(unit.index, name, declared, decay=decays, frozen=not parameter.requires_grad,
                                      hidden_matrix=is_hidden)
            self._ids[id(parameter)] = tensor
            self.names.append(name)
            self._shapes.append(shape)
            self.placeholders.append(Absent.of(name, shape, self._dtype, parameter.requires_grad,
                                               self._device))
            if parameter.requires_grad:
                self.trained.add(tensor)
        elif tensor not in unit.tensors:
            model.share_tensor(unit.index, tensor)
        unit.places.append((*place, tensor))

    def _take_over(self, parameters):
        """Gives libzero the weights, empties the module, and comes between its units and their callers."""
        self.engine.init_parameters()
        self._waiting = [name for name, parameter in parameters.items() if parameter.is_meta]
        self._set_all({self._ids[id(each)]: each for each in parameters.values() if not each.is_meta})
        for part in self.net.modules():  # also those in no unit that have a unit's parameter, such as T5's `shared`
            for attribute, parameter in part._parameters.items():
                if parameter is not None:
                    part._parameters[attribute] = self.placeholders[self._ids[id(parameter)]]
        for unit in self._units:
            unit.list_recurrent()
        for name, parameter in parameters.items():
            if type(parameter) is torch.nn.Parameter and (parameter.requires_grad or parameter.is_meta):
                Former.make_of(name, parameter, self._device)
        for module in {id(unit.module): unit.module for unit in self._units}.values():
            inner = module.forward
            if self._compile_options is not None:
                inner = torch.compile(inner, **self._compile_options)
            module.forward = torch.compiler.disable(self._forward_of(module, inner))
        for part in self.net.modules():
            part.register_load_state_dict_pre_hook(self._refuse_load)

    @staticmethod
    def _refuse_load(*_):
        raise RuntimeError("libzero holds this module's parameters: use Sharded.load_state_dict")

    # ---- memory ----

    def param(self, tensor):
        """Returns a view of the acquired parameter and a weak reference to its memory."""
        return tensor_at(self.engine.param_address(tensor), self._dtype, self._shapes[tensor], self._device)

    def grad(self, tensor):
        """Returns where a gradient goes, and whether to add to what is there."""
        address, dtype, accumulate = self.engine.grad_address(tensor)
        return tensor_at(address, _DTYPES[dtype], self._shapes[tensor], self._device)[0], accumulate

    # ---- passes ----

    def _forward_of(self, module, forward):
        def call(*args, **kwargs):
            if torch._C._functorch.get_interpreter_stack():
                raise RuntimeError(f"{self._by_module[id(module)][0].name} is used within vmap, grad or another transform of "
                                   "torch.func: libzero serves none")
            is_again = self._in_backward
            unit = self._use_again(module) if is_again else self._use_of(module)
            leaves, spec = tree_flatten((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            is_trained = any(tensor in self.trained for tensor in unit.tensors)
            if self._pass == libzero.PASS_TRAIN and torch.is_grad_enabled() and \
                    (is_trained or any(tensor.requires_grad for tensor in tensors)):
                passed = {"unit": unit, "forward": forward, "leaves": leaves, "spec": spec, "is_again": is_again,
                          "recomputes": unit.index in self._checkpointed}
                results = iter(Use.apply(self.anchor, passed, *tensors))
                outputs = [next(results) if isinstance(leaf, torch.Tensor) else leaf for leaf in passed["leaves"]]
                return tree_unflatten(outputs, passed["spec"])
            with torch.no_grad():
                return tree_unflatten(*unit.forward(forward, leaves, spec, False))
        return call

    def _use_of(self, module):
        """Finds which use of the module this is, and passes over units that come before."""
        uses = self._by_module[id(module)]
        if self._pass is None:
            raise RuntimeError(f"{uses[0].name} is used outside micro_step() and evaluation()")
        if self.current is not None:
            raise RuntimeError(f"{uses[0].name} is used inside {self.current.name}: one unit at a time")
        if self.is_backward:
            raise RuntimeError(f"{uses[0].name} is used in forward after backward() of this micro-step")
        unit = next((use for use in uses if use.index >= self._next), None)
        if unit is None and self._pass == libzero.PASS_EVAL:
            self._begin_next_pass()
            unit = uses[0]
        if unit is None:
            raise RuntimeError(f"{uses[-1].name} is used after {self._units[self._next - 1].name}, but `units` does not "
                               "list it there: list modules in the order of their uses, once for each use")
        self._skip_to(unit.index)
        if self._pass == libzero.PASS_TRAIN:
            self._note_checkpoint(unit)
        return unit

    def acquire(self, unit):
        self.engine.acquire(unit.index, self.stream)
        self.current = unit
        self._next = unit.index + (not self.is_backward)

    def _note_checkpoint(self, unit):
        """Notes whether the unit is used within torch.utils.checkpoint, that is, called by it."""
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_filename != torch.utils.checkpoint.__file__:
            frame = frame.f_back
        if frame is None:
            return
        last, other = self._checkpoint
        if frame is last:
            raise RuntimeError(f"{other.name} and {unit.name} are in one torch.utils.checkpoint, but backward has one unit at a "
                               "time: give each a checkpoint of its own")
        self._checkpoint = frame, unit
        self._checkpointed.add(unit.index)

    def _use_again(self, module):
        """In backward, torch.utils.checkpoint runs a use of the module again: acquires it, if it is not."""
        uses = [use for use in self._by_module[id(module)] if use.index in self._checkpointed]
        if not uses:
            raise RuntimeError(f"{self._by_module[id(module)][0].name} is used in backward, but no torch.utils.checkpoint had it "
                               "in forward")
        if self.current in uses:
            return self.current
        unit = self.wanted if self.wanted in uses else next((use for use in reversed(uses) if use.index < self._next), uses[0])
        self.come_to(unit)
        return unit

    def _begin_next_pass(self):
        """In an evaluation, a use that comes too late begins the module's next pass."""
        self._end()
        if not self._comm.agree(True):
            raise Cancelled("another rank gave up this evaluation")
        self.engine.begin(self._pass, self.stream)
        self._next = 0

    def _skip_to(self, index):
        while self._next < index:
            self.engine.unused(self._next, self.stream)
            self._next += 1

    def come_to(self, unit):
        """Passes over units that backward leaves out."""
        if not self._in_backward:
            raise RuntimeError("backward of a module that libzero trains: use Sharded.backward(loss)")
        self._leave_recomputed()
        if unit.index >= self._next:
            raise RuntimeError(f"backward comes to {unit.name} a second time, or after a unit that precedes it")
        self._skip_back_to(unit.index + 1)

    def _leave_recomputed(self):
        """Ends the use of a unit that was run again, if backward does not come to it."""
        if self.current is not None:
            self.recomputed = None
            self.current.leave()

    def _skip_back_to(self, index):
        while self._next > index:
            self._next -= 1
            self.engine.unused(self._next, self.stream)

    @contextlib.contextmanager
    def micro_step(self):
        """A forward and backward pass. All ranks go through it; one without data leaves the block empty. An exception
        that leaves the block on any rank cancels the step at hand on all, with its earlier micro-steps: it goes on its
        way there, and the others raise Cancelled. The next micro_step begins the step anew. [collective]"""
        with self._run(libzero.PASS_TRAIN):
            yield

    @contextlib.contextmanager
    def evaluation(self):
        """Forward passes, under no_grad; on every rank as many. Between steps. Exceptions are as in micro_step.
        [collective]"""
        with torch.no_grad(), self._run(libzero.PASS_EVAL):
            yield

    @contextlib.contextmanager
    def _run(self, kind):
        self._check_weights()
        for module in self.net.modules():
            for attribute, parameter in module._parameters.items():
                if parameter is not None and not isinstance(parameter, Absent):
                    raise RuntimeError(f"{type(module).__name__}.{attribute} has come into the module after Sharded, which does "
                                       "not train it: add parameters and replace modules before")
        with self._on_stream():
            self.engine.begin(kind, self.stream)
            self._pass, self.is_backward, self._next = kind, False, 0
            self._checkpointed.clear()
            try:
                yield
                self._end()
            except Cancelled:  # between passes: the ranks have agreed
                self._cancel()
                raise
            except BaseException:
                with contextlib.suppress(libzero.Error):  # then the job has failed, and the first error says why
                    self._abandon()
                    self._comm.agree(False)
                    self._cancel()
                raise
            finally:
                self._pass, self._checkpoint, self.wanted, self.recomputed = None, (None, None), None, None
            if not self._comm.agree(True):
                self._cancel()
                raise Cancelled("another rank gave up this pass")

    @contextlib.contextmanager
    def _on_stream(self):
        """On GPUs, another stream than the null stream, in which copies between GPUs do not run."""
        if self._torch_stream is None:
            yield
            return
        outer = torch.cuda.current_stream()
        self._torch_stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self._torch_stream):
                yield
        finally:
            outer.wait_stream(self._torch_stream)

    def _end(self):
        """Passes over the rest of the pass."""
        if not self.is_backward:
            self._skip_to(len(self._units))
        if self._pass == libzero.PASS_TRAIN:
            self.is_backward = True
            self._skip_back_to(0)

    def _abandon(self):
        """Goes through the rest of a pass that failed, as the other ranks do, without computing."""
        with self.engine.without_functions():
            self.recomputed = None
            if self.current is not None:
                self.current.views.clear()
                self.current.release()
            self._end()

    def _cancel(self):
        try:
            self.engine.cancel()
        finally:
            self._loss.zero_()

    def backward(self, loss):
        """Computes gradients; once in a micro-step. loss: this micro-batch's share of the step's loss, since losses and
        gradients are summed over ranks and micro-steps."""
        if self._pass != libzero.PASS_TRAIN or self.is_backward:
            raise RuntimeError("backward() belongs into a micro_step(), once")
        if loss.dim() > 0:
            raise ValueError(f"the loss has the shape {tuple(loss.shape)}, but backward needs a scalar, such as its mean()")
        self._skip_to(len(self._units))
        self._loss += torch.round(loss.detach().double() / _LOSS_STEP) * _LOSS_STEP
        self.is_backward = self._in_backward = True
        self._checkpoint = None, None
        try:
            (loss if self._scale is None else loss * self._scale).backward()
            self._leave_recomputed()
        finally:
            self._in_backward = False

    def step(self, lr, wait=True):
        """Updates the weights. Returns the result, or None without wait: then wait() has it, one step late at most on
        GPUs, so that the host runs ahead. If a hook `reduced` raises, all is as in micro_step. If `updated` or an own
        optimizer does, some weights have changed: its rank raises that, the others an Error, and weights must be loaded
        before the next step. [collective]"""
        with self._on_stream():
            try:
                self.engine.step(lr, stream=self.stream, loss_address=self._loss.data_ptr())
            except libzero.Error as error:
                if error.status != libzero.ERROR_PEER:
                    raise
                self._cancel()
                raise Cancelled("another rank gave up this step") from error
            except BaseException:
                with contextlib.suppress(libzero.Error):
                    self._cancel()
                raise
            self._loss.zero_()
        return self.engine.wait() if wait else None

    def wait(self):
        return self.engine.wait()

    # ---- weights, between steps ----

    def _check_weights(self):
        if self._waiting:
            raise RuntimeError(f"{self._waiting[0]} was on the meta device: load weights first")

    def _set_all(self, values):
        """Sets weights to rank 0's. values: by tensor. One buffer serves all: fresh memory would cost more than to copy."""
        is_root = self._comm.rank == 0
        most = max((value.numel() for value in values.values()), default=0)
        buffer = torch.empty(most if is_root else 0, dtype=torch.float32, device="cpu")
        for tensor, value in values.items():
            if is_root:
                whole = buffer[:value.numel()]
                whole.view(value.shape).copy_(value.detach())
                self.engine.set_tensor(tensor, whole.numpy().reshape(self.engine.shape(tensor)), root=0)
            else:
                self.engine.set_tensor(tensor, None, root=0)

    def state_dict(self, root=libzero.ALL_RANKS):
        """Returns net's state_dict, on the CPU and with whole fp32 weights; with a root on that rank, None elsewhere.
        [collective]"""
        self._check_weights()
        whole = {}
        for tensor, shape in enumerate(self._shapes):
            data = self.engine.get_tensor(tensor, root=root)
            whole[id(self.placeholders[tensor])] = None if data is None else torch.from_numpy(data).reshape(shape)
        state = self.net.state_dict(keep_vars=True)
        for name, value in state.items():
            if id(value) in whole:
                state[name] = whole[id(value)]
            elif isinstance(value, torch.Tensor):
                state[name] = value.detach().cpu().clone()
        return state if root in (libzero.ALL_RANKS, self._comm.rank) else None

    def load_state_dict(self, state):
        """Sets weights and buffers to those of a whole state_dict, which every rank gives. Weights are rank 0's;
        moments stay. If it is refused, no weight has changed. [collective]"""
        own = self.net.state_dict(keep_vars=True)
        by_id = {id(placeholder): tensor for tensor, placeholder in enumerate(self.placeholders)}
        differ = sorted(set(own) ^ set(state))
        if differ:
            raise KeyError(f"{differ[0]} is {'not ' * (differ[0] in own)}in the state_dict that is loaded, "
                           f"{'but ' if differ[0] in own else 'and not '}in the module")
        extra = [name for name in own if name.rpartition(".")[2] == "_extra_state"]  # of any type: torch's get_extra_state
        tensors = {name: value for name, value in own.items() if name not in extra}
        bad = None
        for name, value in tensors.items():
            reads = self._comm.rank == 0 or id(value) not in by_id
            if not isinstance(state[name], torch.Tensor) or (reads and state[name].is_meta):
                bad = bad or f"{name} is no tensor with data in the state_dict that is loaded"
            elif tuple(value.shape) != tuple(state[name].shape):
                bad = bad or f"{name} has shape {tuple(value.shape)}, not {tuple(state[name].shape)}"
        weights = {name: state[name] for name, value in tensors.items() if id(value) in by_id}
        buffers = {name: value.data for name, value in tensors.items() if name not in weights}
        if self._comm.rank == 0 and not bad:
            bad = next((f"{name} is not finite in fp32" for name, value in weights.items()
                        if not bool(torch.isfinite(value.float()).all())), None)
        if not self._comm.agree(bad is None):
            raise ValueError(f"{bad or 'another rank refuses its state_dict, and says why'}: nothing is loaded")
        for name in extra:  # first: a module may refuse it
            self.net.get_submodule(name.rpartition(".")[0]).set_extra_state(state[name])
        for name, value in buffers.items():
            if value.is_meta:
                path, _, attribute = name.rpartition(".")
                self.net.get_submodule(path)._buffers[attribute] = state[name].detach().to(self._device, copy=True)
            else:
                value.copy_(state[name].detach())
        self._set_all({by_id[id(own[name])]: value for name, value in weights.items()})
        self._waiting.clear()

    def set_group(self, name, **settings):
        """Gives the parameter of this name settings of the optimizer of its own, from the next step on, such as
        lr_scale=0.1 or weight_decay=0.0: fields of zero_group_t. Without any, removes them. The same on every rank."""
        if name not in self.names:
            raise KeyError(f"no parameter has the name {name}")
        self.engine.set_group(self.names.index(name), **settings)

    def load_weights(self, directory):
        """zero_load_weights: Hugging Face's files. [collective]"""
        self.engine.load_weights(directory)
        self._waiting.clear()

    def load_weights_partial(self, directory):
        """The same where parameters may be missing, such as adapters or a new head: those stay. Returns n_loaded, n_kept
        and n_ignored. [collective]"""
        partial = self.engine.load_weights_partial(directory)
        if partial.n_kept and self._waiting:
            raise RuntimeError(f"{partial.n_kept} parameters are not in {directory}, and {self._waiting[0]}, say, was on "
                               "the meta device: make the module with weights")
        self._waiting.clear()
        return partial

    def save(self, directory, keep=0, state=None):
        """Saves a checkpoint, of the state that libzero holds: not of buffers. [collective]"""
        self._check_weights()
        self.engine.save(directory, keep, state)

    def load(self, directory):
        """Loads a checkpoint, before the first pass. Returns its state.json as a dict. [collective]"""
        state = self.engine.load(directory)
        self._waiting.clear()
        return state

    def close(self):
        """Frees libzero's memory; the module stays empty. [collective]"""
        self._scale = None
        self.engine.close()
        self._libzero_device.close()
