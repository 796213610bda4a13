"""Replicas as processes of their own, killed without warning."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torchft.coordination import LighthouseServer

HERE = Path(__file__).parent
JOB = HERE / "small_job.py"
PEER = HERE / "peer.py"
HANG_S = 600
OPTIONS = {"sync_every": 8, "fragments": 2, "delay": 1, "mix": 0.25, "snapshot_every": 2, "reduce": {"codec": "int8"}}


@pytest.fixture
def start(tmp_path):
    """`start(*arguments)` runs Python with them; all that are still alive at the end are killed."""
    errors = tmp_path / "stderr"  # a file: torchft says much, and a pipe that nobody reads would stop it
    started = []

    def run(*arguments, **environment):
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        with errors.open("a") as file:
            started.append(subprocess.Popen([sys.executable, *map(str, arguments)], env=env, stderr=file))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def lighthouse():
    """Address of a lighthouse of torchft's."""
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=300_000, heartbeat_timeout_ms=10_000)
    yield f"http://127.0.0.1:{server.address().rpartition(':')[2]}"
    server.shutdown()


def wait_for(condition, what):
    until = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.01)


def finish(folder, *processes):
    for process in processes:
        assert process.wait(HANG_S) == 0, (folder / "stderr").read_text()[-3000:]


def replicas(start, folder, store, world, pauses=None):
    """Processes of one job, and where they tell of themselves."""
    folder.mkdir()
    made = []
    for rank in range(world):
        given = {"uri": str(store), "rank": rank, "world_size": world, "rounds": 6, **OPTIONS}
        given |= {"out": str(folder / f"{rank}.out"), "paused": str(folder / f"{rank}.paused")}
        given["pause_at"] = pauses[rank] if pauses else 0
        (folder / f"{rank}.json").write_text(json.dumps(given))
        made.append(start(JOB, folder / f"{rank}.json"))
    return made


def outcome(folder, world):
    return [json.loads((folder / f"{rank}.out").read_text()) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3])
def test_a_job_whose_replicas_are_all_killed_goes_on_bit_for_bit_from_the_store(tmp_path, start, world):
    finish(tmp_path, *replicas(start, tmp_path / "whole", tmp_path / "store", world))
    pauses = [15, 13, 14][:world]  # round 3 ends with step 16; one replica has sent its part of it, the others have not
    killed = replicas(start, tmp_path / "first", tmp_path / "other", world, pauses)
    wait_for(lambda: len(list((tmp_path / "first").glob("*.paused"))) == world, "all where they are killed")
    for process in killed:
        process.send_signal(signal.SIGKILL)
        process.wait()
    finish(tmp_path, *replicas(start, tmp_path / "second", tmp_path / "other", world))
    whole, again = outcome(tmp_path / "whole", world), outcome(tmp_path / "second", world)
    assert [one["how"] for one in again] == ["resumed"] * world
    assert [one["state"] for one in again] == [one["state"] for one in whole]


def test_with_torchfts_manager_the_survivor_goes_on_and_a_restarted_replica_is_healed(tmp_path, start, lighthouse):
    def peer(rank, name):
        return start(PEER, rank, tmp_path / name, TORCHFT_LIGHTHOUSE=lighthouse)

    def told(name):
        """By round, how many took part and the digest afterwards."""
        text = (tmp_path / name).read_text() if (tmp_path / name).exists() else ""
        lines = re.findall(r"round (\d+) members (\d+) digest (\w+)\n", text)
        return {int(number): (int(members), digest) for number, members, digest in lines}

    def together():
        """Rounds that the survivor and the restarted one held with each other."""
        pairs = [(told("survivor").get(number), one) for number, one in told("restarted").items()]
        return [(pair[0][1], pair[1][1]) for pair in pairs if pair[0] is not None and pair[0][0] == pair[1][0] == 2]

    def latest(name):
        return max(told(name).items(), default=(0, (0, "")))

    peer(0, "survivor")
    victim = peer(1, "victim")
    wait_for(lambda: latest("survivor")[1][0] == 2 and latest("victim")[0] >= 2, "two replicas in a round")
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    reached = latest("survivor")[0]
    wait_for(lambda: latest("survivor")[0] >= reached + 2 and latest("survivor")[1][0] == 1, "the survivor alone")
    peer(1, "restarted")
    wait_for(lambda: len(together()) >= 4, "the restarted one beside it")
    assert min(told("restarted")) > reached
    assert all(one == other for one, other in together())
