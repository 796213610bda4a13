"""Data sets in memory, with the columns, splits and configurations of those that TRL's GRPO tests load from the hub."""

from __future__ import annotations

from typing import Any

from datasets import Dataset, DatasetDict, Features, Image, List, Value

PROMPTS = (
    "Beautiful is better than",
    "Explicit is",
    "Simple is better",
    "Complex",
    "Flat is better than",
    "Sparse is better",
    "Readability",
    "Special cases aren't special",
    "Although practicality beats",
    "Errors should never",
    "Unless explicitly",
    "In the face of ambiguity, refuse",
    "There should be one obvious",
    "Now is better",
)
"""Beginnings of lines of the Zen of Python: one of TRL's tests compares the first twelve, word for word."""
TEST_ROWS = 2
TRAIN_ROWS = 3
"""Rows of a training split: a test trains on each of them nine times, on a vocabulary of 151,936 tokens."""
TRAIN_ROWS_OF = {"test_prepare_input_called_with_correct_data": 12}
"""Rows for the tests that count on more."""
_MESSAGES = List({"role": Value("string"), "content": Value("string")})


def load_local(name: str, config: str | None, split: str | None, *, streaming: bool, train_rows: int = TRAIN_ROWS) -> Any:
    """Return the local data set in place of `trl-internal-testing/NAME`, as `datasets.load_dataset` would."""
    rows = _ROWS[name](config or "standard_prompt_only")
    test = range(len(rows) - TEST_ROWS, len(rows))
    whole = DatasetDict({"train": rows.select(range(train_rows)), "test": rows.select(test)})
    found = whole if split is None else whole[split]
    if not streaming:
        return found
    return found.to_iterable_dataset() if split else {key: part.to_iterable_dataset() for key, part in found.items()}


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _zen(config: str) -> Dataset:
    if config == "standard_prompt_only":
        return Dataset.from_dict({"prompt": list(PROMPTS)})
    if config == "conversational_prompt_only":
        return Dataset.from_dict({"prompt": [_user(text) for text in PROMPTS]}, features=Features(prompt=_MESSAGES))
    raise ValueError(f"no local data set zen has the configuration {config}: add it to local_datasets.py")


def _picture(place: int) -> Any:
    import numpy as np

    height, width = 24 + 8 * (place % 3), 24 + 8 * (place % 2)
    return np.random.default_rng(place).integers(0, 256, (height, width, 3), dtype=np.uint8)


def _zen_image(config: str) -> Dataset:
    del config
    data = {"prompt": [_user(text) for text in PROMPTS], "image": [_picture(place) for place in range(len(PROMPTS))]}
    return Dataset.from_dict(data, features=Features(prompt=_MESSAGES, image=Image()))


def _zen_multi_image(config: str) -> Dataset:
    del config
    pictures = [[_picture(place + shift) for shift in range(1 + place % 2)] for place in range(len(PROMPTS))]
    data = {"prompt": [_user(text) for text in PROMPTS], "images": pictures}
    return Dataset.from_dict(data, features=Features(prompt=_MESSAGES, images=List(Image())))


_ROWS = {"zen": _zen, "zen-image": _zen_image, "zen-multi-image": _zen_multi_image}
