"""Languages as the builder of tasks knows them, by name and by the files of a project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cache
from importlib import import_module

from composer_replication.languages.protocol import Language
from composer_replication.sandbox.grading.languages import language_named, language_names
from composer_replication.types.errors import SourceError

_PYTHON = "composer_replication.tasks.python_language"
"""Above this room: how Python's checks are made is still among the tasks."""


@cache
def build_language(name: str) -> Language:
    """Return a language. Raises TaskError where there is none of that name."""
    found: Language = import_module(_PYTHON).PYTHON if name == "python" else language_named(name)
    return found


def language_of(paths: Sequence[str]) -> Language:
    """Return the language of a project with files of these paths, the first that says it is its own.

    Raises:
        SourceError: none does.
    """
    for language in map(build_language, language_names()):
        if language.holds(paths):
            return language
    raise SourceError(
        "the project has no code of a language that tasks are built in", fix=f"languages: {', '.join(language_names())}"
    )


def built_files(files: Mapping[str, bytes]) -> Set[str]:
    """Return the paths of a project's files that builds of its language write: none where no language has the project."""
    paths, languages = list(files), map(build_language, language_names())
    return next((language.built_files(files) for language in languages if language.holds(paths)), frozenset())
