"""The hint channel's teacher: the policy itself, read with a hint in its context. Which weights it uses is a choice with
consequences.

A live teacher moves with every step and can drag the policy away together with itself; a frozen, slowly moving (EMA) or anchored
(trust-region) one cannot. SDPO (arXiv:2601.20802) uses the last two.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
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

    def __init__(self, model: nn.Module, *, rounded_to: torch.dtype | None = None, on_cpu: bool = False) -> None:
        """Copy a model.

        Args:
            rounded_to: what autocast multiplies matrices in. The copy keeps the weights of linear layers in it, which changes no
                bit of what it computes there.
            on_cpu: keep the copy in CPU memory, and move it to the model's device for each pass.

        Raises:
            ValueError: FSDP2 has sharded the model, which then cannot be copied: make the teacher before sharding.
        """
        if any(_is_sharded(parameter) for parameter in model.parameters()):
            raise ValueError(f"a {self.kind} self-teacher is a copy of the policy: make it before `fully_shard`")
        self._device = next(model.parameters()).device
        self._model = _copied(model, rounded_to, torch.device("cpu") if on_cpu else self._device)
        self._visit = partial(_on_device, self._model, self._device) if on_cpu else nullcontext

    def parts(self, student_model: nn.Module) -> tuple[TeacherPart, ...]:  # noqa: ARG002 - protocol
        return (TeacherPart(1.0, self._model, self._visit),)

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

    def __init__(self, model: nn.Module, rate: float = 0.05, *, on_cpu: bool = False) -> None:
        """Raise ValueError unless 0 < rate <= 1."""
        _check_rate(rate)
        super().__init__(model, on_cpu=on_cpu)
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


class AdapterEMATeacher(_NothingToMove):
    """An exponential moving average of a peft model's adapters, on the student's own model: no copy of it."""

    kind = "adapter_ema"

    def __init__(self, model: nn.Module, rate: float = 0.05) -> None:
        """Raise ValueError unless 0 < rate <= 1."""
        _check_rate(rate)
        self.rate = rate
        self._average = {n: p.detach().to(_at_least_float32(p.dtype), copy=True) for n, p in _trained(model).items()}

    def parts(self, student_model: nn.Module) -> tuple[TeacherPart, ...]:
        return (TeacherPart(1.0, student_model, partial(_with_values, _trained(student_model), self._average)),)

    @torch.no_grad()
    def update(self, student_model: nn.Module) -> None:
        """Move the average by one step."""
        for name, adapter in _trained(student_model).items():
            self._average[name].lerp_(adapter.to(self._average[name]), self.rate)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "average": self._average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, average in self._average.items():
            average.copy_(state["average"][name])


class TrustRegionTeacher(FrozenTeacher):
    """A point between the frozen weights' and the student's logits: (1 - rate) reference + rate student. Two forward passes."""

    kind = "trust_region"

    def __init__(
        self, model: nn.Module, rate: float = 0.05, *, rounded_to: torch.dtype | None = None, on_cpu: bool = False
    ) -> None:
        """Raise ValueError unless 0 < rate <= 1."""
        _check_rate(rate)
        super().__init__(model, rounded_to=rounded_to, on_cpu=on_cpu)
        self.rate = rate

    def parts(self, student_model: nn.Module) -> tuple[TeacherPart, ...]:
        (reference,) = super().parts(student_model)
        return (reference._replace(share=1.0 - self.rate), TeacherPart(self.rate, student_model))


class AdapterTrustRegionTeacher(AdaptersOffTeacher):
    """The same point for a peft model, whose reference is the model without its adapters: no copy of it."""

    kind = "adapter_trust_region"

    def __init__(self, rate: float = 0.05) -> None:
        """Raise ValueError unless 0 < rate <= 1."""
        _check_rate(rate)
        self.rate = rate

    def parts(self, student_model: nn.Module) -> tuple[TeacherPart, ...]:
        (reference,) = super().parts(student_model)
        return (reference._replace(share=1.0 - self.rate), TeacherPart(self.rate, student_model))


def make_self_teacher(
    kind: SelfTeacherKind,
    model: nn.Module,
    *,
    rate: float = 0.05,
    rounded_to: torch.dtype | None = None,
    on_cpu: bool = False,
) -> SelfTeacher:
    """Make the self-teacher of this kind; of a peft model none needs a copy.

    Args:
        rate: read by `ema` and `trust_region`.
        rounded_to: as in `FrozenTeacher`; an average is never rounded.
        on_cpu: as in `FrozenTeacher`.

    Raises:
        ValueError: the kind is unknown.
    """
    adapted = _with_adapters(model) is not None
    if kind == "live":
        return LiveTeacher()
    if kind == "frozen":
        return AdaptersOffTeacher() if adapted else FrozenTeacher(model, rounded_to=rounded_to, on_cpu=on_cpu)
    if kind == "ema":
        return AdapterEMATeacher(model, rate) if adapted else EMATeacher(model, rate, on_cpu=on_cpu)
    if kind == "trust_region":
        if adapted:
            return AdapterTrustRegionTeacher(rate)
        return TrustRegionTeacher(model, rate, rounded_to=rounded_to, on_cpu=on_cpu)
    raise ValueError(f"unknown self-teacher {kind!r}: expected 'live', 'frozen', 'ema' or 'trust_region'")


# --- copies ------------------------------------------------------------------------------------------------------------


def _copied(model: nn.Module, rounded_to: torch.dtype | None, device: torch.device) -> nn.Module:
    """Return a copy of a model on a device, without gradient. Weight by weight: there is never a second copy beside it."""
    kept = {id(parameter) for parameter in model.parameters()}
    if rounded_to is not None:
        kept -= {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
        kept |= {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}  # a tied head stays too
    made: dict[int, Any] = {}
    for parameter in model.parameters():
        dtype = parameter.dtype if id(parameter) in kept or parameter.dtype == torch.float64 else rounded_to
        made[id(parameter)] = nn.Parameter(_moved(parameter.detach(), device, dtype), requires_grad=False)
    for buffer in model.buffers():
        made[id(buffer)] = buffer.detach().to(device, copy=True)
    return copy.deepcopy(model, made).eval()


def _moved(weight: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    """Return a copy on a device. One that leaves a GPU is pinned, as it goes back for every pass."""
    copied = weight.to(device, dtype, copy=True)
    return copied.pin_memory() if device.type == "cpu" and weight.device.type == "cuda" else copied


@contextmanager
def _on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Move a model's weights to a device inside. What it computed there stays valid afterwards, as do detached weights."""
    at_home = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
    try:
        for tensor, data in at_home:
            tensor.data = data.to(device, non_blocking=True)
        torch.clear_autocast_cache()  # it would not see that a weight has other values
        yield
    finally:
        for tensor, data in at_home:
            tensor.data = data
        torch.clear_autocast_cache()


@contextmanager
def _with_values(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Give parameters other values inside."""
    own = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = values[name].to(parameter)
        torch.clear_autocast_cache()  # it would not see that a weight has other values
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]
        torch.clear_autocast_cache()


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return a peft model's trainable parameters by name, which wrappers do not change."""
    adapted: nn.Module = _with_adapters(model)
    return {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


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
