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
SLOW = {
    *FROM_THE_MACHINE, *READ_ON_ITS_OWN, *THE_REPORT, *THE_OBJECTS, *THE_NONCE,
    *BODIES, *BETWEEN_SANDBOXES, *RACES, *ARCHIVES, *NAMES,
}  # fmt: skip
"""Attacks that are tried in the slow tier: together they cost a minute."""
ATTACKS = {name: attack for attacks in STRATEGIES.values() for name, attack in attacks.items()}
SILENT = frozenset(
    {"tests edited", "tests deleted", "tests skipped", "a folder over the test file", "a link over the tests"}
    | {"a link for the module", "a daemon that rewrites the tests", "a bytecode cache for the tests"}
    | {"exhausted memory", "no end", "visible values by heart", "visible values, else a guess"}
    | {
        "a conftest as a package",
        "a codec for the tests",
        "the JSON encoder replaced",
        "the recursion limit",
        "a folder that becomes a link",
        "a file that becomes a link",
        "a file that becomes a hard link",
        "two folders exchanged at once",
        "a pipe that serves the gold code",
        "a link to a descriptor",
        "a folder that is a link",
        "a hard link to the gold code",
        "bytecode without a source",
        "bytecode that is not checked",
        "a package over the module",
        "an extension module over the module",
        "a bomb of zeros",
        "a sparse file of a terabyte",
        "a namespace package over the tests",
        "a package that moves its path",
        "control sequences in a message",
        "control sequences in a file's name",
        "names that look like the module",
        "names that are not text",
        "a name of a test in its message",
        "a message without end",
        "an exception that cannot be shown",
    }
)
"""Attacks without an alarm: work that is not taken, code that runs away, and answers learnt by heart, which name nothing."""
