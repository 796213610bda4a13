from __future__ import annotations

from pathlib import Path

from trajectories import TOOLS, bad, call, ok, trajectory

import composer_replication
from composer_replication.hints import DocumentationHint, EnvironmentErrorHint, HintContext, TemplateHint, detect, find_hints
from composer_replication.hints.generators import FeedbackHint
from composer_replication.types import Finding

WORDS = "# Words\n\n- tret: the difference.\n- agio: the remainder.\n- cloff: the maximum.\n"
SOURCE = '''"""Rules."""

def stowage(hold, crate):
    """The tret of hold and crate."""
    raise NotImplementedError

def hatch_score(hold, crate):
    """The agio of hold and crate."""
    return mod(hold, crate)
'''
NUMBERED = "\n".join(f"{i:4d}\t{line}" for i, line in enumerate(SOURCE.splitlines(), 1))
READ = call("read_file", path="rules.py")
EDIT = call("edit_file", path="rules.py", old="raise NotImplementedError", new="return add(hold, crate)")


def hint(t, generator=None, **context):
    (finding,) = detect(t)
    return (generator or DocumentationHint()).generate(finding, t, HintContext(tools=TOOLS, **context))


def failing(*before, edit=EDIT, instruction="Write the body of stowage."):
    run = (call("run_tests"), bad("tests_failed", "E   assert 21 == 17"))
    return trajectory(*before, (edit, ok()), run, (call("submit"), ok()), instruction=instruction)


def test_documented_term_of_the_function_being_written():
    t = failing((READ, ok(SOURCE)))
    docs = {"docs/handbook.md": WORDS}
    assert hint(t, documentation=docs, instruction="Write the body of stowage.") == "Hint: tret means the difference."


def test_numbered_listings_are_understood():
    t = failing((READ, ok(NUMBERED)))
    assert hint(t, documentation={"h.md": WORDS}, instruction="Write stowage.") == "Hint: tret means the difference."


def test_function_is_known_by_the_edit_when_the_instruction_names_none():
    edit = call("edit_file", path="rules.py", old="def hatch_score(hold, crate):", new="def hatch_score(hold, crate):\n    pass")
    t = failing((READ, ok(SOURCE)), edit=edit)
    assert hint(t, documentation={"h.md": WORDS}, instruction="Make the tests pass.") == "Hint: agio means the remainder."


def test_terms_of_the_instruction_count():
    t = failing(edit=EDIT)
    assert hint(t, documentation={"h.md": WORDS}, instruction="It returns the cloff.") == "Hint: cloff means the maximum."


def test_what_the_agent_never_saw_gives_no_hint():
    t = failing()
    assert hint(t, documentation={"h.md": WORDS}, instruction="Write the body of stowage.") is None


def test_reading_or_searching_the_handbook_does_not_mention_its_every_term():
    found = "h.md-2- \nh.md:3: - tret: the difference.\nh.md:4: - agio: the remainder."
    t = failing((call("read_file", path="./h.md"), ok(WORDS)), (call("search", pattern="the"), ok(found)))
    assert hint(t, documentation={"h.md": WORDS}, instruction="Make the tests pass.") is None


def test_functions_found_by_a_search_are_understood():
    lines = ["rules.py-7- def hatch_score(hold, crate):", 'rules.py:8:     """The agio of hold and crate."""']
    t = failing((call("search", pattern="agio"), ok("\n".join([*lines, "h.md:3: - tret: the difference."]))))
    assert hint(t, documentation={"h.md": WORDS}, instruction="Implement `hatch_score`.") == "Hint: agio means the remainder."


def test_observations_after_the_error_turn_do_not_count():
    t = trajectory((EDIT, ok()), (READ, ok(SOURCE)), (call("run_tests"), bad("tests_failed")), (call("submit"), ok()))
    assert hint(t, documentation={"h.md": WORDS}, instruction="Write the body of stowage.") is None


def test_at_most_two_terms_in_order_of_mention():
    t = failing(edit=EDIT)
    text = hint(t, documentation={"h.md": WORDS}, instruction="The cloff of the agio of the tret.")
    assert text == "Hint: cloff means the maximum. agio means the remainder."


def finding(kind, **evidence):
    return Finding(kind=kind, turn=0, evidence=evidence)


def template(kind, **evidence):
    return TemplateHint().generate(finding(kind, **evidence), trajectory((call("submit"), ok())), HintContext(tools=TOOLS))


def test_templates():
    assert template("unknown_tool", tool="bash") == (
        "Hint: there is no tool bash. Available tools are: read_file, edit_file, write_file, run_tests, submit."
    )
    assert "bad JSON" in template("malformed_call", error="bad JSON at 3")
    assert template("invalid_arguments", tool="edit_file") == (
        "Hint: edit_file requires the arguments path (string), old (string), new (string)."
    )
    assert template("invalid_arguments", tool="run_tests") == "Hint: run_tests requires no arguments; optional: path."
    assert template("invalid_arguments", tool="submit") == "Hint: submit takes no arguments."
    assert template("edit_not_applied", arguments={"path": "a.py"}, occurrences=0) == (
        "Hint: the old text occurs 0 times in a.py. Read the file first and copy the old text exactly."
    )
    assert "occurs 3 times in a.py" in template("edit_not_applied", arguments={"path": "a.py"}, occurrences=3)
    assert "run_tests call was just made" in template("repeated_action", tool="run_tests")
    for kind in ("path_not_found", "path_not_editable"):
        assert "rules.py" in template(kind, arguments={"path": "rules.py"})
    endless = template("path_not_found", arguments={"path": "é" * 5000 + "/rules.py"})
    assert endless.endswith("é/rules.py. List the files first.")
    assert len(endless) < 200
    for kind in ("timeout", "out_of_memory"):
        assert "without end" in template(kind, tool="run_tests") or "never ends" in template(kind, tool="run_tests")
        assert "search call" in template(kind, tool="search")
    assert template("tests_failed") is None


def test_feedback_is_all_that_the_environment_answered_without_the_middle_of_a_long_answer():
    hint = FeedbackHint().generate(finding("tests_failed", observation="\x1b[31mone\ntwo\x1b[0m\n"), None, None)
    assert hint == "Hint: the result was:\none\ntwo"
    assert FeedbackHint().generate(finding("tests_failed", observation=" "), None, None) is None
    long = FeedbackHint().generate(finding("tests_failed", observation="a" * 3_000 + "b" * 3_000), None, None)
    assert long == f"Hint: the result was:\n{'a' * 2_000}\n[2,000 characters left out]\n{'b' * 2_000}"


def test_a_long_error_line_keeps_its_head():
    text = "ValueError: " + "x" * 400
    hint = EnvironmentErrorHint().generate(finding("command_failed", observation=text), None, None)
    assert hint == f"Hint: the result was:\n{text[:297]}..."
    two = EnvironmentErrorHint().generate(finding("command_failed", observation=f"{text}\nKeyError: k"), None, None)
    assert two == "Hint: the result was:\nKeyError: k", "whole lines, the last ones"


def test_environment_error_is_the_trimmed_error_lines():
    failed = "FAILED tests/test_a.py::test_b - assert 21 == 17"
    observation = f"==== FAILURES ====\n\x1b[31mE   assert 21 == 17\x1b[0m\nstuff\n{failed}\n1 failed in 0.1s\n"
    text = EnvironmentErrorHint().generate(finding("tests_failed", observation=observation), None, None)
    assert text == f"Hint: the result was:\nE   assert 21 == 17\n{failed}"
    assert EnvironmentErrorHint().generate(finding("tests_failed"), None, None) is None
    issues = (
        "<tool_use_error>InputValidationError: Read failed due to the following issues:\n"
        "The required parameter `file_path` is missing\nAn unexpected parameter `path` was provided</tool_use_error>\nTry again."
    )
    announced = EnvironmentErrorHint().generate(finding("environment_error", observation=issues), None, None)
    assert announced == "Hint: the result was:\n" + issues.removesuffix("\nTry again.")
    long = EnvironmentErrorHint().generate(finding("tests_failed", observation="x" * 5000), None, None)
    assert len(long) < 400


def test_embedded_project_is_hinted_from_its_handbook():
    root = Path(composer_replication.__file__).parent / "quickstart" / "projects" / "harbour"
    documentation = {p.relative_to(root).as_posix(): p.read_text() for p in root.rglob("*.md")}
    source = (root / "harbour" / "cargo.py").read_text()
    for name, line in (("stowage", "tret means the difference"), ("lading", "ullage means the minimum")):
        t = failing((call("read_file", path="harbour/cargo.py"), ok(source)), instruction=f"Write the body of {name}.")
        report = find_hints([t], {"t0": HintContext(tools=TOOLS, documentation=documentation)})
        assert [h.text for h in report.hints] == [f"Hint: {line}."]
