"""Held-out calls: which answers of a box are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from composer_replication.sandbox import Tree, open_sandbox
from composer_replication.sandbox.grading.calls import examine_calls, wrong_calls
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.types.held_out_checks import HeldOutCall

GOLD = """
def check(text):
    if not text:
        raise ValueError(text)
"""
CALLS = [("m:check", json.dumps([[text], {}])) for text in ("a", "")]
ANSWERED = """
import json, os, sys, zlib
frame = sys._getframe()
while frame:
    request = frame.f_globals.get("request") or frame.f_locals.get("request")
    if isinstance(request, dict) and "calls" in request:
        os.write(3, request["nonce"].encode() + zlib.compress(json.dumps([ANSWER for _ in request["calls"]]).encode()))
        os._exit(0)
    frame = frame.f_back
"""
BASES = ["ValueError", "Exception", "BaseException", "object"]
OTHERS = {
    "gold": (GOLD, []),
    "a subclass": ("class Empty(ValueError): pass\n" + GOLD.replace("raise ValueError", "raise Empty"), []),
    "of two kinds": ("class Any(ValueError, KeyError): pass\n" + GOLD.replace("raise ValueError", "raise Any"), [1]),
    "a base": (GOLD.replace("raise ValueError", "raise Exception"), [1]),
    "another": (GOLD.replace("raise ValueError", "raise KeyError"), [1]),
    "refuses all": (GOLD.replace("not text", "True"), [0]),
    "refuses nothing": (GOLD.replace("not text", "False"), [1]),
    "returns something": (GOLD + "    return True\n", [0]),
    "claims both": (ANSWERED.replace("ANSWER", repr({"returns": None, "after": {}, "raises": BASES})), [0, 1]),
    "claims any exception": (
        ANSWERED.replace("ANSWER", repr({"raises": ["KeyError", "LookupError", *BASES, "KeyError"]})),
        [0, 1],
    ),
    "claims nothing": (ANSWERED.replace("ANSWER", "{}"), [0, 1]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_answer_is_what_the_gold_code_did_and_nothing_besides(tmp_path, name):
    (tmp_path / "m.py").write_text(GOLD)
    runner, tree = CodeRunner(sandbox=open_sandbox(), python=Path(sys.executable)), Tree(base=tmp_path)
    answers = examine_calls(runner, tree, CALLS)
    expected = [{part: answer[part] for part in ("returns", "after", "raises") if part in answer} for answer in answers]
    assert expected == [{"returns": None, "after": {}}, {"raises": BASES}]
    calls = [
        HeldOutCall(target=target, arguments=arguments, expected=json.dumps(answer), seen=False)
        for (target, arguments), answer in zip(CALLS, expected, strict=True)
    ]
    code, wrong = OTHERS[name]
    assert wrong_calls(runner, Tree(base=tmp_path, changes={"m.py": code.encode()}), calls)[0] == wrong
