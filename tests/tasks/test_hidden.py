"""Hidden checks of real builds: what is asked, what is left out, and that honest work passes however it is written."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.store import Task
from composer_replication.types import GradeReport
from composer_replication.types.held_out_checks import HeldOutChecks

pytestmark = pytest.mark.slow

PYTHON = Path(sys.executable)
SHOP = {
    "shop/__init__.py": "",
    "shop/words.py": '''
        import random
        import time

        def shout(text, mark="!"):
            """`text` in capitals with a mark."""
            text = text.upper()
            return text + mark

        def spell(text):
            """Its letters, one after the other."""
            for letter in text:
                yield letter.lower()

        def tidy(words):
            """Sort `words` in place, without doubles."""
            kept = sorted(set(words))
            words[:] = kept

        def parse(text):
            """A number; ValueError for anything else."""
            if not text.isdigit():
                raise ValueError(text)
            return int(text)

        def check(text):
            """Raises ValueError where there is a digit."""
            for letter in text:
                if letter.isdigit():
                    raise ValueError(text)

        def stamp(text):
            """`text` and the moment."""
            now = time.time()
            return f"{text} {now > 0}"

        def letters(text):
            """Its letters in no order that is promised."""
            found = set(text)
            return list(found)

        def _half(number):
            doubled = number * 4
            return doubled // 8

        def halves(numbers):
            """Half of each."""
            found = []
            for number in numbers:
                found.append(_half(number))
            return found

        class Purse:
            """Money."""

            def __init__(self, coins, currency="EUR"):
                self.coins = list(coins)
                self.currency = currency

            def total(self):
                """What is in it."""
                result = 0
                for coin in self.coins:
                    result += coin
                return result

            @property
            def label(self):
                """Amount and currency."""
                amount = self.total()
                return f"{amount} {self.currency}"

            @classmethod
            def of(cls, *coins):
                """A purse."""
                coins = sorted(coins)
                return cls(coins)
        ''',
    "tests/test_words.py": """
        import pytest
        from shop.words import Purse, check, halves, letters, parse, shout, spell, stamp, tidy

        def test_shout():
            assert shout("ab") == "AB!"
            assert shout("cd ef", mark="?") == "CD EF?"

        def test_spell():
            assert list(spell("AbC")) == ["a", "b", "c"]
            assert "".join(spell("XY")) == "xy"

        def test_tidy():
            words = ["b", "a", "b"]
            tidy(words)
            assert words == ["a", "b"]

        def test_parse():
            assert parse("12") == 12
            assert parse("7") == 7
            with pytest.raises(ValueError):
                parse("x")

        def test_check():
            for text in ("ab", "cdef", "x y"):
                check(text)
            for text in ("a1", "b2c", "345"):
                with pytest.raises(ValueError):
                    check(text)

        def test_stamp():
            assert stamp("a") == "a True"

        def test_letters():
            assert sorted(letters("hello")) == ["e", "h", "l", "o"]
            assert len("".join(letters("hello"))) == 4

        def test_halves():
            assert halves([4, 6]) == [2, 3]
            assert halves([10]) == [5]

        def test_purse():
            assert Purse([1, 2]).total() == 3
            assert Purse((5, 6, 7), "CHF").label == "18 CHF"
            assert Purse.of(3, 1).coins == [1, 3]
        """,
}


@pytest.fixture(scope="module")
def tasks(write_project: Callable[[Mapping[str, str]], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    out = tmp_path_factory.mktemp("out")
    build_tasks(str(write_project(SHOP)), out, BuildOptions(trivial=True, forgeable=True))
    return {task.spec.deleted[0].qualname: task for task in load_tasks(out)}


BUILD = """
import sys
from pathlib import Path
from composer_replication.tasks import BuildOptions, build_tasks
build_tasks(sys.argv[1], Path(sys.argv[2]), BuildOptions(trivial=True, forgeable=True))
"""


def test_checks_do_not_depend_on_the_hashes_of_the_process_that_builds(
    write_project: Callable[[Mapping[str, str]], Path], tmp_path: Path
) -> None:
    project, found = write_project(SHOP), []
    for seed in ("1", "2"):
        out = tmp_path / seed
        env = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", BUILD, str(project), str(out)], env=env, check=True)
        found.append({task.spec.task_id: task.spec.hidden.programs for task in load_tasks(out)})
    assert found[0] == found[1]
    assert any(found[0].values())


def judge(task: Task, solution: str) -> GradeReport:
    files = {"shop/words.py": solution.encode()}
    return grade(task.spec, task.repo, files, sandbox=open_sandbox(), python=PYTHON)


def rewritten(task: Task, body: str) -> str:
    """The task's file with another body for what was deleted, indented like the stub."""
    text = (task.repo / "shop/words.py").read_text()
    line = next(line for line in text.splitlines() if "raise NotImplementedError" in line)
    indent = line[: len(line) - len(line.lstrip())]
    return text.replace(line, textwrap.indent(body, indent))


def asked(task: Task) -> list[tuple[dict[str, object], object]]:
    """Steps and the answers they expect; None where it is not compared."""
    return [
        (step, answer)
        for program in task.spec.hidden.programs
        for (_, step), answer in zip(json.loads(program.steps), json.loads(program.expected), strict=True)
    ]


def answers(task: Task, **wanted: object) -> list[object]:
    """Expected answers of the steps that have these entries."""
    return [answer for step, answer in asked(task) if wanted.items() <= step.items()]


ANOTHER_WAY = {
    "shout": "return ''.join([*text.upper(), mark])",
    "spell": "return [letter.lower() for letter in text]",
    "tidy": "for word in [*words]:\n    words.remove(word)\n    if word not in words:\n        words.append(word)\nwords.sort()",
    "parse": "import re\nif re.fullmatch(r'\\d+', text):\n    return int(text)\nraise type('Bad', (ValueError,), {})(text)",
    "check": "if any(map(str.isdigit, text)):\n    raise type('Bad', (ValueError,), {})(text)",
    "stamp": "return text + ' True'",
    "letters": "return sorted(set(text))[::-1]",
    "_half": "return number // 2",
    "halves": "return [number // 2 for number in numbers]",
    "Purse.total": "return sum(self.coins)",
    "Purse.label": "return str(sum(self.coins)) + ' ' + self.currency",
    "Purse.of": "return cls(sorted(coins))",
}
WRONG = {
    "shout": "return {'ab': 'AB!', 'cd ef': 'CD EF?'}[text]",
    "spell": "return iter({'AbC': 'abc', 'XY': 'xy'}[text])",
    "tidy": "words[:] = ['a', 'b']",
    "parse": "return {'12': 12, '7': 7}.get(text) or int('x')",
    "check": "if text not in ('ab', 'cdef', 'x y'):\n    raise ValueError(text)",
    "_half": "return {4: 2, 6: 3, 10: 5}.get(number, 0)",
    "halves": "return {2: [2, 3], 1: [5]}[len(numbers)]",
    "Purse.total": "return 3 if len(self.coins) == 2 else 18",
    "Purse.label": "return '18 CHF'",
}


@pytest.mark.parametrize("name", ANOTHER_WAY)
def test_honest_work_is_rewarded_however_it_is_written(tasks, name):
    report = judge(tasks[name], rewritten(tasks[name], ANOTHER_WAY[name]))
    assert (report.reward, report.alarms) == (1.0, ()), (report, asked(tasks[name]))


@pytest.mark.parametrize("name", WRONG)
def test_visible_answers_by_heart_are_not(tasks, name):
    task, solution = tasks[name], rewritten(tasks[name], WRONG[name])
    visible = dataclasses.replace(task, spec=dataclasses.replace(task.spec, hidden=HeldOutChecks()))
    assert judge(visible, solution).reward == 1.0
    report = judge(task, solution)
    assert report.reward == 0.0
    assert report.hidden_broken
    assert "did not do what it should" in report.reasons[0]


def test_what_has_no_answer_of_its_own_is_not_asked(tasks):
    assert asked(tasks["stamp"]) == []
    unordered = answers(tasks["letters"], of=["named", "shop.words:letters"])
    assert [answer for answer in unordered if answer != ["returns", ["opaque"]]] == [], "what is made of them is asked"
    assert ["returns", ["list", ["e", "h", "l", "o"]]] in answers(tasks["letters"], do="look")
    joined = answers(tasks["letters"], do="method", name="join")
    assert None in joined
    assert all(answer is None or len(answer[1]) <= 1 for answer in joined), "the order of several letters is by chance"
    assert not answers(tasks["_half"], of=["named", "shop.words:_half"])
    assert answers(tasks["_half"], of=["named", "shop.words:halves"])


def test_every_kind_of_step_is_asked(tasks):
    assert any(answer == ["returns", ["list", ["a", "b", "c"]]] for _, answer in asked(tasks["spell"]))
    assert answers(tasks["tidy"], do="look")
    refusal = ["raises", ["ValueError", "Exception", "BaseException", "object"]]
    assert refusal in answers(tasks["parse"], do="call")
    assert refusal in answers(tasks["check"], do="call")
    assert any(answer in (None, ["returns", ["opaque"]], ["returns", None]) for answer in answers(tasks["check"], do="call"))
    assert answers(tasks["Purse.total"], do="method", name="total")
    assert answers(tasks["Purse.label"], do="attribute", name="label")


def test_new_programs_are_new_and_the_numbers_are_kept(tasks):
    for task in tasks.values():
        hidden, provenance = task.spec.hidden, task.provenance
        assert len({program.steps for program in hidden.programs}) == len(hidden.programs) == provenance["held_out_programs"]
        new = sum(program.new_calls > 0 for program in hidden.programs)
        assert (new, len(hidden.anti_tests)) == (provenance["held_out_new"], provenance["anti_tests"])
    assert sum(task.provenance["held_out_new"] for task in tasks.values()) >= 15


def test_forgeable_tasks_are_left_out_or_counted(write_project, tmp_path):
    project = write_project(
        {
            "shop.py": "import time\n\n\ndef half(x):\n    found = x / 2\n    return found\n\n\n"
            "def later(x):\n    now = time.time()\n    return x + now\n\n\n"
            "def zero(x):\n    nothing = x - x\n    return nothing\n",
            "test_shop.py": "import shop\n\n\n"
            "def test_half():\n    assert shop.half(3) == 1.5\n    assert shop.half(5) == 2.5\n\n\n"
            "def test_later():\n    assert shop.later(1) > 1\n\n\n"
            "def test_zero():\n    assert shop.zero(4) == 0\n    assert shop.zero(7) == 0\n",
        }
    )
    report = build_tasks(str(project), tmp_path / "all", BuildOptions(trivial=True, forgeable=True))
    assert (len(report.tasks), report.forgeable) == (3, 2)
    weak = {task.spec.deleted[0].qualname: task.spec.hidden.weakness for task in load_tasks(tmp_path / "all")}
    assert weak == {
        "half": "",
        "later": "no held-out program runs it: later",
        "zero": "a trivial body satisfies its held-out programs: `return 0` in zero",
    }
    report = build_tasks(str(project), tmp_path / "some", BuildOptions(trivial=True))
    assert (len(report.tasks), report.forgeable) == (1, 0)
    record = json.loads((tmp_path / "some" / "build.json").read_text())
    assert {entry["what"]: entry["detail"] for entry in record["dropped"]} == {
        "shop.py::later": weak["later"],
        "shop.py::zero": weak["zero"],
    }
    assert {entry.what: entry.reason for entry in report.dropped} == {
        "shop.py::later": "forgeable (--forgeable keeps it): no held-out program runs it",
        "shop.py::zero": "forgeable (--forgeable keeps it): a trivial body satisfies its held-out programs",
    }


PASS_ALL = """
import gc
class Passed(dict):
    def __setitem__(self, key, value): dict.__setitem__(self, key, "passed")
for found in [o for o in gc.get_objects() if type(o).__name__ == "OutcomeRecorder"]:
    found.outcomes = Passed()
"""


def test_impossible_tasks_are_never_rewarded(write_project, tmp_path):
    report = build_tasks(str(write_project(SHOP)), tmp_path / "out", BuildOptions(trivial=True, impossible=1.0, max_tasks=4))
    made = load_tasks(tmp_path / "out")
    impossible = [task for task in made if task.spec.impossible]
    assert len(impossible) == report.impossible >= 3
    for task in impossible:
        assert "mpossible" not in task.spec.instruction + task.spec.task_id
        gold = grade(task.spec, task.repo, task.gold_files(), sandbox=open_sandbox(), python=PYTHON)
        assert (gold.reward, gold.alarms) == (0.0, ())
        name = task.spec.deleted[0].path
        text = PASS_ALL + task.gold_files()[name].decode()
        forged = grade(task.spec, task.repo, {name: text.encode()}, sandbox=open_sandbox(), python=PYTHON)
        assert (forged.reward, forged.alarms[0][:10]) == (0.0, "every test")
        assert forged.reasons[0].startswith("ALARM")


def test_a_whole_feature_is_left_with_the_functions_that_it_needs(write_project, tmp_path):
    project = write_project(
        {
            "shop.py": "from prices import price\n\n\ndef total(numbers):\n    try:\n        note(numbers)\n"
            "    except Exception:\n        pass\n    result = sum(price(number) for number in numbers)\n    return result\n\n\n"
            "def note(numbers):\n    kept = list(numbers)\n    return kept\n",
            "prices.py": "def price(number):\n    cents = number * 100\n    return cents // 100\n",
            "test_shop.py": "import shop\n\n\n"
            "def test_total():\n    assert shop.total([1, 2]) == 3\n    assert shop.total([4]) == 4\n",
        }
    )
    options = BuildOptions(trivial=True, mode="feature", forgeable=True)
    report = build_tasks(str(project), tmp_path / "out", options)
    (task,) = load_tasks(tmp_path / "out")
    assert [(one.path, one.qualname) for one in task.spec.deleted] == [("shop.py", "total"), ("prices.py", "price")]
    assert "note(numbers)" in (task.repo / "shop.py").read_text()
    assert report.tasks == (task.spec.task_id,)
    assert build_tasks(str(project), tmp_path / "out", options).tasks == report.tasks, "a repeated build decides nothing again"


def test_a_task_of_several_functions_demands_each_of_them(write_project, tmp_path):
    project = write_project(
        {
            "shop.py": "def total(numbers):\n    try:\n        note(numbers)\n    except Exception:\n        pass\n"
            "    result = sum(numbers)\n    return result\n\n\n"
            "def note(numbers):\n    kept = list(numbers)\n    return kept\n",
            "test_shop.py": "import shop\n\n\n"
            "def test_total():\n    assert shop.total([1, 2]) == 3\n    assert shop.total([4]) == 4\n",
        }
    )
    both = BuildOptions(trivial=True, min_group_size=2, group_size=2, forgeable=True)
    report = build_tasks(str(project), tmp_path / "forgeable", both)
    assert report.tasks == ()
    assert {entry.reason for entry in report.dropped} == {"it is solved without one of its functions"}
    report = build_tasks(str(project), tmp_path / "strong", dataclasses.replace(both, forgeable=False))
    assert report.tasks == ()
    assert {entry.reason for entry in report.dropped} <= {
        "forgeable (--forgeable keeps it): no held-out program runs it",
        "forgeable (--forgeable keeps it): a trivial body satisfies its held-out programs",
    }
    alone = build_tasks(str(project), tmp_path / "alone", BuildOptions(trivial=True))
    assert [task.spec.deleted[0].qualname for task in load_tasks(tmp_path / "alone")] == ["total"]
    assert len(alone.tasks) == 1
