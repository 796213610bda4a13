"""Nested states (optimizers, counters, tensors) as one safetensors file and back: nothing in it is ever executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from composer_replication.types.errors import CheckpointError

Tree: TypeAlias = Any
"""Tensors, numbers, texts, truth values and None in dicts (with keys of text or integer), lists and tuples."""

_FORM = "composer tree 1"
_Stored: TypeAlias = list[Any]


def pack(tree: Tree) -> bytes:
    """Serialize the tree. A tensor that occurs twice is stored once; tensors may be on any device.

    Raises:
        TypeError: it holds something else than `Tree` says.
    """
    found = _Tensors()
    outline = _outline(tree, found)
    return save(found.stored, metadata={"form": _FORM, "outline": json.dumps(outline)})


def unpack(data: bytes, name: str) -> Tree:
    """Invert `pack`; tensors are on the CPU. `name` is for the error.

    Raises:
        CheckpointError: the bytes are not what `pack` makes.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        if metadata["form"] != _FORM:
            raise KeyError(metadata["form"])
        return _tree(json.loads(metadata["outline"]), load(data))
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{name}: not a saved state: {error}", fix="delete it, or restore what was saved") from error


def copied(tree: Tree) -> Tree:
    """Return the same tree, with copies of its tensors on the CPU."""
    match tree:
        case Tensor():
            return tree.detach().to("cpu", copy=True)
        case Mapping():
            return {key: copied(value) for key, value in tree.items()}
        case list():
            return [copied(value) for value in tree]
        case tuple():
            return tuple(copied(value) for value in tree)
        case _:
            return tree


def _outline(tree: Tree, found: _Tensors) -> _Stored:
    match tree:
        case Tensor():
            return ["tensor", found.name(tree)]
        case Mapping():
            return ["dict", [[_key(key), _outline(value, found)] for key, value in tree.items()]]
        case list():
            return ["list", [_outline(value, found) for value in tree]]
        case tuple():
            return ["tuple", [_outline(value, found) for value in tree]]
        case None | bool() | int() | float() | str():
            return ["value", tree]
        case _:
            raise TypeError(f"a saved state cannot hold a {type(tree).__name__}")


class _Tensors:
    """Tensors found so far: each once, on the CPU, contiguous and with separate storage, as the file format requires."""

    def __init__(self) -> None:
        self.stored: dict[str, Tensor] = {}
        self._names: dict[tuple[object, ...], str] = {}
        self._storages: set[int] = set()

    def name(self, tensor: Tensor) -> str:
        """Return the name under which this tensor is stored."""
        what = (tensor.device, tensor.dtype, tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() == 0 or what not in self._names:
            self._names[what] = str(len(self.stored))
            self.stored[self._names[what]] = self._apart(tensor.detach().cpu().contiguous())
        return self._names[what]

    def _apart(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or storage.data_ptr() in self._storages:
            tensor = tensor.clone()
        self._storages.add(tensor.untyped_storage().data_ptr())
        return tensor


def _key(key: object) -> str | int:
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise TypeError(f"a saved state cannot have a key of type {type(key).__name__}")
    return key


def _tree(stored: _Stored, tensors: Mapping[str, Tensor]) -> Tree:
    kind, value = stored
    match kind:
        case "tensor":
            return tensors[value]
        case "dict":
            return {key: _tree(part, tensors) for key, part in value}
        case "list":
            return [_tree(part, tensors) for part in value]
        case "tuple":
            return tuple(_tree(part, tensors) for part in value)
        case "value":
            return value
    raise ValueError(f"unknown kind {kind!r}")
