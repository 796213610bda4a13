from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.rollouts.agent_loop import derive_seed
from composer_replication.rollouts.collect import collect_groups
from composer_replication.rollouts.protocol import Budgets, Sample
from composer_replication.rollouts.scripted import RandomEngine, ScriptedEngine
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import GradeReport, StopReason, ToolResult, Trajectory, Unscored, from_json, to_json
from composer_replication.types.errors import ComposerError, ConfigError, SandboxError

TOOLS = tuple(
    {"type": "function", "function": {"name": n, "description": n, "parameters": {"type": "object", "properties": {"text": {}}}}}
    for n in ("echo", "submit", "break")
)
RENDERER = ChatRenderer(byte_level_tokenizer())


FAULTS = {
    "bug": RuntimeError("a bug"),
    "name": OSError(36, "File name too long"),
    "text": UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    "depth": RecursionError("maximum recursion depth exceeded"),
    "size": MemoryError(),
    "number": OverflowError("int too large \x1b[2J"),
}


class EchoEnv:
    """Echoes; graded 1 when it was told the word."""

    tools = TOOLS

    def __init__(self, task_id, *, delay=lambda: 0.0, fault="", log=None):
        self.task_id, self._delay, self._fault, self._log = task_id, delay, fault, log if log is not None else []
        self.done, self._heard = False, ""

    def reset(self):
        if self._fault == "reset":
            raise SandboxError("the box is gone")
        return ({"role": "system", "content": "S"}, {"role": "user", "content": f"Do {self.task_id}."})

    def step(self, call):
        time.sleep(self._delay())
        self._log.append((self.task_id, call.name))
        if call.name == "break":
            raise FAULTS.get(call.arguments.get("text"), SandboxError("the box broke"))
        self.done = call.name == "submit"
        self._heard += str(call.arguments.get("text", ""))
        return ToolResult(
            call_id=call.call_id, name=call.name, content=f"<{self._heard}>", status="ok" if call.name else "malformed_call"
        )

    def grade(self):
        time.sleep(self._delay())
        if self._fault == "grade":
            return GradeReport(reward=Unscored("no grader"), outcomes={})
        return GradeReport(reward=float("word" in self._heard), outcomes={})


def say(*calls, content=""):
    made = [{"id": "x", "type": "function", "function": {"name": n, "arguments": {"text": t}}} for n, t in calls]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def collect(tasks, engine, *, make_env=EchoEnv, budgets=None, group_size=1, renderer=RENDERER, **more):
    budgets = budgets or Budgets(turn_tokens=200, trajectory_tokens=1000, context_tokens=4000, max_turns=8)
    settings = {"seed": 0, "step": 3, "temperature": 1.0, "policy_version": 2, **more}
    return asyncio.run(
        collect_groups(
            tasks, make_env=make_env, engine=engine, renderer=renderer, budgets=budgets, group_size=group_size, **settings
        )
    )


def one(script, **more):
    (group,) = collect(["t"], ScriptedEngine(RENDERER, lambda _: script), **more)
    return group.trajectories[0]


def test_a_trajectory_is_the_tokens_the_engine_saw():
    trajectory = one([say(("echo", "wo"), ("echo", "rd")), say(("submit", ""), ("echo", "too late"))], arm="x")
    assert (trajectory.stop_reason, trajectory.reward, trajectory.policy_version, trajectory.arm) == (
        StopReason.SUBMITTED,
        1.0,
        2,
        "x",
    )
    assert trajectory.trajectory_id == "3/t/0"
    first, last = trajectory.turns
    assert [r.content for r in first.results] == ["<wo>", "<word>"]
    assert len(last.results) == 1, "nothing runs after submit"
    assert last.observation_ids == ()
    text = RENDERER.tokenizer.decode(trajectory.context_ids(2))
    assert text.count("<|im_start|>tool\n") == 2
    assert first.action_ids == RENDERER.assistant_ids(say(("echo", "wo"), ("echo", "rd")))
    assert from_json(Trajectory, to_json(trajectory)) == trajectory


@pytest.mark.parametrize(
    ("budgets", "reason", "turns"),
    [
        ({"max_turns": 2}, StopReason.MAX_TURNS, 2),
        ({"turn_tokens": 30}, StopReason.TURN_TOKENS, 1),
        ({"trajectory_tokens": 100}, StopReason.TRAJECTORY_TOKENS, 3),
        ({"context_tokens": 230}, StopReason.CONTEXT_TOKENS, 3),
        ({"context_tokens": 20}, StopReason.CONTEXT_TOKENS, 0),
    ],
)
def test_every_budget_has_its_name(budgets, reason, turns):
    limits = {"turn_tokens": 200, "trajectory_tokens": 1000, "context_tokens": 4000, "max_turns": 8}
    log = []
    trajectory = one([say(("echo", "a"))] * 6, budgets=Budgets(**(limits | budgets)), make_env=lambda t: EchoEnv(t, log=log))
    assert (trajectory.stop_reason, len(trajectory.turns)) == (reason, turns)
    assert len(trajectory.context_ids(turns)) <= (limits | budgets)["context_tokens"] or turns == 0
    assert trajectory.num_sampled_tokens() <= (limits | budgets)["trajectory_tokens"]
    assert trajectory.reward == 0.0, "graded as it stands"
    cut = reason in (StopReason.TURN_TOKENS, StopReason.TRAJECTORY_TOKENS) or "context_tokens" in budgets
    assert len(log) == (turns - cut if turns else 0), "a turn cut by its budget is not executed"
    assert all(t.observation_ids for t in trajectory.turns[:-1])
    assert not trajectory.turns or trajectory.turns[-1].observation_ids == ()


def test_a_reply_that_does_not_fit_ends_the_trajectory():
    opening = len(one([]).prompt_ids)
    turn = len(RENDERER.assistant_ids(say(("echo", "a"))))
    budgets = Budgets(turn_tokens=200, trajectory_tokens=1000, context_tokens=opening + turn + 10, max_turns=8)
    trajectory = one([say(("echo", "a"))] * 6, budgets=budgets)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.CONTEXT_TOKENS, 1)
    assert trajectory.turns[0].results[0].content == "<a>", "it was carried out"


def test_text_without_a_call_ends_and_malformed_calls_go_on():
    assert one([say(content="I am done.")]).stop_reason is StopReason.NO_TOOL_CALL
    assert one([]).stop_reason is StopReason.NO_TOOL_CALL
    trajectory = one([say(content="<tool_call>{</tool_call>"), say(("submit", ""))])
    assert [r.status for t in trajectory.turns for r in t.results] == ["malformed_call", "ok"]


@pytest.mark.parametrize("fault", ["reset", "step", "grade"])
def test_a_broken_box_is_unscored_and_not_a_zero(fault):
    script = {"good": [say(("echo", "word")), say(("submit", ""))], "bad": [say(("break", "x" if fault == "step" else ""))]}
    script["bad"] = script["bad"] if fault == "step" else script["good"]
    engine = ScriptedEngine(RENDERER, lambda session: script[session.split("/")[1]])
    bad, good = collect(["bad", "good"], engine, make_env=lambda t: EchoEnv(t, fault=fault if t == "bad" else ""))
    assert good.trajectories[0].reward == 1.0
    (broken,) = bad.trajectories
    assert isinstance(broken.reward, Unscored)
    assert broken.stop_reason is (StopReason.SUBMITTED if fault == "grade" else StopReason.INFRASTRUCTURE)
    assert from_json(Trajectory, to_json(broken)) == broken


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"bug"}))
def test_a_workspace_that_an_env_was_not_made_for_ends_one_rollout(fault):
    script = {"bad": [say(("break", fault))], "good": [say(("echo", "word")), say(("submit", ""))]}
    bad, good = collect(["bad", "good"], ScriptedEngine(RENDERER, lambda session: script[session.split("/")[1]]))
    assert good.trajectories[0].reward == 1.0
    (broken,) = bad.trajectories
    assert isinstance(broken.reward, Unscored)
    assert type(FAULTS[fault]).__name__ in broken.reward.reason
    assert broken.reward.reason.isprintable()
    assert broken.stop_reason is StopReason.INFRASTRUCTURE
    assert from_json(Trajectory, to_json(broken)) == broken


def test_bugs_and_repeated_tasks_are_not_swallowed():
    with pytest.raises(RuntimeError, match="a bug"):
        one([say(("break", "bug"))])
    with pytest.raises(ConfigError, match="twice"):
        collect(["t", "t"], ScriptedEngine(RENDERER, lambda _: []))


def test_a_stall_says_what_it_waits_for():
    release = threading.Event()
    engine = ScriptedEngine(RENDERER, lambda _: [say(("echo", "a"))])
    with pytest.raises(ComposerError, match=r"stalled.*1 x tools") as error:
        collect(["t"], engine, make_env=lambda t: EchoEnv(t, delay=lambda: release.wait() and 0.0), deadline_s=2.0)
    release.set()
    assert error.value.fix


class CountingEngine(ScriptedEngine):
    """Checks that calls are serialised and that sessions are closed."""

    def __init__(self, *args):
        super().__init__(*args)
        self.batches, self.busy, self.open = [], threading.Lock(), set()

    def sample(self, requests, *, temperature):
        assert self.busy.acquire(blocking=False), "engine calls overlap"
        time.sleep(0.002)
        self.batches.append([r.session for r in requests])
        self.open |= {r.session for r in requests}
        self.busy.release()
        return super().sample(requests, temperature=temperature)

    def close(self, sessions):
        self.open -= set(sessions)
        super().close(sessions)


def test_cohorts_are_fixed_and_overlap():
    rng = random.Random(0)
    engine = CountingEngine(RENDERER, lambda s: [say(("echo", "a"))] * (2 + int(s[-1])) + [say(("submit", "word"))])
    seen = []
    groups = collect(
        ["a", "b", "c"],
        engine,
        group_size=2,
        make_env=lambda t: EchoEnv(t, delay=lambda: rng.random() * 0.01),
        on_progress=seen.append,
    )
    assert [g.group_id for g in groups] == ["3/a", "3/b", "3/c"]
    assert [t.trajectory_id for g in groups for t in g.trajectories] == [f"3/{t}/{i}" for t in "abc" for i in (0, 1)]
    assert all(t.reward == 1.0 for g in groups for t in g.trajectories)
    cohorts = [["3/a/0", "3/a/1", "3/b/0"], ["3/b/1", "3/c/0", "3/c/1"]]
    for batch in engine.batches:
        assert any(set(batch) <= set(c) for c in cohorts)
    of_first = [b for b in engine.batches if set(b) <= set(cohorts[0])]
    assert of_first == [cohorts[0]] * 3 + [["3/a/1"]]
    assert engine.open == set()
    assert (seen[-1].finished, seen[-1].total, seen[-1].turns) == (6, 6, 3 * 3 + 3 * 4)
    assert seen[-1].sampled_tokens == sum(t.num_sampled_tokens() for g in groups for t in g.trajectories)


def test_a_policy_in_the_loop_is_reproducible_to_the_bit_whatever_the_tests_take():
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=261, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    config.num_key_value_heads, config.head_dim, config.max_position_embeddings = 1, 16, 700
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[2] += 0.02  # end turns more often
    runs = []
    for i in range(2):
        rng = random.Random(i)
        engine = TransformersEngine(model, RENDERER.tokenizer)
        budgets = Budgets(turn_tokens=60, trajectory_tokens=400, context_tokens=5000, max_turns=6)
        make_env = lambda t, rng=rng: EchoEnv(t, delay=lambda: rng.random() * 0.01)  # noqa: E731
        runs.append(collect(["a", "b", "c"], engine, group_size=4, make_env=make_env, budgets=budgets, cohorts=3))
        assert len(engine._sessions) == 0
    assert runs[0] == runs[1]
    trajectories = [t for g in runs[0] for t in g.trajectories]
    assert len({t.turns[0].action_ids for t in trajectories}) == len(trajectories)
    for trajectory in trajectories[:3]:
        check_logprobs(model, trajectory)


def check_logprobs(model, trajectory):
    whole = trajectory.context_ids(len(trajectory.turns))
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([whole])).logits[0].float(), -1)
    for i, turn in enumerate(trajectory.turns):
        start = trajectory.action_start(i)
        expected = [logprobs[start + j - 1, token].item() for j, token in enumerate(turn.action_ids)]
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)


def test_noise_never_breaks_the_loop():
    engine = RandomEngine(RENDERER, tools=[t for t in TOOLS if t["function"]["name"] != "break"], words=["word"])
    groups = collect([f"t{i}" for i in range(20)], engine, group_size=5)
    trajectories = [t for g in groups for t in g.trajectories]
    assert {t.stop_reason for t in trajectories} >= {StopReason.SUBMITTED, StopReason.NO_TOOL_CALL, StopReason.TURN_TOKENS}
    statuses = {r.status for t in trajectories for turn in t.turns for r in turn.results}
    assert statuses == {"ok", "malformed_call"}
    assert groups == collect([f"t{i}" for i in range(20)], engine, group_size=5, cohorts=5), "noise depends on seeds alone"
    assert groups != collect([f"t{i}" for i in range(20)], engine, group_size=5, seed=1)
    for trajectory in trajectories:
        assert from_json(Trajectory, to_json(trajectory)) == trajectory


def test_seeds_are_stable():
    assert derive_seed(0, 1, "a", 2) == 6378737136196293252
    assert len({derive_seed(a, b) for a in range(20) for b in range(20)}) == 400
    assert derive_seed("1", 1) != derive_seed(1, "1")


def test_stop_by_another_eos_closes_the_turn():
    class OtherEos(ScriptedEngine):
        def sample(self, requests, *, temperature):
            samples = super().sample(requests, temperature=temperature)
            return [Sample(ids=(*s.ids[:-1], 0), logprobs=s.logprobs, finished=True) for s in samples]

    (group,) = collect(["t"], OtherEos(RENDERER, lambda _: [say(("echo", "a"))]))
    assert group.trajectories[0].turns[0].observation_ids[0] == RENDERER.end_of_turn_id
