from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from composer_replication.envs import CodingEnv
from composer_replication.sandbox import open_sandbox
from composer_replication.types import Deletion, TaskSpec, ToolCall
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram


def call(name):
    return {"do": "call", "of": ["named", f"shop.basket:{name}"], "args": [["step", 0]]}


GOLD = '''"""Baskets."""


def total(prices):
    """The sum of prices."""
    result = 0
    for price in prices:
        result += price
    return result


def count(prices):
    """How many."""
    return len(prices)


def mean(prices):
    """The mean."""
    return total(prices) / count(prices)
'''
STUB = GOLD.replace(
    "    result = 0\n    for price in prices:\n        result += price\n    return result\n", "    raise NotImplementedError\n"
).replace("    return total(prices) / count(prices)\n", "    raise NotImplementedError\n")
TESTS = """from shop.basket import count, mean, total


def test_total():
    assert total([1, 2]) == 3


def test_mean():
    assert mean([1, 3]) == 2


def test_count():
    assert count([5]) == 1
"""


PROGRAMS = tuple(
    HeldOutProgram(
        steps=json.dumps([[0, {"do": "value", "of": ["list", prices]}], [1, call(name)]]),
        expected=json.dumps([["returns", ["opaque"]], ["returns", answer]]),
        uses=f"shop/basket.py::{name}",
        new_calls=1,
    )
    for name, prices, answer in (("total", [1, 4], 5), ("mean", [1, 7, 1], ["float", "3.0"]))
)


@dataclass(frozen=True)
class FolderTask:
    spec: TaskSpec
    repo: Path
    gold: dict

    def gold_files(self):
        return self.gold


@pytest.fixture(scope="session")
def task(tmp_path_factory):
    repo = tmp_path_factory.mktemp("task") / "repo"
    for path, text in {
        "shop/__init__.py": "",
        "shop/basket.py": STUB,
        "tests/test_basket.py": TESTS,
        "docs/guide.md": "A total is a sum.\n",
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        ".git/config": "secret",
    }.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
    (repo / "binary.dat").write_bytes(b"\xff\xfe\x00")
    (repo / "outside").symlink_to("/etc")
    (repo / "link.py").symlink_to("/etc/passwd")
    spec = TaskSpec(
        task_id="shop/total+mean",
        source="folder",
        source_digest="0" * 64,
        instruction="Bring back total and mean in shop/basket.py.",
        deleted=(
            Deletion(path="shop/basket.py", qualname="total", lines=4),
            Deletion(path="shop/basket.py", qualname="mean", lines=1),
        ),
        fail_to_pass=("tests/test_basket.py::test_total", "tests/test_basket.py::test_mean"),
        pass_to_pass=("tests/test_basket.py::test_count",),
        editable=("shop/**/*.py",),
        test_timeout_s=20.0,
        hidden=HeldOutChecks(programs=PROGRAMS),
    )
    return FolderTask(spec, repo, {"shop/basket.py": GOLD.encode()})


@pytest.fixture(scope="session")
def sandbox():
    return open_sandbox("auto")


@pytest.fixture
def env(task, sandbox):
    made = CodingEnv(task, sandbox=sandbox, python=Path(sys.executable))
    made.reset()
    return made


@pytest.fixture
def use(env):
    def call(name, **arguments):
        return env.step(ToolCall(call_id="c", name=name, arguments=arguments))

    return call
