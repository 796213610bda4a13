from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_replication.envs import CODING_TOOLS, CodingEnv, TestCache, Workspace, tools
from composer_replication.envs.tools import argument_error, read_file, search
from composer_replication.sandbox import Limits
from composer_replication.sandbox.changes import LITTER
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.sandbox.grading.submission import Submission, read_submission
from composer_replication.types import ToolCall, Unscored, to_json
from composer_replication.types.errors import SandboxError

WORK = "    result = 0\n    for price in prices:\n        result += price\n    return result\n"
STUB_TOTAL = '"""The sum of prices."""\n    raise NotImplementedError\n'
STUB_MEAN = '"""The mean."""\n    raise NotImplementedError\n'


def solve(use, body=WORK):
    assert use("edit_file", path="shop/basket.py", old=STUB_TOTAL, new=f'"""The sum of prices."""\n{body}').status == "ok"
    return use(
        "edit_file", path="shop/basket.py", old=STUB_MEAN, new='"""The mean."""\n    return total(prices) / count(prices)\n'
    )


def test_opening_is_short_and_schemas_are_valid(env):
    system, user = env.reset()
    assert (system["role"], system["content"]) == ("system", "You fix Python code with tools.")
    assert (user["role"], user["content"]) == ("user", "Bring back total and mean in shop/basket.py.")
    names = [t["function"]["name"] for t in env.tools]
    assert names == ["list_files", "read_file", "search", "edit_file", "write_file", "run_tests", "submit"]
    for tool in CODING_TOOLS:
        jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])


def test_withheld_tests_are_neither_seen_nor_run_and_graded_all_the_same(task, sandbox):
    hidden = frozenset({"tests/test_basket.py::test_mean"})
    env = CodingEnv(task, sandbox=sandbox, python=Path(sys.executable), withheld=hidden, grade_cache=GradeCache())
    env.reset()

    def use(name, **arguments):
        return env.step(ToolCall(call_id="1", name=name, arguments=arguments))

    assert "test_mean" not in use("read_file", path="tests/test_basket.py").content
    assert "test_total" in use("read_file", path="tests/test_basket.py").content
    assert use("search", pattern="test_mean").content == "no match"
    half = '"""The sum of prices."""\n    return sum(prices)\n'
    assert use("edit_file", path="shop/basket.py", old=STUB_TOTAL, new=half).status == "ok"
    for one in (env, env.fork()):
        ran = one.step(ToolCall(call_id="2", name="run_tests", arguments={}))
        assert (ran.status, ran.details["failed"], len(ran.details["passed"])) == ("ok", [], 2)
        report = one.grade()
        assert report.reward == 0.0
        assert report.outcomes["tests/test_basket.py::test_mean"] is not None
    open_mean = '"""The mean."""\n    return total(prices) / count(prices)\n'
    assert use("edit_file", path="shop/basket.py", old=STUB_MEAN, new=open_mean).status == "ok"
    assert env.grade().reward == 1.0
    env.reset()
    assert "test_mean" not in use("read_file", path="tests/test_basket.py").content


def test_looking_around(use):
    assert (
        use("list_files").content
        == "binary.dat\ndocs/guide.md\npyproject.toml\nshop/__init__.py\nshop/basket.py\ntests/test_basket.py"
    )
    assert use("list_files", path="./shop/").content == "shop/__init__.py\nshop/basket.py"
    assert use("read_file", path="docs//guide.md").content == "A total is a sum.\n"
    assert use("read_file", path="shop/basket.py", start=4, end=5).content == 'def total(prices):\n    """The sum of prices."""'
    assert use("read_file", path="shop/basket.py", start=4000).content == ""


def test_search_shows_the_lines_before_a_hit(use):
    assert use("search", pattern=r"raise \w+", path="shop").content.splitlines() == [
        "shop/basket.py-4- def total(prices):",
        'shop/basket.py-5-     """The sum of prices."""',
        "shop/basket.py:6:     raise NotImplementedError",
        "shop/basket.py-14- def mean(prices):",
        'shop/basket.py-15-     """The mean."""',
        "shop/basket.py:16:     raise NotImplementedError",
    ]
    assert use("search", pattern="total(").content.startswith("shop/basket.py-2- \n"), "no regular expression: taken as it is"
    assert use("search", pattern="nowhere").content == "no match"
    assert use("search", pattern="sum", path="docs/guide.md").content == "docs/guide.md:1: A total is a sum."


@pytest.mark.slow
def test_search_is_capped_and_stopped(tmp_path):
    (tmp_path / "a.txt").write_text("x\n" * 50 + "a" * 5000 + "!\n")
    workspace = Workspace(tmp_path)
    lines = search(workspace, "^x", "").splitlines()
    assert (len(lines), lines[-1]) == (21, "... 30 more")
    assert max(map(len, search(workspace, "a!", "").splitlines())) == 200
    with pytest.raises(TimeoutError):
        search(workspace, "^(a|aa)+$", "")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?:(?:(?:a{1000}){1000}){1000})", "pattern: repeats too much; use smaller counts, or + and *"),
        ("a{4000000000}", "pattern: repeats too much; use smaller counts, or + and *"),
        ("(?:(?:ab|c){1000,}?){900,950}", "pattern: repeats too much; use smaller counts, or + and *"),
        ("(?x)a{1 000 000 000}", "pattern: (?x is not supported"),
        ("(?V1)(?V0)a", "pattern: (?V1 is not supported"),
        ("(?R)?a", "pattern: (?R is not supported"),
        ("(a)(?1)", "pattern: (?1 is not supported"),
        ("a" * 401, "pattern: longer than 400 characters"),
    ],
)
def test_patterns_that_cost_too_much_are_refused(use, pattern, said):
    """Compiling them takes gigabytes, in the process that trains, and matching some has no end."""
    result = use("search", pattern=pattern)
    assert (result.status, result.content) == ("invalid_arguments", said)


@pytest.mark.parametrize("pattern", ["(" * 400, "(" * 200 + ")" * 200, "(?au)x", "[[" * 200, "(?<=" * 100, "a{3}{3}", "a{2,1}"])
def test_what_does_not_compile_is_looked_for_as_it_is(use, env, pattern):
    env.workspace.write("shop/new.py", f"found: {pattern}\n")
    assert use("search", pattern=pattern, path="shop/new.py").content.startswith("shop/new.py:1: found: ")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "9b2f1c3e-0001-4abc-8def-0123456789ab"),
        (r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}", "2024-02-29T23:59:60.000001"),
        (r"(?i)DEF (?P<name>\w+)\(?.{0,200}\):$", "def total(prices):"),
        (r"x = \{1000000\}|\(?R", "x = {1000000}"),
        (r"\[{9}", "[" * 9),
    ],
)
def test_ordinary_patterns_are_not_refused(use, env, pattern, text):
    env.workspace.write("shop/new.py", text)
    assert use("search", pattern=pattern, path="shop/new.py").content == f"shop/new.py:1: {text}"


def test_a_search_that_runs_out_of_memory_says_so(use, env, monkeypatch):
    monkeypatch.setattr(tools, "_REGEX_SECONDS", 600.0)  # on a slow machine its time would be up first
    env.workspace.write("shop/new.py", "ab" * 1_000_000 + "c")
    result = use("search", pattern="(?:" * 60 + "a|b" + ")*?" * 60 + "c", path="shop/new.py")
    assert (result.status, result.content) == ("out_of_memory", "the search took too much memory")


def test_reading_is_capped(tmp_path):
    (tmp_path / "long.py").write_text("\n".join(map(str, range(1000))))
    (tmp_path / "wide.py").write_text("x" * 50_000)
    lines = read_file(Workspace(tmp_path), "long.py").splitlines()
    assert lines[399:] == ["399", "... 600 more lines"]
    assert read_file(Workspace(tmp_path), "wide.py") == "... 1 more lines"


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/passwd",
        "outside/passwd",
        "link.py",
        "shop",
        "nope.py",
        "a\0b",
        ".git/config",
        "",
        "binary.dat",
        "shop/../tests",
    ],
)
def test_nothing_outside_the_tree_is_read_or_written(use, env, path):
    assert use("read_file", path=path).status == "path_not_found"
    result = use("write_file", path=path, content="x")
    assert result.status == "path_not_editable"
    assert "shop/**/*.py" in result.content
    assert env.workspace.changes == {}


@pytest.mark.parametrize(
    "path", ["tests/test_basket.py", "pyproject.toml", "shop/conftest.py", "docs/guide.md", "shop/basket.py/x.py", "x.py"]
)
def test_only_the_allow_list_is_editable(use, env, path):
    assert use("write_file", path=path, content="x").status == "path_not_editable"
    assert use("edit_file", path=path, old="total", new="x").status == "path_not_editable"
    assert env.workspace.changes == {}


def test_what_grading_ignores_is_not_shown(task, tmp_path):
    """One list: a folder that only one of the two leaves out would be shown and not graded, or graded unseen."""
    workspace = tmp_path / "workspace"
    shutil.copytree(task.repo, workspace, symlinks=True)
    for name in LITTER:
        (workspace / "shop" / name).mkdir()
        (workspace / "shop" / name / "x.py").write_text("")
    assert Workspace(workspace).files() == Workspace(task.repo).files()
    assert read_submission(task.spec, task.repo, workspace) == Submission({}, ())


def test_edits_apply_exactly_once_and_verbatim(use):
    nowhere = use("edit_file", path="shop/basket.py", old="raise ValueError", new="")
    assert (nowhere.status, nowhere.details["occurrences"]) == ("edit_not_applied", 0)
    twice = use("edit_file", path="shop/basket.py", old="raise NotImplementedError", new="pass")
    assert (twice.status, twice.content) == ("edit_not_applied", "old occurs 2 times in shop/basket.py, must be once")
    assert use("edit_file", path="shop/basket.py", old="", new="x").content == "old is empty"
    assert use("edit_file", path="shop/new.py", old="a", new="b").status == "path_not_found"
    assert use("edit_file", path="shop/basket.py", old="How many.", new="\\1\t $& é").content == "edited shop/basket.py"
    assert '"""\\1\t $& é"""' in use("read_file", path="shop/basket.py").content
    assert use("write_file", path="shop/new.py", content="a\r\nb").content == "wrote shop/new.py"
    assert use("read_file", path="shop/new.py").content == "a\r\nb"
    assert "shop/new.py" in use("list_files").content


def test_running_tests_before_and_after_the_work(use):
    before = use("run_tests")
    assert before.status == "tests_failed"
    assert before.content == "2 failed, 1 passed\ntest_total: NotImplementedError\ntest_mean: NotImplementedError"
    assert before.details["failed"] == ["tests/test_basket.py::test_total", "tests/test_basket.py::test_mean"]
    assert solve(use, "    return sum(prices) + 1\n").status == "ok"
    wrong = use("run_tests")
    assert wrong.content.splitlines()[0] == "2 failed, 1 passed"
    assert "assert 4 == 3" in wrong.content
    assert use("edit_file", path="shop/basket.py", old=" + 1", new="").status == "ok"
    assert (use("run_tests").status, use("run_tests").content) == ("ok", "3 passed")


def test_code_that_does_not_import_hangs_or_eats_memory_says_so(use, task, sandbox):
    use("write_file", path="shop/basket.py", content="def (:\n")
    broken = use("run_tests")
    assert broken.content.splitlines()[0] == "3 failed, 0 passed"
    assert "SyntaxError" in broken.content
    assert len(broken.content.splitlines()) <= 4
    task = replace(task, spec=replace(task.spec, test_timeout_s=2.0))
    for content, status, wall_s in (("while True: pass\n", "timeout", 2), ("x = [0] * 10**10\n", "out_of_memory", 60)):
        limits = Limits(wall_s=wall_s, cpu_s=30, memory_mb=256)
        small = CodingEnv(task, sandbox=sandbox, python=Path(sys.executable), limits=limits)
        small.step(ToolCall(call_id="c", name="write_file", arguments={"path": "shop/basket.py", "content": content}))
        result = small.step(ToolCall(call_id="c", name="run_tests", arguments={}))
        assert result.status == status
        assert small.grade().reward == 0.0


def test_reward_is_the_graders(use, env):
    assert env.grade().reward == 0.0
    assert solve(use).status == "ok"
    assert use("submit").content == "submitted"
    assert env.done
    report = env.grade()
    assert (report.reward, report.rejected) == (1.0, ())
    with pytest.raises(ValueError, match="reset"):
        use("submit")
    env.reset()
    assert not env.done
    assert env.grade().reward == 0.0


def test_the_limits_hold_for_the_grade_too(task, sandbox):
    """One cache: a verdict under other limits is another verdict."""
    grades = GradeCache()
    content = task.gold["shop/basket.py"].decode() + '\nSPACE = b"x" * (600 << 20)\n'
    for memory_mb, reward in ((1024, 1.0), (256, 0.0)):
        limits = Limits(wall_s=20, cpu_s=20, memory_mb=memory_mb)
        env = CodingEnv(task, sandbox=sandbox, python=Path(sys.executable), limits=limits, grade_cache=grades)
        env.reset()
        env.step(ToolCall(call_id="c", name="write_file", arguments={"path": "shop/basket.py", "content": content}))
        assert env.grade().reward == reward


class Counting:
    """The real sandbox, counting its runs; broken on request."""

    def __init__(self, inner):
        self.inner, self.runs, self.broken = inner, 0, False

    @property
    def isolation(self):
        return self.inner.isolation

    def installation(self, python):
        return self.inner.installation(python)

    def run(self, tree, command):
        if self.broken:
            raise SandboxError("the box is gone")
        self.runs += 1
        return self.inner.run(tree, command)


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("shop/" + "a" * 300 + ".py", "", "path_not_editable"),
        ("shop/" + "a/" * 600 + "b.py", "", "path_not_editable"),
        ("shop/\ud800.py", "", "invalid_arguments"),
        ("shop/a.py", "\ud800", "invalid_arguments"),
    ],
)
def test_nobody_gets_out_of_a_verdict_by_files_that_cannot_be(use, env, path, content, status):
    assert use("write_file", path=path, content=content).status == status
    assert env.grade().reward == 0.0


def test_equal_workspaces_are_run_once_and_forks_are_independent(task, sandbox):
    counting = Counting(sandbox)
    envs = [
        CodingEnv(task, sandbox=counting, python=Path(sys.executable), grade_cache=grades, test_cache=tests)
        for grades, tests in [(GradeCache(), TestCache())]
        for _ in range(2)
    ]
    run = ToolCall(call_id="c", name="run_tests", arguments={})
    write = ToolCall(call_id="c", name="write_file", arguments={"path": "shop/basket.py", "content": "x = 1\n"})
    for env in envs:
        env.reset()
        env.step(write)
        env.step(run)
        env.grade()
    assert counting.runs == 2
    fork = envs[0].fork()
    assert fork.step(run) == envs[0].step(run)
    fork.step(ToolCall(call_id="c", name="write_file", arguments={"path": "shop/basket.py", "content": "x = 2\n"}))
    fork.step(ToolCall(call_id="c", name="submit", arguments={}))
    assert envs[0].workspace.read("shop/basket.py") == "x = 1\n"
    assert not envs[0].done
    counting.broken = True
    assert isinstance(fork.grade().reward, Unscored)
    with pytest.raises(SandboxError):
        fork.fork().__class__(task, sandbox=counting, python=Path(sys.executable)).step(run)


def test_mistakes_are_results(env, use):
    bad = env.step(ToolCall(call_id="c", name="", arguments={}, error="bad JSON"))
    assert (bad.status, bad.content) == ("malformed_call", "bad tool call: bad JSON")
    unknown = use("bash", command="ls")
    assert unknown.status == "unknown_tool"
    assert unknown.content.startswith("no tool bash; tools: list_files, read_file,")
    for name, arguments, said in (
        ("read_file", {}, "'path' is a required property"),
        ("read_file", {"path": 1}, "path: 1 is not of type 'string'"),
        ("read_file", {"path": "a", "start": 0}, "start: 0 is less than the minimum of 1"),
        ("submit", {"now": True}, "Additional properties are not allowed ('now' was unexpected)"),
        ("search", {"pattern": ""}, "pattern: '' should be non-empty"),
    ):
        result = use(name, **arguments)
        assert (result.status, result.content) == ("invalid_arguments", said)
    assert argument_error("write_file", {"path": "a", "content": ["x"] * 999}).endswith("...")
    assert argument_error("read_file", {"path": json.loads(900 * "[" + 900 * "]")}) == "nested too deeply"
    half = env.step(ToolCall(call_id="c", name="no \ud800 tool", arguments={}))
    assert (half.status, half.name) == ("unknown_tool", "no ? tool")
    assert half.content.startswith("no tool no ? tool; tools: ")
    assert env.workspace.changes == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
PATHS = st.sampled_from(["shop/basket.py", "shop", ".", "", "shop/new.py", "tests", "link.py", "shop/basket.py/x"]) | st.text(
    max_size=8
)
PARTS = st.sampled_from(["(", ")", "(?:", "(?=", "(?V", "(?i", "(?x", "[", "]", "{", "}", "{99}", "{9,}", "|", "*", "+?"])
PATTERNS = st.text(st.sampled_from("ab().*+?[]{}^$|\\1,9<>=!P:de"), max_size=12) | st.builds(
    lambda opening, times, body, closing, more: opening * times + body + closing * times + more,
    *(PARTS, st.integers(0, 150), st.text(st.sampled_from("ab\\dR0 #:)"), max_size=4), st.text("){}9*?+,", max_size=6), PARTS),
)
ARGUMENTS = st.fixed_dictionaries(
    {}, optional={"path": PATHS, "pattern": PATTERNS, "old": PATHS, "new": PATHS, "content": PATHS, "start": JSON, "end": JSON}
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([t["function"]["name"] for t in CODING_TOOLS if t["function"]["name"] != "run_tests"]), ARGUMENTS
        ),
        max_size=6,
    )
)
def test_no_call_breaks_the_env(env, calls):
    env.reset()
    for name, arguments in calls:
        properties = next(t for t in CODING_TOOLS if t["function"]["name"] == name)["function"]["parameters"]["properties"]
        chosen = {
            k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in arguments.items() if k in properties
        }
        result = env.step(ToolCall(call_id="c", name=name, arguments=chosen))
        assert to_json(result)
        assert set(env.workspace.changes) <= {"shop/basket.py", "shop/new.py"} | {
            p for p in env.workspace.changes if p.startswith("shop/") and p.endswith(".py")
        }
        if env.done:
            break
