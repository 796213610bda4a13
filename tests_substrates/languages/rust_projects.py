"""Small Rust projects, written for these tests: inline and integration tests, traits, generics, enums, a workspace."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

PYTHON = Path(sys.executable)
"""Of an environment that gets a compiler."""

LEDGER = {
    "Cargo.toml": '[package]\nname = "ledger"\nversion = "0.1.0"\nedition = "2021"\n',
    "LICENSE": "MIT License\n\nPermission is hereby granted, free of charge, to any person obtaining a copy\n",
    "src/lib.rs": """//! Amounts under names.

pub mod shelf;
pub mod words;

use std::collections::BTreeMap;
use std::fmt;

/// An amount under a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    name: String,
    pub amount: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Problem {
    Empty,
    NotAPair(String),
    NotADigit { letter: char, at: usize },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Empty => write!(f, "nothing there"),
            Problem::NotAPair(part) => write!(f, "not a pair: {}", part),
            Problem::NotADigit { letter, at } => write!(f, "{:?} at {} is no digit", letter, at),
        }
    }
}

impl Entry {
    pub fn new(name: &str, amount: i64) -> Self {
        Entry { name: name.trim().to_string(), amount }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Entries in the order in which they came.
#[derive(Debug, Default, Clone)]
pub struct Ledger {
    entries: Vec<Entry>,
    total: i64,
}

impl Ledger {
    /// Put an entry in.
    pub fn add(&mut self, name: &str, amount: i64) {
        self.entries.push(Entry::new(name, amount));
        self.total += amount;
    }

    pub fn total(&self) -> i64 {
        self.total
    }

    /// Return the name of the largest amount, the first of equal ones.
    pub fn largest(&self) -> Option<&str> {
        let mut best: Option<&Entry> = None;
        for entry in &self.entries {
            if best.map_or(true, |known| entry.amount > known.amount) {
                best = Some(entry);
            }
        }
        best.map(|entry| entry.name.as_str())
    }

    pub fn by_name(&self) -> BTreeMap<String, i64> {
        let mut found = BTreeMap::new();
        for entry in &self.entries {
            *found.entry(entry.name.clone()).or_insert(0) += entry.amount;
        }
        found
    }
}

/// Read the digits of a number.
///
/// Nothing but digits may be there.
fn digits(text: &str) -> Result<i64, Problem> {
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    let mut number: i64 = 0;
    for (at, letter) in text.chars().enumerate() {
        match letter.to_digit(10) {
            Some(digit) => number = number * 10 + i64::from(digit),
            None => return Err(Problem::NotADigit { letter, at }),
        }
    }
    Ok(number)
}

/// Read `name=amount` pairs that are separated by commas.
pub fn parse(text: &str) -> Result<Vec<Entry>, Problem> {
    let mut found = Vec::new();
    for part in text.split(',') {
        match part.trim().split_once('=') {
            Some((name, amount)) if !name.is_empty() => found.push(Entry::new(name, digits(amount)?)),
            _ => return Err(Problem::NotAPair(part.to_string())),
        }
    }
    Ok(found)
}

pub fn checked_share(total: i64, people: i64) -> i64 {
    assert!(people > 0, "nobody is there: {}", people);
    total.div_euclid(people)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_digits() {
        assert_eq!(digits("1"), Ok(1));
        assert_eq!(digits("22"), Ok(22));
        assert_eq!(digits("100"), Ok(100));
        assert_eq!(digits("65"), Ok(65));
        assert_eq!(digits(""), Err(Problem::Empty));
        assert!(matches!(digits("4x"), Err(Problem::NotADigit { letter: 'x', at: 1 })));
    }

    #[test]
    fn reads_pairs() -> Result<(), Problem> {
        assert_eq!(parse("a=1, b=22")?, [Entry::new("a", 1), Entry::new("b", 22)]);
        assert_eq!(parse("x=100,y=2,z=7")?.len(), 3);
        assert!(parse("long=65").is_ok());
        assert!(parse("=3").is_err());
        Ok(())
    }

    #[test]
    #[should_panic(expected = "nobody is there: 0")]
    fn nobody_gets_a_share() {
        checked_share(12, 0);
    }

    #[test]
    fn shares_are_whole() {
        for (total, people, share) in [(12, 3, 4), (13, 3, 4), (-7, 2, -4), (100, 7, 14), (0, 5, 0), (9, 1, 9)] {
            assert_eq!(checked_share(total, people), share);
        }
    }

    #[test]
    #[ignore]
    fn is_not_run() {
        panic!("it ran");
    }

    #[test]
    fn says_what_is_wrong() {
        for (problem, said) in [
            (Problem::Empty, "nothing there"),
            (Problem::NotAPair("a".into()), "not a pair: a"),
            (Problem::NotAPair("b c".into()), "not a pair: b c"),
            (Problem::NotADigit { letter: 'q', at: 3 }, "'q' at 3 is no digit"),
            (Problem::NotADigit { letter: 'w', at: 12 }, "'w' at 12 is no digit"),
        ] {
            assert_eq!(problem.to_string(), said);
        }
    }
}
""",
    "src/words.rs": """/// Words that can be made loud.
pub trait Loud {
    fn text(&self) -> String;

    fn loud(&self, marks: usize) -> String {
        let words: Vec<String> = self.text().split_whitespace().map(|word| word.to_uppercase()).collect();
        format!("{}{}", words.join(" "), "!".repeat(marks))
    }
}

impl Loud for str {
    fn text(&self) -> String {
        self.to_string()
    }
}

/// Return the words in order, each once.
pub fn sorted<T: AsRef<str>>(words: &[T]) -> Vec<String> {
    let mut found: Vec<String> = words.iter().map(|word| word.as_ref().to_lowercase()).collect();
    found.sort();
    found.dedup();
    found
}
""",
    "src/shelf.rs": """/// Things with a key, the smallest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Shelf<T> {
    items: Vec<(u32, T)>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Shelf { items: Vec::new() }
    }
}

impl<T> Shelf<T> {
    pub fn put(&mut self, key: u32, item: T) -> usize {
        let at = self.items.iter().position(|one| one.0 > key).unwrap_or(self.items.len());
        self.items.insert(at, (key, item));
        at
    }

    pub fn take(&mut self, key: u32) -> Option<T> {
        let at = self.items.iter().position(|one| one.0 == key)?;
        Some(self.items.remove(at).1)
    }
}

macro_rules! taken {
    ($($name:ident: $key:expr => $want:expr,)*) => {$(
        #[test]
        fn $name() {
            let mut shelf = filled();
            assert_eq!(shelf.take($key), $want);
        }
    )*};
}

#[cfg(test)]
fn filled() -> Shelf<String> {
    let mut shelf = Shelf::default();
    for (key, at) in [(5, 0), (1, 0), (9, 2), (5, 2), (7, 3)] {
        assert_eq!(shelf.put(key, format!("item {}", key)), at);
    }
    shelf
}

#[cfg(test)]
mod made {
    use super::*;

    taken! {
        takes_five: 5 => Some("item 5".to_string()),
        takes_nine: 9 => Some("item 9".to_string()),
        takes_nothing: 4 => None,
    }
}
""",
    "tests/whole.rs": """use ledger::words::{sorted, Loud};
use ledger::{parse, Ledger};

fn filled(text: &str) -> Ledger {
    let mut ledger = Ledger::default();
    for entry in parse(text).unwrap() {
        ledger.add(entry.name(), entry.amount);
    }
    ledger
}

#[test]
fn adds() {
    assert_eq!(filled("a=3,b=4").total(), 7);
    assert_eq!(filled("a=5,b=2,c=9,d=1,e=12").total(), 29);
}

#[test]
fn finds_the_largest() {
    for (text, want) in [("a=1,b=2,c=3", "c"), ("a=3,b=2", "a"), ("a=1,b=5,c=5", "b"), ("q=7", "q"), ("x=0,y=4,z=2", "y")] {
        assert_eq!(filled(text).largest(), Some(want));
    }
    assert_eq!(Ledger::default().largest(), None);
}

#[test]
fn sums_by_name() {
    let found = filled("a=1,b=5,a=6,c=2,b=1").by_name();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [("a".into(), 7), ("b".into(), 6), ("c".into(), 2)]);
}

#[test]
fn shouts() {
    for (text, marks, want) in [("a b", 2, "A B!!"), ("hi  you", 1, "HI YOU!"), ("x", 0, "X"), ("one two", 3, "ONE TWO!!!")] {
        assert_eq!(text.loud(marks), want);
    }
}

#[test]
fn sorts() {
    assert_eq!(sorted(&["b", "A", "b"]), ["a", "b"]);
    assert_eq!(sorted(&["q", "c", "Z", "a"]).len(), 4);
    assert_eq!(sorted(&[String::from("one"), String::from("ONE"), String::from("zero")]), ["one", "zero"]);
    assert_eq!(sorted(&["x", "y", "x", "w"]), ["w", "x", "y"]);
}
""",
}
"""A library with tests in its files, in a macro and beside it."""

HOUSE = {
    "Cargo.toml": '[workspace]\nmembers = ["rooms/*", "door"]\n',
    "LICENSE": LEDGER["LICENSE"],
    "rooms/area/Cargo.toml": '[package]\nname = "room-area"\nversion = "0.1.0"\nedition = "2018"\n',
    "rooms/area/src/lib.rs": """#![no_std]
#![forbid(unsafe_code)]
#![deny(warnings)]

#[derive(Clone, Copy)]
pub enum Unit {
    Metre,
    Foot(u32),
}

/// Return an area in square centimetres.
pub fn area(wide: u32, deep: u32, unit: Unit) -> u64 {
    let side = match unit {
        Unit::Metre => 100,
        Unit::Foot(size) => u64::from(size),
    };
    u64::from(wide) * side * u64::from(deep) * side
}

#[cfg(test)]
mod tests {
    use super::{area, Unit};

    #[test]
    fn is_measured() {
        assert_eq!(area(2, 3, Unit::Metre), 60_000);
        assert_eq!(area(1, 1, Unit::Foot(30)), 900);
        assert_eq!(area(5, 4, Unit::Foot(31)), 19_220);
        assert_eq!(area(0, 4, Unit::Metre), 0);
        assert_eq!(area(7, 9, Unit::Metre), 630_000);
    }
}
""",
    "door/Cargo.toml": '[package]\nname = "door"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\n'
    'room-area = { path = "../rooms/area" }\n',
    "door/src/main.rs": """use room_area::{area, Unit};

fn say(wide: u32, deep: u32) -> String {
    let whole = area(wide, deep, Unit::Metre) / 10_000;
    format!("{} square metres", whole)
}

fn main() {
    println!("{}", say(2, 3));
}

#[cfg(test)]
mod tests {
    #[test]
    fn says_it() {
        for (wide, deep, whole) in [(2, 3, 6), (1, 9, 9), (4, 4, 16), (0, 3, 0), (12, 11, 132)] {
            assert_eq!(super::say(wide, deep), format!("{} square metres", whole));
        }
    }
}
""",
}
"""A workspace of a library without std and a program."""


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def require_rust() -> None:
    """Fail where there is no compiler: these tests are worth nothing without."""
    own = Path.home() / ".cargo" / "bin" / "rustc"
    if shutil.which("rustc") is None and not os.access(own, os.X_OK):
        pytest.fail(
            "there is no rustc on this machine; install rustc and cargo (apt-get install rustc cargo, or https://rustup.rs)"
        )
