"""Work on two processes that know each other, as under torchrun, on one machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from composer_replication.distillation import make_self_teacher
from composer_replication.loss import compose_loss, micro_batches
from composer_replication.loss.batch_keys import DENOMINATORS, PAIR_KEYS, Batch
from composer_replication.loss.forward import enable_checkpointing, unwrapped, update_mode, weights_digest, why_no_tree
from composer_replication.types.errors import ModelError

RANKS = 2
PATIENCE = timedelta(minutes=5)
"""Of a rank that waits for another; torch gives up after half an hour. Work itself may take as long as it likes."""
multiprocessing.set_forkserver_preload(
    ["composer_replication.loss", "torch.distributed.fsdp", "transformers.models.qwen3.modeling_qwen3"]
)


def on_ranks(folder: Path, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(rank, *args)` gave on each process. When one raises or dies the other is ended, and an error is raised."""
    torch.save((work, args), folder / "work.pt")  # copies for each: arguments of processes would share their tensors
    torch.multiprocessing.start_processes(_rank, (folder,), nprocs=RANKS, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    as_torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_ADDR": "localhost"}
    os.environ |= {name: str(value) for name, value in as_torchrun.items()} | {"GLOO_SOCKET_IFNAME": "lo"}
    meeting = torch.distributed.FileStore(str(folder / "meeting"), RANKS)
    torch.distributed.init_process_group("gloo", store=meeting, rank=rank, world_size=RANKS, timeout=PATIENCE)
    work, args = torch.load(folder / "work.pt", weights_only=False)
    torch.save(work(rank, *args), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def wrapped(model: nn.Module, how: str) -> nn.Module:
    """`model` under DDP or sharded in place by FSDP2."""
    if how.startswith("ddp"):
        return DistributedDataParallel(model, find_unused_parameters=how == "ddp, unused", static_graph=how == "ddp, static")
    if how != "fsdp2, root only":
        for module in list(model.modules()):
            if type(module).__name__ == "Qwen3DecoderLayer":
                fully_shard(module)
    if how == "fsdp2, head apart":
        fully_shard(unwrapped(model).get_output_embeddings())
    fully_shard(model, reshard_after_forward=True if how == "fsdp2, resharded" else None)
    return model


def mixed(batch: Mapping[str, Tensor], size: int, *, rank: int = 0, ranks: int = 1) -> list[Batch]:
    """Micro-batches that hold rows and pairs together, `size` rows each in their order, as some trainers deal them out."""
    rows, pairs = (len(batch[key]) if key in batch else 0 for key in ("input_ids", "dpo_weights"))
    count = max(1, -(-max(rows, pairs) // size))
    shared = {key: batch[key] for key in DENOMINATORS.values() if key in batch}
    each = -(-pairs // count)
    found: list[Batch] = []
    for i in range(rank, ranks * -(-count // ranks), ranks):
        mine, own = (range(start, stop)[i * n : (i + 1) * n] for start, stop, n in ((0, rows, size), (0, pairs, each)))
        part = micro_batches._rows(batch, torch.tensor(mine)) if len(mine) else {}
        part |= micro_batches._take(batch, PAIR_KEYS, torch.tensor(own)) if len(own) else {}
        found.append(shared | micro_batches._trim(part))
    return found


def step(
    rank: int,
    model: nn.Module,
    batch: Mapping[str, Tensor],
    how: str,
    size: int,
    options: Mapping[str, Any],
    teacher: str = "live",
    checkpointed: bool = False,
) -> dict[str, Any]:
    """One step of SGD with this rank's share of `batch`: the whole weights after it, each forward pass (did it keep a graph?),
    how many of them the wrapper saw, and each micro-batch's loss."""
    if checkpointed:
        enable_checkpointing(model)
        update_mode(model)
    passes: list[bool] = []
    model.get_input_embeddings().register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    parallel = wrapped(model, how)
    through_wrapper: list[None] = []
    parallel.register_forward_pre_hook(lambda *_: through_wrapper.append(None))
    self_teacher = make_self_teacher(teacher, parallel)
    optimizer = torch.optim.SGD([p for p in parallel.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for part in mixed(batch, size, rank=rank, ranks=RANKS):
        loss = compose_loss(parallel, part, **options, self_teacher=self_teacher)
        (loss.total * RANKS).backward()
        losses.append({"total": loss.total.item(), "off": loss.off, "fallbacks": loss.fallbacks, "metrics": loss.metrics})
    optimizer.step()
    weights = {name: whole(parameter.detach()) for name, parameter in model.named_parameters()}
    return {"weights": weights, "passes": passes, "through_wrapper": len(through_wrapper), "losses": losses}


def gradient_of(rank: int, model: nn.Module, parts: Sequence[Sequence[Batch]], how: str) -> dict[str, Tensor | None]:
    """The whole gradient of every weight after this rank's `parts`."""
    parallel = wrapped(model, how)
    for part in parts[rank]:
        (compose_loss(parallel, part).total * RANKS).backward()
    return {name: None if p.grad is None else whole(p.grad) for name, p in model.named_parameters()}


def teach_twice(_rank: int, model: nn.Module, batch: Mapping[str, Tensor], kind: Any) -> dict[str, Any]:
    """Two steps with a self-teacher made before FSDP2 shards the model: the hint losses, the teacher after them, the policy's
    digests whole and sharded, and what is said of a teacher made too late. Both ranks have the whole batch."""
    teacher = make_self_teacher(kind, model, rate=0.3)
    digests = [weights_digest(model)]
    parallel = wrapped(model, "fsdp2, resharded")
    digests.append(weights_digest(parallel))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        loss = compose_loss(parallel, batch, alpha_sdpo=1.0, self_teacher=teacher)
        losses.append(loss.sdpo_jsd.item())
        loss.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        teacher.update(parallel)
    taught = teacher.parts(parallel)[0].model
    too_late = ""
    try:
        make_self_teacher(kind, parallel, rate=0.3)
    except ValueError as error:
        too_late = str(error)
    return {"losses": losses, "weights": taught.state_dict(), "digests": digests, "too late": too_late}


def whole(tensor: Any) -> Tensor:
    """A sharded tensor gathered; others as they are."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def refused(_rank: int, model: nn.Module, batch: Mapping[str, Tensor]) -> str:
    """What is said of a model under FSDP1."""
    try:
        compose_loss(FullyShardedDataParallel(model, device_id=torch.device("cpu")), batch)
    except ModelError as error:
        return str(error)
    return ""


def in_trouble(rank: int) -> None:
    """One rank raises while the other waits for it."""
    if rank == 0:
        raise OSError("the first has a trouble")
    torch.distributed.barrier()


def tree_verdict(rank: int, model: nn.Module, how: str) -> str | None:
    """What is said of a model whose second layer reads no mask on the last rank."""
    if rank == RANKS - 1:
        unwrapped(model).model.layers[1].self_attn.register_forward_pre_hook(
            lambda _module, given, named: (given, named | {"attention_mask": None}), with_kwargs=True
        )
    return why_no_tree(wrapped(model.eval(), how))
