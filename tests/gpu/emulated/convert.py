#!/usr/bin/env python3
"""Makes C++ of CUDA sources: convert.py OUT FILE... writes OUT/FILE for each, for g++ and the header device.h.

Three things of CUDA are no C++: `kernel<<<...>>>(...)`, variables in shared memory, and PTX. All else device.h defines.
"""
import os
import re
import sys

# PTX, and what it computes: within its error of two units the exact value is as good.
PTX = {"ex2.approx.ftz.f32": "y = exp2f(x);", "rcp.approx.ftz.f32": "y = 1.0f / x;"}
ABSENT = ("cooperative_groups.h", "cuda_pipeline_primitives.h")  # device.h has what is used of them


def matching(text, at, brackets, step):
    """Returns where the bracket at `at` is closed, or with step -1 opened."""
    depth = 0
    while True:
        depth += {brackets[0]: step, brackets[1]: -step}.get(text[at], 0)
        if depth == 0:
            return at
        at += step


def launches(text):
    """kernel<A, B><<<C>>>(D) becomes emulated::launch({C}, "kernel", [&] { kernel<A, B>(D); })."""
    while (at := text.find("<<<")) >= 0:
        end = len(text[:at].rstrip())
        first = end - 1
        if text[first] == ">":
            first = matching(text, first, "<>", -1) - 1
        while re.match(r"\w", text[first]):
            first -= 1
        kernel = text[first + 1 : end]
        config_end = text.index(">>>", at)
        last = matching(text, config_end + 3, "()", 1)
        config, arguments = text[at + 3 : config_end], text[config_end + 3 : last + 1]
        name = re.match(r"\w+", kernel).group()
        call = f'emulated::launch({{{config}}}, "{name}", [&] {{ {kernel}{arguments}; }})'
        text = text[: first + 1] + call + text[last + 1 :]
    return text


def shared(match):
    """A variable of a block is a static one, which the first thread of a block that comes by poisons."""
    declaration = match.group(2)
    if match.group(1):
        kind, name = re.fullmatch(r"(.*?)\s*(\w+)\[\]", declaration).groups()
        return f"{kind} *{name} = ({kind} *)emulated::dynamic_shared;"
    alignment = ""
    if declaration.startswith("alignas("):
        end = matching(declaration, len("alignas"), "()", 1) + 1
        alignment, declaration = declaration[:end] + " ", declaration[end:].strip()
    names = [re.search(r"(\w+)\s*$", part).group(1) for part in re.sub(r"\[[^]]*\]", "", declaration).split(",")]
    poison = " ".join(f"emulated::poison_once(&{name}, sizeof {name});" for name in names)
    return f"{alignment}static {declaration}; {poison}"


def converted(text):
    text = launches(text)
    text = re.sub(r"(extern )?__shared__\s+([^;]+);", shared, text)
    for ptx, formula in PTX.items():
        text = re.sub(r'asm\("' + re.escape(ptx) + r"[^;]*;[^;]*;", formula, text)
    for header in ABSENT:
        text = text.replace(f"#include <{header}>", "")
    return text


out = sys.argv[1]
for path in sys.argv[2:]:
    os.makedirs(os.path.dirname(f"{out}/{path}"), exist_ok=True)
    with open(path) as source, open(f"{out}/{path}", "w") as target:
        target.write(f'#include "tests/gpu/emulated/device.h"\n#line 1 "{path}"\n' + converted(source.read()))
