#!/usr/bin/env python3
"""Writes the golden numbers that tests/unit/train/test_golden.c compares zerotrain with: transformers' GPT-2 and Llama,
trained for 50 steps by PyTorch in fp32 and again in fp64. Run by hand, rarely: README.md beside this file says how and
when.

    tiny.txt            the training text, one byte per token
    batches.bin         the same as int32 [50 steps, 8 sequences, 33 tokens]: windows that start every 32 bytes
    gpt2_tiny/          the first weights: config.json and model.safetensors, as save_pretrained writes them
    gpt2_tiny.json      loss and gradient norm (before clipping) of every step, with the settings and versions
    llama_tiny/, llama_tiny.json

With --mistakes it writes nothing. It trains with one deliberate mistake at a time and prints how far the losses move,
which shows what mistakes a test with a given tolerance finds.
"""
import argparse
import json
import math
import pathlib

import torch
import torch.nn.functional as F
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
TRAINING = {
    "steps": 50, "global_batch": 8, "lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 10, "schedule": "cosine",
    "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "grad_clip": 1.0, "seed": 1234,
}
# Each is one mistake: the settings that train() overrides.
MISTAKES = {
    "decay on biases and norms too": {"decay_from_n_dims": 1},
    "no decay": {"weight_decay": 0.0},
    "no clipping": {"grad_clip": math.inf},
    "clip at 1.01": {"grad_clip": 1.01},
    "beta2 0.999": {"beta2": 0.999},
    "eps 1e-5": {"eps": 1e-5},
    "decay as part of the gradient": {"optimizer": torch.optim.Adam},
    "rate of the next step": {"step_offset": 1},
    "min_lr 0": {"min_lr": 0.0},
}


class GPT2:
    name = "gpt2_tiny"
    model_class = GPT2LMHeadModel
    settings = {"layers": 4, "dim": 64, "heads": 4, "vocab_size": 256, "seq_len": 32, "layer_norm_eps": 1e-5} | TRAINING
    defaults = {"activation": "gelu_new", "scale_attention": True}
    mistakes = {
        "exact GELU": {"activation": "gelu"},
        "attention scores not scaled": {"scale_attention": False},
        "layer_norm_eps 1e-6": {"layer_norm_eps": 1e-6},
    } | MISTAKES

    @staticmethod
    def make(s, dtype):
        config = GPT2Config(n_layer=s["layers"], n_embd=s["dim"], n_head=s["heads"], vocab_size=s["vocab_size"],
                            n_positions=s["seq_len"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                            activation_function=s["activation"], layer_norm_epsilon=s["layer_norm_eps"],
                            scale_attn_weights=s["scale_attention"], bos_token_id=0, eos_token_id=0,
                            attn_implementation="eager")
        return GPT2LMHeadModel(config).to(dtype)

    @staticmethod
    def is_norm(name):
        return ".ln_" in name

    @staticmethod
    def is_in_layer(name):
        return ".h." in name


class ExactRotary(torch.nn.Module):
    """Cosines and sines in fp64. transformers computes them in fp32 whatever the model's type."""

    def __init__(self, theta, head_dim):
        super().__init__()
        self.frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)

    def forward(self, x, position_ids):
        angles = (position_ids[..., None].double() * self.frequencies).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Llama:
    name = "llama_tiny"
    model_class = LlamaForCausalLM
    settings = {"layers": 4, "dim": 64, "heads": 4, "kv_heads": 2, "ffn_dim": 172, "vocab_size": 256, "seq_len": 32,
                "rms_norm_eps": 1e-5, "rope_theta": 5000.0} | TRAINING
    defaults = {"activation": "silu", "positions": True}
    mistakes = {
        "GELU instead of SiLU": {"activation": "gelu"},
        "no positions": {"positions": False},
        "rope_theta 10000": {"rope_theta": 10000.0},
        "rms_norm_eps 1e-6": {"rms_norm_eps": 1e-6},
    } | MISTAKES

    @staticmethod
    def make(s, dtype):
        config = LlamaConfig(num_hidden_layers=s["layers"], hidden_size=s["dim"], num_attention_heads=s["heads"],
                             num_key_value_heads=s["kv_heads"], intermediate_size=s["ffn_dim"],
                             vocab_size=s["vocab_size"], max_position_embeddings=s["seq_len"],
                             rms_norm_eps=s["rms_norm_eps"], hidden_act=s["activation"], tie_word_embeddings=False,
                             rope_parameters={"rope_type": "default", "rope_theta": s["rope_theta"]},
                             bos_token_id=0, eos_token_id=0, attn_implementation="sdpa")
        model = LlamaForCausalLM(config).to(dtype)
        if dtype == torch.float64:  # transformers computes norms and angles in fp32, so they are replaced
            def exact_norm():
                return torch.nn.RMSNorm(s["dim"], eps=s["rms_norm_eps"], dtype=dtype)
            for layer in model.model.layers:
                layer.input_layernorm, layer.post_attention_layernorm = exact_norm(), exact_norm()
            model.model.norm = exact_norm()
            model.model.rotary_emb = ExactRotary(s["rope_theta"], s["dim"] // s["heads"])
            if not s["positions"]:
                model.model.rotary_emb.frequencies.zero_()
        return model

    @staticmethod
    def is_norm(name):
        return "norm" in name

    @staticmethod
    def is_in_layer(name):
        return ".layers." in name


def make_text(generator, n_bytes):
    """Makes sentences of a small vocabulary, with enough structure for the loss to fall far in 50 steps."""
    words = ("rank shard unit slot gather release step master weight gradient sum copy wire stage prefetch owner "
             "the a each every no one holds moves keeps reads writes waits adds of to from before after").split()
    text = ""
    while len(text) < n_bytes:
        picks = torch.randint(len(words), (4 + int(torch.randint(6, (1,), generator=generator)),), generator=generator)
        text += " ".join(words[i] for i in picks).capitalize() + ".\n"
    return text.encode()[:n_bytes]


def randomize(arch, model, generator):
    """Sets every tensor to random numbers, also biases and norms, so that a missing or misplaced part moves the loss.
    Matrices are large enough for attention to matter (scores of order one)."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if arch.is_norm(name) and name.endswith("weight"):
            parameter.data = 1 + 0.1 * noise
        else:
            parameter.data = (0.1 if arch.is_in_layer(name) else 0.02) * noise


def lr_at(step, s):
    """Returns the learning rate of step 1..steps, as described in src/train/run.h."""
    if step <= s["warmup_steps"]:
        return s["lr"] * step / s["warmup_steps"]
    done = min(1.0, (step - s["warmup_steps"]) / (s["steps"] - s["warmup_steps"]))
    return s["min_lr"] + 0.5 * (s["lr"] - s["min_lr"]) * (1 + math.cos(math.pi * done))


def mean_loss(model, batch):
    logits = model(input_ids=batch[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()), logits


def train(arch, dtype, batches, weights, **mistakes):
    """Returns losses, gradient norms before clipping and rates of all steps, and gradients and logits of step 1."""
    s = {"decay_from_n_dims": 2, "optimizer": torch.optim.AdamW, "step_offset": 0} | arch.defaults | arch.settings
    s |= mistakes
    model = arch.make(s, dtype)
    model.load_state_dict(weights)
    model.train()
    parameters = dict(model.named_parameters())  # GPT-2's tied head is transformer.wte.weight and appears once
    decayed = [p for p in parameters.values() if p.ndim >= s["decay_from_n_dims"]]
    others = [p for p in parameters.values() if p.ndim < s["decay_from_n_dims"]]
    optimizer = s["optimizer"]([{"params": decayed, "weight_decay": s["weight_decay"]},
                                {"params": others, "weight_decay": 0.0}],
                               lr=0.0, betas=(s["beta1"], s["beta2"]), eps=s["eps"])
    losses, norms, rates, first = [], [], [], {}
    for step in range(1, s["steps"] + 1):
        rate = lr_at(step + s["step_offset"], s)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        loss, logits = mean_loss(model, batches[step - 1])
        loss.backward()
        if step == 1:
            first = {"logits": logits.detach(), "grads": {n: p.grad.clone() for n, p in parameters.items()}}
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), s["grad_clip"])
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
        rates.append(rate)
    return losses, norms, rates, first


def largest_relative_difference(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def describe_gradients(fp32, fp64):
    """Returns the norm and the largest element of every tensor's gradient at step 1, to check with finite differences."""
    rows = {}
    for name, grad in fp64.items():
        index = int(grad.abs().flatten().argmax())
        rows[name] = {"shape": list(grad.shape), "norm_fp32": fp32[name].norm().item(), "norm_fp64": grad.norm().item(),
                      "largest_index": index, "largest_fp64": grad.flatten()[index].item()}
    return rows


def make_inputs(arch):
    """Returns the text and batches, which are the same for all architectures, and a model with random weights."""
    settings = arch.settings
    generator = torch.Generator().manual_seed(settings["seed"])
    steps, batch, seq_len = settings["steps"], settings["global_batch"], settings["seq_len"]
    text = make_text(generator, steps * batch * seq_len + 1)
    tokens = torch.tensor(list(text), dtype=torch.int64)
    batches = tokens.unfold(0, seq_len + 1, seq_len).reshape(steps, batch, seq_len + 1)
    model = arch.make(arch.defaults | settings, torch.float32)
    randomize(arch, model, generator)
    return text, batches, model


def write(arch, text, batches, model):
    settings = arch.settings
    model.save_pretrained(HERE / arch.name)
    (HERE / arch.name / "generation_config.json").unlink(missing_ok=True)
    (HERE / "tiny.txt").write_bytes(text)
    (HERE / "batches.bin").write_bytes(batches.to(torch.int32).numpy().astype("<i4").tobytes())

    weights = arch.model_class.from_pretrained(HERE / arch.name).state_dict()  # as a reader of the file gets them
    losses, norms, rates, first = train(arch, torch.float32, batches, weights)
    losses64, norms64, _, first64 = train(arch, torch.float64, batches, weights)
    positions = [0, 15, settings["seq_len"] - 1]
    golden = {
        "about": "written by write_golden.py; see README.md",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "settings": settings,
        "lr": rates,
        "fp32": {"loss": losses, "grad_norm": norms},
        "fp64": {"loss": losses64, "grad_norm": norms64},
        "fp32_from_fp64": {"loss": largest_relative_difference(losses, losses64),
                           "grad_norm": largest_relative_difference(norms, norms64)},
        "step1": {"logits": {"sequence": 0, "positions": positions,
                             "fp64": [first64["logits"][0, p].tolist() for p in positions]},
                  "grads": describe_gradients(first["grads"], first64["grads"])},
    }
    (HERE / f"{arch.name}.json").write_text(json.dumps(golden, indent=1) + "\n")
    print(f"{arch.name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, grad norm {norms[0]:.3f} -> {norms[-1]:.3f}, "
          f"clipped in {sum(n > settings['grad_clip'] for n in norms)} of {len(norms)} steps")
    print(f"largest relative difference of fp32 from fp64: {golden['fp32_from_fp64']}")


def print_mistakes(arch, batches, weights):
    losses, norms, _, _ = train(arch, torch.float64, batches, weights)
    print(f"{arch.name + ', mistake':36} {'loss':>9} {'grad norm':>9}   largest relative difference over {len(losses)} steps")
    for name, mistake in arch.mistakes.items():
        wrong_losses, wrong_norms, _, _ = train(arch, torch.float64, batches, weights, **mistake)
        print(f"{name:36} {largest_relative_difference(wrong_losses, losses):9.1e} "
              f"{largest_relative_difference(wrong_norms, norms):9.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mistakes", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for arch in (GPT2, Llama):
        text, batches, model = make_inputs(arch)
        if args.mistakes:
            print_mistakes(arch, batches, model.state_dict())
        else:
            write(arch, text, batches, model)


if __name__ == "__main__":
    main()
