"""`make gpu-check`: however a check ends, it is reported, and the others run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tools"))
import gpu_check
import made_checks
from gpu_checks import kernels, runner
from gpu_checks.catalogue import CHECKS
from gpu_checks.runner import Check, Outcome, run_check

from composer_replication.distillation import fused

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("passes", "is_wrong", "raises", "ends_quietly", "is_killed", "hangs", "is_skipped", "is_skipped_aloud")
SHORT_S = 2.0
"""On a CPU ten times as long, in which any machine has started the process."""


def made(name: str) -> Check:
    return Check(name, f"made_checks:{name}", SHORT_S if name == "hangs" else 90.0)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def outcomes(work: Path) -> Mapping[str, Outcome]:
    """How a check of each kind ended."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(ROOT / "tests" / "tools"), prepend=":")
        with ThreadPoolExecutor(len(WAYS)) as pool:
            found = list(pool.map(lambda name: run_check(made(name), "cpu", work / name), WAYS))
    return dict(zip(WAYS, found, strict=True))


@pytest.mark.slow
def test_a_check_that_passes_has_its_figures(outcomes: Mapping[str, Outcome]) -> None:
    found = outcomes["passes"]
    assert (found.state, found.reason) == ("passed", "")
    assert found.figures == {"device": "cpu", "error": 1e-6, "share": 0.5}
    assert found.limits == {"error": 1e-4, "share": 0.9}
    assert found.limited() == ["share 0.5 (at most 0.9)", "error 1e-06 (at most 0.0001)"], "the nearest to its limit is first"
    assert found.peak_mb is not None
    assert 50 < found.peak_mb < 10_000
    assert 0 < found.seconds < 900


@pytest.mark.slow
def test_figures_that_are_wrong_fail_it_and_are_named(outcomes: Mapping[str, Outcome]) -> None:
    found = outcomes["is_wrong"]
    assert found.state == "failed"
    assert found.reason == (
        "error is 0.25, at most 0.0001 is right; not a number is nan, at most 1 is right; does not hold: two is three"
    )
    assert found.figures["small"] == 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "ValueError: something is broken"),
        ("ends_quietly", "it ended with status 3"),
        ("is_killed", "it was ended by SIGKILL, as the system does when memory runs out"),
        ("hangs", "it took more than 20 s"),
    ],
)
def test_a_check_that_does_not_end_well_fails_with_the_reason(outcomes: Mapping[str, Outcome], name: str, why: str) -> None:
    assert (outcomes[name].state, outcomes[name].reason) == ("failed", why)


@pytest.mark.slow
def test_what_a_check_has_started_ends_with_it(outcomes: Mapping[str, Outcome], work: Path) -> None:
    assert outcomes["hangs"].state == "failed"
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [words for words in commands if made_checks.HANGS in words and str(work / "hangs") in words]


@pytest.mark.slow
def test_a_check_that_lacks_something_is_skipped_aloud(outcomes: Mapping[str, Outcome]) -> None:
    assert (outcomes["is_skipped"].state, outcomes["is_skipped"].reason) == (
        "skipped",
        "no_such_module is not installed: nothing has it",
    )
    assert outcomes["is_skipped_aloud"].reason == "there is no such device"


def given(name: str, state: runner.State, **more: object) -> Outcome:
    return Outcome(name, state, "why" if state != "passed" else "", 1.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("failing", [False, True])
def test_the_last_line_the_table_and_the_exit_status(
    failing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {
        "kernels": given("kernels", "passed", peak_mb=100.0, figures={"error": 1e-6}, limits={"error": 1e-4}),
        "LoRA": given("LoRA", "failed" if failing else "passed"),
        "verl step": given("verl step", "skipped"),
    }
    monkeypatch.setattr(gpu_check, "CHECKS", [check for check in CHECKS if check.name in ended])
    monkeypatch.setattr(gpu_check, "run_check", lambda check, _device, _folder: ended[check.name])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--write", str(tmp_path / "new")])
    with pytest.raises(SystemExit) as ending:
        gpu_check.main()
    assert ending.value.code == failing
    lines = capsys.readouterr().out.splitlines()
    assert "finds no CUDA device" in lines[0]
    assert "skipped verl step (1 s): why" in lines
    last = json.loads(lines[-1])
    assert (last["passed"], last["failed"], last["skipped"]) == (not failing, int(failing), 1)
    assert (last["failed_names"], last["skipped_names"]) == (["LoRA"] * failing, ["verl step"])
    written = json.loads((tmp_path / "new" / "gpu_check_cpu.json").read_text())
    assert written["torch"] == torch.__version__
    assert written["device"].startswith("CPU")
    assert [check["name"] for check in written["checks"]] == ["kernels", "LoRA", "verl step"]
    assert written["checks"][0]["figures"] == {"error": 1e-6}


def test_cuda_is_not_replaced_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "cuda"])
    with pytest.raises(SystemExit, match="finds no CUDA device"):
        gpu_check.main()


@pytest.mark.slow
def test_a_broken_kernel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fused._taid
    monkeypatch.setattr(fused, "_taid", lambda student, teacher, t: right(student, teacher, t + 0.01))
    found = kernels.check(torch.device("cpu"), tmp_path)
    assert found.wrong
    assert all(reason.startswith("taid, ") for reason in found.wrong)


def test_every_check_is_there(tmp_path: Path) -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        module, _, function = check.function.partition(":")
        text = (ROOT / "benchmarks" / f"{module.replace('.', '/')}.py").read_text("utf-8")
        assert f"\ndef {function}(device: torch.device, folder: Path) -> Found:" in text
