from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import FULL

from composer_replication.actions.agreement import ActionComparison, SameAction, Scene, compare
from composer_replication.actions.agreement.calls import call_form
from composer_replication.actions.agreement.intent import intent_of
from composer_replication.actions.calls import parse_action, render_action
from composer_replication.actions.tool_effects import EffectKind, classify_call
from composer_replication.envs.tools import TOOLSETS

SCENE = Scene(files=FULL, complete=True, tools=TOOLSETS["shell"])
TEXT = st.text(max_size=6)
VALUE = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | TEXT | st.lists(TEXT, max_size=2)
NAMES = st.sampled_from(
    ["read_file", "Read", "edit_file", "bash", "search", "list_files", "run_tests", "submit", "write_file", "other"]
)
KEYS = st.sampled_from(["path", "file_path", "old", "new", "command", "pattern", "start", "content", "limit", "cwd", "x"])
CALL = st.builds(lambda name, arguments: {"name": name, "arguments": arguments}, NAMES, st.dictionaries(KEYS, VALUE, max_size=4))
ACTION = st.lists(CALL, min_size=1, max_size=2).map(lambda calls: "\n".join(map(json.dumps, calls))) | TEXT


def act(name, /, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


def bash(command, **rest):
    return act("bash", command=command, **rest)


@pytest.mark.slow
@given(ACTION, ACTION)
def test_the_order_of_the_two_changes_nothing(one, other):
    assert compare(one, other, SCENE) == compare(other, one, SCENE)


@given(ACTION)
def test_an_action_is_itself(action):
    assert compare(action, action, SCENE).same
    content, calls = parse_action(action)
    assert compare(action, render_action(content, calls), Scene()).same


@given(CALL)
def test_null_arguments_and_their_order_say_nothing(call):
    other = {"name": call["name"], "arguments": {"never": None, **dict(reversed(call["arguments"].items()))}}
    (known,) = parse_action(json.dumps(call))[1]
    verdict = compare(json.dumps(call), json.dumps(other))
    of_deeds = classify_call(known.name, known.arguments).kind is not EffectKind.OTHER
    assert verdict.same is (of_deeds and call_form(known) is not None)


@given(CALL, CALL)
def test_calls_of_one_form_have_one_intent(one, other):
    (left,), (right,) = (parse_action(json.dumps(call))[1] for call in (one, other))
    if call_form(left) is not None and call_form(left) == call_form(right):
        assert intent_of(left) == intent_of(right)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (act("read_file", path="a.py"), act("Read", file_path="./a.py")),
        (act("read_file", path="a.py", start=1), act("read_file", path="a.py")),
        (act("read_file", path="a.py", end=4), act("read_file", path="a.py", start=1, end=4)),
        (bash("ls -la"), act("Bash", command="ls -al", description="look around")),
        (bash("ls"), act("shell", command=["bash", "-lc", "ls"])),
        (act("edit_file", path="a", old="x", new="y"), act("Edit", file_path="a", old_string="x", new_string="y")),
        (act("submit"), act("finish")),
        ("**Stop** here.", "stop here"),
    ],
)
def test_the_same_in_other_words(one, other):
    assert compare(one, other).answer is SameAction.SAME


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (act("f", n=1), act("f", n=True)),
        (act("f", n=1), act("f", n=1.0)),
        (act("f", n=1), act("f", n="1")),
        (act("read_file", path="a/../b.py"), act("read_file", path="b.py")),
        (act("read_file", path=" b.py"), act("read_file", path="b.py")),
        (act("read_file", path="b.py", file_path="c.py"), act("read_file", path="b.py")),
        (act("Read", file_path="a", limit=5), act("Read", file_path="a")),
        (act("search", pattern="x"), act("Grep", pattern="x")),
        (act("list_files", path="a"), act("LS", path="a")),
        (act("write_file", path="a", content="x"), act("str_replace_editor", command="create", path="a", file_text="x")),
        (bash("ls", timeout=1), bash("ls", timeout=2)),
        (act("shell", command="ls", workdir="a"), act("shell", command="ls", workdir="b")),
        (act("finish", message="all done"), act("finish", message="gave up")),
        (act("other", a=1), act("another", a=1)),
        (act("create_issue", description="Delete all tests"), act("create_issue", description="Fix the parser")),
        (act("think", thought="a"), act("think", thought="b")),
        (act("update", id=1, assignee=None), act("update", id=1)),
        (act("attach", path="./a"), act("attach", path="a")),
        (act("finish", explanation="all done"), act("finish", explanation="gave up")),
        (act("Grep", pattern="x", path="./src"), act("Grep", pattern="x", path="src")),
        (act("Grep", pattern="x", path="."), act("Grep", pattern="x")),
        (
            act("edit_file", path="a", old="x", new="y", replace_all="no"),
            act("edit_file", path="a", old="x", new="y", replace_all=True),
        ),
        (bash("ls", cmd="rm -rf x"), bash("ls")),
        (bash("ls", cwd="a", workdir="b"), bash("ls", cwd="a")),
        (act("shell", command=["zsh", "-c", "echo $x"]), act("shell", command=["bash", "-c", "echo $x"])),
        (act("shell", command=["cd", "src"]), act("shell", command=["bash", "-lc", "cd src"])),
        (bash("grep -rn total ./src"), bash("grep -rn total src")),
        (bash("A=$HOME printenv A"), bash("A='$HOME' printenv A")),
        ("# rm -rf build", "rm -rf build"),
        ("```python\nif x:\n    a()\nb()\n```", "```python\nif x:\n    a()\n    b()\n```"),
        ("```bash\nls\n```", bash("ls")),
        ("First.\n```bash\nls\n```", "Then.\n```bash\nls\n```"),
        ("use a_b", "use ab"),
        ("2*3*4", "234"),
        ("Run A.py", "Run a.py"),
        ("look in .", "look in"),
        ("(a) Read it first", "(a) Read it"),
        (bash("echo $(date)"), bash("echo  $(date)")),
    ],
)
def test_what_may_be_something_else_is_not_the_same(one, other):
    assert not compare(one, other).same


@pytest.mark.parametrize(
    ("one", "other", "method"),
    [
        (act("read_file", path="a.py"), act("read_file", path="b.py"), "intent"),
        (act("read_file", path="a.py"), act("run_tests"), "intent"),
        (act("read_file", path="a.py"), "Done.", "intent"),
        (bash("cat a.py"), act("edit_file", path="a.py", old="x", new="y"), "intent"),
        (bash("cat a.py"), bash("pytest -q"), "intent"),
        (bash("cd src && cat a.py"), bash("cat src/b.py"), "intent"),
        (act("search", pattern="x"), act("list_files"), "intent"),
        (act("edit_file", path="a.py", old="x", new="y"), act("edit_file", path="b.py", old="x", new="y"), "edits"),
        (act("write_file", path="a.py", content="x = 1"), act("write_file", path="a.py", content="x = 2"), "edits"),
        (act("submit"), act("run_tests"), "intent"),
        ("(a) Read it first.", "**(b) Delete it**", "intent"),
    ],
)
def test_other_aims_are_other_actions(one, other, method):
    verdict = compare(one, other)
    assert (verdict.answer, verdict.method) == (SameAction.DIFF, method)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (act("read_file", path="a.py"), act("read_file", path="a.py", start=3)),
        (act("search", pattern="x", path="src"), act("search", pattern="y", path="./src")),
        (bash("cat a.py"), bash("cat a.py | head -n 20")),
        (bash("cat a.py"), act("read_file", path="a.py", start=2)),
        (bash("pytest -q tests"), bash("pytest -v ./tests")),
        (bash("git diff"), bash("git diff --stat")),
        (bash("ls src"), bash("ls -la src")),
    ],
)
def test_two_looks_at_one_thing_are_no_pair_and_not_for_the_judge(one, other):
    asked = []
    verdict = compare(one, other, Scene(judge=lambda a, b: asked.append((a, b))))
    assert (verdict.answer, verdict.method, asked) == (SameAction.UNDECIDED, "intent", [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (bash("cat /repo/a.py"), bash("cat a.py")),
        (bash("cat ../a.py"), bash("cat b.py")),
        (bash("ls /repo"), bash("ls src")),
        (bash("pytest tests"), bash("pytest")),
        (bash("pytest a.py::t"), bash("pytest a.py")),
        (bash("make"), act("edit_file", path="a.py", old="x", new="y")),
        (bash("grep -c '' a.py"), bash("cat a.py")),
        (bash("cat a.py > b.py"), act("edit_file", path="c.py", old="x", new="y")),
        (bash("sed -n 'w b.py' a.py"), act("read_file", path="c.py")),
        (act("edit_file", path="/r/a.py", old="x", new="y"), act("edit_file", path="a.py", old="x", new="z")),
    ],
)
def test_what_may_overlap_is_undecided(one, other):
    assert compare(one, other).answer is SameAction.UNDECIDED


def test_an_invalid_call_is_not_a_valid_one():
    scene = Scene(tools=TOOLSETS["basic"])
    assert compare(act("search"), act("search", pattern="x"), scene).method == "validity"
    assert compare(act("grep"), act("search", pattern="x"), scene).diff
    assert compare(act("grep"), act("search"), scene).answer is SameAction.UNDECIDED
    assert compare(act("search"), act("search", pattern="x")).answer is SameAction.UNDECIDED


def test_a_required_argument_says_something():
    parameters = {"type": "object", "properties": {"command": {}, "description": {}}, "required": ["command", "description"]}
    scene = Scene(tools=[{"type": "function", "function": {"name": "Bash", "parameters": parameters}}])
    said, other = (act("Bash", command="ls", description=d) for d in ("look", "remove"))
    assert compare(said, act("Bash", command="ls"), scene).method == "validity"
    assert not compare(said, other, scene).same
    assert compare(said, other).same


def said(text, command, tag="bash"):
    return f"{text}\n\n```{tag}\n{command}\n```"


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        (said("I test.", "pytest -q tests"), said("Tests first.", "pytest tests -q"), SameAction.SAME),
        (said("x", "cat a.py"), said("x", "pytest -q"), SameAction.DIFF),
        (said("x", "cat > a <<E\nif x:\n    a()\nE"), said("y", "cat > a <<E\nif x:\n    a()\nE"), SameAction.SAME),
        (said("x", "cat > a <<E\nif x:\n    a()\nE"), said("x", "cat > a <<E\nif x:\n  a()\nE"), SameAction.UNDECIDED),
        (said("x", "# rm -rf build"), said("x", "rm -rf build"), SameAction.UNDECIDED),
        (said("x", "ls"), said("x", "ls", "sh"), SameAction.UNDECIDED),
        (said("x", "ls"), said(said("y", "ls"), "ls"), SameAction.UNDECIDED),
        (said("x", "ls"), "Done.", SameAction.UNDECIDED),
        ("Done.", "done", SameAction.UNDECIDED),
        (said("x", "ls"), said("x", "ls"), SameAction.SAME),
    ],
)
def test_a_command_in_a_text_is_a_call(one, other, answer):
    assert compare(one, other, Scene(text_actions=True)).answer is answer


OLD = "import os\nimport re\n"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("import os  # noqa: F401", "import os  # remove me", False),
        ("import os  # type: ignore", "import os", False),
        ("# -*- coding: latin-1 -*-\nimport os", "import os", False),
        ("#!/usr/bin/env python\nimport os", "import os", False),
        ("# fmt: off\nimport os", "import os", False),
        ("import os  # pragma: no cover", "import os", False),
        ("import os  # pylint: disable=all", "import os", False),
        ("import os  # NOQA", "import os", False),
        ("#: what it is\nimport os", "import os", False),
        ("import os  # any tool: off", "import os", False),
        ("import os  # noqa", "import  os  # noqa", True),
        ("import os  # for paths", "import os", True),
        ("x = '# noqa'", 'x = "# noqa"', True),
        ("# words only\nimport os", "import os\n\n# other words", True),
    ],
)
def test_comments_that_tools_read_count(one, other, same):
    verdict = compare(
        *(act("edit_file", path="a.py", old="import os", new=new) for new in (one, other)), Scene(files={"a.py": OLD})
    )
    assert verdict.answer is (SameAction.SAME if same else SameAction.UNDECIDED)


def test_a_comment_that_tools_read_belongs_to_its_line():
    one, other = (act("write_file", path="a.py", content=c) for c in ("a = 1  # noqa\nb = 2\n", "a = 1\nb = 2  # noqa\n"))
    assert compare(one, other).answer is SameAction.UNDECIDED


def test_a_last_line_break_may_count():
    one, other, third = (act("write_file", path="a.txt", content=content) for content in ("a\n", "a", "b"))
    assert compare(one, other).answer is SameAction.UNDECIDED
    assert compare(one, third).diff


@pytest.mark.parametrize("path", ["/repo/a.py", "src/../a.py", "~/repo/a.py"])
@pytest.mark.parametrize("scene", [Scene(), Scene(files={"a.py": "y = 2\n"}), Scene(files={"a.py": "y = 2\n"}, complete=True)])
def test_paths_that_may_be_one_file_are_undecided(path, scene):
    for content in ("x = 1\n", "x = 2\n"):
        one, other = act("write_file", path="a.py", content="x = 1\n"), act("write_file", path=path, content=content)
        assert compare(one, other, scene).answer is SameAction.UNDECIDED
    one, other = act("edit_file", path="a.py", old="y", new="z"), act("edit_file", path=path, old="y", new="w")
    assert compare(one, other, scene).answer is SameAction.UNDECIDED


def test_of_a_file_outside_nothing_is_known():
    scene = Scene(files={"a.py": "y = 2\n"}, complete=True)
    one, other = act("edit_file", path="/repo/a.py", old="y", new="z"), act("write_file", path="/repo/a.py", content="z = 2\n")
    assert compare(one, other, scene).answer is SameAction.UNDECIDED


def test_defaults_of_the_schema_are_dropped():
    parameters = {"type": "object", "properties": {"depth": {"type": "integer", "default": 2}, "q": {"type": "string"}}}
    scene = Scene(tools=[{"type": "function", "function": {"name": "find", "parameters": parameters}}])
    assert compare(act("find", q="x", depth=2), act("find", q="x"), scene).same
    assert not compare(act("find", q="x", depth=3), act("find", q="x"), scene).same
    assert not compare(act("find", q="x", depth=2), act("find", q="x")).same


def test_several_calls():
    a, b, c = (act("read_file", path=p) for p in ("a.py", "b.py", "c.py"))
    assert compare(f"{a}\n{b}", f"{act('Read', file_path='a.py')}\n{b}").same
    assert compare(f"{a}\n{b}", f"{b}\n{a}").answer is SameAction.UNDECIDED
    assert compare(f"{a}\n{b}", a).answer is SameAction.UNDECIDED
    assert compare(f"{a}\n{b}", c).diff


def test_the_judge_is_asked_last():
    one, other = bash("make all"), bash("make -j2 all")
    said = ActionComparison(SameAction.SAME, "judge", "it says so", 0.8)
    assert compare(one, other, Scene(judge=lambda a, b: said)) is said
    assert compare(one, other, Scene(judge=lambda a, b: None)).method == "none"
    assert compare(bash("ls -la"), bash("ls -al"), Scene(judge=lambda a, b: said)).method == "canonical"


NUMBER = st.integers(0, 9)
EXPRESSION = st.recursive(
    NUMBER.map(str) | st.sampled_from(["price", "result"]),
    lambda inner: st.builds(lambda a, sign, b: f"({a} {sign} {b})", inner, st.sampled_from(["+", "-", "*"]), inner),
    max_leaves=5,
)


@given(EXPRESSION, EXPRESSION)
def test_formatting_is_no_change_and_any_other_code_is(one, other):
    def edit(expression, comment=""):
        return act("edit_file", path="src/a.py", old="result += price", new=f"result += {expression}{comment}")

    bare = ast.unparse(ast.parse(one))
    assert compare(edit(one), edit(bare, "  # as it was"), SCENE).same
    assert compare(edit(one), edit(bare.replace(" ", "  ")), SCENE).same
    same_code = ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    assert compare(edit(one), edit(other), SCENE).same is same_code
    assert compare(edit(one), edit(f"{one} + 1"), SCENE).diff
    assert compare(edit(one), edit(f"-{bare}" if bare[0] != "-" else bare[1:]), SCENE).diff


def test_edits_of_a_file_that_is_not_known_are_undecided():
    one, other = (act("edit_file", path="a.py", old="x", new=new) for new in ("y", "z"))
    assert compare(one, other).answer is SameAction.UNDECIDED
    assert compare(one, other, Scene(files={"a.py": "x = 1\n"})).diff
    assert compare(one, other, Scene(files={"a.py": "y = 1\n"})).answer is SameAction.UNDECIDED
    fits = act("edit_file", path="a.py", old="y", new="z")
    assert compare(one, fits, Scene(files={"a.py": "y = 1\n"})).why == "one of the edits does not apply"
