from __future__ import annotations

import pytest

from composer_replication.hints.glossary import MAX_DEFINITION_CHARS, definitions, mentions


def meaning(text, path="docs/words.md"):
    return definitions({path: text})


@pytest.mark.parametrize(
    "line",
    [
        "zind: minus.",
        "- zind: minus.",
        "1. zind: minus.",
        "**zind** - minus.",
        "* `zind` — minus.",
        "- **zind:** minus.",
        '"zind": minus',
        "zind means minus.",
        "A **zind** is minus.",
        "`zind` means minus. And more text.",
        "| zind | minus |",
        "| word | meaning |\n|---|---|\n| `zind` | minus |",
        "zind\n    minus.",
        "zind\n: minus",
        "## zind\n\nA zind is minus. It has more.",
        "zind\n----\n\n*zind* means minus.",
    ],
)
def test_forms_of_a_definition(line):
    assert meaning(f"# Words\n\n{line}\n") == {"zind": "minus"}


@pytest.mark.parametrize(
    "line",
    [
        "Note: run the tests first.",
        "Returns: the number",
        "## Usage\n\nRun it with make.",
        "The result is fine.",
        "Nobody - not even you - reads this.",
        "```\nzind: minus\n```",
        "- `harbour/ops.py`: the operations.",
        "| zind | minus |\n|------|-------|",
        "see http://zind: there",
    ],
)
def test_what_only_looks_like_one(line):
    assert "zind" not in meaning(line)
    assert not meaning(line) or "Nobody" in meaning(line)


def test_code_files_are_not_read():
    assert definitions({"solution.py": "zind: minus", "data.json": "zind: minus"}) == {}


def test_first_definition_of_a_term_wins_and_long_ones_are_cut():
    found = meaning("zind: " + "word " * 60 + "\nZind: other")
    assert list(found) == ["zind"]
    assert 100 < len(found["zind"]) <= MAX_DEFINITION_CHARS
    assert found["zind"].endswith("word")


def test_mentions_are_whole_words_in_any_case_and_number():
    text = "The Zinds of net\n  weight, never rezinded or zind-like."
    assert mentions(text, ["zind", "net weight", "like", "weigh"]) == ["zind", "net weight"]


@pytest.mark.parametrize(
    "line",
    [
        "* Docs: intersphinx links finally point to Python 3 docs.",
        "- Documentation: https://click.palletsprojects.com/",
        "port: 5000",
        "``get_os_args`` is removed, use ``sys.argv[1:]`` instead.",
        "**Loaders** are responsible for loading templates from a resource.",
        "Primarily this means that names are looked up twice.",
        "| naval | Port of docopt naval example |",
        "ctx\n    The current command context",
        "## Option Prompts\n\nOption prompts are integrated into the option interface.",
    ],
)
def test_lines_of_real_documentation_that_define_nothing(line):
    assert meaning(f"# Usage\n\n{line}\n", path="README.md") == {}


def test_lists_define_terms_where_a_file_or_a_heading_promises_it():
    text = "# Usage\n\nport: the harbour.\n\n# Glossary of the house\n\n- zind: minus.\n\n## Rare ones\n\n- tret: plus.\n"
    text += "\n# Links\n\n- docs: there.\n"
    assert meaning(text, path="README.md") == {"zind": "minus", "tret": "plus"}
    assert meaning("- zind: minus.\n", path="docs/terminology.rst") == {"zind": "minus"}
    assert meaning("# Glossary\n\n- zind: minus.\n", path="CHANGELOG.md") == {}


def test_a_meaning_is_its_whole_sentence():
    assert meaning("A **plugin** is a namespace that\nholds hooks. It has more.\n", path="README.md") == {
        "plugin": "a namespace that holds hooks"
    }
