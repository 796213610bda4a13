"""Building blocks of the Triton kernels over rows of logits.

A program works on one row, in blocks of columns; whatever is gathered over a row is gathered per lane of the block and brought
together once, at the end. Arithmetic is in float32. A column of -inf has probability 0 and is not a special case anywhere.

Triton reads annotations: this file does not postpone them.
"""

from typing import Any

import triton
import triton.language as tl

from composer_replication.kernels.head import Head

NOTHING = tl.constexpr(-3.0e38)
"""The maximum of no entries: below every logit, yet finite, because -inf - -inf is NaN."""
_MOST_COLUMNS = 2048


def of_vocabulary(columns: int) -> dict[str, Any]:
    """Return the launch options of a kernel over rows of `columns` entries: 8 entries of every block per thread."""
    block = min(_MOST_COLUMNS, triton.next_power_of_2(columns))
    # a * b + c is rounded twice, as the interpreter does it: the same logit is then the same number wherever it is formed
    return {"BLOCK": block, "num_warps": max(1, block // 256), "enable_fp_fusion": False}


def of_head(head: Head, temperature: float) -> dict[str, Any]:
    """Return the arguments with which `load_logits` turns hidden @ weight.T into logits / temperature."""
    bias = None if head.bias is None else head.bias.contiguous()
    if head.softcap is None:
        return {"bias": bias, "inner": head.scale / temperature, "outer": 1.0, "CAPPED": False}
    return {"bias": bias, "inner": head.scale / head.softcap, "outer": head.softcap / temperature, "CAPPED": True}


@triton.jit
def load_logits(
    product: tl.tensor,
    bias: tl.tensor,
    columns: tl.tensor,
    within: tl.tensor,
    inner: tl.tensor,
    outer: tl.tensor,
    CAPPED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return inner * (product + bias), capped as outer * tanh(...), at `columns` of a row, and the slope of tanh; -inf where not
    `within`. `bias` may be None."""
    x = tl.load(product + columns, mask=within, other=0.0)
    if bias is not None:
        x += tl.load(bias + columns, mask=within, other=0.0).to(tl.float32)
    x *= inner
    slope = tl.zeros_like(x) + 1.0
    if CAPPED:
        fall, _ = expm1_of_minus(2.0 * tl.abs(x))
        x = tl.where(x < 0.0, fall, -fall) / (2.0 + fall)
        slope -= x * x
        x *= outer
    return tl.where(within, x, float("-inf")), slope


@triton.jit
def expm1_of_minus(a: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return exp(-a) - 1, by its Taylor series where the subtraction would lose digits, and exp(-a), for a >= 0."""
    power = tl.exp(-a)
    series = tl.fma(a, -1.0 / 720.0, 1.0 / 120.0)
    series = tl.fma(a, -series, 1.0 / 24.0)
    series = tl.fma(a, -series, 1.0 / 6.0)
    series = tl.fma(a, -series, 0.5)
    series = tl.fma(a, -series, 1.0)
    return tl.where(a < 0.25, -a * series, power - 1.0), power


@triton.jit
def gather(x: tl.tensor, top: tl.tensor, total: tl.tensor, moment: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add logits, lane by lane, to the maximum so far, to the sum of e = exp(x - top) and to the sum of (x - top) e. One
    exponential suffices: of the new entry where it is below the maximum, of the old sum where it is above."""
    above = x - top
    power = tl.exp(-tl.abs(above))
    rises = above > 0.0
    moment = tl.where(rises, (moment - above * total) * power, moment + tl.maximum(above, -1e4) * power)
    total = tl.where(rises, total * power + 1.0, total + power)
    return tl.maximum(x, top), total, moment


@triton.jit
def merge(top: tl.tensor, total: tl.tensor, moment: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Reduce all lanes to the maximum, the sum of exp(x - maximum), and the entropy in nats of the distribution."""
    highest = tl.max(top, 0)
    below = top - highest
    power = tl.exp(below)
    whole = tl.sum(total * power, 0)
    return highest, whole, tl.log(whole) - tl.sum((moment + below * total) * power, 0) / whole
