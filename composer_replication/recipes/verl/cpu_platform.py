"""verl's platform `cpu`: no accelerator, gloo, and Ray's logical GPUs in the place of real ones. Imported with VERL_PLATFORM=cpu
only."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Device(types.SimpleNamespace):
    """`torch.cpu` with the names of `torch.cuda` that verl calls on every device."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _zero(*_: Any, **__: Any) -> int:
    return 0


_MODULE = _Device(
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"), _zero),
    **dict.fromkeys(("empty_cache", "set_device", "synchronize", "ipc_collect", "reset_peak_memory_stats"), _nothing),
    mem_get_info=lambda *_: (1 << 30, 1 << 30),
    current_device=lambda: torch.device("cpu"),
    device_count=lambda: 1,
    is_available=lambda: False,
    get_device_name=lambda *_: "cpu",
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=lambda *_: torch.get_rng_state(),
    set_rng_state=lambda state, *_: torch.set_rng_state(state),
)


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    """The CPU as a device of verl."""

    device_name, vendor_name, device_module = "cpu", "generic", _MODULE
    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        del use_smi_check
        return False  # only where VERL_PLATFORM names it

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        del device_index
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "COMPOSER_VERL_VISIBLE_CPUS"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        del msg
        yield

    def ray_resource_name(self) -> str:
        return "GPU"  # verl counts no other; ours are logical

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


def _init_process_group(init: Any, backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
    return init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


# verl asks for "cpu:gloo" in addition to the device's backend, and torch takes no device twice
torch.distributed.init_process_group = partial(_init_process_group, torch.distributed.init_process_group)
