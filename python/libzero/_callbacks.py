"""Functions of the caller's that libzero calls in a step: an optimizer, and hooks.

libzero calls them from within Engine.grad_ready, unused and step. An exception that leaves one ends that call as a status,
as in C, and Engine raises it again."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_float, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

from ._device_array import UINT32, UINT64, view_of
from ._objects import within_call
from ._zero_h import ERROR_ARGUMENT, FP32, OK, set_fields, text_of


class _Update(Structure):
    """zero_own_update_t."""
    _fields_ = [("tensor", c_int), ("first", c_uint64), ("n_elems", c_size_t), ("weight", c_void_p), ("m", c_void_p),
                ("v", c_void_p), ("grad", c_void_p), ("lr", c_float), ("decay", c_float), ("grad_scale", c_void_p),
                ("step", c_void_p), ("skip", c_void_p), ("direction", c_void_p)]
    arrays = {"weight": FP32, "m": FP32, "v": FP32, "grad": FP32, "direction": FP32}
    scalars = {"grad_scale": FP32, "step": UINT64, "skip": UINT32}
    values = ("tensor", "first", "lr", "decay")

    def shape(self):
        return (self.n_elems,)


class _Whole(Structure):
    """zero_own_whole_t."""
    _fields_ = [("tensor", c_int), ("rows", c_uint64), ("cols", c_uint64), ("direction", c_void_p),
                ("grad_scale", c_void_p), ("step", c_void_p), ("skip", c_void_p)]
    arrays, scalars, values = {"direction": FP32}, _Update.scalars, ("tensor",)

    def shape(self):
        return (self.rows, self.cols)


class _Reduced(Structure):
    """zero_reduced_t."""
    _fields_ = [("tensor", c_int), ("first", c_uint64), ("n_elems", c_size_t), ("grad", c_void_p),
                ("loss_scale", c_void_p), ("step", c_uint64)]
    arrays, scalars, values = {"grad": FP32}, {"loss_scale": FP32}, ("tensor", "first", "step")

    def shape(self):
        return (self.n_elems,)


class Run:
    """What a function gets: elements [first, first + n) of a tensor, or a whole matrix; the names are those of zero.h's
    structs. Arrays are views of libzero's memory that end with the call: NumPy's on CPUs, where grad_scale, step, skip and
    loss_scale are numbers; on a GPU all are DeviceArrays, to be used in `stream`."""

    def __init__(self, struct, is_cpu, stream):
        self.stream = stream
        for name in struct.values:
            setattr(self, name, getattr(struct, name))
        for name, dtype in struct.arrays.items():
            address = getattr(struct, name)
            setattr(self, name, view_of(address, dtype, struct.shape(), is_cpu, stream) if address else None)
        for name, dtype in struct.scalars.items():
            array = view_of(getattr(struct, name), dtype, (1,), is_cpu, stream)
            setattr(self, name, array[0] if is_cpu else array)


def _function(struct):
    return CFUNCTYPE(c_int, c_void_p, POINTER(struct), c_void_p)


class _OwnOptimizer(Structure):
    """zero_own_optimizer_t."""
    _fields_ = [("name", c_char_p), ("n_arrays", c_int), ("update", _function(_Update)), ("user", c_void_p),
                ("prepare", _function(_Update)), ("whole", _function(_Whole)), ("reserved", c_uint8 * 16)]


class _Hooks(Structure):
    """zero_hooks_t."""
    _fields_ = [("reduced", _function(_Reduced)), ("updated", _function(_Update)), ("user", c_void_p),
                ("reserved", c_uint8 * 32)]


class Optimizer:
    """An optimizer of your own, as zero.h's zero_own_optimizer_t: Engine(..., own_optimizer=Optimizer("adagrad", update)).
    update(run) changes run.weight and its state, run.m (and run.v with n_arrays=2), in place, unless run.skip."""

    def __init__(self, name, update, n_arrays=1, prepare=None, whole=None):
        self.name, self.n_arrays, self.update, self.prepare, self.whole = name, n_arrays, update, prepare, whole

    def _struct(self, calls):
        struct = _OwnOptimizer(text_of(self.name.encode()), 0, calls.wrap(_Update, self.update), None,
                               calls.wrap(_Update, self.prepare), calls.wrap(_Whole, self.whole))
        set_fields(struct, "zero_own_optimizer_t", {"n_arrays": self.n_arrays})
        return struct


class Hooks:
    """zero.h's zero_hooks_t: reduced(run) gets each reduced gradient, run.grad, before the norm; updated(run) each weight
    after its update. Engine(..., hooks=Hooks(reduced=add_noise))."""

    def __init__(self, reduced=None, updated=None):
        self.reduced, self.updated = reduced, updated

    def _struct(self, calls):
        return _Hooks(calls.wrap(_Reduced, self.reduced), calls.wrap(_Update, self.updated))


class Calls:
    """One engine's functions, as C's, and what the last of them has raised."""

    def __init__(self, is_cpu):
        self._is_cpu, self._kept, self.raised, self.muted = is_cpu, [], None, False

    def address(self, functions):
        """Returns the address of an Optimizer's or of Hooks' struct, which lives as long as this object."""
        struct = functions._struct(self)
        self._kept.append(struct)
        return ctypes.addressof(struct)

    def wrap(self, struct, function):
        if function is None:
            return _function(struct)()

        def call(_, argument, stream):
            if self.muted:
                return OK
            with within_call():
                try:
                    function(Run(argument.contents, self._is_cpu, stream))
                    return OK
                except BaseException as exception:  # through C it would be lost
                    self.raised = exception
                    return ERROR_ARGUMENT

        return _function(struct)(call)
