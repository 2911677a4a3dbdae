"""The Python that launch/tokenize and launch/chat-template run in: the one that started them if it has the packages, else
$PYTHON, else one of their own, in which the packages are installed once: build/tokenize, or ~/.cache/zerotrain/tokenize of
a zerotrain that is installed."""

import os
import shutil
import subprocess
import sys

from tokenizing.faults import Fault

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
BUILD = os.path.join(HOME, "build") if os.path.exists(os.path.join(HOME, "Makefile")) else os.path.join(CACHE, "zerotrain")
ROOM = os.path.join(BUILD, "tokenize")
PACKAGES = {"tokenizers": "tokenizers==0.23.3", "jinja2": "Jinja2==3.1.6", "numpy": "numpy", "xxhash": "xxhash",
            "sentencepiece": "sentencepiece"}


def is_there(module):
    try:
        __import__(module)
        return True
    except ImportError:
        return False


def enter(modules, say):
    """Continues in a Python that has the modules, and installs them if there is none."""
    missing = [module for module in modules if not is_there(module)]
    if not missing:
        return
    python = os.environ.get("PYTHON") or os.path.join(ROOM, "bin", "python")
    if os.environ.get("ZERO_TOKENIZE_ROOM") == python:
        raise Fault("'%s' has no %s" % (python, ", ".join(missing)))
    if not os.environ.get("PYTHON"):
        install(python, [PACKAGES[module] for module in modules], say)
    os.environ["ZERO_TOKENIZE_ROOM"] = python
    try:
        os.execv(python, [python] + sys.argv)
    except OSError as error:
        raise Fault("cannot run '%s': %s" % (python, error.strerror))


def install(python, packages, say):
    os.makedirs(BUILD, exist_ok=True)
    if not os.path.exists(python) and subprocess.run([sys.executable, "-m", "venv", ROOM], stdin=subprocess.DEVNULL,
                                                     stdout=sys.stderr).returncode:
        shutil.rmtree(ROOM, ignore_errors=True)
        raise Fault("python3 -m venv failed: install python3-venv")
    pip = [python, "-m", "pip"]
    have = subprocess.run([*pip, "list", "--format=freeze"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if all(package.lower().split("==")[0] + "==" in have.stdout.lower() for package in packages):
        return
    say("installing %s in %s" % (", ".join(packages), os.path.relpath(ROOM, HOME) if BUILD.startswith(HOME) else ROOM))
    done = subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", *packages],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Fault("pip could not install %s: %s" % (", ".join(packages), (done.stderr.strip() or "?").splitlines()[-1]))
