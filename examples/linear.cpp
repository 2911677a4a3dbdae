/* linear.cpp - linear.c in C++: the same training, the same bits, with zero.hpp's owners and exceptions.
 *
 *     c++ -std=c++17 linear.cpp $(pkg-config --cflags --libs zero)
 *     mpirun -np 3 ./a.out 2           three ranks at stage 2; without the 2, at stage 3
 */
#include <cstdio>
#include <cstdlib>
#include <zero.hpp>

enum { N_FEATURES = 10, N_SAMPLES = 64, N_STEPS = 150 };

static float x[N_SAMPLES][N_FEATURES], y[N_SAMPLES], prediction[N_SAMPLES], error[N_SAMPLES];

static void make_data()
{
    for (int s = 0; s < N_SAMPLES; s++) {
        y[s] = 1.0f;
        for (int i = 0; i < N_FEATURES; i++) {
            x[s][i] = (float)((s * 37 + i * 101 + s * s * i) % 127) / 63.0f - 1.0f;
            y[s] += x[s][i] * 0.1f * (float)i;
        }
    }
}

static void train(const zero::comm &comm, int stage)
{
    const int first = comm.rank(), stride = comm.size();
    zero::device device(comm, ZERO_DEVICE_CPU);
    zero::model model;
    const auto product = model.add_unit("product"), shift = model.add_unit("shift");
    const auto w = model.add_tensor(product, zero::tensor_desc("w", {N_FEATURES}));
    const auto b = model.add_tensor(shift, zero::tensor_desc("b", {1}));
    zero_config_t config = zero_config_default();
    config.stage = stage;
    config.dtype = ZERO_FP32;
    zero::engine engine(comm, device, model, config);
    engine.init_parameters();

    for (int step = 1; step <= N_STEPS; step++) {
        double loss = 0.0;
        engine.begin(ZERO_PASS_TRAIN);
        engine.forward(product, [&] {
            const float *weights = engine.param<float>(w);
            for (int s = first; s < N_SAMPLES; s += stride) {
                prediction[s] = 0.0f;
                for (int i = 0; i < N_FEATURES; i++)
                    prediction[s] += x[s][i] * weights[i];
            }
        });
        engine.forward(shift, [&] {
            const float offset = *engine.param<float>(b);
            for (int s = first; s < N_SAMPLES; s += stride) {
                error[s] = prediction[s] + offset - y[s];
                loss += (double)error[s] * error[s] / N_SAMPLES;
            }
        });
        engine.backward(shift, [&] {
            float *grad = static_cast<float *>(engine.grad(b).data);
            *grad = 0.0f;
            for (int s = first; s < N_SAMPLES; s += stride)
                *grad += 2.0f * error[s] / N_SAMPLES;
        });
        engine.backward(product, [&] {
            float *grad = static_cast<float *>(engine.grad(w).data);
            for (int i = 0; i < N_FEATURES; i++) {
                grad[i] = 0.0f;
                for (int s = first; s < N_SAMPLES; s += stride)
                    grad[i] += 2.0f * error[s] * x[s][i] / N_SAMPLES;
            }
        });
        engine.step(0.01f, &loss);
        const zero_step_result_t result = engine.wait();
        if (comm.rank() == 0 && step % 15 == 0)
            std::printf("step %3d  loss %.6f\n", step, (double)result.loss);
    }
}

int main(int argc, char **argv)
{
    try {
        zero::comm comm;
        make_data();
        try {
            train(comm, argc > 1 ? std::atoi(argv[1]) : 3);
        } catch (const std::exception &) {
            comm.abort(1); /* others may be waiting for this rank; the line has been logged */
        }
    } catch (const zero::error &) {
        return 1;
    }
}
