"""The filter of system calls: its assembler, its tables, its answers in a machine of our own, and each rule by a real call."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from system_calls import FOREIGN, REFUSALS, WORKS

from composer_replication.sandbox import Command, Isolation, Tree
from composer_replication.sandbox.backends import landlock, seccomp
from composer_replication.sandbox.backends.bpf import Step, answer, assemble, if_any_bit, if_at_least, if_equal, load
from composer_replication.sandbox.backends.syscalls import MACHINES, METADATA, NUMBERS, OTHERS_OF_THE_USER, REFUSED, number_of
from composer_replication.sandbox.doctor.refused_calls import refused_calls

OWN = 4000
"""An error that no call of the kernel gives: only the filter can have said it."""
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SEALED = f"""
from composer_replication.sandbox.backends import linux, seccomp
linux.drop_capabilities()
seccomp.seal(seccomp.compiled(refusal={OWN}))
"""


def run(program: bytes, number: int, *arguments: int, architecture: int) -> int:
    """What the program answers: a machine for the five instructions that filters are made of."""
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *(*arguments, *[0] * 6)[:6])
    steps, place, word = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        code, then, otherwise, value = steps[place]
        place += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (word,) = struct.unpack_from("=I", data, value)
        else:
            holds = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[code]
            place += then if holds else otherwise


def test_the_assembler_computes_jumps():
    lines = [load(4), if_equal(7, "yes", "no"), "no", if_any_bit(8, "yes"), answer(0), "yes", answer(1)]
    steps = list(struct.iter_unpack("=HBBI", assemble(lines)))
    assert steps == [(0x20, 0, 0, 4), (0x15, 2, 0, 7), (0x45, 1, 0, 8), (0x06, 0, 0, 0), (0x06, 0, 0, 1)]


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([if_equal(1, "gone"), answer(0)], "cannot jump to 'gone'"),
        (["here", load(0), if_equal(1, "here"), answer(0)], "cannot jump to 'here'"),
        (["here", answer(0), "here", answer(1)], "defined twice"),
        ([answer(0), "here", answer(1)], "never used"),
        ([if_equal(1, "here"), answer(0), "here"], "cannot jump to 'here'"),
        ([if_equal(1, "far"), *[load(0)] * 256, "far", answer(0)], "256 steps further"),
        ([load(0), if_at_least(1)], "not an answer"),
        ([], "not an answer"),
    ],
)
def test_the_assembler_refuses_what_would_go_astray(lines, wrong):
    with pytest.raises(ValueError, match=wrong):
        assemble(lines)


def test_a_jump_of_255_steps_is_the_longest():
    lines: list[Step | str] = [if_equal(1, "far"), *[load(0)] * 255, "far", answer(0)]
    assert struct.unpack_from("=HBBI", assemble(lines)) == (0x15, 255, 0, 1)


def numbers_of_header(machine: str) -> dict[str, int]:
    """The numbers of the kernel's header for that machine, where it is installed."""
    places = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}
    if not Path(places[machine]).exists():
        pytest.skip(f"{places[machine]} is not installed")
    defined = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", Path(places[machine]).read_text(), re.MULTILINE)
    return {name: int(number) for name, number in defined}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernels_headers(machine):
    header = numbers_of_header(machine)
    newest = max(number for name, number in header.items() if name != "syscalls")
    known = {name: number for name in NUMBERS if (number := number_of(name, machine)) is not None}
    assert {name: number for name, number in known.items() if name in header} == {n: header[n] for n in known if n in header}
    assert all(number > newest - 16 for name, number in known.items() if name not in header), "only calls newer than the headers"
    assert all(name not in header for name in NUMBERS.keys() - known.keys())
    assert len(set(known.values())) == len(known)


def test_an_unknown_machine_is_an_error():
    with pytest.raises(OSError, match="the system calls of riscv64 are not known"):
        seccomp.compiled(machine="riscv64")


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_gets_the_answer_of_the_tables(machine):
    """Also of the machine that this one is not; with arguments that no rule refuses."""
    program, architecture = seccomp.compiled(refusal=OWN, machine=machine), ARCHITECTURES[machine]
    refused = {number_of(name, machine) for name in REFUSED}
    for number in range(1024):
        expected = ERROR | OWN if number in refused else ERROR | errno.ENOSYS if number == 435 else ALLOW
        assert run(program, number, 1, architecture=architecture) == expected or number == number_of("personality", machine)
    for number in (0x40000000, 0x40000000 + 39, 0xFFFFFFFF):
        assert run(program, number, architecture=architecture) == ERROR | OWN
    for other in {*ARCHITECTURES.values(), 0x40000003, 0x40000028, 0} - {architecture}:
        assert run(program, 39, architecture=other) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_every_argument_gets_the_answer_of_the_rules(machine):
    program = seccomp.compiled(machine=machine)

    def allowed(name: str, *arguments: int) -> bool:
        said = run(program, number_of(name, machine), *arguments, architecture=ARCHITECTURES[machine])
        assert said in (ALLOW, ERROR | errno.EPERM)
        return said == ALLOW

    for high in (0, 1 << 32):  # the kernel does not look at the upper half
        for name in ("socket", "socketpair"):
            assert [family for family in range(64) if allowed(name, family | high)] == [1, 2, 10]
        assert [bit for bit in range(32) if not allowed("clone", 1 << bit | high)] == [7, 17, 25, 26, 27, 28, 29, 30]
        assert allowed("clone", 0x3D0F00 | 17 | high)  # a thread's flags, and a signal
        assert [request for request in range(0x5400, 0x5480) if not allowed("ioctl", 0, request | high)] == [0x5412, 0x541C]
    assert [bit for bit in range(32) if allowed("personality", 1 << bit)] == [3, 17]
    assert allowed("personality", 0xFFFFFFFF)
    assert allowed("personality", 0)


def test_answers_of_one_kind_come_before_the_rules():
    program = seccomp.compiled({"socket": errno.EPERM, **dict.fromkeys(METADATA, 0)}, machine="x86_64")
    assert run(program, 41, 2, architecture=ARCHITECTURES["x86_64"]) == ERROR | errno.EPERM
    assert run(program, 53, 1, architecture=ARCHITECTURES["x86_64"]) == ALLOW
    assert run(program, 90, architecture=ARCHITECTURES["x86_64"]) == ERROR


@pytest.mark.parametrize("machine", MACHINES)
def test_a_process_without_a_user_of_its_own_changes_no_other(machine, monkeypatch):
    """`prlimit` would end the trainer: a limit of no CPU-seconds."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    landlock.box_filter.cache_clear()
    for own_user in (False, True):
        program = landlock.box_filter(own_user=own_user)

        def said(name: str, *arguments: int, program: bytes = program) -> int:
            return run(program, number_of(name, machine), *arguments, architecture=ARCHITECTURES[machine])

        refused = ALLOW if own_user else ERROR | errno.EPERM
        for name in OTHERS_OF_THE_USER.keys() - {"setpriority", "ioprio_set"}:
            assert said(name, 0) == ALLOW, name
            assert said(name, 1 << 32) == ALLOW, "the kernel does not look at the upper half"
            assert {said(name, pid) for pid in (1, 4711, 0xFFFFFFFF)} == {refused}, name
        assert {said(name, which, 0) for name in ("setpriority", "ioprio_set") for which in (0, 1, 2, 3)} == {refused}
        assert said("socket", 1) == ERROR | errno.EPERM
    landlock.box_filter.cache_clear()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", ["every kind", "landlock with a user per box", "landlock"])
def test_the_doctor_tries_every_rule(machine, kind, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    landlock.box_filter.cache_clear()
    missing = ("file modes and times (calls that change them have no effect)",) if kind == "landlock" else ()
    isolation = Isolation(name=kind.partition(" ")[0], network="", files="", user="", limits="", missing=missing)
    program = landlock.box_filter(own_user=not missing) if isolation.name == "landlock" else seccomp.compiled()
    tried = refused_calls(isolation)
    answers = [
        run(program, call.number, *(value % 2**64 for value in call.arguments), architecture=ARCHITECTURES[machine])
        for call in tried
    ]
    assert answers == [ERROR | call.answer for call in tried]
    refused = {
        number
        for number in range(1024)
        for argument in (0, 1, 3, 0xFFFFFFFF)
        if run(program, number, *[argument] * 6, architecture=ARCHITECTURES[machine]) != ALLOW
    }
    assert refused - {call.number for call in tried} == set()
    landlock.box_filter.cache_clear()


VICTIM = """
import json, os, resource, sys
victim, told = int(sys.argv[1]), {}
tries = {
    "limit": lambda: resource.prlimit(victim, resource.RLIMIT_CPU, (1, 1)),
    "processors": lambda: os.sched_setaffinity(victim, {0}),
    "priority": lambda: os.setpriority(0, victim, 19),
    "everybody's priority": lambda: os.setpriority(2, 0, 19),
    "scheduler": lambda: os.sched_setscheduler(victim, os.SCHED_BATCH, os.sched_param(0)),
}
for what, action in tries.items():
    try:
        action()
        told[what] = "done"
    except OSError as error:
        told[what] = type(error).__name__
os.sched_setaffinity(0, os.sched_getaffinity(0))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(json.dumps(told))
"""


def test_a_box_changes_no_process_of_the_host(box, base):
    victim = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        before = (
            resource.prlimit(victim.pid, resource.RLIMIT_CPU),
            os.getpriority(0, victim.pid),
            os.sched_getaffinity(victim.pid),
        )
        mine = os.getpriority(0, 0)
        argv = (sys.executable, "-s", "-c", VICTIM, str(victim.pid))
        result = box.run(Tree(base=base), Command(argv=argv, python=Path(sys.executable)))
        assert result.returncode == 0, result.stderr
        told = json.loads(result.stdout)
        assert told.pop("everybody's priority") in ("done", "PermissionError")
        assert set(told.values()) <= {"PermissionError", "ProcessLookupError"}, told
        after = resource.prlimit(victim.pid, resource.RLIMIT_CPU), os.getpriority(0, victim.pid), os.sched_getaffinity(victim.pid)
        assert after == before
        assert os.getpriority(0, 0) == mine
    finally:
        victim.communicate()


def told_by(program: str) -> object:
    """What a program of its own prints as JSON; it finds this package."""
    environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["composer_replication"].__file__).parents[1])}
    done = subprocess.run([sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def under_the_filter(source: str):
    """What a program under the filter leaves in `told`."""
    return told_by(f"{SEALED}\n{source}\nimport json\nprint(json.dumps(told))")


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.EDQUOT, errno.EINVAL])
def test_a_keyring_that_the_host_does_not_give(error):
    """A filter of the host refuses, or the user has no key left of their quota: the box goes on, as its filter refuses keys."""
    program = f"""
from composer_replication.sandbox.backends import linux, seccomp
linux.no_new_privs()
linux.load_filter(seccomp.compiled({{"keyctl": {error}}}))
try:
    linux.join_session_keyring()
    print(0)
except OSError as error:
    print(error.errno)
"""
    assert told_by(program) == (error if error == errno.EINVAL else 0)


def test_every_rule_of_the_filter_by_a_real_call():
    """The error is one that the kernel does not have: not a call was refused for another reason."""
    told = under_the_filter(REFUSALS)
    assert told.pop("clone3") == errno.ENOSYS
    assert len(told) > 140
    assert {what: error for what, error in told.items() if error != OWN} == {}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the call of a foreign architecture is one of 32-bit x86")
def test_a_foreign_architecture_is_killed():
    plain = subprocess.run([sys.executable, "-S", "-c", f"{FOREIGN}\nprint(foreign())"], capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    ended = under_the_filter(f"{FOREIGN}\ntold = foreign()")
    carried_out = plain.stdout == "0\n"  # not by every kernel
    assert ended == (-signal.SIGSYS if carried_out else int(plain.stdout))


def test_what_programs_do_works_under_the_filter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = under_the_filter(WORKS)
    assert {what: found for what, found in told.items() if found is not True} == {}


@pytest.mark.slow
def test_pytest_runs_in_a_box(box, base, execute):
    test = b"import subprocess\n\ndef test_it(tmp_path):\n    assert subprocess.run(['true']).returncode == 0\n"
    code = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider']))"
    result = execute(box, base, code, changes={"test_it.py": test}, warm=True)
    assert (result.returncode, b"1 passed" in result.stdout) == (0, True), result
