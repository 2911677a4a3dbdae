"""NumPy's views of an engine's memory hold numbers, in every dtype: what is written as floats is what arrives.

    views.py [REFUSED]    without ml_dtypes, bf16 is refused with what to do; REFUSED: as if it were not installed
"""

import json
import struct
import sys
import tempfile

import numpy

if sys.argv[1:]:
    sys.modules["ml_dtypes"] = None  # so that its import fails
import libzero

VALUES = numpy.array([[0.25, -1.5], [0.9, 3.0]], numpy.float32)  # 0.9 lies between 0.8984375 and 0.90234375 of bf16


def engine_of(comm, dtype):
    model = libzero.Model()
    unit = model.add_unit("unit")
    trained = model.add_tensor(unit, "trained", (2, 2), init=libzero.INIT_ONES)
    frozen = model.add_tensor(unit, "frozen", (2, 2), init=libzero.INIT_ONES, frozen=True)
    engine = libzero.Engine(comm, libzero.Device(comm), model, dtype=dtype, optimizer=libzero.SGD, momentum=0.0,
                            grad_clip=0.0, weight_decay=0.0, initial_loss_scale=1.0)
    engine.init_parameters()
    return engine, unit, trained, frozen


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0 ** -9
    return -value if byte >> 7 else value


def holds_bytes(comm):
    """A frozen matrix in fp8: 0.9 is 0.8984375 in bf16, which as 0.8984375 * 128 = 115 lies between 112 and 120."""
    model = libzero.Model()
    unit = model.add_unit("unit")
    matrix = model.add_tensor(unit, "matrix", (2, 2), frozen=True, frozen_fp8=True)
    other = model.add_tensor(unit, "other", (2, 2))
    engine = libzero.Engine(comm, libzero.Device(comm), model, dtype=libzero.BF16)
    header = json.dumps({"matrix": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
                         "other": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]}}).encode()
    with tempfile.TemporaryDirectory() as directory:
        with open(directory + "/model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + 2 * VALUES.tobytes())
        engine.load_weights(directory)
    engine.begin(libzero.PASS_EVAL)
    with engine.forward(unit):
        view, scales = engine.param_fp8(matrix)
        assert view.dtype.name == "uint8" and view.shape == (2, 2) and not view.flags.writeable, view
        assert scales[0] * scales[1] == 1 and scales[1] == 128, scales
        assert [e4m3(int(byte)) * scales[0] for byte in view.flat] == [0.25, -1.5, 0.875, 3], view
        assert "not gathered in fp8" in message_of(ValueError, engine.param_fp8, other)


def message_of(kind, function, *args):
    try:
        function(*args)
    except kind as error:
        return str(error)
    raise SystemExit(f"{function} was not refused")


def holds_numbers(comm, dtype, name, arriving):
    """arriving: VALUES as this dtype rounds them."""
    engine, unit, trained, frozen = engine_of(comm, dtype)
    engine.begin()
    with engine.forward(unit):
        for tensor in (trained, frozen):
            view = engine.param(tensor)
            assert view.dtype.name == name and not view.flags.writeable and (view == 1).all(), view
            assert float((view * numpy.float32(0.5)).sum()) == 2, view
    with engine.backward(unit):
        engine.grad(trained)[:] = VALUES
        assert (engine.grad(trained).astype(numpy.float32) == arriving).all(), engine.grad(trained)
        grad = engine.grad(trained)
        grad += numpy.ones((2, 2), numpy.float32)
        grad -= numpy.ones((2, 2), numpy.float32)
        grad[:] = VALUES
        assert "it is frozen, or not in the unit" in message_of(ValueError, engine.grad, frozen)
    engine.step(0.5)
    assert abs(engine.wait().grad_norm / numpy.sqrt((arriving.astype(float) ** 2).sum()) - 1) < 1e-6
    assert (engine.get_tensor(trained) == 1 - numpy.float32(0.5) * arriving).all()


def refuses(comm):
    engine, unit, trained, _ = engine_of(comm, libzero.BF16)
    engine.begin()
    for name, array in (("forward", engine.param), ("backward", engine.grad)):
        try:
            with getattr(engine, name)(unit):
                array(trained)
            raise SystemExit("a view of bf16 was given without ml_dtypes")
        except ImportError as error:
            assert "pip install ml_dtypes" in str(error) and "dtype=libzero.FP32" in str(error), error
        if name == "forward":
            engine.release(unit)


with libzero.Comm() as comm:
    array = libzero.DeviceArray(VALUES.ctypes.data, libzero.FP32, (2, 2), is_cpu=True)
    assert "is no array of NumPy's" in message_of(TypeError, numpy.asarray, array)
    bf16 = VALUES.copy()
    bf16[1, 0] = 0.8984375
    fp16 = VALUES.astype(numpy.float16).astype(numpy.float32)
    holds_numbers(comm, libzero.FP32, "float32", VALUES)
    holds_numbers(comm, libzero.FP16, "float16", fp16)
    holds_bytes(comm)
    if sys.argv[1:]:
        refuses(comm)
    else:
        holds_numbers(comm, libzero.BF16, "bfloat16", bf16)
