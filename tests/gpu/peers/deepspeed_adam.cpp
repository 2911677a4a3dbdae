/* deepspeed_adam.cpp - how long DeepSpeed's CPU Adam (csrc/adam, its entry ds_adam_step) takes, beside ours in
 * bench_offload and bench_adam. build-deepspeed-adam builds it.
 *
 *     OMP_NUM_THREADS=N deepspeed_adam [MILLIONS]     parameters, 64 million unless given; an eighth with one thread
 *
 * Before anything is timed three steps are held against AdamW in fp64. Then a line for each form of the parameters: the
 * median of N_ROUNDS steps after one, and the best. Counted are the bytes that the code names. Memory is malloc's, each
 * page first written by the thread that updates it; GLIBC_TUNABLES=glibc.malloc.hugetlb=1 asks for huge pages.
 */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <omp.h>

#include "cpu_adam.h"

namespace
{
constexpr int N_ROUNDS = 9;
constexpr float BETA1 = 0.9f, BETA2 = 0.95f, EPS = 1e-8f, DECAY = 0.1f;
constexpr int OPTIMIZER = 0;

/* Gradients have the parameters' type, as DeepSpeed will have it. */
template <typename T> struct arrays {
    size_t n_elems;
    T *param, *grad;
    float *m, *v;

    explicit arrays(size_t n) : n_elems(n)
    {
        param = (T *)std::malloc(n * sizeof(T));
        grad = (T *)std::malloc(n * sizeof(T));
        m = (float *)std::malloc(n * sizeof(float));
        v = (float *)std::malloc(n * sizeof(float));
        if (!param || !grad || !m || !v) {
            std::fprintf(stderr, "deepspeed_adam: no memory for %zu parameters\n", n);
            std::exit(1);
        }
        /* The static shares of Step_AVX, so that pages belong to the threads that update them. */
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n; i++) {
            param[i] = 0.04f * (random(4 * i) - 0.5f);
            grad[i] = 2e-3f * (random(4 * i + 1) - 0.5f);
            m[i] = 1e-4f * (random(4 * i + 2) - 0.5f);
            v[i] = 1e-7f * random(4 * i + 3);
        }
    }
    arrays(const arrays &) = delete;
    ~arrays()
    {
        std::free(param);
        std::free(grad);
        std::free(m);
        std::free(v);
    }

    /* In [0, 1), by index alone (splitmix64). */
    static float random(uint64_t index)
    {
        uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        return (float)((x ^ x >> 31) >> 40) * 0x1p-24f;
    }

    void step(size_t number, float lr)
    {
        torch::Tensor p(param, n_elems), g(grad, n_elems), first(m, n_elems), second(v, n_elems);
        ds_adam_step(OPTIMIZER, number, lr, BETA1, BETA2, EPS, DECAY, true, p, g, first, second);
    }
};

bool is_near(double got, double wanted, double relative, double scale)
{
    return std::fabs(got - wanted) <= relative * (std::fabs(wanted) + scale);
}

/* Three steps of a length that has whole vectors and a rest. m is near 0 where its terms cancel, so its bound is
 * relative to what was added; parameters likewise, and in bf16 (8 bits) each is rounded once a step. */
template <typename T> bool is_adamw(double param_bound)
{
    constexpr float LR = 1e-2f;
    arrays<T> x(100003);
    for (size_t number = 1; number <= 3; number++) {
        std::vector<double> param(x.param, x.param + x.n_elems);
        std::vector<double> m(x.m, x.m + x.n_elems), v(x.v, x.v + x.n_elems);
        x.step(number, LR);
        for (size_t i = 0; i < x.n_elems; i++) {
            double grad = (float)x.grad[i];
            m[i] = BETA1 * m[i] + (1.0 - BETA1) * grad;
            v[i] = BETA2 * v[i] + (1.0 - BETA2) * grad * grad;
            double m_hat = m[i] / (1.0 - std::pow(BETA1, number)), v_hat = v[i] / (1.0 - std::pow(BETA2, number));
            double wanted = param[i] * (1.0 - (double)LR * DECAY) - LR * m_hat / (std::sqrt(v_hat) + EPS);
            if (!is_near((float)x.param[i], wanted, param_bound, LR) || !is_near(x.m[i], m[i], 1e-5, 1e-4) ||
                !is_near(x.v[i], v[i], 1e-5, 0.0)) {
                std::fprintf(stderr, "deepspeed_adam: step %zu, element %zu: %.9g %.9g %.9g, not %.9g %.9g %.9g\n",
                             number, i, (float)x.param[i], x.m[i], x.v[i], wanted, m[i], v[i]);
                return false;
            }
        }
    }
    return true;
}

template <typename T> void measure(size_t n_elems, const char *what)
{
    arrays<T> x(n_elems);
    const double n_bytes = 3.0 * sizeof(T) + 16.0; /* of a parameter: it, m and v read and written, the gradient read */
    std::vector<double> seconds;
    for (size_t round = 0; round <= N_ROUNDS; round++) {
        auto begin = std::chrono::steady_clock::now();
        x.step(round + 1, 1e-4f);
        std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        if (round > 0)
            seconds.push_back(took.count());
    }
    std::sort(seconds.begin(), seconds.end());
    double median = seconds[N_ROUNDS / 2] / (double)n_elems, best = seconds[0] / (double)n_elems;
    std::printf("ADAMW deepspeed %s, %s, %d threads: %.1f GB/s; %.3f ns a parameter of %.0f bytes; best %.1f GB/s\n",
                DEEPSPEED_COMMIT, what, omp_get_max_threads(), 1e-9 * n_bytes / median, 1e9 * median, n_bytes,
                1e-9 * n_bytes / best);
    std::fflush(stdout);
}
} // namespace

int main(int argc, char **argv)
{
    size_t millions = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64;
    if (argc > 2 || millions == 0 || millions > 100000) {
        std::fprintf(stderr, "usage: deepspeed_adam [MILLIONS]\n");
        return 2;
    }
    size_t n_elems = millions * 1000000 / (omp_get_max_threads() == 1 ? 8 : 1);
    create_adam_optimizer(OPTIMIZER, 1e-4f, BETA1, BETA2, EPS, DECAY, true, false);
    if (!is_adamw<float>(1e-5) || !is_adamw<c10::BFloat16>(0x1p-8))
        return 1;
    measure<float>(n_elems, "fp32");
    measure<c10::BFloat16>(n_elems, "bf16 parameters and gradients, fp32 m and v, no master");
    return 0;
}
