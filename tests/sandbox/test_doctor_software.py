"""What a box shows of /usr: the doctor names what should be hidden, and the search for copies reads all the rest."""

from __future__ import annotations

import ast
import dataclasses
import os
import sys
from itertools import islice
from pathlib import Path

import pytest

from composer_replication.sandbox.backends import box as boxes
from composer_replication.sandbox.backends.system import system_view
from composer_replication.sandbox.doctor import software
from composer_replication.sandbox.doctor.probes import PROBES
from composer_replication.sandbox.doctor.selftest import ProbeResult, ProbeVerdict, self_test
from composer_replication.sandbox.interpreter import installation_of
from composer_replication.tasks.proofs.copies import find_copies
from composer_replication.tasks.proofs.copies_driver import SMALLEST, fingerprint

BY_NAME = {probe.name: probe for probe in PROBES}
PYTHON = Path(sys.executable)


def findings(box) -> tuple[ProbeResult, ProbeResult]:
    files, names = self_test(box, [BY_NAME["software"], BY_NAME["software's names"]])
    return files, names


def a_hidden_place() -> tuple[str, str]:
    """A folder below /usr that boxes do not show, and the first file in it that is tried."""
    for place in software.hidden_places(PYTHON):
        files = [path for path in islice(software._files_below(place), 1) if os.path.dirname(path) == place]
        if place.startswith("/usr/") and files:
            return place, files[0]
    pytest.skip("this machine has nothing else in /usr")


def test_a_box_hides_it_or_says_that_it_does_not(box):
    files, names = findings(box)
    assert files.verdict is ProbeVerdict.BLOCKED, files
    assert names.verdict is (ProbeVerdict.ADMITTED if box.isolation.name == "landlock" else ProbeVerdict.BLOCKED), names
    if names.detail:
        assert names.detail[-1] == "not enforced: namespaces: names of the host's files and processes are visible"


def test_a_box_that_shows_more_is_found(box, monkeypatch):
    place, file = a_hidden_place()

    def more(python: Path):
        installed = installation_of(python)
        return dataclasses.replace(installed, binds=(*installed.binds, place))

    monkeypatch.setattr(boxes, "installation_of", more)
    files, names = findings(box)
    assert (files.verdict, files.detail[0]) == (ProbeVerdict.OPEN, file)
    if box.isolation.name != "landlock":
        assert (names.verdict, names.detail[:2]) == (ProbeVerdict.OPEN, (place, file))


def test_packages_of_others_that_are_not_emptied_are_found(box, monkeypatch):
    masks = installation_of(PYTHON).masks
    if not any(any(software._files_below(mask)) for mask in masks):
        pytest.skip("this interpreter has no packages to hide")
    monkeypatch.setattr(boxes, "installation_of", lambda python: dataclasses.replace(installation_of(python), masks=()))
    files, _ = findings(box)
    assert files.verdict is ProbeVerdict.OPEN
    assert files.detail[0].startswith(masks)


def test_another_file_at_the_same_path_is_not_the_hosts(box, monkeypatch):
    """As in a container, whose image has files at paths of this machine; here the box has its own."""
    monkeypatch.setattr(software, "hidden_places", lambda python: ["/etc/passwd"])
    files, _ = findings(box)
    assert files.verdict is ProbeVerdict.BLOCKED, files


def functions_of(path: str) -> dict[str, int]:
    """The functions of a Python file that are large enough to be somebody's, by name."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return {}
    functions = {node.name: fingerprint(node)[1] for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name: size for name, size in functions.items() if size >= 4 * SMALLEST}


def a_function_in(paths) -> tuple[str, str]:
    for path in paths:
        if path.endswith(".py") or b"python" in first_line(path):
            for name in functions_of(path):
                return path, name
    pytest.skip("no Python code there")


def first_line(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            line = file.readline(80)
    except OSError:
        return b""
    return line if line.startswith(b"#!") else b""


@pytest.mark.slow
def test_the_search_for_copies_reads_what_a_box_shows_of_usr(box, tmp_path, monkeypatch):
    """And a copy in what it hides is no copy, as no program under test can read it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shown = [path for top in system_view().paths if top.startswith("/usr/") for path in software._files_below(top)]
    hidden = [path for top in software.hidden_places(PYTHON) if top.startswith("/usr/") for path in software._files_below(top)]
    (copy, name), (unseen, other) = a_function_in(shown), a_function_in(hidden)
    sources = {"shown.py": Path(copy).read_bytes(), "hidden.py": Path(unseen).read_bytes()}
    found = find_copies(box, PYTHON, sources, [f"shown.py::{name}", f"hidden.py::{other}"])
    assert set(found) == {f"shown.py::{name}"}
    assert os.path.samefile(found[f"shown.py::{name}"], copy)
