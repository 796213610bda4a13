"""The quickstart's world without boxes, and with exact probabilities.

Nearly all rollouts of the quickstart are one transcript, up to the operator in its edit: search, edit, run the tests, submit. A
task has eight such transcripts, one of which passes, and whatever leaves the script. One forward pass over all eight, whose
beginning they share, gives the probability of each; a rollout is one draw from them, and pass@1 is the probability of the one
that passes. A rollout that leaves the script is sampled from the policy to the end of the turn in which it does, and earns 0.
Records are the trainer's own: trajectories, hinted turns and pairs go through `collate` and `Learner.update`.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from composer_replication.config import HintSpan
from composer_replication.envs.coding import SYSTEM_PROMPT
from composer_replication.envs.oracle import call_turn
from composer_replication.envs.tools import CODING_TOOLS
from composer_replication.hints import insert_hints
from composer_replication.loss import sequence_logprobs
from composer_replication.loss.batch import right_padded
from composer_replication.quickstart.language import GLOSSARY, HOUSE_TERMS, OPERATIONS, WORDS, Module, modules, project_path
from composer_replication.quickstart.run import is_held_out
from composer_replication.quickstart.transcripts import EDITED, VALUES, demonstration, found, hint_text, instruction
from composer_replication.rollouts.protocol import SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine, stop_ids_of
from composer_replication.tokens import ChatRenderer
from composer_replication.traces.states import state_id
from composer_replication.types import Deletion, Hint, HintedTurn, Message, Pair, StopReason, Trajectory, Turn

OPERATORS = tuple(OPERATIONS.values())
FORMS = ("return {op}({first}, {second})", "value = {op}({first}, {second})\n    return value")
"""Ways to write an edit. The second is for pairs whose answers are long and differ in more than a word; policies that have only
seen the first give it no probability at all."""
_TURN = 64
"""Tokens that a turn may have."""


@dataclass(frozen=True, slots=True)
class Script:
    """One transcript of a task."""

    operator: str
    form: int
    turns: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """For each turn, the tokens that the policy samples and those that it then reads."""
    passes: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """A task: a deleted rule of a project, and all of its transcripts."""

    name: str
    term: str
    held_out: bool
    prompt: tuple[int, ...]
    before_edit: tuple[int, ...]
    """The prompt, the search, and what it found."""
    scripts: tuple[Script, ...]
    gold: str

    def hinted(self, renderer: ChatRenderer, word: str) -> tuple[int, ...]:
        """`before_edit` with a hint that the term means a word."""
        seen = renderer.strip_generation_prompt(list(self.before_edit))
        return (*seen, *renderer.hint_ids(hint_text(self.term, word)), *renderer.generation_prompt_ids)

    def edit(self, operator: str, form: int = 0) -> tuple[int, ...]:
        """Return the tokens that a turn with the edit samples."""
        (script,) = [script for script in self.scripts if (script.operator, script.form) == (operator, form)]
        return script.turns[1][0]


def rules(renderer: ChatRenderer, forms: int = 1) -> list[Rule]:
    """Return every task of the quickstart's projects, whose edits may be written in so many `forms`."""
    made = []
    for module in modules():
        project, file = module.path.split("/")
        tree = ast.parse((project_path(project) / project / file).read_text())
        deleted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.lineno in module.lines]
        made += [_rule(renderer, module, node, forms) for node in deleted]
    return made


def in_both_forms(rng: random.Random, meanings: Mapping[str, str] | None) -> list[Message]:
    """Return a demonstration whose edit is written in either form."""
    messages = demonstration(rng, meanings)
    if rng.random() < 0.5:
        for call in [call for message in messages for call in message.get("tool_calls", ())]:
            arguments = call["function"]["arguments"]
            if "new" in arguments:
                operator, operands = arguments["new"].removeprefix("return ").split("(")
                first, second = operands.rstrip(")").split(", ")
                arguments["new"] = FORMS[1].format(op=operator, first=first, second=second)
    return messages


def _rule(renderer: ChatRenderer, module: Module, node: ast.FunctionDef, forms: int) -> Rule:
    term = (ast.get_docstring(node) or "").split()[1]
    opening = [Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=instruction(module.path, node.name))]
    prompt = tuple(renderer.prompt_ids(opening, CODING_TOOLS))
    search = tuple(renderer.assistant_ids(call_turn("search", pattern="NotImplementedError")))
    seen = _read(renderer, found(module, node.lineno, node.name, term))
    scripts = []
    for form in range(forms):
        for operator in OPERATORS:
            new = FORMS[form].format(op=operator, first=module.first, second=module.second)
            edit = renderer.assistant_ids(call_turn("edit_file", path=module.path, old="raise NotImplementedError", new=new))
            report = _report(module, node.name, operator)
            turns = (
                (search, seen),
                (tuple(edit), _read(renderer, EDITED.format(path=module.path))),
                (tuple(renderer.assistant_ids(call_turn("run_tests"))), _read(renderer, report)),
                (tuple(renderer.assistant_ids(call_turn("submit"))), ()),
            )
            scripts.append(Script(operator, form, turns, report == "8 passed"))
    held_out = is_held_out(Deletion(path=module.path, qualname=node.name, lines=1))
    gold = OPERATIONS[GLOSSARY[term]]
    return Rule(node.name, term, held_out, prompt, (*prompt, *search, *seen), tuple(scripts), gold)


def _read(renderer: ChatRenderer, text: str) -> tuple[int, ...]:
    return tuple(renderer.delta_ids([Message(role="tool", content=text)], ended=True))


def _report(module: Module, name: str, operator: str) -> str:
    """Return what `run_tests` says of a rule with this operator."""
    project, file = module.path.split("/")
    text = (project_path(project) / "tests" / f"test_{file}").read_text()
    for a, b, wanted in re.findall(rf"assert {name}\((-?\d+), (-?\d+)\) == (-?\d+)", text):
        value = VALUES[operator](int(a), int(b))
        if value != int(wanted):
            return f"1 failed, 7 passed\ntest_{name}: assert {value} == {wanted}"
    return "8 passed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A transcript of a task and its log-probs."""

    rule: Rule
    script: Script
    logprobs: tuple[tuple[float, ...], ...]
    """One for each token sampled, turn by turn."""

    @property
    def logprob(self) -> float:
        return sum(map(sum, self.logprobs))


@torch.no_grad()
def outcomes(policy: Any, some: Sequence[Rule]) -> list[list[Outcome]]:
    """Return all transcripts of each task with their exact log-probs."""
    rows, marks = [], []
    for rule in some:
        for script in rule.scripts:
            ids, wanted = list(rule.prompt), [0] * len(rule.prompt)
            for action, observation in script.turns:
                ids += [*action, *observation]
                wanted += [1] * len(action) + [0] * len(observation)
            rows.append(ids)
            marks.append(wanted)
    ids, mask = right_padded(rows, 0)
    wanted, _ = right_padded(marks, 0)
    logprobs = sequence_logprobs(policy, ids, mask, wanted)
    read = iter([row[row_wanted != 0].tolist() for row, row_wanted in zip(logprobs, wanted, strict=True)])
    found_of = []
    for rule in some:
        mine = []
        for script in rule.scripts:
            flat, turns = next(read), []
            for action, _ in script.turns:
                turns.append(tuple(flat[: len(action)]))
                flat = flat[len(action) :]
            mine.append(Outcome(rule, script, tuple(turns)))
        found_of.append(mine)
    return found_of


@dataclass(frozen=True, slots=True)
class Standing:
    """Exact probabilities of what a policy does."""

    passes: tuple[float, ...]
    """Probability of a transcript that passes, by task."""
    on_script: float
    """Mean probability of any transcript."""

    @property
    def pass_at_1(self) -> float:
        return sum(self.passes) / len(self.passes)


def standing(policy: Any, some: Sequence[Rule]) -> Standing:
    """Measure a policy on tasks."""
    passes, on_script = [], 0.0
    for mine in outcomes(policy, some):
        chances = torch.tensor([one.logprob for one in mine], dtype=torch.float64).exp()
        passes.append(float(chances[[one.script.passes for one in mine]].sum()))
        on_script += float(chances.sum()) / len(some)
    return Standing(tuple(passes), on_script)


def drawn(
    policy: Any, renderer: ChatRenderer, some: Sequence[Rule], siblings: int, step: int, rng: random.Random
) -> list[list[Trajectory]]:
    """Return rollouts of tasks, as the policy would make them."""
    stops = stop_ids_of(policy.generation_config, renderer.tokenizer)
    engine = TransformersEngine(policy, renderer.tokenizer, stop_ids=sorted(stops))
    groups = []
    for rule, mine in zip(some, outcomes(policy, some), strict=True):
        chances = [float(torch.tensor(one.logprob).exp()) for one in mine]
        chosen = rng.choices([*mine, None], weights=[*chances, max(0.0, 1.0 - sum(chances))], k=siblings)
        leave = partial(_off_script, engine, stops, rule, mine, rng)
        groups.append(
            [(leave if one is None else partial(trajectory_of, one))(step, number) for number, one in enumerate(chosen)]
        )
    return groups


def trajectory_of(one: Outcome, step: int, number: int) -> Trajectory:
    """Return a rollout that keeps to the script."""
    turns = [
        Turn(action_ids=action, logprobs=logprobs, text=one.script.operator, observation_ids=observation)
        for (action, observation), logprobs in zip(one.script.turns, one.logprobs, strict=True)
    ]
    return _record(one.rule, turns, step, number, StopReason.SUBMITTED, float(one.script.passes))


def _record(rule: Rule, turns: Sequence[Turn], step: int, number: int, stop: StopReason, reward: float) -> Trajectory:
    return Trajectory(
        trajectory_id=f"{step}/{rule.name}/{number}",
        task_id=rule.name,
        policy_version=step,
        messages=(),
        tools=(),
        prompt_ids=rule.prompt,
        turns=tuple(turns),
        stop_reason=stop,
        temperature=1.0,
        reward=reward,
    )


@torch.no_grad()
def _off_script(
    engine: TransformersEngine,
    stops: Container[int],
    rule: Rule,
    mine: Sequence[Outcome],
    rng: random.Random,
    step: int,
    number: int,
) -> Trajectory:
    """Return a rollout that leaves the script: at a token drawn by how likely the policy is to leave there."""
    one = rng.choices(mine, weights=[float(torch.tensor(other.logprob).exp()) + 1e-4 for other in mine])[0]
    reached, places, weights = 0.0, [], []
    for turn, logprobs in enumerate(one.logprobs):
        for at, logprob in enumerate(logprobs):
            chance = float(torch.tensor(logprob).exp())
            places.append((turn, at))
            weights.append(float(torch.tensor(reached).exp()) * (1.0 - min(chance, 1.0)) + 1e-12)
            reached += logprob
    turn, at = rng.choices(places, weights=weights)[0]
    context = list(rule.prompt)
    for action, observation in one.script.turns[:turn]:
        context += [*action, *observation]
    action = one.script.turns[turn][0]
    context += action[:at]
    scores = engine.model(input_ids=torch.tensor([context])).logits[0, -1].float().log_softmax(-1)
    others = scores.exp()
    others[action[at]] = 0.0
    token = rng.choices(range(len(others)), weights=others.tolist())[0]
    ids, logprobs = [*action[:at], token], [*one.logprobs[turn][:at], float(scores[token])]
    if token not in stops and len(ids) < _TURN:
        asked = SampleRequest(
            session=f"{step}/{number}", new_ids=(*context, token), max_new_tokens=_TURN - len(ids), seed=rng.randrange(1 << 31)
        )
        (sample,) = engine.sample([asked], temperature=1.0)
        engine.close([asked.session])
        ids, logprobs = [*ids, *sample.ids], [*logprobs, *sample.logprobs]
    turns = [
        Turn(action_ids=done, logprobs=known, text="", observation_ids=observation)
        for (done, observation), known in zip(one.script.turns[:turn], one.logprobs[:turn], strict=True)
    ]
    turns.append(Turn(action_ids=tuple(ids), logprobs=tuple(logprobs), text=""))
    return _record(rule, turns, step, number, StopReason.NO_TOOL_CALL, 0.0)


def hints_of(
    groups: Sequence[Sequence[Trajectory]], some: Sequence[Rule], renderer: ChatRenderer, words: dict[str, str], span: HintSpan
) -> list[HintedTurn]:
    """Return a hint for the edit of each rollout that kept to the script and failed.

    Args:
        words: what the hint of each term says that it means.
        span: as for `insert_hints`.
    """
    trajectories = [one for siblings in groups for one in siblings]
    hints = [
        Hint(
            trajectory_id=one.trajectory_id,
            turn=1,
            kind="tests_failed",
            text=hint_text(rule.term, words[rule.term]),
            source="world",
        )
        for rule, siblings in zip(some, groups, strict=True)
        for one in siblings
        if one.stop_reason is StopReason.SUBMITTED and one.reward == 0.0
    ]
    return [*insert_hints(trajectories, hints, renderer, span=span).hinted]


def meanings(wrong: float, rng: random.Random) -> dict[str, str]:
    """Return what each term means, for a share of them another word."""
    return {
        term: rng.choice([other for other in WORDS if other != word]) if rng.random() < wrong else word
        for term, word in GLOSSARY.items()
    }


def pairs_of(
    policy: Any, train: Sequence[Rule], rng: random.Random, *, wrong: float = 0.0, long: bool = False
) -> tuple[list[Pair], list[Trajectory]]:
    """Return a pair for each task on which a draw of the policy is wrong: the right edit, and the one drawn. With them the traces
    of what was drawn.

    Args:
        wrong: share of pairs whose sides are exchanged.
        long: the chosen answers are written in the other form, and so are longer and differ in most of their tokens.
    """
    made, traces = [], []
    for rule, mine in zip(train, outcomes(policy, train), strict=True):
        known = [one for one in mine if one.script.form == 0]
        weights = [float(torch.tensor(one.logprob).exp()) for one in known]
        drawn = rng.choices(known, weights=weights)[0]
        operator = drawn.script.operator
        if operator == rule.gold:
            continue
        chosen, rejected = rule.edit(rule.gold, int(long)), rule.edit(operator)
        if rng.random() < wrong:
            chosen, rejected = rule.edit(operator, int(long)), rule.edit(rule.gold)
        sure = HOUSE_TERMS.index(rule.term) >= 3  # of the three teachers, each is wrong about one of the first three terms
        trace = trajectory_of(drawn, -1, 0)
        traces.append(trace)
        made.append(
            Pair(
                pair_id=state_id(trace.trajectory_id, 1),
                prompt_ids=rule.before_edit,
                chosen_ids=chosen,
                rejected_ids=rejected,
                confidence=1.0 if sure else 2 / 3,
            )
        )
    return made, traces
