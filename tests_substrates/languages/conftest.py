from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from go_project import PYTHON, write
from java_builds import java_built, maven_home
from javascript_builds import built
from rust_projects import HOUSE, LEDGER, require_rust
from rust_projects import write as write_crates

from composer_replication.languages.go.language import GO
from composer_replication.languages.go.runner import GoRunner
from composer_replication.languages.rust.language import RUST
from composer_replication.languages.rust.runner import RustRunner
from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.sandbox.protocol import Limits
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks

__all__ = ["built", "java_built", "maven_home"]


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return open_sandbox()


@pytest.fixture(scope="session")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write(tmp_path_factory.mktemp("ledger"))
    GO.prepare(PYTHON, root, fetch=False)
    return root


@pytest.fixture(scope="session")
def runner(sandbox: Sandbox, module: Path) -> GoRunner:
    return GoRunner(sandbox=sandbox, python=PYTHON, limits=Limits(wall_s=300, cpu_s=300))


@pytest.fixture(scope="session")
def tasks(module: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    """All tasks of the module, by the name of the function."""
    out = tmp_path_factory.mktemp("tasks")
    build_tasks(str(module), out, BuildOptions(trivial=True, python=PYTHON, timeout_s=300, forgeable=True))
    return {task.spec.deleted[0].qualname: task for task in load_tasks(out)}


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Rust library, and an environment with a compiler."""
    require_rust()
    root = write_crates(tmp_path_factory.mktemp("crates") / "ledger", LEDGER)
    RUST.prepare(PYTHON, root, fetch=True)
    return root


@pytest.fixture(scope="session")
def house(ledger: Path) -> Path:
    """A workspace of Rust crates."""
    return write_crates(ledger.parent / "house", HOUSE)


@pytest.fixture(scope="session")
def rust_runner(sandbox: Sandbox, ledger: Path) -> RustRunner:
    return RustRunner(sandbox=sandbox, python=PYTHON, limits=Limits(wall_s=300, cpu_s=300))


@pytest.fixture(scope="session")
def rust_tasks(ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    """All tasks of the library, by the name of the function."""
    out = tmp_path_factory.mktemp("rust-tasks")
    build_tasks(str(ledger), out, BuildOptions(trivial=True, python=PYTHON, timeout_s=300, forgeable=True))
    return {task.spec.deleted[0].qualname: task for task in load_tasks(out)}
