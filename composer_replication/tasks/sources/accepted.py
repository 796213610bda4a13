"""A source that may be built from, judged by its files alone."""

from __future__ import annotations

from dataclasses import dataclass

from composer_replication.languages.layout import NoTestsError, RepositoryLayout
from composer_replication.languages.protocol import Language
from composer_replication.languages.registry import build_language, language_of
from composer_replication.sandbox.grading.languages import language_names
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.indexes.archives import indexed_version
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.benchmarks import Benchmarks
from composer_replication.tasks.sources.credentials import Credential, find_credentials, refuse_credentials
from composer_replication.tasks.sources.licence import check_licence, licence_of
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.types.errors import ConfigError, SourceError

_NO_TESTS = "name the project's repository instead (composer tasks build URL@TAG), or its tests with --tests PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedProject:
    """A source that may be built from."""

    fetched: PristineTree
    language: Language
    layout: RepositoryLayout
    licence: str
    benchmarks: Benchmarks
    credentials: tuple[Credential, ...]


def accept(fetched: PristineTree, options: BuildOptions, benchmarks: Benchmarks) -> AcceptedProject:
    """Look at a source's files alone.

    Raises:
        SourceError: it is a benchmark's, under another licence than the options allow, holds credentials, or has no package or no
            tests, or no code of a language that tasks are built in.
        ConfigError: its language does not have the mode, or there is no such language.
    """
    benchmarks.check(fetched)
    licence = licence_of(fetched.tree)
    check_licence(licence, options.licences, fetched.label)
    try:
        language = _language(fetched, options)
        layout = language.layout(fetched.tree, options.packages, options.tests)
    except NoTestsError as error:
        if fetched.note:
            raise SourceError(fetched.note, fix=_NO_TESTS) from error
        raise
    credentials = find_credentials(fetched.tree, options.allow_credentials)
    refuse_credentials(credentials, layout.tests, fetched.label)
    _refuse_options(language, options)
    return AcceptedProject(
        fetched=fetched, language=language, layout=layout, licence=licence, benchmarks=benchmarks, credentials=credentials
    )


def _language(fetched: PristineTree, options: BuildOptions) -> Language:
    """Return the language that is asked for, that of the index which a source is from, or the one that its files show: a package
    of PyPI with parts in Rust or pages in JavaScript is Python.

    Raises:
        ConfigError: there is no language of the name that is asked for.
        SourceError: the files show none.
    """
    indexed = indexed_version(fetched.label)
    name = options.language or ("" if indexed is None else indexed.language)
    if not name:
        return language_of(tree_files(fetched.tree))
    if name not in language_names():
        raise ConfigError(f"there is no language {name!r}", fix=f"choose one of {', '.join(language_names())}")
    return build_language(name)


def _refuse_options(language: Language, options: BuildOptions) -> None:
    """Refuse what a language does not have. Raises ConfigError."""
    for name in ("mutants", "impossible"):
        if getattr(options, name) and name not in language.extras:
            raise ConfigError(f"there are no tasks in {language.name} with {name}", fix=f"leave --{name} out")
    if options.mode not in language.modes:
        raise ConfigError(
            f"the mode {options.mode!r} is not there for {language.name}", fix=f"choose one of {', '.join(language.modes)}"
        )
