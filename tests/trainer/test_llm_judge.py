"""A real endpoint on loopback as the judge: asked once, paid once, silent beyond the cap."""

from __future__ import annotations

import asyncio
import json

import pytest
from asking import teacher
from teacher_server import Reply, TeacherServer
from typer.testing import CliRunner

from composer_replication.cli import app
from composer_replication.config import load_config
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir, Terminal
from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.engines.introspection import ask_policy
from composer_replication.trainer.llm_judge import ask_teacher
from composer_replication.trainer.run_context import RunContext
from composer_replication.types import to_json
from composer_replication.types.errors import ConfigError, TeacherError
from composer_replication.types.transcript import Trace, TraceTurn


def test_a_question_is_paid_for_once(tmp_path):
    asked = []

    def answer(body, number):
        asked.append(body)
        return Reply(content="Read the file first.")

    with TeacherServer(answer) as server:
        ask = ask_teacher(teacher(server), tmp_path / "ledger.sqlite", 10.0)

        async def inside_a_loop():
            return ask("What now?")

        assert [ask("What now?"), asyncio.run(inside_a_loop()), ask("And now?")] == ["Read the file first."] * 3
    assert len(asked) == 2


def test_beyond_the_cap_it_says_nothing_and_without_an_endpoint_it_raises(tmp_path):
    with TeacherServer(lambda body, n: Reply(content="x")) as server:
        assert ask_teacher(teacher(server), tmp_path / "a.sqlite", 0.5)("What now?") is None
        gone = server.base_url
    with pytest.raises(TeacherError):
        ask_teacher(teacher(gone), tmp_path / "b.sqlite", 10.0)("What now?")


def test_explain_asks_the_judge_of_style_rules(tmp_path):
    one = Trace(trajectory_id="t", format="x", turns=(TraceTurn(context=(), text="Nonsense, fool."),))
    (tmp_path / "t.jsonl").write_text(json.dumps(to_json(one)))
    (tmp_path / "style.toml").write_text('[[rule]]\nname = "kind"\njudge = "Is it rude?"\nmessage = "Be kind."\n')
    with TeacherServer(lambda body, n: Reply(content="Yes.")) as server:
        fields = {"name": "j", "model": "m", "base_url": server.base_url, "api_key_env": ""}
        prices = {"usd_per_million_input": 0.0, "usd_per_million_output": 0.0}
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in {**fields, **prices}.items())
        (tmp_path / "teachers.toml").write_text(f"[[teachers]]\n{lines}\n")
        words = ["hints", "explain", tmp_path / "t.jsonl", "--rules", tmp_path / "style.toml", "--json"]
        words += ["--teachers", tmp_path / "teachers.toml", "--ledger", tmp_path / "ledger.sqlite"]
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    (finding,) = json.loads(result.stdout)["traces"][0]["findings"]
    assert (finding["kind"], finding["hint"], finding["source"]) == ("style", "Hint: Be kind.", "template")


@pytest.mark.parametrize(("cap", "code"), [(0, 6), (1, 0)])
def test_explain_says_what_it_asked_and_what_it_cost(tmp_path, cap, code):
    turns = (TraceTurn(context=(), text="Nonsense, fool."), TraceTurn(context=(), text="Well."))
    (tmp_path / "t.jsonl").write_text(json.dumps(to_json(Trace(trajectory_id="t", format="x", turns=turns))))
    (tmp_path / "style.toml").write_text('[[rule]]\nname = "kind"\njudge = "Is it rude?"\nmessage = "Be kind."\n')
    with TeacherServer(lambda body, n: Reply(content="No.")) as server:
        fields = {"name": "j", "model": "m", "base_url": server.base_url, "api_key_env": ""}
        prices = {"usd_per_million_input": 1.0, "usd_per_million_output": 1.0}
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in {**fields, **prices}.items())
        (tmp_path / "teachers.toml").write_text(f"[[teachers]]\n{lines}\n")
        words = ["hints", "explain", tmp_path / "t.jsonl", "--rules", tmp_path / "style.toml", "--max-usd", cap]
        words += ["--teachers", tmp_path / "teachers.toml", "--ledger", tmp_path / "ledger.sqlite"]
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code
    assert ("rule kind: 2 turns not asked, cap $0" in result.stderr) == (cap == 0)
    assert f"{2 * cap} questions were answered; $" in result.stderr
    assert f"of ${cap} at most" in result.stderr


def test_the_policy_is_asked_in_a_session_of_its_own(run_file):
    config = load_config(run_file)
    policy, tokenizer = load_policy(config.model)
    engine, renderer = TransformersEngine(policy, tokenizer), ChatRenderer(tokenizer)
    prompt = renderer.prompt_ids([{"role": "user", "content": "def total(prices):"}])
    request = SampleRequest(session="rollout", new_ids=prompt, max_new_tokens=6, seed=0)
    (alone,) = TransformersEngine(policy, tokenizer).sample([request], temperature=1.0)
    ask = ask_policy(engine, renderer)
    said = ask("What is wrong with this turn?")
    assert said
    assert said == ask("What is wrong with this turn?"), "its most likely answer"
    assert engine.sample([request], temperature=1.0) == [alone]
    assert ask("word " * 2000) is None, "the window is full"


def test_a_run_lets_its_own_policy_write_hints(run_file, tmp_path):
    config = load_config(run_file, ["--loss.hint.generators", '["policy"]'])
    policy, tokenizer = load_policy(config.model)
    renderer = ChatRenderer(tokenizer)
    context = RunContext.open(config, RunDir.create(tmp_path / "run"), Terminal(), proven=True)
    maker = context.signal_maker(config, renderer, 640, engine=TransformersEngine(policy, tokenizer))
    assert [one.source for one in maker.sources.generators] == ["policy"]
    with pytest.raises(ConfigError, match="'policy' has nobody to ask"):
        context.signal_maker(config, renderer, 640)
