"""Tokenizers for the tiny models: byte-level BPE trained in place, with the special tokens and ids that TRL's tests count on."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trl
from local_datasets import PROMPTS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
LEARNED = 2000
"""Tokens that training adds to the 256 bytes."""


@dataclass(frozen=True, slots=True)
class Family:
    """The special tokens of a family of models, and the chat template that TRL ships for it."""

    eos: str
    pad: str | None
    specials: tuple[str, ...]
    bos: str | None = None
    template: str | None = None
    words: tuple[str, ...] = ()
    """Tokens that decoding keeps, as it keeps words."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Special tokens that processors ask for by a name, like `image_token`."""


_QWEN_SPECIALS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
_QWEN_WORDS = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>"),
    *("<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
_COHERE_TURNS = ("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>")
_LLAMA_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>")
_GPT_OSS_MARKS = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|constrain|>")

FAMILIES = {
    "qwen2_5": Family("<|im_end|>", "<|endoftext|>", _QWEN_SPECIALS, template="qwen2_5", words=_QWEN_WORDS),
    "qwen3": Family("<|im_end|>", "<|endoftext|>", _QWEN_SPECIALS, template="qwen3", words=_QWEN_WORDS),
    "llama": Family("<|eot_id|>", None, _LLAMA_HEADERS, bos="<|begin_of_text|>", template="llama3_2"),
    "mistral": Family("</s>", None, ("<unk>",), bos="<s>"),
    "gemma": Family("<eos>", "<pad>", ("<unk>", "<start_of_turn>", "<end_of_turn>"), bos="<bos>", template="gemma"),
    "gemma3": Family(
        "<eos>",
        "<pad>",
        ("<unk>", "<start_of_turn>", "<end_of_turn>"),
        bos="<bos>",
        template="gemma3",
        named={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
    ),
    "llava": Family("</s>", "<pad>", ("<unk>",), bos="<s>", template="llava_next", named={"image_token": "<image>"}),
    "cohere": Family("<|END_OF_TURN_TOKEN|>", "<PAD>", _COHERE_TURNS, bos="<BOS_TOKEN>", template="cohere2"),
    "glm": Family(
        "<|endoftext|>",
        "<|endoftext|>",
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        template="glm4moe",
    ),
    "gpt_oss": Family("<|return|>", "<|endoftext|>", _GPT_OSS_MARKS, bos="<|startoftext|>", template="gptoss"),
    "nemotron": Family("<|im_end|>", None, ("<unk>", "</s>", "<|im_start|>"), bos="<s>", template="nemotron_3_nano"),
}

QWEN_VOCABULARY = 151_936
_QWEN_FIRST_SPECIAL = 151_643
QWEN_PIECES = {
    **{330: ' "', 4913: '{"', 606: "name", 788: '":', 497: '",', 16370: "arguments", 5212: ' {"', 11248: "}}\n", 95642: '"}}\n'},
    **{314: " {", 293: " b", 397: ">\n", 522: "</", 64648: "multiply", 22785: "_tool", 7692: "async", 93054: "_multiply"},
    **{35744: "increment", 9520: "step", 927: "sh", 411: "out", 1318: "text", 6023: "hi", 450: "de", 13477: "crement"},
    **{1513: " don", 944: "'t", 1414: " know", 894: " any", 5392: " tool", 17453: "Done", 2765: " won", 16252: " increment"},
    **{14172: "tool", 6659: "call"},
}
"""What the ids stand for that TRL's tests put into a policy's mouth: those of Qwen's vocabulary."""


def byte_alphabet() -> dict[int, str]:
    """Return the character that stands for each byte, in the order of GPT-2's vocabulary, which Qwen's begins with."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Train the tokenizer of a family on the prompts of the data sets."""
    spec = FAMILIES[family]
    core = _qwen_ids(_trained(())) if family.startswith("qwen") else _trained(_special_tokens(spec))
    core.add_special_tokens(list(_special_tokens(spec)))
    core.add_tokens([AddedToken(word, special=False, normalized=False) for word in spec.words])
    names = {"eos_token": spec.eos, "pad_token": spec.pad, "bos_token": spec.bos}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        extra_special_tokens=dict(spec.named),
        **{name: token for name, token in names.items() if token},
    )
    if spec.template:
        tokenizer.chat_template = (TEMPLATES / f"{spec.template}.jinja").read_text("utf-8")
    return tokenizer


def _special_tokens(spec: Family) -> tuple[str, ...]:
    named = (spec.pad, spec.bos, spec.eos)
    return tuple(dict.fromkeys([*spec.specials, *spec.named.values(), *(token for token in named if token)]))


def _dressed(core: Tokenizer) -> Tokenizer:
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return core


def _trained(specials: tuple[str, ...]) -> Tokenizer:
    templates = [path.read_text("utf-8") for path in sorted(TEMPLATES.glob("*.jinja"))]  # their prompts are then few tokens
    core = _dressed(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(specials) + LEARNED,
        special_tokens=list(specials),
        initial_alphabet=list(byte_alphabet().values()),
        show_progress=False,
    )
    core.train_from_iterator([*PROMPTS, *templates], trainer)
    return core


def _qwen_ids(core: Tokenizer) -> Tokenizer:
    """Give the tokens of `core` ids as in Qwen's vocabulary: bytes, then what was learned, `QWEN_PIECES`, special tokens.

    A random policy samples any id, and rewards read what it decodes to: the ids that are left over are words of four letters.
    """
    alphabet = byte_alphabet()
    ids = {character: place for place, character in enumerate(alphabet.values())}
    ids |= {"".join(alphabet[byte] for byte in piece.encode()): place for place, piece in QWEN_PIECES.items()}
    ids |= {token: _QWEN_FIRST_SPECIAL + place for place, token in enumerate((*_QWEN_SPECIALS, *_QWEN_WORDS))}
    learned = json.loads(core.to_str())["model"]
    taken = set(ids.values())
    free = (place for place in range(_QWEN_FIRST_SPECIAL) if place not in taken)
    words = ("".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    unused = (token for token in itertools.chain(learned["vocab"], words) if token not in ids)
    ids |= {token: place for place, token in zip(free, dict.fromkeys(unused), strict=False)}
    return _dressed(Tokenizer(models.BPE(vocab=ids, merges=[tuple(pair) for pair in learned["merges"]])))
