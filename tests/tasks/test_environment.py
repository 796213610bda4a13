"""`--install`: what a project declares, read without running it, goes into an environment of its own; the project does not."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

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


def write_wheel(folder: Path, name: str) -> None:
    """An empty distribution that pip takes for the real one."""
    info = f"{name}-9.0.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
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
        "print(m.version('shop'), u.find_spec('shop'), u.find_spec('pip'))"
    )
    answer = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "3.1 None None"
    marker = tmp_path / "env" / "marker"
    marker.touch()
    assert make_environment(tmp_path / "env", root, "shop") == python
    assert marker.exists()
    with pytest.raises(SourceError, match=r"dependencies cannot be installed: .*absent") as caught:
        make_environment(tmp_path / "env", write_project({"requirements.txt": "absent\n"}), "shop")
    assert "--python" in (caught.value.fix or "")
