"""Rollouts and pairs as PRIME-RL's orchestrator has them, and what our algorithm makes of them."""

from __future__ import annotations

import asyncio

import torch
import verifiers.v1 as vf
from prime_rl.orchestrator.trajectories import trace_to_samples
from prime_rl.orchestrator.types import Rollout
from verifiers.v1.types import AssistantMessage, ToolMessage, UserMessage
from verifiers.v1.utils.loaders import load_environment

from composer_replication.tokens import ChatRenderer
from composer_replication.types import Message


def logprobs_of(model, ids):
    logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    own = logits[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    return torch.cat([own.new_zeros(1), own])


class Pool:
    """The present policy, as PRIME-RL's inference pool scores."""

    model_name = "policy"

    def __init__(self, model):
        self.model = model
        self.read = []

    async def score(self, ids):
        self.read.append(list(ids))
        with torch.no_grad():
            return logprobs_of(self.model, list(ids)).tolist()


def rollout(policy, *, call, answer, reward, name):
    """Two turns: a call and what came of it, then the end. Tokens are the chat template's, log-probs the policy's own."""
    model, tokenizer, _ = policy
    renderer = ChatRenderer(tokenizer)
    said = [Message(role="user", content="Fix the orchard.")]
    prompt, opening = renderer.template.ids(said), renderer.generation_prompt_ids
    function = {"name": call, "arguments": {"path": "grafts.py"}}
    asked = Message(role="assistant", content="", tool_calls=[{"id": "c1", "type": "function", "function": function}])
    action = renderer.assistant_ids(asked)
    told = renderer.delta_ids([Message(role="tool", content=answer, tool_call_id="c1", name=call)], ended=True)
    told = told[: len(told) - len(opening)]
    last = renderer.assistant_ids(Message(role="assistant", content="I am done."))
    ids = [*prompt, *opening, *action, *told, *opening, *last]
    with torch.no_grad():
        own = logprobs_of(model, ids).tolist()
    first = len(prompt) + len(opening)
    second = first + len(action) + len(told) + len(opening)

    def answered(parent, message, tokens, start):
        mask = [False] * len(opening) + [True] * len(tokens)
        logprobs = own[start : start + len(tokens)]
        return vf.MessageNode(
            parent=parent, message=message, sampled=True, token_ids=[*opening, *tokens], mask=mask, logprobs=logprobs
        )

    call_of = [{"id": "c1", "name": call, "arguments": '{"path": "grafts.py"}'}]
    nodes = [
        vf.MessageNode(message=UserMessage(content="Fix the orchard."), token_ids=list(prompt), mask=[False] * len(prompt)),
        answered(0, AssistantMessage(content="", tool_calls=call_of), action, first),
        vf.MessageNode(
            parent=1, message=ToolMessage(tool_call_id="c1", content=answer), token_ids=list(told), mask=[False] * len(told)
        ),
        answered(2, AssistantMessage(content="I am done."), last, second),
    ]
    made = Rollout(
        id=name,
        task=vf.TraceTask(type="Task", data=vf.TaskData(idx=0, prompt=None)),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        rewards={"tests_pass": vf.Reward(score=reward)},
        ok=True,
        env_name="tasks",
    )
    made.samples = trace_to_samples(made, env_name="tasks")
    return made


def group(policy):
    """A sibling that passed, and one that called a tool that there is not."""
    good = rollout(policy, call="read_file", answer="def graft(): ...", reward=1.0, name="good")
    bad = rollout(policy, call="open_file", answer="Tool 'open_file' not found", reward=0.0, name="bad")
    return [good, bad]


def finalized(built, rollouts):
    async def finalize():
        for one in rollouts:
            await built.finalize_rollout(one)
        await built.finalize_group(rollouts)

    asyncio.run(finalize())
    samples = [sample for one in rollouts for sample in one.samples]
    for sample in samples:
        sample.temperatures = [1.0] * len(sample.token_ids)
    return samples


def pairs_as_rollouts(config):
    """By the real source: its taskset, its harness, verifiers' own episode."""
    from prime_rl.configs.rl import RLConfig
    from prime_rl.utils.config import cli

    source = cli(RLConfig, args=["@", str(config)]).orchestrator.train.source[1]
    environment = load_environment(source.env)
    context = vf.ModelContext(model="policy", client=vf.EvalClientConfig(base_url="http://127.0.0.1:9/v1"))

    async def play():
        async with environment.serving():
            return [await environment.run_episode(task, context) for task in environment.taskset]

    episodes = asyncio.run(play())
    found = []
    for episode in episodes:
        assert episode.ok, episode.last_error or episode.traces[0].last_error
        wire = vf.WireTrace.model_validate(episode.traces[0].model_dump())
        one = Rollout[vf.WireTaskData].model_construct(**dict(wire))
        one.env_name = "replay"
        one.samples = trace_to_samples(one, env_name="replay")
        found.append(one)
    return found
