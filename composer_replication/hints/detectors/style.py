"""Rules of the user's own: regular expressions with a message, and questions that a judge answers, from a TOML file.

[[rule]]
name = "no-apology"
pattern = "(?i)\\bsorry\\b"
where = "text"                    # or "command" (of a shell), "code" (written by an edit), "arguments" (any text of a call)
message = "Do not apologise. Say what you will do."

[[rule]]
name = "says-why"
judge = "Does the turn change code without saying why?"
message = "Say in one sentence why before you change code."
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import regex  # type: ignore[import-untyped]  # ships without annotations

from composer_replication.actions.tool_effects import EffectKind
from composer_replication.hints.detectors.reading import CallStep, Reading
from composer_replication.types import Finding
from composer_replication.types.errors import ConfigError

Where: TypeAlias = Literal["text", "command", "code", "arguments"]

Ask: TypeAlias = Callable[[str], str | None]
"""Asks a judge, who answers in text; None when there is no answer."""

_SECONDS = 0.05
"""A pattern may take for one text; a text that takes longer does not match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternRule:
    """Says `message` where `pattern` is found."""

    name: str
    message: str
    pattern: Any
    """Compiled by `regex`, which can be stopped."""
    where: Where = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRule:
    """Says `message` where the judge answers `question` with yes."""

    name: str
    message: str
    question: str


@dataclass(frozen=True, slots=True)
class StyleRules:
    """Findings of kind `style`, one per rule and turn; the rule's message is the hint.

    Args:
        ask: who answers the questions of the rules that have one; they are not looked at without.
        unanswered: number of turns about which nothing was answered, by the name of the rule; `detect` counts there.
    """

    rules: Sequence[PatternRule | JudgeRule]
    ask: Ask | None = None
    kinds: tuple[str, ...] = ("style",)
    unanswered: Counter[str] = field(default_factory=Counter)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"judge"} if any(isinstance(rule, JudgeRule) for rule in self.rules) else ())

    def detect(self, work: Reading, /) -> Iterator[Finding]:
        steps: dict[int, list[CallStep]] = {}
        for step in work.steps:
            steps.setdefault(step.turn, []).append(step)
        for index in range(len(work.turns)):
            for rule in self.rules:
                if isinstance(rule, PatternRule):
                    finding = _search(rule, index, work.turns[index].text, steps.get(index, []))
                else:
                    finding = self._judged(rule, index, work.turns[index].text, steps.get(index, []))
                if finding is not None:
                    yield finding

    def _judged(self, rule: JudgeRule, turn: int, text: str, steps: Sequence[CallStep]) -> Finding | None:
        if self.ask is None:
            return None
        calls = "\n".join(f"call {s.call.name} with {dict(s.call.arguments)}"[:2_000] for s in steps if s.call is not None)
        answer = self.ask(f"One turn of a coding agent:\n\n{text[:4_000]}\n{calls}\n\n{rule.question} Answer yes or no.")
        if answer is None:
            self.unanswered[rule.name] += 1
        if answer is None or not re.match(r"\W*yes\b", answer, re.IGNORECASE):
            return None
        return Finding(kind="style", turn=turn, confidence=0.8, evidence={"rule": rule.name, "message": rule.message})


def _search(rule: PatternRule, turn: int, text: str, steps: Sequence[CallStep]) -> Finding | None:
    for argument, value in [(None, text)] if rule.where == "text" else _texts(rule.where, steps):
        try:
            found = rule.pattern.search(value, timeout=_SECONDS)
        except TimeoutError:
            continue
        if found is not None:
            evidence = {"rule": rule.name, "message": rule.message, "argument": argument, "match": found[0][:200]}
            return Finding(kind="style", turn=turn, span=found.span(), evidence=evidence)
    return None


_OLD = ("old", "old_string", "old_str")


def _texts(where: Where, steps: Iterable[CallStep]) -> Iterator[tuple[str, str]]:
    for step in steps:
        if step.call is None or step.call.error is not None:
            continue
        wanted = where == "arguments" or (step.effect.kind is EffectKind.SHELL if where == "command" else step.effect.changes)
        for name, value in step.call.arguments.items() if wanted else ():
            if isinstance(value, str) and not (where == "code" and (name in _OLD or "path" in str(name))):
                yield str(name), value


def load_rules(path: Path) -> tuple[PatternRule | JudgeRule, ...]:
    """Load the rules of a TOML file.

    Raises:
        ConfigError: the file cannot be read, or a rule in it is not one; the message names the file, the rule and the field.
    """
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", fix="name a TOML file of style rules: --rules STYLE.toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", fix="repair the file at the place named") from error
    rules = data.get("rule")
    if set(data) != {"rule"} or not isinstance(rules, list) or not rules:
        raise ConfigError(f"{path} must have [[rule]] tables and nothing else", fix="begin each rule with a line [[rule]]")
    made = tuple(_rule(path, number, rule) for number, rule in enumerate(rules, 1))
    names = [rule.name for rule in made]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: two rules are called {name!r}", fix="give each rule a unique name")
    return made


def _rule(path: Path, number: int, rule: Any) -> PatternRule | JudgeRule:
    def refuse(what: str, fix: str) -> ConfigError:
        return ConfigError(f"{path}, rule {number}: {what}", fix=fix)

    if not isinstance(rule, dict) or not all(isinstance(value, str) and value for value in rule.values()):
        raise refuse("every field must be a text that is not empty", "write name, message and pattern or judge as texts")
    if not {"name", "message"} <= set(rule) or ("pattern" in rule) == ("judge" in rule):
        raise refuse("it needs name, message and one of pattern and judge", "add what is missing")
    unknown = set(rule) - {"name", "message", "pattern", "judge", *(("where",) if "pattern" in rule else ())}
    if unknown:
        raise refuse(f"unknown field {min(unknown)!r}", "remove it; the fields are name, message, pattern, where, judge")
    if "judge" in rule:
        return JudgeRule(name=rule["name"], message=rule["message"], question=rule["judge"])
    where = rule.get("where", "text")
    if where not in get_args(Where):
        raise refuse(f"where = {where!r} is none of {', '.join(get_args(Where))}", "choose one of them")
    try:
        pattern = regex.compile(rule["pattern"])
    except regex.error as error:
        raise refuse(f"pattern: {error}", "write a regular expression as Python's re knows them") from error
    return PatternRule(name=rule["name"], message=rule["message"], pattern=pattern, where=where)
