"""How five agents name their tools, and what these answer: the words of each agent's own harness."""

from __future__ import annotations

import json

from composer_replication.envs.tools import TOOLSETS


def tool(name, required, optional=()):
    properties = {n: {"type": kind} for n, kind in (*required, *optional)}
    parameters = {"type": "object", "properties": properties, "required": [n for n, _ in required]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


EDITOR = tool(
    "str_replace_editor",
    [("command", "string"), ("path", "string")],
    [("old_str", "string"), ("new_str", "string"), ("file_text", "string"), ("insert_line", "integer"), ("view_range", "array")],
)


def numbered(text, arrow="\t"):
    return "\n".join(f"{i:6d}{arrow}{line}" for i, line in enumerate(text.rstrip("\n").split("\n"), 1))


class Vocabulary:
    """Calls are `(name, arguments)`, answers `(content, status, details)`."""

    name: str
    root = ""
    tools: tuple = ()
    ends = None
    """The call that hands the work in; None for an agent that just says it is done."""

    def answer(self, content, status="ok", **details):
        return content, status, details


class Ours(Vocabulary):
    name, ends = "ours", ("submit", {})
    tools = TOOLSETS["shell"]

    def read(self, path, text):
        return ("read_file", {"path": path}), self.answer(text)

    def edit(self, path, old, new, text):
        return ("edit_file", {"path": path, "old": old, "new": new}), self.answer(f"edited {path}")

    def write(self, path, text):
        return ("write_file", {"path": path, "content": text}), self.answer(f"wrote {path}")

    def search(self, pattern, found):
        return ("search", {"pattern": pattern}), self.answer(found or "no match")

    def shell(self, command, output, code=0):
        body = "\n".join(part for part in (output, f"exit status {code}" if code else "") if part) or "(no output)"
        return ("bash", {"command": command}), self.answer(body, "command_failed" if code else "ok", returncode=code, changed=[])

    def tests(self, output, passed, failed):
        return ("run_tests", {}), self.answer(output, "tests_failed" if failed else "ok", passed=passed, failed=failed)

    def slow(self, command):
        return ("bash", {"command": command}), self.answer(
            "collecting\ntimed out after 60 s", "timeout", returncode=-9, changed=[]
        )

    def no_match(self, path, old):
        return self.answer(f"old does not occur in {path}", "edit_not_applied", occurrences=0)

    def no_path(self, path):
        return self.answer(f"no such file: {path}", "path_not_found")

    def no_tool(self, name):
        return self.answer(f"unknown tool: {name}", "unknown_tool")

    def wrong(self, problem):
        return self.answer(problem, "invalid_arguments")

    def unreadable(self, why):
        return self.answer(why, "malformed_call")


class ClaudeCode(Vocabulary):
    name, root = "claude-code", "/home/dev/repo/"

    def read(self, path, text):
        return ("Read", {"file_path": self.root + path}), self.answer(numbered(text, "→"))

    def edit(self, path, old, new, text):
        said = f"The file {self.root}{path} has been updated. Here's the result of running `cat -n` on a snippet:\n"
        at = text.find(new)
        return (
            ("Edit", {"file_path": self.root + path, "old_string": old, "new_string": new}),
            self.answer(said + numbered(text[max(0, at - 40) : at + len(new) + 40], "→")),
        )

    def write(self, path, text):
        return ("Write", {"file_path": self.root + path, "content": text}), self.answer(
            f"File created successfully at: {self.root}{path}"
        )

    def search(self, pattern, found):
        return ("Grep", {"pattern": pattern, "output_mode": "content"}), self.answer(found or "No matches found")

    def shell(self, command, output, code=0):
        body = f"Exit code {code}\n{output}" if code else output or "(Bash completed with no output)"
        status = "command_failed" if code else "ok"
        return ("Bash", {"command": command, "description": "run a command"}), self.answer(body, status)

    def tests(self, output, passed, failed):
        return self.shell("python -m pytest -q", output, 1 if failed else 0)

    def slow(self, command):
        return ("Bash", {"command": command}), self.answer("Command timed out after 2m 0.0s\ncollecting ...", "command_failed")

    def no_match(self, path, old):
        return self.answer(
            f"<tool_use_error>String to replace not found in file.\nString: {old}</tool_use_error>", "command_failed"
        )

    def no_path(self, path):
        return self.answer("<tool_use_error>File does not exist.</tool_use_error>")

    def no_tool(self, name):
        return self.answer(f"<tool_use_error>Error: No such tool available: {name}</tool_use_error>")

    def wrong(self, problem):
        return self.answer(
            f"<tool_use_error>InputValidationError: Read failed due to the following issue:\n{problem}</tool_use_error>"
        )

    def unreadable(self, why):
        return self.answer(f"<tool_use_error>Invalid JSON in tool input: {why}</tool_use_error>")


class Codex(Vocabulary):
    name, root = "codex", ""
    tools = (
        tool("shell", [("command", "array")], [("workdir", "string"), ("timeout_ms", "number")]),
        tool("apply_patch", [("input", "string")]),
        tool("update_plan", [("plan", "array")]),
    )

    def _shell(self, command):
        return "shell", {"command": ["bash", "-lc", command], "workdir": "/repo"}

    def _said(self, output, code):
        return json.dumps({"output": output + "\n", "metadata": {"exit_code": code, "duration_seconds": 0.1}})

    def read(self, path, text):
        return self.shell(f"cat {path}", text)

    def edit(self, path, old, new, text):
        sides = (("-", old.removesuffix("\n")), ("+", new.removesuffix("\n")))
        lines = "".join(f"{mark}{line}\n" for mark, side in sides for line in side.split("\n"))
        patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n{lines}*** End Patch\n"
        done = f"Success. Updated the following files:\nM {path}\n"
        return ("apply_patch", {"input": patch}), self.answer(self._said(done, 0))

    def write(self, path, text):
        body = "".join(f"+{line}\n" for line in text.rstrip("\n").split("\n"))
        patch = f"*** Begin Patch\n*** Add File: {path}\n{body}*** End Patch\n"
        return ("apply_patch", {"input": patch}), self.answer(self._said(f"Success. Updated the following files:\nA {path}\n", 0))

    def search(self, pattern, found):
        return self.shell(f"rg -n '{pattern}'", found, 0 if found else 1)

    def shell(self, command, output, code=0):
        plain = f"Exit code: {code}\nWall time: 0.1 seconds\nOutput:\n{output}"
        body = plain if len(command) % 2 else self._said(output, code)
        return self._shell(command), self.answer(body)

    def tests(self, output, passed, failed):
        return self.shell("pytest -q", output, 1 if failed else 0)

    def slow(self, command):
        return self._shell(command), self.answer(
            "Exit code: 124\nWall time: 10.0 seconds\nOutput:\ncommand timed out after 10000 milliseconds\n"
        )

    def no_match(self, path, old):
        return self.answer(f"apply_patch verification failed: Failed to find expected lines in /repo/{path}:\n{old}")

    def no_path(self, path):
        return self.answer(f"Exit code: 1\nWall time: 0 seconds\nOutput:\ncat: {path}: No such file or directory\n")

    def no_tool(self, name):
        return self.answer(f"unsupported call: {name}")

    def wrong(self, problem):
        return self.answer(f"failed to parse function arguments: {problem}")

    def unreadable(self, why):
        return self.answer(f"failed to parse function arguments: expected value at line 1 column 2 ({why})")


class Editor(Vocabulary):
    """The editor with several commands that OpenHands and SWE-agent share."""

    root = "/testbed/"

    def read(self, path, text):
        said = f"Here's the result of running `cat -n` on {self.root}{path}:\n"
        return ("str_replace_editor", {"command": "view", "path": self.root + path}), self.answer(said + numbered(text) + "\n")

    def edit(self, path, old, new, text):
        arguments = {"command": "str_replace", "path": self.root + path, "old_str": old, "new_str": new}
        return ("str_replace_editor", arguments), self.answer(
            f"The file {self.root}{path} has been edited. Review the changes and make sure they are as expected."
        )

    def write(self, path, text):
        arguments = {"command": "create", "path": self.root + path, "file_text": text}
        return ("str_replace_editor", arguments), self.answer(f"File created successfully at: {self.root}{path}")

    def no_match(self, path, old):
        return self.answer(
            f"{self.error}No replacement was performed, old_str `{old}` did not appear verbatim in {self.root}{path}."
        )

    def no_path(self, path):
        return self.answer(
            f"{self.error}Invalid `path` parameter: {self.root}{path}. The path {self.root}{path} does not exist. "
            "Please provide a valid path."
        )


class OpenHands(Editor):
    name, ends, error = "openhands", ("finish", {"message": "Done."}), "ERROR:\n"
    tools = (
        tool("execute_bash", [("command", "string")], [("timeout", "number")]),
        EDITOR,
        tool("think", [("thought", "string")]),
        tool("finish", [("message", "string")]),
    )

    def search(self, pattern, found):
        return self.shell(f"grep -rn '{pattern}' --include='*.py' .", found, 0 if found else 1)

    def shell(self, command, output, code=0):
        end = (
            f"[The command completed with exit code {code}.]" if len(command) % 2 else f"[Command finished with exit code {code}]"
        )
        return ("execute_bash", {"command": command}), self.answer(
            f"{output}\n[Python interpreter: /usr/bin/python]\n{end}", "command_failed" if code and len(command) % 3 else "ok"
        )

    def tests(self, output, passed, failed):
        return self.shell("cd /testbed && python -m pytest -q", output, 1 if failed else 0)

    def slow(self, command):
        said = "[The command has no new output after 30 seconds. You may wait longer to see additional output.]"
        return ("execute_bash", {"command": command}), self.answer(
            f"collecting ...\n{said}\n[Command finished with exit code -1]"
        )

    def no_tool(self, name):
        return self.answer(f"Error: Tool '{name}' not found. Available tools: execute_bash, str_replace_editor, think, finish")

    def wrong(self, problem):
        return self.answer(f"ERROR: Missing required parameter(s): {problem}", "command_failed")

    def unreadable(self, why):
        return self.answer(f"Failed to parse tool call arguments: invalid JSON ({why})")


class SweAgent(Editor):
    name, ends, error = "swe-agent", ("submit", {}), ""
    tools = (tool("bash", [("command", "string")]), EDITOR, tool("submit", []))

    def search(self, pattern, found):
        return self.shell(f"grep -rn '{pattern}' .", found, 0 if found else 1)

    def shell(self, command, output, code=0):
        if len(command) % 2:
            return ("bash", {"command": command}), self.answer(f"<returncode>{code}</returncode>\n<output>\n{output}\n</output>")
        return ("bash", {"command": command}), self.answer(
            output or "Your command ran successfully and did not produce any output."
        )

    def tests(self, output, passed, failed):
        return self.shell("cd /testbed && pytest -q", output, 1 if failed else 0)

    def slow(self, command):
        return ("bash", {"command": command}), self.answer(
            f"The command timed out after 30 seconds and was cancelled: {command}", "timeout"
        )

    def no_tool(self, name):
        return self.answer(f"Unknown tool '{name}' was called.", "unknown_tool")

    def wrong(self, problem):
        return self.answer(f"Missing required argument: {problem}", "invalid_arguments")

    def unreadable(self, why):
        return self.answer(f"Your tool call was not valid JSON: {why}", "malformed_call")


VOCABULARIES = (Ours(), ClaudeCode(), Codex(), OpenHands(), SweAgent())
