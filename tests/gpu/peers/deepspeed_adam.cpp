/* deepspeed_adam.cpp - how long DeepSpeed's CPU Adam (csrc/adam, its entry ds_adam_step) takes beside our kernel and a
 * triad loop: by turns, on the same arrays and threads, since on a machine that others use too only such ratios hold.
 * build-deepspeed-adam builds it, with other versions of our kernel where it is given some, to be compared likewise.
 *
 *     OMP_NUM_THREADS=N deepspeed_adam [MILLIONS]     parameters, 64 million unless given; an eighth with one thread
 *
 * Before anything is timed three steps of each are held against AdamW in fp64. Then a line for each: medians of
 * N_ROUNDS steps after one, the best, and the median over rounds of its time over ours in fp32 (a version's in bf16:
 * over ours in bf16). Counted are the bytes that the code names: parameter, m and v read and written, the gradient
 * read. Each page is first written by the thread that updates it; GLIBC_TUNABLES=glibc.malloc.hugetlb=1 asks for huge
 * pages.
 */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <omp.h>

#include "cpu_adam.h"
extern "C" {
#include "kernels/shard.h"
#include "kernels/step_math.h"
#define VERSION(name) zero_status_t zero_shard_adam_##name(const zero_adam_t *args, zero_stream_t stream);
#include "versions.h" /* a VERSION(name) for each */
#undef VERSION
}

namespace
{
constexpr size_t N_ROUNDS = 21;
constexpr float BETA1 = 0.9f, BETA2 = 0.95f, EPS = 1e-8f, DECAY = 0.1f;
constexpr int OPTIMIZER = 0;

/* In [0, 1), by index alone (splitmix64). */
float random_at(size_t index)
{
    uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)((x ^ x >> 31) >> 40) * 0x1p-24f;
}

/* Starting with a cache line, as PyTorch's tensors do, and ours. */
template <typename T> T *elements(size_t n)
{
    T *memory = (T *)std::aligned_alloc(64, (n * sizeof(T) + 63) / 64 * 64);
    if (!memory) {
        std::fprintf(stderr, "deepspeed_adam: no memory for %zu elements\n", n);
        std::exit(1);
    }
    return memory;
}

/* [n_elems] each; half: the form in bf16, whose parameter is half + low for us and half alone for DeepSpeed, which
 * wants gradients of the parameters' type. Never freed: one process, few of them. */
struct arrays {
    size_t n_elems;
    float *param = elements<float>(n_elems), *grad = elements<float>(n_elems), *m = elements<float>(n_elems),
          *v = elements<float>(n_elems), *out = elements<float>(n_elems);
    c10::BFloat16 *half = elements<c10::BFloat16>(n_elems), *half_grad = elements<c10::BFloat16>(n_elems);
    int16_t *low = elements<int16_t>(n_elems);

    explicit arrays(size_t n) : n_elems(n)
    {
        /* The shares of both sides' loops, so that pages belong to the threads that update them. */
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n; i++) {
            param[i] = 0.04f * (random_at(4 * i) - 0.5f);
            grad[i] = 2e-3f * (random_at(4 * i + 1) - 0.5f);
            half[i] = param[i];
            half_grad[i] = grad[i];
            m[i] = 1e-4f * (random_at(4 * i + 2) - 0.5f);
            v[i] = 1e-7f * random_at(4 * i + 3);
            low[i] = (int16_t)i;
            out[i] = 0.0f;
        }
    }
};

template <typename T> void deepspeed(const arrays &x, T *param, T *grad, size_t number, float lr)
{
    torch::Tensor p(param, x.n_elems), g(grad, x.n_elems), m(x.m, x.n_elems), v(x.v, x.n_elems);
    ds_adam_step(OPTIMIZER, number, lr, BETA1, BETA2, EPS, DECAY, true, p, g, m, v);
}

using kernel = decltype(zero_shard_kernels_t::adam);

void ours(kernel adam, zero_dtype_t dtype, const arrays &x, size_t number, float lr)
{
    zero_adam_scalars_t scalars;
    zero_adam_scalars_decide(&scalars, lr, BETA1, BETA2, EPS, 1.0f, 1.0f, 1.0f, number);
    zero_adam_segment_t segment = {};
    segment.n_elems = x.n_elems;
    segment.decay = DECAY;
    zero_adam_t update = {};
    update.param_dtype = dtype;
    update.param = dtype == ZERO_FP32 ? (void *)x.param : (void *)x.half;
    update.low = dtype == ZERO_FP32 ? nullptr : x.low;
    update.m = x.m;
    update.v = x.v;
    update.grad = x.grad;
    update.segments = &segment;
    update.n_segments = 1;
    update.scalars = &scalars;
    (void)adam(&update, nullptr);
}

void triad(const arrays &x, size_t, float)
{
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < x.n_elems; i++)
        x.out[i] = x.m[i] + 0.5f * x.grad[i];
}

template <zero_dtype_t dtype> void ours(const arrays &x, size_t number, float lr)
{
    ours(zero_shard_kernels_cpu()->adam, dtype, x, number, lr);
}

template <kernel adam, zero_dtype_t dtype> void version(const arrays &x, size_t number, float lr)
{
    ours(adam, dtype, x, number, lr);
}

void deepspeed_fp32(const arrays &x, size_t number, float lr)
{
    deepspeed(x, x.param, x.grad, number, lr);
}

void deepspeed_bf16(const arrays &x, size_t number, float lr)
{
    deepspeed(x, x.half, x.half_grad, number, lr);
}

/* param_bound: relative to the parameter and the learning rate; 0 for what is no AdamW. Where half is all that holds
 * the parameter each step rounds it to 8 bits. Ours in bf16 is test_adam's: half + low is no number to be read here.
 * base: whose time it is compared to, an index here. */
struct work {
    const char *what;
    void (*step)(const arrays &x, size_t number, float lr);
    int n_bytes; /* of a parameter */
    double param_bound;
    bool is_half;
    size_t base;
};

constexpr size_t OURS_FP32 = 0, OURS_BF16 = 1;
constexpr work works[] = {
    {"ours, fp32", ours<ZERO_FP32>, 28, 1e-5, false, OURS_FP32},
    {"ours, bf16 parameters, fp32 master, gradients, m and v", ours<ZERO_BF16>, 28, 0.0, true, OURS_FP32},
    {"deepspeed " DEEPSPEED_COMMIT ", fp32", deepspeed_fp32, 28, 1e-5, false, OURS_FP32},
    {"deepspeed " DEEPSPEED_COMMIT ", bf16 parameters and gradients, fp32 m and v, no master", deepspeed_bf16, 22,
     0x1p-8, true, OURS_FP32},
    {"triad", triad, 12, 0.0, false, OURS_FP32},
#define VERSION(name)                                                                                                  \
    {"version " #name ", fp32", version<zero_shard_adam_##name, ZERO_FP32>, 28, 1e-5, false, OURS_FP32},               \
        {"version " #name ", bf16", version<zero_shard_adam_##name, ZERO_BF16>, 28, 0.0, true, OURS_BF16},
#include "versions.h"
#undef VERSION
};
constexpr size_t N_WORKS = sizeof works / sizeof works[0];

bool is_near(double got, double wanted, double relative, double scale)
{
    return std::fabs(got - wanted) <= relative * (std::fabs(wanted) + scale);
}

/* Three steps of a length that has whole vectors and a rest. m is near 0 where its terms cancel, so its bound is
 * relative to what was added, too. */
bool is_adamw(const work &work)
{
    constexpr float LR = 1e-2f;
    arrays x(100003);
    for (size_t number = 1; number <= 3; number++) {
        auto param_at = [&](size_t i) -> double { return work.is_half ? (float)x.half[i] : x.param[i]; };
        std::vector<double> param(x.n_elems), m(x.m, x.m + x.n_elems), v(x.v, x.v + x.n_elems);
        for (size_t i = 0; i < x.n_elems; i++)
            param[i] = param_at(i);
        work.step(x, number, LR);
        for (size_t i = 0; i < x.n_elems; i++) {
            double grad = work.is_half ? (float)x.half_grad[i] : x.grad[i];
            m[i] = BETA1 * m[i] + (1.0 - BETA1) * grad;
            v[i] = BETA2 * v[i] + (1.0 - BETA2) * grad * grad;
            double m_hat = m[i] / (1.0 - std::pow(BETA1, number)), v_hat = v[i] / (1.0 - std::pow(BETA2, number));
            double wanted = param[i] * (1.0 - (double)LR * DECAY) - LR * m_hat / (std::sqrt(v_hat) + EPS);
            if (!is_near(param_at(i), wanted, work.param_bound, LR) || !is_near(x.m[i], m[i], 1e-5, 1e-4) ||
                !is_near(x.v[i], v[i], 1e-5, 0.0)) {
                std::fprintf(stderr, "deepspeed_adam: %s, step %zu, element %zu: %.9g %.9g %.9g, not %.9g %.9g %.9g\n",
                             work.what, number, i, param_at(i), x.m[i], x.v[i], wanted, m[i], v[i]);
                return false;
            }
        }
    }
    return true;
}

double seconds_of(const work &work, const arrays &x, size_t number)
{
    auto begin = std::chrono::steady_clock::now();
    work.step(x, number, 1e-4f);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

void measure(size_t n_elems)
{
    arrays x(n_elems);
    std::vector<double> ns[N_WORKS], over_base[N_WORKS];
    for (size_t round = 0; round <= N_ROUNDS; round++) {
        double took[N_WORKS];
        for (size_t i = 0; i < N_WORKS; i++) {
            size_t k = round % 2 ? N_WORKS - 1 - i : i; /* there and back: who comes after whom changes */
            took[k] = 1e9 * seconds_of(works[k], x, round + 1) / (double)n_elems;
        }
        for (size_t k = 0; k < N_WORKS && round > 0; k++) {
            ns[k].push_back(took[k]);
            over_base[k].push_back(took[k] / took[works[k].base]);
        }
    }
    for (size_t k = 0; k < N_WORKS; k++) {
        double middle = median(ns[k]), best = *std::min_element(ns[k].begin(), ns[k].end());
        std::printf(
            "ADAMW %s, %d threads: %.1f GB/s; %.3f ns a parameter of %d bytes; best %.1f GB/s; %.2f of the time "
            "of ours in %s\n",
            works[k].what, omp_get_max_threads(), works[k].n_bytes / middle, middle, works[k].n_bytes,
            works[k].n_bytes / best, median(over_base[k]), works[k].base == OURS_FP32 ? "fp32" : "bf16");
    }
}
} // namespace

int main(int argc, char **argv)
{
    size_t millions = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64;
    if (argc > 2 || millions == 0 || millions > 100000) {
        std::fprintf(stderr, "usage: deepspeed_adam [MILLIONS]\n");
        return 2;
    }
    create_adam_optimizer(OPTIMIZER, 1e-4f, BETA1, BETA2, EPS, DECAY, true, false);
    for (const work &work : works)
        if (work.param_bound > 0.0 && !is_adamw(work))
            return 1;
    measure(millions * 1000000 / (omp_get_max_threads() == 1 ? 8 : 1));
    return 0;
}
