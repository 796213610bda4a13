"""Go read with tree-sitter: functions, deletion with imports, and what instrumented code looks like."""

from __future__ import annotations

import pytest

from composer_replication.languages import tripwire
from composer_replication.languages.functions import body_of
from composer_replication.languages.go.alarms import telling
from composer_replication.languages.go.deletion import without_bodies
from composer_replication.languages.go.instrument import callables_of, instrumented, types_of
from composer_replication.languages.go.syntax import find_functions, imports_of, named_functions, root_of, signature_of

SOURCE = b"""package demo

import (
\t"fmt"
\tother "gopkg.in/yaml.v3"
\t"github.com/some/go-thing/v2"
\t_ "embed"
)

// Greet greets.
// It is kind.
func Greet(name string, times ...int) (string, error) {
\t// a comment before
\tif name == "" && len(times) > 0 {
\t\treturn "", fmt.Errorf("nobody")
\t}
\treturn thing.Hello(name), nil
\t// a comment behind
}

type Box[T any] struct{ held T }

type Plain struct{ n int }

func (b *Box[T]) Put(held T) {
\tb.held = held
}

func (p Plain) Size() int {
\treturn p.n
}

func (Plain) nameless(_ int) int {
\treturn other.Max
}

func short() int { return 1 }

func empty() {
\t// nothing
}

func init() {
\tshort()
}
"""


def test_functions_are_found_with_their_lines() -> None:
    functions, skipped = find_functions("demo.go", SOURCE)
    assert [f.qualname for f in functions] == ["Greet", "Box.Put", "Plain.Size", "Plain.nameless"]
    greet = functions[0]
    assert body_of(SOURCE, greet).startswith(b"\t// a comment before\n")
    assert body_of(SOURCE, greet).endswith(b"\t// a comment behind\n")
    assert (greet.parameters, greet.rest, greet.branches) == (("name", "times"), "times", 2)
    assert {"Errorf", "Hello"} <= greet.calls
    assert {one.what: one.reason for one in skipped} == {
        "demo.go::short": "body on the line of its signature",
        "demo.go::empty": "empty body",
        "demo.go::init": "nothing calls it by name",
    }


@pytest.mark.parametrize("source", [b"package demo\n\nfunc f( {\n}\n", b"\xff\xfe", b"func"])
def test_what_cannot_be_parsed_is_skipped(source: bytes) -> None:
    functions, skipped = find_functions("demo.go", source)
    assert functions == []
    assert [(one.what, one.reason) for one in skipped] == [("demo.go", "cannot be parsed")]


def test_a_signature_is_told() -> None:
    found = dict(named_functions(root_of(SOURCE)))
    greet, put = signature_of(found["Greet"]), signature_of(found["Box.Put"])
    assert greet.header == "func Greet(name string, times ...int) (string, error)"
    assert greet.comment == "Greet greets.\nIt is kind."
    assert [(p.name, p.type, p.variadic) for p in greet.parameters] == [("name", "string", False), ("times", "int", True)]
    assert [p.type for p in greet.results] == ["string", "error"]
    assert put.generic
    assert not greet.generic


def test_imports_go_with_what_used_them() -> None:
    functions, _ = find_functions("demo.go", SOURCE)
    by_name = {f.qualname: f for f in functions}
    without = without_bodies({"demo.go": SOURCE}, [by_name["Greet"]])["demo.go"]
    assert b'"fmt"' not in without
    assert b"go-thing" not in without
    assert b"yaml.v3" in without
    assert b'_ "embed"' in without
    assert b'func Greet(name string, times ...int) (string, error) {\n\tpanic("not implemented")\n}' in without
    assert b"yaml.v3" not in without_bodies({"demo.go": SOURCE}, [by_name["Plain.nameless"]])["demo.go"]


def test_a_single_import_goes_whole() -> None:
    source = b'package demo\n\nimport "strings"\n\nfunc Up(text string) string {\n\treturn strings.ToUpper(text)\n}\n'
    functions, _ = find_functions("demo.go", source)
    gone = without_bodies({"demo.go": source}, functions)["demo.go"]
    assert gone == b'package demo\n\n\nfunc Up(text string) string {\n\tpanic("not implemented")\n}\n'


@pytest.mark.parametrize(
    ("path", "name"),
    [("fmt", "fmt"), ("gopkg.in/yaml.v3", "yaml"), ("github.com/a/go-humanize", "humanize"), ("x.org/semver/v4", "semver")],
)
def test_a_path_suggests_a_name(path: str, name: str) -> None:
    (found,) = imports_of(root_of(f'package demo\n\nimport "{path}"\n'.encode()))
    assert name in found.names


def test_only_calls_that_can_be_written_down_are_recorded() -> None:
    assert [one.name for one in callables_of("demo.go", SOURCE)] == ["Greet", "Plain.Size"]
    assert types_of({"a/demo.go": SOURCE}) == {"a": {"Box", "Plain"}}


def test_instrumented_code_keeps_its_lines() -> None:
    found = instrumented({"a/demo.go": SOURCE})
    assert found["a/demo.go"].count(b"\n") == SOURCE.count(b"\n")
    assert b'{ composerHit(1); composerCalled("a/demo.go::Greet", &name, &times); \n' in found["a/demo.go"]
    assert not root_of(found["a/demo.go"]).has_error
    assert found["a/zz_composer_values.go"].startswith(b"// Values of a package's calls")
    assert b"package demo\n" in found["a/zz_composer_recorder.go"]


def test_go_that_takes_long_to_read_is_named_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source = b'package a\n\nimport "unsafe"\n' + b"var x = 1\n" * 20_000
    assert telling({"a.go": source}) == {"unsafe"}
    monkeypatch.setattr(tripwire, "_ONE_S", 0.0)
    assert telling({"a.go": source}) == {"a file that takes long to read"}
