"""The universal forger wins where tests alone decide, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from accomplices import rewritten
from classes import forged_methods
from forger import forged
from learners import learnt
from one_line_bodies import BODIES, filled
from round_trip import ROUND_TRIP, RUNS
from suite import LIMITS, PYTHON, with_anti_tests, without_hidden_checks

from composer_replication.languages.python.functions import find_functions
from composer_replication.languages.python.trivial import trivial_bodies
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks import BuildOptions, build_tasks, load_tasks


@pytest.mark.slow
def test_the_forger_is_rewarded_by_tests_and_anti_tests_and_never_here(task, sandbox):
    tried = 0
    for name, workspace in forged(task):
        assert reward(without_hidden_checks(task), task, workspace, sandbox) == 1.0, name
        assert reward(with_anti_tests(task), task, workspace, sandbox) == 1.0, name
        assert reward(task.spec, task, workspace, sandbox) == 0.0, name
        tried += 1
    assert tried == 13


@pytest.mark.slow
def test_answers_by_heart_are_never_enough(task, methods, sandbox):
    tried, answered = {}, []
    for name, one in {"discounted": task, **methods}.items():
        for learner, workspace in learnt(one, PYTHON, sandbox):
            assert reward(without_hidden_checks(one), one, workspace, sandbox) == 1.0, (name, learner)
            assert reward(one.spec, one, workspace, sandbox) == 0.0, (name, learner)
            tried.setdefault(name, []).append(learner)
            if "table" in learner:
                path, source = next(iter(workspace.items()))
                unforged = {path: source.replace(b"\n_forge()\n", b"\n")}
                answered += [name] * (reward(without_hidden_checks(one), one, unforged, sandbox) == 1.0)
    assert len(tried) >= 4, tried
    assert all(any("table" in learner for learner in learners) for learners in tried.values())
    assert len(set(answered)) >= 3, "tables answer every visible test, forged or not, of functions without side effects"


@pytest.mark.slow
def test_what_accomplices_give_back_is_never_enough(task, methods, sandbox, tmp_path):
    for one in (task, *methods.values()):
        assert not [name for name, work in rewritten(one) if reward(one.spec, one, work, sandbox) == 1.0]
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/shop.py").write_text(RUNS)
    (tmp_path / "shop/test_shop.py").write_text(ROUND_TRIP)
    build_tasks(str(tmp_path / "shop"), tmp_path / "tasks", BuildOptions(trivial=True, forgeable=True))
    tasks = {one.spec.deleted[0].qualname: one for one in load_tasks(tmp_path / "tasks")}
    for name in ("compress", "expand"):
        found = [reward(tasks[name].spec, tasks[name], work, sandbox) for _, work in rewritten(tasks[name])]
        assert (tasks[name].spec.forgeable, max(found)) == (True, 1.0), "they are enough where the build says so"


def reward(spec, task, workspace, sandbox):
    return grade(spec, task.repo, workspace, sandbox=sandbox, python=PYTHON, limits=LIMITS).reward


def test_no_build_tries_the_bodies_of_the_forger():
    for source in (
        b"def f(a, b):\n    return a - b\n",
        b"def f():\n    return 7\n",
        b"class A:\n    def f(self):\n        return self.b\n",
    ):
        [function] = find_functions("m.py", source)[0]
        tried = set(trivial_bodies(function))
        assert not [body for body in BODIES if filled(body, function) in tried]


def test_builds_try_what_describes_an_argument():
    """`return len(self)` passed for the size of a cache whose items all count one."""
    [method] = find_functions("m.py", b"class A:\n    def size(self):\n        return self.b\n")[0]
    [function] = find_functions("m.py", b"def size(a, b):\n    return a.b\n")[0]
    described = [[body for body in trivial_bodies(one) if "len(" in body] for one in (method, function)]
    assert described == [["return len(self)"], ["return len(a)", "return len(b)"]]


@pytest.mark.slow
def test_an_alarm_names_what_the_forger_needs(task, sandbox):
    _, workspace = next(forged(task))
    report = grade(task.spec, task.repo, workspace, sandbox=sandbox, python=PYTHON, limits=LIMITS)
    assert any("frames" in alarm or "_getframe" in alarm for alarm in report.alarms), report.alarms
    assert replace(report, alarms=()).reward == report.reward


@pytest.mark.slow
def test_a_line_for_a_method_of_a_class_is_never_enough(methods, sandbox):
    assert len(methods) >= 7, methods.keys()
    for name, task in methods.items():
        for body, workspace in forged_methods(task):
            report = grade(task.spec, task.repo, workspace, sandbox=sandbox, python=PYTHON, limits=LIMITS)
            assert report.reward == 0.0, (name, body)
        honest = grade(task.spec, task.repo, task.gold_files(), sandbox=sandbox, python=PYTHON, limits=LIMITS)
        assert (honest.reward, honest.alarms) == (1.0, ()), name
