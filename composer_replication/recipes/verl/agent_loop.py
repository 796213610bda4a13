"""verl's agent loop `composer`: our environment, turn by turn through verl's rollout server, token in and token out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from composer_replication.recipes.verl.advantage import PENALTY, VERDICT
from composer_replication.recipes.verl.answer import check_versions, sample_of
from composer_replication.recipes.verl.columns import Row, pack, tokens_of
from composer_replication.recipes.verl.episodes import Episodes, GroupRecord
from composer_replication.recipes.verl.plan import CPU_ROLLOUT, ArmPlan
from composer_replication.recipes.verl.siblings import Siblings
from composer_replication.rollouts.agent_loop import Rollout
from composer_replication.tokens import ChatRenderer
from composer_replication.types import Pair, Unscored

_GROUPS: dict[str, Siblings[GroupRecord]] = {}
"""By verl's uid of the prompt: the groups that are under way in this process."""
_LEAST = 2
"""Positions a row needs for its verdict and its penalties."""


class ComposerOutput(AgentLoopOutput):
    """A row whose rewards are where `advantage` reads them."""

    penalty: float = 0.0
    """Taken off the verdict."""

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = super().as_dict()
        found.pop("penalty", None)
        rewards = torch.zeros(len(self.response_ids))
        rewards[VERDICT], rewards[PENALTY] = float(self.reward_score) + self.penalty, -self.penalty
        return found | {"rm_scores": rewards}


@register("composer")
class ComposerAgentLoop(AgentLoopBase):
    """One rollout of a task; verl makes one object for each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.episodes = _episodes(self.tokenizer)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> ComposerOutput:
        """Roll out one prompt of the data set (`dataset`): `row` is its row, with verl's `uid`, `session_id` and `global_steps`.

        Raises:
            ModelError: as `answer.sample_of`.
            BackendError: as `answer.check_versions`.
        """
        uid, number, step = str(row["uid"]), int(row["session_id"]), int(row["global_steps"])
        evaluation = row["split"] == "held_out"
        finish = partial(self.episodes.finish, step=step, evaluation=evaluation)
        count = int(self.rollout_config.val_kwargs.n if evaluation else self.rollout_config.n)
        siblings = _GROUPS.setdefault(uid, Siblings(count, finish))
        with _reporting(siblings, self.episodes, uid):
            rollout = self.episodes.rollout(str(row["task_id"]), step, number, evaluation=evaluation)
            version = step if evaluation else step - 1
            versions = await self._roll_out(rollout, f"{uid}_{number}", sampling_params)
            check_versions(versions, expected=version, step=step)
            trajectory = await self._in_thread(
                partial(
                    rollout.finish,
                    policy_version=version,
                    temperature=self.episodes.config.rollout.temperature,
                    arm=self.episodes.plan.arm,
                )
            )
            record = await siblings.meet(number, trajectory)
        pairs = [Pair(**pair) for pair in json.loads(row["pairs"])] if number == 0 else []
        return self._output(record, number, pairs, version)

    async def _roll_out(self, rollout: Rollout, request: str, sampling: Mapping[str, Any]) -> list[int | None]:
        """Run the rollout to its end, and return the versions of the weights that sampled it."""
        await self._in_thread(rollout.begin)
        ends, window = self.episodes.stop_ids, self.episodes.config.rollout.context_tokens
        context: list[int] = []
        versions: list[int | None] = []
        while rollout.live:
            asked = rollout.request()
            context += asked.new_ids
            params = {
                "temperature": sampling["temperature"],
                "top_p": 1.0,
                "top_k": -1,
                "repetition_penalty": 1.0,
                "logprobs": True,
                "max_tokens": asked.max_new_tokens,
                "seed": asked.seed,
                "stop_token_ids": list(ends),
                "ignore_eos": True,  # what ends a turn is in stop_token_ids
            }
            session = {"session": request} if self.rollout_config.name == CPU_ROLLOUT else {}  # the others take no such word
            said = await self.server_manager.generate(request, prompt_ids=list(context), sampling_params=params, **session)
            versions.append(said.extra_fields.get("global_steps"))
            most, room = asked.max_new_tokens, window - len(context)
            sample = sample_of(said.token_ids, said.log_probs, said.stop_reason, most=most, room=room, ends=ends)
            context += sample.ids
            await self._in_thread(partial(rollout.act, sample))
        return versions

    async def _in_thread(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.episodes.threads, work)

    def _output(self, record: GroupRecord, number: int, pairs: list[Pair], version: int) -> ComposerOutput:
        trajectory = record.group.trajectories[number]
        ids, mask, logprobs = tokens_of(trajectory)
        prompt = list(trajectory.prompt_ids) or [self.tokenizer.pad_token_id]  # the sandbox broke before there was one
        short = max(0, _LEAST - len(ids))
        verdict = 0.0 if isinstance(trajectory.reward, Unscored) else trajectory.reward
        penalty = record.penalty(number) if record.penalties else 0.0
        hints = tuple(hint for hint in record.hinted if hint.trajectory_id == trajectory.trajectory_id)
        return ComposerOutput(
            prompt_ids=prompt,
            response_ids=ids + [self.tokenizer.pad_token_id] * short,
            response_mask=mask + [0] * short,
            response_logprobs=logprobs + [0.0] * short,
            reward_score=verdict - penalty,
            penalty=penalty,
            num_turns=max(1, len(trajectory.turns)),  # 0 are verl's own rows, which fill up a batch
            metrics=AgentLoopMetrics(),
            extra_fields={
                **pack(Row(trajectory.trajectory_id, hints, tuple(pairs))),
                "reward_extra_info": {},
                "min_global_steps": version,
                "max_global_steps": version,
            },
        )


@contextmanager
def _reporting(siblings: Siblings[GroupRecord], episodes: Episodes, uid: str) -> Iterator[None]:
    """Report an error in the body to the siblings and to the run."""
    try:
        yield
    except BaseException as error:
        siblings.leave(error)
        episodes.fault(error)
        raise
    finally:
        _GROUPS.pop(uid, None)


@cache
def _episodes(tokenizer: Any) -> Episodes:
    """Return this process's episodes. The first agent loop opens them in the event loop's thread, before anything else runs."""
    plan = ArmPlan.required()
    return Episodes(plan, ChatRenderer(tokenizer))
