"""The TaskSpec of a folder that anybody may have written: data of the right types, in sane measure, that names nothing outside of
its tree."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from composer_replication.types import TaskSpec, from_json
from composer_replication.types.held_out_checks import HeldOutProgram

_LONGEST_TIMEOUT_S = 3600.0
_MOST_PATTERNS, _MOST_WILDCARDS = 10_000, 12
"""Of the allow list. A pattern is matched as a regular expression, in time that grows steeply with its wildcards."""
_MOST_IDS = 200_000
_LONGEST_ID = 200
_LONGEST_PROGRAM = 1 << 20
"""Characters of a held-out program."""


def read_spec(text: bytes) -> TaskSpec:
    """Read a `TaskSpec` from JSON that anybody may have written.

    Raises:
        ValueError: it is not a task; says what is wrong with it.
    """
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("its JSON is too deep") from error
    spec = spec_of(data)
    _check_measure(spec)
    return spec


def spec_of(data: Any) -> TaskSpec:
    """Return the `TaskSpec` that plain data hold.

    Raises:
        ValueError: it is not a task; says what is wrong with it.
    """
    try:
        _refuse_surrogates(json.dumps(data, ensure_ascii=False))
        spec = from_json(TaskSpec, data)
        _check(spec)
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError, re.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return spec


def is_inside(path: str) -> bool:
    """Return whether a POSIX path stays below the folder it is relative to."""
    return bool(path) and not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def is_task_id(text: str) -> bool:
    """Return whether folders and files can be named by an id: parts between slashes, none of which is hidden or leads away."""
    parts = text.split("/")
    return len(text) <= _LONGEST_ID and all(re.fullmatch(r"[^.\x00-\x1f\x7f\\][^\x00-\x1f\x7f\\]*", part) for part in parts)


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it holds half a surrogate pair") from error


def _check_measure(spec: TaskSpec) -> None:
    _demand(len((*spec.fail_to_pass, *spec.pass_to_pass)) <= _MOST_IDS, f"it has more than {_MOST_IDS} tests")
    _demand(spec.test_timeout_s <= _LONGEST_TIMEOUT_S, "its time limit is not within an hour")
    _demand(len(spec.editable) <= _MOST_PATTERNS, f"its allow list is longer than {_MOST_PATTERNS}")
    for pattern in spec.editable:
        _demand(sum(map(pattern.count, "*?[")) <= _MOST_WILDCARDS, f"a pattern has more than {_MOST_WILDCARDS} wildcards")
    for program in spec.hidden.programs:
        _demand(len(program.steps) + len(program.expected) <= _LONGEST_PROGRAM, "a held-out program is too long")


def _check(spec: TaskSpec) -> None:
    texts = (spec.task_id, spec.source, spec.source_digest, spec.instruction)
    ids = (*spec.fail_to_pass, *spec.pass_to_pass)
    anti_tests = spec.hidden.anti_tests
    _demand(all(isinstance(text, str) for text in texts), "a text is not a string")
    _demand(is_task_id(spec.task_id), f"its id {spec.task_id[:80]!r} is not a name for a folder")
    _demand(isinstance(spec.impossible, bool), "impossible is not true or false")
    _demand(isinstance(spec.tests_in_sources, bool), "tests_in_sources is not true or false")
    _demand(_strings((*ids, *spec.editable, *spec.python_path)), "a list of strings holds something else")
    _demand(_is_number(spec.test_timeout_s) and spec.test_timeout_s > 0, "its time limit is no number of seconds")
    files = {test_id.partition("::")[0] for test_id in ids}
    _demand(all(map(is_inside, files)), "it names a test outside of its tree")
    _demand(all(is_inside(folder) for folder in spec.python_path), "it imports from outside of its tree")
    _demand(all(is_inside(d.path) and _strings((d.path, d.qualname)) for d in spec.deleted), "it deletes outside of its tree")
    _demand(all(isinstance(d.lines, int) for d in spec.deleted), "a number of lines is not a number")
    for pattern in spec.editable:
        for group in re.findall(r"\[[^]]+\]", pattern):
            re.compile(group)
    _demand(isinstance(spec.hidden.weakness, str), "a weakness is not text")
    for program in spec.hidden.programs:
        _check_program(program)
    _demand(all(isinstance(a.expectation, int) and _strings((a.test,)) for a in anti_tests), "an anti-test is not one")
    _demand(all(is_inside(a.test.partition("::")[0]) for a in anti_tests), "it names an anti-test outside of its tree")


def _check_program(program: HeldOutProgram) -> None:
    _demand(_strings((program.steps, program.expected, program.uses)), "a held-out program is not text")
    _demand(isinstance(program.new_calls, int), "a number of new calls is not a number")
    steps, expected = json.loads(program.steps), json.loads(program.expected)
    _demand(isinstance(steps, list) and isinstance(expected, list), "a held-out program is no list of steps")
    _demand(len(steps) == len(expected), "a held-out program has not as many answers as steps")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _strings(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
