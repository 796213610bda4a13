"""The four backends keep the same pairs and blame the same operators. Needs the extra `replaysim`."""

from __future__ import annotations

import inspect
import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from composer_replication.replaysim import DJNormalizer
from composer_replication.replaysim.recipe import DEDUPLICATOR, KNOWN_OPERATORS
from composer_replication.replaysim.special_characters import SPECIAL_CHARACTERS

GOOD = "read the failing test first"
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
    "2026-01-01 00:00:00",
    "\x00",
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
    "2026-01-01 00:00:00",
    "null",
    "}}]);",
]
TEXT = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(PIECES), max_size=9).map(" ".join), st.sampled_from(["x", GOOD]))
RECIPE = st.lists(
    st.one_of(
        st.builds(
            lambda field, low, more: ("text_length_filter", {"text_key": field, "min_len": low, "max_len": low + more}),
            st.sampled_from(["chosen", "rejected"]),
            st.integers(0, 12),
            st.integers(0, 20),
        ),
        st.builds(
            lambda field, low: ("words_num_filter", {"text_key": field, "min_num": low}),
            st.sampled_from(["chosen", "rejected"]),
            st.integers(0, 4),
        ),
        st.builds(
            lambda field, most: ("special_characters_filter", {"text_key": field, "max_ratio": most}),
            st.sampled_from(["chosen", "rejected"]),
            st.floats(0, 1),
        ),
        st.builds(
            lambda field, one, other: (DEDUPLICATOR, {"text_key": field, "lowercase": one, "ignore_non_character": other}),
            st.sampled_from(["chosen", "rejected"]),
            st.booleans(),
            st.booleans(),
        ),
    ),
    min_size=1,
    max_size=7,
)


def written(folder, operators):
    path = folder / "recipe.yaml"
    lines = [f"  - {name}: {{{', '.join(f'{k}: {str(v).lower()}' for k, v in body.items())}}}\n" for name, body in operators]
    path.write_text("process:\n" + "".join(lines))
    return path


def outcome(normalizer, pairs):
    return normalizer.normalize(pairs), normalizer.report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def default():
    return DJNormalizer()


@pytest.fixture(scope="module", params=["data_juicer", "executor", "ray"])
def other(request):
    """Every backend but the builtin one, on a recipe; Ray on a running cluster."""
    address = request.getfixturevalue("ray_address") if request.param == "ray" else None
    return lambda recipe=None: DJNormalizer(recipe, request.param, ray_address=address)


def mixed(rng, count):
    """Texts of every kind: bad rejected sides, duplicates, unicode, what looks like dates and JSON."""

    def text():
        return " ".join(rng.choice(PIECES) for _ in range(rng.randrange(0, 9)))

    edges = [(edge, GOOD) for edge in EDGES] + [(f"{GOOD} {i}", edge) for i, edge in enumerate(EDGES)]
    return edges + [(text(), rng.choice(["x", text(), "edit the login handler"])) for _ in range(count)]


def test_special_characters_are_data_juicers():
    from data_juicer.ops.common import SPECIAL_CHARACTERS as THEIRS

    assert {c for c in THEIRS if len(c) == 1} == SPECIAL_CHARACTERS


def test_defaults_are_data_juicers():
    from data_juicer.ops import OPERATORS

    for name, known in KNOWN_OPERATORS.items():
        parameters = inspect.signature(OPERATORS.modules[name].__init__).parameters
        assert {key: parameters[key].default for key in known} == dict(known), name


def test_same_rows_and_same_blame_on_pairs_of_every_kind(default, other, pairs):
    given_pairs = pairs(mixed(random.Random(0), 300))
    expected = outcome(default, given_pairs)
    assert all(count > 0 for count in expected[1].dropped.values())
    assert outcome(other(), given_pairs) == expected


def test_ray_without_an_address_starts_a_cluster_for_the_call(default, pairs):
    given_pairs = pairs(mixed(random.Random(2), 20))
    assert outcome(DJNormalizer(backend="ray"), given_pairs) == outcome(default, given_pairs)


def test_same_when_nothing_is_left_and_when_nothing_is_given(default, other, pairs):
    for texts in ([(GOOD, "x"), ("x", GOOD)], []):
        result = outcome(other(), pairs(texts))
        assert result == outcome(default, pairs(texts))
        assert result[0] == []


def test_same_with_operators_twice_and_a_deduplicator_in_between(folder, other, pairs):
    recipe = written(
        folder,
        [
            ("text_length_filter", {"text_key": "rejected", "min_len": 2}),
            (DEDUPLICATOR, {"text_key": "rejected"}),
            ("words_num_filter", {"text_key": "chosen", "min_num": 1}),
            ("words_num_filter", {"text_key": "chosen", "min_num": 3}),
            ("text_length_filter", {"text_key": "chosen", "min_len": 4}),
        ],
    )
    given_pairs = pairs(mixed(random.Random(1), 60))
    expected = outcome(DJNormalizer(recipe), given_pairs)
    assert all(count > 0 for title, count in expected[1].dropped.items() if title != "text_length_filter/chosen")
    assert outcome(other(recipe), given_pairs) == expected


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(st.tuples(TEXT, TEXT), max_size=8), operators=RECIPE)
def test_any_recipe_on_any_text_in_process(folder, pairs, texts, operators):
    recipe = written(folder, operators)
    assert outcome(DJNormalizer(recipe, "data_juicer"), pairs(texts)) == outcome(DJNormalizer(recipe), pairs(texts))


@pytest.mark.nightly
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
@given(texts=st.lists(st.tuples(TEXT, TEXT), min_size=80, max_size=120), operators=RECIPE)
def test_any_recipe_on_any_text(folder, other, pairs, texts, operators):
    recipe = written(folder, operators)
    assert outcome(other(recipe), pairs(texts)) == outcome(DJNormalizer(recipe), pairs(texts))


def test_the_stock_executor_would_not_look_at_rejected(default, pairs):
    """What the passes are for: data-juicer's own classes, called as its executor calls them, share a statistic."""
    from data_juicer.ops.filter import TextLengthFilter
    from data_juicer.utils.constant import Fields

    rows = {"chosen": [GOOD], "rejected": ["x"], Fields.stats: [{}]}
    for field in ("chosen", "rejected"):
        op = TextLengthFilter(min_len=8, text_key=field)
        rows = op.compute_stats_batched(rows)
        assert list(op.process_batched(rows)) == [True]
    assert default.normalize(pairs([(GOOD, "x")])) == []


@pytest.mark.parametrize("backend", ["data_juicer", "executor"])
def test_every_filter_of_data_juicer_is_a_possible_operator(folder, pairs, backend):
    recipe = written(folder, [("alphanumeric_filter", {"text_key": "rejected", "min_ratio": 0.5})])
    normalizer = DJNormalizer(recipe, backend=backend)
    kept = normalizer.normalize(pairs([("one", "letters only"), ("two", "!!!! ....")]))
    assert [p["state_id"] for p in kept] == ["s0"]
    assert normalizer.report.dropped == {"alphanumeric_filter/rejected": 1}
