"""Records of dialogues, as people have them, as one thing: messages, tools, and which answers count.

A function of FORMATS turns a line's object into a Dialogue or a Plain, or raises ValueError with what is wrong. Nothing
of a record that would change its tokens is left out in silence."""

import json

SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system",
                  "chatgpt": "assistant", "tool": "tool", "observation": "tool", "function": "tool"}
VARIABLES = "chat_template_kwargs"  # a key of a line, as in TRL

# Variables that templates get otherwise, and what apply_chat_template takes for itself.
OTHERS_VARIABLES = ("messages", "tools", "add_generation_prompt", "conversation", "chat_template",
                    "continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
                    "return_assistant_tokens_mask", "tokenizer_kwargs", "sanitize_control_tokens")


class Dialogue:
    """Messages for a chat template, and its other variables. The answers that count are the assistant's from message
    `first` on, but for those of weight 0."""

    def __init__(self, messages, tools=None, variables=None, first=0):
        if not isinstance(messages, list) or not messages:
            raise ValueError("there is no message")
        self.messages = [checked(message) for message in messages]
        self.first = first
        self.tools = tools_of(tools)
        self.variables = checked_variables(variables)

    def answers(self):
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]

    def counts(self, i):
        return i >= self.first and self.messages[i].get("weight", 1) != 0


class Plain:
    """A text that goes on as another, without a template: only the latter counts."""

    def __init__(self, prompt, completion):
        self.prompt, self.completion = prompt, completion


class Pair:
    """Two answers to one prompt, a Dialogue or Plain each, of which the first is preferred."""

    def __init__(self, chosen, rejected):
        self.answers = [chosen, rejected]
        if any(not answer.completion if isinstance(answer, Plain) else
               not any(answer.counts(i) for i in answer.answers()) for answer in self.answers):
            raise ValueError("an answer of a pair is empty")


def checked(message):
    """A message whose content a template can use: text, or null where there are tool calls instead."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("a message is no object with a role")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
                   for part in content):
            raise ValueError("a message has parts that are not text")
        content = "".join(part["text"] for part in content)
    elif content is None and not message.get("tool_calls"):
        raise ValueError("the content of a message is null, and it has no tool_calls")
    elif content is not None and not isinstance(content, str):
        raise ValueError("the content of a message is no text")
    weight = message.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise ValueError("the weight of a message is %r: an answer counts (1) or not (0)" % (weight,))
    if weight == 0 and message["role"] != "assistant":
        raise ValueError("a message of the role '%s' has weight 0: only the assistant's count in any case" % message["role"])
    return {**message, "content": content}


def tools_of(tools):
    """Tools as a list of JSON schemas; some data sets have it as a text."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError as error:
            raise ValueError("'tools' is a text that is not JSON: %s" % error)
    if tools and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ValueError("'tools' is no list of objects")
    return tools or None


def checked_variables(variables):
    """Variables of the template, such as enable_thinking."""
    if variables is not None and not isinstance(variables, dict):
        raise ValueError("'%s' is no object" % VARIABLES)
    taken = [name for name in OTHERS_VARIABLES if name in (variables or {})]
    if taken:
        raise ValueError("'%s' has '%s', which is not for a line to set" % (VARIABLES, taken[0]))
    return variables or {}


def remedy_of(record):
    """What to do about a record that lacks the fields of the chosen format: the option that reads it, if it is recognized."""
    for name, (_, fields, _) in FORMATS.items():
        if all(key in record for key in fields):
            option = "--chat" if name == "messages" else "--format " + name
            return "%s reads %s" % (option, " and ".join("'%s'" % key for key in fields))
    return "--field names another"


def field_of(record, field, kind, name, may_be_dialogue=True):
    if field not in record:
        remedy = remedy_of(record if may_be_dialogue else {})
        raise ValueError("no object with the field '%s'; %s" % (field, remedy))
    if not isinstance(record[field], kind):
        raise ValueError("'%s' is no %s" % (field, name))
    return record[field]


def of_messages(record, field):
    return Dialogue(field_of(record, field, list, "list of messages"), record.get("tools"), record.get(VARIABLES))


def of_sharegpt(record, field):
    messages = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    for turn in field_of(record, field, list, "list of turns"):
        role = turn.get("from") if isinstance(turn, dict) else turn
        if not isinstance(turn, dict) or not isinstance(role, str) or role not in SHAREGPT_ROLES:
            raise ValueError("a turn is from %r: known are %s" % (role, ", ".join(sorted(SHAREGPT_ROLES))))
        others = {key: value for key, value in turn.items() if key not in ("from", "value")}
        messages.append({**others, "role": SHAREGPT_ROLES[role], "content": turn.get("value")})
    return Dialogue(messages, record.get("tools"), record.get(VARIABLES))


def of_alpaca(record, field):
    """instruction, input and output, with system and earlier pairs in history."""
    messages = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    history, more = record.get("history") or [], record.get("input") or ""
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise ValueError("'history' is no list of pairs")
    if not isinstance(more, str):
        raise ValueError("'input' is no text")
    for pair in history:
        messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    asked = field_of(record, field, str, "text")
    messages.append({"role": "user", "content": asked + "\n\n" + more if more else asked})
    messages.append({"role": "assistant", "content": field_of(record, "output", str, "text")})
    return Dialogue(messages, variables=record.get(VARIABLES))


def of_completion(record, field):
    """A prompt and its completion: two texts, or two lists of messages."""
    prompt, completion = record.get(field), record.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return Plain(prompt, completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        return Dialogue(prompt + completion, record.get("tools"), record.get(VARIABLES), len(prompt))
    raise ValueError("'%s' and 'completion' are neither two texts nor two lists of messages" % field)


def common_prefix(chosen, rejected):
    """Where two answers part that have no prompt of their own, as TRL finds it: of texts, before a space; at their last
    element, if they do not part."""
    n, last = 0, min(len(chosen), len(rejected)) - 1
    while n < last and chosen[n] == rejected[n]:
        n += 1
    return n - 1 if 0 < n and chosen[n - 1] == " " and chosen[n] != rejected[n] else n


def of_preference(record, field):
    """A prompt with the answer that is preferred to another: three texts, or three lists of messages. Without a prompt
    it is what both begin with; so it is where it is a text that their first message repeats."""
    prompt, chosen, rejected = record.get(field), record.get("chosen"), record.get("rejected")
    if not any(isinstance(chosen, kind) and isinstance(rejected, kind) for kind in (str, list)):
        raise ValueError("'chosen' and 'rejected' are neither two texts nor two lists of messages")
    is_text = isinstance(chosen, str)
    if isinstance(prompt, str) and not is_text:
        if not all(answer and isinstance(answer[0], dict) and answer[0].get("content") == prompt
                   for answer in (chosen, rejected)):
            raise ValueError("'%s' is a text that the first messages of 'chosen' and 'rejected' do not repeat" % field)
        prompt = None
    if prompt is None:
        n = common_prefix(chosen, rejected)
        prompt, chosen, rejected = chosen[:n], chosen[n:], rejected[n:]
    if not isinstance(prompt, type(chosen)):
        raise ValueError("'%s' is no %s, as 'chosen' is" % (field, "text" if is_text else "list of messages"))
    if is_text:
        return Pair(Plain(prompt, chosen), Plain(prompt, rejected))
    return Pair(*(Dialogue(prompt + answer, record.get("tools"), record.get(VARIABLES), len(prompt))
                  for answer in (chosen, rejected)))


# The field that --field replaces; the fields by which a record is recognized that lacks those of the chosen format; and
# what reads a record.
FORMATS = {
    "messages": ("messages", ("messages",), of_messages),
    "sharegpt": ("conversations", ("conversations",), of_sharegpt),
    "alpaca": ("instruction", ("instruction", "output"), of_alpaca),
    "prompt-completion": ("prompt", ("prompt", "completion"), of_completion),
    "preference": ("prompt", ("chosen", "rejected"), of_preference),
}
MAY_BE_PLAIN = ("prompt-completion", "preference")  # formats whose records may be texts without a template
