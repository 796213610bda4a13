"""The promised path of `ComposerReplicationTrainer`, which lives in `recipes.trl` and needs the extra `trl`."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Load a name from `recipes.trl.composer_trainer` (PEP 562)."""
    return getattr(importlib.import_module("composer_replication.recipes.trl.composer_trainer"), name)
