"""The deleted code must not be anywhere else the agent can look."""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from composer_replication.languages.functions import body_of
from composer_replication.languages.python.delete import delete_bodies
from composer_replication.languages.python.functions import find_functions
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.proofs.leak import INSTALLED, LeakScanner, copies_of, tokens_of

WriteProject = Callable[[Mapping[str, str]], Path]

BODY = """\
    total = 0
    for item in basket.items:  # every one
        total += item.price * item.count - discount(item)
    return round(total, 2)
"""
MODULE = f"def price(basket):\n    '''Sum it up.'''\n{BODY}\n\ndef other(a):\n    return a\n"
REFORMATTED = """\
def f(basket):
	total=0
	for item in basket.items:
		total += (
 item.price*item.count
 - discount(item))
	return round(total,2)
"""


def verdict(root: Path) -> str | None:
    source = (root / "shop.py").read_bytes()
    function = find_functions("shop.py", source)[0][0]
    return LeakScanner(root).find([body_of(source, function)], {"shop.py": delete_bodies(source, [function])})


def archived(kind: str) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("a/shop.py", MODULE)
    else:
        with tarfile.open(fileobj=stream, mode="w:gz") as tar:
            info = tarfile.TarInfo("a/shop.py")
            info.size = len(MODULE)
            tar.addfile(info, io.BytesIO(MODULE.encode()))
    return stream.getvalue()


def test_a_clean_tree(write_project: WriteProject) -> None:
    root = write_project({"shop.py": MODULE, "README.md": "price(basket) sums basket.items up, less a discount(item)."})
    assert verdict(root) is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/guide.rst", f"How it works::\n\n{BODY}\n"),
        ("shop_old.py", MODULE),
        ("copy.py", REFORMATTED),
        ("tests/test_shop.py", f"def reference(basket):\n{BODY}"),
        ("walk.ipynb", json.dumps({"cells": [{"source": BODY.splitlines(keepends=True)}]})),
        ("broken.ipynb", BODY),
    ],
)
def test_a_copy_is_found(write_project: WriteProject, path: str, text: str) -> None:
    assert verdict(write_project({"shop.py": MODULE, path: text})) == f"the deleted code is also in {path}"


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_copy_in_an_archive_is_found(write_project: WriteProject, kind: str) -> None:
    root = write_project({"shop.py": MODULE})
    (root / "old.bin").write_bytes(archived(kind))
    assert verdict(root) == "the deleted code is also in old.bin"


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_damaged_archive_ends_nothing(write_project: WriteProject, kind: str) -> None:
    """Tests of whatever reads archives have such files."""
    whole, root = archived(kind), write_project({"shop.py": MODULE})
    for at in range(10, len(whole), 7):
        damaged = whole[:at] + bytes([whole[at] ^ 0xFF]) * 5 + whole[at + 5 :]
        (root / f"damaged{at}.bin").write_bytes(damaged)
    (root / "copy.py").write_text(MODULE)
    assert verdict(root) is not None


def test_a_copy_in_the_same_file_is_found(write_project: WriteProject) -> None:
    twin = MODULE + f"\n\ndef twin(basket):\n{BODY}"
    assert verdict(write_project({"shop.py": twin})) == "the deleted code is also in shop.py"


@pytest.mark.parametrize("path", ["__pycache__/shop.cpython-311.pyc", ".mypy_cache/shop.data.json", "shop.egg-info/SOURCES.txt"])
def test_caches_and_bytecode_are_found(write_project: WriteProject, path: str) -> None:
    assert verdict(write_project({"shop.py": MODULE, path: ""})) == f"caches, bytecode or build outputs are in the tree: {path}"


@pytest.mark.parametrize("change", [("+= item", "-= item"), ("basket.items", "basket.wares")])
def test_a_sibling_that_differs_is_no_copy(write_project: WriteProject, change: tuple[str, str]) -> None:
    assert verdict(write_project({"shop.py": MODULE + f"\n\ndef twin(basket):\n{BODY.replace(*change)}"})) is None


JAVASCRIPT = """    let total = 0
    for (const item of this.#items) {
        total += item.price * item.count - this.#discount(item)
    }
    return Math.round(total * 100) / 100
"""


@pytest.mark.parametrize(
    "comment",
    [
        lambda line: f"{line}  // what follows from the price of {len(line)} things, and the discount",
        lambda line: f"    /* what follows from the price of {len(line)} things,\n     * and the discount */\n{line}",
        lambda line: f"    /** what follows from the price of {len(line)} things */\n{line}",
    ],
)
def test_a_copy_with_other_comments_is_found_in_languages_that_write_them_otherwise(
    write_project: WriteProject, comment: Callable[[str], str]
) -> None:
    copy = "\n".join(map(comment, JAVASCRIPT.splitlines()))
    root = write_project({"a.js": f"class A {{ f() {{\n{JAVASCRIPT}}}\n", "b.js": f"class B {{ f() {{\n{copy}\n}}\n"})
    found = LeakScanner(root).find([JAVASCRIPT.encode()], {"a.js": b"class A { f() { throw new Error() }\n"})
    assert found == "the deleted code is also in b.js"


def test_what_only_looks_like_a_comment_is_code() -> None:
    for text in ("this.#items.push(item)", "#[inline]", '"src/*.py" and "lib/*/x"', "https://example.org/a/b"):
        assert tokens_of(text) == re.findall(r"\w+|[-+*/%<>=!&|^~@]+", text)
    assert tokens_of("a = 1  #one\n#two\nb") == ["a", "=", "1", "b"]


def test_short_bodies_are_not_distinctive(write_project: WriteProject) -> None:
    short = "def price(a):\n    return a.price * 2\n"
    assert verdict(write_project({"shop.py": short, "b.py": short.replace("price(", "cost(")})) is None


def test_an_installed_copy_is_found_and_the_tree_itself_is_not(write_project: WriteProject) -> None:
    root = write_project({"pluggy/__init__.py": "", "shop.py": "", "src/own.py": ""})
    found = copies_of(
        INSTALLED, open_sandbox(), Path(sys.executable), root, ["pluggy", "shop", "own", "pluggy.absent", "absent.x"]
    )
    assert list(found) == ["pluggy"]
    assert found["pluggy"].endswith("pluggy/__init__.py")
