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
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.tasks.sources import environment
from composer_replication.tasks.sources.declared import Declared, declared_requirements
from composer_replication.tasks.sources.wanted import asked_for, first_wanted, imported_modules
from composer_replication.types.errors import SourceError

WriteProject = Callable[[Mapping[str, str]], Path]


def make_environment(folder: Path, tree: Path, name: str, *, sandbox: Sandbox) -> Path:
    """Make the environment that a build begins with."""
    wanted = first_wanted(declared_requirements(tree, name), imported_modules(tree, ()))
    return environment.make_environment(
        folder, tree, name, [line for lines in wanted.values() for line in lines], sandbox=sandbox
    )


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
                x = ["lambda", {include-group = "x"}]
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
            "tox.ini": "[testenv]\ndeps =\n  py311: mu<3\n  -r other.txt\n  {[x]deps}\n[testenv:release]\ndeps = twine\n",
            "noxfile.py": "def tests(session):\n    session.install('-e', '.', 'nu', variable)\n",
            "notes.txt": "lambda\n",
        }
    )
    found = declared_requirements(root, "shop")
    assert found.runtime == ("alpha>=1", "delta", "zeta", "theta")
    assert found.tests == (
        "beta", 'gamma; python_version > "3"', "lambda", "epsilon", "eta", "mu<3", "nu", "kappa[x]>=2", "iota",
    )  # fmt: skip
    assert found.others == ("sphinx", "lambda", "furo", "no", "twine", "mkdocs")
    assert found.every == tuple(dict.fromkeys((*found.runtime, *found.tests, *found.others)))


POETRY = {"^1.2.3": ">=1.2.3,<2", "^0.2.3": ">=0.2.3,<0.3", "^0.0.3": ">=0.0.3,<0.0.4", "^1": ">=1,<2", "^0": ">=0,<1",
          "~1.2.3": ">=1.2.3,<1.3", "~1.2": ">=1.2,<1.3", "~1": ">=1,<2", "1.2": "==1.2", "*": "", ">=1,<3": ">=1,<3",
          "~=1.4": "~=1.4", "^1.2 || ^2.0": ""}  # fmt: skip
"""From https://python-poetry.org/docs/dependency-specification/; alternatives are more than pip can say."""


def test_the_tables_of_poetry_hatch_and_pdm_are_read(write_project: WriteProject) -> None:
    lines = [f'package{number} = "{version}"' for number, version in enumerate(POETRY)]
    root = write_project(
        {
            "pyproject.toml": "\n".join(
                [
                    "[tool.poetry.dependencies]", 'python = "^3.8"', *lines, 'fancy = {version = "^2", optional = true}',
                    "[tool.poetry.group.test.dependencies]", 'alpha = {version = "^1"}',
                    "[tool.poetry.dev-dependencies]", 'beta = "*"',
                    "[tool.poetry.group.docs.dependencies]", 'sphinx = "*"',
                    "[tool.hatch.envs.default]", 'dependencies = ["gamma"]',
                    "[tool.hatch.envs.docs]", 'dependencies = ["mkdocs"]',
                    "[tool.pdm.dev-dependencies]", 'test = ["delta"]',
                ]
            ),
        }
    )  # fmt: skip
    found = declared_requirements(root, "shop")
    assert {Requirement(line).name: Requirement(line).specifier for line in found.runtime} == {
        f"package{number}": SpecifierSet(meaning) for number, meaning in enumerate(POETRY.values())
    }
    assert found.tests == ("delta", "gamma", "beta", "alpha<2,>=1")
    assert found.others == ("mkdocs", "fancy<3,>=2", "sphinx")


def test_a_first_environment_is_small(write_project: WriteProject) -> None:
    """What documents, checks and releases a project is not among it, nor what only one of its extras needs."""
    root = write_project(
        {"tests/test_a.py": "import yaml, os\nfrom attr import s\n\n\ndef f():\n    import trio\n", "tests/data.py": "no ("}
    )
    modules = imported_modules(root, ["tests/test_a.py", "tests/data.py", "absent.py"])
    assert modules == {"yaml", "attr", "trio"}
    declared = Declared(
        runtime=("alpha>=1",),
        tests=("pytest>=7,<9", "pytest-mock", "PyYAML==6.0", "black", "tox"),
        others=("trio", "sphinx", "twine", "attrs>=20", "pytest-docs"),
    )
    assert first_wanted(declared, modules) == {
        "pytest": ("pytest>=7,<9",), "coverage": ("coverage",), "alpha": ("alpha>=1",), "pytest-mock": ("pytest-mock",),
        "pyyaml": ("PyYAML==6.0",), "trio": ("trio",), "attrs": ("attrs>=20",),
    }  # fmt: skip


def test_lines_for_other_interpreters_do_not_take_the_place_of_ones_for_this(write_project: WriteProject) -> None:
    """pip decides which of them holds; of lines without markers the first is taken."""
    old, new = "numpy<2 ; python_version < '3.10'", "numpy>=2 ; python_version >= '3.10'"
    poetry = """
        [[tool.poetry.dependencies.pandas]]
        version = "^1"
        python = "<3.10"
        [[tool.poetry.dependencies.pandas]]
        version = "^2"
        python = ">=3.10"
        extras = ["test", "parquet"]
        markers = "sys_platform == 'linux'"
        """
    info = "Name: shop\nRequires-Dist: epsilon; python_version < '3' and extra == 'tests'\n\n"
    root = write_project({"requirements.txt": f"{old}\n{new}\nalpha==1\nalpha\n", "pyproject.toml": poetry, "PKG-INFO": info})
    declared = declared_requirements(root, "shop")
    wanted = first_wanted(declared, ())
    assert wanted["numpy"] == tuple(str(Requirement(line)) for line in (old, new))
    assert wanted["alpha"] == ("alpha==1",)
    assert wanted["pandas"] == (
        'pandas<2,>=1; python_version < "3.10"',
        'pandas[parquet,test]<3,>=2; sys_platform == "linux" and python_version >= "3.10"',
    )
    assert declared.tests == ('epsilon; python_version < "3"',)


def test_groups_that_include_one_another_are_read_once(write_project: WriteProject) -> None:
    groups = "\n".join(
        f'g{n} = ["p{n}", {{include-group = "g{n + 1}"}}, {{include-group = "g{(n + 2) % 30}"}}]' for n in range(30)
    )
    root = write_project({"pyproject.toml": f"[dependency-groups]\n{groups}\n"})
    assert len(declared_requirements(root, "shop").others) == 30


def test_failures_ask_for_modules_fixtures_and_plugins() -> None:
    lines = [
        "tests/a.py: ModuleNotFoundError: No module named 'bs4'",
        "tests/b.py: ModuleNotFoundError: No module named 'zebra.stripes'",
        "tests/c.py: ModuleNotFoundError: No module named 'shop.fast'",
        "tests/d.py: No module named '_winreg'; No module named 'asyncio.x'",
        "tests/e.py::test: fixture 'mocker' not found",
        "tests/e.py::test: fixture 'unknown' not found",
        "tests/f.py::test: async def functions are not natively supported.",
    ]
    declared = Declared(runtime=("beautifulsoup4>4",), tests=("pytest-trio", "pytest-mock<4"))
    assert asked_for(lines, declared, {"shop", "_winreg"}) == {
        "beautifulsoup4": ("beautifulsoup4>4",),
        "zebra": ("zebra",),
        "pytest-mock": ("pytest-mock<4",),
        "pytest-trio": ("pytest-trio",),
    }
    assert asked_for(lines[-1:], Declared(), ()) == {"pytest-asyncio": ("pytest-asyncio",)}
    strange = [f"No module named '{name}'" for name in ("_cffi_backend", "foo bar", "evil @ http://2130706433/x", "-r", "")]
    assert asked_for(strange, declared, ()) == {}
    assert asked_for(["anything else"], declared, ()) == {}


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
