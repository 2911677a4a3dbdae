! own_optimizer.f90 - own_optimizer.c in Fortran: AdaGrad as an optimizer of your own, the same bits.
!
!     gfortran zero.f90 own_optimizer.f90 $(pkg-config --libs zero)
!     mpirun -np 3 ./a.out 2           three ranks at stage 2; without the 2, at stage 3
module adagrad_optimizer
    use zero
    implicit none

contains

    ! Updates a run of elements of a tensor: the part of it that this rank holds. m sums the squares of gradients.
    function adagrad(user, update, stream) bind(c) result(status)
        type(c_ptr), value :: user
        type(zero_own_update_t), intent(in) :: update
        type(c_ptr), value :: stream
        integer(c_int) :: status
        real(c_float), pointer :: eps, grad_scale, weight(:), m(:), grad(:)
        integer(c_int32_t), pointer :: skip
        real(c_float) :: g
        integer(c_size_t) :: i
        status = ZERO_OK
        if (c_associated(stream)) status = ZERO_ERROR_UNSUPPORTED ! a GPU's
        call c_f_pointer(update%skip, skip)
        if (skip /= 0 .or. status /= ZERO_OK) return
        call c_f_pointer(user, eps)
        call c_f_pointer(update%grad_scale, grad_scale)
        call c_f_pointer(update%weight, weight, [update%n_elems])
        call c_f_pointer(update%m, m, [update%n_elems])
        call c_f_pointer(update%grad, grad, [update%n_elems])
        do i = 1, update%n_elems
            g = grad(i)*grad_scale
            m(i) = m(i) + g*g
            weight(i) = weight(i) - update%lr*g/(sqrt(m(i)) + eps)
        end do
    end function
end module

program own_optimizer
    use adagrad_optimizer
    implicit none
    integer, parameter :: N = 1000, N_STEPS = 40
    type(c_ptr) :: comm = c_null_ptr, device, model, engine
    integer(c_int) :: unit, w
    character(kind=c_char, len=2), target :: w_name = "w"//c_null_char
    character(kind=c_char, len=8), target :: own_name = "adagrad"//c_null_char
    character(len=8) :: stage = "3"
    real(c_float), target :: eps = 1e-8
    real(c_double), target :: loss
    procedure(own_fn), pointer :: update => adagrad
    type(zero_own_optimizer_t), target :: own
    type(zero_config_t) :: config
    type(zero_tensor_desc_t) :: desc
    type(zero_step_result_t) :: outcome
    integer :: step

    call check(zero_comm_create(ZERO_COMM_AUTO, comm))
    call check(zero_device_create(ZERO_DEVICE_CPU, comm, device))
    call check(zero_model_create(model))
    call check(zero_model_add_unit(model, "unit"//c_null_char, unit))
    desc%name = c_loc(w_name)
    desc%shape(1) = N
    call check(zero_model_add_tensor(model, unit, desc, w))

    own%name = c_loc(own_name)
    own%update = c_funloc(update)
    own%user = c_loc(eps)
    config = zero_config_default()
    if (command_argument_count() > 0) call get_command_argument(1, stage)
    call check(zero_config_set(config, "stage"//c_null_char, trim(stage)//c_null_char))
    config%dtype = ZERO_FP32
    config%grad_clip = 0.0
    config%optimizer = ZERO_OPTIMIZER_OWN
    config%own_optimizer = c_loc(own)
    call check(zero_engine_create(comm, device, model, config, engine))
    call check(zero_init_parameters(engine))
    do step = 1, N_STEPS
        loss = forward_and_backward()
        call check(zero_step(engine, 0.1_c_float, c_loc(loss), c_null_ptr))
        call check(zero_step_wait(engine, outcome))
        if (zero_comm_rank(comm) == 0) print '(a,i0,a,es12.5)', 'step ', step, ' loss ', outcome%loss
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

    ! Returns this rank's share of the loss, and writes its share of the gradient.
    function forward_and_backward() result(total)
        real(c_double) :: total
        real(c_float), pointer :: weight(:), grad(:)
        type(zero_grad_t) :: buffer
        real(c_float) :: a, distance, n_ranks
        integer :: i
        n_ranks = real(zero_comm_size(comm), c_float)
        total = 0.0
        call check(zero_begin(engine, ZERO_PASS_TRAIN, c_null_ptr))
        call check(zero_acquire(engine, unit, c_null_ptr))
        call check(zero_release(engine, unit, c_null_ptr))
        call check(zero_acquire(engine, unit, c_null_ptr))
        call c_f_pointer(zero_param(engine, w), weight, [N])
        buffer = zero_grad(engine, w)
        call c_f_pointer(buffer%data, grad, [N])
        do i = 1, N
            a = real(1 + mod(i - 1, 7), c_float)
            distance = weight(i) - real(mod(i - 1, 11), c_float)/10.0
            total = total + 0.5d0*real(a, c_double)*real(distance, c_double)**2/real(n_ranks, c_double)
            grad(i) = a*distance/n_ranks
        end do
        call check(zero_grad_ready(engine, unit, c_null_ptr))
    end function
end program
