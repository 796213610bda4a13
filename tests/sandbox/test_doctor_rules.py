"""`composer doctor --sandbox` tries every rule of the filter: whatever a filter lacks is named, and nothing else."""

from __future__ import annotations

import dataclasses
import platform
import sys
from pathlib import Path

import pytest

from composer_replication.sandbox import Command, ExecResult, Tree, open_sandbox
from composer_replication.sandbox.backends.syscalls import REFUSED, number_of
from composer_replication.sandbox.doctor.probes import PROBES
from composer_replication.sandbox.doctor.refused_calls import refused_calls
from composer_replication.sandbox.doctor.selftest import ProbeVerdict, self_test

(PROBE,) = (probe for probe in PROBES if probe.name == "system calls")
ROOT = str(Path(sys.modules["composer_replication"].__file__).parents[1])
LOADER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from composer_replication.sandbox.backends import linux, seccomp
from composer_replication.sandbox.backends.seccomp import ArgumentRule
exec(sys.argv[2])
linux.no_new_privs()
linux.drop_capabilities()
linux.load_filter(seccomp.compiled())
os.execv(sys.argv[3], sys.argv[3:])
"""
NAMED = """
    keyctl add_key request_key bpf perf_event_open io_uring_setup io_uring_enter io_uring_register userfaultfd ptrace
    process_vm_readv process_vm_writev mount umount2 pivot_root move_mount open_tree fsopen fsmount fsconfig fspick mount_setattr
    setns unshare chroot name_to_handle_at open_by_handle_at
"""
VSOCK, ALGORITHMS, NETLINK = 40, 38, 16


class Filtered:
    """A plain process without capabilities under our filter, changed by a program: the kernel refuses most of these calls too."""

    def __init__(self, change: str) -> None:
        self._plain = open_sandbox("unsafe-subprocess")
        self._change = change
        self.isolation = self._plain.isolation

    def run(self, tree: Tree, command: Command) -> ExecResult:
        argv = (sys.executable, "-S", "-B", "-c", LOADER, ROOT, self._change, *command.argv)
        return self._plain.run(tree, dataclasses.replace(command, argv=argv))


def through(change: str) -> list[str]:
    """What the probe finds of a filter with that change."""
    (finding,) = self_test(Filtered(change), [PROBE])
    assert finding.verdict is (ProbeVerdict.OPEN if finding.detail else ProbeVerdict.BLOCKED)
    return list(finding.detail)


def test_a_whole_filter_lets_nothing_through():
    assert through("") == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("seccomp.REFUSED.pop('swapon')", "swapon"),
        ("seccomp.REFUSED.pop('move_mount')", "move_mount"),
        ("seccomp.REFUSED.pop('vhangup')", "vhangup"),
        ("seccomp._NOT_THERE = ()", "clone3"),
        ("seccomp.RULES['socket'] = ArgumentRule(argument=0, allowed=(1, 2, 10, 40))", "socket (0x28, 0x100000028)"),
        ("seccomp.RULES['clone'] = ArgumentRule(argument=0, refused_bits=0x6E020080)", "clone (0x10000000, 0x110000000)"),
        ("seccomp.RULES['ioctl'] = ArgumentRule(argument=1, refused=(0x5412,))", "ioctl (0x541c, 0x10000541c)"),
        ("seccomp.RULES.pop('personality')", "personality (0x1, 0x2, 0x3, 171 more)"),
        ("seccomp._X32 = 0x7FFFFFFF", "the numbers of x32"),
    ],
)
def test_a_rule_that_a_filter_lacks_is_named(change, named):
    assert through(change) == [named]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="32-bit x86 is foreign to no other machine")
def test_another_architecture_is_named():
    if "calls of 32-bit x86" not in through_no_filter():
        pytest.skip("this kernel does not carry them out")
    assert through("seccomp._KILL = seccomp._ALLOW") == ["calls of 32-bit x86"]


def through_no_filter() -> list[str]:
    (finding,) = self_test(open_sandbox("unsafe-subprocess"), [PROBE])
    return list(finding.detail)


def test_no_filter_at_all_lets_every_call_through():
    names = [name for name in REFUSED if number_of(name) is not None]
    found = through_no_filter()
    assert [name for name in names if name not in found] == []
    assert {"clone3", "the numbers of x32"} <= set(found)
    shortened = [what.partition(" (")[0] for what in found if " (" in what]
    assert shortened == ["socket", "socketpair", "clone", "ioctl", "personality"]


def test_what_no_sandbox_may_call_is_tried(box):
    tried = refused_calls(box.isolation)
    assert set(NAMED.split()) <= {call.name for call in tried}
    families = {call.arguments[0] for call in tried if call.name == "socket"}
    assert {VSOCK, ALGORITHMS, NETLINK} <= families
