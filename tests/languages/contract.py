"""What any language has to hold: call `check` with the language and a small project of it.

The project needs a tool chain for nothing here: files are read, bodies deleted, and what is deleted is described.
"""

from __future__ import annotations

from pathlib import Path

from composer_replication.languages.functions import body_of
from composer_replication.languages.protocol import Language
from composer_replication.languages.registry import build_language
from composer_replication.sandbox.grading.languages import language_named, language_names
from composer_replication.tasks.files import tree_files
from composer_replication.types import TaskSpec


def check(language: Language, root: Path, *, function: str, comment: str) -> None:
    """Check a language over a project with tests.

    Args:
        function: the name of a function of the project with a body of two lines or more.
        comment: what its documentation says.
    """
    assert build_language(language.name) is language
    assert language_named(language.name).name == language.name
    assert language.name in language_names()
    paths = tree_files(root)
    assert language.holds(paths)
    assert not language.holds(["README.md"])
    layout = language.layout(root, (), ())
    assert layout.sources
    assert set(layout.sources) <= set(paths)
    assert all(map(language.is_source, layout.sources))
    assert not language.is_source("README.md")
    files = {path: (root / path).read_bytes() for path in layout.sources}
    found = [one for path, source in files.items() for one in language.find_functions(path, source, True)[0]]
    assert len({one.key for one in found}) == len(found)
    (wanted,) = (one for one in found if one.qualname == function)
    assert "stub" in language.modes
    assert not language.removes("stub")
    before = dict(files)
    changed = language.without(files, [wanted], "stub", layout.python_path)
    assert files == before
    assert changed.keys() == {wanted.path}
    body = body_of(files[wanted.path], wanted)
    assert body in files[wanted.path]
    assert body not in changed[wanted.path]
    left = {one.qualname for one in language.find_functions(wanted.path, changed[wanted.path], True)[0]}
    assert {one.qualname for one in found if one.path == wanted.path} - left <= {function}
    header, said = language.outline(files[wanted.path], function)
    assert function.rpartition(".")[2] in header
    assert "\n" not in header
    assert said == comment
    assert language.find_functions("broken", b"\xff(((", True)[0] == []
    spec = TaskSpec(
        **{"task_id": "t", "source": "s", "source_digest": "0", "instruction": "i", "deleted": ()},
        **{"fail_to_pass": (), "pass_to_pass": (), "editable": layout.editable, "language": language.name},
    )
    assert language.shell_setup(spec.python_path, Path("/env/bin/python")).endswith("\n")
