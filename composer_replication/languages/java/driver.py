"""Compile and run the tests of a Java project inside a sandbox, and report each by id over the private channel.

The tests run on a JVM behind a runner of ours, which writes a line for each to a descriptor that it inherits. What tests print,
exit statuses and totals count for nothing: a test without a line of its own has not passed.

This text runs behind that of `toolchain`, in one namespace.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.languages.java.settings import class_of, has_tests, java_paths, place_of, runners_for
    from composer_replication.languages.java.toolchain import (
        ENVIRONMENT,
        WORK,
        compile_main,
        compiled,
        jars,
        last_line,
        resources_of,
        run_watched,
        support_classes,
        text_of_file,
    )
    from composer_replication.languages.tell import tell

MOST_STARTS = 60
"""JVMs that tests may end, or hang in, before the rest of them count as missing."""


@dataclass
class Built:
    """A compiled project."""

    class_path: list[str]
    tests: list[str]
    """Files whose classes are to run."""
    errors: list[str] = field(default_factory=list)


def test_files(request: Mapping[str, Any], paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files of tests that are to run, and all files that hold code of tests."""
    asked = {test_id.partition("::")[0] for test_id in request["ids"]}
    roots = [root.rstrip("/") for root in request["extra"] if not root.startswith("-")]

    def below(path: str) -> bool:
        return any(root == "." or path == root or path.startswith(root + "/") for root in roots)

    named = [root for root in roots if root != "."]
    given = [path for path in paths if any(path == root or path.startswith(root + "/") for root in named)]
    around = [path for path in paths if place_of(path) == "test" or path in asked or path in given]
    if asked:
        return [path for path in around if path in asked], around
    wanted = [path for path in around if not roots or below(path)]
    return [path for path in wanted if has_tests(path, text_of_file(path))], around


def needed_by(wanted: Iterable[str], around: Iterable[str]) -> list[str]:
    """Return test files with those whose names stand in them, and in these, and so on."""
    texts = {path: set(re.findall(r"\w+", text_of_file(path))) for path in around}
    by_name: dict[str, list[str]] = {}
    for path in texts:
        by_name.setdefault(os.path.basename(path).removesuffix(".java"), []).append(path)
    found: dict[str, None] = {}
    waiting = list(wanted)
    while waiting:
        path = waiting.pop()
        if path not in found and path in texts:
            found[path] = None
            waiting += [other for word in texts[path] & by_name.keys() for other in by_name[word]]
    return sorted(found)


def built(request: Mapping[str, Any]) -> Built:
    """Compile the project's code, then the files of tests that are to run with what they need."""
    paths = list(java_paths("."))
    wanted, around = test_files(request, paths)
    tools, others = jars()
    known, support = set(around), request["support"]
    main = [path for path in paths if place_of(path) == "main" and path not in known]
    code, tests = os.path.join(WORK, "main"), os.path.join(WORK, "tests")
    runners = runners_for([*tools, *others])
    if not runners:
        why = "there is no JUnit among the project's jars: let the environment be made (--install), or put its jars into lib"
        return Built([], [], [f"{path}: {why}" for path in wanted])
    runner, why = support_classes(support, runners, [*tools, *others])
    recorder, also = support_classes(support, request["recorders"], []) if request["recorders"] else ("", "")
    recorders = [recorder] if recorder else []
    broken, lacking = compile_main(main, code, [*recorders, *others, *tools]) if not (why or also) else ("", "")
    why = why or also or broken
    if why:
        return Built([], [], [f"{path}: {why}" for path in wanted])
    refused, why = compiled(needed_by(wanted, around), tests, [*tools, code, *others])
    behind = f" (left out: {lacking})" if lacking else ""
    errors = [f"{path}: {why or refused[path]}{behind}" for path in wanted if why or path in refused]
    class_path = [runner, *recorders, *tools, tests, *resources_of(around), code, *resources_of(main), *others]
    return Built(class_path, [path for path in wanted if path not in refused and not why], errors)


@dataclass
class Outcomes:
    """The reports of tests."""

    states: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    """Beginning of ids -> why these tests did not run."""
    errors: list[str] = field(default_factory=list)


def run_tests(project: Built, request: Mapping[str, Any]) -> Outcomes:
    """Run tests, in a new JVM behind each that ends it or hangs."""
    found = Outcomes()
    if not project.tests:
        return found
    plan, stop = os.path.join(WORK, "plan"), "-x" in request["extra"]
    ids: dict[str, list[str]] = {}
    for test_id in request["ids"]:
        ids.setdefault(test_id.partition("::")[0], []).append(test_id)
    classes = [(path, class_of(path, text_of_file(path))) for path in project.tests]
    for _ in range(MOST_STARTS):
        with open(plan, "w", encoding="utf-8") as file:
            for path, name in classes:
                file.write("\t".join(["run", path, name, *ids.get(path, [])]) + "\n")
            file.writelines(f"done\t{test_id}\n" for test_id in found.states)
        main = ["zzcomposer.Runner", request["mark"], "{fd}", plan, "first" if stop else "all"]
        lines, printed, hung = run_watched(main, project.class_path, request["test_s"], request["all_s"], request["all_s"])
        begun, whole = take_lines(lines, request["mark"], found)
        if begun is not None:
            found.states[begun] = "failed"
            found.messages[begun] = "it does not end" if hung else "it ended the test process"
        elif not whole:
            found.errors.append(f"{project.tests[0]}: {last_line(printed) or 'the JVM of the tests ended'}")
        if begun is None or (stop and any(state == "failed" for state in found.states.values())):
            break
    return found


def take_lines(lines: Sequence[str], mark: str, found: Outcomes) -> tuple[str | None, bool]:
    """Read a runner's lines; return the id of a test that was begun and has no outcome, and whether the runner came to its
    end."""
    begun, whole = None, False
    for line in lines:
        parts = line.split("\t")
        if len(parts) != 5 or parts[0] != mark:
            continue
        _, kind, test_id, state, said = parts
        if kind == "begun":
            begun = test_id
        elif kind == "done":
            begun = None
            if found.states.get(test_id) not in ("failed",):
                found.states[test_id] = state
            if state != "passed":
                found.messages[test_id] = said or state
        elif kind == "group":
            found.groups[test_id] = said
        elif kind == "end":
            whole = True
    return begun, whole


def answered(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run what is asked for."""
    project = built(request)
    wanted = request["ids"]
    answer: dict[str, Any] = {"status": 0, "tampered": False}
    if request["twice"]:
        answer["earlier"] = told(run_tests(project, request).states, wanted)
    found = run_tests(project, request)
    for test_id in wanted:
        group = next((said for start, said in found.groups.items() if test_id.startswith(start)), "")
        if group and test_id not in found.states:
            found.messages[test_id] = group
    if request["record"]:
        answer["observed"] = recorded()
    errors = [*project.errors, *found.errors]
    return {**answer, "failures": found.messages, "collect_errors": errors, "outcomes": told(found.states, wanted)}


def told(outcomes: Mapping[str, str], wanted: Sequence[str]) -> dict[str, str]:
    """Return the outcomes of what was asked for: all, or each id, missing where it has none."""
    if not wanted:
        return dict(outcomes)
    found = {test_id: outcomes[test_id] for test_id in wanted if test_id in outcomes}
    for test_id in wanted:
        inside = {known: state for known, state in outcomes.items() if known.startswith(test_id + "[")}
        if test_id not in found:
            found.update(inside or {test_id: "missing"})
    return found


def recorded() -> list[Any]:
    """Return the lines that instrumented code wrote."""
    found: list[Any] = []
    try:
        with open(ENVIRONMENT["COMPOSER_RECORD"], encoding="utf-8", errors="replace") as file:
            found.extend(json.loads(line) for line in file if line.endswith("\n"))
    except (OSError, ValueError, RecursionError):
        return found
    return found


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    tell(asked["nonce"], answered(asked))
