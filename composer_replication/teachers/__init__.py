"""Outside models that re-answer a student's states: whom to ask, what it costs, and where they agree."""

from __future__ import annotations

from composer_replication.teachers.agreement import Consensus, Vote, cast_vote, consensus
from composer_replication.teachers.ledger import Ledger, request_key
from composer_replication.teachers.pool import BUDGET, TeacherAnswer, TeacherPool, check_teachers
from composer_replication.teachers.teacher import Question, Teacher, wire_messages

__all__ = [
    "BUDGET",
    "Consensus",
    "Ledger",
    "Question",
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
