"""Continued pre-training before everything else."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from composer_replication.config.section import Positive, ReadBy, Section, Share, refuse

_IF_ENABLED = ReadBy("enabled", True)
_PERMISSIVE = (
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "PSF-2.0",
    "Unlicense",
    "Zlib",
)


class PretrainConfig(Section):
    """Continued pre-training on code: `composer pretrain RUN.toml`."""

    enabled: bool = False
    """Train on text before fine-tuning and RL: `composer pretrain` trains, and `composer sft`, or `composer train` where
    `sft.enabled` is false, starts from what it wrote instead of from `model.path`. Turn it on for a base model that knows little
    of your language, libraries or house style. It trains in this process, or in those that torchrun starts."""
    sources: Annotated[tuple[str, ...], _IF_ENABLED] = ()
    """Learn from these: folders, which are searched for files; `.jsonl` and `.jsonl.gz` files with one object a line, its text in
    `text` or `content`, its licence in `license` or `licenses`; and data sets of the Hugging Face hub, written `hf:NAME` or
    `hf:NAME:CONFIG`, of which the split `train` is streamed. Paths are relative to the run file's folder."""
    endings: Annotated[tuple[str, ...], Field(min_length=1), _IF_ENABLED] = (".py",)
    """Take files of folders whose names end like this."""
    licences: Annotated[tuple[str, ...], _IF_ENABLED] = _PERMISSIVE
    """Take documents under these licences alone, as SPDX identifiers; add `unknown` for those of which none is known, and leave
    the list empty to take all. A folder's licence is the one that its metadata or its licence file names, else that of the folder
    around it."""
    most_documents: Annotated[Positive, _IF_ENABLED] = 100_000
    """Read at most this many documents of each source. They are held in memory."""
    near_duplicates: Annotated[Share, _IF_ENABLED] = 0.7
    """Leave out a document whose runs of five words overlap with those of an earlier one by about this share (the Jaccard index,
    which MinHash estimates). 0 leaves out equal documents alone, and needs no further package."""
    fim_rate: Annotated[Share, _IF_ENABLED] = 0.5
    """Rearrange this share of the passages so that the model fills in their middle, half of them with the end first. Set 0 for a
    tokenizer that has no tokens for it."""
    passage_tokens: Annotated[int, Field(ge=16), _IF_ENABLED] = 2048
    """Cut documents into passages of at most this many tokens. No passage attends to another."""
    batch_tokens: Annotated[Positive, _IF_ENABLED] = 65_536
    """Learn from about this many tokens in a step."""
    steps: Annotated[Positive, _IF_ENABLED] = 100
    """Take this many optimizer steps. The run says how many passes over the text these are; more than four teach little more."""
    learning_rate: Annotated[float, Field(gt=0.0), _IF_ENABLED] = 1e-5
    """Use this learning rate after warm-up; it falls linearly to 0. The other settings are those of `[optimizer]`. Raise it for a
    model of less than a billion parameters."""
    held_out_share: Annotated[float, Field(ge=0.0, lt=1.0), _IF_ENABLED] = 0.02
    """Keep this share of the documents for measuring how well the model predicts text that it was not trained on, at least one
    document of two or more."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.enabled and not self.sources:
            refuse("sources is empty: there is no text to learn from", "name a folder, a .jsonl file or hf:NAME")
        return self
