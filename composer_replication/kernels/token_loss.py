"""lm_head and log-prob of the chosen tokens, without the [N, V] logits.

Where a loss is a sum of functions of one token's log-prob each (PPO's surrogate, cross-entropy), its derivative is known as soon
as that log-prob is, and `fused_token_loss` forms all gradients in one pass: three matrix products. Where it is not (a sequence's
ratio, a pair's margin), `fused_logprobs` gives log-probs that are differentiable and projects a second time in the backward pass:
four.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from composer_replication.kernels.blocks import by_triton, for_blocks
from composer_replication.kernels.head import Head, accumulation_dtype, autocast_dtype
from composer_replication.kernels.one_pass import in_types_of, one_pass, total_loss
from composer_replication.kernels.weight_gradient import gradient_of

TokenLoss: TypeAlias = Callable[[Tensor, slice], Tensor]
"""(log-probs [n] with gradient, the rows they belong to) -> weighted losses [n], each a function of its own row's log-prob
only."""


class TokenScores(NamedTuple):
    """Per row, [N]."""

    logprobs: Tensor
    """Log-probs, with gradient from `fused_logprobs`, without from `fused_token_loss`."""
    entropy: Tensor
    """Entropy in nats of the distribution the token was drawn from; without gradient."""


def fused_token_loss(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    loss: TokenLoss,
    *,
    temperature: float = 1.0,
    rows_per_chunk: int | None = None,
) -> tuple[Tensor, TokenScores]:
    """Sum over the rows of `loss` of the log-probs of `targets` [N] (int64) under head(hidden [N, H]) / temperature.

    Returns the 0-dim sum, differentiable once with respect to hidden, weight and bias, and what was found at each row. Nothing
    is kept of the logits. Raises ValueError unless temperature > 0.
    """
    _check(hidden, targets, temperature)
    kernel = _TokenKernel(hidden, head, targets, temperature, loss, differentiated=torch.is_grad_enabled())
    value = total_loss(hidden, head, kernel, rows_per_chunk=rows_per_chunk)
    return value, TokenScores(kernel.logprobs, kernel.entropy)


def fused_logprobs(
    hidden: Tensor, head: Head, targets: Tensor, *, temperature: float = 1.0, rows_per_chunk: int | None = None
) -> TokenScores:
    """Return log-probs of `targets` [N] (int64) under head(hidden [N, H]) / temperature, differentiable once, and entropies
    without gradient.

    Raises ValueError unless temperature > 0.
    """
    _check(hidden, targets, temperature)
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _LogProbs.apply
    gradient = gradient_of(head.weight)
    before = None if gradient is None else gradient.tip
    logprobs, entropy, tip = apply(hidden, head.weight.detach(), head.bias, before, head, targets, temperature, rows_per_chunk)
    if gradient is not None:
        gradient.pass_through(tip)
    return TokenScores(logprobs, entropy)


class _TokenKernel:
    """`RowKernel` of a token loss.

    The dense part is exp(logits - max) less its sum at the target, its factor -dloss/dlogprob / sum. The subtraction comes before
    any product: 1 - probability of a likely target would be lost in a product that rounds its operands.
    """

    def __init__(
        self, hidden: Tensor, head: Head, targets: Tensor, temperature: float, loss: TokenLoss, *, differentiated: bool
    ) -> None:
        self.head, self.targets, self.temperature, self.loss = head, targets, temperature, loss
        self.differentiated = differentiated
        self.logprobs = hidden.new_empty(hidden.shape[:1], dtype=accumulation_dtype(head.weight.dtype))
        self.entropy, self.losses = torch.empty_like(self.logprobs), torch.zeros_like(self.logprobs)

    def __call__(self, product: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:  # noqa: ARG002 - no teacher here
        targets, logprobs, entropy = self.targets[rows], self.logprobs[rows], self.entropy[rows]
        if by_triton(product):
            from composer_replication.kernels.triton_tokens import score

            total, slope_at_target = score(product, self.head, self.temperature, targets, logprobs, entropy)
        else:
            total, slope_at_target = _score(product, self.head, self.temperature, targets, logprobs, entropy)
        if not self.differentiated:
            self.losses[rows] = self.loss(logprobs, rows)
            return total
        with torch.enable_grad():
            leaf = logprobs.clone().requires_grad_()
            losses = self.loss(leaf, rows)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        self.losses[rows] = losses.detach()
        product.scatter_add_(-1, targets.unsqueeze(-1), -(total * slope_at_target).unsqueeze(-1))
        return -gradient * (self.head.scale / self.temperature) / total


def _score(
    product: Tensor, head: Head, temperature: float, targets: Tensor, logprobs: Tensor, entropy: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn `product` [n, V] into exp(logits - max) times the slope of the soft cap, in place; fill log-probs of `targets` and
    entropies [n]. Returns the sums of exp(logits - max) and the slopes at the targets, [n]."""
    total, slope_at_target = torch.empty_like(logprobs), torch.ones_like(logprobs)

    def work(block: slice) -> None:
        slope = head.finish_(product[block], temperature)
        total[block] = _exponentials_(product[block], targets[block], logprobs[block], entropy[block])
        if slope is not None:
            product[block].mul_(slope)
            slope_at_target[block] = slope.gather(-1, targets[block].unsqueeze(-1)).squeeze(-1)

    for_blocks(product, work)
    return total, slope_at_target


def _exponentials_(logits: Tensor, targets: Tensor, logprobs: Tensor, entropy: Tensor) -> Tensor:
    """Overwrite logits [n, V] with exp(logits - max); fill log-probs and entropies [n]; return the sums [n]."""
    shifted = logits - logits.amax(-1, keepdim=True)
    total = torch.exp(shifted, out=logits).sum(-1)
    log_total = total.log()
    logprobs.copy_(shifted.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - log_total)
    shifted.clamp_(min=-1e4)  # a column of -inf has probability 0, and 0 * inf is NaN
    entropy.copy_(log_total - torch.linalg.vecdot(logits, shifted) / total)
    return total


class _LogProbs(torch.autograd.Function):
    """Log-probs in the forward pass; the backward pass is the one-pass token loss for upstream * log-prob. The weight's gradient
    passes through from this tip to the previous one; see `WeightGradient`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        before: Tensor | None,  # noqa: ARG004 - of the graph only
        head: Head,
        targets: Tensor,
        temperature: float,
        rows_per_chunk: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias)
        form = partial(one_pass, head=head, rounded_to=autocast_dtype(weight), rows_per_chunk=rows_per_chunk)
        ctx.rest = (form, head, targets, temperature)
        nothing = _linear(torch.zeros_like(targets, dtype=hidden.dtype))
        kernel = _TokenKernel(hidden, head, targets, temperature, nothing, differentiated=False)
        form(hidden, kernel=kernel, wanted=(False, False))
        ctx.mark_non_differentiable(kernel.entropy)
        dtype = accumulation_dtype(weight.dtype)
        return kernel.logprobs, kernel.entropy, weight.new_zeros((), dtype=dtype).expand(weight.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, _: None, later: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        if upstream is None:
            return None, None, None, later, None, None, None, None
        form, head, targets, temperature = ctx.rest
        kernel = _TokenKernel(hidden, head, targets, temperature, _linear(upstream), differentiated=True)
        wanted = ctx.needs_input_grad
        if wanted[3] and later is None:
            later = weight.new_zeros(weight.shape, dtype=accumulation_dtype(weight.dtype))
        gradients = form(hidden, kernel=kernel, wanted=(wanted[0], wanted[2]), add_to=later)
        of_hidden, of_bias = in_types_of((hidden, bias), gradients)
        return of_hidden, None, of_bias, later, None, None, None, None


def _linear(factors: Tensor) -> TokenLoss:
    return lambda logprobs, rows: factors[rows] * logprobs


def _check(hidden: Tensor, targets: Tensor, temperature: float) -> None:
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1]:
        raise ValueError(f"expected hidden [N, H] and targets [N], got {tuple(hidden.shape)} and {tuple(targets.shape)}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
