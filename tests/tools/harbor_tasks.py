"""A Harbor task of another author, which can be expressed as ours, and variations of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOREIGN = {
    "task.toml": '[task]\nname = "someone/rates"\n',
    "instruction.md": "Convert rates, and write the summary.\n",
    "environment/Dockerfile": "FROM python:3.13-slim\nRUN pip install pytest \\\n  && mkdir -p /x\nWORKDIR /app\nCOPY src/ .\n",
    "environment/src/rates.py": "def convert(x):\n    raise NotImplementedError\n\n\ndef same(x):\n    return x\n",
    "solution/solve.sh": "#!/bin/bash\ncp /solution/rates.py /app/rates.py\ncd /app\necho 'TOTAL = 3' > summary.py\n",
    "solution/rates.py": "def convert(x):\n    return 2 * x\n\n\ndef same(x):\n    return x\n",
    "tests/test.sh": "#!/bin/bash\ncurl -LsSf https://example.invalid/uv | sh\npytest /tests/test_rates.py\n",
    "tests/test_rates.py": (
        "import rates\n\n\ndef test_convert():\n    assert rates.convert(2) == 4\n"
        "\n\ndef test_same():\n    assert rates.same(1) == 1\n"
        "\n\ndef test_summary():\n    import summary\n    assert summary.TOTAL == 3\n"
    ),
}


def foreign(folder: Path, changed: Mapping[str, str | None] | None = None) -> Path:
    """Write the foreign task with other files, or without some."""
    for path, text in {**FOREIGN, **(changed or {})}.items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return folder
