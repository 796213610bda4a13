"""Run files: what is refused says which field and how to mend it; what is accepted survives a round trip."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from composer_replication.config import CurriculumConfig, field_lines, load_config, resolve_arm, to_toml
from composer_replication.types.errors import ConfigError


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
    assert "tasks.train is missing" in refusal(run_file).message


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


OF_OTHER_FORMS = [
    ("taid", "beta = 0.2"),
    ("taid", "scale = 'continuous'"),
    ("taid", "token_clip = 0.05"),
    ("top_k_jsd", "token_clip = 0.05"),
    ("jsd", "top_k = 20"),
    ("jsd", "entropy_h_max = 2.0"),
    ("sampled_token", "entropy_tau = 3"),
    ("entropy_opd", "entropy_k = 3"),
    ("jsd", "entropy_alpha = 0.5"),
]
SERVED = ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis", "--rollout.server_url", "http://127.0.0.1:8000"]
UNREAD = [
    *(("loss.hint", f"form = '{form}'\n{line}", line.partition(" ")[0]) for form, line in OF_OTHER_FORMS),
    ("loss.hint", "self_teacher = 'frozen'\nrate = 0.5", "rate"),
    ("loss.rlvr", "importance_high = 3", "importance_high"),
    ("loss.rlvr", "importance = 'tis'\nimportance_low = 0.1", "importance_low"),
    ("loss.replay", "variant = 'simpo'\ndpo_beta = 9", "dpo_beta"),
    ("loss.replay", "simpo_beta = 9", "simpo_beta"),
    ("loss.replay", "simpo_gamma = 9", "simpo_gamma"),
    ("rollout", "server_url = 'http://127.0.0.1:8000'", "server_url"),
    ("rollout", "server_weights = 'weights'", "server_weights"),
    ("rollout", "server_store = 's3://bucket'", "server_store"),
    ("rollout", "server_python = 'python3'", "server_python"),
    ("rollout", "server_gpus = [1]", "server_gpus"),
    ("rollout", "server_options = ['--enforce-eager']", "server_options"),
    ("curriculum", "levels = 3", "levels"),
    ("curriculum", "enabled = false\npromote_at = 0.5", "promote_at"),
    ("curriculum", "floor = 0.1", "floor"),
    ("curriculum", "decay = 0.5", "decay"),
    ("curriculum", "quarantine_after = 2", "quarantine_after"),
    ("curriculum", "probe_every = 5", "probe_every"),
    ("curriculum", "visible_tests = [1.0, 0.5]", "visible_tests"),
    ("curriculum", "join_up_to = 4", "join_up_to"),
]


@pytest.mark.parametrize(("section", "lines", "field"), UNREAD)
def test_a_field_that_nothing_would_read_is_refused(run_file: Path, section: str, lines: str, field: str) -> None:
    run_file.write_text(run_file.read_text() + f"[{section}]\n{lines}\n")
    error = refusal(run_file)
    assert f"{section}.{field} = " in error.message
    assert "is not read with" in error.message
    assert f"remove {field}" in (error.fix or "")


def test_a_field_that_its_section_reads_is_not_refused(run_file: Path) -> None:
    """Nor one that is not read and has its default, as in every file that `to_toml` writes."""
    given = {
        "hint": "form = 'entropy_gated'\nentropy_tau = 3\nentropy_k = 4\nbeta = 0.5\nself_teacher = 'ema'\nrate = 0.2",
        "rlvr": "importance = 'icepop'\nimportance_low = 0.1\nimportance_high = 3",
        "replay": "variant = 'simpo'\nsimpo_beta = 9\nsimpo_gamma = 9\ndpo_beta = 0.1",
    }
    run_file.write_text(run_file.read_text() + "".join(f"[loss.{name}]\n{lines}\n" for name, lines in given.items()))
    config = load_config(run_file)
    assert (config.loss.hint.rate, config.loss.rlvr.importance_high, config.loss.replay.simpo_gamma) == (0.2, 3.0, 9.0)
    run_file.with_name("again.toml").write_text(to_toml(config))
    assert load_config(run_file.with_name("again.toml")) == config


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (
            ["--loss.rlvr.importance", "icepop", "--loss.rlvr.importance_low", "5", "--loss.rlvr.importance_high", "1"],
            "loss.rlvr.importance_low = 5.0 is not below importance_high = 1.0",
            "lower importance_low",
        ),
        (
            ["--reward.overlong_tokens", "101", "--rollout.trajectory_tokens", "100"],
            "reward.overlong_tokens = 101 is more than rollout.trajectory_tokens = 100",
            "lower reward.overlong_tokens",
        ),
        (
            ["--rollout.engine", "sglang", "--loss.rlvr.importance", "tis"],
            "rollout.server_url is missing with engine = sglang",
            "add server_url",
        ),
        (
            ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis", "--rollout.server_store", "s3://bucket"],
            "rollout.server_store is not read without server_url",
            "remove server_store",
        ),
        (
            [*SERVED, "--rollout.server_gpus", "[1]"],
            "rollout.server_gpus is not read with server_url",
            "remove server_gpus",
        ),
        (
            ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis", "--substrate.type", "ray"],
            "rollout.server_url: addresses given: 0; addresses that substrate.generators = 2 needs: 2",
            "give that many",
        ),
        (
            ["--rollout.engine", "sglang", "--rollout.server_url", "http://127.0.0.1:30000"],
            "rollout.engine = sglang and loss.rlvr.importance = none: the server's log-probs are not the trainer's",
            "set loss.rlvr.importance = tis or icepop",
        ),
        *(
            (
                ["--loss.hint.form", form, "--rollout.temperature", "0.7"],
                f"loss.hint.temperature = 1.0 is not rollout.temperature = 0.7: {form}",
                "set loss.hint.temperature = 0.7",
            )
            for form in ("sampled_token", "entropy_gated")
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused(run_file: Path, words: list[str], message: str, fix: str) -> None:
    error = refusal(run_file, *words)
    assert message in error.message
    assert fix in (error.fix or "")


@pytest.mark.parametrize(
    "words",
    [
        ["--reward.overlong_tokens", "100", "--rollout.trajectory_tokens", "100"],
        ["--loss.hint.form", "sampled_token", "--rollout.temperature", "0.7", "--loss.hint.temperature", "0.7"],
        ["--loss.hint.form", "sampled_token", "--rollout.temperature", "0.7", "--loss.hint.weight", "0"],
        ["--loss.hint.form", "jsd", "--rollout.temperature", "0.7"],
        ["--loss.rlvr.importance", "tis", "--loss.rlvr.importance_high", "0.4"],
        ["--rollout.engine", "vllm", "--rollout.server_url", "http://127.0.0.1:8000", "--loss.rlvr.importance", "icepop"],
    ],
)
def test_fields_that_agree_are_not_refused(run_file: Path, words: list[str]) -> None:
    load_config(run_file, words)


def test_an_arm_that_chooses_another_form_leaves_the_runs_form_behind(run_file: Path) -> None:
    """With what the run set for it; what the arm sets itself has to fit."""
    run_file.write_text(
        run_file.read_text()
        + "[loss.hint]\nbeta = 0.7\ntoken_clip = 0.05\ntemperature = 2.0\nself_teacher = 'ema'\nrate = 0.5\n"
        + "[loss.replay]\nvariant = 'dpo'\ndpo_beta = 9\n[loss.rlvr]\nimportance = 'icepop'\nimportance_low = 0.1\n"
        + "[arms.same]\n[arms.top]\n'loss.hint.form' = 'top_k_jsd'\n'loss.hint.top_k' = 7\n"
        + "[arms.other]\n'loss.hint.form' = 'taid'\n'loss.hint.self_teacher' = 'frozen'\n'loss.replay.variant' = 'simpo'\n"
        + "'loss.rlvr.importance' = 'tis'\n[arms.wrong]\n'loss.hint.beta' = 0.2\n'loss.hint.form' = 'taid'\n"
        + "[arms.unknown]\n'loss.hnt.form' = 'taid'\n"
    )
    config = load_config(run_file)
    same, top, other = (resolve_arm(config, arm).loss for arm in ("same", "top", "other"))
    assert same == config.loss
    assert (top.hint.form, top.hint.beta, top.hint.token_clip, top.hint.top_k, top.hint.rate) == ("top_k_jsd", 0.7, None, 7, 0.5)
    assert (other.hint.beta, other.hint.token_clip, other.hint.rate, other.hint.temperature) == (0.5, None, 0.05, 2.0)
    assert (other.replay.dpo_beta, other.rlvr.importance_low) == (0.1, 0.5)
    with pytest.raises(ConfigError, match=r"arms\.wrong: loss\.hint\.beta = 0\.2 is not read with form = taid"):
        resolve_arm(config, "wrong")
    with pytest.raises(ConfigError, match=r"arms\.unknown: unknown key 'loss\.hnt'"):
        resolve_arm(config, "unknown")


@pytest.mark.parametrize("off", ["false", "'False'"])
def test_an_arm_may_do_without_the_runs_curriculum(run_file: Path, off: str) -> None:
    lines = "[curriculum]\nenabled = true\nlevels = 3\n[arms.with]\n'curriculum.enabled' = 'True'\n"
    lines += f"[arms.without]\n'curriculum.enabled' = {off}\n"
    run_file.write_text(run_file.read_text() + lines)
    config = load_config(run_file)
    assert resolve_arm(config, "with").curriculum.levels == 3
    assert resolve_arm(config, "without").curriculum == CurriculumConfig()


def test_a_switch_and_a_list_that_are_not_read_are_written_as_in_a_run_file(run_file: Path) -> None:
    run_file.write_text(run_file.read_text() + "[curriculum]\nvisible_tests = [1.0, 0.5]\n")
    error = refusal(run_file)
    assert "curriculum.visible_tests = [1.0, 0.5] is not read with enabled = false" in error.message
    assert error.fix == "remove visible_tests, or choose enabled = true"


@pytest.mark.parametrize("gain", ["levels = 2", "visible_tests = [1.0, 0.5]", "join_up_to = 2"])
@pytest.mark.parametrize(("promote_at", "decay", "below"), [(0.917, 0.8, 0.916), (1.0, 0.8, 0.916), (0.76, 0.0, 0.75)])
def test_a_pass_rate_that_no_task_can_reach_is_refused(
    run_file: Path, gain: str, promote_at: float, decay: float, below: float
) -> None:
    run_file.write_text(run_file.read_text() + f"[curriculum]\nenabled = true\n{gain}\ndecay = {decay}\n")
    words = ["--rollout.group_size", "2", "--curriculum.promote_at"]
    error = refusal(run_file, *words, str(promote_at))
    assert f"curriculum.promote_at = {promote_at} is never reached" in error.message
    assert f"curriculum.decay = {decay} and rollout.group_size = 2" in error.message
    assert f"set curriculum.promote_at below {below}," in (error.fix or "")
    load_config(run_file, [*words, str(below - 0.001)])


@pytest.mark.parametrize(
    "lines", ["promote_at = 1.0", "levels = 2\npromote_at = 0.9\ndecay = 0.0"], ids=["nothing follows from it", "of one visit"]
)
def test_a_pass_rate_that_is_reached_or_not_waited_for_is_not_refused(run_file: Path, lines: str) -> None:
    """A visit of eight that pass is a pass rate of 9 / 10."""
    run_file.write_text(run_file.read_text() + f"[curriculum]\nenabled = true\n{lines}\n")
    load_config(run_file)


def test_every_field_says_what_it_is_for() -> None:
    lines = {line.key: line for line in field_lines()}
    assert [key for key, line in lines.items() if not line.about] == []
    assert {key for key, line in lines.items() if line.required} == {
        "model.path", "teachers[].name", "teachers[].model",
    }  # fmt: skip
    assert (lines["loss.hint.beta"].kind, lines["loss.hint.beta"].default) == ("number", "0.5")
    assert (lines["tasks.held_out"].kind, lines["tasks.held_out"].default) == ("path", "")
    assert lines["loss.replay.variant"].kind == "sft|dpo|dpo_positive|ipo|apo_zero|kto|simpo"


def test_the_run_files_of_the_readme_are_valid(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    alone, sft, teachers = re.findall(r"^```toml\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "run.toml").write_text(alone)
    config = load_config(tmp_path / "run.toml")
    assert (config.teachers, list(config.arms)) == ((), ["main"])
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "trajectories.jsonl").touch()
    (tmp_path / "run.toml").write_text(alone + sft)
    config = load_config(tmp_path / "run.toml")
    assert (config.sft.enabled, config.sft.traces) == (True, (tmp_path / "teacher" / "trajectories.jsonl",))
    start, end = alone.split("[loss.replay]\nweight = 0.0\n")
    assert end == ""
    (tmp_path / "run.toml").write_text(start + teachers)
    config = load_config(tmp_path / "run.toml")
    assert len(config.teachers) == 2
    assert list(config.arms) == ["grpo_only", "three_channels"]


def test_held_out_tasks_are_named_once(run_file: Path) -> None:
    error = refusal(run_file, "--tasks.held_out", "tasks", "--tasks.held_out_share", "0.2")
    assert "both given" in error.message


def test_arms_may_be_written_as_sections(run_file: Path) -> None:
    run_file.write_text(run_file.read_text() + "[arms.alone]\nloss.hint.weight = 0\n[arms.my-arm.loss.replay]\nweight = 0.5\n")
    config = load_config(run_file, ["--arms.my-arm.steps", "3"])
    assert config.arms == {"alone": {"loss.hint.weight": 0}, "my-arm": {"loss.replay.weight": 0.5, "steps": 3}}
    assert resolve_arm(config, "alone").loss.hint.weight == 0


def test_everything_that_samples_has_a_server_of_its_own(run_file: Path) -> None:
    words = ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis", "--rollout.server_url"]
    one, two = "http://a:8000", "http://b:8000"
    assert load_config(run_file, [*words, one]).rollout.server_urls == (one,)
    mesh = ["--substrate.type", "ray", "--substrate.generators", "2"]
    assert load_config(run_file, [*words, json.dumps([one, two]), *mesh]).rollout.server_urls == (one, two)
    for wrong in ([one, *mesh], [json.dumps([one, two])], ["[]"]):
        with pytest.raises(ConfigError, match="server"):
            load_config(run_file, [*words, *wrong])


def test_vllm_without_an_address_is_started_by_the_run(run_file: Path) -> None:
    words = ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis"]
    python = run_file.parent / "env" / "bin" / "python"
    with pytest.raises(ConfigError, match=r"rollout\.server_python: no such file"):
        load_config(run_file, [*words, "--rollout.server_python", "env/bin/python"])
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    rollout = load_config(run_file, [*words, "--rollout.server_python", "env/bin/python", "--rollout.server_gpus", "[1]"]).rollout
    assert rollout.starts_server
    assert rollout.server_python == python, "which finds the packages of its environment by its name"
    assert rollout.server_gpus == (1,)
    assert not load_config(run_file, SERVED).rollout.starts_server
    assert not load_config(run_file).rollout.starts_server


@pytest.mark.parametrize(
    "option",
    [
        *("--port", "--port=8001", "--host", "--logprobs-mode=raw", "--logprobs_mode", "--logprobs", "--api-key", "--uds"),
        *("--served-model-name", "--served", "--serv=x", "--model", "--model.a=1"),
    ],
)
def test_options_that_a_run_gives_its_server_itself_are_refused(run_file: Path, option: str) -> None:
    words = ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis", "--rollout.server_options"]
    with pytest.raises(ConfigError, match="server_options") as raised:
        load_config(run_file, [*words, json.dumps(["--seed", "1", option])])
    assert option in raised.value.message
    assert raised.value.fix
    others = ["--model-impl", "auto", "--max-logprobs=5", "--gpu_memory_utilization", "0.7", "-O3", "--hf-overrides.a=1"]
    assert load_config(run_file, [*words, json.dumps(others)]).rollout.server_options == tuple(others)


@pytest.mark.parametrize("share", ["much", "0", "1.5", "nan", ""])
def test_a_servers_share_of_the_memory_is_a_share(run_file: Path, share: str) -> None:
    words = ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis", "--rollout.server_options"]
    with pytest.raises(ConfigError, match=r"server_options: --gpu-memory-utilization"):
        load_config(run_file, [*words, json.dumps([f"--gpu-memory-utilization={share}"])])


def test_a_gpu_of_a_server_is_named_once(run_file: Path) -> None:
    words = ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis", "--rollout.server_gpus", "[1, 0, 1]"]
    with pytest.raises(ConfigError, match=r"server_gpus .* GPU 1 twice"):
        load_config(run_file, words)


def test_the_folder_for_a_servers_weights_is_relative_to_the_run_file(run_file: Path) -> None:
    config = load_config(run_file, [*SERVED, "--rollout.server_weights", "shared"])
    assert config.rollout.server_weights == run_file.parent.resolve() / "shared"
    assert load_config(run_file, SERVED).rollout.server_weights is None
    assert load_config(run_file, [*SERVED, "--rollout.server_store", "store"]).rollout.server_store == str(
        run_file.parent / "store"
    )
    assert load_config(run_file, [*SERVED, "--rollout.server_store", "s3://b/c"]).rollout.server_store == "s3://b/c"
    with pytest.raises(ConfigError, match="both given"):
        load_config(run_file, [*SERVED, "--rollout.server_store", "store", "--rollout.server_weights", "shared"])
