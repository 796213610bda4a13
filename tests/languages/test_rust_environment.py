"""A Rust environment: the machine's compiler is brought into it, and crates that cannot be had are errors or empty."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from composer_replication.languages.rust import environment, registry
from composer_replication.languages.rust.crates import crates_of
from composer_replication.languages.rust.environment import make_ready
from composer_replication.languages.rust.registry import fill_registry
from composer_replication.languages.rust.settings import REGISTRY, TOOLCHAIN, crates_for, registry_for
from composer_replication.types.errors import SourceError

HOST = "x86_64-unknown-linux-gnu"


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def sysroot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that says where it is, the only one on the machine."""
    root = tmp_path / "sysroot"
    told = f'#!/bin/sh\ncase "$1" in --print) echo {root};; -vV) echo "host: {HOST}";; esac\n'
    program(root / "bin/rustc", told)
    program(root / "bin/cargo")
    for name in (
        "lib/librustc_driver.so",
        f"lib/rustlib/{HOST}/lib/libstd.rlib",
        f"lib/rustlib/{HOST}/bin/rust-lld",
        "share/doc/x",
    ):
        program(root / name)
    program(tmp_path / "usr/cc")
    monkeypatch.setattr(environment, "_PLACES", (str(tmp_path / "usr"),))
    monkeypatch.setenv("PATH", f"{root / 'bin'}:/usr/bin:/bin")
    return root


def project(tmp_path: Path, manifest: str = "") -> tuple[Path, Path]:
    tree, prefix = tmp_path / "tree", tmp_path / "env"
    (tree / "src").mkdir(parents=True)
    (tree / "src/lib.rs").write_text("")
    (tree / "Cargo.toml").write_text(f'[package]\nname = "own"\nversion = "0.1.0"\n{manifest}')
    program(prefix / "bin/python")
    return tree, prefix


def test_a_compiler_outside_of_usr_is_brought_into_the_environment(sysroot: Path, tmp_path: Path) -> None:
    tree, prefix = project(tmp_path)
    assert make_ready(prefix / "bin/python", tree, fetch=True) == ()
    brought = {path.relative_to(prefix / TOOLCHAIN).as_posix() for path in (prefix / TOOLCHAIN).rglob("*") if path.is_file()}
    assert brought == {
        *("bin/rustc", "bin/cargo", "lib/librustc_driver.so"),
        *(f"lib/rustlib/{HOST}/lib/libstd.rlib", f"lib/rustlib/{HOST}/bin/rust-lld"),
    }
    assert (prefix / TOOLCHAIN / "bin/rustc").stat().st_ino == (sysroot / "bin/rustc").stat().st_ino
    assert make_ready(prefix / "bin/python", tree, fetch=False) == ()


@pytest.mark.usefixtures("sysroot")
def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, prefix = project(tmp_path)
    with pytest.raises(SourceError, match="no cargo") as error:
        make_ready(prefix / "bin/python", tree, fetch=False)
    assert "--install" in str(error.value.fix)
    (tmp_path / "usr/cc").unlink()
    with pytest.raises(SourceError, match="no linker") as error:
        make_ready(prefix / "bin/python", tree, fetch=True)
    assert "gcc" in str(error.value.fix)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    (prefix / TOOLCHAIN).rename(tmp_path / "gone")
    with pytest.raises(SourceError, match="no Rust compiler") as error:
        make_ready(prefix / "bin/python", tree, fetch=True)
    assert "apt-get install rustc cargo" in str(error.value.fix)


def crate(folder: Path, name: str, version: str, more: str = "") -> None:
    (folder / f"{name}-{version}").mkdir(parents=True)
    (folder / f"{name}-{version}/Cargo.toml").write_text(f'[package]\nname = "{name}"\nversion = "{version}"\n{more}')


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the crates of this machine, and a cargo that reaches no index."""
    folder = tmp_path / "crates"
    crate(folder, "there", "1.2.0", '[dependencies]\ninner = "0.3"\nodd = { version = "1", optional = true }\n')
    crate(folder, "inner", "0.3.1")
    crate(folder, "old", "0.1.0")
    failed = subprocess.CompletedProcess([], 1, "", "error: no way\nfailed to download from the index\n")
    monkeypatch.setattr(registry, "run_confined", lambda *_, **__: failed)
    monkeypatch.setattr(registry, "_folders", lambda: [folder])
    return folder


@pytest.mark.usefixtures("offline")
def test_crates_of_the_machine_are_taken_and_others_are_empty(tmp_path: Path) -> None:
    manifest = '[dependencies]\nthere = "1"\n[dev-dependencies]\nodd-tests = { version = "0.4.1", features = ["all"] }\n'
    tree, prefix = project(tmp_path, manifest)
    program(prefix / TOOLCHAIN / "bin/cargo")
    (note,) = fill_registry(prefix, tree)
    assert "odd, odd-tests" in note
    assert "failed to download from the index" in note
    place = prefix / REGISTRY / registry_for(str(tree))
    assert crates_for(str(tree), str(prefix)) == str(place)
    names = {path.name for path in place.iterdir() if path.is_dir()}
    assert names == {"there-1.2.0", "inner-0.3.1", "odd-1.0.0", "odd-tests-0.4.1"}
    assert '"all" = []' in (place / "odd-tests-0.4.1/Cargo.toml").read_text()
    assert fill_registry(prefix, tree) == (note,)
    (tree / "vendor").mkdir()
    assert crates_for(str(tree), str(prefix)) == str(tree / "vendor")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("manifest", ['[dependencies]\nodd = "1"\n', '[dependencies]\nold = "0.2"\n'])
def test_a_crate_that_the_code_needs_has_to_be_there(manifest: str, tmp_path: Path) -> None:
    tree, prefix = project(tmp_path, manifest)
    program(prefix / TOOLCHAIN / "bin/cargo")
    with pytest.raises(SourceError, match=r"the crate \w+ [\d.]+ cannot be had") as error:
        fill_registry(prefix, tree)
    assert "cargo vendor" in str(error.value.fix)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "manifest",
    [
        '[dev-dependencies]\n"PLACE/pwned" = "1"\n',
        '[dev-dependencies]\n"../../../../pwned" = "1"\n',
        '[dev-dependencies]\nx = { version = "1", package = "PLACE/pwned" }\n',
        '[dev-dependencies]\n"a\\u0000b" = "1"\n',
        '[dev-dependencies]\n"" = "1"\n',
        '[dev-dependencies]\nx = { version = "1", features = ["a\\" = []\\n[lib]"] }\n',
        '[dev-dependencies]\nx = { version = "1", package = 5 }\n',
    ],
)
def test_a_manifest_cannot_name_a_place_outside_of_the_environment(manifest: str, tmp_path: Path) -> None:
    tree, prefix = project(tmp_path, manifest.replace("PLACE", str(tmp_path)))
    program(prefix / TOOLCHAIN / "bin/cargo")
    with pytest.raises(SourceError, match="which is no name"):
        fill_registry(prefix, tree)
    assert not list(tmp_path.rglob("*pwned*"))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "manifest",
    [
        *("[workspace]\nmembers = 5\nexclude = 5\n", "bin = 5\n", "[[bin]]\nname = 5\npath = 5\n"),
        *("[dependencies]\nthere = { path = 5 }\n", '[dependencies]\nthere = { version = "1", features = 5 }\n'),
        *("[workspace.dependencies]\nthere = [1]\n[dependencies]\nthere = { workspace = true }\n", "[features]\ndefault = 5\n"),
        *("dependencies = 5\n", "[dependencies]\nthere = 5\n", "target = 5\n", "[target.x]\ndependencies = 5\n"),
    ],
)
def test_a_manifest_of_another_shape_ends_nothing(manifest: str, tmp_path: Path) -> None:
    tree, prefix = project(tmp_path)
    text = (tree / "Cargo.toml").read_text()
    (tree / "Cargo.toml").write_text(f"{text}{manifest}" if manifest.startswith("[") else f"{manifest}{text}")
    (tree / "folder" / "Cargo.toml").mkdir(parents=True)
    program(prefix / TOOLCHAIN / "bin/cargo")
    fill_registry(prefix, tree)
    paths = [path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()]
    assert crates_of(paths, lambda path: (tree / path).read_bytes())[0].kind == "lib"
