"""What of the faces needs no framework: the tools TRL is shown, rollouts through them, and errors without a framework."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import pickle
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from transformers.utils import get_json_schema

from composer_replication.envs import CODING_TOOLS, CodingEnv, noop_script, oracle_script
from composer_replication.envs.suite import TaskSuite, shared_suite
from composer_replication.envs.tools import TOOLSETS
from composer_replication.integrations.trl import CodingEnvironment, CodingEnvironmentFactory, cheat_alarms
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.store import write_task
from composer_replication.types import GradeReport, Unscored
from composer_replication.types.errors import ConfigError, SandboxError, SandboxUnavailableError, TaskError


@pytest.fixture(scope="module")
def folder(task, tmp_path_factory):
    pristine, folder = tmp_path_factory.mktemp("pristine"), tmp_path_factory.mktemp("tasks")
    for path in ("shop/__init__.py", "shop/basket.py", "tests/test_basket.py"):
        (pristine / path).parent.mkdir(exist_ok=True)
        (pristine / path).write_bytes(task.gold.get(path, (task.repo / path).read_bytes()))
    deleted = {"shop/basket.py": (task.repo / "shop/basket.py").read_bytes()}
    for name in ("a", "b"):
        write_task(replace(task.spec, task_id=name), folder / name, pristine=pristine, deleted=deleted)
    return folder


@pytest.fixture
def environment(folder):
    made = CodingEnvironmentFactory(folder)()
    made.reset(task_id="a", prompt=[], anything=1)
    return made


async def play(environment, script):
    """The answers to a script's calls, made one after the other."""
    functions = [message["tool_calls"][0]["function"] for message in script]
    return [await getattr(environment, function["name"])(**function["arguments"]) for function in functions]


def tools_of(environment):
    functions = [name for name, member in vars(type(environment)).items() if inspect.isfunction(member)]
    names = [name for name in functions if not name.startswith("_") and name not in ("reset", "get_reward")]
    return {name: getattr(environment, name) for name in names}


# --- TRL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("toolset", ["basic", "shell"])
def test_the_methods_are_the_declared_tools(folder, toolset):
    methods = tools_of(CodingEnvironmentFactory(folder, toolset=toolset)())
    assert list(methods) == [tool["function"]["name"] for tool in TOOLSETS[toolset]]
    for tool in TOOLSETS[toolset]:
        declared, seen = tool["function"], get_json_schema(methods[tool["function"]["name"]])["function"]
        assert (seen["name"], seen["description"]) == (declared["name"], declared["description"])
        assert seen["parameters"]["properties"].keys() == declared["parameters"]["properties"].keys()
        assert seen["parameters"].get("required", []) == declared["parameters"].get("required", [])
        for name, about in declared["parameters"]["properties"].items():
            shown = seen["parameters"]["properties"][name]
            assert shown["type"] == about["type"]
            assert about.get("description", "") in shown["description"]
            assert all(str(about[key]) in shown["description"] for key in ("minimum", "minLength") if key in about)


def test_solving_earns_one_and_the_next_rollout_starts_afresh(environment, task):
    answers = asyncio.run(play(environment, oracle_script(task)))
    assert answers == ["edited shop/basket.py", "edited shop/basket.py", "submitted"]
    assert asyncio.run(environment.get_reward()) == 1.0
    assert asyncio.run(play(environment, noop_script())) == ["the work was submitted"]
    environment.reset(task_id="b")
    assert asyncio.run(play(environment, noop_script())) == ["submitted"]
    assert asyncio.run(environment.get_reward()) == 0.0


def test_calls_made_at_once_take_effect_in_order(environment, monkeypatch):
    """The first takes longest, so that without an order it would be the last."""
    step, calls = CodingEnv.step, itertools.count()

    def slower_at_first(env, call):
        time.sleep(0.2 / (1 + next(calls)))
        return step(env, call)

    monkeypatch.setattr(CodingEnv, "step", slower_at_first)

    async def at_once():
        writes = [environment.write_file(path="shop/basket.py", content=f"N = {number}\n") for number in range(4)]
        return await asyncio.gather(*writes, environment.read_file(path="shop/basket.py"))

    assert asyncio.run(at_once())[-1] == "N = 3\n"


def test_arguments_that_are_null_or_wrong_are_answered(environment):
    async def answers():
        return [
            await environment.read_file(path="shop/basket.py", start=None, end=1),
            await environment.read_file(path="shop/basket.py", start="x"),
            await environment.read_file(nothing=1),
        ]

    first, second, third = asyncio.run(answers())
    assert first == '"""Baskets."""'
    assert "start" in second
    assert "nothing" in third or "path" in third


def test_a_broken_box_is_no_reward_at_all(environment, monkeypatch):
    def broken(*_args, **_kwargs):
        raise SandboxError("the box broke")

    monkeypatch.setattr(CodingEnv, "step", broken)
    with pytest.raises(SandboxError):
        asyncio.run(environment.run_tests())
    assert asyncio.run(environment.get_reward()) is None
    environment.reset(task_id="a")
    monkeypatch.setattr(CodingEnv, "grade", lambda _: GradeReport(reward=Unscored("the box broke"), outcomes={}))
    assert asyncio.run(environment.get_reward()) is None


def test_a_shell_runs_commands_and_answers_those_that_cannot_be(folder):
    environment = CodingEnvironmentFactory(folder, toolset="shell")()
    environment.reset(task_id="a")

    async def answers():
        return [await environment.bash(command=c) for c in ("echo done", "a\0b", "\ud800", 200_000 * "a")]

    done, *refused = asyncio.run(answers())
    assert done == "done"
    assert all(answer.startswith("command: ") for answer in refused)


def test_alarms_are_logged_and_rewarded_with_nothing(environment, monkeypatch):
    graded, logged = [], []

    def grade(env):
        graded.append(env)
        return GradeReport(reward=0.0, outcomes={}, alarms=("a forged verdict",))

    monkeypatch.setattr(CodingEnv, "grade", grade)

    async def both():
        alarms = cheat_alarms(environments=[environment], log_metric=lambda *metric: logged.append(metric), prompts=[])
        return await asyncio.gather(alarms, environment.get_reward())

    assert asyncio.run(both()) == [[None], 0.0]
    assert logged == [("cheat/alarms", 1.0)]
    assert len(graded) == 1
    asyncio.run(environment.write_file(path="shop/basket.py", content=""))
    asyncio.run(environment.get_reward())
    assert len(graded) == 2, "a workspace that changed is graded anew"


def test_the_factory_is_an_address(folder):
    factory = pickle.loads(pickle.dumps(CodingEnvironmentFactory(folder)))
    first, second = factory(), factory()
    assert isinstance(first, CodingEnvironment)
    assert first._suite is second._suite is shared_suite(folder)
    assert [row["task_id"] for row in factory.rows()] == ["a", "b"]
    assert [message["role"] for message in factory.rows()[0]["prompt"]] == ["system", "user"]


# --- all -------------------------------------------------------------------------------------------------------------


def test_a_suite_names_what_is_wrong(folder, tmp_path):
    with pytest.raises(ConfigError, match="there is no task c") as caught:
        shared_suite(folder).task("c")
    assert "one of a, b" in str(caught.value)
    with pytest.raises(TaskError, match="cannot be read"):
        TaskSuite(tmp_path / "absent")
    with pytest.raises(ConfigError, match="there is no toolset bash"):
        CodingEnvironmentFactory(folder, toolset="bash")()
    with pytest.raises(SandboxUnavailableError, match="no shell without isolation"):
        TaskSuite(folder, sandbox="unsafe-subprocess", toolset="shell")


def test_a_suite_proves_the_first_task_that_can_be_solved(folder, tmp_path):
    """`a` is impossible here, so its solution scores 0; the suite opens, and offers what it was asked to offer."""
    tasks = tmp_path / "tasks"
    for found in load_tasks(folder):
        spec = replace(found.spec, impossible=found.spec.task_id == "a")
        solved = tmp_path / f"solved_{spec.task_id}"
        shutil.copytree(found.repo, solved)
        shutil.copytree(found.root / "solution" / "files", solved, dirs_exist_ok=True)
        deleted = {path: (found.repo / path).read_bytes() for path in found.gold_files()}
        write_task(spec, tasks / spec.task_id, pristine=solved, deleted=deleted)
    suite = TaskSuite(tasks, toolset="shell")
    assert suite.tasks[0].spec.impossible
    assert suite.env(suite.tasks[1]).tools == TOOLSETS["shell"]
    assert shared_suite(folder).env(suite.tasks[1]).tools == CODING_TOOLS


@pytest.mark.slow
def test_no_face_offers_a_task_whose_solution_its_sandboxes_show(folder, tmp_path, monkeypatch):
    """Every face opens its tasks as a suite, and so do `composer serve` and the PRIME-RL environment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python, copy = tmp_path / "env/bin/python", tmp_path / "env/share/sdk/pricing.py"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(load_tasks(folder)[0].gold_files()["shop/basket.py"])
    shown = re.escape(f"the code that a deletes can be read in a sandbox on this machine ({copy})")
    with pytest.raises(TaskError, match=shown):
        TaskSuite(folder, python=python)
    with pytest.raises(TaskError, match=shown):
        CodingEnvironmentFactory(folder, python=python)()


@pytest.mark.parametrize("framework", ["openenv", "verifiers", "gymnasium"])
@pytest.mark.parametrize("kind", ["", "_source"])
def test_without_its_framework_a_face_names_the_extra(framework, kind):
    code = (
        f"import sys; sys.modules[{framework!r}] = None\n"
        "from composer_replication.types.errors import MissingExtraError\n"
        f"try:\n    import composer_replication.integrations.{framework}{kind}\n"
        "except MissingExtraError as error:\n    print(error.fix)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"pip install 'composer-replication[{framework}]'"


def test_a_reward_that_is_not_finite_is_no_reward():
    from composer_replication.integrations.seeds import graded

    assert graded(0.5).reward == 0.5
    assert [graded(float(word)).reward.reason for word in ("nan", "inf")] == [
        "the environment's reward is nan",
        "the environment's reward is inf",
    ]
