"""Submissions that rewrite more than their task deletes: what one function is given, others give back.

The deleted function returns an object that stands for its arguments. Every other function of its file is wrapped: given such an
object, it returns what that stands for; otherwise it runs, and what it returns stands for what it was given, so that the deleted
function may give that back in turn. A task whose tests look at nothing but round trips cannot tell this from the feature.
"""

from __future__ import annotations

from collections.abc import Iterator

from forger import ONLY_TESTS, deleted_functions, with_bodies

from composer_replication.tasks.store import Task

_REGISTRY = """
_kept, _tokens, _alive = {}, set(), []

def _back(which, values):
    return None if not values else tuple(values) if which == "all" else values[0 if which == "first" else -1]

def _keep(which, inside, values):
    own = values[1:] if inside else values
    for value in values:
        if id(value) in _kept and id(value) not in _tokens:
            return _back(which, _kept[id(value)])
    if inside:
        made = values[0]
    else:
        try:
            made = type("Kept", (type(values[-1]),), {})(values[-1])
        except Exception:
            made = type("Kept", (), {})()
    _kept[id(made)] = own
    _tokens.add(id(made))
    _alive.append(made)
    return None if inside else made

def _wrapped(which, function, skipped):
    import functools
    @functools.wraps(function)
    def wrapped(*args, **named):
        for value in (*args, *named.values()):
            if id(value) in _tokens:
                return _back(which, _kept[id(value)])
        result = function(*args, **named)
        made = args[0] if result is None and args else result
        given = [*args[skipped:], *named.values()]
        if given and type(made) not in (bool, int, float, type(None), type) and id(made) not in _tokens:
            _kept[id(made)] = given
            _alive.append(made)
        return result
    return wrapped

def _rewrite(which, space, deleted):
    import types
    for name, found in list(space.items()):
        if name.startswith("_") or getattr(found, "__module__", __name__) != __name__:
            continue
        if isinstance(found, types.FunctionType) and found.__qualname__ not in deleted:
            space[name] = _wrapped(which, found, 0)
        if isinstance(found, type):
            for attribute, method in list(vars(found).items()):
                if isinstance(method, types.FunctionType) and method.__qualname__ not in deleted:
                    setattr(found, attribute, _wrapped(which, method, 1))

"""
_WAYS = [(which, inside) for which in ("first", "last", "all") for inside in (False, True)]


def rewritten(task: Task) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield workspaces over a task's tree: arguments are kept in what is returned, or in the object, and given back in three
    ways. The visible tests are forged besides."""
    for which, inside in _WAYS:
        files = {}
        for path, source in task.gold_files().items():
            functions = deleted_functions(task, path, source)
            names = {function.qualname for function in functions}
            rewriting = f"_rewrite({which!r}, globals(), {names!r})\n"
            bodies = [
                (one, f"return _keep({which!r}, {inside and one.parameters[:1] == ('self',)!r}, [*locals().values()])")
                for one in functions
            ]
            files[path] = with_bodies(source, bodies, _REGISTRY + rewriting + ONLY_TESTS)
        yield f"accomplices: {which} given back, kept {'inside' if inside else 'in a result'}", files
