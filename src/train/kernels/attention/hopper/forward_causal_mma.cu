/* forward_causal_mma.cu - causal attention on Hopper, in 16 bits: FlashAttention-3's forward pass (Shah et al. 2024,
 * arXiv:2407.08608) for heads of 64 and 128.
 *
 * S = Q K^T;  P = e^(scale S - maximum);  out = P V / rowsum(P);  logsumexp = maximum + log rowsum(P)
 *
 * The blocks are persistent, one on each SM. A block takes one item after another: a tile of queries of one head. It
 * has two or three consumer warpgroups, which compute 64 of the queries each, and a loader warpgroup. One thread of the
 * loader copies tiles of keys and values to shared memory several steps ahead, and the queries of the next item.
 *
 * Keys are walked over from the last to the first. So only a consumer's first tile has keys that come after some of its
 * queries and must be hidden.
 *
 * The tensor cores never wait for exponentials. While a consumer computes those of one tile, its product of P and V of
 * the tile before is under way. And consumers take turns in starting products, so that one computes exponentials during
 * the products of another.
 *
 * A row's maximum is raised only when a score exceeds it by more than SLACK. So sums seldom have to be rescaled.
 */
#include "train/kernels/attention/hopper/causal.cuh"

#define KEYS 128           /* of a tile */
#define QUEUED 2           /* items in shared memory: being computed, and next */
#define SLACK 8.0f         /* in units of log 2: P is at most 256 */
#define TURN_THREADS "256" /* of a named barrier: two warpgroups */

/* Consumer warpgroups. */
template <int DIM> static constexpr int CONSUMERS = DIM == 64 ? 3 : 2;
template <int DIM> static constexpr int QUERIES = CONSUMERS<DIM> * 64;
template <int DIM> static constexpr int THREADS = (CONSUMERS<DIM> + 1) * 128;
template <int DIM> static constexpr int STAGES = DIM == 64 ? 4 : 2; /* tiles of keys, and of values */

/* Registers of a thread; at most 512 for one thread of each of four warpgroups, 504 of three. */
template <int DIM> static constexpr int LOADER_REGISTERS = DIM == 64 ? 32 : 24;
template <int DIM> static constexpr int CONSUMER_REGISTERS = DIM == 64 ? 160 : 240;

/* Key/value heads whose items are taken one after another: as many as leave room for others in the L2 cache. */
#define SECTION_BYTES ((size_t)16 << 20)

typedef struct forward {
    void *out;
    float *logsumexp;
    int *next_item;
    sizes_t s;
    int n_tiles;   /* of queries, in a head */
    int n_missing; /* queries that the first tile lacks, a multiple of 64 */
    int n_items;
    int section; /* key/value heads, of all sequences */
    float scale; /* times log2 e */
} forward_t;

/* Where things are in shared memory. */
template <int DIM> static constexpr int QUERY_BYTES = tile_bytes<DIM, QUERIES<DIM>>;
template <int DIM> static constexpr int KEY_BYTES = tile_bytes<DIM, KEYS>;
template <int DIM> static constexpr int K_AT = QUEUED *QUERY_BYTES<DIM>;
template <int DIM> static constexpr int V_AT = K_AT<DIM> + STAGES<DIM> *KEY_BYTES<DIM>;
template <int DIM> static constexpr int ITEMS_AT = V_AT<DIM> + STAGES<DIM> *KEY_BYTES<DIM>;
template <int DIM> static constexpr int BARRIERS_AT = ITEMS_AT<DIM> + QUEUED *(int)sizeof(int);
template <int DIM> static constexpr int SHARED_BYTES = BARRIERS_AT<DIM> + 8 * (2 * QUEUED + 4 * STAGES<DIM>);

#if ZERO_HAS_WGMMA /* elsewhere the kernel only traps, and is not launched */

/* ---- Order ---- */

/* What an item is: the queries of a head from `first` on, which is negative in a first tile that is not full. n_keys:
 * tiles of keys that they see. */
typedef struct place {
    int batch, head, kv_head, first, n_keys;
} place_t;

/* Sections come one after another; in each, the tiles that see most keys come first. It is the first tile of a head,
 * which sees fewest, that may not be full. */
template <int DIM> static __device__ __forceinline__ place_t place_of(const forward_t &f, int item)
{
    const int members = f.s.n_heads / f.s.n_kv_heads, per_section = f.section * members * f.n_tiles;
    const int section = item / per_section, rest = item % per_section, first = section * f.section;
    const int n_heads = min(f.section, f.s.n_batch * f.s.n_kv_heads - first) * members;
    const int head = first * members + rest % n_heads; /* of all sequences */
    place_t p;
    p.first = (f.n_tiles - 1 - rest / n_heads) * QUERIES<DIM> - f.n_missing;
    p.batch = head / f.s.n_heads;
    p.head = head % f.s.n_heads;
    p.kv_head = p.head / members;
    p.n_keys = (p.first + QUERIES<DIM> + KEYS - 1) / KEYS;
    return p;
}

/* ---- Barriers ---- */

/* Addresses in shared memory of arrays, with a barrier for each buffer: it is there; and all have read it. */
typedef struct barriers {
    uint32_t item_full, item_empty, k_full, k_empty, v_full, v_empty;
} barriers_t;

template <int DIM> static __device__ __forceinline__ barriers_t barriers_at(uint32_t shared)
{
    const uint32_t at = shared + BARRIERS_AT<DIM>, k = at + 16 * QUEUED, v = k + 16 * STAGES<DIM>;
    return {at, at + 8 * QUEUED, k, k + 8 * STAGES<DIM>, v, v + 8 * STAGES<DIM>};
}

/* By a thread, before the block begins. */
template <int DIM> static __device__ __forceinline__ void init_barriers(const barriers_t &b)
{
    constexpr int arrivals = 4 * CONSUMERS<DIM> * WARP_ARRIVALS;
    for (int i = 0; i < QUEUED; ++i) {
        zero_barrier_init(b.item_full + 8 * i, 1);
        zero_barrier_init(b.item_empty + 8 * i, arrivals);
    }
    for (int i = 0; i < STAGES<DIM>; ++i) {
        zero_barrier_init(b.k_full + 8 * i, 1);
        zero_barrier_init(b.k_empty + 8 * i, arrivals);
        zero_barrier_init(b.v_full + 8 * i, 1);
        zero_barrier_init(b.v_empty + 8 * i, arrivals);
    }
    zero_barrier_show();
}

/* The n-th item's number, and where its queries are; where a step's keys and values are. */
template <int DIM> static __device__ __forceinline__ volatile int *item_at(unsigned char *memory, int n)
{
    return (volatile int *)(memory + ITEMS_AT<DIM>)+buffer_of<QUEUED>(n);
}
template <int DIM> static __device__ __forceinline__ uint32_t queries_at(uint32_t shared, int n)
{
    return shared + buffer_of<QUEUED>(n) * QUERY_BYTES<DIM>;
}
template <int DIM> static __device__ __forceinline__ uint32_t keys_at(uint32_t shared, int step)
{
    return shared + K_AT<DIM> + buffer_of<STAGES<DIM>>(step) * KEY_BYTES<DIM>;
}
template <int DIM> static __device__ __forceinline__ uint32_t values_at(uint32_t shared, int step)
{
    return shared + V_AT<DIM> + buffer_of<STAGES<DIM>>(step) * KEY_BYTES<DIM>;
}

/* ---- Loading: a thread ---- */

/* Loads a tile of keys or values, when the ring has room for it. */
template <int DIM>
static __device__ __forceinline__ void load_keys(uint32_t to, const CUtensorMap *qkv, int column, int row, int batch,
                                                 uint32_t full, uint32_t empty, int step)
{
    full += 8 * buffer_of<STAGES<DIM>>(step);
    wait_for_room<STAGES<DIM>>(empty, step);
    zero_barrier_expect(full, KEY_BYTES<DIM>);
#pragma unroll
    for (int rows = 0; rows < KEYS; rows += 64)
        load_64_rows<DIM, KEYS>(to + rows * ROW_BYTES, qkv, column, row + rows, batch, full);
}

/* Takes items and loads what they need. After the last one comes -1. */
template <int DIM>
static __device__ __forceinline__ void load_items(const CUtensorMap *qkv, const forward_t &f, uint32_t shared,
                                                  unsigned char *memory, const barriers_t &b)
{
    int step = 0;
    for (int n = 0;; ++n) {
        const int item = atomicAdd(f.next_item, 1);
        const uint32_t full = b.item_full + 8 * buffer_of<QUEUED>(n);
        wait_for_room<QUEUED>(b.item_empty, n);
        *item_at<DIM>(memory, n) = item < f.n_items ? item : -1;
        if (item >= f.n_items) {
            zero_barrier_arrive(full);
            return;
        }
        const place_t p = place_of<DIM>(f, item);
        zero_barrier_expect(full, QUERY_BYTES<DIM>);
#pragma unroll
        for (int rows = 0; rows < QUERIES<DIM>; rows += 64)
            load_64_rows<DIM, QUERIES<DIM>>(queries_at<DIM>(shared, n) + rows * ROW_BYTES, qkv, p.head * DIM,
                                            p.first + rows, p.batch, full);
        const int k = (f.s.n_heads + p.kv_head) * DIM, v = k + f.s.n_kv_heads * DIM; /* first columns */
        for (int tile = p.n_keys - 1; tile >= 0; --tile, ++step) {
            load_keys<DIM>(keys_at<DIM>(shared, step), qkv, k, tile * KEYS, p.batch, b.k_full, b.k_empty, step);
            load_keys<DIM>(values_at<DIM>(shared, step), qkv, v, tile * KEYS, p.batch, b.v_full, b.v_empty, step);
        }
    }
}

/* ---- Turns: a warpgroup ---- */

/* Wait for this consumer's turn to start products; give the turn to the next consumer. */
static __device__ __forceinline__ void wait_for_turn(int consumer)
{
    asm volatile("bar.sync %0, " TURN_THREADS ";" ::"r"(consumer + 1) : "memory");
}
template <int DIM> static __device__ __forceinline__ void pass_turn(int consumer)
{
    const int next = consumer + 1 == CONSUMERS<DIM> ? 0 : consumer + 1;
    asm volatile("bar.arrive %0, " TURN_THREADS ";" ::"r"(next + 1) : "memory");
}

/* ---- Products: a warpgroup ---- */

/* Starts scores = Q K^T. */
template <typename T, int DIM>
static __device__ __forceinline__ void begin_scores(float (&scores)[KEYS / 8][4], uint32_t queries, uint32_t keys)
{
    zero_wide_hold(scores);
    wide_dots<T, DIM, QUERIES<DIM>>(scores, queries, keys);
}

/* ---- Softmax: a thread has parts of two rows, one among the first eight of the warp's and one among the others ----
 */

/* The rows' maxima, in units of log 2, and their sums, of this lane's columns. */
typedef struct running {
    float max[2], sum[2];
} running_t;

/* Hides keys that come after the query. ahead: first key minus the warp's first query. */
static __device__ __forceinline__ void hide_later(float (&scores)[KEYS / 8][4], int ahead, int lane)
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (ahead + n * 8 + lane % 4 * 2 + e % 2 > lane / 4 + e / 2 * 8)
                scores[n][e] = -INFINITY;
}

static __device__ __forceinline__ float row_max(const float (&scores)[KEYS / 8][4], int half)
{
    float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
        max[n % 2] = fmaxf(max[n % 2], fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    max[0] = fmaxf(max[0], max[1]);
    max[0] = fmaxf(max[0], __shfl_xor_sync(ZERO_FULL_WARP, max[0], 1));
    return fmaxf(max[0], __shfl_xor_sync(ZERO_FULL_WARP, max[0], 2));
}

/* Turns scores into P. rescale: by what earlier sums are to be multiplied; before the first tile r->max is -infinity.
 * A row sees a key of the first tile, so that its maximum is finite. */
static __device__ __forceinline__ void soften(float (&scores)[KEYS / 8][4], running_t *r, float (&rescale)[2],
                                              float scale)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float before = r->max[half], now = row_max(scores, half) * scale;
        const float max = now > before + SLACK ? now : before;
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float *score = &scores[n][2 * half + e];
                *score = zero_fast_exp2(fmaf(*score, scale, -max));
                sum[e] += *score;
            }
        rescale[half] = now > before + SLACK ? zero_fast_exp2(before - max) : 1.0f;
        r->max[half] = max;
        r->sum[half] = fmaf(r->sum[half], rescale[half], sum[0] + sum[1]);
    }
}

/* Multiplies a warp's sums, if a factor is not 1. */
template <int N> static __device__ __forceinline__ void rescale_sums(float (&sums)[N][4], const float (&factors)[2])
{
    if (__any_sync(ZERO_FULL_WARP, factors[0] != 1.0f || factors[1] != 1.0f))
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                sums[n][e] *= factors[e / 2];
}

/* Writes a warp's logsumexp, and the factors of its sums. first: the warp's first query. */
static __device__ __forceinline__ void finish_rows(const forward_t &f, const place_t &p, const running_t &r, int first,
                                                   float (&factors)[2], int lane)
{
    float *lse = f.logsumexp + ((size_t)p.batch * f.s.n_heads + p.head) * f.s.seq_len;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float sum = zero_lanes_sum<4>(r.sum[half]);
        const int row = first + lane / 4 + half * 8;
        factors[half] = 1.0f / sum;
        if (lane % 4 == 0 && row < f.s.seq_len)
            lse[row] = fmaf(r.max[half], LN_2, logf(sum));
    }
}

/* ---- Items: a consumer warpgroup ---- */

/* Passes over the tiles of keys, from step on, that come after all of the consumer's queries: all but the first n_keys.
 * It takes its turns nevertheless: in an item every consumer has p.n_keys - 1 of them. */
template <int DIM>
static __device__ __forceinline__ void pass_hidden(const place_t &p, int n_keys, int consumer, int step, int lane,
                                                   const barriers_t &b)
{
    for (int tile = p.n_keys - 1; tile >= n_keys; --tile, ++step) {
        if (tile > 0) {
            wait_for_turn(consumer);
            pass_turn<DIM>(consumer);
        }
        wait_for_full<STAGES<DIM>>(b.k_full, step);
        wait_for_full<STAGES<DIM>>(b.v_full, step);
        __syncwarp();
        warp_arrive_at<STAGES<DIM>>(b.k_empty, step, lane);
        warp_arrive_at<STAGES<DIM>>(b.v_empty, step, lane);
    }
}

/* Computes the consumer's queries, which are at `queries` and begin with the first-th of the sequence. They see n_keys
 * tiles of keys, at least one: the last at step, the others after it. */
template <typename T, int DIM>
static __device__ __forceinline__ void compute_queries(const forward_t &f, const place_t &p, int n_keys, int first,
                                                       int consumer, uint32_t queries, uint32_t shared, int step,
                                                       const barriers_t &b)
{
    constexpr int STAGES = ::STAGES<DIM>;
    const int lane = threadIdx.x % ZERO_WARP, warp_first = first + threadIdx.x / ZERO_WARP % 4 * 16;
    float scores[KEYS / 8][4], sums[DIM / 8][4] = {}, factors[2];
    uint32_t probs[KEYS / 16][4];
    running_t r = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    wait_for_full<STAGES>(b.k_full, step);
    begin_scores<T, DIM>(scores, queries, keys_at<DIM>(shared, step));
    zero_wide_wait<0>(scores);
    warp_arrive_at<STAGES>(b.k_empty, step, lane);
    hide_later(scores, (n_keys - 1) * KEYS - warp_first, lane);
    soften(scores, &r, factors, f.scale);
    round_weights<T>(probs, scores);
    for (int tile = n_keys - 1; tile > 0; --tile, ++step) {
        wait_for_full<STAGES>(b.k_full, step + 1);
        wait_for_turn(consumer);
        begin_scores<T, DIM>(scores, queries, keys_at<DIM>(shared, step + 1));
        wait_for_full<STAGES>(b.v_full, step);
        wide_accumulate<T, DIM>(sums, probs, values_at<DIM>(shared, step));
        pass_turn<DIM>(consumer);
        zero_wide_wait<1>(scores);
        warp_arrive_at<STAGES>(b.k_empty, step + 1, lane);
        soften(scores, &r, factors, f.scale);
        zero_wide_wait<0>(sums);
        zero_wide_hold(probs);
        warp_arrive_at<STAGES>(b.v_empty, step, lane);
        rescale_sums(sums, factors);
        round_weights<T>(probs, scores);
    }
    wait_for_full<STAGES>(b.v_full, step);
    wide_accumulate<T, DIM>(sums, probs, values_at<DIM>(shared, step));
    finish_rows(f, p, r, warp_first, factors, lane);
    zero_wide_wait<0>(sums);
    warp_arrive_at<STAGES>(b.v_empty, step, lane);
    T *rows = (T *)f.out + ((size_t)p.batch * f.s.seq_len * f.s.n_heads + p.head) * DIM;
    write_rows<T>(rows, (size_t)f.s.n_heads * DIM, warp_first, f.s.seq_len, sums, factors, lane);
}

/* Computes the consumer's queries of each item. */
template <typename T, int DIM>
static __device__ __forceinline__ void compute_items(const forward_t &f, int consumer, uint32_t shared,
                                                     unsigned char *memory, const barriers_t &b)
{
    const int lane = threadIdx.x % ZERO_WARP;
    int step = 0; /* tiles of keys before this item */
    if (consumer == CONSUMERS<DIM> - 1)
        pass_turn<DIM>(consumer); /* to the first, which begins */
    for (int n = 0;; ++n) {
        wait_for_full<QUEUED>(b.item_full, n);
        const int item = *item_at<DIM>(memory, n);
        if (item < 0)
            return;
        const place_t p = place_of<DIM>(f, item);
        const int first = p.first + consumer * 64, n_keys = first >= 0 ? first / KEYS + 1 : 0;
        pass_hidden<DIM>(p, n_keys, consumer, step, lane, b);
        if (n_keys > 0)
            compute_queries<T, DIM>(f, p, n_keys, first, consumer,
                                    queries_at<DIM>(shared, n) + consumer * 64 * ROW_BYTES, shared,
                                    step + p.n_keys - n_keys, b);
        step += p.n_keys;
        __syncwarp();
        warp_arrive_at<QUEUED>(b.item_empty, n, lane);
    }
}

#endif

/* ---- Launching ---- */

template <typename T, int DIM>
static __global__ void __launch_bounds__(THREADS<DIM>, 1)
    attention_forward_causal(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ forward_t f)
{
#if ZERO_HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t shared = zero_shared_address(memory);
    const barriers_t b = barriers_at<DIM>(shared);
    const int role = __shfl_sync(ZERO_FULL_WARP, threadIdx.x / 128, 0); /* known to be the same in a warp */
    if (threadIdx.x == 0)
        init_barriers<DIM>(b);
    __syncthreads();
    if (role == 0) {
        zero_give_registers<LOADER_REGISTERS<DIM>>();
        if (threadIdx.x == 0)
            load_items<DIM>(&qkv, f, shared, memory, b);
    } else {
        zero_take_registers<CONSUMER_REGISTERS<DIM>>();
        compute_items<T, DIM>(f, role - 1, shared, memory, b);
    }
#else
    __trap();
#endif
}

template <typename T, int DIM> static cudaError_t launch(cudaStream_t stream, const CUtensorMap *qkv, forward_t f)
{
    auto kernel = attention_forward_causal<T, DIM>;
    constexpr int bytes = SHARED_BYTES<DIM>, threads = THREADS<DIM>;
    const size_t head_bytes = (size_t)f.s.seq_len * 2 * DIM * sizeof(T); /* keys and values */
    const int most = (int)(SECTION_BYTES / head_bytes), n_kv_heads = f.s.n_batch * f.s.n_kv_heads;
    int gpu, n_sms;
    cudaError_t error = cudaGetDevice(&gpu);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, gpu);
    if (error == cudaSuccess)
        error = allow_shared((const void *)kernel, bytes);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(f.next_item, 0, sizeof *f.next_item, stream);
    if (error != cudaSuccess)
        return error;
    f.n_tiles = (int)zero_divide_up(f.s.seq_len, QUERIES<DIM>);
    f.n_missing = f.n_tiles * QUERIES<DIM> - (int)zero_divide_up(f.s.seq_len, 64) * 64;
    f.n_items = f.n_tiles * f.s.n_heads * f.s.n_batch;
    f.section = most < 1 ? 1 : most < n_kv_heads ? most : n_kv_heads;
    const int n_blocks = n_sms < f.n_items ? n_sms : f.n_items;
    kernel<<<n_blocks, threads, bytes, stream>>>(*qkv, f);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_attention_causal(cudaStream_t stream, zero_dtype_t dtype, void *out,
                                                    float *logsumexp, void *workspace, const void *qkv,
                                                    const zero_attention_shape_t *shape)
{
    forward_t f = {};
    f.out = out;
    f.logsumexp = logsumexp;
    f.next_item = (int *)workspace;
    f.s = sizes_of(shape);
    f.scale = LOG2_E / sqrtf((float)shape->head_dim);
    CUtensorMap map;
    const cudaError_t error = zero_describe_rows(&map, dtype, qkv, shape->n_batch, shape->seq_len,
                                                 (shape->n_heads + 2 * shape->n_kv_heads) * shape->head_dim);
    if (error != cudaSuccess)
        return error;
    return with_half_type(dtype, [&](auto type) {
        using T = decltype(type);
        return shape->head_dim == 64 ? launch<T, 64>(stream, &map, f) : launch<T, 128>(stream, &map, f);
    });
}
