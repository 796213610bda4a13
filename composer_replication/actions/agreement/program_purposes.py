"""What one simple command is for, told by its program and what it is called with."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.actions.shell_words import Word

LOOK, TEST, RUN, WRITE, REMOVE, INSTALL, SUBMIT = "look", "test", "run", "write", "remove", "install", "submit"
EVERYTHING = ""
"""A target that may be, or contain, any other."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """A kind of thing that a command does, and to what."""

    kind: str
    targets: tuple[str, ...] = (EVERYTHING,)
    """Paths, or packages."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOOKS = _names(
    "[ ag basename cat cmp column cut date df diff dirname du echo egrep fgrep file grep head history id jq less ls man md5sum "
    "more nl od printenv printf ps pwd readlink realpath rg seq sha256sum stat strings tac tail test tr tree true type uname "
    "uniq wc whereis which whoami xxd"
)
"""Programs that only print."""
_TESTS = _names("pytest py.test tox nox ctest rspec jest vitest mocha phpunit")
_RUNS = _names("node ruby perl bash sh make cmake gcc g++ cc java javac deno bun php")
_WRITES = _names("tee touch mkdir cp mv ln patch truncate install")
_REMOVES = _names("rm rmdir unlink")
_OTHER = {"chmod": "chmod", "chown": "chmod", "curl": "fetch", "wget": "fetch", "kill": "kill", "pkill": "kill"}
_GIT_LOOKS = _names("status diff log show blame ls-files grep rev-parse describe reflog shortlog cat-file")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_INSTALLERS: Mapping[str, frozenset[str]] = {
    "pip": frozenset({"install"}),
    "pip3": frozenset({"install"}),
    "conda": frozenset({"install"}),
    "apt": frozenset({"install"}),
    "apt-get": frozenset({"install"}),
    "npm": frozenset({"install", "i", "ci", "add"}),
    "yarn": frozenset({"add", "install"}),
    "pnpm": frozenset({"add", "install", "i"}),
    "poetry": frozenset({"add", "install"}),
    "uv": frozenset({"add", "sync"}),
    "cargo": frozenset({"add"}),
    "go": frozenset({"get"}),
}
_TESTERS: Mapping[str, frozenset[str]] = {
    "npm": frozenset({"test", "t"}),
    "yarn": frozenset({"test"}),
    "pnpm": frozenset({"test"}),
    "cargo": frozenset({"test", "nextest"}),
    "go": frozenset({"test"}),
    "mvn": frozenset({"test", "verify"}),
    "gradle": frozenset({"test", "check"}),
    "make": frozenset({"test", "check"}),
}
_VERSION = re.compile(r"(?<=.)[\[<>=!~;@]")
"""What begins a package's extras or version."""
_PIP_LOOKS = frozenset({"list", "show", "freeze", "check"})


def purpose_of(words: Sequence[Word]) -> Purpose | None:
    """Return the purpose of one simple command; None where its program is not known."""
    if not words or words[0].expands:
        return None
    program, rest = posixpath.basename(words[0].text), words[1:]
    own = _OWN.get("python" if _PYTHON.fullmatch(program) else program)
    if own is not None:
        return own(rest)
    sub = rest[0].text if rest else ""
    if sub in _INSTALLERS.get(program, ()):
        return _installed(rest[1:])
    if program in _TESTS or sub in _TESTERS.get(program, ()):
        return Purpose(TEST)
    if program in ("pip", "pip3"):
        return Purpose(LOOK if sub in _PIP_LOOKS else f"pip {sub}")
    if program in _LOOKS:
        return Purpose(LOOK)
    if program in _OTHER:
        return Purpose(_OTHER[program])
    for names, kind in ((_WRITES, WRITE), (_REMOVES, REMOVE)):
        if program in names:
            return Purpose(kind, _operands(rest) or (EVERYTHING,))
    if program == "submit":
        return Purpose(SUBMIT)
    runs = program in _RUNS or program in _TESTERS or words[0].text.startswith("./")
    return Purpose(RUN) if runs else None


def _operands(words: Iterable[Word]) -> tuple[str, ...]:
    """Return the words that are no options. Values of options may be among them, which only makes targets meet more often."""
    return tuple(EVERYTHING if word.expands else word.text for word in words if not word.text.startswith("-"))


def _git(words: Sequence[Word]) -> Purpose | None:
    """Return what a git command does. After `-C` its paths are those of another folder."""
    elsewhere = False
    while words and words[0].text in ("-C", "-c", "--no-pager"):
        elsewhere |= words[0].text == "-C"
        words = words[1 if words[0].text == "--no-pager" else 2 :]
    if not words or words[0].expands:
        return None
    purpose = _git_command(words)
    return Purpose(purpose.kind) if elsewhere else purpose


def _git_command(words: Sequence[Word]) -> Purpose:
    sub, rest = words[0].text, words[1:]
    texts = [word.text for word in rest]
    if sub in _GIT_LOOKS or (sub in ("branch", "tag", "remote", "stash") and _only_lists(sub, texts)):
        return Purpose(LOOK)
    match sub:
        case "checkout" | "restore":
            return _git_checkout(sub, rest, texts)
        case "reset":
            return Purpose("git restore") if "--hard" in texts else Purpose("git stage", _operands(rest) or (EVERYTHING,))
        case "add":
            return Purpose("git stage", _operands(rest) or (EVERYTHING,))
        case "stash":
            action = texts[0] if texts and not texts[0].startswith("-") else "push"
            return Purpose("git stash" if action in ("push", "save") else f"git stash {action}")
        case "rm":
            return Purpose(REMOVE, _operands(rest) or (EVERYTHING,))
        case "mv" | "apply":
            return Purpose(WRITE, (_operands(rest) if sub == "mv" else ()) or (EVERYTHING,))
        case "clean":
            return Purpose("git clean")
    return Purpose(f"git {sub}")


def _only_lists(sub: str, words: Sequence[str]) -> bool:
    if sub == "stash":
        return words[:1] in (["list"], ["show"])
    return not [word for word in words if not word.startswith("-")] and not {"-d", "-D", "-m", "--delete"} & set(words)


def _git_checkout(sub: str, rest: Sequence[Word], texts: Sequence[str]) -> Purpose:
    """Return what a checkout does: files are restored after `--`; without, a name may be a branch or a file."""
    if {"-b", "-B", "--orphan", "--detach"} & set(texts):
        return Purpose("git switch")
    if "--staged" in texts and "--worktree" not in texts:
        return Purpose("git stage", _operands(rest) or (EVERYTHING,))
    if "--" in texts:
        return Purpose("git restore", _operands(rest[texts.index("--") + 1 :]) or (EVERYTHING,))
    paths = _operands(rest)
    certain = sub == "restore" or any(path == "." or "/" in path or "." in path.strip(".") for path in paths)
    return Purpose("git restore", paths if certain and paths else (EVERYTHING,))


def _python(words: Sequence[Word]) -> Purpose | None:
    texts = [word.text for word in words]
    if texts[:1] == ["-m"] and len(texts) > 1:
        if texts[1] in ("pytest", "unittest"):
            return Purpose(TEST)
        return purpose_of(words[1:]) if texts[1] == "pip" else Purpose(RUN)
    return Purpose(LOOK) if texts in (["--version"], ["-V"]) else Purpose(RUN)


def _sed(words: Sequence[Word]) -> Purpose:
    if not any(re.fullmatch(r"-[a-zA-Z]*i.*|--in-place.*", word.text) for word in words):
        return Purpose(LOOK)
    scripted = any(word.text in ("-e", "-f") or word.text.startswith("--expression") for word in words)
    operands = _operands(words)
    return Purpose(WRITE, (operands if scripted else operands[1:]) or (EVERYTHING,))


def _find(words: Sequence[Word]) -> Purpose | None:
    texts = [word.text for word in words]
    if "-delete" in texts:
        return Purpose(REMOVE)
    for flag in ("-exec", "-execdir", "-ok"):
        if flag in texts:
            return _everywhere(purpose_of(words[texts.index(flag) + 1 :]))
    return Purpose(LOOK)


def _xargs(words: Sequence[Word]) -> Purpose | None:
    rest = list(words)
    while rest and rest[0].text.startswith("-"):
        takes = rest.pop(0).text in ("-I", "-n", "-P", "-L", "-d")
        rest = rest[1:] if takes else rest
    return _everywhere(purpose_of(rest)) if rest else Purpose(LOOK)


def _everywhere(purpose: Purpose | None) -> Purpose | None:
    """Return the purpose with targets that cannot be told."""
    return None if purpose is None else Purpose(purpose.kind)


def _uv(words: Sequence[Word]) -> Purpose | None:
    texts = [word.text for word in words]
    if texts[:1] in (["pip"], ["run"]):
        return purpose_of(words[texts[0] == "run" :])
    return _installed(words[1:]) if texts[:1] in (["add"], ["sync"]) else None


def _installed(words: Iterable[Word]) -> Purpose:
    """Return an installation of packages by their names alone; of everything that a project needs where none is named."""
    names = (_VERSION.split(name, maxsplit=1)[0].lower().replace("_", "-") for name in _operands(words))
    return Purpose(INSTALL, tuple(sorted(set(names))) or (EVERYTHING,))


def _awk(words: Sequence[Word]) -> Purpose | None:
    return None if any(word.text in ("-i", "inplace") for word in words) else Purpose(LOOK)


def _sort(words: Sequence[Word]) -> Purpose:
    return Purpose(WRITE if any(word.text.startswith(("-o", "--output")) for word in words) else LOOK)


def _npx(words: Sequence[Word]) -> Purpose | None:
    return Purpose(TEST if words and words[0].text in _TESTS else RUN)


_OWN: Mapping[str, Callable[[Sequence[Word]], Purpose | None]] = {
    "awk": _awk,
    "git": _git,
    "python": _python,
    "sed": _sed,
    "sort": _sort,
    "find": _find,
    "xargs": _xargs,
    "uv": _uv,
    "npx": _npx,
}
"""Programs whose purpose follows from their words."""
