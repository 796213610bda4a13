"""The catalogue of attacks on grading, each tried against the real grader on a task that the generator built."""

from __future__ import annotations

import pytest
from attacks import HONEST, NOTHING, OTHER_RULES, Attack, stub_and
from project import GOLD, PRICING
from registry import ATTACKS, SILENT, SLOW, STRATEGIES
from smuggling import BY_A_FILE, carried
from suite import careless, naive, ours, with_anti_tests, without_hidden_checks, workspace

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading import pytest_run
from composer_replication.types import cause_of


def test_no_two_attacks_have_one_name():
    assert len(ATTACKS) == sum(len(group) for group in STRATEGIES.values())
    assert len({repr(attack) for attack in ATTACKS.values()}) == len(ATTACKS) > 74 + 60


def test_the_task_has_hidden_checks_of_every_kind(task):
    programs = task.spec.hidden.programs
    assert {program.new_calls > 0 for program in programs} == {True, False}
    assert not task.spec.forgeable
    assert len(task.spec.hidden.anti_tests) == 4
    assert not (task.repo / "hidden.json").exists()
    assert (task.root / "hidden.json").exists()


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in ATTACKS])
def test_no_attack_is_rewarded(task, sandbox, name):
    with workspace(task, ATTACKS[name]) as root:
        report = ours(task, root, sandbox)
    assert report.reward == 0.0, report
    assert report.reasons
    assert bool(report.alarms) == (name not in SILENT), report.alarms


def test_most_attacks_raise_an_alarm():
    """`test_no_attack_is_rewarded` shows of each whether it does."""
    assert ATTACKS.keys() >= SILENT
    assert len(ATTACKS) - len(SILENT) >= 150


@pytest.mark.parametrize("name", OTHER_RULES)
def test_a_careless_allow_list_does_not_help(task, sandbox, name):
    with workspace(task, ATTACKS[name]) as root:
        assert ours(task, root, sandbox, careless(task)).reward == 0.0


@pytest.mark.parametrize("name", ["patched report", "patched CallInfo", "patched code object"])
def test_patching_pytest_is_named(task, sandbox, name):
    with workspace(task, ATTACKS[name]) as root:
        assert ours(task, root, sandbox).reasons[0] == "the code under test replaced parts of pytest"


@pytest.mark.parametrize("name", HONEST)
def test_honest_work_is_rewarded(task, sandbox, name):
    with workspace(task, HONEST[name]) as root:
        report = ours(task, root, sandbox)
    assert (report.reward, report.alarms) == (1.0, ()), report


def test_other_hashes_raise_no_alarm(task, sandbox, monkeypatch):
    for seed in ("1", "77"):
        monkeypatch.setitem(pytest_run._ENVIRONMENT, "PYTHONHASHSEED", seed)
        with workspace(task, HONEST["another with named tuples and enums"]) as root:
            assert ours(task, root, sandbox).alarms == ()


def test_an_alarm_changes_no_reward(task, sandbox):
    text = GOLD + "\n\nimport gc, os, sys\ngc.get_objects()\nsys._getframe()\nopen(os.devnull).close()\nexec('import gc')\n"
    with workspace(task, Attack(files={PRICING: text})) as root:
        report = ours(task, root, sandbox)
    assert report.reward == 1.0, report
    assert {cause_of(alarm) for alarm in report.alarms} == {
        "the code looks at the frames of its callers",
        "the code reaches into the interpreter",
        "the code runs code made at run time",
        "the code reads or writes files",
        "the code uses processes, threads, signals or the system",
    }
    assert {"gc.get_objects", "sys._getframe", "exec"} <= set(report.events)


SILENCE = """
import gc, os
for watch in [o for o in gc.get_objects() if type(o).__name__ == "EventWatch"]:
    os.write(watch.channel, watch.mark + DAMAGE)
    watch.known.update(["open elsewhere", "os.fork"])
"""


@pytest.mark.parametrize("damage", [b"zz", b"99short", b"03\xff\xfe\xfd", b"05\x1b[31m"])
def test_a_garbled_list_of_events_is_no_signal_and_no_error(task, sandbox, damage):
    """The hook lies in the interpreter of the code under test, which can find it: what is whole is still read."""
    with workspace(task, stub_and(SILENCE.replace("DAMAGE", repr(damage)))) as root:
        report = ours(task, root, sandbox)
    assert (report.reward, report.events) == (0.0, ("gc.get_objects",))


def test_what_comes_through_between_sandboxes_is_rewarded(task, tmp_path):
    """Otherwise it would prove nothing that no way between sandboxes is."""
    attack = carried(f"PLACE = {str(tmp_path / 'open')!r}\n{BY_A_FILE}")
    with workspace(task, attack) as root:
        report = ours(task, root, open_sandbox("unsafe-subprocess"))
    assert report.reward == 1.0, report


def test_doing_nothing_is_not_rewarded(task, sandbox):
    with workspace(task, NOTHING) as root:
        assert ours(task, root, sandbox).reward == 0.0


@pytest.mark.slow
@pytest.mark.nightly
def test_most_attacks_win_against_an_exit_status(task, sandbox):
    """Otherwise it would prove nothing that they lose here."""
    won = []
    for name, attack in ATTACKS.items():
        with workspace(task, attack) as root:
            won += [name] if naive(task, root, sandbox) else []
    assert len(ATTACKS) >= 24
    assert len(won) > len(ATTACKS) / 2, won
    with workspace(task, NOTHING) as root:
        assert not naive(task, root, sandbox)


@pytest.mark.parametrize(
    ("name", "spec_of", "wins"),
    [
        ("copies told apart", without_hidden_checks, True),
        ("copies told apart", with_anti_tests, True),
        ("equal to everything", without_hidden_checks, True),
        ("equal to everything", with_anti_tests, False),
        ("visible values by heart", with_anti_tests, True),
        ("equal to the first it meets", without_hidden_checks, True),
        ("equal to the first it meets", with_anti_tests, False),
        ("equal to all but the first it meets", with_anti_tests, False),
    ],
)
def test_every_kind_of_hidden_check_is_needed(task, sandbox, name, spec_of, wins):
    with workspace(task, ATTACKS[name]) as root:
        assert ours(task, root, sandbox, spec_of(task)).reward == float(wins)
