from __future__ import annotations

from env_fixtures import env, sandbox, task, use

__all__ = ["env", "sandbox", "task", "use"]
