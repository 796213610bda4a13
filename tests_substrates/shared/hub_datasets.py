"""The repositories of datasets of a Hub: what its client asks to create, to upload, to list and to download them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

Answer = tuple[int, Any, dict[str, str]]
"""Status, content (bytes, or what becomes JSON), and headers."""
_MISSING = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}


@dataclass
class Repository:
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[self.head]

    def commit(self, files: dict[str, bytes]) -> str:
        sha = hashlib.sha1(f"{len(self.commits)}".encode()).hexdigest()
        self.commits[sha] = files
        return sha


class Datasets(dict[str, Repository]):
    """By id. `answer` is what the Hub says to a request, or None where it is about something else."""

    def answer(self, method: str, target: str, body: bytes, host: str) -> Answer | None:
        path = urllib.parse.unquote(target.partition("?")[0])
        if (method, path) == ("POST", "/api/repos/create"):
            return self._create(json.loads(body), host)
        if (method, path) == ("POST", "/api/validate-yaml"):
            asked = json.loads(body)
            headed = asked["repoType"] == "dataset" and re.match(r"---\n(.+\n)+---\n", asked["content"])
            return 200, {"errors": [], "warnings": [] if headed else [{"message": "empty or missing yaml metadata"}]}, {}
        if not (match := re.fullmatch(r"/(?:api/)?datasets/([^/]+/[^/]+)(?:/(\w+))?(?:/([^/]+))?(?:/(.+))?", path)):
            return None
        name, verb, revision, file = match.groups()
        if name not in self:
            return 404, {"error": "Repository not found"}, _MISSING
        repository = self[name]
        sha = repository.head if revision in (None, "main") else revision
        if verb == "settings":
            asked = json.loads(body)
            repository.private = asked.get("private", asked.get("visibility") == "private")
            return 200, {}, {}
        if sha not in repository.commits:
            return 404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"}
        return self._about(method, name, verb, sha, file, body, host)

    def _create(self, asked: dict[str, Any], host: str) -> Answer:
        name = f"{asked.get('organization') or 'tester'}/{asked['name']}"
        known = name in self
        if not known:
            self[name] = Repository(private=asked.get("private", asked.get("visibility") == "private"))
        return 409 if known else 200, {"url": f"{host}/datasets/{name}", "id": name}, {}

    def _about(
        self, method: str, name: str, verb: str | None, sha: str, file: str | None, body: bytes, host: str
    ) -> Answer | None:
        repository = self[name]
        files = repository.commits[sha]
        if verb in (None, "revision"):
            siblings = [{"rfilename": path} for path in files]
            return 200, {"id": name, "sha": sha, "private": repository.private, "siblings": siblings}, {}
        if verb == "tree":
            rows = [{"type": "file", "path": path, "size": len(data), "oid": blob(data)} for path, data in files.items()]
            return 200, rows, {}
        if verb == "preupload":
            known = {path: blob(data) for path, data in files.items()}
            rows = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": known.get(one["path"])}
                for one in json.loads(body)["files"]
            ]
            return 200, {"files": rows}, {}
        if verb == "commit":
            made = repository.commit(_changed(files, body))
            return 200, {"success": True, "commitOid": made, "commitUrl": f"{host}/datasets/{name}/commit/{made}"}, {}
        if verb == "resolve" and file in files:
            data = files[file]
            return 200, data, {"ETag": f'"{blob(data)}"', "X-Repo-Commit": sha, "Content-Type": "application/octet-stream"}
        return None


def _changed(files: dict[str, bytes], body: bytes) -> dict[str, bytes]:
    new = dict(files)
    for line in map(json.loads, body.splitlines()):
        if line["key"] == "file":
            assert line["value"]["encoding"] == "base64"
            new[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        elif line["key"] == "deletedFile":
            del new[line["value"]["path"]]
        else:
            assert line["key"] == "header", line
    return new


def blob(data: bytes) -> str:
    """The id that git gives to a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
