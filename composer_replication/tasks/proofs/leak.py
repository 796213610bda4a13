"""Leaks: the deleted code elsewhere in what the agent can see.

Texts are compared as sequences of words and operators, without comments and brackets, so a copy in another layout is found too.
A sibling that merely resembles the deleted code is not a leak. A body of fewer than `MIN_TOKENS` is not distinctive and is not
searched for.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from composer_replication.sandbox.archive_members import DAMAGED, archive_members
from composer_replication.sandbox.protocol import Command, Sandbox, Tree
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.sources.source import is_litter
from composer_replication.types.errors import SandboxError, SourceError

_SHINGLE = 6
MIN_TOKENS = 12
"""A body with fewer resembles others by chance."""
_SHARE = 0.85
"""A file that holds this share of a body's runs of `_SHINGLE` tokens holds the body."""
_MAX_BYTES = 8 << 20
_MOST_UNPACKED = 64 << 20
"""Bytes that one archive is unpacked to; the rest of it is not looked at."""
_TOKEN = re.compile(r"\w+|[-+*/%<>=!&|^~@]+")
_COMMENT = re.compile(r"(?<![\w.])#(?!!?\[)[^\n]*|(?<!:)//[^\n]*|(?<!\S)/\*[\s*!].*?\*/", re.DOTALL)
"""Of all languages, as a text does not say which one it is: not JavaScript's private names (`this.#x`), Rust's attributes,
addresses and patterns of paths. What stands behind a floor division goes with them, on both sides of a comparison."""
INSTALLED = """
import importlib.util, json, os, sys
root = os.getcwd()
sys.path[:] = [p for p in sys.path if p and not os.path.abspath(p).startswith(root)]
found = {}
for name in json.load(sys.stdin):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        continue
    if spec is not None:
        found[name] = spec.origin or ", ".join(spec.submodule_search_locations or [])
os.write(int(os.environ["COMPOSER_RESULT_FD"]), json.dumps(found).encode())
"""
"""Finds packages that the interpreter can import from elsewhere than the tree."""
VENDORED = """
import json, os, sys
names = json.load(sys.stdin)
found = {}
for top in sys.path:
    for folder, inner, _ in os.walk(top) if os.path.basename(top) in ("site-packages", "dist-packages") else ():
        inner[:] = [name for name in inner if name != "__pycache__"]
        if os.path.basename(folder) in ("_vendor", "vendor", "_vendored", "vendored", "_extern", "extern"):
            for name in names:
                place = os.path.join(folder, *name.split("."))
                if os.path.isfile(place + ".py") or os.path.isdir(place):
                    found.setdefault(name, place)
os.write(int(os.environ["COMPOSER_RESULT_FD"]), json.dumps(found).encode())
"""
"""Finds packages that an installed distribution vendors."""


class LeakScanner:
    """Looks for deleted bodies in the files of one tree, archives and notebooks included. The tree is read once."""

    def __init__(self, tree: Path) -> None:
        self._files = tree_files(tree)
        self._litter = next((path for path in self._files if is_litter(path)), None)
        self._holders: dict[int, list[int]] = {}
        for number, path in enumerate(self._files):
            for shingle in _shingles(_texts(path, (tree / path).read_bytes())):
                self._holders.setdefault(shingle, []).append(number)

    def find(self, bodies: Iterable[bytes], deleted: Mapping[str, bytes]) -> str | None:
        """Return why the tree with the `deleted` files in place of their originals gives a body away, or None.

        Args:
            bodies: the removed lines of each function.
            deleted: POSIX path -> content without the feature.
        """
        if self._litter is not None:
            return f"caches, bytecode or build outputs are in the tree: {self._litter}"
        edited = {path: _shingles(_texts(path, content)) for path, content in deleted.items()}
        for body in bodies:
            wanted = body_shingles(body.decode(errors="replace"))
            if not wanted:
                continue
            counts = Counter(self._files[number] for shingle in wanted for number in self._holders.get(shingle, ()))
            counts.update({path: len(wanted & present) - counts[path] for path, present in edited.items()})
            path, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
            if count >= _SHARE * len(wanted):
                return f"the deleted code is also in {path}"
        return None


def copies_of(program: str, sandbox: Sandbox, python: Path, tree: Path, imports: Sequence[str]) -> dict[str, str]:
    """Find copies of the project's packages outside of its tree, and where they are.

    Args:
        program: `INSTALLED` or `VENDORED`, which `python` runs.

    Raises:
        SandboxError: the sandbox broke or did not answer.
    """
    command = Command(argv=(str(python), "-I", "-B", "-c", program), python=python, stdin=json.dumps(imports).encode())
    result = sandbox.run(Tree(base=tree), command)
    try:
        answer = json.loads(result.channel)
        return {str(name): str(place) for name, place in answer.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        said = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(f"{python} did not answer from the sandbox ({result.ending}: {said})", fix="try --python") from error


def refuse_copies(sandbox: Sandbox, python: Path, tree: Path, imports: Sequence[str], *, installed: bool) -> None:
    """Refuse an interpreter that has the project at `tree` installed, or vendored in what is.

    Args:
        imports: the project's packages, as its tests import them.
        installed: the environment was made for the project, so that another one is no advice.

    Raises:
        SourceError: there is a copy.
        SandboxError: the sandbox broke or did not answer.
    """
    ways = {
        INSTALLED: (
            "a copy of {0} installed ({1})",
            "one of the project's dependencies, or pytest, needs the project itself: it cannot be built from",
        ),
        VENDORED: ("a vendored copy of {0} ({1})", "delete {1} if the tests do without it, and build again"),
    }
    for program, (what, cure) in ways.items():
        for copy in copies_of(program, sandbox, python, tree, imports).items():
            fix = cure.format(*copy) if installed else "use an environment without it: --install, or --python PATH"
            raise SourceError(f"{python} has {what.format(*copy)}, which would give the answers away", fix=fix)


def tokens_of(text: str) -> list[str]:
    """Return the words and operators of a piece of code, comments and brackets left out."""
    return _TOKEN.findall(_COMMENT.sub("", text))


def body_shingles(text: str) -> set[int]:
    """Return hashes, good in this process, of every run of tokens in a body; none when it is too short to be distinctive."""
    return _shingles([text]) if len(tokens_of(text)) >= MIN_TOKENS else set()


def is_distinctive(text: str) -> bool:
    """Return whether a piece of code is long enough that another text does not hold a run of it by chance."""
    return len(tokens_of(text)) >= _SHINGLE


def gives_away(text: str, bodies: Iterable[str], *, shown: str = "") -> bool:
    """Return whether `text` contains a run of a body's tokens that is not in `shown` (the whole body, where it is shorter)."""
    for body in bodies:
        tokens = tokens_of(body)
        length = min(_SHINGLE, len(tokens))
        given, known = (set(_runs(tokens_of(said), length)) for said in (text, shown))
        if tokens and not given.isdisjoint(set(_runs(tokens, length)) - known):
            return True
    return False


def _runs(tokens: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    return (tuple(tokens[n : n + length]) for n in range(len(tokens) - length + 1))


def _shingles(texts: Iterable[str]) -> set[int]:
    """Return hashes of every run of `_SHINGLE` tokens."""
    return {hash(run) for text in texts for run in _runs(tokens_of(text), _SHINGLE)}


def _texts(path: str, content: bytes) -> Iterator[str]:
    """Yield the texts in a file: its own, the cells of a notebook, the members of an archive."""
    try:
        if path.endswith(".ipynb"):
            cells = json.loads(content)["cells"]
            yield "\n".join("".join(cell["source"]) for cell in cells)
        else:
            room = _MOST_UNPACKED
            for member in archive_members(io.BytesIO(content), most=_MOST_UNPACKED):
                room -= member.size if member.size <= _MAX_BYTES else 0
                if member.size <= _MAX_BYTES and room >= 0:
                    yield member.read().decode(errors="replace")
    except (*DAMAGED, TypeError):  # most files are no archive
        yield content[:_MAX_BYTES].decode(errors="replace")
