"""zero.h by ctypes: its numbers, structs and functions, and the exception for a call that fails."""

import ctypes
import ctypes.util
import functools
import os
from ctypes import (POINTER, byref, c_bool, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint8, c_uint32,
                    c_uint64, c_void_p)

COMM_AUTO, COMM_MPI, COMM_NCCL = range(3)
DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_CUDA_SHARED = range(4)
INIT_ZEROS, INIT_ONES, INIT_NORMAL = range(3)
FP32, BF16, FP16 = range(3)
ADAMW, SGD, NESTEROV, LION, OWN, MUON, ADAMW8BIT = range(7)
UPDATE_IN_STEP, UPDATE_IN_BACKWARD = range(2)
PASS_TRAIN, PASS_EVAL, PASS_INPUT_GRAD = range(3)
WEIGHT, M, V, GRAD = range(4)
ALL_RANKS = -1

OK, ERROR_ARGUMENT, ERROR_PEER = 0, 1, 10
MAX_DIMS = 4


_WHOLE = {c_int, c_uint64, c_size_t}
_KINDS = {c_float: "a number", c_int: "a whole number, or one of libzero's constants", c_bool: "True or False"}


def plain(value):
    """Returns the number or text of one of ctypes's objects, such as c_int(3), and everything else as it is."""
    return value.value if isinstance(value, ctypes._SimpleCData) else value


class Int:
    """An argument of C's type int. ctypes takes the last bits of a larger number, and makes an ArgumentError of what
    from_param raises."""
    @staticmethod
    def from_param(value):
        value = plain(value)
        number = c_int(value)
        if number.value != value:
            raise ValueError(f"{value} does not fit into C's int")
        return number


class Text:
    """An argument that is a text of C's, which ends at the first byte 0."""
    @staticmethod
    def from_param(value):
        return c_char_p(text_of(plain(value)))


def text_of(value):
    """Returns bytes for C: they must not have a byte 0, which would end the text."""
    if b"\0" in value:
        raise ValueError(f"{value} has a null character")
    return value


def set_fields(struct, name, settings):
    """Sets fields of a struct that zero.h calls `name`. Raises TypeError for a field that there is not, and for a value of
    another type, and ValueError for a number that does not fit."""
    types = dict(struct._fields_)
    for field, value in settings.items():
        value = plain(value)
        if field not in types:
            raise TypeError(f"{name} has no field {field}")
        try:
            if types[field] is c_bool and value not in (True, False):
                raise TypeError("no truth")
            setattr(struct, field, value)
        except TypeError as error:
            kind = _KINDS.get(types[field], "a whole number")
            raise TypeError(f"{field} is {value!r}, but {name}.{field} is {kind}") from error
        if types[field] in _WHOLE and getattr(struct, field) != value:  # ctypes takes the last bits
            raise ValueError(f"{field} is {value!r}, which does not fit into {name}.{field}")


class TensorDesc(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("n_dims", c_int), ("shape", c_int64 * MAX_DIMS), ("init", c_int),
                ("init_std", c_float), ("decay", c_bool), ("packed", c_bool), ("fp8", c_bool),
                ("frozen", c_bool), ("hidden_matrix", c_bool), ("not_saved", c_bool),
                ("frozen_fp8", c_bool), ("reserved", c_uint8 * 33)]


class Config(ctypes.Structure):
    """zero_config_t; Config.default() has the defaults."""
    _fields_ = [("struct_size", c_size_t),
                ("stage", c_int), ("dtype", c_int), ("micro_steps", c_int), ("prefetch", c_int), ("keep", c_int),
                ("overlap", c_bool), ("reduce_every_micro_step", c_bool), ("nccl_reduction", c_bool),
                ("shard_group", c_int), ("gather_fp8", c_bool), ("seed", c_uint64), ("optimizer", c_int),
                ("own_optimizer", c_void_p), ("hooks", c_void_p), ("beta1", c_float), ("beta2", c_float),
                ("eps", c_float), ("weight_decay", c_float), ("momentum", c_float),
                ("muon_momentum", c_float), ("muon_steps", c_int),
                ("grad_clip", c_float),
                ("max_skipped_steps", c_int), ("initial_loss_scale", c_float), ("loss_scale_window", c_int),
                ("loss_scale_hysteresis", c_int), ("offload", c_bool), ("offload_ratio", c_float),
                ("offload_update", c_int), ("offload_buffer_bytes", c_size_t), ("offload_threads", c_int),
                ("offload_ram", c_float), ("staging_bytes", c_size_t), ("user_bytes", c_size_t), ("check", c_bool),
                ("forward_only", c_bool), ("unused", c_uint8 * 2), ("offload_params", c_float),
                ("user_pinned_bytes", c_size_t), ("update", c_int), ("gradients", c_int),
                ("offload_grads", c_int), ("reserved", c_uint8 * 4)]

    @classmethod
    def default(cls, **settings):
        """Returns the defaults with some fields set."""
        config = cls()
        check(lib.zero_config_init(byref(config), ctypes.sizeof(config)))
        set_fields(config, "zero_config_t", settings)
        return config


class Grad(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("accumulate", c_bool)]


class Fp8Param(ctypes.Structure):
    """zero_fp8_param_t."""
    _fields_ = [("data", c_void_p), ("scales", c_void_p)]


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
                ("exposed_host_ms", c_double), ("pcie_bytes", c_uint64), ("reserved", c_uint64 * 2)]


class _Library:
    """libzero.so, loaded at the first use of one of its functions, not by import: it brings the system's NCCL and CUDA
    runtime, of which a process has those that are loaded first, and torch may need the newer ones that it brings."""

    def __init__(self):
        self._prototypes = {}

    def declare(self, restype, **functions):
        self._prototypes.update({"zero_" + name: (restype, argtypes) for name, argtypes in functions.items()})

    @functools.cached_property
    def _loaded(self):
        path = os.environ.get("LIBZERO") or ctypes.util.find_library("zero") or "libzero.so.0"
        try:
            # Open MPI's plug-ins look for its symbols among the process's.
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            if not (str(error).startswith(f"{path}: ") and "No such file" in str(error)):
                raise  # it is there, and something else is wrong, such as a library that it needs
            raise OSError("%s: install libzero (make install), or name its libzero.so in the environment variable LIBZERO"
                          % error) from None

    def __getattr__(self, name):
        """Is called once for each function, which then is an attribute."""
        if not name.startswith("zero_"):
            raise AttributeError(name)
        function = getattr(self._loaded, name)
        if name in self._prototypes:
            function.restype, function.argtypes = self._prototypes[name]
        setattr(self, name, function)
        return function


lib = _Library()
P = c_void_p

lib.declare(c_char_p, version=[], last_error=[], status_name=[Int], status_text=[Int], comm_name=[P],
            checkpoint_state=[P])
lib.declare(c_int, comm_create=[Int, POINTER(P)], comm_create_from=[Int, P, POINTER(P)],
            comm_create_from_f=[Int, Int, POINTER(P)], comm_sum=[P, POINTER(c_double), c_size_t], comm_rank=[P], comm_size=[P], comm_local_rank=[P],
            comm_local_size=[P], comm_barrier=[P],
            comm_agree=[P, Int], device_create=[Int, P, POINTER(P)], model_create=[POINTER(P)],
            model_add_unit=[P, Text, POINTER(c_int)], config_init=[POINTER(Config), c_size_t],
            model_add_tensor=[P, Int, POINTER(TensorDesc), POINTER(c_int)], model_share_tensor=[P, Int, Int],
            engine_create=[P, P, P, POINTER(Config), POINTER(P)], init_parameters=[P], load_weights=[P, Text],
            load_weights_partial=[P, Text, POINTER(Partial)],
            get_tensor=[P, Int, Int, Int, P], set_tensor=[P, Int, Int, Int, P], begin=[P, Int, P],
            acquire=[P, Int, P], release=[P, Int, P], unused=[P, Int, P], grad_ready=[P, Int, P],
            set_lr=[P, c_float], step=[P, c_float, P, P], step_wait=[P, POINTER(StepResult)], set_micro_steps=[P, Int],
            set_group=[P, Int, POINTER(Group)], get_group=[P, Int, POINTER(Group)],
            cancel=[P], device_get_type=[P], save_prepare=[P, Text],
            save_begin=[P, Text, POINTER(SaveOptions), POINTER(P)], save_end=[P],
            checkpoint_open=[P, Text, POINTER(P)], load=[P, P], load_partial=[P, P, POINTER(Partial)])
lib.declare(None, comm_destroy=[P], comm_abort=[P, Int], device_destroy=[P], model_destroy=[P], engine_destroy=[P],
            checkpoint_close=[P])
lib.declare(P, param=[P, Int], loss_scale=[P])
lib.declare(Grad, grad=[P, Int])
lib.declare(Fp8Param, param_fp8=[P, Int])


class Error(RuntimeError):
    """A call failed. status: its number; the text is the line that was logged."""

    def __init__(self, status):
        line = lib.zero_last_error() or lib.zero_status_text(status)
        super().__init__(f"{lib.zero_status_name(status).decode()}: {line.decode()}")
        self.status = status


def check(status):
    if status != OK:
        raise Error(status)
