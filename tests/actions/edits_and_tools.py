"""Tool calls and edits in groups like those of `commands.py`, on the tree `full` of `trees.py`."""

from __future__ import annotations


def call(tool, **arguments):
    return {"name": tool, "arguments": arguments}


def read(path, **rest):
    return call("read_file", path=path, **rest)


def edit(old, new, path="src/a.py"):
    return [call("edit_file", path=path, old=old, new=new)]


def write(content, path="src/a.py"):
    return [call("write_file", path=path, content=content)]


def patch(*lines):
    return [call("apply_patch", patch="\n".join(["*** Begin Patch", *lines, "*** End Patch"]))]


LOOP = "    result = 0\n    for price in prices:\n        result += price\n    return result"
WHOLE = f"def total(prices):\n{LOOP}\n"

TOOLS = [
    (
        "",
        [read("src/a.py"), read("./src/a.py"), read("src//a.py"), read("src/./a.py"), read("src/a.py", start=1)],
        [
            read("src/b.py"),
            read("src/a"),
            read("src/a.py", start=2),
            read("src/a.py", end=None),
            read("src/a.py", thought="look"),
            read("src/a.py", end=1),
            read("a.py"),
            read("tests/test_a.py"),
        ],
    ),
    (
        "",
        [read("big.txt", start=2, end=4), read("./big.txt", end=4, start=2)],
        [read("big.txt", start=2, end=5), read("big.txt", start=1, end=4), read("big.txt", end=4), read("big.txt")],
    ),
    ("", [read("big.txt", end=3), read("big.txt", start=1, end=3), read("./big.txt", end=3)], [read("big.txt", start=3)]),
    (
        "",
        [call("list_files"), call("list_files", path="."), call("list_files", path="./")],
        [call("list_files", path="src"), call("list_files", path="tests"), call("search", pattern="x")],
    ),
    (
        "",
        [call("list_files", path="src"), call("list_files", path="./src"), call("list_files", path="src/")],
        [call("list_files", path="sr"), call("list_files", path="src/deep"), call("list_files", path="src/a.py")],
    ),
    (
        "",
        [call("search", pattern="total"), call("search", pattern="total", path="."), call("search", path="./", pattern="total")],
        [
            call("search", pattern="Total"),
            call("search", pattern="total", path="src"),
            call("search", pattern="tota"),
            call("search", pattern="total "),
        ],
    ),
    (
        "",
        [
            call("search", pattern="def", path="src"),
            call("search", path="./src", pattern="def"),
            call("search", path="src//", pattern="def"),
        ],
        [
            call("search", pattern="def", path="tests"),
            call("search", pattern="(def)x", path="src"),
            call("search", pattern="return", path="src"),
        ],
    ),
    (
        "",
        [write("x = 1\n", "new.py")[0], write("x = 1\n", "./new.py")[0]],
        [write("x = 1\n", "new.p")[0], write("x = 2\n", "new.py")[0], read("new.py"), write("x = 1\n", "src/new.py")[0]],
    ),
    (
        "",
        [edit("RATE = 2", "RATE = 3", "src/b.py")[0], edit("RATE = 2", "RATE = 3", "./src/b.py")[0]],
        [edit("RATE = 2", "RATE = 4", "src/b.py")[0], edit("RATE = 2", "RATE = 3", "src/a.py")[0], read("src/b.py")],
    ),
]

EDITS = [
    (
        "reformatted",
        [
            edit("result += price", "result += price * 2"),
            edit("result += price", "result += price*2"),
            edit("result += price", "result += (price * 2)"),
            edit("result += price", "result += price * 2  # twice"),
            edit("        result += price\n", "        # twice\n        result += price * 2\n"),
            edit("        result += price\n", "\n        result += price * 2\n\n"),
            edit("result += price", "result += \\\n            price * 2"),
            edit("result += price", "result += price * 0x2"),
        ],
        [
            edit("result += price", "result += price * 3"),
            edit("result += price", "result = price * 2"),
            edit("result += price", "result -= price * 2"),
            edit("result += price", "result += price ** 2"),
            edit("result += price", "result += price * -2"),
            edit("result += price", "# result += price * 2\n        pass"),
            edit("return result", "return result * 3"),
            edit("result += price", "result += prices * 2"),
        ],
    ),
    (
        "same effect",
        [
            edit(LOOP, "    return sum(prices)"),
            write("def total(prices):\n    return sum(prices)\n"),
            edit(LOOP + "\n", "    return sum(prices)\n"),
            edit(WHOLE, "def total(prices):\n    return sum(prices)\n"),
            patch(
                "*** Update File: src/a.py",
                " def total(prices):",
                *("-" + line for line in LOOP.split("\n")),
                "+    return sum(prices)",
            ),
            write("# the total\ndef total( prices ):\n  return sum( prices )\n"),
            write("def total(prices): return sum(prices)"),
        ],
        [
            write("def total(prices):\n    return sum(prices)\n", "src/c.py"),
            write("def total(prices):\n    return max(prices)\n"),
            write("def total(prices):\n    sum(prices)\n"),
            write("def total(prices):\n    return sum(prices) + 0.5\n"),
            write("def totals(prices):\n    return sum(prices)\n"),
            write("def total(prices=()):\n    return sum(prices) if prices else -1\n"),
            edit(LOOP, "    return sum(price)"),
            edit(LOOP, "    return sum(prices"),
            edit("    result = 0\n", "    return sum(prices)\n" * 0),
        ],
    ),
    (
        "reformatted",
        [
            edit("RATE = 2", "RATE = 10\nNAME = 'x'", "src/b.py"),
            edit("RATE = 2", 'RATE = 10\nNAME = "x"', "src/b.py"),
            edit("RATE = 2", 'RATE   =   10\n\n\nNAME = ("x")', "src/b.py"),
            edit("RATE = 2", "RATE = 10; NAME = 'x'", "src/b.py"),
            edit("RATE = 2", "RATE = 1_0\nNAME = 'x'  # a name", "src/b.py"),
        ],
        [
            edit("RATE = 2", "RATE = 10\nNAME = 'X'", "src/b.py"),
            edit("RATE = 2", "RATE = 10\nNAME = 'x '", "src/b.py"),
            edit("RATE = 2", "RATE = 10.0\nNAME = 'x'", "src/b.py"),
            edit("RATE = 2", "RATE = 10\nNAME = b'x'", "src/b.py"),
            edit("RATE = 2", "RATE = 10\n# NAME = 'x'", "src/b.py"),
            edit("RATE = 2", "RATE = '10'\nNAME = 'x'", "src/b.py"),
        ],
    ),
    (
        "same effect",
        [
            edit("    return len(prices)", "    return len(prices) + 1", "src/b.py"),
            edit("len(prices)", "len(prices) + 1", "src/b.py"),
            edit("def count(prices):\n    return len(prices)", "def count(prices):\n    return len(prices) + 1", "src/b.py"),
            patch("*** Update File: src/b.py", "@@ def count(prices):", "-    return len(prices)", "+    return len(prices) + 1"),
            patch("*** Update File: ./src/b.py", "-    return len(prices)", "+    return len(prices) + 1  # and one"),
            edit("len(prices)", "(len(prices)) + 1", "src/b.py"),
        ],
        [
            edit("len(prices)", "len(prices) - 1", "src/b.py"),
            edit("len(prices)", "len(prices + 1)", "src/b.py"),
            edit("len(prices)", "1", "src/b.py"),
            edit("    return len(prices)", "    return len(prices) + 2", "src/b.py"),
            edit("return len(price)", "return len(prices) + 1", "src/b.py"),
            patch("*** Update File: src/a.py", "-    return len(prices)", "+    return len(prices) + 1"),
            edit("count(prices)", "count(price)", "src/b.py"),
            edit("x * RATE", "x * RATE + 1", "src/b.py"),
        ],
    ),
    (
        "several files",
        [
            edit("RATE = 2", "RATE = 3", "src/b.py") + edit("return result", "return result + 1"),
            edit("return result", "return result + 1") + edit("RATE = 2", "RATE = 3", "src/b.py"),
            patch(
                "*** Update File: src/b.py",
                "-RATE = 2",
                "+RATE = 3",
                "*** Update File: src/a.py",
                "-    return result",
                "+    return result + 1",
            ),
            patch(
                "*** Update File: src/a.py",
                "-    return result",
                "+    return result+1",
                "*** Update File: src/b.py",
                "-RATE = 2",
                "+RATE = (3)",
            ),
        ],
        [
            edit("RATE = 2", "RATE = 3", "src/b.py"),
            edit("return result", "return result + 1"),
            edit("RATE = 2", "RATE = 4", "src/b.py") + edit("return result", "return result + 1"),
            patch("*** Update File: src/b.py", "-RATE = 2", "+RATE = 3", "*** Delete File: src/a.py"),
        ],
    ),
    (
        "same effect",
        [
            write("def extra(x):\n    return x\n", "src/extra.py"),
            patch("*** Add File: src/extra.py", "+def extra(x):", "+    return x"),
            write("def extra(x):\n    return (x)", "src/extra.py"),
            write("def extra(x):\n\n    # itself\n    return x\n", "./src/extra.py"),
        ],
        [
            write("def extra(x):\n    return -x\n", "src/extra.py"),
            write("def extra(x):\n    return x\n", "src/extras.py"),
            write("def extra(y):\n    return x\n", "src/extra.py"),
            patch("*** Add File: src/a.py", "+def extra(x):", "+    return x"),
        ],
    ),
    (
        "text",
        [
            edit("# Shop", "# Store", "README.md"),
            edit("# Shop\n", "# Store\n", "README.md"),
            edit("Shop", "Store", "README.md"),
            patch("*** Update File: README.md", "-# Shop", "+# Store"),
        ],
        [
            edit("# Shop", "# store", "README.md"),
            edit("# Shop", "#  Store", "README.md"),
            edit("# Shop", "## Store", "README.md"),
            edit("# Shop\n", "# Store\n\n", "README.md"),
            edit("Shop", "Store", "notes.txt"),
        ],
    ),
    (
        "text",
        [
            write("a: 1\nb: 2\n", "conf.yaml"),
            patch("*** Add File: conf.yaml", "+a: 1", "+b: 2"),
            write("a: 1\nb: 2\n", "./conf.yaml"),
        ],
        [
            write("a: 1\n b: 2\n", "conf.yaml"),
            write("b: 2\na: 1\n", "conf.yaml"),
            write("a: 1 \nb: 2\n", "conf.yaml"),
            write("a: 1\nb: 2", "conf.yaml"),
            write("a: 1\nb: 2\n\n", "conf.yaml"),
            write("a: 1\nb: 2\n", "conf.yml"),
        ],
    ),
    (
        "reformatted",
        [
            write("def total(prices, tax=0):\n    return sum(p for p in prices if p > tax)\n"),
            write(
                "def total(prices,tax = 0,):\n    return sum(\n        p\n        for p in prices\n        if p > tax\n    )\n"
            ),
            write("def total(prices, tax=0):\n\treturn sum((p for p in prices if (p > tax)))\n"),
            write("def total(prices, tax=0):\n    return sum(p for p in prices if p > tax)\n\n\n\n# end\n"),
        ],
        [
            write("def total(prices, tax=0):\n    return sum(p for p in prices if p >= tax)\n"),
            write("def total(prices, tax=1):\n    return sum(p for p in prices if p > tax)\n"),
            write("def total(prices, tax=0):\n    return sum([p for p in prices if p < tax])\n"),
            write("def total(prices, tax=0):\n    return sum(p for p in prices)\n"),
            write("def total(prices, *, tax=0):\n    return sum(p for p in prices[1:] if p > tax)\n"),
        ],
    ),
    (
        "reformatted",
        [
            edit("RATE = 2", "RATE = 3", "src/b.py"),
            edit("RATE = 2", "RATE = 3  # three", "src/b.py"),
            edit("RATE = 2", "RATE = (3)", "src/b.py"),
        ],
        [
            edit("RATE = 2", "RATE = 3  # noqa", "src/b.py"),
            edit("RATE = 2", "RATE = 3  # type: ignore", "src/b.py"),
            edit("RATE = 2", "RATE = 3  # pragma: no cover", "src/b.py"),
            edit("RATE = 2", "# fmt: off\nRATE = 3", "src/b.py"),
            edit("RATE = 2", "# -*- coding: latin-1 -*-\nRATE = 3", "src/b.py"),
        ],
    ),
    (
        "reformatted",
        [
            edit("RATE = 2", "RATE = 3  # noqa", "src/b.py"),
            edit("RATE = 2", "\nRATE = 3  # noqa\n", "src/b.py"),
        ],
        [
            edit("RATE = 2\n", "RATE = 3\n# noqa\n", "src/b.py"),
            edit("RATE = 2", "RATE = 3  # noqa: E501", "src/b.py"),
        ],
    ),
    (
        "same effect",
        [
            patch("*** Delete File: src/b.py"),
            patch("*** Delete File: ./src/b.py"),
        ],
        [
            patch("*** Delete File: src/a.py"),
            write("", "src/b.py"),
            patch("*** Delete File: src/c.py"),
        ],
    ),
]
