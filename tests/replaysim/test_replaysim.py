from __future__ import annotations

import json
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.replaysim import DJNormalizer, dj_record_to_normalized, dpo_pair_to_dj_record
from composer_replication.replaysim.backend import Pass, plan
from composer_replication.replaysim.recipe import DEDUPLICATOR, DEFAULT_RECIPE, Operator, load_recipe
from composer_replication.replaysim.special_characters import SPECIAL_CHARACTERS
from composer_replication.types.errors import ConfigError, MissingExtraError

GOOD, OTHER = "read the failing test first", "edit the login handler now"
CALL = '{"name": "read_file", "arguments": {"path": "tests/test_auth.py"}}'


def pair(n, chosen=GOOD, rejected=OTHER, **extra):
    return {
        "state_id": f"s{n}",
        "state_messages": [{"role": "user", "content": f"task {n}", "name": "é"}],
        "chosen": chosen,
        "rejected": rejected,
        "n_teachers_agreeing": 2,
        **extra,
    }


def kept(*pairs, **options):
    normalizer = DJNormalizer(**options)
    result = normalizer.normalize(pairs)
    report = normalizer.report
    assert report.given == len(pairs) == report.kept + sum(report.dropped.values())
    assert [p["state_id"] for p in result] == [
        p["state_id"] for p, by in zip(pairs, report.dropped_by, strict=True) if by is None
    ]
    assert {by: report.dropped_by.count(by) for by in report.dropped} == report.dropped
    return [p["state_id"] for p in result], {k: v for k, v in report.dropped.items() if v}


def test_dpo_pair_to_dj_record_shape():
    record = dpo_pair_to_dj_record(pair(0, chosen=CALL, confidence=0.5))
    assert (record["chosen"], record["rejected"], record["state_id"]) == (CALL, OTHER, "s0")
    (message,) = record["chosen_messages"]
    assert message["tool_calls"][0]["function"] == {"name": "read_file", "arguments": {"path": "tests/test_auth.py"}}
    assert record["rejected_messages"] == [{"role": "assistant", "content": OTHER}]
    assert record["metadata"] == {"confidence": 0.5}
    assert record["state_messages"] == pair(0)["state_messages"]


def test_record_survives_json_and_foreign_keys():
    record = json.loads(json.dumps(dpo_pair_to_dj_record(pair(0, chosen=CALL, confidence=0.5))))
    normalized = dj_record_to_normalized({**record, "__dj__stats__": {"text_len": 3}})
    assert normalized == record
    assert dpo_pair_to_dj_record(normalized) == record


@pytest.mark.parametrize("field", ["chosen", "rejected"])
@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("a b c d", "text_length_filter"),
        ("word " * 6401, "text_length_filter"),
        ("oneverylongword", "words_num_filter"),
        ("a " * 4097, "words_num_filter"),
        ("word -- ++ ==", "words_num_filter"),
        ("x = {[(1)]}; y = {}", "special_characters_filter"),
    ],
    ids=["short", "long", "one word", "many words", "one word and marks", "marks"],
)
def test_each_filter_looks_at_both_sides(field, text, operator):
    assert kept(pair(0), pair(1, **{field: text}, **({} if field == "chosen" else {"chosen": "run the tests again"}))) == (
        ["s0"],
        {f"{operator}/{field}": 1},
    )


@pytest.mark.parametrize(("text", "keeps"), [("12345 ab", False), ("abcd efg", True), ("a" * 15998 + " " + "b" * 16001, True)])
def test_limits_are_inclusive(text, keeps):
    assert (kept(pair(0, rejected=text))[0] == ["s0"]) is keeps


def test_duplicates_of_the_chosen_side_go():
    pairs = [pair(0), pair(1, chosen="READ the failing-test, first 2!"), pair(2, rejected="something else here")]
    assert kept(*pairs) == (["s0"], {"document_deduplicator/chosen": 2})
    assert kept(pair(0), pair(1, chosen="run the other tests"))[1] == {}


def test_row_already_dropped_does_not_make_another_a_duplicate():
    assert kept(pair(0, rejected="x"), pair(1)) == (["s1"], {"text_length_filter/rejected": 1})


def test_nothing_in_nothing_out():
    assert kept() == ([], {})
    assert kept(pair(0, chosen="x")) == ([], {"text_length_filter/chosen": 1})


def test_tool_calls_pass_the_default_recipe_unless_they_are_mostly_marks():
    terse = '{"name": "edit_file", "arguments": {"path": "a.py", "old": "x", "new": "y"}}'
    assert kept(pair(0, chosen=terse)) == ([], {"special_characters_filter/chosen": 1})
    calls = [
        CALL,
        '{"name": "run_tests", "arguments": {}}',
        '{"name": "edit_file", "arguments": {"path": "a.py", "old": "raise NotImplementedError", "new": "return sub(a, b)"}}',
    ]
    assert len(kept(*(pair(i, chosen=c) for i, c in enumerate(calls)))[0]) == 3


@given(st.lists(st.tuples(st.text(), st.text()), max_size=8))
def test_any_text_is_either_kept_or_counted(texts):
    kept(*(pair(i, chosen=c, rejected=r) for i, (c, r) in enumerate(texts)))


def naive_verdict(text, seen):
    """The default recipe on one text, in loops and by the letter."""
    if not 8 <= len(text) <= 32000:
        return "text_length_filter"
    words = 0
    for word in re.split("[ \n\t]", text):
        words += any(c not in SPECIAL_CHARACTERS for c in word)
    if not 2 <= words <= 4096:
        return "words_num_filter"
    if sum(c in SPECIAL_CHARACTERS for c in text) / len(text) > 0.5:
        return "special_characters_filter"
    bare = "".join(c for c in text.lower() if not (c.isspace() and c not in "\x1c\x1d\x1e\x1f"))
    fingerprint = "".join(c for c in bare if not (re.match(r"\d", c) or c in string.punctuation)).strip()
    if fingerprint in seen:
        return DEDUPLICATOR
    seen.add(fingerprint)
    return None


MARKED = st.text(st.sampled_from(" \n\t\r\x0b\x1c\x85\u00a0\u3000aAzß漢σΣ19٣.,;(){}[]=-—😀👩\u200d"), min_size=0, max_size=24)


@given(st.lists(st.one_of(MARKED, st.text(max_size=24)), max_size=12))
def test_the_fast_operators_decide_as_the_plain_ones(texts):
    normalizer = DJNormalizer()
    normalizer.normalize([pair(i, chosen=text) for i, text in enumerate(texts)])
    seen = set()
    expected = [naive_verdict(text, seen) for text in texts]
    assert [by and by.removesuffix("/chosen") for by in normalizer.report.dropped_by] == expected


def test_a_pair_counts_for_the_first_operator_of_the_recipe_that_drops_it():
    assert kept(pair(0, chosen="()()()()()", rejected="x")) == ([], {"text_length_filter/rejected": 1})


def test_special_characters():
    assert set(" 1.,{}[]()\n\t😀—«»") <= SPECIAL_CHARACTERS
    assert not SPECIAL_CHARACTERS & set("abzABZéß漢я")
    assert len(SPECIAL_CHARACTERS) == 1618


def recipe(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_own_recipe(tmp_path):
    path = recipe(tmp_path, "project_name: p\nprocess:\n  - text_length_filter: {text_key: rejected, min_len: 3}\n")
    assert kept(pair(0, rejected="ab"), pair(1, rejected="abc"), recipe=path) == (["s1"], {"text_length_filter/rejected": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("process: [", "is not YAML"),
        ("ops: []", "no list named process"),
        ("np: 4\nprocess: []", "np has no effect"),
        ("process:\n  - text_length_filter", r"process\[0\] is not one operator"),
        ("process:\n  - text_length_filter: {min_len: 3}", "no text_key"),
        ("process:\n  - text_length_filter: {text_key: other}", "no text_key"),
        ("process:\n  - text_length_filter: {text_key: chosen, min: 3}", "no parameter min"),
        ("process:\n  - text_length_filter: {text_key: chosen, min_len: many}", "min_len is 'many'"),
        ("process:\n  - text_length_filter: {text_key: chosen, min_len: true}", "min_len is True"),
        ("process:\n  - text_length_filter: {text_key: chosen, max_len: 5}", "with min_len 10 and max_len 5"),
        ("process:\n  - special_characters_filter: {text_key: chosen, max_ratio: .nan}", "max_ratio nan"),
        ("3: x\nprocess: []", "3 has no effect"),
        ("process:\n  - document_deduplicator: {text_key: chosen, lowercase: 1}", "lowercase is 1"),
        ("process:\n  - alphanumeric_filter: {text_key: chosen}", "no operator alphanumeric_filter"),
    ],
)
def test_wrong_recipes_are_refused_at_once(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        DJNormalizer(recipe(tmp_path, text))


@pytest.mark.parametrize("written", ["1e-06", "1.0e-06", "0.000001"])
def test_a_float_may_be_written_with_an_exponent_alone(written, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"process:\n  - special_characters_filter: {{text_key: chosen, max_ratio: {written}}}\n")
    assert load_recipe(path)[0].parameters == {"max_ratio": 1e-6}


def test_missing_recipe_and_backend_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        DJNormalizer(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="no backend is called 'spark'") as caught:
        DJNormalizer(backend="spark")
    assert caught.value.fix == "use one of builtin, data_juicer, executor, ray"
    with pytest.raises(ConfigError, match="a Ray address is given, but the backend is 'executor'"):
        DJNormalizer(backend="executor", ray_address="auto")


@pytest.mark.parametrize("backend", ["data_juicer", "executor", "ray"])
def test_every_other_backend_names_its_extra_when_it_is_missing(monkeypatch, backend):
    import importlib.util

    present = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None if name == "data_juicer" else present(name, *a))
    with pytest.raises(MissingExtraError, match="data_juicer") as caught:
        DJNormalizer(backend=backend)
    assert "pip install 'composer-replication[replaysim]'" in caught.value.fix


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"chosen": None}, "chosen is not a string"),
        ({"n_teachers_agreeing": True}, "n_teachers_agreeing is not a whole number"),
        ({"state_messages": ["hello"]}, "state_messages is not a list of messages"),
        ({"metadata": 3}, "metadata is no object"),
        ({"rejected": "half \ud83d of it"}, "rejected has half a surrogate pair"),
    ],
)
def test_what_is_no_pair_is_refused_with_its_place(change, problem):
    with pytest.raises(ConfigError, match=rf"pairs\[1\] is not a pair: {problem}"):
        DJNormalizer().normalize([pair(0), pair(1) | change])
    with pytest.raises(ConfigError, match=r"pairs\[0\] is not a pair: no rejected"):
        DJNormalizer().normalize([{k: v for k, v in pair(0).items() if k != "rejected"}])


def test_an_executor_pass_has_one_field_and_no_operator_twice():
    assert plan(load_recipe(DEFAULT_RECIPE)) == [
        [Pass("chosen", (0, 2, 4)), Pass("rejected", (1, 3, 5))],
        [Pass("chosen", (6,))],
    ]
    both = [Operator(name, field, {}) for name in ("a", "b", "a") for field in ("chosen", "rejected")]
    assert plan(both) == [[Pass("chosen", (0, 2)), Pass("rejected", (1, 3)), Pass("chosen", (4,)), Pass("rejected", (5,))]]
    assert plan([Operator(DEDUPLICATOR, "chosen", {}), both[0], Operator(DEDUPLICATOR, "rejected", {})]) == [
        [Pass("chosen", (0,))],
        [Pass("chosen", (1,))],
        [Pass("rejected", (2,))],
    ]
    assert plan([]) == []
