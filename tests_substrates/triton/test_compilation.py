"""Every form of the kernels compiles, for which no GPU is needed: the compiler sees what the interpreter does not, such as a type
that changes within a loop. Triton must not be interpreting, hence a process apart from `test_values.py`."""

from __future__ import annotations

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from composer_replication.distillation import TAID, EntropyAwareOPD, GeneralizedJSD, triton_divergence
from composer_replication.kernels import Head, triton_tokens

VOCABULARY = 4_096
HEADS = [
    Head(torch.empty(0)),
    Head(torch.empty(0), torch.empty(VOCABULARY)),
    Head(torch.empty(0), torch.empty(VOCABULARY, dtype=torch.bfloat16), 0.5, 30.0),
]
DIVERGENCES = [
    *(GeneralizedJSD(beta, token_clip=clip) for beta in (0.0, 0.3, 1.0) for clip in (None, 0.05)),
    TAID(0.5),
    TAID(1.0),
    EntropyAwareOPD(),
]
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64"}


class Launch:
    """Stands in a kernel's place and keeps what it is launched with."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, **options):
        self.options = {name: options.pop(name) for name in ("num_warps", "enable_fp_fusion")}
        self.given = dict(zip(self.kernel.arg_names, args, strict=False)) | options

    def compiled(self, capability):
        """For a GPU of that compute capability, as if the tensors lay on one."""
        signature, constants, attributes = {}, {}, {}
        for at, name in enumerate(self.kernel.arg_names):
            value = self.given[name]
            if isinstance(value, Tensor):
                signature[name] = TYPES[value.dtype]
            elif isinstance(value, bool | str | None) or name == "BLOCK":
                signature[name], constants[(at,)] = "constexpr", value
            else:
                signature[name] = {int: "i32", float: "fp32"}[type(value)]
            if isinstance(value, Tensor) or name == "vocabulary":
                attributes[(at,)] = [["tt.divisibility", 16]]
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=constants, attrs=attributes)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=self.options)


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def assert_good(compiled):
    """There is machine code; blocks are read and written 16 bytes at a time; logs near 1 keep their digits."""
    assert compiled.asm["cubin"]
    assert "ld.global.v4.b32" in compiled.asm["ptx"]
    assert "st.global.v4.b32" in compiled.asm["ptx"]
    assert "lg2.approx" not in compiled.asm["ptx"]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("head", range(len(HEADS)))
def test_the_token_loss_compiles(capability, head, monkeypatch):
    launch = Launch(triton_tokens._score)
    monkeypatch.setattr(triton_tokens, "_score", launch)
    rows = torch.empty(3)
    triton_tokens.score(torch.empty(3, VOCABULARY), HEADS[head], 0.7, rows.long(), rows, rows)
    assert_good(launch.compiled(capability))


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("head", range(len(HEADS)))
@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
def test_a_divergence_compiles(capability, head, divergence, monkeypatch):
    launch = Launch(triton_divergence._diverge)
    monkeypatch.setattr(triton_divergence, "_diverge", launch)
    product, teacher = torch.empty(2, 3, VOCABULARY)
    triton_divergence.diverge(product, teacher, HEADS[head], divergence, 0.7, torch.empty(3))
    assert_good(launch.compiled(capability))
