"""Commands and patches of the agent's own: what they change stays, what may not be graded is said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from composer_replication.envs import CODING_TOOLS, CodingEnv
from composer_replication.envs.tools import TOOLSETS
from composer_replication.sandbox import Limits, open_sandbox
from composer_replication.sandbox.opening import available
from composer_replication.types import ToolCall
from composer_replication.types.errors import SandboxUnavailableError

SOLUTION = r"""
cat > solve.py <<'END'
import pathlib
path = pathlib.Path("shop/basket.py")
head, rest = path.read_text().split("    raise NotImplementedError\n", 1)
rest = rest.replace("raise NotImplementedError", "return total(prices) / count(prices)")
path.write_text(head + "    return sum(prices)\n" + rest)
END
python solve.py && rm solve.py
"""


@pytest.fixture(params=available())
def env(request, task):
    limits = Limits(wall_s=20, cpu_s=20, disk_mb=64)
    made = CodingEnv(task, sandbox=open_sandbox(request.param), python=Path(sys.executable), limits=limits, toolset="shell")
    made.reset()
    return made


@pytest.fixture
def bash(env):
    return lambda command: env.step(ToolCall(call_id="c", name="bash", arguments={"command": command}))


@pytest.fixture
def patch(env):
    def apply(*lines):
        text = "\n".join(("*** Begin Patch", *lines, "*** End Patch"))
        return env.step(ToolCall(call_id="c", name="apply_patch", arguments={"patch": text}))

    return apply


def test_a_shell_has_to_be_asked_for(task, sandbox):
    plain = CodingEnv(task, sandbox=sandbox, python=Path(sys.executable))
    assert plain.tools == CODING_TOOLS == TOOLSETS["basic"]
    assert [t["function"]["name"] for t in CODING_TOOLS] == [
        "list_files", "read_file", "search", "edit_file", "write_file", "run_tests", "submit"
    ]  # fmt: skip
    for name in ("bash", "apply_patch"):
        assert plain.step(ToolCall(call_id="c", name=name, arguments={})).status == "unknown_tool"
    with pytest.raises(SandboxUnavailableError, match="no shell without isolation"):
        CodingEnv(task, sandbox=open_sandbox("unsafe-subprocess"), python=Path(sys.executable), toolset="shell")


def test_what_a_command_says_and_how_it_ends(bash):
    said = bash("echo out; echo err >&2; exit 3")
    assert (said.status, said.content) == ("command_failed", "out\nerr\nexit status 3")
    assert bash("true").content == "(no output)"
    assert bash("kill -SEGV $$").content.endswith("killed by SIGSEGV")
    assert "unexpected EOF" in bash("echo 'open").content
    assert bash("ls").content.split() == ["binary.dat", "docs", "link.py", "outside", "pyproject.toml", "shop", "tests"]
    assert bash("python -c 'import shop.basket; print(shop.basket.count([1]))'").content == "1"
    assert bash("python -m pytest -q tests 2>&1 | tail -1").content.startswith("2 failed, 1 passed")


def test_long_output_keeps_both_ends(bash):
    said = bash("seq 1 100000; exit 1").content
    assert said.startswith("1\n2\n3\n")
    assert said.endswith("99999\n100000\nexit status 1")
    assert "characters left out" in said
    assert len(said) < 11_000


def test_a_command_that_hangs_or_eats_memory_is_a_result(task, sandbox):
    def bash(command, wall_s=20):
        limits = Limits(wall_s=wall_s, cpu_s=20, memory_mb=128)
        env = CodingEnv(task, sandbox=sandbox, python=Path(sys.executable), limits=limits, toolset="shell")
        return env.step(ToolCall(call_id="c", name="bash", arguments={"command": command}))

    said = bash("echo started; echo x > shop/made.py; sleep 600", wall_s=1)
    assert (said.status, said.content, said.details["changed"]) == (
        "timeout", "started\ntimed out after 1 s", ["shop/made.py"]
    )  # fmt: skip
    told = "command_failed" if sandbox._setup.cgroups is None else "out_of_memory"  # Python's own MemoryError, without groups
    assert bash("python -S -c 'x = [bytearray(8 << 20) for _ in range(100)]'").status == told


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800", "echo " + "a" * 200_000])
def test_a_command_that_cannot_be_run_is_a_mistake_and_no_broken_box(bash, command):
    assert bash(command).status == "invalid_arguments"


def test_a_shell_solves_the_task(env, bash):
    assert bash(SOLUTION).details["changed"] == ["shop/basket.py"]
    assert env.step(ToolCall(call_id="c", name="run_tests", arguments={})).content == "3 passed"
    assert env.grade().reward == 1.0


def test_what_is_changed_elsewhere_stays_and_is_not_graded(env, bash):
    said = bash("echo 'def test_total(): pass' > tests/test_basket.py; echo x > notes.txt; ln -s /etc/passwd shop/l.py")
    assert said.status == "ok"
    assert "changed, but not editable and so not graded: notes.txt, tests/test_basket.py" in said.content
    assert "not kept: 'shop/l.py' (a link)" in said.content
    assert bash("cat notes.txt").content == "x"
    assert env.step(ToolCall(call_id="c", name="read_file", arguments={"path": "notes.txt"})).content == "x\n"
    report = env.grade()
    assert report.reward == 0.0
    assert set(report.rejected) == {"notes.txt", "tests/test_basket.py"}


def test_only_files_live_on(env, bash):
    bash("cd shop; export LEFT=1; echo 1 > $HOME/left; (sleep 600 &) ; echo 2 > shop_file")
    assert bash("pwd | xargs basename; echo $LEFT; cat $HOME/left 2> /dev/null; cat shop/shop_file").content.split("\n")[1:] == [
        "",
        "2",
    ]


def test_a_fork_is_a_copy(env, bash):
    bash("echo 1 > shop/one.py")
    other = env.fork()
    bash("echo 2 > shop/one.py; echo 3 > shop/two.py")
    assert other.workspace.changes == {"shop/one.py": b"1\n"}
    assert other.tools == env.tools
    other.step(ToolCall(call_id="c", name="bash", arguments={"command": "rm shop/one.py"}))
    assert other.workspace.changes == {}
    assert env.workspace.changes == {"shop/one.py": b"2\n", "shop/two.py": b"3\n"}


def test_a_patch_over_several_files(env, patch):
    done = patch(
        "*** Update File: shop/basket.py",
        "@@ def total(prices):",
        '     """The sum of prices."""',
        "-    raise NotImplementedError",
        "+    return add(prices)",
        "*** Add File: shop/sums.py",
        "+add = sum",
        "*** Delete File: shop/__init__.py",
    )
    assert (done.status, done.content) == ("ok", "patched shop/basket.py, shop/sums.py, shop/__init__.py")
    assert env.workspace.changes["shop/sums.py"] == b"add = sum\n"
    assert env.workspace.changes["shop/__init__.py"] is None
    assert b"    return add(prices)\n" in env.workspace.changes["shop/basket.py"]
    assert patch("*** Delete File: shop/sums.py").status == "ok"
    assert "shop/sums.py" not in env.workspace.changes


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["*** Update File: shop/basket.py", "@@", "-no such line"], "edit_not_applied"),
        (["*** Update File: shop/none.py", "@@", "+x"], "path_not_found"),
        (["*** Delete File: shop/none.py"], "path_not_found"),
        (["*** Add File: shop/basket.py", "+x"], "edit_not_applied"),
        (["*** Add File: tests/more.py", "+x"], "path_not_editable"),
        (["*** Add File: ../up.py", "+x"], "path_not_editable"),
        (["nonsense"], "edit_not_applied"),
    ],
)
def test_a_patch_that_does_not_fit_changes_nothing(env, patch, lines, status):
    assert patch("*** Add File: shop/first.py", "+x", *lines).status == status
    assert env.workspace.changes == {}
