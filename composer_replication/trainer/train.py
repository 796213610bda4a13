"""Train one arm: the whole recipe, top to bottom. Start reading here.

    roll out -> grade -> hint -> replay -> compose the loss -> step -> record

Run it with `composer train run.toml`, or small and with nothing to download with `composer quickstart`. It is simpler than what
is public about Cursor's Composer 2.5:

1. A step learns from its own rollouts, by default in one optimizer update, so the policy that samples is the policy that learns.
   Asynchronous training is on the substrates `ray`, `monarch`, `verl` and `prime_rl`.
2. Teachers answer once, before the first step, about trajectories of the starting policy; training cycles through their pairs.
3. Hints are written by templates and from the project's documentation; a language model as judge is optional.

The parts of a step live in `trainer.collector` (rollouts), `trainer.signals` (advantages and hints), `trainer.pairs.replay`
(pairs), `loss` (one loss of three channels) and `trainer.learning.learner` (the optimizer). `trainer.arm` puts them together and
resumes them; `trainer.journal` records them. With the engine in this process, and environments and rewards that repeat
themselves, everything follows from the run file and the step number, so that a resumed run repeats lost steps exactly.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.journal import flat
from composer_replication.trainer.pairs.held import pairs_of_step
from composer_replication.trainer.pairs.reattempts import reattempt


class StepCallback:
    """Hooks that `train_arm` calls. Override what you need; every method may be left as it is."""

    def on_begin(self, arm: ArmTrainer) -> bool | None:
        """Take over resuming, and return whether there was something to resume from. None leaves it to the arm's checkpoints."""

    def on_update(self, arm: ArmTrainer) -> Mapping[str, float]:
        """Run after the optimizer step and before it is recorded. The metrics that you return are logged with the step."""
        del arm
        return {}

    def on_step_end(self, arm: ArmTrainer, step: int, metrics: Mapping[str, float]) -> None:
        """Run once the step is in the run's files and before its checkpoint. `metrics` are everything that was logged."""


async def train_arm(arm: ArmTrainer, progress: Phase, callbacks: Sequence[StepCallback] = ()) -> SummaryRow:
    """Train one arm from where it is to its last step and return its summary."""
    config, learner, collector, signals, journal = arm.config, arm.learner, arm.collector, arm.signals, arm.journal
    answers = [answer for callback in callbacks if (answer := callback.on_begin(arm)) is not None]
    if len(answers) > 1:
        raise ValueError("two callbacks resume the run: pass one of them")
    pairs = await arm.begin(resumed=answers[0] if answers else None)  # or evaluates the start and collects the teachers' pairs
    progress.advance(learner.version)
    while learner.version < config.steps:
        step, began = learner.version + 1, time.monotonic()

        # Roll out groups of siblings in sandboxes; their tests grade them.
        groups = await collector.collect(step, learner.version)
        rolled = time.monotonic()

        # Advantages over each group, and hints at the turns that went wrong.
        step_signals = signals.make(step, groups)
        arm.engine.rest()  # hints may have been asked of the policy

        # Failed rollouts once more, with the hint in the context: what passes is learnt without it.
        again = await reattempt(collector, config, groups, step_signals.hinted, step, learner.version)
        sampled = time.monotonic()

        # Preference pairs: what teachers agreed on, against what the policy did.
        step_pairs = again.beside(pairs_of_step(pairs, step, config.loss.replay.pairs_per_step))

        # One batch, one loss of three channels, one optimizer step or several.
        result = learner.update(signals.batch(groups, step_signals, step_pairs))
        updates = [callback.on_update(arm) for callback in callbacks]
        arm.engine.reset()  # its caches belong to the old weights

        # Record the step, and pass@1 on held-out tasks every so often.
        metrics = {**collector.metrics(groups), **step_signals.metrics, **again.metrics, **result.metrics}
        metrics |= {"time/rollout_s": rolled - began, "time/update_s": time.monotonic() - sampled}
        for update in updates:
            metrics |= update
        if step % config.eval.every == 0 or step == config.steps:
            metrics |= await collector.evaluate(learner.version)
        off = {**result.off, **signals.why_off(step_pairs, step_signals)}
        logged = journal.record_step(step, flat(groups), step_signals.hints, metrics, off, again.trajectories)
        for callback in callbacks:
            callback.on_step_end(arm, step, logged)
        progress.advance()
        if step % config.checkpoint_every == 0 or step == config.steps:
            arm.save()
    return journal.summary()
