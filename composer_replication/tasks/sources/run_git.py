"""git on this machine, held to fetching one repository into one folder: it gets no variable, file or port that this does not
take."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from composer_replication.sandbox.confined import (
    WEB_PORTS,
    Reach,
    named_in,
    port_of,
    program_reach,
    proxy_ports,
    run_confined,
)
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.types.errors import SourceError

NETWORK_S = 900
"""Seconds that one fetch may take."""
_QUESTION_S = 60
_SETTINGS = ("-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false", "-c", "protocol.ext.allow=never")
_OF_ANOTHER_REPOSITORY = frozenset(
    {
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
        *("GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE"),
    }
)
"""Variables of a repository that this process was started in, as by a hook of it."""
_NAMING_FILES = ("core.", "http.", "include.", "includeif.", "gpg.", "ssh.")
"""Beginnings of the settings whose paths a fetch may read."""
_SSH = re.compile(r"ssh$|git\+ssh$|ssh\+git$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """git with one folder, and the URL that it may fetch from."""

    source: str
    """Named in errors."""
    program: str
    folder: Path
    environment: Mapping[str, str]
    offline: Reach
    online: Reach

    def run(self, *arguments: str, network: bool = False) -> str:
        """Run a command of git in the folder, and return what it prints. Raises SourceError."""
        command = [self.program, "-C", str(self.folder), *_SETTINGS, *arguments]
        reach = self.online if network else self.offline
        try:
            done = run_confined(command, reach, environment=self.environment, most_s=NETWORK_S)
        except subprocess.TimeoutExpired as error:
            raise fetched_too_late(self.source) from error
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [f"git ended with {done.returncode}"])[-1]
            raise SourceError(f"{self.source} cannot be fetched: {said}", fix="check the URL, the revision and your access to it")
        return done.stdout


def fetched_too_late(source: str) -> SourceError:
    """Return the error of a source that did not arrive in time."""
    return SourceError(f"{source} was not fetched within {NETWORK_S} s", fix="check the network and try again")


def git_for(source: str, url: str, folder: Path) -> Git:
    """Return git for one URL and the folder of a repository to be. Raises SourceError when it is not installed."""
    environment = clean_environment("GIT_") | {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
    environment = {name: value for name, value in environment.items() if name not in _OF_ANOTHER_REPOSITORY}
    program = shutil.which("git", path=environment.get("PATH"))
    if program is None:
        raise SourceError(f"git is not installed; fetching {source} needs it", fix="install git")
    folder.mkdir(parents=True, exist_ok=True)
    settings, files = _settings(program, environment)
    named = named_in([value for key, value in settings if key.startswith(_NAMING_FILES)] + _variables(environment))[0]
    offline = Reach(
        writable=frozenset({str(folder)}),
        readable=program_reach(program) | files | named | {"/etc/gitconfig", "/etc/gitattributes"},
    )
    scheme, online = _online(program, url, settings, environment, offline)
    if _SSH.match(scheme):
        environment |= clean_environment("SSH_AUTH_SOCK")
    return Git(source=source, program=program, folder=folder, environment=environment, offline=offline, online=online)


def _online(
    program: str, url: str, settings: list[tuple[str, str]], environment: Mapping[str, str], offline: Reach
) -> tuple[str, Reach]:
    """Return the scheme of a URL, once settings have rewritten it (`insteadOf`), and what fetching from it takes."""
    real = _asked(program, environment, "ls-remote", "--get-url", "--", url).strip() or url
    scheme, home = _scheme(real), Path.home()
    ports: frozenset[int] | None
    readable, sockets, ports = set(offline.readable), offline.sockets, frozenset()
    match scheme:
        case "file":
            path = unquote(urlsplit(real).path) if real.startswith("file://") else os.path.abspath(real)
            readable.add(path)
        case "http" | "https":
            proxies = [value for key, value in settings if key.startswith("http.") and key.endswith("proxy")]
            ports = WEB_PORTS | proxy_ports(environment, proxies) | {port_of(real) or 443}
            readable |= {str(home / name) for name in (".netrc", ".git-credentials", ".config/git/credentials")}
            helped = any(key.startswith("credential.") and key.endswith("helper") for key, _ in settings)
            sockets = "all" if helped else "internet"
        case "git":
            ports, sockets = WEB_PORTS | {port_of(real) or 9418}, "internet"
        case _:  # ssh, whose own settings name hosts, ports and programs
            ports, sockets = None, "all"
            readable |= {str(home / ".ssh"), "/etc/ssh"}
    return scheme, Reach(writable=offline.writable, readable=frozenset(readable), ports=ports, sockets=sockets)


def _scheme(url: str) -> str:
    """Return the scheme of a URL as git takes it: `host:path` is ssh, and what has neither is a path."""
    before, separator, _ = url.partition("://")
    if separator:
        return before.lower()
    return "ssh" if re.match(r"[^/:]+:", url) and not os.path.exists(url) else "file"


def _variables(environment: Mapping[str, str]) -> list[str]:
    return [value for name, value in environment.items() if name.startswith("GIT_")]


def _settings(program: str, environment: Mapping[str, str]) -> tuple[list[tuple[str, str]], frozenset[str]]:
    """Return git's settings outside of any repository, with lower-case names, and the files that they are in."""
    listed = _asked(program, environment, "config", "--list", "--show-origin", "-z").split("\0")
    origins, entries = listed[:-1:2], listed[1::2]
    pairs = [entry.partition("\n") for entry in entries]
    files = {origin.removeprefix("file:") for origin in origins if origin.startswith("file:")}
    return [(key.lower(), value) for key, _, value in pairs], named_in(files)[0]


def _asked(program: str, environment: Mapping[str, str], *question: str) -> str:
    """Ask git about the user's own settings; empty where there are none. Raises SourceError when it does not answer."""
    try:
        asked = subprocess.run(
            [program, *question],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_QUESTION_S,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env={**environment},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"git does not say what its settings are: {error}", fix="try `git config --list`") from error
    return asked.stdout
