"""Finding the control groups of version 1, version 2 and hybrid machines, over folders that look like theirs.

The kernel's own groups are exercised by `test_sandbox_containment.py` wherever this machine lets us make them.
"""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from composer_replication.sandbox.backends.cgroup import USUAL, Cgroups, find_cgroups

V1_LINE = "30 25 0:26 / {point} rw,relatime shared:9 - cgroup cgroup rw,{controller}"
V2_LINE = "31 25 0:27 {root} {point} rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate"


@pytest.fixture(autouse=True)
def kernel_like_rmdir(monkeypatch):
    """Removing a group removes its control files, which plain folders do not know."""
    monkeypatch.setattr(Path, "rmdir", lambda self: shutil.rmtree(self))


def v2(top: Path, *path: str, controllers: dict[str, str]) -> None:
    """Folders below `top` with their `cgroup.subtree_control`."""
    for name in path:
        (top / name).mkdir(parents=True, exist_ok=True)
    for name, text in controllers.items():
        (top / name / "cgroup.subtree_control").write_text(text)


def test_version_2_takes_the_nearest_ancestor_that_hands_both_down(tmp_path):
    controllers = {"": "cpu memory pids", "user.slice": "cpu io memory pids", "user.slice/session": ""}
    v2(tmp_path, "user.slice/session", controllers=controllers)
    found = find_cgroups(V2_LINE.format(root="/", point=tmp_path), "0::/user.slice/session\n")
    assert found == Cgroups(2, tmp_path / "user.slice", tmp_path / "user.slice", None)
    assert found.description == "cgroup v2 (memory, pids)"


def test_version_2_below_a_mount_of_a_subtree(tmp_path):
    v2(tmp_path, "box", controllers={"": "memory pids", "box": ""})
    found = find_cgroups(V2_LINE.format(root="/docker/abc", point=tmp_path), "0::/docker/abc/box\n")
    assert found == Cgroups(2, tmp_path, tmp_path, None)


def test_version_2_without_the_controllers_is_none(tmp_path):
    v2(tmp_path, "a", controllers={"": "cpu memory", "a": ""})
    assert find_cgroups(V2_LINE.format(root="/", point=tmp_path), "0::/a\n") is None


def test_the_first_mount_point_counts_and_not_that_of_a_chroot_which_may_go(tmp_path):
    for top in ("system", "chroot"):
        (tmp_path / top).mkdir()
        v2(tmp_path / top, "a", controllers={"": "memory pids", "a": ""})
    lines = [V2_LINE.format(root="/", point=tmp_path / top) for top in ("system", "chroot")]
    found = find_cgroups("\n".join(lines), "0::/a\n")
    assert found == Cgroups(2, tmp_path / "system", tmp_path / "system", None)


def test_a_mount_over_another_at_the_same_place_counts(tmp_path):
    v2(tmp_path, "box", controllers={"": "memory pids", "box": ""})
    lines = [V2_LINE.format(root=root, point=tmp_path) for root in ("/", "/docker/abc")]
    found = find_cgroups("\n".join(lines), "0::/docker/abc/box\n")
    assert found == Cgroups(2, tmp_path, tmp_path, None)


def test_version_1_uses_the_groups_this_process_is_in(tmp_path):
    for name in ("memory/mine", "pids", "cpuacct"):
        (tmp_path / name).mkdir(parents=True)
    lines = [V1_LINE.format(point=tmp_path / n, controller=n) for n in ("memory", "pids", "cpuacct")]
    own = "4:memory:/mine\n8:pids:/\n2:cpuacct:/\n0::/\n"
    assert find_cgroups("\n".join(lines), own) == Cgroups(1, tmp_path / "memory/mine", tmp_path / "pids", tmp_path / "cpuacct")


def test_a_hybrid_machine_falls_back_to_version_1(tmp_path):
    v2(tmp_path, "unified", controllers={"unified": "hugetlb"})
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
    lines = [V2_LINE.format(root="/", point=tmp_path / "unified")]
    lines += [V1_LINE.format(point=tmp_path / n, controller=n) for n in ("memory", "pids")]
    found = find_cgroups("\n".join(lines), "4:memory:/\n8:pids:/\n0::/\n")
    assert (found.version, found.cpu) == (1, None)


def test_groups_that_cannot_be_made_are_none(tmp_path):
    lines = [V1_LINE.format(point=tmp_path / n, controller=n) for n in ("memory", "pids")]
    assert find_cgroups("\n".join(lines), "4:memory:/\n8:pids:/\n") is None
    assert find_cgroups("", "") is None


def test_groups_of_a_dead_maker_are_swept(tmp_path):
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
    alive = f"composer-box-{os.getpid()}-1-999"
    for name in (f"composer-box-{2**30}-1-0", f"composer-box-{os.getpid()}-{2**30}-0", alive):
        (tmp_path / "pids" / name).mkdir()
    lines = [V1_LINE.format(point=tmp_path / n, controller=n) for n in ("memory", "pids")]
    assert find_cgroups("\n".join(lines), "4:memory:/\n8:pids:/\n") is not None
    assert [folder.name for folder in (tmp_path / "pids").iterdir()] == [alive]


def test_a_box_gets_its_limits_and_is_removed(tmp_path):
    groups = Cgroups(2, tmp_path, tmp_path, None)
    box = Cgroups.from_plain(*groups.as_plain()).create(17)
    assert box.memory.name.startswith(f"composer-box-17-{os.getpid()}-")
    assert (box.memory / "memory.max").read_text() == str(USUAL[0] << 20)
    box.limit(100, 7)
    assert (box.memory / "memory.max").read_text() == str(100 << 20)
    assert (box.pids / "pids.max").read_text() == "7"
    assert box.procs == [str(box.memory / "cgroup.procs")]
    box.close()
    assert list(tmp_path.iterdir()) == []
    groups.create(17)
    groups.remove_of(18, os.getpid())
    groups.remove_of(17, 1)
    assert len(list(tmp_path.iterdir())) == 1
    groups.remove_of(17, os.getpid())
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_a_killed_maker_left_is_not_taken_for_a_fresh_one(tmp_path, monkeypatch):
    """The kernel gives numbers of processes again, and a group keeps its counts."""
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
    groups = Cgroups(1, tmp_path / "memory", tmp_path / "pids", None)
    made = []
    for _ in range(2):
        monkeypatch.setattr("composer_replication.sandbox.backends.cgroup._counter", itertools.count())
        made.append(groups.create(17))
    assert made[0].memory != made[1].memory
    made[0].memory.rmdir()
    monkeypatch.setattr("composer_replication.sandbox.backends.cgroup._counter", itertools.count())
    assert groups.create(17).pids not in (made[0].pids, made[1].pids)


@pytest.mark.parametrize(
    ("version", "name", "text", "killed", "elsewhere"),
    [
        (2, "memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n", True, False),
        (2, "memory.events", "low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\n", False, False),
        (2, "memory.events", "low 0\nhigh 0\nmax 12\noom 0\noom_kill 1\n", False, True),
        (1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True, False),
        (1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 0\n", False, False),
    ],
)
def test_an_out_of_memory_kill_is_read_from_the_events(tmp_path, version, name, text, killed, elsewhere):
    (tmp_path / name).write_text(text)
    (tmp_path / "cpu.stat").write_text("usage_usec 1\n")
    meter = Cgroups(version, tmp_path, tmp_path, None).meter()
    assert (meter.oom_killed(), meter.killed_for_the_machine()) == (killed, elsewhere)


def test_cpu_time_is_read_where_it_is_counted(tmp_path):
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\n")
    (tmp_path / "cpuacct.usage").write_text("2500000000\n")
    for name in ("memory.events", "memory.oom_control"):
        (tmp_path / name).touch()
    assert Cgroups(2, tmp_path, tmp_path, None).meter().cpu_s() == 1.5
    assert Cgroups(1, tmp_path, tmp_path, tmp_path).meter().cpu_s() == 2.5
    assert Cgroups(1, tmp_path, tmp_path, None).meter().cpu_s() is None
