// Values of calls as plain data, and back. Whether a type can be written is decided where it is known: by specialization, also
// inside generic functions.
#![allow(dead_code, unused, warnings, clippy::all)]

extern crate std;
use self::std::prelude::v1::*;
use self::std::borrow::{Cow, ToOwned};
use self::std::fmt::{Debug, Write as _};
use self::std::rc::Rc;
use self::std::sync::Arc;
use self::std::{format, vec};
use super::json::Json;

const DEPTH: usize = 10;
const ITEMS: usize = 400;
const TEXT: usize = 4000;

/// JSON text that is being written.
pub struct Out {
    pub text: String,
    /// Everything could be written, and can be read again.
    pub whole: bool,
    /// What is looked at, not given again: of an error it is enough that there is one.
    pub looks: bool,
    left: usize,
    depth: usize,
}

impl Out {
    pub fn new(looks: bool) -> Out {
        Out { text: String::new(), whole: true, looks, left: ITEMS, depth: 0 }
    }

    pub fn put(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub fn opaque(&mut self) {
        self.whole = false;
        self.put("{\"k\":\"opaque\"}");
    }

    pub fn nothing(&mut self) {
        self.put("{\"k\":\"nil\"}");
    }

    pub fn plain(&mut self, kind: &str, kind_of: &str, value: &str) {
        let _ = write!(self.text, "{{\"k\":\"{}\",\"t\":\"{}\",\"v\":", kind, kind_of);
        quoted(&mut self.text, value);
        self.put("}");
    }

    /// Writes something inside something: nothing where there is too much.
    pub fn one<T: Show + ?Sized>(&mut self, value: &T) {
        if self.left == 0 || self.depth > DEPTH {
            self.whole = false;
            self.put("{\"k\":\"more\"}");
            return;
        }
        self.left -= 1;
        self.depth += 1;
        value.show(self);
        self.depth -= 1;
    }

    pub fn part<T: Show + ?Sized>(&mut self, value: &T) -> String {
        let before = std::mem::take(&mut self.text);
        self.one(value);
        std::mem::replace(&mut self.text, before)
    }

    pub fn list<'a, T: Show + 'a>(&mut self, kind_of: &str, items: impl Iterator<Item = &'a T>) {
        let _ = write!(self.text, "{{\"k\":\"list\",\"t\":\"{}\",\"e\":[", kind_of);
        for (number, item) in items.enumerate() {
            if number > 0 {
                self.put(",");
            }
            if self.left == 0 {
                self.one(item);
                break;
            }
            self.one(item);
        }
        self.put("]}");
    }

    pub fn sorted<'a, T: Show + 'a>(&mut self, items: impl Iterator<Item = &'a T>) {
        let mut texts: Vec<String> = items.take(ITEMS).map(|item| self.part(item)).collect();
        texts.sort();
        let _ = write!(self.text, "{{\"k\":\"list\",\"t\":\"set\",\"e\":[{}]}}", texts.join(","));
    }

    pub fn pairs<'a, K: Show + 'a, V: Show + 'a>(&mut self, items: impl Iterator<Item = (&'a K, &'a V)>) {
        let mut texts = Vec::new();
        for (key, value) in items.take(ITEMS) {
            let (key, value) = (self.part(key), self.part(value));
            texts.push(format!("[{},{}]", key, value));
        }
        texts.sort();
        let _ = write!(self.text, "{{\"k\":\"map\",\"t\":\"map\",\"e\":[{}]}}", texts.join(","));
    }

    pub fn begin(&mut self, name: &str) {
        let _ = write!(self.text, "{{\"k\":\"struct\",\"t\":\"{}\",\"e\":[", name);
    }

    /// Begins a struct whose fields may not all be such that they can be written.
    pub fn open(&mut self, name: &str) -> (usize, bool) {
        let before = (self.text.len(), self.whole);
        self.whole = true;
        self.begin(name);
        before
    }

    /// Ends it: where a field cannot be written, the text or the list that the whole can be made of stands for it.
    pub fn close<T: super::whole::Whole>(&mut self, value: &T, before: (usize, bool)) {
        self.end();
        if !self.whole {
            let mut other = Out::new(self.looks);
            if value.written(&mut other) && other.whole {
                self.text.truncate(before.0);
                self.text.push_str(&other.text);
                self.whole = true;
            }
        }
        self.whole = self.whole && before.1;
    }

    pub fn variant(&mut self, name: &str) {
        let _ = write!(self.text, "[\"is\",{{\"k\":\"name\",\"v\":\"{}\"}}]", name);
    }

    pub fn field<T: Show + ?Sized>(&mut self, name: &str, value: &T) {
        if !self.text.ends_with('[') {
            self.put(",");
        }
        let _ = write!(self.text, "[\"{}\",", name);
        self.one(value);
        self.put("]");
    }

    pub fn end(&mut self) {
        self.put("]}");
    }
}

fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            letter if (letter as u32) < 32 || (letter as u32) == 127 => {
                let _ = write!(out, "\\u{:04x}", letter as u32);
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}

/// Something that may be written down.
pub trait Show {
    fn show(&self, out: &mut Out);
}

impl<T: ?Sized> Show for T {
    default fn show(&self, out: &mut Out) {
        Said::said(self, out)
    }
}

/// What has no form of its own, and says something of itself.
pub trait Said {
    fn said(&self, out: &mut Out);
}

impl<T: ?Sized> Said for T {
    default fn said(&self, out: &mut Out) {
        out.opaque()
    }
}

impl<T: Debug + ?Sized> Said for T {
    fn said(&self, out: &mut Out) {
        if out.looks {
            let text: String = format!("{:?}", self).chars().take(TEXT).collect();
            out.plain("string", "debug", &text);
        } else {
            out.opaque();
        }
    }
}

/// Something that may be read from what was written down.
pub trait Read: Sized {
    fn read(from: &Json) -> Option<Self>;
}

impl<T> Read for T {
    default fn read(_: &Json) -> Option<Self> {
        None
    }
}

/// A value where nothing is written down.
pub trait Fresh: Sized {
    fn fresh() -> Option<Self>;
}

impl<T> Fresh for T {
    default fn fresh() -> Option<Self> {
        None
    }
}

impl<T: Default> Fresh for T {
    fn fresh() -> Option<Self> {
        Some(T::default())
    }
}

macro_rules! numbers {
    ($kind:literal: $($name:ident)*) => {$(
        impl Show for $name {
            fn show(&self, out: &mut Out) {
                out.plain($kind, stringify!($name), &format!("{:?}", self));
            }
        }
        impl Read for $name {
            fn read(from: &Json) -> Option<Self> {
                from.text("v")?.parse().ok()
            }
        }
    )*};
}
numbers!("int": i8 i16 i32 i64 i128 isize);
numbers!("uint": u8 u16 u32 u64 u128 usize);
numbers!("float": f32 f64);
numbers!("bool": bool);

macro_rules! texts {
    ($($name:ty),*) => {$(
        impl Show for $name {
            fn show(&self, out: &mut Out) {
                out.plain("string", stringify!($name), &format!("{}", self));
            }
        }
        impl Read for $name {
            fn read(from: &Json) -> Option<Self> {
                from.text("v")?.parse().ok()
            }
        }
    )*};
}
texts!(char, std::net::IpAddr, std::net::Ipv4Addr, std::net::Ipv6Addr, std::net::SocketAddr);

impl Show for str {
    fn show(&self, out: &mut Out) {
        if self.len() > TEXT {
            out.whole = false;
        }
        out.plain("string", "string", self)
    }
}

impl Show for String {
    fn show(&self, out: &mut Out) {
        self.as_str().show(out)
    }
}

impl Read for String {
    fn read(from: &Json) -> Option<Self> {
        Some(from.text("v")?.to_owned())
    }
}

impl<'a> Read for &'a str {
    fn read(from: &Json) -> Option<Self> {
        Some(Box::leak(from.text("v")?.to_owned().into_boxed_str()))
    }
}

impl Show for () {
    fn show(&self, out: &mut Out) {
        out.nothing()
    }
}

impl Read for () {
    fn read(_: &Json) -> Option<Self> {
        Some(())
    }
}

macro_rules! through {
    ($($kind:ty: $new:expr),*) => {$(
        impl<T: ?Sized> Show for $kind {
            fn show(&self, out: &mut Out) {
                (**self).show(out)
            }
        }
        impl<T> Read for $kind {
            fn read(from: &Json) -> Option<Self> {
                Some($new(T::read(from)?))
            }
        }
    )*};
}
through!(Box<T>: Box::new, Rc<T>: Rc::new, Arc<T>: Arc::new);

impl<'a, T: ?Sized> Show for &'a T {
    fn show(&self, out: &mut Out) {
        (**self).show(out)
    }
}

impl<'a, T: ?Sized> Show for &'a mut T {
    fn show(&self, out: &mut Out) {
        (**self).show(out)
    }
}

impl<'a, T> Read for &'a T {
    fn read(from: &Json) -> Option<Self> {
        Some(Box::leak(Box::new(T::read(from)?)))
    }
}

impl<'a, T> Read for &'a mut T {
    fn read(from: &Json) -> Option<Self> {
        Some(Box::leak(Box::new(T::read(from)?)))
    }
}

impl<'a, T> Read for &'a [T] {
    fn read(from: &Json) -> Option<Self> {
        Some(Box::leak(Vec::<T>::read(from)?.into_boxed_slice()))
    }
}

impl<'a, T> Read for &'a mut [T] {
    fn read(from: &Json) -> Option<Self> {
        Some(Box::leak(Vec::<T>::read(from)?.into_boxed_slice()))
    }
}

impl Read for Box<str> {
    fn read(from: &Json) -> Option<Self> {
        Some(from.text("v")?.into())
    }
}

impl<T> Read for Box<[T]> {
    fn read(from: &Json) -> Option<Self> {
        Some(Vec::<T>::read(from)?.into_boxed_slice())
    }
}

impl<'a, T: ToOwned + ?Sized> Show for Cow<'a, T> {
    fn show(&self, out: &mut Out) {
        (**self).show(out)
    }
}

impl<'a, T: ToOwned + ?Sized> Read for Cow<'a, T> {
    fn read(from: &Json) -> Option<Self> {
        Some(Cow::Owned(<T::Owned as Read>::read(from)?))
    }
}
