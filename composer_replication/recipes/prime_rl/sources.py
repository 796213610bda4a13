"""Plugins of verifiers for PRIME-RL's environment servers: an agent that works in our sandbox, and pairs as rollouts.

`composer_agent` is a harness for the taskset `composer_tasks`: the agent gets our tools, what it calls is carried out in our
sandbox and nothing of it in a runtime of verifiers, which is handed the finished tree to be graded. `composer_replay` is a source
whose "rollouts" are the preference pairs of the run: a trace of three messages, the prompt and below it both answers, no model
asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from openai import APIStatusError, AsyncOpenAI

from composer_replication.config import load_config
from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.suite import shared_suite
from composer_replication.recipes.prime_rl.algorithm import PAIR
from composer_replication.recipes.prime_rl.scoring import shared_pairs
from composer_replication.recipes.prime_rl.traces import RESULTS
from composer_replication.traces.recorder import native_call
from composer_replication.trainer.coding_tasks import toolset_of
from composer_replication.trainer.preflight import limits_of
from composer_replication.types.errors import MissingExtraError

try:
    import verifiers.v1 as vf
    from verifiers.v1.types import AssistantMessage, UserMessage
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "sources for PRIME-RL need verifiers, which is not installed", fix="use the environment of a PRIME-RL checkout"
    ) from error


class ComposerAgentConfig(vf.HarnessConfig):
    """`[env.agent.harness]`."""

    run: Path
    """The run file of one arm: sandbox, limits and tools."""


class ComposerAgent(vf.Harness[ComposerAgentConfig]):
    """Our environment as a harness. It runs in the environment server, and asks the policy through verifiers' endpoint."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False  # in a runtime of verifiers, that is
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Run one episode, until the agent submits, a turn calls no tool, or verifiers refuses another turn.

        Whatever was done is graded. Raises SandboxError when our sandbox broke: there is no reward then.
        """
        del mcp_urls
        env = await asyncio.to_thread(self._open, data)
        messages: list[dict[str, Any]] = [dict(message) for message in env.reset()]
        try:
            async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None, max_retries=0) as client:
                done = False
                while not done:
                    asked: Any = {"model": ctx.model, "messages": messages, "tools": list(env.tools)}
                    answer = (await client.chat.completions.create(**asked)).choices[0].message
                    messages.append(answer.model_dump(exclude_none=True))
                    if not answer.tool_calls:
                        break
                    for call in answer.tool_calls:
                        messages.append(await self._carry_out(env, trace, call))
                        done = env.done
                        if done:
                            break
        except APIStatusError:
            if trace.stop_condition is None:
                raise  # else this is how verifiers refuses a turn too many
        finally:
            await _hand_over(env, runtime)
        return vf.ProgramResult(0, "", "")

    def _open(self, data: vf.TaskData) -> CodingEnv:
        config = load_config(self.config.run)
        suite = shared_suite(Path(data.folder), config.sandbox.kind, config.tasks.python, forgeable=config.tasks.forgeable)
        task = suite.task(data.task_id)
        return suite.env(task, toolset=toolset_of(config), limits=limits_of(config.sandbox, task))

    async def _carry_out(self, env: CodingEnv, trace: vf.Trace, call: Any) -> dict[str, Any]:
        """Carry out one call; its status and details stay with the trace, where detectors find them."""
        result = await asyncio.to_thread(env.step, native_call(call.id, call.function.name, call.function.arguments)[0])
        trace.info.setdefault(RESULTS, {})[call.id] = {"status": result.status, "details": dict(result.details)}
        return {"role": "tool", "tool_call_id": call.id, "content": result.content}


async def _hand_over(env: CodingEnv, runtime: vf.Runtime) -> None:
    """Put what the agent changed into the runtime's tree, which the taskset grades."""
    for path, content in env.workspace.changes.items():
        if content is None:
            await runtime.run(["rm", "-f", path], {})
        else:
            await runtime.run(["mkdir", "-p", str(PurePosixPath(path).parent)], {})
            await runtime.write(path, content)


class PairTasksetConfig(vf.TasksetConfig):
    """`[env.taskset]`."""

    run: Path
    """The run file of one arm, whose `loss.replay.pairs` is read."""


class PairData(vf.TaskData):
    """The tokens of a pair."""

    number: int
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]


class PairTask(vf.Task[PairData]):
    """A preference pair. It has no reward: the algorithm weighs it."""


class PairTaskset(vf.Taskset[PairTask, PairTasksetConfig]):
    """The pairs of a run, in the order of their file."""

    def load(self) -> Iterable[PairTask]:
        """Yield the pairs as tasks. Raises as `scoring.shared_pairs`."""
        config = load_config(self.config.run)
        for number, pair in enumerate(shared_pairs(config, self.config.run.absolute().parent).pairs):
            data = PairData(
                idx=number,
                name=pair.pair_id,
                prompt="",
                number=number,
                prompt_ids=list(pair.prompt_ids),
                chosen_ids=list(pair.chosen_ids),
                rejected_ids=list(pair.rejected_ids),
            )
            yield PairTask(data, self.config.task)


class PairHarness(vf.Harness[vf.HarnessConfig]):
    """A harness that writes a pair as a trace: two branches after one prompt, both answers as if they had been sampled.

    The algorithm finds their log-probs.
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Write the pair into the trace; no model is asked."""
        del ctx, runtime, endpoint, secret, mcp_urls
        prompt = vf.MessageNode(message=UserMessage(content=""), token_ids=data.prompt_ids, mask=[False] * len(data.prompt_ids))
        answers = [
            vf.MessageNode(
                parent=0,
                message=AssistantMessage(content=side),
                sampled=True,
                token_ids=ids,
                mask=[True] * len(ids),
                logprobs=[0.0] * len(ids),
            )
            for side, ids in (("chosen", data.chosen_ids), ("rejected", data.rejected_ids))
        ]
        trace.nodes.extend([prompt, *answers])
        trace.info[PAIR] = data.number
        return vf.ProgramResult(0, "", "")
