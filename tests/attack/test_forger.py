"""The universal forger wins where tests alone decide, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from classes import forged_methods
from forger import forged
from suite import LIMITS, PYTHON, with_anti_tests, without_hidden_checks

from composer_replication.sandbox.grading.grade import grade


@pytest.mark.slow
def test_the_forger_is_rewarded_by_tests_and_anti_tests_and_never_here(task, sandbox):
    tried = 0
    for name, workspace in forged(task):

        def reward(spec, workspace=workspace):
            return grade(spec, task.repo, workspace, sandbox=sandbox, python=PYTHON, limits=LIMITS).reward

        assert reward(without_hidden_checks(task)) == 1.0, name
        assert reward(with_anti_tests(task)) == 1.0, name
        assert reward(task.spec) == 0.0, name
        tried += 1
    assert tried == 13


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
