"""Build SWE-agent trajectories to the documented layout: `sweagent` on the package index is an empty placeholder.

    python tests/traces/record/swe_agent.py OUT

`fix` has tool calls and a history processor that shortens old observations, `text` writes its commands in its text, `old` is of a
version that did not keep queries.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SYSTEM = {"role": "system", "content": "You are a programmer.", "agent": "main", "message_type": "system_prompt"}
TASK = {"role": "user", "content": "shop.total is wrong. Repair it.", "agent": "main", "message_type": "observation"}
FIX = "sed -i 's/price - count/price * count/' shop.py"
FAILED = "F\nFAILED test_shop.py::test_total - assert 1 == 6\n1 failed in 0.02s"
STEPS = [
    ("I look first.", "cat shop.py", "def total(price, count):\n    return price - count\n"),
    ("I run the tests.", "python -m pytest -q", FAILED),
    ("I try a wrong one.", "str_replace_editor str_replace shop.py", "No replacement was performed, old_str `x` did not appear."),
    ("Now the edit.", FIX, ""),
    ("It is done.", "submit", "diff --git a/shop.py b/shop.py\n"),
]
SHORT = "Old environment output: (1 lines omitted)"


def session(*, native: bool, queries: bool) -> dict:
    history, steps = [SYSTEM, TASK], []
    for number, (thought, action, observation) in enumerate(STEPS):
        query = [dict(m) for m in history]
        for message in [m for m in query if m.get("message_type") == "observation"][1:-2]:
            message["content"] = SHORT
        response = thought if native else f"DISCUSSION\n{thought}\n\n```\n{action}\n```"
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": action})},
        }
        if "str_replace" in action and native:
            edit = {"command": "str_replace", "path": "shop.py", "old_str": "x", "new_str": "y"}
            call["function"] = {"name": "str_replace_editor", "arguments": json.dumps(edit)}
        step = {"action": action, "observation": observation, "response": response, "thought": thought, "execution_time": 0.1}
        step |= {"state": {"working_dir": "/shop"}, "extra_info": {}} | ({"query": query} if queries else {})
        steps.append(step)
        answer = {"role": "assistant", "content": response, "thought": thought, "action": action, "agent": "main"}
        answer |= {"message_type": "action"} | ({"tool_calls": [call]} if native else {})
        told = {"role": "tool" if native else "user", "content": f"OBSERVATION:\n{observation}", "agent": "main"}
        told |= {"message_type": "observation"} | ({"tool_call_ids": [f"call_{number}"]} if native else {})
        history += [answer, told]
    info = {
        "exit_status": "submitted",
        "submission": STEPS[-1][2],
        "model_stats": {"instance_cost": 0.1, "api_calls": len(STEPS)},
    }
    info |= {"swe_agent_version": "1.1.0"} if queries else {}
    return {"trajectory": steps, "history": history[:-1], "info": info, "environment": "shop"}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, options in (("fix", (True, True)), ("text", (False, True)), ("old", (False, False))):
        built = session(native=options[0], queries=options[1])
        (out / f"{name}.traj").write_text(json.dumps(built, indent=1) + "\n", "utf-8")
