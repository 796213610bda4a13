"""Votes as step rewards."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.errors import ConfigError
from composer_replication.teachers import Vote
from composer_replication.teachers.rewards import (
    Preference,
    plurality_reward,
    preferred,
    variance_weighted_reward,
    weighted_reward,
)
from composer_replication.types import Unscored


def vote(teacher, canonical, family="", action=""):
    return Vote(teacher=teacher, family=family or teacher, action=action or canonical.upper())


FOR, SPLIT = [vote("x", "a"), vote("y", "a"), vote("z", "b")], [vote("x", "a"), vote("y", "b")]
VOTES = st.lists(st.builds(vote, st.sampled_from("uvwxyz"), st.sampled_from("abc"), st.sampled_from("fgh")), max_size=8)


def test_plurality():
    assert plurality_reward(FOR, "a") == 1.0
    assert plurality_reward(FOR, "b") == 0.0
    assert plurality_reward(SPLIT, "a") == Unscored("tie")
    assert plurality_reward(SPLIT, "c") == 0.0
    assert plurality_reward(SPLIT, "a", weights={"x": 1.1}) == 1.0


def test_weights_and_families():
    assert weighted_reward(FOR, "a") == pytest.approx(2 / 3)
    assert weighted_reward(FOR, "a", weights={"z": 4.0}) == pytest.approx(1 / 3)
    assert weighted_reward(FOR, "c") == 0.0
    family = [vote("x1", "a", "x"), vote("x2", "a", "x"), vote("x3", "a", "x"), vote("y", "b")]
    assert weighted_reward(family, "a") == 0.5
    torn = [vote("x1", "a", "x"), vote("x2", "b", "x"), vote("y", "b")]
    assert weighted_reward(torn, "a") == pytest.approx(0.25)
    assert weighted_reward(torn, "a", weights={"x2": 0.0}) == pytest.approx(1 / 3)


def test_variance_is_paid_for():
    p = 2 / 3
    assert variance_weighted_reward(FOR, "a", penalty=0.5) == pytest.approx(p - 0.5 * math.sqrt(p * (1 - p)))
    assert variance_weighted_reward(FOR, "a", penalty=0.0) == weighted_reward(FOR, "a")
    assert variance_weighted_reward(FOR[:2], "a") == 1.0
    assert variance_weighted_reward(FOR[:2], "c") == 0.0
    assert variance_weighted_reward(FOR, "b", penalty=1.0) < 0.0
    torn = [vote("x1", "a", "x"), vote("x2", "b", "x")]
    assert variance_weighted_reward(torn, "a") == 0.5  # one family: nobody to disagree with


def test_pairs():
    texts = [vote("x", "a", action="**A**."), vote("y", "a", action="A."), vote("z", "b")]
    found = preferred(texts, "b")
    assert found == Preference(chosen="A.", chosen_canonical="a", rejected_canonical="b", margin=pytest.approx(1 / 3))
    assert preferred(texts, "b", min_margin=0.5) == "too small a margin"
    assert preferred(texts, "a") == "the student agrees"
    assert preferred(SPLIT, "a") == preferred(SPLIT, "c") == "tie"
    assert preferred([], "a") == "no votes"
    assert preferred(FOR, "c").margin == pytest.approx(2 / 3)


@pytest.mark.parametrize("reward", [plurality_reward, weighted_reward, variance_weighted_reward])
def test_no_votes_are_no_reward(reward):
    assert reward([], "a") == Unscored("no votes")
    assert reward(FOR, "a", weights={"x": 0.0, "y": 0.0, "z": 0.0}) == Unscored("no votes")


@pytest.mark.parametrize("reward", [plurality_reward, weighted_reward, variance_weighted_reward, preferred])
@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_bad_weights_are_named(reward, weight):
    with pytest.raises(ConfigError, match="teacher 'x'"):
        reward(FOR, "a", weights={"x": weight})


@pytest.mark.parametrize("penalty", [-0.1, math.nan])
def test_a_bad_penalty_is_named(penalty):
    with pytest.raises(ConfigError, match="penalty"):
        variance_weighted_reward(FOR, "a", penalty=penalty)


@given(VOTES, st.dictionaries(st.sampled_from("uvwxyz"), st.floats(0.1, 10.0)))
def test_shares_add_up_and_shapes_agree(votes, weights):
    if not votes:
        return
    shares = [weighted_reward(votes, action, weights=weights) for action in "abc"]
    assert sum(shares) == pytest.approx(1.0)
    for action, share in zip("abc", shares, strict=True):
        assert variance_weighted_reward(votes, action, weights=weights) <= share + 1e-12
        if share > 0.51:
            assert plurality_reward(votes, action, weights=weights) == 1.0
    assert weighted_reward(votes[::-1], "a", weights=weights) == pytest.approx(shares[0])
