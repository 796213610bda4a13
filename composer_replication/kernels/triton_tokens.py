"""The token loss's work on a chunk's [n, V] products, as a Triton kernel that reads every row twice and writes it once.

Triton reads annotations: this file does not postpone them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from composer_replication.kernels.head import Head
from composer_replication.kernels.triton_rows import NOTHING, gather, load_logits, merge, of_head, of_vocabulary


def score(
    product: Tensor, head: Head, temperature: float, targets: Tensor, logprobs: Tensor, entropy: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn `product` [n, V] into exp(logits - max) times the slope of the soft cap, in place; fill log-probs of `targets` (int64)
    and entropies [n]. Returns the sums of exp(logits - max) and the slopes at the targets, [n].

    All but the targets float32 and contiguous.
    """
    rows, vocabulary = product.shape
    totals, slopes = torch.empty_like(logprobs), torch.empty_like(logprobs)
    with torch.cuda.device_of(product):
        _score[(rows,)](
            product,
            targets.contiguous(),
            logprobs,
            entropy,
            totals,
            slopes,
            vocabulary,
            **of_head(head, temperature),
            **of_vocabulary(vocabulary),
        )
    return totals, slopes


@triton.jit
def _score(
    product: tl.tensor,
    targets: tl.tensor,
    logprobs: tl.tensor,
    entropies: tl.tensor,
    totals: tl.tensor,
    slopes: tl.tensor,
    vocabulary: tl.tensor,
    bias: tl.tensor,
    inner: tl.tensor,
    outer: tl.tensor,
    CAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    product += row * vocabulary
    target = tl.load(targets + row)
    known = (target >= 0) & (target < vocabulary)  # any other has probability 0, and its memory is not ours
    chosen, slope_there = load_logits(product, bias, target, known, inner, outer, CAPPED)

    lanes = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), NOTHING, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    moment = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        columns = start + lanes
        x, _ = load_logits(product, bias, columns, columns < vocabulary, inner, outer, CAPPED)
        top, total, moment = gather(x, top, total, moment)
    highest, whole, entropy = merge(top, total, moment)
    tl.store(logprobs + row, chosen - highest - tl.log(whole))
    tl.store(entropies + row, entropy)
    tl.store(totals + row, whole)
    tl.store(slopes + row, slope_there)

    tl.debug_barrier()  # every thread has read the target's product before any overwrites it
    for start in range(0, vocabulary, BLOCK):
        columns = start + lanes
        x, slope = load_logits(product, bias, columns, columns < vocabulary, inner, outer, CAPPED)
        tl.store(product + columns, tl.exp(x - highest) * slope, mask=columns < vocabulary)
