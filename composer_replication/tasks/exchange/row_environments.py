"""An environment a row: made of what the row or its project asks for, and shared by rows that ask for the same."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from composer_replication.languages.layout import RepositoryLayout
from composer_replication.sandbox import Limits
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.protocol import Sandbox
from composer_replication.tasks.exchange.swebench_rows import RowInstall
from composer_replication.tasks.files import restored, storage_errors, write_whole
from composer_replication.tasks.proofs.fitting import fit_environment, wanted_at_first
from composer_replication.tasks.proofs.leak import refuse_copies
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.declared import name_of, names_in
from composer_replication.tasks.sources.environment import made_for, make_environment
from composer_replication.tasks.sources.layout import guess_layout
from composer_replication.tasks.sources.source import STATE, PristineTree
from composer_replication.types.errors import SourceError

_FOLDER, _FILE = ".venvs", "environments.json"


class RowEnvironments:
    """Makes the environments of rows below a folder of tasks. What the tests of one have found is kept for later calls.

    Args:
        out: the folder of tasks.
        options: of these, `python` and `timeout_s` count.

    Raises:
        TaskError: the folder's state is another release's.
    """

    def __init__(self, out: Path, sandbox: Sandbox, options: BuildOptions) -> None:
        self._out, self._sandbox, self._options = out.absolute(), sandbox, options
        self._file = self._out / STATE / _FILE
        self._found: dict[str, list[str]] = restored(self._file, _read) or {}
        self._refused: dict[str, SourceError] = {}

    def name_of(self, python: Path) -> str:
        """Return an interpreter as `build.json` names it: relative to the folder of tasks where it lies there."""
        return (python.relative_to(self._out) if python.is_relative_to(self._out) else python).as_posix()

    def python_for(self, project: PristineTree, install: RowInstall | None) -> Path:
        """Return the interpreter of an environment for a row.

        Args:
            project: the row's solved tree.
            install: what the row itself says; without it, the environment is found by running the tests.

        Raises:
            SourceError: it asks for another Python than there is, or cannot be made, or the project's tests do not run in it.
            SandboxError: the sandbox broke.
            StorageError: it cannot be written.
        """
        layout = guess_layout(project.tree)
        base = self._base(install)
        lines = [*wanted_at_first(project, layout)]
        if install is not None:
            known, asked = names_in(lines), names_in([*install.requirements, *_lines_of(project.tree, install.files)])
            asked.pop(name_of(project.name), None)
            lines = sorted(line for some in (known | asked).values() for line in some)
        key = hashlib.sha256(json.dumps([project.name, str(base), install is None, lines]).encode()).hexdigest()[:12]
        if key in self._refused:
            raise self._refused[key]
        folder = self._out / _FOLDER / key
        try:
            with storage_errors(folder):
                folder.parent.mkdir(parents=True, exist_ok=True)
                wanted = lines if install is not None else self._found.get(key)
                if wanted is None:
                    return self._fitted(project, layout, folder, base)
                python = make_environment(folder, project.tree, project.name, wanted, sandbox=self._sandbox, base=base)
            refuse_copies(self._sandbox, python, project.tree, layout.imports, installed=True)
        except SourceError as error:
            self._refused[key] = error
            raise
        return python

    def _fitted(self, project: PristineTree, layout: RepositoryLayout, folder: Path, base: Path) -> Path:
        """Find an environment by running the tests, and keep what it holds."""
        limits = Limits(wall_s=self._options.timeout_s, cpu_s=self._options.timeout_s)
        runner = CodeRunner(sandbox=self._sandbox, python=base, python_path=layout.python_path, limits=limits)
        fitted = fit_environment(project, layout, folder, runner_of=lambda python: replace(runner, python=python), base=base)
        refuse_copies(self._sandbox, fitted.runner.python, project.tree, layout.imports, installed=True)
        self._found[folder.name] = made_for(folder)
        write_whole(self._file, json.dumps(self._found).encode())
        return fitted.runner.python

    def _base(self, install: RowInstall | None) -> Path:
        """Return the interpreter to make a row's environment with. Raises SourceError."""
        version = "" if install is None else install.python
        if self._options.python is not None or not version or version == f"{sys.version_info.major}.{sys.version_info.minor}":
            return (self._options.python or Path(sys.executable)).absolute()
        found = shutil.which(f"python{version}")
        if found is None:
            raise SourceError(
                f"its install_config asks for Python {version}, and there is no python{version} on the PATH",
                fix="install it, or name the interpreter to make environments with: --python PATH",
            )
        return Path(found).absolute()


def _lines_of(tree: Path, files: tuple[str, ...]) -> Iterator[str]:
    """Yield the requirements in files of a tree that are distributions of an index: no addresses, options or other files."""
    for path in files:
        text = (tree / path).read_text(encoding="utf-8", errors="replace") if (tree / path).is_file() else ""
        for line in text.splitlines():
            try:
                requirement = Requirement(line.partition(" #")[0].strip())
            except InvalidRequirement:
                continue
            if requirement.url is None:
                yield str(requirement)


def _read(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Read what was found. Raises AttributeError or TypeError on a record of another shape."""
    return {str(key): [str(line) for line in lines] for key, lines in found.items()}
