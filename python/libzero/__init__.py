"""libzero for Python: zero.h by ctypes, with NumPy arrays on CPUs and DLPack on GPUs.

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
and the line that says why. What cannot be a value of C's is refused before: a number that does not fit, or a text with a
null character, by ValueError, and another type by TypeError, both of which for plain arguments of a call are
ctypes.ArgumentError. Arrays of param and grad are views of libzero's memory, which end with the unit's block. On a
GPU they are DeviceArrays, of which torch.from_dlpack and cupy.from_dlpack make arrays of theirs without a copy.
Comm.of has the ranks of an MPI communicator; Optimizer and Hooks are functions that an engine calls in a step.
An exception that leaves a block leaves the pass unfinished: agree with the other ranks (Comm.agree), and all call
Engine.cancel. libzero.torch trains a PyTorch module, on CPUs and GPUs.

libzero.so is the file that LIBZERO names, else the installed one. It is loaded at the first call, not by import. Import
torch, cupy and the like before that, if they are used: of NCCL a process has one, the first that is loaded, and theirs
may be newer than the system's.
"""

from ._callbacks import Hooks, Optimizer
from ._device_array import DeviceArray
from ._engine import Engine
from ._objects import Comm, Device, Model
from ._zero_h import (
    COMM_AUTO, COMM_MPI, COMM_NCCL,
    DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_CUDA_SHARED,
    INIT_ZEROS, INIT_ONES, INIT_NORMAL,
    FP32, BF16, FP16,
    ADAMW, SGD, NESTEROV, LION, OWN, MUON, ADAMW8BIT,
    UPDATE_IN_STEP, UPDATE_IN_BACKWARD,
    PASS_TRAIN, PASS_EVAL, PASS_INPUT_GRAD,
    WEIGHT, M, V, GRAD,
    ALL_RANKS, ERROR_PEER,
    TensorDesc, Config, Fp8Param, Grad, Partial, Group, SaveOptions, StepResult, Error,
    lib as _lib,
)


def __getattr__(name):
    if name == "version":  # of the library, which is loaded for it
        return _lib.zero_version().decode()
    raise AttributeError(f"module {__name__} has no attribute {name}")
