"""Traces, a tokenizer and a model, all tiny: a step that reads `aaaaaaaa` is good, one that reads `bbbbbbbb` is bad."""

from __future__ import annotations

import random

from transformers import Qwen3Config

from composer_replication.prm import make_prm
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import Message, StopReason, ToolCall, Trajectory, Turn

RENDERER = ChatRenderer(byte_level_tokenizer())
TOKENIZER = RENDERER.tokenizer


def config(**changed):
    return Qwen3Config(
        **{
            "vocab_size": len(TOKENIZER),
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "max_position_embeddings": 512,
            "pad_token_id": TOKENIZER.pad_token_id,
            "eos_token_id": TOKENIZER.eos_token_id,
            "bos_token_id": None,
            **changed,
        }
    )


def model(seed=0, **changed):
    return make_prm(config(**changed), seed=seed)


def trajectory(name, task, actions, *, reward=1.0, renderer=RENDERER):
    """One turn per action, each a read of a file of that name and answered by its first letter."""
    opening = (Message(role="user", content=task),)
    turns = []
    for i, action in enumerate(actions):
        call = {"id": f"call_{i}_0", "type": "function", "function": {"name": "Read", "arguments": {"path": action}}}
        ids = renderer.assistant_ids(Message(role="assistant", content="", tool_calls=[call]))
        reply = renderer.delta_ids([Message(role="tool", content=action[0])], ended=True)
        turns.append(
            Turn(
                action_ids=ids,
                logprobs=(0.0,) * len(ids),
                text=renderer.decode(ids),
                tool_calls=(ToolCall(call_id=f"call_{i}_0", name="Read", arguments={"path": action}),),
                observation_ids=reply if i + 1 < len(actions) else (),
            )
        )
    return Trajectory(
        trajectory_id=name,
        task_id=task,
        policy_version=0,
        messages=opening,
        tools=(),
        prompt_ids=renderer.prompt_ids(opening),
        turns=tuple(turns),
        stop_reason=StopReason.NO_TOOL_CALL,
        temperature=1.0,
        reward=reward,
    )


def corpus(tasks=10, siblings=2, turns=2, seed=0):
    """Trajectories and the labels of their steps."""
    rng = random.Random(seed)
    found, labels = [], {}
    for task in range(tasks):
        for sibling in range(siblings):
            actions = [8 * rng.choice("ab") for _ in range(turns)]
            name = f"0/t{task}/{sibling}"
            found.append(trajectory(name, f"t{task}", actions, reward=float("b" not in "".join(actions))))
            labels[name] = {i: float(action[0] == "a") for i, action in enumerate(actions)}
    return found, labels
