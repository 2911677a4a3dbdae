"""own_optimizer.py - own_optimizer.c in Python with NumPy: AdaGrad as an optimizer of your own, the same bits.

    pip install python/
    mpirun -np 3 python3 own_optimizer.py 2        three ranks at stage 2; without the 2, at stage 3
"""

import sys

import libzero
import numpy

N, N_STEPS, EPS = 1000, 40, numpy.float32(1e-8)


def adagrad(run):
    """Updates a run of elements of a tensor: the part of it that this rank holds. m sums the squares of gradients."""
    if run.skip:
        return
    g = run.grad * run.grad_scale
    run.m += g * g
    run.weight -= numpy.float32(run.lr) * g / (numpy.sqrt(run.m) + EPS)


def train(comm, stage):
    model = libzero.Model()
    unit = model.add_unit("unit")
    w = model.add_tensor(unit, "w", [N])
    i = numpy.arange(N)
    a, c = (1 + i % 7).astype(numpy.float32), (i % 11).astype(numpy.float32) / numpy.float32(10)
    n_ranks = numpy.float32(comm.size)
    with libzero.Device(comm) as device, libzero.Engine(comm, device, model, stage=stage, dtype=libzero.FP32, grad_clip=0,
                                                        own_optimizer=libzero.Optimizer("adagrad", adagrad)) as engine:
        engine.init_parameters()
        for step in range(1, N_STEPS + 1):
            engine.begin()
            with engine.forward(unit):
                pass
            with engine.backward(unit):
                distance = engine.param(w) - c
                engine.grad(w)[:] = a * distance / n_ranks
            loss = 0.5 * a.astype(numpy.float64) * distance.astype(numpy.float64) ** 2 / comm.size
            engine.step(0.1, loss.sum())
            result = engine.wait()
            if comm.rank == 0:
                print(f"step {step} loss {result.loss:.6g}")


with libzero.Comm() as comm:
    try:
        train(comm, int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    except libzero.Error:
        comm.abort(1)  # others may be waiting for this rank; the line has been logged
