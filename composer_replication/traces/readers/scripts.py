"""The one tool call of a script: in Codex's code mode the model writes JavaScript that calls `tools.NAME(ARGUMENT)`.

A call is taken out where it is certain: it is the script's only one, nothing before it can leave it out or repeat it, and its
argument is a literal or the name of one. What follows it, such as what is shown of its result, does not matter. Nothing is run.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from composer_replication.actions.calls import MAX_NESTING

_COMMENT = r"//[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/)?"
_SPACE = re.compile(rf"(?:\s|{_COMMENT})*")
_STRING = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\$]|\\.|\$(?!\{))*`", re.DOTALL)
_SKIPPED = re.compile(rf"{_STRING.pattern}|{_COMMENT}", re.DOTALL)
"""Text in which no call can stand. A template with `${` is none: it may hold one."""
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,15})(?:\.\d{1,16})?(?![\w.])")
_NAME = re.compile(r"[A-Za-z_$][\w$]*")
_WORDS = {"true": True, "false": False, "null": None}
_DECLARED = re.compile(r"(?:const|let|var)\s+([A-Za-z_$][\w$]*)\s*=\s*")
_LED = re.compile(
    r"(?:(?:const|let|var)\s+)?(?:(?:[A-Za-z_$][\w$]*|\{[\w$\s,:]*\}|\[[\w$\s,]*\])\s*=(?!=)\s*)?"
    r"(?:(?!tools\.|(?:while|for|function|switch)\b)[\w$.]+\s*\(\s*|\(\s*|await\s+)*"
)
"""Words before a call that neither leave it out nor repeat it: what takes its result, a function that is given it, `await`."""
_CALLED = re.compile(r"tools\.([A-Za-z_]\w*)\s*\(\s*")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}|(\r\n|.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": "", "\r\n": ""}


class _NoLiteralError(Exception):
    """The text is not a literal, or not one that is understood here."""


def call_in(script: str) -> tuple[str, Any] | None:
    """Return the tool and the argument of a script's only call; None where it has none or several, or is not understood."""
    if len(re.findall(r"\btools\b", _SKIPPED.sub('""', script))) != 1:
        return None
    names: dict[str, Any] = {}
    at = _declarations(script, names)
    led = _LED.match(script, at)
    called = _CALLED.match(script, led.end() if led else at)
    if called is None:
        return None
    try:
        argument, end = _literal(script, _space(script, called.end()), names, 0)
    except _NoLiteralError:
        return None
    return (called[1], argument) if script[_space(script, end) :].startswith(")") else None


def _declarations(script: str, names: dict[str, Any]) -> int:
    """Enter the literals that a script declares at its beginning in `names`; return where the first other statement begins."""
    at = _space(script, 0)
    while declared := _DECLARED.match(script, at):
        try:
            value, end = _literal(script, _space(script, declared.end()), names, 0)
        except _NoLiteralError:
            break
        end = _space(script, end)
        names[declared[1]] = value
        at = _space(script, end + 1) if script[end : end + 1] == ";" else end
    return at


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _literal(text: str, at: int, names: dict[str, Any], depth: int) -> tuple[Any, int]:
    """Return the value that begins at `at`, and where it ends. Raises _NoLiteralError."""
    if depth > MAX_NESTING:
        _refuse()
    if text[at : at + 1] in ("{", "["):
        return _object(text, at + 1, names, depth) if text[at] == "{" else _list(text, at + 1, names, depth)
    if string := _STRING.match(text, at):
        return _unescaped(string[0][1:-1]), string.end()
    if number := _NUMBER.match(text, at):
        return float(number[0]) if "." in number[0] else int(number[0]), number.end()
    word = _NAME.match(text, at)
    if word is None or (word[0] not in _WORDS and word[0] not in names):
        _refuse()
    return _WORDS[word[0]] if word[0] in _WORDS else names[word[0]], word.end()


def _list(text: str, at: int, names: dict[str, Any], depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = _space(text, at)
    while text[at : at + 1] != "]":
        value, at = _literal(text, at, names, depth + 1)
        found.append(value)
        at = _after_item(text, at, "]")
    return found, at + 1


def _object(text: str, at: int, names: dict[str, Any], depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    at = _space(text, at)
    while text[at : at + 1] != "}":
        string, name = _STRING.match(text, at), _NAME.match(text, at)
        key = string or name
        if key is None or key[0].startswith("`"):
            _refuse()
        word = _unescaped(key[0][1:-1]) if string else key[0]
        at = _space(text, key.end())
        if text[at : at + 1] == ":":
            found[word], at = _literal(text, _space(text, at + 1), names, depth + 1)
        elif name and word in names:  # `{cmd}` for `{cmd: cmd}`
            found[word] = names[word]
        else:
            _refuse()
        at = _after_item(text, at, "}")
    return found, at + 1


def _after_item(text: str, at: int, end: str) -> int:
    at = _space(text, at)
    if text[at : at + 1] == ",":
        return _space(text, at + 1)
    if text[at : at + 1] != end:
        _refuse()
    return at


def _refuse() -> NoReturn:
    raise _NoLiteralError


def _unescaped(text: str) -> str:
    """Return what a string's source stands for; half a surrogate pair becomes U+FFFD, as in requests."""
    plain = _ESCAPE.sub(_character, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is None:
        return _ESCAPED.get(escape[4], escape[4])
    return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else "\ufffd"
