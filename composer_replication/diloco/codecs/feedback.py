"""Error feedback: what a round did not carry is added to the next one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["ErrorFeedback"]


class ErrorFeedback:
    """The residual of each fragment: (n,) float32 on the CPU, in the units of its pseudo-gradient."""

    def __init__(self) -> None:
        self._owed: dict[str, Tensor] = {}

    def added(self, name: str, values: Tensor) -> Tensor:
        """Return `values` plus the residual; `values` itself is not changed.

        Raises:
            ValueError: what is owed is of another size.
        """
        owed = self._owed.get(name)
        if owed is None:
            return values
        if owed.shape != values.shape:
            raise ValueError(f"{name!r} has {values.numel()} values and owes {owed.numel()}")
        return values + owed

    def keep(self, name: str, left: Tensor) -> None:
        """Set the fragment's residual."""
        if bool(torch.any(left)):
            self._owed[name] = left
        else:
            self._owed.pop(name, None)

    def norm(self, name: str) -> float:
        """Return the L2 norm of the residual."""
        owed = self._owed.get(name)
        return 0.0 if owed is None else float(torch.linalg.vector_norm(owed))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the residuals, by fragment."""
        return {name: owed.clone() for name, owed in self._owed.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state_dict` gave."""
        self._owed = {name: owed.detach().to("cpu", torch.float32).clone() for name, owed in state.items()}
