"""The parts of a mesh one by one: the ledger, the bound, an actor's object, and a framework that is not there."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import threading

import pytest
import torch
from mesh_in_process import trajectory

from composer_replication.recipes.mesh.actor_shell import ActorShell, opened
from composer_replication.recipes.mesh.ledger import GroupLedger
from composer_replication.recipes.mesh.trainer import _copied
from composer_replication.recipes.mesh.work import StalenessRule
from composer_replication.types import Group
from composer_replication.types.errors import BackendError, CheckpointError, ComposerError, ConfigError, MissingExtraError


def group(number, version=0):
    name = f"1/task-{number}"
    return Group(group_id=name, task_id=f"task-{number}", trajectories=(trajectory(f"{name}/0", f"task-{number}", version),))


@pytest.fixture
def ledger(tmp_path):
    books = GroupLedger(tmp_path / "books")
    books.issue(range(4), 0)
    return books


def test_a_ledger_reads_back_what_it_was_told(ledger, tmp_path):
    ledger.issue([1], 2)
    for number, version in ((0, 0), (1, 2), (2, 1)):
        ledger.finish(number, group(number, version))
    ledger.drop([0], 3)
    ledger.take(3, [1])
    again = GroupLedger(tmp_path / "books")
    for books in (ledger, again):
        assert books.issued == {0: 1, 1: 2, 2: 1, 3: 1}
        assert books.dropped == {0: 0}
        assert books.trained == {3: (1,)}
        assert books.waiting == {2: 1}
        assert books.unfinished == [3]
        assert books.next == 4
    assert again.read([1]) == [group(1, 2)]


def test_nothing_counts_twice(ledger):
    ledger.finish(0, group(0))
    ledger.finish(1, group(1))
    for refused in (
        lambda: ledger.finish(0, group(0)),
        lambda: ledger.finish(7, group(7)),
        lambda: ledger.issue([0], 1),
        lambda: ledger.take(1, [0, 0]),
        lambda: ledger.take(1, [3]),
        lambda: ledger.drop([3], 1),
    ):
        with pytest.raises(ValueError, match="group"):
            refused()
    ledger.take(1, [0])
    with pytest.raises(ValueError, match="step 1 has its groups already"):
        ledger.take(1, [1])
    with pytest.raises(ValueError, match="group 0"):
        ledger.take(2, [0])
    with pytest.raises(ValueError, match="group 0"):
        ledger.drop([0], 2)


def test_a_line_torn_by_a_kill_was_never_written(ledger, tmp_path):
    ledger.finish(0, group(0))
    path = tmp_path / "books" / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    assert GroupLedger(tmp_path / "books").unfinished == [0, 1, 2, 3]


def test_a_ledger_that_contradicts_itself_is_named(ledger, tmp_path):
    with (tmp_path / "books" / "ledger.jsonl").open("a") as file:
        file.write(json.dumps({"event": "trained", "step": 1, "groups": [2]}) + "\n")
    with pytest.raises(CheckpointError, match=r"ledger\.jsonl contradicts itself: group 2"):
        GroupLedger(tmp_path / "books")


def test_groups_stay_while_a_step_may_be_repeated(ledger):
    for number in range(4):
        ledger.finish(number, group(number))
    ledger.take(1, [0])
    ledger.take(2, [1])
    ledger.forget_before(2)
    assert ledger.read([1, 2, 3]) == [group(n) for n in (1, 2, 3)]
    with pytest.raises(CheckpointError, match="group 0 are gone"):
        ledger.read([0])


def test_no_more_is_issued_than_the_bound_lets_be_trained_on():
    pace = StalenessRule(groups=4, steps=10, max_staleness=2)
    assert [pace.limit(0, version) for version in (0, 1, 7, 9)] == [12, 16, 40, 40]
    assert pace.limit(3, 9) == 43
    assert StalenessRule(groups=4, steps=10, max_staleness=0).limit(0, 0) == 4


def test_the_oldest_are_taken_first_and_the_too_old_never():
    pace = StalenessRule(groups=2, steps=10, max_staleness=1)
    waiting = {7: 4, 8: 3, 9: 2, 10: 4}
    assert pace.too_old(waiting, 5) == [9]
    assert pace.choose(waiting, 5) == [7, 8]
    assert pace.choose({7: 4, 9: 2}, 5) is None


class Speaker:
    def __init__(self, port, word):
        if word is None:
            raise ConfigError("no word", fix="say one")
        self.word = word

    def thread(self):
        return threading.current_thread().name

    async def say(self):
        return self.word

    def refuse(self):
        raise UnfitError(threading.Lock())


class UnfitError(ComposerError):
    """Cannot be pickled."""

    def __init__(self, lock):
        super().__init__("refused", fix="ask again")
        self.lock = lock


def test_an_actor_s_object_answers_and_its_errors_can_travel():
    async def main():
        held = ActorShell("speaker")
        opened(await held.begin(Speaker, None, ("hello",)))
        assert opened(await held.run("say", ())) == "hello"
        assert opened(await held.run("thread", ())).startswith("speaker")
        with pytest.raises(BackendError, match="refused") as refused:
            opened(await held.run("refuse", ()))
        assert refused.value.fix == "ask again"
        with pytest.raises(ConfigError, match="no word"):
            opened(await ActorShell("mute").begin(Speaker, None, (None,)))

    asyncio.run(main())


def test_without_ray_the_mesh_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "composer_replication.recipes.ray.mesh", raising=False)
    with pytest.raises(MissingExtraError) as missing:
        importlib.import_module("composer_replication.recipes.ray.mesh")
    assert missing.value.fix == "pip install 'composer-replication[ray]'"


def test_environments_and_the_grader_need_no_torch():
    code = "import sys, composer_replication.recipes.mesh.sandbox_actors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tied_weights_are_copied_once():
    first, other = torch.ones(3, 2), torch.ones(3, 2)
    copied = _copied({"embed": first, "head": first, "norm": other})
    assert copied["embed"] is copied["head"] is not copied["norm"]
    first.zero_()
    assert copied["embed"].all(), "a copy"
