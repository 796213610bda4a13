"""The checks, in the order in which they run."""

from __future__ import annotations

from gpu_checks.runner import Check

CHECKS = (
    Check("kernels", "gpu_checks.kernels:check", 120.0),
    Check("Triton kernels", "gpu_checks.kernels:check_triton", 120.0),
    Check("kernel speed", "gpu_checks.kernel_speed:check", 120.0),
    Check("three-channel loss", "gpu_checks.composed:check"),
    Check("precisions", "gpu_checks.precision:check"),
    Check("checkpointing", "gpu_checks.checkpointing:check"),
    Check("LoRA", "gpu_checks.adapters:check"),
    Check("offloaded moments", "gpu_checks.optimizers:check_offload"),
    Check("8-bit moments", "gpu_checks.optimizers:check_8bit", 120.0, environment=".nox/torchao"),
    Check("torch.compile", "gpu_checks.compiled:check", 180.0),
    Check("memory plan", "gpu_checks.memory_plan:check", 180.0),
    Check("in-process engine", "gpu_checks.sampling:check"),
    Check("vLLM server", "gpu_checks.served:check", 300.0),
    Check("verl step", "gpu_checks.verl_step:check", 120.0, environment=".nox/verl"),
)
