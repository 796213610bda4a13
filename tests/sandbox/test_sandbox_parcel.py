"""What passes between the host and a box made elsewhere: what comes back is a whole parcel or an error, and never a result."""

from __future__ import annotations

import io
import json

import pytest

from composer_replication.config import SandboxConfig
from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.backends.docker import _opened
from composer_replication.sandbox.transfer.archive import pack, pack_files, unpack, unpack_files
from composer_replication.types.errors import ConfigError, SandboxError, SandboxUnavailableError

FILES = {"a": b"one\n", "gone": None, "b/c": b""}
FACTS = {"report": {"returncode": 3, "not_kept": ["x (a link)"]}, "changes": pack_files(FILES)[0]}
ANSWER = pack(FACTS, [b"out", b"err", b"channel", *pack_files(FILES)[1]])


def test_a_parcel_comes_out_as_it_went_in():
    listed, contents = pack_files(FILES)
    facts, blobs = unpack(io.BytesIO(pack({"listed": listed}, [b"\n{}", *contents])))
    assert blobs[0] == b"\n{}"
    assert unpack_files(facts["listed"], blobs[1:]) == FILES


def test_an_answer_is_read_back():
    report, kept = _opened(ANSWER)
    assert (report.returncode, report.changes, report.not_kept) == (3, FILES, ("x (a link)",))
    assert kept == {"stdout": b"out", "stderr": b"err", "channel": b"channel"}


@pytest.mark.parametrize("length", [1, ANSWER.index(b"\n"), ANSWER.index(b"\n") + 1, len(ANSWER) - 1])
def test_a_torn_answer_is_not_read(length):
    with pytest.raises(ValueError):  # noqa: PT011  # the message is the JSON reader's, or ours
        _opened(ANSWER[:length])


@pytest.mark.parametrize(
    "header",
    [{}, [], {"facts": {}}, {"facts": {}, "sizes": [-1]}, {"facts": 1, "sizes": []}, {"facts": FACTS, "sizes": [3, 3, 7, 4]}],
)
def test_an_answer_that_contradicts_itself_is_not_read(header):
    body = ANSWER[ANSWER.index(b"\n") :]
    with pytest.raises((ValueError, KeyError, TypeError)):
        _opened(json.dumps(header).encode() + body)


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a//b"])
def test_a_changed_file_outside_the_tree_is_refused(path):
    listed, contents = pack_files({path: b"x"})
    answer = pack({**FACTS, "changes": listed}, [b"", b"", b"", *contents])
    with pytest.raises(SandboxError, match="not a plain path"):
        _opened(answer)


def test_what_process_1_could_not_do_is_an_error():
    with pytest.raises(SandboxError, match="no space left"):
        _opened(pack({"error": "no space left"}, []))


def test_without_the_program_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="docker is not installed"):
        open_sandbox("docker:no-image-of-this-name")


@pytest.mark.parametrize(
    "kind", ["docker:", "docker;x", "dockers", "namespaces:image", "remote", "remote:", "remote:host:8000", "remote:ftp://host"]
)
def test_kinds_that_are_nearly_right_are_refused(kind):
    with pytest.raises(ConfigError, match="no sandbox kind"):
        open_sandbox(kind)
    with pytest.raises(ValueError, match="kind"):
        SandboxConfig(kind=kind)


@pytest.mark.parametrize("kind", ["auto", "docker", "docker:registry.example:5000/a/b:tag", "remote:http://host:8000"])
def test_kinds_a_run_file_may_name(kind):
    assert SandboxConfig(kind=kind).kind == kind


@pytest.mark.parametrize("kind", ["remote:http://me:key@host", "remote:https://host?key=key", "remote:http://host#key"])
def test_a_run_file_is_no_place_for_a_key(kind):
    with pytest.raises(ValueError, match="kind"):
        SandboxConfig(kind=kind)
