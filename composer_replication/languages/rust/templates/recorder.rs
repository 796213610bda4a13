// Writes down what calls are given. It is called where functions begin.
#![allow(dead_code, unused, warnings, clippy::all)]

extern crate std;
use self::std::prelude::v1::*;
use self::std::collections::HashMap;
use self::std::format;
use self::std::sync::Mutex;
use super::values::{Out, Show};

const MOST_CALLS: usize = 150;
const LONGEST: usize = 20_000;
std::thread_local! {
    /// A value is being written: what this calls is no call of a test.
    static BUSY: std::cell::Cell<bool> = std::cell::Cell::new(false);
}
static COUNTS: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);

/// A call that is being written down.
pub struct Call {
    key: &'static str,
    types: Vec<String>,
    kinds: Vec<String>,
    given: Vec<String>,
    whole: bool,
}

/// Begins to write down a call; nothing where the function has enough of them.
pub fn call(key: &'static str) -> Option<Call> {
    std::env::var_os("COMPOSER_CALLS")?;
    if BUSY.with(|busy| busy.get()) {
        return None;
    }
    let mut counts = COUNTS.lock().ok()?;
    let count = counts.get_or_insert_with(HashMap::new).entry(key.to_string()).or_insert(0);
    *count += 1;
    if *count > 4 * MOST_CALLS {
        return None;
    }
    Some(Call { key, types: Vec::new(), kinds: Vec::new(), given: Vec::new(), whole: true })
}

impl Call {
    /// Notes what a parameter of types stands for.
    pub fn of<T: ?Sized>(mut self) -> Call {
        self.types.push(std::any::type_name::<T>().to_string());
        self
    }

    /// Notes what a constant parameter stands for.
    pub fn constant<T: std::fmt::Debug>(mut self, value: T) -> Call {
        self.types.push(format!("{:?}", value));
        self
    }

    pub fn given<T: ?Sized>(mut self, value: &T) -> Call {
        let mut out = Out::new(false);
        BUSY.with(|busy| busy.set(true));
        value.show(&mut out);
        BUSY.with(|busy| busy.set(false));
        self.whole = self.whole && out.whole;
        self.kinds.push(std::any::type_name::<T>().to_string());
        self.given.push(out.text);
        self
    }

    pub fn end(self) {
        let quoted = |texts: &[String]| texts.iter().map(|text| format!("{:?}", text)).collect::<Vec<_>>().join(",");
        let (types, kinds) = (quoted(&self.types), quoted(&self.kinds));
        let line = format!("[\"{}\",[{}],[{}],[{}]]", self.key, types, kinds, self.given.join(","));
        if self.whole && line.len() <= LONGEST {
            super::write("COMPOSER_CALLS", &line);
        }
    }
}
