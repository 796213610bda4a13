"""Patches over several files: found by their text, all or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.actions.patches import PatchError, added_text, parse_patch, patched


def wrap(*lines: str) -> str:
    return "\n".join(("*** Begin Patch", *lines, "*** End Patch"))


def update(text: str, *hunk: str) -> str:
    (patch,) = parse_patch(wrap("*** Update File: f", *hunk))
    return patched(patch, text)


def test_three_files_in_one_patch():
    text = wrap("*** Update File: a.py", "@@", " x", "-y", "+z", "*** Add File: b.py", "+new", "+", "*** Delete File: c.py")
    one, two, three = parse_patch(text + "\n")
    assert (one.action, one.path, patched(one, "x\ny\n")) == ("update", "a.py", "x\nz\n")
    assert (two.action, two.path, added_text(two)) == ("add", "b.py", "new\n\n")
    assert (three.action, three.path, three.hunks) == ("delete", "c.py", [])


def test_hunks_follow_each_other():
    assert update("a\nb\na\nb\n", "@@", " a", "-b", "+1", " a", "-b", "+2") == "a\n1\na\n2\n"
    assert update("p\nsame\nq\nsame\n", "@@", " p", "-same", "+one", "@@", "-same", "+two") == "p\none\nq\ntwo\n"


def test_a_line_above_tells_equal_places_apart():
    text = "class A:\n    def f(self):\n        pass\nclass B:\n    def f(self):\n        pass\n"
    with pytest.raises(PatchError, match="in 2 places"):
        update(text, "@@", "     def f(self):", "-        pass", "+        return 1")
    changed = update(text, "@@ class B:", "     def f(self):", "-        pass", "+        return 1")
    assert changed == text[:-13] + "        return 1\n"


def test_lines_are_added_after_a_line_or_at_the_end():
    assert update("a\nb\n", "@@ a", "+1") == "a\n1\nb\n"
    assert update("a\nb\n", "@@", "+1") == "a\nb\n1\n"
    assert update("a\nb", "+1") == "a\nb\n1"


def test_blank_lines_need_no_space():
    assert update("a\n\nb\n", "@@", " a", "", "-b", "+c") == "a\n\nc\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "starts with"),
        ("*** Begin Patch\n*** End Patch", "starts with"),
        (wrap("+x"), "a file's line is missing"),
        (wrap("*** Update File: f"), "nothing is changed"),
        (wrap("*** Update File: f", "@@", "x"), "must start with"),
        (wrap("*** Add File: f", " x"), "must start with"),
        (wrap("*** Delete File: f", "-x"), "must start with"),
        (wrap("*** Delete File: f", "*** Add File: f", "+x"), "named twice"),
    ],
)
def test_what_is_no_patch_says_why(text, said):
    with pytest.raises(PatchError, match=said):
        parse_patch(text)


def test_what_does_not_fit_says_why():
    with pytest.raises(PatchError, match="hunk 1 of f: its lines are not there"):
        update("a\n", "@@", "-b", "+c")
    with pytest.raises(PatchError, match="no line 'def g' follows"):
        update("a\n", "@@ def g", "+c")


LINES = st.lists(st.text("ab ", max_size=3), min_size=1, max_size=6)


@given(LINES, LINES)
def test_a_whole_file_can_be_replaced(old, new):
    marked = [f"-{line}" for line in old] + [f"+{line}" for line in new]
    assert update("\n".join(old), "@@", *marked) == "\n".join(new)


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text):
    for candidate in (text, wrap(text), wrap("*** Update File: f", text)):
        try:
            for patch in parse_patch(candidate):
                patched(patch, "a\nb\n")
        except PatchError:
            pass
