"""A run directory as a real run would leave it, with plausible numbers: 3 arms, 40 steps, about 200 trajectories.

python tests/observe/fixture_run.py FOLDER      write FOLDER and FOLDER/report.html
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

from composer_replication.observe.report import write_report
from composer_replication.observe.run_dir import RunDir
from composer_replication.observe.summary import SummaryRow
from composer_replication.types import (
    GradeReport,
    Hint,
    Message,
    Outcome,
    Reward,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Unscored,
)

ARMS = {"grpo": (0.16, 0.41), "three_channels": (0.17, 0.83), "hints_shuffled": (0.16, 0.37)}
STEPS = 40
RECORDED = (0, 10, 20, 30, 40)
SIBLINGS = 14
EVALUATION, TRACES = -1, -2
"""What stands for the step in the ids of trajectories outside training."""
HOSTILE = (
    "</script><script>window.attacked=1</script><img src=x onerror='window.attacked=1'><!-- "
    "\u2028\u2029 \x00\x1b[31m \u202egnp.exe \ud800 & {{script}}"
)
TOOLS = ("list_files", "read_file", "search", "edit", "run_tests", "submit")
ISOLATION = "namespaces: no network; read-only host, private root; uid 65534; cgroup v2 (memory, pids), rlimits, tmpfs 256 MB"
NOTES = (
    "Privileged information: the hints quote the project's own documentation and the error text of the turn. The policy can read "
    "the same documentation with its tools, but is not shown it. No hint contains a line of the deleted code.",
    "Each arm used its own best learning rate of the same grid (1e-4, 2e-4, 4e-4), and the same number of rollouts.",
)


def rate(arm: str, step: int) -> float:
    """Probability of passing, rising along a logistic curve."""
    first, last = ARMS[arm]
    return first + (last - first) / (1 + math.exp(-(step - 18) / 5))


def metrics(arm: str, step: int, rng: random.Random) -> dict[str, float]:
    """What a trainer logs at one step."""
    p = rate(arm, step) + rng.gauss(0, 0.03)
    hinted = arm != "grpo"
    values = {
        "reward/mean": min(1.0, max(0.0, p)),
        "reward/unscored": float(rng.random() < 0.1),
        "rlvr/loss": rng.gauss(0, 0.02),
        "rlvr/frac_zero_std": abs(p - 0.4),
        "rlvr/entropy/mean": 1.2 * math.exp(-step / 30) + rng.random() * 0.05,
        "rlvr/clip_frac": rng.random() * 0.1,
        "optimizer/grad_norm": 40.0 if step == 23 else 0.5 + rng.random(),
        "optimizer/learning_rate": 4e-4 * (1 - step / STEPS),
        "rlvr/tokens": 12_345 + 900.0 * step,
        "mismatch/k3": 1e-6 * rng.random(),
        "stop/submitted": 0.4 + 0.5 * step / STEPS,
        "stop/max_turns": 0.4 * (1 - step / STEPS),
        "stop/turn_tokens": 0.15 * (1 - step / STEPS),
        "stop/no_tool_call": 0.05,
        "rollout/total": 64.0 * step,
        "rollout/tokens_total": 64.0 * step * 200,
        "rollout/tokens/mean": 180 + rng.random() * 40,
        "rollout/turns/mean": 6 - step / 20,
        "grade/cache_hits": float(rng.randrange(20, 50)),
        "time/rollout_s": 0.8 + rng.random() * 0.2,
        "time/train_s": 0.5 + rng.random() * 0.1,
        "cost/cpu_s": 1.5 * step,
        "cost/usd": 0.0,
    }
    if hinted:
        values |= {
            "hint/loss": 0.9 * math.exp(-step / 15),
            "hint/turns": float(rng.randrange(30)),
            "hint/jsd/mean": 0.2 * math.exp(-step / 15),
        }
    if arm == "three_channels" and step >= 10:
        values |= {
            "replay/loss": 0.69 * math.exp(-(step - 10) / 12),
            "replay/pairs": 8.0,
            "replay/accuracy": min(1.0, 0.5 + step / 60),
        }
    if arm == "grpo" and step == 31:
        values["rlvr/loss"] = math.nan
    if step % 10 == 0:
        values |= {"eval/pass_at_1": p, "eval/pass_at_1_se": math.sqrt(max(p * (1 - p), 0.01) / 48)}
    return values


def turn(name: str, rng: random.Random, *, wrong: bool, text: str = "") -> Turn:
    """One turn; a wrong one calls a tool that does not exist."""
    call = "open_file" if wrong else name
    arguments = {"path": "src/tally/ledger.py"} if call != "submit" else {}
    sampled = (
        text or f'I need to look at the ledger first.\n<tool_call>\n{{"name": "{call}", "arguments": {arguments}}}\n</tool_call>'
    )
    length = rng.randrange(20, 60)
    content = (
        "unknown tool 'open_file'; tools: " + ", ".join(TOOLS)
        if wrong
        else "def total(self) -> int:\n    raise NotImplementedError\n" * 3
    )
    return Turn(
        action_ids=tuple(range(length)),
        logprobs=tuple(-rng.random() for _ in range(length)),
        text=sampled,
        tool_calls=(ToolCall(call_id="c0", name=call, arguments=arguments),),
        results=(ToolResult(call_id="c0", name=call, content=content, status="unknown_tool" if wrong else "ok"),),
        observation_ids=tuple(range(30)),
    )


def trajectory(
    arm: str, step: int, sibling: int, rng: random.Random, *, hostile: bool = False, named: int | None = None
) -> tuple[Trajectory, list[Hint]]:
    """One rollout and the hints for its error turns; `named` stands for the step in its id."""
    passed = rng.random() < rate(arm, step)
    reward: Reward = Unscored("the sandbox broke: cannot mount overlay") if sibling == 7 and step == 10 else float(passed)
    task = f"tally-{sibling % 4:02d}"
    name = f"{step if named is None else named}/{task}/{sibling}"
    wrong = [not passed and index == 1 for index in range(4)]
    turns = [turn(TOOLS[index], rng, wrong=wrong[index]) for index in range(4)]
    if hostile:
        turns.append(turn("edit", rng, wrong=False, text=HOSTILE + "x" * 100_000))
    turns.append(turn("submit", rng, wrong=False))
    outcomes = {f"tests/test_ledger.py::test_total[{n}]": Outcome.PASSED if passed or n < 3 else Outcome.FAILED for n in range(6)}
    grade = GradeReport(
        reward=reward,
        outcomes=outcomes,
        reasons=() if passed else ("3 of 4 fail-to-pass tests failed: assert 12 == 7",),
        rejected=("tests/conftest.py",) if sibling == 3 else (),
        isolation=ISOLATION,
        cached=sibling % 5 == 0,
    )
    messages: tuple[Message, ...] = (
        {"role": "system", "content": "You repair a Python project with the tools you are given. " * 12},
        {
            "role": "user",
            "content": f"Write the missing body of `Ledger.total` in task {task}. The tallyman's rule is in docs/terms.md.",
        },
    )
    one = Trajectory(
        trajectory_id=name,
        task_id=task,
        policy_version=step,
        messages=messages,
        tools=tuple({"type": "function", "function": {"name": tool}} for tool in TOOLS),
        prompt_ids=tuple(range(220)),
        turns=tuple(turns),
        stop_reason=StopReason.SUBMITTED if passed or sibling % 3 else StopReason.MAX_TURNS,
        temperature=1.0,
        reward=reward,
        grade=grade,
        arm=arm,
    )
    text = "There is no tool `open_file`. The tools are: " + ", ".join(TOOLS) + ". Read a file with `read_file`."
    hints = [
        Hint(trajectory_id=name, turn=i, kind="unknown_tool", text=text, source="template") for i, bad in enumerate(wrong) if bad
    ]
    return one, hints if arm != "grpo" else []


def pair(trace: str, turn: int) -> dict[str, Any]:
    """A replay pair at a turn of a frozen trace."""
    good = '<tool_call>\n{"name": "read_file", "arguments": {"path": "src/tally/ledger.py"}}\n</tool_call>'
    return {
        "pair_id": f"{trace}#{turn}",
        "state_id": f"{trace}#{turn}",
        "trajectory_id": trace,
        "turn": turn,
        "chosen": good,
        "rejected": good.replace("read_file", "open_file"),
        "votes": {"local-a": good, "local-b": good, "local-c": good.replace("read_file", "search")},
    }


def make_run(path: Path, *, seed: int = 0, finished: bool = True) -> RunDir:
    """Write the run directory (without its report)."""
    rng = random.Random(seed)
    run = RunDir.create(path)
    run.write_config('[model]\nname = "composer-tiny (Qwen3 architecture, 3.1 M parameters)"\n')
    run.log_event("isolation", ISOLATION)
    for arm in ARMS:
        for step in range(STEPS + 1):
            off = (
                {}
                if arm == "three_channels" and step >= 10
                else {"replay": "no pairs yet" if arm == "three_channels" else "weight 0"}
            )
            off |= {"hint": "weight 0"} if arm == "grpo" else {}
            run.log_metrics(arm, step, metrics(arm, step, rng))
            run.log_event("step", f"{arm} {step}/{STEPS}", arm=arm, step=step, total=STEPS, off=off)
        for step in RECORDED:
            made = [trajectory(arm, step, n, rng, hostile=step == STEPS and n == 5) for n in range(SIBLINGS)]
            run.write_trajectories(arm, step, [one for one, _ in made])
            run.write_hints(arm, step, [hint for _, hints in made for hint in hints])
            run.write_evaluation(arm, step, [trajectory(arm, step, n, rng, named=EVALUATION)[0] for n in range(4)])
        if arm == "three_channels":
            traces = [trajectory(arm, 0, n, rng, named=TRACES)[0] for n in range(SIBLINGS)]
            run.write_traces(arm, traces)
            run.write_pairs(arm, [pair(one.trajectory_id, turn) for one in traces for turn in range(len(one.turns))])
    return run


def rows() -> list[SummaryRow]:
    """The result table of the fake run."""
    start = SummaryRow(arm="warm start", pass_at_1=0.163, pass_at_1_se=0.03, rollouts=192, tokens=36_864, cpu_s=None)
    rest = [
        SummaryRow(arm=arm, pass_at_1=last, pass_at_1_se=0.05, rollouts=2560, tokens=512_345, cpu_s=60.5)
        for arm, (_, last) in ARMS.items()
    ]
    return [start, *rest]


if __name__ == "__main__":
    folder = make_run(Path(sys.argv[1]))
    print(write_report(folder, title="Quickstart: three channels against GRPO alone", summary_rows=rows(), notes=NOTES))
