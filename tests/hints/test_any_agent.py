"""Detectors over transcripts of any agent: what each blames, what only looks like it, and that nothing makes them raise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.hints import LintChanged, Reading, StyleRules, all_detectors, detect, detectors_named, load_rules
from composer_replication.hints.detectors import registry
from composer_replication.types import ToolCall, ToolResult
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace, TraceTurn


def trace(*turns, tools=(), instruction="Fix the sum.", reward=None):
    """Each turn is its text, or `(name, arguments, answer)` with an optional status and details."""
    made = []
    for number, turn in enumerate(turns):
        if isinstance(turn, str):
            made.append(TraceTurn(context=(), text=turn))
            continue
        name, arguments, answer, *rest = turn
        call = ToolCall(call_id=f"c{number}", name=name, arguments=arguments)
        status, details = (rest[0] if rest else "ok"), (rest[1] if len(rest) > 1 else {})
        result = ToolResult(call_id=f"c{number}", name=name, content=answer, status=status, details=details)
        made.append(TraceTurn(context=(), text="", tool_calls=(call,), results=(result,)))
    messages = ({"role": "user", "content": instruction},)
    return Trace(trajectory_id="t", format="x", turns=tuple(made), messages=messages, tools=tools, reward=reward)


def found(*turns, **about):
    return [(finding.kind, finding.turn) for finding in detect(trace(*turns, **about))]


def bash(command, answer="", code=0):
    return "Bash", {"command": command}, f"Exit code {code}\n{answer}" if code else answer


EDIT = ("Edit", {"file_path": "/r/a.py", "old_string": "x", "new_string": "y"}, "The file /r/a.py has been updated.")
READ = ("Read", {"file_path": "/r/a.py"}, "     1→x = 1")
TESTS = bash("pytest -q", "1 passed")


@pytest.mark.parametrize(
    "turn",
    [
        bash("pytest -q tests", "FAILED tests/test_a.py::test_b - AssertionError\n1 failed", 1),
        bash("cd /r && python -m pytest -x 2>&1 | tail -5", "E   FileNotFoundError: [Errno 2] No such file or directory: 'a'", 1),
        bash("pytest tests/test_cli.py", "E   usage: tool [-h]\nE   tool: error: unrecognized arguments: --x\n1 failed", 1),
        bash("grep -rn 'a|b' src", "", 1),
        bash("rg foo src && echo found", "", 1),
        bash("python repro.py", "Traceback (most recent call last):\n  File \"repro.py\", line 3\nValueError: bad", 1),
        bash("python repro.py", "PermissionError: [Errno 13] Permission denied: 'x'", 1),
        bash("mypy src", "src/a.py:1: error: unexpected argument\nFound 1 error", 1),
        bash("git diff --exit-code", "diff --git a/a b/a", 1),
        bash("make lint", "a.py:1 unknown option in noqa\nmake: *** [lint] Error 1", 2),
        bash("npm test", "1 failing", 1),
        bash("cat build.log", "bash: line 1: foo: command not found"),
        bash("timeout 60 pytest -q", "....", 124),
        bash("diff a b", "1c1", 1),
        bash("[ -e x ] || echo none", "none"),
        ("Read", {"file_path": "/r/e.py"}, "     1→Error: No such file or directory"),
        ("Grep", {"pattern": "Error"}, "a.py:1: Error: file not found\nb.py:2: permission denied"),
        ("read_file", {"path": "notes.txt"}, "File does not exist."),
        ("web_fetch", {"url": "x"}, "The page describes command timed out errors"),
        "The sum is right now. Let me know if you want more.",
        "The bug was that `let me run` was never called.",
        "```\n<tool_call>{}</tool_call>\n```\nis how a call looks.",
        bash("git log --oneline -5", "a first"),
        bash("cat .gitignore", "*.pyc"),
        bash("python -m py_compile a.py", "  File \"a.py\", line 1\nSyntaxError: invalid syntax", 1),
        ("Write", {"file_path": "/r/tests/test_new.py", "content": "def test(): pass\n"}, "File created successfully at: x"),
        ("Write", {"file_path": "/r/notes.md", "content": "def (:\n"}, "File created successfully at: x"),
    ],
    ids=lambda turn: str(turn)[:60],
)  # fmt: skip
def test_what_only_looks_like_an_error(turn):
    assert found(turn, TESTS) == []


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (bash("pytst", "bash: pytst: command not found", 127), "command_failed"),
        (bash("./run.sh", "bash: ./run.sh: cannot execute: required file not found", 126), "command_failed"),
        (bash("pytest --bad", "ERROR: usage: pytest\npytest: error: unrecognized arguments: --bad", 4), "command_failed"),
        (bash("pytest tests/gone.py", "ERROR: file or directory not found: tests/gone.py", 4), "path_not_found"),
        (bash("cat gone.py", "cat: gone.py: No such file or directory", 1), "path_not_found"),
        (bash("cd gone && ls", "bash: line 1: cd: gone: No such file or directory", 1), "path_not_found"),
        (bash("touch /etc/x", "touch: cannot touch '/etc/x': Permission denied", 1), "permission_denied"),
        (bash("git apply p.diff", "error: patch failed: a.py:3\nerror: a.py: patch does not apply", 1), "edit_not_applied"),
        (("Read", {"file_path": "/r/gone"}, "<tool_use_error>File does not exist.</tool_use_error>"), "path_not_found"),
        (("Edit", EDIT[1], "<tool_use_error>Found 3 matches of the string to replace</tool_use_error>"), "edit_not_applied"),
        (("Edit", {**EDIT[1], "new_string": "x"}, "The file has been updated."), "edit_not_applied"),
        (("Frobnicate", {}, "Error: No such tool available: Frobnicate"), "unknown_tool"),
        ("I found it. Let me fix the loop now.", "no_tool_call"),
        ("<tool_call>\n{'name': 'x'}", "malformed_markup"),
        (bash("cat .git/ORIG_HEAD", "abc"), "hidden_files"),
        (bash("cd src|cat .git/ORIG_HEAD", "abc"), "hidden_files"),
        (bash("sed -i 's/1/2/' tests/test_a.py", ""), "tests_touched"),
        (bash("echo '[pytest]' > pytest.ini", ""), "configuration_touched"),
        (("Write", {"file_path": "/r/b.py", "content": "def f(:\n"}, "File created successfully at: /r/b.py"), "syntax_error"),
        (("Bash", {"command": "sleep 500"}, "Command timed out after 2m 0.0s"), "timeout"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_is_an_error(turn, kind):
    assert found(READ, turn, TESTS) == [(kind, 1)]


def test_a_failure_that_the_next_turn_corrects_or_takes_back():
    fails = bash("git commit -m one", "nothing staged", 1)
    assert found(fails, bash("git commit -a -m one"), TESTS) == [("command_failed", 0)]
    assert found(fails, bash("git restore ."), TESTS) == [("command_failed", 0)]
    assert found(fails, bash("ls"), bash("git commit -a -m one"), TESTS) == []
    assert found(bash("python a.py 1", "ValueError", 1), bash("python a.py 2"), TESTS) == []


def test_looking_again_is_fair_after_a_change_and_after_an_edit_that_failed():
    other = bash("ls", "a.py")
    assert found(READ, other, READ, TESTS) == [("reread_unchanged", 2)]
    assert found(READ, EDIT, READ, TESTS) == []
    missed = ("Edit", EDIT[1], "<tool_use_error>String to replace not found in file.</tool_use_error>")
    assert found(READ, missed, READ, TESTS) == [("edit_not_applied", 1)]
    assert found(READ, bash("python fix.py"), READ, TESTS) == []
    longer = ("Read", {"file_path": "/r/a.py"}, "     1→x = 1\n     2→y = 2")
    assert found(READ, other, longer, TESTS) == []


def test_going_round_in_circles():
    one, other = bash("wc a", "1"), bash("wc b", "2")
    assert ("oscillation", 3) in found(one, other, one, other, one, other)
    assert [f for f in found(one, other, one, bash("wc b", "3")) if f[0] == "oscillation"] == []


def test_work_handed_in_unproved():
    done = "All is well."
    assert found(EDIT, done) == [("premature_submit", 1)]
    assert found(EDIT, TESTS, done) == found(EDIT, bash("python try.py"), done) == []
    prose = ("Edit", {"file_path": "/r/README.md", "old_string": "x", "new_string": "y"}, "updated")
    assert found(prose, done) == found(READ, done) == found(EDIT) == []


def test_a_task_may_ask_for_tests_and_configuration():
    test = ("Edit", {"file_path": "/r/tests/test_a.py", "old_string": "1", "new_string": "2"}, "updated")
    ini = ("Edit", {"file_path": "/r/pytest.ini", "old_string": "1", "new_string": "2"}, "updated")
    assert found(test, ini, TESTS) == [("tests_touched", 0), ("configuration_touched", 1)]
    assert found(test, ini, TESTS, instruction="Fix the sum, update the tests, and set addopts in pytest.ini.") == []


def test_regression_blames_the_change_between_two_runs():
    passed = bash("pytest -q", "3 passed")
    failed = bash("pytest -q", "FAILED tests/test_a.py::test_b - assert\n1 failed, 2 passed", 1)
    assert found(EDIT, passed, EDIT, READ, failed, TESTS) == [("test_regression", 2)]
    other = ("Edit", {**EDIT[1], "old_string": "z"}, "updated")
    assert found(EDIT, failed, other, failed, TESTS) == []
    assert found(EDIT, passed, READ, failed, TESTS) == []


def test_syntax_is_known_after_reads_and_edits():
    whole = ("Read", {"file_path": "/r/a.py"}, "     1→def f(x):\n     2→    return x")
    bad = ("Edit", {"file_path": "/r/a.py", "old_string": "return x", "new_string": "return (x"}, "updated")
    (finding,) = detect(trace(whole, bad, TESTS))
    assert (finding.kind, finding.turn, finding.evidence["line"]) == ("syntax_error", 1, 2)
    start, end = finding.span
    assert bad[1][finding.evidence["argument"]][start:end] == "return (x"
    assert found(bad, TESTS) == []
    part = ("Read", {"file_path": "/r/a.py", "offset": 1, "limit": 2}, whole[2])
    assert found(part, bad, TESTS) == []
    assert found(whole, bash("python rewrite.py"), bad, TESTS) == []


def test_what_a_shell_shows_of_a_file_is_known_too():
    text = "def f(x):\n    return x\n"
    shell = ("shell", {"command": ["bash", "-lc", "cat a.py"]}, f"Exit code: 0\nWall time: 0.1 seconds\nOutput:\n{text}")
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-    return x\n+    return (x\n*** End Patch"
    edit = ("apply_patch", {"input": patch}, "Success. Updated the following files:\nM a.py")
    assert found(shell, edit, TESTS) == [("syntax_error", 1)]
    mini = ("bash", {"command": "cat a.py"}, f"<returncode>0</returncode>\n<output>\n{text}</output>")
    assert found(mini, edit, TESTS) == [("syntax_error", 1)]
    assert found(edit, TESTS) == []


def test_lint_complains_about_changed_lines_only():
    old = "import os\n\n\ndef f(x):\n    return x\n"
    read = ("read_file", {"path": "a.py"}, old)
    edit = ("edit_file", {"path": "a.py", "old": "return x", "new": "return xx"}, "edited")
    (finding,) = detect(trace(read, edit, TESTS), [LintChanged()])
    assert [line[:12] for line in finding.evidence["complaints"]] == ["line 5: F821"]
    fine = ("edit_file", {"path": "a.py", "old": "return x", "new": "return x + 1"}, "edited")
    assert detect(trace(read, fine, TESTS), [LintChanged()]) == []
    with pytest.raises(ConfigError, match="ruff cannot run"):
        detect(trace(read, edit), [LintChanged(select="NOPE9")])


RULES = """
[[rule]]
name = "no-sorry"
pattern = "(?i)\\\\bsorry\\\\b"
message = "Do not apologise."

[[rule]]
name = "no-print"
pattern = "print\\\\("
where = "code"
message = "Use the log."

[[rule]]
name = "says-why"
judge = "Does it change code without saying why?"
message = "Say why."
"""


def test_style_rules_of_ones_own(tmp_path):
    (tmp_path / "style.toml").write_text(RULES)
    rules = load_rules(tmp_path / "style.toml")
    printing = ("Write", {"file_path": "/r/b.py", "content": "print(1)\n"}, "File created successfully")
    work = trace("I am so sorry.", printing, bash("echo 'print('"), TESTS)
    findings = detect(work, [StyleRules(rules)])
    assert [(f.turn, f.evidence["rule"], f.span) for f in findings] == [(0, "no-sorry", (8, 13)), (1, "no-print", (0, 6))]
    asked = []

    def ask(question):
        asked.append(question)
        return "Yes, it does." if "print(1)" in question else "no"

    judged = detect(work, [StyleRules(rules, ask)])
    assert [(f.turn, f.evidence["rule"]) for f in judged if f.evidence["rule"] == "says-why"] == [(1, "says-why")]
    assert len(asked) == 4
    assert StyleRules(rules).needs == {"judge"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("nonsense", "not TOML"),
        ("", r"\[\[rule\]\]"),
        ('[[rule]]\nname = "a"\nmessage = "b"', "rule 1: it needs"),
        ('[[rule]]\nname = "a"\nmessage = "b"\npattern = "("', "rule 1: pattern"),
        ('[[rule]]\nname = "a"\nmessage = "b"\npattern = "x"\nwhere = "there"', "where = 'there'"),
        ('[[rule]]\nname = "a"\nmessage = "b"\npattern = "x"\ncolour = "red"', "'colour'"),
        ('[[rule]]\nname = "a"\nmessage = "b"\npattern = "x"\n' * 2, "two rules"),
        ('[[rule]]\nname = 3\nmessage = "b"\npattern = "x"', "rule 1"),
    ],
)
def test_bad_rules_are_named(tmp_path, text, what):
    (tmp_path / "style.toml").write_text(text)
    with pytest.raises(ConfigError, match=what):
        load_rules(tmp_path / "style.toml")


class Loud:
    kinds, needs = ("loud",), frozenset()

    def detect(self, work, /):
        return []


def test_plugins_are_found_by_entry_point(monkeypatch):
    class Point:
        name, value, dist = "loud", "package:Loud", None

        def load(self):
            return Loud

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()] if group == "composer_replication.detectors" else [])
    all_detectors.cache_clear()
    try:
        assert isinstance(detectors_named(["loud"])[0], Loud)
        with pytest.raises(ConfigError, match="no detector 'silent'"):
            detectors_named(["silent"])
        Point.name = "timeout_"
        Point.load = lambda self: 7
        all_detectors.cache_clear()
        with pytest.raises(ConfigError, match="or no method detect"):
            all_detectors()
    finally:
        all_detectors.cache_clear()


def words(text):
    return st.sampled_from(text.split())


NAMES = words("Bash bash shell Edit edit_file apply_patch Read read_file str_replace_editor Grep run_tests submit x")
HOSTILE = [
    *("a.py", "'", '"', "\ud800", "\0", "pytest", "cat a.py", '{"output": 3}', '{"output": "x"', "1 passed"),
    *("exit status 99999999999999999999", "*** Begin Patch\n*** Update File: a\n@@\n-x", "tests/test_a.py::b FAILED"),
    *("x" * 50_000, "(" * 5_000, "a|" * 3_000, "a: " * 2_000, "/" * 3_000),
]
TEXTS = st.one_of(st.text(max_size=60), st.sampled_from(HOSTILE))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
KEYS = words("command path file_path old new old_string new_str content input patch pattern view_range edits insert_line offset")
ARGUMENTS = st.one_of(st.dictionaries(KEYS, TEXTS, max_size=4), st.dictionaries(KEYS, JSON, max_size=4))
DETAILS = st.dictionaries(words("returncode passed failed changed"), JSON, max_size=2)
TURNS = st.lists(st.tuples(NAMES, ARGUMENTS, TEXTS, words("ok timeout command_failed odd"), DETAILS), max_size=5)
PARAMETERS = st.dictionaries(words("type properties required $ref pattern additionalProperties"), JSON, max_size=4)
FUNCTIONS = st.one_of(JSON, st.fixed_dictionaries({"name": NAMES, "parameters": PARAMETERS}))
TOOLS = st.lists(st.dictionaries(words("type function"), FUNCTIONS, max_size=2), max_size=2)


@given(turns=TURNS, said=TEXTS, tools=TOOLS)
def test_nothing_makes_a_detector_raise(turns, said, tools):
    work = trace(said, *turns, said, tools=tuple(tools))
    assert detect(work) == detect(work)


def test_arguments_nested_without_end():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    turn = ("x", {"command": deep, "path": deep}, "ok")
    tools = ({"type": "function", "function": {"name": "x", "parameters": {"properties": {"path": {"$ref": "#"}}, "x": 1}}},)
    assert detect(trace(turn, turn, ("bash", {"command": deep}, "ok"), tools=tools)) is not None
    assert json.dumps([step.signature for step in Reading(trace(turn)).steps])


@pytest.mark.parametrize("word", ["cat ", "git log ", "find a ", "sed ", "rm -x ", "> "])
def test_a_long_command_takes_no_quadratic_time(word):
    """It ends; in the square of its length it would not."""
    assert detect(trace(bash(word * (1 << 20), ""))) is not None
