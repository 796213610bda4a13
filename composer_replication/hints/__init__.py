"""The hint channel's words: detectors (which turn went wrong), generators (what to say), insertion (where it goes)."""

from __future__ import annotations

from composer_replication.hints.detectors import BUILTIN_DETECTORS, Detector, detect, first_error
from composer_replication.hints.generators import (
    BUILTIN_GENERATORS,
    DocumentationHint,
    EnvironmentErrorHint,
    HintContext,
    HintGenerator,
    TemplateHint,
    template_hint,
)
from composer_replication.hints.glossary import Definition, definitions
from composer_replication.hints.insertion import Insertion, insert_hint, insert_hints
from composer_replication.hints.leak import leaks_gold
from composer_replication.hints.report import HintReport, find_hints, shuffle_hints

__all__ = [
    "BUILTIN_DETECTORS",
    "BUILTIN_GENERATORS",
    "Definition",
    "Detector",
    "DocumentationHint",
    "EnvironmentErrorHint",
    "HintContext",
    "HintGenerator",
    "HintReport",
    "Insertion",
    "TemplateHint",
    "definitions",
    "detect",
    "find_hints",
    "first_error",
    "insert_hint",
    "insert_hints",
    "leaks_gold",
    "shuffle_hints",
    "template_hint",
]
