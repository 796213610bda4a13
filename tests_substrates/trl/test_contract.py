"""What the trainer rests on in TRL: two signatures, the keys of a generation batch, its way to the loss, the fused forward."""

from __future__ import annotations

import inspect

import fixed
import one_gradient
import pytest
import torch
from trl import GRPOTrainer
from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

from composer_replication.loss.batch import collate
from composer_replication.recipes.trl.composer_trainer import ComposerReplicationTrainer
from composer_replication.recipes.trl.per_sample import PREFIX, gathered, spread

KEYS = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"}


@pytest.fixture(scope="module")
def case():
    return one_gradient.case()


def test_the_signatures():
    """Two methods change the step; `train` looks which checkpoint it is told to go on from, and hands its arguments on."""

    def names(method):
        return list(inspect.signature(method).parameters)

    assert names(GRPOTrainer.compute_loss) == ["self", "model", "inputs", "return_outputs", "num_items_in_batch"]
    assert names(GRPOTrainer._generate_and_score_completions) == ["self", "inputs"]
    assert names(GRPOTrainer.train)[:2] == names(ComposerReplicationTrainer.train)[:2] == ["self", "resume_from_checkpoint"]
    ours = {name for name, value in vars(ComposerReplicationTrainer).items() if inspect.isfunction(value)}
    assert {name for name in ours if hasattr(GRPOTrainer, name)} == {
        "__init__",
        "compute_loss",
        "_generate_and_score_completions",
        "train",
    }


def test_the_keys_of_a_generation_batch_and_a_step_of_it(case, tmp_path, monkeypatch):
    seen = []
    original = GRPOTrainer._generate_and_score_completions

    def look(self, inputs):
        found = original(self, inputs)
        seen.append(dict(found))
        return found

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", look)
    trainer, _ = fixed.make_trainer(case, tmp_path, ga=2)
    trainer.train()
    (out,) = seen
    assert KEYS | {"tool_mask", "sampling_per_token_logps"} == out.keys(), "old_per_token_logps is absent where steps are aligned"
    assert out["advantages"].shape == (4,)
    assert out["num_items_in_batch"].dim() == 0
    assert out["prompt_mask"][:, -1].all(), "prompts are padded on the left"
    assert out["completion_mask"][:, 0].all(), "completions on the right"
    sampled = sum(t.num_sampled_tokens() for t in case.trajectories)
    assert int(out["num_items_in_batch"]) == sampled, "environment tokens are in neither numerator nor denominator"


def test_extra_keys_survive_shuffling_and_splitting(case):
    batch = spread(case.batch, rows=4)
    assert {key.removeprefix(PREFIX) for key in batch} >= {"ctx_teacher_input_ids", "dpo_weights", "hint_denominator"}
    batch |= {"number": torch.arange(4)}
    torch.manual_seed(3)
    parts = split_tensor_dict(shuffle_sequence_dict(batch), 2)
    hints, pairs = {}, {}
    for part in parts:
        found = gathered(part)
        assert float(found["hint_denominator"]) == float(case.batch["hint_denominator"])
        for i, row in enumerate(found.get("student_row", [])):
            hints[int(part["number"][row])] = found["ctx_teacher_input_ids"][i][
                found["ctx_teacher_attention_mask"][i] != 0
            ].tolist()
        for ids, mask in zip(found.get("dpo_chosen_input_ids", ()), found.get("dpo_chosen_attention_mask", ()), strict=True):
            pairs[tuple(ids[mask != 0].tolist())] = True
    places = {t.trajectory_id: i for i, t in enumerate(case.trajectories)}
    assert hints == {places[h.trajectory_id]: list(h.teacher_ids) for h in case.hinted}
    assert set(pairs) == {(*pair.prompt_ids, *pair.chosen_ids) for pair in case.pairs}


def test_several_hints_of_one_trajectory_and_more_pairs_than_rows(case):
    hinted = [*case.hinted, case.hinted[0]]
    pairs = case.pairs * 3
    whole = collate(case.trajectories, None, hinted, pairs, pad_id=0)
    found = gathered(spread(whole, rows=4))
    assert sorted(found["student_row"].tolist()) == sorted(whole["student_row"].tolist())
    assert found["sdpo_loss_mask"].sum() == whole["sdpo_loss_mask"].sum()
    assert sorted(found["dpo_weights"].tolist()) == sorted(whole["dpo_weights"].tolist())


def test_nothing_in_a_batch_is_nothing_in_a_micro_batch(case):
    assert spread(collate(case.trajectories, None, pad_id=0), rows=4) == {}
    assert gathered({}) == {}


def test_the_fused_forward(case, tmp_path):
    trainer, _ = fixed.make_trainer(case, tmp_path)
    model = trainer.model
    assert "forward" in vars(model), "TRL patches the instance; a copy of the model must be made without"
    ids = torch.tensor([[5, 6, 7, 8]])
    fused = model(input_ids=ids, labels=ids, fused_lm_head=True)
    assert getattr(fused, "logits", None) is None
    plain = model(input_ids=ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(fused.log_probs, plain, rtol=1e-4, atol=1e-5)
