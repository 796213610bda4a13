"""Fetching: a source archive through pip's own index code, so that the user's pip settings hold, and git by the git command.

pip's public commands build a project's metadata when they download its source archive, which would run its code outside a
sandbox; so pip's finder is asked for the link and its session for the bytes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from composer_replication.sandbox.confined import not_confined, run_confined
from composer_replication.sandbox.interpreter import clean_environment
from composer_replication.tasks.sources.run_git import NETWORK_S, fetched_too_late, git_for
from composer_replication.tasks.sources.run_pip import NO_PROGRAM, network_reach
from composer_replication.types.errors import SourceError

_PIP = """
import hashlib, json, os, sys
from pip._internal.commands.index import IndexCommand

from pip._vendor.packaging.specifiers import SpecifierSet

name, allowed, folder, most = *sys.argv[1:4], int(sys.argv[4])

class Sdist(IndexCommand):
    def run(self, options, args):
        session = self.get_default_session(options)
        finder = self._build_package_finder(options, session, ignore_requires_python=True)
        links = [c for c in finder.find_all_candidates(name) if not c.link.is_wheel]
        fitting = list(SpecifierSet(allowed).filter({c.version for c in links}))
        if not fitting:
            say(versions=[str(version) for version in sorted({c.version for c in links})])
            return 0
        link = next(c.link for c in links if c.version == max(fitting))
        response = session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
        response.raise_for_status()
        kept, size = os.path.basename(link.filename), 0
        digest = hashlib.new(link.hash_name) if link.hash else None
        with open(os.path.join(folder, kept), "wb") as file:
            for chunk in response.iter_content(1 << 20):
                size += len(chunk)
                if size > most:
                    say(error=f"{link.filename} is larger than {most >> 20} MiB")
                    return 0
                file.write(chunk)
                if digest:
                    digest.update(chunk)
        if digest and digest.hexdigest() != link.hash:
            say(error=f"{link.filename} does not have the {link.hash_name} digest that the index gives")
            return 0
        say(file=kept)
        return 0

def say(**answer):
    with open(os.path.join(folder, "answer.json"), "w") as file:
        json.dump(answer, file)

sys.exit(Sdist("index", "").main(["--no-binary=:all:", "-q", "versions", name]))
"""
_MOST_BYTES = 256 << 20
_FIX = "check name, version and pip's settings (`pip config list`), or unpack the source archive and name its folder"


def download_sdist(name: str, allowed: str, folder: Path) -> Path:
    """Download the newest source archive of `name`, of 256 MiB at most, into `folder`; its digest is checked when the index gives
    one.

    Args:
        allowed: a version specifier such as `==1.2`, or nothing for any release.

    Raises:
        SourceError: pip is not there or cannot find or fetch it.
    """
    command = [sys.executable, "-I", "-c", NO_PROGRAM + _PIP, name, allowed, str(folder), str(_MOST_BYTES)]
    environment = {**clean_environment("PIP_"), "PIP_NO_INPUT": "1"}
    reach = network_reach(Path(sys.executable), folder)
    try:
        done = run_confined(command, reach, environment=environment, most_s=NETWORK_S)
    except subprocess.TimeoutExpired as error:
        raise fetched_too_late(f"pypi:{name}{allowed}") from error
    answer_file = folder / "answer.json"
    answer = json.loads(answer_file.read_text()) if answer_file.exists() else {}
    if "file" in answer:
        return folder / str(answer["file"])
    if "versions" in answer:
        known = ", ".join(answer["versions"][-8:])
        what = (
            "has no source archive"
            + (f" of version {allowed.removeprefix('==')}" if allowed else "")
            + (f" (it has {known})" if known else "")
        )
        raise SourceError(f"{name}: the package index {what}", fix=_FIX)
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    if said and "No module named 'pip" in said[-1]:
        fix = f"{sys.executable} -m ensurepip, or unpack the source archive yourself and name its folder"
        raise SourceError(f"{sys.executable} has no pip, which finds source archives", fix=fix)
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    problem = answer.get("error") or next(iter(errors), said[-1] if said else f"pip ended with {done.returncode}")
    raise SourceError(f"{name}{allowed} cannot be fetched: {problem}", fix=_FIX)


def is_git_url(source: str) -> bool:
    """Return whether `source` looks like a git URL: a scheme, `git@host:path`, or an ending in `.git` (with `@rev` or
    without)."""
    url, _ = split_revision(source)
    return url.startswith(("git+", "https://", "http://", "ssh://", "git://", "file://")) or bool(
        re.match(r"[\w.-]+@[\w.-]+:", url) or url.endswith(".git")
    )


def left_open(source: str, *, installs: bool) -> str:
    """Return what is not confined while a source is fetched and its dependencies are installed; empty for a folder alone.

    Args:
        installs: pip or git runs for a folder too.
    """
    return "" if Path(source).is_dir() and not installs else not_confined()


def clone(source: str, folder: Path, *, whole: bool = False) -> tuple[str, str]:
    """Fetch one commit of `URL[@REV]` into `folder`; returns the URL, without user and password, and the commit's id.

    A revision that the server does not hand out by name (an abbreviated commit) costs the whole history. Hooks, submodules and
    prompts are off.

    Args:
        whole: fetch all commits before it too, and the repository's tags.

    Raises:
        SourceError: git is not there, or the URL or the revision cannot be fetched.
    """
    url, revision = split_revision(source)
    url = url.removeprefix("git+")
    if url.startswith("-") or revision.startswith("-"):
        raise SourceError(f"{source!r} is not a git URL", fix="write URL or URL@REVISION")
    git = git_for(source, url, folder)
    git.run("init", "-q", "--template=")
    fetch = ("fetch", "-q", "--no-tags", "--no-recurse-submodules")
    commit = "FETCH_HEAD"
    try:
        git.run(*fetch, *([] if whole else ["--depth=1"]), url, revision or "HEAD", network=True)
    except SourceError:
        if not revision:
            raise
        git.run(*fetch, url, "+refs/*:refs/fetched/*", network=True)
        commit = git.run("rev-parse", "--verify", f"{revision}^{{commit}}").strip()
    git.run("checkout", "-q", "--detach", commit)
    if whole:
        git.run(*fetch, url, "+refs/tags/*:refs/tags/*", network=True)
    return without_password(url), git.run("rev-parse", "HEAD").strip()


def without_password(source: str) -> str:
    """Return a source as it may be shown: a git URL without user and password."""
    return re.sub("://[^/@]*@", "://", source)


def split_revision(source: str) -> tuple[str, str]:
    """Split `URL@REV` in two; an `@` before the path (`git@host:path`, `https://user@host/path`) belongs to the URL."""
    url, at, revision = source.rpartition("@")
    _, scheme, rest = url.partition("://")
    has_path = "/" in rest if scheme else "/" in url or ":" in url or url.endswith(".git")
    return (url, revision) if at and has_path and ":" not in revision else (source, "")
