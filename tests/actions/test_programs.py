"""The table of programs against the programs: whatever is taken for one command does one thing in every tree."""

from __future__ import annotations

import random
import shlex

import pytest
from trees import TREES, Runner

from composer_replication.actions.agreement.programs import PROGRAMS
from composer_replication.actions.agreement.shell import shell_form
from composer_replication.actions.shell_words import NotUnderstoodError

VALUES = {
    "n=": "3",
    "c=": "7",
    "e=": "price",
    "A=": "1",
    "B=": "2",
    "C=": "1",
    "m=": "2",
    "include=": "*.py",
    "exclude=": "*.txt",
    "exclude-dir=": "deep",
    "k=": "2",
    "t=": ",",
    "max-count=": "2",
}
OPERANDS = {
    "grep": [["total", "src"], ["total", "src/a.py", "big.txt"], ["price", "big.txt"], ["total"], ["-n", "big.txt"]],
    "sed": [["1,3p", "big.txt"], ["s/(p)/<&>/", "src/a.py", "big.txt"], ["2d", "data.csv"]],
    "mkdir": [["new"], ["src"], ["new/deep", "other"]],
    "rm": [["src"], ["big.txt", "src/a.py"], ["nowhere"]],
    "cp": [["src", "copy"], ["big.txt", "src"], ["big.txt", "src/a.py", "tests"]],
    "ls": [[], ["src"], ["src", "big.txt"], ["."], ["nowhere"]],
    "git status": [[], ["src"]],
    "git diff": [[], ["log.txt"], ["HEAD"]],
    "git log": [[], ["log.txt"]],
}
ROUNDS = 30


def written(program, name, options, operands, rng):
    """One way to write a command: options in any order and spelling, before, between or after the operands."""
    words = []
    for option in rng.sample(options, len(options)):
        spelling = rng.choice([s for s, n in program.options.items() if n == option])
        if not option.endswith("="):
            words.append([spelling])
        elif spelling.startswith("--"):
            words.append(rng.choice([[f"{spelling}={VALUES[option]}"], [spelling, VALUES[option]]]))
        else:
            words.append(rng.choice([[spelling + VALUES[option]], [spelling, VALUES[option]]]))
    short = [w for w in words if len(w) == 1 and len(w[0]) == 2]
    if len(short) > 1 and rng.random() < 0.5:
        words = [w for w in words if w not in short] + [["-" + "".join(w[0][1] for w in short)]]
    line = [*words, *([operand] for operand in operands)]
    if rng.random() < 0.5:
        for word in words:
            line.remove(word)
            line.insert(rng.randrange(len(line) + 1), word)
    return shlex.join([*name.split(), *(part for words in line for part in words)])


def form(command):
    try:
        return shell_form(command)
    except NotUnderstoodError:
        return command


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"pytest"}))
def test_commands_of_one_form_do_one_thing(name, tmp_path):
    rng, program, runner = random.Random(name), PROGRAMS[name], Runner(tmp_path)
    default = [["big.txt"], ["src/a.py", "./big.txt"], ["data.csv"], ["nowhere", "big.txt"]]
    compared = 0
    for _ in range(ROUNDS):
        names = sorted(set(program.options.values()))
        options = rng.sample(names, rng.randint(1, min(3, len(names))))
        operands = rng.choice(OPERANDS.get(name, default))
        one, other = (written(program, name, options, operands, rng) for _ in range(2))
        if one != other and form(one) == form(other):
            compared += 1
            for tree in TREES:
                assert runner.effect(one, tree) == runner.effect(other, tree), (one, other, tree)
    assert compared >= ROUNDS // 12
