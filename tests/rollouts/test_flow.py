"""Every rollout goes on by itself: over real HTTP servers in processes of their own, and in batches that time does not change."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.rollouts.agent_loop import Rollout, derive_seed
from composer_replication.rollouts.batching import BatchingEngine
from composer_replication.rollouts.collect import StalledError, collect_groups
from composer_replication.rollouts.protocol import AsyncEngine, Budgets, SampleRequest
from composer_replication.rollouts.request_limit import RequestLimit
from composer_replication.rollouts.scripted import ScriptedEngine
from composer_replication.rollouts.serving import ServingEngine, open_server
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import GradeReport, StopReason, ToolResult, Unscored

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from timed_server import ask, timed_server

RENDERER = ChatRenderer(byte_level_tokenizer())
CALL = {"id": "x", "type": "function", "function": {"name": "go", "arguments": {}}}
REPLY = RENDERER.assistant_ids({"role": "assistant", "content": "", "tool_calls": [CALL]})
HOLD = RENDERER.tokenizer.encode("stay there")
BUDGETS = Budgets(turn_tokens=200, trajectory_tokens=4000, context_tokens=8000, max_turns=3)


class Env:
    """Its tools do nothing. A task whose name begins with `stay` is never answered by the server before it is released."""

    tools = ({"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}},)
    done = False

    def __init__(self, task_id, *, on_step=lambda _: None, on_grade=lambda _: None):
        self.task_id, self.on_step, self.on_grade = task_id, on_step, on_grade

    def reset(self):
        text = f"{self.task_id}: {'stay there' if self.task_id.startswith('stay') else 'come'}"
        return ({"role": "user", "content": text},)

    def step(self, call):
        self.on_step(self.task_id)
        return ToolResult(call_id=call.call_id, name=call.name, content="gone", status="ok")

    def grade(self):
        self.on_grade(self.task_id)
        return GradeReport(reward=1.0, outcomes={})


def collection(tasks, engine, *, make_env=Env, renderer=RENDERER, **more):
    settings = {"budgets": BUDGETS, "group_size": 1, "seed": 0, "step": 0, "temperature": 1.0, "policy_version": 0, **more}
    return collect_groups(tasks, make_env=make_env, engine=engine, renderer=renderer, **settings)


def trajectories(groups):
    return {t.task_id: t for g in groups for t in g.trajectories}


@pytest.fixture(params=["vllm", "sglang"])
def kind(request):
    return request.param


@contextlib.contextmanager
def server(kind, **plan):
    """An address and an engine at it."""
    with timed_server(kind, reply=list(REPLY), hold=HOLD, **plan) as url:
        engine = ServingEngine(open_server(kind, url), stop_ids=[REPLY[-1]], probe_ids=range(1, 40))
        engine.check()
        yield url, engine
        engine.end()


async def until(url, **wanted):
    """Return when the server has seen as much as that."""
    while not wanted.items() <= (await asyncio.to_thread(ask, url)).items():
        await asyncio.sleep(0.01)


def assert_nothing_is_left(engine):
    assert len(engine._sessions) == 0
    left = [t.name for t in threading.enumerate() if t.name.startswith(("rollout-", "serving-"))]
    assert left == []


STAY = [f"stay-{i}" for i in range(9)]


def test_the_server_gets_the_turn_of_every_rollout_that_is_ready(kind):
    async def main():
        work = asyncio.create_task(collection(STAY, engine))
        await until(url, sampling=9)
        await asyncio.to_thread(ask, url, "release")
        return await work

    with server(kind) as (url, engine):
        groups = asyncio.run(main())
        assert ask(url) == {"sampling": 0, "most": 9, "answered": 27, "aborted": 0}
        assert_nothing_is_left(engine)
    assert all(t.stop_reason is StopReason.MAX_TURNS and t.reward == 1.0 for t in trajectories(groups).values())


def test_at_most_so_many_requests_are_under_way(kind):
    with server(kind, median_s=0.01) as (url, engine):
        groups = asyncio.run(collection([f"t{i}" for i in range(8)], engine, max_requests=3))
        assert ask(url) == {"sampling": 0, "most": 3, "answered": 24, "aborted": 0}
    assert [g.task_id for g in groups] == [f"t{i}" for i in range(8)]


def test_the_rollout_with_the_fewest_turns_goes_first_and_a_place_is_never_lost():
    async def hold(limit, name, turns):
        async with limit.place(turns):
            order.append(name)
            await asyncio.sleep(0)

    async def main():
        limit = RequestLimit(1)
        async with limit.place(9):
            tasks = {n: asyncio.create_task(hold(limit, n, t)) for n, t in [("a", 2), ("b", 1), ("c", 1), ("d", 0), ("e", 0)]}
            await asyncio.sleep(0)
            tasks["d"].cancel()  # while it waits
        tasks["e"].cancel()  # it has just been given the place
        await asyncio.wait(tasks.values())
        await hold(limit, "again", 0)

    order = []
    asyncio.run(main())
    assert order == ["b", "c", "a", "again"]


def test_a_rollout_ends_and_is_graded_while_others_are_sampled(kind):
    """The others are answered only once it is graded."""
    with server(kind) as (url, engine):

        def graded(task_id):
            if task_id == "quick":
                seen.append(ask(url, "release"))

        seen = []
        work = collection([*STAY, "quick"], engine, make_env=lambda t: Env(t, on_grade=graded), deadline_s=30.0)
        done = trajectories(asyncio.run(work))
    assert seen[0]["answered"] == 3, "all three turns of one rollout, and no other"
    assert all(len(t.turns) == 3 and t.reward == 1.0 for t in done.values())


def test_a_waiting_tool_holds_nobody_back(kind):
    """With room for one request: its place is free while the tool of another rollout waits."""
    other = threading.Event()

    def step(task_id):
        other.wait() if task_id == "a" else other.set()

    with server(kind) as (_, engine):
        make_env = lambda t: Env(t, on_step=step)  # noqa: E731
        done = trajectories(asyncio.run(collection(["a", "b"], engine, make_env=make_env, max_requests=1, deadline_s=30.0)))
    assert [len(t.turns) for t in done.values()] == [3, 3]


def test_what_takes_too_long_is_unscored_its_request_aborted_and_the_others_go_on(kind):
    with server(kind) as (url, engine):
        done = trajectories(asyncio.run(collection(["a", "stay", "b"], engine, timeout_s=3.0)))
        asyncio.run(until(url, aborted=1, sampling=0))
        assert_nothing_is_left(engine)
        late = done.pop("stay")
        assert isinstance(late.reward, Unscored)
        assert "longer than 3 s" in late.reward.reason
        assert late.reward.reason.endswith("sample")
        assert (late.stop_reason, late.turns) == (StopReason.INFRASTRUCTURE, ())
        assert [(t.reward, len(t.turns)) for t in done.values()] == [(1.0, 3)] * 2


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize("phase", ["tools", "grade"])
def test_a_call_that_hangs_in_a_thread_is_dropped(phase, in_process):
    release = threading.Event()

    def hang(task_id):
        if task_id == "hangs":
            release.wait()

    def make_env(task_id):
        return Env(task_id, on_step=hang) if phase == "tools" else Env(task_id, on_grade=hang)

    with contextlib.ExitStack() as stack:
        script = [{"role": "assistant", "content": "", "tool_calls": [CALL]}] * 3
        engine = ScriptedEngine(RENDERER, lambda _: script) if in_process else stack.enter_context(server("sglang"))[1]
        tasks = ["a", "hangs", "b", "c"]
        done = trajectories(asyncio.run(collection(tasks, engine, make_env=make_env, env_workers=3, cohorts=1, timeout_s=3.0)))
        hung = done.pop("hangs")
        assert isinstance(hung.reward, Unscored)
        assert hung.reward.reason.endswith(phase)
        assert len(hung.turns) == (0 if phase == "tools" else 3)
        assert not hung.turns or hung.turns[-1].observation_ids == ()
        assert [(t.reward, len(t.turns)) for t in done.values()] == [(1.0, 3)] * 3
        release.set()
        for thread in threading.enumerate():
            if thread.name.startswith("rollout-env"):
                thread.join()


def test_waiting_for_others_is_not_counted():
    """Eight rollouts share a thread and take 0.6 s each; none has more than 3 s."""
    script = [{"role": "assistant", "content": "", "tool_calls": [CALL]}] * 3
    engine = ScriptedEngine(RENDERER, lambda _: script)
    make_env = lambda t: Env(t, on_step=lambda _: time.sleep(0.2))  # noqa: E731
    started = time.monotonic()
    groups = asyncio.run(collection([f"t{i}" for i in range(8)], engine, make_env=make_env, env_workers=1, timeout_s=3.0))
    assert time.monotonic() - started > 4.8, "each has waited longer than it may take"
    assert [t.reward for t in trajectories(groups).values()] == [1.0] * 8


@pytest.mark.parametrize("in_process", [True, False])
def test_no_more_rollouts_are_open_than_allowed(in_process):
    """Of 2 siblings of 5 tasks 5 may be open: two groups at a time."""
    now, most, lock, seen = set(), [], threading.Lock(), []

    class Counted(Env):
        def reset(self):
            with lock:
                now.add(id(self))
                most.append(len(now))
            return super().reset()

        def grade(self):
            with lock:
                now.remove(id(self))
            return super().grade()

    with contextlib.ExitStack() as stack:
        script = [{"role": "assistant", "content": "", "tool_calls": [CALL]}] * 2
        engine = ScriptedEngine(RENDERER, lambda _: script) if in_process else stack.enter_context(server("vllm"))[1]
        options = {"make_env": Counted, "group_size": 2, "max_rollouts": 5, "on_progress": seen.append}
        groups = asyncio.run(collection(["a", "b", "c", "d", "e"], engine, **options))
    assert max(most) == 4
    assert [g.task_id for g in groups] == ["a", "b", "c", "d", "e"]
    assert [t.reward for g in groups for t in g.trajectories] == [1.0] * 10
    assert [p.finished for p in seen] == sorted(p.finished for p in seen)
    assert (seen[-1].finished, seen[-1].total) == (10, 10)


def test_an_environments_own_timeout_error_is_no_timeout_of_the_rollout():
    def fail(_):
        raise TimeoutError("a bug")

    engine = ScriptedEngine(RENDERER, lambda _: [{"role": "assistant", "content": "", "tool_calls": [CALL]}])
    groups = asyncio.run(collection(["t"], engine, make_env=lambda t: Env(t, on_step=fail), timeout_s=60.0))
    (trajectory,) = trajectories(groups).values()
    assert trajectory.stop_reason is StopReason.INFRASTRUCTURE
    assert trajectory.reward == Unscored("the environment failed: TimeoutError: a bug")


def test_a_cancelled_collection_leaves_no_request_thread_or_session_and_the_engine_goes_on(kind):
    async def main():
        for round_ in (1, 2):
            work = asyncio.create_task(collection([*STAY, "a", "b"], engine))
            await until(url, sampling=9, answered=6 * round_)
            assert len(engine._sessions) <= 2
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert_nothing_is_left(engine)
            await until(url, sampling=0, aborted=9 * round_)
        return await collection(["a"], engine)

    with server(kind) as (_, engine):
        url = engine.url
        assert trajectories(asyncio.run(main()))["a"].reward == 1.0
        assert_nothing_is_left(engine)


def test_a_bug_in_one_environment_aborts_the_requests_of_the_others(kind):
    class Broken(Env):
        def reset(self):
            if self.task_id == "broken":
                while ask(url)["sampling"] < 9:
                    time.sleep(0.01)
                raise RuntimeError("a bug")
            return super().reset()

    with server(kind) as (url, engine):
        with pytest.raises(RuntimeError, match="a bug"):
            asyncio.run(collection(["broken", *STAY], engine, make_env=Broken))
        assert_nothing_is_left(engine)
        asyncio.run(until(url, sampling=0, aborted=9))


def test_a_server_that_does_not_answer_is_a_stall(kind):
    with server(kind) as (url, engine):
        with pytest.raises(StalledError, match="9 x sample"):
            asyncio.run(collection(STAY, engine, deadline_s=2.0))
        asyncio.run(until(url, sampling=0, aborted=9))
        assert len(engine._sessions) == 0


# --- batches in this process ----------------------------------------------------------------------------------------------


class Talkative(ChatRenderer):
    """Reads a tool call into three of four turns, whatever an untrained policy says."""

    def decode(self, ids):
        return super().decode(ids) + ("<tool_call>{</tool_call>" if sum(ids) % 4 else "")


def policy():
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=261, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    config.num_key_value_heads, config.head_dim, config.max_position_embeddings = 1, 16, 700
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[2] += 0.3  # end turns more often
    return model


def in_lock_step(engine, renderer, tasks, siblings, cohorts, budgets):
    """The same rollouts without threads or an event loop: cohort after cohort, a turn of all its sessions at a time."""
    rollouts = [
        Rollout(f"0/{t}/{i}", Env(t), renderer, budgets, seed=derive_seed(0, 0, t, i), context_tokens=budgets.context_tokens)
        for t in tasks
        for i in range(siblings)
    ]
    bounds = [len(rollouts) * i // cohorts for i in range(cohorts + 1)]
    for start, end in pairwise(bounds):
        for rollout in rollouts[start:end]:
            rollout.begin()
        while live := [r for r in rollouts[start:end] if r.live]:
            for rollout, sample in zip(live, engine.sample([r.request() for r in live], temperature=1.0), strict=True):
                rollout.act(sample)
            engine.close([r.trajectory_id for r in live if not r.live])
    return [r.finish(policy_version=0, temperature=1.0, arm="") for r in rollouts]


@pytest.mark.parametrize("cohorts", [1, 2, 5])
def test_batches_and_bits_are_those_of_cohorts_in_lock_step(cohorts):
    model, rng, renderer = policy(), random.Random(1), Talkative(RENDERER.tokenizer)
    budgets = Budgets(turn_tokens=60, trajectory_tokens=500, context_tokens=690, max_turns=8)
    tasks = ["a", "b", "c"]
    expected = in_lock_step(TransformersEngine(model, renderer.tokenizer), renderer, tasks, 4, cohorts, budgets)
    engine = TransformersEngine(model, RENDERER.tokenizer)
    late = lambda _: time.sleep(rng.random() * 0.01)  # noqa: E731
    make_env = lambda t: Env(t, on_step=late, on_grade=late)  # noqa: E731
    how = {"group_size": 4, "cohorts": cohorts, "env_workers": 3, "budgets": budgets, "renderer": renderer}
    groups = asyncio.run(collection(tasks, engine, make_env=make_env, **how))
    assert [t for g in groups for t in g.trajectories] == expected
    assert len({len(t.turns) for t in expected}) > 2
    assert len(engine._sessions) == 0


def test_a_batch_waits_for_every_live_session_of_its_cohort_and_for_no_other():
    batches = []

    class Noted(ScriptedEngine):
        def sample(self, requests, *, temperature):
            batches.append([r.session for r in requests])
            return super().sample(requests, temperature=temperature)

    def request(name):
        return SampleRequest(session=name, new_ids=(1,), max_new_tokens=9, seed=0)

    async def main():
        engine = BatchingEngine(Noted(RENDERER, lambda _: []), [["a", "b", "c", "d"]], cohorts=2)
        assert isinstance(engine, AsyncEngine)
        asked = {n: asyncio.create_task(engine.sample_one(request(n), temperature=1.0)) for n in ("d", "b", "c")}
        await asyncio.gather(asked["d"], asked["c"])
        assert not asked["b"].done()
        engine.close(["a", "unknown"])
        await asked["b"]
        with pytest.raises(ValueError, match="belongs to no cohort"):
            await engine.sample_one(request("a"), temperature=1.0)
        given_up = asyncio.create_task(engine.sample_one(request("c"), temperature=1.0))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait({given_up})
        engine.close(["c"])
        await engine.sample_one(request("d"), temperature=1.0)
        engine.shutdown(wait=True)

    asyncio.run(main())
    assert batches == [["c", "d"], ["b"], ["d"]]
