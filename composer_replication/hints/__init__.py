"""The hint channel's words: detectors (which turn went wrong), generators (what to say), insertion (where it goes)."""

from __future__ import annotations

from composer_replication.hints.better import better_actions
from composer_replication.hints.context import HintContext
from composer_replication.hints.detectors.lint import LintChanged
from composer_replication.hints.detectors.reading import Reading
from composer_replication.hints.detectors.registry import (
    BUILTIN_DETECTORS,
    STANDARD,
    Detector,
    all_detectors,
    detect,
    detectors_named,
    first_error,
)
from composer_replication.hints.detectors.style import Ask, JudgeRule, StyleRules, load_rules
from composer_replication.hints.documentation import DocumentationHint
from composer_replication.hints.generators import (
    DEFAULT_GENERATORS,
    BetterActionHint,
    EnvironmentErrorHint,
    HintGenerator,
    JudgeHint,
    generators_named,
)
from composer_replication.hints.holding import hold_turns, other_turns
from composer_replication.hints.insertion import insert_feedback, insert_hint, insert_hints
from composer_replication.hints.leak import leaks_action, leaks_gold
from composer_replication.hints.report import explain, find_hints, shuffle_hints
from composer_replication.hints.templates import TemplateHint, template_hint

__all__ = [
    "BUILTIN_DETECTORS",
    "DEFAULT_GENERATORS",
    "STANDARD",
    "Ask",
    "BetterActionHint",
    "Detector",
    "DocumentationHint",
    "EnvironmentErrorHint",
    "HintContext",
    "HintGenerator",
    "JudgeHint",
    "JudgeRule",
    "LintChanged",
    "Reading",
    "StyleRules",
    "TemplateHint",
    "all_detectors",
    "better_actions",
    "detect",
    "detectors_named",
    "explain",
    "find_hints",
    "first_error",
    "generators_named",
    "hold_turns",
    "insert_feedback",
    "insert_hint",
    "insert_hints",
    "leaks_action",
    "leaks_gold",
    "load_rules",
    "other_turns",
    "shuffle_hints",
    "template_hint",
]
