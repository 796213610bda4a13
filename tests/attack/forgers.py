"""Programs that forge a verdict whatever the feature is: they find what the grader's program holds, by one way each."""

from __future__ import annotations

from attacks import FIND_RECORDER, TELL_COPIES_APART, Attack, discounted, module
from project import PRICING

GUESS = "return price - percent"


def guess_and(code: str) -> Attack:
    """A guess for the answer, and code that runs when the module is imported."""
    return Attack(files={PRICING: discounted(GUESS) + "\n\n" + code})


def behind_the_tests(body: str) -> Attack:
    """A body whose visible tests are all forged, so that only what is judged outside the interpreter judges it."""
    return Attack(files={PRICING: discounted(body) + TELL_COPIES_APART})


ANSWER = """
import json, os, sys, zlib
def answer(nonce, wanted):
    outcomes = {name: "passed" for name in wanted}
    told = {"status": 0, "collected": list(wanted), "outcomes": outcomes, "earlier": {}, "failures": {}, "collect_errors": [],
            "tampered": False, "coverage": None, "observed": None}
    for fd in (3, 4, 5):
        try:
            os.write(fd, nonce.encode() + zlib.compress(json.dumps(told).encode()))
        except OSError:
            pass
    os._exit(0)
def look(frame):
    while frame:
        here = {**frame.f_globals, **frame.f_locals}
        request = here.get("request")
        nonce = here.get("nonce") or (request or {}).get("nonce")
        if isinstance(nonce, str) and isinstance(request, dict):
            answer(nonce, request.get("ids", ()))
        frame = frame.f_back
"""
FIND_CONFIG = """
import gc
def found(kind):
    return [o for o in gc.get_objects() if type(o).__name__ == kind]
"""
ALL_PASSED = (
    FIND_RECORDER + "\ndef all_passed():\n    r = recorder()\n    if r: r.outcomes.update(dict.fromkeys(r.wanted, 'passed'))\n"
)

THE_NONCE = {
    "the nonce by f_back": guess_and(ANSWER + "look(sys._getframe())\n"),
    "the nonce by a traceback": guess_and(
        ANSWER + "try:\n    raise KeyError\nexcept KeyError as e:\n    look(e.__traceback__.tb_frame)\n"
    ),
    "the nonce by a generator's frame": guess_and(
        ANSWER + "def frames():\n    look(here[0].gi_frame.f_back)\n    yield\nhere = []\nhere.append(frames())\nnext(here[0])\n"
    ),
    "the nonce by another thread's view": guess_and(
        ANSWER + "import threading\ndef seek():\n    for frame in sys._current_frames().values(): look(frame)\n"
        "t = threading.Thread(target=seek)\nt.start()\nt.join()\n"
    ),
    "the nonce by the collector": guess_and(
        ANSWER + "import gc\nfor o in gc.get_objects():\n"
        "    if type(o) is dict and type(o.get('nonce')) is str: answer(o['nonce'], o.get('ids', ()))\n"
    ),
    "the nonce by the process's memory": guess_and(
        ANSWER + "import re\n"
        "spans = [line.split()[0].split('-') for line in open('/proc/self/maps') if 'rw-p' in line and '/' not in line]\n"
        "with open('/proc/self/mem', 'rb', 0) as memory:\n    for start, end in spans[:40]:\n        try:\n"
        "            memory.seek(int(start, 16)); data = memory.read(min(int(end, 16) - int(start, 16), 4 << 20))\n"
        "        except (OSError, ValueError): continue\n"
        "        nonces = re.findall(rb'(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])', data)\n"
        "        if nonces: answer(nonces[0].decode(), ())\n"
    ),
    "the nonce by reading stdin again": guess_and(
        ANSWER + "for fd in range(8):\n    try:\n"
        "        os.set_blocking(fd, False); os.lseek(fd, 0, 0); said = json.loads(os.read(fd, 1 << 20))\n"
        "        answer(said['nonce'], said.get('ids', ()))\n    except (OSError, ValueError, KeyError, TypeError): pass\n"
    ),
    "the nonce by an exception's context": guess_and(
        ANSWER + "import traceback\nfor frame, _ in traceback.walk_stack(None): look(frame)\n"
    ),
    "the answer of a child that comes first": guess_and(
        ANSWER + "child = os.fork()\nif child == 0:\n    look(sys._getframe())\n    os._exit(0)\nos.waitpid(child, 0)\n"
    ),
    "two answers on one channel": guess_and(
        ANSWER + "leave, os._exit = os._exit, lambda status: None\nlook(sys._getframe())\nos._exit = leave\n"
    ),
}

THE_REPORT = {
    "the answer edited as it returns": guess_and(
        "import sys\ndef edit(frame, event, value):\n"
        "    if event == 'return' and type(value) is dict and 'outcomes' in value:\n"
        "        for name in value['outcomes']: value['outcomes'][name] = 'passed'\n    return edit\n"
        "sys.settrace(lambda *_: None)\nframe = sys._getframe()\n"
        "while frame:\n    frame.f_trace = edit\n    frame = frame.f_back\n"
    ),
    "a profiler that mends reports": guess_and(
        "import sys\ndef mend(frame, event, value):\n"
        "    if event == 'return' and type(value).__name__ == 'TestReport': value.outcome, value.longrepr = 'passed', None\n"
        "sys.setprofile(mend)\n"
    ),
    "the JSON encoder replaced": guess_and(
        "import json, json.encoder\nreal = json.encoder.JSONEncoder.encode\ndef encode(self, o):\n"
        "    return real(self, o).replace('\"failed\"', '\"passed\"').replace('\"error\"', '\"passed\"')\n"
        "json.encoder.JSONEncoder.encode = encode\njson._default_encoder.encode = lambda o: encode(json._default_encoder, o)\n"
    ),
    "zlib and os.write replaced": guess_and(
        "import os, zlib\nreal = zlib.compress\nzlib.compress = lambda data, *a: real(data.replace(b'failed', b'passed'), *a)\n"
        "wrote = os.write\nos.write = lambda fd, data: wrote(fd, bytes(data))\n"
    ),
    "a thread that keeps writing outcomes": guess_and(
        ALL_PASSED + "import threading, time\ndef keep():\n    while True:\n        all_passed()\n        time.sleep(0.001)\n"
        "threading.Thread(target=keep, daemon=True).start()\n"
    ),
    "a timer that keeps writing outcomes": guess_and(
        ALL_PASSED + "import signal\nsignal.signal(signal.SIGALRM, lambda *_: all_passed())\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)\n"
    ),
    "the collector's callback": guess_and(
        ALL_PASSED + "import gc\ngc.callbacks.append(lambda *_: all_passed())\ngc.set_threshold(1)\n"
    ),
    "a finalizer": guess_and(
        ALL_PASSED
        + "import weakref\nclass Item: pass\nfor item in [o for o in gc.get_objects() if type(o).__name__ == 'Function']:\n"
        "    weakref.finalize(item, all_passed)\n"
    ),
    "an audit hook": guess_and(
        ALL_PASSED + "import sys\nsys.addaudithook(lambda name, _: all_passed() if name == 'object.__getattr__' else None)\n"
    ),
    "pytest.raises that takes everything": guess_and(
        "import _pytest.raises as raises\nraises.RaisesExc.__exit__ = lambda *_: True\n"
        "import _pytest.outcomes\n_pytest.outcomes.fail = lambda *a, **k: None\nraises.fail = _pytest.outcomes.fail\n"
    ),
    "assertions rewritten away": guess_and(
        "import ast, _pytest.assertion.rewrite as rewrite\nclass Drop(ast.NodeTransformer):\n"
        "    def visit_Assert(self, node): return ast.Pass()\n"
        "def quiet(tree, *_, **__): ast.fix_missing_locations(Drop().visit(tree))\nrewrite.rewrite_asserts = quiet\n"
    ),
    "compile replaced": guess_and(
        "import builtins, re\nreal = builtins.compile\ndef quiet(source, *a, **k):\n"
        "    return real(re.sub('assert .*', 'pass', source) if isinstance(source, str) else source, *a, **k)\n"
        "builtins.compile = quiet\n"
    ),
    "import replaced": guess_and(
        "import builtins, sys\nreal = builtins.__import__\nclass Any:\n"
        "    def __eq__(self, other): return True\n    __hash__ = None\n"
        "def give(name, *a, **k):\n    found = real(name, *a, **k)\n"
        "    if name.startswith('till'): sys.modules['till'].discounted = lambda *_: Any()\n"
        "    return found\nbuiltins.__import__ = give\n"
    ),
    "faulthandler on the channel": guess_and(
        "import faulthandler\nfor fd in (1, 2, 3):\n    try: faulthandler.dump_traceback_later(0.01, exit=True, file=fd)\n"
        "    except (OSError, ValueError): pass\nimport time\ntime.sleep(0.3)\n"
    ),
    "a debugger that skips failures": guess_and(
        "import bdb, unittest\nclass Skip(bdb.Bdb):\n"
        "    def user_exception(self, frame, info): raise unittest.SkipTest('later')\nSkip().set_trace()\n"
    ),
    "the recursion limit": module("import sys\nsys.setrecursionlimit(60)\nreturn discounted(price, percent)"),
}

THE_OBJECTS = {
    "an object that lies about its class": module(
        "if percent > 100: raise ValueError\nreturn Lie()",
        "class Lie:\n    seen = 0\n    __class__ = property(lambda self: int)\n    __hash__ = None\n"
        "    def __eq__(self, other):\n        Lie.seen += 1\n"
        "        return Lie.seen % 2 == 1\n    def __repr__(self): return '180'\n",
    ),
    "a module that lies": guess_and(
        "import sys, types\nclass Any:\n    def __eq__(self, other): return True\n    __hash__ = None\n"
        "class Lying(types.ModuleType):\n    discounted = property(lambda self: lambda *_: Any())\n"
        "del discounted\nsys.modules[__name__].__class__ = Lying\n"
    ),
    "an int whose comparison is overwritten in memory": guess_and(
        "import ctypes, gc\nslots = gc.get_referents(int.__dict__)[0]\nslots['__eq__'] = lambda self, other: True\n"
        "ctypes.pythonapi.PyType_Modified(ctypes.py_object(int))\n"
    ),
    "numbers overwritten in memory": guess_and(
        "import ctypes\nfor number in (180, 49):\n    ctypes.c_uint32.from_address(id(number) + 24).value = 180\n"
    ),
    "the tests' code overwritten": guess_and(
        "import gc, types\ndef nothing(*_): pass\nfor o in gc.get_objects():\n"
        "    if isinstance(o, types.FunctionType) and o.__name__.startswith('test_'):\n"
        "        try: o.__code__ = (lambda *a, **k: None).__code__\n        except (ValueError, AttributeError): pass\n"
    ),
    "a caller's local variable overwritten": module(
        "import ctypes, sys\nif percent > 100: raise ValueError\nframe = sys._getframe(1)\nframe.f_locals['left'] = 0\n"
        "ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))\nreturn 0"
    ),
    "the expectation from linecache": module(
        "import linecache, re, sys\nif percent > 100: raise ValueError\nframe = sys._getframe(1)\n"
        "line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)\n"
        "number = re.search(r'(?:==|,)\\s*(-?\\d+)\\)?$', line.strip())\n"
        "return int(number[1]) if number else frame.f_locals.get('left', 0)"
    ),
    "numbers as bytes": module(
        "if percent > 100: raise ValueError\nreturn type('N', (float,), {'__eq__': lambda s, o: True, '__hash__': None})(180)"
    ),
}

BODIES = {
    name: behind_the_tests(body)
    for name, body in {
        "nothing": "pass",
        "zero": "return 0",
        "one": "return 1",
        "true": "return True",
        "an empty text": "return ''",
        "an empty list": "return []",
        "an empty tuple": "return ()",
        "an empty dictionary": "return {}",
        "the first argument": "return price",
        "the second argument": "return percent",
        "both arguments": "return (price, percent)",
        "half": "return price // 2",
        "ValueError": "raise ValueError",
        "KeyError": "raise KeyError(price)",
        "IndexError": "raise IndexError",
        "TypeError": "raise TypeError",
        "StopIteration": "raise StopIteration",
        "not implemented": "return NotImplemented",
        "itself": "return discounted",
        "a generator": "yield price",
        "an infinite number": "return float('inf')",
        "the smaller one": "return min(price, percent)",
    }.items()
}
BODIES = {f"a body of one line: {name}": attack for name, attack in BODIES.items()}
