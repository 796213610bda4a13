"""Detectors of error turns in any agent's transcript.

A finding names the turn whose ACTION was wrong, which is not always the turn where it showed: failing tests blame the last
change of the workspace before them, not the call that ran them.
"""

from __future__ import annotations

from composer_replication.hints.detectors.lint import LintChanged
from composer_replication.hints.detectors.reading import CallStep, Reading
from composer_replication.hints.detectors.registry import (
    BUILTIN_DETECTORS,
    ENVIRONMENT,
    Detector,
    all_detectors,
    detect,
    detectors_named,
    first_error,
)
from composer_replication.hints.detectors.style import Ask, JudgeRule, PatternRule, StyleRules, load_rules

__all__ = [
    "BUILTIN_DETECTORS",
    "ENVIRONMENT",
    "Ask",
    "CallStep",
    "Detector",
    "JudgeRule",
    "LintChanged",
    "PatternRule",
    "Reading",
    "StyleRules",
    "all_detectors",
    "detect",
    "detectors_named",
    "first_error",
    "load_rules",
]
