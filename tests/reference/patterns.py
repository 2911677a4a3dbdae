"""Draws patterns at random and compares the words that they make with those of the tokenizers library, which matches with
Oniguruma. Whatever zerotrain takes must give the same words; what it refuses is counted.

    patterns.py TEST_PATTERN SCRATCH [SEED [PATTERNS]]

TEST_PATTERN: build/tests/unit/forward/test_pattern. The text has source code, several scripts, white space and line ends
of all kinds, control characters, marks, emoji and characters from everywhere in Unicode that the oldest tables know.
Prints "ok: claim" or "FAILED: claim"."""

import os
import random
import subprocess
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

PIECES = (
    ["\\p{L}", "\\p{N}", "\\p{Lu}", "\\p{Ll}", "\\p{M}", "\\p{P}", "\\P{L}", "\\s", "\\S", "\\d", "\\r", "\\n", "a", "s", "Z", " "]
    + ["0", "'", "é", "中", "[a-z]", "[^\\s\\p{L}]", "[^\\r\\n\\p{L}\\p{N}]", "[\\p{L}\\p{M}]", "[!-/]", "[^a]", "[\\s]", "[\\n/]"]
    + ["(?i:'s|'t|'re)", "(?i:abc)", "(?:ab|c)", "(a|\\s)", "(?!\\S)", "(?=\\p{L})", "[^\\s]", "\\-", "\\.", "[-a]", "[a-]"]
)
REFUSED = (
    ["\\w", "\\h", "\\b", "^", "$", ".", "[a&&b]", "[[:alpha:]]", "[\\S]", "(?m)", "\\p{Han}", "(?i:ss)", "(?i:[a-k])", "a{1,3}+", "a{2}?", "a{,2}"]
)
REPEATS = ["", "", "", "?", "*", "+", "+", "{1,3}", "{2}", "{0,2}", "{1,}", "++", "*+", "?+", "+?"]


def draw_pattern(rng):
    return "|".join(
        "".join(
            rng.choice(PIECES if rng.random() < 0.98 else REFUSED) + rng.choice(REPEATS) for _ in range(rng.randint(1, 3))
        )
        for _ in range(rng.randint(1, 4))
    )


def draw_text(rng):
    """About 6,000 characters, known since Unicode 9, which no table in use is older than."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../../src/zero/plan/order.c"), encoding="utf-8") as file:
        source = file.read()
    known = [chr(c) for c in range(1, 0x110000) if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs")]
    samples = [
        source[at : at + 300] for at in (rng.randrange(len(source) - 300) for _ in range(4))
    ] + ["It's WE'RE I'LL \u017f 'S 'ſ", "Straße STRASSE ﬁ ﬀ \u212a", "日本語テキスト、中文", "नमस्ते दुनिया", "مرحبا 123 ٣٤٥", "a\u0301e\u0308 ñ"]
    samples += ["".join(rng.choice(" \t\n\r\v\f\u0085\u00a0\u180e\u2028\u3000\u200b") for _ in range(30)) for _ in range(8)]
    samples += ["".join(rng.choice(known) for _ in range(200)) for _ in range(15)]
    samples += ["👨‍👩‍👧 🇳🇴 ☃️", "\x01\x02\x7f\x80\x9f", "x" * 40, "1234567890" * 4]
    rng.shuffle(samples)
    return "".join(samples)


def ends_of(pattern, text, byte_at):
    words = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)
    return [byte_at[end] for _, (begin, end) in words if end > begin]


def main():
    program, scratch, seed, n_patterns = sys.argv[1], sys.argv[2], int((sys.argv + ["1"])[3] if len(sys.argv) > 3 else 1), 3000
    if len(sys.argv) > 4:
        n_patterns = int(sys.argv[4])
    rng = random.Random(seed)
    text = draw_text(rng)
    byte_at = [0]
    for c in text:
        byte_at.append(byte_at[-1] + len(c.encode()))
    patterns = [draw_pattern(rng) for _ in range(n_patterns)]
    files = [os.path.join(scratch, name) for name in ("patterns", "text")]
    for path, content in zip(files, ("\n".join(patterns) + "\n", text)):
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(content)
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False, timeout=600)
    lines = done.stdout.split("\n")[:-1]
    if done.returncode or len(lines) != len(patterns):
        print(f"FAILED: test_pattern ends with exit code {done.returncode} after {len(lines)} patterns: {done.stderr[-300:]}")
        return
    n_taken = n_differ = n_unread = 0
    for pattern, line in zip(patterns, lines):
        if line.startswith("refused"):
            continue
        n_taken += 1
        try:
            wanted = ends_of(pattern, text, byte_at)
        except Exception as error:  # Oniguruma's own message
            print(f"FAILED: {pattern!r} is taken, but tokenizers refuses it: {error}")
            n_unread += 1
            continue
        if [int(end) for end in line.split()] != wanted:
            n_differ += 1
            print(f"FAILED: {pattern!r}: other words than those of tokenizers")
    if n_taken < n_patterns // 20:
        print(f"FAILED: only {n_taken} of {n_patterns} patterns are taken")
    elif not n_differ and not n_unread:
        print(f"ok: {n_taken} of {n_patterns} random patterns are taken, and their words are those of tokenizers")


main()
