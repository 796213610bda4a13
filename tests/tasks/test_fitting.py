"""`--install` finds the environment that a project's tests run in: it begins with little, and failures ask for more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.sandbox.grading.pytest_run import CodeRunner, TestRun
from composer_replication.sandbox.protocol import Ending
from composer_replication.tasks.proofs import fitting
from composer_replication.tasks.proofs.baseline import Baseline, UnhealthyError
from composer_replication.tasks.sources.layout import guess_layout
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.types.errors import SourceError

WriteProject = Callable[[Mapping[str, str]], Path]

PROJECT = {
    "pyproject.toml": """
        [project]
        name = "shop"
        dependencies = ["alpha"]
        [dependency-groups]
        test = ["pytest-mock", "beta", "sphinx"]
        """,
    "shop/__init__.py": "def price():\n    return 3\n",
    "tests/test_shop.py": "import beta\nimport shop\n\n\ndef test_price():\n    assert shop.price() == 3\n",
}
HEALTHY = Baseline(passing=frozenset({"tests/test_shop.py::test_price"}), flaky=(), failing=(), skipped=0, coverage={})


class World:
    """An index and an interpreter: what can be installed, what brings the project along, and what the tests ask for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
        self.environments: list[set[str]] = []
        self.cannot: dict[str, str] = {}
        """By name: what pip says of it."""
        self.bring: set[str] = set()
        self.collecting: Callable[[set[str]], tuple[str, ...]] = lambda wanted: ()
        self.testing: Callable[[set[str]], Baseline] = lambda wanted: HEALTHY
        self.project = PristineTree(name="shop", label="folder:shop", digest="0", tree=tree)
        monkeypatch.setattr(fitting, "make_environment", self._make)
        monkeypatch.setattr(fitting, "copies_of", self._copies)
        monkeypatch.setattr(fitting, "bringing", lambda folder, project: frozenset({*self.bring, "shop"}))
        monkeypatch.setattr(fitting, "measure_baseline", lambda runner, tree, **_: self.testing(self.environments[-1]))

    def fit(self) -> fitting.Fitted:
        layout = guess_layout(self.project.tree)
        return fitting.fit_environment(self.project, layout, Path("env"), runner_of=self._runner)

    def _make(self, folder: Path, tree: Path, name: str, wanted: list[str], **_: object) -> Path:
        asked = set(wanted)
        self.environments.append(asked)
        for requirement in sorted(asked & self.cannot.keys()):
            raise SourceError(self.cannot[requirement], fix="--python")
        return folder / "bin" / "python"

    def _copies(self, *_: object) -> dict[str, str]:
        return {"shop": "/env/shop"} if self.bring & self.environments[-1] else {}

    def _runner(self, python: Path) -> CodeRunner:
        world = self

        class Runner:
            sandbox = None

            def run(self, tree: object, ids: object, extra: object) -> TestRun:
                return TestRun(outcomes={}, ending=Ending.EXITED, collect_errors=world.collecting(world.environments[-1]))

        return Runner()  # type: ignore[return-value]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, write_project: WriteProject) -> World:
    return World(monkeypatch, write_project(PROJECT))


FIRST = {"alpha", "beta", "coverage", "pytest", "pytest-mock"}


def test_what_documents_a_project_is_never_installed(world: World) -> None:
    fitted = world.fit()
    assert world.environments == [FIRST]
    assert fitted.notes == ()
    assert fitted.baseline == HEALTHY


def test_what_brings_the_project_itself_is_left_out(world: World) -> None:
    world.bring = {"pytest-mock"}
    fitted = world.fit()
    assert world.environments == [FIRST, FIRST - {"pytest-mock"}]
    assert fitted.notes == ("pytest-mock was left out of the environment: it needs shop itself",)


@pytest.mark.parametrize(("name", "said"), [("alpha", "alpha in the environment"), ("pytest", "pytest in the environment")])
def test_what_the_project_or_pytest_needs_is_the_reason(world: World, name: str, said: str) -> None:
    world.bring = {name}
    with pytest.raises(SourceError, match=f"{said} for the tests needs shop itself"):
        world.fit()


def test_what_cannot_be_installed_is_left_out_unless_the_project_runs_with_it(world: World) -> None:
    world.cannot = {"beta": "beta has no wheel, and none can be built"}
    assert "beta was left out" in world.fit().notes[0]
    assert world.environments == [FIRST, FIRST - {"beta"}]
    world.environments.clear()
    world.cannot = {"beta": "pip failed and names nothing"}
    world.fit()
    without = FIRST - {"pytest-mock"}
    assert world.environments == [FIRST, FIRST, without, without - {"beta"}], "once more, without plugins, without the rest"
    world.environments.clear()
    world.cannot = {"alpha": "ERROR: No matching distribution found for alpha"}
    with pytest.raises(SourceError, match="found for alpha"):
        world.fit()
    assert world.environments == [FIRST], "nothing else is blamed"


def test_versions_that_conflict_are_let_go_before_anything_is_left_out(world: World, write_project: WriteProject) -> None:
    world.project = replace(
        world.project, tree=write_project({**PROJECT, "requirements-test.txt": "beta==1\npytest==3\n", "pyproject.toml": ""})
    )
    conflict = "Cannot install beta==1 and pytest==3 because these package versions have conflicting dependencies."
    world.cannot = {"pytest==3": conflict}
    assert len(world.fit().notes) == 2
    assert world.environments == [{"beta==1", "coverage", "pytest==3"}, {"beta", "coverage", "pytest"}]


def test_the_environment_with_the_most_passing_tests_is_taken(world: World) -> None:
    """What a healthy project's failures ask for may break more than it mends."""
    asks = replace(HEALTHY, failing=("No module named 'sphinx'", "fixture 'x' not found"))

    def worse(wanted: set[str]) -> Baseline:
        if "sphinx" in wanted:
            raise UnhealthyError("0 tests pass", fix="--python", lines=["broken"])
        return asks

    for testing in (worse, lambda wanted: replace(HEALTHY, passing=frozenset()) if "sphinx" in wanted else asks):
        world.environments.clear()
        world.testing = testing
        fitted = world.fit()
        assert fitted.baseline == asks
        assert world.environments == [FIRST, FIRST | {"sphinx"}, FIRST]


def test_a_file_of_the_project_hides_no_distribution(world: World, write_project: WriteProject) -> None:
    """Only what lies where the tests import from is the project's own."""
    files = {"shop/backends/beta.py": "", "tests/helpers.py": "", "tests/test_more.py": "import helpers\nimport beta\n"}
    world.project = replace(world.project, tree=write_project(PROJECT | files))
    world.collecting = lambda wanted: ("No module named 'helpers'", "No module named '_speed'", "No module named 'x @ http://y'")
    world.fit()
    assert world.environments == [FIRST]


def test_modules_that_the_project_declares_are_added_before_its_tests_run(world: World) -> None:
    ran: list[set[str]] = []

    def testing(wanted: set[str]) -> Baseline:
        ran.append(wanted)
        return HEALTHY

    world.testing = testing
    world.collecting = lambda wanted: (
        () if "sphinx" in wanted else ("tests/a.py: No module named 'sphinx.x'", "No module named 'zoo'")
    )
    assert world.fit().notes == ()
    assert world.environments == [FIRST, FIRST | {"sphinx"}]
    assert ran == [FIRST | {"sphinx"}]


def test_what_is_not_declared_is_tried_where_most_tests_fail_without_it(world: World) -> None:
    lines = ["tests/a.py: ModuleNotFoundError: No module named 'zoo'", "tests/b.py::t: fixture 'mocker' not found"]

    def testing(wanted: set[str]) -> Baseline:
        if "zoo" not in wanted:
            raise UnhealthyError("1 of the tests pass", fix="--python", lines=lines)
        return HEALTHY

    world.testing = testing
    assert world.fit().notes == ("zoo was installed, which the tests ask for and the project does not declare",)
    world.cannot = {"zoo": "No matching distribution found for zoo"}
    with pytest.raises(UnhealthyError, match="1 of the tests pass"):
        world.fit()
    assert world.environments[-1] == {*FIRST - {"pytest"}, "pytest<7"}, "older releases of pytest are tried before it is given up"


def test_many_failures_of_a_healthy_project_ask_for_what_it_declares(world: World) -> None:
    world.testing = lambda wanted: (
        HEALTHY
        if "sphinx" in wanted
        else replace(HEALTHY, failing=("tests/a.py::t: No module named 'sphinx'", "No module named 'zoo'"))
    )
    world.fit()
    assert world.environments == [FIRST, FIRST | {"sphinx"}]


def test_the_reason_is_that_of_the_project_s_own_pytest(world: World) -> None:
    """Older ones fail in ways of their own."""

    def testing(wanted: set[str]) -> Baseline:
        older = next((line for line in wanted if line.startswith("pytest<")), "its own")
        raise UnhealthyError(f"fails with {older}", fix="--python", lines=[f"fixture 'x' not found, {older}"])

    world.testing = testing
    with pytest.raises(SourceError, match="fails with its own"):
        world.fit()
    assert len(world.environments) == 4


def test_failures_that_no_pytest_mends_ask_for_no_older_one(world: World) -> None:
    def testing(wanted: set[str]) -> Baseline:
        raise UnhealthyError("1 of 2 pass", fix="--python", lines=["tests/test_shop.py::test_price: AssertionError: 3 != 4"])

    world.testing = testing
    with pytest.raises(SourceError, match="1 of 2 pass"):
        world.fit()
    assert world.environments == [FIRST]


def test_an_older_pytest_is_taken_where_tests_run_with_it_alone(world: World) -> None:
    def testing(wanted: set[str]) -> Baseline:
        if "pytest<8" not in wanted:
            raise UnhealthyError("pytest stopped before any test: hook signature", fix="--python", lines=["hook signature"])
        return HEALTHY

    world.testing = testing
    assert world.fit().notes == ("pytest<8 was installed: the tests do not run with newer releases",)
    assert [next(line for line in wanted if line.startswith("pytest<") or line == "pytest") for wanted in world.environments] == [
        "pytest",
        "pytest<9",
        "pytest<8",
    ]
