"""The coding environment: a repository without a feature, and tools to bring it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.actions.patches import FilePatch, PatchError, added_text, parse_patch, patched
from composer_replication.envs import tools
from composer_replication.envs.shell import run_command
from composer_replication.envs.workspace import Workspace, normalized
from composer_replication.sandbox import Ending, Limits, Sandbox
from composer_replication.sandbox.grading.grade import GradeCache, grade
from composer_replication.sandbox.grading.languages import graded_language
from composer_replication.sandbox.grading.pytest_run import TestRun
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.sandbox.single_flight import SingleFlightCache
from composer_replication.tasks.features.hidden_tests import without_tests
from composer_replication.tasks.store import Task
from composer_replication.types import GradeReport, Message, Outcome, ToolCall, ToolResult, ToolSchema
from composer_replication.types.errors import SandboxUnavailableError

SYSTEM_PROMPT = "You fix Python code with tools."

_SHOWN_FAILURES = 3
_FAILURE_CHARS = 160
_MOST_RUNS = 1024


class TestCache:
    """The last test runs by task and workspace content, shared by rollouts, whose siblings often write the same code.

    Safe to use from threads. A run that was killed from outside is not kept.
    """

    __test__ = False

    def __init__(self, *, most: int = _MOST_RUNS) -> None:
        self._runs: SingleFlightCache[tuple[str, str], TestRun] = SingleFlightCache(most)

    def get_or_run(self, key: tuple[str, str], run: Callable[[], TestRun]) -> TestRun:
        """Return the run stored under `key`, or run it; of equal concurrent runs only one executes."""

        def make() -> tuple[TestRun, bool]:
            made = run()
            return made, made.ending is not Ending.KILLED

        return self._runs.get_or_make(key, make)[0]


def opening(task: Task) -> tuple[Message, ...]:
    """Return what an agent is told first."""
    return Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=task.spec.instruction)


def refuse_shell_in(sandbox: Sandbox, toolset: tools.Toolset) -> None:
    """Refuse a shell in a sandbox without isolation. Raises SandboxUnavailableError."""
    if toolset == "shell" and sandbox.isolation.name == "unsafe-subprocess":
        raise SandboxUnavailableError("an agent gets no shell without isolation", fix="use another sandbox, or the basic tools")


class CodingEnv:
    """An `Env` over one task. Its output is a deterministic function of the calls made.

    Args:
        python: the interpreter that runs the tests.
        limits: of one test run; the task's own time limit by default.
        grade_cache, test_cache: shared between rollouts to run equal workspaces once.
        toolset: what the agent is offered (`tools.TOOLSETS`).
        withheld: ids of fail-to-pass tests that are neither in the files the agent sees nor run for it; they are graded.

    Raises:
        SandboxUnavailableError: a shell is asked for without isolation.
    """

    def __init__(
        self,
        task: Task,
        *,
        sandbox: Sandbox,
        python: Path,
        limits: Limits | None = None,
        grade_cache: GradeCache | None = None,
        test_cache: TestCache | None = None,
        toolset: tools.Toolset = "basic",
        withheld: frozenset[str] = frozenset(),
    ) -> None:
        refuse_shell_in(sandbox, toolset)
        self._task = task
        self._sandbox = sandbox
        self._python = python
        self._limits = limits or Limits(wall_s=task.spec.test_timeout_s, cpu_s=task.spec.test_timeout_s)
        self._grade_cache = grade_cache
        self._test_cache = test_cache or TestCache()
        self._toolset: tools.Toolset = toolset
        self._withheld = withheld
        self._shown = without_tests(task.repo, self._withheld)
        """The test files that the agent sees otherwise than they are."""
        self.workspace = Workspace(task.repo, self._shown)
        self._done = False

    @property
    def task_id(self) -> str:
        return self._task.spec.task_id

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return tools.TOOLSETS[self._toolset]

    @property
    def done(self) -> bool:
        return self._done

    def reset(self) -> tuple[Message, ...]:
        self.workspace = Workspace(self._task.repo, self._shown)
        self._done = False
        return opening(self._task)

    def fork(self) -> CodingEnv:
        """Return another env in the same state; the two share caches and nothing else."""
        other = copy(self)
        other.workspace = Workspace(self._task.repo, self.workspace.changes)
        return other

    def step(self, call: ToolCall) -> ToolResult:
        if self._done:
            raise ValueError("the work was submitted; reset the env first")
        name = call.name.encode(errors="replace").decode()  # the answer quotes it, and is written as UTF-8
        status, content, details = self._carry_out(replace(call, name=name))
        return ToolResult(call_id=call.call_id, name=name, content=content, status=status, details=details)

    @property
    def submission(self) -> dict[str, bytes | None]:
        """The changes to be graded, by path; None for a deleted file."""
        return {path: content for path, content in self.workspace.changes.items() if path not in self._shown}

    def grade(self) -> GradeReport:
        return grade(
            self._task.spec,
            self._task.repo,
            self.submission,
            sandbox=self._sandbox,
            python=self._python,
            limits=self._limits,
            cache=self._grade_cache,
        )

    # --- tools: (status, content, details) ------------------------------------------------------------------------------

    def _carry_out(self, call: ToolCall) -> tuple[str, str, dict[str, Any]]:
        names = [tool["function"]["name"] for tool in self.tools]
        if call.error is not None:
            return "malformed_call", f"bad tool call: {call.error}", {}
        if call.name not in names:
            return "unknown_tool", f"no tool {tools.clip(call.name, 40)}; tools: {', '.join(names)}", {"tools": names}
        problem = tools.argument_error(call.name, call.arguments)
        if problem is not None:
            return "invalid_arguments", problem, {}
        match call.name:
            case "edit_file" | "write_file":
                return self._write(call.name, call.arguments)
            case "apply_patch":
                return self._patch(call.arguments["patch"])
            case "bash":
                return run_command(
                    call.arguments["command"],
                    self.workspace,
                    self._task.spec,
                    sandbox=self._sandbox,
                    python=self._python,
                    limits=self._limits,
                )
            case "run_tests":
                return self._run_tests()
            case "submit":
                self._done = True
                return "ok", "submitted", {}
            case _:
                return self._look(call.name, call.arguments)

    def _look(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        given = arguments.get("path", ".")
        path = normalized(given)
        content = None
        if path is not None:
            match tool:
                case "list_files":
                    content = tools.list_files(self.workspace, path)
                case "read_file":
                    start, end = (None if arguments.get(k) is None else int(arguments[k]) for k in ("start", "end"))
                    content = tools.read_file(self.workspace, path, start or 1, end)
                case _:
                    try:
                        content = tools.search(self.workspace, arguments["pattern"], path)
                    except TimeoutError:
                        return "timeout", "the search took too long", {}
                    except MemoryError:
                        return "out_of_memory", "the search took too much memory", {}
        if content is None:
            return "path_not_found", f"no file {tools.clip(given, 80)}", {"path": given}
        return "ok", content, {}

    def _write(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
        given = arguments["path"]
        path = self._writable(given)
        if path is None:
            return self._not_editable(given)
        if tool == "write_file":
            self.workspace.write(path, arguments["content"])
            return "ok", f"wrote {path}", {}
        text, old = self.workspace.read(path), arguments["old"]
        if text is None:
            return "path_not_found", f"no file {path}", {"path": given}
        count = text.count(old) if old else 0
        if count != 1:
            why = "old is empty" if not old else f"old occurs {count} times in {path}, must be once"
            return "edit_not_applied", why, {"path": path, "occurrences": count}
        self.workspace.write(path, text.replace(old, arguments["new"]))
        return "ok", f"edited {path}", {}

    def _patch(self, text: str) -> tuple[str, str, dict[str, Any]]:
        """Apply all of a patch or nothing."""
        after = Workspace(self._task.repo, self.workspace.changes)
        try:
            patches = parse_patch(text)
            for patch in patches:
                path = self._writable(patch.path)
                if path is None:
                    return self._not_editable(patch.path)
                before = self.workspace.read(path)
                if (before is None) != (patch.action == "add"):
                    if before is None:
                        return "path_not_found", f"no file {path}", {"path": patch.path}
                    raise PatchError(f"{path} exists; use Update File")
                _apply(patch, path, before or "", after)
        except PatchError as error:
            return "edit_not_applied", str(error), {}
        self.workspace = after
        return "ok", f"patched {', '.join(patch.path for patch in patches)}", {}

    def _writable(self, given: str) -> str | None:
        """Return the path an agent named, if it may write there."""
        path = normalized(given)
        return path if path and is_editable(self._task.spec, path) and not self.workspace.blocks(path) else None

    def _not_editable(self, given: str) -> tuple[str, str, dict[str, Any]]:
        editable = self._task.spec.editable
        content = f"{tools.clip(given, 80)} is not editable; editable: {tools.clip(', '.join(editable), 400)}"
        return "path_not_editable", content, {"path": given, "editable": list(editable)}

    # --- tests ----------------------------------------------------------------------------------------------------------

    def _run_tests(self) -> tuple[str, str, dict[str, Any]]:
        spec = self._task.spec
        ids = (*(i for i in spec.fail_to_pass if i not in self._withheld), *spec.pass_to_pass)

        def run() -> TestRun:
            runner = graded_language(spec).runner(self._sandbox, self._python, spec.python_path, self._limits)
            return runner.run(self.workspace.tree, ids)

        tests = self._test_cache.get_or_run((spec.task_id, self.workspace.digest()), run)
        if tests.ending is Ending.TIMEOUT:
            return "timeout", f"tests timed out after {self._limits.wall_s:g} s", {}
        if tests.ending is Ending.OUT_OF_MEMORY:
            return "out_of_memory", f"tests ran out of memory ({self._limits.memory_mb} MB)", {}
        failed = [i for i in ids if tests.outcomes.get(i) is not Outcome.PASSED]
        passed = [i for i in ids if tests.outcomes.get(i) is Outcome.PASSED]
        if not failed:
            return "ok", f"{len(passed)} passed", {"failed": [], "passed": passed}
        lines = [f"{len(failed)} failed, {len(passed)} passed", *_failure_lines(tests, failed)]
        return "tests_failed", "\n".join(lines), {"failed": failed, "passed": passed}


def _failure_lines(tests: TestRun, failed: list[str]) -> list[str]:
    """Return the lines shown for failing tests: files that could not be imported, then the first tests by name."""
    lines = list(tests.collect_errors) or [
        f"{i.partition('::')[2] or i}: {tests.failures[i]}" for i in failed if i in tests.failures
    ]
    if not lines and tests.ending is not Ending.EXITED:
        lines = [f"the test run ended early: {tests.ending.value.replace('_', ' ')}"]
    return [tools.clip(" ".join(line.split()), _FAILURE_CHARS) for line in lines[:_SHOWN_FAILURES]]


def _apply(patch: FilePatch, path: str, before: str, workspace: Workspace) -> None:
    match patch.action:
        case "add":
            workspace.write(path, added_text(patch))
        case "delete":
            workspace.delete(path)
        case _:
            workspace.write(path, patched(patch, before))
