"""The same overlay as `namespaces`, with the last step done by bubblewrap (`bwrap`) where it is installed."""

from __future__ import annotations

import os

from composer_replication.sandbox.backends import seccomp
from composer_replication.sandbox.backends.namespaces import (
    BOX_UID,
    ETC_FILES,
    KEY_LIST,
    enter_user_namespace,
)
from composer_replication.sandbox.backends.stage import Stage, mount_stage
from composer_replication.sandbox.backends.supervisor import Started, fork_command, open_cgroups
from composer_replication.sandbox.backends.system import system_view
from composer_replication.sandbox.request import BoxFds, BoxRequest


def start(request: BoxRequest, fds: BoxFds, error_fd: int) -> Started:
    """Lay out the tree and start bwrap over it. Raises OSError."""
    cgroups = open_cgroups(request.cgroup_procs)
    enter_user_namespace(0)
    stage = mount_stage(request.scratch)
    changes = stage.lay_out(request)
    argv = [request.program, *filter_options(), *_arguments(stage, request)]
    pid = fork_command(request, fds, error_fd, argv=argv, env={}, directory="/", cgroups=cgroups)
    return Started(pid=pid, changes=changes, returncode=_returncode, finish=stage.disk_full)


def filter_options() -> list[str]:
    """Return the options that name a descriptor from which bwrap reads the filter of system calls. It loads the filter last and
    closes the descriptor."""
    fd = os.memfd_create("filter")
    os.write(fd, seccomp.box_filter())
    os.lseek(fd, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    return ["--seccomp", str(fd)]


def _arguments(stage: Stage, request: BoxRequest) -> list[str]:
    top = os.path.dirname(stage.root)
    tmp, empty, etc = f"{top}/tmp", f"{top}/empty", f"{top}/etc"
    for folder in (tmp, empty, etc):
        os.mkdir(folder)
    argv = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(BOX_UID), "--gid", str(BOX_UID)]
    argv += ["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]
    view = system_view()
    for path in view.paths:
        argv += ["--ro-bind", path, path]
    for link, to in view.links:
        argv += ["--symlink", to, link]
    for name, content in ETC_FILES.items():
        with open(f"{etc}/{name}", "w", encoding="ascii") as file:
            file.write(content)
        argv += ["--ro-bind", f"{etc}/{name}", f"/etc/{name}"]
    for name in ("proc", "dev"):
        argv += [f"--{name}", f"/{name}", "--remount-ro", f"/{name}"]
    if os.path.exists(KEY_LIST):
        argv += ["--dev-bind", "/dev/null", KEY_LIST]
    for path in ("/tmp", "/dev/shm"):
        argv += ["--bind", tmp, path]
    for path in request.binds:
        argv += ["--ro-bind", path, path]
    for path in request.masks:
        argv += ["--ro-bind", empty, path]
    argv += ["--bind", stage.repo, "/repo", "--remount-ro", "/", "--chdir", "/repo"]
    for name, value in request.env.items():
        argv += ["--setenv", name, value]
    return [*argv, "--", *request.argv]


def _returncode(status: int) -> int:
    """Convert the exit status: bwrap reports a signal as 128 + its number."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if 128 < code <= 128 + 64 else code
