"""The run file's fields of the reward and of the three channels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from composer_replication.config.replay import GateConfig, NormalizeConfig
from composer_replication.config.section import Positive, ReadBy, Section, Share, Weight, refuse

__all__ = ["EffortConfig", "HintConfig", "LossConfig", "PrmRewardConfig", "ReplayConfig", "RewardConfig", "RlvrConfig"]


class EffortConfig(Section):
    """A penalty on long and laborious trajectories that bites most while they are short: weight * ((1 + k x)^(1 - q) - 1) /
    (k (1 - q)) for an effort x."""

    weight: Weight = 0.0
    """Subtracted from the reward times the penalty; 0 turns it off."""
    k: Annotated[float, Field(gt=0.0)] = 0.001
    """Curvature: the penalty is straight for x much below 1 / k."""
    q: Weight = 2.0
    """0 is a straight line, 1 a logarithm; above 1 the penalty never exceeds 1 / (k (q - 1))."""
    thinking_tokens: Weight = 1.0
    """What a token up to the end of a turn's thinking counts in x."""
    tool_call_tokens: Weight = 1.0
    """What another sampled token of a turn with a tool call counts."""
    final_tokens: Weight = 1.0
    """What another sampled token of a turn without one counts."""
    tool_output_tokens: Weight = 0.0
    """What a token of the environment's replies counts."""
    tool_calls: Weight = 0.0
    """What a tool call counts."""
    turns: Weight = 0.0
    """What a turn counts."""


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
    """What is added to the tests' verdict before advantages are taken. pass@1 and `reward/mean` stay the verdict's."""

    effort: EffortConfig = EffortConfig()
    prm: PrmRewardConfig = PrmRewardConfig()
    overlong_tokens: Annotated[int, Field(ge=0)] = 0
    """DAPO's soft punishment: the reward falls by 1 over the last so many of `rollout.trajectory_tokens`; 0 turns it off."""
    kl_weight: Weight = 0.0
    """Weight of the k1 estimate of the trajectory's KL(policy || reference), in nats; see `loss.rlvr.kl_beta` for the one in the
    loss."""


class RlvrConfig(Section):
    """Channel 1: policy gradient on the tests' verdict."""

    objective: Literal["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "dppo"] = "dapo"
    """The loss of a token and how tokens are averaged. PPO's clipped ratio, averaged per sequence (grpo), over a constant length
    (dr_grpo) or over all tokens of the batch (dapo, bnpo); the ratio of the whole sequence (gspo); a clipped weight that drops
    no token (cispo); tokens dropped by how far their probability has moved (dppo). A step takes one
    update on its rollouts, so ratios stay at 1 and the average is what matters."""
    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    """Reward minus the group's mean, divided by its deviation (grpo) or not (dr_grpo); or minus the siblings' mean (rloo)."""
    epsilon_low: Share | None = None
    """The ratio to the sampling policy is clipped below 1 - epsilon_low; by default 0.2, for gspo 3e-4, for cispo 1 (no limit).
    In dppo tokens are dropped whose probability has fallen by more, by default 0.2."""
    epsilon_high: Weight | None = None
    """The ratio is clipped above 1 + epsilon_high; larger than epsilon_low it is DAPO's clip-higher. By default 0.28, for gspo
    4e-4, for cispo 4. In dppo the probability may rise by as much, by default 0.2."""
    kl_beta: Weight = 0.0
    """Weight of the k3 estimate of KL(policy || reference) in the loss. The reference is the policy the run started from."""
    importance: Literal["none", "tis", "icepop"] = "none"
    """Correction of tokens to which the trainer gives another probability than the engine that sampled them did: their ratio as a
    weight, cut at importance_high (tis) or with tokens outside the interval left out (icepop). The policy that scores is then
    taken for the one that sampled."""
    importance_low: Annotated[Weight, ReadBy("importance", "icepop")] = 0.5
    """icepop leaves out tokens with a smaller ratio."""
    importance_high: Annotated[float, Field(gt=0.0), ReadBy("importance", "tis", "icepop")] = 2.0
    """tis cuts ratios here; icepop leaves out tokens with a larger one."""

    @model_validator(mode="after")
    def _the_interval_is_one(self) -> Self:
        if self.importance == "icepop" and not self.importance_low < self.importance_high:
            refuse(
                f"importance_low = {self.importance_low} is not below importance_high = {self.importance_high}",
                "lower importance_low or raise importance_high",
            )
        return self


class HintConfig(Section):
    """Channel 2: the policy with a hint teaches the policy without it, at the turn that went wrong."""

    weight: Weight = 1.0
    """Of the channel in the loss."""
    form: Literal["jsd", "top_k_jsd", "sampled_token", "taid", "entropy_opd", "entropy_gated"] = "jsd"
    """What is compared: the distributions over the vocabulary (jsd) or over its likeliest entries (top_k_jsd), or the sampled
    tokens' log-probs alone (sampled_token). `taid` moves the target from student to teacher over training; `entropy_opd` is
    forward KL where the teacher is unsure, reverse KL where it is sure; `entropy_gated` is sampled_token, plus the forward KL to
    the teacher's likeliest entries where its entropy is at least entropy_tau."""
    beta: Annotated[Share, ReadBy("form", "jsd", "top_k_jsd")] = 0.0
    """jsd and top_k_jsd: generalized Jensen-Shannon divergence: 0 is forward KL(teacher || student), 1 reverse KL."""
    scale: Annotated[Literal["trl", "continuous"], ReadBy("form", "jsd")] = "trl"
    """jsd: how the divergence is scaled at beta 0 and 1, as TRL does, or continuous in beta."""
    token_clip: Annotated[Annotated[float, Field(gt=0.0)] | None, ReadBy("form", "jsd")] = None
    """jsd: upper limit on the term of each vocabulary entry (OPSD has 0.05); by default there is none."""
    top_k: Annotated[Positive, ReadBy("form", "top_k_jsd")] = 100
    """top_k_jsd: so many of the student's likeliest entries, and one more that stands for the rest."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Divides the logits of both sides. sampled_token and entropy_gated need that of sampling, `rollout.temperature`."""
    entropy_h_max: Annotated[Annotated[float, Field(gt=0.0)] | None, ReadBy("form", "entropy_opd")] = None
    """entropy_opd: entropy in nats at which it is all forward KL; by default that of the uniform distribution."""
    entropy_tau: Annotated[Weight, ReadBy("form", "entropy_gated")] = 0.8
    """entropy_gated: entropy in nats from which the forward KL is added."""
    entropy_k: Annotated[Positive, ReadBy("form", "entropy_gated")] = 16
    """entropy_gated: so many of the teacher's likeliest entries."""
    entropy_alpha: Annotated[Weight, ReadBy("form", "entropy_gated")] = 1.0
    """entropy_gated: weight of the added term."""
    self_teacher: Literal["live", "frozen", "ema", "trust_region"] = "frozen"
    """Which weights read the hint: the policy's own, its start, a moving average, or a mixture with its start."""
    rate: Annotated[float, Field(gt=0.0, le=1.0), ReadBy("self_teacher", "ema", "trust_region")] = 0.05
    """Of the EMA or of the trust region."""
    reduction: Literal["turn", "token"] = "turn"
    """`turn`: sum over a turn's tokens, mean over turns. `token`: mean over all tokens."""
    detectors: tuple[str, ...] = (
        *("unknown_tool", "malformed_call", "invalid_arguments", "edit_not_applied", "path_not_found", "permission"),
        *("failed_run", "failed_grade", "repeated_action"),
    )
    """What finds error turns, by name; of one turn's findings the first that something can be said about counts. By default what
    only repeats the environment's word. Installed packages may add some."""
    generators: tuple[str, ...] = ("documentation", "template", "environment")
    """What writes hints, by name, the first to have something to say. `sibling` is what an attempt that passed did in the same
    place, `judge` is the first of [[teachers]], within loss.replay.max_total_usd."""
    demo: bool = False
    """`sibling` shows the action itself and not only what it was done on. The deleted code stays out of it."""
    useful_only: bool = False
    """Drop a hint under which the self-teacher finds neither the action taken less likely nor the better one, where a sibling did
    it, more likely. It costs two forward passes of a hinted turn, with a better action four."""
    per_trajectory: Positive = 1
    """Most hints of one trajectory, earliest error turns first."""
    shuffle: bool = False
    """Control arm: give every error turn another task's hint."""


class ReplayConfig(Section):
    """Channel 3: teachers re-answer frozen traces; verified disagreements become preference pairs."""

    weight: Weight = 1.0
    """Of the channel in the loss."""
    variant: Literal["dpo", "simpo"] = "dpo"
    """The loss on pairs: against the starting policy's log-probs (dpo), or length-normalized without a reference (simpo)."""
    dpo_beta: Annotated[float, Field(gt=0.0), ReadBy("variant", "dpo")] = 0.1
    """DPO's temperature."""
    simpo_beta: Annotated[float, Field(gt=0.0), ReadBy("variant", "simpo")] = 2.0
    """SimPO's temperature."""
    simpo_gamma: Annotated[Weight, ReadBy("variant", "simpo")] = 1.0
    """SimPO's target margin."""
    traces_per_task: Positive = 1
    """Trajectories of the starting policy that are frozen for replay, per training task."""
    agreement_threshold: Positive = 2
    """Families of teachers that must choose the same action, another than the student's."""
    verify: bool = True
    """Carry out each chosen action in the sandbox: an edit must pass the tests, others must work where the student failed."""
    pairs: Path | None = None
    """A file of preference pairs, as `composer pairs` writes them, beside the teachers' own or without teachers. They are written
    in the policy's chat template, shuffled by the seed, and not verified."""
    pairs_per_step: Positive = 8
    """Pairs in one optimizer step; the list is read round and round."""
    max_total_usd: Weight = 0.0
    """Hard spending cap. 0 allows only teachers whose price is zero."""
    gate: GateConfig = GateConfig()
    normalize: NormalizeConfig = NormalizeConfig()


class LossConfig(Section):
    """The three channels; weight 0 turns one off."""

    rlvr: RlvrConfig = RlvrConfig()
    hint: HintConfig = HintConfig()
    replay: ReplayConfig = ReplayConfig()
