/* exceptions.cpp - what zero.hpp promises about exceptions: one that leaves a callback passes through libzero's C code
 * and arrives as it was thrown; one that leaves a pass ends in zero_cancel; a failed call throws its line. Run by
 * test_languages.sh, alone and on several ranks. Exit code 0 if all held. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <zero.hpp>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                               \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

/* Neither copied nor sliced on its way. */
struct own_exception {
    int number;
};

static const size_t N_ELEMS = 1000;

static void fill(const zero_chunk_t &chunk, int step)
{
    for (size_t i = 0; i < chunk.n_elems; i++)
        chunk.master[i] = static_cast<float>(step) + static_cast<float>(chunk.first + i);
}

/* The last rank's callback throws; the others learn that a rank failed. */
static void throw_from_a_callback(const zero::comm &comm, zero::engine &engine)
{
    const bool throws = comm.rank() == comm.size() - 1;
    int caught = 0;
    try {
        engine.set_state(false, [&](const zero_chunk_t &chunk) {
            if (throws)
                throw own_exception{42};
            fill(chunk, 0);
        });
    } catch (const own_exception &e) {
        caught = e.number;
    } catch (const zero::error &e) {
        EXPECT(e.status() == ZERO_ERROR_PEER && std::strstr(e.what(), "rank") != nullptr);
        caught = -1;
    }
    EXPECT(caught == (throws ? 42 : -1));
    try {
        engine.begin(ZERO_PASS_EVAL);
        EXPECT(false);
    } catch (const zero::error &e) {
        EXPECT(e.status() == ZERO_ERROR_ORDER && std::strstr(e.what(), "the weights are incomplete") != nullptr);
    }
    engine.set_state(false, [](const zero_chunk_t &chunk) { fill(chunk, 1); });
    try {
        engine.get_state([](const zero_chunk_t &) { throw own_exception{7}; });
        EXPECT(false);
    } catch (const own_exception &e) {
        EXPECT(e.number == 7);
    }
}

static float train(zero::engine &engine, zero_unit_t unit, zero_tensor_t tensor, bool throws, zero::comm &comm)
{
    bool is_well = true;
    try {
        engine.begin(ZERO_PASS_TRAIN);
        engine.forward(unit, [&] {
            if (throws && comm.rank() == 0)
                throw own_exception{1};
        });
    } catch (const own_exception &) {
        is_well = false;
        zero::check(zero_release(engine.get(), unit, nullptr)); /* to where the others are */
    }
    if (!comm.agree(is_well)) {
        engine.cancel();
        return -1.0f;
    }
    engine.backward(unit, [&] {
        float *grad = static_cast<float *>(engine.grad(tensor).data);
        for (size_t i = 0; i < N_ELEMS; i++)
            grad[i] = 0.01f;
    });
    engine.step(0.01f);
    return engine.wait().grad_norm;
}

/* A model with one tensor more takes what the checkpoint has, and keeps the other; zero_load refuses it. */
static void load_what_was_saved(zero::comm &comm, zero::device &device, zero::engine &engine, const char *directory,
                                zero_tensor_t tensor)
{
    zero::model larger;
    const auto unit = larger.add_unit("unit");
    larger.add_tensor(unit, zero::tensor_desc("tensor", {10, N_ELEMS / 10}, ZERO_INIT_ZEROS));
    const auto head = larger.add_tensor(unit, zero::tensor_desc("head", {7}, ZERO_INIT_ONES));
    zero_config_t config = zero_config_default();
    config.dtype = ZERO_FP32;
    zero::check(zero_save_prepare(comm.get(), directory));
    engine.save(directory);
    zero::engine other(comm, device, larger, config);
    other.init_parameters();
    const zero::checkpoint checkpoint(comm, directory);
    EXPECT(checkpoint.step() == 3 && checkpoint.state().find("\"step\"") != std::string::npos);
    try {
        other.load(checkpoint);
        EXPECT(false);
    } catch (const zero::error &e) {
        EXPECT(e.status() == ZERO_ERROR_FORMAT);
    }
    const zero_partial_t partial = other.load_partial(checkpoint);
    EXPECT(partial.n_loaded == 1 && partial.n_kept == 1 && partial.n_ignored == 0);
    EXPECT(other.get_tensor(tensor, N_ELEMS) == engine.get_tensor(tensor, N_ELEMS));
    EXPECT(other.get_tensor(head, 7) == std::vector<float>(7, 1.0f));
}

/* One that leaves an optimizer or a hook leaves the call that it was called from, as it was thrown, on its rank. */
static void throw_in_a_step(zero::comm &comm, zero::device &device, const zero::model &model, zero_unit_t unit,
                            zero_tensor_t tensor)
{
    const bool is_last = comm.rank() == comm.size() - 1;
    bool throws = is_last;
    zero_config_t config = zero_config_default();
    config.dtype = ZERO_FP32;
    config.grad_clip = 0.0f;
    zero::functions functions;
    functions.optimizer_name = "half";
    functions.update = [](const zero_own_update_t &u, zero_stream_t) {
        for (size_t i = 0; i < u.n_elems && !*u.skip; i++)
            u.weight[i] -= u.lr * u.grad[i] * *u.grad_scale;
    };
    functions.reduced = [&](const zero_reduced_t &reduced, zero_stream_t) {
        if (throws)
            throw own_exception{static_cast<int>(reduced.step)};
        for (size_t i = 0; i < reduced.n_elems; i++)
            reduced.grad[i] = 0.5f;
    };
    functions.updated = [](const zero_own_update_t &u, zero_stream_t) {
        for (size_t i = 0; i < u.n_elems; i++)
            u.weight[i] += 8.0f;
    };
    zero::engine engine(comm, device, model, config, std::move(functions));
    engine.init_parameters();
    int caught = 0;
    try {
        train(engine, unit, tensor, false, comm);
    } catch (const own_exception &e) {
        caught = e.number;
        EXPECT(zero_step(engine.get(), 0.01f, nullptr, nullptr) == ZERO_ERROR_ARGUMENT); /* where the others are */
    } catch (const zero::error &e) {
        EXPECT(e.status() == ZERO_ERROR_PEER);
    }
    EXPECT(caught == (is_last ? 1 : 0));
    engine.cancel();
    throws = false;
    zero::engine moved(std::move(engine)); /* with its functions */
    train(moved, unit, tensor, false, comm);
    EXPECT(moved.get_tensor(tensor, N_ELEMS) == std::vector<float>(N_ELEMS, 1.0f - 0.01f * 0.5f + 8.0f));

    functions = {};
    functions.optimizer_name = "failing";
    functions.update = [](const zero_own_update_t &, zero_stream_t) { throw own_exception{3}; };
    zero::engine failing(comm, device, model, config, std::move(functions));
    failing.init_parameters();
    caught = 0;
    try {
        train(failing, unit, tensor, false, comm);
    } catch (const own_exception &e) {
        caught = e.number;
    }
    EXPECT(caught == 3);
}

/* SGD by hand: each rank's gradient is 1, and their sum times the learning rate leaves the weights of 1. */
static void update_in_backward(zero::comm &comm, zero::device &device, const zero::model &model, zero_unit_t unit,
                               zero_tensor_t tensor)
{
    zero_config_t config = zero_config_default();
    config.dtype = ZERO_FP32;
    config.stage = 1;
    config.update = ZERO_UPDATE_IN_BACKWARD;
    config.optimizer = ZERO_OPTIMIZER_SGD;
    config.grad_clip = config.momentum = config.weight_decay = 0.0f;
    zero::engine engine(comm, device, model, config);
    engine.init_parameters();
    try {
        engine.begin(ZERO_PASS_TRAIN);
        EXPECT(false);
    } catch (const zero::error &e) {
        EXPECT(e.status() == ZERO_ERROR_ORDER && std::strstr(e.what(), "call zero_set_lr before it") != nullptr);
    }
    engine.set_lr(0.25f);
    engine.begin(ZERO_PASS_TRAIN);
    engine.forward(unit, [] {});
    engine.backward(unit, [&] {
        float *grad = static_cast<float *>(engine.grad(tensor).data);
        for (size_t i = 0; i < N_ELEMS; i++)
            grad[i] = 1.0f;
    });
    engine.step(0.25f);
    engine.wait();
    const float expected = 1.0f - 0.25f * static_cast<float>(comm.size());
    EXPECT(engine.get_tensor(tensor, N_ELEMS) == std::vector<float>(N_ELEMS, expected));
}

int main(int argc, char **argv)
{
    EXPECT(argc == 2); /* a directory for checkpoints */
    zero::comm comm;
    zero::device device(comm, ZERO_DEVICE_CPU);
    zero::model model;
    const auto unit = model.add_unit("unit");
    const auto tensor = model.add_tensor(unit, zero::tensor_desc("tensor", {10, N_ELEMS / 10}, ZERO_INIT_ONES));
    zero_config_t config = zero_config_default();
    config.dtype = ZERO_FP32;
    zero::engine engine(comm, device, model, config);
    engine.init_parameters();
    throw_from_a_callback(comm, engine);

    const float norm = train(engine, unit, tensor, false, comm);
    EXPECT(norm > 0.0f);
    EXPECT(train(engine, unit, tensor, true, comm) == -1.0f);
    const float again = train(engine, unit, tensor, false, comm);
    EXPECT(std::memcmp(&norm, &again, sizeof norm) == 0);

    const std::vector<float> weights = engine.get_tensor(tensor, N_ELEMS);
    engine.set_tensor(tensor, std::vector<float>(N_ELEMS, 3.0f));
    EXPECT(weights[N_ELEMS - 1] > 990.0f && engine.get_tensor(tensor, N_ELEMS)[17] == 3.0f);

    zero_group_t group = engine.group(tensor);
    group.lr_scale = 0.0f;
    engine.set_group(tensor, group);
    EXPECT(train(engine, unit, tensor, false, comm) == norm && engine.get_tensor(tensor, N_ELEMS)[17] == 3.0f);
    group.lr_scale = -1.0f;
    try {
        engine.set_group(tensor, group);
        EXPECT(false);
    } catch (const zero::error &e) {
        EXPECT(std::strstr(e.what(), "zero_set_group(tensor): lr_scale -1: it must be at least 0") != nullptr);
    }
    engine.reset_group(tensor);
    EXPECT(engine.group(tensor).lr_scale == 1.0f);

    load_what_was_saved(comm, device, engine, argv[1], tensor);
    throw_in_a_step(comm, device, model, unit, tensor);
    update_in_backward(comm, device, model, unit, tensor);

    zero::engine moved(std::move(engine)); /* one owner */
    EXPECT(engine.get() == nullptr && moved.get() != nullptr);
    if (comm.rank() == 0)
        std::puts("done");
}
