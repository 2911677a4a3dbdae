"""linear.py - linear.c in Python with NumPy: the same training, the same bits.

    pip install python/
    mpirun -np 3 python3 linear.py 2        three ranks at stage 2; without the 2, at stage 3
"""

import sys

import libzero
import numpy

N_FEATURES, N_SAMPLES, N_STEPS = 10, 64, 150


def make_data():
    """Adds in linear.c's order: NumPy's sums have another."""
    s, i = numpy.arange(N_SAMPLES)[:, None], numpy.arange(N_FEATURES)[None, :]
    x = ((s * 37 + i * 101 + s * s * i) % 127).astype(numpy.float32) / numpy.float32(63) - numpy.float32(1)
    y = numpy.ones(N_SAMPLES, numpy.float32)
    for k in range(N_FEATURES):
        y += x[:, k] * numpy.float32(0.1) * numpy.float32(k)
    return x, y


def train(comm, stage):
    model = libzero.Model()
    product = model.add_unit("product")
    w = model.add_tensor(product, "w", [N_FEATURES])
    shift = model.add_unit("shift")
    b = model.add_tensor(shift, "b", [1])
    x, y = (data[comm.rank::comm.size] for data in make_data())
    with libzero.Device(comm) as device, libzero.Engine(comm, device, model, stage=stage, dtype=libzero.FP32) as engine:
        engine.init_parameters()
        for step in range(1, N_STEPS + 1):
            engine.begin()
            prediction = numpy.zeros(len(y), numpy.float32)
            with engine.forward(product):
                weights = engine.param(w)
                for i in range(N_FEATURES):
                    prediction += x[:, i] * weights[i]
            with engine.forward(shift):
                error = prediction + engine.param(b) - y
            loss = 0.0
            for e in error.astype(numpy.float64):
                loss += e * e / N_SAMPLES

            scaled = numpy.float32(2) * error
            with engine.backward(shift):
                grad = engine.grad(b)
                grad[:] = 0
                for e in scaled:
                    grad += e / numpy.float32(N_SAMPLES)
            with engine.backward(product):
                grad = engine.grad(w)
                grad[:] = 0
                for e, features in zip(scaled, x):
                    grad += e * features / numpy.float32(N_SAMPLES)
            engine.step(0.01, loss)
            result = engine.wait()
            if comm.rank == 0 and step % 15 == 0:
                print(f"step {step:3d}  loss {result.loss:.6f}")


with libzero.Comm() as comm:
    try:
        train(comm, int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    except libzero.Error:
        comm.abort(1)  # others may be waiting for this rank; the line has been logged
