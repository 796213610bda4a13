"""What `fuzz_grader.py` throws at reader, environment and grader: names, programs, commands, calls of tools."""

from __future__ import annotations

import os
import platform
import random
from typing import Any

NAMES = (
    *("basket.py", "new.py", "__init__.py", "test_basket.py", "conftest.py", "pyproject.toml", "setup.py", "pytest.ini", "x.pth"),
    *(
        "sitecustomize.py",
        "json.py",
        ".git",
        "__pycache__",
        ".hypothesis",
        "-rf",
        "--help",
        " ",
        "a b",
        "...",
        "~",
        "%s%n",
        "$(id)",
    ),
    *(
        "a\nb.py",
        "\x1b]52;c;QUJD\x07.py",
        "\u202egnp.py",
        "\u2066x\u2069",
        "é.py",
        "e\u0301.py",
        "日本.py",
        "\U0001f600.py",
        "\x7f",
    ),
    *(
        "'",
        '"',
        "\\",
        "*",
        "[z-a].py",
        "x" * 255,
        "é" * 127,
        os.fsdecode(b"\xff\xfe.py"),
        os.fsdecode(b"\xc0\xaf"),
        "CON",
        "a;b|c",
    ),
)
"""Names that a file may have."""

KEY_NAME = "composer-fuzz-key"
_ADD_KEY = {"x86_64": 248, "aarch64": 217}.get(platform.machine(), 0)
_SAY = "import os\nfor fd in range(1, 32):\n    try:\n        os.write(fd, {0})\n    except OSError:\n        pass"
_FORGE = """
import json, os, sys, zlib
frame = sys._getframe()
while frame is not None and "nonce" not in frame.f_locals:
    frame = frame.f_back
if frame is not None:
    answer = frame.f_locals["nonce"].encode() + {0}
    while answer:
        answer = answer[os.write(frame.f_locals["channel"], answer):]
    os._exit(0)
"""
_JSON = (
    *("b''", "b'x'", "zlib.compress(b'{')", "zlib.compress(b'[' * 1_000_000)", "zlib.compress(bytes(64 << 20))"),
    *("zlib.compress(b'[]')", "zlib.compress(b'NaN')", "zlib.compress(b'9' * 5000)", "zlib.compress(bytes(range(256)))"),
    *('zlib.compress(b\'{"outcomes": {}, "outcomes": 3, "tampered": 0}\')', "zlib.compress(b'{}')[:-3]"),
    "zlib.compress(json.dumps({'tampered': False, 'outcomes': {'\\ud800': 'failed'}, 'failures': {},"
    " 'collect_errors': ['\\ud800'], 'status': 0}).encode())",
    "zlib.compress(json.dumps({'tampered': False, 'outcomes': {}, 'failures': {}, 'collect_errors': ['x' * 999] * 9999,"
    " 'status': -1}).encode())",
    "zlib.compress(json.dumps({'tampered': 0, 'outcomes': {'t': []}, 'failures': 3, 'collect_errors': 3, 'status': 0}).encode())",
)
PROGRAMS = (
    *(
        f"import ctypes\nctypes.CDLL(None).syscall({_ADD_KEY}, b'user', b'{KEY_NAME}', b'left', 4, {keyring})"
        for keyring in (-3, -4, -5)
    ),
    "raise NotImplementedError",
    "def total(prices):\n    return 0",
    "def total(prices):\n    return total(prices)",
    "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
    *(f"import os\nos._exit({status})" for status in (0, 1, 2, 3, 4, 5, 127, 255)),
    *(f"import os\nos.kill(os.getpid(), {number})" for number in (1, 6, 9, 11, 14, 15, 16, 19, 31, 34, 35, 50, 64)),
    *(_SAY.format(text) for text in ("bytes(range(256)) * 99", "b'\\x1b]52;c;QUJD\\x07'", "b'{' * 9999")),
    _SAY.format("b\"ModuleNotFoundError: No module named 'pytest'\"") + "\nos._exit(1)",
    *(_FORGE.format(body) for body in _JSON),
    "import os\nif os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '600'])",
    "import os\nwhile True:\n    os.fork()",
    "import subprocess as s\nfor _ in range(9):\n    s.Popen(['sh', '-c', 'trap : TERM INT; sleep 600'], start_new_session=True)",
    "import threading, time\nfor _ in range(20):\n    threading.Thread(target=time.sleep, args=(600,)).start()",
    "import os\nfor fd in range(256):\n    try:\n        os.close(fd)\n    except OSError:\n        pass",
    "x = [bytearray(1 << 24) for _ in range(99)]",
    "while True: pass",
    "import os\nfor n in range(3000):\n    open(str(n), 'w').close()",
    "import os\nfor name in (b'\\xff', b'\\x1b[2J', b'a\\nb', b'x' * 255):\n    open(name, 'w').close()",
    "import os\nos.chdir('/')\nos.environ.clear()",
    "import sys\nsys.stdout = sys.stderr = sys.modules = None",
    "import builtins\nbuiltins.len = lambda _: 0\nbuiltins.isinstance = lambda *_: True",
    "import pytest\npytest.exit('\\ud800\\x1b[2J', returncode=0)",
    "import pytest\npytest.skip('\\x1b[2J' * 999, allow_module_level=True)",
    "raise BaseException('\\ud800' + '\\x9b' * 99)",
    "raise SystemExit(0)",
    "raise KeyboardInterrupt",
    "raise MemoryError",
    "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E",
    "class E(Exception):\n    def __str__(self): return 'x' * (1 << 22)\nraise E",
    "\0",
    "# -*- coding: nonsense -*-",
    "def",
    "(" * 300,
    "x = " + "-" * 5000 + "1",
)
"""Programs that take the place of the work, alone or one after the other."""

COMMANDS = (
    *(
        "true",
        "exit 7",
        "kill -9 $$",
        "kill -35 $$",
        "kill -64 $$",
        "kill -STOP $$",
        "yes | head -c 3000000",
        "head -c 999999 /dev/urandom",
    ),
    *(
        "ln -s / l; ln -s l m; mkfifo p; mkdir -p a/b/c",
        "rm -rf shop tests",
        "rm -rf .; mkdir x",
        "chmod -R 0 .",
        "exec >&-; exit",
    ),
    *(
        "printf x > $'\\xff'; printf x > $'\\x1b]52'",
        "mkdir -p $(printf 'd/%.0s' $(seq 90))",
        "for i in $(seq 1200); do : > f$i; done",
    ),
    *(
        "truncate -s 1T big",
        "ln shop/basket.py shop/second.py",
        "setsid sleep 600 & disown",
        ":(){ :|:& };:",
        "while :; do :; done",
    ),
    *(
        "mv shop/basket.py shop/b; mkdir shop/basket.py",
        "printf '\\x1b[2J\\x9b'",
        "cat /proc/self/environ",
        "git init -q .; git status",
    ),
)

_TEXTS = (
    *("", "\0", "\ud800", "\x1b]52;c;QUJD\x07", "\u202e", "x" * 1_000_000, "\n" * 1000, "é", "a\r\nb", "\udcff", "None", "0"),
    *("../../etc/passwd", "/etc/passwd", "shop/../../x", "shop/basket.py", "shop//basket.py", "./shop/basket.py", "shop/new.py"),
    *(
        "shop/basket.py/x",
        "shop",
        ".",
        "..",
        "~",
        "shop/\0.py",
        "x" * 300,
        "shop/" + "d/" * 600 + "x.py",
        "shop/é\u202e.py",
        "C:\\x",
    ),
)
_PATTERNS = (
    *(
        "(a+)+$",
        "(?R)",
        "(?P<x>a)(?P=x)",
        "a{1000000}",
        "(((((a{9}){9}){9}){9}){9})",
        "[",
        "(?i)(?-i)x",
        "\\",
        "x" * 500,
        ".*",
        "\\p{L}",
    ),
    *(
        "(?<=a+)b",
        "(?1)",
        "(?&x)",
        "^|$",
        "\\N{DIGIT ONE}",
        "(?#" + "x" * 300,
        "{" * 300,
        "(?:a?){300}a{300}",
        "\ud800",
        "(?xx)a",
    ),
)
_LINES = (
    "",
    "@@",
    "@@ def total(prices):",
    "-x",
    "+x",
    " x",
    "+\0",
    "+\ud800",
    "*** End of File",
    "\x1b",
    "-def total(prices):",
    "+" * 9999,
)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _value(rng: random.Random) -> Any:
    kinds = (None, True, -1, 0, 1 << 70, 1e308, float("nan"), float("inf"), 3.5, [], {}, {"a": []}, [1, "x"], b"bytes", {1, 2})
    return rng.choice((rng.choice(kinds), rng.choice(_TEXTS), rng.choice(_PATTERNS), _nested(rng.choice((5, 90, 3000)))))


def _patch(rng: random.Random) -> str:
    heads = [f"*** {action} File: {rng.choice(_TEXTS)[:300]}" for action in ("Update", "Add", "Delete", "Move", "")]
    body = [rng.choice((rng.choice(heads), rng.choice(_LINES))) for _ in range(rng.randrange(0, 12))]
    ends = ("*** Begin Patch", "*** End Patch") if rng.random() < 0.9 else ("", "")
    return "\n".join([ends[0], rng.choice(heads[:3]), *body, ends[1]])


def hostile_call(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A tool and its arguments: right at first, then with parts of them missing, added or replaced."""
    right: dict[str, dict[str, Any]] = {
        "list_files": {"path": rng.choice(_TEXTS)},
        "read_file": {
            "path": rng.choice(_TEXTS),
            "start": rng.choice((1, 0, -5, 10**9, 1 << 70, 2.0)),
            "end": rng.choice((1, 0, 10**30)),
        },
        "search": {"pattern": rng.choice(_PATTERNS), "path": rng.choice(_TEXTS)},
        "edit_file": {"path": rng.choice(_TEXTS), "old": rng.choice(_TEXTS), "new": rng.choice(_TEXTS)},
        "write_file": {"path": rng.choice(_TEXTS), "content": rng.choice(_TEXTS)},
        "apply_patch": {"patch": _patch(rng)},
        "submit": {},
        "no_such_tool": {},
        "\ud800\x1b[2J" + "x" * 1000: {},
    }
    name = rng.choice(sorted(right))
    arguments = right[name]
    if rng.random() < 0.4:
        key = rng.choice([*arguments, "extra", "\ud800", ""])
        arguments[key] = _value(rng)
    if rng.random() < 0.1 and arguments:
        del arguments[rng.choice(sorted(arguments))]
    return name, arguments
