"""The special tokens that a chat template may write, as transformers finds them: those that the model's files name, and
of a tokenizer class that has tokens of its own, these.

transformers takes the class from the files or from the model's type. Of a class that is not in CLASSES, such as BERT's,
it is not known here which tokens it has: a template that writes one is refused, one that only asks for it is not."""

import os

from tokenizing.faults import Fault, read_json

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

CLASSES = {  # in transformers 5.23
    "GPT2Tokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
    "GemmaTokenizer": {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
                       "mask_token": "<mask>"},
    "TokenizersBackend": {},
    "PreTrainedTokenizer": {},
}
OF_TYPES = {"gpt2": "GPT2Tokenizer", "qwen3": "Qwen2Tokenizer", "gemma3_text": "GemmaTokenizer",
            **dict.fromkeys(("", "llama", "smollm3", "seed_oss"), "TokenizersBackend")}
BACKEND_TYPES = ("mistral", "ministral", "granite", "granitemoehybrid", "olmo2", "olmo3", "phi3")
OF_TYPES_IN_ANY_CASE = {  # whatever class the files name
    "qwen2": "Qwen2Tokenizer", **dict.fromkeys(BACKEND_TYPES, "TokenizersBackend")}


def text_of(token):
    return token.get("content") if isinstance(token, dict) else token


def class_of(config, model):
    """The name of the tokenizer's class, without "Fast"."""
    kind = model.get("model_type") or ""
    named = config.get("tokenizer_class") or model.get("tokenizer_class")
    found = OF_TYPES_IN_ANY_CASE.get(kind) or named or OF_TYPES.get(kind)
    return found.removesuffix("Fast") if isinstance(found, str) else None


def find_tokens(folder):
    """Returns the special tokens by their names in templates, and the names of those that are not known. One that is
    null or empty in the files is left out, as transformers leaves it out."""
    files = ("special_tokens_map.json", "tokenizer_config.json", "config.json")
    more, config, model = (read_json(os.path.join(folder, name)) for name in files)
    of_class = CLASSES.get(class_of(config, model))
    tokens = {key: text for key, text in (of_class or {}).items() if key not in more and key not in config}
    for named in more, config:
        texts = {key: text_of(value) for key, value in named.items() if key.endswith("_token")}
        tokens.update((key, text) for key, text in texts.items() if isinstance(text, str) and text)
    unknown = [key for key in NAMES if of_class is None and key not in more and key not in config]
    return tokens, unknown


def unknown_of(folder, unknown):
    """Returns a type of undefined values of Jinja2, which refuse to be written if they are special tokens of an unknown
    text."""
    import jinja2

    class Unknown(jinja2.Undefined):
        def __str__(self):
            if self._undefined_name in unknown and self._undefined_obj is jinja2.utils.missing:
                raise Fault("the chat template writes %s, which neither tokenizer_config.json nor special_tokens_map.json"
                            " of '%s' has: name it there, or null for none" % (self._undefined_name, folder))
            return super().__str__()

    return Unknown
