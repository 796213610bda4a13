"""Read the requirements of manifests on other crates, and choose versions that satisfy them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from composer_replication.languages.rust.crates import dependency_tables, list_of
from composer_replication.types.errors import SourceError

_NAME, _FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}"), re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+.-]{0,63}")
"""Names of crates, by which folders are named, and of features, as cargo takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredCrate:
    """A crate that a manifest requires."""

    name: str
    version: str
    """The requirement, such as `1.2` or `>=1, <3`."""
    features: frozenset[str]
    is_needed: bool
    """The code cannot be built without it: it is not optional, not for tests alone and not for certain machines alone."""
    is_for_tests: bool


def required_crates(
    manifest: Mapping[str, Any], workspace: Mapping[str, Any], *, by_default: bool = False
) -> Iterator[RequiredCrate]:
    """Yield the crates of an index that a manifest requires; not those at a path.

    Args:
        workspace: the dependencies of the workspace, which members refer to.
        by_default: the code is built with its default features, and needs the optional crates that these switch on.

    Raises:
        SourceError: it names a crate or a feature in a way that cargo does not take.
    """
    switched_on = _on_by_default(manifest) if by_default else frozenset()
    for number, table in enumerate(dependency_tables(manifest)):
        for key, said in table.items():
            one = {"version": said} if isinstance(said, str) else dict(said) if isinstance(said, dict) else {}
            if one.get("workspace"):
                shared = workspace.get(key, {})
                one = {**(shared if isinstance(shared, dict) else {"version": shared if isinstance(shared, str) else "*"}), **one}
            if "path" in one:
                continue
            tests, general = number % 5 in (1, 3), number < 5
            yield RequiredCrate(
                name=_named(one.get("package", key), _NAME),
                version=str(one.get("version", "*")),
                features=frozenset(_named(name, _FEATURE) for name in (*list_of(one.get("features")), *_switched(manifest, key))),
                is_needed=general and not tests and (not one.get("optional", False) or key in switched_on),
                is_for_tests=tests,
            )


def _named(name: object, form: re.Pattern[str]) -> str:
    """Return a name that a manifest gives. Raises SourceError where it is none."""
    if not isinstance(name, str) or not form.fullmatch(name):
        raise SourceError(
            f"a Cargo.toml requires {str(name)[:80]!a}, which is no name", fix="correct it, or take another project"
        )
    return name


def _on_by_default(manifest: Mapping[str, Any]) -> frozenset[str]:
    """Return the names in a manifest of the crates that its default features switch on."""
    table = manifest.get("features")
    table = table if isinstance(table, dict) else {}
    found, waiting = set[str](), ["default"]
    while waiting:
        name = waiting.pop()
        for one in map(str, list_of(table.get(name))):
            crate = one.partition("/")[0].removeprefix("dep:")
            if crate not in found and not crate.endswith("?"):
                found.add(crate)
                waiting.append(crate)
    return frozenset(found)


def _switched(manifest: Mapping[str, Any], key: str) -> Iterator[str]:
    """Yield the features of a required crate that features of a manifest switch on: `crate/feature`."""
    table = manifest.get("features")
    for names in table.values() if isinstance(table, dict) else ():
        for name in list_of(names):
            crate, mark, feature = str(name).partition("/")
            if mark and crate.rstrip("?") == key:
                yield feature


def satisfies(version: str, requirement: str) -> bool:
    """Return whether a version satisfies a requirement as cargo reads it."""
    here = _numbers(version)
    return all(_holds(here, part.strip()) for part in requirement.split(",") if part.strip())


def lowest(requirement: str) -> str:
    """Return a version that satisfies a requirement."""
    for part in requirement.split(","):
        numbers = _numbers(part.strip().lstrip("^~=<> "))
        upper = part.strip().startswith("<")
        if not upper and "*" not in part.strip()[:1]:
            exact = ".".join(map(str, numbers))
            return exact if satisfies(exact, requirement) else ".".join(map(str, (*numbers[:2], numbers[2] + 1)))
    return next(one for one in ("1.0.0", "0.99.0", "0.0.1", "0.0.0") if satisfies(one, requirement) or one == "0.0.0")


def _numbers(text: str) -> tuple[int, int, int]:
    found = [int(one) for one in re.findall(r"\d+", re.split(r"[-+]", text)[0])][:3]
    one, two, three = [*found, 0, 0, 0][:3]
    return one, two, three


def _holds(version: tuple[int, int, int], part: str) -> bool:
    match = re.fullmatch(r"(\^|~|=|>=|<=|>|<)?\s*([\d.*xX]+)(?:[-+].*)?", part)
    if match is None:
        return part == "*"
    sign, text = match[1] or "^", match[2]
    given = [one for one in text.split(".") if one.isdigit()]
    low = _numbers(text)
    if sign in (">=", ">", "<=", "<"):
        return {">=": version >= low, ">": version > low, "<=": version <= low, "<": version < low}[sign]
    if not given:
        return True
    kept = len(given)
    if sign == "~":
        kept = min(kept, 2)
    elif sign == "^" and "*" not in text:
        kept = next((n + 1 for n, one in enumerate(low[:kept]) if one), kept)
    return version[:kept] == low[:kept] and version >= low
