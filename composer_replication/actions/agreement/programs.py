"""Command lines of programs whose options may stand in any order: which options, and what else writes the same command.

An entry is here only where the manual says that order does not matter: GNU coreutils, grep, sed and sort read options with
`getopt_long`, which also takes them after the operands (https://www.gnu.org/software/libc/manual/html_node/Using-Getopt.html);
pytest reads them with argparse; git takes options before anything else. Options of which the last one wins, or that change each
other's meaning, exclude one another here: a command that has two of them is not understood. So is one with an option that is not
listed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line without its accidents."""

    options: tuple[str, ...]
    """Sorted, each as often as it is given."""
    values: tuple[tuple[str, str], ...]
    """Sorted."""
    leading: str | None
    operands: tuple[str, ...]
    """Operands in order."""


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """The command-line syntax of one program."""

    options: Mapping[str, str]
    """Spelling (`-n`, `--lines`) -> name of the option; a name ends with `=` when a value follows."""
    exclusive: tuple[frozenset[str], ...] = ()
    """At most one option of each set is understood."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Values that an option has anyway."""
    leading: str = ""
    """The option that gives what is otherwise the first operand: `e=` of grep and sed."""
    paths: bool = True
    """The operands, but for a leading one, are paths."""
    shows: Callable[[Arguments], bool] = lambda _: False
    """True when the output contains the paths as written; error messages do not count."""
    lists: bool = False
    """Prints its operand, unless that is the only one and a folder."""
    here: frozenset[str] = frozenset()
    """`*` or options: with one of them, no operand means `.`, but where `.` is shown."""
    slash: frozenset[str] | None = None
    """None: a slash behind a path has meaning. Else it has none for a known folder, except with these options."""
    pytest: bool = False
    """Operands may be node ids, and a slash behind a path never says anything."""
    git: bool = False
    """Options stand before the operands; `--` does more than end the options."""
    clusters: bool = True
    """`-ab` means `-a -b`."""
    count: bool = False
    """`-5` means `-n 5`: as the first of at most two words, and for git among the options."""


def _options(spec: str) -> dict[str, str]:
    """Parse `n/line-number m/max-count=`: alternatives of one option, the first of which is its name; `=` marks one with a
    value."""
    found = {}
    for entry in spec.split():
        spellings = entry.removesuffix("=").split("/")
        name = spellings[0] + ("=" if entry.endswith("=") else "")
        found.update({("-" if len(s) == 1 else "--") + s: name for s in spellings})
    return found


def _sets(spec: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(group.split("+")) for group in spec.split())


def _above_each(given: Arguments) -> bool:
    """Return whether the output names files: head and tail name theirs above each of several."""
    return "q" not in given.options and ("v" in given.options or len(given.operands) > 1)


def _before_each(given: Arguments) -> bool:
    """Return whether the output names files: grep does where there may be several; how its name patterns match `./` is
    unknown."""
    options = frozenset(given.options)
    if options & {"l", "L"} or any(name.startswith(("include", "exclude")) for name, _ in given.values):
        return True
    return not options & {"h", "q"} and (bool(options & {"r", "R", "H"}) or len(given.operands) > 1)


def _verbosely(given: Arguments) -> bool:
    return "v" in given.options


_LINES = "n/lines= c/bytes= q/quiet/silent v/verbose"
_PYTEST = ProgramOptions(
    _options(
        "q/quiet v/verbose x/exitfirst s l/showlocals lf/last-failed ff/failed-first co/collect-only no-header no-summary "
        "strict-markers strict-config k= m= r= n= tb= maxfail= durations= capture= color="
    ),
    exclusive=_sets("x+maxfail= s+capture= lf+ff"),
    pytest=True,
)
PROGRAMS: Mapping[str, ProgramOptions] = {
    "cat": ProgramOptions(_options("n/number s/squeeze-blank E/show-ends T/show-tabs v/show-nonprinting")),
    **dict.fromkeys(
        ("head", "tail"),
        ProgramOptions(_options(_LINES), exclusive=_sets("n=+c= q+v"), defaults={"n=": "10"}, count=True, shows=_above_each),
    ),
    "wc": ProgramOptions(_options("l/lines w/words c/bytes m/chars L/max-line-length"), shows=lambda _: True),
    "ls": ProgramOptions(
        _options("a/all A/almost-all l h/human-readable R/recursive r/reverse t S d/directory s/size 1 p"),
        exclusive=_sets("a+A t+S l+1"),
        lists=True,
        here=frozenset("*"),
        slash=frozenset("dlR"),
    ),
    "grep": ProgramOptions(
        _options(
            "n/line-number i/ignore-case r/recursive R/dereference-recursive w/word-regexp x/line-regexp v/invert-match c/count "
            "l/files-with-matches L/files-without-match o/only-matching q/quiet/silent s/no-messages H/with-filename "
            "h/no-filename E/extended-regexp F/fixed-strings G/basic-regexp P/perl-regexp I e/regexp= "
            "A/after-context= B/before-context= C/context= m/max-count= include= exclude= exclude-dir="
        ),
        exclusive=_sets("r+R E+F+G+P l+L+c+q H+h include=+exclude="),
        leading="e=",
        shows=_before_each,
        here=frozenset("rR"),
        slash=frozenset(),
    ),
    "sed": ProgramOptions(
        _options("n/quiet/silent E/r/regexp-extended s/separate u/unbuffered z/null-data e/expression="),
        leading="e=",
        shows=lambda given: "F" in (given.leading or ""),
    ),
    "sort": ProgramOptions(
        _options(
            "r/reverse n/numeric-sort u/unique f/ignore-case b/ignore-leading-blanks s/stable V/version-sort k/key= "
            "t/field-separator="
        ),
        exclusive=_sets("n+V u+s"),
    ),
    "uniq": ProgramOptions(_options("c/count d/repeated u/unique i/ignore-case"), exclusive=_sets("d+u")),
    "mkdir": ProgramOptions(_options("p/parents v/verbose"), shows=_verbosely),
    "rm": ProgramOptions(_options("r/R/recursive f/force v/verbose d/dir"), shows=_verbosely),
    "cp": ProgramOptions(_options("r/R/recursive p v/verbose"), shows=_verbosely),
    "pytest": _PYTEST,
    "git status": ProgramOptions(_options("s/short b/branch"), paths=False, git=True),
    "git diff": ProgramOptions(
        _options("stat cached/staged name-only name-status w/ignore-all-space"),
        exclusive=_sets("stat+name-only+name-status"),
        paths=False,
        git=True,
        clusters=False,
    ),
    "git log": ProgramOptions(_options("oneline stat n/max-count="), paths=False, git=True, clusters=False, count=True),
}
_COUNT = re.compile(r"-[0-9]+")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")


def find_program(words: Sequence[str]) -> tuple[tuple[str, ...], ProgramOptions, Sequence[str]] | None:
    """Find a program: how it is called, its entry, and its arguments; None for one that is not listed."""
    if len(words) >= 3 and _PYTHON.fullmatch(words[0]) and words[1:3] == ["-m", "pytest"]:
        return tuple(words[:3]), _PYTEST, words[3:]
    head = 2 if words[0] == "git" else 1
    entry = PROGRAMS.get(" ".join(words[:head]))
    return None if entry is None else (tuple(words[:head]), entry, words[head:])


def read_arguments(program: ProgramOptions, words: Sequence[str]) -> Arguments | None:
    """Read the arguments as the program reads them; None where that is not certain."""
    words = list(words)
    if program.count and not program.git and len(words) <= 2 and words and _COUNT.fullmatch(words[0]):
        words[0] = "-n" + words[0][1:]
    read = _read(program, words)
    if read is None:
        return None
    flags, values, operands = read
    given = Counter([*flags, *(name for name, _ in values)])
    if any(len(group & given.keys()) > 1 for group in program.exclusive) or any(given[name] > 1 for name, _ in values):
        return None
    leading = None
    if program.leading:
        option = [value for name, value in values if name == program.leading]
        if not option and not operands:
            return None
        leading = option[0] if option else operands.pop(0)
        values = [v for v in values if v[0] != program.leading]
    kept = sorted(v for v in values if program.defaults.get(v[0]) != v[1])
    found = Arguments(tuple(sorted(flags)), tuple(kept), leading, tuple(operands))
    if not operands and ("*" in program.here or program.here & given.keys()) and not program.shows(found):
        return replace(found, operands=(".",))
    return found


def _read(program: ProgramOptions, words: list[str]) -> tuple[list[str], list[tuple[str, str]], list[str]] | None:
    """Split words into options without a value, options with one, and operands, each in order."""
    flags: list[str] = []
    values: list[tuple[str, str]] = []
    operands: list[str] = []
    rest = words[::-1]
    while rest:
        word = rest.pop()
        if word == "--" and not program.git and not program.pytest:
            operands += rest[::-1]
            break
        if word == "-" or not word.startswith("-"):
            operands.append(word)
            continue
        if program.git and operands:
            return None
        for name, value in _split(program, word):
            if name is None:
                return None
            if not name.endswith("="):
                flags.append(name)
                continue
            if value is None:
                if not rest or (program.pytest and rest[-1].startswith("-")):
                    return None
                value = rest.pop()
            values.append((name, value))
    return flags, values, operands


def _split(program: ProgramOptions, word: str) -> list[tuple[str | None, str | None]]:
    """Split the options of one word, each with the value attached to it; a name is None where it is not understood."""
    if word.startswith("--"):
        spelling, equals, value = word.partition("=")
        name = program.options.get(spelling)
        if name is not None and equals and not name.endswith("="):
            name = None
        return [(name, value if equals else None)]
    if program.git and program.count and _COUNT.fullmatch(word):
        return [("n=", word[1:])]
    found: list[tuple[str | None, str | None]] = []
    for at, letter in enumerate(word[1:], 1):
        name = program.options.get(f"-{letter}")
        if name is not None and name.endswith("="):
            value = word[at + 1 :]
            found.append((None if program.pytest and value.startswith("=") else name, value or None))
            break
        found.append((name if program.clusters or len(word) == 2 else None, None))
    return found
