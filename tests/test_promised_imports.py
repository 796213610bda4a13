"""The import paths that users' guides are written against: they stay exactly where they are."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

import composer_replication
from composer_replication.types.errors import MissingExtraError

ROOT = Path(__file__).resolve().parent.parent
PROMISED = {
    "composer_replication": (
        *("DEFAULT_TEACHERS", "LossComponents", "build_batch", "compose_loss", "extract_dpo_pairs", "replay_trace"),
        "__version__",
    ),
    "composer_replication.diloco.serverless": ("LocalProcessExecutor", "ObjectStoreAllReduce"),
    "composer_replication.diloco.serverless.hf_jobs": ("HFJobsExecutor",),
    "composer_replication.diloco.serverless.modal": ("ModalExecutor",),
    "composer_replication.diloco.serverless.replica_entrypoint": (),
    "composer_replication.distillation": ("TAIDScheduler",),
    "composer_replication.distillation.simpo": ("simpo_loss",),
    "composer_replication.loss": ("LossComponents", "build_batch", "compose_loss"),
    "composer_replication.recipes.monarch.actors": ("ACTORS", "TrainerActor"),
    "composer_replication.recipes.prime_rl.composer_loss": ("loss_fn",),
    "composer_replication.replaysim": ("DJNormalizer", "replay_and_normalize_trace"),
    "composer_replication.replaysim.normalize": ("replay_and_normalize_trace",),
    "composer_replication.teacher_replay": ("DEFAULT_TEACHERS", "extract_dpo_pairs", "replay_trace"),
}
"""Module: names. What needs an extra is below."""
WITH_AN_EXTRA = ("composer_replication.trainer.composer_trainer", "composer_replication.recipes.trl.composer_trainer")
FILES = (
    "composer_replication/recipes/monarch/actors.py",
    "composer_replication/recipes/replaysim/default.yaml",
    "examples/qwen_05b_quickstart/run.py",
)


@pytest.mark.slow
@pytest.mark.parametrize("module", PROMISED)
def test_a_promised_path_has_its_names(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in PROMISED[module] if getattr(found, name, None) is None] == []


@pytest.mark.slow
@pytest.mark.parametrize("module", WITH_AN_EXTRA)
def test_the_trainer_of_trl_is_there_or_names_its_extra(module: str) -> None:
    if find_spec("trl") is not None:
        assert importlib.import_module(module).ComposerReplicationTrainer is composer_replication.ComposerReplicationTrainer
        return
    with pytest.raises(MissingExtraError) as missing:
        _ = importlib.import_module(module).ComposerReplicationTrainer
    assert "composer-replication[trl]" in missing.value.fix
    assert isinstance(missing.value, ImportError)


@pytest.mark.parametrize("path", FILES)
def test_a_promised_file_is_there(path: str) -> None:
    assert (ROOT / path).is_file()


def test_the_outer_loop_says_whether_it_is_available() -> None:
    assert composer_replication._DILOCO_AVAILABLE in (True, False)
