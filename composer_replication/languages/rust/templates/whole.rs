// Types whose fields cannot be written, such as pointers, and that can be made of a text or a list.
#![allow(dead_code, unused, warnings, clippy::all)]

extern crate std;
use self::std::fmt::Display;
use self::std::iter::FromIterator;
use self::std::ops::Deref;
use self::std::prelude::v1::*;
use self::std::str::FromStr;
use self::std::format;
use super::json::Json;
use super::values::{Out, Read, Show};

/// A type as a text or a list.
pub trait Whole: Sized {
    /// Writes it; false where it has no such form.
    fn written(&self, out: &mut Out) -> bool;
    fn made(from: &Json) -> Option<Self>;
}

impl<T> Whole for T {
    default fn written(&self, out: &mut Out) -> bool {
        self.listed(out)
    }

    default fn made(from: &Json) -> Option<Self> {
        <T as Listed>::of_list(from)
    }
}

impl<T: Display + FromStr> Whole for T {
    fn written(&self, out: &mut Out) -> bool {
        let text = format!("{}", self);
        let again = T::from_str(&text).ok().map(|other| format!("{}", other));
        if again.as_ref() != Some(&text) {
            return false;
        }
        out.plain("string", "text", &text);
        true
    }

    fn made(from: &Json) -> Option<Self> {
        if from.text("t")? == "text" { T::from_str(from.text("v")?).ok() } else { None }
    }
}

/// A type that is looked at as a slice and made of its items.
pub trait Listed: Sized {
    fn listed(&self, out: &mut Out) -> bool;
    fn of_list(from: &Json) -> Option<Self>;
}

impl<T> Listed for T {
    default fn listed(&self, _: &mut Out) -> bool {
        false
    }

    default fn of_list(_: &Json) -> Option<Self> {
        None
    }
}

impl<T: Deref<Target = [X]> + FromIterator<X>, X> Listed for T {
    fn listed(&self, out: &mut Out) -> bool {
        out.list("[whole]", self.deref().iter());
        true
    }

    fn of_list(from: &Json) -> Option<Self> {
        if from.text("t")? == "[whole]" { from.all::<X, T>() } else { None }
    }
}

impl<T: ?Sized> Show for std::ptr::NonNull<T> {
    fn show(&self, out: &mut Out) {
        out.opaque()
    }
}

impl<T: ?Sized> Show for *const T {
    fn show(&self, out: &mut Out) {
        out.opaque()
    }
}

impl<T: ?Sized> Show for *mut T {
    fn show(&self, out: &mut Out) {
        out.opaque()
    }
}

impl<T> Show for std::mem::MaybeUninit<T> {
    fn show(&self, out: &mut Out) {
        out.opaque()
    }
}
