"""`--install`: what a project declares, read without running it, goes into an environment of its own; the project does not."""

from __future__ import annotations

import hashlib
import io
import json
import re
import socket
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from composer_replication.sandbox import Command, Tree, open_sandbox
from composer_replication.sandbox.interpreter import installation_of
from composer_replication.sandbox.request import WARM_FLAGS
from composer_replication.tasks.exchange.pins import pins_of
from composer_replication.tasks.sources.environment import declared_requirements, make_environment
from composer_replication.types import Deletion, TaskSpec
from composer_replication.types.errors import SourceError

WriteProject = Callable[[Mapping[str, str]], Path]


def test_requirements_come_from_every_static_place(write_project: WriteProject) -> None:
    root = write_project(
        {
            "pyproject.toml": """
                [project]
                name = "Shop.Front"
                dependencies = ["alpha>=1", "shop-front[extra]", "local @ file:///x"]
                [project.optional-dependencies]
                test = ["beta"]
                docs = ["sphinx"]
                [dependency-groups]
                dev = ["gamma; python_version > '3'", {include-group = "x"}]
                """,
            "PKG-INFO": (
                "Name: shop\nRequires-Dist: delta\nRequires-Dist: epsilon ; extra == 'tests'\n"
                "Requires-Dist: furo; extra == 'docs'\n\nRequires-Dist: no\n"
            ),
            "setup.cfg": "[options]\ninstall_requires =\n  zeta\n[options.extras_require]\ntesting = eta\ndoc = no\n",
            "setup.py": "raise SystemExit\nsetup(install_requires=['theta', 'shop'], tests_require=compute())\n",
            "requirements-dev.txt": "iota  # why\n-r other.txt\n",
            "requirements/test.in": "kappa[x]>=2\n",
            "requirements-docs.txt": "mkdocs\n",
            "notes.txt": "lambda\n",
        }
    )
    found = declared_requirements(root, "shop")
    assert found == (
        "alpha>=1", "beta", 'gamma; python_version > "3"', "delta", "epsilon", "zeta", "eta", "theta", "kappa[x]>=2", "iota",
    )  # fmt: skip


def test_broken_files_declare_nothing(write_project: WriteProject) -> None:
    root = write_project({"pyproject.toml": "[", "setup.cfg": "x\n", "setup.py": "def (", "PKG-INFO": ""})
    assert declared_requirements(root, "shop") == ()


METADATA = "Metadata-Version: 2.1\nName: alpha\nVersion: 9.0\n"


def write_wheel(folder: Path, name: str, more: Mapping[str, str] | None = None) -> None:
    """An empty distribution that pip takes for the real one."""
    info = f"{name}-9.0.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(more or {}),
    }
    record = "".join(f"{path},sha256={hashlib.sha256(text.encode()).hexdigest()},{len(text)}\n" for path, text in files.items())
    with zipfile.ZipFile(folder / f"{name}-9.0-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)


@pytest.mark.slow
def test_the_environment_has_the_dependencies_and_not_the_project(
    write_project: WriteProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in ("pytest", "coverage", "alpha"):
        write_wheel(wheels, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    project = '[project]\nname = "shop"\nversion = "3.1"\ndependencies = ["alpha"]\n'
    root = write_project({"pyproject.toml": project, "shop.py": ""})
    python = make_environment(tmp_path / "env", root, "shop", sandbox=open_sandbox())
    code = (
        "import alpha, pytest, importlib.metadata as m, importlib.util as u; "
        "print(m.version('shop'), *map(u.find_spec, ('shop', 'pip', 'setuptools', 'pkg_resources', '_distutils_hack')))"
    )
    answer = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "3.1" + " None" * 5
    marker = tmp_path / "env" / "marker"
    marker.touch()
    assert make_environment(tmp_path / "env", root, "shop", sandbox=open_sandbox()) == python
    assert marker.exists()
    with pytest.raises(SourceError, match="absent has no wheel that fits, and absent: the package index has no source") as caught:
        make_environment(tmp_path / "env", write_project({"requirements.txt": "absent\n"}), "shop", sandbox=open_sandbox())
    assert "--python" in (caught.value.fix or "")


BACKEND = """
import hashlib, os, pathlib, socket, zipfile

def tried(what):
    try:
        return repr(what())
    except OSError as error:
        return type(error).__name__

def build_wheel(folder, config=None, metadata=None):
    name = {wheel!r}
    seen = {{
        "host": tried(lambda: pathlib.Path({marker!r}).write_text("here")),
        "network": tried(lambda: socket.create_connection(("127.0.0.1", {port}), 1)),
        "environment": dict(os.environ),
    }}
    files = {{
        "beta.py": "seen = " + repr(seen),
        "beta-9.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: beta\\nVersion: 9.0\\n",
        "beta-9.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    record = "".join(f"{{p}},sha256={{hashlib.sha256(t.encode()).hexdigest()}},{{len(t)}}\\n" for p, t in files.items())
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in {{**files, "beta-9.0.dist-info/RECORD": record}}.items():
            wheel.writestr(path, text)
    return name
"""


def write_sdist(folder: Path, backend: str, requires: str = "") -> None:
    """A source archive with a build backend of its own."""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: beta\nVersion: 9.0\n",
        "pyproject.toml": f'[build-system]\nrequires = [{requires}]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "beta"\nversion = "9.0"\n',
        "backend.py": backend,
    }
    with tarfile.open(folder / "beta-9.0.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"beta-9.0/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, instead of an index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("pytest", "coverage"):
        write_wheel(folder, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("REDTEAM_API_KEY", "sk-host-secret")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "files",
    [
        {"alpha.pth": "import os; RUN\n"},
        {"alpha.pth": "# a comment\x0cimport os; RUN\n"},
        {"sitecustomize.py": "RUN\n"},
        {"alpha.pth": "below\n", "below/sitecustomize.py": "RUN\n"},
        {"alpha-9.0.data/data/lib/below/usercustomize/__init__.py": "RUN\n", "alpha.pth": "../../below\n"},
        {"msvcrt.py": "RUN\n"},
        {"org/python/core.py": "RUN\n", "org/__init__.py": "", "org/python/__init__.py": ""},
        {"colorama/__init__.py": "RUN\n", "argcomplete.py": "RUN\n"},
    ],
    ids=lambda files: "+".join(files),
)
def test_no_code_of_a_wheel_runs_outside_a_sandbox(
    write_project: WriteProject, tmp_path: Path, wheels: Path, files: Mapping[str, str]
) -> None:
    """Neither while it is installed, nor when the interpreter is asked, nor when it waits for programs of sandboxes."""
    marker = tmp_path / "marker"
    run = f"open({str(marker)!r}, 'w').write('ran')"
    write_wheel(
        wheels, "pytest", {"pytest/__init__.py": "import subprocess\ntry:\n    import colorama\nexcept ImportError: pass\n"}
    )
    write_wheel(wheels, "alpha", {path: text.replace("RUN", run) for path, text in files.items()})
    sandbox, project = open_sandbox(), write_project({"requirements.txt": "alpha\n"})
    python = make_environment(tmp_path / "env", project, "shop", sandbox=sandbox)
    assert "alpha" in installation_of(python).modules
    spec = TaskSpec(
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
    assert pins_of(spec, project, python).requirements == ("alpha==9.0", "pytest==9.0")
    code = "import sys, alpha; print('pytest' in sys.modules, 'colorama' in sys.modules, alpha.__name__)"
    done = sandbox.run(Tree(base=tmp_path), Command(argv=(str(python), *WARM_FLAGS, code), python=python))
    assert done.stdout.split() == [b"True", b"False", b"alpha"], done.stderr
    assert not marker.exists(), "an installed wheel ran on this machine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("_pytest/config.py", "is a part of pytest"),
        ("pluggy.py", "is a part of pluggy"),
        ("alpha/../iniconfig/__init__.py", "is a part of iniconfig"),
        ("alpha-9.0.data/platlib/attr/__init__.py", "is a part of attrs"),
        ("alpha-9.0.data/data/lib/python3.11/site-packages/packaging/__init__.py", "is a part of packaging"),
        ("alpha-9.0.data/data/pyvenv.cfg", "replaces pyvenv.cfg of the environment"),
        ("alpha-9.0.data/scripts/python", "replaces bin/python of the environment"),
    ],
)
def test_a_wheel_that_brings_what_runs_outside_is_refused(
    write_project: WriteProject, tmp_path: Path, wheels: Path, path: str, reason: str
) -> None:
    write_wheel(wheels, "alpha", {path: "raise SystemExit\n"})
    with pytest.raises(SourceError, match=reason) as caught:
        make_environment(tmp_path / "env", write_project({"requirements.txt": "alpha\n"}), "shop", sandbox=open_sandbox())
    assert "--python" in (caught.value.fix or "")


@pytest.mark.slow
def test_parts_of_pytest_come_from_their_own_distributions(write_project: WriteProject, tmp_path: Path, wheels: Path) -> None:
    write_wheel(wheels, "attrs", {"attr/__init__.py": ""})
    write_wheel(wheels, "py", {"py/path.py": ""})
    project = write_project({"requirements.txt": "attrs\npy\n"})
    python = make_environment(tmp_path / "env", project, "shop", sandbox=open_sandbox())
    assert {"attr", "attrs", "py"} <= installation_of(python).modules


@pytest.mark.slow
def test_what_has_no_wheel_is_built_in_the_sandbox(write_project: WriteProject, tmp_path: Path, wheels: Path) -> None:
    """Its code reaches neither this machine's files nor its network, and a dependency of a dependency is built too."""
    write_wheel(wheels, "tool")
    write_wheel(wheels, "alpha", {"alpha-9.0.dist-info/METADATA": f"{METADATA}Requires-Dist: beta>=2\n"})
    marker = tmp_path / "marker"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        backend = BACKEND.format(wheel="beta-9.0-py3-none-any.whl", marker=str(marker), port=port)
        write_sdist(wheels, f"import tool\n{backend}", '"tool>=1"')
        project = write_project({"requirements.txt": "alpha\n"})
        python = make_environment(tmp_path / "env", project, "shop", sandbox=open_sandbox())
    assert not marker.exists()
    code = "import alpha, beta, json; print(json.dumps(beta.seen))"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert seen["host"] in ("FileNotFoundError", "PermissionError", "OSError")
    assert seen["network"] not in ("", "None")
    assert "socket" not in seen["network"]
    assert "sk-host-secret" not in str(seen)
    assert not {"PIP_FIND_LINKS", "PIP_NO_INDEX"} & seen["environment"].keys()
    assert subprocess.run([python, "-I", "-c", "import tool"], capture_output=True).returncode != 0, "only the build needs it"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("raise SystemExit('no compiler')", "no compiler"),
        (BACKEND.format(wheel="gamma-9.0-py3-none-any.whl", marker="/x", port=1), "gamma-9.0-py3-none-any.whl"),
        (BACKEND.format(wheel="../../beta-9.0-py3-none-any.whl", marker="/x", port=1), ""),
    ],
    ids=["fails", "another project", "another folder"],
)
def test_what_cannot_be_built_is_an_error(
    write_project: WriteProject, tmp_path: Path, wheels: Path, backend: str, why: str
) -> None:
    write_sdist(wheels, backend)
    with pytest.raises(SourceError, match=f"beta has no wheel, and none can be built from .*{re.escape(why)}") as refused:
        make_environment(tmp_path / "env", write_project({"requirements.txt": "beta\n"}), "shop", sandbox=open_sandbox())
    assert "--python" in (refused.value.fix or "")


@pytest.mark.slow
def test_nothing_is_built_where_nothing_is_confined(write_project: WriteProject, tmp_path: Path, wheels: Path) -> None:
    write_sdist(wheels, BACKEND)
    with pytest.raises(SourceError, match="unsafe-subprocess confines nothing"):
        make_environment(
            tmp_path / "env", write_project({"requirements.txt": "beta\n"}), "shop", sandbox=open_sandbox("unsafe-subprocess")
        )
