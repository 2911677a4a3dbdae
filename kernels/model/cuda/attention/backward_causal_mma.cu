/* backward_causal_mma.cu - the gradients of causal attention with heads of 64 on Hopper: one pass over the pairs of
 * keys and queries, in 16 bits, with the same bits in every run.
 *
 * S^T = K Q^T;  P^T = e^(scale S^T - logsumexp);  dP^T = V dO^T;  dS^T = P^T (dP^T - delta), delta = rowsum(dO O)
 * dV = P^T dO;  dK = scale dS^T Q;  dQ = scale dS K
 *
 * A block owns KEYS keys of one key/value head and walks over the tiles of queries that see them, for each query head
 * that shares the key/value head, in order. Its warpgroups do different work, and hand it on through barriers:
 *
 *     loader        copies the tiles of q and dout to shared memory, several steps ahead; two more of its warps keep
 *                   the order of what is added to dQ
 *     keys, twice   64 of the keys each: S^T and dP^T, of which P^T and dS^T, in registers, are the left sides of dV
 *                   and dK, whose sums stay in registers; dS^T also goes to shared memory
 *     dQ            multiplies dS, of all keys of the block, with K and adds it to an fp32 sum in global memory
 *
 * The keys' products of one step and S^T and dP^T of the next are queued together, so that the tensor cores work while
 * exponentials are computed.
 *
 * Blocks add to a tile of dQ in a fixed order, each after the one before has raised the tile's count. The first stores,
 * so nothing has to be zeroed; the last rounds the sum and writes it to dqkv. The order is that in which the blocks
 * start, so whoever waits waits for a block that runs: in chunks of blocks from the first keys on, whose blocks take
 * longest, and within a chunk from its last block to its first. A block begins with the tile of its own keys. So when a
 * chunk's blocks start together, each finds a tile finished that the block before it, with later keys, has begun with,
 * and waits for nothing. A chunk's blocks read the same queries, which stay in the L2 cache.
 */
#include "kernels/model/cuda/attention/bulk.cuh"
#include "kernels/model/cuda/attention/tiles.cuh"

#define DIM 64
#define QUERIES 64  /* of a tile */
#define KEYS 128    /* of a block */
#define OWN_KEYS 64 /* of a warpgroup */
#define STAGES 4    /* tiles of queries in shared memory */
#define DSCORES 2   /* tiles of dS there */
#define THREADS 512
/* Blocks of a chunk. On an H100, 4 x 4096, 32/8 heads: 4, 8, 16, 32 blocks 1.82, 1.73, 1.76, 1.84 ms. */
#define CHUNK 8

/* Registers of a thread of each kind of warpgroup; 512 for one thread of each of the four. */
#define LOADER_REGISTERS 40
#define DQ_REGISTERS 80
#define KEY_REGISTERS 192

#define KEY_BYTES tile_bytes<DIM, KEYS>
#define QUERY_BYTES tile_bytes<DIM, QUERIES>
#define DSCORE_BYTES (KEYS * QUERIES * 2)
#define NUMBER_BYTES (2 * QUERIES * 4)

/* Where things are in shared memory. */
#define K_AT 0
#define V_AT KEY_BYTES
#define QUERIES_AT (2 * KEY_BYTES) /* of each stage: q, dout */
#define DSCORES_AT (QUERIES_AT + STAGES * 2 * QUERY_BYTES)
#define NUMBERS_AT (DSCORES_AT + DSCORES * DSCORE_BYTES)
#define BARRIERS_AT (NUMBERS_AT + STAGES * NUMBER_BYTES)
#define SHARED_BYTES (BARRIERS_AT + 8 * (1 + 2 * STAGES + 5 * DSCORES))

typedef struct causal {
    void *dqkv;
    float *numbers; /* [n_batch, n_heads, n_tiles, 2, QUERIES]: logsumexp times log2 e, delta */
    float *dq;      /* [n_batch, n_heads, n_tiles, QUERIES * DIM], in the order of the threads that add */
    int *counts;    /* [n_batch, n_heads, n_tiles]: blocks that have added to a tile of dq */
    sizes_t s;
    int n_tiles, n_blocks, chunk;
} causal_t;

#if ZERO_HAS_WGMMA /* elsewhere the kernel is empty, and not launched */

/* ---- Order ---- */

/* What a block computes: its keys, those of the `block`-th block, are seen by `tiles` tiles from first_tile on. */
typedef struct place {
    int batch, kv_head, group, block, first_tile, tiles, chunk_begin, chunk_end;
} place_t;

static __device__ __forceinline__ place_t place_of(const causal_t &c)
{
    const int n_heads = c.s.n_batch * c.s.n_kv_heads, per_chunk = n_heads * c.chunk;
    const int n = blockIdx.x / per_chunk, rest = blockIdx.x % per_chunk;
    place_t p;
    p.chunk_begin = n * c.chunk;
    p.chunk_end = min(p.chunk_begin + c.chunk, c.n_blocks);
    const int length = p.chunk_end - p.chunk_begin, head = rest / length;
    p.block = p.chunk_end - 1 - rest % length;
    p.batch = head / c.s.n_kv_heads;
    p.kv_head = head % c.s.n_kv_heads;
    p.group = c.s.n_heads / c.s.n_kv_heads;
    p.first_tile = p.block * (KEYS / QUERIES);
    p.tiles = c.n_tiles - p.first_tile;
    return p;
}

/* Returns how many blocks add to a tile of queries before this one. */
static __device__ __forceinline__ int blocks_before(const place_t &p, int tile)
{
    return p.chunk_begin + min(p.chunk_end - 1, tile / (KEYS / QUERIES)) - p.block;
}

/* Addresses in shared memory. Those after the first are of several, one for each buffer. */
struct barriers {
    uint32_t keys;                        /* K and V are there */
    uint32_t full, empty;                 /* a stage is there; its products have ended */
    uint32_t dscores_full, dscores_empty; /* likewise of dS */
    uint32_t go, added, released;         /* dQ may add its tile; has; and the next block has been told */
};
static __device__ __forceinline__ barriers barriers_at(uint32_t shared)
{
    const uint32_t at = shared + BARRIERS_AT, full = at + 8, empty = full + 8 * STAGES, first = empty + 8 * STAGES;
    return {
        at, full, empty, first, first + 8 * DSCORES, first + 16 * DSCORES, first + 24 * DSCORES, first + 32 * DSCORES};
}

/* A step's place in a ring of N buffers. */
template <int N> struct ring {
    int at = 0, phase = 0;
    __device__ __forceinline__ void next(void)
    {
        if (++at == N) {
            at = 0;
            ++phase;
        }
    }
};

/* Waits until a step may write to its buffer, which the step N before has left. */
template <int N> static __device__ __forceinline__ void wait_for_room(uint32_t empty, ring<N> r)
{
    if (r.phase > 0)
        zero_barrier_wait(empty + 8 * r.at, r.phase - 1);
}

/* ---- Loading: a thread ---- */

static __device__ __forceinline__ void load_keys(const CUtensorMap *qkv, const causal_t &c, const place_t &p,
                                                 uint32_t shared, uint32_t barrier)
{
    zero_barrier_expect(barrier, 2 * KEY_BYTES);
#pragma unroll
    for (int rows = 0; rows < KEYS; rows += OWN_KEYS) {
        const int column = (c.s.n_heads + p.kv_head) * DIM, row = p.block * KEYS + rows;
        zero_copy_box(shared + K_AT + rows * ROW_BYTES, qkv, column, row, p.batch, barrier);
        zero_copy_box(shared + V_AT + rows * ROW_BYTES, qkv, column + c.s.n_kv_heads * DIM, row, p.batch, barrier);
    }
}

static __device__ __forceinline__ void load_queries(const CUtensorMap *qkv, const CUtensorMap *dout, const causal_t &c,
                                                    const place_t &p, uint32_t shared, const barriers &b)
{
    ring<STAGES> r;
    for (int member = 0; member < p.group; ++member) {
        const int head = p.kv_head * p.group + member;
#pragma unroll 1
        for (int tile = p.first_tile; tile < c.n_tiles; ++tile, r.next()) {
            const uint32_t to = shared + QUERIES_AT + r.at * 2 * QUERY_BYTES, full = b.full + 8 * r.at;
            wait_for_room(b.empty, r);
            zero_barrier_expect(full, 2 * QUERY_BYTES + NUMBER_BYTES);
            zero_copy_box(to, qkv, head * DIM, tile * QUERIES, p.batch, full);
            zero_copy_box(to + QUERY_BYTES, dout, head * DIM, tile * QUERIES, p.batch, full);
            zero_copy_bytes(shared + NUMBERS_AT + r.at * NUMBER_BYTES,
                            c.numbers + ((size_t)(p.batch * c.s.n_heads + head) * c.n_tiles + tile) * 2 * QUERIES,
                            NUMBER_BYTES, full);
        }
    }
}

/* ---- The order of what is added to dQ: a thread each ---- */

/* Lets dQ add a tile when it is this block's turn. */
static __device__ __forceinline__ void wait_for_turns(const causal_t &c, const place_t &p, const barriers &b)
{
    ring<DSCORES> r;
    for (int member = 0; member < p.group; ++member) {
        const int *counts = c.counts + (size_t)(p.batch * c.s.n_heads + p.kv_head * p.group + member) * c.n_tiles;
        for (int tile = p.first_tile; tile < c.n_tiles; ++tile, r.next()) {
            const int before = blocks_before(p, tile);
            wait_for_room(b.released, r);
            if (before > 0)
                while (zero_load_acquire(counts + tile) != before)
                    ;
            zero_barrier_arrive(b.go + 8 * r.at);
        }
    }
}

/* Hands a tile on when it has been added. */
static __device__ __forceinline__ void release_turns(const causal_t &c, const place_t &p, const barriers &b)
{
    ring<DSCORES> r;
    for (int member = 0; member < p.group; ++member) {
        int *counts = c.counts + (size_t)(p.batch * c.s.n_heads + p.kv_head * p.group + member) * c.n_tiles;
        for (int tile = p.first_tile; tile < c.n_tiles; ++tile, r.next()) {
            zero_barrier_wait(b.added + 8 * r.at, r.phase);
            zero_store_release(counts + tile, blocks_before(p, tile) + 1);
            zero_barrier_arrive(b.released + 8 * r.at);
        }
    }
}

/* ---- Writing rows ---- */

/* Exchanges words among four neighbouring lanes: lane t gets the t-th word of each, in their order. */
static __device__ __forceinline__ void exchange_words(uint32_t (&w)[4], int lane)
{
    const bool odd = lane & 1, high = lane & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t word = __shfl_xor_sync(ZERO_FULL_WARP, odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? word : w[i];
        w[i + 1] = odd ? w[i + 1] : word;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint32_t word = __shfl_xor_sync(ZERO_FULL_WARP, high ? w[i] : w[i + 2], 2);
        w[i] = high ? word : w[i];
        w[i + 2] = high ? w[i + 2] : word;
    }
}

/* Writes a warp's 16 rows, times a factor, to rows first .. of a head that begins at `rows`. */
template <typename T>
static __device__ __forceinline__ void write_rows(T *rows, size_t width, int first, int n_rows,
                                                  const float (&sums)[DIM / 8][4], float factor, int lane)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first + lane / 4 + half * 8;
        T *to = rows + (size_t)row * width + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < DIM / 8; n += 4) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                w[i] = zero_pair<T>::of(sums[n + i][2 * half] * factor, sums[n + i][2 * half + 1] * factor);
            exchange_words(w, lane);
            if (row < n_rows)
                *(uint4 *)(to + n * 8) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

/* ---- dQ: a warpgroup ---- */

/* Starts sums = dS K. all_keys: of the block; else the first half. */
template <typename T>
static __device__ __forceinline__ void begin_dq(float (&sums)[DIM / 8][4], uint32_t dscores, uint32_t keys,
                                                bool all_keys)
{
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
                                                  const barriers &b, float scale)
{
    const int thread = threadIdx.x % 128, lane = thread % ZERO_WARP, warp = thread / ZERO_WARP;
    const size_t width = (size_t)(c.s.n_heads + 2 * c.s.n_kv_heads) * DIM;
    ring<DSCORES> r;
    zero_barrier_wait(b.keys, 0);
    for (int member = 0; member < p.group; ++member) {
        const int head = p.kv_head * p.group + member;
        const size_t first = (size_t)(p.batch * c.s.n_heads + head) * c.n_tiles + p.first_tile;
        float4 *dq = (float4 *)(c.dq + first * (QUERIES * DIM)) + thread; /* every 128th is this thread's */
        T *out = (T *)c.dqkv + (size_t)p.batch * c.s.seq_len * width + (size_t)head * DIM;
        for (int tile = p.first_tile; tile < c.n_tiles; ++tile, r.next(), dq += QUERIES * DIM / 4) {
            const int before = blocks_before(p, tile);
            float sums[DIM / 8][4];
            zero_barrier_wait(b.dscores_full + 8 * r.at, r.phase);
            /* The second half of the keys is later than the first tile of queries. */
            begin_dq<T>(sums, shared + DSCORES_AT + r.at * DSCORE_BYTES, shared + K_AT, tile > p.first_tile);
            zero_wide_wait<0>(sums);
            if (lane == 0)
                zero_barrier_arrive(b.dscores_empty + 8 * r.at);
            zero_barrier_wait(b.go + 8 * r.at, r.phase);
            if (before == tile / (KEYS / QUERIES)) { /* the last block to add */
                if (before > 0)
#pragma unroll
                    for (int n = 0; n < DIM / 8; ++n) {
                        const float4 sum = zero_load_shared_by_blocks(dq + n * 128);
                        sums[n][0] += sum.x;
                        sums[n][1] += sum.y;
                        sums[n][2] += sum.z;
                        sums[n][3] += sum.w;
                    }
                write_rows<T>(out, width, tile * QUERIES + warp * 16, c.s.seq_len, sums, scale, lane);
            } else if (before == 0) {
#pragma unroll
                for (int n = 0; n < DIM / 8; ++n)
                    dq[n * 128] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
            } else {
#pragma unroll
                for (int n = 0; n < DIM / 8; ++n)
                    zero_add_global(dq + n * 128, sums[n]);
            }
            __syncwarp();
            if (lane == 0)
                zero_barrier_arrive(b.added + 8 * r.at);
        }
    }
}

/* ---- dK and dV: two warpgroups ---- */

/* Starts dots = own queries^T: S^T of K and q, or dP^T of V and dout. */
template <typename T>
static __device__ __forceinline__ void begin_dots(float (&dots)[QUERIES / 8][4], uint32_t own, uint32_t queries)
{
    zero_wide_hold(dots);
    zero_wide_begin();
#pragma unroll
    for (int k = 0; k < DIM / 16; ++k)
        zero_wide_dot<T>(dots, zero_wide_tile(own + k * 32, 0), zero_wide_tile(queries + k * 32, 0), k > 0);
    zero_wide_commit();
}

/* Turns S^T into P^T. lse: of the lane's first two columns. scale: times log2 e. */
static __device__ __forceinline__ void probabilities(float (&scores)[QUERIES / 8][4], const float2 *lse, float scale)
{
#pragma unroll
    for (int n = 0; n < QUERIES / 8; ++n) {
        const float2 pair = lse[n * 4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            scores[n][e] = zero_fast_exp2(fmaf(scores[n][e], scale, e % 2 ? -pair.y : -pair.x));
    }
}

/* Hides keys from earlier queries in a tile of the diagonal. */
static __device__ __forceinline__ void hide_later(float (&probs)[QUERIES / 8][4], int warp, int lane)
{
#pragma unroll
    for (int n = 0; n < QUERIES / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (warp * 16 + lane / 4 + e / 2 * 8 > n * 8 + lane % 4 * 2 + e % 2)
                probs[n][e] = 0.0f;
}

/* Rounds P^T and dS^T, which it computes. */
template <typename T>
static __device__ __forceinline__ void
round_both(uint32_t (&probs16)[QUERIES / 16][4], uint32_t (&dscores16)[QUERIES / 16][4],
           const float (&probs)[QUERIES / 8][4], const float (&dprobs)[QUERIES / 8][4], const float2 *delta)
{
#pragma unroll
    for (int k = 0; k < QUERIES / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int n = 2 * k + i / 2, e = i % 2 * 2;
            const float2 pair = delta[n * 4];
            probs16[k][i] = zero_pair<T>::of(probs[n][e], probs[n][e + 1]);
            dscores16[k][i] =
                zero_pair<T>::of(probs[n][e] * (dprobs[n][e] - pair.x), probs[n][e + 1] * (dprobs[n][e + 1] - pair.y));
        }
}

template <typename T>
static __device__ __forceinline__ void compute_dkv(const causal_t &c, const place_t &p, int part, uint32_t shared,
                                                   const unsigned char *memory, const barriers &b, float scale)
{
    const int lane = threadIdx.x % ZERO_WARP, warp = threadIdx.x / ZERO_WARP % 4, n_steps = p.group * p.tiles;
    const uint32_t own_k = shared + K_AT + part * OWN_KEYS * ROW_BYTES;
    const uint32_t own_v = shared + V_AT + part * OWN_KEYS * ROW_BYTES;
    /* The lane's row of dS^T when a warp stores matrices. */
    const uint32_t dscore_row = shared + DSCORES_AT + (part * OWN_KEYS + warp * 16 + (lane & 15)) * ROW_BYTES;
    float dk[DIM / 8][4] = {}, dv[DIM / 8][4] = {}, scores[QUERIES / 8][4], dprobs[QUERIES / 8][4];
    uint32_t probs16[QUERIES / 16][4], dscores16[QUERIES / 16][4];
    ring<STAGES> now;
    ring<DSCORES> out;
    int step = 0, index = 0; /* index: of the tile, from the first that sees the block */
    auto next_step = [&]() {
        now.next();
        out.next();
        ++step;
        index = index + 1 == p.tiles ? 0 : index + 1;
    };
    /* Passes over tiles that do not see these keys: the first one of each head, for the second half of the keys. */
    auto skip_hidden = [&]() {
        while (part > index && step < n_steps) {
            zero_barrier_wait(b.full + 8 * now.at, now.phase);
            wait_for_room(b.dscores_empty, out);
            if (lane == 0) {
                zero_barrier_arrive(b.empty + 8 * now.at);
                zero_barrier_arrive(b.dscores_full + 8 * out.at);
            }
            __syncwarp();
            next_step();
        }
    };

    zero_barrier_wait(b.keys, 0);
    skip_hidden();
    if (step < n_steps) {
        const uint32_t first = shared + QUERIES_AT + now.at * 2 * QUERY_BYTES;
        zero_wide_hold(dk);
        zero_wide_hold(dv);
        zero_barrier_wait(b.full + 8 * now.at, now.phase);
        begin_dots<T>(scores, own_k, first);
        begin_dots<T>(dprobs, own_v, first + QUERY_BYTES);
        zero_wide_commit(); /* empty: for the dV and dK of a step before */
        zero_wide_commit();
        int before = -1; /* the stage of that step */
        while (true) {
            const uint32_t queries = shared + QUERIES_AT + now.at * 2 * QUERY_BYTES;
            const float2 *numbers = (const float2 *)(memory + NUMBERS_AT + now.at * NUMBER_BYTES) + lane % 4;
            zero_wide_wait<3>(scores);
            probabilities(scores, numbers, scale * LOG2_E);
            if (index == part)
                hide_later(scores, warp, lane);
            zero_wide_wait<2>(dprobs);
            zero_wide_wait<0>(dk);
            zero_wide_wait<0>(dv);
            if (before >= 0 && lane == 0)
                zero_barrier_arrive(b.empty + 8 * before);
            round_both<T>(probs16, dscores16, scores, dprobs, numbers + QUERIES / 2);
            wait_for_room(b.dscores_empty, out);
#pragma unroll
            for (int k = 0; k < QUERIES / 16; ++k)
                zero_store_matrices(dscore_row + out.at * DSCORE_BYTES + (((2 * k + (lane >> 4)) ^ (lane & 7)) << 4),
                                    dscores16[k]);
            zero_wide_show_copies();
            __syncwarp();
            if (lane == 0)
                zero_barrier_arrive(b.dscores_full + 8 * out.at);
            before = now.at;
            next_step();
            skip_hidden();
            if (step >= n_steps) {
                wide_accumulate<T, DIM>(dv, probs16, queries + QUERY_BYTES);
                wide_accumulate<T, DIM>(dk, dscores16, queries);
                break;
            }
            const uint32_t next = shared + QUERIES_AT + now.at * 2 * QUERY_BYTES;
            zero_barrier_wait(b.full + 8 * now.at, now.phase);
            begin_dots<T>(scores, own_k, next);
            begin_dots<T>(dprobs, own_v, next + QUERY_BYTES);
            wide_accumulate<T, DIM>(dv, probs16, queries + QUERY_BYTES);
            wide_accumulate<T, DIM>(dk, dscores16, queries);
        }
        zero_wide_wait<0>(dk);
        zero_wide_wait<0>(dv);
    }
    const size_t width = (size_t)(c.s.n_heads + 2 * c.s.n_kv_heads) * DIM;
    T *rows = (T *)c.dqkv + (size_t)p.batch * c.s.seq_len * width + (size_t)(c.s.n_heads + p.kv_head) * DIM;
    const int first = p.block * KEYS + part * OWN_KEYS + warp * 16;
    write_rows<T>(rows, width, first, c.s.seq_len, dk, scale, lane);
    write_rows<T>(rows + (size_t)c.s.n_kv_heads * DIM, width, first, c.s.seq_len, dv, 1.0f, lane);
}

/* ---- A block ---- */

static __device__ __forceinline__ void init_barriers(const barriers &b)
{
    zero_barrier_init(b.keys, 1);
    for (int i = 0; i < STAGES; ++i) {
        zero_barrier_init(b.full + 8 * i, 1);
        zero_barrier_init(b.empty + 8 * i, 8); /* warps of keys */
    }
    for (int i = 0; i < DSCORES; ++i) {
        zero_barrier_init(b.dscores_full + 8 * i, 8);
        zero_barrier_init(b.dscores_empty + 8 * i, 4); /* warps of dQ */
        zero_barrier_init(b.go + 8 * i, 1);
        zero_barrier_init(b.added + 8 * i, 4);
        zero_barrier_init(b.released + 8 * i, 1);
    }
    zero_barrier_show();
}

template <typename T>
static __device__ __forceinline__ void backward_block(const CUtensorMap *qkv, const CUtensorMap *dout,
                                                      const causal_t &c, float scale)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t shared = zero_shared_address(memory);
    const barriers b = barriers_at(shared);
    const place_t p = place_of(c);
    const int role = __shfl_sync(ZERO_FULL_WARP, threadIdx.x / 128, 0); /* known to be the same in a warp */
    if (threadIdx.x == 0)
        init_barriers(b);
    __syncthreads();
    if (role == 1) {
        zero_give_registers<DQ_REGISTERS>();
        compute_dq<T>(c, p, shared, b, scale);
    } else if (role > 1) {
        zero_take_registers<KEY_REGISTERS>();
        compute_dkv<T>(c, p, role - 2, shared, memory, b, scale);
    } else {
        zero_give_registers<LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
            load_keys(qkv, c, p, shared, b.keys);
            load_queries(qkv, dout, c, p, shared, b);
        } else if (threadIdx.x == ZERO_WARP) {
            wait_for_turns(c, p, b);
        } else if (threadIdx.x == 2 * ZERO_WARP) {
            release_turns(c, p, b);
        }
    }
}

#endif

template <typename T>
static __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_causal(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
                              const __grid_constant__ causal_t c, float scale)
{
#if ZERO_HAS_WGMMA
    backward_block<T>(&qkv, &dout, c, scale);
#endif
}

/* ---- Queries' numbers ---- */

#define NUMBERS_THREADS 256
#define ROW_LANES (DIM / 8) /* lanes to a row, 8 elements each */

/* Computes a tile's numbers, of rows beyond the sequence such that their probabilities are 0, and resets its count. A
 * block's head is in x, its tile in y, its sequence in z. */
template <typename T>
static __global__ void __launch_bounds__(NUMBERS_THREADS)
    causal_numbers(causal_t c, const T *dout, const T *out, const float *logsumexp)
{
    const size_t head = (size_t)blockIdx.z * c.s.n_heads + blockIdx.x, tile = head * c.n_tiles + blockIdx.y;
    float *numbers = c.numbers + tile * 2 * QUERIES;
#pragma unroll
    for (int i = 0; i < QUERIES * ROW_LANES / NUMBERS_THREADS; ++i) {
        const int row = (i * NUMBERS_THREADS + (int)threadIdx.x) / ROW_LANES, lane = threadIdx.x % ROW_LANES;
        const int query = blockIdx.y * QUERIES + row;
        const bool valid = query < c.s.seq_len;
        float sum = 0.0f;
        if (valid) {
            const size_t at = (((size_t)blockIdx.z * c.s.seq_len + query) * c.s.n_heads + blockIdx.x) * DIM + lane * 8;
            const zero_pack<T, 8> a = zero_load<8>(dout, at), b = zero_load<8>(out, at);
#pragma unroll
            for (int e = 0; e < 8; ++e)
                sum = fmaf(a[e], b[e], sum);
        }
#pragma unroll
        for (int offset = ROW_LANES / 2; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(ZERO_FULL_WARP, sum, offset);
        if (lane == 0) {
            numbers[row] = valid ? logsumexp[head * c.s.seq_len + query] * LOG2_E : INFINITY;
            numbers[QUERIES + row] = sum;
        }
    }
    if (threadIdx.x == 0)
        c.counts[tile] = 0;
}

/* ---- Launching ---- */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Describes a tensor [n_matrices, n_rows, n_columns] of 16 bits, from which boxes of 64 rows and columns are copied. */
static cudaError_t describe(CUtensorMap *map, zero_dtype_t dtype, const void *data, size_t n_matrices, size_t n_rows,
                            size_t n_columns)
{
    void *found;
    cudaDriverEntryPointQueryResult query;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &query);
    if (error != cudaSuccess || query != cudaDriverEntryPointSuccess)
        return error != cudaSuccess ? error : cudaErrorNotSupported;
    const cuuint64_t sizes[3] = {n_columns, n_rows, n_matrices}, strides[2] = {n_columns * 2, n_rows * n_columns * 2};
    const cuuint32_t box[3] = {64, 64, 1}, steps[3] = {1, 1, 1};
    const CUtensorMapDataType type =
        dtype == ZERO_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const CUresult result = ((encode_fn)found)(map, type, 3, (void *)data, sizes, strides, box, steps,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

extern "C" bool zero_attention_causal_serves(zero_dtype_t dtype, size_t head_dim)
{
    int capability;
    return dtype != ZERO_FP32 && head_dim == DIM && zero_find_capability(&capability) == cudaSuccess &&
           capability == 90;
}

extern "C" size_t zero_attention_causal_bytes(size_t n_batch, size_t seq_len, size_t n_heads)
{
    const size_t n_tiles = n_batch * n_heads * zero_divide_up(seq_len, QUERIES);
    return n_tiles * (QUERIES * DIM + 2 * QUERIES) * sizeof(float) + n_tiles * sizeof(int);
}

extern "C" cudaError_t zero_launch_attention_causal_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv,
                                                             void *workspace, const void *dout, const void *qkv,
                                                             const void *out, const float *logsumexp, size_t n_batch,
                                                             size_t seq_len, size_t n_heads, size_t n_kv_heads)
{
    const size_t n_tiles = zero_divide_up(seq_len, QUERIES), n_blocks = zero_divide_up(seq_len, KEYS);
    const size_t all_tiles = n_batch * n_heads * n_tiles;
    causal_t c;
    c.dqkv = dqkv;
    c.dq = (float *)workspace;
    c.numbers = c.dq + all_tiles * QUERIES * DIM;
    c.counts = (int *)(c.numbers + all_tiles * 2 * QUERIES);
    c.s = sizes_of(n_batch, seq_len, n_heads, n_kv_heads, DIM);
    c.n_tiles = (int)n_tiles;
    c.n_blocks = (int)n_blocks;
    c.chunk = CHUNK;
    CUtensorMap qkv_map, dout_map;
    cudaError_t error = describe(&qkv_map, dtype, qkv, n_batch, seq_len, (n_heads + 2 * n_kv_heads) * DIM);
    if (error == cudaSuccess)
        error = describe(&dout_map, dtype, dout, n_batch, seq_len, n_heads * DIM);
    if (error != cudaSuccess)
        return error;
    return with_half_type(dtype, [&](auto type) {
        using T = decltype(type);
        auto kernel = attention_backward_causal<T>;
        const cudaError_t not_allowed = allow_shared((const void *)kernel, SHARED_BYTES);
        if (not_allowed != cudaSuccess)
            return not_allowed;
        causal_numbers<T>
            <<<dim3((unsigned)n_heads, (unsigned)n_tiles, (unsigned)n_batch), NUMBERS_THREADS, 0, stream>>>(
                c, (const T *)dout, (const T *)out, logsumexp);
        kernel<<<(unsigned)(n_batch * n_kv_heads * n_blocks), THREADS, SHARED_BYTES, stream>>>(qkv_map, dout_map, c,
                                                                                               1.0f / sqrtf(DIM));
        return cudaGetLastError();
    });
}
