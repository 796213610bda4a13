"""Functions whose calls can be written down, and how each is called again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.languages.rust.shapes import generics_of
from composer_replication.languages.rust.syntax import Item, functions_of, modifiers_of, parameters_of, root_of
from composer_replication.languages.trees import text_of

_FORMATS = {
    **{"Display": "{}", "Debug": "{:?}", "LowerHex": "{:x}", "UpperHex": "{:X}", "Octal": "{:o}", "Binary": "{:b}"},
    **{"LowerExp": "{:e}", "UpperExp": "{:E}"},
}
"""Traits whose `fmt` is called by a macro, and what that is given."""
_NOT_CALLED = frozenset({"Drop"})
_PRIVATE = {
    "hash::map::": "",
    "hash::set::": "",
    "btree::map::": "",
    "btree::set::": "",
    "vec_deque::": "",
    "binary_heap::": "",
    "linked_list::": "",
}
"""Modules in the names of types that nobody can write, and what stands in their place."""
_PRIMITIVE = re.compile(r"[iu](8|16|32|64|128|size)|f32|f64|bool|char|str|mut|static|\d+|_|[iu]?size")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTarget:
    """A function whose calls are written down."""

    path: str
    modules: tuple[str, ...]
    """Those of its file that it is in."""
    name: str
    qualname: str
    owner: str
    """The type whose method it is, as it is written; `Self` in a trait, empty for a function."""
    trait: str
    """The trait that asks for it, as it is written."""
    format: str
    """The text that a formatting macro is given where it is a `fmt`; else empty."""
    types: tuple[str, ...]
    """Names of the parameters that are types or constants, those of the `impl` first."""
    own_types: tuple[str, ...]
    """Those of the function itself."""
    constants: frozenset[str]
    given: tuple[tuple[str, str], ...]
    """Name and type of what it is given."""
    body_start: int

    @property
    def key(self) -> str:
        """`path::qualname`."""
        return f"{self.path}::{self.qualname}"

    @property
    def stands_for(self) -> tuple[str, ...]:
        """Names of what a call's record says the types of: `Self` in a trait, then `types`."""
        return (*(("Self",) if self.owner == "Self" else ()), *self.types)

    def record(self, support: str) -> str:
        """Return the statement that writes a call down, where the function begins."""
        parts = [f".constant({name})" if name in self.constants else f".of::<{name}>()" for name in self.stands_for]
        parts += [f".given(&{name})" for name, _ in self.given]
        call = f'crate::{support}::recorder::call("{self.key}")'
        return f" if let Some(composer_call) = {call} {{ composer_call{''.join(parts)}.end(); }}"


def targets_of(path: str, source: bytes) -> list[CallTarget]:
    """Return the functions of a file whose calls can be written down: with names for all that they are given."""
    return [target for item in functions_of(root_of(source)) if not item.is_test and (target := _target(path, item)) is not None]


def _target(path: str, item: Item) -> CallTarget | None:
    body, words = item.node.child_by_field_name("body"), modifiers_of(item.node)
    if body is None or words & {"const", "async", "unsafe", "extern"}:
        return None
    owner = trait = ""
    kinds: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    if item.owner is not None and item.owner.type == "trait_item":
        outer = generics_of(item.owner)
        owner, trait = "Self", text_of(item.owner.child_by_field_name("name")) + outer.used
        kinds, constants = (*outer.types, *outer.constants), outer.constants
    elif item.owner is not None:
        outer = generics_of(item.owner)
        owner, trait = text_of(item.owner.child_by_field_name("type")), text_of(item.owner.child_by_field_name("trait"))
        kinds, constants = (*outer.types, *outer.constants), outer.constants
    bare = re.sub(r"<.*|\s|\w+::", "", trait)
    formats = _FORMATS.get(bare, "") if item.name == "fmt" else ""
    given = [(one.name, _self_type(one.type) if one.name == "self" else one.type) for one in parameters_of(item.node)]
    given = given[:1] if formats else given
    own = generics_of(item.node)
    if not given or bare in _NOT_CALLED or any(not name or name == "_" or "dyn " in kind for name, kind in given):
        return None
    inner = [child.end_byte for child in body.named_children if child.type == "inner_attribute_item"]
    return CallTarget(
        path=path,
        modules=item.modules,
        name=item.name,
        qualname=item.qualname,
        owner=owner,
        trait=trait,
        format=formats,
        types=(*kinds, *own.types, *own.constants),
        own_types=(*own.types, *own.constants),
        constants=frozenset((*constants, *own.constants)),
        given=tuple(given),
        body_start=max([body.start_byte + 1, *inner]),
    )


def _self_type(written: str) -> str:
    """Return the type of `self` as it is written without a type: `&self` has `&Self`."""
    bare = re.sub(r"\bmut self$|\bself$", "Self", written) if written.endswith("self") else written
    return (
        re.sub(r"&\s*('\w+\s+)?mut\s*Self", "&mut Self", bare) if "mut self" not in written else written.replace("self", "Self")
    )


def how_of(target: CallTarget, crate: str, root: str, types: Sequence[str], kinds: Sequence[str]) -> dict[str, Any] | None:
    """Return how a call is made again, or None where its types cannot be written.

    Args:
        crate: the name of the crate that has it.
        root: the crate's root file.
        types: what the parameters stand for, as the compiler names it; `Self` first in a trait.
        kinds: the types of what it was given.
    """
    named = [nameable(one, crate) for one in types]
    if None in named:
        return None
    bound = dict(zip(target.stands_for, map(str, named), strict=True))
    owner = substituted(target.owner, bound)
    bound["Self"] = owner
    passed = []
    for (_, written), kind in zip(target.given, kinds, strict=True):
        one = substituted(written, bound)
        if re.search(r"\bimpl\b", one):
            own = nameable(kind, crate)
            if own is None or not one.startswith("impl"):
                return None
            one = own
            passed.append(["", one])
        else:
            passed.append(list(passing(one)))
    return {
        "root": root,
        "modules": list(target.modules),
        "name": target.name,
        "owner": owner,
        "trait": substituted(target.trait, bound),
        "format": target.format,
        "types": [bound[name] for name in target.own_types],
        "passed": passed,
    }


def substituted(text: str, bound: Mapping[str, str]) -> str:
    """Return a type with what its parameters stand for, and without the names of lifetimes."""
    found = re.sub(r"'(?!static\b|_\b)\w+", "'_", text)
    return re.sub(r"(?<![:\w'])[A-Za-z_]\w*(?![\w:!])", lambda match: bound.get(match[0], match[0]), found)


def passing(kind: str) -> tuple[str, str]:
    """Return how an argument of a type is passed, `{}` for its name, and the type that is read; empty where it follows."""
    match = re.fullmatch(r"&\s*(?:'\w+\s+)?(mut\b)?\s*(.*)", kind, re.DOTALL)
    if match is None:
        return "", ""
    mutable, inner = "mut " if match[1] else "", match[2].strip()
    last = re.sub(r"^.*::", "", inner)
    if last == "str":
        return f"&{mutable}{{}}[..]", "asker::String"
    if inner.startswith("[") and inner.endswith("]") and ";" not in _outside(inner[1:-1]):
        return f"&{mutable}{{}}[..]", "asker::Vec<_>"
    if last in ("Path", "OsStr"):
        owned = {"Path": "std::path::PathBuf", "OsStr": "std::ffi::OsString"}[last]
        return "{}.as_ref()", owned
    return f"&{mutable}{{}}", ""


def _outside(text: str) -> str:
    """Return a text without what is in brackets."""
    before = ""
    while before != text:
        before, text = text, re.sub(r"\([^()]*\)|\[[^\[\]]*\]|<[^<>]*>", "", text)
    return text


def nameable(name: str, crate: str) -> str | None:
    """Return a type as source code of its crate can name it, from what the compiler calls it; None where it cannot.

    The module of values says what of the standard library stands behind `std::` here.
    """
    text = name
    for module, instead in _PRIVATE.items():
        text = text.replace(module, instead)
    text = re.sub(rf"(?<![\w:]){re.escape(crate)}::", "crate::", text)
    text = re.sub(r"(?<![\w:])(alloc|core)::", "std::", text)
    roots = re.findall(r"(?<![\w:'])([A-Za-z_]\w*)(?=(::)?)", text)
    known = all(root in ("crate", "std") if path else _PRIMITIVE.fullmatch(root) for root, path in roots)
    return text if known and not re.search(r"[{}]|\bdyn\b|\bfn\b", text) else None
