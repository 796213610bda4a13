"""Which language a source is built in, and which distributions its tests want, by what its files say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sources.accepted import accept
from composer_replication.tasks.sources.benchmarks import Benchmarks
from composer_replication.tasks.sources.declared import Declared
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.tasks.sources.wanted import asked_for, first_wanted, imported_modules
from composer_replication.types.errors import ConfigError

WriteProject = Callable[[Mapping[str, str]], Path]
BOTH = {
    "Cargo.toml": '[package]\nname = "shop"\nversion = "1.0.0"\n',
    "src/lib.rs": "pub fn one() -> u8 {\n    1\n}\n\n#[test]\nfn is_one() {\n    assert_eq!(one(), 1);\n}\n",
    "shop/__init__.py": "def price():\n    return 3\n",
    "tests/test_shop.py": "import shop\n\n\ndef test_price():\n    assert shop.price() == 3\n",
}
"""A Python package with a part in Rust, as many have."""


def language_of(tree: Path, label: str, language: str = "") -> str:
    source = PristineTree(name="shop", label=label, digest="0", tree=tree)
    return accept(source, BuildOptions(language=language), Benchmarks(())).language.name


def test_a_package_of_pypi_is_python_and_other_sources_are_what_they_show_or_what_is_asked_for(
    write_project: WriteProject,
) -> None:
    tree = write_project(BOTH)
    assert language_of(tree, "pypi:shop==1.0.0") == "python"
    assert language_of(tree, "folder:shop") == "rust"
    assert language_of(tree, "folder:shop", "python") == "python"
    assert language_of(tree, "pypi:shop==1.0.0", "rust") == "rust"
    with pytest.raises(ConfigError, match="there is no language 'cobol'"):
        language_of(tree, "folder:shop", "cobol")


def test_of_a_namespace_that_many_share_the_distribution_is_named_by_two_levels(write_project: WriteProject) -> None:
    text = "import jaraco.text\nfrom jaraco import path\nfrom google.protobuf import message\nimport yaml.nodes\nimport os.path\n"
    modules = imported_modules(write_project({"tests/test_a.py": text}), ["tests/test_a.py"])
    assert modules == {"jaraco.text", "jaraco.path", "google.protobuf", "yaml"}
    declared = Declared(tests=("jaraco.text>=3", "protobuf", "jaraco.envs"))
    assert first_wanted(declared, modules).keys() == {"pytest", "coverage", "jaraco-text", "protobuf"}
    lines = ["No module named 'jaraco.functools'", "No module named 'zope'", "No module named 'yaml.nodes'"]
    assert asked_for(lines, declared, ()).keys() == {"jaraco-functools", "pyyaml"}, "nothing is called zope alone"
