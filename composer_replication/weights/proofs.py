"""Did these weights make these tokens? Proofs of forward passes that one forward pass checks (TOPLOC, arXiv:2501.16007).

For the prompt, and for each 32 sampled tokens, 258 bytes hold the 128 largest entries of the last hidden states. Who has the
weights computes the states of the whole text at once and compares: rounding differs a little between kernels and batches, other
weights or other prompts differ much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from composer_replication.types.errors import ConfigError, MissingExtraError

_EVERY, _TOP = 32, 128
_LENGTH = 2 + 2 * _TOP


@dataclass(frozen=True, slots=True)
class ProofLimits:
    """Limits that honest workers stay below; measure them with your own model, kernels and machines (docs/weights.md)."""

    exponents: int = 16
    """Most of the 128 entries of a proof whose exponent differs."""
    mean: float = 3.0
    """Most for the mean difference of the other entries' mantissas, in units of bfloat16's last place."""
    median: float = 2.0


@dataclass(frozen=True, slots=True)
class ProofVerdict:
    """The worst of the proofs of a text."""

    accepted: bool
    exponents: int
    mean: float
    median: float
    reason: str = ""
    """Why it was refused."""


def prove(hidden: Tensor, prompt: int) -> list[bytes]:
    """Make the proofs of a text: one for its prompt, one for each 32 tokens after it.

    Args:
        hidden: (tokens, width), what the language model head was given for each token, as it was computed.
        prompt: tokens of the prompt.

    Raises:
        ConfigError: the shapes do not fit, an entry is not finite, or there are too few of them for a proof.
        MissingExtraError: toploc is not installed, or was built for another PyTorch.
    """
    parts = _parts(hidden, prompt)
    made: list[bytes] = _toploc().build_proofs_bytes(parts, decode_batching_size=_EVERY, topk=_TOP)
    if len(made) != _count(hidden, prompt) or any(proof == bytes(len(proof)) for proof in made):
        raise ConfigError(
            "toploc could not make a proof of these hidden states", fix="pass those of the last layer, of all tokens"
        )
    return made


def verify(hidden: Tensor, prompt: int, proofs: Sequence[bytes], limits: ProofLimits | None = None) -> ProofVerdict:
    """Check whether a worker that sent these proofs had the weights that gave these hidden states.

    Args:
        hidden: (tokens, width), as for `prove`, from a forward pass of one's own over the same tokens.
        prompt: tokens of the prompt.
        proofs: the worker's, whatever they are.
        limits: bounds of an honest worker's rounding.

    Raises:
        ConfigError, MissingExtraError: as `prove`.
    """
    limits = limits or ProofLimits()
    parts = _parts(hidden, prompt)
    wanted = _count(hidden, prompt)
    if len(proofs) != wanted or any(len(proof) != _LENGTH for proof in proofs):
        return ProofVerdict(False, _TOP, float("inf"), float("inf"), f"not {wanted} proofs of {_LENGTH} bytes")
    found = _toploc().verify_proofs_bytes(parts, list(proofs), decode_batching_size=_EVERY, topk=_TOP)
    exponents = max(int(one.exp_mismatches) for one in found)
    mean, median = max(float(one.mant_err_mean) for one in found), max(float(one.mant_err_median) for one in found)
    over = {"exponents": exponents > limits.exponents, "mean": mean > limits.mean, "median": median > limits.median}
    reason = ", ".join(name for name, beyond in over.items() if beyond)
    return ProofVerdict(not reason, exponents, mean, median, f"beyond the limits: {reason}" if reason else "")


def _parts(hidden: Tensor, prompt: int) -> list[Tensor]:
    """Return the prompt's hidden states, and those of each token after it, in bfloat16 on the CPU."""
    if hidden.dim() != 2 or not 1 <= prompt <= hidden.shape[0]:
        raise ConfigError(f"hidden states of the shape {tuple(hidden.shape)}, {prompt} of a prompt", fix="(tokens, width)")
    if hidden.shape[1] < _TOP:
        raise ConfigError(f"hidden states {hidden.shape[1]} wide, and a proof holds {_TOP}", fix="a wider model")
    states = hidden.detach().to("cpu", torch.bfloat16)
    if not bool(states.isfinite().all()):
        raise ConfigError("hidden states that are not finite", fix="look for what made them so in the model")
    return [states[:prompt], *states[prompt:].split(1)]  # type: ignore[no-untyped-call]


def _count(hidden: Tensor, prompt: int) -> int:
    return 1 - (prompt - hidden.shape[0]) // _EVERY


def _toploc() -> Any:
    """Import toploc when it is needed: its binaries fit one version of PyTorch."""
    try:
        import toploc
    except ImportError as error:
        raise MissingExtraError(
            f"proofs need toploc, built for PyTorch {torch.__version__}: {error}",
            fix="pip install --no-build-isolation --no-binary toploc toploc (needs setuptools and a C++ compiler)",
        ) from error
    return toploc
