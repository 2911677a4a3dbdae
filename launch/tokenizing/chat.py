"""Dialogues: a model's chat template, rendered as transformers renders it, and which characters are an answer's.

A template with {% generation %} blocks says itself what its answers are. Of others an answer is what the template adds
when the assistant has spoken."""

import datetime
import json
import os
import re

from tokenizing.faults import Fault, read_json
from tokenizing.records import Dialogue
from tokenizing.special_tokens import find_tokens, unknown_of

OPENS, CLOSES = "\ufdd0", "\ufdd1"  # around generation blocks: characters that no text may have
USED = ("default", "tool_use")  # of named templates
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # names of what was thought
SEEN = ("role", "content", "weight", "tool_calls", *THOUGHTS)  # keys of a message that are not left out in silence
GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def find_templates(folder, config):
    """The chat templates of a model's directory by name: default, and tool_use if there is one of that name. Files come
    before the key of tokenizer_config.json, as in transformers."""
    more = os.path.join(folder, "additional_chat_templates")
    paths = {"default": os.path.join(folder, "chat_template.jinja")}
    for name in sorted(os.listdir(more)) if os.path.isdir(more) else []:
        if name.endswith(".jinja"):
            paths[name.removesuffix(".jinja")] = os.path.join(more, name)
    named = {name: read_text(path) if name in USED else "" for name, path in paths.items() if os.path.exists(path)}
    if named and "default" not in named:
        raise Fault("'%s' has no chat template named default: it has additional_chat_templates and no chat_template.jinja, "
                    "so the key of tokenizer_config.json is not read" % folder)
    if not named:
        text = config.get("chat_template")
        entries = text if isinstance(text, list) else [{"name": "default", "template": text or ""}]
        if not all(isinstance(entry, dict) and isinstance(entry.get("name"), str) and
                   isinstance(entry.get("template"), str) for entry in entries):
            raise Fault("'%s': the chat_template of tokenizer_config.json is neither a text nor a list of named texts" %
                        folder)
        named = {entry.get("name"): entry.get("template") for entry in entries}
    if not named.get("default"):
        raise Fault("'%s' has no chat template%s: neither chat_template.jinja nor a key of tokenizer_config.json" %
                    (folder, " named default" if len(named) > 1 or "default" not in named else ""))
    return {name: named[name] for name in USED if named.get(name)}


def make_room(undefined):
    """The environment of transformers' apply_chat_template: its extensions, filters and globals. undefined: a type of
    Jinja2's undefined values."""
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller):
            return OPENS + caller() + CLOSES if self.environment.marks else caller()

    def refuse(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    room = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols], undefined=undefined
    )
    room.marks = False  # whether generation blocks are marked
    room.filters["tojson"] = tojson
    class Namespace(jinja2.utils.Namespace):
        """Refuses names that lead into Python."""

        def __init__(*args, **kwargs):
            self, values = args[0], dict(*args[1:], **kwargs)
            for name in values:
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name, value):
            Namespace.check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError("a name in a namespace begins with '_': %r" % name)

    room.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.datetime.now().strftime(form),
                        namespace=Namespace)
    return room


def open_chats(folder):
    """The chat templates of a model's directory, with its special tokens."""
    templates = find_templates(folder, read_json(os.path.join(folder, "tokenizer_config.json")))
    tokens, unknown = find_tokens(folder)
    room = make_room(unknown_of(folder, unknown))
    return Chats({name: Chat(folder, text, tokens, room) for name, text in templates.items()})


class Chats:
    """A model's chat templates by name, of which transformers takes tool_use for dialogues with tools."""

    def __init__(self, by_name):
        self.by_name = by_name

    def of(self, dialogue):
        return self.by_name.get("tool_use" if dialogue.tools else "default", self.by_name["default"])

    def decides(self):
        """What decides the texts besides the dialogues."""
        chats = self.by_name.values()
        dates = {chat.template.environment.globals["strftime_now"]("%Y-%m-%d") for chat in chats if chat.depends_on_date}
        return [(name, chat.source, sorted(chat.tokens.items())) for name, chat in self.by_name.items()] + sorted(dates)


class Chat:
    def __init__(self, folder, source, tokens, room):
        self.source, self.tokens = source, tokens
        self.words = set(re.findall(r"\w+", source))
        self.marks_answers = GENERATION.search(self.source) is not None
        self.depends_on_date = "strftime_now" in self.source
        try:
            self.template = room.from_string(self.source)
        except Exception as error:
            raise Fault("the chat template of '%s' cannot be read: %s" % (folder, error))
        self.closing = self.find_closing()

    def find_closing(self):
        """The token that the template puts behind every text, also one that ends with a question, as Phi-3's does: it is
        not there when more follows."""
        end = self.tokens.get("eos_token") or ""
        try:
            closes = self.render(Dialogue([{"role": "user", "content": "a"}])).endswith(end)
        except Exception:
            closes = False
        return end if closes else ""

    def render(self, dialogue, end=None, prompt=False, marks=False):
        """Renders the messages before `end`, or all, and with `prompt` what asks for an answer to them."""
        self.template.environment.marks = marks
        messages = [with_reasoning(message) for message in dialogue.messages[:end]]
        return self.template.render({"documents": None, **self.tokens, **dialogue.variables, "messages": messages,
                                     "tools": dialogue.tools, "add_generation_prompt": prompt})

    def check(self, dialogue):
        """Refuses what the template would leave out, or write as Python writes it."""
        messages, tools = dialogue.messages, dialogue.tools
        texts = json.dumps([messages, tools, dialogue.variables], ensure_ascii=False)
        if self.marks_answers and re.search("[%s%s]" % (OPENS, CLOSES), texts):
            raise Fault("a text has the character U+FDD0 or U+FDD1, which is not for texts: it would mark an answer here")
        if tools and "tools" not in self.source:
            raise Fault("there are tools, which the chat template has no use for")
        if any(message.get("tool_calls") for message in messages) and "tool_calls" not in self.source:
            raise Fault("a message has tool_calls, which the chat template has no use for")
        thoughts = [(i, name) for i, message in enumerate(messages) for name in THOUGHTS if is_thought(message.get(name))]
        for i, name in thoughts[:1] + thoughts[1:][-1:]:  # others are as these: each costs two renderings
            if not self.writes_thoughts(dialogue, i):
                raise Fault("a message has %s, which the chat template has no use for" % name)
        if any(message["content"] is None for message in messages):
            filled = Dialogue([{**message, "content": message["content"] or ""} for message in messages], tools,
                              dialogue.variables)
            if self.render(dialogue).count("None") > self.render(filled).count("None"):
                raise Fault("the content of a message is null, which the chat template writes as None")

    def writes_thoughts(self, dialogue, i):
        """Whether the text up to message i, its last one, depends on what was thought. A template that refuses one of the
        two, or an answer without more, tells them apart."""
        message = {key: value for key, value in dialogue.messages[i].items() if key not in THOUGHTS}
        without = Dialogue([*dialogue.messages[:i], message], dialogue.tools, dialogue.variables)
        try:
            return self.render(dialogue, i + 1) != self.render(without)
        except Exception:
            return True

    def unnamed(self, dialogue):
        """The keys of messages, each as often as a message has it, that are set and that the template does not name."""
        return [key for message in dialogue.messages for key, value in message.items()
                if key not in SEEN and value not in (None, "", [], {}) and key not in self.words]

    def marked(self, dialogue):
        """Returns the text, and the spans of its generation blocks with the message of each."""
        text, spans, begins, n = "", [], [], 0
        for piece in re.split("([%s%s])" % (OPENS, CLOSES), self.render(dialogue, marks=True)):
            if piece == OPENS:
                begins.append(n)
            elif piece == CLOSES and begins:
                spans.append((begins.pop(), n))
            else:
                text += piece
                n += len(piece)
        answers = dialogue.answers()
        if len(answers) == len(spans):
            return text, [(a, b, i) for (a, b), i in zip(spans, answers) if dialogue.counts(i)]
        if not all(dialogue.counts(i) for i in answers):
            raise Fault("the chat template has %d {%% generation %%} blocks for %d answers, so which have weight 0 cannot "
                        "be told" % (len(spans), len(answers)))
        return text, [(a, b, None) for a, b in spans]

    def span(self, dialogue, i, text):
        """Where answer i is in the text: what the template adds when the assistant has spoken. None: the text of the
        messages before it, or of it, is another when later ones have come."""
        begin = self.render(dialogue, i, prompt=True)
        end = text
        if i + 1 < len(dialogue.messages):
            end = self.render(dialogue, i + 1).removesuffix(self.closing)
        return (len(begin), len(end), i) if end.startswith(begin) and text.startswith(end) else None

    def alone(self, dialogue, i):
        """The dialogue up to answer i, which alone counts: what the model sees when it gives that answer."""
        text = self.render(dialogue, i + 1)
        begin = self.render(dialogue, i, prompt=True)
        if not text.startswith(begin):
            raise Fault("the chat template writes an answer otherwise than it asks for one, so which tokens are the "
                        "answer's cannot be told: mark answers by {% generation %} blocks")
        return text, [(len(begin), len(text), i)]

    def texts(self, dialogue, rewritten):
        """Returns the dialogue's texts, each with the spans (begin, end, message) of the answers that count in it: one,
        unless the template rewrites earlier messages when later ones come, as Qwen3's leaves out what was thought. Then
        each answer has a text of its own (rewritten: split), or only the last one has (last)."""
        self.check(dialogue)
        if self.marks_answers:
            return [self.marked(dialogue)]
        answers = [i for i in dialogue.answers() if dialogue.counts(i)]
        text = self.render(dialogue)
        spans = [self.span(dialogue, i, text) for i in answers]
        if None not in spans:
            return [(text, spans)]
        return [self.alone(dialogue, i) for i in (answers if rewritten == "split" else answers[-1:])]

    @staticmethod
    def has_end(dialogue, text, span):
        """Whether the template adds something that ends the answer: not only white space."""
        a, b, i = span
        content = str(dialogue.messages[i]["content"] or "").strip() if i is not None else ""
        return not content or not text[a:b].rstrip().endswith(content)


def is_thought(value):
    return bool(value.strip() if isinstance(value, str) else value)


def with_reasoning(message):
    """Of the names of what was thought, templates read the first, and gpt-oss's `thinking`."""
    thought = next((message[name] for name in THOUGHTS if message.get(name) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}
