"""Preference pairs from teachers who agree on an action other than the student's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from composer_replication.actions.agreement import (
    ActionComparison,
    Ballot,
    Cluster,
    Scene,
    Vote,
    choose,
    cluster_votes,
    compare,
    family_accuracies,
    files_seen,
    why_no_pair,
)
from composer_replication.actions.calls import Call, action_message, command_in, render_action
from composer_replication.teachers import TeacherAnswer, cast_vote
from composer_replication.tokens import ChatRenderer
from composer_replication.traces import TraceState, state_id
from composer_replication.traces.recorder import native_call
from composer_replication.types import Pair, Trajectory
from composer_replication.types.errors import ConfigError


def check_states(states: Sequence[TraceState]) -> None:
    """Raise ConfigError when an entry is not a `TraceState`, or two states have one id."""
    for index, state in enumerate(states):
        problem = _problem_of(state)
        if problem is not None:
            raise ConfigError(
                f"states[{index}]{problem}",
                fix="a state has state_id, messages (what the agent had seen, in the OpenAI form) and student_action",
            )
    counts = Counter(s["state_id"] for s in states)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise ConfigError(f"two states have the id {repeated[0]!r}", fix="give every state a unique id")


def _problem_of(state: Any) -> str | None:
    """Return what keeps a value from being a state, to follow its name; None when nothing does."""
    if not isinstance(state, Mapping):
        return f" is {type(state).__name__!r}, no dict"
    for key, kind in (("state_id", str), ("messages", Sequence), ("student_action", str)):
        if key not in state:
            return f" has no {key}"
        if not isinstance(state[key], kind) or (key != "student_action" and not state[key]):
            return f".{key} is {state[key]!r:.60}"
    for place, message in enumerate(state["messages"]):
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            return f".messages[{place}] is no dict with role and content"
    return None


class DPOPair(TypedDict):
    """A disagreement at one state."""

    state_id: str
    state_messages: list[dict[str, Any]]
    """The conversation before the action."""
    chosen: str
    """The teachers' consensus action."""
    rejected: str
    """The student's action."""
    n_teachers_agreeing: int


@dataclass(frozen=True, slots=True)
class PairMining:
    """The pairs of a replay, and what became of everything else."""

    pairs: tuple[DPOPair, ...]
    confidence: Mapping[str, float]
    """By state id: the pair's weight in the loss, in (0, 1]; see `agreement.Choice`."""
    dropped: Mapping[str, int]
    """Number of states without a pair, by reason; `len(pairs)` plus these is the number of states."""
    abstained: Mapping[str, int]
    """Number of teacher answers that had no vote, by reason."""
    methods: Mapping[str, int]
    """Number of comparisons by what ended them, e.g. `same: canonical`."""
    weights: Mapping[str, float]
    """Weight of each family's vote."""
    undecided: tuple[tuple[str, str], ...]
    """Actions that no method could compare; a judge may (`teachers.judge_pairs`)."""
    clusters: int
    """Groups of two votes or more, or of votes and the student's action, that are one action (SAME)."""
    dissolved: int
    """Clusters that contradicted themselves, and were none."""

    @property
    def length_ratio(self) -> float | None:
        """Mean of `len(chosen) / len(rejected)` in characters: far from 1, preference learns length. None without pairs."""
        ratios = [len(p["chosen"]) / len(p["rejected"]) for p in self.pairs if p["rejected"]]
        return sum(ratios) / len(ratios) if ratios else None


def extract_dpo_pairs(
    states: Sequence[TraceState], teacher_actions: Sequence[TeacherAnswer], agreement_threshold: int = 2
) -> list[DPOPair]:
    """Return the pairs of `find_disagreements`, which also gives the reasons why the other states have none."""
    return list(find_disagreements(states, teacher_actions, agreement_threshold).pairs)


def scene_of(state: TraceState) -> Scene:
    """Return what the state itself reveals: its tools, the files its messages show whole, whether its actions are written in
    text."""
    files = files_seen(state["messages"])
    return Scene(files=files, tools=state.get("tools", ()), text_actions=_writes_its_actions(state))


def _writes_its_actions(state: TraceState) -> bool:
    """Return what the state says; else whether there is no tool, and all its agent's messages end with a command in a block."""
    if "text_actions" in state:
        return state["text_actions"]
    said = [m for m in state["messages"] if m.get("role") == "assistant"]
    if state.get("tools") or state.get("student_tool_calls") or any(m.get("tool_calls") or m.get("function_call") for m in said):
        return False
    texts = [state["student_action"], *(str(m.get("content")) for m in said)]
    return all(text.rstrip().endswith("```") and command_in(text) is not None for text in texts)


def find_disagreements(
    states: Sequence[TraceState],
    teacher_actions: Sequence[TeacherAnswer],
    agreement_threshold: int = 2,
    *,
    scenes: Callable[[TraceState], Scene] = scene_of,
    judged: Mapping[tuple[str, str], ActionComparison] | None = None,
    weights: Mapping[str, float] | Literal["equal", "fitted"] = "equal",
) -> PairMining:
    """Make one pair for every state where enough teachers agree on another action than the student's.

    Actions are compared by `agreement.compare`; only valid ones vote (`cast_vote`). The student's is rejected when it is
    certainly another one than the teachers': where that is undecided, or both only look at the same thing, there is no pair.

    Args:
        agreement_threshold: model families, not teachers, that must choose the action.
        scenes: what is known of a state; more than its messages tell where there is a sandbox.
        judged: verdicts of a judge on actions that nothing else decides.
        weights: of a family's vote; `fitted` are accuracies estimated from how the families agree
            (`agreement.family_accuracies`).

    Raises:
        ConfigError: an entry is not a state, two states of one id, or a threshold below one.
        SandboxError: a scene's sandbox broke.
    """
    check_states(states)
    if agreement_threshold < 1:
        raise ConfigError(f"agreement_threshold is {agreement_threshold}", fix="ask for at least one agreeing teacher")
    by_state: dict[str, list[TeacherAnswer]] = defaultdict(list)
    for answer in teacher_actions:
        by_state[answer.question_id].append(answer)
    counts = _MiningCounts()
    clustered = [_clustered(state, by_state[state["state_id"]], _with(judged, scenes(state)), counts) for state in states]
    families = {c.family or c.teacher for c in teacher_actions}
    if isinstance(weights, str) and weights not in ("equal", "fitted"):
        raise ConfigError(f"weights is {weights!r}", fix="write 'equal', 'fitted' or a number for each family")
    if weights == "fitted":
        silent = [Ballot({family: 0}) for family in families]  # one of two minds everywhere is at the prior
        weights = family_accuracies([*silent, *(_ballot(clusters) for clusters, _ in clustered)])
    elif weights == "equal":
        weights = {}
    pairs: list[DPOPair] = []
    confidence: dict[str, float] = {}
    for state, (clusters, dissolved) in zip(states, clustered, strict=True):
        choice = choose(clusters, threshold=agreement_threshold, weights=weights)
        reason = choice if isinstance(choice, str) else why_no_pair(choice.cluster.student)
        if isinstance(choice, str) or reason:
            counts.dropped["the verdicts contradict each other" if isinstance(choice, str) and dissolved else reason] += 1
            continue
        pairs.append(_pair(state, choice.cluster))
        confidence[state["state_id"]] = choice.confidence * choice.cluster.student.confidence
    return PairMining(
        pairs=tuple(pairs),
        confidence=confidence,
        dropped=dict(counts.dropped),
        abstained=dict(counts.abstained),
        methods=dict(counts.methods),
        weights={family: weights.get(family, 1.0) for family in sorted(families)},
        undecided=tuple(sorted(counts.undecided)),
        clusters=sum(len(c.votes) > 1 or c.student.same for clusters, _ in clustered for c in clusters),
        dissolved=sum(dissolved for _, dissolved in clustered),
    )


@dataclass(slots=True)
class _MiningCounts:
    """Counters of the mining."""

    dropped: Counter[str] = field(default_factory=Counter)
    abstained: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    undecided: set[tuple[str, str]] = field(default_factory=set)


def _with(judged: Mapping[tuple[str, str], ActionComparison] | None, scene: Scene) -> Scene:
    return scene if judged is None else replace(scene, judge=lambda one, other: judged.get((one, other)))


def _clustered(
    state: TraceState,
    answers: Sequence[TeacherAnswer],
    scene: Scene,
    counts: _MiningCounts,
) -> tuple[list[Cluster], int]:
    outcomes = [cast_vote(a, state.get("tools", ())) for a in answers]
    counts.abstained.update(o for o in outcomes if isinstance(o, str))
    known: dict[tuple[str, str], ActionComparison] = {}

    def same(one: str, other: str) -> ActionComparison:
        key = (one, other) if one < other else (other, one)
        if key not in known:
            known[key] = compare(*key, scene)
            counts.methods[f"{known[key].answer}: {known[key].method}"] += 1
            if known[key].method == "none":
                counts.undecided.add(key)
        return known[key]

    return cluster_votes([o for o in outcomes if isinstance(o, Vote)], student_action(state), same)


def _ballot(clusters: Sequence[Cluster]) -> Ballot:
    """Return the families' votes. A family whose teachers disagree has none."""
    said = Counter(family for cluster in clusters for family in cluster.families)
    return Ballot({family: i for i, cluster in enumerate(clusters) for family in cluster.families if said[family] == 1})


def same_action(state: TraceState, answer: TeacherAnswer) -> bool:
    """Return whether an answer is a valid action and certainly the student's."""
    vote = cast_vote(answer, state.get("tools", ()))
    return isinstance(vote, Vote) and compare(vote.action, student_action(state), scene_of(state)).same


def student_action(state: TraceState) -> str:
    """Return the student's action as text to compare."""
    wire = state.get("student_tool_calls") or ()
    calls = [native_call(c.get("id") or "", c["function"]["name"], c["function"]["arguments"])[0] for c in wire]
    if calls and all(call.error is None for call in calls):
        return render_action("", [Call(call.name, call.arguments) for call in calls])
    return state["student_action"]


def _pair(state: TraceState, cluster: Cluster) -> DPOPair:
    return DPOPair(
        state_id=state["state_id"],
        state_messages=list(state["messages"]),
        chosen=cluster.action,
        rejected=state["student_action"],
        n_teachers_agreeing=len(cluster.votes),
    )


def pairs_to_token_pairs(
    pairs: Sequence[DPOPair],
    trajectories: Sequence[Trajectory],
    renderer: ChatRenderer,
    confidence: Mapping[str, float] | None = None,
) -> list[Pair]:
    """Convert pairs at the states of our own trajectories to token ids.

    The prompt is what the policy saw at that turn and the rejected side what it sampled there, id for id. The chosen side is the
    teachers' action as the policy itself would write it: its own chat template, no teacher's prose beside a tool call.

    Args:
        confidence: weights by state id (`PairMining.confidence`); 1 for a pair without one.

    Raises:
        ConfigError: a pair's state is not a turn of `trajectories`.
    """
    turns = {state_id(t.trajectory_id, i): (t, i) for t in trajectories for i in range(len(t.turns))}
    token_pairs: list[Pair] = []
    for pair in pairs:
        if pair["state_id"] not in turns:
            raise ConfigError(
                f"the pair's state {pair['state_id']!r} is not a turn of these trajectories",
                fix="pass the trajectories whose states were replayed",
            )
        trajectory, turn = turns[pair["state_id"]]
        token_pairs.append(
            Pair(
                pair_id=pair["state_id"],
                prompt_ids=trajectory.context_ids(turn),
                chosen_ids=renderer.assistant_ids(action_message(pair["chosen"], turn=turn)),
                rejected_ids=trajectory.turns[turn].action_ids,
                confidence=(confidence or {}).get(pair["state_id"], 1.0),
            )
        )
    return token_pairs
