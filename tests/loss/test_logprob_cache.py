"""What a policy was asked once it is not asked again; whatever changes the answer makes it another question."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer_replication.loss.forward import LogprobCache, sequence_logprobs, weights_digest
from composer_replication.types.errors import StorageError

IDS = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
WANTED = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0]])


class Asked:
    """A model that counts the rows it reads."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.rows = 0

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        self.rows += len(ids)
        with torch.no_grad():
            return sequence_logprobs(self.model, ids, mask, wanted)


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_row_is_scored_once(model, tmp_path: Path, where: str) -> None:
    path = tmp_path / "known.sqlite" if where == "file" else None
    asked, cache, name = Asked(model), LogprobCache(path), weights_digest(model)
    with torch.no_grad():
        expected = sequence_logprobs(model, IDS, MASK, WANTED)
    for _ in range(2):
        torch.testing.assert_close(cache.logprobs(asked, name, IDS, MASK, WANTED), expected)
    assert (asked.rows, cache.hits) == (2, 2)
    if path is not None:
        cache.close()
        cache = LogprobCache(path)
    wider = torch.nn.functional.pad(IDS, (0, 3)), torch.nn.functional.pad(MASK, (0, 3)), torch.nn.functional.pad(WANTED, (0, 3))
    found = cache.logprobs(asked, name, *wider)
    assert torch.equal(found[:, :4], cache.logprobs(asked, name, IDS, MASK, WANTED))
    assert asked.rows == 2
    mixed = cache.logprobs(asked, name, IDS[[1, 1]], MASK[[1, 1]], torch.tensor([[0, 1, 1, 0], [0, 0, 1, 0]]))
    assert asked.rows == 3
    torch.testing.assert_close(mixed[0], expected[1])
    assert mixed[1, 1] == 0


@pytest.mark.parametrize("other", ["policy", "temperature", "ids", "wanted"])
def test_another_question_is_asked(model, new_model, other: str) -> None:
    asked, cache = Asked(model), LogprobCache()
    cache.logprobs(asked, weights_digest(model), IDS, MASK, WANTED)
    policy = weights_digest(new_model(1) if other == "policy" else model)
    ids = IDS + 1 if other == "ids" else IDS
    wanted = MASK * (torch.arange(4) > 0) if other == "wanted" else WANTED
    cache.logprobs(asked, policy, ids, MASK, wanted, 0.5 if other == "temperature" else 1.0)
    assert asked.rows == (3 if other == "wanted" else 4)  # the second row wants the same as before
    assert weights_digest(model) == weights_digest(new_model(0))


def test_the_oldest_rows_go_first(model) -> None:
    asked, cache = Asked(model), LogprobCache(most=2)
    for token in (10, 11, 12):
        cache.logprobs(asked, "policy", torch.tensor([[5, token]]), torch.ones(1, 2), torch.tensor([[0, 1]]))
    for token in (12, 11):
        cache.logprobs(asked, "policy", torch.tensor([[5, token]]), torch.ones(1, 2), torch.tensor([[0, 1]]))
    assert asked.rows == 3
    cache.logprobs(asked, "policy", torch.tensor([[5, 10]]), torch.ones(1, 2), torch.tensor([[0, 1]]))
    assert asked.rows == 4


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "known.sqlite").write_text("not a database, and long enough to be looked at as one" * 100)
    with pytest.raises(StorageError, match=r"known\.sqlite: file is not a database"):
        LogprobCache(tmp_path / "known.sqlite")


def test_rows_that_want_nothing(model) -> None:
    asked, cache = Asked(model), LogprobCache()
    for _ in range(2):
        assert not cache.logprobs(asked, "policy", IDS, MASK, torch.zeros_like(MASK)).any()
    assert asked.rows == 2
