"""Run files: what is refused says which field and how to mend it; what is accepted survives a round trip."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from composer_replication.config import field_lines, load_config, resolve_arm, to_toml
from composer_replication.errors import ConfigError


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "policy").mkdir()
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "policy"\n[tasks]\ntrain = "tasks"\n')
    return path


def refusal(path: Path, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return caught.value


def test_smallest_run_file(run_file: Path) -> None:
    config = load_config(run_file)
    assert config.model.path == str(run_file.parent / "policy")
    assert config.tasks.train == run_file.parent / "tasks"
    assert config.arms == {"main": {}}


def test_overrides_are_typed(run_file: Path) -> None:
    config = load_config(
        run_file, ["--loss.hint.weight", "0.5", "--seed=7", "--loss.rlvr.objective", "dr_grpo", "--sandbox.kind=landlock"]
    )
    assert (config.loss.hint.weight, config.seed, config.loss.rlvr.objective, config.sandbox.kind) == (
        0.5,
        7,
        "dr_grpo",
        "landlock",
    )


def test_resolved_file_reads_back_equal(run_file: Path) -> None:
    config = load_config(run_file, ["--rollout.groups", "3"])
    again = run_file.with_name("again.toml")
    again.write_text(to_toml(config))
    assert load_config(again) == config


@pytest.mark.parametrize(
    ("line", "field", "fix"),
    [
        ("[loss.hint]\nweigth = 1", "loss.hint.weigth", "weight"),
        ("[rollout]\ngroup_size = 'many'", "rollout.group_size", "correct rollout.group_size"),
        ("[rollout]\ngroup_size = 1", "rollout.group_size", "correct rollout.group_size"),
        ("[optimizer]\nlearning_rate = 0", "optimizer.learning_rate", "correct"),
        ("[loss.rlvr]\nobjective = 'ppo'", "loss.rlvr.objective", "correct"),
        ("[[teachers]]\nname = 'a'\nmodell = 'b'", "teachers.0.model", ""),
        ("[optimiser]\nlr = 1", "optimiser", "optimizer"),
    ],
)
def test_wrong_fields(run_file: Path, line: str, field: str, fix: str) -> None:
    run_file.write_text(run_file.read_text() + line + "\n")
    error = refusal(run_file)
    assert str(run_file) in error.message
    assert field in error.message
    assert fix in (error.fix or "")


def test_missing_section(run_file: Path) -> None:
    run_file.write_text('[model]\npath = "policy"\n')
    assert "tasks is missing" in refusal(run_file).message


def test_missing_paths(run_file: Path) -> None:
    assert "tasks.train" in refusal(run_file, "--tasks.train", "nowhere").message
    assert "model.path" in refusal(run_file, "--model.path", "./nowhere").message
    assert "no such file" in refusal(run_file.with_name("none.toml")).message


def test_not_toml(run_file: Path) -> None:
    run_file.write_text("steps = = 3")
    error = refusal(run_file)
    assert "not valid TOML" in error.message
    assert "line 1" in error.message


@pytest.mark.parametrize("words", [["--seed"], ["seed", "3"], ["--seed.of.what", "3"]])
def test_malformed_overrides(run_file: Path, words: list[str]) -> None:
    run_file.write_text("seed = 1\n" + run_file.read_text())
    assert refusal(run_file, *words).fix


def test_arms(run_file: Path) -> None:
    run_file.write_text(run_file.read_text() + '[arms.base]\n[arms.plain]\n"loss.hint.weight" = 0\n')
    config = load_config(run_file)
    assert resolve_arm(config, "plain").loss.hint.weight == 0
    assert resolve_arm(config, "base").loss.hint.weight == config.loss.hint.weight
    with pytest.raises(ConfigError, match="no arm"):
        resolve_arm(config, "other")
    broken = config.model_copy(update={"arms": {"x": {"loss.hint.weigth": 1}}})
    with pytest.raises(ConfigError, match=r"arms\.x"):
        resolve_arm(broken, "x")


def test_every_field_says_what_it_is_for() -> None:
    lines = {line.key: line for line in field_lines()}
    assert [key for key, line in lines.items() if not line.about] == []
    assert {key for key, line in lines.items() if line.required} == {
        "model.path", "tasks.train", "teachers[].name", "teachers[].model",
    }  # fmt: skip
    assert (lines["loss.hint.beta"].kind, lines["loss.hint.beta"].default) == ("number", "0.0")
    assert (lines["tasks.held_out"].kind, lines["tasks.held_out"].default) == ("path", "")
    assert lines["loss.replay.variant"].kind == "dpo|simpo"


def test_the_run_file_of_the_readme_is_one(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "run.toml").write_text(block)
    assert len(load_config(tmp_path / "run.toml").teachers) == 2


def test_held_out_tasks_are_named_once(run_file: Path) -> None:
    error = refusal(run_file, "--tasks.held_out", "tasks", "--tasks.held_out_share", "0.2")
    assert "both given" in error.message


def test_arms_may_be_written_as_sections(run_file: Path) -> None:
    run_file.write_text(run_file.read_text() + "[arms.alone]\nloss.hint.weight = 0\n[arms.my-arm.loss.replay]\nweight = 0.5\n")
    config = load_config(run_file, ["--arms.my-arm.steps", "3"])
    assert config.arms == {"alone": {"loss.hint.weight": 0}, "my-arm": {"loss.replay.weight": 0.5, "steps": 3}}
    assert resolve_arm(config, "alone").loss.hint.weight == 0
