"""Candidates: what tests run, alone or with helpers and siblings, in an order that a seed fixes."""

from __future__ import annotations

from composer_replication.languages.functions import Function
from composer_replication.languages.python.functions import find_functions
from composer_replication.sandbox.grading.pytest_run import CoverageByTest
from composer_replication.tasks.describe import describe
from composer_replication.tasks.feature import Feature
from composer_replication.tasks.features.select import choose_candidates, covering_tests
from composer_replication.tasks.python_language import PYTHON
from composer_replication.tasks.report import BuildOptions

SOURCE = b"""\
def feature(x):
    y = helper(x)
    return y


def helper(x):
    return -x


def bystander(x):
    return x


class Basket:
    def total(self):
        return sum(self.items)

    def count(self):
        return len(self.items)


def uncovered(x):
    return 0
"""
FUNCTIONS, _ = find_functions("m.py", SOURCE)
BY_NAME = {function.qualname: function for function in FUNCTIONS}
PASSING = {"a", "b", "c", "d", "e"}


def ids(*names: str) -> frozenset[str]:
    return frozenset(names)


COVERAGE: CoverageByTest = {
    "m.py": {
        2: ids("a", "b", "failing"),
        3: ids("a"),
        7: ids("a"),
        11: ids("c"),
        16: ids("d", "e"),
        19: ids("d"),
    }
}


def feature(*names: str) -> Feature:
    return Feature(
        functions=[BY_NAME[name] for name in names],
        sources={"m.py": SOURCE},
        fail_to_pass=("test_m.py::test_a",),
        language=PYTHON,
    )


def names(functions: tuple[Function, ...]) -> list[str]:
    return [function.qualname for function in functions]


def test_covering_tests_are_the_passing_ones_that_run_the_body() -> None:
    assert covering_tests(BY_NAME["feature"], COVERAGE, PASSING) == {"a", "b"}
    assert covering_tests(BY_NAME["uncovered"], COVERAGE, PASSING) == frozenset()


def test_single_functions() -> None:
    candidates, skipped = choose_candidates(FUNCTIONS, COVERAGE, PASSING, options=BuildOptions(trivial=True))
    assert sorted(names(c.functions)[0] for c in candidates) == ["Basket.count", "Basket.total", "bystander", "feature", "helper"]
    assert all(len(c.functions) == 1 for c in candidates)
    assert [(s.what, s.reason) for s in skipped] == [("m.py::uncovered", "no passing test runs its body")]
    assert {names(c.functions)[0]: c.tests for c in candidates}["feature"] == {"a", "b"}


def test_groups_join_helpers_and_siblings_once() -> None:
    candidates, _ = choose_candidates(FUNCTIONS, COVERAGE, PASSING, options=BuildOptions(trivial=True, group_size=3))
    groups = sorted(sorted(names(c.functions)) for c in candidates if len(c.functions) > 1)
    assert groups == [["Basket.count", "Basket.total"], ["feature", "helper"]]
    assert len({c.key for c in candidates}) == len(candidates) == 7
    pair = next(c for c in candidates if c.functions[0].qualname == "feature" and len(c.functions) == 2)
    assert pair.tests == {"a", "b"}


def test_sizes_alternate_and_the_seed_fixes_the_order() -> None:
    first, _ = choose_candidates(FUNCTIONS, COVERAGE, PASSING, options=BuildOptions(trivial=True, group_size=2, seed=1))
    again, _ = choose_candidates(
        list(FUNCTIONS), COVERAGE, set(PASSING), options=BuildOptions(trivial=True, group_size=2, seed=1)
    )
    orders = {
        tuple(
            c.key
            for c in choose_candidates(FUNCTIONS, COVERAGE, PASSING, options=BuildOptions(trivial=True, group_size=2, seed=s))[0]
        )
        for s in range(8)
    }
    assert first == again
    assert len(orders) > 1
    assert [len(c.functions) for c in first] == [1, 2, 1, 2, 1, 1, 1]


def test_instructions_are_short_and_name_every_function() -> None:
    one = describe(feature("Basket.total"))
    assert one == "Implement `Basket.total` in m.py: its body was removed. Make its tests pass."
    two = describe(feature("helper", "feature"))
    assert two == "Implement `feature`, `helper` in m.py: their bodies were removed. Make their tests pass."


def test_a_range_of_sizes_gives_no_smaller_and_no_larger_groups() -> None:
    candidates, _ = choose_candidates(
        FUNCTIONS, COVERAGE, PASSING, options=BuildOptions(trivial=True, min_group_size=2, group_size=9)
    )
    assert sorted(sorted(names(c.functions)) for c in candidates) == [["Basket.count", "Basket.total"], ["feature", "helper"]]


def test_a_size_that_no_group_has_is_told() -> None:
    candidates, skipped = choose_candidates(
        FUNCTIONS, COVERAGE, PASSING, options=BuildOptions(trivial=True, min_group_size=50, group_size=50)
    )
    assert candidates == []
    told = {s.what for s in skipped if s.reason == "in no group of the size asked for (--size)"}
    assert told == {f.key for f in FUNCTIONS if f.qualname != "uncovered"}
    _, skipped = choose_candidates(
        FUNCTIONS, COVERAGE, PASSING, options=BuildOptions(trivial=True, min_group_size=2, group_size=2)
    )
    assert [s.what for s in skipped if "--size" in s.reason] == ["m.py::bystander"]


CHAIN = b"".join(b"def f%d(x):\n    return f%d(x)\n\n\n" % (n, n + 1) for n in range(8)) + b"def lone(x):\n    return x\n"
CHAINED, _ = find_functions("chain.py", CHAIN)
ALL = ids("a", "b")


def test_those_closest_in_the_call_graph_come_first() -> None:
    coverage: CoverageByTest = {"chain.py": dict.fromkeys(range(1, 50), ALL)}
    candidates, _ = choose_candidates(
        CHAINED, coverage, PASSING, options=BuildOptions(trivial=True, min_group_size=4, group_size=4)
    )
    groups = {names(c.functions)[0]: names(c.functions) for c in candidates}
    assert groups["f2"] == ["f2", "f3", "f4", "f5"]


def test_groups_with_nearly_the_same_functions_are_one() -> None:
    coverage: CoverageByTest = {"chain.py": dict.fromkeys(range(1, 50), ALL)}
    candidates, skipped = choose_candidates(
        CHAINED, coverage, PASSING, options=BuildOptions(trivial=True, min_group_size=5, group_size=9)
    )
    sets = [{f.key for f in c.functions} for c in candidates]
    assert all(len(a & b) < 0.8 * len(a | b) for n, a in enumerate(sets) for b in sets[:n])
    assert {entry.reason for entry in skipped} == {"nearly the functions of another group"}


def test_a_whole_feature_is_what_it_uses_and_only_its_tests_reach() -> None:
    """A function that no call leads to is another feature, however few tests reach it; methods of one class are one."""
    near = find_functions("m.py", SOURCE.replace(b"return -x", b"return -deep(x)"))[0]
    bodies = {"deep": "far(x)", "far": "x", "lone": "x"}
    text = "\n\n".join(f"def {name}(x):\n    return {body}\n" for name, body in bodies.items())
    other = find_functions("n.py", text.encode())[0]
    coverage: CoverageByTest = {**COVERAGE, "n.py": {2: ids("b"), 6: ids("b"), 10: ids("b")}}
    candidates, _ = choose_candidates([*near, *other], coverage, PASSING, options=BuildOptions(trivial=True, mode="feature"))
    features = {names(c.functions)[0]: {f.key for f in c.functions} for c in candidates}
    assert features["feature"] == {"m.py::feature", "m.py::helper", "n.py::deep"}
    assert features["Basket.total"] == {"m.py::Basket.total", "m.py::Basket.count"}
    assert "lone" not in features
    assert "bystander" not in features, "nothing belongs to it"


def test_what_is_easier_or_harder_than_asked_for_is_skipped() -> None:
    candidates, _ = choose_candidates(FUNCTIONS, COVERAGE, PASSING, options=BuildOptions(trivial=True))
    middle = sorted(c.difficulty for c in candidates)[2]
    kept, skipped = choose_candidates(FUNCTIONS, COVERAGE, PASSING, options=BuildOptions(trivial=True, min_difficulty=middle))
    assert {c.key for c in kept} == {c.key for c in candidates if c.difficulty >= middle}
    assert len([s for s in skipped if s.reason == "easier or harder than asked for"]) == len(candidates) - len(kept) > 0


DOCUMENTED = b'''\
class Basket:
    def total(self, tax: float = 0.1) -> float:
        """Sum the prices. In euros.

        More.
        """
        return 1.0
'''


def documented(**changes: object) -> Feature:
    (function,) = find_functions("shop/m.py", DOCUMENTED)[0]
    facts: dict[str, object] = {
        "functions": [function],
        "sources": {"shop/m.py": DOCUMENTED},
        "fail_to_pass": tuple(f"tests/test_m.py::test_{n}" for n in range(7)),
        "language": PYTHON,
        "docs": {"docs/a.md": "the total of it", "docs/b.md": "subtotal"},
    }
    return Feature(**facts | changes)  # type: ignore[arg-type]  # one changed field by name


def test_a_full_instruction_has_signature_docstring_tests_and_pages() -> None:
    text = describe(documented(), "full")
    assert text.startswith(describe(documented()))
    assert "    def total(self, tax: float=0.1) -> float" in text
    assert "    Sum the prices. In euros.\n\n    More." in text
    assert "Documentation: docs/a.md\n" in text
    assert "- tests/test_m.py::test_4\n- and 2 more" in text
    assert "return 1.0" not in text


def test_an_ambiguous_instruction_names_no_function() -> None:
    text = describe(documented(), "ambiguous")
    assert "total" not in text
    assert "tests in tests/test_m.py fail. It used to do this: Sum the prices. Find out what" in text


def test_a_removed_function_is_called_so() -> None:
    assert "it was removed, with every import of it" in describe(documented(removed=True))


def test_features_have_two_functions_or_more_unless_other_sizes_are_asked_for() -> None:
    def sizes(**options: object) -> tuple[int, int]:
        made = BuildOptions(trivial=True, **options)  # type: ignore[arg-type]
        return made.min_group_size, made.group_size

    assert sizes() == (1, 1)
    assert sizes(group_size=3) == (1, 3)
    assert sizes(mode="feature") == (2, 12)
    assert sizes(mode="feature", group_size=1) == (1, 1)
    assert sizes(mode="feature", min_group_size=5) == (5, 12)
    assert sizes(mode="feature", min_group_size=20) == (20, 20)


def whole_features(files: dict[str, str], tests: dict[str, frozenset[str]]) -> dict[str, set[str]]:
    """Return the whole features of files by their first function; tests by function."""
    functions = [one for path, text in files.items() for one in find_functions(path, text.encode())[0]]
    coverage: CoverageByTest = {path: {} for path in files}
    for one in functions:
        for line in range(one.first_line, one.last_line + 1):
            coverage[one.path] = {**coverage[one.path], line: tests.get(one.qualname, ids("a"))}
    candidates, _ = choose_candidates(functions, coverage, PASSING, options=BuildOptions(trivial=True, mode="feature"))
    return {names(c.functions)[0]: {f.qualname for f in c.functions} for c in candidates}


def test_a_feature_with_many_helpers_is_made_of_the_nearest_twelve() -> None:
    calls = "\n".join(f"    h{n}(x)" for n in range(20))
    helpers = "\n\n".join(f"def h{n}(x):\n    return x + {n}\n" for n in range(20))
    found = whole_features({"m.py": f"def feature(x):\n{calls}\n", "n.py": helpers}, {})
    assert len(found["feature"]) == 12


def test_a_call_of_a_class_reaches_its_constructor_in_another_file() -> None:
    shop = "class Basket:\n    def __init__(self, items):\n        self.items = list(items)\n"
    found = whole_features({"m.py": "def order(x):\n    return Basket(x)\n", "shop.py": shop}, {})
    assert found["order"] == {"order", "Basket.__init__"}


def test_a_name_that_many_functions_have_leads_to_those_of_the_same_file_or_nowhere() -> None:
    others = {f"k{n}.py": f"class K{n}:\n    def get(self):\n        return {n}\n" for n in range(5)}
    caller = "def order(x):\n    return x.get()\n"
    assert "order" not in whole_features({"m.py": caller, **others}, {})
    near = f"{caller}\n\ndef get(x):\n    return x\n"
    assert whole_features({"m.py": near, **others}, {})["order"] == {"order", "get"}


def test_a_helper_in_another_file_may_have_tests_of_its_own() -> None:
    files = {"m.py": "def order(x):\n    return price(x)\n", "n.py": "def price(x):\n    return x * 2\n"}
    both = whole_features(files, {"order": ids("a", "b"), "price": ids("a", "b", "c")})
    assert both["order"] == {"order", "price"}
    assert whole_features(files, {"order": ids("a"), "price": ids("a", "b", "c", "d")}) == {}, "most of them are of others"


def test_the_first_candidates_are_spread_evenly_over_easy_and_hard_ones() -> None:
    easy = "\n\n".join(f"def easy{n}(x):\n    a = x + {n}\n    return a\n" for n in range(30))
    body = "".join(f"    if x > {n}:\n        x = f{n}(x, {n}) or g{n}(x)\n" for n in range(12))
    hard = "\n\n".join(f"def hard{n}(x):\n{body}    return x\n" for n in range(3))
    functions = find_functions("m.py", f"{easy}\n\n{hard}".encode())[0]
    coverage: CoverageByTest = {"m.py": dict.fromkeys(range(1, 300), ids("a"))}
    candidates, _ = choose_candidates(functions, coverage, PASSING, options=BuildOptions(trivial=True))
    assert len(candidates) == 33
    assert sum(c.functions[0].qualname.startswith("hard") for c in candidates[:6]) == 3
