"""Views of libzero's memory: NumPy's arrays on CPUs; in device memory arrays for other packages, by DLPack (torch, cupy,
jax) and CUDA's array interface (cupy, numba).

See dlpack.h of DLPack 0.8, and "CUDA Array Interface (Version 3)" in Numba's manual.
"""

import ctypes
import functools
import math
from ctypes import byref, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p

import numpy

from ._zero_h import BF16, FP16, FP32

_CPU, _CUDA = 1, 2  # kDLCPU, kDLCUDA
UINT8, UINT32, UINT64 = "u1", "u4", "u8"  # in addition to zero_dtype_t's
# Name; kDLFloat, kDLBfloat or kDLUInt; bits.
_TYPES = {FP32: ("float32", 2, 32), FP16: ("float16", 2, 16), BF16: ("bfloat16", 4, 16), UINT8: ("uint8", 1, 8),
          UINT32: ("uint32", 1, 32), UINT64: ("uint64", 1, 64)}
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [("data", c_void_p), ("device_type", c_int), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", c_void_p), ("strides", c_void_p), ("byte_offset", c_uint64)]


class _Managed(ctypes.Structure):  # DLManagedTensor
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


_NAME = b"dltensor"
_alive = {}  # address of a _Managed: it and its shape, until the consumer deletes it


def _python(name, result, *arguments):
    """A function of Python's own, with a prototype of ours: attributes of ctypes.pythonapi are shared with other packages."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new_capsule = _python("PyCapsule_New", ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)
_is_capsule = _python("PyCapsule_IsValid", c_int, c_void_p, ctypes.c_char_p)
_pointer_of = _python("PyCapsule_GetPointer", c_void_p, c_void_p, ctypes.c_char_p)
_keep = _python("Py_IncRef", None, ctypes.py_object)


@ctypes.CFUNCTYPE(None, c_void_p)
def _delete(managed):
    _alive.pop(managed, None)


@ctypes.CFUNCTYPE(None, c_void_p)
def _drop_capsule(capsule):
    if _is_capsule(capsule, _NAME):  # nobody took it, else it has another name
        _alive.pop(_pointer_of(capsule, _NAME), None)


for _needed in (_delete, _drop_capsule, _NAME):  # by capsules, which may outlive this module
    _keep(_needed)


@functools.cache
def _driver():
    return ctypes.CDLL("libcuda.so.1")


def _cuda(name, *args):
    status = getattr(_driver(), name)(*args)
    if status != 0:
        raise RuntimeError(f"{name}: CUDA error {status}")


class DeviceArray:
    """A tensor of libzero's in device memory, valid until its unit's block ends. torch.from_dlpack, cupy.from_dlpack and
    the like make arrays of theirs of it without a copy. What they queue comes after what libzero has queued in `stream`;
    give grad_ready the stream in which they write. Parameters are to be read only."""

    def __init__(self, address, dtype, shape, stream=None, is_cpu=False):
        self._address, self._type, self.shape, self._stream = address, dtype, tuple(shape), stream
        ordinal = c_int(0)
        if not is_cpu:
            _cuda("cuPointerGetAttribute", byref(ordinal), _DEVICE_ORDINAL, c_void_p(address))
        self._device = (_CPU if is_cpu else _CUDA, ordinal.value)

    dtype = property(lambda self: _TYPES[self._type][0])
    size = property(lambda self: math.prod(self.shape))

    def __array__(self, *_, **__):
        """NumPy would make an array of one object of it."""
        raise TypeError(f"{self!r} is no array of NumPy's: take torch.from_dlpack or cupy.from_dlpack")

    def __repr__(self):
        return f"<libzero tensor {self.dtype}{list(self.shape)} at {self._address:#x}>"

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """max_version is not needed: every consumer takes the capsule of DLPack 0.8."""
        if copy or dl_device not in (None, self._device):
            raise BufferError("libzero's memory is not copied: take it where it is")
        if self._device[0] == _CUDA and stream != -1:
            self._order(stream)
        _, code, bits = _TYPES[self._type]
        shape = (c_int64 * len(self.shape))(*self.shape)
        managed = _Managed(_Tensor(self._address, *self._device, len(self.shape), code, bits, 1, ctypes.addressof(shape), None, 0),
                           None, ctypes.cast(_delete, c_void_p).value)
        address = ctypes.addressof(managed)
        _alive[address] = managed, shape
        return _new_capsule(address, _NAME, ctypes.cast(_drop_capsule, c_void_p))

    def _order(self, consumer):
        """Makes the consumer's stream (None or 1: the default stream) wait for ours."""
        ours, theirs = self._stream or 1, consumer or 1
        if ours == theirs:
            return
        event = c_void_p()
        _cuda("cuEventCreate", byref(event), _NO_TIMING)
        _cuda("cuEventRecord", event, c_void_p(ours))
        _cuda("cuStreamWaitEvent", c_void_p(theirs), event, 0)
        _cuda("cuEventDestroy_v2", event)

    @property
    def __cuda_array_interface__(self):
        if self._device[0] != _CUDA or self._type == BF16:
            raise AttributeError(f"CUDA's array interface has no {self.dtype} on this device: use DLPack")
        types = {FP32: "<f4", FP16: "<f2", UINT8: "|u1", UINT32: "<u4", UINT64: "<u8"}
        return {"shape": self.shape, "typestr": types[self._type], "data": (self._address, False), "strides": None,
                "stream": self._stream or 1, "version": 3}


def _numpy_type(dtype):
    if dtype != BF16:
        return numpy.dtype(_TYPES[dtype][0])
    try:
        from ml_dtypes import bfloat16
    except ImportError as error:
        raise ImportError("NumPy has no bfloat16 of its own: install the package ml_dtypes (pip install ml_dtypes), or "
                          "create the engine with dtype=libzero.FP32") from error
    return numpy.dtype(bfloat16)


def view_of(address, dtype, shape, is_cpu, stream):
    """Returns libzero's memory as an array whose elements are numbers of this dtype: NumPy's, or a DeviceArray."""
    if not is_cpu:
        return DeviceArray(address, dtype, shape, stream)
    kind = _numpy_type(dtype)
    memory = (ctypes.c_char * (math.prod(shape) * kind.itemsize)).from_address(address)
    return numpy.frombuffer(memory, kind).reshape(shape)
