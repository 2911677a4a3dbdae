! linear.f90 - linear.c in Fortran: the same training, the same bits.
!
!     gfortran zero.f90 linear.f90 $(pkg-config --libs zero)
!     mpirun -np 3 ./a.out 2           three ranks at stage 2; without the 2, at stage 3
program linear
    use zero
    implicit none
    integer, parameter :: N_FEATURES = 10, N_SAMPLES = 64, N_STEPS = 150
    type(c_ptr) :: comm = c_null_ptr, device, model, engine
    integer(c_int) :: product_unit, shift, w, b
    real(c_float) :: x(N_FEATURES, N_SAMPLES), y(N_SAMPLES), prediction(N_SAMPLES), error(N_SAMPLES)
    real(c_double), target :: loss
    type(zero_config_t) :: config
    type(zero_step_result_t) :: outcome
    integer :: first, stride, step

    call check(zero_comm_create(ZERO_COMM_AUTO, comm))
    call check(zero_device_create(ZERO_DEVICE_CPU, comm, device))
    call check(zero_model_create(model))
    call add("product", "w", int(N_FEATURES, c_int64_t), product_unit, w)
    call add("shift", "b", 1_c_int64_t, shift, b)
    call make_data()
    first = zero_comm_rank(comm) + 1
    stride = zero_comm_size(comm)

    config = zero_config_default()
    config%stage = stage_asked()
    config%dtype = ZERO_FP32
    call check(zero_engine_create(comm, device, model, config, engine))
    call check(zero_init_parameters(engine))
    do step = 1, N_STEPS
        call forward()
        call backward()
        call check(zero_step(engine, 0.01_c_float, c_loc(loss), c_null_ptr))
        call check(zero_step_wait(engine, outcome))
        if (first == 1 .and. mod(step, 15) == 0) print '(a,i3,a,f8.6)', 'step ', step, '  loss ', outcome%loss
    end do

    call zero_engine_destroy(engine)
    call zero_model_destroy(model)
    call zero_device_destroy(device)
    call zero_comm_destroy(comm)

contains

    ! Ends the whole job after a failure, which has been logged.
    subroutine check(status)
        integer(c_int), intent(in) :: status
        if (status == ZERO_OK) return
        if (c_associated(comm)) call zero_comm_abort(comm, 1_c_int)
        error stop 1
    end subroutine

    ! Declares a unit with one tensor.
    subroutine add(unit_name, tensor_name, n_elems, unit, tensor)
        character(len=*), intent(in) :: unit_name, tensor_name
        integer(c_int64_t), intent(in) :: n_elems
        integer(c_int), intent(out) :: unit, tensor
        character(kind=c_char, len=32), target :: name
        type(zero_tensor_desc_t) :: desc
        name = tensor_name//c_null_char
        desc%name = c_loc(name)
        desc%shape(1) = n_elems
        call check(zero_model_add_unit(model, unit_name//c_null_char, unit))
        call check(zero_model_add_tensor(model, unit, desc, tensor))
    end subroutine

    integer function stage_asked()
        character(len=8) :: argument
        stage_asked = 3
        if (command_argument_count() == 0) return
        call get_command_argument(1, argument)
        read (argument, *) stage_asked
    end function

    subroutine make_data()
        integer :: s, i
        do s = 0, N_SAMPLES - 1
            y(s + 1) = 1.0
            do i = 0, N_FEATURES - 1
                x(i + 1, s + 1) = real(mod(s*37 + i*101 + s*s*i, 127))/63.0 - 1.0
                y(s + 1) = y(s + 1) + (x(i + 1, s + 1)*0.1)*real(i)
            end do
        end do
    end subroutine

    subroutine forward()
        real(c_float), pointer :: weights(:), offset(:)
        integer :: s, i
        loss = 0.0
        call check(zero_begin(engine, ZERO_PASS_TRAIN, c_null_ptr))
        call check(zero_acquire(engine, product_unit, c_null_ptr))
        call c_f_pointer(zero_param(engine, w), weights, [N_FEATURES])
        do s = first, N_SAMPLES, stride
            prediction(s) = 0.0
            do i = 1, N_FEATURES
                prediction(s) = prediction(s) + x(i, s)*weights(i)
            end do
        end do
        call check(zero_release(engine, product_unit, c_null_ptr))
        call check(zero_acquire(engine, shift, c_null_ptr))
        call c_f_pointer(zero_param(engine, b), offset, [1])
        do s = first, N_SAMPLES, stride
            error(s) = (prediction(s) + offset(1)) - y(s)
            loss = loss + real(error(s), c_double)*error(s)/N_SAMPLES
        end do
        call check(zero_release(engine, shift, c_null_ptr))
    end subroutine

    subroutine backward()
        real(c_float), pointer :: grad(:)
        type(zero_grad_t) :: at
        integer :: s, i
        call check(zero_acquire(engine, shift, c_null_ptr))
        at = zero_grad(engine, b)
        call c_f_pointer(at%data, grad, [1])
        grad = 0.0
        do s = first, N_SAMPLES, stride
            grad(1) = grad(1) + 2.0*error(s)/N_SAMPLES
        end do
        call check(zero_grad_ready(engine, shift, c_null_ptr))
        call check(zero_acquire(engine, product_unit, c_null_ptr))
        at = zero_grad(engine, w)
        call c_f_pointer(at%data, grad, [N_FEATURES])
        do i = 1, N_FEATURES
            grad(i) = 0.0
            do s = first, N_SAMPLES, stride
                grad(i) = grad(i) + 2.0*error(s)*x(i, s)/N_SAMPLES
            end do
        end do
        call check(zero_grad_ready(engine, product_unit, c_null_ptr))
    end subroutine
end program
