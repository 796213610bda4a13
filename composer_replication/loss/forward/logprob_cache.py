"""Log-probs of a policy that does not change, remembered: what was scored once is not scored again."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from composer_replication.types.errors import StorageError

Score: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(`input_ids`, `attention_mask`, `response_mask`), all [B, T] -> log-probs [B, T], 0 outside the mask."""


class LogprobCache:
    """Rows of log-probs by policy, temperature and token ids, in a SQLite file or in memory.

    Args:
        path: the file; several processes may share it. None keeps them in memory.
        most: rows that are kept; the oldest go first. None keeps all.

    Raises:
        StorageError: the file is no such cache, or cannot be written.
    """

    def __init__(self, path: Path | None = None, *, most: int | None = None) -> None:
        self.most = most
        self.hits = 0
        """Rows that were not scored again."""
        try:
            self._rows = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, check_same_thread=False)
            self._rows.execute("PRAGMA journal_mode = WAL")
            self._rows.execute("CREATE TABLE IF NOT EXISTS logprobs (key BLOB PRIMARY KEY, found BLOB NOT NULL)")
        except sqlite3.DatabaseError as error:
            raise StorageError(f"{path}: {error}", fix="delete the file: what it held is computed again") from error

    def logprobs(
        self,
        score: Score,
        policy: str,
        input_ids: Tensor,
        attention_mask: Tensor,
        response_mask: Tensor,
        temperature: float = 1.0,
    ) -> Tensor:
        """Return the log-probs [B, T], float32, and call `score` only for rows not in the cache. `policy` identifies the weights,
        as `weights_digest` does; padding is not part of a row."""
        wanted = response_mask != 0
        keys = [_key(policy, temperature, *row) for row in zip(input_ids, attention_mask, wanted, strict=True)]
        known = [self._known(key) for key in keys]
        result = torch.zeros(input_ids.shape, device=input_ids.device)
        unknown = [i for i, found in enumerate(known) if found is None]
        if unknown:
            fresh = score(input_ids[unknown], attention_mask[unknown], response_mask[unknown]).float()
            result[unknown] = fresh
            for i, row in zip(unknown, fresh, strict=True):
                self._keep(keys[i], row[wanted[i]])
        for i, found in enumerate(known):
            if found is not None:
                result[i, wanted[i]] = found.to(result.device)
        self.hits += len(keys) - len(unknown)
        return result

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.execute("DELETE FROM logprobs")

    def close(self) -> None:
        self._rows.close()

    def _known(self, key: bytes) -> Tensor | None:
        row = self._rows.execute("SELECT found FROM logprobs WHERE key = ?", (key,)).fetchone()
        return None if row is None else torch.frombuffer(bytearray(row[0]), dtype=torch.float32) if row[0] else torch.empty(0)

    def _keep(self, key: bytes, found: Tensor) -> None:
        self._rows.execute("INSERT OR REPLACE INTO logprobs VALUES (?, ?)", (key, found.cpu().numpy().tobytes()))
        if self.most is not None:
            self._rows.execute("DELETE FROM logprobs WHERE rowid <= (SELECT max(rowid) FROM logprobs) - ?", (self.most,))


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a model's parameters and buffers: names, shapes, types and values. Ranks that share sharded weights
    gather them, one at a time."""
    weights = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        whole = getattr(tensor, "full_tensor", tensor.detach)()
        weights.update(f"{name} {tuple(whole.shape)} {whole.dtype}".encode())
        weights.update(whole.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return weights.hexdigest()


def _key(policy: str, temperature: float, ids: Tensor, mask: Tensor, wanted: Tensor) -> bytes:
    seen = mask != 0
    parts = (ids[seen].to(torch.int64), wanted[seen].to(torch.uint8))
    data = b"".join(part.cpu().numpy().tobytes() for part in parts)
    return hashlib.sha256(f"{policy} {temperature!r} {int(seen.sum())} ".encode() + data).digest()
