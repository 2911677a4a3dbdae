"""Compares chat templates as launch/tokenize and zerotrain generate render them with transformers' apply_chat_template:
which of several templates, with which special tokens, and with the variables of a line.

    chat_templates.py SCRATCH

Prints "ok: claim" or "FAILED: claim" for each."""

import itertools
import json
import os
import sys

from chat_masks import make_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../launch"))
sys.dont_write_bytecode = True

from tokenizing.chat import open_chats  # noqa: E402
from tokenizing.records import Dialogue  # noqa: E402

MESSAGES = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d",
                                           "parameters": {"type": "object", "properties": {}}}}]
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
TYPES = ["gpt2", "llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3", "granite", "granitemoehybrid", "olmo2",
         "olmo3", "gemma3_text", "phi3", "seed_oss", None, "gpt_neox", "bert"]
CLASSES = [None, "GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast", "GemmaTokenizer",
           "LlamaTokenizer", "TokenizersBackend", "PreTrainedTokenizerFast"]
KNOWN_TYPES = 15  # of TYPES: those of models that zerotrain trains, and none
NAMES = ["bos_token", "eos_token", "unk_token", "pad_token", "mask_token"]
WRITES = "".join("[{{ %s }}]" % name for name in NAMES) + TURNS
ASKS = "".join("[{%% if %s is defined and %s %%}yes{%% endif %%}]" % (name, name) for name in NAMES) + TURNS


def write_json(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file)


def ours(folder, **more):
    dialogue = Dialogue(MESSAGES, **more)
    return open_chats(folder).of(dialogue).render(dialogue)


def theirs(folder, **more):
    return AutoTokenizer.from_pretrained(folder).apply_chat_template(MESSAGES, tokenize=False, **more)


def templates_are_found_where_transformers_saves_them(folder):
    for names in (["default"], ["default", "tool_use"], ["default", "rag", "tool_use"], ["default", "rag"]):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        tokenizer.chat_template = {name: name + " {{ tools | length if tools else 0 }} " + TURNS for name in names}
        for in_files in (True, False):
            saved = "%s-%d-%s" % (folder, in_files, "-".join(names))
            tokenizer.save_pretrained(saved, save_jinja_files=in_files)
            assert os.path.exists(os.path.join(saved, "chat_template.jinja")) == in_files
            for tools in (None, TOOLS):
                assert ours(saved, tools=tools) == theirs(saved, tools=tools), (names, in_files, tools)


def tokens_that_no_file_names_are_those_of_the_class(folder):
    refused = 0
    for kind, named, config in itertools.product(TYPES, CLASSES, ({}, {"eos_token": None, "bos_token": "</s>"})):
        write_json(folder, "tokenizer_config.json", {**config, **({"tokenizer_class": named} if named else {})})
        write_json(folder, "config.json", {"model_type": kind} if kind else {})
        for template in (ASKS, WRITES) if named or kind in TYPES[:KNOWN_TYPES] else (WRITES,):
            with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
                file.write(template)
            want = theirs(folder)
            try:
                assert ours(folder) == want, (kind, named, config, ours(folder), want)
            except Exception as error:
                assert "the chat template writes " in str(error) and template == WRITES, (kind, named, config, error)
                assert named == "LlamaTokenizer" or kind not in TYPES[:KNOWN_TYPES], (kind, named, error)
                refused += 1
    assert refused > 0


def variables_of_a_line_are_the_templates(folder):
    """Also those that change what a token is, or are null; each is there, and is what it is, or an error of both."""
    thinks = "{{ enable_thinking is defined and enable_thinking is false }}"
    template = "{{ eos_token }} " + thinks + " {{ effort }} {{ documents }} " + TURNS
    write_json(folder, "tokenizer_config.json", {"eos_token": "</s>"})
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(template)
    texts = set()
    for variables in ({}, {"enable_thinking": False}, {"enable_thinking": True, "effort": "high"},
                      {"effort": None, "eos_token": "!"}, {"documents": [{"a": 1}], "not used": [1]}):
        texts.add(ours(folder, variables=variables))
        assert theirs(folder, **variables) in texts, (variables, texts)
    assert len(texts) == 5
    for wrong in ([], "{}", False, {"add_generation_prompt": False}, {"messages": []}, {"tokenize": False}):
        try:
            raise AssertionError("%r is taken: %s" % (wrong, ours(folder, variables=wrong)))
        except ValueError as error:
            assert "'chat_template_kwargs' " in str(error), error


def main():
    folder, failed = os.path.join(os.path.abspath(sys.argv[1]), "model"), 0
    make_tokenizer(folder)
    for claim in (templates_are_found_where_transformers_saves_them, tokens_that_no_file_names_are_those_of_the_class,
                  variables_of_a_line_are_the_templates):
        try:
            claim(folder)
            said = ""
        except Exception as error:
            said = ": %r" % error
            failed += 1
        name = claim.__name__.replace("_", " ")
        print("%s: chat templates: %s%s" % ("FAILED" if said else "ok", name, said), flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
