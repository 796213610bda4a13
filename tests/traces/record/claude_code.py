"""Record sessions of Claude Code (npm: @anthropic-ai/claude-code) against the scripted model.

    python tests/traces/record/claude_code.py CLAUDE OUT

`CLAUDE` is the program, `OUT` a folder: for each session its log (`NAME.jsonl`, and its subagents') and the requests that the
model received (`NAME.requests.json`), rewritten by `neutral.py` so that no path and no name of the recording machine remains.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from neutral import keep, keep_requests
from project import project
from server import serve


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


def fix(folder):
    """Reads, makes a mistake with the editor, repairs it, runs the tests twice."""
    return [
        {
            "thinking": "I should look first.",
            "text": "I will look at the code.",
            "calls": [call("Read", file_path=f"{folder}/shop.py"), call("Bash", command="ls -1", description="List files")],
        },
        {"calls": [call("Bash", command="python -m pytest -q", description="Run the tests")]},
        {"calls": [call("Edit", file_path=f"{folder}/shop.py", old_string="return 1", new_string="return 2")]},
        {"calls": [call("Edit", file_path=f"{folder}/shop.py", old_string="price - count", new_string="price * count")]},
        {"calls": [call("Nonsense", x=1)]},
        {"calls": [call("Bash", command="python -m pytest -q", description="Run the tests")]},
        {"text": "The total was a difference; now it is a product."},
    ]


def errors(folder):
    """Everything that can go wrong with a call."""
    return [
        {"text": "First a missing file.", "calls": [call("Read", file_path=f"{folder}/nothing.py")]},
        {"calls": [call("Read", path="x")]},
        {"calls": [call("Bash", command="exit 3", description="Fail")]},
        {"calls": [call("Bash", command="sleep 30", description="Sleep", timeout=1000)]},
        {"calls": [call("Write", file_path=f"{folder}/note.txt", content="half a pair: \u00e9\n")]},
        {"text": "That is all."},
    ]


def delegate(folder):
    """Sends a subagent, whose own turns are a side chain."""
    task = {"description": "Count files", "prompt": "Count the files here.", "subagent_type": "general-purpose"}
    return [
        {"text": "I ask a helper.", "calls": [{"name": "Task", "arguments": task}]},
        {"calls": [call("Bash", command="ls | wc -l", description="Count")]},
        {"text": "There are two files."},
        {"text": "The helper counted two files."},
    ]


def record(claude: Path, out: Path) -> None:
    for name, script, prompts in (
        ("fix", fix, ["shop.total is wrong. Repair it."]),
        ("errors", errors, ["Try what goes wrong."]),
        ("delegate", delegate, ["How many files are here? Ask a helper."]),
        (
            "resumed",
            lambda f: [*fix(f)[:1], {"text": "It is short."}, {"text": "You are welcome."}],
            ["Read shop.py.", "Thanks."],
        ),
        ("compacted", lambda f: [*fix(f)[:1], {"text": "Read."}, {"text": "Hello again."}], ["Read shop.py.", "/compact", "Hi."]),
    ):
        with tempfile.TemporaryDirectory() as scratch:
            home, folder = Path(scratch) / "home", Path(scratch) / "work" / "shop"
            home.mkdir()
            project(folder)
            requests = Path(scratch) / "requests.jsonl"
            server = serve(script(folder), requests)
            environment = {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(home),
                "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.server_address[1]}",
                "ANTHROPIC_API_KEY": "scripted",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "IS_SANDBOX": "1",
                "TZ": "UTC",
            }
            for place, prompt in enumerate(prompts):
                again = ["--continue"] if place else []
                command = [claude, "-p", *again, "--dangerously-skip-permissions", "--output-format", "json", prompt]
                run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=170)
                print(name, place, run.returncode, run.stdout[-300:], run.stderr[-300:])
            server.shutdown()
            logs = home / ".claude" / "projects"
            keep_requests(requests, out / f"{name}.requests.json", scratch)
            for log in sorted(logs.rglob("*.jsonl")):
                inner = log.relative_to(logs).parts[1:]
                target = out / f"{name}.jsonl" if len(inner) == 1 else out / name / Path(*inner[1:])
                keep(log, target, scratch)
            if os.environ.get("KEEP"):
                shutil.copytree(home, Path(os.environ["KEEP"]) / name, dirs_exist_ok=True)


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
