"""Hints from TRL's tool loop: its rollouts in our environments, read as trajectories without tokenising anything again.

Turn t of a rollout is the t-th run of ones in `tool_mask`; what is between two runs is the environment's reply. Calls and their
results are those that the environment kept, in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from composer_replication.config import HintConfig, LossConfig, ModelConfig, ReplayConfig, RunConfig, TasksConfig
from composer_replication.envs.tools import TOOLSETS
from composer_replication.integrations.trl import CodingEnvironment, CodingEnvironmentFactory
from composer_replication.loss.batch import collate
from composer_replication.recipes.trl.step_signals import StepSignals
from composer_replication.tokens import ChatRenderer, parse_tool_calls
from composer_replication.trainer.signals import HintSources, SignalMaker, counted
from composer_replication.types import StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored
from composer_replication.types.errors import ConfigError


class ToolLoopHints:
    """A `SignalSource` for `environment_factory=CodingEnvironmentFactory(...)`: it finds hints at error turns.

    Advantages stay TRL's, but a rollout whose sandbox failed has none.

    Raises:
        ConfigError: `hint` names a detector or generator that there is not, or asks for what needs a run of ours.
    """

    def __init__(self, factory: CodingEnvironmentFactory, tokenizer: Any, hint: HintConfig | None = None) -> None:
        hint = hint or HintConfig()
        if hint.useful_only:
            raise ConfigError("loss.hint.useful_only is not for TRL's tool loop", fix="set it to false")
        self._tools = TOOLSETS[factory.toolset]
        self._maker = SignalMaker(
            config=RunConfig(
                model=ModelConfig(path="TRL's"),
                tasks=TasksConfig(train=factory.folder),
                loss=LossConfig(hint=hint, replay=ReplayConfig(weight=0.0)),
            ),
            sources=HintSources.of(hint, factory.suite.tasks, self._tools),
            renderer=ChatRenderer(tokenizer),
            context_window=1 << 30,
        )

    def __call__(self, trainer: Any, inputs: list[dict[str, Any]], outputs: Mapping[str, Tensor]) -> StepSignals:
        del inputs  # a rollout is known by its environment
        step = trainer.state.global_step + 1
        trajectories = [
            self._trajectory(f"{step}/{row}", environment, outputs, row, trainer.temperature)
            for row, environment in enumerate(trainer.environments)
        ]
        failed = torch.tensor([isinstance(one.reward, Unscored) for one in trajectories], device=outputs["advantages"].device)
        advantages = outputs["advantages"].masked_fill(failed, float("nan"))
        selected = self._maker.select_hints(step, trajectories)
        metrics = counted(selected)
        if not selected.hinted:
            return StepSignals(advantages=advantages, metrics=metrics)
        reduction = self._maker.config.loss.hint.reduction
        pad = int(self._maker.renderer.tokenizer.pad_token_id)
        batch = collate(trajectories, None, selected.hinted, pad_id=pad, hint_reduction=reduction)
        return StepSignals(batch=batch, advantages=advantages, metrics=metrics)

    def _trajectory(
        self, name: str, environment: CodingEnvironment, outputs: Mapping[str, Tensor], row: int, temperature: float
    ) -> Trajectory:
        report = environment.report
        return Trajectory(
            trajectory_id=name,
            task_id=environment.task_id,
            policy_version=0,
            messages=(),
            tools=self._tools,
            prompt_ids=tuple(outputs["prompt_ids"][row][outputs["prompt_mask"][row] != 0].tolist()),
            turns=self._turns(environment.history, outputs, row),
            stop_reason=StopReason.NO_TOOL_CALL,
            temperature=temperature,
            reward=Unscored("the sandbox failed") if report is None else report.reward,
            grade=report,
        )

    def _turns(self, history: Sequence[tuple[ToolCall, ToolResult]], outputs: Mapping[str, Tensor], row: int) -> tuple[Turn, ...]:
        held = outputs["completion_mask"][row] != 0
        ids = outputs["completion_ids"][row][held].tolist()
        own = outputs["tool_mask"][row][held].tolist() if "tool_mask" in outputs else [1] * len(ids)
        names = {tool["function"]["name"] for tool in self._tools}
        return recovered_turns(ids, own, history, self._maker.renderer, names)


def recovered_turns(
    ids: Sequence[int],
    own: Sequence[int],
    history: Sequence[tuple[ToolCall, ToolResult]],
    renderer: ChatRenderer,
    names: Container[str],
) -> tuple[Turn, ...]:
    """Return the turns of a completion: `own` is 1 at sampled tokens. Their log-probs are unknown, and given as 0.

    A call that did not reach the environment because there is no tool of that name among `names`, or because it could not be
    parsed, has the result that it would have had there.
    """
    left, turns, at = list(history), list[Turn](), 0
    for sampled, run in groupby(own):
        part = tuple(ids[at : at + len(list(run))])
        at += len(part)
        if sampled:
            text = renderer.decode(part)
            _, calls = parse_tool_calls(text, turn=len(turns))
            results = tuple(r for r in (_result(call, left, names) for call in calls) if r is not None)
            turns.append(Turn(action_ids=part, logprobs=(0.0,) * len(part), text=text, tool_calls=calls, results=results))
        elif turns:
            turns[-1] = replace(turns[-1], observation_ids=part)
    return tuple(turns)


def _result(call: ToolCall, left: list[tuple[ToolCall, ToolResult]], names: Container[str]) -> ToolResult | None:
    """Return the result of a call; None when it was not carried out."""
    if call.error is not None:
        return ToolResult(call_id=call.call_id, name=call.name, content=f"bad tool call: {call.error}", status="malformed_call")
    if call.name not in names:
        return ToolResult(call_id=call.call_id, name=call.name, content=f"no tool {call.name}", status="unknown_tool")
    given = {name: value for name, value in call.arguments.items() if value is not None}
    if left and left[0][0].name == call.name and left[0][0].arguments == given:
        return replace(left.pop(0)[1], call_id=call.call_id)
    return None
