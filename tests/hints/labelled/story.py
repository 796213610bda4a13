"""A task, the files as they are, and the turns so far: what faults are planted in."""

from __future__ import annotations

import dataclasses

NOUNS = ("basket", "ledger", "harbour", "parcel", "ticket", "invoice", "route", "sensor", "kernel", "matrix", "token", "widget")
VERBS = ("total", "merge", "score", "price", "weigh", "split", "count", "rank", "clean", "pack")


def module(noun, verb, other):
    return f'''"""{noun.title()}s."""

from __future__ import annotations


def {verb}_{noun}(items, factor=1):
    """The {verb} of all items."""
    result = 0
    for item in items:
        result += item * factor
    return result


def {other}_{noun}(items):
    """The {other} of the items, largest first."""
    ordered = sorted(items)
    return ordered[:3]
'''


@dataclasses.dataclass
class Story:
    vocabulary: object
    rng: object
    trajectory_id: str
    turns: list = dataclasses.field(default_factory=list)
    labels: list = dataclasses.field(default_factory=list)
    serial: int = 0

    def __post_init__(self):
        self.noun = self.rng.choice(NOUNS)
        self.verb, self.other = self.rng.sample(VERBS, 2)
        self.path = f"src/{self.noun}s.py"
        self.test_path = f"tests/test_{self.noun}s.py"
        self.files = {self.path: module(self.noun, self.verb, self.other)}
        self.ids = [f"{self.test_path}::test_{name}" for name in (self.verb, self.other, "empty", "order")]
        self.instruction = f"`{self.other}_{self.noun}` in {self.path} gives the smallest items. Make it give the largest ones."
        self.changed = None

    def next(self):
        """A number that no other turn of the story has."""
        self.serial += 1
        return self.serial

    def say(self, text="", *pairs, kind=None, error=None):
        """A turn: `pairs` of call and answer. Labels it with `kind`."""
        number = len(self.turns)
        calls, results = [], []
        for i, ((name, arguments), (content, status, details)) in enumerate(pairs):
            call_id = f"call_{number}_{i}"
            calls.append({"call_id": call_id, "name": name, "arguments": arguments, "error": error})
            results.append({"call_id": call_id, "name": name, "content": content, "status": status, "details": details})
        self.turns.append({"text": text, "tool_calls": calls, "results": results})
        if kind is not None:
            self.labels.append([kind, number])
        return number

    def words(self):
        return self.rng.choice(["", "", "Looking at it.", "That narrows it down.", "The cause is in the loop.", "Good."])

    def step(self, pair, kind=None):
        return self.say(self.words(), pair, kind=kind)

    def read(self, path=None, kind=None):
        return self.step(self.vocabulary.read(path or self.path, self.files[path or self.path]), kind)

    def edit(self, old, new, path=None, kind=None):
        path = path or self.path
        self.files[path] = self.files[path].replace(old, new)
        self.changed = self.step(self.vocabulary.edit(path, old, new, self.files[path]), kind)
        return self.changed

    def write(self, path, text, kind=None):
        self.files[path] = text
        self.changed = self.step(self.vocabulary.write(path, text), kind)
        return self.changed

    def note(self, kind=None):
        """A harmless edit: one line more of documentation, another one each time."""
        line = f'"""{self.noun.title()}s.'
        return self.edit(line, f"{line} Note {self.next()}.", kind=kind)

    def shell(self, command, output, code=0, kind=None):
        return self.step(self.vocabulary.shell(command, output, code), kind)

    def tests(self, failing=(), verbose=False, more=()):
        failed = [*(self.ids[i] for i in failing), *more]
        label = ["tests_failed", self.changed]
        if failed and self.changed is not None and self.vocabulary.name == "ours" and label not in self.labels:
            self.labels.append(label)  # this framework's own test tool: its failing blames the last change
        passed = [test for test in self.ids if test not in failed]
        lines = [f"{test} PASSED" for test in passed] if verbose else []
        lines += ["." * len(passed) + "F" * len(failed) + "    [100%]"]
        for test in failed:
            lines += [f"____ {test.rpartition('::')[2]} ____", "    def test(): ...", f"E   assert {self.next()} == 17"]
        lines += [f"FAILED {test} - assert {self.next()} == 17" for test in failed]
        summary = ", ".join([f"{len(failed)} failed"] * bool(failed) + [f"{len(passed)} passed"])
        lines += [f"{'=' * 10} {summary} in 0.{self.next()}s {'=' * 10}"]
        return self.step(self.vocabulary.tests("\n".join(lines), passed, failed))

    def opening(self):
        """Look, see the tests fail, mend it, see them pass."""
        self.shell("ls", "README.md\nsrc\ntests")
        self.read()
        self.tests(failing=[1])
        self.edit("ordered = sorted(items)", "ordered = sorted(items, reverse=True)")
        self.tests()

    def ending(self):
        """Look at the work, run the tests, hand it in."""
        self.shell("git diff --stat", f" {self.path} | {self.next()} +-")
        self.tests()
        self.hand_in()

    def hand_in(self, kind=None):
        if self.vocabulary.ends is None:
            return self.say(f"`{self.other}_{self.noun}` now gives the largest items, and the tests pass.", kind=kind)
        return self.say("All done.", (self.vocabulary.ends, ("", "ok", {})), kind=kind)

    def record(self):
        return {
            "trajectory_id": self.trajectory_id,
            "task_id": self.noun,
            "agent": self.vocabulary.name,
            "messages": [{"role": "user", "content": self.instruction}],
            "turns": self.turns,
            "labels": self.labels,
        }
