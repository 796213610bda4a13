"""Records of which groups were issued, finished, trained on or dropped, in a file that survives `kill -9` of every process.

Each change is one durable line of JSON before anything acts on it, and the trajectories of a finished group are on the disk
before its line is. A step's groups are chosen once: a step that is repeated, after the death of the trainer or of the driver,
trains on the same ones. So no group is trained on in two steps, or dropped after it was trained on, and none that is finished is
sampled again.

    mesh/ARM/ledger.jsonl         {"event": "issued" | "finished" | "dropped" | "trained", ...}
    mesh/ARM/groups/NNNNNN.json   the trajectories of a finished group, until no kept checkpoint needs them
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.observe import files
from composer_replication.types import Group, from_json, to_json
from composer_replication.types.errors import CheckpointError


class GroupLedger:
    """The groups of one arm, numbered from 0 in the order they are first issued. One process writes it at a time.

    Raises:
        CheckpointError: the file contradicts itself.
        StorageError: it cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.jsonl"
        self._groups = folder / "groups"
        self.issued: dict[int, int] = {}
        """Number -> how often it was issued."""
        self.waiting: dict[int, int] = {}
        """Number -> policy version, of the groups that are finished and not yet trained on or dropped."""
        self.dropped: dict[int, int] = {}
        """Number -> policy version."""
        self.trained: dict[int, tuple[int, ...]] = {}
        """Step -> the numbers of its groups."""
        self.rollouts = self.tokens = 0
        """Trajectories of all groups that were ever finished, and the tokens sampled for them."""
        self._unfinished: set[int] = set()
        for line in files.read_lines(self._path):
            try:
                self._apply(line)
            except (KeyError, ValueError, TypeError) as error:
                raise CheckpointError(f"{self._path} contradicts itself: {error}", fix="give the new run another name") from error

    @property
    def next(self) -> int:
        """Number of the next new group."""
        return max(self.issued, default=-1) + 1

    @property
    def unfinished(self) -> list[int]:
        """Groups that were issued and are not finished, in order."""
        return sorted(self._unfinished)

    def issue(self, numbers: Iterable[int], version: int) -> None:
        """Record that groups are to be sampled by the policy of `version` or a later one; unfinished ones may be repeated."""
        self._record({"event": "issued", "groups": list(numbers), "version": version})

    def finish(self, number: int, group: Group) -> None:
        """Record that a group is complete. Raises ValueError when it was already."""
        self._check_unfinished(number)
        files.replace_file(self._file(number), json.dumps(to_json(group)).encode())
        version = min(t.policy_version for t in group.trajectories)
        taken = {"rollouts": len(group.trajectories), "tokens": sum(t.num_sampled_tokens() for t in group.trajectories)}
        self._record({"event": "finished", "group": number, "version": version, **taken})

    def drop(self, numbers: Iterable[int], step: int) -> None:
        """Record that finished groups were too old for `step` and will never be trained on."""
        self._record({"event": "dropped", "groups": list(numbers), "step": step})

    def take(self, step: int, numbers: Sequence[int]) -> None:
        """Record that the step trains on these groups, also when it is repeated."""
        self._record({"event": "trained", "step": step, "groups": list(numbers)})

    def read(self, numbers: Iterable[int]) -> list[Group]:
        """Return finished groups. Raises CheckpointError when a file is gone."""
        return [self._read(number) for number in numbers]

    def forget_before(self, step: int) -> None:
        """Delete the trajectories that only steps before `step` needed: a checkpoint from which `step` is the next is kept."""
        over = {n for s, numbers in self.trained.items() if s < step for n in numbers} | self.dropped.keys()
        files.remove([self._file(number) for number in over if self._file(number).exists()])

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _record(self, line: Mapping[str, Any]) -> None:
        self._apply(line)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        files.append_line(self._path, files.dump_line(line), durable=True)

    def _apply(self, line: Mapping[str, Any]) -> None:
        match line["event"]:
            case "issued":
                for number in line["groups"]:
                    if number in self.issued:
                        self._check_unfinished(number)
                    self.issued[number] = self.issued.get(number, 0) + 1
                    self._unfinished.add(number)
            case "finished":
                self._check_unfinished(line["group"])
                self._unfinished.remove(line["group"])
                self.waiting[line["group"]] = line["version"]
                self.rollouts += line["rollouts"]
                self.tokens += line["tokens"]
            case "dropped":
                self._check_waiting(line["groups"])
                self.dropped |= {number: self.waiting.pop(number) for number in line["groups"]}
            case "trained":
                if line["step"] in self.trained:
                    raise ValueError(f"step {line['step']} has its groups already")
                self._check_waiting(line["groups"])
                self.trained[line["step"]] = tuple(line["groups"])
                for number in line["groups"]:
                    del self.waiting[number]
            case other:
                raise ValueError(f"unknown event {other!r}")

    def _check_unfinished(self, number: int) -> None:
        if number not in self.issued:
            raise ValueError(f"group {number} was not issued")
        if number not in self._unfinished:
            raise ValueError(f"group {number} is finished already")

    def _check_waiting(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number not in self.waiting:
                raise ValueError(f"group {number} does not wait to be trained on")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"a group is named twice in {list(numbers)}")

    def _file(self, number: int) -> Path:
        return self._groups / f"{number:06d}.json"

    def _read(self, number: int) -> Group:
        path = self._file(number)
        try:
            data = json.loads(path.read_bytes())
        except OSError as error:
            raise CheckpointError(
                f"{path}: the trajectories of group {number} are gone", fix="give the new run another name"
            ) from error
        return from_json(Group, data)
