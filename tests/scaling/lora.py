"""lora.py - trains adapters (LoRA, Hu et al. 2021) of a frozen Llama on one GPU: by libzero.torch, and by PyTorch.

    lora.py --by libzero --build BUILD         BUILD holds libzero.so, built with CUDA; needs NumPy
    lora.py --by torch                         the same modules with torch.optim.AdamW
    lora.py --by peft                          the same model, adapters by Hugging Face's peft, torch.optim.AdamW

Without other options the shape is Llama-3-8B's, 1 x 2048 tokens, adapters of rank 16 on the two matrices of attention
(q, k, v are one), with --all-linear also on the two of the MLP (gate and up are one). All three begin with the same
numbers and see the same data, so their losses agree: within rounding in fp32. A step is forward, backward, clipping to
norm 1 and AdamW. In bf16 --by torch keeps fp32 masters of the adapters, as libzero does; peft keeps the adapters in fp32.
--compile compiles the blocks, with libzero what is in their units.

The last line is RESULT lora key=value ...: step_ms is the median; start_s is what the trainer takes to begin with the
model, in which libzero takes over its weights; first_s is the first step, with compiling; MiB of memory: smi what
nvidia-smi shows for the GPU less what it showed at the start, peak_torch what PyTorch's allocator held, planned what
libzero's plan says for its own.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--by", choices=("libzero", "torch", "peft"), required=True)
parser.add_argument("--build", default="build", help="a folder with libzero.so")
for name, value in dict(dim=4096, layers=32, heads=32, kv=8, ffn=14336, vocab=128256, seq=2048, mb=1, rank=16, steps=20,
                        warmup=5, stage=3).items():
    parser.add_argument(f"--{name}", type=int, default=value)
parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to test the arithmetic")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--all-linear", action="store_true", help="adapters on all matrices of blocks")
args = parser.parse_args()
if args.by == "libzero":
    os.environ["LIBZERO"] = os.path.join(os.path.realpath(args.build), "libzero.so")
    sys.path.insert(0, os.path.join(HERE, "..", "..", "python"))

import torch
import fsdp2

LR = 1e-3
MIB = 1 << 20
ADAPTED = ("qkv", "out") + (("up", "down") if args.all_linear else ())  # as fsdp2 names a block's matrices


class Lora(torch.nn.Module):
    """W x + B A x, with scale 1."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.a = torch.nn.Parameter(torch.empty(rank, base.in_features))
        self.b = torch.nn.Parameter(torch.empty(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + torch.nn.functional.linear(torch.nn.functional.linear(x, self.a), self.b)


def smi():
    """MiB that the GPU has in use, whoever uses it."""
    if args.device == "cpu":
        return 0
    out = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True, check=True).stdout
    return int(out.split()[0])


def adapter_numbers(index, shape, is_b, device):
    """What an adapter begins with: A small, B zero as in the paper."""
    generator = torch.Generator("cpu").manual_seed(100 + index)
    return torch.zeros(shape, device=device) if is_b else (0.02 * torch.randn(shape, generator=generator)).to(device)


@torch.no_grad()
def make_model(device):
    """The frozen base with adapters, set to their first numbers, in the precision asked for."""
    torch.set_default_dtype(torch.bfloat16 if args.precision == "bf16" else torch.float32)
    args.arch, args.recompute, args.context_parallel, args.head_tiles = "llama", False, False, 1
    args.compile = "blocks" if args.compile else "none"
    with torch.device(device):
        model = fsdp2.Model(args)
    torch.set_default_dtype(torch.float32)
    fsdp2.set_weights(model, device)
    model.requires_grad_(False)
    if args.by == "peft":
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=args.rank, lora_alpha=args.rank, lora_dropout=0.0,
                                                           target_modules=list(ADAPTED))).base_model.model
    else:
        for block in model.blocks:
            for part in (block.attention, block):
                for name, base in list(part.named_children()):
                    if name in ADAPTED:
                        setattr(part, name, Lora(base, args.rank).to(device, base.weight.dtype))
    adapters = [(name, p) for name, p in model.named_parameters() if p.requires_grad or "lora" in name or
                name.endswith((".a", ".b"))]
    for i, (name, p) in enumerate(adapters):
        p.requires_grad_(True)
        p.copy_(adapter_numbers(i, p.shape, name.endswith((".b", "lora_B.default.weight")), device))
    if args.compile == "blocks":
        for block in model.blocks:
            if args.by == "libzero":  # what runs within a unit
                block.forward = torch.compile(block.forward, fullgraph=True)
            else:
                block.compile(fullgraph=True)
    return model, [p for _, p in adapters]


class ByTorch:
    """AdamW over the adapters, over fp32 masters of those that are in bf16."""

    def __init__(self, model, adapters):
        self.model, self.params = model, adapters
        self.owned = [p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float()) for p in adapters]
        self.optimizer = torch.optim.AdamW(self.owned, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0,
                                           fused=args.device == "cuda")

    def step(self, loss_of):
        loss = loss_of(self.model)
        loss.backward()
        for param, owned in zip(self.params, self.owned):
            if owned is not param:
                owned.grad = param.grad.float()
                param.grad = None
        torch.nn.utils.clip_grad_norm_(self.owned, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for param, owned in zip(self.params, self.owned):
                if owned is not param:
                    param.copy_(owned)
        return loss.detach()

    def planned(self):
        return 0

    def close(self):
        pass


class ByLibzero:
    """libzero holds base and adapters, and trains these."""

    def __init__(self, model):
        import libzero
        import libzero.torch

        class Last(torch.nn.Module):
            def __init__(self, norm, head):
                super().__init__()
                self.norm, self.head = norm, head

            def forward(self, x):
                return self.head(self.norm(x))

        self.libzero, self.comm, self.model = libzero, libzero.Comm(), model
        model.norm, model.head = Last(model.norm, model.head), torch.nn.Identity()  # one unit of both
        self.sharded = libzero.torch.Sharded(self.comm, model, [model.tokens, *model.blocks, model.norm], stage=args.stage,
                                             weight_decay=0.0, grad_clip=1.0)
        if args.device == "cuda":
            torch.cuda.empty_cache()  # of the weights that libzero has copied

    def step(self, loss_of):
        with self.sharded.micro_step():
            loss = loss_of(self.model)
            self.sharded.backward(loss)
        self.sharded.step(LR, wait=False)
        return torch.tensor(self.sharded.wait().loss)

    def planned(self):
        class Memory(ctypes.Structure):  # zero_memory_t
            _fields_ = [("bytes", ctypes.c_uint64 * 16), ("pinned", ctypes.c_uint64), ("reserved", ctypes.c_uint64 * 3)]

        from libzero._zero_h import lib
        lib.zero_engine_memory.restype, lib.zero_engine_memory.argtypes = Memory, [ctypes.c_void_p]
        return sum(lib.zero_engine_memory(self.sharded.engine._handle).bytes)

    def close(self):
        self.sharded.close()
        self.comm.close()


def data(step, device):
    """Tokens of which half repeat what stands before them, so that there is something to learn."""
    generator = torch.Generator("cpu").manual_seed(step)
    tokens = torch.randint(min(args.vocab, 1000), (args.mb, args.seq + 1), generator=generator)
    tokens[:, 2::2] = (tokens[:, 0:-2:2] + 1) % min(args.vocab, 1000)
    return tokens[:, :-1].to(device), tokens[:, 1:].to(device)


def main():
    device = torch.device(args.device)
    before = smi()
    model, adapters = make_model(device)
    rope = fsdp2.rope_tables(args, device, torch.bfloat16 if args.precision == "bf16" else torch.float32)
    begun = time.perf_counter()
    trainer = ByLibzero(model) if args.by == "libzero" else ByTorch(model, adapters)
    start_s = time.perf_counter() - begun
    print(f"started in {start_s:.1f} s", flush=True)
    n_trained = sum(p.numel() for p in adapters)
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    losses, times = [], []
    for step in range(args.steps):
        inputs, targets = data(step, device)
        if args.device == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        losses.append(float(trainer.step(lambda net: net(inputs, targets, rope))))
        if args.device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) * 1e3)
        print(f"step {step + 1} loss {losses[-1]:.7g} ms {times[-1]:.2f}", flush=True)
    peak = torch.cuda.max_memory_reserved() // MIB if args.device == "cuda" else 0
    print(f"RESULT lora by={args.by}{'-compiled' if args.compile == 'blocks' else ''} layers={args.layers} seq={args.seq} mb={args.mb} "
          f"rank={args.rank} trained={n_trained} precision={args.precision} first_loss={losses[0]:.7g} "
          f"last_loss={losses[-1]:.7g} step_ms={statistics.median(times[args.warmup:]):.2f} start_s={start_s:.1f} "
          f"first_s={times[0] / 1e3:.1f} smi={smi() - before} peak_torch={peak} planned={trainer.planned() / MIB:.2f}")
    trainer.close()


main()
