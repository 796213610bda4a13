"""The hint channel's teacher: the policy itself, read with a hint in its context. Which weights it uses is a choice with
consequences.

A live teacher moves with every step and can drag the policy away together with itself; a frozen, slowly moving (EMA) or anchored
(trust-region) one cannot. SDPO (arXiv:2601.20802) uses the last two.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from composer_replication.types.errors import CheckpointError

SelfTeacherKind: TypeAlias = Literal["live", "frozen", "ema", "trust_region"]


class TeacherPart(NamedTuple):
    """One model whose logits, times `share`, the teacher's logits are made of."""

    share: float
    model: nn.Module
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Entered while the model is run."""

    def is_live(self, student_model: nn.Module) -> bool:
        """Return whether this part is the student itself, so that a forward pass of one can be reused for the other."""
        return self.model is student_model and self.context is nullcontext


class SelfTeacher(Protocol):
    """Gives the distribution that the hint channel's student is pulled towards."""

    def parts(self, student_model: nn.Module) -> tuple[TeacherPart, ...]:
        """Return the models to run, without gradient and with dropout off; their shares sum to 1."""
        ...

    def update(self, student_model: nn.Module) -> None:
        """Follow the student; called once after every step of a run, however many optimizer steps that takes."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs; tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises CheckpointError when the state belongs to another kind of self-teacher."""
        ...


class _NothingToMove:
    """The state of a self-teacher that has no weights to move: its kind."""

    kind: str

    def update(self, student_model: nn.Module) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("kind") != self.kind:
            raise CheckpointError(
                f"the checkpoint's self-teacher is {state.get('kind')!r}, the run's is {self.kind!r}",
                fix="resume with the self-teacher it was saved with",
            )


class LiveTeacher(_NothingToMove):
    """The student's current weights."""

    kind = "live"

    def parts(self, student_model: nn.Module) -> tuple[TeacherPart, ...]:
        return (TeacherPart(1.0, student_model),)


class AdaptersOffTeacher(_NothingToMove):
    """A peft model with its adapters switched off: the model that they adapt, without a copy of it. What the adapters had learnt
    before is not in it."""

    kind = "adapters_off"

    def parts(self, student_model: nn.Module) -> tuple[TeacherPart, ...]:
        return (TeacherPart(1.0, student_model, partial(_adapters_off, student_model)),)


class FrozenTeacher(_NothingToMove):
    """The weights the student had when this object was made: a separate copy, whole on every rank.

    A resumed run makes it again from the starting weights, so its state is not the weights but the norm of each, which tells
    whether they are the same.
    """

    kind = "frozen"

    def __init__(self, model: nn.Module) -> None:
        """Raise ValueError for a model that FSDP2 has sharded, which cannot be copied: make the teacher before sharding."""
        if any(_is_sharded(parameter) for parameter in model.parameters()):
            raise ValueError(f"a {self.kind} self-teacher is a copy of the policy: make it before `fully_shard`")
        self._model = copy.deepcopy(model).eval().requires_grad_(False)

    def parts(self, student_model: nn.Module) -> tuple[TeacherPart, ...]:  # noqa: ARG002 - protocol
        return (TeacherPart(1.0, self._model),)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "norms": _norms(self._model)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise CheckpointError also when the state is that of other starting weights."""
        super().load_state_dict(state)
        own, saved = _norms(self._model), state.get("norms", {})
        if own.keys() != saved.keys() or any(not math.isclose(own[name], saved[name], rel_tol=1e-6) for name in own):
            raise CheckpointError(
                f"the {self.kind} self-teacher of the checkpoint has other weights than the model that this run starts from",
                fix="resume with the model that the run began with",
            )


class EMATeacher(FrozenTeacher):
    """An exponential moving average of the student: after each step, teacher = (1 - rate) teacher + rate student. Of a student
    that FSDP2 has sharded in the meantime the ranks gather one weight at a time.

    The average is kept in float32 when the model is bf16 or fp16: rate times a difference is below their resolution.
    """

    kind = "ema"

    def __init__(self, model: nn.Module, rate: float = 0.05) -> None:
        """Raise ValueError unless 0 < rate <= 1."""
        _check_rate(rate)
        super().__init__(model)
        if any(p.dtype in (torch.bfloat16, torch.float16) for p in self._model.parameters()):
            self._model = self._model.float()
        self.rate = rate

    @torch.no_grad()
    def update(self, student_model: nn.Module) -> None:
        """Move the average by one step; buffers are copied."""
        student = dict(student_model.named_parameters())
        for name, average in self._model.named_parameters():
            average.lerp_(_whole(student[name]).to(average), self.rate)
        buffers = dict(student_model.named_buffers())
        for name, buffer in self._model.named_buffers():
            buffer.copy_(_whole(buffers[name]))

    def state_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": self._model.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _NothingToMove.load_state_dict(self, state)
        self._model.load_state_dict(state["model"])


class TrustRegionTeacher(FrozenTeacher):
    """A point between the frozen weights' and the student's logits: (1 - rate) reference + rate student. Two forward passes."""

    kind = "trust_region"

    def __init__(self, model: nn.Module, rate: float = 0.05) -> None:
        """Raise ValueError unless 0 < rate <= 1."""
        _check_rate(rate)
        super().__init__(model)
        self.rate = rate

    def parts(self, student_model: nn.Module) -> tuple[TeacherPart, ...]:
        return (TeacherPart(1.0 - self.rate, self._model), TeacherPart(self.rate, student_model))


def make_self_teacher(kind: SelfTeacherKind, model: nn.Module, *, rate: float = 0.05) -> SelfTeacher:
    """Make the self-teacher of this kind; `rate` is read by `ema` and `trust_region`. The `frozen` one of a peft model is an
    AdaptersOffTeacher.

    Raises ValueError on an unknown kind.
    """
    if kind == "live":
        return LiveTeacher()
    if kind == "frozen":
        return FrozenTeacher(model) if _with_adapters(model) is None else AdaptersOffTeacher()
    if kind == "ema":
        return EMATeacher(model, rate)
    if kind == "trust_region":
        return TrustRegionTeacher(model, rate)
    raise ValueError(f"unknown self-teacher {kind!r}: expected 'live', 'frozen', 'ema' or 'trust_region'")


def _norms(model: nn.Module) -> dict[str, float]:
    """Return the Euclidean norm of each parameter, by name."""
    return {
        name: float(torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64))
        for name, parameter in model.named_parameters()
    }


def _is_sharded(tensor: Tensor) -> bool:
    """Return whether it is a DTensor, without importing DTensor's slow module."""
    return hasattr(tensor, "full_tensor")


def _whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor on every rank; return others unchanged."""
    gathered: Tensor = getattr(tensor, "full_tensor", tensor.detach)()
    return gathered


def _with_adapters(model: nn.Module) -> Any:
    """Return the peft model inside wrappers that keep it as `.module`, or None."""
    inner: Any = model
    while not hasattr(inner, "disable_adapter") and isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module
    return inner if hasattr(inner, "disable_adapter") else None


@contextmanager
def _adapters_off(model: nn.Module) -> Iterator[None]:
    """Disable the adapters inside, then restore which parameters require a gradient: peft freezes the adapters and thaws all of
    them afterwards."""
    required = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

    def restore() -> None:
        for parameter, requires_grad in required:
            parameter.requires_grad_(requires_grad)

    try:
        with _with_adapters(model).disable_adapter():
            restore()
            yield
    finally:
        restore()


def _check_rate(rate: float) -> None:
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"a self-teacher's rate must be in (0, 1], got {rate}")
