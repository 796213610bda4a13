"""Three local teachers: the tiny policy, taught the meaning of the house's words, each with one different mistake.

They stand for outside models that know the domain. No two share a mistake, so two of three agree on every word, and agreement
is worth more than any one of them.
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer_replication.config import TeacherConfig
from composer_replication.quickstart.language import GLOSSARY, HOUSE_TERMS, WORDS
from composer_replication.types.errors import TeacherError

TEACHERS = ("harbourmaster", "orchardist", "foundryman")
_START_S = 120.0


def knowledge(teacher: str) -> dict[str, str]:
    """Map each house term to this teacher's word for it: the handbook's, except for one term."""
    index = TEACHERS.index(teacher)
    wrong = HOUSE_TERMS[index]
    words = [w for w in WORDS if w != GLOSSARY[wrong]]
    return {**GLOSSARY, wrong: words[index]}


@contextmanager
def served(folders: dict[str, Path]) -> Iterator[tuple[TeacherConfig, ...]]:
    """Serve models over HTTP in a separate process while the body runs. Raises TeacherError when it does not come up."""
    command = [sys.executable, "-m", "composer_replication.quickstart.serve", *(f"{n}={p}" for n, p in folders.items())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], _START_S)
        line = process.stdout.readline() if ready else ""
        if not line.startswith("listening on "):
            raise TeacherError("the local teachers did not start", fix=f"look at what `{' '.join(command)}` says")
        url = line.removeprefix("listening on ").strip()
        yield tuple(
            TeacherConfig(
                name=name,
                model=name,
                base_url=url,
                api_key_env="",
                usd_per_million_input=0.0,
                usd_per_million_output=0.0,
                max_tokens=256,
                max_concurrency=32,
            )
            for name in folders
        )
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
