"""`composer pairs normalize` as a user runs it."""

from __future__ import annotations

import json

import pytest
from in_process import composer_here

GOOD, OTHER = "read the failing test first", "edit the login handler now"
TERSE = '{"name": "edit_file", "arguments": {"path": "a.py", "old": "x", "new": "y"}}'


def pair(n, chosen, rejected=OTHER, **extra):
    return {
        "state_id": f"s{n}",
        "state_messages": [{"role": "user", "content": f"task {n} — é"}],
        "chosen": chosen,
        "rejected": rejected,
        "n_teachers_agreeing": 2,
        **extra,
    }


PAIRS = [pair(0, GOOD), pair(1, TERSE), pair(2, GOOD.upper()), pair(3, "list the files of it", "ls"), pair(4, "}}]); }}]);")]


def composer(*arguments):
    return composer_here("pairs", "normalize", *arguments)


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def write(tmp_path):
    def to(*given):
        path = tmp_path / "pairs.jsonl"
        path.write_bytes(b"".join((g if isinstance(g, bytes) else json.dumps(g).encode()) + b"\n" for g in given))
        return path

    return to


def test_the_table_counts_what_every_operator_dropped(write, tmp_path):
    out, dropped = tmp_path / "out.jsonl", tmp_path / "dropped.jsonl"
    done = composer(write(*PAIRS, b""), "--out", out, "--dropped", dropped)
    assert done.returncode == 0
    assert done.stderr == "1 dropped although their states differ; remove document_deduplicator from the recipe for agents\n"
    rows = [line.split() for line in done.stdout.splitlines() if "_filter" in line or "_dedup" in line]
    filters = [f"{name}_filter" for name in ("text_length", "words_num", "special_characters")]
    expected = [(name, field) for name in filters for field in ("chosen", "rejected")]
    assert [(row[0], row[1]) for row in rows] == [*expected, ("document_deduplicator", "chosen")]
    by_name = {f"{row[0]}/{row[1]}": " ".join(row[2:]) for row in rows}
    assert by_name["text_length_filter/chosen"] == "min_len 8, max_len 32000 0 0"
    assert by_name["text_length_filter/rejected"] == "min_len 8, max_len 32000 1 0 'ls'"
    assert by_name["words_num_filter/chosen"] == "min_num 2, max_num 4096 1 0 '}}]); }}]);'"
    assert by_name["special_characters_filter/chosen"].startswith('max_ratio 0.5 1 1 \'{"name": "edit_file"')
    assert "document_deduplicator" in done.stdout
    assert done.stdout.splitlines()[-1] == f"1 of 5 pairs kept: {out}"
    (only,) = lines(out)
    assert {key: only[key] for key in PAIRS[0]} == PAIRS[0]
    assert only["chosen_messages"] == [{"role": "assistant", "content": GOOD}]
    assert [(p["state_id"], p["dropped_by"]) for p in lines(dropped)] == [
        ("s1", "special_characters_filter/chosen"),
        ("s2", "document_deduplicator/chosen"),
        ("s3", "text_length_filter/rejected"),
        ("s4", "words_num_filter/chosen"),
    ]


def test_what_was_normalized_is_normalized(write, tmp_path):
    out, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    assert composer(write(PAIRS[0] | {"confidence": 0.5}), "--out", out).returncode == 0
    assert composer(out, "--out", again).returncode == 0
    assert again.read_bytes() == out.read_bytes()
    assert lines(out)[0]["metadata"] == {"confidence": 0.5}


BAD = [
    (b"{", "not JSON"),
    (b"[]", "no object"),
    (b'{"state_id": "\xff"}', "not UTF-8"),
    (b'{"state_id": 3}', "state_id is not a string"),
    (b"[" * 100_000, "not JSON"),
    (json.dumps({k: v for k, v in PAIRS[0].items() if k != "chosen"}).encode(), "no chosen"),
    (json.dumps(PAIRS[0] | {"confidence": float("nan")}).encode(), "NaN is not a number"),
    (json.dumps(PAIRS[0] | {"chosen": "\ud83d and more words"}).encode(), "half a surrogate pair"),
]


def test_bad_lines_are_refused_with_their_places_and_nothing_is_written(write, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    path = write(PAIRS[0], *(line for line, _ in BAD))
    done = composer(path, "--out", out)
    assert done.returncode == 2
    told = done.stderr.split("\n  ")
    assert told[0] == f"error: {len(BAD)} lines are not pairs; nothing was written"
    for number, ((_, problem), line) in enumerate(zip(BAD, told[1:], strict=False), start=2):
        assert line.startswith(f"{path}:{number}: ")
        assert problem in line
    assert "--skip-bad-lines" in told[-1]
    assert out.read_text() == "precious"


def test_bad_lines_are_left_out_when_asked(write, tmp_path):
    out = tmp_path / "out.jsonl"
    path = write(PAIRS[0], b"{", PAIRS[3] | {"rejected": OTHER})
    done = composer(path, "--out", out, "--skip-bad-lines")
    assert done.returncode == 0
    assert done.stderr.startswith(f"skipped: {path}:2: not JSON")
    assert "2 of 2 pairs kept, 1 lines skipped" in done.stdout
    assert [p["state_id"] for p in lines(out)] == ["s0", "s3"]


def test_when_nothing_is_left_the_status_says_so(write, tmp_path):
    out = tmp_path / "out.jsonl"
    done = composer(write(PAIRS[4]), "--out", out)
    assert (done.returncode, out.read_bytes()) == (10, b"")
    assert "0 of 1 pairs kept" in done.stdout


def test_own_recipe_with_marks_allowed_keeps_code(write, tmp_path):
    recipe, out = tmp_path / "own.yaml", tmp_path / "out.jsonl"
    recipe.write_text("process:\n  - special_characters_filter: {text_key: chosen, max_ratio: 0.9}\n")
    done = composer(write(PAIRS[1]), "--out", out, "--recipe", recipe)
    assert (done.returncode, len(lines(out))) == (0, 1), done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--recipe", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--ray-address", "auto"], "a Ray address is given, but the backend is 'builtin'"),
        (["--backend", "spark"], "spark"),
    ],
)
def test_what_cannot_be_run_ends_with_2(write, tmp_path, arguments, told):
    out = tmp_path / "out.jsonl"
    done = composer(write(PAIRS[0]), "--out", out, *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert not out.exists()


def test_a_file_that_is_missing_or_cannot_be_written_is_named(write, tmp_path):
    missing = composer(tmp_path / "none.jsonl", "--out", tmp_path / "out.jsonl")
    assert (missing.returncode, "none.jsonl cannot be read" in missing.stderr) == (2, True)
    (tmp_path / "file").touch()
    refused = composer(write(PAIRS[0]), "--out", tmp_path / "file" / "out.jsonl")
    assert refused.returncode == 7
    assert "cannot write" in refused.stderr
    assert "--resume" not in refused.stderr


def test_the_same_action_at_the_same_state_is_no_loss(write, tmp_path):
    """Only duplicates of another state's pair are lost to an agent."""
    again = pair(0, GOOD + "!") | {"state_id": "resampled"}
    done = composer(write(PAIRS[0], again), "--out", tmp_path / "out.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 2 pairs kept" in done.stdout
    three = composer(write(PAIRS[0], again, pair(1, GOOD), pair(2, GOOD)), "--out", tmp_path / "out.jsonl")
    assert three.stderr.startswith("2 dropped although their states differ")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("pairs.jsonl", "--out", "./pairs.jsonl"), "--out and PAIRS are the same file"),
        (("pairs.jsonl", "--out", "link.jsonl"), "--out and PAIRS are the same file"),
        (("pairs.jsonl", "--out", "out.jsonl", "--dropped", "sub/../pairs.jsonl"), "--dropped and PAIRS are the same file"),
        (("pairs.jsonl", "--out", "out.jsonl", "--dropped", "out.jsonl"), "--dropped and --out are the same file"),
        (("pairs.jsonl", "--recipe", "own.yaml", "--out", "own.yaml"), "--out and --recipe are the same file"),
    ],
)
def test_what_is_read_is_not_written(write, tmp_path, names, told):
    before = write(*PAIRS).read_bytes()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "pairs.jsonl")
    (tmp_path / "sub").mkdir()
    done = composer(*(name if name.startswith("--") else tmp_path / name for name in names))
    assert done.returncode == 2
    assert told in done.stderr
    assert (tmp_path / "pairs.jsonl").read_bytes() == before
    assert not (tmp_path / "out.jsonl").exists()
