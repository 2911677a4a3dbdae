"""What an engine is made of: ranks, a device and a model."""

import atexit
import contextlib
import gc
import os
import sys
import threading
from ctypes import byref, c_double, c_int, c_int64

from ._zero_h import (COMM_AUTO, DEVICE_CPU, ERROR_ARGUMENT, ERROR_PEER, INIT_ZEROS, MAX_DIMS, OK, P, Error, TensorDesc,
                      check, lib, plain, set_fields, text_of)


class _Calls(threading.local):
    """What a thread is in: functions that libzero has called, and a garbage collection."""
    depth, collects = 0, False


_open = {}  # what is to be destroyed, as keys, the oldest first
_unwound = []  # handles whose block an exception has left
_calls = _Calls()
_WORLD = object()
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


class _Owned:
    """An object of zero.h, and what uses it. It has no finalizer, so garbage collection, which knows no order of objects
    that refer to each other, leaves that to Handle. ranks: whose it is: _WORLD, another communicator's, or None: this
    rank's alone."""

    def __init__(self, handle, destroy, uses, ranks):
        self.handle, self.destroy, self.uses, self.n_users, self.ranks = handle, destroy, uses, 0, ranks
        self.process, self.is_garbage = os.getpid(), False
        for used in uses:
            used.n_users += 1
        _open[self] = None

    def end(self):
        """Destroys it, at most once, and never in a fork of the process that made it: there it is the parent's, and its
        destruction would be a call of the parent's rank."""
        handle, self.handle = self.handle, None
        _open.pop(self, None)
        for used in self.uses:
            used.n_users -= 1
        self.uses = ()
        if handle and not _fails and self.process == os.getpid():
            getattr(lib, self.destroy)(handle)


def _note_collection(phase, _):
    _calls.collects = phase == "start"


gc.callbacks.append(_note_collection)


def _end_garbage(ranks):
    """Destroys what is garbage of these ranks', and this rank's own: the newest first, so users before what they use. Each
    rank's garbage collection finds it at a time of its own, and to destroy an engine is collective: so this comes with
    calls that are collective, too, and looks for what has not been found yet."""
    if _calls.depth or _calls.collects:
        return
    gc.collect()
    for owned in reversed(list(_open)):
        if owned.is_garbage and owned.ranks in (None, ranks) and not owned.n_users:
            owned.end()


@contextlib.contextmanager
def within_call():
    """The block is a function that libzero calls: objects that are garbage stay until it has returned."""
    _calls.depth += 1
    try:
        yield
    finally:
        _calls.depth -= 1


class Handle:
    """Owns an object of zero.h and keeps what it uses. To destroy one may wait for all ranks, so behind a failure of this
    rank none is: mpirun then ends the others."""
    _destroy = None
    _is_collective = False  # whether all ranks of its communicator make it

    def __init__(self, create, *uses, ranks=None):
        sys.exit = _exit
        for used in uses[:1]:
            ranks = used._owned.ranks
        if self._is_collective:
            _end_garbage(ranks)
        made, self._uses = P(), uses
        check(create(byref(made)))
        self._owned = _Owned(made, self._destroy, [used._owned for used in uses], ranks)

    _handle = property(lambda self: self._owned.handle)

    def close(self):
        """Destroys the object; collective where zero.h says so. Without it, that happens when the last reference is gone;
        if that is found by garbage collection, when the same ranks make the next Engine (all ranks: or Comm), or at the end
        of the program."""
        self._owned.end()
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
        """What still has users, which are garbage, waits for them."""
        owned = getattr(self, "_owned", None)
        if owned is None:
            return
        if _calls.collects or _calls.depth or owned.n_users:
            owned.is_garbage = True
        else:
            owned.end()


@atexit.register
def _close_all():
    """Closes what is left, since mpirun counts a rank as failed that ends without MPI_Finalize."""
    global _fails
    _fails = _fails or hasattr(sys, "last_type")
    for owned in reversed(list(_open)):
        owned.end()


class Comm(Handle):
    """All ranks that mpirun started. Comm.of has others."""
    _destroy = "zero_comm_destroy"
    _is_collective = True

    def __init__(self, kind=COMM_AUTO):
        super().__init__(lambda made: lib.zero_comm_create(kind, made), ranks=_WORLD)
        if self.size == 1:
            self._owned.ranks = None

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
            if comm.size > 1:
                comm._owned.ranks = object()
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
        shape = tuple(plain(size) for size in shape)
        if len(shape) > MAX_DIMS:
            raise ValueError(f"{name} has {len(shape)} dimensions, at most {MAX_DIMS} are possible")
        if not all(-2 ** 63 <= size < 2 ** 63 for size in shape):
            raise ValueError(f"{name} has the shape {shape}: its sizes do not fit into C's int64_t")
        desc = TensorDesc(text_of(name.encode()), len(shape), (c_int64 * MAX_DIMS)(*shape), INIT_ZEROS, 0.0, decay, packed,
                          fp8, frozen, hidden_matrix, not_saved, frozen_fp8)
        set_fields(desc, "zero_tensor_desc_t", {"init": init, "init_std": init_std})
        tensor = c_int()
        check(lib.zero_model_add_tensor(self._handle, unit, byref(desc), byref(tensor)))
        self.shapes.append(shape)
        return tensor.value

    def share_tensor(self, unit, tensor):
        check(lib.zero_model_share_tensor(self._handle, unit, tensor))
