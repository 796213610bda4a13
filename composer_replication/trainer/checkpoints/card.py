"""The model card of a run's checkpoints (https://huggingface.co/docs/hub/model-cards): data, settings, results and alarms."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from composer_replication.config import RunConfig, to_toml
from composer_replication.loss.forward.model_checkpoint import CARD
from composer_replication.observe.alarms import run_alarms
from composer_replication.observe.run_dir import MetricsLine, RunDir
from composer_replication.observe.verdict import run_verdicts
from composer_replication.trainer.journal import DATA, WARNING
from composer_replication.types.errors import StorageError

FORGEABLE = (
    "tasks.forgeable = true: this run also uses tasks on which a program that does not implement the feature can be rewarded. A "
    "higher reward need not mean a better policy: read the trajectories."
)
"""Said by the terminal, the report and the checkpoints of a run that takes such tasks."""
_RESULTS = {
    "eval/pass_at_1": "pass@1",
    "eval/pass_at_1_se": "standard error",
    "eval/unscored": "unscored rollouts",
    "eval/alarms": "rollouts with an alarm",
    "pretrain/nll": "nats per token",
    "pretrain/nll_change": "change",
    "pretrain/nll_change_se": "standard error of the change",
}
"""Metrics of what is held out, in the order of a card's columns."""
_MOST_ROWS = 20


def write_card(run_dir: RunDir, config: RunConfig, arm: str | None = None) -> None:
    """Write the card that each checkpoint gets a copy of: of the run as it begins, or of one arm as it stands.

    Raises StorageError.
    """
    path = run_dir.ckpt_path / (arm or "") / CARD
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    text = "\n".join(_lines(run_dir, config, arm)) + "\n"
    try:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}", fix="free disk space and continue with --resume") from error


def _lines(run_dir: RunDir, config: RunConfig, arm: str | None) -> Iterator[str]:
    model = config.model.path
    yield from ("---", "library_name: transformers", "pipeline_tag: text-generation")
    if not Path(model).exists():
        yield f"base_model: {model}"
    yield from ("tags: [composer-replication, reinforcement-learning]", "---", "")
    yield f"# {config.name}" + (f", arm {arm}" if arm is not None else "")
    yield ""
    yield f"Trained from `{model}` on {_subject(config)} with seed {config.seed}. `loop.json` says after which step."
    yield from _warnings(config)
    yield from ("", "## Data", "", *_data(run_dir, config, arm))
    if arm is not None:
        yield from ("", "## Results", "", *_results(run_dir, arm))
        yield from ("", "## Alarms", "", *_alarms(run_dir, arm))
    yield from ("", "## Settings", "", "```toml", to_toml(config).rstrip(), "```")


def _tasks(config: RunConfig) -> str:
    return f"the environment `{config.env.use}`" if config.env.use is not None else f"the tasks of `{config.tasks.train}`"


def _warnings(config: RunConfig) -> Sequence[str]:
    return ["", f"**{FORGEABLE}**"] if config.tasks.forgeable else []


def _subject(config: RunConfig) -> str:
    return f"text of {_sources(config)}" if _of_text(config) else _tasks(config)


def _of_text(config: RunConfig) -> bool:
    """Return whether this is the run of the stage `pretrain`."""
    return config.name == "pretrain" and config.pretrain.enabled


def _sources(config: RunConfig) -> str:
    return ", ".join(f"`{source}`" for source in config.pretrain.sources)


def _data(run_dir: RunDir, config: RunConfig, arm: str | None) -> Iterator[str]:
    """Yield one line for each kind of data that the weights depend on."""
    yield f"- Trained on {_subject(config)}."
    for text in dict.fromkeys(event["message"] for event in _events(run_dir, arm, DATA)):
        yield f"- {text}"
    if _of_text(config):
        return
    if config.tasks.held_out is not None:
        yield f"- Measured on the tasks of `{config.tasks.held_out}`, which no stage learns from."
    elif config.tasks.held_out_share > 0:
        yield f"- Measured on {config.tasks.held_out_share:.0%} of these tasks, which no stage learns from."
    if config.pretrain.enabled:
        yield f"- Pre-trained on {_sources(config)}."
    if config.sft.enabled:
        yield "- Fine-tuned on demonstrations, as the section `[sft]` of the settings says."
    if config.loss.replay.weight > 0 and config.loss.replay.pairs is not None:
        yield f"- Preference pairs of `{config.loss.replay.pairs}`."
    for teacher in config.teachers:
        yield f"- Taught by `{teacher.model}` at {teacher.base_url}."


def _results(run_dir: RunDir, arm: str) -> Iterator[str]:
    """Yield the verdict as it stands, and a table of what was measured on what is held out."""
    for verdict in run_verdicts(run_dir):
        if verdict.arm == arm:
            yield from (verdict.sentence(), "")
    lines = [line for line in run_dir.read_metrics() if line.arm == arm and not _RESULTS.keys().isdisjoint(line.values)]
    if not lines:
        yield "Nothing is held out: what was learnt is not known."
        return
    names = [name for name in _RESULTS if any(name in line.values for line in lines)]
    yield "| step | " + " | ".join(_RESULTS[name] for name in names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for line in _thinned(lines):
        cells = (f"{line.values[name]:.4g}" if name in line.values else "" for name in names)
        yield f"| {line.step} | " + " | ".join(cells) + " |"


def _thinned(rows: Sequence[MetricsLine]) -> Sequence[MetricsLine]:
    """Return at most `_MOST_ROWS` rows, evenly spread, the first and the last among them."""
    if len(rows) <= _MOST_ROWS:
        return rows
    return [rows[place * (len(rows) - 1) // (_MOST_ROWS - 1)] for place in range(_MOST_ROWS)]


def _alarms(run_dir: RunDir, arm: str) -> Iterator[str]:
    found = [alarms.sentence() for alarms in run_alarms(run_dir) if alarms.arm == arm]
    yield from found or ["No rollout has raised an alarm."]
    for step, text in dict.fromkeys((event["step"], event["message"]) for event in _events(run_dir, arm, WARNING)):
        yield f"- Step {step}: {text}."


def _events(run_dir: RunDir, arm: str | None, kind: str) -> Iterator[dict[str, Any]]:
    return (event for event in run_dir.read_events() if event["kind"] == kind and event["arm"] == arm)
