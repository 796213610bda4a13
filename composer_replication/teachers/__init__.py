"""Outside models that re-answer a student's states: whom to ask, what it costs, and where they agree."""

from __future__ import annotations

from composer_replication.teachers.agreement import Consensus, Vote, cast_vote, consensus
from composer_replication.teachers.call import Failure
from composer_replication.teachers.ledger import Ledger, Reconciled, request_key
from composer_replication.teachers.pool import BUDGET, TeacherAnswer, TeacherPool, check_teachers
from composer_replication.teachers.teacher import Question, Teacher, wire_messages

__all__ = [
    "BUDGET",
    "Consensus",
    "Failure",
    "Ledger",
    "Question",
    "Reconciled",
    "Teacher",
    "TeacherAnswer",
    "TeacherPool",
    "Vote",
    "cast_vote",
    "check_teachers",
    "consensus",
    "request_key",
    "wire_messages",
]
