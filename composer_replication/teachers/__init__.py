"""External models that re-answer a student's states: the teachers, their costs, and what counts as a vote."""

from __future__ import annotations

from composer_replication.actions.agreement import Vote
from composer_replication.teachers.answers import read_answers
from composer_replication.teachers.audit import Audit, Missed
from composer_replication.teachers.call import Failure
from composer_replication.teachers.gate import Decision, Gate
from composer_replication.teachers.ledger import Ledger, Reconciled, request_key
from composer_replication.teachers.mining.judge import judge_pairs
from composer_replication.teachers.mining.votes import cast_vote
from composer_replication.teachers.planner import ReplayPlan, Scenario, measured, plan, warn_of_cap
from composer_replication.teachers.pool import BUDGET, TeacherAnswer, TeacherPool, check_teachers
from composer_replication.teachers.tariff import Bill, ReplayStep, Tariff, bill
from composer_replication.teachers.teacher import Question, Teacher, wire_messages
from composer_replication.teachers.tiers import OnTier, TieredAnswers, ask_in_tiers, cheapest

__all__ = [
    "BUDGET",
    "Audit",
    "Bill",
    "Decision",
    "Failure",
    "Gate",
    "Ledger",
    "Missed",
    "OnTier",
    "Question",
    "Reconciled",
    "ReplayPlan",
    "ReplayStep",
    "Scenario",
    "Tariff",
    "Teacher",
    "TeacherAnswer",
    "TeacherPool",
    "TieredAnswers",
    "Vote",
    "ask_in_tiers",
    "bill",
    "cast_vote",
    "cheapest",
    "check_teachers",
    "judge_pairs",
    "measured",
    "plan",
    "read_answers",
    "request_key",
    "warn_of_cap",
    "wire_messages",
]
