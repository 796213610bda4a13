"""The attacks on grading this project knows, each tried against the real grader: none may earn a reward, honest work must."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading import grade
from composer_replication.types import Deletion, TaskSpec

PYTHON = Path(sys.executable)
F = "tests/test_calc.py"
PRISTINE = {
    "calc.py": "def add(a, b):\n    raise NotImplementedError\n\n\ndef sub(a, b):\n    return a - b\n",
    "helper.py": "VALUE = 1\n",
    F: """
from calc import add, sub

def test_add():
    assert add(2, 3) == 5

def test_add2():
    assert add(10, -4) == 6

def test_sub():
    assert sub(5, 3) == 2
""",
}
TASK = TaskSpec(
    task_id="calc",
    source="folder",
    source_digest="0" * 64,
    instruction="bring add back",
    deleted=(Deletion(path="calc.py", qualname="add", lines=1),),
    fail_to_pass=(f"{F}::test_add", f"{F}::test_add2"),
    pass_to_pass=(f"{F}::test_sub",),
    editable=("**/*.py",),
    test_timeout_s=20.0,
)
"""A careless allow list, so that the grader's own defences are what is tested."""

NO_ADD = "def add(a, b):\n    raise NotImplementedError\n\n\ndef sub(a, b):\n    return a - b\n"
PASS_ALL_HOOK = """
import pytest
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    report.longrepr = None
    return report
"""
FORGE_CHANNEL = """
import json, os, zlib
answer = {"status": 0, "collected": [], "failures": {}, "collect_errors": [], "tampered": False, "coverage": None}
answer["outcomes"] = {"tests/test_calc.py::" + name: "passed" for name in ("test_add", "test_add2", "test_sub")}
os.write(3, b"0" * 32 + zlib.compress(json.dumps(answer).encode()))
os._exit(0)
"""
PATCH_CALLINFO = """
import _pytest.runner as runner
real = runner.CallInfo.from_call.__func__
def forged(cls, func, when, reraise=None):
    call = real(cls, func, when, reraise)
    call.excinfo = None
    return call
runner.CallInfo.from_call = classmethod(forged)
"""
PATCH_REPORT = """
import _pytest.reports as reports
real = reports.TestReport.from_item_and_call.__func__
def forged(cls, item, call):
    report = real(cls, item, call)
    report.outcome = "passed"
    return report
reports.TestReport.from_item_and_call = classmethod(forged)
"""
PATCH_CODE = """
import _pytest.python as python
python.pytest_pyfunc_call.__code__ = (lambda pyfuncitem: True).__code__
"""

ATTACKS: dict[str, dict[str, str | None]] = {
    "nothing": {},
    "tests edited": {F: "def test_add(): pass\ndef test_add2(): pass\ndef test_sub(): pass\n"},
    "tests deleted": {F: None},
    "a failing test deleted": {F: "from calc import sub\ndef test_sub(): assert sub(5, 3) == 2\n"},
    "conftest hook": {"conftest.py": PASS_ALL_HOOK},
    "conftest hook beside the tests": {"tests/conftest.py": PASS_ALL_HOOK},
    "conftest xfail": {
        "conftest.py": "import pytest\ndef pytest_collection_modifyitems(items):\n"
        "    for item in items: item.add_marker(pytest.mark.xfail)\n"
    },
    "pytest.ini deselects": {"pytest.ini": f"[pytest]\naddopts = --deselect {F}::test_add --deselect {F}::test_add2\n"},
    "pyproject addopts": {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--collect-only"\n'},
    "a plugin by addopts": {"setup.cfg": "[tool:pytest]\naddopts = -p evil\n", "evil.py": PASS_ALL_HOOK},
    "sitecustomize": {"sitecustomize.py": PATCH_REPORT},
    "shadowed pytest": {"pytest.py": "import sys\ndef main(*a, **k): return 0\nprint('3 passed in 0.01s')\n"},
    "shadowed _pytest": {"_pytest/__init__.py": "raise SystemExit(0)\n"},
    "shadowed standard library": {"json.py": "raise SystemExit(0)\n", "zlib.py": "raise SystemExit(0)\n"},
    "os._exit at import": {"calc.py": "import os\nos._exit(0)\n"},
    "os._exit in the call": {"calc.py": "import os\ndef add(a, b): os._exit(0)\ndef sub(a, b): return a - b\n"},
    "sys.exit": {"calc.py": "import sys\ndef add(a, b): sys.exit(0)\ndef sub(a, b): return a - b\n"},
    "skip": {"calc.py": "import pytest\ndef add(a, b): pytest.skip()\ndef sub(a, b): return a - b\n"},
    "xfail": {"calc.py": "import pytest\ndef add(a, b): pytest.xfail()\ndef sub(a, b): return a - b\n"},
    "skip the module": {"calc.py": "import pytest\npytest.skip(allow_module_level=True)\n"},
    "pytest.exit": {"calc.py": "import pytest\ndef add(a, b): pytest.exit('done', 0)\ndef sub(a, b): return a - b\n"},
    "forged stdout": {"calc.py": NO_ADD + "import os\nos.write(1, b'3 passed in 0.01s')\nos._exit(0)\n"},
    "forged channel": {"calc.py": NO_ADD + FORGE_CHANNEL},
    "garbage on the channel": {
        "calc.py": NO_ADD.replace("raise NotImplementedError", "return a + b") + "import os\nos.write(3, b'x')\n"
    },
    "closed channel": {"calc.py": NO_ADD + "import os\nos.close(3)\n"},
    "patched CallInfo": {"calc.py": NO_ADD + PATCH_CALLINFO},
    "patched report": {"calc.py": NO_ADD + PATCH_REPORT},
    "patched code object": {"calc.py": NO_ADD + PATCH_CODE},
    "patched from the other file": {"helper.py": PATCH_REPORT, "calc.py": "import helper\n" + NO_ADD},
    "a bytecode file": {"calc.py": None, "__pycache__/calc.cpython-311.pyc": "x"},
    "an exit handler": {"calc.py": NO_ADD + "import atexit, os\natexit.register(os.write, 3, b'0' * 32)\n"},
    "a kill of the parent": {"calc.py": NO_ADD + "import os\nos.kill(os.getppid(), 9)\n"},
    "a new test file of the same name": {"tests/test_calc/__init__.py": "", "test_calc.py": "def test_add(): pass\n"},
    "assertions optimised away": {"calc.py": "import os\nos.environ['PYTHONOPTIMIZE'] = '2'\n" + NO_ADD},
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pristine")
    write(root, PRISTINE)
    return root


def write(root: Path, files: dict[str, str | None]) -> None:
    for path, text in files.items():
        target = root / path
        if text is None:
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


def judge(pristine: Path, workspace):
    return grade(TASK, pristine, workspace, sandbox=open_sandbox(), python=PYTHON)


def test_honest_work_is_rewarded(pristine):
    fixed = NO_ADD.replace("raise NotImplementedError", "return a + b").encode()
    assert judge(pristine, {"calc.py": fixed}).reward == 1.0


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_is_rewarded(pristine, tmp_path, attack):
    workspace = tmp_path / "ws"
    shutil.copytree(pristine, workspace)
    write(workspace, ATTACKS[attack])
    report = judge(pristine, workspace)
    assert report.reward == 0.0, (attack, report)
    assert report.reasons


def test_patching_pytest_is_named(pristine):
    report = judge(pristine, {"calc.py": (NO_ADD + textwrap.dedent(PATCH_REPORT)).encode()})
    assert report.reasons[0] == "the code under test replaced parts of pytest"
