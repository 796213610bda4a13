"""Tasks from a verifiers environment (v1, verifiers 0.4): its harness runs the agent and asks the policy for each turn."""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
import weakref
from collections.abc import Coroutine, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from composer_replication.envs.source import EnvTask
from composer_replication.integrations.seeds import graded, unknown_tool
from composer_replication.types import GradeReport, Message, ToolCall, ToolResult, ToolSchema, Unscored
from composer_replication.types.errors import ConfigError, MissingExtraError, SandboxError

try:
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.types import content_text
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "env.use = 'verifiers' needs verifiers, which is not installed", fix="pip install 'composer-replication[verifiers]'"
    ) from error

from composer_replication.integrations.program_endpoint import Conversation, serve_conversations

ResultT = TypeVar("ResultT")

_BUDGET_SPENT = "rollout_budget"
"""Stop condition in the trace of an episode that a budget of the rollout ended."""
_NO_KEY = "COMPOSER_NO_KEY"
"""Name of an environment variable that is never set: the endpoint needs no key, and verifiers must not send the user's."""

_CLOSING_S = 10.0
"""Seconds that the end of the program waits for harnesses to end."""


class VerifiersSource:
    """An `EnvSource` over a verifiers taskset. Its harness runs the agent and its rewards, summed, are the reward.

    Args:
        env: the environment as verifiers' own `[env]` table has it: `taskset`, and each agent's `harness` and `runtime`. Exactly
            one agent is left without a `client`: the policy plays it.
        train: number of the taskset's tasks to train on, from its first one.
        held_out: number of tasks after those, for pass@1.
        timeout_s: most seconds from a turn to the harness's next request, from its start to the first, and for finishing and
            scoring an episode.

    Raises:
        ConfigError: there is no such environment, its table is wrong, the policy would play no agent or several, or there are too
            few tasks.
    """

    def __init__(self, env: Mapping[str, Any], *, train: int = 64, held_out: int = 0, timeout_s: float = 600.0) -> None:
        try:
            config = resolve_env_config(dict(env))
            self._env = load_environment(config)
        except (ImportError, ValueError, TypeError, AttributeError) as error:  # how verifiers refuses a name or a table
            said = f"{type(error).__name__}: {error}"  # it may also be a mistake in the user's own taskset
            raise ConfigError(f"env.options.env: {said}", fix="write the table as verifiers' own [env]") from error
        played = [name for name, agent in agent_config_fields(config).items() if agent.client is None]
        if len(played) != 1:
            raise ConfigError(
                f"env.options.env leaves {len(played)} agents to the policy ({', '.join(played) or 'none'}), which plays one",
                fix="name a `client` and a `model` for every other agent",
            )
        if train < 1 or held_out < 0:
            raise ConfigError(f"env.options.train = {train} and held_out = {held_out}", fix="train on one task or more")
        self._role, self._timeout_s = played[0], timeout_s
        rows = list(itertools.islice(self._env.taskset, train + held_out))
        if len(rows) < train + held_out:
            raise ConfigError(
                f"the taskset has {len(rows)} tasks, fewer than env.options.train + held_out = {train + held_out}",
                fix="lower one of them",
            )
        self._rows = {str(row.data.idx): row for row in rows}
        tasks = [EnvTask(name, instruction=_instruction(row.data.prompt)) for name, row in self._rows.items()]
        self.train, self.held_out = tuple(tasks[:train]), tuple(tasks[train:])
        self._host = _Host(self._env)
        weakref.finalize(self, self._host.close)

    def make(self, task_id: str) -> _HarnessEpisode:
        """Create an episode; its harness starts when it is reset."""
        return _HarnessEpisode(task_id, self._rows[task_id], self._host, self._role, self._timeout_s)


class _HarnessEpisode:
    """One task, worked on by a harness whose model is the rollout."""

    def __init__(self, task_id: str, row: vf.Task, host: _Host, role: str, timeout_s: float) -> None:
        self.task_id, self.done = task_id, False
        self._row, self._host, self._role, self._timeout_s = row, host, role, timeout_s
        self._run: _HarnessRun | None = None

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """The tools that the harness offers; known after `reset`."""
        return () if self._run is None else self._run.conversation.tools

    def reset(self) -> tuple[Message, ...]:
        """Start the harness, after ending an earlier one, and return the messages it opens with."""
        self.close()
        self.done = False
        self._run = run = _HarnessRun(self._host, self._row, self._role)
        weakref.finalize(self, run.cancel)
        try:
            opening = run.conversation.opening(self._timeout_s)
        except SandboxError:
            self.close()
            raise
        if opening is None:
            self.close()
            raise SandboxError(f"the harness ended before it asked for a turn: {run.faults()}", fix="see its log")
        return opening

    def step(self, call: ToolCall) -> ToolResult:
        """Refuse: the harness carries out calls."""
        return unknown_tool(call)

    def take(self, text: str, calls: tuple[ToolCall, ...], *, finished: bool) -> tuple[Message, ...]:
        """Let the harness carry out a turn, and return what it adds to the conversation."""
        run = self._running()
        try:
            run.conversation.answer(text, calls if finished else (), finished=finished)
            added = run.conversation.added(self._timeout_s)
        except SandboxError:
            if not finished:  # whatever it makes of half a turn, the episode is scored as it stands
                return ()
            self.close()
            raise
        self.done = added is None
        return (added or ()) if finished else ()

    def grade(self) -> GradeReport:
        """End the episode where a budget cut it short, and return the sum of its rewards."""
        run = self._running()
        if not self.done:
            run.stop()
        return graded(run.reward(self._timeout_s))

    def _running(self) -> _HarnessRun:
        assert self._run is not None, "the episode was not reset"
        return self._run

    def close(self) -> None:
        """End the harness; a call that waits for it returns or raises SandboxError."""
        if self._run is not None:
            self._run.cancel()


class _HarnessRun:
    """One run of an episode in verifiers' event loop, seen from the rollout's thread."""

    def __init__(self, host: _Host, row: vf.Task, role: str) -> None:
        self._host, self._role = host, role
        self._traces: list[vf.Trace] = []
        name, self.conversation = host.converse()
        client = vf.EvalClientConfig(base_url=f"{host.url}/{name}/v1", api_key_var=_NO_KEY)
        context = vf.ModelContext(model="policy", client=client)
        self._episode = host.submit(host.env.run_episode(row, context, on_trace=self._traces.append))
        self._episode.add_done_callback(lambda _: host.ended(name))

    def stop(self) -> None:
        """Stop the episode where it is; what it did so far is scored."""
        self._host.loop.call_soon_threadsafe(self._stop)

    def cancel(self) -> None:
        """Give the episode up, and free what it holds."""
        self._episode.cancel()

    def reward(self, timeout_s: float) -> float | Unscored:
        """Return the sum of the policy's rewards once the episode is scored, or why there is none.

        Raises:
            SandboxError: it takes longer than `timeout_s`, or was given up.
        """
        wait({self._episode}, timeout=timeout_s)
        if not self._episode.done():
            self.cancel()
            raise SandboxError(
                f"the episode was not finished and scored within {timeout_s:g} s", fix="raise env.options.timeout_s"
            )
        if self._episode.cancelled():
            raise SandboxError("the episode was given up", fix="run it again")
        episode = self._episode.result()
        traces = [trace for trace in episode.traces if self._is_policy(trace)]
        if not episode.ok:
            return Unscored(f"verifiers could not finish the episode: {self.faults()}")
        if len(traces) != 1:
            return Unscored(f"the policy played {len(traces)} times in the episode, and one of its tries would be trained on")
        return float(traces[0].reward)

    def faults(self) -> str:
        """Return the errors that the episode recorded, in one line."""
        errors = self._episode.result().errors if self._episode.done() and not self._episode.cancelled() else []
        found = [f"{error.type}: {error.message}" for error in [*errors, *(e for trace in self._traces for e in trace.errors)]]
        return "; ".join(dict.fromkeys(found)) or "it recorded no error"

    def _stop(self) -> None:
        for trace in self._traces:
            if self._is_policy(trace) and not trace.is_completed:
                trace.stop(_BUDGET_SPENT)
        self.conversation.close()

    def _is_policy(self, trace: vf.Trace) -> bool:
        return trace.agent is not None and trace.agent.name == self._role


class _Host:
    """verifiers' event loop in a thread: what the environment serves, and the endpoint that its harnesses ask."""

    def __init__(self, env: vf.Env) -> None:
        self.env = env
        self.loop = asyncio.new_event_loop()
        self.url = ""
        self._conversations: dict[str, Conversation] = {}
        self._episodes: set[asyncio.Task[Any]] = set()
        self._closing = asyncio.Event()
        ready: Future[str] = Future()
        self._thread = threading.Thread(target=self._run_loop, name="verifiers", daemon=True)
        self._thread.start()
        self._served = asyncio.run_coroutine_threadsafe(self._serve(ready), self.loop)
        self._served.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
        wait({ready, self._served}, return_when=FIRST_COMPLETED)
        self.url = ready.result() if ready.done() else self._served.result()

    def converse(self) -> tuple[str, Conversation]:
        """Open a conversation under a name that nobody guesses."""
        name = uuid.uuid4().hex
        self._conversations[name] = Conversation(self.loop)
        return name, self._conversations[name]

    def ended(self, name: str) -> None:
        """End a conversation whose program has ended, from any thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(lambda: self._conversations.pop(name).end())

    def submit(self, work: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        """Run a coroutine in the event loop."""
        return asyncio.run_coroutine_threadsafe(self._tracked(work), self.loop)

    def close(self) -> None:
        """End what still runs, and then the event loop. Runs when the source is collected, in any thread, or at the end."""
        self.loop.call_soon_threadsafe(self._closing.set)
        if threading.current_thread() is threading.main_thread():
            self._thread.join(_CLOSING_S)

    def _run_loop(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    async def _serve(self, ready: Future[str]) -> str:
        async with self.env.serving(), serve_conversations(self._conversations) as url:
            ready.set_result(url)
            await self._closing.wait()
            for episode in (live := set(self._episodes)):
                episode.cancel()
            if live:
                await asyncio.wait(live, timeout=_CLOSING_S)
        return url

    async def _tracked(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        episode = asyncio.current_task()
        assert episode is not None
        self._episodes.add(episode)
        episode.add_done_callback(self._episodes.discard)
        return await work


def _instruction(prompt: Any) -> str:
    """Return a task's prompt as text; empty where the environment speaks first."""
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return "\n".join(content_text(message.content) for message in prompt if message.role == "user")
