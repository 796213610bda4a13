"""Compiled classes of a project among its files: its own are no part of a tree, others are."""

from __future__ import annotations

import io
import zipfile

import pytest

from composer_replication.languages.java.language import JAVA

SOURCES = {
    "src/main/java/shop/Till.java": b"package shop;\n\nclass Till {}\n",
    "src/test/java/shop/TillTest.java": b"package shop;\n\nclass TillTest {}\n",
    "pom.xml": b"<project/>",
}


def jar(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return stream.getvalue()


def with_link(name: str) -> bytes:
    """A jar whose directory says that the class is a link, which no JVM looks at."""
    stream, info = io.BytesIO(), zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(info, b"x")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("path", "content", "is_left_out"),
    [
        ("lib/self-1.0.jar", jar("META-INF/MANIFEST.MF", "shop/Till.class"), True),
        ("lib/link.jar", with_link("shop/Till.class"), True),
        ("lib/fat.jar", jar("BOOT-INF/classes/shop/Till.class"), True),
        ("old/release.zip", jar("x/shop/Till.class"), True),
        ("classes/shop/Till.class", b"", True),
        ("target/anything", b"", True),
        ("lib/broken.jar", b"PK\x03\x04", True),
        ("lib/other.jar", jar("shop/Other.class", "shop/Till.txt"), False),
        ("data/broken.zip", b"PK\x03\x04", False),
        ("src/test/resources/other/Till.class", b"", False),
        ("src/main/java/shop/Till.java", SOURCES["src/main/java/shop/Till.java"], False),
    ],
)
def test_copies_of_own_classes_are_left_out(path: str, content: bytes, is_left_out: bool) -> None:
    assert (path in JAVA.built_files({**SOURCES, path: content})) == is_left_out
