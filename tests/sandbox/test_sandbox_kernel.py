"""What a box may ask the kernel for. `test_sandbox_elsewhere.py` runs this file as other users too."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from system_calls import REFUSALS, WORKS

VSOCK, ALGORITHMS, NETLINK = 40, 38, 16
KEYRINGS = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ADD_KEY, REQUEST_KEY, KEYCTL = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[platform.machine()]
SESSION, JOIN, READ = -3, 1, 11
def call(number, *args):
    ctypes.set_errno(0)
    return libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *args)])
def leave(name, text):
    return call(ADD_KEY, b"user", name, text, len(text), SESSION)
def read(name):
    buffer = ctypes.create_string_buffer(64)
    key = call(REQUEST_KEY, b"user", name, None, 0)
    size = call(KEYCTL, READ, key, buffer, 64) if key > 0 else -1
    return buffer.raw[:size].decode() if size > 0 else ""
"""
IN_A_BOX = """
import json
def names_in(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
told = {"host": read(b"composer-host"), "neighbour": read(b"composer-message"), "left": leave(b"composer-message", b"hello") > 0}
told["errno"] = ctypes.get_errno()
told["names"] = names_in("/proc/keys")
os.write(3, json.dumps(told).encode())
"""
HOST = """
import json, sys
from pathlib import Path
from composer_replication.sandbox import Command, Tree, open_sandbox
from composer_replication.sandbox.request import WARM_FLAGS
kind, base, program = sys.argv[1:]
call(KEYCTL, JOIN, None)
leave(b"composer-host", b"a secret")
sandbox, told = open_sandbox(kind), [{"host holds": read(b"composer-host")}]
for flags in (("-S", "-B", "-c"), WARM_FLAGS):
    for _ in range(2):
        command = Command(argv=(sys.executable, *flags, program), python=Path(sys.executable))
        told.append(json.loads(sandbox.run(Tree(base=Path(base)), command).channel))
print(json.dumps(told))
"""


def test_a_key_of_the_host_and_a_message_of_another_box_are_out_of_reach(box, base):
    """The host is a process with a session keyring, as a login, a service or a container has one."""
    environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["composer_replication"].__file__).parents[1])}
    argv = [sys.executable, "-c", KEYRINGS + HOST, box.isolation.name, str(base), KEYRINGS + IN_A_BOX]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    host, *boxes = json.loads(done.stdout)
    assert host == {"host holds": "a secret"}
    assert boxes == [{"host": "", "neighbour": "", "left": False, "errno": errno.EPERM, "names": ""}] * 4


@pytest.mark.parametrize("warm", [False, True])
def test_a_socket_reaches_no_hypervisor_and_no_subsystem_of_the_kernel(box, base, warm, answer):
    code = """
        import json, os, socket, sys
        told = {}
        for family in map(int, sys.argv[1:]):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                try:
                    socket.socket(family, kind).close()
                    told[f"{family} {kind}"] = 0
                except OSError as error:
                    told[f"{family} {kind}"] = error.errno
        os.write(3, json.dumps(told).encode())
    """
    families = (VSOCK, ALGORITHMS, NETLINK, 17, 44)
    assert set(answer(box, base, textwrap.dedent(code), *map(str, families), warm=warm).values()) == {errno.EPERM}


@pytest.mark.parametrize("warm", [False, True])
def test_every_call_that_the_filter_refuses_is_refused_in_a_box(box, base, warm, answer):
    told = answer(box, base, REFUSALS + "os.write(3, json.dumps(told).encode())", warm=warm)
    assert told.pop("clone3") == errno.ENOSYS
    assert {what: error for what, error in told.items() if error != errno.EPERM} == {}


@pytest.mark.parametrize("warm", [False, True])
def test_what_programs_do_works_in_a_box(box, base, warm, answer):
    told = answer(box, base, WORKS + "os.write(3, json.dumps(told).encode())", warm=warm)
    refused = {what: found for what, found in told.items() if found is not True}
    assert refused.keys() == ({"network"} if box.isolation.name == "landlock" else set()), refused
