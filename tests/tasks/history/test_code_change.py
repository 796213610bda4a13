"""What a commit changes: code, tests and news are told apart by their places."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from git_repositories import BASE, DISCOUNT, WITH_DISCOUNT

from composer_replication.tasks.history.changes import CodeChange, change_of
from composer_replication.tasks.proofs.proof import NoTaskError
from composer_replication.tasks.sources.layout import guess_layout


def changed(tmp_path: Path, after: Mapping[str, str | None], before: Mapping[str, str | None] = BASE) -> CodeChange:
    trees = []
    for name, files in (("parent", before), ("tree", before | after)):
        for path, text in files.items():
            if text is not None:
                (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name / path).write_text(text)
        trees.append(tmp_path / name)
    return change_of(after, *trees, guess_layout(trees[1]))


def test_code_tests_and_news_are_told_apart(tmp_path: Path) -> None:
    more = {"shop/rates.json": "{}", "docs/page.md": "Words.", "setup.py": "", "tools/release.py": "X = 1\n"}
    change = changed(tmp_path, DISCOUNT | more)
    assert change.before == {"shop/rates.json": None, "shop/totals.py": BASE["shop/totals.py"].encode()}
    assert change.tests == ("tests/test_discount.py",)
    assert not change.helpers
    assert change.news == ("## 0.2", "- Prices can have a discount in percent")
    assert [function.qualname for function in change.functions] == ["discounted"]
    (code,) = change.new_code()
    assert code.decode() == WITH_DISCOUNT[WITH_DISCOUNT.index("    if percent") :]
    assert change.added_at("shop/totals.py", 13)
    assert not change.added_at("shop/totals.py", 1)
    assert not change.added_at("tests/test_discount.py", 1)


@pytest.mark.parametrize("path", ["news/12.feature.rst", "docs/CHANGES.rst", "HISTORY.md", "changelog.d/12.md", "NEWS"])
def test_news_have_many_places(tmp_path: Path, path: str) -> None:
    change = changed(tmp_path, {**DISCOUNT, "CHANGELOG.md": BASE["CHANGELOG.md"], path: "Prices can have a discount.\n"})
    assert change.news == ("Prices can have a discount.",)


def test_what_lies_among_tests_helps_them(tmp_path: Path) -> None:
    change = changed(tmp_path, {"shop/totals.py": WITH_DISCOUNT, "tests/rates.txt": "1\n"})
    assert (change.tests, change.helpers) == ((), True)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"shop/totals.py": WITH_DISCOUNT}, "it adds and changes no tests"),
        ({"shop/totals.py": WITH_DISCOUNT, "tests/test_total.py": None}, "it adds and changes no tests"),
        ({"tests/test_more.py": "", "shop/rates.json": "{}"}, "it changes no Python file of the project's packages"),
        ({"shop/sub.py": None, "shop/new.py": "", "tests/test_more.py": ""}, "it removes or moves code"),
    ],
)
def test_what_is_no_candidate(tmp_path: Path, after: dict[str, str | None], reason: str) -> None:
    before = {**BASE, "shop/sub.py": "X = 1\n", "tests/test_kept.py": "\n"}
    with pytest.raises(NoTaskError, match=reason):
        changed(tmp_path, after, before)
