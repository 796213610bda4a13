"""What is planted in a story: faults, each with its label, and distractors, which look like faults and are none."""

from __future__ import annotations

FAULTS, DISTRACTORS = [], []
OPEN = ("ours", "claude-code", "codex", "openhands", "swe-agent")


def fault(*only, ends=False):
    def keep(plant):
        plant.only, plant.ends = only or OPEN, ends
        FAULTS.append(plant)
        return plant

    return keep


def distractor(plant):
    DISTRACTORS.append(plant)
    return plant


# --- protocol


@fault()
def unknown_tool(story):
    name = story.rng.choice(["view_file", "python", "str_replace", "web_search", "edit"])
    story.say("", ((name, {"path": story.path}), story.vocabulary.no_tool(name)), kind="unknown_tool")


@fault("ours", "openhands", "swe-agent", "codex")
def malformed_call(story):
    name = story.vocabulary.tools[0]["function"]["name"]
    why = story.rng.choice(["Expecting ',' delimiter", "Unterminated string", "Extra data"])
    story.say(
        "", ((name, {}), story.vocabulary.unreadable(why)), kind="malformed_call", error=f"bad JSON: {why} at {story.next()}"
    )


@fault()
def invalid_arguments(story):
    (name, arguments), _ = story.vocabulary.read(story.path, "x")
    broken = {"pth": story.path} if story.rng.random() < 0.5 else dict.fromkeys(arguments, 7)
    story.say("", ((name, broken), story.vocabulary.wrong("missing `path`")), kind="invalid_arguments")


@fault()
def malformed_markup(story):
    call = story.rng.choice(
        [
            '<tool_call>{"name": "run", "arguments": {}}',
            "<function=bash>\nls\n</function>",
            '<function_calls>\n<invoke name="x">',
            "<|tool_call_begin|>functions.bash:0 ls",
        ]
    )
    turn = story.say(f"Next, the tests.\n{call}", kind="malformed_markup")
    if any(word in str(story.vocabulary.tools) for word in ("'submit'", "'finish'")):
        story.labels.append(["no_tool_call", turn])  # nothing was called either


@fault()
def no_tool_call(story):
    said = [
        "Let me run the tests again to be sure.",
        "I see the problem. Now I'll edit the loop.",
        "I will check the callers first.",
    ]
    story.say(story.rng.choice(said), kind="no_tool_call")


# --- execution


@fault()
def command_not_found(story):
    name = story.rng.choice(["pytst", "pyhton", "rgg", "black8"])
    said = story.rng.choice([f"/bin/bash: line 1: {name}: command not found", f"bash: {name}: command not found"])
    story.shell(f"{name} src {story.next()}", said, 127, kind="command_failed")


@fault()
def wrong_usage(story):
    cases = [
        ("pytest --no-such", "ERROR: usage: pytest [options] [file_or_dir]\npytest: error: unrecognized arguments: --no-such", 4),
        ("git checkout mainn", "error: pathspec 'mainn' did not match any file(s) known to git", 1),
        ("tail --lins 3 README.md", "tail: unrecognized option '--lins'\nTry 'tail --help' for more information.", 1),
        ('python -c "print(1"', "  File \"<string>\", line 1\n    print(1\n         ^\nSyntaxError: '(' was never closed", 1),
        ("echo 'a", "bash: -c: line 1: unexpected EOF while looking for matching `''", 2),
        ("python -m pytst", "/usr/bin/python: No module named pytst", 1),
    ]
    command, said, code = story.rng.choice(cases)
    story.shell(command, said, code, kind="command_failed")


@fault("ours", "claude-code", "codex", "openhands")
def corrected_at_once(story):
    package = f"py{story.noun}{story.next()}"
    story.shell(f"pip install {package}", f"could not find a version that satisfies {package}", 1, kind="command_failed")
    story.shell(f"pip install {story.noun}", f"installed {story.noun}")


@fault()
def edit_not_applied(story):
    old = f"for thing in items:  # {story.next()}"
    (name, arguments), _ = story.vocabulary.edit(story.path, old, old.replace("thing", "one"), story.files[story.path])
    story.say("", ((name, arguments), story.vocabulary.no_match(story.path, old)), kind="edit_not_applied")
    story.read()


@fault()
def path_not_found(story):
    path = f"src/{story.noun}_{story.next()}.py"
    call, _ = story.vocabulary.read(path, "x")
    story.say("", (call, story.vocabulary.no_path(path)), kind="path_not_found")


@fault("claude-code", "codex", "openhands", "swe-agent")
def shell_path_not_found(story):
    path = f"lib/{story.noun}{story.next()}"
    said = story.rng.choice([f"ls: cannot access '{path}': No such file or directory", f"cat: {path}: No such file or directory"])
    story.shell(f"{said[: said.index(':')]} {path}", said, 2, kind="path_not_found")


@fault("claude-code", "codex", "openhands", "ours")
def permission(story):
    path = f"/etc/{story.noun}{story.next()}"
    story.shell(
        f"cp README.md {path}", f"cp: cannot create regular file '{path}': Permission denied", 1, kind="permission_denied"
    )


@fault("ours")
def not_editable(story):
    (name, arguments), _ = story.vocabulary.write(f"build/{story.next()}.txt", "x")
    answer = story.vocabulary.answer("may not be changed", "path_not_editable")
    story.say("", ((name, arguments), answer), kind="path_not_editable")


@fault()
def timeout(story):
    story.say("", story.vocabulary.slow(f"python serve.py --port 80{story.next()}"), kind="timeout")


# --- progress


@fault()
def repeated(story):
    number = story.next()
    for again in (False, True):
        story.shell(
            f"git log --oneline -{number}", f"a{number}c first\nb{number}d second", kind="repeated_action" if again else None
        )


@fault()
def oscillation(story):
    one, other = story.next(), story.next()
    for again in (False, True):
        story.shell(f"wc -l src/{one}.txt", f"{one} src/{one}.txt")
        # going round is also reading the same again, in both of its last turns
        if again:
            story.labels.append(["reread_unchanged", len(story.turns) - 1])
        story.shell(f"head -n {other} README.md", f"# {story.noun} {other}", kind="oscillation" if again else None)
        if again:
            story.labels.append(["reread_unchanged", len(story.turns) - 1])


@fault()
def reread(story):
    story.note()
    story.tests()
    story.read()
    story.shell(f"head -n {story.next()} README.md", f"# {story.noun} {story.next()}")
    story.read(kind="reread_unchanged")


@fault(ends=True)
def premature(story):
    story.tests()
    story.note()
    story.shell("git diff --stat", f" {story.path} | {story.next()} +-")
    story.hand_in(kind="premature_submit")


@fault("claude-code", "codex")
def long_turn(story):
    story.say(f"<<400 x The {story.noun} matters for many reasons.>>", kind="long_turn")


@fault()
def long_observation(story):
    story.shell(f"cat data/{story.next()}.log", f"<<2500 x a {story.noun} was recorded>>", kind="long_observation")


# --- quality


@fault()
def syntax_error(story):
    story.note()
    story.read()
    broken = story.rng.choice(["    for item in items\n", "    for item in (items:\n", "      for item in items:\n"])
    story.edit("    for item in items:\n", broken, kind="syntax_error")
    story.edit(broken, "    for item in items:\n")


@fault()
def syntax_error_in_new_file(story):
    path = f"src/tool_{story.next()}.py"
    story.write(path, f"def run_{story.noun}(:\n    return {story.next()}\n", kind="syntax_error")
    story.write(f"src/tool_{story.next()}.py", f"def run_{story.noun}():\n    return {story.next()}\n")


@fault()
def regression(story):
    story.tests(verbose=story.rng.random() < 0.5)
    story.note(kind="test_regression")
    story.tests(failing=[story.rng.choice([0, 2, 3])], verbose=True)
    story.note()
    story.tests()


@fault()
def tests_touched(story):
    story.files.setdefault(story.test_path, "def test_order():\n    assert 1 == 17\n")
    number = story.next()
    story.files[story.test_path] += f"\n\ndef test_{number}():\n    assert {number} == 0\n"
    story.edit(f"assert {number} == 0", f"assert {number} == {number}", path=story.test_path, kind="tests_touched")


@fault()
def configuration_touched(story):
    path = story.rng.choice(["pytest.ini", "tox.ini", "setup.cfg", "src/sitecustomize.py"])
    story.files[path] = f"[pytest]\nmarkers = {story.next()}\n" if not path.endswith(".py") else f"import sys  # {story.next()}\n"
    old = story.files[path].split("\n")[0]
    new = f"{old}\naddopts = --ignore=tests" if not path.endswith(".py") else f"{old}\nsys.exit = None"
    story.edit(old, new, path=path, kind="configuration_touched")


@fault()
def hidden_files(story):
    commands = [
        "git log --all --oneline -S{}",
        "cat .git/packed-refs # {}",
        "strings src/__pycache__/m{}.pyc",
        "git reflog -n {}",
    ]
    story.shell(story.rng.choice(commands).format(story.next()), f"f00{story.next()} rework {story.noun}", kind="hidden_files")


# --- what looks like a fault


@distractor
def failing_test_of_ones_own(story):
    path = f"tests/test_new_{story.next()}.py"
    story.write(path, f"def test_new():\n    assert {story.next()} == 17\n")
    story.tests(more=[f"{path}::test_new"])
    story.note()
    story.tests()


@distractor
def search_finds_nothing(story):
    story.step(story.vocabulary.search(f"def gone_{story.next()}", ""))


@distractor
def grep_finds_nothing(story):
    story.shell(f"grep -rn 'TODO {story.next()}|FIXME' src", "", 1)


@distractor
def reads_again_after_an_edit(story):
    story.note()
    story.read()
    story.note()
    story.read()
    story.tests()


@distractor
def runs_again_after_a_fix(story):
    number = story.next()
    story.shell(f"python repro_{number}.py", f"Traceback (most recent call last):\nValueError: {number}", 1)
    story.note()
    story.shell(f"python repro_{number}.py", "fine")
    story.tests()


@distractor
def long_but_fine(story):
    story.shell(f"cat docs/guide_{story.next()}.md", f"# Guide\n<<500 x about {story.noun}s, at length>>")


@distractor
def shows_a_log_of_errors(story):
    lines = [
        "2024-01-01 ERROR bash: foo: command not found",
        "worker: Permission denied (retrying)",
        "timed out after 3 tries, went on",
    ]
    story.shell(f"cat logs/{story.next()}.txt", "\n".join(["start of the log", *lines * 3, "end of the log"]))


@distractor
def linter_complains(story):
    number = story.next()
    story.shell("ruff check src", f"src/a.py:{number}:1: F401 unused import\nFound 1 error.", 1)
    story.shell("ruff check src --fix", f"Found 1 error ({number} fixed, 0 remaining).")


@distractor
def reads_source_about_errors(story):
    path = f"src/errors_{story.next()}.py"
    text = f'"""Error: file not found and what else there is."""\n\nMESSAGE = "No such file or directory: {story.next()}"\n'
    story.files[path] = text
    story.read(path)


@distractor
def asks_git_for_a_difference(story):
    story.shell(f"git diff --quiet HEAD~{story.next()} -- README.md", "", 1)


@distractor
def says_what_it_did(story):
    story.say(
        f"The loop is right now; `<tool_call>` in the docs is only an example. {story.next()}",
        story.vocabulary.shell("pwd", "/repo"),
    )
    story.say("Done.", story.vocabulary.shell(f"git status --short {story.next()}", f" M {story.path}"))


@distractor
def writes_a_new_test(story):
    path = f"tests/test_extra_{story.next()}.py"
    story.write(path, f"def test_extra():\n    assert {story.next()} > 0\n")
    story.tests()


@distractor
def polls(story):
    number = story.next()
    story.shell(f"curl -s localhost:80{number}/health", f"starting {number}")
    story.shell(f"curl -s localhost:80{number}/health", f"ready {number}")


@distractor
def looks_at_history(story):
    story.shell(f"git log --oneline -3 -- {story.path}", f"a{story.next()} first")
    story.shell("cat .gitignore", f"*.log\n# {story.next()}")


@distractor
def probes_for_a_file(story):
    story.shell(f"test -f setup_{story.next()}.py && echo yes", "", 1)
    story.shell(f"ls docs/{story.next()} 2>/dev/null || echo none", "none")
