"""Deletion works on bytes: bodies go, everything else stays, and the gold patch brings the original back."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.languages.functions import Function, body_of, split_lines
from composer_replication.languages.python.delete import delete_bodies
from composer_replication.languages.python.functions import find_functions
from composer_replication.tasks.files import unified_diff

LONG_SIGNATURE = """\
@a.b(1,
     2)  # why
async def f(
    x: 'a:b' = (1),  # it's: so
    *,
    k={1: 2}[1],
) -> dict[str, 'c:d']:  # noqa
"""


def only(source: str | bytes, **options: bool) -> tuple[bytes, Function]:
    data = source.encode() if isinstance(source, str) else source
    functions, _ = find_functions("m.py", data, **options)
    [function] = functions
    return data, function


def deleted(source: str | bytes, **options: bool) -> bytes:
    data, function = only(source, **options)
    return delete_bodies(data, [function])


def reasons(source: str | bytes) -> dict[str, str]:
    data = source.encode() if isinstance(source, str) else source
    return {skipped.what: skipped.reason for skipped in find_functions("m.py", data)[1]}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("def f(x):\n    return x\n", "def f(x):\n    raise NotImplementedError\n", id="plain"),
        pytest.param("def f(x):\n    return x", "def f(x):\n    raise NotImplementedError", id="no final newline"),
        pytest.param(
            'def f(x):\n    """Doc\n    more.\n    """\n\n    # how\n    return x\n    # after\n\n# other\n',
            'def f(x):\n    """Doc\n    more.\n    """\n    raise NotImplementedError\n\n# other\n',
            id="docstring stays, comments of the body go",
        ),
        pytest.param(
            "def f(x):\r\n\treturn x\r\ny = 1\r\n", "def f(x):\r\n\traise NotImplementedError\r\ny = 1\r\n", id="CRLF, tab"
        ),
        pytest.param(
            "def f(x):\r    return x\ry = 1\r", "def f(x):\r    raise NotImplementedError\ry = 1\r", id="old Mac endings"
        ),
        pytest.param(
            "\x0cdef f(x):\n    a = '\x0c\x1c\u2028'\n    return x\n\x0c\ny = 1\n",
            "\x0cdef f(x):\n    raise NotImplementedError\n\x0c\ny = 1\n",
            id="form feeds and separators are not line ends",
        ),
        pytest.param(
            LONG_SIGNATURE + "    # c\n    await x\n",
            LONG_SIGNATURE + "    raise NotImplementedError\n",
            id="long signature",
        ),
        pytest.param(
            "class A:\n  class B:\n      def f(self): # :\n          if self:\n              return 'ä'\n\n      x = 1\n",
            "class A:\n  class B:\n      def f(self): # :\n          raise NotImplementedError\n\n      x = 1\n",
            id="nested class",
        ),
        pytest.param(
            "def f(\\\n  ) \\\n  :\n    return 1\n",
            "def f(\\\n  ) \\\n  :\n    raise NotImplementedError\n",
            id="continuations",
        ),
        pytest.param(
            "def f():\n    (\n'doc'\n    )\n    return 1\n",
            "def f():\n    (\n'doc'\n    )\n    raise NotImplementedError\n",
            id="doc in brackets",
        ),
        pytest.param(
            "\ufeffdef f(a):\n    return 'é'\n", "\ufeffdef f(a):\n    raise NotImplementedError\n", id="byte order mark"
        ),
        pytest.param(
            "def f():\n    x = '''\n# not a comment\n'''\n    return x\n    # gone\n  # stays\n",
            "def f():\n    raise NotImplementedError\n  # stays\n",
            id="comment with less indentation",
        ),
        pytest.param(
            "if 1:\n  try:\n    def f(): # a\n     return 1\n  except E: pass\n",
            "if 1:\n  try:\n    def f(): # a\n     raise NotImplementedError\n  except E: pass\n",
            id="under if and try",
        ),
    ],
)
def test_only_the_body_goes(source: str, expected: str) -> None:
    assert deleted(source).decode() == expected


def test_docstring_can_go_too() -> None:
    source = 'def f(x):\n    # note\n    """Doc."""\n    return x\n'
    assert deleted(source, keep_docstring=False) == b"def f(x):\n    raise NotImplementedError\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(x): return x\n", "body on the line"),
        ("def f(x): x; \\\n  return x\n", "body on the line"),
        ("def f(x): \\\n  return x\n", "body on the line"),
        ("def f(x):\n    'doc'; return x\n", "body on the line"),
        ("def f(x):\n    'doc'\n", "empty body"),
        ("def f(x):\n    ...\n", "empty body"),
        ("def f(x):\n    raise NotImplementedError('no')\n", "empty body"),
        ("@typing.overload\ndef f(x):\n    return x\n", "overload"),
        ("class C:\n    @abc.abstractmethod\n    def f(x):\n        return x\n", "abstract"),
        ("class C:\n    @x.setter\n    def f(x, y):\n        x.y = y\n", "second accessor"),
        ("class C:\n    def __init__(self, a):\n        self.a = a\n        self.b: int = 0\n", "only stores"),
        ("# coding: latin-1\ndef f(x):\n    return x\n", "encoded as iso-8859-1"),
        ("def f(x):\n    return x\ndef f(y):\n    return y\n", "defined more than once"),
        ("def f(x:\n", "cannot be parsed (SyntaxError)"),
        (b"def f(x):\n    return '\xe9'\n", "cannot be parsed (SyntaxError)"),
        (b"def f(x):\n    return '\0'\n", "cannot be parsed"),
    ],
)
def test_unsuitable_functions_are_skipped_with_a_reason(source: str | bytes, reason: str) -> None:
    data = source.encode() if isinstance(source, str) else source
    functions, skipped = find_functions("m.py", data)
    assert functions == []
    assert [s.reason for s in skipped if reason in s.reason]


def test_inner_functions_belong_to_the_outer_body() -> None:
    source = "def f(x):\n    def g():\n        return x\n    return g\n"
    _, function = only(source)
    assert (function.qualname, function.lines) == ("f", 3)


# --- any module ------------------------------------------------------------------------------------------------------

NAMES = [f"f{i}" for i in range(6)]
HEADERS = ["({args}):", "(\n{args},\n) -> 'r:t':  # c:", "(\n    {args}  # x: y\n  ):", "({args}) -> dict[str, int]:"]
ARGS = ["a, *b, c=(1), **d", "a=lambda x: x, /, b: 'i:j' = {1: 2}", "self, a", "*, k: int"]
DOCS = ["", '"""One."""\n', "r'''Two:\n  # lines\n'''\n", "'a' \\\n   'b'  # doc\n"]
BODIES = [
    "return 1\n",
    "# how\n\nx = '''\n text \x0c\n'''\nreturn x\n# end\n",
    "if a:\n{tab}yield 2\nelse:\n{tab}pass; x = 3\n",
    "def inner():\n{tab}return 'ü'\nreturn inner\n",
    "for i in a:\n\n{tab}x = (i,\n1)\n",
]
BETWEEN = ["", "\n", "# note: é\n", "X = [1,\n 2]\n", "\x0c\n"]


@st.composite
def definitions(draw: st.DrawFn, name: str, tab: str) -> list[str]:
    """Lines of one definition at indentation zero, and `None` endings applied later."""
    decorators = draw(st.sampled_from(["", "@staticmethod\n", "@d(1,\n   2)  # why\n"]))
    keyword = draw(st.sampled_from(["def", "async def"]))
    header = draw(st.sampled_from(HEADERS)).format(args=draw(st.sampled_from(ARGS)))
    head = f"{decorators}{keyword} {name}{header}\n"
    body = draw(st.sampled_from(DOCS)) + draw(st.sampled_from(BODIES)).replace("{tab}", tab)
    # continuation lines inside brackets and strings may have any indentation, so indenting every line keeps the meaning legal
    return (head + "".join(tab + line if line.strip() else line for line in body.splitlines(keepends=True))).split("\n")


@st.composite
def modules(draw: st.DrawFn) -> bytes:
    tab = draw(st.sampled_from(["    ", "\t", "  "]))
    text = draw(st.sampled_from(["", "# -*- coding: utf-8 -*-\n", "\ufeff"]))
    for name in NAMES[: draw(st.integers(1, 6))]:
        lines = draw(definitions(name, tab))
        if draw(st.booleans()):
            lines = [f"class K{name}:", *[tab + line if line.strip() else line for line in lines]]
        text += draw(st.sampled_from(BETWEEN)) + "\n".join(lines)
    if draw(st.booleans()):
        text = text.removesuffix("\n")
    return text.encode().replace(b"\n", draw(st.sampled_from([b"\n", b"\r\n", b"\r"])))


def source_of_each(data: bytes) -> dict[str, tuple[bytes, bytes]]:
    """Qualified name -> (all lines of the definition, decorators included; the lines that would be removed)."""
    lines = split_lines(data)
    found = {}
    functions = {f.qualname: f for f in find_functions("m.py", data)[0]}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                walk(child, child.name + ".")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                start = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                name = prefix + child.name
                body = body_of(data, functions[name]) if name in functions else b""
                found[name] = (b"".join(lines[start - 1 : child.end_lineno]), body)

    walk(ast.parse(data), "")
    return found


@pytest.mark.slow
@settings(max_examples=300)
@given(data=modules(), picks=st.sets(st.sampled_from(NAMES)), keep=st.booleans())
def test_deleting_any_functions_of_any_module(data: bytes, picks: set[str], keep: bool) -> None:
    ast.parse(data)
    functions, skipped = find_functions("m.py", data, keep_docstring=keep)
    assert skipped == []
    chosen = [f for f in functions if f.qualname.rpartition(".")[2] in picks]
    after = delete_bodies(data, chosen)
    before_sources, after_sources = source_of_each(data), {}
    stubbed = ast.parse(after)
    lines = split_lines(after)
    for node in ast.walk(stubbed):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            after_sources[node.name] = (node, b"".join(lines[node.lineno - 1 : node.end_lineno]))
    for function in functions:
        name = function.qualname.rpartition(".")[2]
        node, text = after_sources[name]
        if function in chosen:
            assert isinstance(node.body[-1], ast.Raise)
            assert len(node.body) == 1 + (keep and ast.get_docstring(node) is not None)
            assert text.count(b"raise NotImplementedError") == 1
        else:
            assert text in before_sources[function.qualname][0]
            assert not isinstance(node.body[-1], ast.Raise)
    # what lies outside the removed lines is unchanged, byte for byte
    kept = b"".join(split_lines(data)[n - 1] for n in outside(chosen, data))
    stubs = {f.first_line: f for f in chosen}
    assert len(after) == len(kept) + sum(stub_length(data, f) for f in stubs.values())
    for function in chosen:
        body = body_of(data, function)
        ending = body[len(body.rstrip(b"\r\n")) :]
        start = after.index(function.indent + b"raise NotImplementedError")
        after = after[:start] + body + after[start + len(function.indent + b"raise NotImplementedError" + ending[:2]) :]
    assert after == data


def outside(chosen: list[Function], data: bytes) -> list[int]:
    removed = {n for f in chosen for n in range(f.first_line, f.last_line + 1)}
    return [n for n in range(1, len(split_lines(data)) + 1) if n not in removed]


def stub_length(data: bytes, function: Function) -> int:
    last = split_lines(data)[function.last_line - 1]
    return len(function.indent) + len(b"raise NotImplementedError") + len(last) - len(last.rstrip(b"\r\n"))


@settings(max_examples=15)
@given(data=modules())
def test_the_gold_patch_restores_the_original_bytes(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    functions, _ = find_functions("m.py", data)
    after = delete_bodies(data, functions)
    folder = tmp_path_factory.mktemp("patch")
    Path(folder, "sub").mkdir()
    Path(folder, "sub", "m.py").write_bytes(after)
    patch = unified_diff({"sub/m.py": after}, {"sub/m.py": data})
    subprocess.run(["git", "apply", "-p1", "-"], cwd=folder, input=patch, check=True)
    assert Path(folder, "sub", "m.py").read_bytes() == data


def test_equal_files_give_no_patch() -> None:
    assert unified_diff({"a.py": b"x\n"}, {"a.py": b"x\n"}) == b""


def test_split_lines_keeps_every_byte() -> None:
    data = b"a\r\nb\rc\n\n\x0cd\x85\xe2\x80\xa8e"
    assert split_lines(data) == [b"a\r\n", b"b\r", b"c\n", b"\n", b"\x0cd\x85\xe2\x80\xa8e"]
