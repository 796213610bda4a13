"""A crate's own structs and enums as values: Rust text that writes and reads them, put behind each in its module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from composer_replication.languages.rust.syntax import Item, items_of, root_of
from composer_replication.languages.trees import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_NO_TYPES = ("visibility_modifier", "line_comment", "block_comment")
_CFG = re.compile(r"#\[\s*cfg\s*\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generics:
    """The parameters of a type, a function or an `impl`."""

    declared: str
    """As an `impl` declares them, with brackets; empty where there are none."""
    used: str
    """As a type uses them."""
    where: str
    types: tuple[str, ...] = ()
    """Names of parameters that are types."""
    constants: tuple[str, ...] = ()


def generics_of(node: Node) -> Generics:
    """Return the parameters of an item, without their defaults."""
    listed = node.child_by_field_name("type_parameters")
    where = text_of(next((child for child in node.children if child.type == "where_clause"), None))
    declared, names, types, constants = [], [], [], []
    for child in [] if listed is None else listed.named_children:
        name = text_of(child.child_by_field_name("name") or child.child_by_field_name("left") or child)
        default = child.child_by_field_name("default_type") or child.child_by_field_name("value")
        text = text_of(child)
        if default is not None:
            text = (child.text or b"")[: default.start_byte - child.start_byte].decode(errors="replace").rstrip(" =\n")
        match child.type:
            case "lifetime" | "lifetime_parameter":
                name = name.partition(":")[0].strip()
            case "const_parameter":
                constants.append(name)
            case "type_parameter" | "type_identifier" | "constrained_type_parameter" | "optional_type_parameter":
                types.append(name)
            case _:
                continue
        declared.append(text)
        names.append(name)
    brackets = ("<{}>" if names else "{}").format
    return Generics(
        declared=brackets(", ".join(declared)),
        used=brackets(", ".join(names)),
        where=where,
        types=tuple(types),
        constants=tuple(constants),
    )


def shapes_of(source: bytes, support: str) -> list[tuple[int, str]]:
    """Return what to insert into a file for its types: the byte, and Rust text in one line.

    Args:
        support: the name of the module that values are written with.
    """
    found = []
    for item in items_of(root_of(source)):
        above = "\n".join(map(text_of, item.attributes))
        if item.node.type not in ("struct_item", "enum_item") or item.is_test or re.search(r"\bpacked\b", above):
            continue
        text = _implementations(item, support)
        found.append((item.node.end_byte, " " + " ".join(text.split("\n")) if "//" not in text else ""))
    return [(at, text) for at, text in found if text]


def _implementations(item: Item, support: str) -> str:
    generics, name = generics_of(item.node), item.name
    here = f"crate::{support}"
    cfg = " ".join(text_of(one) for one in item.attributes if _CFG.match(text_of(one)))
    kind = item.node.type == "struct_item"
    show, read = (_struct(item, name) if kind else _enum(item, name)) or ("", "")
    if not show:
        return ""
    allowed = "#[allow(warnings)] "
    head = f"{cfg} {allowed}impl{generics.declared} {here}::values::%s for {name}{generics.used} {generics.where}"
    shown = f"{head % 'Show'} {{ fn show(&self, out: &mut {here}::values::Out) {{ {show} }} }}"
    whole = f"if let Some(whole) = {here}::whole::Whole::made(from) {{ return Some(whole); }}"
    told = f"{head % 'Read'} {{ fn read(from: &{here}::json::Json) -> Option<Self> {{ {whole} {read} }} }}"
    return "" if "?Sized" in generics.declared + generics.where else f"{shown} {told}"


def _struct(item: Item, name: str) -> tuple[str, str]:
    fields = _fields_of(item.node.child_by_field_name("body"))
    shown = " ".join(f'{cfg} out.field("{field.removeprefix("r#")}", &self.{field});' for field, cfg in fields)
    read = f"Some({_made(name, item.node.child_by_field_name('body'))})"
    return f'let before = out.open("{name}"); {shown} out.close(self, before);', read


def _made(name: str, body: Node | None) -> str:
    """Return the expression that reads a struct or a variant."""
    fields = _fields_of(body)
    if body is None:
        return name
    read = [(field, f'{cfg} %sfrom.field("{field.removeprefix("r#")}")?') for field, cfg in fields]
    if body.type == "ordered_field_declaration_list":
        return f"{name}({', '.join(text % '' for _, text in read)})"
    return f"{name} {{ {', '.join(text % f'{field}: ' for field, text in read)} }}"


def _enum(item: Item, name: str) -> tuple[str, str] | None:
    body = item.node.child_by_field_name("body")
    shown, read, above = [], [], ""
    for variant in [] if body is None else body.named_children:
        if variant.type == "attribute_item":
            above += f"{text_of(variant)} " if _CFG.match(text_of(variant)) else ""
        if variant.type != "enum_variant":
            continue
        own, inner = text_of(variant.child_by_field_name("name")), variant.child_by_field_name("body")
        fields = [] if inner is None else _fields_of(inner)
        names = [f"f{number}" for number in range(len(fields))]
        pattern = f"{name}::{own}"
        if inner is not None and inner.type == "ordered_field_declaration_list":
            pattern += f"({', '.join(names)})"
        elif inner is not None:
            pattern += f" {{ {', '.join(f'{cfg} {field}: {given}' for (field, cfg), given in zip(fields, names, strict=True))} }}"
        lines = " ".join(
            f'{cfg} out.field("{field.removeprefix("r#")}", {given});' for (field, cfg), given in zip(fields, names, strict=True)
        )
        shown.append(f'{above}{pattern} => {{ out.variant("{own}"); {lines} }}')
        read.append(f'{above}"{own}" => Some({_made(f"{name}::{own}", inner)}),')
        above = ""
    if not shown:
        return None
    return (
        f'let before = out.open("{name}"); match self {{ {" ".join(shown)} }} out.close(self, before);',
        f"match from.variant()? {{ {' '.join(read)} _ => None }}",
    )


def _fields_of(body: Node | None) -> list[tuple[str, str]]:
    """Return the names of fields, numbers where they have none, each with the conditions under which it is there."""
    found: list[tuple[str, str]] = []
    ordered = body is not None and body.type == "ordered_field_declaration_list"
    cfg = ""
    for child in [] if body is None else body.children:
        if child.type == "attribute_item":
            cfg += f"{text_of(child)} " if _CFG.match(text_of(child)) else ""
        elif child.type == "field_declaration":
            found.append((text_of(child.child_by_field_name("name")), cfg))
            cfg = ""
        elif ordered and child.is_named and child.type not in _NO_TYPES:
            found.append((str(len(found)), cfg))
            cfg = ""
    return found
