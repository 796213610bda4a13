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
    """Entropy in nats of the distribution the token was drawn from, with gradient as the log-probs."""


def fused_token_loss(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    loss: TokenLoss,
    *,
    temperature: float = 1.0,
    entropy_weights: Tensor | None = None,
    rows_per_chunk: int | None = None,
) -> tuple[Tensor, TokenScores]:
    """Sum over the rows of `loss` of the log-probs of `targets` [N] (int64) under head(hidden [N, H]) / temperature, plus
    `entropy_weights` [N] times the entropies.

    Returns the 0-dim sum, differentiable once with respect to hidden, weight and bias, and what was found at each row. Nothing
    is kept of the logits. Raises ValueError unless temperature > 0.
    """
    _check(hidden, targets, temperature)
    kernel = _TokenKernel(
        hidden, head, targets, temperature, loss, differentiated=torch.is_grad_enabled(), entropy_weights=entropy_weights
    )
    value = total_loss(hidden, head, kernel, rows_per_chunk=rows_per_chunk)
    return value, TokenScores(kernel.logprobs, kernel.entropy)


def fused_logprobs(
    hidden: Tensor, head: Head, targets: Tensor, *, temperature: float = 1.0, rows_per_chunk: int | None = None
) -> TokenScores:
    """Return log-probs of `targets` [N] (int64) under head(hidden [N, H]) / temperature, and entropies, differentiable once.

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
    any product: 1 - probability of a likely target would be lost in a product that rounds its operands. The gradient of an
    entropy H is -p (log p + H) at each logit; where one is wanted it joins the dense part, from a second buffer of logits.
    """

    def __init__(
        self,
        hidden: Tensor,
        head: Head,
        targets: Tensor,
        temperature: float,
        loss: TokenLoss,
        *,
        differentiated: bool,
        entropy_weights: Tensor | None = None,
    ) -> None:
        self.head, self.targets, self.temperature, self.loss = head, targets, temperature, loss
        self.differentiated, self.entropy_weights = differentiated, entropy_weights
        self.logprobs = hidden.new_empty(hidden.shape[:1], dtype=accumulation_dtype(head.weight.dtype))
        self.entropy, self.losses = torch.empty_like(self.logprobs), torch.zeros_like(self.logprobs)

    def __call__(self, product: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:  # noqa: ARG002 - no teacher here
        targets, logprobs, entropy = self.targets[rows], self.logprobs[rows], self.entropy[rows]
        weights = None if self.entropy_weights is None else self.entropy_weights[rows].to(logprobs)
        logits = None if weights is None or not self.differentiated else product.clone()
        if by_triton(product):
            from composer_replication.kernels.triton_tokens import score

            total, slope_at_target = score(product, self.head, self.temperature, targets, logprobs, entropy)
        else:
            total, slope_at_target = _score(product, self.head, self.temperature, targets, logprobs, entropy)
        added = 0.0 if weights is None else weights * entropy
        if not self.differentiated:
            self.losses[rows] = self.loss(logprobs, rows) + added
            return total
        with torch.enable_grad():
            leaf = logprobs.clone().requires_grad_()
            losses = self.loss(leaf, rows)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        self.losses[rows] = losses.detach() + added
        if logits is not None and weights is not None:
            self._times_surprise_(logits, product, rows, weights)
        product.scatter_add_(-1, targets.unsqueeze(-1), -(total * slope_at_target).unsqueeze(-1))
        factor = (self.head.scale / self.temperature) / total
        if logits is None:
            return -gradient * factor
        product.mul_(-gradient.unsqueeze(-1)).sub_(logits)
        return factor

    def _times_surprise_(self, logits: Tensor, exponentials: Tensor, rows: slice, weights: Tensor) -> None:
        """Turn `logits` [n, V], still hidden @ weight.T, into weights * exponentials * (log p + H), in place."""
        targets, logprobs, entropy = self.targets[rows], self.logprobs[rows], self.entropy[rows]

        def work(block: slice) -> None:
            part = logits[block]
            self.head.finish_(part, self.temperature)
            log_total = part.gather(-1, targets[block].unsqueeze(-1)) - logprobs[block].unsqueeze(-1)
            part.sub_(log_total - entropy[block].unsqueeze(-1)).clamp_(min=-1e4)  # where p is 0 its logarithm does not count
            part.mul_(exponentials[block]).mul_(weights[block].unsqueeze(-1))

        for_blocks(logits, work)


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
    """Log-probs in the forward pass; the backward pass is the one-pass token loss for upstream * log-prob, and for upstream *
    entropy where a gradient comes from there. The weight's gradient passes through from this tip to the previous one; see
    `WeightGradient`."""

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
        dtype = accumulation_dtype(weight.dtype)
        return kernel.logprobs, kernel.entropy, weight.new_zeros((), dtype=dtype).expand(weight.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, of_entropy: Tensor | None, later: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        if upstream is None and of_entropy is None:
            return None, None, None, later, None, None, None, None
        form, head, targets, temperature = ctx.rest
        upstream = hidden.new_zeros(hidden.shape[:1], dtype=weight.dtype) if upstream is None else upstream
        kernel = _TokenKernel(
            hidden, head, targets, temperature, _linear(upstream), differentiated=True, entropy_weights=of_entropy
        )
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
