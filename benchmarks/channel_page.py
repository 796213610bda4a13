"""The tables of docs/channels.md, written from docs/figures/channels.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from channel_arms import NOTHING_HELD, PREFERENCES, RATES

ROOT = Path(__file__).resolve().parents[1]
DATA, PAGE = ROOT / "docs" / "figures" / "channels.json", ROOT / "docs" / "channels.md"
BEGIN, END = "<!-- tables of benchmarks/channel_page.py -->", "<!-- end of the tables -->"
_BESIDE = (
    *("grpo", "grpo + hint 0.3", "grpo + hint 1", "grpo + hint 3", "grpo + hint 10"),
    *("grpo + hint 1: turn", "grpo + hint 1: trajectory", "grpo + hint 1: beta 0", "grpo + hint 1: beta 1"),
    *("grpo + hint 1: useful only", "grpo + hint 1, a quarter wrong", "grpo + hint 1: useful only, a quarter wrong"),
    *("grpo + replay 0.3", "grpo + replay 1", "grpo + replay 3", "grpo + replay 10", "grpo + replay 1: dpo"),
    "grpo + replay 1: dpo, a tenth of the rate",
    *("grpo + hint 0.3 + replay 0.3", "grpo + hint 0.3 + replay 1", "grpo + hint 0.3 + replay 3"),
    *("grpo + hint 1 + replay 1", "grpo + hint 1 + replay 3", "grpo + hint 3 + replay 3"),
    *("grpo + hint 10 + replay 10", "grpo + hint 1 + replay 1: turn", "grpo + hint 1 + replay 1: beta 0"),
    "grpo + hint 1 + replay 1: beta 1",
    *("grpo + hint 1 + replay 1, a quarter wrong", "grpo + hint 1 + replay 3, a quarter wrong"),
    "grpo + hint 3 + replay 3, a quarter wrong",
    *("hint alone", "rejection sampling", "context distillation", "context distillation, as many rollouts"),
    *("context distillation, 3 times the steps", "replay alone: sft, 3 times the steps"),
)


def tables(found: Mapping[str, Any]) -> str:
    """Return the page's tables of what `channels` has found."""
    rows = {(row["arm"], row["rate"]): row for row in found["table"]}
    parts = [_alone(rows), _beside(rows), _held(rows), _verdicts(found)]
    return "\n\n".join(parts)


def _alone(rows: Mapping[tuple[str, float], Mapping[str, Any]]) -> str:
    lines = ["| replay alone | 1e-3 | 3e-4 | 1e-4 | 1e-3, a quarter wrong | 1e-3, long answers |", "|---|---|---|---|---|---|"]
    for variant in ("sft", *PREFERENCES):
        name = f"replay alone: {variant}"
        cells = [_cell(rows.get((name, rate)), chosen=True) for rate in RATES]
        cells += [_cell(rows.get((f"{name}, {what}", RATES[0])), chosen=True) for what in ("a quarter wrong", "long answers")]
        lines.append(f"| `{variant}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside(rows: Mapping[tuple[str, float], Mapping[str, Any]]) -> str:
    lines = ["| with rollouts | 1e-3 | 3e-4 | rollouts | CPU-seconds |", "|---|---|---|---|---|"]
    for name in _BESIDE:
        some = [rows.get((name, rate)) for rate in RATES[:2]]
        if not any(some):
            continue
        first = some[0] or {"rollouts": "", "cpu_s": ""}
        lines.append(f"| {name} | {' | '.join(map(_cell, some))} | {first['rollouts']} | {first['cpu_s']} |")
    return "\n".join(lines)


def _held(rows: Mapping[tuple[str, float], Mapping[str, Any]]) -> str:
    lines = ["| turns held | 1e-3 | 1e-3, nothing held | 3e-4 | 3e-4, nothing held |", "|---|---|---|---|---|"]
    for name in ("replay alone: sft", "hint alone", "grpo + hint 1", "grpo + hint 1 + replay 1"):
        cells = [_cell(rows.get((name + ending, rate))) for rate in RATES[:2] for ending in ("", NOTHING_HELD)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any] | None, *, chosen: bool = False) -> str:
    if row is None:
        return ""
    return f"{row['pass_at_1']:.3f} ± {row['pass_at_1_half']:.3f}" + (f" ({row['chosen']:+.2f})" if chosen else "")


def _verdicts(found: Mapping[str, Any]) -> str:
    headings = {
        "harms": "Arms whose channels lower pass@1 beyond the interval",
        "fallen": "Runs in which pairs left the chosen answers less likely than they began",
        "carried_down": "Runs in which the policy gradient made the chosen answers less likely, and the pairs less so",
        "behind": "Defaults behind the best of their grid beyond the interval",
    }
    return "\n\n".join(f"{title}: {_listed(found.get(key, ()))}." for key, title in headings.items())


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names) or "none"


def rewritten(page: str, found: Mapping[str, Any]) -> str:
    """Return the page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables(found)}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8"), json.loads(DATA.read_text("utf-8"))), "utf-8")
