from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.actions.agreement import ActionComparison, SameAction, Vote, choose, cluster_votes

SAME, DIFF, OPEN = (ActionComparison(answer, "test", "") for answer in (SameAction.SAME, SameAction.DIFF, SameAction.UNDECIDED))


def votes(*actions, families="abcdefgh"):
    return [Vote(teacher=f"t{i}", family=families[i], action=a) for i, a in enumerate(actions)]


def by_letter(one, other):
    """Actions with one first letter are the same; a question mark makes it undecided."""
    if "?" in one + other:
        return OPEN
    return SAME if one[0] == other[0] else DIFF


def chosen(actions, student="z", threshold=2, weights=None, **rest):
    clusters, _ = cluster_votes(votes(*actions, **rest), student, by_letter)
    return choose(clusters, threshold=threshold, weights=weights or {})


def test_the_shortest_of_the_agreeing_speaks():
    choice = chosen(["x1", "x", "x22", "y"])
    assert (choice.cluster.action, len(choice.cluster.votes)) == ("x", 3)
    assert choice.confidence == pytest.approx(3 / 4)
    assert choice.cluster.student.diff


@pytest.mark.parametrize(
    ("actions", "threshold", "reason"),
    [
        ([], 1, "too few teachers agree"),
        (["x", "y", "w"], 2, "too few teachers agree"),
        (["x", "x", "y", "y"], 2, "tie"),
        (["x", "y"], 1, "tie"),
        (["x?", "x?", "y"], 2, "too few teachers agree"),
    ],
)
def test_no_choice(actions, threshold, reason):
    assert chosen(actions, threshold=threshold) == reason


def test_a_family_is_one_vote_however_many_speak_for_it():
    assert chosen(["x", "x", "y"], families="aab") == "too few teachers agree"
    assert chosen(["x", "x", "y", "x"], families="aabc").cluster.families == {"a", "c"}


def test_weights_decide_ties_and_what_is_outweighed_is_not_chosen():
    four = ["x", "x1", "y", "y1"]
    choice = chosen(four, weights={"a": 0.9, "b": 0.9, "c": 0.5, "d": 0.6})
    assert choice.cluster.action == "x"
    assert choice.confidence == pytest.approx(1.8 / 2.9)
    assert chosen(["x", "x1", "y"], weights={"a": 0.2, "b": 0.2}) == "too few teachers agree"


def test_the_student_has_no_vote_but_joins_what_is_the_same():
    choice = chosen(["x", "x1", "y"], student="x2")
    assert choice.cluster.student.same
    assert choice.confidence == pytest.approx(2 / 3)
    assert chosen(["x", "y", "w"], student="x2") == "too few teachers agree"
    assert chosen(["x", "x"], student="?").cluster.student.answer is SameAction.UNDECIDED


def test_a_cluster_that_contradicts_itself_is_none():
    """a = b = c, but a is not c: one of the three verdicts is wrong."""
    table = {("a", "b"): SAME, ("b", "c"): SAME, ("a", "c"): DIFF}

    def same(one, other):
        return table.get((min(one, other), max(one, other)), DIFF)

    clusters, dissolved = cluster_votes(votes("a", "b", "c", "d"), "z", same)
    assert dissolved == 1
    assert [c.action for c in clusters] == ["d"]
    assert choose(clusters, threshold=2, weights={}) == "too few teachers agree"


def test_sameness_is_carried_on():
    """a = b = c and nobody could compare a and c."""
    table = {("a", "b"): SAME, ("b", "c"): ActionComparison(SameAction.SAME, "judge", "", 0.8)}
    clusters, _ = cluster_votes(votes("a", "b", "c"), "z", lambda x, y: table.get((min(x, y), max(x, y)), OPEN))
    assert [(len(c.votes), c.confidence) for c in clusters] == [(3, 0.8)]


@given(st.lists(st.sampled_from(["x", "x1", "y", "y?", "w"]), max_size=6), st.sampled_from(["x", "y", "z", "?"]))
def test_the_order_of_votes_changes_nothing(actions, student):
    found = set()
    for order in itertools.islice(itertools.permutations(range(len(actions))), 6):
        cast = [votes(*actions)[i] for i in order]
        clusters, dissolved = cluster_votes(cast, student, by_letter)
        assert sorted(v.teacher for c in clusters for v in c.votes) == sorted(v.teacher for v in cast)
        choice = choose(clusters, threshold=2, weights={})
        found.add((dissolved, choice if isinstance(choice, str) else (choice.cluster.action, choice.confidence)))
    assert len(found) == 1
