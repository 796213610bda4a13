from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from tempfile import gettempdir

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.observe import RunDir, deterministic
from composer_replication.observe.files import append_line, dump_line, exclusive, read_lines, replace_file
from composer_replication.types import GradeReport, Hint, Outcome, StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored
from composer_replication.types.errors import ConfigError, StorageError
from composer_replication.types.routed_experts import RoutedExperts


def trajectory(name: str, reward: float | Unscored = 1.0) -> Trajectory:
    turn = Turn(
        action_ids=(5, 6, 7),
        logprobs=(-0.1, -1 / 3, -1e-17),
        text="<tool_call>submit</tool_call>\u2028\x00\ud800",
        tool_calls=(ToolCall(call_id="c1", name="submit", arguments={"a": [1, None]}),),
        results=(ToolResult(call_id="c1", name="submit", content="bye", details={"failed": ["t"]}),),
        observation_ids=(9,),
    )
    grade = GradeReport(
        reward=reward, outcomes={"tests/test_a.py::test": Outcome.PASSED}, reasons=("because",), rejected=("x.py",)
    )
    return Trajectory(
        trajectory_id=name,
        task_id="task",
        policy_version=3,
        messages=({"role": "user", "content": "do it"},),
        tools=({"type": "function", "function": {"name": "submit"}},),
        prompt_ids=(1, 2),
        turns=(turn,),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=reward,
        grade=grade,
        arm="grpo",
    )


HINT = Hint(trajectory_id="1/task/0", turn=0, kind="unknown_tool", text="Use `submit`.", source="template")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "runs" / "first")


# --- layout and round trips


def test_everything_written_is_read_back_exactly(run: RunDir) -> None:
    written = [trajectory("1/task/0"), trajectory("1/task/1", 0.0), trajectory("1/task/2", Unscored("the box broke"))]
    run.write_config('model = "tiny"\n')
    run.log_metrics("grpo", 1, {"rlvr/loss": 0.1 + 0.2, "bad": math.nan, "low": -math.inf, "time/rollout_s": 2})
    run.write_trajectories("grpo", 1, written)
    run.write_hints("grpo", 1, [HINT])
    run.write_evaluation("grpo", 1, written[1:])
    run.write_traces("grpo", written[2:])
    run.log_event("note", "h\u00e9llo", path=run.path, loss=math.inf, off={"hint": "no turns"})

    again = RunDir(run.path)
    assert again.name == "first"
    assert again.config_path.read_text() == 'model = "tiny"\n'
    assert again.read_trajectories("grpo", 1) == written
    assert again.read_hints("grpo", 1) == [HINT]
    assert again.read_hints("grpo", 2) == []
    assert (again.read_evaluation("grpo", 1), again.read_evaluation("grpo", 2)) == (written[1:], [])
    assert (again.read_traces("grpo"), again.read_traces("other")) == (written[2:], [])
    assert (again.steps("grpo"), again.evaluations("grpo")) == ((1,), (1,))
    (line,) = again.read_metrics()
    assert (line.arm, line.step) == ("grpo", 1)
    assert math.isnan(line.values["bad"])
    assert deterministic(line.values).keys() == {"rlvr/loss", "bad", "low"}
    assert {k: v for k, v in line.values.items() if k != "bad"} == {
        "rlvr/loss": 0.1 + 0.2,
        "low": -math.inf,
        "time/rollout_s": 2.0,
    }
    (event,) = again.read_events()
    assert (event["kind"], event["message"], event["loss"], event["off"]) == ("note", "h\u00e9llo", "inf", {"hint": "no turns"})
    assert event["path"] == str(run.path)
    assert (run.path / "trajectories/grpo/step_00001.jsonl").is_file()
    assert (run.path / "ckpt").is_dir()


def test_the_experts_of_a_mixture_are_left_out(run: RunDir) -> None:
    one = trajectory("0/task/0")
    experts = RoutedExperts.of(b"\1\0" * 12, (3, 2, 2))
    run.write_trajectories("grpo", 0, [replace(one, experts=experts)])
    assert run.read_trajectories("grpo", 0) == [one]


def test_metrics_lines_are_strict_json_in_sorted_order(run: RunDir) -> None:
    run.log_metrics("a", 0, {"z": 1.0, "b": math.nan})
    assert run.metrics_path.read_bytes() == b'{"arm": "a", "step": 0, "b": "nan", "z": 1.0}\n'


def test_arms_and_steps_are_listed(run: RunDir) -> None:
    for arm, step in (("three_channels", 2), ("grpo", 10), ("grpo", 2), ("grpo", 123456)):
        run.log_metrics(arm, step, {})
        run.write_trajectories(arm, step, [trajectory("x")])
        run.write_hints(arm, step, [HINT])
    run.write_trajectories("unlogged", 1, [])
    assert run.arms() == ("three_channels", "grpo", "unlogged")
    assert run.steps("grpo") == (2, 10, 123456)
    assert run.steps("nobody") == ()


def test_pairs_merge_by_their_id(run: RunDir) -> None:
    run.write_pairs("a", [{"pair_id": "p1", "chosen": "x"}, {"pair_id": "p2", "chosen": "y"}])
    run.write_pairs("a", [{"pair_id": "p1", "chosen": "z"}, {"pair_id": "p3", "chosen": "w"}])
    assert [(r["pair_id"], r["chosen"]) for r in run.read_pairs("a")] == [("p1", "z"), ("p2", "y"), ("p3", "w")]
    before = run.pairs_path("a").read_bytes()
    run.write_pairs("a", [{"pair_id": "p2", "chosen": "y"}])
    assert run.pairs_path("a").read_bytes() == before


def test_a_run_is_not_overwritten_and_a_folder_is_not_taken_for_one(run: RunDir, tmp_path: Path) -> None:
    RunDir.create(run.path)  # nothing was measured yet: started over
    run.log_metrics("a", 0, {"reward/mean": 0.5})
    with pytest.raises(ConfigError, match="already holds a run") as caught:
        RunDir.create(run.path)
    assert caught.value.fix is not None
    assert "--resume" in caught.value.fix
    with pytest.raises(ConfigError, match="not a run directory"):
        RunDir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"):
        RunDir.create(tmp_path / "file")


def test_a_missing_step_names_those_that_exist(run: RunDir) -> None:
    run.write_trajectories("grpo", 5, [])
    with pytest.raises(ConfigError) as caught:
        run.read_trajectories("grpo", 6)
    assert "has: 5" in str(caught.value)


@pytest.mark.parametrize("arm", ["", "..", "../up", "a/b", ".hidden", "-x", "a\n"])
def test_an_arm_cannot_leave_the_run(run: RunDir, arm: str) -> None:
    with pytest.raises(ValueError, match="arm"):
        run.write_trajectories(arm, 1, [])
    with pytest.raises(ValueError, match="arm"):
        run.log_metrics(arm, 1, {})


def test_reserved_names_and_negative_steps_are_refused(run: RunDir) -> None:
    with pytest.raises(ValueError, match="reserved"):
        run.log_metrics("a", 1, {"step": 2.0})
    with pytest.raises(ValueError, match="reserved"):
        run.log_event("kind", "message", time="now")
    with pytest.raises(ValueError, match="negative"):
        run.log_metrics("a", -1, {})


# --- torn lines


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(min_value=0))
def test_a_torn_tail_is_dropped_wherever_the_cut_falls(
    tmp_path_factory: pytest.TempPathFactory, blobs: list[bytes], cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "log.jsonl"
    lines = [dump_line({"n": n, "text": blob.decode("latin-1")}) for n, blob in enumerate(blobs)]
    whole = "".join(line + "\n" for line in lines).encode()
    cut %= len(whole) + 1
    path.write_bytes(whole[:cut])
    complete = whole[:cut].count(b"\n")
    assert [r["n"] for r in read_lines(path)] == list(range(complete))
    append_line(path, dump_line({"n": -1}), durable=False)
    assert [r["n"] for r in read_lines(path)] == [*range(complete), -1]
    assert path.read_bytes().endswith(b'{"n": -1}\n')


def test_a_torn_line_longer_than_a_block_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"n": 0}\n' + b"x" * 200_000)
    append_line(path, dump_line({"n": 1}), durable=True)
    assert path.read_bytes() == b'{"n": 0}\n{"n": 1}\n'


def test_damage_before_the_last_line_is_an_error_with_file_line_and_fix(run: RunDir) -> None:
    run.metrics_path.write_bytes(b'{"arm": "a", "step": 1}\n\x00\x00\x00\n{"arm": "a", "step": 3}\n')
    with pytest.raises(StorageError, match=r"metrics\.jsonl, line 2: not JSON") as caught:
        run.read_metrics()
    assert caught.value.fix is not None


def test_long_lines_of_threads_that_append_at_once_all_stay(tmp_path: Path) -> None:
    """One that looks for a torn line must not take another's, half written, for it."""
    path, together = tmp_path / "log.jsonl", threading.Barrier(8)

    def append(worker: int) -> None:
        for n in range(40):
            together.wait()
            append_line(path, dump_line({"n": n, "worker": worker, "text": "x" * 400_000}), durable=False)

    threads = [threading.Thread(target=append, args=(w,)) for w in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((r["n"], r["worker"]) for r in read_lines(path)) == [(n, w) for n in range(40) for w in range(8)]


def test_threads_do_not_mix_their_lines(run: RunDir) -> None:
    def log(worker: int) -> None:
        for n in range(50):
            run.log_event("note", "x" * 5000, worker=worker, n=n)

    threads = [threading.Thread(target=log, args=(w,)) for w in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [(e["worker"], e["n"]) for e in run.read_events()]
    assert len(seen) == 200
    assert [n for w, n in seen if w == 2] == list(range(50))


def test_threads_that_add_pairs_lose_none(run: RunDir) -> None:
    def add(worker: int) -> None:
        for n in range(20):
            run.write_pairs("a", [{"pair_id": f"{worker}-{n}"}])

    threads = [threading.Thread(target=add, args=(w,)) for w in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(run.read_pairs("a")) == 60


# --- going back to a checkpoint


def test_truncation_forgets_only_what_is_later_and_only_of_that_arm(run: RunDir) -> None:
    for arm in ("grpo", "other"):
        for step in range(5):
            run.log_metrics(arm, step, {"rlvr/loss": step / 3})
            run.write_trajectories(arm, step, [trajectory(f"{step}/task/0")])
            run.write_hints(arm, step, [HINT])
            run.write_evaluation(arm, step, [trajectory("-1/task/0")])
        run.write_traces(arm, [trajectory("-2/task/0")])
    with run.metrics_path.open("ab") as stream:
        stream.write(b'{"arm": "grpo", "st')
    run.truncate_after("grpo", 2)
    left = [(line.arm, line.step) for line in run.read_metrics()]
    assert left == [("grpo", s) for s in range(3)] + [("other", s) for s in range(5)]
    assert run.metrics_path.read_bytes().endswith(b"}\n")
    assert run.steps("grpo") == (0, 1, 2)
    assert run.steps("other") == (0, 1, 2, 3, 4)
    assert run.read_hints("grpo", 3) == []
    assert not run.hints_path("grpo", 3).exists()
    assert run.hints_path("grpo", 2).exists()
    assert (run.evaluations("grpo"), run.evaluations("other")) == ((0, 1, 2), (0, 1, 2, 3, 4))
    assert len(run.read_traces("grpo")) == 1


def test_a_resumed_run_has_the_metrics_file_of_an_uninterrupted_one(tmp_path: Path) -> None:
    def train(run: RunDir, steps: range) -> None:
        for step in steps:
            run.log_metrics("grpo", step, {"rlvr/loss": math.sin(step) / 7, "frac": math.nan if step == 3 else step / 3})
            run.write_trajectories("grpo", step, [trajectory(f"{step}/task/0")])

    straight = RunDir.create(tmp_path / "straight")
    train(straight, range(8))
    broken = RunDir.create(tmp_path / "broken")
    train(broken, range(6))
    resumed = RunDir(broken.path)
    resumed.truncate_after("grpo", 3)
    train(resumed, range(4, 8))
    assert resumed.metrics_path.read_bytes() == straight.metrics_path.read_bytes()
    for step in range(8):
        assert resumed.trajectories_path("grpo", step).read_bytes() == straight.trajectories_path("grpo", step).read_bytes()


def test_truncation_before_anything_was_written(run: RunDir) -> None:
    run.truncate_after("grpo", 0)
    assert run.read_metrics() == []


def test_truncation_after_minus_one_forgets_the_whole_arm(run: RunDir) -> None:
    for arm in ("grpo", "other"):
        run.log_metrics(arm, 0, {})
        run.write_trajectories(arm, 0, [])
        run.write_evaluation(arm, 0, [])
        run.write_traces(arm, [trajectory("-2/task/0")])
    run.truncate_after("grpo", -1)
    assert [line.arm for line in run.read_metrics()] == ["other"]
    assert (run.steps("grpo"), run.steps("other")) == ((), (0,))
    assert (run.evaluations("grpo"), run.evaluations("other")) == ((), (0,))
    assert (len(run.read_traces("grpo")), len(run.read_traces("other"))) == (0, 1)


def test_traces_are_kept_where_they_are_asked_for(run: RunDir) -> None:
    run.log_metrics("grpo", 0, {})
    run.write_traces("grpo", [trajectory("-2/task/0")])
    run.truncate_after("grpo", -1, keep_traces=True)
    assert run.read_metrics() == []
    assert len(run.read_traces("grpo")) == 1


WRITER = """
import sys
from composer_replication.observe import RunDir
run = RunDir(sys.argv[1])
step = len(run.read_metrics())
print("ready", flush=True)
while True:
    run.log_metrics("grpo", step, {f"metric/{n}": step + n / 7 for n in range(2000)})
    run.write_config("x" * 200_000 + str(step))
    step += 1
"""


def test_kill_9_at_any_moment_leaves_a_readable_run(run: RunDir) -> None:
    run.write_config("x" * 200_000 + "0")
    for _ in range(5):
        before = len(run.read_metrics())
        with subprocess.Popen([sys.executable, "-c", WRITER, str(run.path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            while run.metrics_path.stat().st_size == 0 or len(run.read_metrics()) < before + 3:
                assert writer.poll() is None
            os.kill(writer.pid, signal.SIGKILL)
        lines = run.read_metrics()
        assert [line.step for line in lines] == list(range(len(lines)))
        assert all(len(line.values) == 2000 for line in lines)
        assert run.config_path.read_text().startswith("x" * 200_000)


# --- a disk that refuses (each in a process of its own)

FULL = """
import json, os, sys
from pathlib import Path
from composer_replication.types.errors import StorageError
from composer_replication.observe import RunDir
run = RunDir.create(Path(sys.argv[1]) / "run")
run.write_config("small")
logged, refused = 0, []
def attempt(what, *arguments):
    try:
        what(*arguments)
    except StorageError as error:
        refused.append(str(error))
        return False
    return True
while attempt(run.log_metrics, "grpo", logged, {f"m/{n}": n / 7 for n in range(500)}):
    logged += 1
    assert logged < 10_000, "the disk never filled"
attempt(run.write_config, "big" * 3_000_000)
attempt(run.log_event, "note", "y" * 2_000_000)
print(json.dumps({
    "logged": logged, "refused": refused, "steps": [line.step for line in run.read_metrics()],
    "tail": run.metrics_path.read_bytes()[-1:].decode(), "config": run.config_path.read_text(),
    "files": sorted(p.name for p in run.path.iterdir() if p.is_file()),
}))
"""
ON_FULL_TMPFS = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
UNDER_FILE_SIZE_LIMIT = 'ulimit -f 1024; trap "" XFSZ; exec "$2" -c "$3" "$1"'


def _can_mount(folder: Path) -> bool:
    """Whether a private mount namespace is allowed here; some containers refuse it."""
    probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", str(folder)]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def test_a_full_disk_is_one_clear_error_and_loses_nothing_written(tmp_path: Path) -> None:
    """A real full tmpfs; where mounting is refused, the kernel's file-size limit fills the files instead."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = _can_mount(folder)
    shell = ["sh", "-c", ON_FULL_TMPFS if mount else UNDER_FILE_SIZE_LIMIT, "sh", str(folder), sys.executable, FULL]
    done = subprocess.run([*(["unshare", "-Urm"] if mount else []), *shell], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["logged"] > 10
    assert seen["steps"] == list(range(seen["logged"]))
    assert seen["tail"] == "\n"
    assert seen["config"] == "small"
    assert seen["files"] == ["config.toml", "events.jsonl", "metrics.jsonl"]
    metrics, config, events = seen["refused"]
    why = "No space left on device" if mount else "File too large"
    for message, name in ((metrics, "metrics.jsonl"), (config, "config.toml"), (events, "events.jsonl")):
        assert f"{folder}/run/{name}: {why}" in message
        assert "intact" in message
        assert "fix: free space" in message
        assert "--resume" in message


def test_a_path_that_cannot_be_a_folder_is_a_storage_error(run: RunDir) -> None:
    (run.path / "trajectories" / "grpo").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write") as caught:
        run.write_trajectories("grpo", 1, [])
    assert "step_00001.jsonl" in caught.value.message


DENIED = """
import os, sys
from composer_replication.types.errors import StorageError
from composer_replication.observe import RunDir
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    RunDir.create(sys.argv[1] + "/run")
except StorageError as error:
    print(error)
"""


def test_no_permission_is_a_storage_error(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    for folder in (tmp_path, *takewhile(lambda parent: parent != Path(gettempdir()), tmp_path.parents)):
        folder.chmod(folder.stat().st_mode | 0o055)
    locked.chmod(0o555)
    code = [sys.executable, "-c", DENIED, str(locked)]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    assert "Permission denied" in done.stdout
    assert f"make {locked} writable" in done.stdout


def test_a_replaced_file_is_old_or_new_for_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"a" * 100_000)
    seen: set[bytes] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(50):
        replace_file(path, (b"a", b"b")[n % 2] * 100_000)
    stop.set()
    reader.join()
    assert seen <= {b"a" * 100_000, b"b" * 100_000}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    hold = "import sys; from pathlib import Path; from composer_replication.observe.files import exclusive\n"
    hold += "with exclusive(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match="another process"), exclusive(tmp_path):
        pass
    other.kill()
    other.communicate()
    with exclusive(tmp_path):
        pass
