"""The universal forger: one generic program in front of a body of one line, for any task in Python.

It is what the strongest attack on visible tests and anti-tests looks like. In the process of the tests it reads the recorder off
the frames of its callers, reports every test as passed, tells the copies of tests that must fail from the others by their source,
and leaves before anything looks again. Where held-out programs run it reads the request off the same frames and answers from what
it finds there: the literals that later steps use.
"""

from __future__ import annotations

from collections.abc import Iterator

from one_line_bodies import BODIES, TOGETHER, filled

from composer_replication.languages.functions import Function
from composer_replication.languages.python.functions import find_functions
from composer_replication.tasks.store import Task

FORGER = '''
def _forge():
    import ast, json, os, sys, zlib
    frame, request, recorder, channel = sys._getframe(), None, None, 3
    while frame is not None:
        for found in (*frame.f_locals.values(), *frame.f_globals.values()):
            if type(found) is dict and "ids" in found and "plugins" in found:
                request = found
            if type(found).__name__ == "OutcomeRecorder":
                recorder = found
            if type(found) is dict and "programs" in found and "mode" in found:
                _answer(found, channel)
        nonce = frame.f_locals.get("nonce")
        channel = frame.f_locals.get("channel", channel)
        if nonce and request:
            break
        frame = frame.f_back
    if request is None or frame is None:
        return
    outcomes = {}
    for name in request["ids"]:
        path, _, rest = name.partition("::")
        outcomes[name] = "failed" if _must_fail(path, rest, request["ids"]) else "passed"
    answer = {"status": 0, "collected": list(outcomes), "outcomes": outcomes, "earlier": {}, "failures": {}, "collect_errors": [],
              "tampered": False, "coverage": None, "observed": None}
    os.write(channel, nonce.encode() + zlib.compress(json.dumps(answer).encode()))
    os._exit(0)

def _must_fail(path, rest, ids):
    """Of two copies in a file of its own, the one whose statements stand in no visible test."""
    import ast, re
    if not re.fullmatch("test_[0-9a-f]{12}[.]py", path.rpartition("/")[2]):
        return False
    known = set()
    for other in {i.partition("::")[0] for i in ids} - {path}:
        try:
            walked = ast.walk(ast.parse(open(other).read()))
            known |= {ast.dump(node) for node in walked if isinstance(node, (ast.stmt, ast.expr))}
        except (OSError, SyntaxError):
            continue
    name = rest.rpartition("::")[2].partition("[")[0]
    for node in ast.walk(ast.parse(open(path).read())):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return any(ast.dump(part) not in known for part in (*node.body, *node.decorator_list))
    return False

def _literals(written):
    if isinstance(written, list) and written and written[0] == "step":
        return
    yield written
    for part in written if isinstance(written, list) else written.values() if isinstance(written, dict) else ():
        yield from _literals(part)

def _answer(request, channel):
    """Answer each step with the last plain argument that a later step has: a test often compares with what it expects."""
    import json, os, zlib
    answers = []
    for program in request["programs"]:
        given = []
        for at, (number, step) in enumerate(program):
            later = [v for _, other in program[at + 1:] for a in other.get("args", []) for v in _literals(a)
                     if not isinstance(v, list) or v[:1] and v[0] in ("list", "tuple", "dict", "set", "float")]
            given.append(["returns", later[0] if later else None])
        answers.append(given)
    os.write(channel, request["nonce"].encode() + zlib.compress(json.dumps(answers).encode()))
    os._exit(0)

'''

ONLY_TESTS = FORGER.replace("                _answer(found, channel)\n", "                return\n")
"""The forger that leaves the programs' answers to the body."""


def forged(task: Task) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield workspaces over a task's tree: the forger, and a body of one line for each function that was deleted.

    The forger of the programs' answers comes first; then only the tests are forged, with each of `BODIES`, and with each of
    `TOGETHER` where several functions were deleted.
    """
    yield "answers from the steps", _workspace(task, "return None", FORGER)
    for body in (*BODIES, *(TOGETHER if len(task.spec.deleted) > 1 else ())):
        yield body, _workspace(task, body, ONLY_TESTS)


def _workspace(task: Task, body: str, forger: str) -> dict[str, bytes]:
    files = {}
    for path, source in task.gold_files().items():
        functions = deleted_functions(task, path, source)
        files[path] = with_bodies(source, [(function, filled(body, function)) for function in functions], forger)
    return files


def deleted_functions(task: Task, path: str, source: bytes) -> list[Function]:
    """Return the functions of a gold file that the task deletes."""
    wanted = {deletion.qualname for deletion in task.spec.deleted if deletion.path == path}
    return [function for function in find_functions(path, source)[0] if function.qualname in wanted]


def with_body(source: bytes, functions: list[Function], body: str, forger: str) -> bytes:
    """Return the file with a body in the place of each function's, and the forger at its end."""
    return with_bodies(source, [(function, body) for function in functions], forger)


def with_bodies(source: bytes, bodies: list[tuple[Function, str]], forger: str) -> bytes:
    """Return the file with bodies in the place of functions' own, and the forger at its end."""
    text = source.decode()
    for function, body in sorted(bodies, key=lambda one: -one[0].first_line):
        lines = text.splitlines(keepends=True)
        lines[function.first_line - 1 : function.last_line] = [f"{function.indent.decode()}{body}\n"]
        text = "".join(lines)
    return (text.rstrip("\n") + "\n" + forger + "_forge()\n").encode()
