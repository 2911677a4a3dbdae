/* test_step_time.c - the time model against measured steps of docs/performance.md, and against what must hold of any
 * model of time. */
#include "tests/support/support.h"
#include "train/predict/step_time.h"

#include <math.h>
#include <string.h>

/* The share of a measured step by which a prediction may miss it. GPUs of one kind differ by 4% (docs/performance.md,
 * Power). */
#define TOLERANCE 0.08
#define PLENTY 1e12 /* bytes of activations: offloaded state finds room */

typedef enum work {
    GPT2_124M,
    GPT2_1558M,
    LLAMA_8B,
    LLAMA_2_LAYERS,
    LLAMA_8_LAYERS,
    LLAMA_1B,
    LLAMA_3B,
    LLAMA_70B,
    LLAMA_HALF_70B
} work_t;

static options_t options_of(work_t work, int64_t micro_batch, int n_ranks)
{
    static const struct {
        int arch;
        int64_t layers, dim, heads, kv_heads, ffn_dim, vocab_size, seq_len;
    } sizes[] = {
        [GPT2_124M] = {ARCH_GPT2, 12, 768, 12, 12, 3072, 50304, 1024},
        [GPT2_1558M] = {ARCH_GPT2, 48, 1600, 25, 25, 6400, 50304, 1024},
        [LLAMA_8B] = {ARCH_LLAMA, 32, 4096, 32, 8, 14336, 128256, 4096},
        [LLAMA_2_LAYERS] = {ARCH_LLAMA, 2, 4096, 32, 8, 14336, 128256, 4096},
        [LLAMA_8_LAYERS] = {ARCH_LLAMA, 8, 4096, 32, 8, 14336, 128256, 4096},
        [LLAMA_1B] = {ARCH_LLAMA, 16, 2048, 32, 8, 8192, 128256, 4096},
        [LLAMA_3B] = {ARCH_LLAMA, 28, 3072, 24, 8, 8192, 128256, 8192},
        [LLAMA_70B] = {ARCH_LLAMA, 80, 8192, 64, 8, 28672, 128256, 4096},
        [LLAMA_HALF_70B] = {ARCH_LLAMA, 40, 8192, 64, 8, 28672, 128256, 4096},
    };
    static options_t o;
    memset(&o, 0, sizeof o);
    o.model.arch = sizes[work].arch;
    o.model.layers = sizes[work].layers;
    o.model.dim = sizes[work].dim;
    o.model.heads = sizes[work].heads;
    o.model.kv_heads = sizes[work].kv_heads;
    o.model.ffn_dim = sizes[work].ffn_dim;
    o.model.vocab_size = sizes[work].vocab_size;
    o.model.seq_len = sizes[work].seq_len;
    o.train.micro_batch = micro_batch;
    o.train.global_batch = micro_batch * n_ranks;
    o.train.precision = ZERO_BF16;
    o.zero.stage = 3;
    o.zero.overlap = true;
    o.zero.reduce_every_micro_step = true;
    return o;
}

static fit_machine_t machine_of(const char *gpu, int n_ranks)
{
    return (fit_machine_t){.rates = *fit_rates_find(gpu), .n_ranks = n_ranks, .ranks_per_host = 8};
}

/* ---- measured steps ---- */

/* Of docs/performance.md and tests/scaling/h200-4/scaling.csv: H200s, stage 3 and bf16 unless said otherwise. */
typedef struct measured {
    double ms;
    work_t work;
    int64_t micro_batch;
    int n_ranks, stage, recompute, fp8, gather;
    double offload; /* share of the optimizer's state; 0: none */
    double params;  /* share of the parameters that is offloaded, too */
    bool sums;      /* of gradients wait in host memory */
    int update;
    int64_t micro_steps; /* 0: one */
    int64_t seq_len;     /* 0: the work's */
    bool muon;
    double activations; /* bytes, where offloaded state finds less room than it needs; 0: it finds enough */
    int64_t light, none, keep;
    bool in_8_bits;         /* AdamW's moments */
    int64_t sequence_ranks; /* 0: one; recompute = full then keeps attention */
    bool in_backward;       /* updates */
    int64_t lora_rank;      /* on all matrices */
} measured_t;

static const measured_t measured[] = {
    /* Since our own kernels compute attention in both passes. */
    {27.2, GPT2_124M, 16, 1, .stage = 3},
    {292.8, GPT2_1558M, 16, 1, .stage = 3},
    {229.4, GPT2_1558M, 16, 1, .stage = 3, .fp8 = FP8_LINEAR},
    {204.9, LLAMA_8_LAYERS, 2, 1, .stage = 3},
    {159.8, LLAMA_8_LAYERS, 2, 1, .stage = 3, .fp8 = FP8_LINEAR},
    {240.0, LLAMA_1B, 4, 1, .stage = 3},
    {191.2, LLAMA_1B, 4, 1, .stage = 3, .fp8 = FP8_LINEAR},
    {299.1, GPT2_1558M, 16, 2, .stage = 3},
    {693.6, LLAMA_8B, 2, 2, .stage = 3},
    {482.5, LLAMA_8B, 2, 2, .stage = 3, .fp8 = FP8_LINEAR, .gather = GATHER_FP8},
    {299.0, GPT2_1558M, 16, 4, .stage = 3},
    {230.4, GPT2_1558M, 16, 4, .stage = 3, .fp8 = FP8_LINEAR, .gather = GATHER_FP8},
    {693.9, LLAMA_8B, 2, 4, .stage = 3},
    {684.7, LLAMA_8B, 2, 4, .stage = 3, .keep = 32},
    {474.6, LLAMA_8B, 2, 4, .stage = 3, .fp8 = FP8_LINEAR, .gather = GATHER_FP8},
    {471.6, LLAMA_8B, 2, 4, .stage = 3, .keep = 32, .fp8 = FP8_LINEAR, .gather = GATHER_FP8},
    {750.8, LLAMA_8B, 1, 4, .stage = 3, .seq_len = 8192},
    {533.8, LLAMA_8B, 1, 4, .stage = 3, .seq_len = 8192, .fp8 = FP8_LINEAR, .gather = GATHER_FP8},
    {242.7, LLAMA_1B, 4, 4, .stage = 3, .keep = 16},
    {192.1, LLAMA_1B, 4, 4, .stage = 3, .keep = 16, .fp8 = FP8_LINEAR, .gather = GATHER_FP8},
    {352.9, LLAMA_3B, 1, 4, .stage = 3, .keep = 28},
    {274.6, LLAMA_3B, 1, 4, .stage = 3, .keep = 28, .fp8 = FP8_LINEAR, .gather = GATHER_FP8},
    /* Earlier. */
    {243.3, LLAMA_1B, 4, 1, .stage = 3},
    {359.3, LLAMA_3B, 1, 1, .stage = 3},
    {28.5, GPT2_124M, 16, 2, .stage = 3},
    {244.5, LLAMA_1B, 4, 2, .stage = 3},
    {360.1, LLAMA_3B, 1, 2, .stage = 3},
    {695.5, LLAMA_8B, 2, 2, .stage = 3},
    {312.8, GPT2_1558M, 16, 2, .stage = 3, .recompute = RECOMPUTE_LIGHT},
    {216.0, LLAMA_8_LAYERS, 2, 2, .stage = 3},
    {208.2, LLAMA_8B, 1, 2, .stage = 3, .seq_len = 2048},
    {29.1, GPT2_124M, 16, 4, .stage = 3},
    {29.4, GPT2_124M, 16, 4, .stage = 0},
    {28.5, GPT2_124M, 16, 4, .stage = 1},
    {28.7, GPT2_124M, 16, 4, .stage = 2},
    {682.8, LLAMA_8B, 2, 4, .stage = 3},
    {678.2, LLAMA_8B, 2, 4, .stage = 3, .keep = 32},
    {478.9, LLAMA_8B, 2, 4, .stage = 3, .fp8 = FP8_LINEAR},
    {246.7, LLAMA_1B, 4, 4, .stage = 3},
    {240.9, LLAMA_1B, 4, 4, .stage = 3, .keep = 16},
    {195.5, LLAMA_1B, 4, 4, .stage = 3, .fp8 = FP8_LINEAR},
    {358.7, LLAMA_3B, 1, 4, .stage = 3},
    {350.1, LLAMA_3B, 1, 4, .stage = 3, .keep = 28},
    {278.9, LLAMA_3B, 1, 4, .stage = 3, .fp8 = FP8_LINEAR},
    {863.0, LLAMA_8B, 2, 4, .stage = 3, .recompute = RECOMPUTE_FULL},
    {15.8, GPT2_124M, 8, 2, .stage = 0},
    {15.6, GPT2_124M, 8, 2, .stage = 3},
    {9.4, GPT2_124M, 4, 4, .stage = 0},
    {9.0, GPT2_124M, 4, 4, .stage = 3},
    {166.4, GPT2_1558M, 8, 2, .stage = 3},
    {89.4, GPT2_1558M, 4, 4, .stage = 3},
    {26.8, GPT2_124M, 16, 1, .stage = 3, .fp8 = FP8_LINEAR},
    {366.0, GPT2_1558M, 16, 2, .stage = 3, .offload = 1.0, .update = ZERO_OFFLOAD_UPDATE_DEVICE},
    {304.6, GPT2_1558M, 16, 2, .stage = 3, .offload = 0.5, .update = ZERO_OFFLOAD_UPDATE_DEVICE},
    {1270.3, GPT2_1558M, 16, 2, .stage = 3, .offload = 1.0, .update = ZERO_OFFLOAD_UPDATE_DEVICE, .micro_steps = 4},
    {467.6, GPT2_1558M, 16, 2, .stage = 3, .offload = 1.0, .update = ZERO_OFFLOAD_UPDATE_HOST},
    {341.6, GPT2_1558M, 16, 2, .stage = 3, .offload = 0.5, .update = ZERO_OFFLOAD_UPDATE_HOST},
    {398.5, GPT2_1558M, 16, 1, .stage = 3, .muon = true},
    {360.9, GPT2_1558M, 16, 2, .stage = 1, .muon = true},
    {1463.1, LLAMA_8B, 2, 2, .stage = 3, .recompute = RECOMPUTE_FULL, .light = 11, .keep = 2, .offload = 0.71875,
     .activations = 11.66e9},
    {791.2, GPT2_1558M, 32, 1, .stage = 2, .recompute = RECOMPUTE_FULL, .light = 1, .offload = 0.625,
     .activations = 8.19e9},
    /* Four GPUs of one host, which share its memory; memory as planned in 137.1 GiB a GPU. */
    {5747, LLAMA_70B, 1, 4, .stage = 3, .recompute = RECOMPUTE_FULL, .light = 6, .offload = 0.4151, .in_8_bits = true,
     .activations = 11.21e9},
    {16881, LLAMA_70B, 1, 4, .stage = 3, .recompute = RECOMPUTE_FULL, .light = 23, .offload = 0.9487, .in_8_bits = true,
     .activations = 22.93e9, .micro_steps = 4},
    /* One batch on one and two GPUs, and sequences that they share. */
    {126.1, LLAMA_1B, 2, 1, .stage = 3},
    {69.9, LLAMA_1B, 1, 2, .stage = 3},
    {145.5, LLAMA_1B, 1, 1, .stage = 3, .seq_len = 8192},
    {86.4, LLAMA_1B, 1, 2, .stage = 3, .seq_len = 8192, .sequence_ranks = 2},
    {4866.4, LLAMA_8B, 1, 2, .stage = 3, .seq_len = 32768, .recompute = RECOMPUTE_FULL, .sequence_ranks = 1,
     .in_8_bits = true, .in_backward = true},
    {2543.1, LLAMA_8B, 1, 2, .stage = 3, .seq_len = 32768, .recompute = RECOMPUTE_FULL, .sequence_ranks = 2,
     .in_8_bits = true, .in_backward = true},
    {20988.3, LLAMA_8B, 1, 2, .stage = 3, .seq_len = 131072, .recompute = RECOMPUTE_FULL, .sequence_ranks = 2,
     .in_8_bits = true, .in_backward = true},
    {18821.0, LLAMA_8B, 1, 2, .stage = 3, .seq_len = 131072, .recompute = RECOMPUTE_FULL, .sequence_ranks = 2,
     .in_8_bits = true, .in_backward = true, .fp8 = FP8_LINEAR},
    /* Long sequences on four GPUs, each sequence on one of them or shared by all, and on one GPU. */
    {4278.7, LLAMA_8B, 1, 4, .stage = 3, .seq_len = 32768, .recompute = RECOMPUTE_LIGHT, .sequence_ranks = 1,
     .in_8_bits = true, .in_backward = true},
    {1157.9, LLAMA_8B, 1, 4, .stage = 3, .seq_len = 32768, .sequence_ranks = 4, .in_8_bits = true, .in_backward = true},
    {9617.2, LLAMA_8B, 1, 4, .stage = 3, .seq_len = 131072, .recompute = RECOMPUTE_LIGHT, .sequence_ranks = 4,
     .in_8_bits = true, .in_backward = true},
    {8777.6, LLAMA_8B, 1, 4, .stage = 3, .seq_len = 131072, .recompute = RECOMPUTE_LIGHT, .sequence_ranks = 4,
     .in_8_bits = true, .in_backward = true, .fp8 = FP8_LINEAR},
    {34031.5, LLAMA_8B, 1, 4, .stage = 3, .seq_len = 262144, .recompute = RECOMPUTE_FULL, .light = 14,
     .sequence_ranks = 4, .in_8_bits = true, .in_backward = true},
    {45083.9, LLAMA_2_LAYERS, 1, 1, .stage = 3, .seq_len = 524288, .recompute = RECOMPUTE_FULL, .in_8_bits = true,
     .in_backward = true},
    /* The first step: there was no other. */
    {134649.6, LLAMA_2_LAYERS, 1, 4, .stage = 3, .seq_len = 2097152, .recompute = RECOMPUTE_FULL, .sequence_ranks = 4,
     .in_8_bits = true, .in_backward = true},
    /* One batch on one, two and four GPUs: a sequence that they share, and four sequences. */
    {141.8, LLAMA_1B, 1, 1, .stage = 3, .seq_len = 8192},
    {83.5, LLAMA_1B, 1, 2, .stage = 3, .seq_len = 8192, .sequence_ranks = 2},
    {52.9, LLAMA_1B, 1, 4, .stage = 3, .seq_len = 8192, .sequence_ranks = 4},
    {117.4, LLAMA_1B, 4, 1, .stage = 3, .seq_len = 2048},
    {35.5, LLAMA_1B, 1, 4, .stage = 3, .seq_len = 2048},
    /* 70B with updates in backward, on four GPUs. */
    {13765, LLAMA_70B, 4, 4, .stage = 3, .recompute = RECOMPUTE_FULL, .light = 21, .none = 1, .offload = 1.0,
     .in_8_bits = true, .in_backward = true},
    /* Half of its layers on two GPUs, with twice the sequences; parameters and half of the blocks' inputs in host
     * memory, too. */
    {14199.7, LLAMA_HALF_70B, 8, 2, .stage = 3, .recompute = RECOMPUTE_FULL, .light = 9, .offload = 1.0,
     .in_8_bits = true, .in_backward = true},
    {13774.1, LLAMA_HALF_70B, 8, 2, .stage = 3, .recompute = RECOMPUTE_FULL, .light = 17, .offload = 1.0, .params = 1.0,
     .in_8_bits = true, .in_backward = true},
    /* Parameters and sums of gradients in host memory, too. */
    {6057.2, LLAMA_8B, 2, 1, .stage = 3, .recompute = RECOMPUTE_FULL, .offload = 1.0, .params = 1.0, .sums = true,
     .in_8_bits = true, .micro_steps = 4, .update = ZERO_OFFLOAD_UPDATE_DEVICE},
    {8919.1, LLAMA_8B, 2, 1, .stage = 3, .recompute = RECOMPUTE_FULL, .offload = 1.0, .params = 1.0, .sums = true,
     .in_8_bits = true, .micro_steps = 4, .update = ZERO_OFFLOAD_UPDATE_HOST},
    /* Adapters. */
    {478.8, LLAMA_8B, 2, 1, .stage = 3, .lora_rank = 16},
    {331.4, LLAMA_8B, 2, 1, .stage = 3, .lora_rank = 16, .fp8 = FP8_LINEAR},
    {2794.2, LLAMA_70B, 2, 2, .stage = 3, .recompute = RECOMPUTE_FULL, .light = 62, .none = 1, .lora_rank = 16,
     .fp8 = FP8_LINEAR},
    /* A sequence that two GPUs share, as auto recomputes. */
    {2243.3, LLAMA_8B, 1, 2, .stage = 3, .seq_len = 32768, .sequence_ranks = 2, .in_8_bits = true, .in_backward = true},
    {20482.0, LLAMA_8B, 1, 2, .stage = 3, .seq_len = 131072, .recompute = RECOMPUTE_FULL, .light = 10, .none = 1,
     .sequence_ranks = 2, .in_8_bits = true, .in_backward = true},
};
#define N_MEASURED ((int)(sizeof measured / sizeof measured[0]))

static fit_time_t predict(const measured_t *m, const char *gpu)
{
    options_t o = options_of(m->work, m->micro_batch, m->n_ranks);
    fit_machine_t machine = machine_of(gpu, m->n_ranks);
    o.zero.stage = m->stage;
    o.model.recompute = m->recompute;
    o.model.recompute_light = m->light;
    o.model.recompute_none = m->none;
    o.zero.keep = m->keep;
    o.train.fp8 = m->fp8;
    o.zero.gather = m->gather;
    o.model.seq_len = m->seq_len > 0 ? m->seq_len : o.model.seq_len;
    o.train.global_batch *= m->micro_steps > 0 ? m->micro_steps : 1;
    o.zero.offload = m->params > 0.0 ? OFFLOAD_ALL : m->offload > 0.0 ? OFFLOAD_OPTIMIZER : OFFLOAD_NONE;
    o.zero.offload_ratio = m->offload;
    o.zero.offload_params_ratio = m->params;
    o.zero.offload_grads = m->sums ? ZERO_OFFLOAD_GRADS_HOST : ZERO_OFFLOAD_GRADS_DEVICE;
    o.zero.offload_update = m->update;
    o.train.optimizer = m->muon ? ZERO_OPTIMIZER_MUON : m->in_8_bits ? ZERO_OPTIMIZER_ADAMW8BIT : ZERO_OPTIMIZER_ADAMW;
    o.train.muon_steps = 5;
    o.model.keep_attention = m->sequence_ranks > 0 && m->recompute == RECOMPUTE_FULL;
    o.train.sequence_ranks = m->sequence_ranks > 0 ? m->sequence_ranks : 1;
    o.train.global_batch /= o.train.sequence_ranks;
    o.zero.update = m->in_backward ? ZERO_UPDATE_IN_BACKWARD : ZERO_UPDATE_IN_STEP;
    o.train.grad_clip = m->in_backward ? 0.0 : 1.0;
    o.lora.rank = m->lora_rank;
    o.lora.target_set = 0x7f; /* q k v o gate up down */
    return fit_step_time(&o, &machine, m->activations > 0.0 ? m->activations : PLENTY);
}

START_TEST(measured_steps_are_predicted)
{
    const measured_t *m = &measured[_i];
    fit_time_t t = predict(m, "H200");
    printf("%2d: %7.1f ms measured, %7.1f predicted (%+5.1f%%): products %.1f attention %.1f passes %.1f AdamW %.1f "
           "wire %.1f PCIe %.1f\n",
           _i, m->ms, t.total, 100.0 * (t.total / m->ms - 1.0), t.products, t.attention, t.passes, t.optimizer, t.wire,
           t.pcie);
    ck_assert_double_eq_tol(t.total / m->ms, 1.0, TOLERANCE);
}
END_TEST

/* ---- what must hold of any model ---- */

static const char *const GPUS[] = {"H200", "H100", "A100"};

START_TEST(parts_add_up_and_none_is_negative)
{
    for (int g = 0; g < 3; g++) {
        fit_time_t t = predict(&measured[_i], GPUS[g]);
        const double parts[] = {t.products, t.attention, t.passes, t.optimizer, t.wire, t.pcie};
        double sum = 0.0;
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
            ck_assert(isfinite(parts[p]) && parts[p] >= 0.0);
            sum += parts[p];
        }
        ck_assert_double_eq_tol(sum, t.total, 1e-9 * t.total);
    }
}
END_TEST

/* Strictly slower; with sums in host memory at least as slow, since their copies may take longer than compute. */
static void assert_slower(const measured_t *m, double ms, double faster_ms)
{
    ck_assert_double_gt(ms, m->sums ? faster_ms * (1.0 - 1e-12) : faster_ms);
}

/* A GPU that is nowhere faster and somewhere slower takes longer. */
START_TEST(slower_gpus_take_longer)
{
    double h200 = predict(&measured[_i], "H200").total, h100 = predict(&measured[_i], "H100").total;
    assert_slower(&measured[_i], h100, h200);
    assert_slower(&measured[_i], predict(&measured[_i], "A100").total, h100);
}
END_TEST

/* The largest product, 6 operations for each parameter and token, at the rate of the table: a number by hand. */
START_TEST(products_are_six_operations_a_parameter_and_token)
{
    measured_t m = {0.0, GPT2_1558M, 16, 1, .stage = 3};
    double matrices = 48.0 * 12.0 * 1600.0 * 1600.0 + 50304.0 * 1600.0;
    double expected = 6.0 * matrices * 16384.0 / fit_rates_find("H200")->half * 1e3;
    ck_assert_double_eq_tol(predict(&m, "H200").products, expected, 1e-9 * expected);
    m.recompute = RECOMPUTE_FULL; /* all but the last of a block's products once more */
    expected += 2.0 * 48.0 * 8.0 * 1600.0 * 1600.0 * 16384.0 / fit_rates_find("H200")->half * 1e3;
    ck_assert_double_eq_tol(predict(&m, "H200").products, expected, 1e-9 * expected);
}
END_TEST

START_TEST(recomputation_costs_time)
{
    measured_t m = measured[_i];
    double last = 0.0;
    for (m.recompute = RECOMPUTE_NONE; m.recompute <= RECOMPUTE_FULL; m.recompute++) {
        double ms = predict(&m, "H200").total;
        assert_slower(&m, ms, last);
        last = ms;
    }
}
END_TEST

/* On one GPU every block takes its own time: of a mix, as many parts of the whole as it has blocks of each kind. */
START_TEST(mixed_recomputation_takes_time_in_proportion)
{
    options_t o = options_of(LLAMA_8B, 1, 1);
    fit_machine_t machine = machine_of("H200", 1);
    double ms[3];
    for (o.model.recompute = RECOMPUTE_NONE; o.model.recompute <= RECOMPUTE_FULL; o.model.recompute++)
        ms[o.model.recompute] = fit_step_time(&o, &machine, PLENTY).total;
    o.model.recompute = RECOMPUTE_FULL;
    o.model.recompute_none = 5;
    o.model.recompute_light = 7;
    double expected = (5.0 * ms[RECOMPUTE_NONE] + 7.0 * ms[RECOMPUTE_LIGHT] + 20.0 * ms[RECOMPUTE_FULL]) / 32.0;
    ck_assert_double_eq_tol(fit_step_time(&o, &machine, PLENTY).total, expected, 1e-9 * expected);
}
END_TEST

/* 2 P bytes of parameters before forward, as many before backward, and 2 P of gradients: without overlap the wait is
 * that by the link's rate, less the last block, which stays. */
START_TEST(without_overlap_communication_takes_the_time_of_its_bytes)
{
    options_t o = options_of(LLAMA_8B, 2, 4);
    fit_machine_t machine = machine_of("H200", 4);
    o.zero.overlap = false;
    double block = 4096.0 * (6144.0 + 4096.0 + 3.0 * 14336.0) + 2.0 * 4096.0, table = 128256.0 * 4096.0;
    double all = 32.0 * block + 2.0 * table + 4096.0, gathered = all + 31.0 * block;
    double expected = 0.75 * 2.0 * (gathered + all) / machine.rates.link * 1e3;
    ck_assert_double_eq_tol(fit_step_time(&o, &machine, PLENTY).wire, expected, 1e-9 * expected);
    machine.ranks_per_host = 2; /* two of the three others are on another host */
    expected *= machine.rates.link * 2.0 / 3.0 / machine.rates.network;
    ck_assert_double_eq_tol(fit_step_time(&o, &machine, PLENTY).wire, expected, 1e-9 * expected);
}
END_TEST

/* Seconds of copies by hand: each way over the slower of a GPU's link and its share of 150 GB/s, both ways over its
 * share of 123. */
static double copies_s(double in, double out, double n_ranks)
{
    return fmax(fmax(in, out) / fmin(50e9, 150e9 / n_ranks), (in + out) * n_ranks / 123e9);
}

/* Where nothing else takes time, offload takes that of its bytes: 10 of state for each parameter in and out, and 4 of
 * its gradient, of which one rank has 2. What finds no room is copied in once the step is decided, with its gradients,
 * which were sent before. With room, gradients stay, and so they do with several micro-steps. */
START_TEST(offload_takes_the_time_of_its_bytes)
{
    static const double FAST = 1e30;
    const double block = 4096.0 * (6144.0 + 4096.0 + 3.0 * 14336.0) + 2.0 * 4096.0, table = 128256.0 * 4096.0;
    const double n_params = 32.0 * block + 2.0 * table + 4096.0;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks *= 2) {
        options_t o = options_of(LLAMA_8B, 1, n_ranks);
        fit_machine_t machine = machine_of("H200", n_ranks);
        fit_rates_t *r = &machine.rates;
        const double N = n_ranks, n = n_params / N;
        r->half = r->single = r->pass = r->sum = r->link = r->nccl = FAST;
        r->attention_forward[1] = r->attention_backward[1] = FAST;
        r->kernel_s = r->wait_s = 0.0;
        o.zero.offload = OFFLOAD_OPTIMIZER;
        o.zero.offload_ratio = 1.0;
        const double grad = n_ranks == 1 ? 2.0 : 4.0;
        double expected = copies_s(0.0, grad * n, N) + copies_s((10.0 + grad) * n, 10.0 * n, N);
        ck_assert_double_eq_tol(fit_step_time(&o, &machine, 0.0).pcie, 1e3 * expected, 1e-6 * expected);
        expected = copies_s(10.0 * n, 0.0, N) + copies_s(0.0, 10.0 * n, N);
        ck_assert_double_eq_tol(fit_step_time(&o, &machine, PLENTY).pcie, 1e3 * expected, 1e-6 * expected);
        o.train.global_batch *= 4;
        expected = copies_s(10.0 * n, 10.0 * n, N);
        ck_assert_double_eq_tol(fit_step_time(&o, &machine, 0.0).pcie, 1e3 * expected, 1e-6 * expected);
    }
}
END_TEST

/* Rows of a size that has a rate of its own take it; those between two sizes, by the logarithm, what is between. */
START_TEST(products_of_a_size_have_its_rate)
{
    static const struct {
        int64_t dim, rows;
        double share;
    } sizes[] = {{512, 512, 0.25}, {1024, 1024, 0.5}, {2048, 2048, 0.8}, {4096, 4096, 1.0},
                 {64, 64, 0.25},   {8192, 8192, 1.0}, {1024, 2048, 0.6}};
    options_t o = options_of(LLAMA_8B, 1, 1);
    fit_machine_t machine = machine_of("H200", 1);
    o.model.layers = 100000; /* the head and its product do not matter */
    o.model.heads = o.model.kv_heads = 1;
    const double shares[FIT_SIZES] = {0.25, 0.5, 0.8, 1.0};
    memcpy(machine.rates.size_share, shares, sizeof shares);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double dim = (double)sizes[i].dim;
        o.model.dim = o.model.ffn_dim = o.model.head_dim = sizes[i].dim;
        o.model.seq_len = sizes[i].rows;
        /* dim to q, k and v, to the MLP's gate and up: three and two times the size; both ends of the block. */
        double expected = 0.0;
        for (int matrix = 0; matrix < 4; matrix++) {
            double times = matrix == 0 ? 3.0 : matrix == 1 ? 2.0 : 1.0;
            double flops = 2.0 * (double)sizes[i].rows * dim * dim * times;
            double at = log2(flops), share = sizes[i].share;
            if (times > 1.0) { /* by hand: a line through the two sizes around */
                double low = at < 31.0 ? 28.0 : at < 34.0 ? 31.0 : 34.0;
                int below = low == 28.0 ? 0 : low == 31.0 ? 1 : 2;
                double part = at < 28.0 ? 0.0 : at > 37.0 ? 1.0 : (at - low) / 3.0;
                share = shares[below] * (1.0 - part) + shares[below + 1] * part;
            }
            expected += 3.0 * flops / (machine.rates.half * share);
        }
        double products = fit_step_time(&o, &machine, PLENTY).products;
        ck_assert_double_eq_tol(products / (1e8 * expected), 1.0, 0.02);
    }
}
END_TEST

/* No way to cut [m, n] among threads, each a block of its own and none of it a sliver of an element, has fewer elements
 * for each multiply-add, and one has as many: tried over 10,000 proportions. */
START_TEST(a_product_is_cut_into_the_squarest_blocks)
{
    const double sizes[][3] = {{4096, 384, 1536}, {384, 1152, 4096}, {256, 256, 2048}, {262, 32000, 256}, {7, 5, 3}};
    const double threads[] = {1, 2, 3, 16, 35};
    for (int i = 0; i < 25; i++) {
        const double *size = sizes[i / 5], t = threads[i % 5], m = size[0], n = size[1];
        double least = INFINITY;
        for (int across = 0; across <= 10000; across++) {
            double parts = pow(t, across / 10000.0), height = m / parts, width = n * parts / t;
            if (height <= m && width <= n)
                least = fmin(least, 1.0 / height + 1.0 / width + 1.0 / size[2]);
        }
        ck_assert_double_eq_tol(fit_elements_per_multiply(m, n, size[2], t), least, 1e-4 * least);
    }
}
END_TEST

/* One thread, by hand: a product of R x K with K x N takes 2 R K N operations, and each of the R K + K N + R N elements
 * as long as `element` multiply-adds more. */
START_TEST(a_cpu_s_products_cost_their_elements)
{
    options_t o = options_of(GPT2_124M, 2, 1);
    fit_machine_t machine = {.rates = *fit_rates_of_cpu(), .n_ranks = 1, .ranks_per_host = 1};
    const double R = 2048.0, C = 768.0, shapes[4][2] = {{C, 3.0 * C}, {C, C}, {C, 4.0 * C}, {4.0 * C, C}};
    o.model.vocab_size = 256;
    machine.rates.element = 16.0;
    machine.rates.threads = 1.0;
    double operations = 3.0 * 2.0 * (R * C * 256.0 + 16.0 * (R * C + C * 256.0 + R * 256.0));
    for (int i = 0; i < 4; i++) {
        double K = shapes[i][0], N = shapes[i][1];
        operations += 12.0 * 3.0 * 2.0 * (R * K * N + 16.0 * (R * K + K * N + R * N));
    }
    double expected = operations / machine.rates.half * 1e3;
    ck_assert_double_eq_tol(fit_step_time(&o, &machine, PLENTY).products, expected, 1e-9 * expected);
    machine.rates.threads = 16.0; /* narrower blocks of the same operations */
    ck_assert_double_gt(fit_step_time(&o, &machine, PLENTY).products, 1.02 * expected);
    machine.rates.element = 0.0;
    ck_assert_double_lt(fit_step_time(&o, &machine, PLENTY).products, expected);
}
END_TEST

/* Of a CPU's passes: in forward a bias is read with the output that it is added to, in backward gradients are read. */
START_TEST(a_cpu_s_biases_take_passes)
{
    options_t o = options_of(GPT2_124M, 2, 1);
    fit_machine_t machine = {.rates = *fit_rates_of_cpu(), .n_ranks = 1, .ranks_per_host = 1};
    const double R = 2048.0, C = 768.0, V = 256.0, outputs = 9.0 * C;
    o.model.vocab_size = 256;
    machine.rates.kernel_s = 0.0;
    machine.rates.sum = INFINITY;
    double forward = 8.0 * C + 2.0 * 4.0 * C + 2.0 * outputs, backward = 8.0 * C + 3.0 * 4.0 * C + outputs;
    double expected = 4.0 * R * (12.0 * (forward + backward) + 2.0 * V + 9.0 * C) / machine.rates.pass * 1e3;
    ck_assert_double_eq_tol(fit_step_time(&o, &machine, PLENTY).passes, expected, 1e-9 * expected);
}
END_TEST

/* SwiGLU adds what adapters of rank 16 give to gate and up, and to the gradient of its output. Those of rank 40 write
 * all of this, and read the gradients of outputs twice. (They are more numbers, too: within 2%.) */
START_TEST(adapters_around_swiglu_are_fused_with_it)
{
    const double R = 8192.0, C = 4096.0, F = 14336.0;
    measured_t m = {0.0, LLAMA_8B, 2, 1, .stage = 3, .lora_rank = 16};
    const double fused = predict(&m, "H200").passes;
    m.lora_rank = 40;
    const double all_outputs = C + 2.0 * 1024.0 + C + 2.0 * F + C, written = 2.0 * F + F;
    const double expected = 2.0 * 32.0 * R * (written + all_outputs) / fit_rates_find("H200")->pass * 1e3;
    ck_assert_double_eq_tol(predict(&m, "H200").passes - fused, expected, 0.02 * expected);
}
END_TEST

/* An owner's products by hand, at 0.86 of the rate: in a square matrix' 5 steps 6 r^3 operations each; in others', of
 * which 3 and 2 are joined, twice 4 r^2 c, and 14 squares of 2 r^3. Blocks go round the ranks; what is left of them is
 * shared out by matrix. */
START_TEST(muon_takes_the_products_of_its_rounds)
{
    static const struct {
        int n_ranks;
        double of_block; /* how many times the time of a whole block, and of the largest matrix alone */
        double of_largest;
    } rounds[] = {{1, 6.0, 0.0}, {2, 3.0, 0.0}, {3, 2.0, 0.0}, {6, 1.0, 0.0}, {24, 0.0, 1.0}, {100, 0.0, 1.0}};
    const double C = 1600.0, F = 6400.0;
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        options_t o = options_of(GPT2_1558M, 1, rounds[i].n_ranks);
        fit_machine_t machine = machine_of("H200", rounds[i].n_ranks);
        machine.rates.kernel_s = 0.0;
        machine.rates.pass = machine.rates.adam = 1e30;
        o.model.layers = 6;
        o.train.optimizer = ZERO_OPTIMIZER_MUON;
        o.train.muon_steps = 5;
        double qkv = 2.0 * 4.0 * C * C * 3.0 * C + 28.0 * C * C * C, square = 5.0 * 6.0 * C * C * C;
        double mlp = 2.0 * 4.0 * C * C * F + 28.0 * C * C * C, block = qkv + square + 2.0 * mlp;
        double expected = (rounds[i].of_block * block + rounds[i].of_largest * mlp) / (0.86 * machine.rates.half) * 1e3;
        ck_assert_double_eq_tol(fit_step_time(&o, &machine, PLENTY).optimizer, expected, 1e-9 * expected);
    }
}
END_TEST

START_TEST(gpus_are_found_by_name)
{
    ck_assert_str_eq(fit_rates_known_gpu("NVIDIA A100-SXM4-40GB")->name, "A100-40GB");
    ck_assert_str_eq(fit_rates_known_gpu("NVIDIA A100-SXM4-80GB")->name, "A100");
    ck_assert_str_eq(fit_rates_known_gpu("NVIDIA H100 80GB HBM3")->name, "H100");
    ck_assert_ptr_null(fit_rates_known_gpu("NVIDIA L40S"));
    ck_assert_str_eq(fit_rates_of_gpu("NVIDIA L40S")->name, "H200");
    ck_assert_str_eq(fit_rates_find("h200")->name, "H200");
    ck_assert_ptr_null(fit_rates_find("H2000"));
    ck_assert(!fit_rates_of_cpu()->is_gpu);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("step_time");
    TCase *c = tcase_create("measured");
    tcase_add_loop_test(c, measured_steps_are_predicted, 0, N_MEASURED);
    suite_add_tcase(s, c);
    c = tcase_create("any");
    tcase_add_loop_test(c, parts_add_up_and_none_is_negative, 0, N_MEASURED);
    tcase_add_loop_test(c, slower_gpus_take_longer, 0, N_MEASURED);
    tcase_add_loop_test(c, recomputation_costs_time, 0, N_MEASURED);
    tcase_add_test(c, mixed_recomputation_takes_time_in_proportion);
    tcase_add_test(c, products_are_six_operations_a_parameter_and_token);
    tcase_add_test(c, without_overlap_communication_takes_the_time_of_its_bytes);
    tcase_add_test(c, offload_takes_the_time_of_its_bytes);
    tcase_add_test(c, products_of_a_size_have_its_rate);
    tcase_add_test(c, a_product_is_cut_into_the_squarest_blocks);
    tcase_add_test(c, a_cpu_s_products_cost_their_elements);
    tcase_add_test(c, a_cpu_s_biases_take_passes);
    tcase_add_test(c, adapters_around_swiglu_are_fused_with_it);
    tcase_add_test(c, muon_takes_the_products_of_its_rounds);
    tcase_add_test(c, gpus_are_found_by_name);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
