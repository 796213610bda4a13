"""Makes an image ready for tasks in a language: `python prepare.py LANGUAGE TREE SETUP`, run while the image is built.

This file and the grader are copied beside an image's Dockerfile. What tests of TREE require is fetched into the interpreter's
environment; SETUP gets the lines after which a shell finds the language's tools.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(language: str, tree: Path, setup: Path) -> int:
    """Prepare the environment of this interpreter; return the exit status."""
    sys.path.insert(0, str(Path(__file__).parent))
    from composer_replication.sandbox.grading.languages import language_named
    from composer_replication.types.errors import ComposerError
    from composer_replication.types.guarded_streams import guard_streams

    guard_streams()
    known, python = language_named(language), Path(sys.executable)
    try:
        notes = known.prepare(python, tree, fetch=True)
        setup.write_text(known.shell_setup((), python), "utf-8")
    except ComposerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{note}\n" for note in notes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
