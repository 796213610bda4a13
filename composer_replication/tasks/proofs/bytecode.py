"""Compile a project once: a copy of its tree with the bytecode of its modules and of its rewritten tests beside them.

A build runs the same tests hundreds of times, and compiling takes most of a short run. The bytecode is checked against a hash of
its source each time (PEP 552; pytest does the same from 9.2 for the tests it rewrites), so an edited file is recompiled. It is
made inside a sandbox, as every other run of the project's code, and never gets into a task: tasks are written from the pristine
tree.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

from composer_replication.languages.layout import RepositoryLayout
from composer_replication.sandbox.grading.pytest_run import CodeRunner, plugins_of
from composer_replication.sandbox.protocol import Command, Tree
from composer_replication.sandbox.request import WARM_FLAGS
from composer_replication.tasks.files import copy_tree, storage_errors
from composer_replication.types.errors import SandboxError

_MOST_BYTES = 128 << 20
_PROGRAM = """
import importlib, importlib.util, io, json, os, pathlib, py_compile, sys, tarfile
sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())]
import pytest
request = json.load(sys.stdin)
sys.dont_write_bytecode = False
sys.path[:0] = [os.path.normpath(os.path.join(os.getcwd(), p)) for p in request["python_path"]]
plugins = [importlib.import_module(name) for name in request["plugins"]]
options = ["-q", "--collect-only", "--rootdir=" + os.getcwd(), "-p", "no:cacheprovider", "-o", "required_plugins="]
pytest.main([*options, "--continue-on-collection-errors", *request["tests"]], plugins)
checked = py_compile.PycInvalidationMode.CHECKED_HASH
imported = [str(p) for p in pathlib.Path(".").rglob("__pycache__/*.pyc") if "-pytest-" not in p.name]
for source in {*request["sources"], *map(importlib.util.source_from_cache, imported)}:
    try:
        py_compile.compile(source, doraise=True, invalidation_mode=checked)
    except py_compile.PyCompileError:
        continue
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w") as tar:
    for compiled in sorted(pathlib.Path(".").rglob("__pycache__/*.pyc")):
        content = compiled.read_bytes()
        if content[4] & 1:  # checked by hash; what is checked by its time would not be found out to be old
            member = tarfile.TarInfo(compiled.as_posix())
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
rest = memoryview(packed.getvalue())
channel = int(os.environ["COMPOSER_RESULT_FD"])
while rest:
    rest = rest[os.write(channel, rest):]
os._exit(0)
"""


def compile_tree(runner: CodeRunner, tree: Path, compiled: Path, *, layout: RepositoryLayout) -> Path:
    """Copy `tree` to `compiled`, replacing what is there, and add what compiling its modules and collecting its tests gives.

    What the project's code does to the bytecode while it is collected is its own affair: a file that is not bytecode is not
    taken, and a task's verdicts rest on runs of the tests with and without the feature all the same.

    Raises:
        SandboxError: the sandbox broke, or did not answer.
        StorageError: `compiled` cannot be written.
    """
    request = {
        "python_path": layout.python_path,
        "plugins": plugins_of(runner.sandbox, runner.python),
        "tests": layout.tests,
        "sources": layout.sources,
    }
    command = Command(
        argv=(str(runner.python), *WARM_FLAGS, _PROGRAM),
        python=runner.python,
        stdin=json.dumps(request).encode(),
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "1"},
        limits=replace(runner.limits, output_bytes=_MOST_BYTES),
    )
    result = runner.sandbox.run(Tree(base=tree), command)
    with storage_errors(compiled.parent):
        shutil.rmtree(compiled, ignore_errors=True)
    copy_tree(tree, compiled)
    try:
        with tarfile.open(fileobj=io.BytesIO(result.channel), mode="r:") as tar, storage_errors(compiled):
            for member in tar:
                content = tar.extractfile(member) if member.isreg() and member.size <= len(result.channel) else None
                target = compiled / member.name
                if content is not None and _is_bytecode(member.name) and target.parent.parent.is_dir():
                    target.parent.mkdir(exist_ok=True)
                    target.write_bytes(content.read())
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:  # what tarfile raises on false headers
        said = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(f"the project's modules could not be compiled ({result.ending}: {said})", fix="try again") from error
    return compiled


def _is_bytecode(name: str) -> bool:
    """Return whether a member lies where bytecode lies, inside the tree."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.parent.name == "__pycache__" and name.endswith(".pyc")
