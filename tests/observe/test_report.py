from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.observe.excerpt import excerpt
from composer_replication.observe.report import embed_json, rebuild_report, write_report
from composer_replication.observe.run_dir import RunDir
from composer_replication.observe.summary import SUMMARY_COLUMNS, SummaryRow, load_summary
from composer_replication.types import Hint
from composer_replication.types.errors import StorageError

ATTACK = "</script></title><script>alert(1)</script><!-- \u2028 \x00\x1b \u202e \ud800 & {{script}} {{data}}"
ROW = SummaryRow(arm="grpo", pass_at_1=0.5, pass_at_1_se=0.1, rollouts=1234, tokens=56_789, cpu_s=60.4)


class Page(HTMLParser):
    """Elements, attributes and script contents as a browser's tokenizer sees them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag in ("script", "style", "title"):
            self.text.setdefault(tag, []).append("")

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style", "title"):
            self.text[self._inside][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text["script"][0])["data"]
        return found


@pytest.fixture
def page(fake: dict[str, Any], fake_run: RunDir) -> Page:
    return Page(write_report(fake_run, title=f"Title {ATTACK}", summary_rows=fake["rows"](), notes=[ATTACK]))


# --- one safe, self-contained file


@pytest.mark.slow
@given(
    st.recursive(
        st.text() | st.floats() | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_embedded_json_is_inert_in_html_and_strict(value: Any) -> None:
    text = embed_json(value)
    assert text.isascii()
    assert not set(text) & set("<>&\n")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    read = json.loads(text, parse_constant=refuse)["data"]
    if isinstance(value, str):
        assert read == value


def test_hostile_text_opens_no_element(page: Page) -> None:
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert [tag for tag, _ in page.tags].count("title") == 1
    assert page.text["title"][0].startswith("Title </script></title><script>alert(1)")
    assert not {"img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}


def test_nothing_is_asked_of_the_network_and_only_the_pages_own_code_may_run(page: Page) -> None:
    for tag, attributes in page.tags:
        assert "src" not in attributes, tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert attributes.get("href", "#").startswith(("#", "data:")), tag
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for source in (page.text["style"][0], page.text["script"][1]):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'" in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page.text["style"][0] + page.text["script"][1])


def test_control_characters_do_not_reach_the_static_text(page: Page, fake_run: RunDir) -> None:
    text = fake_run.report_path.read_text(encoding="utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "{{" not in text.replace("{{script}}", "").replace("{{data}}", "")


def test_the_static_part_names_model_isolation_results_and_notes(fake: dict[str, Any], fake_run: RunDir) -> None:
    text = write_report(fake_run, title="T", summary_rows=[ROW], notes=["about privileged information"]).read_text()
    assert "composer-tiny (Qwen3 architecture, 3.1 M parameters)" in text
    assert fake["ISOLATION"] in text
    assert '<td data-label="pass@1 ± s.e.">0.500 ± 0.100</td><td data-label="rollouts">1,234</td>' in text
    assert "<li>about privileged information</li>" in text
    assert "<strong>three_channels</strong>: replay off at 10 of 41 steps (no pairs yet)" in text


def test_a_step_repeated_after_a_resume_counts_once(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    for step, off in ((1, {"hint": "none"}), (2, {"hint": "none"}), (2, {}), (3, {"hint": "none"})):
        run.log_event("step", "a step", arm="main", step=step, off=off)
    text = write_report(run, title="T", summary_rows=[ROW], notes=[]).read_text()
    assert "hint off at 2 of 3 steps (none)" in text


def test_two_builds_of_one_run_are_the_same_file(fake_run: RunDir) -> None:
    first = write_report(fake_run, title="T", summary_rows=[ROW], notes=[]).read_bytes()
    assert rebuild_report(RunDir(fake_run.path)).read_bytes() == first


# --- the result table


def test_cells_match_their_columns_and_say_what_is_missing() -> None:
    assert ROW.cells() == ("grpo", "0.500 ± 0.100", "1,234", "56,789", "60")
    unknown = SummaryRow(arm="a", pass_at_1=math.nan, pass_at_1_se=math.nan, rollouts=None, tokens=None, cpu_s=None)
    assert unknown.cells() == ("a", "n/a", "n/a", "n/a", "n/a")
    assert len(SUMMARY_COLUMNS) == len(ROW.cells())


def test_arms_that_have_not_finished_are_summed_up_from_their_metrics(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "r")
    for step in range(3):
        run.log_metrics("late", step, {"rollout/total": 8 * step, "rollout/tokens_total": 100 * step, "cost/cpu_s": 1.5 * step})
    run.log_metrics("late", 2, {"eval/pass_at_1": 0.25, "eval/pass_at_1_se": 0.125})
    late = SummaryRow(arm="late", pass_at_1=0.25, pass_at_1_se=0.125, rollouts=16, tokens=200, cpu_s=3.0)
    assert load_summary(run).rows == (late,)
    write_report(run, title="T", summary_rows=[ROW], notes=["first"])
    assert load_summary(run).rows == (ROW, late)
    assert load_summary(run).notes[1].startswith("Not finished: late.")
    write_report(run, title="T", summary_rows=[ROW, late], notes=["first"])
    assert load_summary(run).notes == ("first",)


def test_an_empty_run_has_a_report_too(tmp_path: Path) -> None:
    page = Page(rebuild_report(RunDir.create(tmp_path / "empty")))
    assert page.data() == {"arms": [], "families": [], "trajectories": {"openings": [], "arms": []}}


def test_damaged_files_are_named(fake_run: RunDir) -> None:
    fake_run.summary_path.write_text('{"title": "x"}')
    with pytest.raises(StorageError, match=r"summary\.json is damaged"):
        rebuild_report(fake_run)
    fake_run.summary_path.unlink()
    fake_run.config_path.write_text("model = [")
    assert "config.toml is damaged" in rebuild_report(fake_run).read_text()


# --- the trajectories


def test_every_trajectory_of_a_small_run_is_in_the_report(page: Page) -> None:
    data = page.data()["trajectories"]
    assert [arm["arm"] for arm in data["arms"]] == ["grpo", "three_channels", "hints_shuffled"]
    assert [[len(s["trajectories"]) for s in arm["steps"]] for arm in data["arms"]] == [[14] * 5] * 3
    assert len(data["openings"]) == 4
    assert [[len(s["trajectories"]) for s in arm["evaluations"]] for arm in data["arms"]] == [[4] * 5] * 3
    assert [len(arm["traces"]["trajectories"]) for arm in data["arms"]] == [0, 14, 0]
    assert [arm["pairs_recorded"] for arm in data["arms"]] == [0, 70, 0]


def test_every_pair_has_its_turn_in_the_report(page: Page) -> None:
    """The reader shows a pair where trajectory and turn are those it names."""
    arm = page.data()["trajectories"]["arms"][1]
    turns = {(one["id"], index) for one in arm["traces"]["trajectories"] for index in range(len(one["turns"]))}
    assert len(arm["pairs"]) == 70
    assert {(pair["trajectory_id"], pair["turn"]) for pair in arm["pairs"]} == turns


def test_traces_with_pairs_come_before_those_without(tmp_path: Path, fake: dict[str, Any]) -> None:
    run = RunDir.create(tmp_path / "r")
    one = fake["trajectory"]("grpo", 0, 0, random.Random(0))[0]
    traces = [dataclasses.replace(one, trajectory_id=f"-2/t/{n}", reward=float(n % 2)) for n in range(12)]
    run.write_traces("grpo", traces)
    run.write_pairs("grpo", [fake["pair"]("-2/t/10", 1)])
    size = len(json.dumps(excerpt(run)["arms"][0]["traces"])) / 12
    traces = excerpt(run, max_bytes=int(3 * size / 0.15))["arms"][0]["traces"]
    assert traces["recorded"] == 12
    assert 1 <= len(traces["trajectories"]) < 6
    assert "-2/t/10" in [t["id"] for t in traces["trajectories"]]


def test_a_shown_trajectory_is_faithful(page: Page, fake_run: RunDir) -> None:
    data = page.data()["trajectories"]
    step = data["arms"][1]["steps"][1]
    hints = {h.trajectory_id: h for h in fake_run.read_hints("three_channels", 10)}
    assert hints
    for shown, real in zip(step["trajectories"], fake_run.read_trajectories("three_channels", 10), strict=True):
        assert shown["id"] == real.trajectory_id
        assert data["openings"][shown["opening"]][1]["content"] == real.messages[1]["content"]
        assert [t["text"] for t in shown["turns"]] == [t.text for t in real.turns]
        assert [t["logprob"] for t in shown["turns"]] == [
            pytest.approx(sum(t.logprobs) / len(t.logprobs), abs=1e-4) for t in real.turns
        ]
        assert shown["sampled_tokens"] == real.num_sampled_tokens()
        assert real.grade is not None
        assert dict(shown["grade"]["tests"]) == {k: v.value for k, v in real.grade.outcomes.items()}
        told = [(i, h["text"], h["source"]) for i, t in enumerate(shown["turns"]) for h in t["hints"]]
        hint = hints.get(real.trajectory_id)
        assert told == ([] if hint is None else [(hint.turn, hint.text, hint.source)])


def test_what_was_not_said_is_shown_with_its_reason(fake_run: RunDir, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    run.log_metrics("a", 1, {"reward/mean": 0.0})
    (one, *_) = fake_run.read_trajectories("three_channels", 10)
    run.write_trajectories("a", 1, [one])
    about = {"trajectory_id": one.trajectory_id, "turn": 0, "kind": "k"}
    run.write_hints(
        "a", 1, [Hint(text="", source="", dropped="nothing to say", **about), Hint(text="Read.", source="s", **about)]
    )
    (shown,) = excerpt(run)["arms"][0]["steps"][0]["trajectories"]
    assert [(h["text"], h["dropped"]) for h in shown["turns"][0]["hints"]] == [("", "nothing to say"), ("Read.", None)]


def test_a_long_text_is_cut_and_says_so(page: Page) -> None:
    step = page.data()["trajectories"]["arms"][0]["steps"][-1]
    text = next(t["text"] for one in step["trajectories"] for t in one["turns"] if "onerror" in t["text"])
    assert len(text) < 7_000
    assert re.search(r"\[\.\.\. 94,\d\d\d characters left out of the report \.\.\.\]", text)


@pytest.mark.parametrize("max_bytes", [100_000, 200_000, 600_000])
def test_the_excerpt_keeps_its_bound_and_the_telling_steps(fake_run: RunDir, max_bytes: int) -> None:
    data = excerpt(fake_run, max_bytes=max_bytes)
    assert len(json.dumps(data)) < 1.1 * max_bytes
    for arm in data["arms"]:
        steps = [s["step"] for s in arm["steps"]]
        assert steps == sorted(steps)
        assert {0, 40} <= set(steps)
        assert arm["recorded"] == 5
        assert all(s["recorded"] == 14 for s in arm["steps"])
    if max_bytes < 600_000:
        assert sum(len(s["trajectories"]) for a in data["arms"] for s in a["steps"]) < 210


def test_the_best_step_is_chosen_before_the_middle(tmp_path: Path, fake: dict[str, Any]) -> None:
    run = RunDir.create(tmp_path / "r")
    one = fake["trajectory"]("grpo", 0, 0, random.Random(0))[0]
    for step in range(0, 21):
        run.log_metrics("grpo", step, {"reward/mean": 1.0 if step == 17 else step / 100})
        run.write_trajectories("grpo", step, [one] * 6)
    size = len(json.dumps(excerpt(run)["arms"][0]["steps"][0]["trajectories"]))
    steps = [s["step"] for s in excerpt(run, max_bytes=4 * size)["arms"][0]["steps"]]
    assert {0, 17, 20} <= set(steps)
    assert len(steps) < 8


def test_within_a_step_every_kind_is_shown_before_any_twice(tmp_path: Path, fake: dict[str, Any]) -> None:
    run = RunDir.create(tmp_path / "r")
    one = fake["trajectory"]("grpo", 0, 0, random.Random(0))[0]
    siblings = [dataclasses.replace(one, trajectory_id=f"0/t/{n}", reward=float(n == 11)) for n in range(12)]
    run.write_trajectories("grpo", 0, siblings)
    size = len(json.dumps(excerpt(run)["arms"][0]["steps"][0]["trajectories"])) / 12
    (step,) = excerpt(run, max_bytes=int(4 * 5 * size))["arms"][0]["steps"]
    assert 1 < len(step["trajectories"]) < 12
    assert "0/t/11" in [t["id"] for t in step["trajectories"]]


def test_not_finite_numbers_do_not_break_the_page(tmp_path: Path, fake: dict[str, Any]) -> None:
    run = RunDir.create(tmp_path / "r")
    one = fake["trajectory"]("grpo", 0, 0, random.Random(0))[0]
    turn = dataclasses.replace(one.turns[0], logprobs=(-math.inf,), action_ids=(1,))
    run.write_trajectories("grpo", 0, [dataclasses.replace(one, turns=(turn,), reward=math.nan)])
    run.log_metrics("grpo", 0, {"reward/mean": math.nan, "rlvr/loss": math.inf})
    data = Page(rebuild_report(run)).data()
    (shown,) = data["trajectories"]["arms"][0]["steps"][0]["trajectories"]
    assert (shown["reward"], shown["turns"][0]["logprob"]) == ("nan", "-inf")
