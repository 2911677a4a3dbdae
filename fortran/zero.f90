! zero.f90 - libzero for Fortran 2008: the functions and types of zero.h by iso_c_binding, under their names there.
!
!     gfortran zero.f90 linear.f90 $(pkg-config --libs zero)
!
! What a call does is in zero.h. Handles are type(c_ptr). Units, tensors and ranks count from 0, as in C; the first
! dimension of a Fortran array is the last of a tensor's shape. A call that fails returns another status than ZERO_OK;
! zero_last_error_text says why. c_f_pointer makes an array of what zero_param and zero_grad return.
module zero
    use, intrinsic :: iso_c_binding
    implicit none
    public

    enum, bind(c) ! zero_status_t
        enumerator :: ZERO_OK, ZERO_ERROR_ARGUMENT, ZERO_ERROR_USAGE, ZERO_ERROR_MEMORY, ZERO_ERROR_OVERFLOW, &
            ZERO_ERROR_ORDER, ZERO_ERROR_MISMATCH, ZERO_ERROR_IO, ZERO_ERROR_FORMAT, ZERO_ERROR_COMM, &
            ZERO_ERROR_PEER, ZERO_ERROR_TIMEOUT, ZERO_ERROR_DEVICE, ZERO_ERROR_NONFINITE, ZERO_ERROR_UNSUPPORTED, &
            ZERO_ERROR_INTERNAL
    end enum
    enum, bind(c) ! zero_comm_kind_t
        enumerator :: ZERO_COMM_AUTO, ZERO_COMM_MPI, ZERO_COMM_NCCL
    end enum
    enum, bind(c) ! zero_device_type_t
        enumerator :: ZERO_DEVICE_AUTO, ZERO_DEVICE_CPU, ZERO_DEVICE_CUDA, ZERO_DEVICE_CUDA_SHARED
    end enum
    enum, bind(c) ! zero_init_t
        enumerator :: ZERO_INIT_ZEROS, ZERO_INIT_ONES, ZERO_INIT_NORMAL
    end enum
    enum, bind(c) ! zero_dtype_t
        enumerator :: ZERO_FP32, ZERO_BF16, ZERO_FP16
    end enum
    enum, bind(c) ! zero_optimizer_t
        enumerator :: ZERO_OPTIMIZER_ADAMW, ZERO_OPTIMIZER_SGD, ZERO_OPTIMIZER_NESTEROV, ZERO_OPTIMIZER_LION, &
            ZERO_OPTIMIZER_OWN, ZERO_OPTIMIZER_MUON, ZERO_OPTIMIZER_ADAMW8BIT
    end enum
    enum, bind(c) ! zero_update_time_t
        enumerator :: ZERO_UPDATE_IN_STEP, ZERO_UPDATE_IN_BACKWARD
    end enum
    enum, bind(c) ! zero_pass_t
        enumerator :: ZERO_PASS_TRAIN, ZERO_PASS_EVAL, ZERO_PASS_INPUT_GRAD
    end enum
    enum, bind(c) ! zero_array_t
        enumerator :: ZERO_ARRAY_WEIGHT, ZERO_ARRAY_M, ZERO_ARRAY_V, ZERO_ARRAY_GRAD
    end enum
    integer(c_int), parameter :: ZERO_ALL_RANKS = -1
    integer, parameter :: ZERO_MAX_DIMS = 4

    type, bind(c) :: zero_tensor_desc_t
        type(c_ptr) :: name = c_null_ptr ! c_loc of a text that ends in c_null_char
        integer(c_int) :: n_dims = 1
        integer(c_int64_t) :: shape(ZERO_MAX_DIMS) = 0
        integer(c_int) :: init = ZERO_INIT_ZEROS
        real(c_float) :: init_std = 0.0
        logical(c_bool) :: decay = .false., packed = .false., fp8 = .false., frozen = .false.
        logical(c_bool) :: hidden_matrix = .false., not_saved = .false., frozen_fp8 = .false.
        integer(c_int8_t) :: reserved(33) = 0
    end type

    type, bind(c) :: zero_config_t ! zero_config_default has the defaults
        integer(c_size_t) :: struct_size = 0
        integer(c_int) :: stage, dtype, micro_steps, prefetch, keep
        logical(c_bool) :: overlap, reduce_every_micro_step, nccl_reduction
        integer(c_int) :: shard_group
        logical(c_bool) :: gather_fp8
        integer(c_int64_t) :: seed
        integer(c_int) :: optimizer
        type(c_ptr) :: own_optimizer, hooks
        real(c_float) :: beta1, beta2, eps, weight_decay, momentum, muon_momentum
        integer(c_int) :: muon_steps
        real(c_float) :: grad_clip
        integer(c_int) :: max_skipped_steps
        real(c_float) :: initial_loss_scale
        integer(c_int) :: loss_scale_window, loss_scale_hysteresis
        logical(c_bool) :: offload
        real(c_float) :: offload_ratio
        integer(c_int) :: offload_update
        integer(c_size_t) :: offload_buffer_bytes
        integer(c_int) :: offload_threads
        real(c_float) :: offload_ram
        integer(c_size_t) :: staging_bytes, user_bytes
        logical(c_bool) :: check, forward_only
        integer(c_int8_t) :: unused(2)
        real(c_float) :: offload_params
        integer(c_size_t) :: user_pinned_bytes
        integer(c_int) :: update, gradients, offload_grads
        integer(c_int8_t) :: reserved(4)
    end type

    type, bind(c) :: zero_grad_t
        type(c_ptr) :: data
        integer(c_int) :: dtype
        logical(c_bool) :: accumulate
    end type

    type, bind(c) :: zero_fp8_scales_t
        real(c_float) :: inverse, scale
        integer(c_int32_t) :: absmax, unused
    end type

    ! data: bytes in E4M3; scales: of type zero_fp8_scales_t
    type, bind(c) :: zero_fp8_param_t
        type(c_ptr) :: data, scales
    end type

    type, bind(c) :: zero_step_result_t
        integer(c_int64_t) :: step
        real(c_float) :: loss, grad_norm, loss_scale
        logical(c_bool) :: skipped
        integer(c_int32_t) :: notice
        real(c_double) :: step_ms, exposed_comm_ms, exposed_host_ms
        integer(c_int64_t) :: pcie_bytes, reserved(2)
    end type

    type, bind(c) :: zero_partial_t
        integer(c_int) :: n_loaded, n_kept, n_ignored, reserved(5)
    end type

    type, bind(c) :: zero_save_options_t
        type(c_ptr) :: config_json = c_null_ptr, state_json = c_null_ptr ! as zero_tensor_desc_t's name
        integer(c_int) :: keep = 0
        integer(c_int64_t) :: max_file_bytes = 0
        logical(c_bool) :: background = .false., per_host = .false.
        type(c_ptr) :: files = c_null_ptr
        integer(c_int) :: n_files = 0
        integer(c_int8_t) :: reserved(36) = 0
    end type

    type, bind(c) :: zero_group_t
        real(c_float) :: lr_scale, weight_decay, beta1, beta2, eps, momentum
        integer(c_int8_t) :: reserved(40) = 0
    end type

    ! An optimizer of your own: config%optimizer = ZERO_OPTIMIZER_OWN, and c_loc of this in config%own_optimizer. Its
    ! functions, by c_funloc, are as own_fn below; those of whole get a zero_own_whole_t.
    type, bind(c) :: zero_own_optimizer_t
        type(c_ptr) :: name = c_null_ptr ! as zero_tensor_desc_t's
        integer(c_int) :: n_arrays = 1
        type(c_funptr) :: update = c_null_funptr
        type(c_ptr) :: user = c_null_ptr
        type(c_funptr) :: prepare = c_null_funptr, whole = c_null_funptr
        integer(c_int8_t) :: reserved(16) = 0
    end type

    type, bind(c) :: zero_own_update_t
        integer(c_int) :: tensor
        integer(c_int64_t) :: first
        integer(c_size_t) :: n_elems
        type(c_ptr) :: weight, m, v, grad ! real(c_float), n_elems
        real(c_float) :: lr, decay
        type(c_ptr) :: grad_scale, step, skip ! one real(c_float), integer(c_int64_t) and integer(c_int32_t)
        type(c_ptr) :: direction
    end type

    type, bind(c) :: zero_own_whole_t
        integer(c_int) :: tensor
        integer(c_int64_t) :: rows, cols
        type(c_ptr) :: direction ! real(c_float), cols x rows
        type(c_ptr) :: grad_scale, step, skip
    end type

    ! Hooks: c_loc of this in config%hooks. reduced is as own_fn, with a zero_reduced_t; updated is own_fn.
    type, bind(c) :: zero_hooks_t
        type(c_funptr) :: reduced = c_null_funptr, updated = c_null_funptr
        type(c_ptr) :: user = c_null_ptr
        integer(c_int8_t) :: reserved(32) = 0
    end type

    type, bind(c) :: zero_reduced_t
        integer(c_int) :: tensor
        integer(c_int64_t) :: first
        integer(c_size_t) :: n_elems
        type(c_ptr) :: grad, loss_scale
        integer(c_int64_t) :: step
    end type

    abstract interface
        function own_fn(user, update, stream) bind(c) result(status)
            import :: c_int, c_ptr, zero_own_update_t
            type(c_ptr), value :: user
            type(zero_own_update_t), intent(in) :: update
            type(c_ptr), value :: stream
            integer(c_int) :: status
        end function
    end interface

    interface
        function zero_last_error() bind(c)
            import :: c_ptr
            type(c_ptr) :: zero_last_error
        end function

        function zero_comm_create(kind, comm) bind(c) result(status)
            import :: c_int, c_ptr
            integer(c_int), value :: kind
            type(c_ptr), intent(out) :: comm
            integer(c_int) :: status
        end function

        ! fortran_comm: an integer handle, as of use mpi; of use mpi_f08, comm%mpi_val
        function zero_comm_create_from_f(kind, fortran_comm, comm) bind(c) result(status)
            import :: c_int, c_ptr
            integer(c_int), value :: kind, fortran_comm
            type(c_ptr), intent(out) :: comm
            integer(c_int) :: status
        end function

        subroutine zero_comm_destroy(comm) bind(c)
            import :: c_ptr
            type(c_ptr), value :: comm
        end subroutine

        subroutine zero_comm_abort(comm, exit_code) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: comm
            integer(c_int), value :: exit_code
        end subroutine

        function zero_comm_rank(comm) bind(c) result(rank)
            import :: c_int, c_ptr
            type(c_ptr), value :: comm
            integer(c_int) :: rank
        end function

        function zero_comm_size(comm) bind(c) result(n_ranks)
            import :: c_int, c_ptr
            type(c_ptr), value :: comm
            integer(c_int) :: n_ranks
        end function

        function zero_comm_agree(comm, mine) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: comm
            integer(c_int), value :: mine
            integer(c_int) :: status
        end function

        function zero_comm_barrier(comm) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: comm
            integer(c_int) :: status
        end function

        function zero_comm_sum(comm, values, n_values) bind(c) result(status)
            import :: c_double, c_int, c_ptr, c_size_t
            type(c_ptr), value :: comm
            integer(c_size_t), value :: n_values
            real(c_double), intent(inout) :: values(n_values)
            integer(c_int) :: status
        end function

        function zero_device_create(kind, comm, device) bind(c) result(status)
            import :: c_int, c_ptr
            integer(c_int), value :: kind
            type(c_ptr), value :: comm
            type(c_ptr), intent(out) :: device
            integer(c_int) :: status
        end function

        subroutine zero_device_destroy(device) bind(c)
            import :: c_ptr
            type(c_ptr), value :: device
        end subroutine

        function zero_model_create(model) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), intent(out) :: model
            integer(c_int) :: status
        end function

        subroutine zero_model_destroy(model) bind(c)
            import :: c_ptr
            type(c_ptr), value :: model
        end subroutine

        function zero_model_add_unit(model, name, unit) bind(c) result(status)
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: model
            character(kind=c_char), intent(in) :: name(*) ! ends in c_null_char
            integer(c_int), intent(out) :: unit
            integer(c_int) :: status
        end function

        function zero_model_add_tensor(model, unit, desc, tensor) bind(c) result(status)
            import :: c_int, c_ptr, zero_tensor_desc_t
            type(c_ptr), value :: model
            integer(c_int), value :: unit
            type(zero_tensor_desc_t), intent(in) :: desc
            integer(c_int), intent(out) :: tensor
            integer(c_int) :: status
        end function

        function zero_model_share_tensor(model, unit, tensor) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: model
            integer(c_int), value :: unit, tensor
            integer(c_int) :: status
        end function

        function zero_config_init(config, struct_size) bind(c) result(status)
            import :: c_int, c_size_t, zero_config_t
            type(zero_config_t), intent(inout) :: config
            integer(c_size_t), value :: struct_size
            integer(c_int) :: status
        end function

        function zero_config_set(config, name, text) bind(c) result(status)
            import :: c_char, c_int, zero_config_t
            type(zero_config_t), intent(inout) :: config
            character(kind=c_char), intent(in) :: name(*), text(*) ! each ends in c_null_char
            integer(c_int) :: status
        end function

        function zero_engine_create(comm, device, model, config, engine) bind(c) result(status)
            import :: c_int, c_ptr, zero_config_t
            type(c_ptr), value :: comm, device, model
            type(zero_config_t), intent(in) :: config
            type(c_ptr), intent(out) :: engine
            integer(c_int) :: status
        end function

        subroutine zero_engine_destroy(engine) bind(c)
            import :: c_ptr
            type(c_ptr), value :: engine
        end subroutine

        function zero_init_parameters(engine) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int) :: status
        end function

        function zero_load_weights(engine, directory) bind(c) result(status)
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: engine
            character(kind=c_char), intent(in) :: directory(*) ! ends in c_null_char
            integer(c_int) :: status
        end function

        function zero_load_weights_partial(engine, directory, partial) bind(c) result(status)
            import :: c_char, c_int, c_ptr, zero_partial_t
            type(c_ptr), value :: engine
            character(kind=c_char), intent(in) :: directory(*) ! ends in c_null_char
            type(zero_partial_t), intent(out) :: partial
            integer(c_int) :: status
        end function

        function zero_save_prepare(comm, directory) bind(c) result(status)
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: comm
            character(kind=c_char), intent(in) :: directory(*) ! ends in c_null_char
            integer(c_int) :: status
        end function

        function zero_save_begin(engine, directory, options, save_handle) bind(c) result(status)
            import :: c_char, c_int, c_ptr, zero_save_options_t
            type(c_ptr), value :: engine
            character(kind=c_char), intent(in) :: directory(*) ! ends in c_null_char
            type(zero_save_options_t), intent(in) :: options
            type(c_ptr), intent(out) :: save_handle
            integer(c_int) :: status
        end function

        function zero_save_end(save_handle) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: save_handle
            integer(c_int) :: status
        end function

        function zero_checkpoint_open(comm, directory, checkpoint) bind(c) result(status)
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: comm
            character(kind=c_char), intent(in) :: directory(*) ! ends in c_null_char
            type(c_ptr), intent(out) :: checkpoint
            integer(c_int) :: status
        end function

        function zero_checkpoint_step(checkpoint) bind(c) result(step)
            import :: c_int64_t, c_ptr
            type(c_ptr), value :: checkpoint
            integer(c_int64_t) :: step
        end function

        subroutine zero_checkpoint_close(checkpoint) bind(c)
            import :: c_ptr
            type(c_ptr), value :: checkpoint
        end subroutine

        function zero_load(engine, checkpoint) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine, checkpoint
            integer(c_int) :: status
        end function

        function zero_load_partial(engine, checkpoint, partial) bind(c) result(status)
            import :: c_int, c_ptr, zero_partial_t
            type(c_ptr), value :: engine, checkpoint
            type(zero_partial_t), intent(out) :: partial
            integer(c_int) :: status
        end function

        ! values: a real(c_float) array, its address by c_loc, or c_null_ptr
        function zero_get_tensor(engine, tensor, array, root, values) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: tensor, array, root
            type(c_ptr), value :: values
            integer(c_int) :: status
        end function

        function zero_set_tensor(engine, tensor, array, root, values) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: tensor, array, root
            type(c_ptr), value :: values
            integer(c_int) :: status
        end function

        function zero_begin(engine, pass, stream) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: pass
            type(c_ptr), value :: stream
            integer(c_int) :: status
        end function

        function zero_acquire(engine, unit, stream) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: unit
            type(c_ptr), value :: stream
            integer(c_int) :: status
        end function

        function zero_release(engine, unit, stream) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: unit
            type(c_ptr), value :: stream
            integer(c_int) :: status
        end function

        function zero_unused(engine, unit, stream) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: unit
            type(c_ptr), value :: stream
            integer(c_int) :: status
        end function

        function zero_grad_ready(engine, unit, stream) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: unit
            type(c_ptr), value :: stream
            integer(c_int) :: status
        end function

        function zero_param(engine, tensor) bind(c) result(param)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: tensor
            type(c_ptr) :: param
        end function

        function zero_param_fp8(engine, tensor) bind(c) result(param)
            import :: c_int, c_ptr, zero_fp8_param_t
            type(c_ptr), value :: engine
            integer(c_int), value :: tensor
            type(zero_fp8_param_t) :: param
        end function

        function zero_grad(engine, tensor) bind(c) result(grad)
            import :: c_int, c_ptr, zero_grad_t
            type(c_ptr), value :: engine
            integer(c_int), value :: tensor
            type(zero_grad_t) :: grad
        end function

        function zero_set_micro_steps(engine, micro_steps) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: micro_steps
            integer(c_int) :: status
        end function

        ! group: c_loc of a zero_group_t, or c_null_ptr
        function zero_set_group(engine, tensor, group) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int), value :: tensor
            type(c_ptr), value :: group
            integer(c_int) :: status
        end function

        function zero_get_group(engine, tensor, group) bind(c) result(status)
            import :: c_int, c_ptr, zero_group_t
            type(c_ptr), value :: engine
            integer(c_int), value :: tensor
            type(zero_group_t), intent(out) :: group
            integer(c_int) :: status
        end function

        ! for ZERO_UPDATE_IN_BACKWARD, before the step's last pass begins
        function zero_set_lr(engine, lr) bind(c) result(status)
            import :: c_float, c_int, c_ptr
            type(c_ptr), value :: engine
            real(c_float), value :: lr
            integer(c_int) :: status
        end function

        function zero_cancel(engine) bind(c) result(status)
            import :: c_int, c_ptr
            type(c_ptr), value :: engine
            integer(c_int) :: status
        end function

        ! local_loss: c_loc of a real(c_double), or c_null_ptr
        function zero_step(engine, lr, local_loss, stream) bind(c) result(status)
            import :: c_float, c_int, c_ptr
            type(c_ptr), value :: engine
            real(c_float), value :: lr
            type(c_ptr), value :: local_loss, stream
            integer(c_int) :: status
        end function

        function zero_step_wait(engine, step_result) bind(c) result(status)
            import :: c_int, c_ptr, zero_step_result_t
            type(c_ptr), value :: engine
            type(zero_step_result_t), intent(out) :: step_result
            integer(c_int) :: status
        end function
    end interface

contains

    function zero_config_default() result(config)
        type(zero_config_t) :: config
        integer(c_int) :: status
        status = zero_config_init(config, c_sizeof(config))
        if (status /= ZERO_OK) config%struct_size = 0 ! refused wherever it is used
    end function

    ! Returns the text of this thread's last error.
    function zero_last_error_text() result(text)
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: chars(:)
        integer :: i, n
        interface
            function strlen(chars) bind(c)
                import :: c_ptr, c_size_t
                type(c_ptr), value :: chars
                integer(c_size_t) :: strlen
            end function
        end interface
        n = int(strlen(zero_last_error()))
        call c_f_pointer(zero_last_error(), chars, [n])
        allocate (character(len=n) :: text)
        do i = 1, n
            text(i:i) = chars(i)
        end do
    end function
end module
