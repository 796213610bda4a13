"""Names, attributes and macros of Rust that are worth a look (`languages.tripwire`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from composer_replication.languages import tripwire
from composer_replication.languages.rust.inline_tests import without_tests
from composer_replication.languages.rust.syntax import is_read_within, root_of
from composer_replication.languages.trees import text_of, walk

_PATHS = {
    **dict.fromkeys(
        ("std::process", "std::net", "std::os", "process::exit", "process::abort"), "starts, ends or speaks to programs"
    ),
    **dict.fromkeys(("std::fs", "std::env", "std::io::stdin", "std::thread", "module_path", "file"), "looks at its surroundings"),
    **dict.fromkeys(("std::ptr", "std::mem::transmute", "mem::transmute", "core::arch"), "looks behind the language"),
    **dict.fromkeys(("panic::catch_unwind", "panic::set_hook", "std::panic", "std::backtrace"), "looks behind the language"),
}
_WORDS = {
    **dict.fromkeys(("unsafe", "extern", "asm!", "global_asm!"), "looks behind the language"),
    **dict.fromkeys(("include!", "include_str!", "include_bytes!", "env!", "option_env!"), "reads files as it is compiled"),
    **dict.fromkeys(("cfg(test)", "cfg!(test)", "no_mangle", "link_section", "export_name"), "does something else in tests"),
    **dict.fromkeys(("thread_local!", "ctor"), "does something before or after any test"),
    **dict.fromkeys(("assert!", "assert_eq!", "assert_ne!", "panic!", "test"), "gives a word of tests another meaning"),
}
KINDS = {**_PATHS, **_WORDS}
"""Name of what is worth a look -> what the code does with it."""
_MACROS = ("assert", "assert_eq", "assert_ne", "panic")
_LONE = ("module_path", "file")


def telling(sources: Mapping[str, bytes]) -> set[str]:
    """Return the names that are worth a look, and whether a file cannot be read. Tests in a source file do not count."""
    return tripwire.telling(sources, _telling, is_read_within)


def _telling(path: str, source: bytes) -> set[str]:
    del path
    found: set[str] = set()
    for node in walk(root_of(without_tests(source))):
        text = text_of(node) if node.child_count == 0 or node.type in _READ else ""
        match node.type:
            case "scoped_identifier" | "use_declaration" | "scoped_type_identifier":
                found |= _paths_in(text)
                found |= {f"{name}!" for name in _MACROS if node.type == "use_declaration" and re.search(rf"\b{name}\b", text)}
            case "macro_invocation":
                name = text_of(node.child_by_field_name("macro")).rpartition("::")[2]
                found |= {f"{name}!"} & _WORDS.keys() if name not in _MACROS else set()
                found |= {name} & set(_LONE)
            case "macro_definition":
                name = text_of(node.child_by_field_name("name"))
                found |= {f"{name}!"} if name in _MACROS else set()
            case "attribute_item" | "inner_attribute_item":
                found |= {name for name in ("no_mangle", "link_section", "export_name", "ctor") if name in text}
                found |= {"cfg(test)"} if re.search(r"\bcfg(_attr)?\b.*\btest\b", text, re.DOTALL) else set()
            case "unsafe" | "extern":
                found.add(node.type)
    text = source.decode(errors="replace")
    return found | ({"cfg!(test)"} if re.search(r"\bcfg!\s*\(.*\btest\b", text) else set())


_READ = ("scoped_identifier", "use_declaration", "scoped_type_identifier", "attribute_item", "inner_attribute_item")


def _paths_in(text: str) -> set[str]:
    """Return the paths that a path or a declaration of imports names."""
    bare = re.sub(r"\s+|^use|;$|\b(?:r#|::)", "", text) if text.startswith("use") else re.sub(r"\s+", "", text)
    spread = re.sub(r"\s+", "", text.removeprefix("use").removesuffix(";"))
    flat = re.findall(r"[\w:]+", spread.replace("core::", "std::"))
    prefix = flat[0] if "{" in spread and flat else ""
    whole = {*flat, *(f"{prefix}{name}" for name in flat[1:]), bare}
    return {name for name in _PATHS if name not in _LONE and any(re.search(rf"(^|::){name}(::|$)", one) for one in whole)}
