// Lists, sets, maps and tuples as plain data, and back.
#![allow(dead_code, unused, warnings, clippy::all)]

extern crate std;
use self::std::prelude::v1::*;
use self::std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use self::std::hash::{BuildHasher, Hash};
use self::std::convert::TryInto;
use super::json::Json;
use super::values::{Out, Read, Show};

impl<T> Show for [T] {
    fn show(&self, out: &mut Out) {
        out.list("[]", self.iter())
    }
}

impl<T> Show for Vec<T> {
    fn show(&self, out: &mut Out) {
        self.as_slice().show(out)
    }
}

impl<T, const N: usize> Show for [T; N] {
    fn show(&self, out: &mut Out) {
        out.list("[N]", self.iter())
    }
}

impl<T, const N: usize> Read for [T; N] {
    fn read(from: &Json) -> Option<Self> {
        from.all::<T, Vec<T>>()?.try_into().ok()
    }
}

macro_rules! collections {
    ($([$($bounds:tt)*] $kind:ty: $how:ident);*) => {$(
        impl<$($bounds)*> Show for $kind {
            fn show(&self, out: &mut Out) {
                collections!($how self out)
            }
        }
        impl<$($bounds)*> Read for $kind {
            fn read(from: &Json) -> Option<Self> {
                from.all()
            }
        }
    )*};
    (list $of:ident $out:ident) => { $out.list("[]", $of.iter()) };
    (sorted $of:ident $out:ident) => { $out.sorted($of.iter()) };
}
collections!(
    [T] VecDeque<T>: list;
    [T] LinkedList<T>: list;
    [T: Ord] BinaryHeap<T>: sorted;
    [T: Ord] BTreeSet<T>: sorted;
    [T: Eq + Hash, S: BuildHasher + Default] HashSet<T, S>: sorted
);

impl<T> Read for Vec<T> {
    fn read(from: &Json) -> Option<Self> {
        from.all()
    }
}

macro_rules! maps {
    ($([$($bounds:tt)*] $kind:ty);*) => {$(
        impl<$($bounds)*> Show for $kind {
            fn show(&self, out: &mut Out) {
                out.pairs(self.iter())
            }
        }
        impl<$($bounds)*> Read for $kind {
            fn read(from: &Json) -> Option<Self> {
                let pairs = match from.get("e")? {
                    Json::List(items) => items,
                    _ => return None,
                };
                let read = |pair: &Json| match pair {
                    Json::List(both) if both.len() == 2 => Some((K::read(&both[0])?, V::read(&both[1])?)),
                    _ => None,
                };
                pairs.iter().map(read).collect()
            }
        }
    )*};
}
maps!([K: Ord, V] BTreeMap<K, V>; [K: Eq + Hash, V, S: BuildHasher + Default] HashMap<K, V, S>);

macro_rules! tuples {
    ($(($($name:ident $at:tt)+))*) => {$(
        impl<$($name),+> Show for ($($name,)+) {
            fn show(&self, out: &mut Out) {
                out.put("{\"k\":\"list\",\"t\":\"[tuple]\",\"e\":[");
                $(
                    if $at > 0 {
                        out.put(",");
                    }
                    out.one(&self.$at);
                )+
                out.put("]}");
            }
        }
        impl<$($name),+> Read for ($($name,)+) {
            fn read(from: &Json) -> Option<Self> {
                Some(($($name::read(from.item($at)?)?,)+))
            }
        }
    )*};
}
tuples!((A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5));
