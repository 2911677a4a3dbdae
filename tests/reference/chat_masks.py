"""Compares which tokens of dialogues count, as launch/tokenize --chat finds them, with the assistant masks that TRL trains
on: those of its training templates, whose {% generation %} blocks transformers follows.

    chat_masks.py SCRATCH [N_DIALOGUES]

The models' own templates have no such blocks. With these, what launch/tokenize finds must be the same but for white
space, which TRL's blocks include here and there. TRL's wheel is installed without what it needs: its templates alone are
read. Prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each."""

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys

import tokenizers
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../launch"))
sys.dont_write_bytecode = True

from tokenizing.encoding import Encoder  # noqa: E402
from tokenizing.records import Dialogue  # noqa: E402

TEMPLATES = ["llama3", "qwen2_5", "phi3", "gemma", "cohere", "qwen3_instruct_2507", "lfm2", "qwen3"]
REWRITES = {"qwen3"}  # their own templates leave out what was thought in earlier turns
NO_SYSTEM = {"gemma"}
MARKERS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|user|>",
           "<|assistant|>", "<|system|>", "<|end|>", "<start_of_turn>", "<end_of_turn>", "<|START_OF_TURN_TOKEN|>",
           "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<think>", "</think>"]
WORDS = "the of and a to in is you that it he was for on are as with his they I at be this have from Köln 東京 🙂 \n \n\n ( ) . , ? x=1".split(" ")


def templates_folder(scratch):
    """TRL's templates; None, after a line, if its wheel cannot be installed."""
    found = importlib.util.find_spec("trl")
    folder = os.path.dirname(found.origin) if found else os.path.join(scratch, "trl")
    if not found:
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, "trl==1.16.0"],
                              capture_output=True, text=True)
        if done.returncode:
            print("SKIP: TRL's masks: pip could not install trl: %s" % (done.stderr.strip() or "?").splitlines()[-1])
            return None
        folder = os.path.join(folder, "trl")
    return os.path.join(folder, "chat_templates")


def make_tokenizer(folder):
    """A byte-level BPE with the markers of all templates as special tokens."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, special_tokens=MARKERS, show_progress=False,
                                             initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3 + ["\n\nthe and of"] * 9, trainer)
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}, file)


def text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12))).strip() or "x"


def dialogue(rng, has_system):
    messages = [{"role": "system", "content": text(rng)}] if has_system and rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 4)):
        messages += [{"role": "user", "content": text(rng)}, {"role": "assistant", "content": text(rng)}]
    if rng.random() < 0.2:
        messages.append({"role": "user", "content": text(rng)})
    return messages


def encoder_of(folder, template, rewritten="split"):
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(template)
    return Encoder(argparse.Namespace(tokenizer=folder, chat=True, format="messages", end=None, rewritten=rewritten))


def stats():
    import collections
    return collections.Counter()


def differs_in_space_only(tokenizer, ids, counts, mask):
    return all(a == b or not tokenizer.decode([token]).strip() for token, a, b in zip(ids, counts, mask))


def compare(name, folder, templates, n, seed):
    """Returns how many dialogues differ: by the training template, by the model's own."""
    rng = random.Random(seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    with open(os.path.join(templates, name + "_training.jinja"), encoding="utf-8") as file:
        training = file.read()
    with open(os.path.join(templates, name + ".jinja"), encoding="utf-8") as file:
        own = file.read()
    dialogues = [dialogue(rng, name not in NO_SYSTEM) for _ in range(n)]
    theirs = [tokenizer.apply_chat_template(messages, chat_template=training, tokenize=True, return_dict=True,
                                            return_assistant_tokens_mask=True) for messages in dialogues]
    wrong = [0, 0]
    marked = encoder_of(folder, training).dialogues([Dialogue(messages) for messages in dialogues], stats())
    for (ids, counts), want in zip(marked, theirs):
        wrong[0] += ids != want["input_ids"] or list(counts) != want["assistant_masks"]
    encoder = encoder_of(folder, own)
    for messages, want in zip(dialogues, theirs):
        made = encoder.dialogues([Dialogue(messages)], stats())
        if name in REWRITES:
            wrong[1] += not each_answer_is_last(tokenizer, own, messages, made)
            continue
        (ids, counts), = made if len(made) == 1 else [([], [])]
        wrong[1] += ids[:len(want["input_ids"])] != want["input_ids"] or not differs_in_space_only(
            tokenizer, ids, counts, want["assistant_masks"])
    return wrong


def each_answer_is_last(tokenizer, template, messages, made):
    """Whether the documents of a dialogue, split per answer, are what transformers asks for that answer by, and it."""
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if len(answers) == 1 and answers[0] + 1 < len(messages):
        return True  # whether its template rewrites it depends on what follows
    if len(made) != len(answers):
        return len(answers) == 1 and len(made) == 1
    for i, (ids, counts) in zip(answers, made):
        asked = tokenizer.apply_chat_template(messages[:i], chat_template=template, tokenize=True, add_generation_prompt=True,
                                              return_dict=True)["input_ids"]
        whole = tokenizer.apply_chat_template(messages[:i + 1], chat_template=template, tokenize=True, return_dict=True)["input_ids"]
        if ids != whole or list(counts) != [0] * len(asked) + [1] * (len(whole) - len(asked)):
            return False
    return True


def main():
    scratch, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    templates = templates_folder(scratch)
    if not templates:
        return 0
    folder, failed = os.path.join(scratch, "chat"), 0
    make_tokenizer(folder)
    for seed, name in enumerate(TEMPLATES):
        marked, own = compare(name, folder, templates, n, seed)
        claims = [(marked, "the assistant masks of TRL's training template"),
                  (own, "split per answer, each as it is asked for" if name in REWRITES else
                   "TRL's masks by the model's own template, but for white space")]
        for wrong, claim in claims:
            failed += wrong > 0
            print("%s: launch/tokenize --chat, %s: %s, %d dialogues%s" %
                  ("FAILED" if wrong else "ok", name, claim, n, ": %d differ" % wrong if wrong else ""), flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
