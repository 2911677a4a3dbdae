"""What an engine is made of: ranks, a device and a model."""

import atexit
import os
import sys
import weakref
from ctypes import byref, c_double, c_int, c_int64

from ._zero_h import (COMM_AUTO, DEVICE_CPU, ERROR_ARGUMENT, ERROR_PEER, INIT_ZEROS, MAX_DIMS, OK, P, Error, TensorDesc,
                      check, lib)


_open = {}  # handles by id, as weak references, the oldest first
_unwound = []  # handles whose block an exception has left
_fails = False  # whether the program is ending with an exception or an exit code


class _Exit(SystemExit):
    """What sys.exit raises. When it ends the program, and only then, Python reads its code from outside any frame."""

    @property
    def code(self):
        global _fails
        code = SystemExit.code.__get__(self)
        try:
            sys._getframe(1)
        except ValueError:
            _fails = code not in (None, 0)
        return code


def _exit(status=None, /):
    """Ends the program, as Python's sys.exit does, by SystemExit."""
    raise _Exit(status)


class Handle:
    """Owns an object of zero.h and keeps what it uses. To destroy one may wait for all ranks, so behind a failure of this
    rank none is: mpirun then ends the others."""
    _destroy = None

    def __init__(self, create, *uses):
        sys.exit = _exit
        self._handle, self._uses = P(), uses
        check(create(byref(self._handle)))
        _open[id(self)] = weakref.ref(self)

    def close(self):
        """Destroys the object; collective where zero.h says so. Without it, garbage collection does, or the end of the
        program."""
        handle, self._handle = self._handle, P()
        _open.pop(id(self), None)
        if handle and not _fails:
            getattr(lib, self._destroy)(handle)
        self._uses = ()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        """An exception may be this rank's alone: then the object stays until close() or the end of the program."""
        if kind is None:
            self.close()
        else:
            _unwound.append(self)

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()


@atexit.register
def _close_all():
    """Closes what is left, since mpirun counts a rank as failed that ends without MPI_Finalize."""
    global _fails
    _fails = _fails or hasattr(sys, "last_type")
    for reference in reversed(list(_open.values())):
        handle = reference()
        if handle is not None:
            handle.close()


class Comm(Handle):
    """All ranks that mpirun started. Comm.of has others."""
    _destroy = "zero_comm_destroy"

    def __init__(self, kind=COMM_AUTO):
        super().__init__(lambda made: lib.zero_comm_create(kind, made))

    @classmethod
    def of(cls, mpi_comm, kind=COMM_AUTO):
        """The ranks of a communicator of mpi4py's, or of Fortran's handle (py2f(), MPI_Comm_c2f); None: this process
        alone. mpi4py must have been built with the Open MPI that libzero uses."""
        comm = cls.__new__(cls)
        if mpi_comm is None:
            Handle.__init__(comm, lambda made: lib.zero_comm_create_from(kind, None, made))
        else:
            handle = mpi_comm.py2f() if hasattr(mpi_comm, "py2f") else mpi_comm
            Handle.__init__(comm, lambda made: lib.zero_comm_create_from_f(kind, handle, made))
        return comm

    rank = property(lambda self: lib.zero_comm_rank(self._handle))
    size = property(lambda self: lib.zero_comm_size(self._handle))
    local_rank = property(lambda self: lib.zero_comm_local_rank(self._handle))  # of this host's
    local_size = property(lambda self: lib.zero_comm_local_size(self._handle))

    def barrier(self):
        check(lib.zero_comm_barrier(self._handle))

    def sum(self, values):
        """Returns the sums over ranks of a list of numbers: the same bits on every rank."""
        data = (c_double * len(values))(*values)
        check(lib.zero_comm_sum(self._handle, data, len(values)))
        return list(data)

    def agree(self, mine):
        """Returns whether `mine` is true on every rank."""
        status = lib.zero_comm_agree(self._handle, OK if mine else ERROR_ARGUMENT)
        if status not in (OK, ERROR_PEER) and (mine or status != ERROR_ARGUMENT):
            raise Error(status)
        return status == OK

    def abort(self, exit_code):
        """Ends the whole job."""
        lib.zero_comm_abort(self._handle, exit_code)
        os._exit(exit_code)


class Device(Handle):
    _destroy = "zero_device_destroy"

    def __init__(self, comm, kind=DEVICE_CPU):
        super().__init__(lambda made: lib.zero_device_create(kind, comm._handle, made), comm)

    is_cpu = property(lambda self: lib.zero_device_get_type(self._handle) == DEVICE_CPU)


class Model(Handle):
    _destroy = "zero_model_destroy"

    def __init__(self):
        self.shapes = []  # by tensor
        super().__init__(lambda made: lib.zero_model_create(made))

    def add_unit(self, name):
        unit = c_int()
        check(lib.zero_model_add_unit(self._handle, name.encode(), byref(unit)))
        return unit.value

    def add_tensor(self, unit, name, shape, init=INIT_ZEROS, init_std=0.0, decay=False, packed=False, fp8=False,
                   frozen=False, hidden_matrix=False, not_saved=False,
                   frozen_fp8=False):
        shape = tuple(shape)
        if len(shape) > MAX_DIMS:
            raise ValueError(f"{name} has {len(shape)} dimensions, at most {MAX_DIMS} are possible")
        desc = TensorDesc(name.encode(), len(shape), (c_int64 * MAX_DIMS)(*shape), init, init_std, decay, packed, fp8,
                          frozen, hidden_matrix, not_saved, frozen_fp8)
        tensor = c_int()
        check(lib.zero_model_add_tensor(self._handle, unit, byref(desc), byref(tensor)))
        self.shapes.append(shape)
        return tensor.value

    def share_tensor(self, unit, tensor):
        check(lib.zero_model_share_tensor(self._handle, unit, tensor))
