// Reports what tests do, and which blocks of the code run, in files that the environment names. It is a module of every crate.
#![allow(dead_code, unused, warnings, clippy::all)]

pub extern crate std;
use self::std::prelude::v1::*;
use self::std::{format, io::Write};
use self::std::sync::atomic::{AtomicBool, Ordering};

/// What a test may return.
pub trait Outcome {
    fn passed(&self) -> bool;
}

impl Outcome for () {
    fn passed(&self) -> bool {
        true
    }
}

impl<T: Outcome, E> Outcome for Result<T, E> {
    fn passed(&self) -> bool {
        matches!(self, Ok(inner) if inner.passed())
    }
}

impl Outcome for std::process::ExitCode {
    fn passed(&self) -> bool {
        format!("{:?}", self) == format!("{:?}", std::process::ExitCode::SUCCESS)
    }
}

/// Writes a line into the file that a variable names.
pub fn write(variable: &str, line: &str) {
    if let Some(path) = std::env::var_os(variable) {
        if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
            let _ = file.write_all(format!("{}\n", line).as_bytes());
        }
    }
}

fn told(what: &str, state: &str, message: &str) {
    let short: String = message.chars().take(400).map(|c| if c.is_control() { ' ' } else { c }).collect();
    write("COMPOSER_TOLD", &format!("MARK\t{}\t{}\t{}", state, what, short));
}

/// Runs a test and reports its outcome. `panics`: it has to panic, with a message that holds this text.
pub fn run<R: Outcome>(what: &str, panics: Option<&str>, test: impl FnOnce() -> R) -> R {
    if std::env::var_os("COMPOSER_LIST").is_some() {
        told(what, "listed", "");
        std::panic::resume_unwind(Box::new(()));
    }
    told(what, "begun", "");
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)) {
        Ok(result) => {
            match (panics, result.passed()) {
                (None, true) => told(what, "passed", ""),
                (None, false) => told(what, "failed", "it returned an error"),
                (Some(_), _) => told(what, "failed", "it did not panic"),
            }
            result
        }
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(|text| text.as_str());
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("");
            match panics {
                Some(part) if text.contains(part) => told(what, "passed", ""),
                _ => told(what, "failed", &format!("panicked: {}", text)),
            }
            std::panic::resume_unwind(payload)
        }
    }
}

const NOT: AtomicBool = AtomicBool::new(false);
static HIT: [AtomicBool; COUNT] = [NOT; COUNT];

/// Notes that a block runs, the first time in this process.
pub fn hit(number: usize) {
    if !HIT[number].load(Ordering::Relaxed) && !HIT[number].swap(true, Ordering::Relaxed) {
        write("COMPOSER_HITS", &format!("{}", number));
    }
}

/// Forgets which blocks ran.
pub fn forget() {
    for one in HIT.iter() {
        one.store(false, Ordering::Relaxed);
    }
}

/// Returns the blocks that ran since.
pub fn ran() -> Vec<usize> {
    (0..COUNT).filter(|number| HIT[*number].load(Ordering::Relaxed)).collect()
}
