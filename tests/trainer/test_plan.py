"""The plan of a run's memory: what is measured on few blocks and short rows is what all of them take."""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import on_ranks
from transformers import PreTrainedConfig, Qwen3Config

from composer_replication.config import RunConfig
from composer_replication.loss.micro_batches import passes
from composer_replication.trainer.planning.fit import check_fit
from composer_replication.trainer.planning.live_bytes import LiveBytes
from composer_replication.trainer.planning.plan import Plan, rollouts_at_once, say_plan
from composer_replication.trainer.planning.update_memory import (
    PassSize,
    UpdateMemory,
    extrapolated,
    largest_passes,
    measure_update,
    period_of,
    plan_update,
)
from composer_replication.types.errors import ConfigError

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def architecture(**options: Any) -> PreTrainedConfig:
    return Qwen3Config(
        **{
            "vocab_size": 300,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 5,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            **options,
        }
    )


def run(**options: Any) -> RunConfig:
    model = {"path": "made", "device": "cpu", "precision": "float32", **options.pop("model", {})}
    return RunConfig.model_validate({"model": model, **options})


def test_what_is_alive_is_counted_once_and_no_longer_than_it_lives() -> None:
    with LiveBytes(CPU) as live:
        one = torch.zeros(1000)
        view = one.view(10, 100)
        other = one + view.reshape(-1)
        assert (live.now, live.peak) == (8000, 8000)
        del one
        assert live.now == 8000, "the view still needs it"
        del view
        gc.collect()
        assert (live.now, live.peak) == (4000, 8000)
        live.forget_peak()
        assert live.peak == 4000
        del other
    outside = torch.zeros(1000)
    assert live.now == 0
    assert outside.numel()


def test_gradients_are_counted() -> None:
    with LiveBytes(CPU) as live:
        weight = torch.ones(1000, requires_grad=True)
        (weight * 2.0).sum().backward()
        gc.collect()
        assert live.now == 8000


@pytest.mark.parametrize(
    ("places", "values", "place", "value"),
    [([1], [7.0], 9, 7.0), ([1, 2], [3.0, 5.0], 10, 21.0), ([1, 2, 3], [1.0, 4.0, 9.0], 12, 144.0)],
)
def test_a_polynomial_is_known_everywhere(places: list[int], values: list[float], place: int, value: float) -> None:
    assert extrapolated(places, values, place) == pytest.approx(value)


def test_kinds_of_blocks_come_in_turns() -> None:
    assert period_of(architecture()) == 1
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    assert period_of(architecture(num_hidden_layers=6, layer_types=kinds)) == 3


def test_the_largest_passes_hold_the_longest_trajectories_or_are_full() -> None:
    config = run(rollout={"context_tokens": 1000, "groups": 2, "group_size": 4}, optimizer={"micro_batch_tokens": 4096})
    assert largest_passes(config, 10_000) == (PassSize(4, 1000), PassSize(5, 819))
    assert largest_passes(config, 512) == (PassSize(8, 512),), "all rollouts of a step"
    assert largest_passes(config, 100) == (PassSize(8, 100),)
    long = run(rollout={"context_tokens": 9000}, optimizer={"micro_batch_tokens": 4096})
    assert largest_passes(long, 10_000) == (PassSize(1, 9000),), "larger than the limit, and alone"
    long = run(rollout={"context_tokens": 6144}, optimizer={"micro_batch_tokens": 8192})
    assert largest_passes(long, 10_000) == (PassSize(1, 6144), PassSize(2, 4096), PassSize(8, 6144, shared=5852))
    assert PassSize(8, 6144, shared=5852).read == 8188
    short = run(rollout={"context_tokens": 8000}, optimizer={"micro_batch_tokens": 8192})
    assert largest_passes(short, 10_000) == (PassSize(1, 8000), PassSize(2, 4096)), "no room for siblings"


@pytest.mark.parametrize("context", [100, 700, 1000, 1500, 4096])
def test_no_pass_of_a_batch_is_larger_than_those_that_are_planned(context: int) -> None:
    """Neither in tokens nor in tokens times the longest row, which is what attention takes."""
    drawn = random.Random(context)
    config = run(rollout={"context_tokens": context, "groups": 4, "group_size": 8}, optimizer={"micro_batch_tokens": 4096})
    planned = [one for one in largest_passes(config, 10_000) if not one.shared]
    for _ in range(200):
        lengths = [drawn.randint(1, context) for _ in range(32)]
        for some in passes(lengths, 4096):
            rows, longest = len(some), max(lengths[i] for i in some)
            assert rows * longest <= max(one.rows * (one.tokens + 1) for one in planned)
            assert rows * longest**2 <= max(one.rows * one.tokens**2 for one in planned)


SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no hints": {"loss": {"hint": {"weight": 0.0}}},
    "moving average": {"loss": {"hint": {"self_teacher": "ema"}}},
    "checkpointing": {"optimizer": {"gradient_checkpointing": True}},
    "LoRA": {"model": {"lora": {"rank": 4}}},
    "mixed": {"model": {"precision": "mixed"}},
    "bfloat16": {"model": {"precision": "bfloat16"}},
    "offload": {"optimizer": {"offload": True}},
    "muon": {"optimizer": {"type": "muon"}},
    "KL": {"loss": {"rlvr": {"kl_beta": 0.01}}},
    "pairs": {"loss": {"hint": {"weight": 0.0}, "replay": {"variant": "dpo"}}},
    "pairs at a rate of their own": {"loss": {"replay": {"learning_rate": 1e-6}}},
}


@pytest.mark.slow
@pytest.mark.parametrize("largest", [PassSize(2, 700), PassSize(4, 800, shared=600)], ids=["rows", "siblings"])
@pytest.mark.parametrize("name", SETTINGS)
def test_few_blocks_and_short_rows_tell_of_all(name: str, largest: PassSize) -> None:
    """All parts and both peaks are those of the whole model, to 2 %."""
    if name == "LoRA":
        pytest.importorskip("peft")
    config = run(**SETTINGS[name])
    planned, measured = plan_update(config, architecture(), largest), measure_update(config, architecture(), 5, largest)
    for part in ("weights", "gradients", "optimizer", "copies", "passes", "step", "cache", "reading", "casts", "loading"):
        assert getattr(planned, part) == pytest.approx(getattr(measured, part), rel=0.02, abs=2048), part


def _shared_out(_rank: int) -> list[UpdateMemory]:
    config, largest = run(**SHARED), PassSize(2, 700)
    return [plan_update(config, architecture(), largest), measure_update(config, architecture(), 5, largest)]


SHARED = {
    "substrate": {"shard": True},
    "rollout": {"engine": "vllm", "server_url": "http://127.0.0.1:1"},
    "loss": {"rlvr": {"importance": "tis"}, "hint": {"weight": 0.0}, "replay": {"weight": 0.0}},
}


@pytest.mark.slow
def test_weights_that_are_shared_out_are_planned_by_the_processes_that_share_them(tmp_path: Path) -> None:
    alone = measure_update(run(loss=SHARED["loss"]), architecture(), 5, PassSize(2, 700))
    first, _ = found = on_ranks(tmp_path, _shared_out)
    for planned, measured in found:
        assert planned.loading > 1.5 * planned.weights, "whole weights are loaded before they are shared out"
        for part in ("weights", "gradients", "optimizer", "copies", "passes", "step", "cache", "reading", "casts", "loading"):
            assert getattr(planned, part) == pytest.approx(getattr(measured, part), rel=0.02, abs=4096), part
        for part in ("weights", "gradients", "optimizer"):
            assert getattr(planned, part) == pytest.approx(getattr(alone, part) / 2, rel=0.02), part
    assert first[0].activations == pytest.approx(alone.activations, rel=0.05), "only the first process says what it found"


def test_several_optimizer_steps_a_batch_need_the_memory_of_one() -> None:
    """Each has passes of the same size, and is given the whole batch here."""
    several = measure_update(run(optimizer={"mini_batches": 2, "epochs": 2}), architecture(), 1, PassSize(2, 200))
    assert several == measure_update(run(), architecture(), 1, PassSize(2, 200))


def test_an_optimizer_for_pairs_is_counted() -> None:
    alone = measure_update(run(), architecture(), 1, PassSize(2, 200))
    both = measure_update(run(loss={"replay": {"learning_rate": 1e-4}}), architecture(), 1, PassSize(2, 200))
    assert both.optimizer == 2 * alone.optimizer > 0
    assert both.passes == pytest.approx(alone.passes + alone.optimizer, rel=0.02), "and the pairs' tokens"
    assert both.step == pytest.approx(alone.step + alone.optimizer, rel=0.1)
    assert both.copies - alone.copies < 0.2 * alone.weights


def plan(
    *, capacity: int, rows: int = 4, activations: float = 6.0, caches: float = 0.0, server: float = 0.0, loading: float = 2.0
) -> Plan:
    parts = {"weights": 1.0, "gradients": 1.0, "optimizer": 2.0, "copies": 1.0, "host": 0.0, "cache": 0.0, "loading": loading}
    parts |= {"reading": 0.0, "casts": 0.0}
    update = UpdateMemory(
        **{name: size * 2**30 for name, size in parts.items()}, passes=(5.0 + activations) * 2**30, step=2.0**30
    )
    return Plan(
        device=CPU,
        largest=PassSize(rows, 512),
        update=update,
        process=0,
        rollouts=64,
        caches=caches * 2**30,
        reading=0.0,
        server=server * 2**30,
        capacity=capacity * 2**30,
    )


@pytest.mark.parametrize(
    ("planned", "options", "fix"),
    [
        (plan(capacity=8), {}, "gradient_checkpointing = true"),
        (plan(capacity=8), {"optimizer": {"gradient_checkpointing": True}}, "lower optimizer.micro_batch_tokens, to 512"),
        (plan(capacity=8, rows=1), {"optimizer": {"gradient_checkpointing": True}}, "lower rollout.context_tokens"),
        (plan(capacity=5, activations=1.0), {}, "set model.lora.rank = 16, or model.frozen_copies = cpu"),
        (plan(capacity=5, activations=1.0), {"model": {"frozen_copies": "cpu"}}, "16, or model.precision = bfloat16 and"),
        (plan(capacity=5, activations=1.0), {"model": {"lora": {"rank": 4}}}, "set model.precision = mixed"),
        (plan(capacity=5, activations=1.0), {"model": {"lora": {"rank": 4}, "precision": "mixed"}}, "smaller model"),
        (plan(capacity=5, activations=1.0), {"optimizer": {"type": "muon"}, "model": {"frozen_copies": "cpu"}}, "rank = 16"),
        (plan(capacity=20, activations=1.0, loading=24.0), SHARED, "set model.lora.rank = 16, or model.frozen_copies = cpu"),
        (plan(capacity=20, caches=30.0), {}, "set rollout.max_rollouts = 34"),
        (plan(capacity=20, caches=170.0), {}, "lower rollout.context_tokens, or rollout.group_size"),
        (plan(capacity=20, caches=300.0), {}, "lower rollout.context_tokens"),
        (plan(capacity=20, server=17.0), {}, "lower --gpu-memory-utilization in rollout.server_options"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_field_to_change(planned: Plan, options: dict[str, Any], fix: str) -> None:
    with pytest.raises(ConfigError, match=r"do(es)? not fit.*: .* GiB are needed on cpu, which has") as refused:
        check_fit(planned, run(**options))
    assert fix in str(refused.value)


def test_rollouts_are_open_in_whole_groups_and_in_evaluations_too() -> None:
    step = {"groups": 4, "group_size": 8}
    assert rollouts_at_once(run(rollout=step), tasks=50, held_out=2) == 32
    assert rollouts_at_once(run(rollout=step, eval={"samples": 4}), tasks=50, held_out=100) == 32, "no more than in a step"
    assert rollouts_at_once(run(rollout=step | {"max_rollouts": 20}, eval={"samples": 4}), tasks=50, held_out=100) == 20
    assert rollouts_at_once(run(rollout=step | {"max_rollouts": 20}), tasks=50, held_out=0) == 16
    assert rollouts_at_once(run(rollout=step | {"max_rollouts": 2}), tasks=50, held_out=0) == 8, "a group at least"


def test_what_fits_is_said_part_by_part() -> None:
    fitting = plan(capacity=12)
    check_fit(fitting, run())
    table = say_plan(fitting, "main")
    cells = dict(zip(table.columns[0].cells, table.columns[1].cells, strict=True))
    assert cells["activations of 4 x 512 tokens"] == "6.00"
    assert cells["at most during an update"] == "11.00"
    assert "Python and libraries" not in cells, "nothing else takes memory here"
    on_gpu = replace(fitting, device=torch.device("cuda"))
    assert on_gpu.updating == pytest.approx(fitting.updating + 0.6 * 2**30), "a tenth of the activations"
    assert not any("server" in part for part in cells)


def test_a_server_that_shares_the_gpu_is_in_the_plan() -> None:
    """It sleeps during the update, and samples beside weights, state and copies without gradients."""
    table = say_plan(plan(capacity=16, server=8.0), "main")
    cells = dict(zip(table.columns[0].cells, table.columns[1].cells, strict=True))
    assert cells["the server, which shares the device and sleeps during updates"] == "8.00"
    assert cells["at most during an update"] == "11.00"
    assert cells["at most during rollouts"] == "12.00"
