"""One use of a module, as a unit of libzero: views of its parameters, and its place in autograd's graph. For Sharded.

A use is one node of the outer graph, Use. Its forward runs the module in a graph of its own, in which each parameter is
a Fetch; its backward acquires the unit, runs that graph, and ends the unit with grad_ready. So units come in exactly
the reverse order, and all that backward does with a parameter is between acquire and grad_ready.
"""

import ctypes
import gc
import weakref

import torch
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten


_HARMLESS = {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.nelement, torch.Tensor.__repr__,
             torch.Tensor.element_size, torch.Tensor.is_floating_point, torch.Tensor.__hash__}


class Absent(torch.nn.Parameter):
    """Stands for a parameter outside its unit: it has a shape and no data, and to compute with it is an error. It names
    the device that it is on within its unit, where others want to put inputs."""

    @classmethod
    def of(cls, name, shape, dtype, requires_grad, device):
        absent = torch.Tensor._make_subclass(cls, torch.empty(shape, dtype=dtype, device="meta"), requires_grad)
        absent.libzero_name, absent.libzero_device = name, device
        return absent

    device = property(lambda self: self.libzero_device)
    why = ("is used outside its unit, where libzero holds it: list the module that uses it in `units`; if a hook of the "
           "unit's own module uses it, wrap that module, as in nn.Sequential(module), and list the wrapper; for its value take "
           "Sharded.state_dict")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function == torch.Tensor.grad.__get__:
            raise RuntimeError(f"{args[0].libzero_name} has no .grad: its gradient is libzero's. Sharded.step clips and updates, "
                               "so leave out zero_grad, clip_grad_norm_ and torch's optimizers")
        if function in (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__):
            raise RuntimeError(f"requires_grad of {args[0].libzero_name} cannot change: what is trained is settled when Sharded "
                               "is made. PEFT's disable_adapter() and set_adapter() change it, too")
        if function in _HARMLESS or function.__name__ == "__get__":
            with torch._C.DisableTorchFunctionSubclass():
                result = function(*args, **(kwargs or {}))
            if not isinstance(result, torch.Tensor):
                return result
        if function == torch.Tensor.detach:  # by nn.Module.state_dict, of which PEFT takes the keys
            return cls.of(args[0].libzero_name, args[0].shape, args[0].dtype, False, args[0].libzero_device)
        absent = next(arg for arg in tree_flatten((args, kwargs))[0] if isinstance(arg, cls))
        raise RuntimeError(f"{absent.libzero_name} {absent.why}")


class Former(Absent):
    """A parameter that Sharded trains: what the module had, and has no more. Whatever else keeps it, such as a list, would
    compute with weights that are never trained. Those that are frozen stay as they are: other modules may share them."""

    @classmethod
    def make_of(cls, name, parameter, device):
        """Empties the parameter itself, of which others may have references."""
        parameter.grad = None
        if not parameter.is_meta:
            parameter.data = parameter.new_full((), float("nan")).expand(parameter.shape)
        parameter.__class__ = cls
        parameter.libzero_name, parameter.libzero_device = name, device

    why = ("is the one that the module had before Sharded, kept elsewhere, such as in a list; it has no data any more: take "
           "it from its module, within its unit")


def _stay():
    """RNNBase.flatten_parameters of a layer whose parameters are libzero's: it would move them within a GPU's memory."""


class _GpuMemory:
    """Memory of a GPU that a tensor is made of."""

    def __init__(self, address, n_bytes):
        self.__cuda_array_interface__ = {"shape": (n_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def tensor_at(address, dtype, shape, device):
    """Returns a tensor of libzero's memory, and a weak reference that is dead when nothing has it any more."""
    if not address:
        raise RuntimeError("libzero has no memory for a tensor that is used here")
    n_bytes = torch.Size(shape).numel() * dtype.itemsize
    if device.type == "cpu":
        memory = (ctypes.c_char * n_bytes).from_address(address)
        flat = torch.frombuffer(memory, dtype=dtype)
    else:
        memory = _GpuMemory(address, n_bytes)
        flat = torch.as_tensor(memory, device=device).view(dtype)
    return flat.view(shape), weakref.ref(memory)


class _Saved:
    """What autograd saved of a parameter."""

    def __init__(self, unit, tensor, view):
        self.unit, self.tensor, self.dtype = unit, tensor, view.dtype
        self.layout = view.size(), view.stride(), view.storage_offset()


class Unit:
    """One use of a module. Between enter and leave its parameters are views."""

    def __init__(self, sharded, index, name, module):
        self.sharded, self.index, self.name, self.module = sharded, index, name, module
        self.recurrent = [part for part in module.modules() if isinstance(part, torch.nn.RNNBase)]
        self.places = []  # (module, attribute, tensor)
        self.views, self.by_address, self.keepers, self.written = {}, {}, {}, set()

    tensors = property(lambda self: dict.fromkeys(tensor for _, _, tensor in self.places))

    def enter(self, with_graph):
        """Acquires the unit, unless it is, and replaces its modules' parameters by views."""
        sharded = self.sharded
        self.check_parameters()
        if sharded.current is not self:
            sharded.acquire(self)
            self.written = set()
            for tensor in self.tensors:
                self.views[tensor], self.keepers[tensor] = sharded.param(tensor)
                self.by_address[self.views[tensor].data_ptr()] = tensor
        for module, attribute, tensor in self.places:
            shown = self.views[tensor]
            if with_graph and tensor in sharded.trained:
                shown = Fetch.apply(sharded.anchor, self, tensor)
            module._parameters[attribute] = shown
        self.list_recurrent()

    def check_parameters(self):
        """Refuses parameters that somebody has put in the place of ours, or added: they would have no effect."""
        ours = {(id(module), attribute): self.sharded.placeholders[tensor] for module, attribute, tensor in self.places}
        for part in self.module.modules():
            for attribute, parameter in part._parameters.items():
                if parameter is not ours.pop((id(part), attribute), None):
                    raise RuntimeError(f"{self.name}: {type(part).__name__}.{attribute} is not the parameter that Sharded got: "
                                       "torch.func.functional_call and parameters that come later are not served. Add "
                                       "parameters before Sharded, and change weights by load_state_dict")
        if ours:
            (_, attribute), absent = next(iter(ours.items()))
            raise RuntimeError(f"{self.name}: the parameter {absent.libzero_name} is gone from its module ({attribute}): "
                               "register parametrizations and remove modules before Sharded")

    def hide(self):
        for module, attribute, tensor in self.places:
            module._parameters[attribute] = self.sharded.placeholders[tensor]
        self.list_recurrent()

    def list_recurrent(self):
        """Lists the parameters of torch's recurrent layers, which they do themselves when one has changed: but then the
        list would keep them. What is no parameter, but computed by a parametrization, they compute in their forward: the
        list says that it has changed."""
        for layer in self.recurrent:
            layer.flatten_parameters = _stay
            layer._flat_weights = [layer._parameters.get(name) for name in layer._flat_weights_names]
            layer._flat_weight_refs = [weakref.ref(layer if weight is None else weight) for weight in layer._flat_weights]

    def kept(self):
        """Returns the names of the parameters of which there are views."""
        return [self.sharded.names[tensor] for tensor, keeper in self.keepers.items() if keeper() is not None]

    def leave(self):
        """Checks that nothing has changed a parameter, nor keeps a view, and releases the unit."""
        for tensor, view in self.views.items():
            if not view.is_inference() and view._version != 0:
                raise RuntimeError(f"{self.name} changed its parameter {self.sharded.names[tensor]} in place: only "
                                   "steps change parameters")
        view = None
        self.views.clear()
        kept = self.kept()
        if kept:
            gc.collect()  # it may be garbage in a circle
            kept = self.kept()
        if kept:
            raise RuntimeError(f"{self.name} leaves a view of its parameter {kept[0]} behind, but its memory will be "
                               "used for other parameters: clone() what is kept. If nothing is, an input has reached it "
                               "otherwise than as a tensor among its arguments: pass it as one")
        self.release()

    def release(self):
        """Ends the unit's use. In backward, clears gradients that nothing was added to."""
        sharded = self.sharded
        self.views.clear()
        self.by_address.clear()
        sharded.current = None  # also if a hook raises: grad_ready has then ended the use
        if sharded.is_backward:
            for tensor in self.tensors:
                if tensor in sharded.trained and tensor not in self.written:
                    grad, accumulate = sharded.grad(tensor)
                    if not accumulate:
                        grad.zero_()
            sharded.engine.grad_ready(self.index, sharded.stream)
        else:
            sharded.engine.release(self.index, sharded.stream)

    def forward(self, forward, leaves, spec, with_graph, pack=None, stays=False):
        """Runs the module's own forward. Returns its outputs as leaves, of which none is a view of a parameter. pack: what
        becomes of that which autograd saves. stays: the unit's use goes on, with its backward."""
        self.enter(with_graph)
        try:
            args, kwargs = tree_unflatten(leaves, spec)
            with torch.autograd.graph.saved_tensors_hooks(pack or self.pack, _unpack):
                outputs = forward(*args, **kwargs)
        finally:
            self.hide()
        outputs, spec = tree_flatten(outputs)
        outputs = [self.without_views(output) for output in outputs]
        if not stays:
            self.leave()
        return outputs, spec

    def backward(self, outputs, grads):
        """Runs the graph of forward backwards."""
        self.enter(True)
        try:
            if outputs:
                torch.autograd.backward(outputs, grads)
        finally:
            self.hide()

    def tensor_of(self, view):
        """Returns the parameter that a tensor is a view of, or None."""
        if not isinstance(view, torch.Tensor) or view.layout is not torch.strided or view.is_meta:
            return None
        return self.by_address.get(view.untyped_storage().data_ptr())

    def without_views(self, value):
        """Returns a copy of what is a view of a parameter, and everything else as it is."""
        return value if self.tensor_of(value) is None else value.clone()

    def is_in_backward(self):
        return self.sharded.current is self and self.sharded.is_backward

    def pack(self, saved):
        tensor = self.tensor_of(saved)
        if tensor is not None:
            return _Saved(self, tensor, saved)
        # detach: an output would keep its own graph. torch does not compare versions where there are hooks.
        return saved.detach(), saved._version

    def forget(self, _):
        return self

    def again(self, saved):
        """Makes anew what was saved of a parameter."""
        if not self.is_in_backward():
            raise self.outside_its_turn()
        return self.views[saved.tensor].flatten().view(saved.dtype).as_strided(*saved.layout)

    def outside_its_turn(self):
        return RuntimeError(f"backward comes to {self.name} outside its turn: what a unit computes leaves it only as tensors "
                            "in its result, also in lists, tuples and dicts")

    def write(self, tensor, grad):
        """Writes a parameter's gradient, or adds to it."""
        if not self.is_in_backward():
            name = self.sharded.names[tensor]
            raise RuntimeError(f"a gradient of {name} comes outside {self.name}'s turn in backward")
        view, accumulate = self.sharded.grad(tensor)
        grad = grad.to_dense() if grad.layout is not torch.strided else grad
        if accumulate or tensor in self.written:
            view.add_(grad)
        else:
            view.copy_(grad)
        self.written.add(tensor)


def _unpack(saved):
    if isinstance(saved, _Saved):
        return saved.unit.again(saved)
    if isinstance(saved, Unit):
        raise saved.outside_its_turn()
    tensor, version = saved
    if tensor._version != version:
        raise RuntimeError(f"a tensor of shape {tuple(tensor.shape)} that backward needs was changed in place")
    return tensor


class Fetch(torch.autograd.Function):
    """A parameter in the graph of its unit: its gradient goes to libzero."""

    @staticmethod
    def forward(ctx, anchor, unit, tensor):
        ctx.unit, ctx.tensor = unit, tensor
        return unit.views[tensor].detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        ctx.unit.write(ctx.tensor, grad)
        return None, None, None


class Use(torch.autograd.Function):
    """A unit in the outer graph. call: a dict, in which forward finds the arguments and leaves the result.

    In a torch.utils.checkpoint nothing of the inner graph stays, and the anchor is saved in its place: for it, backward
    makes the checkpoint run its function again, and with it the unit (Sharded._again), or it has done so already. That
    run acquires the unit in backward and leaves the inner graph in sharded.recomputed."""

    @staticmethod
    def forward(ctx, anchor, call, *tensors):
        unit, recomputes, is_again = call["unit"], call["recomputes"], call["is_again"]
        with torch.enable_grad():
            inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
            given = iter(inputs)
            leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in call["leaves"]]
            call["leaves"], call["spec"] = unit.forward(call["forward"], leaves, call["spec"], True,
                                                        unit.forget if recomputes and not is_again else None, is_again)
        ctx.unit, ctx.inputs, ctx.recomputes = unit, inputs, recomputes
        ctx.outputs = [leaf for leaf in call["leaves"] if isinstance(leaf, torch.Tensor)]
        results = [output.detach() for output in ctx.outputs]
        ctx.mark_non_differentiable(*[result for result, output in zip(results, ctx.outputs)
                                      if not output.requires_grad])
        ctx.set_materialize_grads(False)
        if is_again:
            unit.sharded.recomputed = ctx.inputs, ctx.outputs
        if recomputes:
            ctx.inputs, ctx.outputs = (), ()
            ctx.save_for_backward(anchor)
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        unit, sharded = ctx.unit, ctx.unit.sharded
        if ctx.outputs is None:
            raise RuntimeError(f"backward comes to {unit.name} a second time")
        if ctx.recomputes:
            sharded.wanted = unit
            ctx.saved_tensors  # has the checkpoint run again, unless it has
            sharded.wanted = None
            if sharded.current is not unit or sharded.recomputed is None:
                raise RuntimeError(f"backward comes to {unit.name}, which torch.utils.checkpoint has not run again")
            inputs, outputs = sharded.recomputed
            sharded.recomputed = None
        else:
            inputs, outputs = ctx.inputs, ctx.outputs
            sharded.come_to(unit)
        ctx.outputs = ctx.inputs = None
        used = [(output, grad) for output, grad in zip(outputs, grads) if grad is not None and output.requires_grad]
        outputs = None
        with torch.enable_grad():
            unit.backward([output for output, _ in used], [grad for _, grad in used])
        used = None
        results = [unit.without_views(each.grad) if each.grad is not None else None for each in inputs]
        inputs = None
        unit.leave()
        return (None, None, *results)
