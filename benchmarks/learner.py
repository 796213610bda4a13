"""An update of the learner beside one of TRL's `GRPOTrainer`: the same model, batch, objective (DAPO) and optimizer, one thread.

Batches: siblings of ragged lengths whose prompts they share and 30 % of whose rows teach nothing (`agentic`); rows of one length
that all teach, on shared prompts (`dense`) and on prompts of which none is another's (`unrelated`); and eight siblings on a
prompt of 4,000 tokens (`siblings`). A pass of theirs holds eight rows, padded to the longest of the whole batch as TRL pads
them; one of ours at most as many positions. The gradients must agree. Both sides are measured in turn, and the figure is update
tokens per CPU-second, the optimizer's step included.

Then what one pass over a tree of prefixes takes in floating-point operations beside padded rows, for eight rows of each batch and
for siblings with long answers, by a model with the shape of a 0.5B one that holds no weights. With `--run` also the rollouts of a
run, by its own policy: operations and CPU-seconds, padded rows sorted by length.

The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from measuring import emit, interleave
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2Model, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from composer_replication.api.runs import Run
from composer_replication.config import RunConfig
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import Rows, forward, read_rows
from composer_replication.loss.forward.tree import prefix_tree
from composer_replication.loss.forward.tree_attention import as_mask, enable_trees
from composer_replication.loss.micro_batches import passes
from composer_replication.observe import RunDir
from composer_replication.policy_gradient import sequence_weights
from composer_replication.tokens import byte_level_tokenizer
from composer_replication.trainer.learning.learner import Learner

AIMS = {"agentic": 1.5, "dense": 1.0, "unrelated": 1.0, "siblings": 1.0}
"""Least ratio of update tokens per CPU-second, ours to theirs."""
FLOPS_AIM = 0.5
_ROWS, _GROUP = 8, 4
"""Rows of a pass of theirs, and of a group."""
_VOCABULARY = 2048
_STEPS = 6
"""Steps of a run that are measured, about."""
_GRADIENTS_AGREE = 1e-4
_MANY = 30_000
"""Tokens of a batch whose update takes a minute on the side that pads: it is measured twice at most."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Prompts and completions of a batch, with what was sampled of the completions, and advantages."""

    prompts: list[Tensor]
    completions: list[Tensor]
    sampled: list[Tensor]
    advantages: Tensor

    @property
    def tokens(self) -> int:
        return sum(map(len, self.prompts)) + sum(map(len, self.completions))


def drawn(
    *, groups: int, prompt: int, lengths: Callable[[], int], dead: int = 0, shared: bool = True, size: int = _GROUP
) -> Rollouts:
    """Draw `groups` groups of `size` rows, the first `dead` of which have no advantage. A third of a completion is an
    environment's."""
    prompts, completions, sampled = [], [], []
    for _ in range(groups):
        common = _ids(prompt)
        for _ in range(size):
            prompts.append(common if shared else _ids(prompt))
            completions.append(_ids(lengths()))
            sampled.append((torch.arange(len(completions[-1])) % 30 < 20).long())
    advantages = torch.randn(groups, size)
    advantages[:dead] = 0.0
    return Rollouts(prompts, completions, sampled, advantages.flatten())


def _ids(count: int) -> Tensor:
    return torch.randint(3, _VOCABULARY, (count,))


def _ragged() -> int:
    return int(torch.empty(()).log_normal_(5.5, 0.6).clamp(30, 900))


def batches() -> dict[str, Rollouts]:
    torch.manual_seed(0)
    return {
        "agentic": drawn(groups=10, prompt=300, lengths=_ragged, dead=3),
        "dense": drawn(groups=8, prompt=64, lengths=lambda: 192),
        "unrelated": drawn(groups=8, prompt=64, lengths=lambda: 192, shared=False),
        "siblings": drawn(groups=1, prompt=4000, lengths=lambda: 256, size=8),
    }


def rows_of(rollouts: Rollouts) -> Batch:
    """Return what `compose_loss` reads."""
    pairs = list(zip(rollouts.prompts, rollouts.completions, rollouts.sampled, strict=True))
    ids = pad_sequence([torch.cat([prompt, rest]) for prompt, rest, _ in pairs], batch_first=True)
    mask = pad_sequence([torch.ones(len(prompt) + len(rest), dtype=torch.int64) for prompt, rest, _ in pairs], batch_first=True)
    wanted = pad_sequence([torch.cat([torch.zeros_like(prompt), own]) for prompt, _, own in pairs], batch_first=True)
    weights, denominator = sequence_weights(wanted, "dapo")
    rows = {"input_ids": ids, "attention_mask": mask, "response_mask": wanted, "advantages": rollouts.advantages}
    return rows | {"rlvr_weights": weights, "rlvr_denominator": denominator}


def micro_batches(rollouts: Rollouts) -> list[dict[str, Any]]:
    """Return what `GRPOTrainer` makes of them: prompts padded on the left, completions on the right, all as the longest."""
    whole = {
        "prompt_ids": pad_sequence(rollouts.prompts, batch_first=True, padding_side="left"),
        "prompt_mask": pad_sequence([torch.ones_like(x) for x in rollouts.prompts], batch_first=True, padding_side="left"),
        "completion_ids": pad_sequence(rollouts.completions, batch_first=True),
        "completion_mask": pad_sequence([torch.ones_like(x) for x in rollouts.completions], batch_first=True),
        "tool_mask": pad_sequence(rollouts.sampled, batch_first=True),
        "advantages": rollouts.advantages,
    }
    count = pad_sequence(rollouts.sampled, batch_first=True).sum()
    starts = range(0, len(rollouts.advantages), _ROWS)
    return [{key: value[i : i + _ROWS] for key, value in whole.items()} | {"num_items_in_batch": count} for i in starts]


def policy() -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 8}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=_VOCABULARY, num_key_value_heads=2, head_dim=32, **shape)).eval()


class Theirs:
    """TRL's trainer, given its batches."""

    def __init__(self, model: Any, rollouts: Rollouts) -> None:
        self.parts = micro_batches(rollouts)
        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            loss_type="dapo",
            beta=0.0,
            per_device_train_batch_size=_ROWS,
            gradient_accumulation_steps=len(self.parts),
            num_generations=_GROUP,
            learning_rate=1e-6,
            adam_beta2=0.99,
            gradient_checkpointing=False,
            bf16=False,
            report_to=[],
            use_cpu=True,
        )
        data = Dataset.from_list([{"prompt": "a"}] * 4)
        tokenizer = byte_level_tokenizer()
        self.trainer = GRPOTrainer(model, lambda **_: [0.0], args=config, train_dataset=data, processing_class=tokenizer)
        self.trainer.create_optimizer()
        self.trainer.current_gradient_accumulation_steps = len(self.parts)
        self.trainer._prepare_inputs = lambda inputs: inputs
        self.model = self.trainer.model

    def gradient(self) -> None:
        self.trainer.optimizer.zero_grad()
        for part in self.parts:
            self.trainer.training_step(self.model, part, part["num_items_in_batch"])

    def update(self) -> None:
        self.gradient()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.trainer.optimizer.step()


class Ours:
    def __init__(self, model: Any, rollouts: Rollouts, positions: int) -> None:
        self.batch = rows_of(rollouts)
        off = {"rlvr": {"objective": "dapo", "kl_beta": 0.0}, "hint": {"weight": 0.0}, "replay": {"weight": 0.0}}
        settings = {"model": {"path": "made", "device": "cpu", "precision": "float32"}, "loss": off}
        optimizer = {"micro_batch_tokens": positions, "learning_rate": 1e-6, "warmup_steps": 0}
        self.learner = Learner(model, RunConfig.model_validate({**settings, "optimizer": optimizer}))
        self.model = self.learner.policy
        self.metrics: dict[str, float] = {}

    def update(self) -> None:
        self.metrics = dict(self.learner.update(self.batch).metrics)


def gradient(model: Any) -> torch.Tensor:
    """Return the whole gradient that a model holds, as one row."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def compared(rollouts: Rollouts, repeats: int) -> dict[str, Any]:
    """Return update tokens per CPU-second of both, and how their gradients differ, as a share of their norm."""
    model = policy()
    theirs = Theirs(copy.deepcopy(model), rollouts)
    shape = theirs.parts[0]["prompt_ids"].shape[1] + theirs.parts[0]["completion_ids"].shape[1]
    ours = Ours(model, rollouts, _ROWS * shape)
    theirs.update()
    gradients: list[torch.Tensor] = []
    optimizer = ours.learner.optimizer.optimizer  # accelerate wraps it
    hook = optimizer.register_step_pre_hook(lambda *_: gradients.append(gradient(ours.model)))
    ours.update()
    hook.remove()
    gradients.append(gradient(theirs.model))
    difference = float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
    samples = interleave({"ours": ours.update, "theirs": theirs.update}, repeats)
    cpu = {name: min(found.cpu_s) for name, found in samples.items()}
    return {
        "rows": len(rollouts.advantages),
        "tokens": rollouts.tokens,
        "tokens_per_cpu_s": {name: round(rollouts.tokens / spent) for name, spent in cpu.items()},
        "ratio": round(cpu["theirs"] / cpu["ours"], 2),
        "positions_per_token": {
            "ours": round(ours.metrics["optimizer/positions_per_token"], 3),
            "theirs": round(len(rollouts.advantages) * shape / rollouts.tokens, 3),
        },
        "gradient_difference": difference,
    }


def operations(rows: list[Tensor], model: Any) -> dict[str, float]:
    """Return the floating-point operations a row, forward and backward, of one pass over the tree and of padded rows, in 1e9."""
    tree = prefix_tree(rows)
    packed = {"input_ids": tree.ids[None], "position_ids": tree.positions[None], "attention_mask": as_mask(tree.segments)}
    found = {}
    causal = {"input_ids": pad_sequence(rows, batch_first=True), "attention_mask": {"full_attention": None}}
    ways: dict[str, dict[str, Any]] = {"tree": packed, "padded": causal}
    for name, given in ways.items():
        on_meta = {key: value if key == "attention_mask" else value.to("meta") for key, value in given.items()}
        with FlopCounterMode(display=False) as counter:
            model(**on_meta, use_cache=False).last_hidden_state.sum().backward()
        found[name] = round(counter.get_total_flops() / 1e9 / len(rows), 2)
    return {**found, "share": round(found["tree"] / found["padded"], 3)}


def of_run(folder: Path, repeats: int) -> dict[str, Any]:
    """Return what the rollouts of some steps of a run take, forward and backward, in one pass and as padded rows."""
    run = Run(RunDir(folder))
    arm = run.arms[-1]
    model = AutoModelForCausalLM.from_pretrained(run.policy(arm), dtype=torch.float32).eval()
    found = []
    steps = sorted({row["step"] for row in run.trajectories(arm)})
    for step in steps[:: max(1, len(steps) // _STEPS)]:
        trajectories = [row["trajectory"] for row in run.trajectories(arm, step)]
        rows = [torch.tensor(one.context_ids(len(one.turns))) for one in trajectories]
        ways = {"tree": partial(_read_as_tree, model, rows), "padded": partial(_read_padded, model, rows)}
        samples = interleave(ways, repeats)
        flops = {}
        for name, read in ways.items():
            with FlopCounterMode(display=False) as counter:
                read()
            flops[name] = counter.get_total_flops()
        cpu = {name: min(one.cpu_s) for name, one in samples.items()}
        found.append({"flops": flops["tree"] / flops["padded"], "cpu": cpu["tree"] / cpu["padded"]})
    shares = {what: round(statistics.mean(one[what] for one in found), 3) for what in ("flops", "cpu")}
    return {"steps": len(found), "rows": len(rows), "tree_share_of_padded": shares}


def _read_as_tree(model: Any, rows: list[Tensor]) -> None:
    ids, mask = pad_sequence(rows, batch_first=True), pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    (read,) = read_rows(model, [Rows(ids, mask)])
    read.output.square().sum().backward()


def _read_padded(model: Any, rows: list[Tensor]) -> None:
    for some in passes([len(row) for row in rows], 16_384):
        ids = pad_sequence([rows[i] for i in some], batch_first=True)
        mask = pad_sequence([torch.ones_like(rows[i]) for i in some], batch_first=True)
        forward(model, ids, mask).output.square().sum().backward()


def main() -> None:
    """Measure and print; exit with 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="updates of each side that are measured; the best one counts")
    parser.add_argument("--run", type=Path, help="the run whose rollouts are measured too: runs/quickstart, say")
    parser.add_argument("--write", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    updates = {}
    for name, rollouts in batches().items():
        updates[name] = compared(rollouts, arguments.repeats if rollouts.tokens < _MANY else min(2, arguments.repeats))
        print(name, updates[name], flush=True)
    flops = counted()
    print(flops, flush=True)
    rollouts_of_run = of_run(arguments.run, arguments.repeats) if arguments.run else None
    held = all(
        updates[name]["ratio"] >= aim and updates[name]["gradient_difference"] < _GRADIENTS_AGREE for name, aim in AIMS.items()
    )
    passed = held and flops["siblings"]["share"] <= FLOPS_AIM
    emit("learner", {"updates": updates, "gflops_a_row": flops, "run": rollouts_of_run, "passed": passed}, arguments.write)
    raise SystemExit(not passed)


def counted() -> dict[str, Any]:
    """Count the operations of a model of Qwen2.5-0.5B's shape, without its head, on a device that computes nothing."""
    shape = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    with torch.device("meta"):
        model = Qwen2Model(Qwen2Config(vocab_size=_VOCABULARY, num_key_value_heads=2, **shape)).eval()
    enable_trees(model.config)
    torch.manual_seed(0)
    found = {}
    long = drawn(groups=1, prompt=4000, lengths=lambda: 2000, size=8)
    for name, rollouts in {**batches(), "siblings_long": long}.items():
        rows = [torch.cat(both) for both in zip(rollouts.prompts, rollouts.completions, strict=True)]
        found[name] = operations(rows[: 2 * _GROUP], model)
    return found


if __name__ == "__main__":
    main()
