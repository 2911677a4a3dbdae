"""What is encoded: files of text and of JSON lines, plain or .gz, divided into parts that are the same whenever it is run.

A part is a list of pieces (path, begin, end, whole): whole text files; or a run of lines; or a piece of a large text
file, of which `whole` says whether the file ends (or begins) with it. What is no text is never read as text: files that
a folder brings are skipped and counted, those that the command line names end the run."""

import collections
import contextlib
import gzip
import json
import os
import re
import zlib

from tokenizing.faults import Fault
from tokenizing.records import FORMATS, field_of

PART_BYTES = 1 << 20
LOOK_BYTES = 1 << 16  # in which the end of a large file's piece is looked for
FIRST, LAST = 1, 2  # of a piece: it begins its file, it ends it
WHOLE = FIRST | LAST

Piece = collections.namedtuple("Piece", "path begin end place")


def is_lines(path):
    return path.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson"))


def is_markup(path):
    return path.lower().removesuffix(".gz").endswith((".json", ".html", ".htm", ".xml", ".csv"))


def is_gz(path):
    return path.lower().endswith(".gz")


def open_input(path):
    return gzip.open(path, "rb") if is_gz(path) else open(path, "rb")


@contextlib.contextmanager
def reading(path):
    """Names the file in an error of reading, such as the end of a .gz that was cut short."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise Fault("'%s' cannot be read: %s" % (path, error))


def why_no_text(path):
    """Returns why a file is not read; None: it is UTF-8, a few bytes apart."""
    try:
        with open_input(path) as file:
            head = file.read(8192)
    except (OSError, EOFError, zlib.error) as error:
        return "cannot be read (%s)" % error
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16 (convert it: iconv -f UTF-16 -t UTF-8)"
    if b"\0" in head:
        return "no text"
    if head.decode("utf-8", "replace").count("\ufffd") * 10 > len(head):
        return "not in UTF-8"
    return None


def is_output(path, output):
    real = os.path.realpath(path)
    mine = os.path.realpath(output)
    return real in (mine, mine + ".new") or real.startswith((mine + os.sep, mine + ".unfinished" + os.sep))


def list_files(inputs, output):
    """Returns the files, and how often and why others were left out, with an example of each reason."""
    files, skipped = [], collections.OrderedDict()

    def skip(path, why):
        skipped.setdefault(why, []).append(path)

    def take(path, is_named):
        if is_output(path, output):
            why = "this command's output"
        elif not os.path.isfile(path):
            why = "no regular file"
        elif os.path.getsize(path) == 0:
            why = "empty"
        else:
            why = why_no_text(path)
        if why is None:
            files.append(path)
        elif is_named and why != "empty":
            raise Fault("'%s' is not read: %s" % (path, why))
        else:
            skip(path, why)

    for path in inputs:
        if not os.path.isdir(path):
            if not os.path.exists(path):
                raise Fault("there is no file or folder '%s'" % path)
            take(path, True)
            continue

        def skip_folder(error, named=path):
            why = "a folder that cannot be read (%s)" % error.strerror
            if error.filename == named:
                raise Fault("'%s' is not read: %s" % (named, why))
            skip(error.filename, why)

        for folder, folders, names in os.walk(path, onerror=skip_folder):
            for name in sorted(folders):
                if name.startswith("."):
                    skip(os.path.join(folder, name), "hidden")
                elif os.path.islink(os.path.join(folder, name)):
                    skip(os.path.join(folder, name), "a link to a folder")
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith(".") and not is_output(os.path.join(folder, name, "x"), output)
            )
            for name in sorted(names):
                if name.startswith("."):
                    skip(os.path.join(folder, name), "hidden")
                else:
                    take(os.path.join(folder, name), False)
    return files, skipped


# A large text is cut behind a single line end between two characters that are no white space, the second a letter of
# ASCII: where words end for every pre-tokenizer that may be used for it (encoding.py), which is checked at each cut.
CUT = re.compile(rb"[!-~]\n(?=[A-Za-z])")


def cuts_of(path, size):
    """Where a large text file is cut."""
    cuts = [0]
    with open(path, "rb") as file:
        for at in range(PART_BYTES, size - PART_BYTES // 2, PART_BYTES):
            file.seek(at)
            found = CUT.search(file.read(LOOK_BYTES))
            if found:
                cuts.append(at + found.end())
    return cuts + [size]


def plan(files, divides):
    """Divides the files into parts. divides: large text files, too."""
    parts, texts, n_bytes = [], [], 0
    for path in files:
        size = os.path.getsize(path)
        is_apart = is_lines(path) or (divides and not is_gz(path) and size > 2 * PART_BYTES)
        if texts and (is_apart or n_bytes + size > PART_BYTES):
            parts, texts, n_bytes = parts + [texts], [], 0
        if not is_apart:
            texts.append(Piece(path, 0, size, WHOLE))
            n_bytes += size
        elif is_gz(path):
            parts.append([Piece(path, 0, size, WHOLE)])
        elif is_lines(path):
            parts += [[Piece(path, at, min(at + PART_BYTES, size), WHOLE)] for at in range(0, size, PART_BYTES)]
        else:
            cuts = cuts_of(path, size)
            parts += [
                [Piece(path, a, b, FIRST * (a == 0) | LAST * (b == size))] for a, b in zip(cuts, cuts[1:])
            ]
    return parts + [texts] if texts else parts


def bytes_of(parts):
    return sum(piece.end - piece.begin for part in parts for piece in part)


# ---- reading ---------------------------------------------------------------------------------------------------------
def clean(text):
    """Text of JSON, in which half a surrogate pair may stand alone: that becomes U+FFFD."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean_all(value):
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_all(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean_all(item) for key, item in value.items()}
    return value


def read_text(piece, more=0):
    """A piece's text, and `more` bytes of what follows it."""
    with reading(piece.path), open_input(piece.path) as file:
        if piece.place == WHOLE:
            return file.read().decode("utf-8", "replace"), ""
        file.seek(piece.begin)
        own = file.read(piece.end - piece.begin)
        return own.decode("utf-8", "replace"), file.read(more).decode("utf-8", "ignore")


def lines_of(piece):
    """The lines that begin in the piece, with their places."""
    with reading(piece.path), open_input(piece.path) as file:
        if piece.begin > 0:
            file.seek(piece.begin - 1)
            file.readline()
        while is_gz(piece.path) or file.tell() < piece.end:
            at, line = file.tell(), file.readline()
            if not line:
                return
            if line.strip():
                yield at, line


def line_number(path, at):
    n_lines = 1
    with open_input(path) as file:
        while at > 0:
            block = file.read(min(at, 1 << 20))
            if not block:
                break
            n_lines += block.count(b"\n")
            at -= len(block)
    return n_lines


def value_of(line, options):
    """Returns a line's document, and what is wrong with it."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, "not JSON: %s" % error
    if not isinstance(value, dict):
        return None, "no object"
    try:
        if options.chat:
            return FORMATS[options.format][2](clean_all(value), options.field), None
        # --train-bpe reads no dialogues
        return clean(field_of(value, options.field, str, "text", may_be_dialogue=not options.train_bpe)), None
    except (ValueError, RecursionError) as error:
        return None, str(error)


def documents_of_lines(piece, options, skip):
    """Yields (place, document). skip(place, why) is told of bad lines, which end the run if it says so by an exception."""
    for at, line in lines_of(piece):
        value, why = value_of(line, options)
        if why:
            skip((piece.path, at), why)
        else:
            yield (piece.path, at), value
