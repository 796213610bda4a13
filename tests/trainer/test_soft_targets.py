"""`loss.replay.soft_targets`: what served teachers find likely in the places of chosen answers, in pairs, batches and runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
import torch
from world import finish

from composer_replication.config import ModelConfig, RunConfig, TeacherConfig, load_config
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.observe import RunDir
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.quickstart.teachers import served
from composer_replication.recipes.substrates import check_substrate
from composer_replication.rollouts.serving import PromptScorer
from composer_replication.tokens import byte_level_tokenizer
from composer_replication.trainer.pairs.soft_targets import open_soft_scorers, with_soft_targets
from composer_replication.types import Pair, from_json, to_json
from composer_replication.types.errors import ConfigError

NAMES = ("one", "two")
PAIRS = [
    Pair(pair_id="a", prompt_ids=(5, 6, 7), chosen_ids=(20, 21), rejected_ids=(22,)),
    Pair(pair_id="held", prompt_ids=(5, 6), chosen_ids=(30, 31), rejected_ids=()),
    Pair(pair_id="c", prompt_ids=(9, 6, 7, 8), chosen_ids=(40, 41, 42), rejected_ids=(44, 45)),
]


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Path], tuple[TeacherConfig, ...]]]:
    """Two untrained models, and where they are served."""
    folder = tmp_path_factory.mktemp("teachers")
    tokenizer = tiny_tokenizer()
    for seed, name in enumerate(NAMES, start=5):
        save_policy(tiny_model(tokenizer, seed), tokenizer, folder / name)
    folders = {name: folder / name for name in NAMES}
    with served(folders) as found:
        yield folders, tuple(teacher.model_copy(update={"scores_tokens": True}) for teacher in found)


def with_teachers(run_file: Path, teachers: tuple[TeacherConfig, ...], *words: str) -> RunConfig:
    free = {"api_key_env": "", "usd_per_million_input": 0.0, "usd_per_million_output": 0.0, "scores_tokens": True}
    rows = [{"name": t.name, "model": t.model, "base_url": t.base_url, **free} for t in teachers]
    run_file.write_text(run_file.read_text() + "\n" + tomli_w.dumps({"teachers": rows}))
    return load_config(run_file, ["--loss.replay.soft_targets", "0.5", *words])


def test_each_teacher_speaks_of_every_token_of_the_chosen_answers(run_file: Path, teachers) -> None:
    folders, configured = teachers
    config = with_teachers(run_file, configured, "--loss.replay.soft_top_k", "4")
    found = with_soft_targets(PAIRS, open_soft_scorers(config, tiny_tokenizer()), 4)
    assert found[1] == PAIRS[1], "what is held is the policy's own"
    for before, pair in zip(PAIRS[::2], found[::2], strict=True):
        assert len(pair.chosen_targets) == len(NAMES)
        for name, told in zip(NAMES, pair.chosen_targets, strict=True):
            model, _ = load_policy(ModelConfig(path=str(folders[name]), device="cpu"))
            ids = torch.tensor([[*before.prompt_ids, *before.chosen_ids]])
            with torch.no_grad():
                scores = model.double()(input_ids=ids).logits[0].log_softmax(-1)[len(before.prompt_ids) - 1 : -1]
            best = scores.topk(4)
            assert [list(place) for place in told.ids] == best.indices.tolist()
            torch.testing.assert_close(torch.tensor(told.logprobs).double(), best.values, rtol=0, atol=1e-4)
        assert from_json(Pair, json.loads(json.dumps(to_json(pair)))) == pair


def test_nobody_is_asked_without_the_option_or_pairs(run_file: Path) -> None:
    assert open_soft_scorers(load_config(run_file), tiny_tokenizer()) == []
    assert with_soft_targets(PAIRS, [], 4) == PAIRS
    nobody = PromptScorer("http://127.0.0.1:9", "t", at_once=1, timeout_s=1.0)
    assert with_soft_targets(PAIRS[1:2], [nobody], 4) == PAIRS[1:2]


def test_only_the_places_of_answers_are_kept(teachers) -> None:
    """What a server tells of a prompt of 16,000 tokens is megabytes."""
    _, configured = teachers
    scorer = PromptScorer(configured[0].base_url, configured[0].model, at_once=2, timeout_s=60.0)
    sequences = [(5, 6, 7, 20, 21), (9, 6, 7, 40)]
    whole, last = scorer.likeliest(sequences, 3), scorer.likeliest(sequences, 3, [2, 1])
    assert [len(one) for one in whole] == [4, 3]
    assert last == [whole[0][-2:], whole[1][-1:]]
    assert scorer.likeliest(sequences, 3, [0, 0]) == [[], []]


def test_another_tokenizer_is_refused(run_file: Path, teachers) -> None:
    _, configured = teachers
    with pytest.raises(ConfigError, match="another tokenizer than the policy"):
        open_soft_scorers(with_teachers(run_file, configured), byte_level_tokenizer())


def test_run_files_that_make_no_sense_are_refused(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"soft_targets = 0.5 and no teacher scores tokens"):
        load_config(run_file, ["--loss.replay.soft_targets", "0.5"])
    with pytest.raises(ConfigError, match=r"soft_targets = 0.5 is not read with variant = dpo"):
        load_config(run_file, ["--loss.replay.soft_targets", "0.5", "--loss.replay.variant", "dpo"])
    with pytest.raises(ConfigError, match="soft_top_k = 5 is not read with soft_targets = 0"):
        load_config(run_file, ["--loss.replay.soft_top_k", "5"])
    somebody = TeacherConfig(name="t", model="t", base_url="http://127.0.0.1:9", api_key_env="", scores_tokens=True)
    config = with_teachers(run_file, (somebody,), "--substrate.type", "trl")
    with pytest.raises(ConfigError, match="soft_targets"):
        check_substrate(config)


@pytest.mark.slow
def test_a_run_learns_from_them(run_file: Path, teachers) -> None:
    """Pairs of a file, whose answers the teachers read before the first step."""
    _, configured = teachers
    lines = [
        {
            "state_id": f"theirs#{n}",
            "state_messages": [{"role": "user", "content": f"What is {n}?"}],
            "chosen": f"It is {n}, of course.",
            "rejected": "I do not know.",
            "n_teachers_agreeing": 2,
        }
        for n in range(4)
    ]
    pairs = run_file.parent / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with_teachers(run_file, configured)
    words = ["train", str(run_file), "--loss.replay.soft_targets", "1", "--loss.replay.pairs", str(pairs)]
    words += ["--loss.replay.pairs_per_step", "4", "--loss.hint.weight", "0", "--loss.replay.traces_per_task", "1"]
    words += ["--optimizer.learning_rate", "0.003", "--optimizer.warmup_steps", "0", "--loss.replay.verify", "false"]
    finish(*words, "--steps", "4", cwd=run_file.parent)
    run = RunDir(run_file.parent / "runs" / "run")
    kls = [line.values["replay/teacher_kl/mean"] for line in run.read_metrics() if line.step > 0]
    assert len(kls) == 4
    assert kls[-1] < kls[0]
    stored = [from_json(Pair, json.loads(line)) for line in (run.ckpt_path / "main" / "pairs.jsonl").read_text().splitlines()]
    assert all(len(pair.chosen_targets) == len(NAMES) for pair in stored if pair.rejected_ids)
