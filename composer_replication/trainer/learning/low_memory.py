"""AdamW for little memory: bfloat16 weights with stochastic rounding, state in CPU memory, 8-bit moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from composer_replication.trainer.learning.step import StepOptimizer
from composer_replication.types.errors import MissingExtraError

_SEED_STRIDE = 1_000_003
"""Difference between the seeds of two steps: more than a model has parameter tensors."""


class StochasticRoundingAdamW(StepOptimizer):
    """AdamW for bfloat16 weights. It computes in float32, and rounds each new weight to one of its two neighbours at random, so
    that the expected value is exact (stochastic rounding, arXiv:2010.06192). Steps too small for bfloat16 therefore add up.
    Weights of other types are updated exactly.

    The random numbers depend only on the step and on the position of the weight, so that processes that hold the same weights
    keep them equal, and a resumed run draws the same numbers.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": 1e-8})

    def _step(self) -> None:
        placed = enumerate((parameter, group) for group in self.param_groups for parameter in group["params"])
        for place, (parameter, group) in placed:
            if parameter.grad is not None:
                self._step_one(place, parameter, group)

    def _step_one(self, place: int, parameter: nn.Parameter, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            exact = torch.zeros_like(parameter, dtype=torch.float32)
            state |= {"step": torch.zeros(()), "exp_avg": exact, "exp_avg_sq": exact.clone()}
        mine = _local(parameter.detach())  # each number is stepped apart from the others: a rank steps its share
        weight = mine.float()
        _adamw(weight, _local(_gradient(parameter)).float(), {name: _local(value) for name, value in state.items()}, group)
        seed = int(state["step"]) * _SEED_STRIDE + place
        mine.copy_(stochastically_rounded(weight, seed) if mine.dtype == torch.bfloat16 else weight)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; moments stay float32, where torch would give them the weights' type."""
        super().load_state_dict({**state_dict, "state": {}})
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            saved = state_dict["state"].get(number)
            if saved is not None:
                on_device = {name: saved[name].to(parameter.device) for name in ("exp_avg", "exp_avg_sq")}
                self.state[parameter] = {"step": saved["step"].cpu(), **on_device}


class OffloadedAdamW(StepOptimizer):
    """AdamW that keeps its moments and float32 copies of the weights in CPU memory, and steps there: the part of ZeRO-Offload
    (arXiv:2101.06840) that a single device needs.

    `step` copies the clipped gradients to the CPU, updates the float32 copies, and copies them back in the weights' own type.
    Rounding errors therefore do not accumulate.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": 1e-8})
        self._exact = {parameter: _on_cpu(parameter.detach()) for parameter in self._parameters()}

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _step(self) -> None:
        sent = {p: _on_cpu(_gradient(p)) for p in self._parameters() if p.grad is not None}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p in sent):
                state, exact = self.state[parameter], self._exact[parameter]
                if not state:
                    state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(exact), "exp_avg_sq": torch.zeros_like(exact)}
                _adamw(exact, sent.pop(parameter), state, group)
                parameter.copy_(exact, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """Return also the exact weights."""
        return {**super().state_dict(), "exact": list(self._exact.values())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the state stays in CPU memory."""
        super().load_state_dict({"param_groups": state_dict["param_groups"], "state": {}})
        for number, (parameter, exact) in enumerate(self._exact.items()):
            exact.copy_(state_dict["exact"][number])
            parameter.data.copy_(exact)
            saved = state_dict["state"].get(number)
            if saved is not None:
                self.state[parameter] = {name: value.cpu() for name, value in saved.items()}


def make_8bit_adamw(params: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float], weight_decay: float) -> Any:
    """Return torchao's AdamW with 8-bit moments, which rounds bfloat16 weights stochastically. It is not compiled on a CPU.

    Raises MissingExtraError.
    """
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise MissingExtraError(
            "optimizer.moments = 8bit needs torchao, which is not installed", fix="pip install 'composer-replication[torchao]'"
        ) from error

    class EagerOnCpu(AdamW8bit):  # type: ignore[misc]  # torchao is not annotated
        def step(self, closure: Any = None) -> Any:
            cpu = self.param_groups[0]["params"][0].device.type == "cpu"
            with (
                torch.compiler.set_stance("force_eager" if cpu else "default"),
                _seeded(self.param_groups[0]["params"][0], self._steps()),
            ):
                return super().step(closure)

        def _steps(self) -> int:
            """Return the number of steps taken: the seed of torchao's rounding, equal on all processes."""
            return int(max((state["step"] for state in self.state.values() if state), default=0))

    return EagerOnCpu(list(params), lr=lr, betas=betas, weight_decay=weight_decay, bf16_stochastic_round=True)


@contextmanager
def _seeded(parameter: Tensor, seed: int) -> Iterator[None]:
    """Seed torch's generator on a parameter's device inside, and give it its state back."""
    with torch.random.fork_rng([parameter.device] if parameter.is_cuda else []):
        torch.manual_seed(seed)
        yield


def stochastically_rounded(values: Tensor, seed: int) -> Tensor:
    """Return float32 values as bfloat16 ones, rounded to either neighbour with a probability that makes the mean exact.

    bfloat16 is the upper half of float32: a random number below 2^16 is added to the bits, and the lower half cut off. Infinities
    and NaN stay what they are.
    """
    bits = values.view(torch.int32)
    generator = torch.Generator(bits.device).manual_seed(seed)
    noise = torch.randint(1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
    rounded = ((bits + noise) & -(1 << 16)).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)


def _adamw(weight: Tensor, gradient: Tensor, state: Mapping[str, Tensor], group: Mapping[str, Any]) -> None:
    """Take torch's own step of AdamW on one tensor, in place."""
    adamw(
        [weight],
        [gradient],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        foreach=False,
        fused=weight.device.type == "cpu",
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def _local(tensor: Any) -> Tensor:
    """Return a rank's share of a sharded tensor; others are returned unchanged."""
    share: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return share


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _on_cpu(tensor: Tensor) -> Tensor:
    """Return a float32 copy in CPU memory, pinned if the tensor is on a GPU."""
    host = torch.empty(tensor.shape, dtype=torch.float32, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)
