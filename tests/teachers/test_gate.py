from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from composer_replication.teachers import Gate, ReplayStep, Tariff
from composer_replication.teachers.gate import windows
from composer_replication.types.errors import ConfigError

CACHED = Tariff(fresh=5.0, answer=25.0, cache_read=0.5, cache_write=5.0, answer_tokens=100.0)
AUDIT = ("audit",)


def trace(name, n, *, start=3000, grow=1500, entropies=None, findings=()):
    return [
        ReplayStep(
            state_id=f"{name}#{i}",
            trace_id=name,
            prompt_bytes=start + grow * i,
            extends=i > 0,
            entropy=None if entropies is None else entropies[i],
            findings=("tests_failed",) if i in findings else (),
        )
        for i in range(n)
    ]


def reasons(decisions):
    return {d.state_id: d.reasons for d in decisions}


def steps_of(rows):
    """A prompt that extends the one before it in its trace is no shorter."""
    sizes, steps = {}, []
    for i, (name, size, entropy, found, extends) in enumerate(rows):
        sizes[name] = max(size, sizes.get(name, 0)) if extends else size
        findings = ("timeout",) if found else ()
        steps.append(
            ReplayStep(
                state_id=str(i), trace_id=name, prompt_bytes=sizes[name], entropy=entropy, findings=findings, extends=extends
            )
        )
    return steps


STEPS = st.lists(
    st.builds(
        lambda trace, size, entropy, found, extends: (trace, size, entropy, found, extends),
        st.sampled_from("ab"),
        st.integers(1, 200_000),
        st.none() | st.floats(0.0, 5.0),
        st.booleans(),
        st.booleans(),
    ),
    max_size=30,
).map(steps_of)
GATES = st.builds(
    Gate,
    rule=st.sampled_from(["flat", "cascade", "sweep", "any"]),
    uncertain=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    findings=st.booleans(),
    unknown=st.sampled_from(["ask", "skip"]),
    audit=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 5),
)
TARIFFS = st.none() | st.builds(
    Tariff,
    fresh=st.just(5.0),
    answer=st.sampled_from([0.0, 25.0]),
    cache_read=st.sampled_from([0.0, 0.5, 5.0]),
    cache_write=st.sampled_from([5.0, 6.25]),
    reach=st.none() | st.integers(1, 4),
)


def test_every_ground_is_a_reason():
    steps = trace("t", 5, entropies=[0.1, 2.0, 0.2, None, 0.3], findings=(2,))
    first = reasons(Gate(rule="cascade", uncertain=0.25, audit=0.0).first(steps))
    assert first == {
        "t#0": (),
        "t#1": ("high entropy",),
        "t#2": ("finding",),
        "t#3": ("entropy unknown",),
        "t#4": (),
    }
    skipping = Gate(rule="cascade", uncertain=0.25, audit=0.0, unknown="skip")
    assert reasons(skipping.first(steps))["t#3"] == ()


@pytest.mark.parametrize(
    ("rule", "cheap", "dear"),
    [
        ("flat", {"t#1", "t#2"}, {"t#1", "t#2"}),
        ("cascade", {"t#1", "t#2"}, {"t#1"}),
        ("sweep", {"t#0", "t#1", "t#2", "t#3"}, {"t#1", "t#3"}),
        ("any", {"t#0", "t#1", "t#2", "t#3"}, {"t#1", "t#2", "t#3"}),
    ],
)
def test_the_rules_differ_in_whom_they_ask(rule, cheap, dear):
    """t#1 is uncertain, t#2 has a finding, and the cheap teacher agrees about t#0 and t#2."""
    steps = trace("t", 4, entropies=[0.1, 2.0, 0.2, 0.3], findings=(2,))
    gate = Gate(rule=rule, uncertain=0.25, audit=0.0)
    first = gate.first(steps)
    second = gate.second(steps, first, {"t#0", "t#2"})
    assert {d.state_id for d in first if d.reasons} == cheap
    assert {d.state_id for d in second if d.reasons} == dear


def test_a_share_is_a_share_among_equals():
    steps = trace("t", 100, entropies=[0.5] * 80 + [0.1] * 20)
    drawn = Gate(uncertain=0.3).uncertain_ids(steps)
    assert len(drawn) == 30
    assert drawn <= {f"t#{i}" for i in range(80)}
    assert drawn != Gate(uncertain=0.3, seed=1).uncertain_ids(steps)
    assert Gate(uncertain=0.9).uncertain_ids(steps) >= {f"t#{i}" for i in range(80)}


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, gate=GATES, tariff=TARIFFS, data=st.data())
def test_nothing_is_asked_without_its_reason(steps, gate, tariff, data):
    agrees = data.draw(st.sets(st.sampled_from([s.state_id for s in steps]))) if steps else set()
    uncertain = gate.uncertain_ids(steps)
    first = gate.first(steps, tariff)
    second = gate.second(steps, first, agrees, tariff)
    asked = {d.state_id for d in first if d.reasons}
    for step, one, two in zip(steps, first, second, strict=True):
        for found in (*one.reasons, *two.reasons):
            assert (found != "high entropy") or (step.entropy is not None and step.state_id in uncertain)
            assert (found != "finding") or (gate.findings and step.findings)
            assert (found != "entropy unknown") or (step.entropy is None and gate.unknown == "ask")
            assert (found != "every state") or gate.rule in ("sweep", "any")
            assert (found != "window") or (tariff is not None and tariff.reach is not None)
            assert (found != "audit") or gate.audit > 0.0
        assert ("the cheap teacher does not agree" not in two.reasons) or (step.state_id in asked - agrees)
        assert ("audit" in one.reasons) == (one.reasons == AUDIT)
        assert not two.reasons or one.reasons or two.reasons == ("window",)
    assert gate.first(steps, tariff) == first


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, tariff=TARIFFS.filter(lambda t: t is not None), data=st.data())
def test_windows_are_ranges_between_asked_states_of_one_trace_and_pay(steps, tariff, data):
    asked = data.draw(st.sets(st.sampled_from([s.state_id for s in steps]))) if steps else set()
    added = windows(steps, asked, tariff)
    assert not added & asked
    for name in "ab":
        own = [s for s in steps if s.trace_id == name]
        marks = [s.state_id in asked for s in own]
        for i, step in enumerate(own):
            if step.state_id in added:
                before = max(j for j in range(i) if marks[j])
                after = min(j for j in range(i, len(own)) if marks[j])
                between = own[before + 1 : after]
                assert {s.state_id for s in between} <= added
                cold = tariff.usd(own[after].prompt_bytes, 0)
                walked = sum(
                    tariff.usd(own[j].prompt_bytes, own[j - 1].prompt_bytes if own[j].extends else 0)
                    for j in range(before + 1, after + 1)
                )
                assert walked < cold


def test_a_gap_is_filled_only_where_the_cache_would_forget():
    steps = trace("t", 10, start=400_000)
    ends, between = {"t#0", "t#9"}, {f"t#{i}" for i in range(1, 9)}
    assert windows(steps, ends, CACHED) == set()
    forgetful = dataclasses.replace(CACHED, reach=7)
    assert windows(steps, ends, forgetful) == between  # nine reads at a tenth of the price cost less than one cold prompt
    assert windows(steps, ends, dataclasses.replace(forgetful, cache_read=1.0)) == set()
    assert windows(steps, ends, dataclasses.replace(forgetful, answer_tokens=2000.0)) == set()
    assert windows(steps[2:], {"t#2", "t#9"}, forgetful) == set()
    entropies = [9.0, *[0.0] * 8, 9.0]
    first = Gate(rule="flat", uncertain=0.2, audit=0.0).first(trace("t", 10, start=400_000, entropies=entropies), forgetful)
    assert reasons(first) == dict.fromkeys(ends, ("high entropy",)) | dict.fromkeys(between, ("window",))


@pytest.mark.slow
def test_the_audit_is_unbiased_in_both_tiers_and_its_bounds_hold():
    """Over fixed seeds the drawn states that are valuable must be as many as a binomial variable allows, to one in a million."""
    draw = random.Random(7)
    steps = trace("t", 300, entropies=[draw.random() for _ in range(300)])
    agrees = {f"t#{i}" for i in range(300) if draw.random() < 0.6}
    valuable = {f"t#{i}" for i in range(0, 300, 3)}
    seeds, share = 400, 0.1
    tariff = Tariff(fresh=5.0, answer=0.0, cache_read=0.01, cache_write=5.0, reach=2)
    plain = Gate(rule="cascade", uncertain=0.3, audit=0.0)
    chosen = plain.second(steps, plain.first(steps, tariff), agrees, tariff)
    left_out = {d.state_id for d in chosen if not d.reasons} & valuable
    total = covered = 0
    for seed in range(seeds):
        gate = Gate(rule="cascade", uncertain=0.3, audit=share, seed=seed)
        first = gate.first(steps, tariff)
        second = gate.second(steps, first, agrees, tariff)
        assert {d.state_id for d in second if d.reasons not in ((), AUDIT)} == {d.state_id for d in chosen if d.reasons}
        missed = gate.audited(second).missed(valuable)
        assert missed.population == sum(not d.reasons for d in chosen)
        assert missed.estimate == missed.found / share
        total += missed.found
        covered += missed.low <= len(left_out) <= missed.high
    trials = seeds * len(left_out)
    assert binom.ppf(5e-7, trials, share) <= total <= binom.isf(5e-7, trials, share)
    assert covered >= binom.ppf(1e-6, seeds, 0.95)
    assert any(r != () for r in reasons(plain.first(steps, tariff)).values())
    assert "window" in {r for d in chosen for r in d.reasons}


@pytest.mark.parametrize("field", ["uncertain", "audit"])
def test_shares_are_shares(field):
    with pytest.raises(ConfigError, match=f"the gate's {field} is 1.5"):
        Gate(**{field: 1.5})
