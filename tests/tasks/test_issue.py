"""Instructions that read as issues: what they quote, what they leave out, and that they give no code away."""

from __future__ import annotations

import pytest

from composer_replication.languages.python.functions import find_functions
from composer_replication.tasks.describe import describe
from composer_replication.tasks.feature import Feature
from composer_replication.tasks.proofs.leak import gives_away
from composer_replication.tasks.python_language import PYTHON

CODE = b'''\
class Tide:
    def expire(self, now=None):
        """Remove what is too old.

        The removed items are returned.
        """
        gone = [key for key, until in self._links if until <= (now or self.clock())]
        for key in gone:
            del self._links[key]
        return gone


class Moon:
    def expire(self):
        return {key: value for key, value in self.phases.items() if value is not None}


def spring(tides, *, neap=False):
    total = 0
    for tide in tides:
        total += tide.height if not neap else -tide.height
    return total
'''
DOCS = {
    "CHANGELOG.md": "# 2.0\n\n- `Tide.expire()` returns what it removed.\n- `Moon.expire()` is new.\n- an `ebb` of spring\n",
    "docs/tides.rst": """\
Tides
=====

.. method:: Tide.expire(now=None)

   Everything that has ended before *now* is removed, the newest last.

.. autofunction:: spring

Springs
-------

A spring in the garden is no tide.

Call ``spring(tides)`` once a fortnight, when sun and moon pull together.

What it runs: gone = [key for key, until in self._links if until <= (now or self.clock())], see `Tide.expire`.
""",
}
FUNCTIONS = {function.qualname: function for function in find_functions("tides/tide.py", CODE)[0]}


def issue(*names: str, tests: tuple[str, ...], removed: bool = False) -> str:
    feature = Feature(
        functions=[FUNCTIONS[name] for name in names],
        sources={"tides/tide.py": CODE},
        fail_to_pass=tests,
        docs=DOCS,
        removed=removed,
        language=PYTHON,
    )
    return describe(feature, "issue")


def test_an_issue_says_what_is_missing_what_is_known_of_it_and_what_is_looked_at() -> None:
    tests = ("tests/test_tide.py::TestTide::test_expire_twice", "tests/test_tide.py::test_expireOnNone[1-a::b]")
    assert (
        issue("Tide.expire", tests=tests)
        == """\
`Tide.expire` is not implemented

It fails as soon as it is called, because in tides/tide.py there is no code behind it.

This is how it is declared in tides/tide.py:

    def expire(self, now=None)

And this is what it is supposed to do:

> Remove what is too old.
>
> The removed items are returned.

CHANGELOG.md has this to say:

> - `Tide.expire()` returns what it removed.

docs/tides.rst has this to say:

> .. method:: Tide.expire(now=None)
>
>    Everything that has ended before *now* is removed, the newest last.

Please implement it, so that the tests in tests/test_tide.py pass again. They check:

- expire twice
- expire on none"""
    )


def test_the_same_method_of_another_class_and_the_same_word_are_something_else() -> None:
    moon = issue("Moon.expire", tests=("test_a.py::test_expire",))
    assert "`Moon.expire()` is new." in moon
    assert "Tide" not in moon
    assert "They check" not in moon  # the test says no more than the function's name
    spring = issue("spring", tests=("a.test.js::tides > spring > adds the heights", "b_test.go::TestSpringNeap"))
    assert "> Call ``spring(tides)`` once a fortnight" in spring
    assert "garden" not in spring
    assert "autofunction" not in spring
    assert "- tides > spring > adds the heights\n- spring neap" in spring
    assert "so that the tests in a.test.js and b_test.go pass again. They check:" in spring


def test_what_the_documentation_has_of_the_code_is_not_quoted() -> None:
    body = "\n".join(CODE.decode().splitlines()[6:10])
    assert gives_away(DOCS["docs/tides.rst"], [body])
    assert not gives_away(issue("Tide.expire", tests=("a.py::test_b",)), [body])


@pytest.mark.parametrize(
    ("count", "title"), [(2, "`Moon.expire` and `spring`"), (3, "`Tide.expire`, `Moon.expire` and `spring`")]
)
def test_several_functions_share_an_issue(count: int, title: str) -> None:
    text = issue(*[*FUNCTIONS][-count:], tests=tuple(f"t.py::test_case_{'abcdefghij'[n]}" for n in range(10)), removed=True)
    assert text.startswith(f"{title} are missing\n")
    assert "I wanted to use them from tides/tide.py, but they are not there" in text
    assert text.count("is declared in tides/tide.py:") == count
    assert text.endswith("- case h\n- and 2 more")
    assert "Please implement them," in text


def test_a_long_docstring_is_cut_between_paragraphs() -> None:
    code = 'def spring():\n    """First.\n\n    ' + "\n\n    ".join(["x" * 400] * 4) + '\n    """\n    a = 1\n    return a\n'
    (function,) = find_functions("m.py", code.encode())[0]
    feature = Feature(functions=[function], sources={"m.py": code.encode()}, fail_to_pass=("t.py::test_a",), language=PYTHON)
    text = describe(feature, "issue")
    assert text.count("x" * 400) == 2
    assert "> (and so on)" in text
