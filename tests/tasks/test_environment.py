"""`--install`: what a project declares, read without running it, goes into an environment of its own; the project does not."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from package_index import build_backend, write_sdist, write_wheel

from composer_replication.sandbox import open_sandbox
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


@pytest.mark.slow
def test_the_environment_has_the_dependencies_and_not_the_project(
    write_project: WriteProject, tmp_path: Path, index: Path
) -> None:
    write_wheel(index, "alpha")
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


@pytest.mark.slow
def test_what_has_no_wheel_is_built_in_the_sandbox(write_project: WriteProject, tmp_path: Path, wheels: Path) -> None:
    """Its code reaches neither this machine's files nor its network, and a dependency of a dependency is built too."""
    write_wheel(wheels, "tool")
    write_wheel(wheels, "alpha", requires=["beta>=2"])
    marker = tmp_path / "marker"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        backend = build_backend(marker, port=port)
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
        (build_backend(wheel="gamma-9.0-py3-none-any.whl"), "gamma-9.0-py3-none-any.whl"),
        (build_backend(wheel="../../beta-9.0-py3-none-any.whl"), ""),
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
    write_sdist(wheels, build_backend())
    with pytest.raises(SourceError, match="unsafe-subprocess confines nothing"):
        make_environment(
            tmp_path / "env", write_project({"requirements.txt": "beta\n"}), "shop", sandbox=open_sandbox("unsafe-subprocess")
        )
