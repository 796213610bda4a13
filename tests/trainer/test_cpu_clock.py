"""What a run says it has spent: boxes are no children of the trainer, and their CPU time counts all the same."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from composer_replication.sandbox import Command, Sandbox, Tree, open_sandbox
from composer_replication.trainer.journal import RolloutMeter, cpu_clock

BURN_S = 0.5
PYTHON = Path(sys.executable)


@pytest.fixture
def sandbox() -> Sandbox:
    return open_sandbox()


def burn(sandbox: Sandbox, base: Path) -> float:
    """CPU-seconds that a box says it took for burning `BURN_S`."""
    code = f"import time\nwhile time.process_time() < {BURN_S}: pass"
    result = sandbox.run(Tree(base=base), Command(argv=(str(PYTHON), "-S", "-B", "-c", code), python=PYTHON))
    assert result.returncode == 0
    assert result.cpu_s > 0.9 * BURN_S
    return result.cpu_s


def test_boxes_are_in_it(sandbox: Sandbox, tmp_path: Path) -> None:
    spent = cpu_clock(sandbox)
    assert spent() < BURN_S
    took = burn(sandbox, tmp_path)
    assert 0.99 * took < spent() < took + BURN_S


@pytest.mark.slow
def test_boxes_at_once_are_all_counted(sandbox: Sandbox, tmp_path: Path) -> None:
    before = sandbox.cpu_s
    with ThreadPoolExecutor(4) as threads:
        took = sum(threads.map(lambda _: burn(sandbox, tmp_path), range(8)))
    assert sandbox.cpu_s - before == pytest.approx(took)


def test_a_resumed_run_adds_to_what_it_had_spent(sandbox: Sandbox, tmp_path: Path) -> None:
    meter = RolloutMeter(cpu_clock(sandbox))
    burn(sandbox, tmp_path)
    meter.load_state_dict({"rollouts": 7, "tokens": 70, "cpu_s": 100.0})
    assert 99.99 < meter.cpu_s() < 100.0 + 0.9 * BURN_S
    assert 99.99 + burn(sandbox, tmp_path) < meter.cpu_s()
    assert meter.state_dict() == {"rollouts": 7, "tokens": 70, "cpu_s": pytest.approx(meter.cpu_s(), abs=0.1)}
