"""`reward.teacher_kl_weight`: served teachers' log-probs of the policy's own tokens, in the advantages of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_step_rewards import trajectory
from world import finish

from composer_replication.config import RunConfig, TeacherConfig, load_config
from composer_replication.loss.forward.models import load_policy, save_policy
from composer_replication.observe import RunDir
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.quickstart.teachers import served
from composer_replication.rollouts.serving import PromptScorer
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.trainer.rewards import weigh
from composer_replication.trainer.signals import HintSources, SignalMaker
from composer_replication.trainer.teacher_kl import TeacherScorer, mean_of_probabilities
from composer_replication.types import Group, Trajectory, Unscored
from composer_replication.types.errors import ConfigError, ModelError


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Path], tuple[TeacherConfig, ...]]]:
    """Two untrained models, and where they are served."""
    folder = tmp_path_factory.mktemp("teachers")
    tokenizer = tiny_tokenizer()
    for seed, name in enumerate(("one", "two"), start=5):
        save_policy(tiny_model(tokenizer, seed), tokenizer, folder / name)
    folders = {name: folder / name for name in ("one", "two")}
    with served(folders) as served_teachers:
        yield folders, tuple(teacher.model_copy(update={"scores_tokens": True}) for teacher in served_teachers)


def asked(run_file: Path, teachers: tuple[TeacherConfig, ...], *words: str) -> RunConfig:
    config = load_config(run_file, ["--loss.hint.weight", "0", "--loss.replay.weight", "0", *words])
    rewards = config.reward.model_copy(update={"teacher_kl_weight": 0.25})
    return config.model_copy(update={"teachers": teachers, "reward": rewards})


def siblings(renderer: ChatRenderer) -> Group:
    rollouts = (("a", ("x", "yy"), 1.0), ("b", ("z",), 0.0), ("c", ("x",), Unscored("broken")))
    return Group(group_id="g", task_id="t", trajectories=tuple(trajectory(renderer, *each) for each in rollouts))


def mixture(folders: dict[str, Path], one: Trajectory) -> list[torch.Tensor]:
    """Log of the mean of the models' probabilities of each sampled token, by turn, from whole logits in float64."""
    ids = torch.tensor([one.context_ids(len(one.turns))])
    probabilities = []
    for folder in folders.values():
        from composer_replication.config import ModelConfig

        model, _ = load_policy(ModelConfig(path=str(folder), device="cpu"))
        with torch.no_grad():
            logits = model.double()(input_ids=ids).logits[0, :-1]
        probabilities.append(F.softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0])
    mixed = torch.stack(probabilities).mean(0).log()
    starts = [one.action_start(number) - 1 for number in range(len(one.turns))]
    return [mixed[start : start + len(turn.action_ids)] for start, turn in zip(starts, one.turns, strict=True)]


def test_the_mean_of_probabilities_is_taken_in_logs() -> None:
    assert mean_of_probabilities([math.log(0.2), math.log(0.6)]) == pytest.approx(math.log(0.4))
    assert mean_of_probabilities([-2000.0, -2000.0]) == pytest.approx(-2000.0)
    assert mean_of_probabilities([-9999.0, 0.0]) == pytest.approx(math.log(0.5))


def test_teachers_score_the_tokens_that_were_sampled(run_file: Path, teachers) -> None:
    folders, configured = teachers
    renderer = ChatRenderer(tiny_tokenizer())
    scorer = TeacherScorer.of(asked(run_file, configured), renderer.tokenizer)
    group = siblings(renderer)
    for one, found in zip(group.trajectories, scorer(group.trajectories), strict=True):
        assert [len(turn) for turn in found] == [len(turn.action_ids) for turn in one.turns]
        for ours, theirs in zip(found, mixture(folders, one), strict=True):
            assert ours == pytest.approx(theirs.tolist(), abs=1e-5)


def test_the_batch_has_what_teachers_add(run_file: Path, teachers) -> None:
    """Only where a token was sampled and its trajectory takes part; beside the advantage of the group."""
    folders, configured = teachers
    config = asked(run_file, configured, "--loss.rlvr.advantage", "dr_grpo")
    renderer = ChatRenderer(tiny_tokenizer())
    maker = SignalMaker(
        config=config,
        sources=HintSources(contexts={}, gold={}, detectors=(), generators=()),
        renderer=renderer,
        context_window=2048,
        teachers=TeacherScorer.of(config, renderer.tokenizer),
    )
    group = siblings(renderer)
    signals = maker.make(1, [group])
    batch = maker.batch([group], signals, ())
    gaps = []
    for row, (one, plain) in enumerate(zip(group.trajectories[:2], (0.5, -0.5), strict=True)):
        expected = torch.zeros(batch["input_ids"].shape[1])
        for number, theirs in enumerate(mixture(folders, one)):
            gap = theirs.float() - torch.tensor(one.turns[number].logprobs)
            gaps += gap.tolist()
            start = one.action_start(number)
            expected[start : start + len(gap)] = plain + 0.25 * gap
        torch.testing.assert_close(batch["advantages"][row], expected, rtol=1e-4, atol=1e-4)
    assert signals.metrics["reward/teacher_kl/mean"] == pytest.approx(-sum(gaps) / len(gaps), rel=1e-4), "not of the unscored"
    assert signals.metrics["reward/teacher_kl/unknown"] == 0.0
    assert "rlvr" not in maker.why_off((), signals)


def test_it_descends_the_divergence_from_the_teachers() -> None:
    """The expected gradient of the surrogate on these advantages is that of KL(policy || teacher): exactly, over all tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(-1)
    policy = logits.log_softmax(-1)
    advantages = (teacher - policy).detach()
    surrogate = -(policy.detach().exp() * advantages * policy).sum()
    (ours,) = torch.autograd.grad(surrogate, logits, retain_graph=True)
    (exact,) = torch.autograd.grad((policy.exp() * (policy - teacher)).sum(), logits)
    torch.testing.assert_close(ours, exact)


def test_it_is_added_to_process_rewards(run_file: Path) -> None:
    group = siblings(ChatRenderer(tiny_tokenizer()))
    config = asked(run_file, ())
    both = config.model_copy(
        update={"reward": config.reward.model_copy(update={"prm": config.reward.prm.model_copy(update={"weight": 0.5})})}
    )

    def steps(trajectories):
        return [[0.1 * n for n, _ in enumerate(one.turns)] for one in trajectories]

    def theirs(trajectories):
        return [[[-2.0] * len(turn.action_ids) for turn in one.turns] for one in trajectories]

    of_teachers = weigh([group], config, teachers=theirs).of_tokens
    alone = both.model_copy(update={"reward": both.reward.model_copy(update={"teacher_kl_weight": 0.0})})
    of_process = weigh([group], alone, steps=steps).of_tokens
    assert of_teachers["a"][0][0] == pytest.approx(0.25 * (-2.0 + 1.0))
    found = weigh([group], both, steps=steps, teachers=theirs).of_tokens
    assert found["c"] == of_process["c"], "an unscored one is asked about by nobody"
    for name in "ab":
        for number, turn in enumerate(found[name]):
            pairs = zip(of_teachers[name][number], of_process[name][number], strict=True)
            assert turn == pytest.approx([a + b for a, b in pairs])
    with pytest.raises(ValueError, match="nothing gives the teachers' log-probs"):
        weigh([group], config)


def test_a_token_that_a_teacher_has_no_number_for_teaches_nothing(run_file: Path) -> None:
    group = siblings(ChatRenderer(tiny_tokenizer()))

    def theirs(trajectories):
        return [[[math.nan, *[-2.0] * (len(turn.action_ids) - 1)] for turn in one.turns] for one in trajectories]

    found = weigh([group], asked(run_file, ()), teachers=theirs)
    assert [turn[:2] for turn in found.of_tokens["a"]] == [[0.0, pytest.approx(0.25 * -1.0)]] * 2
    assert found.metrics["reward/teacher_kl/unknown"] == 3.0
    assert found.metrics["reward/teacher_kl/mean"] == pytest.approx(1.0)
    scorer = PromptScorer("http://127.0.0.1:9", "x", at_once=1, timeout_s=1.0)
    told = [None, {"5": {"logprob": -9999.0}}, {"6": {"logprob": math.nan}}, {"7": {"logprob": -0.5}}]
    assert scorer._read({"choices": [{"prompt_logprobs": told}]}, [4, 5, 6, 7]) == [{}, {}, {7: -0.5}]
    with pytest.raises(ModelError, match="read other tokens"):
        scorer._read({"choices": [{"prompt_logprobs": told}]}, [4, 5, 6, 8])
    with pytest.raises(ModelError, match="gives no log-probs of a prompt's tokens"):
        scorer._read({"choices": [{}]}, [4, 5])
    assert math.isnan(mean_of_probabilities([-1.0, math.nan]))


@pytest.mark.parametrize("words", [["--rollout.refills", "1"], ["--rollout.temperature", "0.8"]])
def test_what_it_does_not_go_with_is_refused(run_file: Path, words: list[str]) -> None:
    teacher = '[[teachers]]\nname = "t"\nmodel = "t"\napi_key_env = ""\nscores_tokens = true\n'
    run_file.write_text(run_file.read_text() + teacher)
    load_config(run_file, ["--reward.teacher_kl_weight", "0.1"])
    with pytest.raises(ConfigError, match="set"):
        load_config(run_file, ["--reward.teacher_kl_weight", "0.1", *words])


def test_another_tokenizer_is_refused(run_file: Path, teachers) -> None:
    _, configured = teachers
    with pytest.raises(ConfigError, match="another tokenizer than the policy"):
        TeacherScorer.of(asked(run_file, configured[:1]), byte_level_tokenizer())


def test_what_is_no_vllm_server_is_refused(teachers) -> None:
    _, configured = teachers
    unknown = PromptScorer(configured[0].base_url, "nobody", at_once=1, timeout_s=30.0)
    with pytest.raises(ModelError, match="no model 'nobody'"):
        unknown.check(tiny_tokenizer())
    closed = PromptScorer("http://127.0.0.1:9", "x", at_once=1, timeout_s=1.0)
    closed.http._attempts = 1
    with pytest.raises(ModelError, match="no server can be reached"):
        closed.check(tiny_tokenizer())


def test_a_run_file_without_such_a_teacher_is_refused(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="no teacher scores tokens"):
        load_config(run_file, ["--reward.teacher_kl_weight", "0.1"])


@pytest.mark.slow
def test_a_run_learns_from_teachers_alone(run_file: Path, teachers) -> None:
    """No rollout is rewarded, and the policy moves towards its teachers."""
    _, configured = teachers
    lines = [
        f'[[teachers]]\nname = "{t.name}"\nmodel = "{t.model}"\nbase_url = "{t.base_url}"\n'
        'api_key_env = ""\nscores_tokens = true\n'
        for t in configured
    ]
    run_file.write_text(run_file.read_text() + "\n" + "\n".join(lines))
    words = ["--reward.teacher_kl_weight", "1", "--loss.hint.weight", "0", "--loss.replay.weight", "0", "--steps", "6"]
    finish(
        "train", str(run_file), *words, "--optimizer.learning_rate", "0.01", "--optimizer.warmup_steps", "0", cwd=run_file.parent
    )
    metrics = {line.step: line.values for line in RunDir(run_file.parent / "runs" / "run").read_metrics()}
    kl = [metrics[step]["reward/teacher_kl/mean"] for step in range(1, 7)]
    assert all(metrics[step]["optimizer/grad_norm"] > 0 for step in range(1, 7))
    assert kl[-1] < kl[0]
