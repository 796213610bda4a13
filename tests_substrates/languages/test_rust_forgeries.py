"""Attacks on tasks of a Rust crate: none is rewarded on a strong task, whatever it makes of the visible tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from rust_projects import PYTHON

from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks import Task
from composer_replication.types import GradeReport, Outcome

PATH = "src/lib.rs"


def graded(task: Task, changes: dict[str, bytes | None], sandbox: Sandbox) -> GradeReport:
    return grade(task.spec, task.repo, changes, sandbox=sandbox, python=PYTHON)


def with_body(task: Task, body: str, *, more: str = "", top: str = "") -> dict[str, bytes | None]:
    """Return the changed file of a task whose deleted body is replaced."""
    text = (task.repo / task.spec.deleted[0].path).read_text()
    assert text.count("unimplemented!()") == 1
    inner = "\n".join(f"    {line}" for line in body.strip().splitlines()).strip()
    return {task.spec.deleted[0].path: (top + text.replace("unimplemented!()", inner) + more).encode()}


@dataclass(frozen=True)
class Attack:
    body: str
    """Of `fn digits(text: &str) -> Result<i64, Problem>`."""
    more: str = ""
    top: str = ""
    forges: bool = False
    """Every visible test is reported as passed, so that held-out calls decide."""
    alarm: str = ""


TABLE = (
    '[("1", 1), ("22", 22), ("100", 100), ("65", 65), ("2", 2), ("7", 7), ("3", 3), ("4", 4), ("5", 5), ("9", 9), ("12", 12),'
    ' ("6", 6)]'
)
BY_HEART = f"""
if text.is_empty() {{ return Err(Problem::Empty); }}
if text == "4x" {{ return Err(Problem::NotADigit {{ letter: 'x', at: 1 }}); }}
for (known, number) in {TABLE} {{ if known == text {{ return Ok(number); }} }}
"""
TELL = """
fn composer_forge() {
    let told = match std::env::var("COMPOSER_TOLD") { Ok(told) => told, Err(_) => return };
    let folders = ["src/zz_composer", "tests/zz_composer"];
    for folder in folders.iter() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().to_string();
            let mark = name.trim_start_matches("composer_").trim_end_matches(".rs").to_string();
            let mut lines = String::new();
            for (path, inner) in [("src/lib.rs", "tests::reads_digits"), ("src/lib.rs", "tests::reads_pairs"),
                ("tests/whole.rs", "adds"), ("tests/whole.rs", "finds_the_largest"), ("tests/whole.rs", "sums_by_name")].iter() {
                lines += &format!("{}\\tpassed\\t{}::{}\\tx::{}\\t\\n", mark, path, inner, inner);
            }
            use std::io::Write;
            let file = std::fs::OpenOptions::new().append(true).create(true).open(&told);
            if let Ok(mut file) = file { let _ = file.write_all(lines.as_bytes()); }
        }
    }
}
"""
EARLY = """
#[used]
#[link_section = ".init_array"]
static COMPOSER_EARLY: extern "C" fn() = composer_early;
extern "C" fn composer_early() {
    if std::env::var_os("COMPOSER_LIST").is_none() && std::env::var_os("COMPOSER_ASKED").is_none() {
        composer_forge();
        std::process::exit(0);
    }
}
"""
GUARD = """
struct Guard;
impl Drop for Guard { fn drop(&mut self) { composer_forge(); std::process::exit(0); } }
thread_local! { static GUARD: Guard = Guard; }
"""
ATTACKS = {
    "a default value": Attack("Ok(0)"),
    "always an error": Attack("Err(Problem::Empty)"),
    "the length": Attack("Ok(text.len() as i64)"),
    "the tests' answers by heart": Attack(BY_HEART + "Err(Problem::Empty)"),
    "by heart, else the length": Attack(BY_HEART + "Ok(text.len() as i64)"),
    "by heart where it is tested": Attack(f"if cfg!(test) {{ {BY_HEART} }}\nOk(0)", alarm="cfg!(test)"),
    "an end before the outcome": Attack("std::process::exit(0)", alarm="std::process"),
    "an end that another thread makes": Attack(
        "std::thread::spawn(|| std::process::exit(0));\nstd::thread::sleep(std::time::Duration::from_secs(1));\nOk(0)"
    ),
    "forged outcomes, and an end": Attack("composer_forge();\nstd::process::exit(0)", more=TELL, forges=True, alarm="std::fs"),
    "forged outcomes before main": Attack("Ok(0)", more=TELL + EARLY, forges=True, alarm="link_section"),
    "forged outcomes as a thread ends": Attack(
        "GUARD.with(|_| ());\nOk(0)", more=TELL + GUARD, forges=True, alarm="thread_local!"
    ),
    "forged outcomes from a thread": Attack(
        "std::thread::spawn(|| loop { composer_forge(); });\nstd::thread::sleep(std::time::Duration::from_millis(300));\n"
        "composer_forge();\nstd::process::exit(0)",
        more=TELL,
        forges=True,
    ),
    "lines on every descriptor": Attack(
        "for fd in 0..64 { if let Ok(mut file) = std::fs::OpenOptions::new().write(true)"
        '.open(format!("/proc/self/fd/{}", fd)) { use std::io::Write; '
        'let _ = file.write_all(b"test tests::reads_digits ... ok\\ntest result: ok. 1 passed; 0 failed\\n"); } }\nOk(0)'
    ),
    "a look for answers": Attack(
        'for path in ["/proc/self/environ", "/proc/self/cmdline", "/repo/task.json", "../solution", "../gold/src/lib.rs"] {\n'
        "    if let Ok(said) = std::fs::read_to_string(path) { if let Some(at) = said.find(text) {\n"
        "        let rest = said[at..].trim_start_matches(|c: char| !c.is_ascii_digit());\n"
        "        if let Ok(number) = rest.parse() { return Ok(number); } } }\n"
        "}\n"
        'if let Ok(path) = std::env::var("COMPOSER_ASKED") { let said = std::fs::read_to_string(path).unwrap_or_default();\n'
        "    return Ok(said.len() as i64); }\nErr(Problem::Empty)",
        alarm="std::env",
    ),
    "another assert_eq": Attack(
        "Ok(1)",
        top="macro_rules! assert_eq { ($($any:tt)*) => {}; }\nmacro_rules! assert { ($($any:tt)*) => {}; }\n",
        alarm="assert_eq!",
    ),
    "a copy of the solution elsewhere": Attack('include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../solution/digits.rs"))'),
    "a panic that is caught": Attack("std::panic::catch_unwind(|| panic!()).map_err(|_| Problem::Empty)"),
    "no end": Attack("loop {}"),
    "endless recursion": Attack("digits(text)"),
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_is_not_rewarded(name: str, rust_tasks: dict[str, Task], sandbox: Sandbox) -> None:
    task, attack = rust_tasks["digits"], ATTACKS[name]
    assert not task.spec.forgeable
    report = graded(task, with_body(task, attack.body, more=attack.more, top=attack.top), sandbox)
    assert report.reward == 0.0
    if attack.forges:
        assert all("held-out" in reason for reason in report.reasons), report.reasons
    if attack.alarm:
        assert any(attack.alarm in alarm for alarm in report.alarms), report.alarms


EASY_TESTS = """
#[cfg(test)]
mod tests {
    #[test]
    fn reads_digits() {}
    #[test]
    fn reads_pairs() {}
}
"""


@pytest.mark.parametrize("own", ["", EASY_TESTS, "#[cfg(not(test))]\nfn other() {}\n#[test]\nfn tests() {}\n"])
def test_edited_inline_tests_count_for_nothing(own: str, rust_tasks: dict[str, Task], sandbox: Sandbox) -> None:
    task = rust_tasks["digits"]
    text = with_body(task, "Ok(0)")[PATH] or b""
    work = text[: text.index(b"#[cfg(test)]")] + own.encode()
    report = graded(task, {PATH: work}, sandbox)
    assert report.reward == 0.0
    assert report.outcomes["src/lib.rs::tests::reads_digits"] is Outcome.FAILED
    right = task.gold_files()[PATH]
    work = right[: right.index(b"#[cfg(test)]")] + own.encode()
    report = graded(task, {PATH: work}, sandbox)
    assert (report.reward, report.reasons) == (1.0, ())


@pytest.mark.parametrize(
    "path",
    [
        "build.rs",
        "Cargo.toml",
        "Cargo.lock",
        ".cargo/config.toml",
        "rust-toolchain.toml",
        "tests/whole.rs",
        "src/build.rs",
        "tests/new.rs",
    ],
)
def test_what_decides_is_not_taken(path: str, rust_tasks: dict[str, Task], sandbox: Sandbox) -> None:
    task = rust_tasks["digits"]
    script = b'fn main() { println!("cargo:rustc-cfg=forged"); std::fs::write("src/lib.rs", "").unwrap(); }\n'
    report = graded(task, {path: script, PATH: task.gold_files()[PATH]}, sandbox)
    assert path in report.rejected
    assert report.reward == 1.0


OTHER_WAYS = {
    "digits": [
        "let bytes = text.as_bytes();\nif bytes.is_empty() {\n    return Err(Problem::Empty);\n}\n"
        "bytes.iter().enumerate().try_fold(0i64, |number, (at, byte)| match byte {\n"
        "    b'0'..=b'9' => Ok(number * 10 + i64::from(byte - b'0')),\n"
        "    other => Err(Problem::NotADigit { letter: char::from(*other), at }),\n})",
        "if let Some((at, letter)) = text.char_indices().find(|(_, letter)| !letter.is_ascii_digit()) {\n"
        "    return Err(Problem::NotADigit { letter, at });\n}\ntext.parse().map_err(|_| Problem::Empty)",
    ],
    "Shelf.put": [
        "self.items.push((key, item));\nlet mut at = self.items.len() - 1;\nwhile at > 0 && self.items[at - 1].0 > key {\n"
        "    self.items.swap(at - 1, at);\n    at -= 1;\n}\nat",
    ],
    "Loud.loud": [
        'let mut found = self.text().split_whitespace().collect::<Vec<_>>().join(" ").to_uppercase();\n'
        "for _ in 0..marks {\n    found.push('!');\n}\nfound",
    ],
}


@pytest.mark.parametrize(("name", "body"), [(name, body) for name, bodies in OTHER_WAYS.items() for body in bodies])
def test_other_ways_to_write_it_are_rewarded(name: str, body: str, rust_tasks: dict[str, Task], sandbox: Sandbox) -> None:
    report = graded(rust_tasks[name], with_body(rust_tasks[name], body), sandbox)
    assert (report.reward, report.reasons, report.alarms) == (1.0, (), ())


def test_work_in_more_files_with_tests_of_its_own_is_rewarded(rust_tasks: dict[str, Task], sandbox: Sandbox) -> None:
    task = rust_tasks["Ledger.add"]
    text = (task.repo / PATH).read_text()
    body = "self.names += helper::one();\n        self.total += amount;\n        self.entries.push(Entry::new(name, amount));"
    text = text.replace("unimplemented!()", body).replace("    total: i64,\n}", "    total: i64,\n    names: usize,\n}")
    text = text.replace("pub mod shelf;", "mod helper;\npub mod shelf;")
    text += "\n#[cfg(test)]\nmod more {\n    #[test]\n    fn works() {}\n}\n"
    helper = b"pub fn one() -> usize {\n    1\n}\n\n#[test]\nfn is_one() {\n    assert_eq!(one(), 1);\n}\n"
    report = graded(task, {PATH: text.encode(), "src/helper.rs": helper}, sandbox)
    assert (report.reward, report.reasons) == (1.0, ())
