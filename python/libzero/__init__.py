"""libzero for Python: zero.h by ctypes, with NumPy arrays on CPUs.

    comm = libzero.Comm()
    model = libzero.Model()
    block = model.add_unit("block")
    weight = model.add_tensor(block, "weight", (512, 512), init=libzero.INIT_NORMAL, init_std=0.02)
    engine = libzero.Engine(comm, libzero.Device(comm), model, stage=3, dtype=libzero.FP32)
    engine.init_parameters()
    engine.begin()
    with engine.forward(block):
        use(engine.param(weight))
    with engine.backward(block):
        engine.grad(weight)[:] = ...
    engine.step(lr=0.01)
    result = engine.wait()

What a call does, and which calls every rank must make, is in zero.h. A call that fails raises Error, with the status
and the line that says why. Arrays of param and grad are views of libzero's memory, which end with the unit's block.
An exception that leaves a block leaves the pass unfinished: agree with the other ranks (Comm.agree), and all call
Engine.cancel. libzero.torch trains a PyTorch module, on CPUs and GPUs.

libzero.so is the file that LIBZERO names, else the installed one.
"""

import contextlib
import ctypes
import ctypes.util
import json
import os
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

import numpy

COMM_AUTO, COMM_MPI, COMM_NCCL = range(3)
DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_CUDA_SHARED = range(4)
INIT_ZEROS, INIT_ONES, INIT_NORMAL = range(3)
FP32, BF16, FP16 = range(3)
ADAMW, SGD, NESTEROV, LION, OWN, MUON = range(6)
PASS_TRAIN, PASS_EVAL, PASS_INPUT_GRAD = range(3)
WEIGHT, M, V, GRAD = range(4)
ALL_RANKS = -1

_OK, _ERROR_ARGUMENT, _ERROR_PEER = 0, 1, 10
_MAX_DIMS = 4


class TensorDesc(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("n_dims", c_int), ("shape", c_int64 * _MAX_DIMS), ("init", c_int),
                ("init_std", c_float), ("decay", c_bool), ("packed", c_bool), ("fp8", c_bool),
                ("frozen", c_bool), ("hidden_matrix", c_bool), ("reserved", c_uint8 * 35)]


class Config(ctypes.Structure):
    """zero_config_t; Config.default() has the defaults."""
    _fields_ = [("struct_size", c_size_t),
                ("stage", c_int), ("dtype", c_int), ("micro_steps", c_int), ("prefetch", c_int), ("keep", c_int),
                ("overlap", c_bool), ("reduce_every_micro_step", c_bool), ("nccl_reduction", c_bool),
                ("shard_group", c_int), ("gather_fp8", c_bool), ("seed", c_uint64), ("optimizer", c_int),
                ("own_optimizer", c_void_p), ("hooks", c_void_p), ("beta1", c_float), ("beta2", c_float), ("eps", c_float), ("weight_decay", c_float), ("momentum", c_float),
                ("muon_momentum", c_float), ("muon_steps", c_int),
                ("grad_clip", c_float),
                ("max_skipped_steps", c_int), ("initial_loss_scale", c_float), ("loss_scale_window", c_int),
                ("loss_scale_hysteresis", c_int), ("offload", c_bool), ("offload_ratio", c_float),
                ("offload_update", c_int), ("offload_buffer_bytes", c_size_t), ("offload_threads", c_int),
                ("offload_ram", c_float), ("staging_bytes", c_size_t), ("user_bytes", c_size_t), ("check", c_bool),
                ("forward_only", c_bool), ("reserved", c_uint8 * 6)]

    @classmethod
    def default(cls, **settings):
        """Returns the defaults with some fields set."""
        config = cls()
        _check(_lib.zero_config_init(byref(config), ctypes.sizeof(config)))
        for name, value in settings.items():
            if name not in dict(cls._fields_):
                raise TypeError(f"zero_config_t has no field {name}")
            setattr(config, name, value)
        return config


class Grad(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("accumulate", c_bool)]


class Partial(ctypes.Structure):
    """zero_partial_t."""
    _fields_ = [("n_loaded", c_int), ("n_kept", c_int), ("n_ignored", c_int), ("reserved", c_int * 5)]


class Group(ctypes.Structure):
    """zero_group_t."""
    _fields_ = [("lr_scale", c_float), ("weight_decay", c_float), ("beta1", c_float), ("beta2", c_float),
                ("eps", c_float), ("momentum", c_float), ("reserved", c_uint8 * 40)]


class SaveOptions(ctypes.Structure):
    """zero_save_options_t."""
    _fields_ = [("config_json", c_char_p), ("state_json", c_char_p), ("keep", c_int), ("max_file_bytes", c_uint64),
                ("background", c_bool), ("per_host", c_bool), ("files", c_void_p), ("n_files", c_int),
                ("reserved", c_uint8 * 36)]


class StepResult(ctypes.Structure):
    """zero_step_result_t."""
    _fields_ = [("step", c_uint64), ("loss", c_float), ("grad_norm", c_float), ("loss_scale", c_float),
                ("skipped", c_bool), ("notice", c_uint32), ("step_ms", c_double), ("exposed_comm_ms", c_double),
                ("reserved", c_uint64 * 4)]


def _load():
    path = os.environ.get("LIBZERO") or ctypes.util.find_library("zero") or "libzero.so.0"
    # Open MPI's plug-ins look for its symbols among the process's.
    return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


_lib = _load()
_P = c_void_p


def _declare(restype, **functions):
    for name, argtypes in functions.items():
        function = getattr(_lib, "zero_" + name)
        function.restype, function.argtypes = restype, argtypes


_declare(c_char_p, version=[], last_error=[], status_name=[c_int], status_text=[c_int], comm_name=[_P],
         checkpoint_state=[_P])
_declare(c_int, comm_create=[c_int, POINTER(_P)], comm_rank=[_P], comm_size=[_P], comm_local_rank=[_P],
         comm_local_size=[_P], comm_barrier=[_P],
         comm_agree=[_P, c_int], device_create=[c_int, _P, POINTER(_P)], model_create=[POINTER(_P)],
         model_add_unit=[_P, c_char_p, POINTER(c_int)], config_init=[POINTER(Config), c_size_t],
         model_add_tensor=[_P, c_int, POINTER(TensorDesc), POINTER(c_int)], model_share_tensor=[_P, c_int, c_int],
         engine_create=[_P, _P, _P, POINTER(Config), POINTER(_P)], init_parameters=[_P], load_weights=[_P, c_char_p],
         load_weights_partial=[_P, c_char_p, POINTER(Partial)],
         get_tensor=[_P, c_int, c_int, c_int, _P], set_tensor=[_P, c_int, c_int, c_int, _P], begin=[_P, c_int, _P],
         acquire=[_P, c_int, _P], release=[_P, c_int, _P], unused=[_P, c_int, _P], grad_ready=[_P, c_int, _P],
         step=[_P, c_float, _P, _P], step_wait=[_P, POINTER(StepResult)], set_micro_steps=[_P, c_int],
         set_group=[_P, c_int, POINTER(Group)], get_group=[_P, c_int, POINTER(Group)],
         cancel=[_P], device_get_type=[_P], save_prepare=[_P, c_char_p],
         save_begin=[_P, c_char_p, POINTER(SaveOptions), POINTER(_P)], save_end=[_P],
         checkpoint_open=[_P, c_char_p, POINTER(_P)], load=[_P, _P])
_declare(None, comm_destroy=[_P], comm_abort=[_P, c_int], device_destroy=[_P], model_destroy=[_P], engine_destroy=[_P],
         checkpoint_close=[_P])
_declare(_P, param=[_P, c_int], loss_scale=[_P])
_declare(Grad, grad=[_P, c_int])

version = _lib.zero_version().decode()


class Error(RuntimeError):
    """A call failed. status: its number; the text is the line that was logged."""

    def __init__(self, status):
        line = _lib.zero_last_error() or _lib.zero_status_text(status)
        super().__init__(f"{_lib.zero_status_name(status).decode()}: {line.decode()}")
        self.status = status


def _check(status):
    if status != _OK:
        raise Error(status)


class _Handle:
    """Owns an object of zero.h and keeps what it uses."""
    _destroy = None

    def __init__(self, create, *uses):
        self._handle, self._uses = _P(), uses
        _check(create(byref(self._handle)))

    def close(self):
        """Destroys the object; collective where zero.h says so. Without it, garbage collection does."""
        handle, self._handle = self._handle, _P()
        if handle:
            getattr(_lib, self._destroy)(handle)
        self._uses = ()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()


class Comm(_Handle):
    """All ranks that mpirun started."""
    _destroy = "zero_comm_destroy"

    def __init__(self, kind=COMM_AUTO):
        super().__init__(lambda made: _lib.zero_comm_create(kind, made))

    rank = property(lambda self: _lib.zero_comm_rank(self._handle))
    size = property(lambda self: _lib.zero_comm_size(self._handle))
    local_rank = property(lambda self: _lib.zero_comm_local_rank(self._handle))  # of this host's
    local_size = property(lambda self: _lib.zero_comm_local_size(self._handle))

    def barrier(self):
        _check(_lib.zero_comm_barrier(self._handle))

    def agree(self, mine):
        """Returns whether `mine` is true on every rank."""
        status = _lib.zero_comm_agree(self._handle, _OK if mine else _ERROR_ARGUMENT)
        if status not in (_OK, _ERROR_PEER) and (mine or status != _ERROR_ARGUMENT):
            raise Error(status)
        return status == _OK

    def abort(self, exit_code):
        """Ends the whole job."""
        _lib.zero_comm_abort(self._handle, exit_code)
        os._exit(exit_code)


class Device(_Handle):
    _destroy = "zero_device_destroy"

    def __init__(self, comm, kind=DEVICE_CPU):
        super().__init__(lambda made: _lib.zero_device_create(kind, comm._handle, made), comm)

    is_cpu = property(lambda self: _lib.zero_device_get_type(self._handle) == DEVICE_CPU)


class Model(_Handle):
    _destroy = "zero_model_destroy"

    def __init__(self):
        self.shapes = []  # by tensor
        super().__init__(lambda made: _lib.zero_model_create(made))

    def add_unit(self, name):
        unit = c_int()
        _check(_lib.zero_model_add_unit(self._handle, name.encode(), byref(unit)))
        return unit.value

    def add_tensor(self, unit, name, shape, init=INIT_ZEROS, init_std=0.0, decay=False, packed=False, fp8=False,
                   frozen=False, hidden_matrix=False):
        shape = tuple(shape)
        if len(shape) > _MAX_DIMS:
            raise ValueError(f"{name} has {len(shape)} dimensions, at most {_MAX_DIMS} are possible")
        desc = TensorDesc(name.encode(), len(shape), (c_int64 * _MAX_DIMS)(*shape), init, init_std, decay, packed, fp8,
                          frozen, hidden_matrix)
        tensor = c_int()
        _check(_lib.zero_model_add_tensor(self._handle, unit, byref(desc), byref(tensor)))
        self.shapes.append(shape)
        return tensor.value

    def share_tensor(self, unit, tensor):
        _check(_lib.zero_model_share_tensor(self._handle, unit, tensor))


class Engine(_Handle):
    """settings: fields of zero_config_t, such as stage=3, dtype=libzero.FP32."""
    _destroy = "zero_engine_destroy"

    def __init__(self, comm, device, model, **settings):
        config = Config.default(**settings)
        self._dtype, self._shapes, self._is_cpu, self._comm = config.dtype, list(model.shapes), device.is_cpu, comm
        super().__init__(lambda made: _lib.zero_engine_create(comm._handle, device._handle, model._handle,
                                                              byref(config), made), comm, device)

    def init_parameters(self):
        _check(_lib.zero_init_parameters(self._handle))

    def load_weights(self, directory):
        _check(_lib.zero_load_weights(self._handle, os.fsencode(directory)))

    def load_weights_partial(self, directory):
        """The same where tensors may be missing. Returns n_loaded, n_kept and n_ignored."""
        partial = Partial()
        _check(_lib.zero_load_weights_partial(self._handle, os.fsencode(directory), byref(partial)))
        return partial

    def shape(self, tensor):
        return self._shapes[tensor]

    def get_tensor(self, tensor, array=WEIGHT, root=ALL_RANKS):
        """Returns one array of a tensor whole, in fp32, on every rank, or on rank root and None elsewhere."""
        data = numpy.empty(self._shapes[tensor], numpy.float32) if root in (ALL_RANKS, self._comm.rank) else None
        _check(_lib.zero_get_tensor(self._handle, tensor, array, root, data.ctypes.data if data is not None else None))
        return data

    def set_tensor(self, tensor, data, array=WEIGHT, root=ALL_RANKS):
        """Sets one array of a tensor to `data`: the same on every rank, or with a root that rank's (elsewhere None)."""
        if root in (ALL_RANKS, self._comm.rank):
            data = numpy.ascontiguousarray(data, numpy.float32)
            if data.shape != self._shapes[tensor]:
                raise ValueError(f"tensor {tensor} has shape {self._shapes[tensor]}, not {data.shape}")
        else:
            data = None
        _check(_lib.zero_set_tensor(self._handle, tensor, array, root, data.ctypes.data if data is not None else None))

    def save(self, directory, keep=0, state=None):
        """Saves a checkpoint of the step whose result was read last. state: a dict of your own for state.json. keep: so
        many checkpoints stay; 0: all."""
        save, text = _P(), json.dumps(state).encode() if state is not None else None
        _check(_lib.zero_save_prepare(self._comm._handle, os.fsencode(directory)))
        options = SaveOptions(state_json=text, keep=keep)
        _check(_lib.zero_save_begin(self._handle, os.fsencode(directory), byref(options), byref(save)))
        _check(_lib.zero_save_end(save))

    def load(self, directory):
        """Loads a checkpoint, before the first begin. Returns its state.json, a dict: "step" and keys of your own."""
        checkpoint = _P()
        _check(_lib.zero_checkpoint_open(self._comm._handle, os.fsencode(directory), byref(checkpoint)))
        try:
            _check(_lib.zero_load(self._handle, checkpoint))
            return json.loads(_lib.zero_checkpoint_state(checkpoint))
        finally:
            _lib.zero_checkpoint_close(checkpoint)

    def begin(self, kind=PASS_TRAIN, stream=None):
        _check(_lib.zero_begin(self._handle, kind, stream))

    def acquire(self, unit, stream=None):
        _check(_lib.zero_acquire(self._handle, unit, stream))

    def release(self, unit, stream=None):
        _check(_lib.zero_release(self._handle, unit, stream))

    def grad_ready(self, unit, stream=None):
        _check(_lib.zero_grad_ready(self._handle, unit, stream))

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
        _check(_lib.zero_unused(self._handle, unit, stream))

    def _view(self, address, dtype, tensor):
        if not address:
            raise ValueError(f"tensor {tensor} is not in the unit that is acquired")
        if not self._is_cpu:
            raise NotImplementedError("NumPy arrays are views of host memory: take param_address or grad_address")
        kind = {FP32: numpy.float32, BF16: numpy.uint16, FP16: numpy.float16}[dtype]
        shape = self._shapes[tensor]
        n_bytes = int(numpy.prod(shape)) * numpy.dtype(kind).itemsize
        return numpy.frombuffer((ctypes.c_char * n_bytes).from_address(address), kind).reshape(shape)

    def param_address(self, tensor):
        return _lib.zero_param(self._handle, tensor)

    def grad_address(self, tensor):
        """Returns address, dtype, and whether to add to what is there."""
        grad = _lib.zero_grad(self._handle, tensor)
        return grad.data, grad.dtype, grad.accumulate

    def param(self, tensor):
        """Returns the acquired tensor, to be read only; bf16 as its bits, in uint16."""
        view = self._view(self.param_address(tensor), self._dtype, tensor)
        view.flags.writeable = False
        return view

    def grad(self, tensor):
        """Returns where to write the gradient; grad_address says whether to add."""
        address, dtype, _ = self.grad_address(tensor)
        return self._view(address, dtype, tensor)

    def loss_scale_address(self):
        return _lib.zero_loss_scale(self._handle)

    def step(self, lr, loss=None, stream=None, loss_address=None):
        """loss: this rank's share, or loss_address of a double in device memory, which must stay until the result."""
        if loss is not None:
            self._loss = c_double(loss)
            loss_address = ctypes.addressof(self._loss)
        _check(_lib.zero_step(self._handle, lr, loss_address, stream))

    def wait(self):
        result = StepResult()
        _check(_lib.zero_step_wait(self._handle, byref(result)))
        return result

    def set_micro_steps(self, micro_steps):
        _check(_lib.zero_set_micro_steps(self._handle, micro_steps))

    def group(self, tensor):
        """Returns the settings that the next step takes for one tensor."""
        group = Group()
        _check(_lib.zero_get_group(self._handle, tensor, byref(group)))
        return group

    def set_group(self, tensor, **settings):
        """Changes settings of one tensor: fields of zero_group_t, such as lr_scale=0.1. Without any, takes all back."""
        group = self.group(tensor)
        for name, value in settings.items():
            if name not in dict(Group._fields_):
                raise TypeError(f"zero_group_t has no field {name}")
            setattr(group, name, value)
        _check(_lib.zero_set_group(self._handle, tensor, byref(group) if settings else None))

    def cancel(self):
        _check(_lib.zero_cancel(self._handle))
