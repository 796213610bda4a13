"""The rules of the house that hold for every room."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import composer_replication
from composer_replication.cli import app
from composer_replication.config import RunConfig

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import check_cycles  # noqa: E402 - of scripts/

PACKAGE = ROOT / "composer_replication"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if PACKAGE / "quickstart" / "projects" not in path.parents)
HEAVY = ("accelerate", "numpy", "openai", "pydantic", "torch", "transformers", "triton")
README = (ROOT / "README.md").read_text("utf-8")
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_ROOM_FILES = 400, 60, 20


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in memory after `statement` in a fresh interpreter."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def test_the_probe_sees_an_import() -> None:
    assert "pydantic" in loaded_after("import pydantic")


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded_after("import composer_replication").isdisjoint(HEAVY)


def line_count(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return line_count(node.body[0]) if ast.get_docstring(node) else 0


LIGHT = (
    "actions",
    "config",
    "envs",
    "hints",
    "languages",
    "observe",
    "rollouts",
    "sandbox",
    "tasks",
    "teachers",
    "tokens",
    "traces",
    "types",
)
LIGHT_IN_DILOCO = ("diloco", "diloco.store", "diloco.serverless.replica_entrypoint")


WITHOUT_TORCH = (*LIGHT, "teacher_replay", "replaysim", "cli", "prm", "prm.labels", "prm.options", *LIGHT_IN_DILOCO)
IMPORT_IN_TURN = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} imports torch")
"""


def first_with_torch(*modules: str) -> str:
    """The first of these modules that brings torch into a fresh interpreter, as a complaint; empty when none does."""
    argv = [sys.executable, "-c", IMPORT_IN_TURN, *modules]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stderr
    return run.stderr.strip()


@pytest.mark.slow
def test_importing_a_room_without_mathematics_imports_no_torch() -> None:
    assert first_with_torch(*(f"composer_replication.{room}" for room in WITHOUT_TORCH)) == ""


@pytest.mark.slow
def test_a_room_that_imports_torch_is_named() -> None:
    name = "composer_replication.distillation"
    assert first_with_torch("composer_replication.types", name, "json") == f"{name} imports torch"


def too_long(path: Path) -> list[str]:
    """What in this file is longer than the house allows."""
    text = path.read_text("utf-8")
    lines = text.count("\n")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.name, line_count(node) - docstring_lines(node)) for node in functions]
    return [
        *([f"{path}: {lines} lines"] if lines > MAX_FILE_LINES else []),
        *(f"{path}: {name} has {length} lines" for name, length in lengths if length > MAX_FUNCTION_LINES),
    ]


@pytest.mark.slow
def test_file_and_function_sizes() -> None:
    assert len(FILES) > 400
    assert [complaint for path in FILES for complaint in too_long(path)] == []


def test_a_file_and_a_function_that_are_too_long_are_named(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("def f():\n" + "    pass\n" * 60 + "x = 1\n" * 340, "utf-8")
    assert too_long(path) == [f"{path}: 401 lines", f"{path}: f has 61 lines"]
    path.write_text('def f():\n    """Two\n    lines."""\n' + "    pass\n" * 59 + "x = 1\n" * 338, "utf-8")
    assert too_long(path) == []


@pytest.mark.parametrize("name", composer_replication.__all__)
def test_export_resolves(name: str) -> None:
    assert getattr(composer_replication, name) is not None
    assert name in dir(composer_replication)


def test_an_unknown_export_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = composer_replication.no_such_name


def test_imports_only_go_down() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    run = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_no_two_files_import_each_other() -> None:
    assert check_cycles.first_cycle(PACKAGE) == []


def test_a_cycle_inside_a_room_is_named(tmp_path: Path) -> None:
    """Also where one of its imports is for types alone."""
    package = tmp_path / "house" / "room"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "a.py").write_text("def f():\n    from house.room.b import g\n")
    (package / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.room import a\n")
    assert set(check_cycles.first_cycle(package.parent)) == {"house.room.a", "house.room.b"}
    (package / "b.py").write_text("")
    assert check_cycles.first_cycle(package.parent) == []


def test_no_class_name_has_two_meanings() -> None:
    """Private ones included: grep and go-to-symbol find one place."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_map_names_every_room_and_nothing_else() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = re.search(r"^## The rooms.*?(?=^## )", text, flags=re.M | re.S)
    assert section
    named = re.findall(r"^\| `(\w+)` \| \S", section[0], flags=re.M)
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()} - {"__init__"}
    assert sorted(named) == sorted(rooms)
    files = re.findall(r"`(\w+/?[\w/]*\.py)`", section[0])
    assert files
    assert [file for file in files if not ((PACKAGE / file).is_file() or (PACKAGE / "trainer" / file).is_file())] == []


def test_a_room_has_at_most_twenty_files() -> None:
    counts = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in FILES)
    assert {room: count for room, count in counts.items() if count > MAX_ROOM_FILES} == {}


def test_every_make_target_has_a_help_line() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^([a-z][\w-]*):", makefile, flags=re.MULTILINE)
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert targets
    assert re.findall(r"^  make ([\w-]+) +\S.*$", shown, flags=re.MULTILINE) == targets
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony
    assert phony[1].split() == targets


def test_every_tool_of_the_makefile_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    scripts = re.findall(r"\b((?:scripts|benchmarks|tests/attack|tests/browser)/\w+\.(?:py|sh))", makefile)
    assert scripts
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


@pytest.mark.parametrize("number", range(1, 8))
def test_every_invariant_names_tests_that_exist(number: int) -> None:
    text = (ROOT / "INVARIANTS.md").read_text("utf-8")
    section = re.search(rf"^## {number}\. .*?(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert section
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section[0])
    assert named
    for path, function in named:
        assert re.search(rf"^(?:async )?def {function}\(", (ROOT / path).read_text("utf-8"), flags=re.MULTILINE), (path, function)


def test_run_files_in_the_documentation_are_valid() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), flags=re.M | re.S)]
    assert blocks
    whole = {"model": {"path": "policy"}, "tasks": {"train": "tasks"}}  # a page about one section leaves these out
    for block in blocks:
        RunConfig.model_validate(whole | tomllib.loads(block))


def test_every_command_of_the_readme_exists() -> None:
    offered = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    offered |= {group.name for group in app.registered_groups}
    listed = set(re.findall(r"^\| `composer ([a-z]+)", README, flags=re.M))
    assert listed == offered
