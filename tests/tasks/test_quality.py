"""What keeps weak, borrowed or measured code out of the tasks: mutants, licences, benchmarks, difficulty."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from composer_replication.languages.functions import body_of
from composer_replication.languages.python.functions import find_functions
from composer_replication.languages.python.mutate import mutants_of
from composer_replication.tasks import BuildOptions, build_tasks
from composer_replication.tasks.features.difficulty import difficulty_of
from composer_replication.tasks.sources.benchmarks import Benchmarks
from composer_replication.tasks.sources.licence import UNKNOWN, check_licence, licence_of
from composer_replication.tasks.sources.source import PristineTree
from composer_replication.types.errors import ConfigError, SourceError

WriteProject = Callable[[Mapping[str, str]], Path]

SOURCE = '''\
def price(basket, rate):
    """Sum it up; 1 + 1 stays."""
    total = 0
    for item in basket.items:
        if item.price > 0 and not item.free:
            total += item.price * item.count - 1
    note = f"{total + 1} é"
    return (total,
            note)


def other(x):
    return x + 1
'''.encode()


def test_mutants_differ_in_one_place_of_the_body_and_parse() -> None:
    functions = find_functions("m.py", SOURCE)[0][:1]
    mutants = mutants_of(SOURCE, functions, 100, "seed")
    assert len(set(mutants)) == len(mutants) >= 6
    for mutant in mutants:
        ast.parse(mutant)
        assert mutant != SOURCE
        assert b"return x + 1" in mutant
        assert b"1 + 1 stays" in mutant
        assert '{total + 1} é"'.encode() in mutant
    texts = [mutant.decode() for mutant in mutants]
    assert any("(item.price <= 0)" in text for text in texts)
    assert any("return (None)" in text for text in texts)
    assert any("total = (1)" in text for text in texts)
    assert any("(item.price > 0 or not item.free)" in text for text in texts)


def test_functions_take_turns_and_the_seed_fixes_the_choice() -> None:
    functions = find_functions("m.py", SOURCE)[0]
    first, second = mutants_of(SOURCE, functions, 2, "seed")
    assert b"return x + 1" in first
    assert b"return x + 1" not in second
    assert mutants_of(SOURCE, functions, 2, "seed") == [first, second]
    assert len({tuple(mutants_of(SOURCE, functions, 2, str(seed))) for seed in range(9)}) > 1


def test_a_body_that_offers_no_change_gives_no_mutant() -> None:
    source = b"def f(x):\n    print(x)\n"
    assert mutants_of(source, find_functions("m.py", source)[0], 3, "") == []


MIT = "Permission is hereby granted, free of charge, to any person obtaining a copy\n"
BSD = "Redistribution and use in source and binary forms, with or without\nNeither the name of\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"pyproject.toml": '[project]\nlicense = "Apache-2.0 OR mit"\n'}, "Apache-2.0 OR MIT"),
        ({"pyproject.toml": '[project]\nlicense = { text = "MIT" }\n'}, "MIT"),
        ({"PKG-INFO": "Name: a\nLicense-Expression: BSD-2-Clause\n"}, "BSD-2-Clause"),
        ({"PKG-INFO": "Name: a\nLicense: BSD\n", "LICENSE.txt": BSD}, "BSD-3-Clause"),
        ({"LICENSE": MIT}, "MIT"),
        ({"COPYING": "GNU GENERAL PUBLIC LICENSE\n   Version 3, 29 June 2007"}, "GPL-3.0-only"),
        ({"PKG-INFO": "Name: a\nClassifier: License :: OSI Approved :: ISC License (ISCL)\n"}, "ISC"),
        ({"Cargo.toml": '[package]\nlicense = "MIT/Apache-2.0"\n'}, "MIT OR Apache-2.0"),
        ({"package.json": '{"license": "BSD-3-Clause"}'}, "BSD-3-Clause"),
        ({"package.json": '{"license": {"type": "ISC", "url": "x"}}'}, "ISC"),
        ({"package.json": "[1", "Cargo.toml": "a =", "license.md": MIT}, "MIT"),
        ({"pom.xml": "<licenses>\n<license>\n  <name>Apache License, Version 2.0</name>"}, "Apache-2.0"),
        ({"pom.xml": "<license><name>The Apache Software License, Version 2.0</name>"}, "Apache-2.0"),
        ({"PKG-INFO": "Name: a\nLicense: proprietary\n"}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
def test_the_declared_licence(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert licence_of(tmp_path) == expected


def test_a_licence_that_is_not_allowed_is_refused() -> None:
    check_licence("MIT", (), "p")
    check_licence("MIT", ("MIT", "ISC"), "p")
    check_licence("MIT", ("mit",), "p")
    check_licence("Apache-2.0 OR MIT", ("apache-2.0 or mit",), "p")
    check_licence(UNKNOWN, ("Unknown",), "p")
    with pytest.raises(SourceError, match="licence of p is unknown, which is not among MIT, ISC") as caught:
        check_licence(UNKNOWN, ("MIT", "ISC"), "p")
    assert "--licence" in (caught.value.fix or "")


def source(name: str, label: str) -> PristineTree:
    return PristineTree(name=name, label=label, digest="0", tree=Path("t"))


def test_repositories_of_benchmarks_are_refused(tmp_path: Path) -> None:
    rows, names = tmp_path / "rows.jsonl", tmp_path / "names.txt"
    rows.write_text(json.dumps({"repo": "Django/django", "instance_id": "django-1"}) + "\n")
    names.write_text("# held out\npallets/flask  # web\n\nrequests\n")
    known = Benchmarks([rows, names])
    for wrong in (
        source("x", "https://example.org/someone/django.git@0123"),
        source("Flask", "pypi:Flask==3.0"),
        source("requests", "folder:requests"),
    ):
        with pytest.raises(SourceError, match="is a repository of a benchmark"):
            known.check(wrong)
    known.check(source("django-rest", "pypi:django-rest==1"))
    Benchmarks([]).check(source("django", "folder:django"))


def test_what_a_benchmarks_patch_holds_is_found(tmp_path: Path) -> None:
    price = find_functions("m.py", SOURCE)[0][0]
    body = body_of(SOURCE, price)
    patch = "--- a/shop.py\n+++ b/shop.py\n@@ -1 +1 @@\n" + "".join(f"+  {line}\n" for line in body.decode().splitlines())
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"repo": "a/b", "instance_id": "b-7", "patch": patch}) + "\n")
    known = Benchmarks([file])
    assert known.instance_with([b"return 1\n", body]) == "b-7"
    assert known.instance_with([b"for other in things:\n    print(other.a + other.b - other.c * other.d / other.e)\n"]) is None


def test_solutions_of_other_benchmarks_are_found(tmp_path: Path) -> None:
    body = body_of(SOURCE, find_functions("m.py", SOURCE)[0][0]).decode()
    for column in ("canonical_solution", "code", "solution"):
        file = tmp_path / f"{column}.jsonl"
        file.write_text(json.dumps({"task_id": "HumanEval/3", column: body}) + "\n")
        assert Benchmarks([file]).instance_with([body.encode()]) == "HumanEval/3"


def test_a_benchmarks_question_is_found_in_other_print_and_not_by_chance(tmp_path: Path) -> None:
    question = "Return how many items of the basket are cheaper than the limit, counting each item of one kind only once."
    for column in ("problem_statement", "prompt", "text", "instruction"):
        file = tmp_path / f"{column}.jsonl"
        file.write_text(json.dumps({"task_id": "Mbpp/7", column: f"Hello. {question} Thanks."}) + "\n")
        known = Benchmarks([file])
        words = question.split()
        assert known.instance_asking("before\n    " + "\n    ".join(words[2:16]).upper()) == "Mbpp/7"
        assert known.instance_asking(" ".join(words[:12])) is None
        assert known.instance_asking(" ".join([*words[:9], "not", *words[9:18]])) is None


def test_a_function_that_a_benchmark_asks_for_is_no_task(write_project: WriteProject, tmp_path: Path) -> None:
    said = "Count the items whose price lies under the limit, and of equal items take only the first one."
    project = write_project(
        {
            "shop.py": f"""
                def cheap(items, limit):
                    '''{said}'''
                    return len([i for i in set(items) if i < limit])

                def dear(items, limit):
                    '''The others.'''
                    return len([i for i in set(items) if i >= limit])
                """,
            "test_shop.py": """
                from shop import cheap, dear

                def test_both():
                    assert (cheap([1, 1, 5], 3), dear([1, 1, 5], 3)) == (1, 1)
                """,
        }
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"instance_id": "till-1", "problem_statement": said}) + "\n")
    report = build_tasks(str(project), tmp_path / "tasks", BuildOptions(trivial=True, forgeable=True, benchmarks=(rows,)))
    assert [(entry.what, entry.reason) for entry in report.dropped] == [
        ("shop.py::cheap", "a benchmark asks for it (--benchmark)")
    ]
    assert len(report.tasks) == 1


@pytest.mark.parametrize("text", ["{", "3\n"])
def test_a_list_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"rows\.jsonl"):
        Benchmarks([tmp_path / "rows.jsonl"])
    with pytest.raises(ConfigError, match="absent"):
        Benchmarks([tmp_path / "absent"])


def test_difficulty_grows_with_size_branches_files_and_fewer_tests() -> None:
    price, other = find_functions("m.py", SOURCE)[0]
    elsewhere = find_functions("n.py", SOURCE)[0][1]
    assert 0 < difficulty_of([other], 4) < difficulty_of([price], 4) < difficulty_of([price, other], 4) < 1
    assert difficulty_of([price, elsewhere], 4) > difficulty_of([price, other], 4)
    assert difficulty_of([price], 1) > difficulty_of([price], 100)
