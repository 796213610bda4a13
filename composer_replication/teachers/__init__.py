"""Outside models that re-answer a student's states: whom to ask, what it costs, and what counts as a vote."""

from __future__ import annotations

from composer_replication.agreement import Vote
from composer_replication.teachers.call import Failure
from composer_replication.teachers.judge import judge_pairs
from composer_replication.teachers.ledger import Ledger, Reconciled, request_key
from composer_replication.teachers.pool import BUDGET, TeacherAnswer, TeacherPool, check_teachers
from composer_replication.teachers.teacher import Question, Teacher, wire_messages
from composer_replication.teachers.votes import cast_vote

__all__ = [
    "BUDGET",
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
    "judge_pairs",
    "request_key",
    "wire_messages",
]
