"""Compares zerotrain generate --chat and --prompts with transformers, turn by turn.

    dialogues.py ZEROTRAIN SCRATCH

A small random Llama has the chat template of one family after the other. Dialogues of 2 and 3 turns, some with a system's
message, are taken by transformers (apply_chat_template, generate, decode, the answer added to the messages) and by
`generate --chat`: the prompts must have as many tokens, and the answers must be the same bytes. Answers also end at the
token with which the template ends them, for which transformers is asked, too. --prompts must give the same answers to each
dialogue up to each question; and to its rendered text, which knows no template, what transformers says without that token,
and no second beginning of text where the template writes one: the tokenizer adds <s>. Prints "ok: claim", "FAILED: claim" or "SKIP: reason" for each."""

import json
import os
import random
import re
import subprocess
import sys

import tokenizers
import torch
from chat_masks import NO_SYSTEM, TEMPLATES, make_tokenizer, templates_folder, text
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

N_TOKENS = 24
POSITIONS = 1024
GREEDY = ["--temperature", "0", "--max-tokens", str(N_TOKENS)]


def make_model(folder):
    """A Llama with large weights, so that the likeliest token is well ahead of the next. Some letters end its texts. It
    says only what is ASCII: random bytes make characters that Unicode does not have, which zerotrain refuses."""
    torch.manual_seed(3)
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    stops = [tokenizer.token_to_id("</s>")] + [tokenizer.token_to_id(letter) for letter in "aeiou"]
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=POSITIONS,
                         initializer_range=0.3, bos_token_id=0, eos_token_id=stops, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    model.lm_head.weight.data[[i for token, i in tokenizer.get_vocab().items() if not token.replace("Ġ", " ").isascii()]] = 0
    model.save_pretrained(folder)
    return model, stops


def dialogue(rng, n_turns, has_system):
    """The system's message, if there is one, and the questions: each is one line."""
    lines = [" ".join(text(rng).split()) or "x" for _ in range(n_turns + 1)]
    return (lines[0] if has_system else None), lines[1:]


def asked(tokenizer, messages):
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]


def end_of_answers(tokenizer):
    """The special token that the template puts behind an answer, which ends one; None: it puts text there."""
    answer = "(an answer)"
    messages = [{"role": role, "content": content} for role, content in (("user", "a"), ("assistant", answer), ("user", "a"))]
    behind = tokenizer.apply_chat_template(messages, tokenize=False).partition(answer)[2].lstrip(" \n\t")
    first = tokenizer.encode(behind, add_special_tokens=False)[:1]
    return first[0] if first and content_of(tokenizer, first) == "" else None


def continued(model, stops, ids):
    """What transformers adds to a prompt, without the stop that ends it, and why it ends."""
    new = model.generate(torch.tensor([ids]), max_new_tokens=N_TOKENS, do_sample=False, pad_token_id=1,
                         eos_token_id=stops)[0, len(ids):].tolist()
    return (new[:-1], "stop") if new[-1] in stops else (new, "length")


def taken(model, stops, tokenizer, system, questions):
    """What transformers makes of a dialogue that ends answers at the stops: of each turn the messages, the prompt's
    tokens, and the new ones."""
    messages = [{"role": "system", "content": system}] if system else []
    turns = []
    for question in questions:
        messages = messages + [{"role": "user", "content": question}]
        ids = asked(tokenizer, messages)
        turns.append((messages, ids, *continued(model, stops, ids)))
        messages = messages + [{"role": "assistant", "content": content_of(tokenizer, turns[-1][2])}]
    return turns


def content_of(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def bytes_of(tokenizer, ids):
    """A byte-level vocabulary's tokens as bytes; special ones as they are written."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return bytes(byte_of[character] for token in tokenizer.convert_ids_to_tokens(ids) for character in token)


def printed(content):
    """What a terminal gets: '?' for what could control it."""
    content = re.sub(rb"\xc2[\x80-\x9f]|\r(?!\n)", b"?", content)
    return re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", b"?", content) + b"\n"


def run(zerotrain, arguments, lines=""):
    environment = {**os.environ, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    return subprocess.run([zerotrain, "generate", *GREEDY, *arguments], input=lines.encode(), capture_output=True, timeout=120,
                          check=False, env=environment)


def chats_alike(zerotrain, folder, tokenizer, system, questions, turns):
    """Whether --chat has the prompts' lengths and the answers, by the cache of the turns before."""
    done = run(zerotrain, ["--chat", *(["--system", system] if system else []), folder], "\n".join(questions))
    lengths = [int(n) for n in re.findall(r"tokens? behind a prompt of (\d+)", done.stderr.decode())]
    wanted = b"".join(printed(bytes_of(tokenizer, new)) for _, _, new, _ in turns)
    return done.returncode == 0 and lengths == [len(ids) for _, ids, _, _ in turns] and done.stdout == wanted


def prompts_alike(zerotrain, folder, model, stops, tokenizer, turns):
    """Whether --prompts has the answers of all turns, as messages and as rendered text, which only the stops end."""
    records, wanted = [], []
    for messages, ids, new, reason in turns:
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        records.append({"messages": messages})
        wanted.append({"text": content_of(tokenizer, new), "finish_reason": reason})
        if rendered.startswith("<s>"):  # else the tokenizer's <s> comes before it
            new, reason = continued(model, stops, ids)
            records.append({"prompt": rendered})
            wanted.append({"text": bytes_of(tokenizer, new).decode("utf-8", "replace"), "finish_reason": reason})
    path = os.path.join(folder, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    done = run(zerotrain, ["--prompts", path, folder])
    made = [json.loads(line) for line in done.stdout.decode().splitlines()]
    return made == [{**record, **result} for record, result in zip(records, wanted)], len(records)


def main():
    zerotrain, scratch = sys.argv[1:]
    templates = templates_folder(scratch)
    if not templates:
        return 0
    folder, failed, n_ends = os.path.join(scratch, "dialogues"), 0, 0
    make_tokenizer(folder)
    model, stops = make_model(folder)
    for seed, name in enumerate(TEMPLATES):
        rng = random.Random(seed)
        with open(os.path.join(templates, name + ".jinja"), encoding="utf-8") as source:
            template = source.read()
        with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
            file.write(template)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        chats, all_turns, end = [], [], end_of_answers(tokenizer)
        n_ends += end is not None
        for n_turns in (2, 3, 3):
            system, questions = dialogue(rng, n_turns, name not in NO_SYSTEM and n_turns == len(chats) + 2)
            turns = taken(model, stops + ([end] if end is not None else []), tokenizer, system, questions)
            chats.append(chats_alike(zerotrain, folder, tokenizer, system, questions, turns))
            all_turns += turns
        prompts, n_prompts = prompts_alike(zerotrain, folder, model, stops, tokenizer, all_turns)
        varied = len({tuple(new) for _, _, new, _ in all_turns}) > 4
        holds = all(chats) and prompts and varied
        failed += not holds
        print("%s: generate --chat, %s: turns of 3 dialogues, and %d prompts of a file, are transformers'%s" %
              ("ok" if holds else "FAILED", name, n_prompts, "" if holds else ": %s %s %s" % (chats, prompts, varied)), flush=True)
    failed += n_ends < len(TEMPLATES) // 2
    print("%s: %d of %d templates end answers with a special token, which ends them" %
          ("FAILED" if n_ends < len(TEMPLATES) // 2 else "ok", n_ends, len(TEMPLATES)))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
