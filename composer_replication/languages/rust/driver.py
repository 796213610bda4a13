"""Build and run the tests of a Rust project inside a sandbox, and report each by id over the private channel.

Every test is wrapped so that it writes its outcome into a file, and runs in a process of its own. What tests print, how their
process ends and what the harness says count for nothing: a test without a line of its own has not passed.

This text runs behind that of `toolchain`, in one namespace.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from composer_replication.languages.rust.toolchain import CALLS, HITS, built, lines_of, project, run, targets_of
    from composer_replication.languages.tell import tell

Named: TypeAlias = "dict[str, list[tuple[str, str]]]"
"""By id, the programs with that test, and its name in each."""


def wanted_targets(request: Mapping[str, Any]) -> tuple[list[tuple[str, list[str], str]], str]:
    """Return root file, options and folder of the targets that may hold tests that are asked for, and cargo's complaint."""
    packages, trouble = project()
    every = list(targets_of(packages))
    files = {test_id.partition("::")[0] for test_id in request["ids"]}
    if files:
        roots = {root for kind, root, _, _ in every if kind == "test"}
        loose = any(path not in roots and path not in request["sources"] for path in files)
        code = any(path in request["sources"] for path in files)
        every = [one for one in every if (code or loose if one[0] != "test" else loose or one[1] in files)]
    return [(root, options, folder) for _, root, options, folder in every], trouble


def build_all(targets: Sequence[tuple[str, list[str], str]]) -> tuple[dict[str, str], dict[str, str], str]:
    """Build targets, all at once, and one by one where that fails; see `built`."""
    if not targets:
        return {}, {}, ""
    packages = dict.fromkeys(options[1] for _, options, _ in targets)
    chosen = dict.fromkeys(tuple(options[2:]) for _, options, _ in targets)
    options = [word for name in packages for word in ("-p", name)] + [word for words in chosen for word in words]
    variables = {"RUSTC_BOOTSTRAP": asked["crates"]} if asked["crates"] else {}
    programs, complaints, trouble = built(options, **variables)
    if not complaints and not trouble:
        return programs, {}, ""
    for root, alone, _ in targets:
        if root not in programs:
            one, said, why = built(alone, **variables)
            programs.update(one)
            if root not in one:
                complaints.setdefault(root, said.get(root) or next(iter(said.values()), "") or why)
    return programs, {root: said for root, said in complaints.items() if root not in programs}, trouble


def id_of(what: str, name: str) -> str:
    """Return the id of a test from what its wrapper says; one made by a macro is named by where that was called."""
    if not what.startswith("@"):
        return what
    file = os.path.relpath(os.path.join(os.getcwd(), what[1:]), os.getcwd())
    parts = name.split("::")
    inline = {tuple(one) for one in asked["modules"].get(file, ())}
    start = next((n for n in range(1, len(parts)) if tuple(parts[n:-1]) in inline), len(parts) - 1)
    return "::".join([file, *parts[start:]])


def listed(programs: Mapping[str, tuple[str, str]]) -> Named:
    """Return the tests of all programs."""
    found: Named = {}
    for program, folder in programs.values():
        for _, what, name, _ in run(program, folder, asked["mark"], "--include-ignored", COMPOSER_LIST="1"):
            found.setdefault(id_of(what, name), []).append((program, name.partition("::")[2]))
    return found


def outcome_of(program: str, folder: str, name: str) -> tuple[str, str]:
    """Run one test, and return its outcome and its message."""
    rows = run(program, folder, asked["mark"], "--exact", name)
    if not rows:
        return "skipped", ""
    state, message = rows[-1][0], rows[-1][3]
    return (state, message) if state in ("passed", "failed") else ("failed", "it ended the test process")


def run_all(tests: Named, folders: Mapping[str, str], reached: dict[str, set[int]]) -> tuple[dict[str, str], dict[str, str]]:
    """Run every test once: outcomes and messages by id. A test that several programs have must pass in all."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    for test_id, places in tests.items():
        for program, name in dict.fromkeys(places):
            state, message = outcome_of(program, folders[program], name)
            reached.setdefault(test_id, set()).update(int(line) for line in lines_of(HITS) if line.isdigit())
            if outcomes.get(test_id, "passed") == "passed":
                outcomes[test_id] = state
                messages.update({test_id: message} if message else {})
        if "-x" in asked["extra"] and outcomes.get(test_id) != "passed":
            break
    return outcomes, messages


def is_asked_for(test_id: str) -> bool:
    """Return whether a test is among those that the request names."""
    if asked["ids"]:
        return test_id in asked["ids"]
    path = test_id.partition("::")[0]
    roots = [root.rstrip("/") for root in asked["extra"] if not root.startswith("-")]
    return not roots or any(root == "." or path == root or path.startswith(root + "/") for root in roots)


def answered() -> dict[str, Any]:
    """Run what is asked for."""
    targets, trouble = wanted_targets(asked)
    programs, complaints, why = build_all(targets)
    placed = {root: (programs[root], folder) for root, _, folder in targets if root in programs}
    folders = dict(placed.values())
    tests = {test_id: places for test_id, places in listed(placed).items() if is_asked_for(test_id)}
    lost = {path for root in complaints for path in asked["files"].get(root, (root,))}
    errors = sorted(f"{path}: {complaints[root]}" for root in complaints for path in asked["files"].get(root, (root,)))
    answer: dict[str, Any] = {"collect_errors": errors or [one for one in (trouble, why) if one], "status": 0, "tampered": False}
    if asked["twice"]:
        answer["earlier"] = told(run_all(tests, folders, {})[0], tests, lost)
    reached: dict[str, set[int]] = {}
    outcomes, messages = run_all(tests, folders, reached)
    answer["observed"] = {
        "hits": {test_id: sorted(numbers) for test_id, numbers in reached.items()},
        "calls": list(recorded()),
    }
    return {**answer, "outcomes": told(outcomes, tests, lost), "failures": messages}


def recorded() -> Iterator[Any]:
    """Yield what the instrumented code wrote of its calls; a line that was cut off is none."""
    for line in dict.fromkeys(lines_of(CALLS)):
        try:
            yield json.loads(line)
        except ValueError:
            continue


def told(outcomes: Mapping[str, str], tests: Named, lost: set[str]) -> dict[str, str]:
    """Give the tests that were built an outcome each: what has none is missing, and so is one that a broken program may have."""
    kept = {test_id: outcomes.get(test_id, "missing") for test_id in tests}
    return {test_id: "missing" if test_id.partition("::")[0] in lost else state for test_id, state in kept.items()}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    tell(asked["nonce"], answered())
