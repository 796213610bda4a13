"""`composer doctor`: what it says of the machine, and its verdict on the sandboxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from composer_replication.sandbox.doctor.probes import PROBES
from composer_replication.sandbox.opening import available, survey

NO_UNSHARE = Path(__file__).parents[1] / "tools" / "no_unshare.py"
PROGRAM = "import sys; from composer_replication.cli import main; sys.argv[0] = 'composer'; main()"


def doctor(*arguments: str, under: tuple[str, ...] = ()) -> tuple[int, dict]:
    environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["composer_replication"].__file__).parents[1])}
    argv = [*under, sys.executable, "-c", PROGRAM, "doctor", "--json", *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_the_machine_alone():
    status, told = doctor()
    assert (status, told["contained"]) == (0, True)
    assert told["machine"]["python"] == sys.version.split()[0]
    assert told["sandboxes"].keys() == survey().keys()
    assert [kind for kind, facts in told["sandboxes"].items() if "isolation" in facts] == list(available())
    assert all(facts.get("probes", []) == [] for facts in told["sandboxes"].values())


@pytest.mark.slow
@pytest.mark.long
def test_every_probe_of_every_kind_is_reported():
    status, told = doctor("--sandbox")
    assert (status, told["contained"]) == (0, True)
    for kind in available():
        probes = told["sandboxes"][kind]["probes"]
        assert [probe["probe"] for probe in probes] == [probe.name for probe in PROBES]
        assert {probe["verdict"] for probe in probes} <= {"blocked", "not blocked, as admitted"}


@pytest.mark.slow
def test_a_sandbox_that_does_not_hold_is_an_exit_code():
    status, told = doctor("--sandbox", "--kind", "unsafe-subprocess")
    assert (status, told["contained"]) == (4, False)
    (facts,) = told["sandboxes"].values()
    through = {probe["probe"]: probe["detail"] for probe in facts["probes"] if probe["verdict"] == "NOT blocked"}
    assert "TCP on loopback" in through["network"]
    assert "the next sandbox's tree" in through["watcher"]


@pytest.mark.slow
def test_what_a_machine_refuses_is_said():
    status, told = doctor(under=(sys.executable, str(NO_UNSHARE)))
    assert status == (0 if "landlock" in available() else 4)
    assert "Operation not permitted" in told["sandboxes"]["namespaces"]["unavailable"]
