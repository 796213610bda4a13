"""Attempts to break out of a sandbox, declared once: `composer doctor --sandbox` reports them, `tests/sandbox` demands their
failure.

A probe runs programs of the standard library in sandboxes and says what got through, one phrase each; nothing means the sandbox
held. What a kind of sandbox admits that it does not enforce (`Isolation.missing`) excuses a probe by the beginning of that
phrase.
"""

from __future__ import annotations

from composer_replication.sandbox.doctor import channels, host, kernel, leftovers, limits, rights, rules, software
from composer_replication.sandbox.doctor.probe import Probe

PROBES: tuple[Probe, ...] = (
    Probe(name="network", tries="TCP, UDP, raw packets and Unix sockets of the host", run=host.network),
    Probe(name="host files", tries="reading by path, link, hard link and process 1", run=host.host_files),
    Probe(
        name="host writes",
        tries="writing the system, the interpreter, the task's tree and a file open to all",
        run=host.host_writes,
    ),
    Probe(name="software", tries="reading what else is below /usr, and packages of others", run=software.hidden_software),
    Probe(
        name="software's names",
        tries="finding what else is below /usr, and packages of others",
        run=software.hidden_names,
        excuses=("namespaces: names",),
    ),
    Probe(name="/proc", tries="environment, memory and descriptors of processes of the host", run=host.processes),
    Probe(name="signals", tries="a signal to a process of the host", run=host.signals, excuses=("signals",)),
    Probe(name="processes", tries="limits, processors and priority of a process of the host", run=host.limits),
    Probe(name="ptrace", tries="attaching to processes and reading their memory", run=host.ptrace),
    Probe(name="capabilities", tries="capabilities, becoming root, devices, the kernel's settings", run=rights.privileges),
    Probe(name="mount", tries="mounts, namespaces, chroot", run=rights.mounts),
    Probe(name="sockets", tries="sockets that no network needs: vsock, AF_ALG, netlink and all others", run=kernel.sockets),
    Probe(name="kernel", tries="bpf, perf events, io_uring, userfaultfd, secret memory", run=kernel.interfaces),
    Probe(name="file handles", tries="files by a handle instead of a path", run=kernel.file_handles),
    Probe(name="system calls", tries="every call that the filter refuses, and by which arguments", run=rules.filter_rules),
    Probe(name="terminal", tries="typing into a terminal", run=kernel.terminal),
    Probe(name="fork bomb", tries="300 processes with a limit of 16", run=limits.fork_bomb, excuses=("number of processes",)),
    Probe(name="memory", tries="eight times its memory limit in one process", run=limits.memory),
    Probe(
        name="shared memory",
        tries="eight times its memory limit outside every process",
        run=limits.shared_memory,
        excuses=("memory limit of the whole sandbox", "memory of the whole sandbox"),
    ),
    Probe(name="disk", tries="eight times its disk limit, in many files and in one", run=limits.disk),
    Probe(name="time", tries="sleeping and computing beyond its limits", run=limits.time),
    Probe(name="daemon", tries="processes that outlive the sandbox", run=leftovers.daemon),
    Probe(name="watcher", tries="a process left behind that rewrites the tree for whoever comes next", run=leftovers.watcher),
    Probe(name="neighbour", tries="what an earlier sandbox left behind", run=leftovers.neighbour),
    Probe(name="keys", tries="keys of the host, and a message to the next sandbox as a key", run=channels.keys),
    Probe(
        name="shared files",
        tries="signalling to another sandbox, or to the host, by locking and opening system files",
        run=channels.shared_files,
        excuses=("shared files",),
    ),
    Probe(name="descriptors", tries="open descriptors of the host", run=host.descriptors),
)
