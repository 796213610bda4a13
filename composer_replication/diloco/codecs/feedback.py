"""Error feedback: what a round did not carry is added to the next one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class ErrorFeedback:
    """The residual of each fragment: (n,) float32 on the CPU, in the units of its pseudo-gradient."""

    def __init__(self) -> None:
        self._residuals: dict[str, Tensor] = {}

    def added(self, name: str, values: Tensor) -> Tensor:
        """Return `values` plus the residual; `values` itself is not changed.

        Raises:
            ValueError: the residual has another size.
        """
        residual = self._residuals.get(name)
        if residual is None:
            return values
        if residual.shape != values.shape:
            raise ValueError(f"{name!r} has {values.numel()} values and a residual of {residual.numel()}")
        return values + residual

    def keep(self, name: str, left: Tensor) -> None:
        """Set the fragment's residual."""
        if bool(torch.any(left)):
            self._residuals[name] = left
        else:
            self._residuals.pop(name, None)

    def norm(self, name: str) -> float:
        """Return the L2 norm of the residual."""
        residual = self._residuals.get(name)
        return 0.0 if residual is None else float(torch.linalg.vector_norm(residual))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the residuals, by fragment."""
        return {name: residual.clone() for name, residual in self._residuals.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` gave."""
        self._residuals = {name: residual.detach().to("cpu", torch.float32).clone() for name, residual in state.items()}
