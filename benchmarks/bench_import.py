"""How long `import composer_replication` takes beside an empty interpreter and `import torch`, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from measuring import emit, interleave, ratio

REPEATS = 9


def python(code: str) -> None:
    """Run `code` in a fresh interpreter."""
    subprocess.run([sys.executable, "-c", code], check=True)


def main() -> None:
    """Measure and print."""
    modules = {"empty": "pass", "package": "import composer_replication", "torch": "import torch"}
    samples = interleave({name: partial(python, code) for name, code in modules.items()}, REPEATS)
    figures = {name: measured.figures() for name, measured in samples.items()}
    for name, values in figures.items():
        print(f"{modules[name]:30s} {values}")
    own = figures["package"]["wall_ms_p50"] - figures["empty"]["wall_ms_p50"]
    emit("import", {**figures, "import_ms": round(own, 2), "torch_over_package": ratio(samples, "torch", "package")})


if __name__ == "__main__":
    main()
