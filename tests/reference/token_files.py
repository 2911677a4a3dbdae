"""Tests launch/tokenize against the tokenizers library itself: tests/reference/run starts it with a Python that has
tokenizers and jinja2.

    token_files.py BUILD SCRATCH

Prints "ok: claim" or "FAILED: claim" for each."""

import gzip
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

import tokenizers

try:
    import xxhash  # noqa: F401
except ImportError:
    os.environ.pop("PYTHON", None)  # launch/tokenize then makes a Python of its own

BUILD, SCRATCH = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../launch/tokenize")


def path_of(name):
    return os.path.join(SCRATCH, name)


def run(*arguments):
    done = subprocess.run([TOOL, *arguments], cwd=SCRATCH, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stderr


def must_run(*arguments):
    code, said = run(*arguments)
    if code:
        raise AssertionError(said)


def read(name):
    with open(path_of(name), "rb") as file:
        return file.read()


def load(name):
    """A token file by its format's text: header, tokens, documents' starts, and whether each token counts."""
    data = read(name)
    magic, version, width, n, vocab, tokenizer, n_documents, mask = struct.unpack("<8sIIQQQQI", data[:52])
    assert magic == b"ZEROTOK\0" and version == 1 and data[52] < 2 and data[53:56] == bytes(3) and data[56:64] != bytes(8)
    tokens = struct.unpack("<%d%s" % (n, {1: "B", 2: "H", 4: "I"}[width]), data[64:64 + n * width])
    at = 64 + (n * width + 7) // 8 * 8
    starts = struct.unpack("<%dQ" % n_documents, data[at:at + 8 * n_documents])
    bits = data[at + 8 * n_documents:]
    assert len(bits) == ((n + 7) // 8 if mask else 0)
    return tokens, starts, [not mask or bits[i // 8] >> i % 8 & 1 == 1 for i in range(n)]


def write_texts():
    """Code, prose in several scripts, emoji, runs of blanks, and bytes that are not UTF-8."""
    random.seed(5)
    pieces = ["for (int i = 0; i < n; i++)\n", "\t\t", "   ", "naïve café ", "Привет, мир! ", "数学と物理 ", "🙂👩‍🚀 ", "1234567.89 ",
              "it's they'LL ", "\n\n\n", "\u00a0\u2009", "a_b-c/d\\e ", "\r\n"]
    os.makedirs(path_of("texts/deeper"), exist_ok=True)
    for i in range(120):  # several MB: parts for several jobs
        text = "".join(random.choice(pieces) for _ in range(random.randrange(1, 4000))).encode()
        with open(path_of("texts/%s%03d.txt" % ("deeper/" if i % 3 else "", i)), "wb") as file:
            file.write(text + b"\xff\xc3" * (i % 5 == 0))
    with open(path_of("lines.jsonl"), "w", encoding="utf-8") as file:
        for i in range(3000):
            file.write(json.dumps({"body": "".join(random.choice(pieces) for _ in range(random.randrange(200)))}) + "\n")


def texts():
    for folder, folders, names in os.walk(path_of("texts")):
        folders.sort()
        for name in sorted(names):
            with open(os.path.join(folder, name), "rb") as file:
                yield file.read().decode("utf-8", "replace")


def lines():
    with open(path_of("lines.jsonl"), encoding="utf-8") as file:
        return [json.loads(line)["body"] for line in file]


def check_documents(name, documents, tokenizer):
    tokens, starts, _ = load(name)
    end = tokenizer.token_to_id("<|endoftext|>")
    want = [tokenizer.encode(text).ids + [end] for text in documents if text]
    got = [list(tokens[a:b]) for a, b in zip(starts, starts[1:] + (len(tokens),))]
    assert got == want, "documents differ"


def own_tokenizer_is_the_same_twice():
    must_run("--train-bpe", "1000", "-o", "bpe", "texts")
    must_run("--train-bpe", "1000", "-o", "again", "texts")
    assert read("bpe/tokenizer.json") == read("again/tokenizer.json")
    os.makedirs(path_of("inside"), exist_ok=True)
    with open(path_of("inside/a.txt"), "w", encoding="utf-8") as file:
        file.write("one text for a tokenizer beside it\n" * 20)
    made = []
    for _ in range(2):  # the second time with the first one's tokenizer in the folder
        must_run("--train-bpe", "280", "-o", "inside/bpe", "inside")
        made.append(read("inside/bpe/tokenizer.json"))
    assert made[0] == made[1]


def texts_are_encoded_as_by_the_library():
    must_run("-t", "bpe", "-o", "texts.tokens", "texts")
    check_documents("texts.tokens", texts(), tokenizers.Tokenizer.from_file(path_of("bpe/tokenizer.json")))


def lines_are_encoded_as_by_the_library():
    must_run("-t", "bpe", "-o", "lines.tokens", "--field", "body", "lines.jsonl")
    check_documents("lines.tokens", lines(), tokenizers.Tokenizer.from_file(path_of("bpe/tokenizer.json")))


def jobs_do_not_change_the_bytes():
    for jobs in "1", "3":
        must_run("-t", "bpe", "-o", "jobs.tokens", "--jobs", jobs, "texts")
        assert read("jobs.tokens") == read("texts.tokens")


def a_killed_run_continues_to_the_same_bytes():
    os.makedirs(path_of("many"), exist_ok=True)
    for i in range(16):
        with open(path_of("many/%d.jsonl" % i), "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in lines()[:1500])
    must_run("-t", "bpe", "-o", "whole.tokens", "many")
    first = subprocess.Popen([TOOL, "-t", "bpe", "-o", "killed.tokens", "many"], cwd=SCRATCH, stderr=subprocess.DEVNULL,
                             start_new_session=True)
    limit = time.monotonic() + 120
    while first.poll() is None and time.monotonic() < limit:
        state = path_of("killed.tokens.unfinished/state.json")
        if os.path.exists(state):
            os.killpg(first.pid, signal.SIGKILL)
        time.sleep(0.01)
    first.wait()
    assert first.returncode == -signal.SIGKILL, "it was not killed in time"
    shutil.copytree(path_of("killed.tokens.unfinished"), path_of("short.tokens.unfinished"))
    os.truncate(path_of("short.tokens.unfinished/tokens"), 1)
    code, said = run("-t", "bpe", "-o", "short.tokens", "many")
    assert code == 1 and "'short.tokens.unfinished/tokens' has been cut short" in said, said
    code, said = run("-t", "bpe", "-o", "killed.tokens", "many")
    assert code == 0 and "continuing after" in said, said
    assert read("killed.tokens") == read("whole.tokens")


def running_of_group(group):
    """Returns the processes of a group that have not ended: one that nobody has waited for is none."""
    running = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid, encoding="latin-1") as file:
                state, _, of_group = file.read().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue  # it has ended
        running += [pid] if int(of_group) == group and state != "Z" else []
    return running


def its_processes_end_when_it_is_killed():
    for how in signal.SIGTERM, signal.SIGKILL:
        first = subprocess.Popen([TOOL, "-t", "bpe", "-o", "ended.tokens", "--jobs", "2", "many"], cwd=SCRATCH,
                                 stderr=subprocess.DEVNULL, start_new_session=True)
        limit = time.monotonic() + 60
        while not os.path.exists(path_of("ended.tokens.unfinished/state.json")) and time.monotonic() < limit:
            time.sleep(0.01)
        first.send_signal(how)  # to it alone
        assert first.wait() == -how, "it was not killed in time"
        while running_of_group(first.pid) and time.monotonic() < limit:
            time.sleep(0.01)
        if running_of_group(first.pid):
            os.killpg(first.pid, signal.SIGKILL)
            raise AssertionError("processes are left after signal %d" % how)
        shutil.rmtree(path_of("ended.tokens.unfinished"))


def answers_alone_count():
    dialogues = [[("system", "Be brief."), ("user", "Köln?"), ("assistant", "In Germany 🙂."), ("user", "Paris?"),
                  ("assistant", "In France.")], [("user", "no answer")], [("user", "x"), ("assistant", "y")]]
    with open(path_of("chat.jsonl"), "w", encoding="utf-8") as file:
        for dialogue in dialogues:
            file.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in dialogue]}) + "\n")
    must_run("-t", "bpe", "-o", "chat.tokens", "--chat", "chat.jsonl")
    tokens, starts, counts = load("chat.tokens")
    tokenizer = tokenizers.Tokenizer.from_file(path_of("bpe/tokenizer.json"))
    for dialogue, a, b in zip(dialogues, starts, starts[1:] + (len(tokens),)):
        whole = "".join("<|%s|>\n%s%s\n" % (role, text, "<|endoftext|>" * (role == "assistant")) for role, text in dialogue)
        answers = "".join(text + "<|endoftext|>\n" for role, text in dialogue if role == "assistant")
        assert tokenizer.decode(tokens[a:b], skip_special_tokens=False) == whole
        counted = [token for token, count in zip(tokens[a:b], counts[a:b]) if count]
        assert tokenizer.decode(counted, skip_special_tokens=False) == answers


def copy_of_bpe(name, **files):
    """Copies the tokenizer alone, and writes other files of a model beside it."""
    os.makedirs(path_of(name), exist_ok=True)
    with open(path_of(name + "/tokenizer.json"), "wb") as file:
        file.write(read("bpe/tokenizer.json"))
    for stem, content in files.items():
        with open(path_of("%s/%s.json" % (name, stem)), "w", encoding="utf-8") as file:
            json.dump(content, file)


def texts_of_dialogues(folder, *records, form="messages"):
    """The texts that dialogues become."""
    with open(path_of("texts.jsonl"), "w", encoding="utf-8") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))
    must_run("-t", folder, "-o", "texts.tokens", "--format", form, "texts.jsonl")
    tokens, starts, _ = load("texts.tokens")
    tokenizer = tokenizers.Tokenizer.from_file(path_of("bpe/tokenizer.json"))
    return [tokenizer.decode(tokens[a:b], skip_special_tokens=False) for a, b in zip(starts, starts[1:] + (len(tokens),))]


def special_tokens_that_are_not_set_are_left_out():
    template = "{{ bos_token }}{{ unk_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    config = {"chat_template": template, "bos_token": None, "unk_token": "", "eos_token": {"content": "<|endoftext|>"}}
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    for more, begin in ({"unk_token": None}, ""), ({"bos_token": {"content": "!"}, "unk_token": "?"}, "!?"):
        copy_of_bpe("unset", tokenizer_config=config, special_tokens_map=more)
        made = texts_of_dialogues("unset", record)
        assert made == [begin + "a<|endoftext|>b<|endoftext|>"], made


def dialogues_with_tools_have_the_template_of_that_name():
    plain, tools = "{% for m in messages %}{{ m.content }};{% endfor %}", "{{ tools | length }} tools:"
    templates = {"rag": "no", "default": plain, "tool_use": tools + plain}
    turns = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    listed = [{"name": name, "template": template} for name, template in templates.items()]
    copy_of_bpe("listed_templates", tokenizer_config={"chat_template": listed})
    copy_of_bpe("template_files", tokenizer_config={"chat_template": "not read"})
    os.makedirs(path_of("template_files/additional_chat_templates"), exist_ok=True)
    for name, template in templates.items():
        file = "chat_template.jinja" if name == "default" else "additional_chat_templates/%s.jinja" % name
        with open(path_of("template_files/" + file), "w", encoding="utf-8") as out:
            out.write(template)
    for folder in "listed_templates", "template_files":
        made = texts_of_dialogues(folder, turns, {**turns, "tools": [{"name": "f"}]}, {**turns, "tools": []})
        assert made == ["a;b;", "1 tools:a;b;", "a;b;"], made
    os.remove(path_of("template_files/chat_template.jinja"))
    code, said = run("-t", "template_files", "-o", "nameless.tokens", "--chat", "texts.jsonl")
    assert code == 1 and "'template_files' has no chat template named default" in said, said


def lines_of_every_format_set_variables_of_the_template():
    copy_of_bpe("thinks", tokenizer_config={"chat_template": "{{ effort }}:{% for m in messages %}{{ m.content }};{% endfor %}"})
    ask, answer, more = [{"role": "user", "content": "a"}], [{"role": "assistant", "content": "b"}], {"effort": "high"}
    for form, record in (("messages", {"messages": ask + answer}), ("alpaca", {"instruction": "a", "output": "b"}),
                         ("sharegpt", {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}),
                         ("prompt-completion", {"prompt": ask, "completion": answer}),
                         ("preference", {"prompt": ask, "chosen": answer, "rejected": answer})):
        made = texts_of_dialogues("thinks", record, {**record, "chat_template_kwargs": more}, form=form)
        n = 1 + (form == "preference")
        assert made == [":a;b;"] * n + ["high:a;b;"] * n, (form, made)


def records_of_other_formats_are_the_same_dialogues():
    ask, answer = {"role": "user", "content": "2+2?\n\nbriefly"}, {"role": "assistant", "content": "4"}
    earlier = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    same = {  # records of one dialogue
        "messages": {"messages": earlier + [ask, answer]},
        "sharegpt": {"conversations": [{"from": who, "value": text} for who, text in
                                       (("human", "hi"), ("gpt", "hello"), ("human", ask["content"]), ("gpt", "4"))]},
        "alpaca": {"instruction": "2+2?", "input": "briefly", "output": "4", "history": [["hi", "hello"]]},
        "prompt-completion": {"prompt": earlier + [ask], "completion": [answer]},
    }

    def made(form, *records):
        with open(path_of("records.jsonl"), "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))
        code, said = run("-t", "bpe", "-o", "records.tokens", "--format", form, "records.jsonl")
        return (*load("records.tokens"), said) if code == 0 else (None, None, None, said)
    tokens, _, counts, _ = made("messages", same["messages"])
    for form in ("sharegpt", "alpaca"):
        assert made(form, same[form])[:3:2] == (tokens, counts), form
    last = made("messages", {"messages": [earlier[0], {**earlier[1], "weight": 0}, ask, {**answer, "weight": 1}]})
    assert last[0] == tokens and 0 < sum(last[2]) < sum(counts)
    assert made("prompt-completion", same["prompt-completion"])[:3:2] == (tokens, last[2])
    tokenizer = tokenizers.Tokenizer.from_file(path_of("bpe/tokenizer.json"))
    tokens, _, counts, _ = made("prompt-completion", {"prompt": "2+2=", "completion": " 4"})
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "2+2= 4<|endoftext|>"
    assert tokenizer.decode([t for t, c in zip(tokens, counts) if c], skip_special_tokens=False) == " 4<|endoftext|>"
    said = made("messages", {"messages": [ask]}, {"messages": [ask, answer]})[3]
    assert "1 document has no token that counts: it has no answer" in said, said
    for form, record, why in (
            ("messages", {"messages": [ask, {**answer, "weight": 0.5}]}, "the weight of a message is 0.5"),
            ("messages", {"messages": [ask, {**answer, "content": None}]}, "is null, and it has no tool_calls"),
            ("messages", {"messages": [ask, {**answer, "content": None, "tool_calls": [{}]}]}, "has tool_calls, which"),
            ("messages", {"messages": [ask, answer], "tools": [{"name": "f"}]}, "tools, which the chat template has no use"),
            ("messages", {"messages": [ask, answer], "tools": "{"}, "'tools' is a text that is not JSON"),
            ("messages", {"messages": [{**ask, "content": [{"type": "image"}]}, answer]}, "parts that are not text"),
            ("messages", {"messages": [ask, {**answer, "content": [{"type": "text", "text": None}]}]}, "parts that are not"),
            ("sharegpt", {"conversations": [{"from": ["human"], "value": "hi"}]}, "a turn is from ['human']"),
            ("alpaca", {**same["alpaca"], "input": 5}, "'input' is no text"),
            ("alpaca", {**same["alpaca"], "chat_template_kwargs": 5}, "'chat_template_kwargs' is no object"),
            ("messages", {"messages": [ask, answer], "chat_template_kwargs": {"tools": []}}, "'chat_template_kwargs' has 'tools'"),
            ("alpaca", {**same["alpaca"], "history": 5}, "'history' is no list of pairs"),
            ("preference", {"chosen": "", "rejected": ""}, "an answer of a pair is empty")):
        said = made(form, record)[3]
        assert "line 1: " in said and why in said and "Traceback" not in said, said
    with open(path_of("records.jsonl"), "w", encoding="utf-8") as file:
        file.write("[" * 100000)
    code, said = run("-t", "bpe", "-o", "records.tokens", "--chat", "records.jsonl")
    assert code == 1 and "line 1: not JSON" in said and "Traceback" not in said, said


def what_of_a_message_the_template_leaves_out_is_told():
    last_only = "{% for m in messages %}{{ '(' + m.reasoning_content + ')' if loop.last and m.reasoning_content }}{{ m.content }};{% endfor %}"
    copy_of_bpe("last_thoughts", tokenizer_config={"chat_template": last_only})
    ask, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}

    def said_of(*messages, form="messages", key="messages"):
        with open(path_of("left_out.jsonl"), "w", encoding="utf-8") as file:
            file.write(json.dumps({key: messages}) + "\n")
        return run("-t", "bpe", "-o", "left_out.tokens", "--format", form, "left_out.jsonl")
    for name in "reasoning_content", "thinking", "reasoning":
        thought = {**answer, name: "hm"}
        code, said = said_of(ask, thought, ask, answer)
        assert code == 1 and "line 1: a message has %s, which the chat template has no use for" % name in said, said
        code, said = said_of(ask, {**answer, name: ""})
        assert code == 0 and "keys of messages" not in said, said
        made = texts_of_dialogues("last_thoughts", {"messages": [ask, thought, ask, thought]})
        assert made == ["a;(hm)b;", "a;b;a;(hm)b;"], made
    left_out = "does not name add nothing to the text: 'id' (1 message), 'train' (2 messages); an answer"
    code, said = said_of(ask, {**answer, "train": False, "id": 0, "name": None}, ask, {**answer, "train": True, "weight": 1})
    assert code == 0 and said.count("keys of messages") == 1 and left_out in said, said
    code, said = said_of({"from": "human", "value": "a", "train": False},
                         {"from": "gpt", "value": "b", "train": False, "id": 1}, form="sharegpt", key="conversations")
    assert code == 0 and left_out in said, said


def swap_merges(content):
    merges = content["model"]["merges"]
    merges[10], merges[11] = merges[11], merges[10]
    return content


def saved_again(name, change):
    """The tokenizer as its library saves it, on one line, with settings that change no token."""
    tokenizer = tokenizers.Tokenizer.from_file(path_of("bpe/tokenizer.json"))
    tokenizer.enable_truncation(64)
    tokenizer.enable_padding()
    os.makedirs(path_of(name), exist_ok=True)
    with open(path_of(name + "/tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(change(json.loads(tokenizer.to_str())), file)


def zerotrain_takes_the_files_with_their_tokenizer_only():
    def train(tokenizer, *more):
        settings = ["model.layers=1", "model.dim=16", "model.heads=2", "model.seq_len=64", "model.vocab_size=1000",
                    "data.train=chat.tokens", "train.steps=2", "train.global_batch=2", "device.type=cpu",
                    "model.tokenizer=" + tokenizer, *more]
        with open(path_of("empty.ini"), "w", encoding="utf-8") as file:
            file.write("[log]\nevery = 1\n")
        return subprocess.run([BUILD + "/zerotrain", *(word for s in settings for word in ("--set", s)), "empty.ini"],
                              cwd=SCRATCH, capture_output=True, text=True, timeout=120)
    done = train("bpe", "checkpoint.dir=ck")
    assert done.returncode == 0, done.stderr
    assert read("ck/latest/tokenizer.json") == read("bpe/tokenizer.json")
    saved_again("again", lambda content: content)
    done = train("again")
    assert done.returncode == 0 and "makes the same tokens" in done.stderr, done.stderr
    saved_again("swapped", swap_merges)
    done = train("swapped")
    assert done.returncode == 2 and "merges or how text is split differ" in done.stderr, done.stderr
    must_run("--train-bpe", "300", "-o", "small", "lines.jsonl", "--field", "body")
    done = train("small")
    assert done.returncode == 2 and "another tokenizer.json" in done.stderr, done.stderr


def drop_merges(content):
    content["model"]["dropout"] = 0.1
    return content


def bad_input_is_one_line():
    saved_again("wet", drop_merges)
    with open(path_of("lone.json"), "wb") as file:
        file.write(read("bpe/tokenizer.json"))
    for name, keys in (("turns", ["conversations"]), ("pairs", ["prompt", "chosen", "rejected"]), ("dialogue", ["messages"])):
        with open(path_of(name + ".jsonl"), "w", encoding="utf-8") as file:
            file.write(json.dumps(dict.fromkeys(keys, [])) + "\n")
    os.makedirs(path_of("blank"), exist_ok=True)
    with open(path_of("hollow.json"), "w", encoding="utf-8") as file:
        file.write('{"model": {"type": "BPE", "vocab": {}, "merges": []}}')
    copy_of_bpe("listed", tokenizer_config=[])
    copy_of_bpe("nested", tokenizer_config={"eos_token": ["a"], "chat_template": ["a"]})
    for arguments, says in ((["-t", "bpe", "nowhere"], "no file or folder"), (["-t", "nowhere", "texts"], "neither"),
                            (["-t", "bpe", "lines.jsonl"], "no object with the field 'text'"),
                            (["-t", "wet", "texts"], "dropout is 0.1"), (["-t", "bpe", "--chat", "texts"], "--chat reads .jsonl"),
                            (["-t", "bpe", "--chat", "--field", "body", "lines.jsonl"], "is no list of messages"),
                            (["-t", "lone.json", "--chat", "lines.jsonl"], "'.' has no chat template"),
                            (["-t", "bpe", "turns.jsonl"], "--format sharegpt reads 'conversations'"),
                            (["-t", "bpe", "--chat", "turns.jsonl"], "--format sharegpt reads 'conversations'"),
                            (["-t", "bpe", "pairs.jsonl"], "--format preference reads 'chosen' and 'rejected'"),
                            (["-t", "bpe", "dialogue.jsonl"], "--chat reads 'messages'"),
                            (["-t", "hollow.json", "texts"], "hollow.json' has no tokens"),
                            (["-t", "listed", "texts"], "'listed/tokenizer_config.json' is no JSON object"),
                            (["-t", "nested", "texts"], "token '['a']' is not in the vocabulary"),
                            (["-t", "nested", "--chat", "turns.jsonl"], "neither a text nor a list of named texts"),
                            (["-t", "bpe", "blank"], "there is no text in blank"),
                            (["--train-bpe", "300", "blank"], "there is no text in blank"),
                            (["--train-bpe", "300", "dialogue.jsonl"], "the field 'text'; --field names another")):
        code, said = run("-o", "bad.tokens", *arguments)
        assert code == 1 and says in said and "Traceback" not in said, said


def files_of(folder):
    paths = {name: folder + "/" + name for name in os.listdir(path_of(folder))}
    return {name: os.path.isfile(path_of(path)) and read(path) for name, path in paths.items()}


def a_full_disk_is_told_with_the_file():
    """A limit on the size of files stands for the disk's."""
    def limited(n_bytes, *arguments):
        done = subprocess.run([TOOL, *arguments], cwd=SCRATCH, capture_output=True, text=True, timeout=600,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes)))
        return done.returncode, done.stderr
    must_run("-t", "bpe", "-o", "full.tokens", "texts")
    n_bytes = len(read("full.tokens"))
    os.remove(path_of("full.tokens"))
    for limit, file in ((1 << 16, "full.tokens.unfinished/tokens"), (n_bytes - 256, "full.tokens.new")):
        code, said = limited(limit, "-t", "bpe", "-o", "full.tokens", "texts")
        assert code == 1 and said.endswith("launch/tokenize: cannot write '%s': File too large\n" % file), said
        assert not os.path.exists(path_of("full.tokens.new")) and "Traceback" not in said, said
    must_run("-t", "bpe", "-o", "full.tokens", "texts")
    code, said = limited(1 << 12, "--train-bpe", "1000", "-o", "full", "texts")
    assert code == 1 and said.endswith("launch/tokenize: cannot write 'full/tokenizer.json': File too large\n"), said


def what_it_has_not_written_is_left_as_it_is():
    os.makedirs(path_of("taken/folder"), exist_ok=True)
    os.makedirs(path_of("taken/mine.tokens.unfinished"), exist_ok=True)
    for name, content in (("weights", b"\x10\0\0\0\0\0\0\0{}"), ("a.tokens.new", b"notes"), ("b.tokens.unfinished", b"notes"),
                          ("mine.tokens.unfinished/notes", b"notes"), ("short", b"ZEROTOK"), ("empty", b"")):
        with open(path_of("taken/" + name), "wb") as file:
            file.write(content)
    before = files_of("taken")
    for name, says in (("weights", "'taken/weights' exists and does not begin like a token file, so it is left as it is"),
                       ("a.tokens", "'taken/a.tokens.new' exists"), ("b.tokens", "'taken/b.tokens.unfinished' is not of a run"),
                       ("mine.tokens", "'taken/mine.tokens.unfinished/notes' is not of a run"), ("short", "'taken/short' exists"),
                       ("folder", "'taken/folder' is a directory: name a file")):
        code, said = run("-t", "bpe", "-o", "taken/" + name, "nowhere")  # before the input is looked for
        assert code == 1 and says in said and said.count("\n") == 1, said
    assert files_of("taken") == before
    must_run("-t", "bpe", "-o", "taken/empty", "--field", "body", "lines.jsonl")
    must_run("-t", "bpe", "-o", "taken/empty", "--field", "body", "lines.jsonl")


def a_folder_of_another_tokenizer_is_left_as_it_is():
    copy_of_bpe("foreign")
    copy_of_bpe("model", config={"model_type": "llama"})
    for folder, name in (("edited", "chat_template.jinja"), ("more", "notes.txt")):
        must_run("--train-bpe", "300", "-o", folder, "lines.jsonl", "--field", "body")
        with open(path_of(folder + "/" + name), "a", encoding="utf-8") as file:
            file.write("mine")
    for folder, name in (("foreign", "tokenizer.json"), ("model", "config.json"), ("edited", "chat_template.jinja"),
                         ("more", "notes.txt")):
        before = files_of(folder)
        code, said = run("--train-bpe", "300", "-o", folder, "nowhere")
        says = "'%s/%s' is not a file that --train-bpe has written, so the folder is left as it is: name another" % (folder, name)
        assert code == 1 and says in said and said.count("\n") == 1 and files_of(folder) == before, said
    code, said = run("--train-bpe", "300", "-o", "lines.jsonl", "nowhere")
    assert code == 1 and "'lines.jsonl' is a file: name a folder" in said, said
    before = files_of("again")  # of the first claim, and once more by another size
    must_run("--train-bpe", "300", "-o", "again", "lines.jsonl", "--field", "body")
    changed = {name for name, content in files_of("again").items() if content != before[name]}
    assert changed == {"tokenizer.json"}, changed


def options_that_would_change_nothing_are_refused():
    for arguments, says in ((["--chat", "--end", "<|endoftext|>", "chat.jsonl"], "--end: "),
                            (["--format", "alpaca", "--end", "none", "chat.jsonl"], "--end: "),
                            (["--rewritten", "split", "texts"], "--rewritten: ")):
        code, said = run("-t", "bpe", "-o", "refused.tokens", *arguments)
        assert code == 2 and "error: " + says in said and not os.path.exists(path_of("refused.tokens")), said
    code, said = run("--train-bpe", "300", "-o", "refused", "--end", "<|end|>", "texts")
    assert code == 2 and "without -t, --chat and --end" in said and not os.path.exists(path_of("refused")), said
    with open(path_of("plain.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"prompt": "a", "completion": "b"}\n')
    must_run("-t", "bpe", "-o", "plain.tokens", "--format", "prompt-completion", "--rewritten", "last", "--end", "none", "plain.jsonl")
    assert len(load("plain.tokens")[0]) == 2


def a_run_does_not_continue_with_another_template():
    os.makedirs(path_of("dialogues"), exist_ok=True)
    for i in range(8):
        with open(path_of("dialogues/%d.jsonl" % i), "w", encoding="utf-8") as file:
            for text in lines()[:1500]:
                file.write(json.dumps({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}]}) + "\n")
    first = subprocess.Popen([TOOL, "-t", "bpe", "-o", "turned.tokens", "--chat", "--jobs", "1", "dialogues"], cwd=SCRATCH,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    limit = time.monotonic() + 120
    while first.poll() is None and time.monotonic() < limit:
        if os.path.exists(path_of("turned.tokens.unfinished/state.json")):
            os.killpg(first.pid, signal.SIGKILL)
        time.sleep(0.01)
    first.wait()
    assert first.returncode == -signal.SIGKILL, "it was not killed in time"
    before = read("bpe/chat_template.jinja")
    with open(path_of("bpe/chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write("{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
                   "{% if add_generation_prompt %}[assistant] {% endif %}")
    code, said = run("-t", "bpe", "-o", "turned.tokens", "--chat", "dialogues")
    must_run("-t", "bpe", "-o", "fresh.tokens", "--chat", "dialogues")
    with open(path_of("bpe/chat_template.jinja"), "wb") as file:
        file.write(before)
    assert code == 0 and "begun anew" in said, said
    assert read("turned.tokens") == read("fresh.tokens")


def what_is_no_text_is_left_out_and_counted():
    os.makedirs(path_of("mixed"), exist_ok=True)
    with gzip.open(path_of("mixed/a.JSONL.gz"), "wb") as file:
        file.write(b'{"text": "one line"}\n')
    for name, content in (("b.png", bytes(range(256)) * 8), ("c.txt", "wide".encode("utf-16")), ("d.txt", b"plain text")):
        with open(path_of("mixed/" + name), "wb") as file:
            file.write(content)
    for _ in range(2):  # the second time with the first one's output in the folder
        code, said = run("-t", "bpe", "-o", "mixed/out.tokens", "mixed")
        assert code == 0 and "UTF-16" in said and "b.png" in said, said
        check_documents("mixed/out.tokens", ["one line", "plain text"],
                        tokenizers.Tokenizer.from_file(path_of("bpe/tokenizer.json")))
    code, said = run("-t", "bpe", "-o", "bad.tokens", "mixed/b.png")
    assert code == 1 and "no text" in said, said
    folder = os.open(path_of("mixed"), os.O_RDONLY)
    for _ in range(25):  # folders, of which the last cannot be read even by root: their paths are too long
        os.mkdir("d" * 200, dir_fd=folder)
        folder = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
    code, said = run("-t", "bpe", "-o", "deep.tokens", "mixed")
    assert code == 0 and "skipped 1 file: a folder that cannot be read (File name too long)" in said, said


def a_file_of_markup_that_is_named_is_told():
    os.makedirs(path_of("records"), exist_ok=True)
    with open(path_of("records/a.json"), "w", encoding="utf-8") as file:
        file.write('[{"text": "a record"}]')
    for named, is_told in ("records/a.json", True), ("records", False):
        code, said = run("-t", "bpe", "-o", "records.tokens", named)
        assert code == 0 and ("1 file is read as plain text, brackets and tags included, such as 'records/a.json'" in said) == is_told, said


def a_file_that_is_cut_short_is_named():
    whole = gzip.compress(b"".join(b'{"text": "%x"}\n' % random.getrandbits(400) for _ in range(2000)))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x55
    for name, content in (("cut.jsonl.gz", whole[:len(whole) // 2]), ("cut.txt.gz", whole[:len(whole) // 2]),
                          ("flipped.txt.gz", bytes(flipped)), ("flipped.jsonl.gz", bytes(flipped))):
        with open(path_of(name), "wb") as file:
            file.write(content)
        code, said = run("-t", "bpe", "-o", "cut.tokens", "--skip-bad-lines", name)
        assert code == 1 and said.startswith("launch/tokenize: '%s' cannot be read: " % name), said
        assert said.count("\n") == 1 and not os.path.exists(path_of("cut.tokens")), said


def an_output_that_is_being_written_is_refused():
    with open(path_of("slow.jsonl"), "w", encoding="utf-8") as file:
        for i in range(6000):
            file.write('{"text": "%x"}\n' % random.getrandbits(400))
    first = subprocess.Popen([TOOL, "-t", "bpe", "-o", "twice.tokens", "--jobs", "1", "slow.jsonl"], cwd=SCRATCH,
                             stderr=subprocess.PIPE, text=True)
    end = time.time() + 60
    while not os.path.exists(path_of("twice.tokens.unfinished/tokens")) and time.time() < end:
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)  # so that it is there throughout the second run
    try:
        assert first.poll() is None, "it ended too early"
        code, said = run("-t", "bpe", "-o", "twice.tokens", "slow.jsonl")
    finally:
        first.send_signal(signal.SIGCONT)
    assert code == 1 and "'twice.tokens.unfinished' is being written by another launch/tokenize" in said, said
    assert said.count("\n") == 1, said
    said = first.communicate(timeout=600)[1]
    assert first.returncode == 0, said
    must_run("-t", "bpe", "-o", "once.tokens", "slow.jsonl")
    assert read("twice.tokens") == read("once.tokens")


def a_large_text_is_the_same_in_pieces():
    text = "\n".join(lines() * 3)
    with open(path_of("large.txt"), "w", encoding="utf-8") as file:
        file.write(text)
    must_run("-t", "bpe", "-o", "pieces.tokens", "large.txt")
    must_run("-t", "bpe", "-o", "whole.tokens", "--whole", "--jobs", "1", "large.txt")
    assert len(text.encode()) > 5 << 20 and read("pieces.tokens") == read("whole.tokens")


def bad_lines_have_numbers_and_can_be_skipped():
    with open(path_of("bad.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"text": "good"}\n\n{"text": 3}\nnot JSON\n{"text": "lone \\ud800 half"}\n')
    code, said = run("-t", "bpe", "-o", "bad.tokens", "bad.jsonl")
    assert code == 1 and "line 3" in said, said
    code, said = run("-t", "bpe", "-o", "bad.tokens", "--skip-bad-lines", "bad.jsonl")
    assert code == 0 and "skipped 2 bad lines" in said and "line 3" in said and "1 character is U+FFFD" in said, said
    code, said = run("--train-bpe", "257", "-o", "of_bad", "--skip-bad-lines", "bad.jsonl")
    assert code == 0 and "skipped 2 bad lines" in said and "line 3" in said, said
    before = read("of_bad/tokenizer.json")
    with open(path_of("only_bad.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"text": 3}\nnot JSON\n')
    code, said = run("--train-bpe", "257", "-o", "of_bad", "--skip-bad-lines", "only_bad.jsonl")
    assert code == 1 and "there is no text in only_bad.jsonl" in said, said
    assert read("of_bad/tokenizer.json") == before
    check_documents("bad.tokens", ["good", "lone \ufffd half"], tokenizers.Tokenizer.from_file(path_of("bpe/tokenizer.json")))


def roles_and_ends_are_told():
    with open(path_of("foreign.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"messages": [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]}\n')
    code, said = run("-t", "bpe", "-o", "foreign.tokens", "--chat", "foreign.jsonl")
    assert code == 1 and "gpt (1), human (1)" in said, said
    with open(path_of("foreign.jsonl"), "w", encoding="utf-8") as file:
        file.write('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}\n')
    code, said = run("-t", "bpe", "-o", "foreign.tokens", "--chat", "foreign.jsonl")
    assert code == 1 and "have weight 0" in said and "generation" not in said and "assistant (1), user (1)" in said, said
    os.makedirs(path_of("base"), exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        with open(path_of("base/" + name), "wb") as file:
            file.write(read("bpe/" + name))
    end = tokenizers.Tokenizer.from_file(path_of("bpe/tokenizer.json")).token_to_id("<|endoftext|>")
    for stops, is_told in ((end + 1, True), ([end + 1, end], False), (None, False)):
        with open(path_of("base/generation_config.json"), "w", encoding="utf-8") as file:
            json.dump({"eos_token_id": stops}, file)
        code, said = run("-t", "base", "-o", "base.tokens", "--chat", "chat.jsonl")
        told = "3 of 3 answers end with '<|endoftext|>' (%d), which is not in eos_token_id of 'base/generation_config.json'" % end
        assert code == 0 and (told in said) == is_told, said
    for config, says in (({"eos_token": "<|typo|>"}, "'<|typo|>' is not in the vocabulary"),):
        os.makedirs(path_of("named"), exist_ok=True)
        with open(path_of("named/tokenizer.json"), "wb") as file:
            file.write(read("bpe/tokenizer.json"))
        with open(path_of("named/tokenizer_config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        code, said = run("-t", "named", "-o", "named.tokens", "--field", "body", "lines.jsonl")
        assert code == 1 and says in said, said


CLAIMS = [own_tokenizer_is_the_same_twice, texts_are_encoded_as_by_the_library, lines_are_encoded_as_by_the_library,
          jobs_do_not_change_the_bytes, a_killed_run_continues_to_the_same_bytes, its_processes_end_when_it_is_killed,
          answers_alone_count,
          special_tokens_that_are_not_set_are_left_out, dialogues_with_tools_have_the_template_of_that_name,
          lines_of_every_format_set_variables_of_the_template, records_of_other_formats_are_the_same_dialogues,
          what_of_a_message_the_template_leaves_out_is_told,
          zerotrain_takes_the_files_with_their_tokenizer_only, bad_input_is_one_line,
          a_full_disk_is_told_with_the_file, what_it_has_not_written_is_left_as_it_is,
          a_folder_of_another_tokenizer_is_left_as_it_is, options_that_would_change_nothing_are_refused,
          a_run_does_not_continue_with_another_template, what_is_no_text_is_left_out_and_counted,
          a_file_of_markup_that_is_named_is_told, a_file_that_is_cut_short_is_named, an_output_that_is_being_written_is_refused,
          a_large_text_is_the_same_in_pieces, bad_lines_have_numbers_and_can_be_skipped, roles_and_ends_are_told]

write_texts()
for claim in CLAIMS:
    name = "launch/tokenize: " + claim.__name__.replace("_", " ")
    try:
        claim()
        print("ok: " + name, flush=True)
    except (AssertionError, OSError, subprocess.TimeoutExpired, struct.error) as fault:
        print("FAILED: %s\n    | %s" % (name, str(fault)[-1500:].replace("\n", "\n    | ")), flush=True)
