"""Run-file fields of the reward and of the three loss channels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from composer_replication.config.replay import GateConfig, NormalizeConfig
from composer_replication.config.section import Positive, ReadBy, Section, Share, Weight, refuse

HintSpan: TypeAlias = Literal["turn", "trajectory"]
"""Choices of `loss.hint.span`: the part of a trajectory that a hint is compared on."""


class EffortConfig(Section):
    """A penalty on long, laborious trajectories that is steepest while they are short: weight * ((1 + k x)^(1 - q) - 1) / (k (1 -
    q)) for an effort x."""

    weight: Weight = 0.0
    """Multiply the penalty by this and subtract it from the reward. 0 turns the penalty off."""
    k: Annotated[float, Field(gt=0.0)] = 0.001
    """Set the curvature: the penalty is nearly linear for efforts x well below 1 / k. Raise it to saturate earlier."""
    q: Weight = 2.0
    """Set the shape: 0 is linear, 1 logarithmic; above 1 the penalty never exceeds 1 / (k (q - 1))."""
    thinking_tokens: Weight = 1.0
    """Count each token up to the end of a turn's thinking as this much effort."""
    tool_call_tokens: Weight = 1.0
    """Count each other sampled token of a turn with a tool call as this much effort."""
    final_tokens: Weight = 1.0
    """Count each other sampled token of a turn without a tool call as this much effort."""
    tool_output_tokens: Weight = 0.0
    """Count each token of the environment's replies as this much effort."""
    tool_calls: Weight = 0.0
    """Count each tool call as this much effort."""
    turns: Weight = 0.0
    """Count each turn as this much effort."""


class PrmRewardConfig(Section):
    """Process rewards: a trained model's probability that each turn is good."""

    path: Path | None = None
    """Load the process reward model from this folder, the `model` that `composer prm train` wrote. It needs the policy's
    tokenizer. Paths are relative to the run file's folder."""
    weight: Weight = 0.0
    """Add this times the process advantage to the advantage of each turn's tokens; 0 adds nothing. The process advantage of a
    turn is the sum of the scores of it and of the turns after it, each in deviations from the mean of the group's turns
    (DeepSeekMath, arXiv:2402.03300, section 4.1.3). It grows with the number of turns: begin at 0.1 or so, and lower it when
    `reward/prm/mean` rises and pass@1 does not. The substrates trl, verl and prime_rl refuse it."""


class RewardConfig(Section):
    """Terms added to the tests' verdict before advantages are computed. pass@1 and `reward/mean` still report the bare
    verdict."""

    function: str | None = None
    """Score each trajectory by this function, `package.module:name`, in place of the environment's reward. It gets the whole
    `Trajectory` and returns a number; 1.0 and more counts as passed."""
    effort: EffortConfig = EffortConfig()
    prm: PrmRewardConfig = PrmRewardConfig()
    overlong_tokens: Annotated[int, Field(ge=0)] = 0
    """Lower the reward linearly, by up to 1, over the last this many tokens of `rollout.trajectory_tokens` (DAPO's soft overlong
    punishment). 0 turns it off; an eighth of the budget is a good start."""
    kl_weight: Weight = 0.0
    """Multiply the k1 estimate of the trajectory's KL(policy || reference), in nats, by this and subtract it from the reward. For
    a KL term in the loss set `loss.rlvr.kl_beta` instead."""
    teacher_kl_weight: Weight = 0.0
    """Add this times log p(teachers) - log p(policy), in nats, to the advantage of every sampled token: on-policy distillation,
    which descends KL(policy || teachers). The teachers are those of [[teachers]] with `scores_tokens`, and p(teachers) is the
    mean of their probabilities. It teaches on every task, also where no sibling passes. Begin at 0.1 beside rewards, at 1 in
    their place, and watch `reward/teacher_kl/mean`. The substrates trl, verl and prime_rl refuse it."""


class RlvrConfig(Section):
    """Channel 1: policy gradient on the tests' verdict."""

    objective: Literal["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "dppo"] = "dapo"
    """Choose the token loss and how tokens are averaged: PPO's clipped ratio averaged per sequence (grpo), over a constant length
    (dr_grpo) or over all tokens of the batch (dapo, bnpo); one ratio per sequence (gspo); a clipped weight that drops no token
    (cispo); a gate that closes gradually in place of the clip (sapo); or dropping tokens whose probability moved too much (dppo).
    While a step makes one update on its own rollouts, ratios stay at 1 and the averaging is what matters."""
    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    """Subtract the group's mean reward and divide by its standard deviation (grpo) or not (dr_grpo), or subtract the mean of the
    siblings (rloo)."""
    epsilon_low: Share | None = None
    """Clip the ratio to the sampling policy below 1 - epsilon_low. Defaults to 0.2; gspo: 3e-4; cispo: 1 (no limit). In dppo,
    drop tokens whose probability fell by more than this, by default 0.2."""
    epsilon_high: Weight | None = None
    """Clip the ratio above 1 + epsilon_high; a value above epsilon_low is DAPO's clip-higher. Defaults to 0.28; gspo: 4e-4;
    cispo: 4. In dppo, drop tokens whose probability rose by more than this, by default 0.2."""
    dppo_tau: Annotated[Weight, ReadBy("objective", "dppo")] = 1e-3
    """Multiply the squared log-ratio to the sampling policy by this (dppo). Raise it when `rlvr/kl_k3` grows."""
    ratio_cap: Annotated[
        Annotated[float, Field(gt=1.0)] | None, ReadBy("objective", "grpo", "bnpo", "dr_grpo", "dapo", "gspo")
    ] = None
    """Cap the ratio at this where the advantage is negative, above 1 + epsilon_high (`delta` in TRL; the two-sided clip). No cap
    by default: then a token that became much more likely is pushed down without limit. Set 4 or so for several updates a step."""
    off_policy_threshold: Weight | None = None
    """Leave trajectories with a negative advantage out once the policy has moved away from them: when the mean over their tokens
    of sampling minus present log-prob is above this, in nats. Off by default. Try 0.1 or so with several updates a step or stale
    rollouts."""
    entropy_bonus: Weight = 0.0
    """Subtract the mean entropy of the sampled tokens' distributions, in nats, times this from the loss. Raise it, from 0.001 or
    so, when `rlvr/entropy/mean` falls towards 0 and all siblings act alike. With entropy_target this is where the coefficient
    begins."""
    entropy_target: Weight | None = None
    """Hold the entropy near this, in nats: the coefficient of the bonus grows by entropy_step after each step at or below it,
    falls after others, and applies only after steps at or below it. Choose a value near the entropy of the first steps. Off by
    default."""
    entropy_step: Weight = 0.005
    """Change the coefficient of the entropy bonus by this much per step (with entropy_target)."""
    kl_beta: Weight = 0.0
    """Multiply the KL to the reference in the loss by this. The reference is the policy the run started from."""
    kl_estimator: Literal["k3", "k2", "unbiased"] = "k3"
    """Choose the term whose gradient pulls to the reference: `k3`, GRPO's, has the expected gradient of KL(reference || policy);
    `k2` that of KL(policy || reference); `unbiased` the same also off-policy, as it weights tokens by the ratio to the policy
    that sampled them."""
    importance: Literal["none", "tis", "icepop"] = "none"
    """Correct for an engine that assigns sampled tokens another probability than the trainer does: weight each token by the
    ratio, capped at importance_high (tis), or drop tokens outside the interval (icepop). Ratios of the
    objective are then taken to the policy before the step's first update. Use it with a server (`rollout.engine`)."""
    importance_level: Annotated[Literal["token", "sequence"], ReadBy("importance", "tis", "icepop")] = "token"
    """Take the ratio of each token, or that of the whole trajectory (the product of its tokens' ratios) for all of its tokens.
    The latter is unbiased and varies more; with icepop it drops whole trajectories, as TRL does by default (importance_low = 0,
    importance_high = 3)."""
    importance_low: Annotated[Weight, ReadBy("importance", "icepop")] = 0.5
    """Drop tokens whose ratio is below this (icepop)."""
    importance_high: Annotated[float, Field(gt=0.0), ReadBy("importance", "tis", "icepop")] = 2.0
    """Cap ratios at this (tis), or drop tokens whose ratio is above it (icepop)."""

    @property
    def has_entropy_bonus(self) -> bool:
        """True when some step may add an entropy bonus."""
        return self.entropy_bonus > 0 or self.entropy_target is not None

    @property
    def whole_sequences(self) -> bool:
        """True when a token's loss depends on other tokens of its trajectory."""
        sequence_weights = self.importance != "none" and self.importance_level == "sequence"
        return self.objective == "gspo" or self.off_policy_threshold is not None or sequence_weights

    @model_validator(mode="after")
    def _the_interval_is_one(self) -> Self:
        if self.importance == "icepop" and not self.importance_low < self.importance_high:
            refuse(
                f"importance_low = {self.importance_low} is not below importance_high = {self.importance_high}",
                "lower importance_low or raise importance_high",
            )
        return self

    @model_validator(mode="after")
    def _limits_are_read(self) -> Self:
        if self.objective == "sapo" and (self.epsilon_low is not None or self.epsilon_high is not None):
            refuse("epsilon_low and epsilon_high are not read with objective = sapo: its gate has no threshold", "remove them")
        if self.entropy_target is None and self.entropy_step != type(self).model_fields["entropy_step"].default:
            refuse(f"entropy_step = {self.entropy_step} is not read without entropy_target", "set entropy_target")
        if self.kl_beta == 0 and self.kl_estimator != "k3":
            refuse(f"kl_estimator = {self.kl_estimator} is not read with kl_beta = 0", "set kl_beta above 0")
        usual = 4e-4 if self.objective == "gspo" else 0.28
        high = usual if self.epsilon_high is None else self.epsilon_high
        if self.ratio_cap is not None and self.ratio_cap <= 1.0 + high:
            refuse(
                f"ratio_cap = {self.ratio_cap} is not above 1 + epsilon_high = {1.0 + high}: the clip acts before it",
                "raise ratio_cap, to 4 or so",
            )
        return self


class HintConfig(Section):
    """Channel 2: the policy with a hint teaches the policy without it, at the turn that went wrong."""

    weight: Weight = 1.0
    """Multiply the hint channel's loss by this. 0 turns the channel off."""
    max_pull: Annotated[float, Field(gt=0.0)] | None = None
    """Lower the weight, to a tenth at most, while the channel pulls more than this many times as hard on the policy as the policy
    gradient (`hint/pull` over `rlvr/pull`, averaged over some steps). No cap by default; set 3 or so where the run warns that the
    channel drowns the others. `hint/weight_share` tells what was applied."""
    form: Literal["jsd", "top_k_jsd", "sampled_token", "taid", "entropy_opd", "entropy_gated"] = "jsd"
    """Choose what is compared: distributions over the vocabulary (jsd) or over its most likely tokens (top_k_jsd), or only the
    sampled tokens' log-probs (sampled_token). `taid` moves the target from student to teacher over training; `entropy_opd` uses
    forward KL where the teacher is unsure and reverse KL where it is sure; `entropy_gated` is sampled_token plus forward KL to
    the teacher's most likely tokens where its entropy is at least entropy_tau."""
    beta: Annotated[Share, ReadBy("form", "jsd", "top_k_jsd")] = 0.5
    """Interpolate the generalized Jensen-Shannon divergence of jsd and top_k_jsd: 0 is forward KL(teacher || student), 1 is
    reverse KL."""
    scale: Annotated[Literal["trl", "continuous"], ReadBy("form", "jsd")] = "trl"
    """Scale the jsd divergence at beta 0 and 1 as TRL does (`trl`), or so that it is continuous in beta (`continuous`)."""
    token_clip: Annotated[Annotated[float, Field(gt=0.0)] | None, ReadBy("form", "jsd")] = None
    """Cap each vocabulary entry's term of jsd at this value (OPSD uses 0.05). No cap by default."""
    top_k: Annotated[Positive, ReadBy("form", "top_k_jsd")] = 100
    """Compare the student's k most likely tokens, plus one bucket for the rest (top_k_jsd)."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Divide the logits of both sides by this. sampled_token and entropy_gated require the value of `rollout.temperature`."""
    entropy_h_max: Annotated[Annotated[float, Field(gt=0.0)] | None, ReadBy("form", "entropy_opd")] = None
    """Use only forward KL from this teacher entropy on, in nats (entropy_opd). Defaults to the entropy of the uniform
    distribution."""
    entropy_tau: Annotated[Weight, ReadBy("form", "entropy_gated")] = 0.8
    """Add the forward KL where the teacher's entropy, in nats, is at least this (entropy_gated)."""
    entropy_k: Annotated[Positive, ReadBy("form", "entropy_gated")] = 16
    """Compare the teacher's k most likely tokens in the added forward KL (entropy_gated)."""
    entropy_alpha: Annotated[Weight, ReadBy("form", "entropy_gated")] = 1.0
    """Multiply the added forward KL by this (entropy_gated)."""
    self_teacher: Literal["live", "frozen", "ema", "trust_region"] = "frozen"
    """Choose the weights that read the hint: the policy's current ones (live), its starting ones (frozen), a moving average
    (ema), or a mixture of current and starting ones (trust_region)."""
    rate: Annotated[float, Field(gt=0.0, le=1.0), ReadBy("self_teacher", "ema", "trust_region")] = 0.05
    """Set the update rate of the moving average (ema) or the mixing rate (trust_region)."""
    reduction: Literal["turn", "token"] = "token"
    """Average over all compared tokens, as the other channels do over theirs (`token`), or sum over a turn's tokens and average
    over turns (`turn`), which weighs a token more by the tokens of a turn."""
    span: HintSpan = "turn"
    """Put each hint before the turn that went wrong and compare that turn (`turn`), or put all hints of a trajectory after its
    prompt and compare all of its turns (`trajectory`), as SDPO does with whole responses; then raise per_trajectory and name the
    generator `feedback`, to give the self-teacher all that the environment said. `trajectory` compares many more tokens, of turns
    that were right too."""
    detectors: tuple[str, ...] = (
        *("unknown_tool", "malformed_call", "invalid_arguments", "edit_not_applied", "path_not_found", "permission"),
        *("failed_run", "failed_grade", "repeated_action", "malformed_markup", "no_tool_call", "cut_off"),
    )
    """Name the detectors that find error turns. If several fire on one turn, the first one that yields a hint counts. The
    defaults repeat what the environment itself reported, or find that a turn has no call that could be carried out. Installed
    packages may add detectors."""
    generators: tuple[str, ...] = ("documentation", "template", "environment")
    """Name the hint writers; the first that has something to say writes the hint. `feedback` gives all that the environment
    answered; `sibling` describes what a passing attempt did at the same point; `judge` asks the first of [[teachers]], within
    loss.replay.max_total_usd, and `policy` the policy itself, which samples up to 160 tokens for each hint."""
    demo: bool = False
    """Let `sibling` show the action itself, not only what it was applied to. The deleted code is never shown."""
    useful_only: bool = False
    """Drop a hint unless, given it, the self-teacher finds the action taken less likely or a sibling's better action more likely.
    This costs two forward passes per hinted turn, or four when there is a better action."""
    per_trajectory: Positive = 1
    """Use at most this many hints per trajectory, earliest error turns first."""
    held_turns: Annotated[Annotated[int, Field(ge=0)], ReadBy("self_teacher", "frozen", "ema", "trust_region")] = 1
    """For each hint, compare this many other turns of the trajectory too, drawn at random, which the self-teacher reads without
    a hint. They keep the policy from forgetting them while it learns from its errors. Each costs a forward pass of the
    self-teacher; set 0 when the policy gradient moves all turns anyway and the cost matters."""
    shuffle: bool = False
    """Give every error turn another task's hint. Use it only as a control arm."""

    @model_validator(mode="after")
    def _whole_trajectories_need_less(self) -> Self:
        if self.span == "trajectory" and self.held_turns != type(self).model_fields["held_turns"].default:
            refuse(
                f"held_turns = {self.held_turns} is not read with span = trajectory: every turn is compared", "remove held_turns"
            )
        if self.span == "trajectory" and self.useful_only:
            refuse(
                "useful_only asks about one action, and span = trajectory compares all", "set useful_only = false or span = turn"
            )
        return self


class ReplayConfig(Section):
    """Channel 3: teachers re-answer frozen traces; verified disagreements become preference pairs."""

    weight: Weight = 3.0
    """Multiply the replay channel's loss by this. 0 turns the channel off."""
    max_pull: Annotated[float, Field(gt=0.0)] | None = None
    """Lower the weight, to a tenth at most, while the channel pulls more than this many times as hard on the policy as the policy
    gradient; see loss.hint.max_pull. `replay/weight_share` tells what was applied."""
    variant: Literal["sft", "dpo", "dpo_positive", "ipo", "apo_zero", "kto", "simpo"] = "sft"
    """Choose the loss on pairs. `sft` raises the log-prob of the chosen answers and reads nothing else. The others also push the
    rejected answers down, relative to the starting policy's log-probs: by the pair's margin (dpo), with a penalty on chosen
    answers that become less likely (dpo_positive), up to a margin of 1 / (2 dpo_beta) in log-prob per token (ipo), each answer
    for itself (apo_zero), or from a moving reference point (kto); simpo compares log-probs per token without a reference."""
    anchor: Annotated[Weight, ReadBy("variant", "dpo", "dpo_positive", "ipo", "apo_zero", "kto", "simpo")] = 1.0
    """Add this times the loss of `sft` to that of the pairs. Without it the chosen answers lose probability together with the
    rejected ones wherever both are much alike; 0 is refused in a run file."""
    dpo_beta: Annotated[float, Field(gt=0.0), ReadBy("variant", "dpo", "dpo_positive", "ipo", "apo_zero", "kto")] = 0.1
    """Set the beta of the losses with a reference. Lower it to let the policy move further from the reference."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5), ReadBy("variant", "dpo")] = 0.0
    """Assume that each pair has its two sides swapped with this probability (conservative DPO). Set it to the share of wrong
    pairs that you expect."""
    dpo_positive_penalty: Annotated[Weight, ReadBy("variant", "dpo_positive")] = 5.0
    """Multiply by this what a chosen answer has lost in log-prob since the start (lambda in the paper, which used 5 to 50)."""
    simpo_beta: Annotated[float, Field(gt=0.0), ReadBy("variant", "simpo")] = 2.0
    """Set SimPO's beta, which multiplies the difference of length-normalized log-probs."""
    simpo_gamma: Annotated[Weight, ReadBy("variant", "simpo")] = 1.0
    """Set SimPO's target margin."""
    soft_targets: Annotated[Share, ReadBy("variant", "sft")] = 0.0
    """Take this share of a chosen answer's loss from the distributions of the teachers with `scores_tokens` over its tokens:
    KL(teachers || policy) over their soft_top_k likeliest tokens and one bucket for all others; the rest from the log-prob of the
    answer itself. It needs a vLLM server whose model has the policy's tokenizer. Try 0.5 where such teachers are at hand: they
    also say which other tokens would have done."""
    soft_top_k: Positive = 20
    """Ask each such teacher for this many of its likeliest tokens in a place; vLLM tells of up to its --max-logprobs, by default
    20."""
    learning_rate: Annotated[float, Field(gt=0.0)] | None = None
    """Learn from pairs in an optimizer step to themselves, with this learning rate and moments of their own. By default they
    share the step and rate of the other channels. Set it where pairs should move the policy more slowly than rollouts do. It
    doubles the optimizer's memory; the substrates trl, verl and prime_rl refuse it."""
    traces_per_task: Positive = 1
    """Freeze this many trajectories of the starting policy per training task for replay."""
    agreement_threshold: Positive = 2
    """Require this many teacher families to choose the same action, different from the student's."""
    judge: bool = False
    """Ask the first of [[teachers]], within max_total_usd, whether two actions are interchangeable where neither their text nor
    the sandbox tells, in both orders. Turn it on when the run reports many undecided comparisons."""
    verify: bool = True
    """Execute each chosen action in the sandbox: an edit must pass the tests, any other action must work where the student
    failed."""
    pairs: Path | None = None
    """Read preference pairs from this file, as written by `composer pairs`, in addition to or instead of the teachers' own. They
    are formatted with the policy's chat template, shuffled with the seed, and not verified."""
    pairs_per_step: Positive = 8
    """Use this many pairs per optimizer step, cycling through the list."""
    reattempts: Annotated[Annotated[int, Field(ge=0)], ReadBy("variant", "sft")] = 0
    """After each step's rollouts, try up to this many failed ones again, from their hinted turn on and with the hint in the
    context; where that passes the tests, imitate the action without the hint, beside the pairs of this step. Each costs at most a
    rollout. Use it where hints tell what to do and teachers are missing; 0 turns it off."""
    held_turns: Annotated[Annotated[int, Field(ge=0)], ReadBy("variant", "sft")] = 1
    """For each pair of the teachers or of a re-attempt, imitate this many other turns of the same trajectory too, as the policy
    took them. They keep the policy from forgetting these turns while it learns from its disagreements. Each costs as much as a
    pair; set 0 to save that where rollouts hold the policy anyway. Pairs of a file come without."""
    max_total_usd: Weight = 0.0
    """Stop asking teachers before their total cost, in US dollars, exceeds this. 0 allows only teachers whose price is zero."""
    gate: GateConfig = GateConfig()
    normalize: NormalizeConfig = NormalizeConfig()

    @model_validator(mode="after")
    def _limits_act(self) -> Self:
        if self.soft_targets == 0 and self.soft_top_k != type(self).model_fields["soft_top_k"].default:
            refuse(f"soft_top_k = {self.soft_top_k} is not read with soft_targets = 0", "set soft_targets above 0")
        if self.max_pull is not None and self.learning_rate is not None:
            refuse(
                "max_pull and learning_rate are both set: pairs with optimizer steps of their own drown nothing",
                "leave one of them out",
            )
        return self

    @property
    def has_reference(self) -> bool:
        """True when the loss compares with the starting policy's log-probs."""
        return self.variant not in ("sft", "simpo")

    @property
    def compares(self) -> bool:
        """True when the loss reads the rejected answers."""
        return self.variant != "sft"


class LossConfig(Section):
    """The three channels; weight 0 turns one off."""

    rlvr: RlvrConfig = RlvrConfig()
    hint: HintConfig = HintConfig()
    replay: ReplayConfig = ReplayConfig()

    @model_validator(mode="after")
    def _reattempts_have_hints(self) -> Self:
        if self.replay.reattempts > 0 and self.replay.weight > 0 and self.hint.weight == 0:
            refuse(
                "replay.reattempts goes on from hinted turns, and hint.weight = 0 makes no hints",
                "set hint.weight above 0, a small one if the divergence itself is not wanted, or replay.reattempts = 0",
            )
        if self.replay.reattempts > 0 and self.replay.weight > 0 and self.hint.span == "trajectory":
            refuse(
                "replay.reattempts goes on from one hinted turn, and hint.span = trajectory has none",
                "set hint.span = turn or replay.reattempts = 0",
            )
        return self
