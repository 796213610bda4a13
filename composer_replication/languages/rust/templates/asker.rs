// Makes the calls that a file names, each under a time limit, and says what each gave.
#![allow(dead_code, unused, warnings, clippy::all)]

extern crate std;
use self::std::prelude::v1::*;
pub use self::std::string::String;
pub use self::std::vec::Vec;
use self::std::panic::{catch_unwind, AssertUnwindSafe};
use self::std::sync::mpsc::channel;
use self::std::time::Duration;
use self::std::{format, fmt};
use super::json::Json;
use super::values::{Fresh, Out, Read, Show};

const ONE_CALL: Duration = Duration::from_millis(MILLISECONDS);
const MOST_HANGING: usize = 3;
const MOST_ITEMS: usize = 100;

/// What a call gave: JSON of its result, of what it was given, before and after, and of a new value of the result's type.
#[derive(Default)]
pub struct Ask {
    before: Vec<String>,
    after: Vec<String>,
    result: String,
    zero: String,
    blocks: Vec<usize>,
}

/// Reads an argument.
pub fn read<T>(given: &[Json], number: usize) -> Option<T> {
    T::read(given.get(number)?)
}

/// Returns what a value says of itself.
pub fn said(text: fmt::Arguments<'_>) -> String {
    format!("{}", text)
}

fn looked<T: ?Sized>(value: &T) -> String {
    let mut out = Out::new(true);
    value.show(&mut out);
    out.text
}

/// A result, which may be an iterator.
pub trait Look: Sized {
    fn look(self) -> String;
}

impl<T> Look for T {
    default fn look(self) -> String {
        looked(&self)
    }
}

impl<T: Iterator> Look for T {
    fn look(self) -> String {
        looked(&self.take(MOST_ITEMS).collect::<Vec<_>>())
    }
}

impl Ask {
    pub fn before<T: ?Sized>(&mut self, value: &T) {
        self.before.push(looked(value));
    }

    /// Forgets the blocks that ran before the call.
    pub fn begin(&mut self) {
        super::forget();
    }

    pub fn result<T>(&mut self, value: T) {
        self.blocks = super::ran();
        self.zero = match <T as Fresh>::fresh() {
            Some(new) if DETAILS => new.look(),
            _ => String::from("{\"k\":\"nil\"}"),
        };
        self.result = value.look();
    }

    pub fn after<T: ?Sized>(&mut self, value: &T) {
        self.after.push(looked(value));
    }

    /// What was given away is as it was.
    pub fn moved(&mut self) {
        self.after.push(self.before[self.after.len()].clone());
    }

    fn line(&self) -> String {
        let parts = format!("\"r\":[{}],\"a\":[{}]", self.result, self.after.join(","));
        if DETAILS {
            let blocks: Vec<String> = self.blocks.iter().map(|block| format!("{}", block)).collect();
            let more = format!("\"b\":[{}],\"z\":[{}],\"h\":[{}]", self.before.join(","), self.zero, blocks.join(","));
            format!("{{{},{}}}", parts, more)
        } else {
            format!("{{{}}}", parts)
        }
    }
}

fn once(call: &Json) -> String {
    let made = catch_unwind(AssertUnwindSafe(|| {
        let (number, given) = match call.items() {
            [Json::Text(number), Json::List(given)] => (number.parse().ok()?, given),
            _ => return None,
        };
        let mut ask = Ask::default();
        crate::NAME_ask(number, given, &mut ask)?;
        Some(ask.line())
    }));
    match made {
        Ok(Some(line)) => line,
        Ok(None) => String::from("null"),
        Err(_) => String::from("{\"p\":true}"),
    }
}

/// Makes a call several times; nothing where it answers one time so and another time otherwise.
fn steady(call: Json) -> String {
    let line = once(&call);
    for _ in 1..REPEATS {
        if once(&call) != line {
            return String::from("null");
        }
    }
    line
}

#[test]
fn ask() {
    std::panic::set_hook(Box::new(|_| ()));
    let text = std::fs::read_to_string(std::env::var_os("COMPOSER_ASKED").unwrap()).unwrap();
    let from: usize = std::env::var("COMPOSER_FROM").unwrap().parse().unwrap();
    let mut hanging = 0;
    for (number, line) in text.lines().enumerate().skip(from) {
        let tell = |state: &str, line: &str| super::write("COMPOSER_TOLD", &format!("MARK\t{}\t{}\t\t{}", state, number, line));
        tell("begun", "");
        let (sender, receiver) = channel();
        let call = Json::parse(line).unwrap_or(Json::Null);
        let _ = std::thread::Builder::new().stack_size(8 << 20).spawn(move || sender.send(steady(call)));
        match receiver.recv_timeout(ONE_CALL) {
            Ok(line) => tell("done", &line),
            Err(_) => {
                tell("done", "null");
                hanging += 1;
            }
        }
        if hanging >= MOST_HANGING {
            break;
        }
    }
    std::process::exit(0);
}
