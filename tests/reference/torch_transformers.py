"""Models of transformers, trained by libzero.torch as a user of PyTorch would, beside torch alone.

    torch_transformers.py BUILD [RANKS...]        on 1, 2 and 3 ranks; prints "ok: claim" or "FAILED: claim" for each

The loop has torch's learning rate schedule, accumulation and clipping; then it evaluates, generates, and saves for
from_pretrained. Models have random weights. Nothing here closes libzero's objects: the end of the program does.
"""

import os
import subprocess
import sys
import tempfile

import peft
import torch
import transformers

N_STEPS, N_MICRO, LR, VOCAB = 20, 6, 4e-3, 101
GPT2 = transformers.GPT2Config(n_layer=3, n_embd=48, n_head=4, vocab_size=VOCAB, n_positions=64, resid_pdrop=0, embd_pdrop=0,
                               attn_pdrop=0)
LLAMA = transformers.LlamaConfig(num_hidden_layers=9, hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
                                 intermediate_size=52, vocab_size=VOCAB, max_position_embeddings=64, eos_token_id=VOCAB - 1)
# What zerotrain refuses: convolutions in place of most of the attention.
LFM2 = transformers.Lfm2Config(num_hidden_layers=3, hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
                               intermediate_size=52, vocab_size=VOCAB, max_position_embeddings=64, full_attn_idxs=[1],
                               block_auto_adjust_ff_dim=False, tie_word_embeddings=False, eos_token_id=VOCAB - 1)


def make(config):
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(config)


def units(model):
    if model.config.model_type == "gpt2":  # the head has the embedding's weights
        body = model.transformer
        return [body.wte, body.wpe, *body.h, body.ln_f, model.lm_head]
    norm = model.model.embedding_norm if model.config.model_type == "lfm2" else model.model.norm
    return [model.model.embed_tokens, *model.model.layers, norm, model.lm_head]


def tokens(step, micro):
    generator = torch.Generator().manual_seed(1000 * step + micro)
    return (torch.randint(VOCAB, (2, 1), generator=generator) + torch.arange(33)) % VOCAB


def loss_of(model, step, micro):
    batch = tokens(step, micro)
    return model(input_ids=batch, labels=batch, use_cache=False).loss / N_MICRO


def by_torch(config):
    """Returns losses and gradient norms of torch alone."""
    model, numbers = make(config), []
    adamw = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adamw, LR, total_steps=N_STEPS, cycle_momentum=False)
    for step in range(N_STEPS):
        losses = [loss_of(model, step, micro) for micro in range(N_MICRO)]
        sum(losses).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        schedule.step()
        adamw.zero_grad()
        numbers.append((float(sum(loss.detach().double() for loss in losses)), float(norm)))
    return numbers


def by_libzero(comm, model, **settings):
    """Returns the same of libzero.torch. The schedule is that of an optimizer that has nothing to do."""
    sharded = libzero.torch.Sharded(comm, model, units(model), stage=3, micro_steps=N_MICRO // comm.size, **settings)
    clock = torch.optim.SGD([torch.zeros(1)])
    schedule = torch.optim.lr_scheduler.OneCycleLR(clock, LR, total_steps=N_STEPS, cycle_momentum=False)
    numbers = []
    for step in range(N_STEPS):
        for j in range(N_MICRO // comm.size):
            with sharded.micro_step():
                sharded.backward(loss_of(model, step, j * comm.size + comm.rank))
        result = sharded.step(schedule.get_last_lr()[0])
        clock.step()
        schedule.step()
        numbers.append((result.loss, result.grad_norm))
    return sharded, numbers


def distance(results, wanted):
    return max(abs(x / y - 1) for ours, theirs in zip(results, wanted) for x, y in zip(ours, theirs))


def generate(model):
    return model.generate(tokens(7, 7)[:, :5], max_new_tokens=12, do_sample=False, pad_token_id=0)


def adapters(comm, claim, folder):
    """PEFT saves the head that modules_to_save copies, too."""
    torch.manual_seed(2)
    model = peft.get_peft_model(make(LLAMA), peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    sharded = libzero.torch.Sharded(comm, model, units(model.get_base_model()), stage=3)
    with sharded.micro_step():
        sharded.backward(loss_of(model, 0, comm.rank))
    sharded.step(LR)
    with sharded.evaluation():
        loss = float(loss_of(model, 99, 0))
    state = sharded.state_dict(root=0)
    if comm.rank == 0:
        model.save_pretrained(f"{folder}/adapter", state_dict=state)
    comm.barrier()
    plain = peft.PeftModel.from_pretrained(make(LLAMA), f"{folder}/adapter")
    with torch.no_grad():
        before, after = float(loss_of(make(LLAMA), 99, 0)), float(loss_of(plain, 99, 0))
    claim("adapters and a head of modules_to_save, saved by PEFT's save_pretrained(state_dict=), have the same loss",
          before != after == loss)


def run_on_ranks(folder):
    torch.set_num_threads(1)
    comm = libzero.Comm()

    def claim(text, holds):
        holds = comm.agree(bool(holds))
        if comm.rank == 0:
            print(f"{'ok' if holds else 'FAILED'}: transformers by libzero.torch, {comm.size} ranks: {text}", flush=True)

    for config in (GPT2, LFM2, LLAMA):
        kind, wanted, model = config.model_type, by_torch(config), make(config)
        sharded, numbers = by_libzero(comm, model)
        far = distance(numbers, wanted)
        # Largest distance seen: 3e-7.
        claim(f"{kind}: {N_STEPS} losses and norms are torch's, within 2e-6: {far:.1e}", far < 2e-6)
        claim(f"{kind}: it learns: {wanted[0][0]:.2f} to {numbers[-1][0]:.2f}", numbers[-1][0] < 0.85 * wanted[0][0])
        model.eval()
        with sharded.evaluation():
            loss, text = float(loss_of(model, 99, 0)), generate(model)
        state = sharded.state_dict(root=0)
        if comm.rank == 0:
            model.save_pretrained(f"{folder}/{kind}", state_dict=state)
        comm.barrier()
        plain = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{kind}").eval()
        with torch.no_grad():
            claim(f"{kind}: saved by save_pretrained(state_dict=) and loaded, its loss has the same bits",
                  float(loss_of(plain, 99, 0)) == loss)
            claim(f"{kind}: ... and generate() says the same within evaluation()", torch.equal(generate(plain), text))
        sharded.save(f"{folder}/{kind}-checkpoint")
        loaded = make(config)
        again = libzero.torch.Sharded(comm, loaded, units(loaded), stage=2)
        again.load_weights(f"{folder}/{kind}")
        loaded.eval()
        with again.evaluation():
            claim(f"{kind}: libzero loads what transformers saved", float(loss_of(loaded, 99, 0)) == loss)
    model, graphs = make(LLAMA), torch._dynamo.utils.counters["stats"]
    graphs.clear()
    _, numbers = by_libzero(comm, model, compile={"backend": "aot_eager"})
    far = distance(numbers, wanted)
    claim(f"llama, compiled: {graphs['unique_graphs']} graphs for 12 units, losses and norms within 2e-6: {far:.1e}",
          far < 2e-6 and 0 < graphs["unique_graphs"] <= 4)
    for reentrant in (False, True):
        model, calls = make(LLAMA).train(), []
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.model.layers[4].input_layernorm.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        _, numbers = by_libzero(comm, model)
        far, n_passes = distance(numbers, wanted), N_STEPS * N_MICRO // comm.size
        claim(f"llama, gradient_checkpointing_enable, use_reentrant={reentrant}: a layer runs {len(calls)} times in {n_passes} "
              f"passes, losses and norms within 2e-6: {far:.1e}", far < 2e-6 and len(calls) == 2 * n_passes)
    adapters(comm, claim, folder)
    if comm.rank == 0:
        print("done")


def main(build, numbers):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = dict(os.environ, LIBZERO=os.path.join(build, "libzero.so"), PYTHONPATH=os.path.join(root, "python"),
                       ZERO_CHECK="1", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    failed = False
    for n_ranks in numbers:
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(n_ranks), sys.executable,
                                  os.path.abspath(__file__), "ranks", folder], capture_output=True, text=True,
                                 env=environment, timeout=600, check=False)
        printed = run.stdout.splitlines()
        print(*(line for line in printed if line.startswith(("ok: ", "FAILED: "))), sep="\n", flush=True)
        if run.returncode or "done" not in printed:
            print(f"FAILED: transformers by libzero.torch, {n_ranks} ranks: exit code {run.returncode}: {run.stderr[-2000:]!r}")
            failed = True
        failed |= "FAILED: " in run.stdout
    return failed


if __name__ == "__main__":
    if sys.argv[1] == "ranks":
        import libzero
        import libzero.torch
        run_on_ranks(sys.argv[2])
    else:
        sys.exit(main(os.path.abspath(sys.argv[1]), [int(number) for number in sys.argv[2:]] or [1, 2, 3]))
