"""Recorded files without what only the recording machine knows: its paths, names, addresses and kernel."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
import sys
from pathlib import Path

HOME = "/home/user"


def neutral(text: str, scratch: str) -> str:
    folder = os.path.realpath(scratch)
    pairs = [
        (f"{folder}/home", HOME),
        (f"{folder}/work", f"{HOME}/work"),
        (folder, "/scratch"),
        (str(Path(folder) / "home").replace("/", "-"), "-home-user"),
        (str(Path(folder) / "work").replace("/", "-"), "-home-user-work"),
        (folder.replace("/", "-"), "-scratch"),
        (os.path.expanduser("~"), HOME),
        (str(Path(sys.prefix)), "/usr"),
        (socket.gethostname(), "host"),
        (platform.release(), "6.0.0"),
        (platform.version(), "#1 SMP"),
    ]
    for old, new in pairs:
        if len(old) > 3:
            text = text.replace(old, new)
    text = re.sub(r'("hostname": ?")[^"]*', r"\1host", re.sub(r'("username": ?")[^"]*', r"\1user", text))
    user = getpass.getuser()
    text = re.sub(rf"\b(User|user|USER)([\"': =]+){user}\b", r"\1\2user", text)
    return re.sub(r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:8000", text)


def keep(source: Path, target: Path, scratch: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(neutral(source.read_text("utf-8"), scratch), "utf-8")


def keep_requests(source: Path, target: Path, scratch: str) -> None:
    """What the model received, each message once: `{"items": [...], "requests": [{"main", "items": [index, ...], "tools"}]}`."""
    items: dict[str, int] = {}
    requests = []
    for line in neutral(source.read_text("utf-8"), scratch).splitlines():
        record = json.loads(line)
        body = record["body"]
        system = [{"role": "system", "content": body["system"]}] if "system" in body else []
        told = [json.dumps(item) for item in [*system, *(body.get("messages") or body.get("input"))]]
        tools = [tool.get("name") or tool.get("function", {}).get("name") or tool["type"] for tool in body.get("tools") or []]
        numbers = [items.setdefault(item, len(items)) for item in told]
        requests.append({"main": record["main"], "items": numbers, "tools": tools, "answer": record["answer"]})
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = {"items": [json.loads(item) for item in items], "requests": requests}
    target.write_text(json.dumps(kept, indent=0) + "\n", "utf-8")
