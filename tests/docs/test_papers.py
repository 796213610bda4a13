"""docs/papers.md names what exists, and names all of it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from composer_replication import distillation, kernels, policy_gradient

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "papers.md").read_text("utf-8")
NAMED = set(re.findall(r"\[`(\w+)`\]\(\.\./([\w/]+)\.py\)", PAGE))
"""(name, module file) of every link to code."""
HELPERS = {"RowKernel", "TokenLoss", "TokenScores", "accumulation_dtype", "by_triton", "for_blocks", "logits_of", "upcast"}
"""Of `kernels`: they hold no formula."""


@pytest.mark.parametrize(("name", "file"), sorted(NAMED))
def test_what_is_named_exists_where_it_is_said_to_be(name, file):
    assert hasattr(importlib.import_module(file.replace("/", ".")), name)
    assert re.search(rf"^(def |class )?{name}\b", (ROOT / f"{file}.py").read_text("utf-8"), re.MULTILINE), "imported, not defined"


@pytest.mark.parametrize("room", [policy_gradient, distillation, kernels], ids=lambda room: room.__name__.rpartition(".")[2])
def test_every_public_name_is_named(room):
    assert set(room.__all__) - HELPERS - {name for name, _ in NAMED} == set()


def test_every_link_to_code_was_read():
    assert len(re.findall(r"\(\.\./", PAGE)) == len(re.findall(r"\[`\w+`\]\(\.\./[\w/]+\.py\)", PAGE))


def test_every_heading_that_is_linked_to_exists():
    headings = {re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in re.findall(r"^#+ (.*)$", PAGE, re.M)}
    anchors = set(re.findall(r"\]\(#([\w-]+)\)", PAGE))
    assert anchors
    assert anchors - headings == set()


def test_every_formula_has_its_code():
    """Sections with a formula name at least one function; a section is what stands between two headings."""
    sections = re.split(r"^#+ ", PAGE, flags=re.M)
    with_formula = [section for section in sections if "```math" in section]
    assert len(with_formula) > 20
    assert [section.partition("\n")[0] for section in with_formula if "- Code: " not in section] == []
