"""A model's parameters in parts that are synchronised one after the other (Streaming DiLoCo, arXiv:2501.18512, section 2).

Fragments are strided: block `i` of the model belongs to fragment `i % n`, so that every fragment holds shallow and deep blocks.
What lies outside the blocks (embeddings, head, final norm) fills up the smallest fragments, the largest parameter first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from composer_replication.types.errors import ConfigError


class Fragment(nn.Module):
    """Some parameters of a model under their names, with `/` for `.`; the parameter objects are the model's own."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            self.register_parameter(name.replace(".", "/"), parameter)

    @property
    def size(self) -> int:
        """Numbers in all its parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


def split_into_fragments(model: nn.Module, n: int) -> list[Fragment]:
    """Put every trainable parameter of the model in exactly one of `n` fragments, in an order that depends on the model alone.

    A parameter that is tied to another counts once. Frozen parameters and buffers are in none: they are not synchronised.

    Raises:
        ConfigError: nothing is trainable, a trainable parameter is not a whole float32 tensor, or `n` exceeds the blocks.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    _check(trainable)
    if n < 1:
        raise ConfigError(f"diloco: fragments = {n}", fix="use 1 or more")
    if n == 1:
        return [Fragment(trainable)]
    blocks = list(blocks_of(model))
    if n > len(blocks):
        raise ConfigError(
            f"diloco: fragments = {n}, but the model has {len(blocks)} blocks with own trainable parameters",
            fix=f"set fragments = {len(blocks)} or lower" if blocks else "set fragments = 1",
        )
    parts: list[dict[str, nn.Parameter]] = [{} for _ in range(n)]
    for index, block in enumerate(blocks):
        parts[index % n].update(block)
    placed = {name for part in parts for name in part}
    outside = [(name, parameter) for name, parameter in trainable.items() if name not in placed]
    for name, parameter in sorted(outside, key=lambda item: -item[1].numel()):
        min(parts, key=lambda part: sum(p.numel() for p in part.values()))[name] = parameter
    return [Fragment({name: part[name] for name in trainable if name in part}) for part in parts]


def blocks_of(model: nn.Module) -> Iterator[dict[str, nn.Parameter]]:
    """Yield the trainable parameters of each block, by their names in the model; a block that adds none is left out.

    Blocks are the members of the model's outermost `ModuleList`s, or, in a model without one, of its outermost `Sequential`s.
    """
    names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for kind in (nn.ModuleList, nn.Sequential):
        if any(isinstance(module, kind) for module in model.modules()):
            for block in _members(model, kind):
                own = {names.pop(p): p for p in block.parameters() if p in names}
                if own:
                    yield {name: own[name] for name in sorted(own)}
            return


def _members(module: nn.Module, kind: type[nn.Module]) -> Iterator[nn.Module]:
    if isinstance(module, kind):
        yield from module.children()
        return
    for child in module.children():
        yield from _members(child, kind)


def _check(trainable: Mapping[str, nn.Parameter]) -> None:
    if not trainable:
        raise ConfigError("diloco: the model has no trainable parameter", fix="set requires_grad on those to be trained")
    for name, parameter in trainable.items():
        if isinstance(parameter, DTensor):
            raise ConfigError(
                f"diloco: parameter {name} is sharded over several processes; a replica is one process with whole weights",
                fix="train each replica without FSDP or tensor parallelism",
            )
        # the outer optimizer works in the parameters' own type: a half-precision sum drops most of what a round adds
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"diloco: parameter {name} is {parameter.dtype}; the outer step needs float32 weights",
                fix="keep the weights in float32 (model.float()) and compute in half precision under torch.autocast",
            )
