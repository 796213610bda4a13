"""A model writes instructions from what the project says; what gives the code away is not used, and nothing is paid twice."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from composer_replication.tasks import BuildOptions, build_tasks, load_tasks
from composer_replication.tasks.proofs.leak import gives_away
from composer_replication.tasks.rewrite import facts_of
from composer_replication.tasks.wording import worded
from composer_replication.types.errors import TaskError

WriteProject = Callable[[Mapping[str, str]], Path]

BODY = "total = sum(basket) + len(basket) * 2 - 1"
PROJECT = {
    "shop.py": f"""
        def price(basket):
            '''Sum it up, with a fee for each item.'''
            {BODY}
            return total

        def count(basket):
            '''How many.'''
            return len(basket)
        """,
    "test_shop.py": """
        from shop import count, price

        def test_price():
            assert price([1, 2]) == 6

        def test_count():
            assert count([1, 2]) == 2
        """,
}


class Writer:
    """An OpenAI-compatible endpoint that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.repeats_key = False
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                question = body["messages"][-1]["content"]
                owner.asked.append(question)
                key = self.headers.get("Authorization", "").removeprefix("Bearer ")
                text = (
                    f"Bring it back, with {key} \x1b[2J."
                    if owner.repeats_key
                    else f"`price` must do this: {BODY}"
                    if "`price`" in question
                    else "Bring `count` back: it says how many."
                )
                message = {"role": "assistant", "content": text}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                answer = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
                payload = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"


@pytest.fixture
def writer() -> Iterator[Writer]:
    found = Writer()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def built(write_project: WriteProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rewrite") / "tasks"
    build_tasks(str(write_project(PROJECT)), out, BuildOptions(trivial=True, forgeable=True))
    return out


def describe(folder: Path, writer: Writer, key_variable: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from composer_replication.cli import main; main()", "tasks", "describe", str(folder)]
    return subprocess.run(
        [*command, "--model", "m", "--base-url", writer.url, "--api-key-env", key_variable], capture_output=True, text=True
    )


@pytest.mark.slow
def test_texts_are_used_unless_they_give_the_code_away(built: Path, writer: Writer, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    shutil.copytree(built, folder)
    done = describe(folder, writer)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 instructions written by m" in done.stdout
    assert "the text gave the deleted code away" in done.stdout
    tasks = {task.spec.deleted[0].qualname: task for task in load_tasks(folder)}
    before = {task.spec.deleted[0].qualname: task for task in load_tasks(built)}
    assert tasks["count"].spec.instruction == "Bring `count` back: it says how many."
    assert (tasks["count"].root / "instruction.md").read_text() == "Bring `count` back: it says how many.\n"
    assert tasks["count"].provenance["instruction_by"] == "m"
    assert tasks["count"].gold_patch() == before["count"].gold_patch()
    assert tasks["price"].spec == before["price"].spec
    assert not list(folder.glob(".*solved"))
    asked = len(writer.asked)
    assert describe(folder, writer).returncode == 0
    assert len(writer.asked) == asked, "answers are kept"


@pytest.mark.slow
def test_an_endpoint_that_repeats_the_key_puts_it_into_no_file(
    built: Path, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "proxy-REDTEAM-9fKq27LmZx81TnVb"
    monkeypatch.setenv("REDTEAM_KEY", key)
    writer.repeats_key = True
    folder = tmp_path / "tasks"
    shutil.copytree(built, folder)
    done = describe(folder, writer, "REDTEAM_KEY")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 instructions written by m" in done.stdout
    assert "[REDACTED]" in load_tasks(folder)[0].spec.instruction
    held = [path.name for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert held == []
    assert key not in done.stdout + done.stderr


@pytest.mark.slow
def test_the_writer_is_not_shown_the_code(built: Path) -> None:
    facts = {task.spec.deleted[0].qualname: facts_of(task) for task in load_tasks(built)}
    assert "Sum it up, with a fee for each item." in (facts["price"] or "")
    assert "test_shop.py::test_price" in (facts["price"] or "")
    assert "sum(" not in (facts["price"] or "")


@pytest.mark.slow
def test_every_style_follows_from_a_built_task(built: Path, write_project: WriteProject, tmp_path: Path) -> None:
    build_tasks(str(write_project(PROJECT)), tmp_path / "full", BuildOptions(trivial=True, forgeable=True, instruction="full"))
    terse, full = load_tasks(built), load_tasks(tmp_path / "full")
    assert [task.spec for task in worded(terse, "full")] == [task.spec for task in full]
    assert [task.spec for task in worded(full, "terse")] == [task.spec for task in terse]
    assert worded(full, None) == full
    assert all("Find out what" in task.spec.instruction for task in worded(full, "ambiguous"))
    unnamed = dataclasses.replace(full[0], spec=dataclasses.replace(full[0].spec, deleted=()))
    with pytest.raises(TaskError, match="has one instruction only"):
        worded([unnamed], "terse")


def test_what_gives_away() -> None:
    assert gives_away("so: total = sum(basket) + len(basket)", [BODY])
    assert not gives_away("the total of the basket, the number of items times two, minus one", [BODY])
    assert not gives_away("total = sum(basket) + len(basket)", [BODY], shown="total = sum(basket) + len(basket)")
    assert gives_away("It is return x + 1.", ["return x + 1"])
