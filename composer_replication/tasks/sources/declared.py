"""Read what a project requires, and for which purpose, from its files, without running them."""

from __future__ import annotations

import ast
import configparser
import email.parser
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from composer_replication.types.syntax import parse_module

_TEST_GROUPS = re.compile(r"(^|[^a-z])(tests?|testing|unittests?|pytest|dev|develop|development)($|[^a-z])")
_RELEASE_GROUPS = re.compile(r"doc|lint|style|type|mypy|release|publish|build|bench")
"""Names of groups, environments and files that are not for testing, whatever else they say: `dev-docs`, `tests-mypy`."""
_FILE_WORDS = frozenset({"requirements", "requirement", "base", "main", "txt", "in"})
_EXTRA = re.compile(r"""(\band\s+)?\(?\bextra\s*==\s*['"](?P<name>[^'"]+)['"]\)?(\s+and\b)?""")
_POETRY = re.compile(r"[\^~]?\s*(\d+)(?:\.(\d+))?(?:\.(\d+))?.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Requirements as pip takes them, none twice, without the project itself and without addresses."""

    runtime: tuple[str, ...] = ()
    """Needed to run the project."""
    tests: tuple[str, ...] = ()
    """Named for testing or for development."""
    others: tuple[str, ...] = ()
    """Named for anything else, such as optional features, documentation and releases."""

    @property
    def every(self) -> tuple[str, ...]:
        """All of them, in this order."""
        return tuple(dict.fromkeys((*self.runtime, *self.tests, *self.others)))


def declared_requirements(tree: Path, name: str) -> Declared:
    """Return what the project at `tree` declares.

    Read are `pyproject.toml` (project, extras, dependency groups, Poetry, PDM and Hatch), `PKG-INFO`, `setup.cfg`, literal lists
    in `setup.py`, `tox.ini`, literal arguments of `session.install` in `noxfile.py`, and files of requirements.
    """
    own = {canonicalize_name(name)}
    if isinstance(named := project_table(tree).get("name"), str):
        own.add(canonicalize_name(named))
    found: dict[str, dict[str, None]] = {"runtime": {}, "tests": {}, "others": {}}
    for group, line in _lines(tree):
        try:
            requirement = Requirement(line.partition(" #")[0].strip())
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) not in own and requirement.url is None:
            found[_purpose(group)][str(requirement)] = None
    return Declared(runtime=tuple(found["runtime"]), tests=tuple(found["tests"]), others=tuple(found["others"]))


def name_of(requirement: str) -> str:
    """Return the canonical name of the distribution that a requirement asks for."""
    return canonicalize_name(Requirement(requirement).name)


def pyproject(tree: Path) -> dict[str, Any]:
    """Read `pyproject.toml`; empty when there is none that can be read."""
    try:
        return tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        return {}


def project_table(tree: Path) -> Mapping[str, Any]:
    """Return the table `[project]` of `pyproject.toml`; empty when there is none."""
    return _table(pyproject(tree), "project")


def pkg_info(tree: Path) -> Message:
    """Read the headers of a source archive's `PKG-INFO`; empty when there is no such file."""
    try:
        text = (tree / "PKG-INFO").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    return email.parser.Parser().parsestr(text, headersonly=True)


def _purpose(group: str) -> str:
    """Return the field of `Declared` that the lines of a group belong to; no group is what the project runs with."""
    if not group:
        return "runtime"
    name = group.lower().replace("_", "-")
    return "tests" if _TEST_GROUPS.search(name) and not _RELEASE_GROUPS.search(name) else "others"


def _lines(tree: Path) -> Iterator[tuple[str, str]]:
    """Yield groups and their lines."""
    yield from _from_pyproject(tree)
    yield from _from_pkg_info(tree)
    yield from _from_setup_cfg(tree)
    yield from _from_setup_py(tree)
    yield from _from_tox(tree)
    yield from _from_nox(tree)
    yield from _from_requirement_files(tree)


def _from_pyproject(tree: Path) -> Iterator[tuple[str, str]]:
    data = pyproject(tree)
    project, tool = _table(data, "project"), _table(data, "tool")
    yield from _in_group("", project.get("dependencies"))
    groups = _table(data, "dependency-groups")
    for table in (_table(project, "optional-dependencies"), groups, _table(_table(tool, "pdm"), "dev-dependencies")):
        for group, lines in table.items():
            yield from _in_group(group, _with_included(lines, groups))
    for group, environment in _table(_table(tool, "hatch"), "envs").items():
        if isinstance(environment, Mapping):
            yield from _in_group(_hatch_group(group), environment.get("dependencies"))
            yield from _in_group(_hatch_group(group), environment.get("extra-dependencies"))
    yield from _from_poetry(_table(tool, "poetry"))


def _hatch_group(name: str) -> str:
    return "test" if name in ("default", "hatch-test") else name


def _with_included(lines: Any, groups: Mapping[str, Any]) -> list[str]:
    """Return a dependency group's lines with those of the groups that it includes (PEP 735), each group once."""
    found, pending, seen = list[str](), [lines], set[str]()
    while pending:
        group = pending.pop(0)
        found += _strings(group)
        for item in group if isinstance(group, list) else ():
            name = item.get("include-group") if isinstance(item, Mapping) else None
            if isinstance(name, str) and name not in seen:
                seen.add(name)
                pending.append(groups.get(name))
    return found


def _from_poetry(poetry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    groups = {"": _table(poetry, "dependencies"), "dev": _table(poetry, "dev-dependencies")}
    named = _table(poetry, "group")
    for group, table in [*groups.items(), *((name, _table(_table(named, name), "dependencies")) for name in named)]:
        for name, asked in table.items():
            for one in asked if isinstance(asked, list) else [asked]:
                details = one if isinstance(one, Mapping) else {"version": one}
                optional = details.get("optional") is True and not group
                if name != "python" and (line := _poetry_line(name, details)):
                    yield ("optional" if optional else group), line


def _poetry_line(name: str, details: Mapping[str, Any]) -> str:
    """Return what an entry of Poetry means to pip; empty for one that names no version, such as a path."""
    version, extras = details.get("version"), _strings(details.get("extras"))
    if not isinstance(version, str):
        return ""
    markers = [details["markers"]] if isinstance(details.get("markers"), str) else []
    if isinstance(python := details.get("python"), str):
        markers += [f"python_version {one.operator} '{one.version}'" for one in SpecifierSet(_poetry_specifier(python))]
    marker = " and ".join(f"({one})" for one in markers)
    chosen = f"[{','.join(extras)}]" if extras else ""
    return f"{name}{chosen}{_poetry_specifier(version)}" + (f" ; {marker}" if marker else "")


def _poetry_specifier(version: str) -> str:
    """Return what Poetry's constraint means to pip (https://python-poetry.org/docs/dependency-specification/); alternatives are
    more than it can say."""
    if "|" in version:
        return ""
    constraints = [part.strip() for part in version.split(",")]
    found = [_poetry_constraint(part) for part in constraints if part != "*"]
    try:
        return str(SpecifierSet(",".join(found)))
    except ValueError:
        return ""


def _poetry_constraint(part: str) -> str:
    match = _POETRY.fullmatch(part)
    if match is None or part[:1] not in "^~" or part.startswith("~="):
        return f"=={part}" if part[:1].isdigit() else part.replace(" ", "")
    numbers = [int(number) for number in match.groups() if number is not None]
    low = ".".join(map(str, numbers))
    if part[0] == "^":
        kept = next((i for i, number in enumerate(numbers) if number), len(numbers) - 1)
    else:
        kept = min(1, len(numbers) - 1)
    high = ".".join(map(str, [*numbers[:kept], numbers[kept] + 1]))
    return f">={low},<{high}"


def _from_pkg_info(tree: Path) -> Iterator[tuple[str, str]]:
    for line in pkg_info(tree).get_all("Requires-Dist", []):
        requirement, _, marker = str(line).partition(";")
        extra = _EXTRA.search(marker)
        rest = _EXTRA.sub("", marker).strip()
        yield ("", str(line)) if extra is None else (extra["name"], f"{requirement} ; {rest}" if rest else requirement)


def _from_setup_cfg(tree: Path) -> Iterator[tuple[str, str]]:
    config = _ini(tree / "setup.cfg")
    yield from _in_group("", _option(config, "options", "install_requires"))
    yield from _in_group("tests", _option(config, "options", "tests_require"))
    for name in config.options("options.extras_require") if config.has_section("options.extras_require") else ():
        yield from _in_group(name, _option(config, "options.extras_require", name))


def _from_setup_py(tree: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(_module(tree / "setup.py")):
        if isinstance(node, ast.keyword) and node.arg in ("install_requires", "tests_require"):
            yield from _in_group("" if node.arg == "install_requires" else "tests", _literal(node.value))
        elif isinstance(node, ast.keyword) and node.arg == "extras_require":
            extras = _literal(node.value)
            for name, lines in extras.items() if isinstance(extras, Mapping) else ():
                yield from _in_group(str(name), lines)


def _from_tox(tree: Path) -> Iterator[tuple[str, str]]:
    """Yield what environments of tox install; a line that a factor precedes (`py311: attrs`) belongs to the tests too."""
    inline = _table(_table(pyproject(tree), "tool"), "tox").get("legacy_tox_ini")
    for config in (_ini(tree / "tox.ini"), _ini(tree / "setup.cfg"), _parsed(inline if isinstance(inline, str) else "")):
        for section in config.sections():
            if section == "testenv" or section.startswith("testenv:"):
                group = section.partition(":")[2] or "test"
                group = "test" if re.match(r"py(py)?[\d{,]", group) else group
                lines = [line.rpartition(": ")[2] for line in _option(config, section, "deps")]
                yield from _in_group(group, lines)


def _from_nox(tree: Path) -> Iterator[tuple[str, str]]:
    for function in ast.walk(_module(tree / "noxfile.py")):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "install":
                texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                yield from _in_group(function.name, texts)


def _from_requirement_files(tree: Path) -> Iterator[tuple[str, str]]:
    for path in sorted([*tree.glob("*requirements*"), *tree.glob("*requirements*/*")]):
        relative = path.relative_to(tree).as_posix()
        words = [word for word in re.split("[-_./]", relative.lower()) if word]
        if not path.is_file() or path.suffix not in (".txt", ".in") or not {"requirements", "requirement"} & set(words):
            continue
        group = " ".join(word for word in words if word not in _FILE_WORDS)
        yield from _in_group(group, path.read_text(encoding="utf-8", errors="replace").splitlines())


def _in_group(group: str, lines: Any) -> Iterator[tuple[str, str]]:
    yield from ((group, line) for line in _strings(lines))


def _table(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, Mapping) else {}


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []


def _ini(path: Path) -> configparser.ConfigParser:
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return _parsed("")


def _parsed(text: str) -> configparser.ConfigParser:
    config = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        config.read_string(text)
    except configparser.Error:
        return configparser.ConfigParser(interpolation=None)
    return config


def _option(config: configparser.ConfigParser, section: str, name: str) -> list[str]:
    return config.get(section, name, fallback="").splitlines()


def _module(path: Path) -> ast.AST:
    try:
        return parse_module(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def names_in(requirements: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return requirements by the canonical names that they ask for: all that a marker limits to some interpreters, and else the
    first of a name."""
    found: dict[str, tuple[str, ...]] = {}
    for text in requirements:
        requirement = Requirement(text)
        known = found.get(canonicalize_name(requirement.name), ())
        if requirement.marker is not None or all(Requirement(line).marker is not None for line in known):
            found[canonicalize_name(requirement.name)] = (*known, text)
    return found
