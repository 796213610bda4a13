"""Values of Rust calls: every kind that can be written down is read again, also in generic code and behind private fields."""

from __future__ import annotations

from pathlib import Path

import pytest
from rust_projects import write

from composer_replication.languages.rust.held_out import make_call_book
from composer_replication.languages.rust.runner import RustRunner
from composer_replication.sandbox.protocol import Tree

SOURCE = """use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

#[derive(Clone, PartialEq, Debug)]
pub enum Shape<T> {
    Dot,
    Line(T, T),
    Box { wide: T, deep: Option<T> },
}

pub fn shapes(all: &[Shape<i32>], scale: i32) -> Vec<Shape<i32>> {
    all.iter()
        .map(|one| match one {
            Shape::Dot => Shape::Dot,
            Shape::Line(a, b) => Shape::Line(a * scale, b * scale),
            Shape::Box { wide, deep } => Shape::Box { wide: wide * scale, deep: deep.map(|d| d * scale) },
        })
        .collect()
}

pub fn maps(words: &HashMap<String, Vec<u8>>, seen: &HashSet<char>) -> BTreeMap<String, usize> {
    words.iter().map(|(word, found)| (word.to_uppercase(), found.len() + seen.len())).collect()
}

pub fn parts(text: Cow<'_, str>, tail: Rc<String>, mark: char, wait: Duration, pair: (f64, [u16; 2])) -> (String, f64, u64) {
    (format!("{}{}{}", text, mark, tail), pair.0 * 2.0 + f64::from(pair.1[0]), wait.as_secs() + u64::from(pair.1[1]))
}

pub fn turned<T: Clone>(items: &mut VecDeque<T>, times: usize) -> Option<T> {
    for _ in 0..times {
        let first = items.pop_front()?;
        items.push_back(first);
    }
    items.front().cloned()
}

pub fn longest(text: &str) -> impl Iterator<Item = &str> + '_ {
    text.split(' ').filter(|word| word.len() > 2)
}

/// Cannot be looked into, and is made of text.
pub struct Tag {
    text: String,
    how: Box<dyn Fn(&str) -> String>,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Tag {
    type Err = ();

    fn from_str(text: &str) -> Result<Tag, ()> {
        Ok(Tag { text: text.to_string(), how: Box::new(|text| text.to_uppercase()) })
    }
}

impl Tag {
    pub fn loud(&self, marks: usize) -> String {
        format!("{}{}", (self.how)(&self.text), "!".repeat(marks))
    }
}

/// Cannot be looked into, and is made of a list.
pub struct Row<T> {
    items: Vec<T>,
    _how: Box<dyn Fn()>,
}

impl<T> Deref for Row<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> std::iter::FromIterator<T> for Row<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Row { items: items.into_iter().collect(), _how: Box::new(|| ()) }
    }
}

impl<T: Clone> Row<T> {
    pub fn doubled(&mut self, from: usize) -> usize {
        let more = self.items[from.min(self.items.len())..].to_vec();
        self.items.extend(more);
        self.items.len()
    }
}

pub fn closures(number: i32, way: &dyn Fn(i32) -> i32) -> i32 {
    way(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all() {
        for n in 1..8 {
            let some = [Shape::Dot, Shape::Line(n, 2), Shape::Box { wide: n, deep: Some(n) }, Shape::Box { wide: 1, deep: None }];
            assert_eq!(shapes(&some, n).len(), 4);
            let words: HashMap<String, Vec<u8>> = [("a".repeat(n as usize), vec![1; n as usize])].into_iter().collect();
            assert_eq!(maps(&words, &"xyz".chars().take(n as usize).collect()).len(), 1);
            let tail = Rc::new(format!("t{}", n));
            assert!(parts(Cow::Borrowed("ab"), tail, 'x', Duration::from_secs(n as u64), (n as f64, [n as u16, 4])).1 > 1.0);
            assert!(turned(&mut (0..n + 3).collect::<VecDeque<_>>(), n as usize).is_some());
            assert!(turned(&mut VecDeque::from(vec!["a".to_string(), "b".to_string(), "c".to_string()]), n as usize).is_some());
            assert!(longest(&format!("one to three {}", "x".repeat(n as usize))).count() >= 2);
            assert!(format!("word{}", n).parse::<Tag>().unwrap().loud(n as usize).ends_with('!'));
            assert_eq!((0..n).collect::<Row<i32>>().doubled(0), 2 * n as usize);
            assert_eq!(closures(n, &|n| n + 1), n + 1);
        }
    }
}
"""


@pytest.mark.usefixtures("ledger")
def test_what_can_be_written_down_is_asked_again(rust_runner: RustRunner, tmp_path: Path) -> None:
    manifest = '[package]\nname = "kinds"\nversion = "0.1.0"\nedition = "2021"\n'
    root = write(tmp_path / "kinds", {"Cargo.toml": manifest, "src/lib.rs": SOURCE})
    book = make_call_book(rust_runner, Tree(base=root), ["src/lib.rs"], ["."], seed=0)
    assert book.notes == ()
    kept = {key.partition("::")[2]: len(calls) for key, calls in book.calls.items()}
    wanted = {"shapes", "maps", "parts", "turned", "longest", "Tag.loud", "Tag.FromStr.from_str", "Row.doubled"}
    assert {name for name in wanted if kept.get(name, 0) < 4} == set(), kept
    assert "closures" not in kept
    turned = {tuple(one.call.how["types"]) for one in book.calls["src/lib.rs::turned"]}
    assert turned == {("i32",), ("std::string::String",)}
