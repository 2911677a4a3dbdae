"""Draws tiny models for random_models.py: what config.json says, and how they are trained."""
import random

import torch

SEQUENCES = 6  # of a step: all there are
FULL, WINDOW = "full_attention", "sliding_attention"
# Of each family: how many heads of keys and values it has if the file does not say, with 0 as many as heads; how wide
# heads are then, with 0 dim / heads.
FAMILIES = {"gpt2": (0, 0), "llama": (0, 0), "mistral": (8, 0), "ministral": (8, 0), "qwen2": (32, 0), "qwen3": (32, 128),
            "smollm3": (4, 0), "phi3": (0, 0), "granite": (0, 0), "granitemoehybrid": (0, 0), "olmo2": (0, 0),
            "olmo3": (0, 0), "gemma3_text": (4, 256), "seed_oss": (8, 128)}
BIASES = {"llama": ("attention_bias", "mlp_bias"), "qwen3": ("attention_bias",), "smollm3": ("attention_bias", "mlp_bias"),
          "granite": ("attention_bias", "mlp_bias"), "granitemoehybrid": ("attention_bias",), "olmo2": ("attention_bias",),
          "olmo3": ("attention_bias",), "gemma3_text": ("attention_bias",),
          "seed_oss": ("attention_bias", "attention_out_bias", "mlp_bias")}
MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
HARMLESS = {"initializer_range": 0.3, "use_cache": False, "attention_dropout": 0.3, "pretraining_tp": 2, "torchscript": True,
            "output_attentions": False, "tokenizer_class": "X", "is_decoder": True, "chunk_size_feed_forward": 2,
            "id2label": {"0": "a", "1": "b", "2": "c"}, "top_p": 0.3, "gradient_checkpointing": True,
            "transformers_version": "4.30.0", "name_or_path": "x", "architectures": ["SomeModel"]}
# What is not supported: families, or all but gpt2; keys with values.
UNSUPPORTED = [
    (None, {"hidden_act": "gelu"}), (None, {"is_causal": False}), (None, {"rope_interleaved": True}),
    (None, {"quantization_config": {"quant_method": "fp8"}}), (None, {"per_layer_config": {"0": {"vocab_size": 9}}}),
    (("gpt2",), {"activation_function": "gelu"}), (("gpt2",), {"scale_attn_by_inverse_layer_idx": True}),
    (("gpt2",), {"scale_attn_weights": False}), (("gpt2",), {"add_cross_attention": True}),
    (("mistral", "qwen2", "ministral", "phi3"), {"attention_bias": True}),
    (("gemma3_text",), {"final_logit_softcapping": 20.0}), (("gemma3_text",), {"attn_logit_softcapping": 20.0}),
    (("gemma3_text",), {"hidden_activation": "relu"}), (("gemma3_text",), {"use_bidirectional_attention": True}),
    (("granitemoehybrid",), {"num_local_experts": 2}),
]


class Case:
    """A drawn model: `config` as the file has it, what must be refused, and how it is trained."""

    def __init__(self, seed, family):
        self.r = random.Random(seed)
        self.family = family or self.r.choice(list(FAMILIES))
        self.config = {"model_type": self.family}
        self.refused = set()  # keys of which a refusal names one
        self.may_refuse = set()  # the same, but it may also be as transformers does
        self.unknown = None
        self.seq_len = self.r.randint(4, 40)
        (self.draw_gpt2 if self.family == "gpt2" else self.draw_llama)()
        self.draw_others()
        self.draw_training()

    def maybe(self, share=0.5):
        return self.r.random() < share

    def put(self, key, *values, omit=0.25):
        """Sets a key to one of the values, or leaves it out."""
        if not self.maybe(omit):
            self.config[key] = self.r.choice(values)

    # ---- config.json

    def draw_gpt2(self):
        heads = self.r.choice([1, 2, 3, 4])
        self.config.update(n_layer=self.r.randint(1, 3), n_head=heads, n_embd=heads * self.r.choice([1, 4, 7, 8, 16]),
                           n_positions=self.seq_len + self.r.choice([0, 1, 30]))
        self.put("n_inner", None, 1, 37, 64)
        self.put("layer_norm_epsilon", 1e-6, 1e-5, 1e-3, 0.1, omit=0.5)
        self.put("n_ctx", 1024, omit=0.7)
        self.put("tie_word_embeddings", True, omit=0.7)
        for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
            self.put(key, 0.1, omit=0.5)

    def draw_llama(self):
        config, r = self.config, self.r
        usual_kv, usual_dim = FAMILIES[self.family]
        heads = r.choice([1, 2, 3, 4, 6, 8] + [usual_kv] * (usual_kv > 8))
        n_layers = r.randint(1, 4)
        width = 2 * r.choice([1, 2, 3, 4, 5, 8, 12])
        config.update(num_hidden_layers=n_layers, num_attention_heads=heads, hidden_size=heads * width,
                      intermediate_size=r.choice([1, 8, 37, 64]))
        if self.family == "granitemoehybrid":
            config.update(shared_intermediate_size=r.choice([1, 8, 37, 64]), num_local_experts=0, mamba_n_heads=1,
                          layer_types=[r.choice([FULL, "attention"]) for _ in range(n_layers)])
            self.put("position_embedding_type", "rope", "rope", None, "nope")
        self.draw_heads(heads, width, usual_kv, usual_dim)
        self.put("rms_norm_eps", 1e-6, 1e-5, 1e-3, 0.1)
        self.put("tie_word_embeddings", True, False)
        self.put("max_position_embeddings", 8, self.seq_len, 48, 512, 4096)
        self.put("hidden_activation" if self.family == "gemma3_text" else "hidden_act",
                 *(["gelu_pytorch_tanh"] if self.family == "gemma3_text" else ["silu", "swish"]))
        for key in BIASES.get(self.family, ()):
            self.put(key, True, False, omit=0.4)
        if self.family.startswith("granite"):
            for key in MULTIPLIERS:
                self.put(key, 1, 0.25, 3.0, omit=0.3)
        if self.family == "gemma3_text":
            self.put("query_pre_attn_scalar", 1, 10, 256)
        self.draw_windows(n_layers)
        self.draw_rope()

    def draw_heads(self, heads, width, usual_kv, usual_dim):
        """Heads of keys and values, and a width of all heads that is not hidden_size, or that the file does not say."""
        config, r = self.config, self.r
        may_omit = not usual_kv or heads % usual_kv == 0
        if not (may_omit and self.maybe()):
            config["num_key_value_heads"] = r.choice([kv for kv in range(1, heads + 1) if heads % kv == 0])
        if self.maybe(0.15) and self.family not in ("mistral", "ministral", "gemma3_text"):
            config["num_key_value_heads"] = None
        if self.family in ("mistral", "ministral") or self.maybe(0.8 if usual_dim else 0.3):
            config["head_dim"] = r.choice([None, width]) if self.family in ("llama", "seed_oss") else width
        if config.get("head_dim") and self.maybe():
            config["hidden_size"] = heads * r.choice([1, 5, 16])
        self.width = config.get("head_dim", usual_dim) or config["hidden_size"] // heads

    def draw_types(self, n_layers):
        return [self.r.choice([FULL, WINDOW]) for _ in range(n_layers)]

    def draw_windows(self, n_layers):
        family, size = self.family, (1, 3, 7, 100)
        if family in ("mistral", "ministral", "qwen2", "qwen3", "olmo3", "gemma3_text", "smollm3"):
            self.put("layer_types", None, self.draw_types(n_layers), self.draw_types(n_layers), omit=0.5)
        if family in ("mistral", "ministral", "phi3", "llama", "olmo2"):
            self.put("sliding_window", None, *size)
        if family in ("llama", "olmo2"):  # no key of theirs; drawn so that a seed's other draws stay what they were
            self.config.pop("sliding_window", None)
        if family in ("olmo3", "gemma3_text"):
            self.put("sliding_window", *size)
        if family == "gemma3_text":
            self.put("sliding_window_pattern", 1, 2, 3, omit=0.6)
        if family in ("qwen2", "qwen3", "smollm3"):
            self.put("use_sliding_window", True, False)
            self.put("sliding_window", None, *size)
        if family.startswith("qwen"):
            self.put("max_window_layers", 0, 1, 2, omit=0.4)
        if family == "smollm3":
            self.put("no_rope_layers", None, [self.r.randint(0, 1) for _ in range(n_layers + self.r.randint(0, 1))], omit=0.5)
            self.put("no_rope_layer_interval", 1, 2, 3, omit=0.5)

    def draw_scaling(self, kind):
        """What scaling of a kind needs, and what it may have."""
        r, rope = self.r, {}
        if kind in ("linear", "llama3", "yarn", "dynamic"):
            rope["factor"] = r.choice([1.0, 2, 4.0, 8.0])
        if kind == "llama3":
            rope.update(low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]))
        if kind == "longrope":
            rope.update(short_factor=[r.choice([1, 1.5, 2.25]) for _ in range(self.rotated // 2)],
                        long_factor=[4.0] * (self.rotated // 2))
            if self.maybe():
                rope["factor"] = r.choice([1.0, 4.0])
        if kind == "yarn":
            for key, value in {"beta_fast": 8.0, "beta_slow": 2, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.5}.items():
                if self.maybe(0.3):
                    rope[key] = value
        if kind in ("yarn", "longrope") and self.maybe(0.3):
            rope["attention_factor"] = r.choice([1.0, 1.25])
        if kind in ("llama3", "yarn", "longrope") and self.maybe(0.6):
            rope["original_max_position_embeddings"] = r.choice([8, 16, 64, 128])
        return rope

    def draw_rope(self):
        config, r, family = self.config, self.r, self.family
        share = 1.0
        if family == "phi3":
            share = r.choice([s for s in (1.0, 0.75, 0.5, 0.25) if int(self.width * s) % 2 == 0 and int(self.width * s)])
        self.rotated = int(self.width * share)
        kinds = ["default"] * 4 + (["longrope", "longrope", "su", "yarn"] if family == "phi3" else
                                   ["linear", "llama3", "yarn", "longrope", "dynamic"])
        kind = r.choice(kinds)
        rope = self.draw_scaling("longrope" if family == "phi3" and kind != "default" else kind)
        if family == "phi3":
            rope.pop("original_max_position_embeddings", None)
            self.put("original_max_position_embeddings", 8, 48, 128)
        if kind == "dynamic":
            self.refused |= {"rope_scaling", "rope_parameters", FULL}
        theta = {} if self.maybe(0.3) else {"rope_theta": r.choice([10000, 500.0, 1e6])}
        part = {"partial_rotary_factor": share} if share != 1.0 or self.maybe(0.1) else {}
        name = r.choice(["rope_type", "rope_type", "type"])
        if family in ("olmo3", "gemma3_text"):
            self.draw_rope_by_layer({name: kind, **rope}, theta)
        elif self.maybe():  # as transformers 5 writes it
            if kind != "default" or not self.maybe(0.2):
                config["rope_parameters"] = {**({} if kind == "default" and self.maybe(0.3) else {name: kind}), **rope, **theta, **part}
        else:
            config.update(theta)
            config.update(part)
            if kind != "default" or self.maybe(0.3):
                config["rope_scaling"] = None if kind == "default" and self.maybe() else {name: kind, **rope}
            if config.get("rope_scaling") and self.maybe(0.25):
                config["rope_parameters"] = {**config["rope_scaling"], **theta, **part}
                if self.maybe(0.4):  # the two may not say the same
                    other = r.choice(["truncate", "partial_rotary_factor", "beta_fast", "rope_theta", "factor", "long_factor"])
                    config[r.choice(["rope_scaling", "rope_parameters"])][other] = {
                        "truncate": False, "partial_rotary_factor": 0.5, "long_factor": [3.0] * (self.rotated // 2)}.get(other, 7.0)
                    self.may_refuse = {"rope_scaling", "partial_rotary_factor"}

    def draw_rope_by_layer(self, full, theta):
        config, is_default = self.config, full.get("rope_type", full.get("type")) == "default"
        self.may_refuse = {"truncate"} if "truncate" in full else set()
        if self.maybe():
            config["rope_parameters"] = {FULL: {**full, **theta}}
            if self.maybe(0.7):
                local = {"rope_type": "default"} if self.maybe() else {}
                if self.maybe(0.7):
                    local["rope_theta"] = 300.0
                config["rope_parameters"][WINDOW] = local
        else:
            config.update(theta)
            if not is_default:
                config["rope_scaling"] = full
                self.refused |= {"rope_type"} if "type" in full else set()
            if self.family == "gemma3_text":
                self.put("rope_local_base_freq", 300.0, 10000)

    def draw_others(self):
        config, r = self.config, self.r
        config["vocab_size"] = r.choice([256, 256, r.randint(20, 600)])
        for key in ("bos_token_id", "pad_token_id"):
            config[key] = r.choice([None, 0, 1])
        if self.maybe(0.2):
            config.pop("pad_token_id" if self.family not in ("smollm3", "phi3") else "bos_token_id")
        self.put("eos_token_id", None, 7, [3, 5])
        self.dtype = r.choice(["float32", "bfloat16", "float16"])
        self.put(r.choice(["dtype", "torch_dtype"]), self.dtype, None)
        of_llama = {"attention_dropout", "pretraining_tp"} if self.family == "gpt2" else set()
        for key in r.sample(sorted(HARMLESS.keys() - of_llama), r.choice([0, 1, 3])):
            config[key] = HARMLESS[key]
        if self.maybe(0.15):
            self.unknown = r.choice(["attention_sinks", "rope_style", "logit_scale"])
            config[self.unknown] = r.choice([4, True, None, {"x": 1}])
        if self.maybe(0.1):
            rows = [row for row in UNSUPPORTED if (self.family in row[0] if row[0] else self.family != "gpt2")]
            row = r.choice(rows)[1]
            row = {"final_logit_softcapping": 20.0} if self.family == "gemma3_text" and "hidden_act" in row else row
            config.update(row)
            self.refused |= row.keys()
        if self.family != "gpt2" and self.family != "phi3" and self.maybe(0.03):
            config["partial_rotary_factor"] = 0.5
            self.refused.add("partial_rotary_factor")

    # ---- training

    def draw_training(self):
        r = self.r
        self.ranks, self.stage = r.randint(1, 3), r.randint(0, 3)
        self.micro_batch = r.choice([m for m in (1, 2, 3, 6) if SEQUENCES % (m * self.ranks) == 0])
        self.packing = r.choice(["join", "join", "separate", "pad"])
        n, vocab = SEQUENCES * self.seq_len + 1, self.config["vocab_size"]
        self.tokens = [r.randrange(vocab) for _ in range(n)]
        if self.packing == "pad":
            lengths = [r.randint(2, self.seq_len + 3) for _ in range(SEQUENCES)]
            self.begins = [sum(lengths[:i]) for i in range(SEQUENCES)]
            self.tokens = self.tokens[:sum(lengths)] + [r.randrange(vocab) for _ in range(sum(lengths) - n)]
        else:
            self.begins = [0] + [i for i in range(1, n) if self.maybe(0.1)]
        self.mask = [self.maybe(0.7) for _ in self.tokens] if self.maybe(0.3) else None
        if self.mask:
            self.mask[1:3] = [True] * 2

    def rows(self):
        """What is read and what counts, each document on its own where they are kept apart: rows of tokens, with zeros
        behind, and of targets, with -100 where there is none."""
        ends = self.begins[1:] + [len(self.tokens)]
        if self.packing == "pad":
            spans = [(a, min(b, a + self.seq_len + 1)) for a, b in zip(self.begins, ends)]
        else:
            spans = [(a, a + self.seq_len + 1) for a in range(0, len(self.tokens) - 1, self.seq_len)]
        if self.packing == "separate":
            spans = [(max(a, b), min(z, e)) for a, z in spans for b, e in zip(self.begins, ends) if max(a, b) < min(z, e)]
        spans = [(a, z) for a, z in spans if z - a > 1]
        inputs = torch.zeros(len(spans), max(z - a for a, z in spans) - 1, dtype=torch.long)
        targets = torch.full_like(inputs, -100)
        for i, (a, z) in enumerate(spans):
            inputs[i, :z - a - 1] = torch.tensor(self.tokens[a:z - 1])
            counts = self.mask[a + 1:z] if self.mask else [True] * (z - a - 1)
            targets[i, :z - a - 1] = torch.tensor([t if c else -100 for t, c in zip(self.tokens[a + 1:z], counts)])
        return inputs, targets
