"""Build and run the tests of a Go module inside a sandbox, and report each by id over the private channel.

Every test runs behind a generated one, which catches its panic and writes its outcome to a pipe. What the tests print, how their
process ends and what it says of itself count for nothing: a test without a line of its own has not passed.

This text runs behind that of `toolchain`, in one namespace.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from composer_replication.languages.go.toolchain import ENVIRONMENT, WORK, compiler_said, go, last_line
    from composer_replication.languages.tell import tell

Test: TypeAlias = "tuple[str, str, str]"
"""Id, name and Go package of a test."""
Programs: TypeAlias = "dict[str, tuple[str, list[Test]]]"
"""By folder, the program of its tests, and these."""

MOST_STARTS = 200
"""Processes that one package's tests may end before the rest of them count as missing."""
LONGEST_MESSAGE = 500
TEST = re.compile(r"^func (Test(?:[^a-z\W]\w*)?)\(\s*\w+\s+\*\w+\.T\s*\)", re.MULTILINE)

WRAPPERS = """package %(package)s

import (
	composeros "os"
	composerstrconv "strconv"
	"testing"
)

var composerPipe%(mark)s, composerFrom%(mark)s = func() (*composeros.File, int) {
	number, _ := composerstrconv.Atoi(composeros.Getenv("COMPOSER_PIPE"))
	from, _ := composerstrconv.Atoi(composeros.Getenv("COMPOSER_FROM"))
	return composeros.NewFile(uintptr(number), "outcomes"), from
}()

var composerEnd%(mark)s = false

func composerTell%(mark)s(number int, state string) {
	composerPipe%(mark)s.WriteString("%(mark)s " + composerstrconv.Itoa(number) + " " + state + "\\n")
}

func composerRun%(mark)s(t *testing.T, number int, test func(*testing.T)) {
	if number < composerFrom%(mark)s || composerEnd%(mark)s {
		return
	}
	composerTell%(mark)s(number, "begun")
	state := "missing"
	t.Run("whole", func(t *testing.T) {
		t.Run("test", func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					state = "failed"
				} else if t.Skipped() {
					state = "skipped"
				} else {
					state = "passed"
				}
			})
			defer func() {
				if said := recover(); said != nil {
					t.Errorf("panic: %%v", said)
				}
			}()
			test(t)
		})
	})
	composerTell%(mark)s(number, state)
	composerEnd%(mark)s = %(first)s && state != "passed"
}
"""
ONE = """
func TestComposer%(mark)s_%(number)d(t *testing.T) { composerRun%(mark)s(t, %(number)d, %(name)s) }
"""


def packages_of(request: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return what the go command says of each package with tests that is asked for, by its folder, and its last complaint."""
    ids, roots = request["ids"], [root.rstrip("/") for root in request["extra"] if not root.startswith("-")]
    folders = sorted({os.path.dirname(test_id.partition("::")[0]) or "." for test_id in ids})
    patterns = ["./" + folder for folder in folders] or ["./..."]
    fields = "-json=Dir,ImportPath,Name,TestGoFiles,XTestGoFiles"
    said = go("list", "-e", fields, *patterns)
    found: dict[str, Any] = {}
    text, decoder = said.stdout.decode(errors="replace").lstrip(), json.JSONDecoder()
    while text:
        package, end = decoder.raw_decode(text)
        text = text[end:].lstrip()
        folder = os.path.relpath(package["Dir"], os.getcwd()) if package.get("Dir") else ""
        tests = [*package.get("TestGoFiles", ()), *package.get("XTestGoFiles", ())]
        asked = not roots or any(
            r == "." or folder == r or folder.startswith(r + "/") or r.startswith(folder + "/") for r in roots
        )
        if folder and not folder.startswith("..") and tests and (ids or asked):
            found[folder] = package
    return found, last_line(said)


def tests_of(folder: str, package: Mapping[str, Any], roots: Sequence[str]) -> Iterator[Test]:
    """Yield (id, name, Go package) of the tests of one folder, in the order of its files."""
    for kind, suffix in (("TestGoFiles", ""), ("XTestGoFiles", "_test")):
        for name in package.get(kind) or ():
            path = os.path.normpath(os.path.join(folder, name))
            named = [root for root in roots if root.endswith(".go")]
            if named and path not in named and not any(os.path.dirname(path) == r or r == "." for r in roots if r not in named):
                continue
            with open(path, encoding="utf-8", errors="replace") as file:
                for test in TEST.findall(file.read()):
                    yield f"{path}::{test}", test, package["Name"] + suffix


def built(folder: str, number: int, tests: list[Test], request: Mapping[str, Any]) -> tuple[str | None, str]:
    """Write the wrappers of a package's tests, and build their program: its path, or None and what the compiler said.

    What looks like a test and is none, such as one in a comment, is taken out of `tests`.
    """
    binary = os.path.join(WORK, f"tests{number}")
    covering = ["-cover", "-covermode=set", "-coverpkg=./..."] if request["coverage"] else []
    while True:
        write_wrappers(folder, tests, request)
        said = go("test", "-c", "-vet=off", "-gcflags=-e", *covering, "-o", binary, "./" + folder)
        if not said.returncode and os.path.exists(binary):
            return binary, ""
        pattern = rb"zz_composer_\w+_test\.go:\d+:\d+: undefined: (\w+)"
        absent = {name.decode() for name in re.findall(pattern, said.stderr + said.stdout)}
        left = [test for test in tests if test[1] not in absent]
        if not left or len(left) == len(tests):
            return None, compiler_said(said)
        tests[:] = left


def write_wrappers(folder: str, tests: Sequence[Test], request: Mapping[str, Any]) -> None:
    """Write the generated tests of a folder, a file for each of its Go packages."""
    mark, first = request["mark"], "true" if "-x" in request["extra"] else "false"
    by_package: dict[str, list[str]] = {}
    for at, (_, name, package) in enumerate(tests):
        by_package.setdefault(package, []).append(ONE % {"mark": mark, "number": at, "name": name})
    for package, wrappers in by_package.items():
        text = WRAPPERS % {"package": package, "mark": mark, "first": first} + "".join(wrappers)
        with open(os.path.join(folder, f"zz_composer_{package}_test.go"), "w", encoding="utf-8") as file:
            file.write(text)


def run_some(
    binary: str, folder: str, asked: Mapping[str, Any], first: int, last: int, profile: str = ""
) -> tuple[dict[int, str], dict[int, str]]:
    """Run a package's tests from number `first` to before `last`: outcomes by number, and messages of those that failed."""
    outcomes: dict[int, str] = {}
    messages: dict[int, str] = {}
    mark, starts = asked["mark"], 0
    while first < last and starts < MOST_STARTS:
        starts += 1
        which = f"^TestComposer{mark}_" + (f"{first}$" if last == first + 1 else "")
        command = [binary, f"-test.run={which}", "-test.timeout=0", "-test.count=1"]
        command += [f"-test.coverprofile={profile}"] if profile else []
        reading, writing = os.pipe()
        env = {**ENVIRONMENT, "COMPOSER_PIPE": str(writing), "COMPOSER_FROM": str(first)}
        with open(os.path.join(WORK, "printed"), "wb+") as printed:
            process = subprocess.Popen(
                command, cwd=folder, env=env, pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=printed, stderr=printed
            )
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                lines = pipe.read().decode(errors="replace").splitlines()
            process.wait()
            printed.seek(0)
            messages.update(messages_in(printed.read(8 << 20).decode(errors="replace"), mark))
        begun = None
        for line in lines:
            parts = line.split(" ")
            if len(parts) == 3 and parts[0] == mark and parts[1].isdigit():
                begun = int(parts[1])
                if parts[2] != "begun":
                    outcomes[begun] = parts[2]
        if begun is None or begun in outcomes:
            break  # all were begun, or none can be
        outcomes[begun], messages[begun] = "failed", messages.get(begun, "it ended the test process")
        if profile or "-x" in asked["extra"]:
            break
        first = begun + 1
    return outcomes, messages


def messages_in(printed: str, mark: str) -> dict[int, str]:
    """Return the first line of what each failed test says, by number."""
    found: dict[int, str] = {}
    lines = printed.splitlines()
    for at, line in enumerate(lines):
        match = re.match(rf"\s*--- FAIL: TestComposer{mark}_(\d+)/whole/test ", line)
        if match:
            said = next((text.strip() for text in lines[at + 1 : at + 4] if text.strip() and "---" not in text), "failed")
            found[int(match[1])] = re.sub(r"^zz_composer_\w+\.go:\d+: ", "", said)[:LONGEST_MESSAGE]
    return found


def run_all(programs: Programs, request: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Run every built package's tests once: outcomes and messages by id."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    for folder, (binary, tests) in programs.items():
        found, said = run_some(binary, folder, request, 0, len(tests))
        outcomes.update({tests[number][0]: state for number, state in found.items() if number < len(tests)})
        messages.update({tests[number][0]: text for number, text in said.items() if number < len(tests)})
        if "-x" in request["extra"] and any(state != "passed" for state in found.values()):
            break
    return outcomes, messages


def run_covered(programs: Programs, request: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
    """Run each test in a process of its own, and note which lines of the module it runs."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    lines: dict[str, dict[int, set[str]]] = {}
    module, profile = module_path(), os.path.join(WORK, "profile")
    for folder, (binary, tests) in programs.items():
        for number, (test_id, _, _) in enumerate(tests):
            if os.path.exists(profile):
                os.unlink(profile)
            found, said = run_some(binary, folder, request, number, number + 1, profile)
            outcomes.update(dict.fromkeys([test_id] if found else [], found.get(number, "missing")))
            messages.update(dict.fromkeys([test_id] if said else [], said.get(number, "")))
            for path, line in covered_lines(profile, module):
                lines.setdefault(path, {}).setdefault(line, set()).add(test_id)
    sets: dict[frozenset[str], int] = {}
    files = {
        path: {line: sets.setdefault(frozenset(tests), len(sets)) for line, tests in table.items()}
        for path, table in lines.items()
    }
    return outcomes, messages, {"tests": [sorted(tests) for tests in sets], "files": files}


def covered_lines(profile: str, module: str) -> Iterator[tuple[str, int]]:
    """Yield (path, line) for each line of a block that ran."""
    try:
        with open(profile, encoding="utf-8", errors="replace") as file:
            rows = file.read().splitlines()[1:]
    except OSError:
        return
    for row in rows:
        match = re.fullmatch(r"(.+):(\d+)\.(\d+),(\d+)\.(\d+) \d+ (\d+)", row)
        if match and match[6] != "0":
            path = match[1]
            path = path[len(module) + 1 :] if path.startswith(module + "/") else path
            first, last = int(match[2]), int(match[4])
            for line in range(first, last + (int(match[5]) > 2) if last > first else last + 1):
                yield path, line


def module_path() -> str:
    """Return the module's path, as go.mod gives it."""
    with open("go.mod", encoding="utf-8", errors="replace") as file:
        match = re.search(r"^module\s+\"?([^\s\"]+)", file.read(), re.MULTILINE)
    return match[1] if match else ""


def answered(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run what is asked for."""
    packages, trouble = packages_of(request)
    programs: Programs = {}
    errors: list[str] = []
    every: list[str] = []
    wanted, roots = set(request["ids"]), [root.rstrip("/") for root in request["extra"] if not root.startswith("-")]
    for number, (folder, package) in enumerate(sorted(packages.items())):
        tests = [one for one in tests_of(folder, package, roots) if not wanted or one[0] in wanted]
        if not tests:
            continue
        binary, said = built(folder, number, tests, request)
        every += [test_id for test_id, _, _ in tests]
        if binary is None:
            errors += [f"{path}: {said}" for path in sorted({test_id.partition("::")[0] for test_id, _, _ in tests})]
        else:
            programs[folder] = (binary, tests)
    answer: dict[str, Any] = {"collect_errors": errors, "status": 0, "tampered": False}
    if not packages and trouble:
        answer["collect_errors"] = [trouble]
    if request["coverage"]:
        outcomes, messages, answer["coverage"] = run_covered(programs, request)
    else:
        if request["twice"]:
            answer["earlier"] = told(run_all(programs, request)[0], every, programs)
        outcomes, messages = run_all(programs, request)
    if request["record"]:
        answer["observed"] = recorded()
    return {**answer, "outcomes": told(outcomes, every, programs), "failures": messages}


def told(outcomes: Mapping[str, str], every: Sequence[str], programs: Programs) -> dict[str, str]:
    """Give the tests of packages that were built an outcome each: what has none is missing."""
    ran = {test_id for _, tests in programs.values() for test_id, _, _ in tests}
    return {test_id: outcomes.get(test_id, "missing") for test_id in every if test_id in ran}


def recorded() -> list[Any]:
    """Return the lines that the instrumented code wrote."""
    try:
        with open(ENVIRONMENT["COMPOSER_RECORD"], encoding="utf-8", errors="replace") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except (OSError, ValueError):
        return []


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    tell(asked["nonce"], answered(asked))
