/* backward_causal_128_mma.cu - backward_causal.cuh's gradients for heads of 128, whose dK and dV leave no registers for
 * a warpgroup that computes dQ. So three warpgroups do two kinds of work:
 *
 *     loader        copies the tiles of q and dout to shared memory, and keeps the order of what is added to dQ
 *     keys, twice   64 of the keys each: S^T and dP^T, of which P^T and dS^T, in registers, are the left sides of dV
 *                   and dK; dS^T also goes to shared memory. And 64 columns of dQ, of the step before and all keys
 *
 * While one of the two computes exponentials, the other keeps the tensor cores busy. One may be a step ahead of the
 * other.
 *
 * Every register is needed. 128 hold dK and dV. 32 hold S^T, then P^T, at last P^T and dS^T in 16 bits. 32 hold dP^T,
 * then dQ. The compiler reuses registers so only if it must: a product that starts from nothing therefore reads its
 * registers, times c.zero, which is 0. Addresses contain c.zero times the step, so that they are computed anew and
 * occupy no register between steps.
 */
#include "train/kernels/attention/hopper/backward_causal.cuh"

static constexpr int DIM = 128;

/* Registers of a thread of each kind of warpgroup; at most 504 for one thread of each of the three. */
#define LOADER_REGISTERS 24
#define KEY_REGISTERS 240

#if ZERO_HAS_WGMMA

/* ---- Products ---- */

/* Returns the tile that lies `bytes` further, a multiple of 16. */
static __device__ __forceinline__ uint64_t further(uint64_t tile, uint32_t bytes)
{
    return (tile & 0xffffffff00000000) | (uint32_t)((uint32_t)tile + (bytes >> 4));
}

/* Starts dots = own queries^T: S^T of K and q, or dP^T of V and dout. */
template <typename T>
static __device__ __forceinline__ void begin_dots(float (&dots)[QUERIES / 8][4], uint32_t own, uint32_t queries,
                                                  int zero)
{
    zero_wide_hold(dots);
    zero_wide_begin();
#pragma unroll
    for (int k = 0; k < DIM / 16; ++k)
        zero_wide_dot<T>(dots, further(zero_wide_tile(own, 0), k / 4 * KEYS * ROW_BYTES + k % 4 * 32),
                         further(zero_wide_tile(queries, 0), k / 4 * QUERIES * ROW_BYTES + k % 4 * 32),
                         k > 0 ? 1 : zero);
    zero_wide_commit();
}

/* Starts sums += weights queries. weights: those of P^T (odd is 0) or dS^T (1) that `packed` holds. */
template <typename T>
static __device__ __forceinline__ void begin_sums(float (&sums)[DIM / 8][4], float (&packed)[QUERIES / 8][4], int odd,
                                                  uint32_t queries)
{
    zero_wide_hold(sums);
    zero_wide_hold(packed);
    zero_wide_begin();
#pragma unroll
    for (int k = 0; k < QUERIES / 16; ++k) {
        const float(&w)[4] = packed[2 * k + odd];
        zero_wide_add<T>(sums,
                         {__float_as_uint(w[0]), __float_as_uint(w[1]), __float_as_uint(w[2]), __float_as_uint(w[3])},
                         further(zero_wide_tile(queries, QUERIES * ROW_BYTES), k * 16 * ROW_BYTES));
    }
    zero_wide_commit();
}

/* Starts dq = dS K, of 64 columns of K. */
template <typename T>
static __device__ __forceinline__ void begin_dq(float (&dq)[8][4], uint32_t dscores, uint32_t keys, int zero)
{
    zero_wide_hold(dq);
    zero_wide_begin();
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k)
        zero_wide_cross<T>(dq, further(zero_wide_tile(dscores, 0), k * 16 * ROW_BYTES),
                           further(zero_wide_tile(keys, 0), k * 16 * ROW_BYTES), k > 0 ? 1 : zero);
    zero_wide_commit();
}

/* ---- Keys ---- */

/* Rounds P^T and dS^T into the registers of P^T: of each 16 queries, P^T to the first four, dS^T to the others. */
template <typename T>
static __device__ __forceinline__ void pack_both(float (&probs)[QUERIES / 8][4], const float (&dprobs)[QUERIES / 8][4],
                                                 const float2 *minus_delta)
{
#pragma unroll
    for (int k = 0; k < QUERIES / 16; ++k) {
        uint32_t probs16[4], dscores16[4];
        round_16<T>(probs16, dscores16, probs, dprobs, minus_delta, k);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            probs[2 * k][i] = __uint_as_float(probs16[i]);
            probs[2 * k + 1][i] = __uint_as_float(dscores16[i]);
        }
    }
    zero_wide_hold(probs);
}

/* part: which half of the keys, and of dQ's columns. */
template <typename T, int part>
static __device__ __forceinline__ void compute_keys(const causal_t &c, const place_t &p, uint32_t shared,
                                                    unsigned char *memory, const barriers_t &b)
{
    const int lane = threadIdx.x % ZERO_WARP, warp = threadIdx.x / ZERO_WARP % 4, n_steps = p.n_members * p.tiles;
    const uint32_t own_k = shared + K_AT + part * OWN_KEYS * ROW_BYTES;
    const uint32_t own_v = shared + V_AT<DIM> + part * OWN_KEYS * ROW_BYTES;
    const uint32_t columns = shared + K_AT + part * KEYS * ROW_BYTES;
    float dk[DIM / 8][4] = {}, dv[DIM / 8][4] = {}, scores[QUERIES / 8][4], dprobs[QUERIES / 8][4];
    float(&dq)[8][4] = dprobs;
    int index = 0; /* of the tile, from the first that sees the block */
    /* Starts S^T and dP^T of a step. */
    auto begin_both = [&](int step) {
        wait_for_full<STAGES<DIM>>(b.full, step);
        begin_dots<T>(scores, own_k + step * c.zero, queries_at<DIM>(shared, step), c.zero);
        begin_dots<T>(dprobs, own_v + step * c.zero, queries_at<DIM>(shared, step) + QUERY_BYTES<DIM>, c.zero);
    };
    /* Waits for S^T and dP^T, hands dS^T on, and starts dV and dK. */
    auto begin_dkv = [&](int step) {
        const float2 *numbers = numbers_at<DIM>(memory, step, lane);
        zero_wide_wait<1>(scores);
        probabilities(scores, numbers, c.scale * LOG2_E);
        if (index <= part)
            hide_later(scores, (part - index) * OWN_KEYS, warp, lane);
        zero_wide_wait<0>(dprobs);
        pack_both<T>(scores, dprobs, numbers + QUERIES / 2);
        wait_for_room<DSCORES>(b.dscores_empty, step);
#pragma unroll
        for (int k = 0; k < QUERIES / 16; ++k) {
            const float(&w)[4] = scores[2 * k + 1];
            zero_store_matrices(
                dscore_row<DIM>(shared, step, part, warp, lane) ^ (k << 5),
                {__float_as_uint(w[0]), __float_as_uint(w[1]), __float_as_uint(w[2]), __float_as_uint(w[3])});
        }
        zero_wide_show_stores();
        __syncwarp();
        warp_arrive_at<DSCORES>(b.dscores_full, step, lane);
        begin_sums<T>(dv, scores, 0, queries_at<DIM>(shared, step) + QUERY_BYTES<DIM>);
        begin_sums<T>(dk, scores, 1, queries_at<DIM>(shared, step));
        index = index + 1 == p.tiles ? 0 : index + 1;
    };
    /* Waits for dV and dK. The n_others groups started after them may go on. */
    auto end_dkv = [&](int step, auto n_others) {
        zero_wide_wait<decltype(n_others)::value>(dk);
        zero_wide_hold(dv);
        warp_arrive_at<STAGES<DIM>>(b.empty, step, lane);
    };
    auto begin_own_dq = [&](int step) {
        wait_for_full<DSCORES>(b.dscores_full, step);
        begin_dq<T>(dq, dscores_at<DIM>(shared, step), columns + step * c.zero, c.zero);
    };
    auto end_own_dq = [&](int step) {
        zero_wide_wait<0>(dq);
        warp_arrive_at<DSCORES>(b.dscores_empty, step, lane);
        wait_for_full<TURNS>(b.go, step);
        add_dq<T, DIM>(c, *turn_at<DIM>(memory, step), dq, part * 64, warp, lane);
        __syncwarp();
        warp_arrive_at<TURNS>(b.added, step, lane);
    };

    zero_barrier_wait(b.keys, 0);
    zero_wide_hold(dk);
    zero_wide_hold(dv);
    begin_both(0);
    begin_dkv(0);
    int step = 1;
    if (n_steps > 1) {
        end_dkv(0, constant<0>());
        begin_both(1);
        while (true) {
            begin_dkv(step);
            begin_own_dq(step - 1);
            end_dkv(step, constant<1>());
            if (step + 1 == n_steps)
                break;
            end_own_dq(step - 1);
            begin_both(step + 1);
            ++step;
        }
        end_own_dq(step - 1);
        ++step;
    }
    zero_wide_wait<0>(dk);
    zero_wide_hold(dv);
    begin_own_dq(step - 1);
    end_own_dq(step - 1);
    write_dkv<T, DIM>(c, place_of<DIM>(c, memory), part, dk, dv, warp, lane);
}

#endif

/* ---- A block ---- */

template <typename T> struct work_128 {
    static constexpr int DIM = ::DIM, THREADS = 384, DQ_WARPS = 8;
#if ZERO_HAS_WGMMA
    /* Each warpgroup finds the block's place by itself: found once, it would have to fit the loader's registers. */
    static __device__ __forceinline__ void run(const CUtensorMap *qkv, const CUtensorMap *dout, const causal_t &c,
                                               uint32_t shared, unsigned char *memory, const barriers_t &b, int role)
    {
        if (role == 1) {
            zero_take_registers<KEY_REGISTERS>();
            compute_keys<T, 0>(c, place_of<DIM>(c, memory), shared, memory, b);
        } else if (role == 2) {
            zero_take_registers<KEY_REGISTERS>();
            compute_keys<T, 1>(c, place_of<DIM>(c, memory), shared, memory, b);
        } else {
            zero_give_registers<LOADER_REGISTERS>();
            load_and_keep_order<DIM, true>(qkv, dout, c, place_of<DIM>(c, memory), shared, memory, b, threadIdx.x);
        }
    }
#endif
};

extern "C" cudaError_t zero_launch_causal_128(cudaStream_t stream, zero_dtype_t dtype, const CUtensorMap *qkv,
                                              const CUtensorMap *dout, const causal_t *c)
{
    return with_half_type(dtype,
                          [&](auto type) { return launch_causal<work_128<decltype(type)>>(stream, qkv, dout, c); });
}
