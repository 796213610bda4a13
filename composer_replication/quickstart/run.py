"""The quickstart: tasks, warm start, teachers and two arms of training, each piece kept when it is done."""

from __future__ import annotations

import ast
import asyncio
import json
import shutil
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from composer_replication.config import (
    EvalConfig,
    HintConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    ReplayConfig,
    RolloutConfig,
    RunConfig,
    SandboxConfig,
    TasksConfig,
    TeacherConfig,
    is_name,
)
from composer_replication.observe import Phase, Terminal
from composer_replication.observe.files import exclusive, replace_file
from composer_replication.quickstart.language import HOUSE_TERMS, PROJECTS, modules, project_path
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.quickstart.teachers import TEACHERS, knowledge, served
from composer_replication.quickstart.warm_start import imitate, measure_hint_use
from composer_replication.sandbox import SandboxKind
from composer_replication.tasks.build import BuildEvent, BuildOptions, build_tasks
from composer_replication.tasks.store import load_task
from composer_replication.tokens import ChatRenderer
from composer_replication.types import Deletion
from composer_replication.types.errors import ConfigError, ModelError
from composer_replication.types.syntax import parse_module

ARM_STEPS = 36
WARM_START_STEPS = 350
MORE_STEPS, ENOUGH = 100, 0.85
"""The warm start continues, this many steps at a time, until the right edit has at least this probability with a hint."""
_MOST_ROUNDS = 4
TEACHER_STEPS = 80

ARMS: dict[str, dict[str, str | int | float | bool]] = {
    "grpo_only": {"loss.hint.weight": 0.0, "loss.replay.weight": 0.0, "optimizer.learning_rate": 3e-4},
    "three_channels": {},
}
"""The settings in which each arm differs; `make arms` searches a grid of rates and weights."""


def run_quickstart(run_path: Path, *, seed: int, steps: int, sandbox: SandboxKind) -> None:
    """Prepare what is missing, then train both arms; an interrupted quickstart continues where it stopped.

    Raises:
        ConfigError: the run directory holds another run, or another process is at work in it.
        ComposerError: whatever a part of the recipe has to say.
    """
    from composer_replication.trainer.open_run import open_run
    from composer_replication.trainer.report import train

    if not is_name(run_path.name):
        raise ConfigError(f"{run_path.name!r} is not a name for a run", fix="use letters, digits, '_', '-' and '.' in --name")
    terminal = Terminal()
    prepared = run_path.parent / f"{run_path.name}.prepared"
    prepare(prepared, terminal, seed=seed, sandbox=sandbox)
    with served({name: prepared / "teachers" / name for name in TEACHERS}) as teachers:
        config = quickstart_config(prepared, run_path, teachers, seed=seed, steps=steps, sandbox=sandbox)
        with open_run(config, resume=True) as run_dir:
            terminal.on_event = run_dir.log_event
            asyncio.run(train(config, run_dir, terminal, start_label="warm start"))


def prepare(folder: Path, terminal: Terminal, *, seed: int, sandbox: SandboxKind) -> None:
    """Prepare tasks, policy and teachers under `folder`; existing ones are kept."""
    import torch

    torch.set_num_threads(1)  # on a busy machine two threads spend their time waiting for each other
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / "seed.json"
    if not marker.exists():
        replace_file(marker, json.dumps(seed).encode())
    elif json.loads(marker.read_text()) != seed:
        raise ConfigError(f"{folder} was prepared with another seed", fix="give the new run another --name")
    with exclusive(folder):
        _build(folder, terminal, sandbox)
        warm_start(folder / "policy", terminal, seed)
        _teach(folder, terminal, seed)


def _teach(folder: Path, terminal: Terminal, seed: int) -> None:
    """Train the teachers that are missing: the policy, with demonstrations by someone who knows the words."""
    from composer_replication.loss.forward.models import load_policy

    missing = [t for t in TEACHERS if not (folder / "teachers" / t).exists()]
    if not missing:
        return
    (folder / "teachers").mkdir(exist_ok=True)
    with terminal.phase(f"teach {', '.join(missing)}", TEACHER_STEPS * len(missing)) as shown:
        for teacher in missing:
            model, tokenizer = load_policy(ModelConfig(path=str(folder / "policy"), device="cpu"))
            imitate(
                model,
                ChatRenderer(tokenizer),
                steps=TEACHER_STEPS,
                seed=seed * len(TEACHERS) + TEACHERS.index(teacher) + 1,
                meanings=knowledge(teacher),
                learning_rate=2e-3,
                on_step=shown.advance,
            )
            _keep(model, tokenizer, folder / "teachers" / teacher)


def quickstart_config(
    prepared: Path, run_path: Path, teachers: tuple[TeacherConfig, ...], *, seed: int, steps: int, sandbox: SandboxKind
) -> RunConfig:
    """Return the run file of the quickstart."""
    return RunConfig(
        name=run_path.name,
        out=run_path.parent.resolve(),
        seed=seed,
        steps=steps,
        checkpoint_every=18,
        threads=1,
        model=ModelConfig(path=str((prepared / "policy").resolve()), device="cpu"),
        tasks=TasksConfig(train=(prepared / "tasks" / "train").resolve(), held_out=(prepared / "tasks" / "held_out").resolve()),
        sandbox=SandboxConfig(kind=sandbox),
        rollout=RolloutConfig(
            groups=4,
            group_size=8,
            turn_tokens=64,
            trajectory_tokens=256,
            context_tokens=640,
            max_turns=6,
            cohorts=1,
        ),
        loss=LossConfig(hint=HintConfig(beta=0.5), replay=ReplayConfig(pairs_per_step=12)),
        optimizer=OptimizerConfig(learning_rate=1e-3, schedule="linear", micro_batch_tokens=10240),
        eval=EvalConfig(every=18, samples=4),
        teachers=teachers,
        arms=ARMS,
    )


def is_held_out(deleted: Deletion) -> bool:
    """Return whether a rule is kept for evaluation: two of the six rules of every house term, spread over the modules."""
    paths = [module.path for module in modules()]
    return (paths.index(deleted.path) + HOUSE_TERMS.index(_term(deleted))) % 3 == 0


def _term(deleted: Deletion) -> str:
    """Return the house term in a rule's docstring."""
    project = deleted.path.partition("/")[0]
    tree = parse_module((project_path(project) / deleted.path).read_text())
    rule = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == deleted.qualname)
    return (ast.get_docstring(rule) or "").split()[1]


def _build(folder: Path, terminal: Terminal, sandbox: SandboxKind) -> None:
    """Build one task per rule of the projects, in `tasks/train` and `tasks/held_out`."""
    done = folder / "tasks"
    if done.exists():
        return
    staged = folder / "tasks.partial"
    shutil.rmtree(staged, ignore_errors=True)
    for part in ("train", "held_out"):
        (staged / part).mkdir(parents=True)
    for project in PROJECTS:
        built = folder / "built" / project
        rules = tuple(f"{m.path}" for m in modules() if m.path.startswith(f"{project}/"))
        options = BuildOptions(packages=rules, trivial=True, sandbox=sandbox)
        with terminal.phase(f"build tasks from {project}", sum(len(m.lines) for m in modules() if m.path in rules)) as shown:

            def report(event: BuildEvent, shown: Phase = shown) -> None:
                if event.stage == "validating":
                    shown.advance(event.done - shown.done)

            made = build_tasks(str(project_path(project)), built, options, progress=report)
        for name in made.tasks:
            task = load_task(built / name)
            part = "held_out" if is_held_out(task.spec.deleted[0]) else "train"
            shutil.copytree(task.root, staged / part / name)
    staged.rename(done)


def warm_start(out: Path, terminal: Terminal, seed: int) -> None:
    """Make the policy that both arms start from; one that is there is kept. Raises ModelError when it does not use hints."""
    if out.exists():
        return
    tokenizer = tiny_tokenizer()
    renderer = ChatRenderer(tokenizer)
    model = tiny_model(tokenizer, seed)
    steps, rate = WARM_START_STEPS, 3e-3
    for round_ in range(_MOST_ROUNDS):
        with terminal.phase("warm start", steps) as shown:
            imitate(model, renderer, steps=steps, seed=seed + 1_000 * round_, learning_rate=rate, on_step=shown.advance)
        use = measure_hint_use(model, renderer)
        terminal.note(f"warm start: P(right edit) {use.without:.2f} without a hint, {use.with_hint:.2f} with one")
        if use.with_hint >= ENOUGH:
            break
        steps, rate = MORE_STEPS, 1e-3
    else:
        raise ModelError(
            f"the warm start of seed {seed} does not use hints: P(right edit | hint) is {use.with_hint:.2f}, {ENOUGH} is needed",
            fix="take another --seed, and another --name with it",
        )
    _keep(model, tokenizer, out)


def _keep(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Save a model, whole or not at all."""
    from composer_replication.loss.forward.models import save_policy

    partial = out.with_name(f"{out.name}.partial")
    save_policy(model, tokenizer, partial)
    partial.rename(out)
