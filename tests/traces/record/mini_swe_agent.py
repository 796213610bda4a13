"""Record sessions of mini-swe-agent (PyPI: mini-swe-agent 2.x), with tool calls and in text, against the scripted model.

PYTHON tests/traces/record/mini_swe_agent.py OUT        # a Python that has mini-swe-agent
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel
from neutral import keep, keep_requests
from project import project
from server import serve

FIX = "sed -i 's/price - count/price * count/' shop.py"
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def bash(*commands, text="", **more):
    return {"text": text, "calls": [{"name": "bash", "arguments": {"command": c}} for c in commands], **more}


def fenced(command, text="I go on."):
    return {"text": f"{text}\n\n```mswea_bash_command\n{command}\n```"}


SESSIONS = {
    "fix": (
        "mini.yaml",
        LitellmModel,
        [
            bash("cat shop.py", "ls", text="I look first.", thinking="What is there?"),
            bash("python -m pytest -q"),
            bash(FIX),
            bash("python -m pytest -q"),
            bash(DONE, text="Done."),
        ],
    ),
    "errors": (
        "mini.yaml",
        LitellmModel,
        [
            {"text": "I think about it without doing anything."},
            {"text": "", "calls": [{"name": "bash", "raw": '{"command": "ls'}]},
            bash("exit 3"),
            bash("cat nothing.py"),
            bash("sleep 20"),
            bash(DONE),
        ],
    ),
    "text": (
        "mini_textbased.yaml",
        LitellmTextbasedModel,
        [fenced("cat shop.py"), {"text": "No command here."}, fenced(FIX), fenced("python -m pytest -q"), fenced(DONE)],
    ),
}


def record(out: Path) -> None:
    for name, (config, model, script) in SESSIONS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder, requests = Path(scratch) / "work" / "shop", Path(scratch) / "requests.jsonl"
            project(folder)
            server = serve(script, requests, plain=True)
            given = yaml.safe_load((builtin_config_dir / config).read_text())
            given["model"].pop("model_kwargs", None)
            port = server.server_address[1]
            llm = model(
                model_name="openai/scripted",
                model_kwargs={"api_base": f"http://127.0.0.1:{port}/v1", "api_key": "scripted", "drop_params": True},
                cost_tracking="ignore_errors",
                **given["model"],
            )
            environment = LocalEnvironment(cwd=str(folder), timeout=3, env=given.get("environment", {}).get("env", {}))
            known = {k: v for k, v in given["agent"].items() if k in ("system_template", "instance_template")}
            agent = DefaultAgent(llm, environment, **known, step_limit=20, output_path=Path(scratch) / "log.traj.json")
            print(name, agent.run("shop.total is wrong. Repair it."))
            server.shutdown()
            keep(Path(scratch) / "log.traj.json", out / f"{name}.traj.json", scratch)
            keep_requests(requests, out / f"{name}.requests.json", scratch)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
