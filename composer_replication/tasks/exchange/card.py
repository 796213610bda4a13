"""The card of a dataset of tasks, and its index: a row for each task, in words that give nothing of its solution away."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from composer_replication.tasks.exchange.pins import Pins
from composer_replication.tasks.sources.licence import UNKNOWN
from composer_replication.tasks.store import Task

INDEX = "tasks.jsonl"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_HUB_LICENCES = frozenset(
    {
        *("afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "bsl-1.0"),
        *("cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "epl-2.0", "eupl-1.2", "gpl-2.0", "gpl-3.0", "isc", "lgpl-2.1", "lgpl-3.0"),
        *("mit", "mpl-2.0", "ms-pl", "ncsa", "ofl-1.1", "osl-3.0", "postgresql", "unlicense", "wtfpl", "zlib"),
    }
)
"""The names of licences that a card's header may have, of those of software."""
_CARD = """\
# {title}

{count} tasks for coding agents, in {sources}. A task is a repository without one of its features, the tests that pass
again with it, and the solution. They were made with the Composer Replication Framework (`composer-replication`). {made}

{table}

*Strong* tasks have held-out programs that no trivial body satisfies. What the others lack is told by `strength` in
`{index}`; runs leave them out unless they are asked for. *Difficulty* is an estimate between 0 and 1 that was made
before any model had tried, here the median.

## Use

```bash
pip install 'composer-replication[hf]'
composer tasks pull {repo} tasks --install
composer tasks list tasks
```

Every command and every environment of the package takes the folder `tasks`. `--install` makes the interpreters that run
the tests, with the versions that they were proven with. `{index}` has a row for each task, and `builds/` the tasks
themselves, an archive for each repository. Each task has a manifest with the digests of its files, which are compared
with it when they are pulled.

## The solutions are in the archives

They are there in clear, beside the checks that only the grader is to know. An agent with a network, or with this dataset
on its disk, can read them: give agents neither. Keep the archives out of the text that models are trained on: a model
that has read a solution proves nothing by giving it. The index names the functions that are gone, and has none of their
code.

## Licences

Each task holds the files of its project, the text of its licence among them, and stays under that licence. The table has
what the project declares.{unknown}
"""


@dataclass(frozen=True, slots=True)
class PackedBuild:
    """The tasks of one build that go into a dataset."""

    name: str
    tasks: Sequence[Task]
    pins: Pins


def licence_of_task(task: Task) -> str:
    """Return the licence that a task's project declares, else `unknown`."""
    return str(task.provenance.get("licence") or UNKNOWN)


def index_lines(tasks: Sequence[Task]) -> str:
    """Return the index of tasks, JSON Lines. Whether a task is impossible, which agents are not to know, is not in it."""
    return "".join(f"{json.dumps(_row(task), ensure_ascii=False)}\n" for task in tasks)


def _row(task: Task) -> dict[str, Any]:
    spec, difficulty = task.spec, task.provenance.get("difficulty")
    return {
        "task_id": spec.task_id,
        "source": spec.source,
        "licence": licence_of_task(task),
        "instruction": spec.instruction,
        "deleted": [f"{deletion.path}::{deletion.qualname}" for deletion in spec.deleted],
        "deleted_lines": sum(deletion.lines for deletion in spec.deleted),
        "fail_to_pass": len(spec.fail_to_pass),
        "pass_to_pass": len(spec.pass_to_pass),
        "difficulty": float(difficulty) if isinstance(difficulty, int | float) else None,
        "strength": f"forgeable: {spec.hidden.weakness}" if spec.forgeable else "strong",
    }


def card(builds: Sequence[PackedBuild], repo_id: str) -> str:
    """Return the README of a dataset, with the header that the Hub reads."""
    tasks = [task for build in builds for task in build.tasks]
    declared = {licence_of_task(task) for task in tasks}
    licences = sorted({_hub_licence(licence) for licence in declared})
    header = {
        "license": licences if len(licences) > 1 else licences[0],
        "pretty_name": repo_id.rpartition("/")[2],
        "task_categories": ["text-generation"],
        "tags": ["code", "agents", "reinforcement-learning", "feature-deletion", "composer-replication"],
        "size_categories": [next((name for most, name in _SIZES if len(tasks) < most), "n>1M")],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": INDEX}]}],
    }
    unknown = " Where that is `unknown`, nobody has said that you may pass the files on." if UNKNOWN in declared else ""
    text = _CARD.format(
        title=repo_id.rpartition("/")[2],
        count=len(tasks),
        sources="1 repository" if len(builds) == 1 else f"{len(builds)} repositories",
        table=_table(builds),
        index=INDEX,
        made=_made(tasks),
        repo=repo_id,
        unknown=unknown,
    )
    return f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n\n{text}"


def _made(tasks: Sequence[Task]) -> str:
    """Say how tasks were made, as far as their provenance tells."""
    modes, writers = (
        " or ".join(sorted({f"`{value}`" for task in tasks if (value := task.provenance.get(key))}))
        for key in ("mode", "instruction_by")
    )
    said = [f"The mode of deletion is {modes}."] if modes else []
    return " ".join([*said, *([f"Instructions were written by {writers}."] if writers else [])])


def _hub_licence(licence: str) -> str:
    """Return the Hub's name of an SPDX expression; `other` where it has none."""
    if licence == UNKNOWN:
        return UNKNOWN
    name = re.sub(r"-(only|or-later)$", "", licence.lower())
    return name if name in _HUB_LICENCES else "other"


def _table(builds: Sequence[PackedBuild]) -> str:
    rows = [("repository", "licence", "tasks", "strong", "difficulty", "Python", "archive"), ("---",) * 7]
    for build in builds:
        known = [row["difficulty"] for row in map(_row, build.tasks) if row["difficulty"] is not None]
        rows.append(
            (
                ", ".join(sorted({task.spec.source for task in build.tasks})),
                ", ".join(sorted({licence_of_task(task) for task in build.tasks})),
                str(len(build.tasks)),
                str(sum(not task.spec.forgeable for task in build.tasks)),
                f"{statistics.median(known):.2f}" if known else "",
                build.pins.python,
                f"`builds/{build.name}.tar.gz`",
            )
        )
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows)


def _cell(text: str) -> str:
    """Return a text for a cell of a Markdown table; it may be a stranger's."""
    return re.sub(r"([|<\[])", r"\\\1", " ".join(text.split()))
