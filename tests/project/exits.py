"""How a job of two ranks ends when one of them does, what a fork leaves to its parent, and when garbage is destroyed:
exits.py CASE. In the cases of FAILURES rank 0 waits outside libzero for a minute, so whatever rank 1 does with it takes
as long."""

import gc
import os
import sys
import threading
import time

import libzero
from libzero import _callbacks
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
    return engine._handle.value


def garbage(comm):
    """Engines in circles of references, which each rank's garbage collection finds at another time: on rank 1 in another
    thread and, step by step, in a function that libzero calls and on the way there; on rank 0 not before the next engine
    is made. There both ranks destroy all of them, in the same order."""
    gc.disable()
    destroyed, destroy, on_ways = [], lib.zero_engine_destroy, []
    lib.zero_engine_destroy = lambda handle: (destroyed.append(handle.value), destroy(handle))

    def collect(*_):
        if comm.rank == 1:
            gc.collect()

    def on_the_way(frame, event, _):
        if event == "call" and frame.f_code.co_filename == _callbacks.__file__ and frame.f_code.co_name == "call":
            on_ways.append(event)
            collect()

    engine = make_engine(comm, hooks=libzero.Hooks(reduced=collect))
    circles = [leave_in_circle(comm)]
    other = threading.Thread(target=collect)
    other.start()
    other.join()
    train(engine)
    if comm.rank == 1:
        alone = libzero.Comm.of(None)
        destroyed_alone = leave_in_circle(alone)
        make_engine(alone)  # has no other reference
        assert destroyed_alone in destroyed and circles[0] not in destroyed, "on a rank that makes an engine of its own"
        destroyed.clear()
    circles.append(leave_in_circle(comm))
    ended = [circles[0]]  # when the second was made
    assert destroyed == ended, "not when the next engine is made"
    train(engine)
    circles.append(leave_in_circle(comm))
    ended += [circles[1]]
    assert destroyed == ended, destroyed
    sys.setprofile(on_the_way)
    train(engine)
    sys.setprofile(None)
    assert on_ways and destroyed == ended, "in a function that libzero calls"
    first, second = (make_engine(comm), make_engine(comm))
    ended += [circles[2]]
    handles = [second._handle.value, first._handle.value]
    first.circle = first
    if comm.rank == 1:
        del first
    collect()
    first = None
    second.circle = second
    second = None
    assert destroyed == ended, destroyed
    other = make_engine(comm)
    assert destroyed == ended + handles, "not the newest first"
    last = other._handle.value
    del other
    assert destroyed == ended + handles + [last], "the last reference is gone, and garbage collection is not needed"
    assert lib.zero_last_error() == b"", lib.zero_last_error()  # none was destroyed before what uses it
    engine.close()


def of_another_thread(comm):
    """A thread that waits for work makes an engine, which ends when this one has no reference to it any more."""
    made, ends = [], threading.Event()
    destroyed, destroy = [], lib.zero_engine_destroy
    lib.zero_engine_destroy = lambda handle: (destroyed.append(handle.value), destroy(handle))
    pool = threading.Thread(target=lambda: (made.append(make_engine(comm)), ends.wait()), daemon=True)
    pool.start()
    while not made:
        time.sleep(0.01)
    made.clear()
    assert len(destroyed) == 1
    ends.set()
    pool.join()


FAILURES = {"function": function, "block": block, "message": message, "exception": exception}
comm = libzero.Comm()
if sys.argv[1] not in FAILURES:
    {"caught": caught, "caught_outside": caught_outside, "fork": fork, "garbage": garbage,
     "of_another_thread": of_another_thread}[sys.argv[1]](comm)
elif comm.rank == 1:
    FAILURES[sys.argv[1]](comm)
else:
    kept = make_engine(comm)
    time.sleep(60)
