"""Record conversations of OpenHands (PyPI: openhands-sdk and openhands-tools) against the scripted model: events and completions.

PYTHON tests/traces/record/open_hands.py OUT        # a Python that has them
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.update(OPENHANDS_SUPPRESS_BANNER="1", LITELLM_LOCAL_MODEL_COST_MAP="True", LMNR_DISABLE="1")
from neutral import keep, keep_requests
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.context.condenser import LLMSummarizingCondenser
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from project import project
from server import serve


def call(name, **arguments):
    return {"name": name, "arguments": {**arguments, "security_risk": "LOW"}}


def fix(folder):
    shop = f"{folder}/shop.py"
    return [
        {"text": "I look first.", "calls": [call("file_editor", command="view", path=shop), call("terminal", command="ls")]},
        {"calls": [call("terminal", command="python -m pytest -q")]},
        {"calls": [call("file_editor", command="str_replace", path=shop, old_str="return 1", new_str="return 2")]},
        {"calls": [call("file_editor", command="str_replace", path=shop, old_str="price - count", new_str="price * count")]},
        {"calls": [call("terminal", command="python -m pytest -q")]},
        {"text": "Done.", "calls": [{"name": "finish", "arguments": {"message": "It is a product now."}}]},
    ]


def errors(folder):
    return [
        {"calls": [call("file_editor", command="view", path=f"{folder}/nothing.py")]},
        {"calls": [{"name": "terminal", "raw": '{"command": "ls'}]},
        {"calls": [{"name": "nonsense", "arguments": {"x": 1}}]},
        {"calls": [call("terminal", command="exit_code() { return 3; }; exit_code")]},
        {"text": "That is all."},
    ]


def condensed(folder):
    steps = [{"calls": [call("terminal", command=f"echo {i}")]} for i in range(6)]
    return [*steps, {"text": "I counted."}]


def record(out: Path) -> None:
    for name, script in (("fix", fix), ("errors", errors), ("condensed", condensed)):
        with tempfile.TemporaryDirectory() as scratch:
            folder, requests = Path(scratch) / "work" / "shop", Path(scratch) / "requests.jsonl"
            project(folder)
            server = serve(script(folder), requests)
            given = {
                "model": "openai/scripted",
                "api_key": "scripted",
                "base_url": f"http://127.0.0.1:{server.server_address[1]}/v1",
            }
            llm = LLM(usage_id="agent", log_completions=True, log_completions_folder=f"{scratch}/completions", **given)
            condenser = LLMSummarizingCondenser(llm=LLM(usage_id="condenser", **given), max_size=10, keep_first=2)
            tools = [Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)]
            agent = Agent(llm=llm, tools=tools, condenser=condenser if name == "condensed" else None)
            conversation = Conversation(agent=agent, workspace=str(folder), persistence_dir=f"{scratch}/kept", visualizer=None)
            conversation.send_message("shop.total is wrong. Repair it.")
            conversation.run()
            conversation.close()
            server.shutdown()
            for file in sorted(Path(scratch, "kept").rglob("event-*.json")):
                keep(file, out / name / "events" / file.name, scratch)
            for file in sorted(Path(scratch, "completions").glob("*.json")):
                keep(file, out / name / "completions" / file.name, scratch)
            keep_requests(requests, out / f"{name}.requests.json", scratch)
            print(name, "done")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
