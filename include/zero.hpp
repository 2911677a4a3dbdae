/* zero.hpp - libzero for C++17: zero.h with owners that destroy, and exceptions instead of statuses. Header only.
 *
 *     zero::comm comm;
 *     zero::device device(comm);
 *     zero::model model;
 *     auto block = model.add_unit("block");
 *     auto weight = model.add_tensor(block, desc);
 *     zero::engine engine(comm, device, model, config);
 *     engine.begin(ZERO_PASS_TRAIN);
 *     engine.forward(block, [&] { use(engine.param<float>(weight)); });
 *     engine.backward(block, [&] { write(engine.grad(weight)); });
 *
 * What a call does, and which are collective, is in zero.h. Every owner can be moved and not copied; get() is zero.h's
 * handle, for the calls that are not repeated here, whose status zero::check takes. Declare them in the order above:
 * they are then destroyed users first.
 *
 * A call that fails throws zero::error, with the status and the line that says why. An exception that leaves a function
 * of yours passes through libzero's C code as a status, and leaves the call as it was thrown. It leaves a pass
 * unfinished: agree with the other ranks (comm::agree), and all call engine::cancel. */
#ifndef ZERO_HPP
#define ZERO_HPP

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "zero.h"

namespace zero
{

/* A call failed. what() is its line, which has been logged, too. */
class error : public std::runtime_error
{
  public:
    error(zero_status_t status, const char *line) : std::runtime_error(text(status, line)), status_(status)
    {
    }
    zero_status_t status() const noexcept
    {
        return status_;
    }

  private:
    static std::string text(zero_status_t status, const char *line)
    {
        return std::string(zero_status_name(status)) + ": " + (*line ? line : zero_status_text(status));
    }
    zero_status_t status_;
};

/* Throws if a call of zero.h failed. */
inline void check(zero_status_t status)
{
    if (status != ZERO_OK)
        throw error(status, zero_last_error());
}

namespace detail
{

template <typename T, void (*destroy)(T *)> struct destroyer {
    void operator()(T *object) const noexcept
    {
        destroy(object);
    }
};
template <typename T, void (*destroy)(T *)> using owner = std::unique_ptr<T, destroyer<T, destroy>>;

/* A function of the caller's, and the exception that it threw. */
template <typename F> struct callback {
    F &function;
    std::exception_ptr thrown;

    static zero_status_t call(void *user, const zero_chunk_t *chunk) noexcept
    {
        auto *self = static_cast<callback *>(user);
        try {
            self->function(*chunk);
            return ZERO_OK;
        } catch (const error &e) {
            self->thrown = std::current_exception();
            return e.status();
        } catch (...) {
            self->thrown = std::current_exception();
            return ZERO_ERROR_ARGUMENT;
        }
    }
    void check(zero_status_t status) const
    {
        if (thrown)
            std::rethrow_exception(thrown);
        zero::check(status);
    }
};

} // namespace detail

/* Functions of yours that an engine calls in a step, as zero_own_optimizer_t and zero_hooks_t say; each may be empty.
 * They may throw: the exception leaves engine::backward, unused or step. */
struct functions {
    std::string optimizer_name; /* with update: an optimizer of your own */
    int n_arrays = 1;
    std::function<void(const zero_own_update_t &, zero_stream_t)> update, prepare;
    std::function<void(const zero_own_whole_t &, zero_stream_t)> whole;
    std::function<void(const zero_reduced_t &, zero_stream_t)> reduced;
    std::function<void(const zero_own_update_t &, zero_stream_t)> updated;
};

namespace detail
{

/* The functions of one engine as C's, and the last exception that one threw. The engine has its address. */
class calls
{
  public:
    explicit calls(zero::functions &&functions) : functions_(std::move(functions))
    {
        own_.name = functions_.optimizer_name.c_str();
        own_.n_arrays = functions_.n_arrays;
        own_.update = c_function<zero_own_update_t, &zero::functions::update>();
        own_.prepare = c_function<zero_own_update_t, &zero::functions::prepare>();
        own_.whole = c_function<zero_own_whole_t, &zero::functions::whole>();
        hooks_.reduced = c_function<zero_reduced_t, &zero::functions::reduced>();
        hooks_.updated = c_function<zero_own_update_t, &zero::functions::updated>();
        own_.user = hooks_.user = this;
    }
    void set(zero_config_t &config) const noexcept
    {
        if (own_.update || own_.prepare || own_.whole) {
            config.optimizer = ZERO_OPTIMIZER_OWN;
            config.own_optimizer = &own_;
        }
        if (hooks_.reduced || hooks_.updated)
            config.hooks = &hooks_;
    }
    /* Throws what a function has thrown in the call that returned `status`, else as zero::check. */
    void check(zero_status_t status)
    {
        const std::exception_ptr thrown = std::exchange(thrown_, nullptr);
        if (status != ZERO_OK && thrown)
            std::rethrow_exception(thrown);
        zero::check(status);
    }

  private:
    template <typename T> using function = std::function<void(const T &, zero_stream_t)>;
    template <typename T> using c_pointer = zero_status_t (*)(void *, const T *, zero_stream_t);

    template <typename T, function<T> zero::functions::*member> c_pointer<T> c_function() const noexcept
    {
        return functions_.*member ? call<T, member> : nullptr;
    }
    template <typename T, function<T> zero::functions::*member>
    static zero_status_t call(void *user, const T *argument, zero_stream_t stream) noexcept
    {
        auto *self = static_cast<calls *>(user);
        try {
            (self->functions_.*member)(*argument, stream);
            return ZERO_OK;
        } catch (...) {
            self->thrown_ = std::current_exception();
            return ZERO_ERROR_ARGUMENT;
        }
    }

    zero::functions functions_;
    zero_own_optimizer_t own_ = {};
    zero_hooks_t hooks_ = {};
    std::exception_ptr thrown_;
};

} // namespace detail

class comm
{
  public:
    explicit comm(zero_comm_kind_t kind = ZERO_COMM_AUTO)
    {
        zero_comm_t *made;
        check(zero_comm_create(kind, &made));
        owner_.reset(made);
    }
    /* The ranks of an MPI communicator; nullptr: this process alone. */
    static comm from(const void *mpi_comm, zero_comm_kind_t kind = ZERO_COMM_AUTO)
    {
        zero_comm_t *made;
        check(zero_comm_create_from(kind, mpi_comm, &made));
        return comm(made);
    }
    int rank() const noexcept
    {
        return zero_comm_rank(get());
    }
    int size() const noexcept
    {
        return zero_comm_size(get());
    }
    void barrier()
    {
        check(zero_comm_barrier(get()));
    }
    void sum(std::vector<double> &values)
    {
        check(zero_comm_sum(get(), values.data(), values.size()));
    }
    /* Returns whether `mine` is true on every rank. */
    bool agree(bool mine)
    {
        const zero_status_t status = zero_comm_agree(get(), mine ? ZERO_OK : ZERO_ERROR_ARGUMENT);
        if (status != ZERO_OK && status != ZERO_ERROR_PEER && (mine || status != ZERO_ERROR_ARGUMENT))
            throw error(status, zero_last_error());
        return status == ZERO_OK;
    }
    [[noreturn]] void abort(int exit_code)
    {
        zero_comm_abort(get(), exit_code);
        std::terminate(); /* without MPI the call returns */
    }
    zero_comm_t *get() const noexcept
    {
        return owner_.get();
    }

  private:
    explicit comm(zero_comm_t *made) : owner_(made)
    {
    }
    detail::owner<zero_comm_t, zero_comm_destroy> owner_;
};

class device
{
  public:
    explicit device(const comm &comm, zero_device_type_t type = ZERO_DEVICE_AUTO)
    {
        zero_device_t *made;
        check(zero_device_create(type, comm.get(), &made));
        owner_.reset(made);
    }
    void synchronize()
    {
        check(zero_device_synchronize(get()));
    }
    zero_device_t *get() const noexcept
    {
        return owner_.get();
    }

  private:
    detail::owner<zero_device_t, zero_device_destroy> owner_;
};

/* A tensor's description: a name, a shape, and what the members of zero_tensor_desc_t say. */
inline zero_tensor_desc_t tensor_desc(const char *name, const std::vector<int64_t> &shape,
                                      zero_init_t init = ZERO_INIT_ZEROS, float init_std = 0.0f)
{
    zero_tensor_desc_t desc = {};
    desc.name = name;
    desc.n_dims = static_cast<int>(shape.size());
    for (size_t i = 0; i < shape.size() && i < ZERO_MAX_DIMS; i++)
        desc.shape[i] = shape[i];
    desc.init = init;
    desc.init_std = init_std;
    return desc;
}

class model
{
  public:
    model()
    {
        zero_model_t *made;
        check(zero_model_create(&made));
        owner_.reset(made);
    }
    zero_unit_t add_unit(const std::string &name)
    {
        zero_unit_t unit;
        check(zero_model_add_unit(get(), name.c_str(), &unit));
        return unit;
    }
    zero_tensor_t add_tensor(zero_unit_t unit, const zero_tensor_desc_t &desc)
    {
        zero_tensor_t tensor;
        check(zero_model_add_tensor(get(), unit, &desc, &tensor));
        return tensor;
    }
    void share_tensor(zero_unit_t unit, zero_tensor_t tensor)
    {
        check(zero_model_share_tensor(get(), unit, tensor));
    }
    uint64_t n_params() const noexcept
    {
        return zero_model_n_params(get());
    }
    zero_model_t *get() const noexcept
    {
        return owner_.get();
    }

  private:
    detail::owner<zero_model_t, zero_model_destroy> owner_;
};

/* An open checkpoint: a step's directory, or the latest in a directory of checkpoints. */
class checkpoint
{
  public:
    checkpoint(const comm &comm, const std::string &directory)
    {
        zero_checkpoint_t *made;
        check(zero_checkpoint_open(comm.get(), directory.c_str(), &made));
        owner_.reset(made);
    }
    uint64_t step() const noexcept
    {
        return zero_checkpoint_step(get());
    }
    /* state.json, with the keys of whoever saved it. */
    std::string state() const
    {
        return zero_checkpoint_state(get());
    }
    zero_checkpoint_t *get() const noexcept
    {
        return owner_.get();
    }

  private:
    detail::owner<zero_checkpoint_t, zero_checkpoint_close> owner_;
};

class engine
{
  public:
    engine(const comm &comm, const device &device, const model &model, zero_config_t config, functions functions = {})
        : calls_(std::make_unique<detail::calls>(std::move(functions)))
    {
        zero_engine_t *made;
        calls_->set(config);
        check(zero_engine_create(comm.get(), device.get(), model.get(), &config, &made));
        owner_.reset(made);
    }

    void init_parameters()
    {
        check(zero_init_parameters(get()));
    }
    void load_weights(const std::string &directory)
    {
        check(zero_load_weights(get(), directory.c_str()));
    }
    zero_partial_t load_weights_partial(const std::string &directory)
    {
        zero_partial_t partial;
        check(zero_load_weights_partial(get(), directory.c_str(), &partial));
        return partial;
    }
    void load(const checkpoint &checkpoint)
    {
        check(zero_load(get(), checkpoint.get()));
    }
    zero_partial_t load_partial(const checkpoint &checkpoint)
    {
        zero_partial_t partial;
        check(zero_load_partial(get(), checkpoint.get(), &partial));
        return partial;
    }
    /* Saves the step that wait() returned last, and waits until it is complete. */
    void save(const std::string &directory, const zero_save_options_t &options = {})
    {
        zero_save_t *made;
        check(zero_save_begin(get(), directory.c_str(), &options, &made));
        check(zero_save_end(made));
    }
    /* fill(const zero_chunk_t &) may throw. */
    template <typename F> void set_state(bool with_moments, F &&fill)
    {
        detail::callback<std::remove_reference_t<F>> call{fill, nullptr};
        call.check(zero_set_state(get(), with_moments, call.call, &call));
    }
    /* visit(const zero_chunk_t &) may throw. */
    template <typename F> void get_state(F &&visit)
    {
        detail::callback<std::remove_reference_t<F>> call{visit, nullptr};
        call.check(zero_get_state(get(), call.call, &call));
    }
    /* On every rank. */
    std::vector<float> get_tensor(zero_tensor_t tensor, size_t n_elems, zero_array_t array = ZERO_ARRAY_WEIGHT)
    {
        std::vector<float> data(n_elems);
        check(zero_get_tensor(get(), tensor, array, ZERO_ALL_RANKS, data.data()));
        return data;
    }
    void set_tensor(zero_tensor_t tensor, const std::vector<float> &data, zero_array_t array = ZERO_ARRAY_WEIGHT)
    {
        check(zero_set_tensor(get(), tensor, array, ZERO_ALL_RANKS, data.data()));
    }

    void begin(zero_pass_t pass, zero_stream_t stream = nullptr)
    {
        check(zero_begin(get(), pass, stream));
    }
    /* Acquires the unit, computes, and releases it. If compute throws, the unit stays acquired until cancel. */
    template <typename F> void forward(zero_unit_t unit, F &&compute, zero_stream_t stream = nullptr)
    {
        check(zero_acquire(get(), unit, stream));
        compute();
        check(zero_release(get(), unit, stream));
    }
    /* The same in backward, where compute writes the gradients. */
    template <typename F> void backward(zero_unit_t unit, F &&compute, zero_stream_t stream = nullptr)
    {
        check(zero_acquire(get(), unit, stream));
        compute();
        calls_->check(zero_grad_ready(get(), unit, stream));
    }
    /* In the place of forward or backward: this rank does not use the unit. */
    void unused(zero_unit_t unit, zero_stream_t stream = nullptr)
    {
        calls_->check(zero_unused(get(), unit, stream));
    }
    template <typename T> const T *param(zero_tensor_t tensor) const noexcept
    {
        return static_cast<const T *>(zero_param(get(), tensor));
    }
    zero_fp8_param_t param_fp8(zero_tensor_t tensor) const noexcept
    {
        return zero_param_fp8(get(), tensor);
    }
    zero_grad_t grad(zero_tensor_t tensor) const noexcept
    {
        return zero_grad(get(), tensor);
    }
    /* For ZERO_UPDATE_IN_BACKWARD, before the step's last pass begins; step must then get the same. */
    void set_lr(float lr)
    {
        check(zero_set_lr(get(), lr));
    }
    void step(float lr, const double *local_loss = nullptr, zero_stream_t stream = nullptr)
    {
        calls_->check(zero_step(get(), lr, local_loss, stream));
    }
    zero_step_result_t wait()
    {
        zero_step_result_t result;
        check(zero_step_wait(get(), &result));
        return result;
    }
    void set_micro_steps(int micro_steps)
    {
        check(zero_set_micro_steps(get(), micro_steps));
    }
    /* The settings that the next step takes for one tensor: change them, and set them. */
    zero_group_t group(zero_tensor_t tensor) const
    {
        zero_group_t group;
        check(zero_get_group(get(), tensor, &group));
        return group;
    }
    void set_group(zero_tensor_t tensor, const zero_group_t &group)
    {
        check(zero_set_group(get(), tensor, &group));
    }
    /* Removes the tensor's own settings. */
    void reset_group(zero_tensor_t tensor)
    {
        check(zero_set_group(get(), tensor, nullptr));
    }
    void cancel()
    {
        check(zero_cancel(get()));
    }
    zero_engine_t *get() const noexcept
    {
        return owner_.get();
    }

  private:
    std::unique_ptr<detail::calls> calls_; /* outlives the engine */
    detail::owner<zero_engine_t, zero_engine_destroy> owner_;
};

} // namespace zero
#endif
