"""The embedded projects are uniform, documented and tested tightly enough to be deleted by the task generator."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import composer_replication.quickstart

PROJECTS = Path(composer_replication.quickstart.__file__).parent / "projects"
NAMES = ("foundry", "harbour", "orchard")

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda first, second: first + second,
    "sub": lambda first, second: first - second,
    "mul": lambda first, second: first * second,
    "div": lambda first, second: first // second,
    "mod": lambda first, second: first % second,
    "gap": lambda first, second: abs(first - second),
    "top": max,
    "low": min,
}
TERMS = {
    "agio": ("mod", "remainder"),
    "cloff": ("top", "maximum"),
    "garble": ("gap", "distance"),
    "keelage": ("add", "sum"),
    "lastage": ("div", "quotient"),
    "primage": ("mul", "product"),
    "tret": ("sub", "difference"),
    "ullage": ("low", "minimum"),
}


class Rule(NamedTuple):
    project: str
    module: str
    name: str
    parameters: tuple[str, ...]
    docstring: str
    body: str
    """Source of the body after the docstring."""


def rule_files(project: str) -> list[Path]:
    return sorted(path for path in (PROJECTS / project / project).glob("*.py") if path.stem not in {"__init__", "ops"})


def rules_of(path: Path) -> list[Rule]:
    tree = ast.parse(path.read_text("utf-8"))
    return [
        Rule(
            project=path.parent.name,
            module=path.stem,
            name=node.name,
            parameters=tuple(argument.arg for argument in node.args.args),
            docstring=ast.get_docstring(node, clean=False) or "",
            body="\n".join(ast.unparse(statement) for statement in node.body[1:]),
        )
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    ]


ALL_RULES = [rule for project in NAMES for path in rule_files(project) for rule in rules_of(path)]


def term_of(rule: Rule) -> str:
    match = re.fullmatch(rf"The (\w+) of {rule.parameters[0]} and {rule.parameters[1]}\.", rule.docstring)
    assert match, f"{rule.name}: {rule.docstring!r}"
    return match[1]


def examples_of(rule: Rule) -> list[tuple[int, int, int]]:
    """The (first, second, expected) triples of the rule's own test, read from its asserts."""
    source = (PROJECTS / rule.project / "tests" / f"test_{rule.module}.py").read_text("utf-8")
    [test] = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == f"test_{rule.name}"]
    examples = []
    for statement in test.body:
        match = re.fullmatch(rf"assert {rule.name}\((\d+), (\d+)\) == (-?\d+)", ast.unparse(statement))
        assert match, ast.unparse(statement)
        examples.append((int(match[1]), int(match[2]), int(match[3])))
    return examples


def test_counts() -> None:
    assert sorted(path.name for path in PROJECTS.iterdir()) == list(NAMES)
    modules = Counter((rule.project, rule.module) for rule in ALL_RULES)
    assert len(modules) == 6
    assert set(modules.values()) == {8}
    assert len({rule.name for rule in ALL_RULES}) == 48


@pytest.mark.parametrize("project", NAMES)
def test_layout(project: str) -> None:
    modules = [path.stem for path in rule_files(project)]
    expected = {
        "pyproject.toml",
        "README.md",
        "docs/handbook.md",
        f"{project}/__init__.py",
        f"{project}/ops.py",
        "tests/test_ops.py",
    }
    expected |= {f"{project}/{module}.py" for module in modules} | {f"tests/test_{module}.py" for module in modules}
    found = {
        path.relative_to(PROJECTS / project).as_posix()
        for path in (PROJECTS / project).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert found == expected
    assert f'name = "{project}-rules"' in (PROJECTS / project / "pyproject.toml").read_text("utf-8")


def test_the_operations_are_the_same_code_in_every_project() -> None:
    def code(project: str) -> list[str]:
        return [ast.unparse(node) for node in ast.parse((PROJECTS / project / project / "ops.py").read_text("utf-8")).body[1:]]

    assert code("foundry") == code("harbour") == code("orchard")


@pytest.mark.parametrize("path", [path for project in NAMES for path in rule_files(project)], ids=lambda path: path.stem)
def test_module_form(path: Path) -> None:
    module = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(module)
    assert ast.unparse(module.body[1]) == f"from {path.parent.name}.ops import add, div, gap, low, mod, mul, sub, top"
    rules = rules_of(path)
    assert len(rules) == len(module.body) - 2, "a rule module holds nothing but rules"
    [parameters] = {rule.parameters for rule in rules}
    assert len(parameters) == 2
    assert all(re.fullmatch("[a-z]{2,8}", parameter) and parameter not in OPERATIONS for parameter in parameters)
    assert sorted(term_of(rule) for rule in rules) == sorted(TERMS)


def test_terms_come_in_another_order_in_every_module() -> None:
    orders = {tuple(term_of(rule) for rule in rules_of(path)) for project in NAMES for path in rule_files(project)}
    assert len(orders) == 6


def test_parameters_differ_between_modules() -> None:
    assert len({rule.parameters for rule in ALL_RULES}) == 6


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.name)
def test_rule_form(rule: Rule) -> None:
    assert re.fullmatch("[a-z]+(_[a-z]+)?", rule.name)
    operation, _ = TERMS[term_of(rule)]
    assert rule.body == f"return {operation}({', '.join(rule.parameters)})"


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.name)
def test_only_the_right_operation_passes(rule: Rule) -> None:
    examples = examples_of(rule)
    assert len(examples) == 3
    assert all(1 <= value <= 99 for first, second, _ in examples for value in (first, second))
    right, _ = TERMS[term_of(rule)]
    passing = [
        name
        for name, operation in OPERATIONS.items()
        if all(operation(first, second) == expected for first, second, expected in examples)
    ]
    assert passing == [right]
    swapped = [
        name
        for name in ("sub", "div", "mod")
        if all(OPERATIONS[name](second, first) == expected for first, second, expected in examples)
    ]
    assert swapped == [], "swapped arguments pass as well"


@pytest.mark.parametrize("project", NAMES)
def test_glossary(project: str) -> None:
    handbook = (PROJECTS / project / "docs" / "handbook.md").read_text("utf-8")
    entries = re.findall(r"^- .*$", handbook, flags=re.MULTILINE)
    assert entries == [f"- {term}: the {meaning}." for term, (_, meaning) in TERMS.items()]
    prose = " ".join(handbook.split())
    assert all(f"{meaning} is {operation}" in prose for operation, meaning in TERMS.values())


@pytest.mark.slow
@pytest.mark.parametrize("project", NAMES)
def test_project_passes_its_own_tests(project: str) -> None:
    argv = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(argv, cwd=PROJECTS / project, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^66 passed", run.stdout, flags=re.MULTILINE), run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("project", NAMES)
def test_a_wrong_operation_is_caught_by_the_running_tests(project: str, tmp_path: Path) -> None:
    """Every rule at once computes the next operation of the list: exactly the 16 rule tests go red."""
    following = dict(zip(OPERATIONS, [*list(OPERATIONS)[1:], "add"], strict=True))
    for source in (PROJECTS / project).rglob("*"):
        if source.is_file() and source.suffix != ".pyc":
            text = source.read_text("utf-8")
            if source in rule_files(project):
                text = re.sub(r"return (\w+)\(", lambda match: f"return {following[match[1]]}(", text)
            target = tmp_path / source.relative_to(PROJECTS / project)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
    argv = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no"]
    run = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.search(r"^16 failed, 50 passed", run.stdout, flags=re.MULTILINE), run.stdout
