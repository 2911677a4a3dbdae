"""Tokenizers and what they make of documents: ids, and of dialogues which tokens count in the loss."""

import bisect
import collections
import json
import multiprocessing
import os
import re
import threading

from tokenizing.chat import open_chats
from tokenizing.faults import Fault, read_json
from tokenizing.inputs import FIRST, LAST, WHOLE, documents_of_lines, is_lines, read_text
from tokenizing.records import MAY_BE_PLAIN, Pair, Plain
from tokenizing.rules import hash_of
from tokenizing.special_tokens import text_of

ENDS_OF_TEXT = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>"]
BATCH = 256  # documents that are encoded by one call
AHEAD_BYTES = 4096  # around a piece's end, by which its last word is checked


class HuggingFace:
    """A tokenizer.json, encoded by the library that it was written for."""

    def __init__(self, path, chat):
        import tokenizers
        import xxhash

        with open(path, "rb") as file:
            content = file.read()
        try:
            self.tokenizer = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:
            raise Fault("'%s' is no tokenizer: %s" % (path, error))
        dropout = (json.loads(content).get("model") or {}).get("dropout")
        if dropout:
            raise Fault("'%s': model.dropout is %g, which merges at random: set it to null for tokens that are the same "
                        "each time" % (path, dropout))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.version = "tokenizers " + tokenizers.__version__
        self.hash, self.rules = xxhash.xxh3_64_intdigest(content), hash_of(json.loads(content))
        self.ids = self.tokenizer.get_vocab(with_added_tokens=True)
        if not self.ids:
            raise Fault("'%s' has no tokens" % path)
        self.vocab_size = max(self.ids.values()) + 1
        self.added = {entry["id"] for entry in json.loads(content).get("added_tokens", [])}
        self.divides = divides_text(json.loads(content))
        self.head, self.tail = self.specials()
        if chat:  # a token's place has its space, too; special tokens around a dialogue are the template's
            self.tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)

    def specials(self):
        """The special tokens that are put before and behind a document."""
        plain = self.tokenizer.encode("a", add_special_tokens=False).ids
        whole = self.tokenizer.encode("a").ids
        at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
        return whole[:at], whole[at + len(plain) :]

    def encode(self, texts):
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]

    def encode_piece(self, text, following, place):
        """Encodes a piece of a text. Raises a Fault if its words depend on what follows."""
        words = self.tokenizer.pre_tokenizer.pre_tokenize_str
        last = text[text.rfind("\n", 0, max(len(text) - AHEAD_BYTES, 0)) + 1 :]  # its last lines
        alone = words(last)
        if following and words(last + following)[: len(alone)] != alone:
            return None
        ids = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return (self.head if place & FIRST else []) + ids + (self.tail if place & LAST else [])

    def encode_places(self, texts):
        """Returns of each text its ids without special tokens around them, and the characters that each stands for."""
        encodings = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]


def divides_text(content):
    """Whether words end at a line end between other characters whatever comes before them, so that a large text may be
    encoded in pieces: normalizers that look at a few characters, and pre-tokenizers that go from left to right."""
    normalizer, splitter = content.get("normalizer"), content.get("pre_tokenizer")
    parts = (normalizer or {}).get("normalizers", [normalizer] if normalizer else [])
    steps = (splitter or {}).get("pretokenizers", [splitter] if splitter else [])
    looks_back = any("(?<" in str(step.get("pattern")) for step in steps)
    return (
        bool(steps)
        and not looks_back
        and all(part["type"] in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase") for part in parts)
        and all(step["type"] in ("ByteLevel", "Split", "Digits") for step in steps)
        and not any(step.get("add_prefix_space") for step in steps)
        and not any("\n" in entry["content"] or entry.get("lstrip") for entry in content.get("added_tokens", []))
    )


class SentencePiece:
    """A tokenizer.model. Its hash is not known to models, which name that of their tokenizer.json."""

    def __init__(self, path, chat):
        import sentencepiece

        if chat:
            raise Fault("--chat needs a tokenizer.json, which says where in the text tokens begin; transformers writes one")
        try:
            self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=path)
        except Exception as error:
            raise Fault("'%s' is no SentencePiece model: %s" % (path, error))
        self.version = "sentencepiece " + sentencepiece.__version__
        self.hash, self.rules, self.divides, self.added = 0, 0, False, set()
        self.vocab_size = self.tokenizer.vocab_size()
        self.ids = {self.tokenizer.id_to_piece(i): i for i in range(self.vocab_size)}

    def encode(self, texts):
        return self.tokenizer.encode(texts, add_bos=self.tokenizer.bos_id() >= 0)


class Encoder:
    """The tokenizer of a model's directory with what else its files say: end of text, chat template."""

    def __init__(self, options):
        path = options.tokenizer
        self.options = options
        self.folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
        names = ["tokenizer.json", "tokenizer.model"] if os.path.isdir(path) else [os.path.basename(path)]
        found = [name for name in names if os.path.exists(os.path.join(self.folder, name))]
        if not found:
            raise Fault("'%s' has neither tokenizer.json nor tokenizer.model" % path)
        kind = SentencePiece if found[0].endswith(".model") else HuggingFace
        self.tokenizer = kind(os.path.join(self.folder, found[0]), options.chat)
        self.config = self.read("tokenizer_config.json")
        may_be_plain = options.chat and options.format in MAY_BE_PLAIN
        self.end = self.find_end() if may_be_plain or not options.chat else None
        self.chats = self.open_chats(may_be_plain) if options.chat else None
        self.width = 1 if self.tokenizer.vocab_size <= 1 << 8 else 2 if self.tokenizer.vocab_size <= 1 << 16 else 4

    def open_chats(self, may_lack_one):
        try:
            return open_chats(self.folder)
        except Fault as fault:
            self.no_chat = str(fault)
            if may_lack_one:
                return None
            raise

    def read(self, name):
        return read_json(os.path.join(self.folder, name))

    def find_end(self):
        """The token that ends a document: --end's, the one that the tokenizer's files name, or one of the usual names."""
        if self.options.end == "none":
            return None
        named = self.options.end
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            named = named or text_of(self.read(name).get("eos_token"))
        if named and not (isinstance(named, str) and named in self.tokenizer.ids):
            raise Fault("the end-of-text token '%s' is not in the vocabulary: correct eos_token in '%s', or name another "
                        "with --end TOKEN" % (named, os.path.join(self.folder, "tokenizer_config.json")))
        names = [named] if named else ENDS_OF_TEXT
        found = next((self.tokenizer.ids[name] for name in names if name in self.tokenizer.ids), None)
        if found is None:
            raise Fault("no end-of-text token is known, so documents would run into each other: name one with --end TOKEN "
                        "(or eos_token in tokenizer_config.json), or join them with --end none")
        return found

    def decides(self):
        """All that decides the tokens besides the input: a run that is continued must find it unchanged."""
        templates = self.chats.decides() if self.chats else []
        return [self.tokenizer.hash, self.tokenizer.vocab_size, self.tokenizer.version, self.end, templates]

    # ---- documents ----------------------------------------------------------------------------------------------------
    def with_end(self, ids):
        return ids + [self.end] if self.end is not None and ids and ids[-1] != self.end else ids

    def texts(self, documents):
        return [(self.with_end(ids), []) for ids in self.tokenizer.encode(documents)]

    def piece(self, piece, text, following):
        ids = self.tokenizer.encode_piece(text, following, piece.place)
        if ids is None:
            raise Fault("'%s' cannot be divided at byte %d, where a word does not end: --whole encodes it in one piece"
                        % (piece.path, piece.end))
        return self.with_end(ids) if piece.place & LAST else ids

    # ---- dialogues ----------------------------------------------------------------------------------------------------
    def plain(self, document):
        """A prompt and its completion without a template: the completion and the token that ends it count."""
        return document, document.prompt + document.completion, [(len(document.prompt), None, None)]

    def pair(self, pair, stats):
        """Both answers of a pair, a text each."""
        before = stats["rewritten"]
        texts = [self.rendered(answer, stats) for answer in pair.answers]
        if any(len(of_answer) != 1 for of_answer in texts) or stats["rewritten"] > before:
            raise Fault("the chat template rewrites earlier messages when later ones come, and an answer of a pair has "
                        "several of the assistant's, so that they are no single text")
        stats["equal pairs"] += texts[0][0][1] == texts[1][0][1]
        return texts[0] + texts[1]

    def rendered(self, document, stats):
        """Returns (document, text, spans) of each text that becomes a document."""
        if isinstance(document, Pair):
            return self.pair(document, stats)
        if isinstance(document, Plain):
            return [self.plain(document)]
        if not self.chats:
            raise Fault(self.no_chat)
        chat = self.chats.of(document)
        stats.update("role " + message["role"] for message in document.messages)
        stats.update("unnamed " + key for key in chat.unnamed(document))
        texts = chat.texts(document, self.options.rewritten)
        n_answers = sum(document.counts(i) for i in document.answers())
        if not chat.marks_answers and sum(len(spans) for _, spans in texts) < n_answers or len(texts) > 1:
            stats["rewritten"] += 1
            stats["texts of rewritten"] += len(texts)
        return [(document, text, spans) for text, spans in texts]

    def dialogues(self, documents, stats):
        """Returns (ids, whether each one counts) of each text of the dialogues."""
        rendered = [text for document in documents for text in self.rendered(document, stats)]
        encoded = self.tokenizer.encode_places([text for _, text, _ in rendered])
        made = []
        for (document, text, spans), (ids, places) in zip(rendered, encoded):
            stats["replaced"] += text.count("\ufffd")
            if isinstance(document, Plain):
                ids, places = self.whole(ids, places, len(text))
            made.append((ids, self.counts(document, text, spans, ids, places, stats)))
        if self.options.format == "preference":
            if not all(any(counts) for _, counts in made):
                raise Fault("no token of an answer counts")
            for i in range(0, len(made), 2):
                if rendered[i][2][0][0] == rendered[i + 1][2][0][0]:
                    begin_together(made[i], made[i + 1])
        stats["unlearned"] += sum(not any(counts) for _, counts in made)
        return made

    def whole(self, ids, places, n):
        """A text of n characters with the special tokens of a document around it: a first one that the text brings itself
        is not there twice, as in zerotrain generate."""
        head = self.tokenizer.head if ids[: len(self.tokenizer.head)] != self.tokenizer.head else []
        whole = self.with_end(head + ids + self.tokenizer.tail)
        return whole, [(0, 0)] * len(head) + places + [(n, n + 1)] * (len(whole) - len(head) - len(ids))

    def counts(self, document, text, spans, ids, places, stats):
        begins, ends = [begin for begin, _ in places], [end for _, end in places]
        chat = None if isinstance(document, Plain) else self.chats.of(document)
        counts = bytearray(len(ids))
        for span in spans:
            first, last, _ = span
            a = bisect.bisect_right(ends, first)
            b = len(ids) if last is None else bisect.bisect_left(begins, last)
            if chat and not chat.has_end(document, text, span):
                # The next role's marker may be what ends an answer, as GLM's does.
                is_end = not chat.marks_answers and b < len(ids) and ids[b] in self.tokenizer.added
                b += is_end
                stats["endless"] += not is_end
            counts[a:b] = b"\1" * max(b - a, 0)
            stats["answers"] += 1
            stats.update(self.ends_of(text, ids, places, a, b))
        return counts

    def ends_of(self, text, ids, places, a, b):
        """Names the special token that ends tokens a to b, for statistics: the last that is not white space."""
        while b > a and text[slice(*places[b - 1])].isspace():
            b -= 1
        return ["end %d" % ids[b - 1]] if b > a and ids[b - 1] in self.tokenizer.added else []

    def stops(self):
        """The file that names the tokens at which generated text ends, and these."""
        for name in ("generation_config.json", "config.json"):
            stops = self.read(name).get("eos_token_id")
            if stops is not None:
                return os.path.join(self.folder, name), stops if isinstance(stops, list) else [stops]
        return None, []


def begin_together(chosen, rejected):
    """Where one answer begins within a token, as it is joined to the prompt, the other counts from there, too: so both
    are measured from the same tokens on, as in TRL."""
    (ids, _), (others, _) = chosen, rejected
    common = next((i for i, (a, b) in enumerate(zip(ids, others)) if a != b), min(len(ids), len(others)))
    firsts = [counts.index(1) for _, counts in (chosen, rejected)]
    begin = min(common, *firsts)
    for (_, counts), first in zip((chosen, rejected), firsts):
        counts[begin:first] = b"\1" * (first - begin)


# ---- a part, in a process of its own ----------------------------------------------------------------------------------
class Result:
    """A part's tokens as bytes, the lengths of its documents, whether each token counts, and what there is to say."""

    def __init__(self, width):
        self.width = width
        self.tokens, self.lengths, self.counts = [], [], []
        self.continues = False  # the first document began in the part before
        self.stats, self.bad = collections.Counter(), []

    def add(self, ids, counts):
        import numpy

        if not len(ids):
            return
        self.tokens.append(numpy.array(ids, "<u%d" % self.width).tobytes())
        self.lengths.append(len(ids))
        self.counts.append(bytes(counts))


worker = None  # an Encoder, of a process of the pool


def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def start_worker(options):
    global worker
    threading.Thread(target=end_with_parent, daemon=True).start()  # else it would wait for work forever
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    worker = Encoder(options)


def encode_lines(piece, result):
    options, places, documents = worker.options, [], []

    def skip(place, why):
        result.bad.append((place, why))
        if not options.skip_bad_lines:
            raise Fault(place, why)

    def flush():
        for ids, counts in encode_batch(places, documents, result, skip):
            result.add(ids, counts)
        places.clear()
        documents.clear()

    for place, document in documents_of_lines(piece, options, skip):
        places.append(place)
        documents.append(document)
        if len(documents) == BATCH:
            flush()
    flush()


def encode_batch(places, documents, result, skip):
    """Encodes documents together; if one of them cannot be, one by one, to name it."""
    if not worker.options.chat:
        result.stats["replaced"] += sum(document.count("\ufffd") for document in documents)
        return worker.texts(documents)
    before = result.stats.copy()
    try:
        return worker.dialogues(documents, result.stats)
    except Exception:
        result.stats = before
    made = []
    for place, document in zip(places, documents):
        before = result.stats.copy()
        try:
            made += worker.dialogues([document], result.stats)
        except Exception as error:
            result.stats = before
            skip(place, str(error))
    return made


def encode_part(part):
    result = Result(worker.width)
    texts = []
    for piece in part:
        if is_lines(piece.path):
            encode_lines(piece, result)
            continue
        text, following = read_text(piece, AHEAD_BYTES)
        result.stats["replaced"] += text.count("\ufffd")
        if piece.place == WHOLE:
            texts.append(text)
        else:
            result.continues = not piece.place & FIRST
            result.add(worker.piece(piece, text, re.match(r"[^\n]*\n?", following).group()), [])
    for ids, counts in worker.texts(texts) if texts else []:
        result.add(ids, counts)
    return result
