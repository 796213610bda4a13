"""The parts of an arm that reads: its batches are passages of text, and it is measured by how well it predicts other text."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields

import torch
from torch.nn.utils.rnn import pad_sequence

from composer_replication.loss.micro_batches import passes
from composer_replication.observe.files import replace_file, storage_errors
from composer_replication.observe.metrics import mean_and_se
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.corpus.passages import Corpus
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.signals import SignalMaker
from composer_replication.trainer.stages.imitation import ImitationSignals
from composer_replication.types import Group, StopReason, Trajectory, Turn, Unscored

START = "held_out_nll.json"
"""The file in a run that keeps what the start gave each held-out document."""


class PassageCollector(RolloutCollector):
    """Gives each step its passages in place of rollouts, and measures the held-out documents in place of tasks."""

    corpus: Corpus
    learner: Learner

    async def collect(self, step: int, version: int) -> list[Group]:
        """Return the passages of a step, each a group by itself."""
        del version
        return [_group(place, self.corpus.passages[place]) for place in self.corpus.steps[step - 1]]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return how many passages a step learns from."""
        return {"pretrain/passages": float(len(groups))}

    async def evaluate(self, version: int) -> dict[str, float]:
        """Return nats per token of the held-out documents, as a mean over documents, and the change since the start with its
        standard error, which is paired."""
        found = self._nll_of_documents()
        if not found:
            return {}
        path = self.context.run_dir.path / START
        with storage_errors(path, "read"):
            if version == 0:
                replace_file(path, json.dumps(found).encode())
            first: list[float] = json.loads(path.read_text("utf-8"))
        change, se = mean_and_se([now - before for now, before in zip(found, first, strict=True)])
        nll = math.fsum(found) / len(found)
        return {
            "pretrain/nll": nll,
            "pretrain/nll_change": change,
            "pretrain/nll_change_se": se,
            "pretrain/documents": float(len(found)),
        }

    def _nll_of_documents(self) -> list[float]:
        """Return nats per token of each held-out document under the present policy."""
        sums: dict[int, float] = defaultdict(float)
        counts: dict[int, int] = defaultdict(int)
        held_out = self.corpus.held_out
        lengths = [len(passage) for _, passage in held_out]
        for places in passes(lengths, self.config.optimizer.micro_batch_tokens):
            rows = [torch.tensor(held_out[place][1]) for place in places]
            ids = pad_sequence(rows, batch_first=True)
            wanted = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            wanted[:, 0] = 0
            logprobs = self.learner.logprobs(ids, wanted).double().sum(-1).tolist()
            for place, logprob in zip(places, logprobs, strict=True):
                document = held_out[place][0]
                sums[document] -= logprob
                counts[document] += lengths[place] - 1
        return [sums[document] / counts[document] for document in sorted(sums)]


def _group(place: int, passage: Sequence[int]) -> Group:
    """Return a passage as a trajectory of one turn, whose first token is given."""
    name = f"passage/{place}"
    turn = Turn(action_ids=tuple(passage[1:]), logprobs=(0.0,) * (len(passage) - 1), text="")
    one = Trajectory(
        trajectory_id=name,
        task_id=name,
        policy_version=0,
        messages=(),
        tools=(),
        prompt_ids=(passage[0],),
        turns=(turn,),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=Unscored("text has no tests"),
    )
    return Group(group_id=name, task_id=name, trajectories=(one,))


def learn_from_text(trainer: ArmTrainer, corpus: Corpus) -> None:
    """Let an arm learn from a corpus, and say what is in it."""
    before = trainer.collector
    trainer.journal.keeps_trajectories = False  # a corpus is in its own files
    collector = PassageCollector(before.context, before.config, before.engine, before.renderer, trainer.journal)
    collector.corpus, collector.learner = corpus, trainer.learner
    trainer.collector = collector
    known = {field.name: getattr(trainer.signals, field.name) for field in fields(SignalMaker)}
    trainer.signals = ImitationSignals(**known)
    trainer.journal.learns_from(str(corpus))
