"""`composer prm`: train a process reward model on labelled traces, and score traces with one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from composer_replication.cli.support.kinds import refuse_other_kind
from composer_replication.observe import Terminal, files, mean_and_se
from composer_replication.observe.console import Console, echo
from composer_replication.tokens import ChatRenderer
from composer_replication.types import Trajectory, to_json
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from composer_replication.prm import Example, StepLabels

app = typer.Typer(help="Train a process reward model, and score the steps of traces with it.", no_args_is_help=True)

_MEASURES = ("auroc", "auroc_low", "auroc_high", "accuracy", "ece", "loss")


@app.command()
def train(
    traces: Annotated[Path, typer.Option(help="JSONL file of trajectories or traces.")],
    model: Annotated[str, typer.Option(help="Start from it: a folder or a Hugging Face id, with the traces' tokenizer.")],
    out: Annotated[Path, typer.Option(help="Folder for the model, its measures and checkpoints.")],
    labels: Annotated[
        str, typer.Option(help='"outcome" (share of siblings that succeed), or a JSONL file: labels or answers.')
    ] = "outcome",
    epochs: Annotated[int, typer.Option(min=1, help="Number of passes over the traces.")] = 3,
    batch_size: Annotated[int, typer.Option(min=1, help="Traces per optimizer step.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of the schedule.")] = 1e-4,
    held_out: Annotated[float, typer.Option(help="Share of the tasks held out for measurement.")] = 0.2,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Leave out steps that end beyond it, or beyond the model's limit.")
    ] = 8192,
    save_every: Annotated[int, typer.Option(min=1, help="Optimizer steps between checkpoints.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the split, the head's initial weights and the order of traces.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in OUT.")] = False,
) -> None:
    """Train a model to tell good steps from bad ones: token classification at the last token of each turn.

    Whole tasks are held out. OUT then holds the model (model/), its measures (summary.json), the held-out steps' probabilities
    (held_out.jsonl) and their ROC and calibration (held_out.svg).
    """
    from composer_replication.prm import PrmOptions, encode, held_out_tasks, read_transcripts
    from composer_replication.prm.data import task_of
    from composer_replication.prm.options import model_config

    options = PrmOptions(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        held_out=held_out,
        max_tokens=max_tokens,
        save_every=save_every,
        seed=seed,
    )
    model_config(model, device)
    terminal = Terminal()
    refuse_other_kind(traces, "a file of transcripts")
    found = read_transcripts(traces)
    known = _labels(labels, found)
    held_out_tasks([task_of(t) for t in found if t.trajectory_id in known], held_out, seed=seed)
    from composer_replication.prm import start_prm, train_prm  # these take seconds to import: report errors first

    network, tokenizer = start_prm(model, device=device, seed=seed)
    renderer = ChatRenderer(tokenizer)
    with terminal.phase("read the traces", len(found)) as shown:
        examples: list[Example] = []
        for trajectory in found:
            examples += encode(trajectory, renderer, known.get(trajectory.trajectory_id))
            shown.advance()
    summary = train_prm(network, tokenizer, examples, out, options, resume=resume, terminal=terminal)
    rows = [(name, f"{summary[f'prm/held_out/{name}']:.3f}") for name in _MEASURES if _is_number(summary, name)]
    of = f"{summary['held_out_steps']} steps of {len(summary['held_out_tasks'])} tasks"
    terminal.table(f"held out: {of}", ("measure", "value"), rows)
    terminal.note(f"{out / 'model'}")


def _labels(labels: str, found: Sequence[Trajectory | Trace]) -> StepLabels:
    from composer_replication.prm import outcome_labels, read_labels

    if labels != "outcome":
        return read_labels(Path(labels), found)
    known = outcome_labels(found)
    if not known:
        raise ConfigError(
            f"--labels outcome: none of the {len(found)} traces has a reward, so no step has a label",
            fix="name a JSONL file of labels or of teachers' answers with --labels, or give traces with rewards",
        )
    return known


def _is_number(summary: dict[str, Any], name: str) -> bool:
    """Return whether a measure exists: a missing one is the text `nan` in a summary that was read back."""
    value = summary[f"prm/held_out/{name}"]
    return isinstance(value, float) and value == value


@app.command()
def score(
    traces: Annotated[Path, typer.Argument(help="JSONL file of trajectories or traces.")],
    model: Annotated[str, typer.Option(help="Folder `model` that `composer prm train` wrote.")],
    out: Annotated[Path | None, typer.Option(help="Write the scores there; to stdout by default.")] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Steps that end beyond it, or beyond the model's limit, get no score.")
    ] = 8192,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Write one JSON line per trajectory: the probability that each turn is good, their product and their minimum.

    A turn without a score is null, and so are product and minimum then. On stderr: the mean reward of the trajectories that the
    model ranks best in each task, next to that of all.
    """
    from composer_replication.prm import read_transcripts
    from composer_replication.prm.options import model_config

    model_config(model, device)
    refuse_other_kind(traces, "a file of transcripts")
    found = read_transcripts(traces)
    from composer_replication.prm import load_prm  # takes seconds to import: report errors first

    network, tokenizer = load_prm(model, device=device)
    rows = _score(network, ChatRenderer(tokenizer), found, max_tokens)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if out is None:
        echo(text, nl=False)
    elif out.is_dir():
        raise ConfigError(f"{out} is a folder", fix="name a file: --out FILE")
    else:
        files.replace_file(out, text.encode())
    _compare(found, rows)


def _score(
    network: PreTrainedModel, renderer: ChatRenderer, found: Sequence[Trajectory | Trace], max_tokens: int
) -> list[dict[str, Any]]:
    from composer_replication.prm import encode, fit, trajectory_score
    from composer_replication.prm.data import step_turns
    from composer_replication.prm.model import limit_of, score_by_turn

    terminal = Terminal(Console(stderr=True))
    encoded, limit = [e for t in found for e in encode(t, renderer)], limit_of(network, max_tokens)
    examples, dropped = fit(encoded, limit.tokens)
    if dropped:
        terminal.note(limit.left_out(dropped, encoded))
    with terminal.phase("score", len(examples)) as shown:
        by_turn = score_by_turn(network, examples, pad_id=renderer.tokenizer.pad_token_id, on_done=shown.advance)
    rows = []
    for t in found:
        turns = [by_turn.get((t.trajectory_id, i)) for i in range(len(t.turns))]
        known = [turns[i] for i in sorted(step_turns(t))]
        whole = [p for p in known if p is not None]
        product, least = (trajectory_score(whole, how) if len(whole) == len(known) else None for how in ("product", "min"))
        rows.append(
            {
                "trajectory_id": t.trajectory_id,
                "task_id": t.task_id,
                "reward": to_json(t.reward),
                "turns": turns,
                "product": product,
                "min": least,
            }
        )
    return rows


def _compare(found: Sequence[Trajectory | Trace], rows: Sequence[dict[str, Any]]) -> None:
    from composer_replication.prm import best_of
    from composer_replication.prm.data import task_of

    rewards = {t.trajectory_id: t.reward for t in found if isinstance(t.reward, int | float)}
    tasks = {t.trajectory_id: task_of(t) for t in found}
    scores = {r["trajectory_id"]: r["product"] for r in rows if r["product"] is not None and r["trajectory_id"] in rewards}
    if not scores:
        return
    best, of_all = best_of(scores, tasks), [rewards[name] for name in scores]
    (chosen, chosen_se), (all_mean, _) = mean_and_se([rewards[name] for name in best.values()]), mean_and_se(of_all)
    echo(
        f"mean reward of the trajectory with the highest product of each of {len(best)} tasks: {chosen:.3f} ± {chosen_se:.3f}; "
        f"of all {len(of_all)}: {all_mean:.3f}",
        err=True,
    )
