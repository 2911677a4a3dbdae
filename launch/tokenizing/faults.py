"""What the parts of launch/tokenize share: the error that ends a run with one line, lines on stderr, and numbers
in them."""

import contextlib
import json
import os
import sys


class Fault(Exception):
    """What ends the run with one line."""


def say(text):
    print("launch/tokenize: " + text, file=sys.stderr, flush=True)


def counted(n, one, many):
    return "%d %s" % (n, one if n == 1 else many)


@contextlib.contextmanager
def writing(path):
    """Names the file in an error of writing, such as a full disk, of which Python does not name it."""
    try:
        yield
    except OSError as error:
        if error.filename:
            raise
        raise Fault("cannot write '%s': %s" % (path, error.strerror))


def read_json(path):
    if not os.path.exists(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (ValueError, RecursionError) as error:
        raise Fault("'%s' is not JSON: %s" % (path, error))
    if not isinstance(content, dict):
        raise Fault("'%s' is no JSON object" % path)
    return content
