"""Data sets are read by the real package: `hf:` takes whatever `datasets.load_dataset` takes, a folder of files included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer_replication.config import PretrainConfig
from composer_replication.trainer.corpus.choosing import choose_documents
from composer_replication.trainer.corpus.documents import read_source
from composer_replication.types.errors import ConfigError

CODE = "".join(f"def area_{n}(width, height):\n    return width * height + {n}\n" for n in range(20))


def test_a_data_set_is_streamed_in_its_order(tmp_path: Path) -> None:
    rows = [{"content": f"{CODE}x = {number}\n", "license": "MIT"} for number in range(5)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = list(read_source(f"hf:{tmp_path}", ()))
    assert [(one.text, one.licence) for one in found] == [(row["content"], "MIT") for row in rows]
    config = PretrainConfig(enabled=True, sources=(f"hf:{tmp_path}",), most_documents=3, near_duplicates=0.7)
    assert choose_documents(config, [])[1] == {"taken": 1, "much like another": 2}


def test_a_data_set_without_text_or_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"code": CODE}) + "\n")
    with pytest.raises(ConfigError, match="has no text in text or content; it has code"):
        list(read_source(f"hf:{tmp_path}", ()))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_source("hf:nobody/nothing-of-this-name", ()))
