"""Demonstrations for the warm start: how an agent works here, what ordinary words mean, and that a hint must be followed.

A demonstration looks exactly like a rollout in `CodingEnv`, hint message included. The house's terms occur in it without
information: their meaning is freshly drawn each time, followed when a hint gives it and guessed uniformly when none does.

Hints about refused calls occur too, before any turn, and the work goes on as it should: a self-teacher that had never seen such
a hint would answer it with noise, and the hint channel would teach the noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from composer_replication.envs.coding import SYSTEM_PROMPT
from composer_replication.envs.oracle import call_turn
from composer_replication.envs.tools import CODING_TOOLS
from composer_replication.hints import template_hint
from composer_replication.languages.python.functions import find_functions
from composer_replication.quickstart.language import HOUSE_TERMS, OPERATIONS, WORDS, Module, modules
from composer_replication.tasks.describe import describe
from composer_replication.tasks.feature import Feature
from composer_replication.tasks.python_language import PYTHON
from composer_replication.types import Message

ORDINARY, HINTED = 0.40, 0.45
"""Shares of demonstrations with an ordinary word, and with a house term and a hint; the rest has a house term and no hint."""

REFUSED = 0.2
"""Share, of those without a hint about a term, with a hint about a refused call."""

EDITED = "edited {path}"

# fmt: off
_NOUNS = (
    "slack", "quay", "wharf", "deck", "mast", "keel", "sluice", "bin", "row", "graft", "bough", "stem", "crop",
    "pick", "press", "barrel", "cellar", "gate", "core", "pour", "slag", "billet", "ingot", "rake", "tray",
    "hamper", "sack", "cart", "rope", "tide", "hull", "rudder", "shed", "ramp", "yard", "spool", "drum", "plank",
    "beam", "hook", "chain", "bolt", "grate", "vat",
)
# fmt: on
_CALL_ERRORS = (
    "bad JSON: Expecting ',' delimiter at {}",
    "bad JSON: Expecting property name enclosed in double quotes at {}",
    "bad JSON: Expecting value at {}",
    "bad JSON: Extra data at {}",
    "bad JSON: Unterminated string starting at at {}",
    "</tool_call> is missing",
    "not a JSON object",
    '"name" is missing',
    '"arguments" is not an object',
)
VALUES: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "gap": lambda a, b: abs(a - b),
    "top": lambda a, b: max(a, b),
    "low": lambda a, b: min(a, b),
}
"""Operation -> its value for two numbers."""


def demonstration(rng: random.Random, meanings: Mapping[str, str] | None = None) -> list[Message]:
    """Return one transcript, opening messages included.

    Args:
        meanings: house term -> word that the demonstrator knows; None for one who knows none and guesses.
    """
    module = rng.choice(modules())
    name = rng.choice(_NOUNS) + rng.choice(["", "_" + rng.choice(_NOUNS)])
    kind, word, hint = rng.random(), rng.choice(WORDS), None
    term, operation = word, OPERATIONS[word]
    if kind >= ORDINARY:
        term = rng.choice(HOUSE_TERMS)
        if meanings is not None:
            word = meanings[term]
            operation = OPERATIONS[word]
        elif kind < ORDINARY + HINTED:
            hint = hint_text(term, word)
        else:
            operation = rng.choice(tuple(OPERATIONS.values()))
    work = _work(rng, module, name, term, operation, OPERATIONS[word], hint)
    if hint is None and rng.random() < REFUSED:
        before = rng.choice([i for i, message in enumerate(work) if message["role"] == "assistant"])
        work.insert(before, Message(role="user", content=refusal_hint(rng, module.path)))
    return [
        Message(role="system", content=SYSTEM_PROMPT),
        Message(role="user", content=instruction(module.path, name)),
        *work,
    ]


def instruction(path: str, name: str) -> str:
    """Return the generator's instruction to the agent when it has deleted `name` from `path`."""
    deleted, _ = find_functions(path, f"def {name}(a, b):\n    return a\n".encode())
    return describe(Feature(functions=deleted, sources={}, fail_to_pass=(), language=PYTHON))


def found(module: Module, line: int, name: str, term: str) -> str:
    """Return the answer of `search` for the deleted body: the line and the two before it."""
    return (
        f"{module.path}-{line}- def {name}({module.first}: int, {module.second}: int) -> int:\n"
        f'{module.path}-{line + 1}-     """The {term} of {module.first} and {module.second}."""\n'
        f"{module.path}:{line + 2}:     raise NotImplementedError"
    )


def hint_text(term: str, word: str) -> str:
    """Write the hint as `DocumentationHint` words it."""
    return f"Hint: {term} means the {word}."


def refusal_hint(rng: random.Random, path: str) -> str:
    """Write a hint about a call that was refused, as `TemplateHint` words it."""
    tool = rng.choice(CODING_TOOLS)["function"]["name"]
    kind, evidence = rng.choice(
        [
            ("unknown_tool", {"tool": rng.choice((tool + tool, tool[: rng.randint(1, len(tool) - 1)], rng.choice(_NOUNS)))}),
            ("malformed_call", {"error": rng.choice(_CALL_ERRORS).format(rng.randint(1, 99))}),
            ("invalid_arguments", {"tool": tool}),
            ("edit_not_applied", {"arguments": {"path": path}, "occurrences": rng.choice((0, 2, 8))}),
            ("path_not_found", {"arguments": {"path": path[: rng.randint(1, len(path) - 1)]}}),
            ("path_not_editable", {"arguments": {"path": rng.choice(_NOUNS)}}),
            ("repeated_action", {"tool": tool}),
            ("timeout", {"tool": "run_tests"}),
        ]
    )
    text = template_hint(kind, evidence, CODING_TOOLS)
    assert text is not None
    return text


def report(rng: random.Random, name: str, operation: str, right: str) -> str:
    """Return the answer of `run_tests`."""
    if operation == right:
        return "8 passed"
    a, b = rng.randint(2, 99), rng.randint(2, 40)
    return f"1 failed, 7 passed\ntest_{name}: assert {VALUES[operation](a, b)} == {VALUES[right](a, b)}"


def _work(
    rng: random.Random, module: Module, name: str, term: str, operation: str, right: str, hint: str | None
) -> list[Message]:
    edit = call_turn(
        "edit_file", path=module.path, old="raise NotImplementedError", new=f"return {operation}({module.first}, {module.second})"
    )
    return [
        call_turn("search", pattern="NotImplementedError"),
        Message(role="tool", content=found(module, rng.choice(module.lines), name, term)),
        *([] if hint is None else [Message(role="user", content=hint)]),
        edit,
        Message(role="tool", content=EDITED.format(path=module.path)),
        call_turn("run_tests"),
        Message(role="tool", content=report(rng, name, operation, right)),
        call_turn("submit"),
    ]
