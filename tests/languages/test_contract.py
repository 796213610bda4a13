"""Every language keeps its contract, and a project finds its language."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract import check

from composer_replication.languages.go.language import GO
from composer_replication.languages.java.language import JAVA
from composer_replication.languages.javascript.language import JAVASCRIPT
from composer_replication.languages.registry import language_of
from composer_replication.languages.rust.language import RUST
from composer_replication.sandbox.grading.languages import language_named
from composer_replication.tasks.python_language import PYTHON
from composer_replication.types.errors import SourceError, TaskError
from composer_replication.types.held_out_checks import HeldOutProgram

PROJECTS = {
    "python": {
        "pack/__init__.py": "",
        "pack/words.py": 'def loud(text):\n    """Make it loud."""\n    text = text.strip()\n    return text.upper()\n',
        "tests/test_words.py": "from pack.words import loud\n\n\ndef test_loud():\n    assert loud(' a ') == 'A'\n",
    },
    "go": {
        "go.mod": "module words\n\ngo 1.21\n",
        "words.go": 'package words\n\nimport "strings"\n\n// Make it loud.\nfunc loud(text string) string {\n'
        "\ttext = strings.TrimSpace(text)\n\treturn strings.ToUpper(text)\n}\n",
        "words_test.go": 'package words\n\nimport "testing"\n\nfunc TestLoud(t *testing.T) {\n\tif loud(" a ") != "A" {\n'
        "\t\tt.Fail()\n\t}\n}\n",
    },
    "rust": {
        "Cargo.toml": '[package]\nname = "words"\nversion = "0.1.0"\nedition = "2021"\n',
        "src/lib.rs": "pub mod words;\n",
        "src/words.rs": "/// Make it loud.\npub fn loud(text: &str) -> String {\n"
        "    let bare = text.trim();\n    bare.to_uppercase()\n}\n"
        "#[cfg(test)]\nmod tests {\n    #[test]\n    fn is_loud() {\n"
        '        assert_eq!(super::loud(" a "), "A");\n    }\n}\n',
    },
    "java": {
        "pom.xml": "<project/>",
        "src/main/java/a/Words.java": "package a;\n\nclass Words {\n    /** Make it loud. */\n"
        "    static String loud(String text) {\n"
        "        text = text.trim();\n        return text.toUpperCase();\n    }\n}\n",
        "src/test/java/a/WordsTest.java": "package a;\n\nclass WordsTest {\n    @org.junit.Test\n    public void loud() {\n"
        '        assert Words.loud(" a ").equals("A");\n    }\n}\n',
    },
    "javascript": {
        "package.json": '{"name": "words", "scripts": {"test": "node --test"}}',
        "src/words.ts": "/** Make it loud. */\nexport function loud(text: string): string {\n  const bare = text.trim()\n"
        "  return bare.toUpperCase()\n}\n",
        "test/words.test.ts": 'import test from "node:test"\nimport { loud } from "../src/words.ts"\n'
        'test("loud", () => { if (loud(" a ") !== "A") throw new Error() })\n',
    },
}


PROGRAMS = {
    "no JSON": ("{", "[]"),
    "no step": ("[]", "[]"),
    "another step": ('[[0, {"key": "a::b"}]]', '[{"r": [], "a": []}]'),
    "no call": ('[[0, {"key": "../x::b", "given": []}]]', '[{"r": [], "a": []}]'),
}


@pytest.mark.parametrize("text", PROGRAMS)
@pytest.mark.parametrize("name", sorted(set(PROJECTS) - {"python"}))
def test_held_out_calls_that_are_none_are_told_of_before_anything_is_graded(name: str, text: str) -> None:
    steps, expected = PROGRAMS[text]
    with pytest.raises(TaskError, match="a held-out call of the task"):
        language_named(name).check_programs([HeldOutProgram(steps=steps, expected=expected, uses="", new_calls=0)])


def write(root: Path, name: str) -> Path:
    for path, text in PROJECTS[name].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize("language", [PYTHON, GO, JAVA, JAVASCRIPT, RUST], ids=lambda language: language.name)
def test_a_language_keeps_the_contract(language: object, tmp_path: Path) -> None:
    name = language.name
    function = "Words.loud" if name == "java" else "loud"  # every function of Java has a class
    check(language, write(tmp_path, name), function=function, comment="Make it loud.")


def test_a_project_finds_its_language() -> None:
    assert language_of(["go.mod", "tools/gen.py", "a.go"]) is GO
    assert language_of(["pack/__init__.py", "sub/go.mod"]) is PYTHON
    assert language_of(["package.json", "tools/gen.py", "src/a.ts"]) is JAVASCRIPT
    assert language_of(["package.json", "pack/words.py"]) is PYTHON
    assert language_of(["Cargo.toml", "tools/gen.py", "src/lib.rs"]) is RUST
    assert language_of(["pom.xml", "tools/gen.py", "src/main/java/A.java"]) is JAVA
    assert language_of(["src/A.java", "test/ATest.java"]) is JAVA
    assert language_of(["setup.py", "pack/words.py", "src/A.java", "test/ATest.java"]) is PYTHON
    with pytest.raises(SourceError, match="no code of a language") as error:
        language_of(["Main.java"])
    assert "go, java, javascript, rust, python" in error.value.fix


def test_an_unknown_language_is_named_with_those_there_are() -> None:
    with pytest.raises(TaskError, match="no language 'cobol'") as error:
        language_named("cobol")
    assert "go, java, javascript, rust, python" in error.value.fix


def test_go_layout_leaves_aside_what_is_no_package(tmp_path: Path) -> None:
    root = write(tmp_path, "go")
    for path in ("vendor/x/x.go", "testdata/y.go", "cmd/tool/main.go", "_old/z.go", "sub/deep.go"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("package x\n")
    layout = GO.layout(root, (), ())
    assert layout.sources == ("sub/deep.go", "words.go")
    assert layout.editable == ("*.go", "sub/*.go")
    with pytest.raises(SourceError, match="no gone"):
        GO.layout(root, ("gone",), ())
    (root / "words_test.go").unlink()
    with pytest.raises(SourceError, match="no tests"):
        GO.layout(root, (), ())
