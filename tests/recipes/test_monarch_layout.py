"""The actor classes can be read where Monarch is not installed, as the guide shows them; nothing else works there."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from composer_replication.types.errors import MissingExtraError

pytestmark = pytest.mark.skipif(find_spec("monarch") is not None, reason="Monarch is installed")


def test_actor_classes_and_their_endpoints_can_be_read() -> None:
    from composer_replication.recipes.monarch.actors import ACTORS, TrainerActor

    assert sorted(ACTORS) == ["env", "generator", "rewarder", "teachers", "trainer"]
    assert dict(TrainerActor.endpoints) == {"step": "train_outer_step", "publish": "publish", "save": "save"}
    assert callable(TrainerActor.train_outer_step)


def test_an_actor_cannot_be_made() -> None:
    from composer_replication.recipes.monarch.actors import TrainerActor

    with pytest.raises(MissingExtraError, match="composer-replication\\[monarch\\]"):
        TrainerActor("trainer", ())


def test_everything_else_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match="composer-replication\\[monarch\\]"):
        from composer_replication.recipes.monarch.mesh import MonarchMesh  # noqa: F401
