"""An entropy bonus that holds the policy's entropy near a target (Skywork-OR1, arXiv:2505.22312)."""

from __future__ import annotations

from typing import Any

_MOST = 1.0


class EntropyControl:
    """The coefficient of the entropy bonus: `delta` higher after each step whose mean entropy is at most `target`, else lower.

    It stays in [0, 1], and is applied only in the step after one whose entropy was at most the target.

    Args:
        coefficient: to begin with.
        target: mean entropy per token, in nats.
        delta: change of a step.
    """

    def __init__(self, coefficient: float, target: float, delta: float) -> None:
        self.coefficient, self.target, self.delta = coefficient, target, delta
        self._low = False

    @property
    def applied(self) -> float:
        """The coefficient of the next step."""
        return self.coefficient if self._low else 0.0

    def update(self, entropy: float) -> None:
        """Follow the mean entropy of a step."""
        self._low = entropy <= self.target
        moved = self.coefficient + (self.delta if self._low else -self.delta)
        self.coefficient = min(max(moved, 0.0), _MOST)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"coefficient": self.coefficient, "low": self._low}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.coefficient, self._low = state["coefficient"], state["low"]
