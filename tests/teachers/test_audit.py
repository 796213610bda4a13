from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from composer_replication.teachers import Audit
from composer_replication.types.errors import ConfigError


def audit(found, drawn, population, chance):
    return Audit(chance=chance, population=population, drawn=frozenset(f"v{i}" if i < found else f"w{i}" for i in range(drawn)))


VALUABLE = {f"v{i}" for i in range(1000)}


@settings(max_examples=60, deadline=None)
@given(
    found=st.integers(0, 12),
    others=st.integers(0, 30),
    left=st.integers(0, 200),
    chance=st.sampled_from([0.02, 0.05, 0.3, 0.9, 1.0]),
    confidence=st.sampled_from([0.8, 0.95]),
)
def test_the_bounds_are_the_numbers_that_neither_tail_rules_out(found, others, left, chance, confidence):
    drawn = found + others
    missed = audit(found, drawn, drawn + left, chance).missed(VALUABLE, confidence=confidence)
    tail = (1 - confidence) / 2
    most = found + left
    possible = [n for n in range(found, most + 1) if binom.sf(found - 1, n, chance) > tail and binom.cdf(found, n, chance) > tail]
    if possible:
        assert (missed.low, missed.high) == (possible[0], possible[-1])
    assert missed.estimate == pytest.approx(found / chance)


def test_a_small_audit_that_finds_nothing_rules_little_out():
    missed = audit(0, 50, 1000, 0.05).missed(VALUABLE)
    assert (missed.estimate, missed.low, missed.high, missed.drawn) == (0.0, 0, 71, 50)


def test_states_without_a_verdict_may_be_valuable():
    missed = audit(2, 10, 200, 0.05).missed(VALUABLE, unanswered={"w5", "w6", "elsewhere"})
    certain = audit(2, 10, 200, 0.05).missed(VALUABLE)
    more = audit(4, 10, 200, 0.05).missed(VALUABLE)
    assert missed.unanswered == 2
    assert (missed.low, missed.high) == (certain.low, more.high)


def test_without_an_audit_nothing_is_known():
    with pytest.raises(ConfigError, match="nothing was audited"):
        audit(0, 0, 10, 0.0).missed(VALUABLE)
