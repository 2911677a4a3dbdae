"""How a job of two ranks ends when one of them does: exits.py CASE. In the cases of FAILURES rank 0 waits outside libzero
for a minute, so whatever rank 1 does with it takes as long."""

import sys
import time

import libzero


def make_engine(comm):
    model = libzero.Model()
    unit = model.add_unit("unit")
    model.add_tensor(unit, "tensor", (4,))
    engine = libzero.Engine(comm, libzero.Device(comm), model, dtype=libzero.FP32)
    engine.init_parameters()
    return engine


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


FAILURES = {"function": function, "block": block, "message": message, "exception": exception}
comm = libzero.Comm()
if sys.argv[1] not in FAILURES:
    {"caught": caught, "caught_outside": caught_outside}[sys.argv[1]](comm)
elif comm.rank == 1:
    FAILURES[sys.argv[1]](comm)
else:
    kept = make_engine(comm)
    time.sleep(60)
