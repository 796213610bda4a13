"""The short version of `make faults-replay`: the same proxy and the same checks, before servers that answer at once."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from faults import FAULTS, Upstream, replay_under_faults
from teacher_server import Reply, TeacherServer, question_text


@pytest.mark.slow
@pytest.mark.long
def test_killed_again_and_again_nothing_is_lost_and_the_books_agree(tmp_path):
    def answer(body, number):
        return Reply(content=f"on {question_text(body)}", prompt_tokens=700 + 7 * len(body["messages"]), completion_tokens=5)

    with ExitStack() as stack:
        servers = {name: stack.enter_context(TeacherServer(answer)) for name in ("a", "b", "c")}
        upstreams = {name: Upstream(s.base_url.removesuffix("/v1"), name) for name, s in servers.items()}
        faults = {kind: 2 * share for kind, share in FAULTS.items()}
        told = replay_under_faults(tmp_path, upstreams, count=100, kills=3, timeout_s=4.0, faults=faults)
        assert told["calls_billed"] == sum(len(s.requests) for s in servers.values())
    assert (told["answers"], told["kills"]) == (300, 3)
    assert told["calls_held"] > 0
    assert told["proxy_usd"] == pytest.approx(told["usd_after_bill"], abs=1e-9)
    assert set(told["billed_faults"]) > {"truncated", "garbled", "price huge"}
