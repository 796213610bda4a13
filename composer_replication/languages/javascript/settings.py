"""What a project of JavaScript says of itself, read alike on the host and in a sandbox: its packages and what runs its tests.

This text runs behind that of `tell` in every program of this language that runs in a sandbox.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

MODULES = "node-modules"
"""Folder of an environment: the packages that projects require, each project's in a folder of its own."""
FRAMEWORKS = ("vitest", "jest", "mocha", "ava", "tape", "tap")
"""What runs tests, other than node itself (`node:test`), and is a package of this name."""
_IMPORTED = {"node:test": "node", "vitest": "vitest", "@jest/globals": "jest", "ava": "ava", "tape": "tape", "tap": "tap"}
"""What tests import -> what runs them."""
LOCKS = ("package-lock.json", "npm-shrinkwrap.json")


def manifest_of(tree: str) -> dict[str, Any]:
    """Return what `package.json` says; empty where there is none that can be read."""
    try:
        with open(os.path.join(tree, "package.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def table_of(manifest: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return a table of names and texts, such as `scripts` or `dependencies`."""
    found = manifest.get(name)
    return {str(key): value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def modules_for(tree: str) -> str:
    """Return the name of the folder below `MODULES` that holds what a project requires."""
    found = hashlib.sha256()
    for name in ("package.json", *LOCKS):
        try:
            with open(os.path.join(tree, name), "rb") as file:
                found.update(name.encode() + b" " + file.read())
        except OSError:
            continue
    return found.hexdigest()[:16]


def framework_of(manifest: Mapping[str, Any], texts: Iterable[str] = ()) -> str:
    """Return what runs a project's tests: `node`, or one of `FRAMEWORKS`.

    What the scripts of `package.json` call comes first, then what test files import, then what the project requires.

    Args:
        texts: the test files' texts, read until one tells.
    """
    scripts = table_of(manifest, "scripts")
    said = [text for name, text in scripts.items() if name == "test"]
    said += [text for name, text in scripts.items() if (name != "test" and "test" in name) or name == "unit"]
    for text in said:
        words: list[str] = re.findall(r"[\w-]+", re.sub(r"--\S+|\.\w+", " ", text))
        for word in words:
            if word in FRAMEWORKS:
                return word
        if re.search(r"\bnode\b.*--test\b|\btsx\b.*--test\b", text):
            return "node"
    for text in texts:
        for package, name in _IMPORTED.items():
            if re.search(rf"""(\bfrom|\brequire\()\s*["']{package}["']""", text):
                return name
    required = {**table_of(manifest, "dependencies"), **table_of(manifest, "devDependencies")}
    usual = "jest" if "jest" in manifest else "node"
    return next((name for name in FRAMEWORKS if name in required), usual)


def node_flags(manifest: Mapping[str, Any]) -> list[str]:
    """Return the flags of node in the test script that say how modules are loaded."""
    found: list[str] = []
    for text in table_of(manifest, "scripts").values():
        if "--test" not in text and "mocha" not in text and "jest" not in text:
            continue
        words = text.replace("NODE_OPTIONS=", " ").replace('"', " ").replace("'", " ").split()
        for at, word in enumerate(words):
            name, _, value = word.partition("=")
            if name in ("--import", "--require", "-r", "--loader", "--experimental-loader", "--conditions", "-C"):
                value = value or (words[at + 1] if at + 1 < len(words) else "")
                if value and f"{name}={value}" not in found and name != "-r":
                    found.append(f"{name}={value}")
                elif value and name == "-r" and f"--require={value}" not in found:
                    found.append(f"--require={value}")
            elif name.startswith("--experimental-") and name not in ("--experimental-test-coverage",) and word not in found:
                found.append(word)
        if found:
            break
    return found
