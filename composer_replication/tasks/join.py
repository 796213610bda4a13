"""Joining of tasks during a run: one harder task from several of one source, with all their functions deleted at once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from composer_replication.languages.functions import Function
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.sandbox.protocol import Limits, Sandbox, Tree
from composer_replication.tasks.describe import describe
from composer_replication.tasks.feature import Feature
from composer_replication.tasks.features.difficulty import difficulty_of
from composer_replication.tasks.files import solved_tree, tree_files
from composer_replication.tasks.held_out.choice import numbers_of, prove_programs
from composer_replication.tasks.proofs.proof import (
    NoTaskError,
    prove,
    refuse_dispensable,
    refuse_without_imports,
    run_without,
    without_functions,
)
from composer_replication.tasks.store import Task, docs_of, load_task, write_task
from composer_replication.types import InstructionStyle, TaskSpec
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import HeldOutChecks


def can_be_joined(tasks: Sequence[Task]) -> bool:
    """Return whether they delete different functions of one source, were made in one way, and can all be solved."""
    first = tasks[0]
    keys = [f"{d.path}::{d.qualname}" for task in tasks for d in task.spec.deleted]
    alike = all((task.spec.source_digest, *_way(task)) == (first.spec.source_digest, *_way(first)) for task in tasks)
    return alike and len(set(keys)) == len(keys) and all(t.spec.deleted and not t.spec.impossible for t in tasks)


def join_tasks(
    tasks: Sequence[Task],
    folder: Path,
    *,
    sandbox: Sandbox,
    python: Path,
    style: InstructionStyle = "terse",
) -> Task | str:
    """Make the task of restoring what all of `tasks` deleted, below `folder`, or return the reason why there is none.

    One that is there already, from an earlier call, is not made again.

    It is proven like any other: a fail-to-pass test fails twice without the functions and passes with the gold code, the grader
    gives the gold code 1 and the tree without it 0, and what does otherwise is left out. Its hidden checks are those of `tasks`.

    Args:
        tasks: such as `can_be_joined` says yes to.

    Raises:
        TaskError: one of them is damaged.
        SandboxError: the sandbox broke.
        StorageError: the task cannot be written.
    """
    with suppress(TaskError):
        return load_task(folder / _joined_id(tasks))
    with solved_tree(tasks[0].repo, tasks[0].gold_files()) as tree:
        try:
            return _Joint(tasks, tree, sandbox, python).prove(folder, style)
        except NoTaskError as reason:
            return str(reason)


def _joined_id(tasks: Sequence[Task]) -> str:
    """Return a readable id, the same for the same tasks."""
    digest = hashlib.sha256("\n".join(task.spec.task_id for task in tasks).encode()).hexdigest()
    return f"{tasks[0].spec.task_id.rpartition('-')[0][:80]}-and-more-{digest[:8]}"


def _way(task: Task) -> tuple[str, bool]:
    """Return how its functions were deleted: the mode, and whether docstrings were kept."""
    return str(task.provenance.get("mode", "stub")), bool(task.provenance.get("keep_docstring", True))


@dataclass(frozen=True)
class _Joint:
    tasks: Sequence[Task]
    tree: Path
    sandbox: Sandbox
    python: Path

    def prove(self, folder: Path, style: InstructionStyle) -> Task:
        """Prove the joined task and write it. Raises NoTaskError."""
        functions, deleted = self._delete()
        specs = [task.spec for task in self.tasks]
        ids = {i for spec in specs for i in (*spec.fail_to_pass, *spec.pass_to_pass)}
        tree = Tree(base=self.tree, changes=deleted)
        seconds, language = max(spec.test_timeout_s for spec in specs), self.tasks[0].language
        sandbox, python, limits = self.sandbox, self.python, Limits(wall_s=seconds, cpu_s=seconds)
        runner = language.runner(sandbox, python, specs[0].python_path, limits)
        without = run_without(tree, ids, runner)
        if language.removes(_way(self.tasks[0])[0]):
            refuse_without_imports(without)
        hidden = prove_programs(_merged(specs), runner, tree)
        hidden = replace(
            hidden, weakness=hidden.weakness or language.joint_weakness(hidden, functions, runner, Tree(base=self.tree))
        )

        def spec_of(failing: Set[str], passing: Set[str], hidden: HeldOutChecks) -> TaskSpec:
            if hidden.weakness and not any(spec.hidden.weakness for spec in specs):
                raise NoTaskError(f"its held-out programs do not hold together: {hidden.weakness}")
            instruction = describe(self._feature(functions, failing), style)
            return self._spec(instruction, failing, passing, seconds, hidden)

        proven = prove(spec_of, without, hidden, self.tree, deleted, runner, covering=frozenset())
        spec = proven.spec
        refuse_dispensable(spec, self._each_left_out(functions), runner)
        facts = {
            "kind": "joined",
            "of": [task.spec.task_id for task in self.tasks],
            **dict(zip(("mode", "keep_docstring"), _way(self.tasks[0]), strict=True)),
            "licence": self.tasks[0].provenance.get("licence", ""),
            "difficulty": difficulty_of(functions, len(proven.failing)),
            **numbers_of(spec.hidden),
        }
        return write_task(spec, folder / spec.task_id, pristine=self.tree, deleted=deleted, provenance=facts)

    def _each_left_out(self, functions: Sequence[Function]) -> dict[str, Tree]:
        """Return for each function the tree with the others and without it."""
        sources = self._sources()
        mode, python_path, language = _way(self.tasks[0])[0], self.tasks[0].spec.python_path, self.tasks[0].language
        return {
            function.key: Tree(base=self.tree, changes=without_functions(language, sources, [function], mode, python_path))
            for function in functions
        }

    def _delete(self) -> tuple[list[Function], Mapping[str, bytes]]:
        """Return the functions, and the files without them."""
        wanted = {f"{d.path}::{d.qualname}" for task in self.tasks for d in task.spec.deleted}
        sources = self._sources()
        language = self.tasks[0].language
        mode, keep = _way(self.tasks[0])
        found = (f for path, source in sources.items() for f in language.find_functions(path, source, keep)[0])
        functions = [function for function in found if function.key in wanted]
        if {function.key for function in functions} != wanted:
            missing = min(wanted - {function.key for function in functions})
            raise TaskError(f"{missing} is not found in the code of {self.tasks[0].root}", fix="build its tasks again")
        return functions, without_functions(language, sources, functions, mode, self.tasks[0].spec.python_path)

    def _sources(self) -> dict[str, bytes]:
        is_source = self.tasks[0].language.is_source
        paths = (path for path in tree_files(self.tree) if is_source(path) and is_editable(self.tasks[0].spec, path))
        return {path: (self.tree / path).read_bytes() for path in paths}

    def _feature(self, functions: Sequence[Function], failing: Set[str]) -> Feature:
        return Feature(
            functions=functions,
            sources={function.path: (self.tree / function.path).read_bytes() for function in functions},
            fail_to_pass=sorted(failing),
            docs=docs_of(self.tree),
            removed=self.tasks[0].language.removes(_way(self.tasks[0])[0]),
            language=self.tasks[0].language,
        )

    def _spec(self, instruction: str, failing: Set[str], passing: Set[str], seconds: float, hidden: HeldOutChecks) -> TaskSpec:
        first = self.tasks[0].spec
        return replace(
            first,
            task_id=_joined_id(self.tasks),
            instruction=instruction,
            deleted=tuple(d for task in self.tasks for d in task.spec.deleted),
            fail_to_pass=tuple(sorted(failing)),
            pass_to_pass=tuple(sorted(passing)),
            test_timeout_s=seconds,
            hidden=hidden,
        )


def _merged(specs: Sequence[TaskSpec]) -> HeldOutChecks:
    """Merge the checks of all tasks, each once."""
    return HeldOutChecks(
        programs=tuple(dict.fromkeys(program for spec in specs for program in spec.hidden.programs)),
        anti_tests=tuple(dict.fromkeys(test for spec in specs for test in spec.hidden.anti_tests)),
        weakness=next((spec.hidden.weakness for spec in specs if spec.hidden.weakness), ""),
    )
