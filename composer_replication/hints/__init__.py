"""The hint channel's words: detectors (which turn went wrong), generators (what to say), insertion (where it goes)."""

from __future__ import annotations

from composer_replication.hints.better import Better, better_actions
from composer_replication.hints.context import HintContext
from composer_replication.hints.detectors import (
    BUILTIN_DETECTORS,
    ENVIRONMENT,
    Ask,
    Detector,
    JudgeRule,
    LintChanged,
    PatternRule,
    Reading,
    StyleRules,
    all_detectors,
    detect,
    detectors_named,
    first_error,
    load_rules,
)
from composer_replication.hints.documentation import DocumentationHint
from composer_replication.hints.generators import (
    BUILTIN_GENERATORS,
    DEFAULT_GENERATORS,
    BetterActionHint,
    EnvironmentErrorHint,
    HintGenerator,
    JudgeHint,
    generators_named,
)
from composer_replication.hints.glossary import Definition, definitions
from composer_replication.hints.insertion import Insertion, insert_hint, insert_hints
from composer_replication.hints.leak import leaks_action, leaks_gold
from composer_replication.hints.report import HintReport, explain, find_hints, shuffle_hints
from composer_replication.hints.templates import TemplateHint, template_hint

__all__ = [
    "BUILTIN_DETECTORS",
    "BUILTIN_GENERATORS",
    "DEFAULT_GENERATORS",
    "ENVIRONMENT",
    "Ask",
    "Better",
    "BetterActionHint",
    "Definition",
    "Detector",
    "DocumentationHint",
    "EnvironmentErrorHint",
    "HintContext",
    "HintGenerator",
    "HintReport",
    "Insertion",
    "JudgeHint",
    "JudgeRule",
    "LintChanged",
    "PatternRule",
    "Reading",
    "StyleRules",
    "TemplateHint",
    "all_detectors",
    "better_actions",
    "definitions",
    "detect",
    "detectors_named",
    "explain",
    "find_hints",
    "first_error",
    "generators_named",
    "insert_hint",
    "insert_hints",
    "leaks_action",
    "leaks_gold",
    "load_rules",
    "shuffle_hints",
    "template_hint",
]
