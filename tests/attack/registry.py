"""Every attack by its strategy: the way it means to win."""

from __future__ import annotations

from attacks import ENDINGS, FOR_THIS_GRADER, FORGED, FROM_ELSEWHERE, OTHER_RULES, READ_OFF, Attack
from forgers import BODIES, THE_NONCE, THE_OBJECTS, THE_REPORT
from layout import ARCHIVES, NAMES, RACES, READ_ON_ITS_OWN
from smuggling import BETWEEN_SANDBOXES, FROM_THE_MACHINE

STRATEGIES: dict[str, dict[str, Attack]] = {
    "the answer from somewhere else": {**FROM_ELSEWHERE, **FROM_THE_MACHINE},
    "other rules": {**OTHER_RULES, **READ_ON_ITS_OWN},
    "an ending that looks like success": ENDINGS,
    "a verdict forged from inside": {**FORGED, **THE_REPORT, **THE_OBJECTS},
    "the visible answers": READ_OFF,
    "written for this grader": {**FOR_THIS_GRADER, **THE_NONCE},
    "one line that is often right": BODIES,
    "answers between sandboxes": BETWEEN_SANDBOXES,
    "races and links": RACES,
    "archives and bytecode": ARCHIVES,
    "names and messages": NAMES,
}
SLOW = {"a package that moves its path", "the answer edited as it returns", "an exception that cannot be shown"}
"""Attacks that cost more than one CPU-second."""
ATTACKS = {name: attack for attacks in STRATEGIES.values() for name, attack in attacks.items()}
