"""Votes as step rewards."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.actions.agreement import (
    ActionComparison,
    SameAction,
    Scene,
    choose,
    cluster_votes,
    compare,
    why_no_pair,
)
from composer_replication.actions.calls import Call, render_action
from composer_replication.teachers import Vote
from composer_replication.teachers.rewards import (
    Preference,
    plurality_reward,
    preferred,
    variance_weighted_reward,
    weighted_reward,
)
from composer_replication.types import Unscored
from composer_replication.types.errors import ConfigError


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
    assert found == Preference(chosen="A.", rejected="b", margin=pytest.approx(1 / 3))
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


# --- votes as clusters ----------------------------------------------------------------------------------------------------


def edit(old, new, path="shop.py"):
    return render_action("", [Call("edit_file", {"path": path, "old": old, "new": new})])


FILES = {"shop.py": "def total(prices):\n    return 0\n"}
OWN, DRESSED, WRONG = edit("return 0", "return sum(prices)"), edit("0", "(sum(prices))  # all", "./shop.py"), edit("0", "1")


def test_with_the_files_at_hand_two_ways_to_write_an_edit_are_one_vote():
    votes = [vote("x", "x", action=DRESSED), vote("y", "y", action=DRESSED), vote("z", "z", action=WRONG)]
    scene = Scene(files=FILES)
    assert weighted_reward(votes, OWN) == plurality_reward(votes, OWN) == 0.0  # canonical strings know no better
    assert weighted_reward(votes, OWN, scene=scene) == pytest.approx(2 / 3)
    assert plurality_reward(votes, OWN, scene=scene) == 1.0
    p = 2 / 3
    assert variance_weighted_reward(votes, OWN, scene=scene) == pytest.approx(p - 0.5 * math.sqrt(p * (1 - p)))
    assert preferred(votes, OWN, scene=scene) == "the student agrees"
    assert preferred(votes, WRONG, scene=scene) == Preference(chosen=DRESSED, rejected=WRONG, margin=pytest.approx(1 / 3))


def judged(verdicts, asked=None):
    """A scene in which texts of one letter are compared as it is written, `{"ab": "same"}`, else undecided."""

    def judge(one, other):
        if asked is not None:
            asked.append(one + other)
        said = verdicts.get(one + other) or verdicts.get(other + one)
        return None if said is None else ActionComparison(SameAction(said), "judge", "")

    return Scene(judge=judge)


def say(teacher, action, family=""):
    return Vote(teacher=teacher, family=family or teacher, action=action)


def test_a_vote_of_which_nobody_can_tell_is_neither_for_nor_against():
    votes = [say("x", "a"), say("y", "b"), say("z", "c")]
    scene = judged({"sa": "same", "sb": "diff", "ab": "diff"})
    assert weighted_reward(votes, "s", scene=scene) == 0.5
    assert weighted_reward(votes[:1] + votes[2:], "s", scene=scene) == Unscored("undecided whether the student agrees")
    heavy = {"x": 1.5}
    assert weighted_reward(votes[:1] + votes[2:], "s", scene=scene, weights=heavy) == 1.0
    torn = [say("x", "a", "f"), say("w", "c", "f"), say("y", "b")]  # half of the family's vote is decided
    assert weighted_reward(torn, "s", scene=scene) == pytest.approx(1 / 3)
    assert variance_weighted_reward(torn, "s", scene=scene) == pytest.approx(1 / 3 - 0.5 * math.sqrt(2 / 9))
    assert plurality_reward(votes, "s", scene=scene) == Unscored("tie")
    assert plurality_reward(votes, "s", scene=scene, weights={"x": 2.0}) == 1.0
    assert plurality_reward(votes, "s", scene=scene, weights={"y": 2.0}) == 0.0
    assert plurality_reward(votes, "s", scene=scene, weights={"z": 2.0}) == Unscored("undecided whether the student agrees")
    assert plurality_reward(votes[1:], "s", scene=scene) == Unscored("undecided whether the student agrees")
    assert preferred(votes, "s", scene=scene, weights={"z": 2.0}) == "undecided whether the student agrees"
    assert preferred(votes, "s", scene=scene, weights={"y": 2.0}) == Preference(chosen="b", rejected="s", margin=0.25)


def test_verdicts_that_contradict_each_other_are_no_reward():
    votes = [say("x", "a"), say("y", "b"), say("z", "c")]
    scene = judged({"sa": "same", "ab": "same", "sb": "diff", "sc": "diff"})
    reason = "the verdicts contradict each other"
    for shape in (plurality_reward, weighted_reward, variance_weighted_reward):
        assert shape(votes, "s", scene=scene) == Unscored(reason)
    assert preferred(votes, "s", scene=scene) == reason


def test_no_two_actions_are_compared_twice():
    asked = []
    weighted_reward([say(t, a) for t, a in zip("uvwxyz", "abbaab", strict=True)], "s", scene=judged({}, asked))
    assert sorted(asked) == ["ab", "as", "bs"]


VERDICTS = st.dictionaries(st.sampled_from(["ab", "ac", "bc", "as", "bs", "cs"]), st.sampled_from(["same", "diff"]))


@given(st.lists(st.sampled_from("abcs"), min_size=1, max_size=6), VERDICTS)
def test_what_is_preferred_is_the_pair_that_a_replay_would_make(actions, verdicts):
    votes = [say(teacher, action) for teacher, action in zip("uvwxyz", actions, strict=False)]
    scene = judged(verdicts)
    clusters, dissolved = cluster_votes(votes, "s", lambda one, other: compare(one, other, scene))
    if dissolved:
        return
    choice = choose(clusters, threshold=1, weights={})
    found = preferred(votes, "s", scene=scene)
    if isinstance(choice, str) or why_no_pair(choice.cluster.student):
        assert found == (choice if isinstance(choice, str) else why_no_pair(choice.cluster.student))
    else:
        assert found.chosen == choice.cluster.action
        assert plurality_reward(votes, "s", scene=scene) == 0.0
