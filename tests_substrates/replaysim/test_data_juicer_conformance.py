"""The builtin operators against the installed data-juicer, row for row. Needs the extra `replaysim`."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.replaysim import DJNormalizer
from composer_replication.replaysim.special_characters import SPECIAL_CHARACTERS

BUILTIN, DATA_JUICER = DJNormalizer(), DJNormalizer(backend="data_juicer")

PIECES = [
    "read",
    "the",
    "test",
    "é",
    "漢字",
    "😀",
    "👩‍💻",
    "—",
    "{}",
    "()",
    "12",
    "\n",
    "\t",
    " ",
    "\u00a0",
    "\u3000",
    "x = 1;",
    "ABC",
    "σΣ",
    "\x1f",
]
EDGES = [
    "",
    "x",
    "a b c d",
    "abcd efg",
    "word " * 6401,
    "a " * 4097,
    "a" * 32000,
    "a" * 15998 + " " + "b" * 16001,
    "12345 ab",
    "((((( abcd",
]


def pair(n, chosen, rejected):
    return {
        "state_id": f"s{n}",
        "state_messages": [{"role": "user", "content": f"task {n}"}],
        "chosen": chosen,
        "rejected": rejected,
        "n_teachers_agreeing": 2,
    }


def assert_agree(texts):
    pairs = [pair(i, c, r) for i, (c, r) in enumerate(texts)]
    assert BUILTIN.normalize(pairs) == DATA_JUICER.normalize(pairs)
    assert BUILTIN.report == DATA_JUICER.report


def test_special_characters_are_data_juicers():
    from data_juicer.ops.common import SPECIAL_CHARACTERS as THEIRS

    assert {c for c in THEIRS if len(c) == 1} == SPECIAL_CHARACTERS


def test_edges_on_both_sides():
    good = "read the failing test first"
    assert_agree([(edge, good) for edge in EDGES] + [(f"{good} {i}", edge) for i, edge in enumerate(EDGES)])
    assert_agree([])


def test_thousand_pairs_with_bad_rejected_sides_and_duplicates():
    rng = random.Random(0)

    def text():
        return " ".join(rng.choice(PIECES) for _ in range(rng.randrange(0, 9)))

    texts = [(text(), rng.choice(["x", text(), "edit the login handler"])) for _ in range(1000)]
    assert_agree(texts)
    assert all(count > 0 for name, count in BUILTIN.report.dropped.items() if "words" not in name)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=6))
def test_any_text(texts):
    assert_agree(texts)


def test_every_filter_of_data_juicer_is_a_possible_operator(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("process:\n  - alphanumeric_filter: {text_key: rejected, min_ratio: 0.5}\n")
    normalizer = DJNormalizer(recipe, backend="data_juicer")
    kept = normalizer.normalize([pair(0, "one", "letters only"), pair(1, "two", "!!!! ....")])
    assert [p["state_id"] for p in kept] == ["s0"]
    assert normalizer.report.dropped == {"alphanumeric_filter/rejected": 1}
