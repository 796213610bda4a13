"""Equality of actions, and what teachers who were asked the same question agree on."""

from __future__ import annotations

from composer_replication.actions.agreement.clusters import Choice, Cluster, Vote, choose, cluster_votes, why_no_pair
from composer_replication.actions.agreement.compare import Scene, compare
from composer_replication.actions.agreement.reliability import Ballot, family_accuracies
from composer_replication.actions.agreement.seen import files_seen
from composer_replication.actions.agreement.verdict import ActionComparison, SameAction

__all__ = [
    "ActionComparison",
    "Ballot",
    "Choice",
    "Cluster",
    "SameAction",
    "Scene",
    "Vote",
    "choose",
    "cluster_votes",
    "compare",
    "family_accuracies",
    "files_seen",
    "why_no_pair",
]
