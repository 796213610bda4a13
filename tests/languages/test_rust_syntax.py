"""Rust read with tree-sitter: functions, tests in source files, crates and their modules, names worth a look."""

from __future__ import annotations

import pytest

from composer_replication.languages.rust.alarms import KINDS, telling
from composer_replication.languages.rust.crates import crates_of, modules_of, packages_of
from composer_replication.languages.rust.inline_tests import has_tests, reporting, with_tests_of, without_tests
from composer_replication.languages.rust.requirements import lowest, required_crates, satisfies
from composer_replication.languages.rust.shapes import shapes_of
from composer_replication.languages.rust.syntax import block_starts, find_functions, functions_of, root_of
from composer_replication.languages.rust.targets import how_of, nameable, passing, targets_of

SOURCE = b"""
use std::fmt;

/// Make it loud.
#[inline]
pub fn loud<T: AsRef<str>>(mut text: T, marks: usize) -> String {
    let bare = text.as_ref().trim();
    if marks > 0 && bare.len() > 1 { bare.to_uppercase() } else { String::new() }
}

impl<'a, T> fmt::Display for inner::Stack<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #![allow(unused)]
        write!(f, "x")
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Problem
    }
}

mod inner {
    pub trait Named {
        fn name(&self) -> String {
            String::new()
        }
        fn bare(&self) -> String;
    }
}

const fn small() -> u8 {
    3
}
fn each() -> impl Iterator<Item = u8> {
    0..3
}
extern "C" fn called() {
    other();
}
fn one() -> u8 { 1 }
fn main() {
    one();
}

#[cfg(test)]
mod tests {
    #[test]
    fn works() {
        assert!(true);
    }
}
"""


def test_functions_are_found_by_name() -> None:
    found, skipped = find_functions("src/lib.rs", SOURCE)
    names = [one.qualname for one in found]
    assert names == ["loud", "Stack.Display.fmt", "Problem.From<Error>.from", "inner.Named.name"]
    loud = found[0]
    assert (loud.def_line, loud.first_line, loud.last_line, loud.parameters) == (6, 7, 8, ("text", "marks"))
    assert loud.calls == {"trim", "as_ref", "to_uppercase", "len", "new"}
    assert loud.branches == 2
    assert {one.what.partition("::")[2]: one.reason.partition(":")[0] for one in skipped} == {
        "small": "const fn",
        "each": "it returns an `impl Trait`, for which no stub compiles",
        "called": "extern fn",
        "one": "body on the line of its signature",
        "main": "nothing calls it by name",
    }


def test_what_has_one_name_twice_is_no_task() -> None:
    source = b"#[cfg(unix)]\nfn a() -> u8 {\n    1\n}\n#[cfg(windows)]\nfn a() -> u8 {\n    2\n}\n"
    assert find_functions("a.rs", source)[0] == []


def test_blocks_that_run_in_the_compiler_are_left_alone() -> None:
    source = b"fn a() { const B: u8 = { 3 }; let c = [0u8; { 4 }]; if d { e() } loop { break } }"
    (item,) = functions_of(root_of(source))
    assert [source[at : at + 6].strip() for at in block_starts(item.node)] == [b"const", b"e() }", b"break"]


GOLD = b"""pub fn a() -> u8 {
    1
}
#[cfg(test)]
use std::fmt;
mod inner {
    #[cfg(test)]
    mod deep { #[test] fn q() { assert!(true) } }
}
#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(expected = "boom")]
    fn works() { super::a(); }
    #[test]
    fn gives() -> Result<(), String> { Ok(()) }
}
"""


@pytest.mark.parametrize(
    "own",
    [
        b"",
        b"#[cfg(test)]\nmod tests { #[test] fn works() {} }\n",
        b"#[test]\nfn other() {}\n#[cfg(test)] mod more { #[test] fn works() {} }\n",
        b"#[cfg(all(test, unix))]\nmod tests {}\n",
    ],
)
def test_the_tests_of_a_file_stay_what_they_were(own: bytes) -> None:
    work = b"pub fn a() -> u8 {\n    2\n}\nmod inner {\n}\n" + own
    merged = with_tests_of(GOLD, work)
    assert b"    2\n" in merged
    assert merged.count(b"fn works()") == 1
    assert b'#[should_panic(expected = "boom")]\n    fn works() { super::a(); }' in merged
    assert merged.index(b"mod deep") < merged.index(b"mod tests")
    assert b"other" not in merged
    assert b"more" not in merged
    assert with_tests_of(GOLD, merged).split() == merged.split()
    assert not has_tests(without_tests(GOLD))
    assert b"pub fn a()" in without_tests(GOLD)


def test_tests_of_a_module_that_is_gone_are_lost() -> None:
    assert b"deep" not in with_tests_of(GOLD, b"pub fn a() {}\n")


def test_tests_report_where_they_stand() -> None:
    text = reporting("src/a.rs", GOLD, "composer_m").decode()
    assert text.count("\n") == GOLD.decode().count("\n")
    assert 'concat!("src/a.rs::tests::works", "\\t", module_path!(), "::", "works"), Some("boom"), move || -> ()' in text
    assert "None, move || -> Result<(), String>" in text
    assert "src/a.rs::inner::deep::q" in text


def test_tests_of_macros_report_too() -> None:
    source = b"macro_rules! t { ($($n:ident: $e:expr,)*) => {$( #[test] fn $n() { assert!($e); } )*}; }"
    text = reporting("src/a.rs", source, "composer_m").decode()
    assert 'concat!("@", file!(), "\\t", module_path!(), "::", stringify!($n)), None' in text


FILES = {
    "Cargo.toml": b'[package]\nname = "the-house"\n[workspace]\nmembers = ["rooms/*"]\nexclude = ["rooms/old"]\n'
    b'[dependencies]\ndoor = { path = "door" }\nserde = { version = "1", optional = true, features = ["derive"] }\n'
    b'[dev-dependencies]\nrand = "0.8"\n[features]\nall = ["serde/rc"]\n',
    "src/lib.rs": b'mod a;\npub mod b { mod c; }\n#[path = "odd.rs"] mod d;\n#[cfg(test)] mod only;\n',
    **{f"src/{name}.rs": b"" for name in ("a/e", "b/c", "odd", "only", "orphan")},
    "src/a.rs": b"mod e;\n",
    "src/bin/tool.rs": b"fn main() {}",
    "tests/whole.rs": b"mod common;\n",
    "tests/common/mod.rs": b"",
    "tests/data.txt": b"",
    "door/Cargo.toml": b'[package]\nname = "door"\n[lib]\npath = "door.rs"\nname = "gate"\n',
    "door/door.rs": b"",
    "rooms/one/Cargo.toml": b'[package]\nname = "one"\n',
    "rooms/one/src/main.rs": b"",
    "rooms/old/Cargo.toml": b'[package]\nname = "old"\n',
    "vendor/x/Cargo.toml": b'[package]\nname = "x"\n',
}


def test_crates_and_modules_are_found() -> None:
    crates = crates_of(list(FILES), FILES.__getitem__)
    assert [(one.kind, one.root, one.name) for one in crates] == [
        ("lib", "src/lib.rs", "the_house"),
        ("lib", "door/door.rs", "gate"),
        ("bin", "src/bin/tool.rs", "tool"),
        ("bin", "rooms/one/src/main.rs", "one"),
        ("test", "tests/whole.rs", "whole"),
    ]
    modules = modules_of(crates[0], list(FILES), FILES.__getitem__)
    assert {path: "::".join(one.names) for path, one in modules.items()} == {
        **{
            "src/lib.rs": "",
            "src/a.rs": "a",
            "src/a/e.rs": "a::e",
            "src/b/c.rs": "b::c",
            "src/odd.rs": "d",
            "src/only.rs": "only",
        }
    }
    assert modules["src/b/c.rs"].parent == ("src/lib.rs", ("b",))
    assert [path for path, one in modules.items() if one.is_test] == ["src/only.rs"]
    assert list(modules_of(crates[-1], list(FILES), FILES.__getitem__)) == ["tests/whole.rs", "tests/common/mod.rs"]


def test_requirements_are_read() -> None:
    manifest = packages_of(list(FILES), FILES.__getitem__)[""]
    found = {one.name: one for one in required_crates(manifest, {})}
    assert found.keys() == {"serde", "rand"}
    assert (found["serde"].features, found["serde"].is_needed) == ({"derive", "rc"}, False)
    assert (found["rand"].is_for_tests, found["rand"].is_needed) == (True, False)
    switched = {"dependencies": {"a": {"version": "1", "optional": True}}, "features": {"default": ["b"], "b": ["dep:a"]}}
    assert [one.is_needed for one in required_crates(switched, {}, by_default=True)] == [True]
    assert [one.is_needed for one in required_crates(switched, {})] == [False]
    needed = next(required_crates({"dependencies": {"own": {"workspace": True}}}, {"own": {"version": "2", "package": "real"}}))
    assert (needed.name, needed.version, needed.is_needed) == ("real", "2", True)


@pytest.mark.parametrize(
    ("version", "requirement", "holds"),
    [
        *(
            ("1.2.3", "1.2", True),
            ("1.1.9", "1.2", False),
            ("2.0.0", "1", False),
            ("0.2.5", "0.2.1", True),
            ("0.3.0", "0.2", False),
        ),
        *(("0.0.4", "0.0.3", False), ("1.4.0", "~1.2", False), ("1.2.9", "~1.2.3", True), ("1.5.0", ">=1, <2", True)),
        *(
            ("2.0.0", ">=1, <2", False),
            ("3.1.0", "*", True),
            ("1.9.0", "1.*", True),
            ("1.0.0", "^0", False),
            ("0.9.0", "0", True),
        ),
    ],
)
def test_versions_are_compared_as_cargo_does(version: str, requirement: str, holds: bool) -> None:
    assert satisfies(version, requirement) is holds
    assert satisfies(lowest(requirement), requirement)


TYPES = b"""
pub struct Bag<'a, T: Clone + Iterator<Item = u8> = V, const N: usize = 3> where T: Copy { #[cfg(x)] pub a: &'a T, r#type: u8 }
enum Kind<T> { A, B(u8, T), C { x: u8 } }
impl<'a, T: Clone> Bag<'a, T, 3> {
    fn m<K: Ord, const M: usize>(&'a mut self, k: &[K], s: &'a str, z: impl AsRef<str>) -> u8 { 1 }
    fn by(mut self) -> Self { self }
    fn odd(&self, (a, b): (u8, u8)) {}
    fn dynamic(&self, a: &dyn Fn()) {}
}
impl<T> fmt::LowerHex for Kind<T> { fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result { x } }
impl<T> Drop for Kind<T> { fn drop(&mut self) { x } }
trait Tr<Q> { fn d(&self, q: Q) -> u8 { 1 } }
"""


def test_calls_are_written_down_where_their_types_can_be() -> None:
    targets = {one.qualname: one for one in targets_of("src/lib.rs", TYPES)}
    assert targets.keys() == {"Bag.m", "Bag.by", "Kind.LowerHex.fmt", "Tr.d"}
    recorded = targets["Bag.m"].record("composer_m")
    assert ".of::<T>().of::<K>().constant(M).given(&self).given(&k).given(&s).given(&z).end()" in recorded
    kinds = ["&mut x::Bag<i32, 3>", "&[x::K]", "&str", "alloc::string::String"]
    how = how_of(targets["Bag.m"], "x", "src/lib.rs", ["i32", "x::K", "4"], kinds)
    assert how is not None
    assert (how["owner"], how["types"]) == ("Bag<'_, i32, 3>", ["crate::K", "4"])
    assert how["passed"] == [
        ["&mut {}", ""],
        ["&{}[..]", "asker::Vec<_>"],
        ["&{}[..]", "asker::String"],
        ["", "std::string::String"],
    ]
    assert how_of(targets["Bag.m"], "x", "src/lib.rs", ["i32", "whole::K", "4"], kinds) is None
    assert (targets["Kind.LowerHex.fmt"].format, targets["Kind.LowerHex.fmt"].given) == ("{:x}", (("self", "&Self"),))
    inside = how_of(targets["Tr.d"], "x", "src/lib.rs", ["str", "u8"], ["&str", "u8"])
    assert inside is not None
    assert (inside["owner"], inside["trait"], inside["passed"][0]) == ("str", "Tr<u8>", ["&{}[..]", "asker::String"])


def test_types_are_named_as_their_crate_can() -> None:
    assert nameable("alloc::collections::btree::map::BTreeMap<alloc::string::String, i32>", "x") == (
        "std::collections::BTreeMap<std::string::String, i32>"
    )
    assert nameable("x::a::B<core::option::Option<&str>>", "x") == "crate::a::B<std::option::Option<&str>>"
    for name in ("other::X", "x::f::{{closure}}", "dyn core::fmt::Debug", "fn(u8) -> u8"):
        assert nameable(name, "x") is None
    assert passing("&'a mut [u8]") == ("&mut {}[..]", "asker::Vec<_>")
    assert passing("&[u8; 3]") == ("&{}", "")
    assert passing("&std::path::Path") == ("{}.as_ref()", "std::path::PathBuf")


def test_types_of_a_crate_get_both_ways() -> None:
    (bag, kind) = [text for _, text in shapes_of(TYPES, "composer_m")]
    assert (
        "impl<'a, T: Clone + Iterator<Item = u8>, const N: usize> crate::composer_m::values::Show for Bag<'a, T, N> where" in bag
    )
    assert '#[cfg(x)] out.field("a", &self.a);' in " ".join(bag.split())
    assert 'r#type: from.field("type")?' in bag
    assert 'Kind::B(f0, f1) => { out.variant("B");' in kind
    assert '"C" => Some(Kind::C {' in kind


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("fn a() { std::process::exit(0) }", "std::process"),
        ("use std::{fs, env};", "std::fs"),
        ("use std::fs::File;", "std::fs"),
        ("fn a() { unsafe { b() } }", "unsafe"),
        ('extern "C" fn a() {}', "extern"),
        ('fn a() { include_str!("x"); }', "include_str!"),
        ('#[link_section = ".init_array"]\nstatic A: u8 = 1;', "link_section"),
        ("#[cfg(not(test))]\nfn a() {}", "cfg(test)"),
        ("fn a() { if cfg!(test) {} }", "cfg!(test)"),
        ("macro_rules! assert_eq { () => {}; }", "assert_eq!"),
        ("pub use crate::mine::equal as assert_eq;", "assert_eq!"),
        ("thread_local! { static A: u8 = 1; }", "thread_local!"),
        ("fn a() { std::panic::catch_unwind(|| 1); }", "std::panic"),
    ],
)
def test_what_is_worth_a_look_is_named(code: str, name: str) -> None:
    assert name in telling({"src/a.rs": code.encode()})
    assert name in KINDS


def test_plain_code_and_its_tests_are_not_worth_a_look() -> None:
    assert telling({"src/lib.rs": GOLD}) == set()
    plain = b"use std::collections::HashMap;\npub fn a(x: &str) -> Option<u8> { assert!(x.len() > 1); x.parse().ok() }\n"
    assert telling({"src/lib.rs": plain}) == set()
