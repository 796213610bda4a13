"""Tell the purpose of one simple command from its program and its arguments; None where that is not certain."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.actions.shell_words import Word

LOOK, TEST, WRITE, REMOVE, PATCH, INSTALL, SUBMIT = "look", "test", "write", "remove", "patch", "install", "submit"
"""PATCH may write or remove."""
EVERYTHING = ""
"""A target that may be, or contain, any other."""
PROJECT = "the project"
"""The target of an installation of the project itself."""


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
    "wc whereis which whoami xxd"
)
"""Programs that only print."""
_TESTS = _names("pytest py.test tox nox ctest rspec jest vitest mocha phpunit")
_WRITES = _names("tee touch mkdir cp ln")
_REMOVES = _names("rm rmdir unlink")
_PATCHES = _names("mv patch truncate install")
_OTHER = {"chmod": "chmod", "chown": "chmod", "curl": "fetch", "wget": "fetch", "kill": "kill", "pkill": "kill"}
_GIT_LOOKS = _names("status diff log show blame ls-files ls-tree grep rev-parse describe reflog shortlog cat-file")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_PIP = _names("pip pip3")
_INSTALLERS: Mapping[str, tuple[str, frozenset[str]]] = {
    "pip": (INSTALL, frozenset({"install"})),
    "pip3": (INSTALL, frozenset({"install"})),
    "conda": (INSTALL, frozenset({"install"})),
    "poetry": (INSTALL, frozenset({"add", "install"})),
    "apt": ("apt install", frozenset({"install"})),
    "apt-get": ("apt install", frozenset({"install"})),
    "npm": ("npm install", frozenset({"install", "i", "ci", "add"})),
    "yarn": ("npm install", frozenset({"add", "install"})),
    "pnpm": ("npm install", frozenset({"add", "install", "i"})),
    "cargo": ("cargo add", frozenset({"add"})),
    "go": ("go get", frozenset({"get"})),
}
INSTALLS = frozenset(kind for kind, _ in _INSTALLERS.values())
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
"""Begins the extras or the version in a package requirement."""
_PIP_LOOKS = frozenset({"list", "show", "freeze", "check"})
_ASKS_VERSION = frozenset({"--version", "-V", "-VV"})
_MAGIC = re.compile(r"^:|[*?\[]")
"""Characters of a path that git expands itself."""


def purpose_of(words: Sequence[Word]) -> Purpose | None:
    """Return the purpose of one simple command; None where its program is not known, or may do several things."""
    if not words or words[0].expands:
        return None
    program, rest = posixpath.basename(words[0].text), words[1:]
    own = _OWN.get("python" if _PYTHON.fullmatch(program) else program)
    if own is not None:
        return own(rest)
    if program in _PIP:
        return _pip(rest)
    sub = rest[0].text if rest else ""
    kind, verbs = _INSTALLERS.get(program, ("", frozenset()))
    if sub in verbs:
        return _installed(kind, rest[1:])
    if program in _TESTS or sub in _TESTERS.get(program, ()):
        return Purpose(TEST)
    if program in _LOOKS:
        return Purpose(LOOK)
    if program in _OTHER:
        return Purpose(_OTHER[program])
    for names, of_names in ((_WRITES, WRITE), (_REMOVES, REMOVE), (_PATCHES, PATCH)):
        if program in names:
            return Purpose(of_names, _operands(rest) or (EVERYTHING,))
    return Purpose(SUBMIT) if program == "submit" else None


def _operands(words: Iterable[Word]) -> tuple[str, ...]:
    """Return the words that are no options. Values of options may be among them, which only makes targets meet more often."""
    return tuple(EVERYTHING if word.expands else word.text for word in words if not word.text.startswith("-"))


# --- git --------------------------------------------------------------------------------------------------------------


def _git(words: Sequence[Word]) -> Purpose | None:
    """Return what a git command does. After `-C` its paths are those of another folder."""
    elsewhere = False
    while words and words[0].text in ("-C", "-c", "--no-pager", "-P"):
        elsewhere |= words[0].text == "-C"
        words = words[2 if words[0].text in ("-C", "-c") else 1 :]
    if not words or words[0].expands:
        return None
    purpose = _git_command(words[0].text, words[1:])
    return Purpose(purpose.kind) if elsewhere and purpose is not None else purpose


def _git_command(sub: str, rest: Sequence[Word]) -> Purpose | None:
    """Return what a subcommand does; None for those that may do what others do too."""
    texts = [word.text for word in rest]
    if sub in _GIT_LOOKS:
        return None if any(text.startswith("--output") for text in texts) else Purpose(LOOK)
    paths = tuple(EVERYTHING if _MAGIC.search(path) else path for path in _operands(rest)) or (EVERYTHING,)
    match sub:
        case "branch" | "tag" | "remote":
            return Purpose(LOOK) if not texts or texts in (["-a"], ["-r"], ["-v"], ["-vv"], ["-l"], ["--list"]) else None
        case "checkout" | "restore":
            return _git_checkout(sub, rest, texts)
        case "reset":
            return Purpose("git restore" if "--hard" in texts else "git stage")
        case "add":
            return Purpose("git stage", paths)
        case "stash":
            return _git_stash(texts)
        case "rm":
            return Purpose("git stage") if "--cached" in texts else Purpose(REMOVE, paths)
        case "mv" | "apply":
            return Purpose(PATCH, paths if sub == "mv" else (EVERYTHING,))
        case "clean":
            return Purpose(REMOVE)
        case "commit" | "push":
            return Purpose(f"git {sub}")
    return None


def _git_stash(texts: Sequence[str]) -> Purpose | None:
    action = texts[0] if texts and not texts[0].startswith("-") else "push"
    if action in ("list", "show"):
        return Purpose(LOOK)
    kinds = {"push": "git stash", "save": "git stash", "pop": "git stash pop", "apply": "git stash pop"}
    return Purpose(kinds[action]) if action in kinds else None


def _git_checkout(sub: str, rest: Sequence[Word], texts: Sequence[str]) -> Purpose | None:
    """Return what a checkout does where that is certain: after `--` there are files, without a name may be a branch."""
    if "--staged" in texts and "--worktree" not in texts:
        return Purpose("git stage")
    if {"-b", "-B", "-c", "-C", "--orphan", "--detach", "--staged"} & set(texts):
        return None
    named = rest[texts.index("--") + 1 :] if "--" in texts else rest
    paths = tuple(EVERYTHING if _MAGIC.search(path) else path for path in _operands(named))
    return Purpose("git restore", paths or (EVERYTHING,)) if "--" in texts or sub == "restore" or paths == (".",) else None


# --- other programs with words of their own ---------------------------------------------------------------------------


def _python(words: Sequence[Word]) -> Purpose | None:
    """Return what Python does: tests or installs. A script may do anything."""
    texts = [word.text for word in words]
    if texts[:1] == ["-m"] and len(texts) > 1:
        if texts[1] in ("pytest", "unittest"):
            return Purpose(TEST)
        return purpose_of(words[1:]) if texts[1] == "pip" else None
    return Purpose(LOOK) if len(texts) == 1 and texts[0] in _ASKS_VERSION else None


def _pip(words: Sequence[Word]) -> Purpose | None:
    while words and words[0].text.startswith("-"):
        if words[0].text in _ASKS_VERSION:
            return Purpose(LOOK)
        words = words[1:]
    sub = words[0].text if words else ""
    if sub == "install":
        return _installed(INSTALL, words[1:])
    return Purpose(LOOK) if sub in _PIP_LOOKS else Purpose("pip uninstall") if sub == "uninstall" else None


def _installed(kind: str, words: Sequence[Word]) -> Purpose:
    """Return an installation of packages by their names alone; of everything where other things are named, or nothing is."""
    if any(word.expands or word.text in ("-r", "-c", "--requirement", "--with", "--extra", "--group") for word in words):
        return Purpose(kind)
    return Purpose(kind, tuple(sorted({_package(name) for name in _operands(words)})) or (EVERYTHING,))


def _package(name: str) -> str:
    bare = _VERSION.split(name, maxsplit=1)[0].lower().replace("_", "-")
    if bare.startswith((".", "/")):
        return PROJECT
    return EVERYTHING if re.search(r"[/:+.]", bare) else bare


def _uv(words: Sequence[Word]) -> Purpose | None:
    texts = [word.text for word in words]
    if texts[:1] in (["pip"], ["run"]):
        return purpose_of(words[texts[0] == "run" :])
    return _installed(INSTALL, words[1:]) if texts[:1] in (["add"], ["sync"]) else None


def _sed(words: Sequence[Word]) -> Purpose | None:
    if not any(re.fullmatch(r"-[a-zA-Z]*i.*|--in-place.*", word.text) for word in words):
        return None if any(re.search(r"w\s*\S", word.text) for word in words) else Purpose(LOOK)  # `w` writes a file
    scripted = any(word.text in ("-e", "-f") or word.text.startswith("--expression") for word in words)
    operands = _operands(words)
    return Purpose(WRITE, (operands if scripted else operands[1:]) or (EVERYTHING,))


def _awk(words: Sequence[Word]) -> Purpose | None:
    writes = any(word.text in ("-i", "inplace") or re.search(r">|\||system|close", word.text) for word in words)
    return None if writes else Purpose(LOOK)


def _sort(words: Sequence[Word]) -> Purpose | None:
    writes = any(re.match(r"-[a-zA-Z]*o|--output", word.text) for word in words)
    return None if writes else Purpose(LOOK)


def _uniq(words: Sequence[Word]) -> Purpose | None:
    return Purpose(LOOK) if len(_operands(words)) < 2 else None


def _find(words: Sequence[Word]) -> Purpose | None:
    texts = [word.text for word in words]
    if "-delete" in texts:
        return Purpose(REMOVE)
    for flag in ("-exec", "-execdir", "-ok"):
        if flag in texts:
            return _everywhere(purpose_of(words[texts.index(flag) + 1 :]))
    return None if any(text.startswith("-fprint") for text in texts) else Purpose(LOOK)


def _xargs(words: Sequence[Word]) -> Purpose | None:
    rest = list(words)
    while rest and rest[0].text.startswith("-"):
        takes = rest.pop(0).text in ("-I", "-n", "-P", "-L", "-d")
        rest = rest[1:] if takes else rest
    return _everywhere(purpose_of(rest)) if rest else Purpose(LOOK)


def _everywhere(purpose: Purpose | None) -> Purpose | None:
    """Return the purpose with targets that cannot be told."""
    return None if purpose is None else Purpose(purpose.kind)


def _npx(words: Sequence[Word]) -> Purpose | None:
    return Purpose(TEST) if words and words[0].text in _TESTS else None


_OWN: Mapping[str, Callable[[Sequence[Word]], Purpose | None]] = {
    "awk": _awk,
    "find": _find,
    "git": _git,
    "npx": _npx,
    "python": _python,
    "sed": _sed,
    "sort": _sort,
    "uniq": _uniq,
    "uv": _uv,
    "xargs": _xargs,
}
"""Programs whose purpose follows from their words."""
