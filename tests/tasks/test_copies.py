"""Copies of the gold code in what a sandbox can read: which are found, and that no task is made of code that has one."""

from __future__ import annotations

import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import pytest

from composer_replication.api.rollouts import rollout
from composer_replication.config import ModelConfig, RunConfig
from composer_replication.sandbox import Limits, open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.exchange.harbor_export import export_harbor
from composer_replication.tasks.exchange.harbor_import import import_harbor
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.proofs import copies
from composer_replication.tasks.proofs.copies_driver import Wanted, search
from composer_replication.tasks.proofs.task_copies import find_task_copies
from composer_replication.tasks.report import BuildOptions
from composer_replication.trainer.preflight import Checked, prove_solutions
from composer_replication.types.errors import TaskError

GOLD = '''
    def discounted(price, percent):
        """The price less a share of it."""
        if percent < 0 or percent > 100:
            raise ValueError("percent must be between 0 and 100")
        kept = 100 - percent
        return price * kept // 100


    class Till:
        def __init__(self):
            self.sums = []

        def size(self):
            return len(self.sums)

        def add(self, price):
            if price:
                self.sums.append(discounted(price, 0))
            return self
    '''
SOURCES = {"till.py": textwrap.dedent(GOLD)}
KEYS = ["till.py::discounted", "till.py::Till.__init__", "till.py::Till.size", "till.py::Till.add"]
IN_OTHER_WORDS = """
    import functools

    @functools.cache
    def discounted(cents: int, share: int) -> int:
        if share < 0 or share > 100:
            raise ValueError('percent must be between 0 and 100')
        left = 100 - share   # what is left
        return (cents
                * left // 100)
    """


def found(folder: Path) -> dict[str, list[str]]:
    """File -> names of the functions found in it."""
    hits, _ = search([str(folder)], Wanted(SOURCES, KEYS), {})
    return {os.path.relpath(place, folder): [key.partition("::")[2] for key in keys] for place, (keys, _) in hits.items()}


def write(path: Path, text: str = GOLD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (GOLD, ["Till.add", "discounted"]),
        (IN_OTHER_WORDS, ["discounted"]),
        ("class A:\n" + textwrap.indent(textwrap.dedent(IN_OTHER_WORDS), "  "), ["discounted"]),
        ("def outer():\n" + textwrap.indent(textwrap.dedent(IN_OTHER_WORDS), "\t"), ["discounted"]),
        (textwrap.dedent(GOLD).replace("\n", "\r\n"), ["Till.add", "discounted"]),
        (textwrap.dedent(IN_OTHER_WORDS).replace("cents: int, share: int", "\n    cents,\n    share,\n"), ["discounted"]),
        (GOLD.replace("The price less", '\n\nflush """ + """ less'), None),
        (textwrap.dedent(GOLD).replace("The price less a share", "The price\nless a share"), ["Till.add", "discounted"]),
        (GOLD.replace("100 - percent", "99 - percent"), ["Till.add"]),
        ("def size(self):\n    return len(self.sums)\n", None),
        ("def discounted(price, percent):\n    return price\n", None),
    ],
)
def test_a_function_is_known_by_its_body(tmp_path, text, names):
    write(tmp_path / "sdk/any.py", text)
    assert found(tmp_path).get("sdk/any.py") == names or names is None


def test_archives_scripts_and_bytecode_are_looked_into(tmp_path):
    source = write(tmp_path / "one.py")
    for name in ("a.whl", "b.egg", "c.pyz", "d.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("broken.py", "def discounted(price, percent): ValueError (")
            archive.write(source, "deep/two.py")
    write(tmp_path / "tool", "#!/usr/bin/env python3\n" + textwrap.dedent(GOLD))
    py_compile.compile(str(source), cfile=str(tmp_path / "lone/three.pyc"))
    py_compile.compile(str(source), cfile=str(tmp_path / "__pycache__/one.cpython-99.pyc"))  # its source is there
    names = ["Till.add", "discounted"]
    archives = {f"{name}!deep/two.py": names for name in ("a.whl", "b.egg", "c.pyz", "d.zip")}
    assert found(tmp_path) == {"one.py": names, "tool": names, "lone/three.pyc": names, **archives}


def test_odd_files_end_nothing(tmp_path):
    write(tmp_path / "a/deep.py", "def discounted(price, percent): return ValueError" + "(" * 5000 + ")" * 5000)
    write(tmp_path / "a/nul.py", "def discounted(price, percent):\n    return ValueError\0\n")
    (tmp_path / "a/latin.py").write_bytes(b"# -*- coding: nonsense -*-\ndef discounted(p): raise ValueError('\xff')\n")
    (tmp_path / "a/broken.zip").write_bytes(b"PK\3\4" + bytes(100))
    (tmp_path / "a/broken.pyc").write_bytes(b"\xa7\r\r\n" + bytes(12) + b"\xff" * 50)
    os.mkfifo(tmp_path / "a/pipe.py")
    (tmp_path / "a/loop.py").symlink_to("loop.py")
    (tmp_path / "a/round").symlink_to(tmp_path)
    with (tmp_path / "a/huge.py").open("wb") as file:
        file.truncate(1 << 40)
    with zipfile.ZipFile(tmp_path / "a/bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(40):
            archive.writestr(f"{number}.py", b"#" * (4 << 20))
    write(tmp_path / "b/copy.py")
    assert found(tmp_path) == {"b/copy.py": ["Till.add", "discounted"]}


def test_what_was_read_before_is_not_read_again(tmp_path):
    copy, other = write(tmp_path / "copy.py"), write(tmp_path / "other.py", "def unlike(x):\n    return x\n")
    wanted = Wanted(SOURCES, KEYS)
    first, index = search([str(tmp_path)], wanted, {})
    other.chmod(0o000)
    index[str(other)][2] = "discounted"  # as if it had such a function: it is opened, and has none
    index[str(copy)][2] = "nothing"
    assert search([str(tmp_path)], wanted, index)[0] == {}
    os.utime(copy, ns=(0, 0))
    assert search([str(tmp_path)], wanted, index)[0] == first


@pytest.mark.parametrize(
    ("found", "defined", "counted"),
    [
        (["a.py::one"], ["one", "two", "three"], ["one"]),
        (["a.py::one", "a.py::two"], ["one", "two"], ["A.one", "one", "two"]),
        (["a.py::one", "a.py::two"], ["one", "two", "three", "tiny"], ["A.one", "one", "three", "two"]),
        (["a.py::one", "a.py::two"], ["one", "two", "three", "four", "five"], ["one", "two"]),
        (["a.py::one", "a.py::A.one"], ["one", "two"], ["A.one", "one"]),
    ],
)
def test_another_version_of_a_module_is_a_copy_of_it(found, defined, counted):
    sizes = {f"a.py::{name}": 12 for name in ("one", "two", "three", "four", "five", "A.one")}
    keys = ["b.py::one", "a.py::tiny", *sizes]
    places = copies._places({"/sdk/x.py": [found, defined]}, sizes | {"b.py::one": 12}, keys)
    assert sorted(places) == [f"a.py::{name}" for name in counted]


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An environment that has what tests need, and room for other software."""
    env = tmp_path_factory.mktemp("environment") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (packages,) = env.glob("lib/python3*/site-packages")
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "coverage", "pygments"):
        (place,) = {Path(entry, name) for entry in sys.path if Path(entry, name).is_dir()}
        shutil.copytree(place, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(next(Path(entry, "py.py") for entry in sys.path if Path(entry, "py.py").exists()), packages)
    return env / "bin/python"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return copies.cache_folder()


TESTS = """
    import pytest
    from till import Till, discounted

    def test_discounted():
        assert [discounted(200, 10), discounted(99, 50), discounted(70, 0)] == [180, 49, 70]
        with pytest.raises(ValueError):
            discounted(100, 101)

    def test_many():
        assert discounted(1000, 5) == 950 and discounted(30, 100) == 0 and discounted(45, 20) == 36
    """


@pytest.mark.slow
def test_gold_code_among_other_software_makes_no_task(python, cache, write_project, tmp_path):
    """A copy that sandboxes show is as good as the answer: the task is not built, not imported, and no model works on it."""
    project = write_project({"till.py": GOLD, "test_till.py": TESTS})
    options = BuildOptions(trivial=True, python=python)
    assert len(build_tasks(str(project), tmp_path / "before", options).tasks) == 1
    copy = write(python.parents[1] / "share/sdk/third_party/pricing.py")
    try:
        (task,) = load_tasks(tmp_path / "before")
        cheat = {"till.py": f"exec(open({str(copy)!r}).read())\n".encode()}
        report = grade(task.spec, task.repo, cheat, sandbox=open_sandbox(), python=python, limits=Limits(wall_s=30))
        assert report.reward == 1.0
        assert find_task_copies([task], open_sandbox(), python) == {task.spec.task_id: str(copy)}
        shown = f"the code that {task.spec.task_id} deletes can be read in a sandbox on this machine ({copy})"
        with pytest.raises(TaskError, match=re.escape(shown)):
            prove_solutions(
                RunConfig(model=ModelConfig(path="none")), Checked([task], [], {task.spec.task_id: python}), open_sandbox()
            )
        with pytest.raises(TaskError, match=re.escape(shown)):
            rollout([task], "some/model", python=python)
        export_harbor([task], tmp_path / "harbor", pythons={task.spec.task_id: python})
        imported, refused = import_harbor(tmp_path / "harbor", tmp_path / "imported", sandbox=open_sandbox(), python=python)
        assert imported == []
        assert [shown in entry.reason for entry in refused] == [True]
        assert not list((tmp_path / "imported").glob("[!.]*"))
        after = build_tasks(str(project), tmp_path / "after", options)
        assert after.tasks == ()
        assert [entry.reason for entry in after.dropped] == [f"its code can be read on this machine ({copy})"]
    finally:
        copy.unlink()
    assert find_task_copies([task], open_sandbox(), python) == {}


@pytest.mark.slow
def test_the_cache_survives_damage_and_several_at_once(python, cache):
    copy = write(python.parents[1] / "share/sdk/till.py")
    sources = {path: text.encode() for path, text in SOURCES.items()}
    expected = {"till.py::discounted": str(copy), "till.py::Till.add": str(copy)}

    def find() -> dict[str, str]:
        return copies.find_copies(open_sandbox(), python, sources, KEYS)

    try:
        together: list[dict[str, str]] = []
        threads = [threading.Thread(target=lambda: together.append(find())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert together == [expected] * 3
        (file,) = cache.iterdir()
        whole = json.loads(file.read_bytes())
        assert str(copy) in whole
        for damage in (b"", file.read_bytes()[:-9], b"[]", b'{"a": 1}', b'{"a": [1, 2]}', b"\xff", b'{"a": ["x", 1, 2]}'):
            file.write_bytes(damage)
            assert find() == expected
            assert json.loads(file.read_bytes()) == whole
    finally:
        copy.unlink()
    assert find() == {}
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    assert find() == {}


@pytest.mark.slow
def test_every_kind_of_sandbox_is_searched(python, cache):
    from composer_replication.sandbox.opening import available

    copy = write(python.parents[1] / "share/sdk/till.py")
    try:
        for kind in available():
            found = copies.find_copies(open_sandbox(kind), python, {"till.py": SOURCES["till.py"].encode()}, KEYS[:1])
            assert found == {"till.py::discounted": str(copy)}, kind
    finally:
        copy.unlink()
