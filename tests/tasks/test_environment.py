"""`--install`: what a project declares, read without running it, goes into an environment of its own; the project does not."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from composer_replication.sandbox.interpreter import installation_of
from composer_replication.tasks.sources.environment import declared_requirements, make_environment
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
    python = make_environment(tmp_path / "env", root, "shop")
    code = (
        "import alpha, pytest, importlib.metadata as m, importlib.util as u; "
        "print(m.version('shop'), *map(u.find_spec, ('shop', 'pip', 'setuptools', 'pkg_resources', '_distutils_hack')))"
    )
    answer = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "3.1" + " None" * 5
    marker = tmp_path / "env" / "marker"
    marker.touch()
    assert make_environment(tmp_path / "env", root, "shop") == python
    assert marker.exists()
    with pytest.raises(SourceError, match=r"dependencies cannot be installed: .*absent") as caught:
        make_environment(tmp_path / "env", write_project({"requirements.txt": "absent\n"}), "shop")
    assert "--python" in (caught.value.fix or "")


BACKEND = """
import hashlib, os, pathlib, zipfile
pathlib.Path({marker!r}).write_text(repr(dict(os.environ)))

def build_wheel(folder, config=None, metadata=None):
    name = "beta-9.0-py3-none-any.whl"
    files = {{
        "beta.py": "",
        "beta-9.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: beta\\nVersion: 9.0\\n",
        "beta-9.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    record = "".join(f"{{p}},sha256={{hashlib.sha256(t.encode()).hexdigest()}},{{len(t)}}\\n" for p, t in files.items())
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in {{**files, "beta-9.0.dist-info/RECORD": record}}.items():
            wheel.writestr(path, text)
    return name
"""


def write_sdist(folder: Path, marker: Path) -> None:
    """A source archive whose build backend writes a file with its environment."""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: beta\nVersion: 9.0\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "beta"\nversion = "9.0"\n',
        "backend.py": BACKEND.format(marker=str(marker)),
    }
    with tarfile.open(folder / "beta-9.0.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"beta-9.0/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.mark.slow
def test_no_code_of_a_dependency_runs_on_the_host_unless_that_is_asked_for(
    write_project: WriteProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, marker = tmp_path / "wheels", tmp_path / "marker"
    wheels.mkdir()
    for name in ("pytest", "coverage"):
        write_wheel(wheels, name)
    seen = f"import os, pathlib; pathlib.Path({str(marker)!r}).write_text('pth' + str(os.environ))\n"
    write_wheel(wheels, "alpha", {"alpha.pth": seen})
    write_sdist(wheels, marker)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("REDTEAM_API_KEY", "sk-host-secret")
    wheel_only = write_project({"requirements.txt": "alpha\n"})
    make_environment(tmp_path / "env", wheel_only, "shop")
    assert not marker.exists(), "an installed wheel ran"
    installation_of(tmp_path / "env" / "bin" / "python")
    assert marker.read_text().startswith("pth"), "asking the interpreter runs it: docs/tasks.md says so"
    assert "sk-host-secret" not in marker.read_text()
    marker.unlink()
    with_sdist = write_project({"requirements.txt": "beta\n"})
    with pytest.raises(SourceError, match=r"dependencies cannot be installed: .*beta") as refused:
        make_environment(tmp_path / "env2", with_sdist, "shop")
    assert not marker.exists(), "a source archive ran"
    assert "--build-sdists" in (refused.value.fix or "")
    assert "outside of every sandbox" in (refused.value.fix or "")
    python = make_environment(tmp_path / "env2", with_sdist, "shop", build_sdists=True)
    assert subprocess.run([python, "-I", "-c", "import beta"]).returncode == 0
    seen = marker.read_text()
    assert "PIP_FIND_LINKS" in seen
    assert "sk-host-secret" not in seen
