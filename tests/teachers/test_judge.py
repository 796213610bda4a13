"""The judge over a real server: asked in both orders, believed when it says the same, paid once."""

from __future__ import annotations

import asyncio
import json

import pytest
from teacher_server import Reply, TeacherServer, question_text

from composer_replication.actions.agreement import SameAction
from composer_replication.teachers import Ledger, Teacher, judge_pairs
from composer_replication.teachers.mining.judge import JUDGE_CONFIDENCE


def act(command):
    return json.dumps({"name": "bash", "arguments": {"command": command}})


def judge(server):
    return Teacher(
        name="j", model="j", base_url=server.base_url, api_key_env=None, usd_per_million_input=0.0, usd_per_million_output=1.0,
        max_retries=0,
    )  # fmt: skip


def ask(pairs, answer):
    with TeacherServer(answer) as server, Ledger() as kept:
        verdicts = asyncio.run(judge_pairs(pairs, judge(server), ledger=kept, max_total_usd=1.0))
        return verdicts, server.requests


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (("yes", "Yes."), SameAction.SAME),
        (("no", "**No**"), SameAction.DIFF),
        (("yes", "no"), SameAction.UNDECIDED),
        (("yes", "I think so"), SameAction.UNDECIDED),
        (("yes", ""), SameAction.UNDECIDED),
    ],
)
def test_both_orders_have_to_say_the_same(said, answer):
    one, other = act("make all"), act("make -j2 all")

    def reply(body, _number):
        first_is_plain = question_text(body).index('"make all"') < question_text(body).index("-j2")
        return Reply(content=said[0] if first_is_plain else said[1])

    verdicts, requests = ask([(one, other)], reply)
    assert len(requests) == 2
    assert verdicts[one, other] == verdicts[other, one]
    verdict = verdicts[one, other]
    assert (verdict.answer, verdict.method) == (answer, "judge")
    assert verdict.confidence == (1.0 if answer is SameAction.UNDECIDED else JUDGE_CONFIDENCE)


def test_a_failed_call_is_no_verdict():
    pairs = [(act("a"), act("b"))]
    verdicts, _ = ask(pairs, lambda _body, number: Reply(content="yes") if number else Reply(status=400))
    assert verdicts[pairs[0]].answer is SameAction.UNDECIDED


def test_a_pair_is_paid_for_once_in_whichever_order_and_spelling(tmp_path):
    one = '{"name": "f", "arguments": {"a": 1, "b": 2}}'
    respelled = '{"name": "f", "arguments": {"b": 2, "a": 1}}'
    other = act("b")
    with TeacherServer(lambda *_: Reply(content="no")) as server, Ledger(tmp_path / "ledger.sqlite") as kept:
        for pair in ((one, other), (other, respelled)):
            verdicts = asyncio.run(judge_pairs([pair], judge(server), ledger=kept, max_total_usd=1.0))
            assert verdicts[pair].diff
        assert len(server.requests) == 2


def test_nothing_to_ask():
    assert ask([], lambda *_: Reply(content="no")) == ({}, [])
