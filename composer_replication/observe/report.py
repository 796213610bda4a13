"""One self-contained `report.html`: result, curves and a trajectory reader, with no request to anywhere.

The page is a template in `assets/` with its style, scripts and data put in. Text that a model, a test or a teacher wrote is data:
it is embedded as JSON that cannot close its element, shown through `textContent` only, and the page's content security policy
allows no script but its own (by hash) and no network.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from composer_replication.observe import files
from composer_replication.observe.alarms import Alarmed, run_alarms
from composer_replication.observe.curves import families
from composer_replication.observe.excerpt import excerpt
from composer_replication.observe.run_dir import RunDir
from composer_replication.observe.summary import SUMMARY_COLUMNS, Summary, SummaryRow, load_summary, save_summary
from composer_replication.observe.verdict import run_verdicts

_SCRIPTS = ("dom.js", "charts.js", "reader.js", "page.js")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def write_report(run: RunDir, *, title: str, summary_rows: Sequence[SummaryRow], notes: Sequence[str]) -> Path:
    """Write summary.json and report.html of a finished run and return the report's path.

    Args:
        title: the page's heading.
        summary_rows: the result, one row per arm.
        notes: honest remarks, one paragraph each; say which information is privileged.

    Raises:
        StorageError: a file of the run cannot be read or the report cannot be written.
    """
    save_summary(run, Summary(title=title, rows=tuple(summary_rows), notes=tuple(notes)))
    return rebuild_report(run)


def rebuild_report(run: RunDir) -> Path:
    """Write report.html from what is in the run directory, finished or not. Raises as `write_report`."""
    summary = load_summary(run)
    metrics = run.read_metrics()
    arms = run.arms()
    data = {"arms": arms, "families": families(metrics, arms), "trajectories": excerpt(run)}
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in _SCRIPTS) + "\n})();\n"
    style = _asset("report.css")
    parts = {
        "policy": _content_security_policy(style, script),
        "title": _text(summary.title),
        "facts": _facts(run, arms),
        "results": _results(summary.rows),
        "notes": "".join(f"<li>{_text(note)}</li>" for note in summary.notes),
        "verdicts": _verdicts(run),
        "alarms": _alarms(run),
        "channels": _channels_off(run),
        "style": style,
        "script": script,
        "data": embed_json(data),
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("report.html"))
    files.replace_file(run.report_path, page.encode())
    return run.report_path


def embed_json(data: Any) -> str:
    """Return strict ASCII JSON that is inert inside a `<script>` element whatever strings it holds: it contains no `<`, `>` or
    `&`."""
    text = files.dump_line({"data": data})
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files("composer_replication.observe") / "assets" / name).read_text(encoding="utf-8")


def _content_security_policy(style: str, script: str) -> str:
    """Allow nothing but this page's own style and script (https://www.w3.org/TR/CSP3/#grammardef-hash-source)."""
    allowed = [base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in (style, script)]
    return f"default-src 'none'; style-src 'sha256-{allowed[0]}'; script-src 'sha256-{allowed[1]}'; img-src data:"


def _text(value: object) -> str:
    """Return the HTML of a text, with invisible characters replaced."""
    return html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value)))


def _facts(run: RunDir, arms: Sequence[str]) -> str:
    """Run name, model, isolation and arms as a description list."""
    isolation = [event["message"] for event in run.read_events() if event["kind"] == "isolation"]
    facts = {
        "Run": run.name,
        "Model": _model(run),
        "Sandbox isolation": " / ".join(dict.fromkeys(isolation)) or "not recorded",
        "Arms": ", ".join(arms) or "none yet",
    }
    return "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(fact)}</dd></div>" for name, fact in facts.items())


def _model(run: RunDir) -> str:
    """Return the model named in config.toml: the value `model`, or `name` or `path` in the table `model`."""
    if not run.config_path.exists():
        return "not recorded"
    with files.storage_errors(run.config_path, "read"):
        text = run.config_path.read_text()
    try:
        model = tomllib.loads(text).get("model", "not recorded")
    except tomllib.TOMLDecodeError as error:
        return f"config.toml is damaged: {error}"
    if isinstance(model, Mapping):
        return str(model.get("name") or model.get("path") or json.dumps(model, default=str))
    return str(model)


def _results(rows: Iterable[SummaryRow]) -> str:
    """Return the rows of the results table, each with its confidence interval drawn."""
    shown = []
    for row in rows:
        arm, *cells = (_text(cell) for cell in row.cells())
        labelled = "".join(
            f'<td data-label="{_text(name)}">{cell}</td>' for name, cell in zip(SUMMARY_COLUMNS[1:], cells, strict=True)
        )
        shown.append(f'<tr><th scope="row">{arm}</th>{labelled}<td data-label="95 % interval, 0 to 1">{_interval(row)}</td></tr>')
    return "".join(shown) or f'<tr><td colspan="{len(SUMMARY_COLUMNS) + 1}">Nothing was evaluated yet.</td></tr>'


def _interval(row: SummaryRow) -> str:
    """Draw a scale from 0 to 1 with pass@1 as a dot and its approximate 95 % interval (1.96 standard errors) as a line."""
    if not math.isfinite(row.pass_at_1):
        return ""
    half = 1.96 * row.pass_at_1_se if math.isfinite(row.pass_at_1_se) else 0.0
    low, high = (6 + 128 * min(1.0, max(0.0, edge)) for edge in (row.pass_at_1 - half, row.pass_at_1 + half))
    middle = 6 + 128 * min(1.0, max(0.0, row.pass_at_1))
    label = f"{row.pass_at_1:.3f}, 95 percent interval {row.pass_at_1 - half:.3f} to {row.pass_at_1 + half:.3f}"
    return (
        f'<svg class="interval" width="140" height="16" viewBox="0 0 140 16" role="img" aria-label="{label}">'
        '<path class="scale" d="M6 8H134M6 4V12M70 5V11M134 4V12"/>'
        f'<path class="range" d="M{low:.1f} 8H{high:.1f}"/><circle cx="{middle:.1f}" cy="8" r="4"/></svg>'
    )


def _verdicts(run: RunDir) -> str:
    """List what each arm has learnt so far."""
    items = "".join(f"<li>{_text(verdict.sentence())}</li>" for verdict in run_verdicts(run))
    return items or "<li>No arm has taken a step.</li>"


def _alarms(run: RunDir) -> str:
    """List for each arm how many rollouts raised an alarm, why, and some to read."""
    items = []
    for arm in run_alarms(run):
        causes = "".join(f"<li>{_text(cause)}: {count}</li>" for cause, count in arm.causes)
        links = ", ".join(_link(arm.arm, rollout) for rollout in arm.examples)
        counted = f"<strong>{_text(arm.arm)}</strong>: {arm.rollouts} rollouts raised an alarm"
        items.append(f"<li>{counted}<ul>{causes}</ul>{f'Read: {links}' if links else ''}</li>")
    return "".join(items) or "<li>No rollout raised an alarm.</li>"


def _link(arm: str, rollout: Alarmed) -> str:
    """Return a link to a rollout in the page's reader."""
    key = f"eval-{rollout.step}" if rollout.evaluation else str(rollout.step)
    place = urlencode({"arm": arm, "step": key, "trajectory": rollout.trajectory_id})
    of = "evaluation at" if rollout.evaluation else "step"
    return f'<a href="#{_text(place)}">{of} {rollout.step}, {_text(rollout.trajectory_id)}</a>'


def _channels_off(run: RunDir) -> str:
    """List for each arm the channels that were off at some step and the reasons given."""
    last = run.read_off()
    steps = Counter(arm for arm, _ in last)
    reasons = Counter((arm, channel, reason) for (arm, _), off in last.items() for channel, reason in off.items())
    if not steps:
        return "<li>The run recorded no steps yet.</li>"
    if not reasons:
        return "<li>Every channel was on at every step of every arm.</li>"
    return "".join(
        f"<li><strong>{_text(arm)}</strong>: {_text(channel)} off at {count} of {steps[arm]} steps ({_text(reason)})</li>"
        for (arm, channel, reason), count in reasons.items()
    )
