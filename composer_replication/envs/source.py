"""Name what a run trains on: tasks, and a fresh environment for each. `env=` in Python and `[env]` in a run file name one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from composer_replication.rollouts.protocol import Env
from composer_replication.types import TaskSpec


class AnyTask(Protocol):
    """A task, as far as training needs to know it. Our own tasks (`tasks.store.Task`) and `EnvTask` both have it."""

    @property
    def spec(self) -> TaskSpec: ...

    @property
    def provenance(self) -> Mapping[str, Any]: ...

    def docs(self) -> Mapping[str, str]:
        """Return prose that hints may quote, by name."""
        ...

    def deleted_code(self) -> Sequence[str]:
        """Return texts that no hint may give away."""
        ...

    def digest(self) -> bytes:
        """Return bytes that change when the task changes: a run does not resume on other tasks."""
        ...


@dataclass(frozen=True, slots=True)
class EnvTask:
    """A task of an environment that is not ours."""

    task_id: str
    """Unique among the tasks of a source, and the same in every process."""
    instruction: str = ""
    """The request to the agent; hints may refer to it."""
    documentation: Mapping[str, str] = field(default_factory=dict)
    """Prose that hints may quote, by name."""
    secrets: tuple[str, ...] = ()
    """Texts that no hint may give away, such as the answer."""

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(
            task_id=self.task_id,
            source="environment",
            source_digest=hashlib.sha256(self.digest()).hexdigest(),
            instruction=self.instruction,
            deleted=(),
            fail_to_pass=(),
            pass_to_pass=(),
            editable=(),
        )

    @property
    def provenance(self) -> Mapping[str, Any]:
        return {}

    def docs(self) -> Mapping[str, str]:
        return self.documentation

    def deleted_code(self) -> Sequence[str]:
        return self.secrets

    def digest(self) -> bytes:
        return json.dumps([self.task_id, self.instruction, dict(self.documentation), self.secrets]).encode()


@runtime_checkable
class EnvSource(Protocol):
    """Tasks and their environments. `make` is called once per rollout, from any thread, and must be cheap."""

    @property
    def train(self) -> Sequence[AnyTask]:
        """Tasks to train on; at least `rollout.groups`."""
        ...

    @property
    def held_out(self) -> Sequence[AnyTask]:
        """Tasks for pass@1, never trained on; may be empty."""
        ...

    def make(self, task_id: str) -> Env:
        """Create a fresh episode of one task."""
        ...
