// Types of the standard library, beside texts, numbers and collections, as plain data, and back.
#![allow(dead_code, unused, warnings, clippy::all)]

extern crate std;
use self::std::format;
use self::std::prelude::v1::*;
use self::std::time::Duration;
use super::json::Json;
use super::values::{Out, Read, Show};

macro_rules! nonzero {
    ($($name:ident $kind:ident),*) => {$(
        impl Show for std::num::$name {
            fn show(&self, out: &mut Out) {
                self.get().show(out)
            }
        }
        impl Read for std::num::$name {
            fn read(from: &Json) -> Option<Self> {
                std::num::$name::new(<$kind as Read>::read(from)?)
            }
        }
    )*};
}
nonzero!(NonZeroU8 u8, NonZeroU16 u16, NonZeroU32 u32, NonZeroU64 u64, NonZeroUsize usize, NonZeroI32 i32, NonZeroI64 i64);

impl Show for std::path::Path {
    fn show(&self, out: &mut Out) {
        out.plain("string", "path", &self.to_string_lossy())
    }
}

impl Show for std::path::PathBuf {
    fn show(&self, out: &mut Out) {
        self.as_path().show(out)
    }
}

impl Read for std::path::PathBuf {
    fn read(from: &Json) -> Option<Self> {
        Some(std::path::PathBuf::from(from.text("v")?))
    }
}

impl Show for std::ffi::OsStr {
    fn show(&self, out: &mut Out) {
        out.plain("string", "os", &self.to_string_lossy())
    }
}

impl Show for std::ffi::OsString {
    fn show(&self, out: &mut Out) {
        self.as_os_str().show(out)
    }
}

impl Read for std::ffi::OsString {
    fn read(from: &Json) -> Option<Self> {
        Some(std::ffi::OsString::from(from.text("v")?))
    }
}

impl<T: ?Sized> Show for std::marker::PhantomData<T> {
    fn show(&self, out: &mut Out) {
        out.nothing()
    }
}

impl<T: ?Sized> Read for std::marker::PhantomData<T> {
    fn read(_: &Json) -> Option<Self> {
        Some(std::marker::PhantomData)
    }
}

impl Show for std::cmp::Ordering {
    fn show(&self, out: &mut Out) {
        out.plain("name", "Ordering", &format!("{:?}", self))
    }
}

impl Read for std::cmp::Ordering {
    fn read(from: &Json) -> Option<Self> {
        match from.text("v")? {
            "Less" => Some(std::cmp::Ordering::Less),
            "Equal" => Some(std::cmp::Ordering::Equal),
            "Greater" => Some(std::cmp::Ordering::Greater),
            _ => None,
        }
    }
}

impl Show for Duration {
    fn show(&self, out: &mut Out) {
        out.begin("Duration");
        out.field("secs", &self.as_secs());
        out.field("nanos", &self.subsec_nanos());
        out.end();
    }
}

impl Read for Duration {
    fn read(from: &Json) -> Option<Self> {
        let nanos: u32 = from.field("nanos")?;
        if nanos < 1_000_000_000 { Some(Duration::new(from.field("secs")?, nanos)) } else { None }
    }
}

impl Show for std::time::SystemTime {
    fn show(&self, out: &mut Out) {
        match self.duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => since.show(out),
            Err(_) => out.opaque(),
        }
    }
}

impl Read for std::time::SystemTime {
    fn read(from: &Json) -> Option<Self> {
        std::time::UNIX_EPOCH.checked_add(Duration::read(from)?)
    }
}

impl<'a, T> Read for std::slice::Iter<'a, T> {
    fn read(from: &Json) -> Option<Self> {
        Some(<&'a [T]>::read(from)?.iter())
    }
}

impl<'a, T> Show for std::slice::Iter<'a, T> {
    fn show(&self, out: &mut Out) {
        self.as_slice().show(out)
    }
}

impl<'a> Read for std::str::Chars<'a> {
    fn read(from: &Json) -> Option<Self> {
        Some(<&'a str>::read(from)?.chars())
    }
}

impl<'a> Show for std::str::Chars<'a> {
    fn show(&self, out: &mut Out) {
        self.as_str().show(out)
    }
}

impl<T> Show for std::vec::IntoIter<T> {
    fn show(&self, out: &mut Out) {
        self.as_slice().show(out)
    }
}

impl<T> Read for std::vec::IntoIter<T> {
    fn read(from: &Json) -> Option<Self> {
        Some(Vec::<T>::read(from)?.into_iter())
    }
}

impl<T: Copy> Show for std::cell::Cell<T> {
    fn show(&self, out: &mut Out) {
        self.get().show(out)
    }
}

impl<T> Read for std::cell::Cell<T> {
    fn read(from: &Json) -> Option<Self> {
        Some(std::cell::Cell::new(T::read(from)?))
    }
}

impl<T> Show for std::cell::RefCell<T> {
    fn show(&self, out: &mut Out) {
        match self.try_borrow() {
            Ok(inner) => inner.show(out),
            Err(_) => out.opaque(),
        }
    }
}

impl<T> Read for std::cell::RefCell<T> {
    fn read(from: &Json) -> Option<Self> {
        Some(std::cell::RefCell::new(T::read(from)?))
    }
}

impl<T> Show for std::sync::Mutex<T> {
    fn show(&self, out: &mut Out) {
        match self.try_lock() {
            Ok(inner) => inner.show(out),
            Err(_) => out.opaque(),
        }
    }
}

impl<T> Read for std::sync::Mutex<T> {
    fn read(from: &Json) -> Option<Self> {
        Some(std::sync::Mutex::new(T::read(from)?))
    }
}

impl<T> Show for std::num::Wrapping<T> {
    fn show(&self, out: &mut Out) {
        self.0.show(out)
    }
}

impl<T> Read for std::num::Wrapping<T> {
    fn read(from: &Json) -> Option<Self> {
        Some(std::num::Wrapping(T::read(from)?))
    }
}

impl<T> Show for std::ops::Range<T> {
    fn show(&self, out: &mut Out) {
        out.begin("Range");
        out.field("start", &self.start);
        out.field("end", &self.end);
        out.end();
    }
}

impl<T> Read for std::ops::Range<T> {
    fn read(from: &Json) -> Option<Self> {
        Some(from.field("start")?..from.field("end")?)
    }
}

impl<T> Show for Option<T> {
    fn show(&self, out: &mut Out) {
        match self {
            None => out.nothing(),
            Some(inner) => {
                out.put("{\"k\":\"pointer\",\"e\":");
                out.one(inner);
                out.put("}");
            }
        }
    }
}

impl<T> Read for Option<T> {
    fn read(from: &Json) -> Option<Self> {
        match from.text("k")? {
            "nil" => Some(None),
            "pointer" => Some(Some(T::read(from.get("e")?)?)),
            _ => None,
        }
    }
}

impl<T, E> Show for Result<T, E> {
    fn show(&self, out: &mut Out) {
        out.begin("Result");
        match self {
            Ok(inner) => {
                out.variant("Ok");
                out.field("0", inner);
            }
            Err(inner) => {
                out.variant("Err");
                if !out.looks {
                    out.field("0", inner);
                }
            }
        }
        out.end();
    }
}

impl<T, E> Read for Result<T, E> {
    fn read(from: &Json) -> Option<Self> {
        match from.variant()? {
            "Ok" => Some(Ok(from.field("0")?)),
            "Err" => Some(Err(from.field("0")?)),
            _ => None,
        }
    }
}
