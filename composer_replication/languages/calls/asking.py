"""Asking for held-out calls, the same in every language: a book of them, what is written down of tests, and judging work."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from composer_replication.languages.calls.book import (
    CallBook,
    is_answer,
    read_program,
    steady_calls,
    with_variations,
    without_throwing,
    wrong_answers,
)
from composer_replication.languages.calls.call import Answer, FunctionCall
from composer_replication.languages.calls.values import Value
from composer_replication.sandbox.grading.pytest_run import TestRun
from composer_replication.sandbox.protocol import Ending
from composer_replication.types.held_out_checks import HeldOutProgram

Asked: TypeAlias = tuple[Sequence[Answer | None], Ending, str]
"""An answer for each call, None for one without; how the sandbox ended; and what a compiler or loader complained of."""


def answered_book(
    run: TestRun, recorded: Iterable[FunctionCall], seed: int, ask: Callable[[Sequence[FunctionCall], bool], Asked]
) -> CallBook:
    """Vary the calls of tests, and keep what the gold code answers alike in two processes.

    Args:
        run: the run of the tests that wrote their calls down.
        ask: makes calls of the gold code; with True it also tells which blocks each of them runs.

    Raises:
        SandboxError: the sandbox broke.
    """
    calls, bases = with_variations(recorded, seed)
    if not calls:
        why = next(iter(run.collect_errors), f"what they are given cannot be written down, or the tests ended: {run.ending}")
        return CallBook(calls={}, notes=(f"no call of the tests could be recorded: {why}",))
    first, _, said = ask(calls, True)
    again, _, _ = ask(calls, False)
    kept = without_throwing(steady_calls(calls, bases, first, again))
    return CallBook(calls=kept, notes=(f"held-out calls: {said}",) if said else ())


def recorded_values(
    lines: Iterable[Any], known: Container[str], is_value: Callable[[Any], bool]
) -> Iterator[tuple[str, list[Value]]]:
    """Yield what recorders wrote down as `["call", KEY, VALUES]`: calls of known functions, with values that can be made again.
    A function of which `["full", KEY]` says that it was called more often is left out."""
    lines = [line for line in lines if isinstance(line, list) and len(line) > 1 and isinstance(line[1], str)]
    full = {line[1] for line in lines if line[0] == "full"}
    for line in lines:
        if len(line) == 3 and line[0] == "call" and line[1] in known and line[1] not in full:
            given = line[2]
            if isinstance(given, list) and given and all(map(is_value, given)):
                yield line[1], given


def answers_of(found: Any, groups: Sequence[Sequence[int]], count: int) -> tuple[list[Answer | None], str]:
    """Read what a sandbox says of calls: for each group of them a list of its answers, and a complaint.

    Args:
        groups: the numbers of the calls in each.
        count: how many calls there are.
    """
    answers: list[Answer | None] = [None] * count
    if not isinstance(found, list) or len(found) != len(groups):
        return answers, ""
    said = ""
    for numbers, one in zip(groups, found, strict=True):
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], list)):
            continue
        said = said or str(one[1])
        for number, answer in zip(numbers, one[0], strict=False):  # a process that ended early has answered some
            answers[number] = answer if is_answer(answer) else None
    return answers, said


def judged_calls(
    programs: Sequence[HeldOutProgram],
    is_call: Callable[[FunctionCall], bool],
    ask: Callable[[Sequence[FunctionCall]], Asked],
) -> tuple[list[int], Ending]:
    """Return the numbers of the held-out calls whose answers are wrong, and how the sandbox ended.

    Args:
        is_call: as for `read_program`.
        ask: makes calls of the work.

    Raises:
        TaskError: a program is not a call.
        SandboxError: the sandbox broke.
    """
    known = [read_program(program, is_call) for program in programs]
    if not known:
        return [], Ending.EXITED
    answers, ending, _ = ask([call for call, _ in known])
    return wrong_answers(known, answers), ending
