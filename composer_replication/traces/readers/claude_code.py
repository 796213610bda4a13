"""Claude Code's session logs, `~/.claude/projects/FOLDER/SESSION.jsonl` (layout seen in 2.1 and in Harbor's converter).

Every line has a `uuid` and a `parentUuid`: a session is a tree. A line may stand before its parent: 2.1.112 writes the result of
a quick call before the call. One answer of the model is spread over several lines that share `message.id`, and the results of
calls made at once hang on different ones of them. Compaction begins a new tree, whose first line names the old one's last as
`logicalParentUuid` and the messages that stay after its summary. The way to the youngest answer is the trace; other answers are
separate branches, whose shared beginning is context only. Side chains (subagents) are dropped and counted.

The log holds neither the system prompt, nor the tools, nor the reminders that the program adds to messages: contexts are without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_replication.traces.outcome import inferred_result
from composer_replication.traces.reader import FileReader, Item
from composer_replication.traces.readers.fields import objects_in, present, section, string, text_of
from composer_replication.traces.recorder import INCOMPLETE, ConversationRecorder, native_call
from composer_replication.traces.source import Dropped, Problem, objects
from composer_replication.types import Message
from composer_replication.types.transcript import Trace

SIDE_CHAIN = "lines of side chains (subagents)"
BROKEN = "a line that is missing or cannot be read"
TWICE = "lines that a resumed session repeats"
NOTICE = "errors that the program tells in the model's place"
FILLER = "answers that the program made up: kept as context"
SYNTHETIC = "<synthetic>"
UNSEEN = "messages that only the screen showed"
UNANSWERED = "messages on branches that were never answered"
SHARED = "turns that a branch shares with the main line: kept as its context"
_TYPES = {"user", "assistant", "system", "summary", "attachment", "progress", "file-history-snapshot", "queue-operation"}


def _read(path: Path) -> Iterator[Item]:
    session = _ClaudeSession()
    lines: list[dict[str, Any] | None] = []
    for item in objects(path):
        if isinstance(item, Problem):
            yield item
        lines.append(None if isinstance(item, Problem) else item[1])
    for line in _parents_first(lines):
        if line is None:
            session.lose()
        else:
            session.add(line)
    leaves = session.leaves()
    done: set[int] = set()
    for place, leaf in enumerate(reversed(leaves)):
        way, circle = session.way(leaf)
        if circle:
            yield Problem(path, "parentUuid runs in a circle; what leads into it is left out")
        yield _trace(path, session, way, place, done)
    if not leaves and not session.dropped[SIDE_CHAIN]:
        yield Problem(path, "a session without an answer of the model")
    session.dropped[UNANSWERED] += sum(
        1 for unit in session.units if unit.role == "user" and not unit.results and unit.number not in session.walked
    )
    yield from (Dropped(path, reason, count) for reason, count in session.dropped.items() if count)


def _parents_first(lines: list[dict[str, Any] | None]) -> Iterator[dict[str, Any] | None]:
    """Yield the lines in order, but each that stands before its parent directly after it; None stands for a line that cannot be
    read."""
    coming = {uuid for line in lines if line is not None and (uuid := string(line, "uuid"))}
    waiting: dict[str, list[dict[str, Any]]] = {}
    past: set[str] = set()
    for line in lines:
        parent = "" if line is None else string(line, "parentUuid")
        if line is not None and parent in coming and parent not in past:
            waiting.setdefault(parent, []).append(line)
            continue
        ready = [line]
        while ready:
            now = ready.pop()
            yield now
            uuid = "" if now is None else string(now, "uuid")
            past.add(uuid)
            ready.extend(reversed(waiting.pop(uuid, [])))
    left = {id(line) for lines_of_parent in waiting.values() for line in lines_of_parent}  # their parents run in a circle
    yield from (line for line in lines if id(line) in left)


@dataclass(slots=True)
class _Unit:
    """One message to or from the model, from one line or several."""

    number: int
    role: str
    """`user`, `assistant`, `compaction`, or empty for what is not a message."""
    parent: str
    lines: list[dict[str, Any]] = field(default_factory=list)
    results: bool = False
    torn: bool = False
    """A line of it, or one right before it, is missing or cannot be read."""


class _ClaudeSession:
    """The tree of one log."""

    def __init__(self) -> None:
        self.units: list[_Unit] = []
        self.dropped: Counter[str] = Counter()
        self.walked: set[int] = set()
        self._of: dict[str, _Unit] = {}
        self._answers: dict[str, _Unit] = {}
        self._calls: dict[str, _Unit] = {}
        self._results: dict[int, _Unit] = {}
        self._answer: _Unit | None = None
        self._lost = False

    def lose(self) -> None:
        """Mark that a line cannot be read: it may have been a part of the last answer, or the parent of the next line."""
        self._lost = True
        if self._answer is not None:
            self._answer.torn = True

    def add(self, line: dict[str, Any]) -> None:
        """Take one line."""
        uuid = string(line, "uuid")
        if not uuid:
            return  # titles, snapshots, queues: nothing the model saw
        if line.get("isSidechain") is True:
            self.dropped[SIDE_CHAIN] += 1
            return
        if uuid in self._of:
            self.dropped[TWICE] += 1
            return
        unit = self._unit(line)
        unit.torn = unit.torn or self._lost or (bool(unit.lines) and self._unknown(line))
        self._lost = False
        unit.lines.append(line)
        self._of[uuid] = unit

    def _unknown(self, line: Mapping[str, Any]) -> bool:
        parent = string(line, "parentUuid")
        return bool(parent) and parent not in self._of

    def _unit(self, line: Mapping[str, Any]) -> _Unit:
        role, parent = self._role(line), string(line, "parentUuid")
        content = section(line, "message").get("content")
        if role == "assistant":
            name = string(line, "message", "id") or string(line, "uuid")
            unit = self._answers.get(name) or self._new(role, parent)
            self._answers[name] = self._answer = unit
            for block in objects_in(content):
                self._calls[string(block, "id")] = unit
            return unit
        answered = [self._calls.get(string(b, "tool_use_id")) for b in objects_in(content) if b.get("type") == "tool_result"]
        asked = next((unit for unit in answered if unit), None) if role == "user" else None
        if asked is None:
            if role == "user" and answered and self._answer is not None:
                self._answer.torn = True  # the result of a call that the log does not hold
            return self._new(role, parent)
        unit = self._results.get(asked.number) or self._new("user", string(asked.lines[-1], "uuid"))
        unit.results = True
        self._results[asked.number] = unit
        return unit

    def _new(self, role: str, parent: str) -> _Unit:
        unit = _Unit(len(self.units), role, parent)
        self.units.append(unit)
        return unit

    def _role(self, line: Mapping[str, Any]) -> str:
        kind = string(line, "type")
        if kind == "system" and string(line, "subtype") == "compact_boundary":
            return "compaction"
        if kind == "assistant" and line.get("isApiErrorMessage") is True:
            self.dropped[NOTICE] += 1
            return ""
        if kind == "user" and line.get("isVisibleInTranscriptOnly") is True and line.get("isCompactSummary") is not True:
            self.dropped[UNSEEN] += 1
            return ""
        return kind if kind in ("user", "assistant") else ""

    def parent(self, unit: _Unit) -> _Unit | None:
        """Return the predecessor of `unit`: where results were answered, all of them."""
        above = self._of.get(unit.parent)
        if above is None and unit.role == "compaction":
            above = self._of.get(string(unit.lines[0], "logicalParentUuid"))
        if above is not None and above.role == "assistant" and not unit.results and unit is not above:
            return self._results.get(above.number) if unit.role != "compaction" and above.number in self._results else above
        return above

    def leaves(self) -> list[_Unit]:
        """Return answers after which nothing more was answered, oldest first."""
        inner: set[int] = set()
        for unit in self.units:
            if unit.role == "assistant":
                above, seen = self.parent(unit), {unit.number}
                while above is not None and above.number not in seen and above.role != "assistant":
                    seen.add(above.number)
                    above = self.parent(above)
                if above is not None and above is not unit:
                    inner.add(above.number)
        return [unit for unit in self.units if unit.role == "assistant" and unit.number not in inner]

    def way(self, leaf: _Unit) -> tuple[list[_Unit], bool]:
        """Return the units from the root to `leaf`, and whether the path ran in a circle instead of to a root."""
        way: list[_Unit] = []
        seen: set[int] = set()
        unit: _Unit | None = leaf
        while unit is not None and unit.number not in seen:
            seen.add(unit.number)
            way.append(unit)
            unit = self.parent(unit)
        self.walked |= seen
        return way[::-1], unit is not None

    def after(self, unit: _Unit) -> _Unit | None:
        """Return the results of an answer's calls."""
        return self._results.get(unit.number)

    def named(self, uuids: Any) -> list[_Unit]:
        """Return the units of these lines, each once, in their order; an empty one for what the log does not hold."""
        names = [uuid for uuid in uuids if isinstance(uuid, str)] if isinstance(uuids, list) else []
        none = _Unit(-1, "", "")
        return list({unit.number: unit for unit in (self._of.get(name, none) for name in names)}.values())

    def torn(self, root: _Unit) -> bool:
        """Return whether the log lacks something that stood before the root."""
        return root.torn or (bool(root.parent) and root.parent not in self._of)


def _trace(path: Path, session: _ClaudeSession, way: list[_Unit], place: int, done: set[int]) -> Trace:
    recorder = ConversationRecorder()
    missing = "what came before the first line" if session.torn(way[0]) else ""
    ways = [*way, *filter(None, [session.after(way[-1])])]
    spoken: dict[int, list[Message]] = {}
    kept: dict[str, Any] = {}
    for unit in ways:
        before = len(recorder.context)
        missing = missing or (BROKEN if unit.torn else "")
        if unit.role == "compaction":
            kept = section(unit.lines[0], "compactMetadata", "preservedMessages")
            recorder.restart(())
            missing = missing if kept else ""  # else nothing of before is in the context any more
        elif unit.role == "user":
            for line in unit.lines:
                missing = _record_user_line(recorder, line) or missing
        elif unit.role == "assistant":
            said = string(unit.lines[-1], "message", "model") != SYNTHETIC
            new = said and unit.number not in done
            if not new:
                session.dropped[SHARED if said else FILLER] += 1
            _answer(recorder, unit, missing, new=new)
            done.add(unit.number)
        spoken[unit.number] = recorder.context[before:]
        if kept and any(string(line, "uuid") == string(kept, "anchorUuid") for line in unit.lines):
            for older in session.named(kept.get("uuids")):
                missing = missing if older.number in spoken else "messages that a compaction kept"
                recorder.context.extend(spoken.get(older.number, ()))
    session.walked |= {unit.number for unit in ways}
    return _whole(path, way, place, recorder)


def _whole(path: Path, way: list[_Unit], place: int, recorder: ConversationRecorder) -> Trace:
    last = way[-1].lines[-1]
    version = string(last, "version")
    return recorder.trace(
        (string(last, "sessionId") or path.stem) + (f"/branch-{place}" if place else ""),
        READER.name,
        agent=f"claude-code {version}".strip(),
        model=string(last, "message", "model"),
        details=present(cwd=string(last, "cwd"), git_branch=string(last, "gitBranch")),
    )


def _record_user_line(recorder: ConversationRecorder, line: Mapping[str, Any]) -> str:
    """Play a user's line. Returns what of it the log does not hold as text."""
    content = section(line, "message").get("content")
    if not isinstance(content, list):
        text, missing = text_of(content)
        recorder.say(Message(role="user", content=text))
        return missing and f"a part of a message: {missing}"
    said: list[Any] = []
    lost = ""
    for block in content:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            call_id = string(block, "tool_use_id")
            text, missing = text_of(block.get("content"))
            lost = lost or missing
            call = recorder.call(call_id)
            outcome = section(line, "toolUseResult")
            details = present(interrupted=outcome.get("interrupted") is True or None)
            result = inferred_result(call, call_id, text, failed=block.get("is_error") is True, details=details)
            recorder.result(result)
        else:
            said.append(block)
    if said:
        text, missing = text_of(said)
        lost = lost or missing
        recorder.say(Message(role="user", content=text))
    return lost and f"a part of a message: {lost}"


def _answer(recorder: ConversationRecorder, unit: _Unit, missing: str, *, new: bool) -> None:
    texts: list[str] = []
    thoughts: list[str] = []
    calls = []
    for line in unit.lines:
        content = section(line, "message").get("content")
        for block in objects_in(content) if isinstance(content, list) else [{"type": "text", "text": content}]:
            match block.get("type"):
                case "text":
                    texts.append(string(block, "text"))
                case "thinking":
                    thoughts.append(string(block, "thinking"))
                case "tool_use":
                    calls.append(native_call(string(block, "id"), string(block, "name"), block.get("input")))
    last = unit.lines[-1]
    details = present(
        model=string(last, "message", "model"),
        timestamp=string(last, "timestamp"),
        usage=section(last, "message", "usage"),
        request_id=string(last, "requestId"),
        stop_reason=string(last, "message", "stop_reason"),
    )
    if missing:
        details[INCOMPLETE] = missing
    recorder.answer("\n".join(texts), calls, reasoning="\n".join(filter(None, thoughts)), details=details, counted=new)


READER = FileReader(
    "claude-code", lambda line: string(line, "type") in _TYPES and not line.keys().isdisjoint(("sessionId", "leafUuid")), _read
)
