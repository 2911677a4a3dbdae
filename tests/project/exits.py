"""How a job of two ranks ends when one of them does: exits.py CASE. In the cases of FAILURES rank 0 waits outside libzero
for a minute, so whatever rank 1 does with it takes as long."""

import gc
import os
import sys
import threading
import time

import libzero
from libzero._zero_h import lib


def make_engine(comm, **settings):
    model = libzero.Model()
    unit = model.add_unit("unit")
    model.add_tensor(unit, "tensor", (1024,))  # each rank has some of it
    engine = libzero.Engine(comm, libzero.Device(comm), model, dtype=libzero.FP32, **settings)
    engine.init_parameters()
    return engine


def train(engine):
    engine.begin()
    with engine.forward(0):
        pass
    with engine.backward(0):
        engine.grad(0)[:] = 1
    engine.step(0.1)
    return engine.wait().grad_norm


def function(comm):
    engine = make_engine(comm)
    sys.exit(3 if engine else 0)


def block(comm):
    with comm, make_engine(comm):
        sys.exit(3)


def message(comm):
    global kept
    kept = make_engine(comm)
    sys.exit("no data")


def exception(comm):
    engine = make_engine(comm)
    raise ValueError(f"no data for {engine}")


def caught(comm):
    """An exit that does not happen; objects are left to the end of the program."""
    global kept
    kept = make_engine(comm)
    try:
        sys.exit(5)
    except SystemExit as error:
        assert error.code == 5


def caught_outside(comm):
    """An exception of both ranks leaves blocks, and the program goes on."""
    try:
        with comm, make_engine(comm):
            raise ValueError("bad data")
    except ValueError:
        caught(libzero.Comm())
    sys.exit(0)


def fork(comm):
    """A child that ends as programs do, such as a worker that loads data."""
    global kept
    kept = make_engine(comm)
    if comm.rank == 1:
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert train(kept) == 64


def leave_in_circle(comm):
    engine = make_engine(comm)
    engine.circle = engine


def garbage(comm):
    """Engines in circles of references, which garbage collection finds: in their own thread, in another one while this one
    has libzero's calls to make, and in a function that libzero calls."""
    gc.disable()
    destroyed, destroy = [], lib.zero_engine_destroy
    lib.zero_engine_destroy = lambda handle: (destroyed.append((threading.current_thread(), in_call[0])), destroy(handle))
    in_call = [False]

    def collect(_=None):
        in_call[0] = True
        gc.collect()
        in_call[0] = False

    engine = make_engine(comm, hooks=libzero.Hooks(reduced=collect))
    leave_in_circle(comm)
    gc.collect()
    assert len(destroyed) == 1
    leave_in_circle(comm)
    other = threading.Thread(target=gc.collect)
    other.start()
    other.join()
    train(engine)
    assert len(destroyed) == 2
    leave_in_circle(comm)
    train(engine)
    train(engine)
    assert destroyed == [(threading.current_thread(), False)] * 3, destroyed
    assert lib.zero_last_error() == b"", lib.zero_last_error()  # none was destroyed before what uses it
    engine.close()


FAILURES = {"function": function, "block": block, "message": message, "exception": exception}
comm = libzero.Comm()
if sys.argv[1] not in FAILURES:
    {"caught": caught, "caught_outside": caught_outside, "fork": fork, "garbage": garbage}[sys.argv[1]](comm)
elif comm.rank == 1:
    FAILURES[sys.argv[1]](comm)
else:
    kept = make_engine(comm)
    time.sleep(60)
