"""Two runs of the same tests in one box, from one collection: what differs between them shows."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from composer_replication.sandbox import Ending, Limits, Tree, open_sandbox
from composer_replication.sandbox.grading.pytest_run import CodeRunner, TestRun
from composer_replication.types import Outcome

PYTHON = Path(sys.executable)


def twice(folder: Path, tests: str, *ids: str, **limits: float) -> tuple[TestRun, TestRun]:
    (folder / "test_a.py").write_text(textwrap.dedent(tests))
    tree = Tree(base=folder)
    runner = CodeRunner(sandbox=open_sandbox(), python=PYTHON, limits=Limits(**limits))  # type: ignore[arg-type]
    return runner.run_twice(tree, ids)


def test_both_start_from_the_same_state_and_the_tree_is_collected_once(tmp_path: Path) -> None:
    tests = """
        import os
        from pathlib import Path

        with open("imports", "a") as file:
            file.write("x")
        STATE = []

        def test_state():
            STATE.append(1)
            assert len(STATE) == 1

        def test_imported_once():
            assert Path("imports").read_text() == "x"

        def test_first_only():
            with open("left", "x"):
                pass

        def test_fails():
            assert STATE == "no"
        """
    ids = [f"test_a.py::{name}" for name in ("test_state", "test_imported_once", "test_first_only", "test_fails")]
    first, second = twice(tmp_path, tests, *ids)
    assert list(first.outcomes.values()) == [Outcome.PASSED, Outcome.PASSED, Outcome.PASSED, Outcome.FAILED]
    assert list(second.outcomes.values()) == [Outcome.PASSED, Outcome.PASSED, Outcome.FAILED, Outcome.FAILED]
    assert "FileExistsError" in second.failures[ids[2]]


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_first_run_that_dies_says_nothing(tmp_path: Path, end: str) -> None:
    tests = f"""
        import os

        def test_dies_once():
            try:
                open("left", "x").close()
            except FileExistsError:
                return
            {end}
        """
    first, second = twice(tmp_path, tests, "test_a.py::test_dies_once")
    assert first.outcomes == {"test_a.py::test_dies_once": Outcome.MISSING}
    assert second.outcomes == {"test_a.py::test_dies_once": Outcome.PASSED}


def test_the_limits_are_those_of_both(tmp_path: Path) -> None:
    tests = "import time\n\ndef test_hangs():\n    time.sleep(3600)\n"
    first, second = twice(tmp_path, tests, "test_a.py::test_hangs", wall_s=3.0)
    assert first.ending is second.ending is Ending.TIMEOUT
    assert set(second.outcomes.values()) == {Outcome.MISSING}


def test_only_ordered_functions_become_items(tmp_path: Path) -> None:
    """Others of the module are not even made; whole files and classes are ordered as they stand."""
    tests = """
        import pytest

        @pytest.fixture(params=[1, 2])
        def number(request):
            return request.param

        def test_one(number):
            pass

        def test_other(number):
            pass

        class TestClass:
            def test_in(self):
                pass

            class TestInner:
                def test_deep(self):
                    pass

        class TestOther:
            def test_out(self):
                pass
        """
    (tmp_path / "test_a.py").write_text(textwrap.dedent(tests))
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_modifyitems(items):\n    open('seen', 'w').write(' '.join(i.name for i in items))\n"
    )
    (tmp_path / "test_b.py").write_text(
        "def test_seen():\n    assert open('seen').read() == 'test_one[1] test_one[2] test_seen'\n"
    )

    def ran(*ids: str) -> dict[str, Outcome]:
        return dict(CodeRunner(sandbox=open_sandbox(), python=PYTHON).run(Tree(base=tmp_path), ids).outcomes)

    passed = Outcome.PASSED
    both = {"test_a.py::test_one[1]": passed, "test_b.py::test_seen": passed}
    assert ran(*both) == both
    assert ran("test_a.py::TestClass") == {
        "test_a.py::TestClass::test_in": passed,
        "test_a.py::TestClass::TestInner::test_deep": passed,
    }
    assert len(ran("test_a.py")) == 7
