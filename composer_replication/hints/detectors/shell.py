"""The purpose of a shell command, judged by its words: does it run tests, look something up, or possibly change files?

No parser of a shell: quoted parts are blanked out, the rest is cut at `&&`, `||`, `;`, `|` and line ends, and each part is known
by its program. What is not known may change files and may fail for any reason, so nothing is claimed about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONGEST = 4_000
"""Characters of a command that are looked at."""

_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_CUT = re.compile(r"&&|\|\||[;|\n]")
_BEFORE = re.compile(
    r"^[\s({!]*(?:(?:sudo|time|nice|env|exec|command|npx|bunx|uv run|poetry run|pipenv run|hatch run|pdm run|rye run)\s+"
    r"|timeout\s+(?:-\S+\s+){0,4}\d\S*\s+|\w+=\S*\s+){0,6}"
)
_WORDS = re.compile(r"\s+")
_WRITES_BY_REDIRECT = re.compile(r"(?<![0-9&<>=-])>>?(?!\s*/dev/null|[&>=])|\btee\b|<<")

_PYTHON = re.compile(r"^python[\d.]*$|^pypy3?$")
_TEST_PROGRAMS = frozenset(
    {"pytest", "py.test", "tox", "nox", "jest", "vitest", "mocha", "rspec", "phpunit", "ctest", "nosetests", "unittest", "trial"}
)
_TEST_FILE = re.compile(r"(?:^|/)(?:test_\w*|\w*_tests?|tests?|runtests?)\.py$|(?:^|/)run_?tests?(?:\.sh)?$")
_TEST_WORDS = re.compile(r"^(?:test|tests|check|nextest|t|testDebugUnitTest|manage\.py test)$|^test:")
_RUNNERS = frozenset(
    {"npm", "yarn", "pnpm", "bun", "cargo", "go", "make", "just", "mvn", "gradle", "gradlew", "bundle", "dotnet"}
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CHECKERS = _words(
    """ruff flake8 pylint mypy pyright black isort eslint tsc prettier make cmake ninja gcc g++ cc clang clang++ rustc javac mvn
    gradle gradlew cargo go npm yarn pnpm bun hardhat forge anchor solc next vite webpack rollup esbuild tsup turbo nx pre-commit
    lint-imports pycodestyle bandit just dotnet py_compile compileall"""
)
_SEARCHERS = _words("grep egrep fgrep rg ag ack test [ [[ pgrep pidof which type hash diff cmp comm ls stat find fd")
_LISTERS = _words("ls find rg grep fd tree du stat wc")
_LOOKERS = _SEARCHERS | _words(
    """cat head tail nl wc less more file tree pwd echo printf cd true false sort uniq cut tr awk column basename dirname date env
    id uname whoami hostname du df ps xxd hexdump od strings realpath readlink md5sum sha256sum jq sleep export set"""
)
_GIT_LOOKS = _words("status diff log show blame grep ls-files rev-parse describe branch remote merge-base cat-file shortlog")
_UNDOES = re.compile(r"^git (?:checkout\b.*\s--\s|checkout -- |restore\b|reset --hard\b|stash\b|revert\b|clean -)")


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command, as far as it is understood."""

    programs: tuple[str, ...]
    """Program of each simple command in it, without its folder; `python -m NAME` is NAME."""
    words: tuple[str, ...]
    """Words of the last simple command, from its program on."""
    tests: bool
    """It runs tests."""
    checks: bool
    """It runs tests, a linter, a type checker or a build: failing is what it is there to tell."""
    searches: bool
    """A part of it says by exit status 1 that there is nothing, or that something differs."""
    looks: bool
    """It changes no file: every part is known only to read."""
    undoes: bool
    """It restores files."""
    places: int = 0
    """Number of paths that a listing or search in it names; of several commands the largest."""


def command_of(text: str) -> ShellCommand:
    """Parse a command line."""
    text = text[:_LONGEST]
    bare = _QUOTED.sub("Q", text)
    parts = [_BEFORE.sub("", part, count=1).strip() for part in _CUT.split(bare)]
    split = [_WORDS.split(part) for part in parts if part]
    programs = tuple(_program(words) for words in split)
    tests = any(_runs_tests(program, words) for program, words in zip(programs, split, strict=True))
    checks = tests or any(program in _CHECKERS for program in programs)
    return ShellCommand(
        programs=programs,
        words=tuple(split[-1]) if split else (),
        tests=tests,
        checks=checks,
        searches=any(p in _SEARCHERS or p in ("git diff", "git grep", "git merge-base") for p in programs),
        looks=not _WRITES_BY_REDIRECT.search(bare) and all(map(_looks, programs, split)),
        undoes=any(_UNDOES.match(part) for part in parts),
        places=max((_places(p, words) for p, words in zip(programs, split, strict=True) if p in _LISTERS), default=0),
    )


def _program(words: list[str]) -> str:
    name = words[0].rpartition("/")[2]
    if name == "git":
        return next((f"git {word}" for word in words[1:] if not word.startswith("-")), "git")
    if _PYTHON.match(name) and "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return "python" if _PYTHON.match(name) else name


def _places(program: str, words: list[str]) -> int:
    """Return how many paths a listing or search names, an option's value perhaps included."""
    if program == "find":
        return next((i for i, word in enumerate(words[1:]) if word[0] in "-(!\\"), len(words) - 1)
    named = sum(not word.startswith("-") for word in words[1:])
    return named - 1 if program in ("grep", "rg", "fd") and "--files" not in words else named


def _runs_tests(program: str, words: list[str]) -> bool:
    if program in _TEST_PROGRAMS or _TEST_FILE.search(words[0]):
        return True
    if program == "python":
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        return bool(_TEST_FILE.search(script)) or (script.endswith("manage.py") and "test" in words)
    return program in _RUNNERS and any(_TEST_WORDS.match(word) for word in words[1:4])


def _looks(program: str, words: list[str]) -> bool:
    if program == "sed":
        return not any(word.startswith(("-i", "--in-place")) or (word[0:1] == "-" and "i" in word) for word in words[1:])
    if program == "find":
        return not any(word in ("-delete", "-exec", "-execdir", "-ok") for word in words)
    if program.startswith("git "):
        return program[4:] in _GIT_LOOKS and not {"-d", "-D", "-m", "-M"} & set(words)
    return program in _LOOKERS or _runs_tests(program, words) or program in ("mypy", "flake8", "pylint", "pyright", "pycodestyle")


_LAYOUT = str.maketrans("", "", " \t\n\r'\"\\")


def condensed(text: str) -> str:
    """Remove white space, quotes and backslashes: the result is equal for nearly all commands that `actions.canonical_call`
    treats as equal, except for comments and redirections in other places."""
    return text.translate(_LAYOUT)
