"""Detectors over words that were met in the wild, and what only looks like an error there. The texts are made up."""

from __future__ import annotations

import dataclasses

import pytest

from composer_replication.hints import Reading, detect
from composer_replication.types import ToolCall, ToolResult
from composer_replication.types.transcript import Trace, TraceTurn

DONE = "All is well."


def trace(*turns):
    """Each turn is its text, or pairs of `(command or (name, arguments), answer)`; an exit code stands before the answer."""
    made = []
    for number, turn in enumerate(turns):
        pairs = () if isinstance(turn, str) else turn
        calls, results = [], []
        for place, (asked, answer) in enumerate(pairs):
            name, arguments = ("Bash", {"command": asked}) if isinstance(asked, str) else asked
            calls.append(ToolCall(call_id=f"c{number}_{place}", name=name, arguments=arguments))
            results.append(ToolResult(call_id=f"c{number}_{place}", name=name, content=answer))
        text = turn if isinstance(turn, str) else ""
        made.append(TraceTurn(context=(), text=text, tool_calls=tuple(calls), results=tuple(results)))
    return Trace(trajectory_id="t", format="x", turns=tuple(made), messages=({"role": "user", "content": "Go."},))


def found(*turns):
    return [(finding.kind, finding.turn) for finding in detect(trace(*turns))]


def failed(answer, code=1):
    return f"Exit code {code}\n{answer}"


def codex(answer, code=1):
    return f"Chunk ID: 1a\nWall time: 0.1 seconds\nProcess exited with code {code}\nOutput:\n{answer}\n"


VIEW, CREATE = {"command": "view", "path": "a"}, {"command": "create", "path": "/w/a", "file_text": ""}
TIMED_OUT = "Exit code: 124\nWall time: 9 seconds\nOutput:\ncommand timed out after 9000 milliseconds"
CUT = "<returncode>0</returncode>\n<warning>\nThe output of your last command was too long.\n</warning>"
SCRIPT = "Script failed\nWall time 0.1 seconds\nOutput:\n\nScript error:\n"


@pytest.mark.parametrize(
    ("asked", "answer", "kind"),
    [
        ("sed -n 1p app/[id]/a.ts", codex("zsh:1: no matches found: app/[id]/a.ts"), "command_failed"),
        ("rg -n \"a", codex('zsh:1: unmatched "'), "command_failed"),
        ("echo (a", failed("zsh: parse error near `('"), "command_failed"),
        ("cd gone", failed("zsh:cd:1: no such file or directory: gone"), "path_not_found"),
        ("python a.py && timeout 8 run | head", "(eval):1: command not found: timeout", "command_failed"),
        ("npm i a@1", failed("npm error code ERESOLVE\nnpm error ERESOLVE unable to resolve"), "command_failed"),
        ("git rm --cached a", failed("error: the following file has staged text\n(use -f to force removal)"), "command_failed"),
        ("npm run dev", failed("Error: listen EADDRINUSE: address already in use :::3000"), "command_failed"),
        ("python serve.py", failed("OSError: [Errno 98] Address already in use"), "command_failed"),
        ("npx next dev", failed("\u2a2f Unable to acquire lock at /w/.next/dev/lock, is another running?"), "command_failed"),
        ("apt-get install x", failed("E: Could not get lock /var/lib/dpkg/lock-frontend", 100), "command_failed"),
        ("git commit -m x", failed("fatal: Unable to create '/w/.git/index.lock': File exists.", 128), "command_failed"),
        ("bash run.sh", failed("\0".join("Windows Subsystem for Linux has no installed distributions.")), "command_failed"),
        ("bash run.sh", failed("Access is denied.\nError code: Bash/Service/CreateInstance/E_ACCESSDENIED"), "command_failed"),
        ("rg x gone", failed("rg: gone: No such file or directory (os error 2)", 2), "path_not_found"),
        ("strings gone.img | grep x", "strings: 'gone.img': No such file", "path_not_found"),
        ("file ~/x/*", "/srv/x/*: cannot open `/srv/x/*' (No such file or directory)", "path_not_found"),
        ("edit 2:2\nx = (\nend_of_edit", "Your proposed edit has introduced new syntax error(s).", "edit_not_applied"),
        ("open gone.py", "File gone.py not found", "path_not_found"),
        ("submit 'x'", "Wrong flag!", "command_failed"),
        (("request_user_input", {}), "request_user_input is unavailable in Default mode", "unknown_tool"),
        (("Read", {"file_path": "/a"}), "File content (403.3KB) exceeds maximum allowed size (256KB).", "invalid_arguments"),
        (("file_editor", VIEW), "Invalid `path` parameter: a. The path should be an absolute path", "invalid_arguments"),
        (("file_editor", CREATE), "Ran into [Errno 2] No such file or directory: '/w/a'", "path_not_found"),
        (("shell_command", {"command": "x"}), TIMED_OUT, "timeout"),
        ("cat a.py", CUT, "long_observation"),
        (("exec", {"input": "1"}), f"{SCRIPT}apply_patch verification failed: x", "edit_not_applied"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_words_of_an_environment(asked, answer, kind):
    status = "edit_not_applied" if answer.startswith("Script failed") else "ok"  # as the reader tells it
    work = trace([("ls", "a.py")], [(asked, answer)], [("python try.py", "1")], DONE)
    (turn,) = work.turns[1:2]
    told = dataclasses.replace(turn, results=(dataclasses.replace(turn.results[0], status=status),))
    work = dataclasses.replace(work, turns=(work.turns[0], told, *work.turns[2:]))
    assert [(finding.kind, finding.turn) for finding in detect(work)] == [(kind, 1)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("ls a gone", failed("ls: gone: No such file or directory\na:\nx.py")),
        ("rg --files src gone", failed("rg: gone: No such file or directory (os error 2)\nsrc/a.py", 2)),
        ("find src gone -type f", codex("find: gone: No such file or directory\nsrc/a.py")),
        ("cat log.txt", "(eval):1: command not found: timeout"),
        ("cat log.txt", "Wrong flag!"),
        ("find . -type f -not -path './.git/*' | sort", "./a.py"),
        ("find . ! -path ./.git/x -o -path ./.git/y -prune -o -print", "./a.py"),
        ("grep -r --exclude-dir=./.git/ x .", "a.py:x"),
        ("pytest -q", failed("E  OSError: [Errno 98] Address already in use\n1 failed")),
        ("npm run dev", "Port 3000 is in use, trying 3001 instead."),
        (("Read", {"file_path": "/a"}), "     1\tFile content (1KB) exceeds maximum allowed size"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_only_looks_like_one(asked, answer):
    assert found([("ls", "a.py")], [(asked, answer)], [("python try.py", "1")], DONE) == []


@pytest.mark.parametrize("command", ["cd a && npx hardhat compile 2>&1", "forge build", "npx tsc", "cargo check", "anchor build"])
def test_what_a_compiler_says_is_an_answer(command):
    """Also when the next turn makes nearly the same call."""
    assert found([(command, failed("one error"))], [(f"{command} --all", "fine")], DONE) == []


def test_several_listings_of_one_turn_ask_what_there_is():
    gone = "find: x/gone: No such file or directory"
    one, other = ("find x/a -type f", codex("x/a/b.py", 0)), ("find x/gone -type f", codex(gone))
    assert found([one, other], [("python try.py", "1")], DONE) == []
    assert found([other], [one], [("python try.py", "1")], DONE) == [("path_not_found", 0)]
    assert found([("cat a", "x"), ("cat gone", failed("cat: gone: No such file or directory"))], DONE) == [("path_not_found", 0)]


def test_a_listing_that_finds_nothing_at_all():
    both = failed("ls: a: No such file or directory\nls: b: No such file or directory")
    assert found([("ls a b", both)], DONE) == [("path_not_found", 0)]
    shown = failed("ls: a: No such file or directory\ncat: b: No such file or directory")
    assert found([("ls a c; cat b", shown)], DONE) == [("path_not_found", 0)]


BROKEN = codex("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted")


def test_a_sandbox_that_does_not_work_is_blamed_the_second_time():
    assert found([("ls", BROKEN), ("git log", BROKEN)], DONE) == []
    assert found([("ls", BROKEN)], [("pwd", "/w")], [("git log", BROKEN)], DONE) == [("permission_denied", 2)]
    own = [("bwrap --dev /dev true", BROKEN)]
    assert found(own, DONE) == [("permission_denied", 0)]


NONE = codex("fatal: not a git repository (or any of the parent directories): .git", 128)


def test_that_a_folder_is_no_repository_is_an_answer_the_first_time():
    assert found([("git log --oneline", NONE), ("git remote -v", NONE)], DONE) == []
    assert found([("git log", NONE)], [("git status", NONE)], DONE) == [("command_failed", 1)]
    assert found([("git commit -m x", NONE)], DONE) == [("command_failed", 0)]


def test_every_repeat_is_one():
    again = [("date -r a", "1")]
    assert found(again, again, again, again, DONE) == [("repeated_action", turn) for turn in (1, 2, 3)]
    other = [("python b.py", "1")]
    assert found(again, again, other, again, again, DONE) == [("repeated_action", 1), ("repeated_action", 4)]


def test_the_same_start_in_the_background():
    def start(job, description, command="python fetch.py"):
        arguments = {"command": command, "description": description, "run_in_background": True}
        return [(("Bash", arguments), f"Command running in background with ID: {job}")]

    assert found(start("a", "fetch"), start("b", "fetch from here"), DONE) == [("repeated_action", 1)]
    assert found(start("a", "one"), start("b", "two", "python other.py"), DONE) == []
    assert found(start("a", "one"), [("cat out", "failed")], start("b", "one"), DONE) == []
    helpers = [[(("Task", {"prompt": p, "run_in_background": True}), f"started {p}")] for p in "ab"]
    assert found(*helpers, DONE) == []


def test_an_answer_of_code_mode_is_read_without_its_frame():
    answer = 'Script completed\nWall time 0.1 seconds\nOutput:\n\n{"chunk_id":"a","exit_code":127,"output":"sh: x: not found"}'
    (step,) = Reading(trace([(("exec_command", {"cmd": "x"}), answer)])).steps
    assert (step.content, step.exit_code, step.refusal) == ("sh: x: not found", 127, "command_failed")
    shown = "Script completed\nWall time 0.1 seconds\nOutput:\n\nx = 1\n"
    (step,) = Reading(trace([(("exec_command", {"cmd": "cat a.py"}), shown)])).steps
    assert (step.content, step.exit_code, step.refusal) == ("x = 1\n", None, None)
