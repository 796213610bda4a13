"""Outcomes per test id, read over the private channel."""

from __future__ import annotations

import json
import sys
import textwrap
import venv
import zlib
from pathlib import Path

import pytest

from composer_replication.sandbox import Ending, ExecResult, Limits, Tree, interpreter, open_sandbox
from composer_replication.sandbox.grading.pytest_run import CodeRunner, read_answer
from composer_replication.types import Outcome
from composer_replication.types.errors import SandboxError, TaskError

PYTHON = Path(sys.executable)

CALC = """
def add(a, b):
    return a + b


def half(a):
    if a % 2:
        raise ValueError(f"odd: {a} {object()}")
    return a // 2
"""
TESTS = """
import warnings
import pytest
from calc import add, half

@pytest.mark.parametrize("text", ["two words", "p::q", "[z]", "a/b", "é"])
def test_params(text):
    assert add(text, "") == text

class TestClass:
    def test_method(self):
        assert half(4) == 2

def test_fails():
    assert add(2, 2) == 5, "sums are off"

def test_raises():
    half(3)

@pytest.mark.xfail
def test_xfail():
    assert False

@pytest.mark.xfail
def test_xpass():
    assert True

@pytest.mark.xfail(strict=True)
def test_strict_xpass():
    assert True

@pytest.mark.skip
def test_skip():
    pass

@pytest.fixture
def broken():
    raise RuntimeError("no fixture today")

def test_setup_error(broken):
    pass

@pytest.fixture
def late():
    yield
    raise RuntimeError("teardown")

def test_teardown_error(late):
    pass

def test_warns():
    warnings.warn("harmless")
"""
F = "tests/test_calc.py"
EXPECTED = {
    f"{F}::test_params[two words]": Outcome.PASSED,
    f"{F}::test_params[p::q]": Outcome.PASSED,
    f"{F}::test_params[[z]]": Outcome.PASSED,
    f"{F}::test_params[a/b]": Outcome.PASSED,
    f"{F}::test_params[\\xe9]": Outcome.PASSED,
    f"{F}::TestClass::test_method": Outcome.PASSED,
    f"{F}::test_fails": Outcome.FAILED,
    f"{F}::test_raises": Outcome.FAILED,
    f"{F}::test_xfail": Outcome.XFAILED,
    f"{F}::test_xpass": Outcome.XPASSED,
    f"{F}::test_strict_xpass": Outcome.FAILED,
    f"{F}::test_skip": Outcome.SKIPPED,
    f"{F}::test_setup_error": Outcome.ERROR,
    f"{F}::test_teardown_error": Outcome.ERROR,
    f"{F}::test_warns": Outcome.PASSED,
}


@pytest.fixture(scope="module")
def sandbox():
    return open_sandbox()


@pytest.fixture
def repo(tmp_path) -> Path:
    for path, text in {"src/calc.py": CALC, F: TESTS}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(textwrap.dedent(text))
    return tmp_path


def run(sandbox, repo, ids=(), changes=None, **options):
    tree = Tree(base=repo, changes={p: c if c is None else textwrap.dedent(c).encode() for p, c in (changes or {}).items()})
    return CodeRunner(sandbox=sandbox, python=PYTHON, python_path=["src"], **options).run(tree, ids)


def test_every_outcome_is_told_apart(any_box, repo):
    outcome = run(any_box, repo)
    assert outcome.outcomes == EXPECTED
    assert outcome.ending is Ending.EXITED
    assert outcome.failures == {
        f"{F}::test_fails": "AssertionError: sums are off",
        f"{F}::test_raises": "ValueError: odd: 3 <object object at 0x...>",
        f"{F}::test_strict_xpass": "[XPASS(strict)]",
        f"{F}::test_setup_error": "RuntimeError: no fixture today",
        f"{F}::test_teardown_error": "RuntimeError: teardown",
    }
    assert not outcome.passed


def test_only_the_ordered_ids_run_and_the_rest_is_missing(sandbox, repo):
    ids = [f"{F}::test_params[p::q]", f"{F}::test_gone", "tests/nowhere.py::test_x", f"{F}::TestClass::test_method"]
    outcome = run(sandbox, repo, ids)
    assert outcome.outcomes == {
        ids[0]: Outcome.PASSED,
        ids[1]: Outcome.MISSING,
        ids[2]: Outcome.MISSING,
        ids[3]: Outcome.PASSED,
    }
    assert run(sandbox, repo, ["tests/nowhere.py::test_x"]).outcomes == {"tests/nowhere.py::test_x": Outcome.MISSING}


def test_an_id_may_stand_for_a_file_a_class_or_all_parameters(sandbox, repo):
    assert run(sandbox, repo, [F]).outcomes == EXPECTED
    assert list(run(sandbox, repo, [f"{F}::TestClass"]).outcomes) == [f"{F}::TestClass::test_method"]
    assert len(run(sandbox, repo, [f"{F}::test_params"]).outcomes) == 5


def test_a_file_that_cannot_be_imported_is_an_error_of_its_tests(sandbox, repo):
    other = "tests/test_other.py"
    changes = {other: "import calc\ncalc.nothing\ndef test_x(): pass\n"}
    outcome = run(sandbox, repo, [f"{other}::test_x", f"{F}::TestClass::test_method"], changes)
    assert outcome.outcomes == {f"{other}::test_x": Outcome.ERROR, f"{F}::TestClass::test_method": Outcome.PASSED}
    message = "AttributeError: module 'calc' has no attribute 'nothing'"
    assert outcome.collect_errors == (f"{other}: {message}",)
    assert outcome.failures == {f"{other}::test_x": message}


def test_a_syntax_error_in_the_code_under_test_is_named(sandbox, repo):
    outcome = run(sandbox, repo, [f"{F}::test_fails"], {"src/calc.py": "def add(:\n"})
    assert outcome.outcomes == {f"{F}::test_fails": Outcome.ERROR}
    assert outcome.failures[f"{F}::test_fails"].startswith("SyntaxError: ")


def test_messages_are_the_same_in_every_run_and_every_box(box, repo):
    changes = {
        F: "import os, pathlib\ndef test_x(tmp_path): raise OSError(f'{os.getcwd()} {os.environ[\"TMPDIR\"]} {object()}')\n"
    }
    assert run(box, repo, [F], changes).failures == {f"{F}::test_x": "OSError: /repo /tmp <object object at 0x...>"}


def test_conftest_and_configuration_of_the_tree_are_honoured(sandbox, repo):
    changes = {
        "pytest.ini": "[pytest]\nmarkers = special\naddopts = --strict-markers\npython_files = check_*.py\n",
        "conftest.py": "import pytest\n@pytest.fixture\ndef seven(): return 7\n",
        "tests/check_it.py": "import pytest\n@pytest.mark.special\ndef test_it(seven): assert seven == 7\n",
    }
    assert run(sandbox, repo, (), changes).outcomes == {"tests/check_it.py::test_it": Outcome.PASSED}


def test_options_of_plugins_that_are_not_loaded_do_not_matter(sandbox, repo):
    changes = {"pytest.ini": "[pytest]\naddopts = --cov=calc -n 4\nrequired_plugins = pytest-cov pytest-xdist\n"}
    assert run(sandbox, repo, [f"{F}::test_warns"], changes).outcomes == {f"{F}::test_warns": Outcome.PASSED}


def test_pytest_giving_up_is_reported(sandbox, repo):
    outcome = run(sandbox, repo, [f"{F}::test_warns"], {"conftest.py": "raise RuntimeError('conftest is broken')\n"})
    assert outcome.outcomes == {f"{F}::test_warns": Outcome.MISSING}
    assert any("conftest is broken" in error for error in outcome.collect_errors)


def test_hash_order_is_fixed(sandbox, repo):
    changes = {F: "def test_x(): raise ValueError(hash('abc'))\n"}
    first, second = (run(sandbox, repo, [F], changes).failures for _ in range(2))
    assert first == second


def test_limits_end_the_run_and_nothing_has_passed(sandbox, repo):
    """Without control groups the interpreter itself runs out of memory, and pytest may live on to say so as an error."""
    ids = [f"{F}::test_warns", f"{F}::test_fails"]
    hang = run(sandbox, repo, ids, {"src/calc.py": "while True: pass\n"}, limits=Limits(wall_s=2))
    hog = run(
        sandbox, repo, ids, {"src/calc.py": "x = []\nwhile True: x.append(bytearray(1 << 23))\n"}, limits=Limits(memory_mb=256)
    )
    for outcome, ending in ((hang, Ending.TIMEOUT), (hog, Ending.OUT_OF_MEMORY)):
        assert outcome.ending is ending
        assert set(outcome.outcomes) == set(ids)
        assert set(outcome.outcomes.values()) <= {Outcome.MISSING, Outcome.ERROR}


def test_coverage_names_the_tests_behind_each_line(sandbox, repo):
    ids = [f"{F}::TestClass::test_method", f"{F}::test_fails", f"{F}::test_raises"]
    outcome, lines = CodeRunner(sandbox=sandbox, python=PYTHON, python_path=["src"]).run_with_coverage(Tree(base=repo), ids)
    assert list(outcome.outcomes.values()) == [Outcome.PASSED, Outcome.FAILED, Outcome.FAILED]
    method, fails, raises = (frozenset({test_id}) for test_id in ids)
    assert lines["src/calc.py"] == {3: fails, 7: method | raises, 8: raises, 9: method}
    assert set(lines) == {"src/calc.py", F}


def test_an_interpreter_without_pytest_is_a_task_error(sandbox, repo, tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    with pytest.raises(TaskError, match="has no pytest"):
        CodeRunner(sandbox=sandbox, python=python).run(Tree(base=repo), [F])
    with pytest.raises(TaskError, match="not a working Python"):
        CodeRunner(sandbox=sandbox, python=tmp_path / "nowhere").run(Tree(base=repo), [F])


def test_an_interpreter_that_does_not_answer_or_answers_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(interpreter, "_ANSWER_S", 0.05)
    for name, program in (("slow", "exec sleep 600"), ("broken", "echo trouble; echo no encodings >&2; exit 3")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(SandboxError) as late:
        interpreter.installation_of(tmp_path / "slow")
    assert str(late.value) == f"{tmp_path}/slow did not answer within 0.05 s\n  fix: try again when the machine has less to do"
    monkeypatch.setattr(interpreter, "_ANSWER_S", 60.0)
    with pytest.raises(TaskError) as broken:
        interpreter.installation_of(tmp_path / "broken")
    assert broken.value.message == f"{tmp_path}/broken is not a working Python interpreter (no encodings)"


def test_an_interpreter_behind_a_wrapper(tmp_path):
    for name, program in (("chatty", f'echo hello; exec {sys.executable} "$@"'), ("mute", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    assert "pytest" in interpreter.installation_of(tmp_path / "chatty").modules
    with pytest.raises(TaskError, match="does not run the program"):
        interpreter.installation_of(tmp_path / "mute")


def test_an_answer_counts_only_with_the_nonce_and_untorn():
    body = zlib.compress(json.dumps({"outcomes": {}}).encode())
    facts = {"returncode": 0, "stdout": b"", "stderr": b"", "wall_s": 0.0, "cpu_s": 0.0}

    def said(channel: bytes, ending: Ending = Ending.EXITED):
        return read_answer(ExecResult(ending=ending, channel=channel, **facts), "ab" * 16)

    assert said(b"ab" * 16 + body) == {"outcomes": {}}
    assert said(b"ac" * 16 + body) is None
    assert said(b"ab" * 16 + body[:-3]) is None
    assert said(b"ab" * 16 + zlib.compress(b"[]")) == []
    assert said(b"ab" * 16 + zlib.compress(b"nothing")) is None
    assert said(b"") is None
    assert said(b"ab" * 16 + body, Ending.KILLED) is None


def test_an_answer_that_unpacks_to_more_than_its_limit_is_none():
    facts = {"returncode": 0, "stdout": b"", "stderr": b"", "wall_s": 0.0, "cpu_s": 0.0, "ending": Ending.EXITED}
    body = zlib.compress(json.dumps("x" * 5000).encode())
    result = ExecResult(channel=b"n" + body, **facts)
    assert read_answer(result, "n") == read_answer(result, "n", 6000) == "x" * 5000
    assert read_answer(result, "n", 5000) is None


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"tampered": False},
        {"tampered": False, "outcomes": {F: "wonderful"}, "collect_errors": [], "failures": {}, "status": 0},
        {"tampered": False, "outcomes": [F], "collect_errors": [], "failures": {}, "status": 0},
        {"tampered": False, "outcomes": {F: "passed"}, "collect_errors": 1, "failures": {}, "status": 0},
    ],
)
def test_an_answer_of_another_shape_is_no_answer(sandbox, repo, answer):
    """Whoever finds the nonce can say anything."""
    forge = f"""
        import json, os, sys, zlib
        frame = sys._getframe()
        while "nonce" not in frame.f_locals:
            frame = frame.f_back
        os.write(3, frame.f_locals["nonce"].encode() + zlib.compress({json.dumps(answer)!r}.encode()))
        os._exit(0)
        """
    tests = run(sandbox, repo, [F], {F: textwrap.dedent(forge)})
    assert set(tests.outcomes.values()) == {Outcome.MISSING}


def test_the_python_path_of_the_tree_is_all_that_is_added(any_box, repo):
    """Not the tree's root, where the code under test could shadow pytest."""
    test = "import os, sys\ndef test_x(): assert os.path.abspath('src') in sys.path and not {'', os.getcwd()} & set(sys.path)\n"
    assert run(any_box, repo, [F], {F: test}).passed


NAME = "any" + "io"  # a file that holds the word asks for the plugin
COROUTINE = f"import pytest\n\n@pytest.mark.{NAME}\nasync def test_it(): pass\n"
BACKEND = f"import pytest\n\n@pytest.fixture\ndef {NAME}_backend(): return 'asyncio'\n"
WHO = """
def test_it(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("any" + "io.pytest_plugin") == {there}
"""


@pytest.mark.parametrize(
    "files",
    [
        {"tests/test_it.py": COROUTINE, "tests/conftest.py": BACKEND},
        {"tests/test_it.py": WHO.format(there=True), "tests/conftest.py": f"# {NAME}\n"},
        {"tests/test_it.py": WHO.format(there=True), "conftest.py": f"# {NAME}\n"},
        {"tests/test_it.py": WHO.format(there=True), "tests/base.py": f"# {NAME}\n"},
        {"tests/test_it.py": WHO.format(there=False), "calc.py": f"# {NAME}\n", "other/data.py": f"# {NAME}\n"},
    ],
    ids=["the file", "its conftest", "a conftest above", "what it imports", "none of them"],
)
def test_coroutines_run_where_files_of_the_tests_name_what_runs_them(sandbox, repo, files):
    """The plugin of anyio takes a tenth of a second to import, so others' tests do not load it."""
    for ids, extra in ((["tests/test_it.py::test_it"], ()), ([], ("tests/test_it.py",))):
        done = CodeRunner(sandbox=sandbox, python=PYTHON).run(
            Tree(base=repo, changes={path: text.encode() for path, text in files.items()}), ids, extra
        )
        assert done.passed, (done.failures, done.collect_errors)
