"""An engine: passes, steps, checkpoints, and one tensor whole."""

import contextlib
import ctypes
import json
import os
from ctypes import byref, c_double

import numpy

from ._callbacks import Calls
from ._device_array import UINT8, view_of
from ._objects import Handle
from ._zero_h import (ALL_RANKS, FP32, OK, OWN, PASS_TRAIN, WEIGHT, Config, Group, P, Partial, SaveOptions,
                      StepResult, check, lib, set_fields)


class Engine(Handle):
    """settings: fields of zero_config_t, such as stage=3, dtype=libzero.FP32. own_optimizer and hooks are an Optimizer and
    Hooks of Python functions; with the first, optimizer is OWN."""
    _destroy = "zero_engine_destroy"
    _is_collective = True

    def __init__(self, comm, device, model, own_optimizer=None, hooks=None, **settings):
        self._calls = Calls(device.is_cpu)
        if own_optimizer is not None:
            settings = {"optimizer": OWN, "own_optimizer": self._calls.address(own_optimizer), **settings}
        if hooks is not None:
            settings["hooks"] = self._calls.address(hooks)
        config = Config.default(**settings)
        self._dtype, self._shapes, self._is_cpu, self._comm = config.dtype, list(model.shapes), device.is_cpu, comm
        self._stream = None  # of the unit that is acquired
        super().__init__(lambda made: lib.zero_engine_create(comm._handle, device._handle, model._handle,
                                                              byref(config), made), comm, device)

    def _check(self, status):
        """The same for calls that call the caller's functions: raises what one of them has raised."""
        raised, self._calls.raised = self._calls.raised, None
        if status != OK and raised is not None:
            raise raised
        check(status)

    @contextlib.contextmanager
    def without_functions(self):
        """In the block, libzero's calls of hooks and an optimizer do nothing: on the way through a pass that failed."""
        self._calls.muted = True
        try:
            yield
        finally:
            self._calls.muted = False

    def init_parameters(self):
        check(lib.zero_init_parameters(self._handle))

    def load_weights(self, directory):
        check(lib.zero_load_weights(self._handle, os.fsencode(directory)))

    def load_weights_partial(self, directory):
        """The same where tensors may be missing. Returns n_loaded, n_kept and n_ignored."""
        partial = Partial()
        check(lib.zero_load_weights_partial(self._handle, os.fsencode(directory), byref(partial)))
        return partial

    def shape(self, tensor):
        return self._shapes[tensor]

    def get_tensor(self, tensor, array=WEIGHT, root=ALL_RANKS):
        """Returns one array of a tensor whole, in fp32, on every rank, or on rank root and None elsewhere."""
        data = numpy.empty(self._shapes[tensor], numpy.float32) if root in (ALL_RANKS, self._comm.rank) else None
        check(lib.zero_get_tensor(self._handle, tensor, array, root, data.ctypes.data if data is not None else None))
        return data

    def set_tensor(self, tensor, data, array=WEIGHT, root=ALL_RANKS):
        """Sets one array of a tensor to `data`: the same on every rank, or with a root that rank's (elsewhere None)."""
        if root in (ALL_RANKS, self._comm.rank):
            data = numpy.ascontiguousarray(data, numpy.float32)
            if data.shape != self._shapes[tensor]:
                raise ValueError(f"tensor {tensor} has shape {self._shapes[tensor]}, not {data.shape}")
        else:
            data = None
        check(lib.zero_set_tensor(self._handle, tensor, array, root, data.ctypes.data if data is not None else None))

    def save(self, directory, keep=0, state=None):
        """Saves a checkpoint of the step whose result was read last. state: a dict of your own for state.json. keep: so
        many checkpoints stay; 0: all."""
        save, text = P(), json.dumps(state).encode() if state is not None else None
        check(lib.zero_save_prepare(self._comm._handle, os.fsencode(directory)))
        options = SaveOptions(state_json=text, keep=keep)
        check(lib.zero_save_begin(self._handle, os.fsencode(directory), byref(options), byref(save)))
        check(lib.zero_save_end(save))

    def load(self, directory):
        """Loads a checkpoint, before the first begin. Returns its state.json, a dict: "step" and keys of your own."""
        with self._checkpoint(directory) as checkpoint:
            check(lib.zero_load(self._handle, checkpoint))
            return json.loads(lib.zero_checkpoint_state(checkpoint))

    def load_partial(self, directory):
        """The same for a model whose tensors differ from the checkpoint's. Returns state.json, and n_loaded, n_kept and
        n_ignored."""
        partial = Partial()
        with self._checkpoint(directory) as checkpoint:
            check(lib.zero_load_partial(self._handle, checkpoint, byref(partial)))
            return json.loads(lib.zero_checkpoint_state(checkpoint)), partial

    @contextlib.contextmanager
    def _checkpoint(self, directory):
        checkpoint = P()
        check(lib.zero_checkpoint_open(self._comm._handle, os.fsencode(directory), byref(checkpoint)))
        try:
            yield checkpoint
        finally:
            lib.zero_checkpoint_close(checkpoint)

    def begin(self, kind=PASS_TRAIN, stream=None):
        check(lib.zero_begin(self._handle, kind, stream))

    def acquire(self, unit, stream=None):
        self._stream = stream
        check(lib.zero_acquire(self._handle, unit, stream))

    def release(self, unit, stream=None):
        check(lib.zero_release(self._handle, unit, stream))

    def grad_ready(self, unit, stream=None):
        self._check(lib.zero_grad_ready(self._handle, unit, stream))

    @contextlib.contextmanager
    def forward(self, unit, stream=None):
        """Acquires a unit for the block, in forward."""
        self.acquire(unit, stream)
        yield
        self.release(unit, stream)

    @contextlib.contextmanager
    def backward(self, unit, stream=None):
        """The same in backward; the block writes the gradients."""
        self.acquire(unit, stream)
        yield
        self.grad_ready(unit, stream)

    def unused(self, unit, stream=None):
        """In the place of forward or backward: this rank does not use the unit."""
        self._check(lib.zero_unused(self._handle, unit, stream))

    def param_address(self, tensor):
        return lib.zero_param(self._handle, tensor)

    def grad_address(self, tensor):
        """Returns address, dtype, and whether to add to what is there."""
        grad = lib.zero_grad(self._handle, tensor)
        return grad.data, grad.dtype, grad.accumulate

    def param(self, tensor):
        """Returns the acquired tensor, to be read only: an array of NumPy's, in bf16 of ml_dtypes.bfloat16; on a GPU a
        DeviceArray."""
        view = self._view(self.param_address(tensor), self._dtype, tensor, "is not in the unit that is acquired")
        if self._is_cpu:
            view.flags.writeable = False
        return view

    def param_fp8(self, tensor):
        """Returns the acquired tensor's bytes in E4M3 and the four numbers of its zero_fp8_scales_t, as arrays like
        param's: an element is the value of its byte times scales[0]."""
        param = lib.zero_param_fp8(self._handle, tensor)
        is_absent = "is not in the unit that is acquired, or not gathered in fp8"
        views = (self._view(param.data, UINT8, tensor, is_absent),
                 view_of(param.scales, FP32, (4,), self._is_cpu, self._stream))
        for view in views if self._is_cpu else ():
            view.flags.writeable = False
        return views

    def grad(self, tensor):
        """Returns where to write the gradient, as an array like param's; grad_address says whether to add."""
        address, dtype, _ = self.grad_address(tensor)
        return self._view(address, dtype, tensor, "has no gradient here: it is frozen, or not in the unit that is acquired "
                                                  "in backward")

    def _view(self, address, dtype, tensor, is_absent):
        if not address:
            raise ValueError(f"tensor {tensor} {is_absent}")
        return view_of(address, dtype, self._shapes[tensor], self._is_cpu, self._stream)

    def loss_scale_address(self):
        return lib.zero_loss_scale(self._handle)

    def set_lr(self, lr):
        """For update=UPDATE_IN_BACKWARD, before the step's last begin; step must then get the same."""
        check(lib.zero_set_lr(self._handle, lr))

    def step(self, lr, loss=None, stream=None, loss_address=None):
        """loss: this rank's share, or loss_address of a double in device memory, which must stay until the result."""
        if loss is not None:
            self._loss = c_double(loss)
            loss_address = ctypes.addressof(self._loss)
        self._check(lib.zero_step(self._handle, lr, loss_address, stream))

    def wait(self):
        result = StepResult()
        check(lib.zero_step_wait(self._handle, byref(result)))
        return result

    def set_micro_steps(self, micro_steps):
        check(lib.zero_set_micro_steps(self._handle, micro_steps))

    def group(self, tensor):
        """Returns the settings that the next step takes for one tensor."""
        group = Group()
        check(lib.zero_get_group(self._handle, tensor, byref(group)))
        return group

    def set_group(self, tensor, **settings):
        """Changes settings of one tensor: fields of zero_group_t, such as lr_scale=0.1. Without any, takes all back."""
        group = self.group(tensor)
        set_fields(group, "zero_group_t", settings)
        check(lib.zero_set_group(self._handle, tensor, byref(group) if settings else None))

    def cancel(self):
        check(lib.zero_cancel(self._handle))
