from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from composer_replication.actions.agreement import Ballot, family_accuracies
from composer_replication.actions.agreement.reliability import PRIOR_RIGHT, PRIOR_WRONG


def simulated(skill, states, options, seed):
    """Ballots of families of known skill, and the right action of each state."""
    rng = np.random.default_rng(seed)
    ballots, right = [], []
    for _ in range(states):
        truth = int(rng.integers(options))
        others = [o for o in range(options) if o != truth]
        ballots.append(Ballot({f: truth if rng.random() < p else int(rng.choice(others)) for f, p in skill.items()}))
        right.append(truth)
    return ballots, right


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_known_skill_is_found(seed):
    skill = {"a": 0.95, "b": 0.8, "c": 0.6, "d": 0.4}
    ballots, _ = simulated(skill, 2000, 6, seed)
    found = family_accuracies(ballots)
    assert found == pytest.approx(skill, abs=0.05)


def test_outcomes_correct_a_majority_that_is_wrong():
    """Two families share their mistakes; what turned out to be right shows it."""
    ballots = [Ballot({"a": 0, "b": 1, "c": 1}) for _ in range(30)]
    assert family_accuracies(ballots)["a"] < 0.3
    known = [Ballot(b.votes, right=0) for b in ballots]
    found = family_accuracies(known)
    assert found["a"] == pytest.approx((30 + PRIOR_RIGHT) / (30 + PRIOR_RIGHT + PRIOR_WRONG))
    assert found["b"] == pytest.approx(PRIOR_RIGHT / (30 + PRIOR_RIGHT + PRIOR_WRONG))


def log_posterior(p, ballots, families):
    """Marginal likelihood written out, and the prior: nothing of EM in it."""
    value = sum(PRIOR_RIGHT * np.log(q) + PRIOR_WRONG * np.log1p(-q) for q in p)
    accuracy = dict(zip(families, p, strict=True))
    for ballot in ballots:
        wrong = len(set(ballot.votes.values()))
        likelihood = 0.0
        for truth in [*set(ballot.votes.values()), None]:
            factors = [accuracy[f] if a == truth else (1 - accuracy[f]) / wrong for f, a in ballot.votes.items()]
            likelihood += np.prod(factors)
        value += np.log(likelihood)
    return value


@pytest.mark.parametrize("seed", range(4))
def test_em_ends_at_a_maximum_that_an_optimizer_finds(seed):
    skill = {"a": 0.9, "b": 0.7, "c": 0.5}
    ballots, _ = simulated(skill, 60, 4, seed)
    families = list(skill)
    found = family_accuracies(ballots)
    best = minimize(
        lambda p: -log_posterior(p, ballots, families),
        [found[f] + 0.02 for f in families],
        bounds=[(1e-4, 1 - 1e-4)] * 3,
        method="L-BFGS-B",
        tol=1e-12,
    )
    assert [found[f] for f in families] == pytest.approx(list(best.x), abs=2e-3)


def test_little_data_says_little():
    assert family_accuracies([]) == {}
    assert family_accuracies([Ballot({"a": 0})]) == {"a": pytest.approx(0.8)}
    found = family_accuracies([Ballot({"a": 0, "b": 0, "c": 1})])
    assert 0.6 < found["c"] < found["a"] == found["b"] < 0.9


def test_the_names_of_actions_do_not_matter():
    ballots, _ = simulated({"a": 0.9, "b": 0.7, "c": 0.5}, 50, 3, 0)
    renamed = [Ballot({f: f"state {i}: {a}" for f, a in b.votes.items()}) for i, b in enumerate(ballots)]
    assert family_accuracies(renamed) == pytest.approx(family_accuracies(ballots))
