from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
from typing import Any

import pytest
from rich.console import Console

from composer_replication.observe.terminal import Terminal, channel_line
from composer_replication.types.errors import StorageError

Events = list[tuple[str, str, dict[str, Any]]]


def plain(encoding: str = "utf-8") -> tuple[Terminal, io.TextIOWrapper, Events]:
    events: Events = []
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    terminal = Terminal(Console(file=stream), on_event=lambda kind, message, /, **fields: events.append((kind, message, fields)))
    return terminal, stream, events


def text_of(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(stream.encoding)


# --- channels


def test_every_channel_is_shown_with_its_count_or_its_reason() -> None:
    metrics = {"rlvr/loss": 0.1234, "hint/loss": 0.456, "hint/turns": 12.0}
    assert channel_line(metrics, {"replay": "no pairs yet"}) == "rlvr 0.123 | hint 0.456 (12 turns) | replay off: no pairs yet"


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"rlvr/loss": 0.0}, "rlvr 0.000 (expected on-policy: the ratio is 1 and advantages cancel; the gradient does not)"),
        ({"rlvr/loss": -1e-9, "rlvr/frac_zero_std": 1.0}, "rlvr 0.000 (the rewards in every group are equal: no advantage)"),
        ({"hint/loss": 0.0, "hint/turns": 0.0}, "hint 0.000 (0 turns, no error turns in the batch)"),
        ({"hint/loss": 0.0, "hint/turns": 1.0}, "hint 0.000 (1 turn, student and self-teacher agree)"),
        ({"replay/loss": 0.0, "replay/pairs": 0.0}, "replay 0.000 (0 pairs, no pairs in the batch)"),
        ({"replay/loss": 0.0, "replay/pairs": 4.0}, "replay 0.000 (4 pairs, every pair is already ordered)"),
        ({"hint/loss": float("nan")}, "hint nan (not finite)"),
        ({"hint/loss": 0.0002}, "hint 2.0e-04"),
        ({}, "rlvr off: not measured at this step"),
    ],
)
def test_a_zero_or_missing_channel_is_explained(metrics: dict[str, float], expected: str) -> None:
    assert expected in channel_line(metrics, {}).split(" | ")


# --- plain output


def test_plain_lines_without_a_terminal_and_everything_is_an_event() -> None:
    terminal, stream, events = plain()
    terminal.isolation("namespaces: no network")
    terminal.isolation("namespaces: no network")
    with terminal.phase("train", total=2) as train:
        for step in (1, 2):
            with terminal.phase("rollout", total=8) as rollout:
                rollout.advance(8)
            terminal.step(
                "grpo", step, 2, {"reward/mean": step / 2, "rlvr/loss": 0.5, "eval/pass_at_1": 0.25, "eval/pass_at_1_se": 0.1}, {}
            )
            train.advance()
    terminal.note("done")
    terminal.table("Result", ["arm", "pass@1"], [["grpo", "0.25 ± 0.10"], ["three_channels", "0.75 ± 0.05"]])
    shown = text_of(stream)
    assert "\x1b" not in shown
    lines = shown.splitlines()
    assert lines[0] == "sandbox  namespaces: no network"
    assert shown.count("namespaces") == 1
    assert lines[1] == "train 0/2"
    assert lines[2].startswith("grpo 1/2  reward 0.500 ▅  pass@1 0.250 ± 0.100  rlvr 0.500 | hint off: not measured")
    assert lines[3].startswith("grpo 2/2  reward 1.000 ▅█")
    assert lines[4].startswith("train 2/2 done after")
    assert lines[5] == "done"
    assert "| three_channels | 0.75 ± 0.05 |" in shown
    kinds = [kind for kind, _, _ in events]
    assert kinds == ["isolation", "phase", "step", "phase", "step", "phase", "note", "table"]
    assert events[1][2] | {"seconds": 0} == {"name": "rollout", "ending": "done", "done": 8, "total": 8, "seconds": 0}
    assert events[2][2]["arm"] == "grpo"


def test_a_phase_that_fails_says_so_and_lets_the_error_through() -> None:
    terminal, stream, events = plain()
    with pytest.raises(KeyboardInterrupt), terminal.phase("train", total=4), terminal.phase("grade"):
        raise KeyboardInterrupt
    shown = text_of(stream)
    assert "grade stopped after 0 s" in shown
    assert "train 0/4 stopped after 0 s" in shown
    assert [e[2]["ending"] for e in events] == ["stopped", "stopped"]


def test_hostile_text_is_shown_not_obeyed() -> None:
    terminal, stream, _ = plain()
    terminal.note("[red]no markup[/red] [/] \x1b[2J\x1b]0;title\x07 \r bell\x07\x9b31m\u2028 :smile:")
    terminal.table("[bold]t[/]", ["[a]"], [["\x1b[31m[b]x[/b]\r"]])
    shown = text_of(stream)
    assert "[red]no markup[/red] [/]" in shown
    assert "[b]x[/b]" in shown
    assert "[bold]t[/]" in shown
    assert ":smile:" in shown
    assert not set(shown) & {"\x1b", "\x07", "\r", "\x9b", "\u2028"}


def test_an_output_that_knows_only_ascii() -> None:
    terminal, stream, _ = plain("ascii")
    with terminal.phase("rollout", total=1):
        terminal.step("grpo", 1, 1, {"reward/mean": 1.0}, {"hint": "ünicode"})
        terminal.table("t", ["a ± b"], [["1 ± 2"]])
    assert "reward 1.000 ?" in text_of(stream)


def test_phases_advance_from_many_threads() -> None:
    terminal, _, events = plain()
    with terminal.phase("rollout", total=400) as phase:
        threads = [threading.Thread(target=lambda: [phase.advance() for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert events[-1][2]["done"] == 400


def test_non_finite_rewards_do_not_break_the_line() -> None:
    terminal, stream, _ = plain()
    terminal.step("a", 1, 3, {"reward/mean": float("nan")}, {})
    terminal.step("a", 2, 3, {"reward/mean": 2.0}, {})
    assert "reward nan" in text_of(stream)


# --- on a real terminal

LIVE = """
from composer_replication.observe.terminal import Terminal
terminal = Terminal()
with terminal.phase("train", total=3) as train:
    for step in range(1, 4):
        with terminal.phase("rollout", total=2) as rollout:
            rollout.advance(); rollout.advance()
        terminal.step("grpo", step, 3, {"reward/mean": 0.5}, {"hint": "no [error] turns"})
        train.advance()
"""
FAILING = """
from composer_replication.types.errors import StorageError
from composer_replication.observe.terminal import Terminal
def full(kind, message, /, **fields):
    raise StorageError("disk full")
terminal = Terminal(on_event=full)
with terminal.phase("train", total=3):
    pass
"""


def on_a_pty(code: str, term: str) -> tuple[str, int]:
    """What `code` writes to an 120-column pseudo-terminal, and its exit status."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": term, "COLUMNS": "120", "LINES": "40", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=follower, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(follower)
        chunks = []
        while True:
            try:
                chunk = os.read(leader, 1 << 16)
            except OSError:  # Linux reports the other end's close as EIO
                break
            if not chunk:
                break
            chunks.append(chunk)
    os.close(leader)
    return b"".join(chunks).decode(), process.returncode


def test_a_terminal_gets_live_bars_and_its_cursor_back() -> None:
    shown, status = on_a_pty(LIVE, "xterm")
    assert status == 0
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "rollout" in shown
    assert "1/3" in shown
    assert "grpo 3/3" in shown
    assert "hint off: no [error] turns" in shown


def test_a_dumb_terminal_gets_plain_lines() -> None:
    shown, status = on_a_pty(LIVE, "dumb")
    assert status == 0
    assert "\x1b" not in shown
    assert shown.splitlines()[0] == "train 0/3"


def test_the_cursor_comes_back_even_when_recording_fails() -> None:
    shown, status = on_a_pty(FAILING, "xterm")
    assert status == 1
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_an_error_while_recording_reaches_the_caller() -> None:
    def full(kind: str, message: str, /, **fields: Any) -> None:
        raise StorageError("disk full")

    terminal, _, _ = plain()
    terminal.on_event = full
    with pytest.raises(StorageError):
        terminal.note("x")
