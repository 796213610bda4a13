"""Passages of tokens, some of which have their middle at the end, and the steps that they are learnt in."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.config import PretrainConfig
from composer_replication.envs.source import AnyTask
from composer_replication.rollouts.agent_loop import derive_seed
from composer_replication.trainer.corpus.choosing import choose_documents
from composer_replication.trainer.corpus.documents import Document
from composer_replication.types.errors import ConfigError

_FILL_IN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
)
"""Tokens in front of a passage's start, its end and its middle: of Qwen2.5-Coder and CodeGemma, StarCoder, SantaCoder, Code
Llama, and DeepSeek-Coder."""
_END = "<|endoftext|>"
"""The end of a document where a tokenizer has it: that of a chat model's turns is another."""
_LEAST_CHARACTERS = 8
"""Characters of a passage whose middle is worth filling in."""
_BROKEN = "\ufffd"
"""The character that stands for bytes which are no text: a passage may begin or end within a character."""
_MOST_HELD_OUT = 256
"""Documents that are held out at most: measuring them costs as much as learning from them."""


@dataclass(frozen=True, slots=True)
class FillIn:
    """The ids of the tokens that mark the parts of a rearranged passage."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, tokenizer: Any) -> FillIn:
        """Return those of a tokenizer. Raises ConfigError where it has none."""
        known = tokenizer.get_vocab()
        for names in _FILL_IN:
            if all(name in known for name in names):
                return cls(*(known[name] for name in names))
        raise ConfigError("pretrain.fim_rate is above 0, and the tokenizer has no tokens for it", fix="set pretrain.fim_rate = 0")

    def rearranged(self, start: Sequence[int], middle: Sequence[int], end: Sequence[int], *, end_first: bool) -> list[int]:
        """Return a passage with its middle last, and its start or its end first (PSM and SPM of arXiv:2207.14255)."""
        if end_first:
            return [self.prefix, self.suffix, *end, self.middle, *start, *middle]
        return [self.prefix, *start, self.suffix, *end, self.middle, *middle]


def passages_of(documents: Iterable[Document], tokenizer: Any, *, most: int, fim_rate: float, seed: int) -> Iterator[array[int]]:
    """Yield the passages of documents, each of at most `most` tokens, its first one read and not predicted; the last one of a
    document ends with the token that ends documents.

    The seed and the document alone decide which passages are rearranged, and where. A passage that would grow beyond `most`
    tokens, because its parts are written in more of them, stays as it is.

    Raises:
        ConfigError: `fim_rate` is above 0, and the tokenizer has no tokens for it.
    """
    fill_in = FillIn.of(tokenizer) if fim_rate > 0 else None
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    end = tokenizer.get_vocab().get(_END, tokenizer.eos_token_id)
    room = most - len(begin) - 1
    for document in documents:
        rng = random.Random(f"{seed} {_digest(document.text)}")
        ids = tokenizer(document.text, add_special_tokens=False)["input_ids"]
        cuts = range(0, len(ids), room)
        for at in cuts:
            part = ids[at : at + room]
            if fill_in is not None and rng.random() < fim_rate:
                part = _with_a_gap(part, tokenizer, fill_in, rng, room)
            ending = [end] if at == cuts[-1] and end is not None else []
            passage = [*begin, *part, *ending]
            if len(passage) > 1:
                yield array("q", passage)


def _with_a_gap(part: list[int], tokenizer: Any, fill_in: FillIn, rng: random.Random, room: int) -> list[int]:
    """Return a passage cut at two random characters and rearranged; itself where it is too short or would become too long."""
    text = tokenizer.decode(part, clean_up_tokenization_spaces=False)
    if len(text) < _LEAST_CHARACTERS or _BROKEN in text:
        return part
    first, second = sorted(rng.sample(range(1, len(text)), 2))
    cut = (text[:first], text[first:second], text[second:])
    start, middle, end = (tokenizer(one, add_special_tokens=False)["input_ids"] for one in cut)
    found = fill_in.rearranged(start, middle, end, end_first=rng.random() < 0.5)
    return found if len(found) <= room else part


def steps_of(lengths: Sequence[int], *, steps: int, tokens: int, seed: int) -> list[list[int]]:
    """Return for each step the places of the passages that it learns from, of about so many tokens together and at least one;
    every pass over all of them is another permutation."""
    found: list[list[int]] = [[]]
    room, passes = tokens, 0
    while True:
        order = list(range(len(lengths)))
        random.Random(derive_seed(seed, passes)).shuffle(order)
        passes += 1
        for place in order:
            if room <= 0:
                if len(found) == steps:
                    return found
                found.append([])
                room = tokens
            found[-1].append(place)
            room -= lengths[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The passages that a policy is trained on, those that it is measured on, and where they are from."""

    passages: Sequence[array[int]]
    held_out: Sequence[tuple[int, array[int]]]
    """Passages of documents that nothing is learnt from, each with its document's number."""
    steps: Sequence[Sequence[int]]
    """The places of the passages of each step."""
    counts: Mapping[str, int]
    """How many documents were taken, and how many were left out and why."""
    licences: Mapping[str, int]
    """How many of those taken are under each licence."""
    digest: str
    """A digest of all passages."""

    @classmethod
    def read(cls, config: PretrainConfig, tasks: Sequence[AnyTask], tokenizer: Any, seed: int) -> Corpus:
        """Read the sources that a run file names, and choose, hold out and cut their documents.

        Raises:
            ConfigError: as `choose_documents` and `passages_of`, or the passages are too short to learn from.
            MissingExtraError: as `choose_documents`.
        """
        documents, counts = choose_documents(config, tasks)
        ranked = sorted(documents, key=lambda one: _digest(one.text))
        share, apart = config.held_out_share, 0
        if share > 0 and len(ranked) > 1:
            apart = min(max(1, round(share * len(ranked))), _MOST_HELD_OUT)
        most, held = config.passage_tokens, ranked[:apart]
        kept = set(map(id, held))
        trained = [one for one in documents if id(one) not in kept]
        passages = list(passages_of(trained, tokenizer, most=most, fim_rate=config.fim_rate, seed=seed))
        if not passages:
            raise ConfigError("pretrain: every document is shorter than two tokens", fix="name other pretrain.sources")
        held_out = [
            (number, passage)
            for number, one in enumerate(held)
            for passage in passages_of([one], tokenizer, most=most, fim_rate=0.0, seed=seed)
        ]
        digest = hashlib.sha256()
        for passage in (*passages, *(passage for _, passage in held_out)):
            digest.update(len(passage).to_bytes(8, "little") + passage.tobytes())
        lengths = [len(passage) for passage in passages]
        steps = steps_of(lengths, steps=config.steps, tokens=config.batch_tokens, seed=seed)
        licences = Counter(one.licence for one in documents)
        return cls(
            passages=passages,
            held_out=held_out,
            steps=steps,
            counts=counts,
            licences=licences,
            digest=digest.hexdigest(),
        )

    def __str__(self) -> str:
        """Format what was read: documents, tokens, and passes over them."""
        tokens = sum(map(len, self.passages))
        learnt = sum(len(self.passages[place]) for step in self.steps for place in step)
        documents = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        apart = len({number for number, _ in self.held_out})
        licences = ", ".join(f"{licence} ({count})" for licence, count in sorted(self.licences.items(), key=lambda one: -one[1]))
        return (
            f"documents: {documents}; licences: {licences}; {apart} of those taken are held out; "
            f"{len(self.passages)} passages of {tokens} tokens; "
            f"{len(self.steps)} steps are {learnt / tokens:.1f} passes over them"
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
