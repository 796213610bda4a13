"""Documents are read, chosen and cut into passages: licensed, each once, none that gives a task away."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from world import World

from composer_replication.config import PretrainConfig
from composer_replication.quickstart.policy import tiny_tokenizer
from composer_replication.tasks import load_tasks
from composer_replication.trainer.corpus import choosing, documents
from composer_replication.trainer.corpus.choosing import EqualTexts, SimilarTexts, TaskCode, choose_documents
from composer_replication.trainer.corpus.documents import Document, read_source
from composer_replication.trainer.corpus.passages import Corpus, FillIn, passages_of, steps_of
from composer_replication.types.errors import ConfigError, MissingExtraError

MIT = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software"
CODE = "def area(width, height):\n    return width * height\n"


BODY = """    runs = []
    for character in text:
        if runs and runs[-1][0] == character:
            runs[-1][1] += 1
        else:
            runs.append([character, 1])
    return [(character, count) for character, count in runs]
"""


class Deleting:
    """A task that deletes this body."""

    def deleted_code(self) -> tuple[str, ...]:
        return (BODY,)


def config(*sources: Path, **fields: Any) -> PretrainConfig:
    settings = {
        "enabled": True,
        "sources": tuple(map(str, sources)),
        "near_duplicates": 0.0,
        "fim_rate": 0.0,
        "licences": (),
        **fields,
    }
    return PretrainConfig(**settings)


def written(text: str, number: int) -> str:
    """Return a text of its own: with other names and words."""
    rng = random.Random(number)
    words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(40)]
    return text + "".join(f"{word} = {rng.randrange(1000)}\n" for word in words)


class TestDocuments:
    def test_a_folder_is_read_in_order_without_what_others_wrote(self, tmp_path: Path) -> None:
        for name in ("b.py", "a.py", "deep/c.py", "deep/d.txt", ".git/e.py", "node_modules/f.py", "deep/__pycache__/g.py"):
            path = tmp_path / "shop" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        (tmp_path / "shop" / "h.py").symlink_to("a.py")
        os.mkfifo(tmp_path / "shop" / "k.py")
        (tmp_path / "shop" / "i.py").write_bytes(b"\xff\xfe")
        (tmp_path / "shop" / "j.py").write_text("x" * (1 << 20) + "x")
        found = list(read_source(str(tmp_path / "shop"), (".py",)))
        assert [(one.text, one.place) for one in found] == [(f"{n}", f"shop/{n}") for n in ("a.py", "b.py", "deep/c.py")]

    def test_a_folder_has_the_licence_around_it_unless_it_has_its_own(self, tmp_path: Path) -> None:
        for folder in ("one", "one/inner", "two"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "m.py").write_text(folder)
        (tmp_path / "one" / "LICENSE").write_text(MIT)
        (tmp_path / "one" / "inner" / "LICENSE").write_text("GNU GENERAL PUBLIC LICENSE\n Version 3")
        found = {one.text: one.licence for one in read_source(str(tmp_path), (".py",))}
        assert found == {"one": "MIT", "one/inner": "GPL-3.0-only", "two": "unknown"}

    @pytest.mark.parametrize("packed", [False, True])
    def test_lines_of_json_are_read(self, tmp_path: Path, packed: bool) -> None:
        rows = [{"text": "a", "license": "MIT"}, {"content": "b", "licenses": ["MIT", "ISC"], "path": "x/y.py"}, {"text": "c"}]
        text = "\n".join(json.dumps(row) for row in rows) + "\n\n"
        path = tmp_path / ("d.jsonl.gz" if packed else "d.jsonl")
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        found = list(read_source(str(path), ()))
        assert [(one.text, one.licence) for one in found] == [("a", "MIT"), ("b", "MIT AND ISC"), ("c", "unknown")]
        assert found[1].place == f"{path.name}:2 x/y.py"

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("d.jsonl", b'{"text": "a"}\nnone\n', "line 2 is no JSON"),
            ("d.jsonl", b"[1]\n", "line 1 is no object"),
            ("d.jsonl", b'{"code": "a"}\n', "has no text in text or content; it has code"),
            ("d.jsonl", b'{"text": "\xff"}\n', "cannot be read"),
            ("d.jsonl.gz", gzip.compress(b'{"text": "a"}\n', mtime=0)[:-6], "cannot be read"),
            ("d.jsonl.gz", b"no gzip", "cannot be read"),
            ("d.txt", b"", "is neither a folder nor a .jsonl file"),
            ("", b"", "does not exist"),
        ],
    )
    def test_what_cannot_be_read_is_named(self, tmp_path: Path, name: str, content: bytes, said: str) -> None:
        if name:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            list(read_source(str(tmp_path / (name or "gone")), ()))

    def test_the_hub_needs_its_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(documents, "find_spec", lambda _: None)
        with pytest.raises(MissingExtraError, match="hf:owner/name is read by datasets"):
            list(read_source("hf:owner/name", ()))


class TestChoosing:
    def test_each_reason_to_leave_a_document_out_is_counted(self, tmp_path: Path) -> None:
        texts = {
            **{
                "a.py": CODE,
                "b.py": CODE.replace("    ", "\t"),
                "c.py": "",
                "d.py": f"x = '{'y' * 1000}'\n",
                "e.py": "[] == ()\n" * 9,
            },
            **{
                "f.py": "# Generated by protoc. DO NOT EDIT\nx = 1\n",
                "g.py": "y = 'long enough for a line' * 3 + 'z' * 4  # so\n",
            },
        }
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        found, counts = choose_documents(config(tmp_path), [])
        assert [one.place.rpartition("/")[2] for one in found] == ["a.py", "g.py"]
        reasons = {
            "taken": 2,
            "the same as another": 1,
            "empty": 1,
            "of long lines": 1,
            "of few words": 1,
            "made by a program": 1,
        }
        assert counts == reasons

    def test_licences_that_are_not_named_are_left_out(self, tmp_path: Path) -> None:
        rows = [
            ("MIT", 1),
            ("mit", 2),
            ("GPL-3.0-only", 3),
            ("MIT AND GPL-3.0-only", 4),
            ("MIT AND ISC", 5),
            (None, 6),
            ("MIT OR GPL-3.0-only", 7),
        ]
        lines = [json.dumps({"text": written(CODE, number), "license": licence}) for licence, number in rows]
        (tmp_path / "d.jsonl").write_text("\n".join(lines))
        _, counts = choose_documents(config(tmp_path / "d.jsonl", licences=("MIT", "ISC")), [])
        assert counts["taken"] == 4
        assert counts["under the licence unknown"] == counts["under the licence GPL-3.0-only"] == 1
        assert choose_documents(config(tmp_path / "d.jsonl", licences=("MIT", "unknown")), [])[1]["taken"] == 4

    def test_nothing_left_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_text("")
        with pytest.raises(ConfigError, match=r"no text to learn from \(1 empty\)"):
            choose_documents(config(tmp_path), [])
        with pytest.raises(ConfigError, match="the sources are empty"):
            choose_documents(config(tmp_path, endings=(".rs",)), [])

    def test_a_source_is_read_up_to_its_limit(self, tmp_path: Path) -> None:
        (tmp_path / "d.jsonl").write_text("\n".join(json.dumps({"text": written(CODE, n)}) for n in range(9)))
        assert choose_documents(config(tmp_path / "d.jsonl", most_documents=4), [])[1] == {"taken": 4}

    def test_what_a_task_deletes_is_left_out_in_any_layout(self, world: World) -> None:
        (task, *_) = load_tasks(world.tasks)
        code = TaskCode([task])
        assert not code.given_away_by(CODE)
        code = TaskCode([Deleting()])  # the tasks of the world are too short to be told
        for text in (BODY, f"# my own\n{BODY}\nx = 1\n", "\n".join(f"  {line}  # so" for line in BODY.splitlines())):
            assert code.given_away_by(text)
        assert not code.given_away_by(CODE)
        assert not code.given_away_by("\n".join(BODY.splitlines()[:4]))

    def test_near_copies_are_left_out(self) -> None:
        seen = SimilarTexts(0.7)
        long = written(CODE, 1)
        assert seen.seen(long) == ""
        assert seen.seen(long) == "the same as another"
        assert seen.seen(long.replace("width", "breadth", 1)) == "much like another"
        assert [seen.seen(written("", number)) for number in range(2, 12)] == [""] * 10
        assert EqualTexts().seen(long) == ""

    def test_near_copies_need_a_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(choosing, "find_spec", lambda _: None)
        with pytest.raises(MissingExtraError, match="near_duplicates"):
            SimilarTexts(0.7)


def tokenizer_with(*names: str) -> Any:
    made = tiny_tokenizer()
    made.add_tokens(list(names), special_tokens=True)
    return made


FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


class TestPassages:
    @pytest.mark.parametrize("most", [16, 33, 4096])
    def test_passages_are_the_document(self, most: int) -> None:
        tokenizer, text = tiny_tokenizer(), written(CODE, 3)
        found = list(passages_of([Document(text, "a")], tokenizer, most=most, fim_rate=0.0, seed=1))
        assert max(map(len, found)) <= most
        begin = tokenizer.bos_token_id
        ids = [token for passage in found for token in passage[(begin is not None) :]]
        assert tokenizer.decode(ids[:-1]) == text
        assert ids[-1] == tokenizer.get_vocab().get("<|endoftext|>", tokenizer.eos_token_id)

    def test_the_middle_comes_last(self) -> None:
        tokenizer = tokenizer_with(*FIM)
        marks = FillIn.of(tokenizer)
        text = written(CODE, 4)
        kinds: Counter[str] = Counter()
        for seed in range(200):
            (passage,) = passages_of([Document(text, "a")], tokenizer, most=8192, fim_rate=0.8, seed=seed)
            ids = list(passage)[(tokenizer.bos_token_id is not None) : -1]
            if marks.middle not in ids:
                kinds["as it was"] += 1
                assert tokenizer.decode(ids) == text
                continue
            assert ids[0] == marks.prefix
            at, last = ids.index(marks.suffix), ids.index(marks.middle)
            one, two, three = (tokenizer.decode(part) for part in (ids[1:at], ids[at + 1 : last], ids[last + 1 :]))
            end_first = at == 1
            kinds["end first" if end_first else "start first"] += 1
            assert (three + two if end_first else one + three + two) == text
        assert 0.12 < kinds["as it was"] / 200 < 0.28
        assert min(kinds["end first"], kinds["start first"]) > 60

    def test_no_tokens_for_it_is_said(self) -> None:
        with pytest.raises(ConfigError, match=r"set pretrain\.fim_rate = 0"):
            list(passages_of([Document(CODE, "a")], tiny_tokenizer(), most=64, fim_rate=0.5, seed=1))

    def test_a_passage_never_grows(self) -> None:
        tokenizer = tokenizer_with(*FIM)
        found = list(passages_of([Document(written(CODE, 5), "a")], tokenizer, most=24, fim_rate=1.0, seed=2))
        assert max(map(len, found)) <= 24

    @pytest.mark.parametrize("tokens", [1, 40, 10_000])
    def test_every_pass_takes_every_passage_once(self, tokens: int) -> None:
        lengths = [3, 14, 15, 9, 2, 6]
        found = steps_of(lengths, steps=30, tokens=tokens, seed=3)
        flat = [place for step in found for place in step]
        assert len(found) == 30
        assert all(sum(lengths[place] for place in step) >= min(tokens, 1) for step in found)
        assert all(sum(lengths[place] for place in step[:-1]) < tokens for step in found)
        passes = [flat[at : at + 6] for at in range(0, len(flat) - 5, 6)]
        assert all(sorted(one) == [0, 1, 2, 3, 4, 5] for one in passes)
        assert len({tuple(one) for one in passes}) > 1 or len(passes) < 3
        assert found == steps_of(lengths, steps=30, tokens=tokens, seed=3)

    def test_held_out_documents_are_not_learnt_from(self, tmp_path: Path) -> None:
        (tmp_path / "d.jsonl").write_text("\n".join(json.dumps({"text": written("", n)}) for n in range(20)))
        made = config(tmp_path / "d.jsonl", held_out_share=0.2, passage_tokens=64, batch_tokens=500, steps=4)
        tokenizer = tiny_tokenizer()
        corpus = Corpus.read(made, [], tokenizer, 1)
        assert {number for number, _ in corpus.held_out} == {0, 1, 2, 3}
        assert "20 taken; licences: unknown (20); 4 of those taken are held out" in str(corpus)
        learnt = {tuple(passage) for passage in corpus.passages}
        assert not learnt & {tuple(passage) for _, passage in corpus.held_out}
        assert Corpus.read(made, [], tokenizer, 1).digest == corpus.digest
        assert Corpus.read(made.model_copy(update={"held_out_share": 0.1}), [], tokenizer, 1).digest != corpus.digest
