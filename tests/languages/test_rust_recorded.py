"""Calls that tests of a crate write down: those that can be made again, and nothing that ends a build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer_replication.languages.rust.held_out import _recorded
from composer_replication.languages.rust.instrument import Project, project_of
from composer_replication.sandbox.protocol import Tree

LIB = b"pub fn twice<T: Clone>(one: T, times: u8) -> Vec<T> {\n    vec![one; times as usize]\n}\n"
KEY = "src/lib.rs::twice"
TYPES, KINDS = ["u8"], ["u8", "u8"]
VALUES = [{"k": "uint", "t": "u8", "v": "7"}, {"k": "uint", "t": "u8", "v": "2"}]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    manifest = b'[package]\nname = "pairs"\nversion = "0.1.0"\nedition = "2021"\n'
    return project_of(Tree(base=tmp_path, changes={"Cargo.toml": manifest, "src/lib.rs": LIB}))


def test_a_call_is_taken_with_its_types(project: Project) -> None:
    (call,) = _recorded([[KEY, TYPES, KINDS, VALUES]], project, ["src/lib.rs"])
    assert (call.key, call.given, call.how["types"], call.how["root"]) == (KEY, tuple(VALUES), ["u8"], "src/lib.rs")


@pytest.mark.parametrize(
    "line",
    [
        *(None, 3, "x", [], [KEY], [[KEY], TYPES, KINDS, VALUES], ["src/lib.rs::gone", TYPES, KINDS, VALUES]),
        *([KEY, [], KINDS, VALUES], [KEY, [3], KINDS, VALUES], [KEY, ["u8", "u8"], KINDS, VALUES], [KEY, "u", KINDS, VALUES]),
        *([KEY, TYPES, [None, "u8"], VALUES], [KEY, TYPES, ["u8"], VALUES], [KEY, TYPES, {}, VALUES]),
        *([KEY, TYPES, KINDS, 3], [KEY, TYPES, KINDS, [{"k": "uint"}, VALUES[1]]], [KEY, TYPES, KINDS, [None, VALUES[1]]]),
        [KEY, TYPES, KINDS, [{"k": ["uint"], "v": "1"}, VALUES[1]]],
    ],
)
def test_what_is_no_call_is_passed_over(project: Project, line: Any) -> None:
    assert list(_recorded([line], project, ["src/lib.rs"])) == []
