"""The made-up request that a waiting sandbox goes through before the real one comes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from composer_replication.sandbox.backends.rehearsal import refusing, rehearse

FAULTS = """
import os, resource, socket
from composer_replication.sandbox.backends import rehearsal
from composer_replication.sandbox.backends.supervisor import occupy_low_numbers

occupy_low_numbers()
read, write = os.pipe()
if os.fork() == 0:
    counts = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
    for _ in range(2):
        rehearsal.rehearse(None, None)
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    os.write(write, f"{counts[1] - counts[0]} {counts[2] - counts[1]}".encode())
    os._exit(0)
os.wait()
print(os.read(read, 100).decode())
"""


def test_what_has_been_rehearsed_costs_a_forked_process_hardly_a_page():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first > 50
    assert second < first / 5


def test_a_rehearsal_leaves_no_descriptor_open():
    before = set(os.listdir("/proc/self/fd"))
    rehearse(None, None)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_refusing_backend_gives_its_reason():
    with pytest.raises(OSError, match="there is no room"):
        refusing("there is no room")(None, None, 0)
