"""Python's functions that libzero calls, and communicators of a caller's own. Run by test_languages.sh, alone and on
several ranks. Exit code 0 if all held.

    callbacks.py DIRECTORY        for a checkpoint
"""

import ctypes
import sys

import libzero
import numpy

N_ELEMS = 1000


class Mine(Exception):
    pass


def make(comm, **settings):
    model = libzero.Model()
    unit = model.add_unit("unit")
    tensor = model.add_tensor(unit, "tensor", (N_ELEMS,), init=libzero.INIT_ONES)
    engine = libzero.Engine(comm, libzero.Device(comm), model, dtype=libzero.FP32, **settings)
    engine.init_parameters()
    return engine, unit, tensor


def train(engine, unit, tensor):
    engine.begin()
    with engine.forward(unit):
        pass
    with engine.backward(unit):
        engine.grad(tensor)[:] = numpy.arange(N_ELEMS) + 1
    engine.step(0.5)
    return engine.wait()


def raises(what, function, *args):
    try:
        function(*args)
    except what as exception:
        return exception
    raise SystemExit(f"{function} did not raise {what}")


def hooks_see_every_element_once(comm):
    gradients, weights = numpy.zeros(N_ELEMS), numpy.zeros(N_ELEMS)

    def reduced(run):
        assert (run.tensor, run.step, run.loss_scale) == (0, 1, 1)
        gradients[run.first:run.first + len(run.grad)] += run.grad
        run.grad[:] = 1 / 8

    def updated(run):
        assert run.step == 1 and not run.skip and run.direction is None and run.v is not None
        run.weight[:] = 2
        weights[run.first:run.first + len(run.weight)] += 1

    engine, unit, tensor = make(comm, hooks=libzero.Hooks(reduced, updated), grad_clip=0)
    assert train(engine, unit, tensor).grad_norm == numpy.float32((N_ELEMS / 64) ** 0.5)
    assert comm.sum(gradients) == [comm.size * (i + 1) for i in range(N_ELEMS)]
    assert comm.sum(weights) == [1] * N_ELEMS
    assert (engine.get_tensor(tensor) == 2).all()


def exceptions_reach_the_caller(comm):
    """As thrown, on the rank that threw. The others learn of it in step, and all give the step up together."""
    fails = [comm.rank == comm.size - 1]

    def reduced(_):
        if fails[0]:
            raise Mine("on the last rank")

    engine, unit, tensor = make(comm, hooks=libzero.Hooks(reduced=reduced))
    if fails[0]:
        error = raises(Mine, train, engine, unit, tensor)
        assert str(error) == "on the last rank"
        error = raises(libzero.Error, engine.step, 0.5)
        assert "reduced failed for tensor tensor in step 1" in str(error), error
    else:
        assert raises(libzero.Error, train, engine, unit, tensor).status == 10
    engine.cancel()
    fails[0] = False
    assert train(engine, unit, tensor).step == 1


def matrices_are_whole(comm):
    """An optimizer with whole: its steps divide each row of the gradient by its largest element."""
    def prepare(run):
        run.direction[:] = run.grad * run.grad_scale

    def whole(run):
        assert run.direction.shape == (3, 4)
        run.direction /= run.direction.max(axis=1, keepdims=True)

    def update(run):
        run.weight -= numpy.float32(run.lr) * run.direction

    model = libzero.Model()
    unit = model.add_unit("unit")
    tensor = model.add_tensor(unit, "matrix", (3, 4), hidden_matrix=True)
    own = libzero.Optimizer("rows", update, prepare=prepare, whole=whole)
    engine = libzero.Engine(comm, libzero.Device(comm), model, dtype=libzero.FP32, own_optimizer=own, grad_clip=0)
    engine.init_parameters()
    engine.begin()
    with engine.forward(unit):
        pass
    rows = numpy.arange(1, 13, dtype=numpy.float32).reshape(3, 4)
    with engine.backward(unit):
        engine.grad(tensor)[:] = rows
    engine.step(1)
    engine.wait()
    assert (engine.get_tensor(tensor) == -(rows * comm.size) / (rows[:, 3:] * comm.size)).all()


def units_are_updated_in_backward(comm):
    """SGD by hand: each rank's gradient is rank + 1, and the sum of them times lr leaves the weights of 1."""
    engine, unit, tensor = make(comm, update=libzero.UPDATE_IN_BACKWARD, stage=1, grad_clip=0, optimizer=libzero.SGD,
                                momentum=0, weight_decay=0)
    assert "call zero_set_lr before it" in str(raises(libzero.Error, engine.begin))
    engine.set_lr(0.25)
    engine.begin()
    with engine.forward(unit):
        pass
    with engine.backward(unit):
        engine.grad(tensor)[:] = comm.rank + 1
    assert "0.25" in str(raises(libzero.Error, engine.step, 0.5))
    engine.step(0.25)
    engine.wait()
    assert (engine.get_tensor(tensor) == 1 - 0.25 * comm.size * (comm.size + 1) / 2).all()


def groups_train_alone(comm, directory):
    """Each rank for itself, and groups that MPI splits off: even and odd ranks."""
    alone = libzero.Comm.of(None)
    assert (alone.rank, alone.size) == (0, 1)
    engine, unit, tensor = make(alone)
    wanted = train(engine, unit, tensor)
    engine.save(f"{directory}/{comm.rank}")
    again, _, _ = make(alone)
    state, partial = again.load_partial(f"{directory}/{comm.rank}")
    assert state["step"] == 1 and (partial.n_loaded, partial.n_kept, partial.n_ignored) == (1, 0, 0)
    assert (again.get_tensor(tensor) == engine.get_tensor(tensor)).all()
    if comm.size == 1:
        assert "MPI is not running" in str(raises(libzero.Error, libzero.Comm.of, 0))
        return
    # As mpi4py does; comm.Split(color).py2f() there.
    mpi = ctypes.CDLL("libmpi.so.40")
    world = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
    mpi.MPI_Comm_c2f.argtypes = [ctypes.c_void_p]
    split = ctypes.c_void_p()
    assert mpi.MPI_Comm_split(world, comm.rank % 2, comm.rank, ctypes.byref(split)) == 0
    group = libzero.Comm.of(mpi.MPI_Comm_c2f(split))
    assert (group.rank, group.size) == (comm.rank // 2, (comm.size + 1 - comm.rank % 2) // 2)
    engine, unit, tensor = make(group)
    result = train(engine, unit, tensor)
    assert result.grad_norm == numpy.float32(group.size * float(wanted.grad_norm)), (result.grad_norm, wanted.grad_norm)
    raises(libzero.Error, libzero.Comm.of, 1 << 20)


def main():
    comm = libzero.Comm()
    hooks_see_every_element_once(comm)
    exceptions_reach_the_caller(comm)
    matrices_are_whole(comm)
    units_are_updated_in_backward(comm)
    groups_train_alone(comm, sys.argv[1])


main()
