"""Outside models that re-answer a student's states: whom to ask, what it costs, and where they agree."""

from __future__ import annotations

from composer_replication.teachers.agreement import Consensus, Vote, cast_vote, consensus
from composer_replication.teachers.audit import Audit, Missed
from composer_replication.teachers.call import Failure
from composer_replication.teachers.gate import Decision, Gate
from composer_replication.teachers.ledger import Ledger, Reconciled, request_key
from composer_replication.teachers.planner import Plan, Scenario, measured, plan, warn_of_cap
from composer_replication.teachers.pool import BUDGET, TeacherAnswer, TeacherPool, check_teachers
from composer_replication.teachers.tariff import Bill, Step, Tariff, bill
from composer_replication.teachers.teacher import Question, Teacher, wire_messages
from composer_replication.teachers.tiers import TieredAnswers, ask_in_tiers, cheapest

__all__ = [
    "BUDGET",
    "Audit",
    "Bill",
    "Consensus",
    "Decision",
    "Failure",
    "Gate",
    "Ledger",
    "Missed",
    "Plan",
    "Question",
    "Reconciled",
    "Scenario",
    "Step",
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
    "consensus",
    "measured",
    "plan",
    "request_key",
    "warn_of_cap",
    "wire_messages",
]
