#!/bin/bash
# libzero from C++, Fortran and Python: examples/linear in each language trains to the text of examples/linear.c, alone and
# on several ranks; structs are laid out as C's; exceptions pass through C.
# Run by tests/run-all; prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=$(realpath "${ZERO_BUILD:-build}")
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
export LD_LIBRARY_PATH=$build LIBZERO=$build/libzero.so OMP_NUM_THREADS=1

ranks() { timeout 60 mpirun --bind-to none --map-by :OVERSUBSCRIBE -np "$@"; }
prints() { diff "$1" <("${@:2}"); } # prints FILE COMMAND...
links=(-L"$build" -lzero)

"$build/examples/linear" 3 >"$scratch/linear"
ranks 3 "$build/examples/linear" 2 >"$scratch/linear3"
claim "examples/linear.c learns" grep -q '^step 150  loss 0\.00' "$scratch/linear"

# trains NAME PROGRAM...: the program prints what linear.c does.
trains()
{
    claim "$1 prints linear.c's text at stage 3" prints "$scratch/linear" timeout 60 "${@:2}" 3
    claim "$1 prints linear.c's text on 3 ranks at stage 2" prints "$scratch/linear3" ranks 3 "${@:2}" 2
}

# What the structs are laid out like: sizes, and a field near the end of each that is set.
cat >"$scratch/layout.c" <<'EOF'
#include <stdio.h>
#include <zero.h>
int main(void)
{
    zero_config_t c = zero_config_default();
    printf("%zu %zu %zu %zu %zu %zu %zu\n", sizeof c, sizeof(zero_tensor_desc_t), sizeof(zero_grad_t), sizeof(zero_step_result_t), sizeof(zero_group_t), sizeof(zero_partial_t), sizeof(zero_save_options_t));
    printf("%zu %zu %zu %zu %zu %zu\n", sizeof(zero_own_optimizer_t), sizeof(zero_own_update_t), sizeof(zero_own_whole_t), sizeof(zero_hooks_t), sizeof(zero_reduced_t), sizeof(zero_fp8_param_t));
    printf("%zu\n", c.struct_size);
    printf("%d %d %d %zu %.4f\n", c.prefetch, c.max_skipped_steps, c.loss_scale_window, c.staging_bytes, (double)c.offload_ram);
    return 0;
}
EOF
claim "a C program prints the layout of zero.h's structs" gcc -Iinclude -o "$scratch/layout" "$scratch/layout.c" "${links[@]}"
"$scratch/layout" >"$scratch/layout.txt"

# ---- C++ -----------------------------------------------------------------------------------------------------------
if command -v g++ >/dev/null; then
    cpp() { g++ -std=c++17 -O2 -Wall -Wextra -Wconversion -Werror -Iinclude -o "$@" "${links[@]}"; }
    claim "examples/linear.cpp compiles without a warning" cpp "$scratch/linear_cpp" examples/linear.cpp
    trains examples/linear.cpp "$scratch/linear_cpp"
    claim "a program that throws compiles" cpp "$scratch/exceptions" tests/project/exceptions.cpp
    claim "exceptions pass through C, and a pass that ended in one is cancelled" timeout 60 "$scratch/exceptions" "$scratch/saved"
    claim "exceptions pass through C on 3 ranks" ranks 3 "$scratch/exceptions" "$scratch/saved3"
else
    echo "SKIP: C++: g++ is not installed"
fi

# ---- Fortran -------------------------------------------------------------------------------------------------------
if command -v gfortran >/dev/null; then
    cat >"$scratch/layout.f90" <<'EOF'
program layout
    use zero
    type(zero_config_t) :: c
    type(zero_tensor_desc_t) :: desc
    type(zero_grad_t) :: grad
    type(zero_step_result_t) :: outcome
    type(zero_group_t) :: group
    type(zero_partial_t) :: partial
    type(zero_save_options_t) :: options
    type(zero_own_optimizer_t) :: own
    type(zero_own_update_t) :: update
    type(zero_own_whole_t) :: whole
    type(zero_hooks_t) :: hooks
    type(zero_reduced_t) :: reduced
    type(zero_fp8_param_t) :: in_fp8
    c = zero_config_default()
    print '(i0,6(1x,i0))', c_sizeof(c), c_sizeof(desc), c_sizeof(grad), c_sizeof(outcome), c_sizeof(group), &
        c_sizeof(partial), c_sizeof(options)
    print '(i0,5(1x,i0))', c_sizeof(own), c_sizeof(update), c_sizeof(whole), c_sizeof(hooks), c_sizeof(reduced), &
        c_sizeof(in_fp8)
    print '(i0)', c%struct_size
    if (len(zero_last_error_text()) /= 0) error stop 1
    if (zero_config_init(c, 1_c_size_t) == ZERO_OK) error stop 1
    if (index(zero_last_error_text(), "zero_config_init: struct_size is 1,") /= 1) error stop 1
    c = zero_config_default()
    print '(i0,3(1x,i0),1x,f6.4)', c%prefetch, c%max_skipped_steps, c%loss_scale_window, c%staging_bytes, c%offload_ram
    if (zero_get_group(c_null_ptr, 0, group) == ZERO_OK) error stop 1
    if (zero_set_group(c_null_ptr, 0, c_null_ptr) == ZERO_OK) error stop 1
    if (zero_last_error_text() /= "zero_set_group: engine is NULL") error stop 1
    if (zero_init_parameters(c_null_ptr) /= ZERO_ERROR_ARGUMENT) error stop 1
    if (ZERO_ERROR_INTERNAL /= 15) error stop 1
    if (zero_last_error_text() /= "zero_init_parameters: engine is NULL") error stop 1
end program
EOF
    fortran() { gfortran -std=f2018 -O2 -Wall -Werror -J"$scratch" -o "$1" fortran/zero.f90 "$2" "${links[@]}"; }
    claim "examples/linear.f90 compiles without a warning" fortran "$scratch/linear_f" examples/linear.f90
    trains examples/linear.f90 "$scratch/linear_f"
    claim "examples/own_optimizer.f90 compiles without a warning" fortran "$scratch/own_f" examples/own_optimizer.f90
    six_digits() { awk '$3 == "loss" { printf "step %d loss %.6g\n", $2, $4 }' <("$@"); }
    "$build/examples/own_optimizer" 3 >"$scratch/own"
    claim "... and prints own_optimizer.c's losses" prints "$scratch/own" six_digits timeout 60 "$scratch/own_f"
    ranks 3 "$build/examples/own_optimizer" 2 >"$scratch/own3"
    claim "... on 3 ranks at stage 2" prints "$scratch/own3" six_digits ranks 3 "$scratch/own_f" 2
    claim "a Fortran program that prints the layout compiles" fortran "$scratch/layout_f" "$scratch/layout.f90"
    cat >"$scratch/load.f90" <<'EOF'
program load
    use zero
    type(c_ptr) :: comm, device, model, larger, engine, other, in_backward, checkpoint, saved
    type(zero_config_t) :: config
    type(zero_partial_t) :: partial
    type(zero_save_options_t) :: options
    type(zero_grad_t) :: gradient
    type(zero_step_result_t) :: outcome
    real(c_float), pointer :: numbers(:)
    integer(c_int) :: unit, tensor, head
    real(c_float), target :: values(5), read_back(5)
    real(c_double) :: sums(2)
    character(len=200) :: argument
    character(len=:), allocatable :: directory
    call get_command_argument(1, argument)
    directory = trim(argument)//c_null_char
    call must(zero_comm_create(ZERO_COMM_AUTO, comm))
    call must(zero_device_create(ZERO_DEVICE_CPU, comm, device))
    call must(zero_model_create(model))
    call must(zero_model_create(larger))
    config = zero_config_default()
    config%dtype = ZERO_FP32
    call declare(model, "tensor"//c_null_char, .true., tensor)
    call must(zero_engine_create(comm, device, model, config, engine))
    call must(zero_init_parameters(engine))
    call must(zero_comm_barrier(comm))
    sums = [1.5d0, 2.5d0]
    call must(zero_comm_sum(comm, sums, 2_c_size_t))
    if (any(sums /= [1.5d0, 2.5d0])) error stop "sums"
    values = [1.5, -2.25, 3.0, 4.0, 0.5]
    call must(zero_set_tensor(engine, tensor, ZERO_ARRAY_WEIGHT, 0, c_loc(values)))
    call must(zero_save_prepare(comm, directory))
    call must(zero_save_begin(engine, directory, options, saved))
    call must(zero_save_end(saved))

    call declare(larger, "tensor"//c_null_char, .true., tensor)
    call declare(larger, "head"//c_null_char, .false., head)
    call must(zero_engine_create(comm, device, larger, config, other))
    call must(zero_init_parameters(other))
    call must(zero_checkpoint_open(comm, directory, checkpoint))
    if (zero_checkpoint_step(checkpoint) /= 0) error stop "step"
    if (zero_load(other, checkpoint) == ZERO_OK) error stop "loaded what is not there"
    call must(zero_load_partial(other, checkpoint, partial))
    if (partial%n_loaded /= 1 .or. partial%n_kept /= 1 .or. partial%n_ignored /= 0) error stop "partial"
    call must(zero_get_tensor(other, tensor, ZERO_ARRAY_WEIGHT, 0, c_loc(read_back)))
    if (any(read_back /= values)) error stop "values"
    call must(zero_load(engine, checkpoint))
    call zero_checkpoint_close(checkpoint)
    directory = trim(argument)//"/latest"//c_null_char
    call must(zero_load_weights(engine, directory))
    call must(zero_load_weights_partial(other, directory, partial))
    if (partial%n_loaded /= 1 .or. partial%n_kept /= 1) error stop "weights"

    config%stage = 1
    config%update = ZERO_UPDATE_IN_BACKWARD
    config%optimizer = ZERO_OPTIMIZER_SGD
    config%grad_clip = 0.0
    config%momentum = 0.0
    config%weight_decay = 0.0
    call must(zero_engine_create(comm, device, model, config, in_backward))
    call must(zero_set_tensor(in_backward, tensor, ZERO_ARRAY_WEIGHT, 0, c_loc(values)))
    if (zero_begin(in_backward, ZERO_PASS_TRAIN, c_null_ptr) /= ZERO_ERROR_ORDER) error stop "begun without lr"
    call must(zero_set_lr(in_backward, 0.25))
    call must(zero_begin(in_backward, ZERO_PASS_TRAIN, c_null_ptr))
    call must(zero_acquire(in_backward, unit, c_null_ptr))
    call must(zero_release(in_backward, unit, c_null_ptr))
    call must(zero_acquire(in_backward, unit, c_null_ptr))
    gradient = zero_grad(in_backward, tensor)
    call c_f_pointer(gradient%data, numbers, [5])
    numbers = 2.0
    call must(zero_grad_ready(in_backward, unit, c_null_ptr))
    call must(zero_step(in_backward, 0.25, c_null_ptr, c_null_ptr))
    call must(zero_step_wait(in_backward, outcome))
    call must(zero_get_tensor(in_backward, tensor, ZERO_ARRAY_WEIGHT, 0, c_loc(read_back)))
    if (any(read_back /= values - 0.5)) error stop "update in backward"
    call zero_engine_destroy(in_backward)
    call zero_engine_destroy(other)
    call zero_engine_destroy(engine)
    call zero_model_destroy(larger)
    call zero_model_destroy(model)
    call zero_device_destroy(device)
    call zero_comm_destroy(comm)
contains
    subroutine must(status)
        integer(c_int), intent(in) :: status
        if (status == ZERO_OK) return
        print '(a)', zero_last_error_text()
        error stop 1
    end subroutine

    subroutine declare(to, name, is_first, made)
        type(c_ptr), intent(in) :: to
        character(len=*), target, intent(in) :: name
        logical, intent(in) :: is_first
        integer(c_int), intent(out) :: made
        type(zero_tensor_desc_t) :: desc
        desc%name = c_loc(name)
        desc%shape(1) = 5
        if (is_first) call must(zero_model_add_unit(to, "unit"//c_null_char, unit))
        call must(zero_model_add_tensor(to, unit, desc, made))
    end subroutine
end program
EOF
    claim "a Fortran program that saves and loads compiles" fortran "$scratch/load_f" "$scratch/load.f90"
    claim "Fortran loads checkpoints and weights, in part, too, and updates in backward" timeout 60 "$scratch/load_f" "$scratch/saved_f" 2>/dev/null
    claim "Fortran's types are laid out as zero.h's structs, and it has the last error" prints "$scratch/layout.txt" "$scratch/layout_f"
else
    echo "SKIP: Fortran: gfortran is not installed"
fi

# ---- Python --------------------------------------------------------------------------------------------------------
python=${PYTHON:-python3}
if "$python" -c 'import numpy' 2>/dev/null; then
    cp -r python "$scratch/source"
    if "$python" -c 'import setuptools, pip, sys; sys.exit(int(setuptools.__version__.split(".")[0]) < 61)' 2>/dev/null; then
        claim "pip install installs the module libzero" "$python" -m pip install --quiet --no-deps --no-build-isolation \
            --disable-pip-version-check --target "$scratch/site" "$scratch/source"
        export PYTHONPATH=$scratch/site
    else
        echo "SKIP: pip install: Python has no pip with setuptools 61 or newer"
        export PYTHONPATH=$scratch/source
    fi
    export PYTHONDONTWRITEBYTECODE=1
    trains examples/linear.py "$python" "$PWD/examples/linear.py"
    # shellcheck disable=SC2317 # claim calls it
    names_the_library()
    {
        ! LIBZERO=nowhere.so timeout 60 "$python" "$PWD/examples/linear.py" >"$scratch/no_library" 2>&1 &&
            grep 'nowhere.so: cannot open shared object file.*: install libzero .* LIBZERO$' "$scratch/no_library"
    }
    claim "a libzero.so that is not there is named, with what to do" names_the_library
    # shellcheck disable=SC2317 # claim calls it
    names_what_it_lacks()
    {
        gcc -shared -o "$scratch/lacking.so" -x c - <<<'int absent(void); int (*use)(void) = absent;' &&
            ! LIBZERO=$scratch/lacking.so timeout 60 "$python" "$PWD/examples/linear.py" >"$scratch/no_library" 2>&1 &&
            grep 'lacking.so: undefined symbol: absent$' "$scratch/no_library"
    }
    claim "... and one that lacks a symbol is there, so the symbol is named alone" names_what_it_lacks
    # Losses are summed in another order than C's: their text has 6 digits, which hides it.
    "$build/examples/own_optimizer" 3 >"$scratch/own"
    claim "examples/own_optimizer.py prints own_optimizer.c's text" prints "$scratch/own" timeout 60 "$python" \
        "$PWD/examples/own_optimizer.py"
    ranks 3 "$build/examples/own_optimizer" 2 >"$scratch/own3"
    claim "... on 3 ranks at stage 2" prints "$scratch/own3" ranks 3 "$python" \
        "$PWD/examples/own_optimizer.py" 2
    claim "Python's functions are called in a step, their exceptions arrive, and ranks form groups" timeout 60 "$python" \
        tests/project/callbacks.py "$scratch/python"
    claim "... on 3 ranks" ranks 3 "$python" tests/project/callbacks.py "$scratch/python3"
    claim "NumPy's views hold numbers; those of bf16 are refused without ml_dtypes" timeout 60 "$python" \
        tests/project/views.py refused
    if "$python" -c 'import ml_dtypes' 2>/dev/null; then
        claim "... and with it hold numbers" timeout 60 "$python" tests/project/views.py
    else
        echo "SKIP: views of bf16: ml_dtypes is not installed"
    fi
    ends_with() { timeout 30 mpirun --bind-to none --map-by :OVERSUBSCRIBE -np 2 "$python" tests/project/exits.py "$2" </dev/null; [[ $? == "$1" ]]; }
    while read -r code case text; do
        claim "Python: $text" ends_with "$code" "$case"
    done <<'EOF'
3 function sys.exit(3) on one rank ends the job with that code, without a wait for ranks that do something else
3 block ... also when it leaves blocks of libzero's objects
1 message ... and sys.exit of a text with 1
1 exception ... as does an exception that nothing catches
0 caught an exit that is caught does not count, and what is not closed is closed at the end
0 caught_outside objects whose blocks an exception has left are closed at the end
0 fork a forked process that ends leaves the objects to its parent
0 garbage garbage is destroyed by all ranks at once, users first, however each rank's garbage collection runs
0 of_another_thread an engine ends with its last reference, though the thread that made it lives on
EOF
    cat >"$scratch/layout.py" <<'EOF'
import ctypes
import sys
import libzero
import numpy
from libzero import _callbacks
c = libzero.Config.default()
print(*map(ctypes.sizeof, (c, libzero.TensorDesc, libzero.Grad, libzero.StepResult, libzero.Group, libzero.Partial,
                           libzero.SaveOptions)))
print(*map(ctypes.sizeof, (_callbacks._OwnOptimizer, _callbacks._Update, _callbacks._Whole, _callbacks._Hooks,
                           _callbacks._Reduced, libzero.Fp8Param)))
print(c.struct_size)
print(c.prefetch, c.max_skipped_steps, c.loss_scale_window, c.staging_bytes, f"{c.offload_ram:.4f}")

comm = libzero.Comm()
model = libzero.Model()
unit = model.add_unit("unit")
tensor = model.add_tensor(unit, "tensor", (3, 5), init=libzero.INIT_ONES)
engine = libzero.Engine(comm, libzero.Device(comm), model, dtype=libzero.FP32)
engine.init_parameters()
try:
    engine.step(0.1)
    raise SystemExit("a step without a pass")
except libzero.Error as error:
    assert error.status == 5 and "zero_step after 0 of 1 micro-steps" in str(error), error
for call in (lambda: engine.begin(2 ** 32), lambda: engine.set_micro_steps(2 ** 32 + 1), lambda: engine.load_weights("/tmp\0x"),
             lambda: model.add_unit("a\0b"), lambda: model.add_tensor(unit, "large", (2 ** 64 + 3,)),
             lambda: libzero.Config.default(micro_steps=2 ** 32 + 1), lambda: libzero.Config.default(seed=-1),
             lambda: model.add_tensor(unit, "large", (-2 ** 63 - 1,)), lambda: model.add_tensor(unit, "t", (1,), init=2 ** 32),
             lambda: libzero.Engine(comm, libzero.Device(comm), model,
                                    own_optimizer=libzero.Optimizer("own", print, 2 ** 32 + 1))):
    try:
        call()
        raise SystemExit("what does not fit into C was taken")
    except (ValueError, ctypes.ArgumentError) as error:
        assert "fit into" in str(error) or "null character" in str(error), error
assert libzero.Config.default(micro_steps=ctypes.c_int(2)).micro_steps == 2
engine.begin(ctypes.c_int(libzero.PASS_TRAIN))
try:
    with engine.forward(unit):
        assert engine.param(tensor).shape == (3, 5) and not engine.param(tensor).flags.writeable
        raise KeyError("of the caller's own")
except KeyError:
    engine.cancel()
values = numpy.arange(15, dtype=numpy.float32).reshape(3, 5)
engine.set_tensor(tensor, values)
engine.set_group(tensor, lr_scale=0.25, beta1=0.5)
group = engine.group(tensor)
assert (group.lr_scale, group.beta1, group.momentum) == (0.25, 0.5, numpy.float32(0.9)), group
engine.set_group(tensor)
assert engine.group(tensor).lr_scale == 1
assert (engine.get_tensor(tensor) == values).all() and (engine.get_tensor(tensor, libzero.M) == 0).all()
engine.begin(libzero.PASS_EVAL)
with engine.forward(unit):
    assert (engine.param(tensor) == values).all()
engine.begin()
with engine.forward(unit):
    pass
with engine.backward(unit):
    engine.grad(tensor)[:] = 1
engine.step(0.1, loss=2.5)
assert engine.wait().loss == 2.5
engine.save(sys.argv[1], state={"note": "mine"})
again = libzero.Engine(comm, libzero.Device(comm), model, dtype=libzero.FP32)
state = again.load(sys.argv[1])
assert (state["step"], state["note"]) == (1, "mine"), state
assert (again.get_tensor(tensor, libzero.M) == engine.get_tensor(tensor, libzero.M, root=0)).all()
again.set_tensor(tensor, values, root=0)
assert (again.get_tensor(tensor) == values).all() and (engine.get_tensor(tensor) != values).all()

# What a GPU's tensors are given out as, here of host memory.
array = libzero.DeviceArray(values.ctypes.data, libzero.FP32, (3, 5), is_cpu=True)
theirs = numpy.from_dlpack(array)
assert theirs.ctypes.data == values.ctypes.data and (theirs == values).all(), theirs
try:
    array.__dlpack__(copy=True)
    raise SystemExit("a copy was made")
except BufferError:
    pass
EOF
    claim "Python's structs are laid out as zero.h's, errors are exceptions, and a checkpoint is loaded" \
        prints "$scratch/layout.txt" "$python" "$scratch/layout.py" "$scratch/checkpoint"
else
    echo "SKIP: Python: NumPy is not installed"
fi
exit $status
