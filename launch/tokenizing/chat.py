"""Dialogues: a model's chat template, rendered as transformers renders it, and which characters are an answer's.

A template with {% generation %} blocks says itself what its answers are. Of others an answer is what the template adds
when the assistant has spoken."""

import datetime
import json
import os
import re

from tokenizing.faults import Fault

OPENS, CLOSES = "\ufdd0", "\ufdd1"  # around generation blocks: characters that no text may have
GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


def text_of(token):
    return token.get("content") if isinstance(token, dict) else token


def find_template(folder, config):
    path = os.path.join(folder, "chat_template.jinja")
    text = config.get("chat_template")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
    if isinstance(text, list):
        text = next((entry.get("template") for entry in text if entry.get("name") == "default"), None)
    if not text:
        raise Fault("'%s' has no chat template: neither chat_template.jinja nor a key of tokenizer_config.json" % folder)
    return text


def make_room():
    """The environment of transformers' apply_chat_template: its extensions, filters and globals."""
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
            return OPENS + caller() + CLOSES

    def refuse(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    room = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    room.filters["tojson"] = tojson
    room.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.datetime.now().strftime(form))
    return room


class Chat:
    def __init__(self, folder, config):
        self.source = find_template(folder, config)
        self.tokens = {key: text_of(value) for key, value in config.items() if key.endswith("_token")}
        self.marks_answers = GENERATION.search(self.source) is not None
        self.depends_on_date = "strftime_now" in self.source
        try:
            self.template = make_room().from_string(self.source)
        except Exception as error:
            raise Fault("the chat template of '%s' cannot be read: %s" % (folder, error))

    def render(self, messages, prompt):
        return self.template.render(
            messages=messages, tools=None, documents=None, add_generation_prompt=prompt, **self.tokens
        )

    def marked(self, messages):
        """Returns the text, and the spans of its generation blocks."""
        text, spans, begins, n = "", [], [], 0
        for piece in re.split("([%s%s])" % (OPENS, CLOSES), self.render(messages, False)):
            if piece == OPENS:
                begins.append(n)
            elif piece == CLOSES and begins:
                spans.append((begins.pop(), n))
            else:
                text += piece
                n += len(piece)
        return text, spans

    def answers(self, messages):
        """Returns the text, and where answers begin and end in it."""
        if self.marks_answers:
            return self.marked(messages)
        text, spans = self.render(messages, False), []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            begin = self.render(messages[:i], True)
            end = text if i + 1 == len(messages) else self.render(messages[: i + 1], False)
            if not end.startswith(begin) or not text.startswith(end):
                raise Fault(
                    "the chat template changes earlier messages when later ones come: which tokens are an answer's "
                    "cannot be told; cut dialogues after the first answer, or mark answers by {% generation %} blocks"
                )
            spans.append((len(begin), len(end)))
        return text, spans

    def has_end(self, messages, text, spans):
        """Returns of each span whether the template adds something that ends the answer: not only white space."""
        contents = [str(m.get("content") or "").strip() for m in messages if m.get("role") == "assistant"]
        if len(contents) != len(spans):
            return [True] * len(spans)
        return [not text[a:b].rstrip().endswith(content) or not content for content, (a, b) in zip(contents, spans)]
