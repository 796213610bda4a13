"""The module that verl loads in every process that imports it (entry point group `verl.plugins`).

Outside a run of ours it does nothing. Inside one it must not fail in silence: verl notes only at DEBUG that a plugin could not be
loaded, and would go on without our loss. So a process that cannot load it ends, with the reason on stderr.
"""

from __future__ import annotations

import os
import sys
import traceback

from composer_replication.recipes.verl.plan import PLAN, ArmPlan, on_cpu
from composer_replication.types.plain_text import visible

__all__: list[str] = []


def _register() -> None:
    ArmPlan.required()
    if on_cpu():
        import composer_replication.recipes.verl.cpu_platform  # first: what follows asks for the platform
        import composer_replication.recipes.verl.cpu_rollout
    import composer_replication.recipes.verl.advantage
    import composer_replication.recipes.verl.agent_loop
    import composer_replication.recipes.verl.engine
    import composer_replication.recipes.verl.policy_loss  # noqa: F401  registers itself, as the others


if os.environ.get(PLAN):
    try:
        _register()
    except Exception as error:
        lines = visible(traceback.format_exc())
        sys.stderr.write(f"composer_replication: verl cannot load the plugin, so the run ends here:\n{lines}")
        raise SystemExit(1) from error  # which verl does not catch
