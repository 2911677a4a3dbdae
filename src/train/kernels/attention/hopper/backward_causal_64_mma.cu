/* backward_causal_64_mma.cu - backward_causal.cuh's gradients for heads of 64, by four warpgroups that do different
 * work, and hand it on through barriers:
 *
 *     loader        copies the tiles of q and dout to shared memory, and keeps the order of what is added to dQ
 *     dQ            multiplies dS, of all keys of the block, with K and adds it to the sum
 *     keys, twice   64 of the keys each: S^T and dP^T, of which P^T and dS^T, in registers, are the left sides of dV
 *                   and dK; dS^T also goes to shared memory
 *
 * The keys' products of one step and S^T and dP^T of the next are queued together, so that the tensor cores work while
 * exponentials are computed.
 */
#include "train/kernels/attention/hopper/backward_causal.cuh"

static constexpr int DIM = 64;

/* Registers of a thread of each kind of warpgroup; at most 512 in all, for one thread of each of the four. */
#define LOADER_REGISTERS 40
#define DQ_REGISTERS 80
#define KEY_REGISTERS 192

#if ZERO_HAS_WGMMA

/* ---- dQ ---- */

/* Starts sums = dS K. all_keys: of the block; else the first half. */
template <typename T>
static __device__ __forceinline__ void begin_dq(float (&sums)[8][4], uint32_t dscores, uint32_t keys, bool all_keys)
{
    zero_wide_hold(sums);
    zero_wide_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
        zero_wide_cross<T>(sums, zero_wide_tile(dscores + k * 16 * ROW_BYTES, 0),
                           zero_wide_tile(keys + k * 16 * ROW_BYTES, 0), k > 0);
    if (all_keys)
#pragma unroll
        for (int k = 4; k < 8; ++k)
            zero_wide_cross<T>(sums, zero_wide_tile(dscores + k * 16 * ROW_BYTES, 0),
                               zero_wide_tile(keys + k * 16 * ROW_BYTES, 0), 1);
    zero_wide_commit();
}

template <typename T>
static __device__ __forceinline__ void compute_dq(const causal_t &c, const place_t &p, uint32_t shared,
                                                  const barriers_t &b)
{
    const int lane = threadIdx.x % ZERO_WARP, warp = threadIdx.x / ZERO_WARP % 4;
    int step = 0;
    zero_barrier_wait(b.keys, 0);
    for (int member = 0; member < p.n_members; ++member)
        for (int tile = p.first_tile; tile < c.n_tiles; ++tile, ++step) {
            float sums[8][4];
            wait_for_full<DSCORES>(b.dscores_full, step);
            /* The second half of the keys is later than the first tile of queries. */
            begin_dq<T>(sums, dscores_at<DIM>(shared, step), shared + K_AT, tile > p.first_tile);
            zero_wide_wait<0>(sums);
            warp_arrive_at<DSCORES>(b.dscores_empty, step, lane);
            wait_for_full<TURNS>(b.go, step);
            add_dq<T, DIM>(c, turn_of<DIM>(c, p, member, tile), sums, 0, warp, lane);
            __syncwarp();
            warp_arrive_at<TURNS>(b.added, step, lane);
        }
}

/* ---- dK and dV ---- */

/* Starts dots = own queries^T: S^T of K and q, or dP^T of V and dout. */
template <typename T>
static __device__ __forceinline__ void begin_dots(float (&dots)[QUERIES / 8][4], uint32_t own, uint32_t queries)
{
    zero_wide_hold(dots);
    wide_dots<T, DIM, KEYS>(dots, own, queries);
}

template <typename T>
static __device__ __forceinline__ void compute_dkv(const causal_t &c, const place_t &p, int part, uint32_t shared,
                                                   const unsigned char *memory, const barriers_t &b)
{
    const int lane = threadIdx.x % ZERO_WARP, warp = threadIdx.x / ZERO_WARP % 4, n_steps = p.n_members * p.tiles;
    const uint32_t own_k = shared + K_AT + part * OWN_KEYS * ROW_BYTES;
    const uint32_t own_v = shared + V_AT<DIM> + part * OWN_KEYS * ROW_BYTES;
    float dk[DIM / 8][4] = {}, dv[DIM / 8][4] = {}, scores[QUERIES / 8][4], dprobs[QUERIES / 8][4];
    uint32_t probs16[QUERIES / 16][4], dscores16[QUERIES / 16][4];
    int step = 0, index = 0; /* index: of the tile, from the first that sees the block */
    auto next_step = [&]() {
        ++step;
        index = index + 1 == p.tiles ? 0 : index + 1;
    };
    /* Passes over tiles that do not see these keys: the first one of each head, for the second half of the keys. */
    auto skip_hidden = [&]() {
        while (part > index && step < n_steps) {
            wait_for_full<STAGES<DIM>>(b.full, step);
            wait_for_room<DSCORES>(b.dscores_empty, step);
            __syncwarp();
            warp_arrive_at<STAGES<DIM>>(b.empty, step, lane);
            warp_arrive_at<DSCORES>(b.dscores_full, step, lane);
            next_step();
        }
    };

    zero_barrier_wait(b.keys, 0);
    skip_hidden();
    if (step < n_steps) {
        const uint32_t first = queries_at<DIM>(shared, step);
        zero_wide_hold(dk);
        zero_wide_hold(dv);
        wait_for_full<STAGES<DIM>>(b.full, step);
        begin_dots<T>(scores, own_k, first);
        begin_dots<T>(dprobs, own_v, first + QUERY_BYTES<DIM>);
        zero_wide_commit(); /* empty: for the dV and dK of a step before */
        zero_wide_commit();
        int unreleased_step = -1; /* that step */
        while (true) {
            const uint32_t queries = queries_at<DIM>(shared, step);
            const float2 *numbers = numbers_at<DIM>(memory, step, lane);
            zero_wide_wait<3>(scores);
            probabilities(scores, numbers, c.scale * LOG2_E);
            if (index == part)
                hide_later(scores, 0, warp, lane);
            zero_wide_wait<2>(dprobs);
            zero_wide_wait<0>(dk);
            zero_wide_wait<0>(dv);
            if (unreleased_step >= 0)
                warp_arrive_at<STAGES<DIM>>(b.empty, unreleased_step, lane);
#pragma unroll
            for (int k = 0; k < QUERIES / 16; ++k)
                round_16<T>(probs16[k], dscores16[k], scores, dprobs, numbers + QUERIES / 2, k);
            wait_for_room<DSCORES>(b.dscores_empty, step);
#pragma unroll
            for (int k = 0; k < QUERIES / 16; ++k)
                zero_store_matrices(dscore_row<DIM>(shared, step, part, warp, lane) ^ (k << 5), dscores16[k]);
            zero_wide_show_stores();
            __syncwarp();
            warp_arrive_at<DSCORES>(b.dscores_full, step, lane);
            unreleased_step = step;
            next_step();
            skip_hidden();
            if (step >= n_steps) {
                wide_accumulate<T, DIM>(dv, probs16, queries + QUERY_BYTES<DIM>);
                wide_accumulate<T, DIM>(dk, dscores16, queries);
                break;
            }
            const uint32_t next = queries_at<DIM>(shared, step);
            wait_for_full<STAGES<DIM>>(b.full, step);
            begin_dots<T>(scores, own_k, next);
            begin_dots<T>(dprobs, own_v, next + QUERY_BYTES<DIM>);
            wide_accumulate<T, DIM>(dv, probs16, queries + QUERY_BYTES<DIM>);
            wide_accumulate<T, DIM>(dk, dscores16, queries);
        }
        zero_wide_wait<0>(dk);
        zero_wide_wait<0>(dv);
    }
    write_dkv<T, DIM>(c, p, part, dk, dv, warp, lane);
}

#endif

/* ---- A block ---- */

template <typename T> struct work_64 {
    static constexpr int DIM = ::DIM, THREADS = 512, DQ_WARPS = 4;
#if ZERO_HAS_WGMMA
    static __device__ __forceinline__ void run(const CUtensorMap *qkv, const CUtensorMap *dout, const causal_t &c,
                                               uint32_t shared, unsigned char *memory, const barriers_t &b, int role)
    {
        const place_t p = place_of<DIM>(c, memory);
        if (role == 1) {
            zero_give_registers<DQ_REGISTERS>();
            compute_dq<T>(c, p, shared, b);
        } else if (role > 1) {
            zero_take_registers<KEY_REGISTERS>();
            compute_dkv<T>(c, p, role - 2, shared, memory, b);
        } else {
            zero_give_registers<LOADER_REGISTERS>();
            load_and_keep_order<DIM, false>(qkv, dout, c, p, shared, memory, b, threadIdx.x);
        }
    }
#endif
};

extern "C" cudaError_t zero_launch_causal_64(cudaStream_t stream, zero_dtype_t dtype, const CUtensorMap *qkv,
                                             const CUtensorMap *dout, const causal_t *c)
{
    return with_half_type(dtype,
                          [&](auto type) { return launch_causal<work_64<decltype(type)>>(stream, qkv, dout, c); });
}
