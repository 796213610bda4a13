"""Which experts of a mixture each token goes through: recorded while a policy samples, and given back while it learns.

Another kernel, batch or rounding makes a router choose other experts for some tokens than those that the token was sampled with,
and policy and sampler then differ by more than rounding (Rollout Routing Replay, arXiv:2510.11370). Only the choice is given back
(section 3 there): the weights of the chosen experts are the router's own, with their gradient.

A router is a module that chooses with `torch.topk`, as all of transformers' do but those that sample. Its choice is exchanged
there, so that what it makes of the chosen scores stays as the model has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from composer_replication.loss.forward.modes import evaluating, unwrapped
from composer_replication.types.errors import ModelError
from composer_replication.types.routed_experts import UNKNOWN, RoutedExperts

_LAYERS = "_composer_routing_layers"
"""Where a model keeps the numbers of its blocks that route, in order, and the experts that a token goes through in each."""
_ROUTER, _ENTERED = "_composer_router", "_composer_routing"
_TOP_K = (torch.topk, Tensor.topk)
_BLOCK = re.compile(r"\.(\d+)\.")


class _Router(NamedTuple):
    """One router of a model."""

    place: int
    """Its place among the routers, in the order of a forward pass."""
    experts: int
    chosen: int


@dataclass(slots=True)
class Routing:
    """What routers do in one forward pass over n tokens, in L layers that route, to K experts each."""

    given: Tensor | None = None
    """Integers [n, L, K]: the experts to choose, `UNKNOWN` where a router chooses. None where it does everywhere."""
    recorded: dict[int, Tensor] = field(default_factory=dict)
    """Integers [n, K] by layer: the experts that were chosen."""
    changed: dict[int, Tensor] = field(default_factory=dict)
    """0-dim by layer: the tokens for which a router would have chosen others than are given."""

    def experts(self) -> Tensor:
        """Return int16 [n, L, K] of what was recorded."""
        return torch.stack([self.recorded[place] for place in sorted(self.recorded)], dim=1).to(torch.int16)

    def metrics(self) -> dict[str, float]:
        """Return the tokens whose experts were given, and the share of their choices that routers would have made otherwise."""
        if self.given is None or not self.changed:
            return {}
        known = int((self.given != UNKNOWN).all(-1).all(-1).sum())
        changed = int(torch.stack([*self.changed.values()]).sum())
        return {"routing/tokens": float(known), "routing/changed": changed / max(1, known * len(self.changed))}


_NOW: ContextVar[Routing | None] = ContextVar("routing", default=None)
"""The present forward pass, where its routing is recorded or given."""


def enable_router_replay(model: nn.Module) -> None:
    """Let `routing` record and give the experts of `model`, and of copies that are made of it from now on.

    A forward pass over a few tokens shows which modules are its routers. Raises ModelError where none is.
    """
    inner = unwrapped(model)
    found = _routers(inner)
    if not found:
        raise ModelError(
            f"{type(inner).__name__} has no router that chooses its experts with torch.topk",
            fix="set model.router_replay = false",
        )
    for place, (module, experts, chosen) in enumerate(found.values()):
        vars(module)[_ROUTER] = _Router(place, experts, chosen)
        module.register_forward_pre_hook(_begin)
        module.register_forward_hook(_end, always_call=True)
    blocks = tuple(int(match[1]) if (match := _BLOCK.search(f".{name}.")) else place for place, name in enumerate(found))
    inner.__dict__[_LAYERS] = blocks, max(chosen for _, _, chosen in found.values())


def replays_routers(model: nn.Module) -> bool:
    """Return whether `enable_router_replay` was called on `model`."""
    return _LAYERS in unwrapped(model).__dict__


def experts_per_token(model: nn.Module) -> int:
    """Return the experts that a token of an enabled model goes through in each layer that routes."""
    return int(unwrapped(model).__dict__[_LAYERS][1])


@contextmanager
def routing(given: Tensor | None = None) -> Iterator[Routing]:
    """Record the experts of the forward passes inside, of a model that was enabled, and have it choose those that are `given`
    ([n, L, K])."""
    now = Routing(given)
    with _being(now):
        yield now


def checkpointing_options(model: nn.Module) -> dict[str, Any]:
    """Return what `enable_checkpointing` has to know of a model: an enabled one chooses the same experts when its layers are
    computed again."""
    return {"context_fn": _checkpoint_contexts} if replays_routers(model) else {}


def _checkpoint_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of a layer that is checkpointed, for torch's `context_fn`: of its forward pass, and of the one that the
    backward pass makes again, which must choose the same experts."""
    now = _NOW.get()
    return nullcontext(), _being(None if now is None else Routing(now.given))


def layers_of(model: nn.Module, experts: Tensor) -> Tensor:
    """Return the layers of experts [n, L, K] that route in a model: all, or those of its blocks that do where every block is in
    them. Raises ModelError where they are not of a model like it."""
    blocks, chosen = unwrapped(model).__dict__[_LAYERS]
    if experts.shape[1] == len(blocks) and experts.shape[2] == chosen:
        return experts
    if experts.shape[1] <= max(blocks) or experts.shape[2] != chosen:
        raise ModelError(
            f"the sampler's tokens go through {experts.shape[2]} experts in {experts.shape[1]} layers, the policy's through "
            f"{chosen} in {len(blocks)}",
            fix="sample from the policy's own architecture, or set model.router_replay = false",
        )
    return experts[:, list(blocks)]


def experts_tensor(experts: RoutedExperts) -> Tensor:
    """Return int16 [n, L, K] of what was written down. Raises ValueError."""
    return torch.frombuffer(bytearray(experts.raw()), dtype=torch.int16).reshape(experts.shape)


def marked(ids: Tensor, experts: Tensor) -> Tensor:
    """Return int64 [n] that are the same for tokens `ids` [n] which are the same and go through the same `experts` [n, L, K], and
    for hardly any others (one pair in 2**64)."""
    columns = torch.cat([ids[:, None], experts.reshape(len(ids), -1).to(torch.int64) + 1], dim=1)
    drawn = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**63), 2**63 - 1, (columns.shape[1],), generator=drawn)
    mixed = (columns + 1) * factors  # wraps around
    return ((mixed ^ (mixed >> 29)) * (factors | 1)).sum(1)


def written_down(experts: Tensor) -> RoutedExperts:
    """Write int16 [n, L, K] down."""
    tokens, layers, chosen = experts.shape
    raw = experts.to(torch.int16).cpu().contiguous().numpy().astype("<i2").tobytes()
    return RoutedExperts.of(raw, (tokens, layers, chosen))


# --- inside ----------------------------------------------------------------------------------------------------------


@contextmanager
def _being(now: Routing | None) -> Iterator[None]:
    token = _NOW.set(now)
    try:
        yield
    finally:
        _NOW.reset(token)


def _begin(router: nn.Module, _args: Any) -> None:
    now = _NOW.get()
    if now is not None:
        entered = vars(router)[_ENTERED] = ExitStack()
        entered.enter_context(_Choosing(now, vars(router)[_ROUTER]))


def _end(router: nn.Module, _args: Any, _output: Any) -> None:
    entered = vars(router).pop(_ENTERED, None)
    if entered is not None:
        entered.close()


class _Choosing(TorchFunctionMode):
    """Exchanges the experts that a router chooses."""

    def __init__(self, now: Routing, router: _Router) -> None:
        super().__init__()
        self.now, self.router = now, router

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in _TOP_K or not _chooses(scores := _scores(args, kwargs), found, self.router):
            return found
        place, given = self.router.place, self.now.given
        if given is None:
            self.now.recorded[place] = found.indices
            return found
        if len(given) != len(scores):
            raise ModelError(
                f"a router reads {len(scores)} tokens where the experts of {len(given)} are given",
                fix="set model.router_replay = false",
            )
        wanted = given[:, place].to(found.indices)
        known = (wanted != UNKNOWN).all(-1, keepdim=True)
        indices = torch.where(known, wanted, found.indices)
        other = (indices.sort(-1).values != found.indices.sort(-1).values).any(-1)
        self.now.recorded[place], self.now.changed[place] = indices, other.sum()
        return torch.return_types.topk((scores.gather(-1, indices), indices))


def _scores(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Tensor:
    scores: Tensor = args[0] if args else (kwargs or {})["input"]
    return scores


def _chooses(scores: Tensor, found: Any, router: _Router) -> bool:
    """Return whether a call of `torch.topk` chooses experts: others choose groups of them."""
    return scores.dim() == 2 and scores.shape[-1] == router.experts and found.indices.shape[-1] == router.chosen


class _Watch(TorchFunctionMode):
    """Notes which modules call `torch.topk` on a row for each token."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.open: list[nn.Module] = []
        """The modules whose forward pass is going on, inner ones last."""
        self.found: dict[nn.Module, tuple[int, int]] = {}

    def enter(self, module: nn.Module, _args: Any) -> None:
        self.open.append(module)

    def leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self.open.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _TOP_K and (scores := _scores(args, kwargs)).dim() == 2 and len(scores) == self.tokens and self.open:
            self.found[self.open[-1]] = scores.shape[-1], found.indices.shape[-1]
        return found


def _routers(inner: Any) -> dict[str, tuple[nn.Module, int, int]]:
    """Return the routers of a model by name, in the order of a forward pass, with their experts and how many of them a token goes
    through: groups of experts are chosen before them."""
    names = {module: name for name, module in inner.named_modules()}
    ids = torch.tensor([[0, 1, 0]], device=next(inner.parameters()).device)
    watch = _Watch(ids.numel())
    handles = [
        handle
        for module in names
        for handle in (module.register_forward_pre_hook(watch.enter), module.register_forward_hook(watch.leave))
    ]
    try:
        with evaluating(inner), watch:
            inner(input_ids=ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return {names[module]: (module, experts, chosen) for module, (experts, chosen) in watch.found.items()}
