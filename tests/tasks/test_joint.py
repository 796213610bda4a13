"""Functions that undo each other are not left out together: no pair of trivial bodies is rewarded where one alone is not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from round_trip import RUNS

from composer_replication.sandbox import open_sandbox
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks
from composer_replication.tasks.join import join_tasks

pytestmark = pytest.mark.slow

SHOP = f'''{RUNS}

def longest(runs):
    """Return the length of the longest run."""
    return max((count for _, count in runs.pairs), default=0)
'''
ROUND_TRIP = """
import pytest
from shop import compress, expand, longest


@pytest.mark.parametrize("text", ["aaabbc", "x", "", "aabbaabb", "hello world", "zzzzzzzz"])
def test_round_trip(text):
    assert expand(compress(text)) == text


def test_two():
    a, b = compress("aab"), compress("bba")
    assert expand(a) + expand(b) == "aabbba"


def test_none():
    assert longest(compress("")) == 0
"""
BESIDE = """

@pytest.mark.parametrize(("text", "length"), [("aaabbc", 3), ("x", 1), ("aabbaabb", 2), ("hello world", 2), ("zzzzzzzz", 8)])
def test_longest(text, length):
    assert longest(compress(text)) == length
"""
COLOUR = '''
"""Colours."""


class Colour:
    """Red, green and blue."""

    def __init__(self, red, green, blue):
        self.red, self.green, self.blue = red, green, blue


def from_hex(text):
    """Read a colour such as `#ff0080`; raise ValueError for anything else."""
    if len(text) != 7 or text[0] != "#":
        raise ValueError(f"no colour: {text}")
    return Colour(int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16))


def to_hex(colour):
    """Write a colour as `#ff0080`."""
    return f"#{colour.red:02x}{colour.green:02x}{colour.blue:02x}"


def brightness(colour):
    """Return how bright a colour is, from 0 to 255."""
    return (colour.red + colour.green + colour.blue) // 3
'''
COLOUR_ROUND_TRIP = """
import pytest
from shop import brightness, from_hex, to_hex


@pytest.mark.parametrize("text", ["#ff0080", "#000000", "#12ab9f", "#ffffff"])
def test_round_trip(text):
    assert to_hex(from_hex(text)) == text


@pytest.mark.parametrize("text", ["ff0080", "#ff008", "#ff00800", "", "#ff00zz"])
def test_no_colour(text):
    with pytest.raises(ValueError):
        from_hex(text)
"""
COLOUR_BESIDE = """

@pytest.mark.parametrize(("text", "bright"), [("#ffffff", 255), ("#000000", 0), ("#30ff00", 101), ("#010203", 2)])
def test_brightness(text, bright):
    assert brightness(from_hex(text)) == bright
"""
TOKENS = '''
"""Signed texts, and passwords."""
import hashlib


class BadToken(Exception):
    """A token was not made with this key."""


def sign(key, data):
    """Return a token that carries a text."""
    return f"v1.{hashlib.sha256((key + data).encode()).hexdigest()[:12]}.{data}"


def unsign(key, token):
    """Return the text of a token. Raises BadToken."""
    version, signature, data = (token.split(".", 2) + ["", ""])[:3]
    if version != "v1" or signature != hashlib.sha256((key + data).encode()).hexdigest()[:12]:
        raise BadToken(token)
    return data


def hash_password(password, rounds=3):
    """Return a password hashed."""
    digest = password
    for _ in range(rounds):
        digest = hashlib.sha256(digest.encode()).hexdigest()
    return f"{rounds}${digest}"


def verify_password(password, hashed):
    """Return whether a hash was made of a password."""
    rounds = int(hashed.partition("$")[0])
    return hash_password(password, rounds) == hashed
'''
TOKENS_ONLY_PASSED_ON = """
import pytest
from shop import BadToken, hash_password, sign, unsign, verify_password


@pytest.mark.parametrize("data", ["user=3", "a.b.c", "", "x" * 30])
def test_round_trip(data):
    token = sign("secret", data)
    assert token.startswith("v1.")
    assert unsign("secret", token) == data


def test_other_key():
    token = sign("secret", "user=3")
    with pytest.raises(BadToken):
        unsign("other", token)
    with pytest.raises(BadToken):
        unsign("secret", token + "x")


def test_password():
    hashed = hash_password("hunter2")
    assert verify_password("hunter2", hashed)
    assert not verify_password("hunter3", hashed)
    assert verify_password("correct horse", hash_password("correct horse", rounds=5))
"""
DIGITS = """
ALPHABET = "zyxwvutsrqponmlkjihgfedcba"


def _digit(letter):
    at = ALPHABET.find(letter)
    if at < 0:
        raise ValueError(letter)
    return at * 3 + 1


def dumps(text):
    return [_digit(letter) for letter in text]


def loads(digits):
    return "".join(ALPHABET[digit // 3] for digit in digits)
"""
DIGITS_ROUND_TRIP = """
import pytest
from shop import dumps, loads


@pytest.mark.parametrize("text", ["apple", "pear", "quince", "fig", "", "kiwi"])
def test_round_trip(text):
    assert loads(dumps(text)) == text


@pytest.mark.parametrize("text", ["A", "ap ple", "7", "pear!"])
def test_no_letters(text):
    with pytest.raises(ValueError):
        dumps(text)
"""
HEART = "the tests' answers by heart satisfy its held-out programs: "
PAIR, HEX = {"compress", "expand"}, {"from_hex", "to_hex"}
PROJECTS = {
    "round trip": (SHOP, ROUND_TRIP),
    "beside": (SHOP, ROUND_TRIP + BESIDE),
    "colour": (COLOUR, COLOUR_ROUND_TRIP),
    "colour beside": (COLOUR, COLOUR_ROUND_TRIP + COLOUR_BESIDE),
    "tokens": (TOKENS, TOKENS_ONLY_PASSED_ON),
    "digits": (DIGITS, DIGITS_ROUND_TRIP),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[frozenset[str], Task]]:
    """Tasks of one function and of two, by their functions: where tests look at round trips alone, and where they look at what
    comes between as well."""
    found = {}
    for name, (source, tests) in PROJECTS.items():
        root = tmp_path_factory.mktemp("project")
        (root / "shop").mkdir()
        (root / "shop/shop.py").write_text(source)
        (root / "shop/test_shop.py").write_text(tests)
        build_tasks(str(root / "shop"), root / "tasks", BuildOptions(trivial=True, group_size=2, forgeable=True))
        found[name] = {frozenset(d.qualname for d in task.spec.deleted): task for task in load_tasks(root / "tasks")}
    return found


def test_two_functions_that_undo_each_other_are_weak_where_only_that_is_looked_at(
    built: Mapping[str, dict[frozenset[str], Task]],
) -> None:
    weakness = built["round trip"][frozenset(PAIR)].spec.hidden.weakness
    assert weakness == HEART + "otherwise `return text` in compress, `return runs` in expand", "the empty text alone tells"


def test_one_of_two_functions_is_weak_where_the_other_may_be_rewritten(built: Mapping[str, dict[frozenset[str], Task]]) -> None:
    """A submission may change what its task does not delete: `expand` of what `compress` has kept gives it back."""
    tasks = {name: built[name] for name in ("round trip", "beside", "colour", "colour beside", "tokens")}
    for name, pair in (("round trip", PAIR), ("colour", HEX), ("tokens", {"sign", "unsign"})):
        for function in sorted(pair):
            weakness = tasks[name][frozenset({function})].spec.hidden.weakness
            (other,) = pair - {function}
            assert f"is given back, in {function}, where {other}" in weakness, (name, function)
    for name, makes, reads in (("beside", "compress", "expand"), ("colour beside", "from_hex", "to_hex")):
        assert tasks[name][frozenset({makes})].spec.hidden.weakness == ""
        weakness = tasks[name][frozenset({reads})].spec.hidden.weakness
        assert f"in {reads}, where {makes}" in weakness, "what it reads may come with what it was made of"


def test_a_function_is_weak_where_two_others_may_do_without_it(built: Mapping[str, dict[frozenset[str], Task]]) -> None:
    """No step calls `_digit` itself."""
    weakness = built["digits"][frozenset({"_digit"})].spec.hidden.weakness
    assert weakness.endswith("is given back, in dumps, loads without _digit"), weakness


def test_what_comes_between_makes_them_strong(built: Mapping[str, dict[frozenset[str], Task]]) -> None:
    assert built["beside"][frozenset(PAIR)].spec.hidden.weakness == ""


def _strong(task: Task) -> Task:
    """Return a task with programs that are taken for evidence, so that only joining shows what they lack."""
    return replace(task, spec=replace(task.spec, hidden=replace(task.spec.hidden, weakness="")))


def test_they_are_not_joined_where_only_the_round_trip_is_looked_at(
    built: Mapping[str, dict[frozenset[str], Task]], tmp_path: Path
) -> None:
    alone, beside = (
        [_strong(built[project][frozenset({name})]) for name in sorted(PAIR)] for project in ("round trip", "beside")
    )
    refused = join_tasks(alone, tmp_path / "alone", sandbox=open_sandbox(), python=Path(sys.executable))
    assert isinstance(refused, str)
    assert "trivial bodies of several functions satisfy its held-out programs" in refused
    assert isinstance(join_tasks(beside, tmp_path / "beside", sandbox=open_sandbox(), python=Path(sys.executable)), Task)


def test_what_is_checked_and_kept_is_tried(built: Mapping[str, dict[frozenset[str], Task]], tmp_path: Path) -> None:
    tasks = built["colour"]
    kept = "arguments are checked and kept, and the first is given back, in from_hex, to_hex"
    weakness = tasks[frozenset(HEX)].spec.hidden.weakness
    assert weakness == f"trivial bodies of several functions satisfy its held-out programs: {kept}"
    assert built["colour beside"][frozenset(HEX)].spec.hidden.weakness == ""
    alone, beside = (
        [_strong(built[project][frozenset({name})]) for name in sorted(HEX)] for project in ("colour", "colour beside")
    )
    refused = join_tasks(alone, tmp_path / "alone", sandbox=open_sandbox(), python=Path(sys.executable))
    assert isinstance(refused, str)
    assert kept in refused
    assert isinstance(join_tasks(beside, tmp_path / "beside", sandbox=open_sandbox(), python=Path(sys.executable)), Task)


@pytest.mark.parametrize(
    ("pair", "given_back"),
    [(("sign", "unsign"), "the last is given back"), (("hash_password", "verify_password"), "the first is given back")],
)
def test_texts_that_are_only_passed_on_are_weak_together(
    built: Mapping[str, dict[frozenset[str], Task]], pair: tuple[str, str], given_back: str
) -> None:
    """One function checks what the other was given: a table would do."""
    weakness = built["tokens"][frozenset(pair)].spec.hidden.weakness
    assert weakness.endswith(f"arguments are checked and kept, and {given_back}, in {', '.join(pair)}")
