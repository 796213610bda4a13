"""Honest work of another form than the gold code's is rewarded: what tests only pass on has no form of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks

pytestmark = pytest.mark.slow

KIT = '''
"""Signed tokens, and words found in a text."""

import hashlib
import json


class BadToken(ValueError):
    """A token that was tampered with."""


class Words:
    """The words of a text, one after the other."""

    def __init__(self, text):
        self.left = text.split()

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


def find_words(text, least):
    """Return the words of a text that have at least so many letters."""
    return Words(" ".join(word for word in text.split() if len(word) >= least))


def signature(key, payload):
    """Return a signature."""
    return hashlib.sha256((key + payload).encode()).hexdigest()[:16]


def dumps(key, data):
    """Return a token that holds the data."""
    payload = json.dumps(data, sort_keys=True)
    return f"v1.{payload}.{signature(key, payload)}"


def loads(key, token):
    """Return the data of a token; raise BadToken where its signature is wrong."""
    payload, _, signed = token.removeprefix("v1.").rpartition(".")
    if signed != signature(key, payload):
        raise BadToken(token)
    return json.loads(payload)


def order(needs):
    """Return the tasks so that each comes behind those that it needs; raise ValueError where that is impossible."""
    found, left = [], dict(needs)
    while left:
        ready = sorted(name for name, before in left.items() if not set(before) & left.keys())
        if not ready:
            raise ValueError("a circle")
        found += ready
        for name in ready:
            del left[name]
    return found


def around(edges, place):
    """Return the neighbours of a place, in any order."""
    return [b if a == place else a for a, b in edges if place in (a, b)]


class Sessions:
    """Sessions of users."""

    def __init__(self):
        self.users = {}

    async def create(self, user):
        """Return the token of a new session."""
        token = hashlib.sha256(f"{len(self.users)}{user}".encode()).hexdigest()
        self.users[token] = user
        return token

    async def user_of(self, token):
        """Return the user of a session; raise KeyError where there is none."""
        return self.users[token]
'''
TESTS = """
import asyncio

import pytest
from kit import BadToken, Sessions, around, dumps, find_words, loads, order


@pytest.mark.parametrize("data", [1, "a", [1, 2], {"a": 1}, {"user": "ann", "ids": [3, 4]}])
def test_round_trip(data):
    assert loads("secret", dumps("secret", data)) == data


def test_form():
    token = dumps("secret", {"a": 1})
    assert isinstance(token, str)
    assert token.startswith("v1.")
    assert token.count(".") == 2
    assert dumps("secret", {"a": 1}) == token


def test_tampered():
    with pytest.raises(BadToken):
        loads("secret", dumps("secret", [1]) + "0")
    with pytest.raises(BadToken):
        loads("secret", dumps("secret", [1])[:-1])
    with pytest.raises(BadToken):
        loads("secret", dumps("other", {"b": "c"}))


@pytest.mark.parametrize("text", ["one three seventeen", "a bb ccc dddd", "", "word", "find me a house by the sea"])
def test_words(text):
    assert list(find_words(text, 3)) == [word for word in text.split() if len(word) > 2]


def test_two_lengths():
    assert [word.upper() for word in find_words("a bb ccc", 2)] == ["BB", "CCC"]
    assert next(iter(find_words("a bb ccc", 3))) == "ccc"


NEEDS = {"app": ["db", "log"], "db": ["disk"], "log": ["disk"], "disk": [], "web": ["app"], "docs": []}


@pytest.mark.parametrize("needs", [NEEDS, {"a": ["b"], "b": []}, {"x": [], "y": ["x"], "z": ["x", "y"]}])
def test_order(needs):
    found = order(needs)
    assert len(found) == len(needs)
    assert set(found) == set(needs)
    for name in needs:
        for before in needs[name]:
            assert found.index(before) < found.index(name)


def test_circle():
    with pytest.raises(ValueError):
        order({"a": ["b"], "b": ["a"]})


EDGES = [("a", "b"), ("c", "a"), ("b", "c"), ("d", "b"), ("e", "a")]


@pytest.mark.parametrize(("place", "count"), [("a", 3), ("b", 3), ("c", 2), ("d", 1), ("x", 0)])
def test_around(place, count):
    found = around(EDGES, place)
    assert len(found) == count
    assert sorted(found) == sorted({a for a, b in EDGES if b == place} | {b for a, b in EDGES if a == place})
    assert place not in found


def test_sessions():
    async def go():
        sessions = Sessions()
        first, second = await sessions.create("ada"), await sessions.create("bob")
        assert await sessions.user_of(second) == "bob"
        assert await sessions.user_of(first) == "ada"
        assert first != second
        with pytest.raises(KeyError):
            await sessions.user_of("nobody")

    asyncio.run(go())


def test_one_session():
    async def go(user):
        sessions = Sessions()
        return await sessions.user_of(await sessions.create(user))

    for user in ("ada", "bob", "carol"):
        assert asyncio.run(go(user)) == user
"""
DUMPS = """    payload = json.dumps(data, sort_keys=True)
    return f"v1.{payload}.{signature(key, payload)}"
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Task]:
    root = tmp_path_factory.mktemp("project")
    (root / "kit/kit").mkdir(parents=True)
    (root / "kit/kit/__init__.py").write_text("from kit._inside import *\n")
    (root / "kit/kit/_inside.py").write_text(KIT)
    (root / "kit/test_kit.py").write_text(TESTS)
    build_tasks(str(root / "kit"), root / "tasks", BuildOptions(trivial=True, forgeable=True))
    return {task.spec.deleted[0].qualname: task for task in load_tasks(root / "tasks")}


def rewarded(task: Task, *changes: tuple[str, str]) -> float:
    """Grade the gold code with some of its text replaced."""
    text = KIT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    report = grade(task.spec, task.repo, {"kit/_inside.py": text.encode()}, sandbox=open_sandbox(), python=Path(sys.executable))
    assert isinstance(report.reward, float)
    return report.reward


HMAC = (
    "    return hashlib.sha256((key + payload).encode()).hexdigest()[:16]\n",
    "    import hmac\n\n    return hmac.new(key.encode(), payload.encode(), 'md5').hexdigest()\n",
)


def test_a_signature_of_another_form_is_rewarded(tasks: Mapping[str, Task]) -> None:
    task = tasks["signature"]
    assert rewarded(task) == 1.0
    assert rewarded(task, HMAC) == 1.0
    constant = (HMAC[0], "    return '0123456789abcdef'\n")
    assert task.spec.hidden.weakness or rewarded(task, constant) == 0.0


def test_a_token_of_another_form_is_rewarded(tasks: Mapping[str, Task]) -> None:
    task = tasks["dumps"]
    assert task.spec.hidden.weakness.endswith("in dumps, where loads, signature may be rewritten"), "only passed on"
    spaced = ("json.dumps(data, sort_keys=True)", "json.dumps(data, separators=(' , ', ' : '))")
    assert rewarded(task, spaced) == 1.0
    assert rewarded(task, (DUMPS, "    return 'v1.' + signature(key, '') + '.'\n")) == 0.0
    assert rewarded(task, ('return f"v1.{payload}', 'return f"v2.{payload}')) == 0.0, "a test asks for this"


def test_a_token_has_to_be_checked(tasks: Mapping[str, Task]) -> None:
    task = tasks["loads"]
    assert task.spec.hidden.weakness.endswith("in loads, where dumps, signature may be rewritten")
    assert rewarded(task, ("        raise BadToken(token)\n", "        pass\n")) == 0.0


def test_a_list_in_the_place_of_an_iterator_is_rewarded(tasks: Mapping[str, Task]) -> None:
    task = tasks["find_words"]
    gold = '    return Words(" ".join(word for word in text.split() if len(word) >= least))\n'
    assert task.spec.hidden.weakness == ""
    assert rewarded(task, (gold, "    return [word for word in text.split() if len(word) >= least]\n")) == 1.0
    assert rewarded(task, (gold, "    return [word for word in text.split() if len(word) > least]\n")) == 0.0


def test_another_order_is_rewarded(tasks: Mapping[str, Task]) -> None:
    task = tasks["order"]
    assert task.spec.hidden.weakness == ""
    assert rewarded(task, ("ready = sorted(name", "ready = list(name")) == 1.0
    assert rewarded(task, ("        found += ready\n", "        found = ready + found\n")) == 0.0
    assert rewarded(task, ("if not set(before) & left.keys()", "if True")) == 0.0
    gold = "    return [b if a == place else a for a, b in edges if place in (a, b)]\n"
    assert tasks["around"].spec.hidden.weakness == ""
    other = "    return [a for a, b in edges if b == place] + [b for a, b in edges if a == place]\n"
    assert rewarded(tasks["around"], (gold, other)) == 1.0
    assert rewarded(tasks["around"], (gold, "    return [a for a, b in edges if b == place]\n")) == 0.0


def test_an_awaited_token_of_another_form_is_rewarded(tasks: Mapping[str, Task]) -> None:
    gold = '        token = hashlib.sha256(f"{len(self.users)}{user}".encode()).hexdigest()\n'
    assert rewarded(tasks["Sessions.create"], (gold, '        token = f"session-{len(self.users)}"\n')) == 1.0
    assert tasks["Sessions.user_of"].spec.hidden.programs, "awaited steps make programs"


def test_programs_name_what_tests_import(tasks: Mapping[str, Task]) -> None:
    assert "_inside" not in "".join(program.steps for task in tasks.values() for program in task.spec.hidden.programs)
