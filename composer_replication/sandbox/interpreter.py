"""The host folders an interpreter needs to run in a sandbox, and those that must stay hidden."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from composer_replication.sandbox.backends.preload import ONLY_STANDARD_LIBRARY
from composer_replication.sandbox.backends.system import interpreter_patterns, is_shared_prefix, system_view
from composer_replication.sandbox.protocol import Installation
from composer_replication.types.errors import SandboxError, TaskError

_HIDDEN_PACKAGES = ("composer_replication", "pip", "ensurepip")
"""The first carries the gold code of the quickstart's projects, the others copies of other people's packages."""
_PACKAGE_FOLDERS = ("lib*/python3*/*-packages", "local/lib/python3*/*-packages", "envs", "pkgs", "share/python-wheels")
"""Package folders of interpreters below a prefix; `envs` and `pkgs` are conda's."""

_ANSWER_S = 60.0
_PASSED_ON = frozenset(
    {
        *("PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    }
)
"""Variables that say where things are and how to reach the network, and hold no secret but a proxy's."""

_QUESTION = """
import json, pkgutil, sysconfig
from importlib.machinery import PathFinder
from importlib.metadata import distributions
paths = sysconfig.get_paths()
entries = (e for d in distributions(path=everything) for e in d.entry_points)
plugins = sorted({(e.name, e.value.split(":")[0]) for e in entries if e.group == "pytest11"})
print(json.dumps({
    "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],
    "libraries": [paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")],
    "search": [p for p in everything if p],
    "plugins": plugins,
    "version": sys.version_info[:2],
    "modules": sorted({
        *sys.stdlib_module_names,
        *(m.name for m in pkgutil.iter_modules(everything)),
        *(  # also where an import hook finds them
            name
            for name in ("pytest", "coverage")
            if any(finder.find_spec(name, everything if finder is PathFinder else None) for finder in sys.meta_path)
        ),
    }),
}))
"""


def clean_environment(*prefixes: str) -> dict[str, str]:
    """Return this process's environment without what is not known to be harmless, for programs that run others' code.

    Args:
        prefixes: of the names of further variables to pass on.
    """
    passed = ("LC_", *prefixes)
    return {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(passed)}


def installation_of(python: Path) -> Installation:
    """See `Sandbox.installation`; of this machine."""
    return _installation_of(os.path.abspath(python))


def ask(python: str, question: str, *arguments: str) -> Any:
    """Run a program in an interpreter on this machine, and return the JSON it prints last.

    Of the interpreter's packages only what it runs at every start is run: `.pth` files and `sitecustomize`. `question` imports
    from the standard library only; the module search path with the packages is in `everything`.

    Raises:
        TaskError: the interpreter does not work.
        SandboxError: it does not answer.
    """
    command = [python, "-I", "-c", ONLY_STANDARD_LIBRARY + question, *arguments]
    try:
        answer = subprocess.run(
            command, capture_output=True, timeout=_ANSWER_S, cwd="/", env=clean_environment(), stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise _no_answer(python) from error
    except OSError as error:
        raise _no_interpreter(python, error.strerror or str(error)) from error
    if answer.returncode != 0:
        said = answer.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise _no_interpreter(python, said or f"exit status {answer.returncode}")
    try:
        return json.loads(answer.stdout.rstrip().rpartition(b"\n")[2])  # a wrapper may have printed something before
    except ValueError as error:
        raise _no_interpreter(python, "it does not run the program it is given") from error


@lru_cache(maxsize=64)
def _installation_of(python: str) -> Installation:
    facts = ask(python, _QUESTION)
    binds = _folders_of(facts, python)
    ours = Path(__file__).resolve().parents[1]
    holders = {*facts["search"], *facts["libraries"], *facts["prefixes"], str(ours.parent)}
    hidden = {f"{holder}/{name}" for holder in holders for name in _HIDDEN_PACKAGES}
    hidden |= set(_packages_of_others(("/usr", *binds), [*facts["search"], *facts["prefixes"]]))
    candidates = {path for folder in hidden for path in (folder, os.path.realpath(folder))}
    masks = sorted(p for p in candidates if os.path.isdir(p) and any(_is_below(p, seen) for seen in ("/usr", *binds)))
    return Installation(
        binds=binds,
        masks=tuple(masks),
        pytest_plugins=tuple((name, module) for name, module in facts["plugins"]),
        version=(facts["version"][0], facts["version"][1]),
        modules=frozenset(facts["modules"]),
    )


def _folders_of(facts: dict[str, Any], python: str) -> tuple[str, ...]:
    """Return what sandboxes have to show of an interpreter's installation besides the system's files.

    Of a prefix that it shares with other software this is only what is its own.
    """
    wanted = {*facts["libraries"]}
    for prefix in {*facts["prefixes"], *_link_hops(python)}:
        if is_shared_prefix(prefix):
            own = [path for pattern in interpreter_patterns(prefix) for path in glob.glob(pattern)]
            wanted |= {*own, *(path for path in facts["search"] if _is_below(path, prefix))}
        else:
            wanted.add(prefix)
    binds: list[str] = []
    for path in sorted({p for w in wanted for p in (os.path.normpath(w), os.path.realpath(w))}, key=len):
        shown = (*system_view().paths, *binds)
        if path != "/" and os.path.exists(path) and not any(_is_below(path, seen) for seen in shown):
            binds.append(path)
    return tuple(binds)


def _no_interpreter(python: str, why: str) -> TaskError:
    return TaskError(f"{python} is not a working Python interpreter ({why})", fix="name another interpreter")


def _no_answer(python: str) -> SandboxError:
    return SandboxError(f"{python} did not answer within {_ANSWER_S:g} s", fix="try again when the machine has less to do")


def _packages_of_others(tops: Iterable[str], own: Iterable[str]) -> Iterator[str]:
    """Yield folders of packages below `tops` that contain nothing of this interpreter's `own`.

    One of them may hold the project whose code a task deletes, and any program that can read it can import it.
    """
    kept = [os.path.realpath(path) for path in own]
    for top in tops:
        for pattern in _PACKAGE_FOLDERS:
            for folder in glob.glob(f"{glob.escape(top)}/{pattern}"):
                real = os.path.realpath(folder)
                if not any(_is_below(path, real) for path in kept):
                    yield folder


@lru_cache(maxsize=64)
def reachable_by(uid: int, python: Path) -> bool:
    """Return whether root can run `python` as the user `uid`, read its installation and enter the folder for temporary files.

    Raises TaskError and SandboxError like `installation_of`.
    """
    code = "import os, sys; [os.listdir(path) for path in sys.argv[1:]]"
    argv = [str(python), "-I", "-c", code, *installation_of(python).binds, tempfile.gettempdir()]
    try:
        done = subprocess.run(argv, user=uid, group=uid, extra_groups=[], capture_output=True, cwd="/", timeout=_ANSWER_S)
    except subprocess.TimeoutExpired as error:
        raise _no_answer(str(python)) from error
    except OSError:
        return False
    return done.returncode == 0


def _link_hops(python: str) -> list[str]:
    """Return the installations a chain of links to an interpreter passes through (`PREFIX/bin/python` gives PREFIX)."""
    hops = []
    for _ in range(16):
        folder = os.path.dirname(python)
        hops.append(os.path.dirname(folder) if os.path.basename(folder) == "bin" else folder)
        if not os.path.islink(python):
            break
        python = os.path.normpath(os.path.join(folder, os.readlink(python)))
    return hops


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
