"""`python -m verl.trainer.main_ppo`, watched while it runs."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Mapping, Sequence

from composer_replication.recipes.verl.plan import ArmPlan
from composer_replication.sandbox.program import RunningProgram
from composer_replication.types.errors import BackendError
from composer_replication.types.secrets import quoted

_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b(\(.*\))?:")
_RAY = re.compile(r"^\(.*?pid=\d+.*?\)\s*|\x1b\[[0-9;]*m")


class Main(RunningProgram):
    """The running program; its output is in the plan's log."""

    def __init__(self, plan: ArmPlan, arguments: Sequence[str], environment: Mapping[str, str], without: Sequence[str]) -> None:
        """Start the program. It does not inherit the variables named in `without`."""
        self._plan = plan
        self._began = plan.log_path.stat().st_size if plan.log_path.exists() else 0
        super().__init__(
            [sys.executable, "-m", "verl.trainer.main_ppo", *arguments],
            log=plan.log_path,
            environment=environment,
            folder=plan.folder,
            without=without,
        )

    async def ended(self, stall_s: float) -> bool:
        """Wait a moment, and return whether the program has ended without error.

        Raises:
            BackendError: it ended otherwise, a rollout broke, or nothing was printed, measured or rolled out in `stall_s` s.
        """
        await asyncio.sleep(0.5)
        code = self.poll()
        if self._plan.fault_path.exists():
            raise BackendError(f"verl's agent loop broke: {self._plan.fault_path.read_text()}", fix=self._fix)
        if code is None and time.time() - self._moved() > stall_s:
            raise BackendError(f"verl did nothing for {stall_s:g} s", fix=f"raise rollout.stall_s, or {self._fix}")
        if code:
            raise BackendError(f"verl ended with exit code {code}: {self.last_words()}", fix=self._fix)
        return code == 0

    def last_words(self) -> str:
        """Return the last line of its log that names an error, preferring errors that are not Ray's own; else the last line."""
        with self._plan.log_path.open("rb") as log:
            log.seek(self._began)
            lines = [_RAY.sub("", line).strip() for line in log.read().decode(errors="replace").splitlines()]
        said = [line for line in lines if line]
        errors = [line for line in said if _ERROR.search(line)]
        causes = [line for line in errors if not line.startswith("ray.exceptions.")]
        return quoted((causes or errors or said or ["nothing was printed"])[-1], most=500)

    @property
    def _fix(self) -> str:
        return f"read {self._plan.log_path}, then continue with --resume"

    def _moved(self) -> float:
        """Return when any of its files was last written."""
        paths = [self._plan.path, self._plan.log_path, self._plan.metrics_path, *self._plan.folder.glob("agents-*/*")]
        return max(path.stat().st_mtime for path in paths if path.exists())
