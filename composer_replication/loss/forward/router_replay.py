"""Which experts of a mixture each token goes through: recorded while a policy samples, and given back while it learns.

Another kernel, batch or rounding makes a router choose other experts for some tokens than those that the token was sampled with,
and policy and sampler then differ by more than rounding (Rollout Routing Replay, arXiv:2510.11370). Only the choice is given back
(section 3 there): the weights of the chosen experts are the router's own, with their gradient.

A router is a module that chooses by one `torch.topk` over the experts, for each of its tokens. Its choice is exchanged there, so
that what it makes of the chosen scores stays as the model has it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from composer_replication.loss.forward.modes import evaluating, unwrapped
from composer_replication.types.errors import ModelError
from composer_replication.types.routed_experts import UNKNOWN, RawExperts, RoutedExperts

_LAYERS = "_composer_routing_layers"
"""Where a model keeps the numbers of its blocks that route, in order, the experts of each, and how many of them a token goes
through."""
_ROUTER = "_composer_router"
_TOP_K = (torch.topk, Tensor.topk)
_BY_KEYS = ("doge",)
"""Kinds of models whose `torch.topk` ranks something else than experts at last."""
_ANOTHER = "sample from the policy's own architecture, or set model.router_replay = false"
_BLOCK = re.compile(r"\.(\d+)\.")


class _Router(NamedTuple):
    """One router of a model."""

    place: int
    """Its place among the routers, in the order of a forward pass."""
    experts: int
    chosen: int


@dataclass(slots=True)
class Routing:
    """The routing of one forward pass over n tokens, in L layers that route, to K experts each."""

    given: Tensor | None = None
    """Integers [n, L, K]: the experts to choose, `UNKNOWN` where a router chooses. None where it does everywhere."""
    recorded: dict[int, Tensor] = field(default_factory=dict)
    """Integers [n, K] by layer: the experts that were chosen."""
    changed: dict[int, Tensor] = field(default_factory=dict)
    """0-dim by layer: the tokens for which a router would have chosen others than are given."""
    entered: list[ExitStack] = field(default_factory=list)
    """The exchange in the router whose forward pass is going on."""

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
    if replays_routers(inner):
        return
    found = _routers(inner)
    why = _why_not(inner, found)
    if why is not None:
        raise ModelError(f"{type(inner).__name__} {why}", fix="set model.router_replay = false")
    for place, (module, experts, chosen, _) in enumerate(found.values()):
        vars(module)[_ROUTER] = _Router(place, experts, chosen)
        module.register_forward_pre_hook(_begin)
        module.register_forward_hook(_end, always_call=True)
    blocks = tuple(int(match[1]) if (match := _BLOCK.search(f".{name}.")) else place for place, name in enumerate(found))
    inner.__dict__[_LAYERS] = blocks, max(one.experts for one in found.values()), max(one.chosen for one in found.values())


def _why_not(inner: Any, found: Mapping[str, _Seen]) -> str | None:
    """Return why the experts of a model cannot be given back, if they cannot."""
    config = inner.config.get_text_config(decoder=True)
    if not found:
        return "has no router that chooses its experts with torch.topk"
    if config.model_type in _BY_KEYS:
        return "ranks products of keys instead of experts"
    if getattr(config, "topk_method", "") == "group_limited_greedy":
        return "gives no weight to experts outside the groups that it chooses"
    if any(seen.passes > 1 for seen in found.values()):
        return "goes through a router several times for a token"
    if len({(seen.experts, seen.chosen) for seen in found.values()}) > 1:
        return "has routers of several sizes"
    return None


def replays_routers(model: nn.Module) -> bool:
    """Return whether `enable_router_replay` was called on `model`."""
    return _LAYERS in unwrapped(model).__dict__


def experts_per_token(model: nn.Module) -> int:
    """Return the number of experts that a token goes through in each layer that routes, in an enabled model."""
    return int(unwrapped(model).__dict__[_LAYERS][2])


@contextmanager
def routing(given: Tensor | None = None) -> Iterator[Routing]:
    """Record the experts of the forward passes inside, of a model that was enabled, and have it choose those that are `given`
    ([n, L, K])."""
    now = Routing(given)
    with _Present(now):
        yield now


def checkpointing_options(model: nn.Module) -> dict[str, Any]:
    """Return what `enable_checkpointing` has to know of a model: an enabled one chooses the same experts when its layers are
    computed again."""
    return {"context_fn": _checkpoint_contexts} if replays_routers(model) else {}


def _checkpoint_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of a layer that is checkpointed, for torch's `context_fn`: of its forward pass, and of the one that the
    backward pass makes again, which must choose the same experts."""
    now = _NOW.get()
    return nullcontext(), _Present(None if now is None else Routing(now.given))


def layers_of(model: nn.Module, experts: Tensor) -> Tensor:
    """Return the layers of experts [n, L, K] that route in a model: all, or those of its blocks that do where every block is in
    them. Raises ModelError where they are not of a model like it, or the model was not enabled."""
    if not replays_routers(model):
        raise ModelError(
            "a batch names the experts of its tokens, and the policy was loaded without router_replay",
            fix="set model.router_replay = true, or leave routed_experts out",
        )
    blocks, number, chosen = unwrapped(model).__dict__[_LAYERS]
    if experts.shape[2] != chosen or (experts.shape[1] != len(blocks) and experts.shape[1] <= max(blocks)):
        raise ModelError(
            f"the sampler's tokens go through {experts.shape[2]} experts in {experts.shape[1]} layers, the policy's through "
            f"{chosen} in {len(blocks)}",
            fix=_ANOTHER,
        )
    if experts.shape[1] != len(blocks):
        if len(set(blocks)) < len(blocks):
            raise ModelError(
                f"some of the policy's blocks have several routers, and the sampler names {experts.shape[1]}", fix=_ANOTHER
            )
        experts = experts[:, list(blocks)]
    known = experts[(experts != UNKNOWN).all(-1)].to(torch.int64)
    if known.numel() and (int(known.min()) < 0 or int(known.max()) >= number or bool((known.sort(-1).values.diff() == 0).any())):
        raise ModelError(f"the sampler names experts that are not {chosen} different numbers below {number}", fix=_ANOTHER)
    return experts


def experts_tensor(experts: RoutedExperts | RawExperts) -> Tensor:
    """Return int16 [n, L, K] of plain data. Raises ValueError."""
    raw = experts.data if isinstance(experts, RawExperts) else experts.raw()
    return torch.frombuffer(bytearray(raw), dtype=torch.int16).reshape(experts.shape)


def padded_experts(experts: RoutedExperts, width: int) -> Tensor:
    """Return int16 [width, L, K] of what was written down, `UNKNOWN` from where it ends. Raises ValueError."""
    known = experts_tensor(experts)[:width]
    return torch.nn.functional.pad(known, (0, 0, 0, 0, 0, width - len(known)), value=UNKNOWN)


def marked(ids: Tensor, experts: Tensor) -> Tensor:
    """Return int64 [n] that are the same for tokens `ids` [n] which are the same and go through the same `experts` [n, L, K], and
    for hardly any others (one pair in 2**64)."""
    columns = torch.cat([ids[:, None], experts.reshape(len(ids), -1).to(torch.int64) + 1], dim=1)
    drawn = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**63), 2**63 - 1, (columns.shape[1],), generator=drawn)
    mixed = (columns + 1) * factors  # wraps around
    return ((mixed ^ (mixed >> 29)) * (factors | 1)).sum(1)


def raw_experts(experts: Tensor) -> RawExperts:
    """Return int16 [n, L, K] as plain data."""
    tokens, layers, chosen = experts.shape
    return RawExperts(experts.to(torch.int16).cpu().contiguous().numpy().astype("<i2").tobytes(), (tokens, layers, chosen))


# --- inside ----------------------------------------------------------------------------------------------------------


class _Present:
    """A context, which may be entered again, in which a forward pass is the present one."""

    def __init__(self, now: Routing | None) -> None:
        self.now = now
        self.tokens: list[Token[Routing | None]] = []

    def __enter__(self) -> None:
        self.tokens.append(_NOW.set(self.now))

    def __exit__(self, *_: object) -> None:
        _NOW.reset(self.tokens.pop())


def _begin(router: nn.Module, _args: Any) -> None:
    now = _NOW.get()
    if now is not None:
        now.entered.append(ExitStack())
        now.entered[-1].enter_context(_Choosing(now, vars(router)[_ROUTER]))


def _end(_router: nn.Module, _args: Any, _output: Any) -> None:
    now = _NOW.get()
    if now is not None and now.entered:
        now.entered.pop().close()


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


class _Seen(NamedTuple):
    """A module that was seen to choose."""

    module: nn.Module
    experts: int
    chosen: int
    passes: int
    """Times that it ran in one forward pass."""


class _Watch(TorchFunctionMode):
    """Notes which modules call `torch.topk` on a row for each token."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.open: list[nn.Module] = []
        """The modules whose forward pass is going on, inner ones last."""
        self.passes: Counter[nn.Module] = Counter()
        self.found: dict[nn.Module, tuple[int, int]] = {}
        """The last choice of each: groups of experts are chosen before them."""

    def enter(self, module: nn.Module, _args: Any) -> None:
        self.open.append(module)
        self.passes[module] += 1

    def leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self.open.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _TOP_K and (scores := _scores(args, kwargs)).dim() == 2 and len(scores) == self.tokens and self.open:
            self.found[self.open[-1]] = scores.shape[-1], found.indices.shape[-1]
        return found


def _routers(inner: Any) -> dict[str, _Seen]:
    """Return the routers of a model by name, in the order of a forward pass."""
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
    return {names[module]: _Seen(module, *sizes, watch.passes[module]) for module, sizes in watch.found.items()}
