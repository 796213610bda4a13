"""Plugin for PRIME-RL's own tests: our algorithm is registered, and what they call GRPOAlgorithm is ours."""

from __future__ import annotations

import prime_rl.orchestrator.algo as algorithms
from prime_rl.orchestrator.algo import grpo

from composer_replication.recipes.prime_rl.algorithm import register

register()
ours = algorithms.ALGORITHM_CLASSES["grpo"]
assert ours.__name__ == "ComposerAlgorithm"
assert issubclass(ours, grpo.GRPOAlgorithm)
algorithms.GRPOAlgorithm = grpo.GRPOAlgorithm = ours
