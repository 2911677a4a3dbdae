"""Learns from pairs of answers (DPO) in zerotrain, in PyTorch by the paper's formula, and in TRL, from equal weights.

    dpo.py ZEROTRAIN SCRATCH        prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each

Pairs of texts become tokens by launch/tokenize for zerotrain and PyTorch, and by TRL's own code for TRL. A step sees all
pairs, so no order of data is rebuilt. Losses, rewards and gradient norms of every step are compared in fp32.
"""
import importlib.util
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from peft.utils import set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from families import MODELS

STEPS, N_PAIRS, SEQ, VOCAB, LR, DECAY, BETA = 15, 12, 64, 300, 1e-3, 0.1, 0.3
BOUND, NORM_BOUND = 1e-5, 1e-4  # of losses and rewards, whose sums of log-probabilities are some tens; of norms, relative
# family: rank, alpha, targets of PEFT; ranks, stage; packing. Not gemma3: in PyTorch itself fp32 and fp64 part soon.
CASES = {
    "gpt2": (4, 8, ["c_attn", "c_proj", "c_fc"], 2, 2, "pad"),
    "llama-3.1": (5, 7.5, "all-linear", 1, 0, "pad"),
    "qwen2-tied": (4, 4, ["q_proj", "v_proj", "down_proj"], 3, 3, "fit"),
    "qwen3": (2, 4, "all-linear", 1, 3, "fit"),
    "olmo2": (3, 6, "all-linear", 2, 1, "pad"),
}
WORDS = "the a cat dog sat ran on over mat hill and then it was blue green old new very quite".split()


def say(good, claim):
    print(f"{'ok' if good else 'FAILED'}: {claim}", flush=True)


def call(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    if done.returncode:
        print(done.stdout, done.stderr)
    return done


def make_pairs(scratch):
    """Pairs of random words, with answers of different lengths; and a tokenizer of them."""
    r = random.Random(1)
    def text(least, most):
        return " ".join(r.choice(WORDS) for _ in range(r.randint(least, most)))
    pairs = [{"prompt": text(1, 8), "chosen": " " + text(1, 9), "rejected": " " + text(1, 9)} for _ in range(N_PAIRS)]
    (scratch / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (scratch / "words.txt").write_text(" ".join(WORDS) * 50)
    tokenize = HERE.parents[1] / "launch" / "tokenize"
    good = call(sys.executable, tokenize, "--train-bpe", VOCAB, "-o", scratch / "bpe", scratch / "words.txt").returncode == 0
    return good and call(sys.executable, tokenize, "-t", scratch / "bpe", "-o", scratch / "pairs.tokens", "--format",
                         "preference", scratch / "pairs.jsonl").returncode == 0, pairs


def read_tokens(path):
    """The documents of a token file (src/train/data/token_format.h): a list of (tokens, whether each counts)."""
    data = path.read_bytes()
    version, width, n_tokens, _, _, n_documents, mask, pairs = struct.unpack_from("<IIQQQQII", data, 8)
    assert data[:8] == b"ZEROTOK\0" and version == mask == pairs == 1
    tokens = [int.from_bytes(data[64 + i * width:64 + (i + 1) * width], "little") for i in range(n_tokens)]
    at = 64 + (n_tokens * width + 7) // 8 * 8
    begins = list(struct.unpack_from(f"<{n_documents}Q", data, at)) + [n_tokens]
    bits = data[at + 8 * n_documents:]
    counts = [bits[i // 8] >> i % 8 & 1 for i in range(n_tokens)]
    return [(tokens[a:b], counts[a:b]) for a, b in zip(begins, begins[1:])]


def make_base(name, scratch):
    torch.manual_seed(0)
    config = MODELS[name][0]()
    config.vocab_size = VOCAB
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            is_scale = p.ndim == 1 and "bias" not in key
            p.copy_(torch.randn(p.shape) * (0.05 if p.ndim > 1 else 0.2) + is_scale)
    model.save_pretrained(scratch / f"{name}.base")
    return scratch / f"{name}.base"


def settings(name, base, packing, n_sequences, scratch):
    path = scratch / f"{name}.ini"
    path.write_text(f"""[model]
init = {base}
seq_len = {SEQ}
[data]
train = {scratch}/pairs.tokens
packing = {packing}
[train]
objective = dpo
dpo_beta = {BETA}
steps = {STEPS}
global_batch = {n_sequences}
micro_batch = 1
precision = fp32
lr = {LR}
schedule = constant
weight_decay = {DECAY}
[lora]
init = {scratch}/{name}.peft0
[log]
metrics = {scratch}/{name}.metrics
""")
    return path


KEYS = ("loss", "reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy", "grad_norm")


def train(zerotrain, ini, ranks, stage):
    launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", ranks] if ranks > 1 else []
    if call(*launch, zerotrain, "--stage", stage, ini).returncode:
        return []
    rows = [json.loads(line) for line in open(ini.with_suffix(".metrics"))]
    assert all(row["pairs"] == N_PAIRS for row in rows)
    return [tuple(row[key] for key in KEYS) for row in rows]


def log_probabilities(model, documents):
    """Of each document, the sum over its tokens that count."""
    sums = []
    for tokens, counts in documents:
        logits = model(torch.tensor([tokens[:-1]])).logits[0].log_softmax(-1)
        each = logits.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        sums.append((each * torch.tensor(counts[1:])).sum())
    return torch.stack(sums)


def reference(model, documents):
    """Trains the adapters by the formula (Rafailov et al. 2023, eq. 7)."""
    trained = [p for p in model.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    rows = []
    with torch.no_grad(), model.disable_adapter():
        of_reference = log_probabilities(model, documents)
    for _ in range(STEPS):
        model.zero_grad()
        rewards = BETA * (log_probabilities(model, documents) - of_reference)
        chosen, rejected = rewards[::2], rewards[1::2]
        loss = -F.logsigmoid(chosen - rejected).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        adamw.step()
        rows.append(tuple(x.item() for x in (loss, chosen.mean(), rejected.mean(), (chosen - rejected).mean(),
                                             (chosen > rejected).float().mean(), norm)))
    return rows


def trl_trainer(base, config, table, scratch, rows=None, folder="bpe", max_length=None):
    """TRL's DPOTrainer, which makes tokens of the pairs itself, and appends to rows what it logs."""
    from trl import DPOConfig, DPOTrainer

    class Recorder(DPOTrainer):
        def _compute_loss(self, model, inputs, return_outputs):
            loss = super()._compute_loss(model, inputs, return_outputs)
            names = ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies")
            rows.append((float(loss), *(self._metrics["train"][key][-1] for key in names)))
            return loss

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(scratch / folder / "tokenizer.json"), eos_token="<|endoftext|>",
                                        pad_token="<|endoftext|>")
    tokenizer.chat_template = (scratch / folder / "chat_template.jinja").read_text()
    args = DPOConfig(output_dir=str(scratch / "trl"), beta=BETA, learning_rate=LR, lr_scheduler_type="constant",
                     weight_decay=DECAY, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, max_grad_norm=1.0,
                     per_device_train_batch_size=N_PAIRS, num_train_epochs=STEPS, report_to="none", use_cpu=True,
                     bf16=False, save_strategy="no", gradient_checkpointing=False, disable_tqdm=True,
                     max_length=max_length)
    return Recorder(model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), args=args, train_dataset=table,
                    processing_class=tokenizer, peft_config=config)


def of_trl(base, config, adapters, pairs, scratch):
    from datasets import Dataset
    from datasets.table import InMemoryTable
    rows = []
    trainer = trl_trainer(base, config, Dataset(InMemoryTable.from_pylist(pairs), fingerprint="pairs"), scratch, rows)
    set_peft_model_state_dict(trainer.model, adapters)
    trainer.train()
    return rows


def compare(ours, theirs, what):
    """Says whether rows are equal within the bounds; theirs may lack the norm."""
    if len(ours) != STEPS or len(theirs) != STEPS:
        say(False, f"{what}: {len(ours)} steps of ours, {len(theirs)} of theirs")
        return
    good, gaps = True, []
    for i, key in enumerate(KEYS[:len(theirs[0])]):
        gaps.append(max(abs(a[i] - b[i]) / (abs(b[i]) if key == "grad_norm" else 1.0) for a, b in zip(ours, theirs)))
        good &= gaps[i] <= (NORM_BOUND if key == "grad_norm" else BOUND)
    say(good, f"{what}: " + ", ".join(f"{key} {gap:.1e}" for key, gap in zip(KEYS, gaps)) +
        f"; last loss {ours[-1][0]:.6f}, accuracy {ours[-1][4]:.3f}")


def in_every_form(pairs):
    """The same pairs as launch/tokenize and TRL take them: texts or messages, with a prompt or beginning alike; also where
    answers, or one of them, begin within a word, whose tokens are others then."""
    def said(role, text):
        return [{"role": role, "content": text}]
    cut = [{**pair, "prompt": pair["prompt"][:-1], "chosen": pair["prompt"][-1] + pair["chosen"]} for pair in pairs]
    texts = [{key: pair["prompt"] + pair[key] for key in ("chosen", "rejected")} for pair in pairs]
    messages = [{"prompt": said("system", "be brief") + said("user", pair["prompt"]),
                 **{key: said("assistant", pair[key].strip()) for key in ("chosen", "rejected")}} for pair in pairs]
    implied = [{key: pair["prompt"] + pair[key] for key in ("chosen", "rejected")} for pair in messages]
    alike = [{**pair, "rejected": pair["chosen"]} for pair in implied[:3]]
    return {"texts": pairs, "texts of which one goes on within a word": cut, "texts without a prompt": texts,
            "messages": messages, "messages without a prompt": implied, "messages that are alike": alike}


def that_matter(documents):
    """Tokens that both answers of a pair have from the same beginning on change no margin, whether they count or not."""
    made = []
    for pair in zip(documents[::2], documents[1::2]):
        ids = [list(document[0]) for document in pair]
        n = next((i for i, (a, b) in enumerate(zip(*ids)) if a != b), min(map(len, ids)))
        made += [(of, [0] * n + list(document[1])[n:]) for of, document in zip(ids, pair)]
    return made


def begin_texts(scratch):
    """The same tokenizer, which puts a token before each text, as Llama's does."""
    import tokenizers
    shutil.copytree(scratch / "bpe", scratch / "bos", dirs_exist_ok=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(scratch / "bos" / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<|endoftext|> $A",
                                                                        special_tokens=[("<|endoftext|>", end)])
    tokenizer.save(str(scratch / "bos" / "tokenizer.json"))


def check_tokens(pairs, base, config, scratch, folder):
    """Compares tokens and what counts with TRL's, of every form."""
    from datasets import Dataset
    from datasets.table import InMemoryTable
    tokenize = HERE.parents[1] / "launch" / "tokenize"
    for form, records in in_every_form(pairs).items():
        (scratch / "form.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        done = call(sys.executable, tokenize, "-t", scratch / folder, "-o", scratch / "form.tokens", "--format", "preference",
                    scratch / "form.jsonl")
        ours = read_tokens(scratch / "form.tokens") if done.returncode == 0 else []
        table = Dataset(InMemoryTable.from_pylist(records), fingerprint=form.replace(" ", "-") + folder)
        rows = trl_trainer(base, config, table, scratch, folder=folder).train_dataset
        theirs = []
        for row in rows:
            for key in ("chosen_ids", "rejected_ids"):
                theirs.append((row["prompt_ids"] + row[key], [0] * len(row["prompt_ids"]) + [1] * len(row[key])))
        say(len(ours) == 2 * len(records) and that_matter(ours) == that_matter(theirs),
            f"launch/tokenize makes of {len(records)} pairs as {form} the tokens and masks of TRL ({folder})")


def check_left_out(zerotrain, base, config, scratch):
    """Counts the pairs that are left where prompts are about as long as half a sequence, which each answer has."""
    from datasets import Dataset
    from datasets.table import InMemoryTable
    r = random.Random(2)
    def text(n):
        return "".join(" " + r.choice(WORDS) for _ in range(n))
    pairs = [{"prompt": text(n), "chosen": text(40), "rejected": text(40)} for n in range(10, 42)]
    (scratch / "long.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    call(sys.executable, HERE.parents[1] / "launch" / "tokenize", "-t", scratch / "bpe", "-o", scratch / "long.tokens",
         "--format", "preference", scratch / "long.jsonl")
    table = Dataset(InMemoryTable.from_pylist(pairs), fingerprint="long")
    theirs = len(trl_trainer(base, config, table, scratch, max_length=SEQ // 2 + 1).train_dataset)
    ini = settings("long", base, "pad", 1, scratch)
    text = ini.read_text().replace("pairs.tokens", "long.tokens").replace(f"init = {scratch}/long.peft0", "rank = 2")
    ini.write_text(text.replace(f"steps = {STEPS}", "steps = 1"))
    said = re.search(r"packing = pad: (\d+) pairs", call(zerotrain, ini).stderr)
    ours = int(said[1]) if said else 0
    say(0 < theirs < len(pairs) and ours == theirs,
        f"of {len(pairs)} pairs those with room for an answer are left, as in TRL: {ours} and {theirs}")


def check(name, zerotrain, scratch, pairs, documents, with_trl):
    rank, alpha, modules, ranks, stage, packing = CASES[name]
    base = make_base(name, scratch)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=modules, lora_dropout=0.0, init_lora_weights=False,
                        task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    model.save_pretrained(scratch / f"{name}.peft0")
    n_sequences = N_PAIRS if packing == "pad" else count_sequences(documents)
    ours = train(zerotrain, settings(name, base, packing, n_sequences, scratch), ranks, stage)
    compare(ours, reference(model, documents), f"{name}, {packing}, {ranks} ranks: {STEPS} steps are PyTorch's")
    if with_trl:
        adapters = load_file(scratch / f"{name}.peft0" / "adapter_model.safetensors")
        compare(ours, of_trl(base, config, adapters, pairs, scratch), f"{name}: {STEPS} steps are TRL's")
    if with_trl and name == "gpt2":
        begin_texts(scratch)
        for folder in ("bpe", "bos"):
            check_tokens(pairs, base, config, scratch, folder)
        check_left_out(zerotrain, base, config, scratch)


def count_sequences(documents):
    """Best fit decreasing of whole pairs, a position less than tokens for each document (src/train/data/packing.h)."""
    sizes = sorted((len(a[0]) + len(b[0]) - 2 for a, b in zip(documents[::2], documents[1::2])), reverse=True)
    room = []
    for size in sizes:
        fits = [left for left in room if left >= size]
        if fits:
            room.remove(min(fits))
        room.append((min(fits) if fits else SEQ) - size)
    return len(room)


def main():
    zerotrain, scratch = sys.argv[1], pathlib.Path(sys.argv[2])
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    good, pairs = make_pairs(scratch)
    say(good, "launch/tokenize makes pairs of texts")
    if not good:
        return
    documents = read_tokens(scratch / "pairs.tokens")
    has_trl = importlib.util.find_spec("trl") is not None
    for name in CASES:
        check(name, zerotrain, scratch, pairs, documents, has_trl and name in ("gpt2", "llama-3.1"))
    if not has_trl:
        print("SKIP: losses of TRL: there is no trl")


main()
