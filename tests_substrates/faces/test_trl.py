"""Stock GRPOTrainer over the environment factory: a model made and taught here, real tool calls, real rewards."""

from __future__ import annotations

import copy
import inspect
import json
from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl.chat_template_utils import add_response_schema

from composer_replication.envs import oracle_script
from composer_replication.integrations.trl import CodingEnvironment, CodingEnvironmentFactory, cheat_alarms
from composer_replication.recipes.trl.composer_trainer import ComposerReplicationTrainer
from composer_replication.recipes.trl.tool_loop import recovered_turns
from composer_replication.rollouts.agent_loop import Rollout
from composer_replication.rollouts.protocol import Budgets, Sample
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import Message, ToolCall, ToolResult

TEACHING_STEPS = 160
STEPS, GROUP = 3, 8
THE_END = Message(role="assistant", content="done")
SUBMITTED = Message(role="tool", name="submit", content="submitted")


@pytest.fixture(scope="module")
def factory(folder):
    return CodingEnvironmentFactory(folder)


@pytest.fixture(scope="module")
def transcripts(factory, tasks):
    """For every task the way that solves it, and the way that submits at once."""
    found = []
    for row, task in zip(factory.rows(), tasks, strict=True):
        *edits, submit = oracle_script(task)
        work = [m for edit in edits for m in (edit, Message(role="tool", name="edit_file", content=edited(edit)))]
        found += [[*row["prompt"], *work, submit, SUBMITTED, THE_END], [*row["prompt"], submit, SUBMITTED, THE_END]]
    return found


def edited(message):
    return f"edited {message['tool_calls'][0]['function']['arguments']['path']}"


def tools(factory):
    """As TRL lists them."""
    names = [name for name, member in inspect.getmembers(CodingEnvironment, inspect.isfunction) if not name.startswith("_")]
    return [getattr(factory(), name) for name in names if name not in ("reset", "get_reward")]


@pytest.fixture(scope="module")
def policy(factory, transcripts):
    """A model of two ways: it solves a task, or submits at once, each about half of the time. A trainer gets a copy of it: TRL
    patches the model it is given, and a copy of a patched one would still be read by the original's weights."""
    shown = tools(factory)
    bytewise = byte_level_tokenizer()
    tokenizer = byte_level_tokenizer(
        [bytewise.apply_chat_template(t, tools=shown, tokenize=False) for t in transcripts], vocab_size=600
    )
    own, tokenizer.chat_template = tokenizer.chat_template, (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
    add_response_schema(tokenizer)  # TRL knows how to parse Qwen3's tool calls, which are ours too
    tokenizer.chat_template = own
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=len(tokenizer), hidden_size=96, intermediate_size=192, num_hidden_layers=2)
    config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.max_position_embeddings = 4, 2, 24, 2048
    config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    model = Qwen3ForCausalLM(config)
    rows = [
        tokenizer.apply_chat_template(t, tools=shown, return_dict=True, return_assistant_tokens_mask=True) for t in transcripts
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(TEACHING_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / TEACHING_STEPS)
        for row in rows:
            ids, mask = torch.tensor([row["input_ids"]]), torch.tensor([row["assistant_masks"]])
            labels = ids.masked_fill(mask == 0, -100)
            (model(input_ids=ids, labels=labels).loss / len(rows)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model, tokenizer


def test_a_run_of_the_stock_trainer(policy, factory, tmp_path):
    model, tokenizer = copy.deepcopy(policy[0]), policy[1]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    config = trl.GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        max_completion_length=400,
        max_tool_calling_iterations=6,
        learning_rate=1e-4,
        temperature=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=0,
    )
    trainer = trl.GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=[cheat_alarms],
        train_dataset=Dataset.from_list(factory.rows()),
        processing_class=tokenizer,
        environment_factory=factory,
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "rewards/CodingEnvironment/mean" in entry]
    assert len(logs) == STEPS
    assert all(0.0 <= entry["rewards/CodingEnvironment/mean"] <= 1.0 for entry in logs)
    assert any(entry["rewards/CodingEnvironment/std"] > 0.0 for entry in logs), "some siblings solved their task and some did not"
    assert [entry["cheat/alarms"] for entry in logs] == [0.0] * STEPS
    assert sum(entry["tools/call_frequency"] for entry in logs) > 0
    assert len(trainer._environment_pool[None]) == GROUP, "one instance per rollout, used again at every step"
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.fixture
def hinting(policy, factory, tmp_path):
    """Our trainer over TRL's tool loop, for one step."""
    config = trl.GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=GROUP // 2,
        gradient_accumulation_steps=2,
        num_generations=GROUP,
        max_completion_length=400,
        max_tool_calling_iterations=6,
        learning_rate=1e-4,
        temperature=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=0,
    )
    return ComposerReplicationTrainer(
        model=copy.deepcopy(policy[0]),
        args=config,
        train_dataset=Dataset.from_list(factory.rows()),
        processing_class=policy[1],
        environment_factory=factory,
    )


def test_hints_from_the_tool_loop(hinting):
    """The rollouts that failed teach: their turns are found in TRL's mask, and what came of their calls in the environment."""
    trainer = hinting
    trainer.train()
    (log,) = [entry for entry in trainer.state.log_history if "hint/turns" in entry]
    failed = [e for e in trainer._environment_pool[None] if e.report is not None and e.report.reward == 0.0]
    assert failed
    assert 0 < log["hint/turns"] <= len(failed)
    assert log["hint/loss"] > 0
    assert log["hint/tokens"] >= log["hint/turns"]


def test_a_rollout_whose_sandbox_failed_is_in_no_mean(hinting):
    source, seen = hinting.signals, {}

    def fails(trainer, inputs, outputs):
        trainer.environments[1].report = None
        seen["own"], seen["out"] = outputs["advantages"].clone(), outputs
        seen["found"] = source(trainer, inputs, outputs)
        return seen["found"]

    hinting.signals = fails
    hinting.train()
    out, others = seen["out"], [row for row in range(GROUP) if row != 1]
    assert torch.isnan(seen["found"].advantages).tolist() == [row == 1 for row in range(GROUP)]
    assert torch.equal(seen["found"].advantages[others], seen["own"][others])
    trained = (out["completion_mask"] * out["tool_mask"]).sum(-1)
    assert trained[1] == 0
    assert (trained[others] > 0).all()
    assert out["num_items_in_batch"] == trained.sum()


def test_turns_are_recovered_as_they_were(tasks, folder):
    """Of rollouts of ours, whose turns are known, seen as TRL would show them."""
    suite = CodingEnvironmentFactory(folder).suite
    tokenizer = byte_level_tokenizer()
    renderer = ChatRenderer(tokenizer)
    env = suite.env(tasks[0])
    calls = [{"name": "read_file", "arguments": {"path": "nowhere.py"}}, {"name": "no_such_tool", "arguments": {}}]
    texts = [f"<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>" for call in calls] + ["<tool_call>\n{oops\n</tool_call>"]
    rollout = Rollout(
        "1/x/0",
        env,
        renderer,
        Budgets(turn_tokens=4096, trajectory_tokens=4096, context_tokens=8192, max_turns=8),
        seed=0,
        context_tokens=8192,
    )
    rollout.begin()
    for text in texts:
        ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        rollout.act(Sample(ids=ids, logprobs=(0.0,) * len(ids), finished=True))
    made = rollout._turns
    history = [(call, result) for turn in made for call, result in zip(turn.tool_calls, turn.results, strict=True)]
    ids = [i for turn in made for i in (*turn.action_ids, *turn.observation_ids)]
    own = [v for turn in made for v in [1] * len(turn.action_ids) + [0] * len(turn.observation_ids)]
    names = {tool["function"]["name"] for tool in env.tools}
    found = recovered_turns(ids, own, history[:1], renderer, names)
    assert [(t.action_ids, t.observation_ids, t.tool_calls) for t in found] == [
        (t.action_ids, t.observation_ids, t.tool_calls) for t in made
    ]
    assert [[r.status for r in t.results] for t in found] == [["path_not_found"], ["unknown_tool"], ["malformed_call"]]


def test_a_result_belongs_to_the_call_with_its_arguments():
    """A call that the sandbox failed at leaves no result; the next of that name keeps its own."""
    tokenizer = byte_level_tokenizer()
    text = "".join(
        f"<tool_call>\n{json.dumps({'name': 'read_file', 'arguments': {'path': path}})}\n</tool_call>"
        for path in ("a.py", "b.py")
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    made = ToolCall(call_id="read_file", name="read_file", arguments={"path": "b.py"})
    result = ToolResult(call_id="read_file", name="read_file", content="no file b.py", status="path_not_found")
    (turn,) = recovered_turns(ids, [1] * len(ids), [(made, result)], ChatRenderer(tokenizer), {"read_file"})
    assert [r.call_id for r in turn.results] == [turn.tool_calls[1].call_id]
