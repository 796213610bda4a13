"""Generators of hints about an error turn: from the tool schemas, the error text, a better action or a judge.

Every source is something the agent's environment holds, another attempt has done or a teacher says. The deleted code is not among
them, and `leaks_gold` checks that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Protocol

from composer_replication.actions.calls import Call, render_action
from composer_replication.hints.better import better_actions
from composer_replication.hints.context import HintContext
from composer_replication.hints.detectors.registry import load_plugins
from composer_replication.hints.detectors.style import Ask
from composer_replication.hints.documentation import DocumentationHint
from composer_replication.hints.templates import TemplateHint
from composer_replication.types import Finding
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Transcript


class HintGenerator(Protocol):
    """Writes the hint for one finding, or passes. It may read what followed the turn: the loss is on that turn's tokens only."""

    @property
    def source(self) -> str:
        """Recorded in `Hint.source`."""
        ...

    def generate(self, finding: Finding, trajectory: Transcript, context: HintContext, /) -> str | None: ...


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_ERROR_LINE = re.compile(r"^E\s|\b\w*(?:Error|Exception|Timeout|Interrupt)\b|^FAILED\b|^assert\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EnvironmentErrorHint:
    """A hint for any finding with an observation: its last lines that name an error, with what a colon at their end announces, or
    its last lines when none does."""

    source: str = "environment"

    def generate(self, finding: Finding, _trajectory: Transcript, _context: HintContext, /) -> str | None:
        said = _error_lines(finding, max_lines=3, max_chars=300)
        return f"Hint: the result was:\n{said}" if said else None


_MOST_OF_FEEDBACK = 4_000


@dataclass(frozen=True, slots=True)
class FeedbackHint:
    """A hint for any finding with an observation: all that the environment answered, without its middle where it is longer than
    4,000 characters. SDPO (arXiv:2601.20802) gives the self-teacher such feedback."""

    source: str = "feedback"

    def generate(self, finding: Finding, _trajectory: Transcript, _context: HintContext, /) -> str | None:
        text = _ANSI.sub("", str(finding.evidence.get("observation", ""))).strip()
        if len(text) > _MOST_OF_FEEDBACK:
            half = _MOST_OF_FEEDBACK // 2
            text = f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"
        return f"Hint: the result was:\n{text}" if text else None


def _error_lines(finding: Finding, *, max_lines: int, max_chars: int) -> str:
    text = _ANSI.sub("", str(finding.evidence.get("observation", "")))
    lines = [line.strip() for line in text.splitlines() if line.strip().strip("=-_ ")]
    kept = (_with_details(lines, max_lines - 1) or lines)[-max_lines:]
    shown: list[str] = []
    for line in reversed(kept):  # whole lines: the name of an error stands at the head of its line
        short = line if len(line) <= max_chars else f"{line[: max_chars - 3]}..."
        if shown and sum(map(len, shown)) + len(short) > max_chars:
            break
        shown.insert(0, short)
    return "\n".join(shown)


def _with_details(lines: Sequence[str], most: int) -> list[str]:
    """Return the lines that name an error, and up to `most` others after each that ends with a colon: a list of issues, say."""
    kept, announced = [], 0
    for line in lines:
        if _ERROR_LINE.search(line):
            kept.append(line)
            announced = most if line.endswith(":") else 0
        elif announced:
            kept.append(line)
            announced -= 1
    return kept


@dataclass(frozen=True, slots=True)
class BetterActionHint:
    """A hint from a better action in the same place, by a sibling that passed the tests or by the teachers who agree.

    It says which tool was called on what; the action itself only when the context asks for a demonstration (`HintContext.demo`).
    """

    source: str
    """`sibling` or `consensus`."""

    def generate(self, finding: Finding, trajectory: Transcript, context: HintContext, /) -> str | None:
        better = next((one for one in better_actions(trajectory, finding.turn, context) if one.source == self.source), None)
        if better is None:
            return None
        who = (
            "an attempt at this task that passed its tests"
            if self.source == "sibling"
            else "other agents, asked what to do here,"
        )
        if context.demo:
            return f"Hint: {who} went on with:\n{better.text}"
        done = " and ".join(_done(call) for call in better.calls)
        return f"Hint: {who} {done or 'called no tool'} here."


def _done(call: Call) -> str:
    path = next((str(call.arguments[name]) for name in ("path", "file_path") if call.arguments.get(name)), "")
    return f"called {call.name}{f' on {path}' if path else ''}"


_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s+")
_MOST_OF_JUDGE = 400
_QUESTION = """A coding agent made a mistake. Write a hint that would have prevented it: at most two sentences, addressed to the
agent, about this step only. Do not write code and do not give the solution away. If you have nothing useful to say, answer: none.

Task:
{task}

What the agent did:
{action}

What is wrong ({kind}):
{evidence}"""


@dataclass(frozen=True, slots=True)
class JudgeHint:
    """A hint by a teacher or by the policy itself, which is shown the turn and what is wrong with it, cut to two sentences."""

    ask: Ask
    source: str = "judge"
    """`judge` or `policy`."""

    def generate(self, finding: Finding, trajectory: Transcript, _context: HintContext, /) -> str | None:
        turn = trajectory.turns[finding.turn]
        calls = [Call(call.name, call.arguments) for call in turn.tool_calls if call.error is None]
        said = self.ask(
            _QUESTION.format(
                task="\n".join(str(m.get("content") or "") for m in trajectory.messages if m["role"] == "user")[:3_000],
                action=(render_action(turn.text, calls) or turn.text)[:3_000],
                kind=finding.kind,
                evidence=_evidence(finding)[:2_000],
            )
        )
        text = " ".join((said or "").split())
        if not text or re.fullmatch(r"\W*none\W*", text, re.IGNORECASE):
            return None
        return f"Hint: {' '.join(_SENTENCE_END.split(text)[:2])[:_MOST_OF_JUDGE]}"


def _evidence(finding: Finding) -> str:
    shown = _error_lines(finding, max_lines=20, max_chars=1_500)
    rest = {key: value for key, value in finding.evidence.items() if key not in ("observation", "arguments", "passed", "changed")}
    return f"{shown}\n{rest}".strip()


BUILTIN_GENERATORS: Mapping[str, HintGenerator] = MappingProxyType(
    {
        "documentation": DocumentationHint(),
        "template": TemplateHint(),
        "environment": EnvironmentErrorHint(),
        "feedback": FeedbackHint(),
        "sibling": BetterActionHint("sibling"),
        "consensus": BetterActionHint("consensus"),
    }
)
"""Generators by their run-file name; those of `ASKING` are more."""

ASKING: Mapping[str, str] = MappingProxyType(
    {
        "judge": "name [[teachers]], or leave 'judge' out",
        "policy": "leave 'policy' out: only what trains beside its own engine can ask it",
    }
)
"""Generators that ask a model, each with what to do where there is none to ask."""

DEFAULT_GENERATORS = ("documentation", "template", "environment")
"""The default generators, tried in this order; the first that has something to say is used."""

GROUP = "composer_replication.hints"


@cache
def _known() -> Mapping[str, HintGenerator]:
    taken = (*BUILTIN_GENERATORS, *ASKING)
    plugins = load_plugins(GROUP, taken=taken, kind="generator", method="generate", has="source, generate")
    return {**BUILTIN_GENERATORS, **plugins}


def generators_named(names: Sequence[str], ask: Mapping[str, Ask] = MappingProxyType({})) -> tuple[HintGenerator, ...]:
    """Return the generators of these names, in this order.

    Args:
        ask: by name, how those of `ASKING` ask that can.

    Raises:
        ConfigError: there is none of that name, or one has nobody to ask.
    """
    known = {**_known(), **{name: JudgeHint(how, name) for name, how in ask.items()}}
    for name in names:
        if name in ASKING and name not in ask:
            raise ConfigError(f"the hint generator {name!r} has nobody to ask", fix=ASKING[name])
        if name not in known:
            raise ConfigError(f"there is no hint generator {name!r}", fix=f"choose among: {', '.join({**known, **ASKING})}")
    return tuple(known[name] for name in names)
