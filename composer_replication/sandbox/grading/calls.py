"""Calls of a project's code made in a sandbox and judged outside of it, where the code under test cannot see what is expected."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from composer_replication.sandbox.grading.literals import same
from composer_replication.sandbox.grading.pytest_run import CodeRunner, TestRun
from composer_replication.sandbox.protocol import Ending, ExecResult, Tree
from composer_replication.types.held_out_checks import HeldOutCall

Recorded: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]
"""Target -> different calls of it in order: arguments as JSON, and the test file that made the first such call."""


def record_calls(
    runner: CodeRunner, tree: Tree, *, sources: Sequence[str], extra_args: Sequence[str] = (), per_target: int = 24
) -> tuple[TestRun, Recorded]:
    """Run all tests, and record which functions in `sources` they call directly, with arguments that can be written down.

    Raises:
        SandboxError: the sandbox broke.
    """
    options = {"sources": list(sources), "limit": per_target}
    observer = {"programs": [_text("literals"), _text("calls_recorder")], "options": options}
    run, seen = runner.run_observed(tree, observer, extra_args)
    return run, {target: [(arguments, file) for arguments, file in calls] for target, calls in (seen or {}).items()}


def examine_calls(
    runner: CodeRunner, tree: Tree, calls: Sequence[tuple[str, str]], *, hash_seed: int | None = None
) -> list[dict[str, Any]] | None:
    """Make calls (target, arguments) of trusted code, and report what each did and ran (`calls_driver.examine`).

    `hash_seed` is another than the sandboxes' own 0. None when the program did not get to its end. Raises SandboxError.
    """
    env = {} if hash_seed is None else {"PYTHONHASHSEED": str(hash_seed)}
    return _make(runner, tree, calls, env, examine=True)[1]


def wrong_calls(runner: CodeRunner, tree: Tree, calls: Sequence[HeldOutCall]) -> tuple[list[int], Ending]:
    """Return the numbers of the calls that do not do what is expected, all of them when the program did not get to its end; and
    its ending.

    Raises SandboxError.
    """
    made = [(call.target, call.arguments) for call in calls]
    result, answers = _make(runner, tree, made, {}, examine=False)
    if answers is None or len(answers) != len(calls):
        return list(range(len(calls))), result.ending
    pairs = zip(calls, answers, strict=True)
    return [n for n, (call, answer) in enumerate(pairs) if not _is_right(json.loads(call.expected), answer)], result.ending


def _is_right(expected: Mapping[str, Any], answer: Any) -> bool:
    """Return whether an answer equals the expected one. The sandbox may have sent anything.

    An exception is right with exactly the bases of the expected one, from itself on: it may be a subclass, but not of others too.
    """
    if not isinstance(answer, dict) or answer.keys() != expected.keys():
        return False
    try:
        if "raises" in expected:
            wanted = expected["raises"]
            return bool(answer["raises"][-len(wanted) :] == wanted)
        after = answer["after"]
        return same(expected["returns"], answer["returns"]) and all(
            same(value, after[position]) for position, value in expected["after"].items()
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError):
        return False


def _make(
    runner: CodeRunner, tree: Tree, calls: Sequence[tuple[str, str]], env: Mapping[str, str], *, examine: bool
) -> tuple[ExecResult, list[Any] | None]:
    result, answer = runner.ask(tree, _program(), {"calls": list(calls), "examine": examine}, env, judged=not examine)
    return result, answer if isinstance(answer, list) else None


@cache
def _text(module: str) -> str:
    return Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")


@cache
def _program() -> str:
    texts = (_text("literals"), _text("calls_driver"))
    return f"for text in {texts!r}:\n    exec(compile(text, '<string>', 'exec'))"
