"""The instruction of a commit: its message and its news, without what is for machines, and never its code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from composer_replication.tasks.history.message import instruction_of

TESTS = ["tests/test_a.py"]
LAST = "Make the tests pass that fail without it, in tests/test_a.py."


def instructed(
    message: str,
    *,
    tests: list[str] | None = None,
    merged: list[str] | None = None,
    news: list[str] | None = None,
    gives_away: Callable[[str], bool] = lambda text: False,
) -> str:
    return instruction_of(
        message,
        merged=merged or [],
        news=news or [],
        added=["`discounted` in shop/totals.py"],
        changed=["`total` in shop/totals.py"],
        tests=TESTS if tests is None else tests,
        gives_away=gives_away,
    )


def test_trailers_are_left_out_and_issue_numbers_stay() -> None:
    message = """Add a discount in percent (#7)

Shops give discounts. Fixes #6.
Closes: GH-5

Signed-off-by: A <a@example.org>
Co-Authored-By: B <b@example.org>
Reviewed-by: C
Change-Id: I00
(cherry picked from commit 0123456789)
"""
    assert instructed(message) == (f"Add a discount in percent (#7)\n\nShops give discounts. Fixes #6.\nCloses: GH-5\n\n{LAST}")


def test_a_pull_request_is_told_by_its_title_and_number() -> None:
    message = "Merge pull request #12 from someone/branch\n\nRound totals to whole cents\n\nThey were not."
    assert instructed(message).startswith("Round totals to whole cents (#12)\n\nThey were not.\n\n")


def test_a_merge_that_says_nothing_is_told_by_its_commits() -> None:
    text = instructed("Merge branch 'x' into main", merged=["wip", "Round totals to whole cents", "Merge branch 'main' into x"])
    assert text == f"- Round totals to whole cents\n\n{LAST}"


@pytest.mark.parametrize("message", ["fix", "WIP", "Fix tests [skip ci]", "minor cleanup", "", "Merge branch 'a' of b", "v1.2"])
def test_a_message_that_says_nothing_gives_way_to_names(message: str) -> None:
    names = "Add `discounted` in shop/totals.py and change `total` in shop/totals.py."
    assert instructed(message) == f"{names}\n\n{LAST}"


def test_an_issue_number_alone_stays_with_the_names() -> None:
    assert instructed("Fix #31").startswith("Fix #31\n\nAdd `discounted`")


def test_news_are_lines_that_say_something() -> None:
    news = ["## 1.2 (2024-05-06)", "", "=====", "- Totals are rounded to whole cents (#12)", ".. towncrier", "* Misc"]
    text = instructed("fix", news=news)
    assert text == f"The changelog says of it:\n- Totals are rounded to whole cents (#12)\n\n{LAST}"


def test_what_gives_code_away_and_diffs_are_left_out() -> None:
    message = "Round totals to whole cents\n\nreturn round(whole, 2)\n\ndiff --git a/x b/x\n-a\n+b\n\n@@ -1 +1 @@\n+c\n\nGood."
    text = instructed(message, news=["Now return round(whole, 2) always"], gives_away=lambda text: "round(" in text)
    assert text == f"Round totals to whole cents\n\nGood.\n\n{LAST}"


def test_a_long_message_ends_at_a_paragraph() -> None:
    text = instructed("Round totals to whole cents\n\n" + "\n\n".join("word " * 200 for _ in range(20)))
    assert len(text) < 6200
    assert text.endswith(LAST)


def test_without_files_of_tests_none_is_named() -> None:
    assert instructed("Round totals to whole cents", tests=[]).endswith("\n\nMake the tests pass that fail without it.")
