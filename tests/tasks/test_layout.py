"""Where packages and tests are, guessed or named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from composer_replication.tasks.sources.layout import guess_layout
from composer_replication.types.errors import SourceError

WriteProject = Callable[[Mapping[str, str]], Path]


def files(*paths: str) -> dict[str, str]:
    return dict.fromkeys(paths, "")


def test_flat_layout_with_tests_inside_the_package(write_project: WriteProject) -> None:
    root = write_project(
        files(
            "shop/__init__.py", "shop/a.py", "shop/sub/__init__.py", "shop/sub/b.py", "shop/sub/b_test.py", "shop/tests/test_a.py"
        )
        | files("setup.py", "versioneer.py", "docs/conf.py", "examples/test_demo.py", "conftest.py")
    )
    layout = guess_layout(root)
    assert layout.packages == ("shop",)
    assert layout.imports == ("shop",)
    assert layout.tests == ("shop/sub/b_test.py", "shop/tests")
    assert layout.python_path == (".",)
    assert layout.sources == ("shop/__init__.py", "shop/a.py", "shop/sub/__init__.py", "shop/sub/b.py")
    assert layout.editable == ("shop/*.py", "shop/sub/__init__.py", "shop/sub/b.py")


def test_src_layout_with_a_namespace_and_a_module(write_project: WriteProject) -> None:
    root = write_project(
        files("src/ns/shop/__init__.py", "src/ns/shop/a.py", "src/six.py", "tests/unit/test_a.py", "tests/util.py")
    )
    layout = guess_layout(root)
    assert layout.packages == ("src/ns/shop", "src/six.py")
    assert layout.imports == ("ns.shop", "six")
    assert layout.tests == ("tests",)
    assert layout.python_path == ("src", ".")
    assert layout.editable == ("src/ns/shop/*.py", "src/*.py")


def test_a_single_module_next_to_its_test(write_project: WriteProject) -> None:
    layout = guess_layout(write_project(files("shop.py", "test_shop.py", "setup.py", "noxfile.py")))
    assert (layout.packages, layout.tests, layout.editable) == (("shop.py",), ("test_shop.py",), ("shop.py",))


def test_a_test_module_at_the_root(write_project: WriteProject) -> None:
    layout = guess_layout(write_project(files("shop/__init__.py", "shop/test.py", "test.py")))
    assert (layout.tests, layout.sources) == (("test.py",), ("shop/__init__.py", "shop/test.py"))


def test_patterns_escape_what_globs_read(write_project: WriteProject) -> None:
    layout = guess_layout(write_project(files("shop/__init__.py", "shop/[x]/a.py", "test_a.py")))
    assert layout.editable == ("shop/[[]x]/*.py", "shop/*.py")


def test_what_is_named_is_taken(write_project: WriteProject) -> None:
    root = write_project(
        files("code/shop/__init__.py", "code/shop/a.py", "other/__init__.py", "checks/check_a.py", "tests/test_b.py")
    )
    layout = guess_layout(root, packages=["code/shop/"], tests=["checks"])
    assert (layout.packages, layout.tests, layout.python_path) == (("code/shop",), ("checks",), ("code", "."))
    assert layout.imports == ("shop",)
    single = guess_layout(root, packages=["code/shop/a.py"], tests=["checks/check_a.py"])
    assert (single.sources, single.imports, single.editable) == (("code/shop/a.py",), ("shop.a",), ("code/shop/a.py",))


@pytest.mark.parametrize(
    ("paths", "options", "message", "fix"),
    [
        (["shop.py"], {}, "has no tests", "--tests"),
        (["test_a.py"], {}, "no Python package", "--package"),
        (["tests/test_a.py", "docs/conf.py", "README.md"], {}, "no Python package", "--package"),
        (["shop.py", "test_a.py"], {"packages": ["shap"]}, "has no shap", "relative"),
        (["shop.py", "test_a.py"], {"tests": ["../test_a.py"]}, "has no ../test_a.py", "relative"),
        (["shop.py", "tests/test_a.py"], {"packages": ["tests"]}, "no Python file but tests", "--package"),
    ],
)
def test_what_is_missing_is_named(
    write_project: WriteProject, paths: list[str], options: dict[str, list[str]], message: str, fix: str
) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        guess_layout(write_project(files(*paths)), **options)
    assert fix in (caught.value.fix or "")
