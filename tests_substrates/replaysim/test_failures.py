"""What a user is told when a recipe is wrong or a backend's process dies. Needs the extra `replaysim`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from composer_replication.replaysim import DJNormalizer
from composer_replication.types.errors import BackendError, ConfigError

GOOD, OTHER = "read the failing test first", "edit the login handler"
RAISES = "process:\n  - specified_numeric_field_filter: {text_key: chosen, field_key: no_such_field, min_value: 1}\n"


@pytest.fixture
def recipe(tmp_path):
    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("backend", ["data_juicer", "executor", "ray"])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("no_such_filter: {text_key: chosen}", "data-juicer has no operator no_such_filter"),
        ("clean_email_mapper: {text_key: chosen}", "clean_email_mapper is neither a filter nor document_deduplicator"),
        ("alphanumeric_filter: {text_key: chosen, min: 1}", "alphanumeric_filter has no parameter min"),
        ("alphanumeric_filter: {text_key: chosen, min_ratio: much}", "alphanumeric_filter.min_ratio is 'much'"),
        ("text_length_filter: {text_key: chosen, skip_op_error: true}", "text_length_filter has no parameter skip_op_error"),
    ],
)
def test_wrong_recipes_are_refused_before_anything_runs(recipe, backend, line, told):
    with pytest.raises(ConfigError, match=told):
        DJNormalizer(recipe(f"process:\n  - {line}\n"), backend)


def test_an_operator_whose_package_is_missing_is_named_and_nothing_is_installed(recipe):
    import data_juicer.utils.lazy_loader as lazy

    loader = lazy.LazyLoader("surely_no_such_package_here")
    from composer_replication.replaysim.data_juicer import without_installs

    with without_installs(), pytest.raises((ImportError, subprocess.CalledProcessError)):
        loader.anything  # noqa: B018


@pytest.mark.parametrize("backend", ["executor", "ray"])
def test_an_operator_that_fails_is_an_error_with_its_last_words(recipe, pairs, backend):
    normalizer = DJNormalizer(recipe(RAISES), backend)
    with pytest.raises(BackendError, match=rf"the process of the {backend} backend ended with status 1") as caught:
        normalizer.normalize(pairs([(GOOD, OTHER)]))
    assert "no_such_field" in caught.value.message
    assert caught.value.exit_code == 11


def workers():
    """Process ids of the workers this process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == os.getpid() and b"composer_replication.replaysim.worker" in command:
                found.append(int(entry.name))
    return found


def test_a_killed_executor_is_an_error_and_leaves_no_files(pairs, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    normalizer = DJNormalizer(backend="executor")
    raised = []

    def run():
        try:
            normalizer.normalize(pairs([(GOOD, OTHER)] * 1000))
        except BackendError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not (found := workers()) and thread.is_alive():
        os.sched_yield()
    os.kill(found[0], signal.SIGKILL)
    thread.join()
    assert "was killed by SIGKILL" in raised[0].message
    assert "memory" in raised[0].fix
    assert list(tmp_path.iterdir()) == []
    assert workers() == []


FULL_DISK = """
import json, sys
from composer_replication.types.errors import StorageError
from composer_replication.replaysim import DJNormalizer
pairs = json.load(sys.stdin)
try:
    DJNormalizer(backend=sys.argv[1]).normalize(pairs)
except StorageError as error:
    print("TOLD", error)
"""
ON_SMALL_TMPFS = 'mount -t tmpfs -o size=$1 none "$TMPDIR" && exec "$2" -c "$3" "$4"'


@pytest.mark.parametrize("size", ["64k", "600k"], ids=["in this process", "in the executor's"])
def test_a_full_disk_is_told_as_such(pairs, tmp_path, size):
    probe = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", str(tmp_path)], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("this machine lets nobody mount a tmpfs")
    given = json.dumps(pairs([(f"{GOOD} {n} " + "word " * 40, OTHER) for n in range(1500)]))
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", ON_SMALL_TMPFS, "sh", size, sys.executable, FULL_DISK, "executor"],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert "TOLD" in done.stdout, done.stdout + done.stderr
    assert "No space left on device" in done.stdout
    assert f"free space in {tmp_path}" in done.stdout


def test_an_address_where_no_cluster_answers_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(BackendError, match=f"no Ray cluster answers at {address}: .*refused"):
            DJNormalizer(backend="ray", ray_address=address)


def test_the_command_ends_with_11_when_the_process_dies(recipe, pairs, tmp_path):
    given, out = tmp_path / "pairs.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(pair) + "\n" for pair in pairs([(GOOD, OTHER)])))
    command = [sys.executable, "-c", "from composer_replication.cli import main; main()", "pairs", "normalize", str(given)]
    done = subprocess.run(
        [*command, "--out", str(out), "--recipe", str(recipe(RAISES)), "--backend", "executor"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, out.exists()) == (11, False)
    assert "no_such_field" in done.stderr
