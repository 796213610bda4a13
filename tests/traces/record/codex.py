"""Record sessions of Codex CLI (npm: @openai/codex) against the scripted model.

python tests/traces/record/codex.py CODEX OUT
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from neutral import keep, keep_requests
from project import project
from server import serve

PATCH = """*** Begin Patch
*** Update File: shop.py
@@
 def total(price, count):
-    return price {old} count
+    return price * count
*** End Patch
"""


def run(cmd, **more):
    return {"name": "exec_command", "arguments": {"cmd": cmd, **more}}


def patch(old):
    return run(f"apply_patch <<'EOF'\n{PATCH.format(old=old)}EOF\n")


TESTS = f"{sys.executable} -m pytest -q"


SESSIONS = {
    "fix": (
        ["shop.total is wrong. Repair it."],
        [
            {"thinking": "I should look first.", "text": "I will look at the code.", "calls": [run("cat shop.py"), run("ls")]},
            {"calls": [run(TESTS)]},
            {"calls": [patch("+")]},
            {"calls": [patch("-")]},
            {"calls": [run(TESTS)]},
            {"text": "The total was a difference; now it is a product."},
        ],
    ),
    "errors": (
        ["Try what goes wrong."],
        [
            {"text": "A missing file.", "calls": [run("cat nothing.py")]},
            {"calls": [{"name": "exec_command", "raw": '{"cmd": "ls'}]},
            {"calls": [{"name": "nonsense", "arguments": {"x": 1}}]},
            {"calls": [{"name": "apply_patch", "input": PATCH.format(old="-")}]},
            {"calls": [run("exit 3")]},
            {"text": "That is all."},
        ],
    ),
    "resumed": (
        ["Read shop.py.", "Thanks."],
        [{"calls": [run("cat shop.py")]}, {"text": "It is short."}, {"text": "You are welcome."}],
    ),
    "compacted": (
        ["Read shop.py.", "Go on."],
        [
            {"calls": [run("cat shop.py")]},
            {"text": "It is short.", "input_tokens": 900_000},
            {"text": "Hello again.", "input_tokens": 500},
        ],
    ),
}


def record(codex: Path, out: Path) -> None:
    for name, (prompts, script) in SESSIONS.items():
        with tempfile.TemporaryDirectory() as scratch:
            home, folder = Path(scratch) / "home", Path(scratch) / "work" / "shop"
            (home / ".codex").mkdir(parents=True)
            project(folder)
            requests = Path(scratch) / "requests.jsonl"
            server = serve(script, requests)
            provider = {
                "name": "scripted",
                "base_url": f"http://127.0.0.1:{server.server_address[1]}/v1",
                "wire_api": "responses",
            }
            lines = ['model = "gpt-5-codex"', 'model_provider = "scripted"', "model_auto_compact_token_limit = 200000"]
            lines += ["[model_providers.scripted]", *(f"{key} = {json.dumps(value)}" for key, value in provider.items())]
            (home / ".codex" / "config.toml").write_text("\n".join(lines) + "\n")
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            environment = {"PATH": path, "HOME": str(home), "CODEX_HOME": str(home / ".codex"), "TZ": "UTC", "SHELL": "/bin/bash"}
            for place, prompt in enumerate(prompts):
                again = ["resume", "--last"] if place else []
                command = [codex, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *again, prompt]
                done = subprocess.run(
                    command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
                )
                print(name, place, done.returncode, done.stdout[-300:], done.stderr[-1500:])
            server.shutdown()
            for number, log in enumerate(sorted((home / ".codex" / "sessions").rglob("*.jsonl"))):
                keep(log, out / f"{name}{number or ''}.jsonl", scratch)
            keep_requests(requests, out / f"{name}.requests.json", scratch)


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
