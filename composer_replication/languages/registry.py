"""The language of a project."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.languages.protocol import Language
from composer_replication.sandbox.grading.languages import language_named, language_names
from composer_replication.types.errors import SourceError


def language_of(paths: Sequence[str]) -> Language:
    """Return the language of a project with files of these paths, the first that says it is its own.

    Raises:
        SourceError: none does.
    """
    for name in language_names():
        language: Language = language_named(name)
        if language.holds(paths):
            return language
    raise SourceError(
        "the project has no code of a language that tasks are built in",
        fix=f"languages: {', '.join(sorted(language_names()))}",
    )
