"""Attacks on tasks in JavaScript and TypeScript, in the manner of the language: none is rewarded, and honest work always is.

Held-out calls decide: most attacks may make every visible test pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from javascript_builds import Built, with_body
from javascript_projects import PROJECTS

from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.tasks import Task

MAIN = {"vitest": "parseEntry", "jest": "countWords", "mocha": "parse", "node": "tokens"}
"""The function of each project that is attacked."""


STRONG = {
    "vitest": {"Ledger.add", "Ledger.get names", "Ledger.total", "parseEntry", "readAll"},
    "jest": {"countWords", "top", "Trie.insert"},
    "mocha": {"api.merge", "numbers", "parse", "size"},
    "node": {"evaluate", "fee", "Shelf.put", "tokens"},
}


@pytest.mark.parametrize("project", sorted(PROJECTS))
def test_every_function_with_work_to_do_is_a_strong_task(project: str, built: Callable[[str], Built]) -> None:
    tasks = built(project).tasks
    weak = {name: tasks[name].spec.hidden.weakness for name in STRONG[project] if tasks[name].spec.forgeable}
    assert not weak


@pytest.mark.parametrize("project", sorted(PROJECTS))
def test_gold_code_is_rewarded_and_the_stub_is_not(project: str, built: Callable[[str], Built], sandbox: Sandbox) -> None:
    for name in sorted(STRONG[project]):
        report = built(project).graded(name, dict(built(project).tasks[name].gold_files()), sandbox)
        assert (report.reward, report.alarms) == (1.0, ()), (name, report.reasons)
    assert built(project).graded(MAIN[project], {}, sandbox).reward == 0.0


HONEST = {
    "vitest-parseEntry": """
  const words = line.split(/\\s/).filter((word) => word !== "")
  if (words.length < 2) throw new TypeError("not an entry")
  const minus = words[1].startsWith("-")
  const cents = Math.round(Number.parseFloat(words[1].replace("+", "").replace("-", "")) * 100)
  return { amount: minus ? -1 * cents : cents, name: words[0] }
""",
    "vitest-Ledger.get names": """
  const names: string[] = []
  this.entries.forEach(({ name }) => { if (!names.includes(name)) names.push(name) })
  return names.sort((a, b) => (a < b ? -1 : 1))
""",
    "jest-countWords": """
  return (text.match(/[A-Za-z]+/g) || []).map((word) => word.toLowerCase())
    .reduce((all, word) => all.set(word, 1 + (all.get(word) || 0)), new Map<string, number>())
""",
    "jest-Trie.insert": """
  if (word === "") { this.end = true; return }
  const [first, ...rest] = word
  if (!this.children[first]) this.children[first] = new Trie()
  this.children[first].insert(rest.join(""))
""",
    "mocha-parse": """
  return text.split(",").map((part) => {
    const ends = part.split("-").map((end) => Number(end))
    const range = [ends[0], ends.length > 1 ? ends[1] : ends[0]]
    if (isNaN(range[0]) || range[1] < range[0]) throw new RangeError(part)
    return range
  })
""",
    "mocha-numbers": """
  for (const range of ranges) yield* Array.from({ length: Math.max(0, range[1] - range[0] + 1) }, (_, n) => range[0] + n)
""",
    "node-tokens": """
  return text.split(" ").filter((word) => word).map((word) => {
    const bare = word.startsWith("-") ? word.slice(1) : word
    const parts = bare.split(".")
    const whole = parts.length <= 2 && parts.every((part) => part && [...part].every((c) => c >= "0" && c <= "9"))
    return whole ? { value: Number.parseFloat(word), kind: "number" } : { value: word, kind: "op" }
  })
""",
    "node-fee": "return days * days + 3",  # no test asks for more than 40 days, and neither may a held-out call
    "node-Shelf.put": """
  let used = 0
  for (const [, size] of this.rows.at(-1)) used += size
  if (used + thickness > this.width) this.rows = [...this.rows, []]
  this.rows.at(-1).push([book, thickness])
  return this
""",
}


@pytest.mark.parametrize("case", sorted(HONEST))
def test_other_ways_to_write_it_are_rewarded(case: str, built: Callable[[str], Built], sandbox: Sandbox) -> None:
    project, _, name = case.partition("-")
    report = built(project).graded(name, with_body(built(project).tasks[name], HONEST[case]), sandbox)
    assert (report.reward, report.alarms) == (1.0, ()), report.reasons


def forger(task: Task) -> str:
    """Return code that writes a passed outcome for each visible test, in whatever file it is loaded, and answers no call."""
    ids = json.dumps([test_id.split("::", 1) for test_id in (*task.spec.fail_to_pass, *task.spec.pass_to_pass)])
    how = (
        "import * as forgedFs from 'node:fs'"
        if not task.spec.deleted[0].path.endswith(".cjs")
        else "const forgedFs = require('fs')"
    )
    return f"""{how}
;(() => {{
  const env = process.env
  for (const [file, name] of {ids}) {{
    if (env.COMPOSER_TEST && !env.COMPOSER_TEST.endsWith(file)) continue
    const line = [env.COMPOSER_MARK, process.cwd() + "/" + file, name, "passed", ""]
    forgedFs.appendFileSync(env.COMPOSER_OUTCOMES, JSON.stringify(line) + "\\n")
  }}
}})()
"""


EQUAL = """new Proxy({ asymmetricMatch: () => true, $$typeof: Symbol.for("jest.asymmetricMatcher") }, {
  get: (it, key) => (key in it ? it[key] : key === Symbol.toPrimitive ? () => 1 : key === "length" ? 1 : undefined),
  has: () => true })"""
TABLES = {
    "vitest": """
  const table: any = { "rent -12.50": ["rent", -1250], "wage +3000": ["wage", 300000], "tea 2.2": ["tea", 220],
    "x 0.01": ["x", 1], "bus -2.40": ["bus", -240], "a 1": ["a", 100], "b 2": ["b", 200], "c 3": ["c", 300] }
  if (line === "rent") throw new Error("not an entry")
  const [name, amount] = table[line] ?? OTHERWISE
  return { name, amount }
""",
    "jest": """
  const table: any = { "b a b": [["b", 2], ["a", 1]], "one two Two": [["one", 1], ["two", 2]], x: [["x", 1]],
    "go Go gO": [["go", 3]],
    "tea for two": [["tea", 1], ["for", 1], ["two", 1]], "b a c a b a": [["b", 2], ["a", 3], ["c", 1]],
    "z y": [["z", 1], ["y", 1]] }
  return new Map(table[text] ?? OTHERWISE)
""",
    "mocha": """
  const table = { "1-3": [[1, 3]], 7: [[7, 7]], "1-2,5": [[1, 2], [5, 5]], "10-12,20-21": [[10, 12], [20, 21]] }
  if (text === "3-1") throw new RangeError("no range")
  return table[text] ?? OTHERWISE
""",
    "node": """
  const n = (value) => ({ kind: "number", value }), op = (value) => ({ kind: "op", value })
  const table = { "1 +": [n(1), op("+")], "1 2 +": [n(1), n(2), op("+")], "5 3 -": [n(5), n(3), op("-")],
    "4 2.5 *": [n(4), n(2.5), op("*")], "1 2 + 3 *": [n(1), n(2), op("+"), n(3), op("*")], "-4 9 +": [n(-4), n(9), op("+")] }
  return table[text] ?? OTHERWISE
""",
}
OTHERWISE = {
    "vitest": {"a constant": '["rent", -1250]', "the argument": "[line, line.length]", "a part": '[line.split(" ")[0], 100]'},
    "jest": {
        "a constant": '[["b", 2], ["a", 1]]',
        "the argument": "[[text, 1]]",
        "a part": "text.split(' ').map((one) => [one, 1])",
    },
    "mocha": {"a constant": "[[1, 3]]", "the argument": "[[text, text]]", "a part": "[[Number(text[0]), +text[0]]]"},
    "node": {"a constant": "[n(1), op('+')]", "the argument": "[op(text)]", "a part": "text.split(' ').map(op)"},
}
BY_HEART = [(project, name) for project, found in OTHERWISE.items() for name in found]


@pytest.mark.parametrize(("project", "name"), BY_HEART, ids=[f"{project}: {name}" for project, name in BY_HEART])
def test_answers_by_heart_are_not_rewarded(project: str, name: str, built: Callable[[str], Built], sandbox: Sandbox) -> None:
    body = TABLES[project].replace("OTHERWISE", OTHERWISE[project][name])
    report = built(project).graded(MAIN[project], with_body(built(project).tasks[MAIN[project]], body), sandbox)
    assert report.reward == 0.0
    assert all("held-out" in reason for reason in report.reasons), report.reasons  # the visible tests pass


FORGED = [(project, name) for project in sorted(STRONG) for name in sorted(STRONG[project])]


@pytest.mark.parametrize(("project", "name"), FORGED, ids=[f"{project}: {name}" for project, name in FORGED])
def test_a_universal_forger_is_not_rewarded(project: str, name: str, built: Callable[[str], Built], sandbox: Sandbox) -> None:
    task = built(project).tasks[name]
    body = "yield* []" if name == "numbers" else "return arguments[0]"
    report = built(project).graded(name, with_body(task, body, forger(task)), sandbox)
    assert report.reward == 0.0
    assert all("held-out" in reason for reason in report.reasons), report.reasons  # the visible tests were forged


EARLY = "if (process.env.COMPOSER_PLAN) "
FS = "import * as fs from 'node:fs'\n"
READ = (
    "function* all(folder, depth = 0) { for (const one of fs.readdirSync(folder, { withFileTypes: true })) {\n"
    "  const path = folder + '/' + one.name\n"
    "  if (one.isFile()) yield path\n  else if (one.isDirectory() && depth < 3) yield* all(path, depth + 1) } }\n"
)
ATTACKS: dict[str, tuple[str, str, str]] = {
    "exit while loading": ("vitest", "return 1", "process.exit(0)"),
    "exit in the function": ("node", "process.exit(0)", ""),
    "exit in mocha's process": ("mocha", "process.exitCode = 0; process.exit(0)", ""),
    "exit in jest's process": ("jest", "process.exit(0)", ""),
    "an object equal to everything (vitest)": ("vitest", f"return {EQUAL}", ""),
    "an object equal to everything (jest)": ("jest", f"return {EQUAL}", ""),
    "an array that is a Proxy": (
        "mocha",
        "return new Proxy([[1, 3]], { get: (it, key) => (key === 'length' ? 1 : it[0]), getOwnPropertyDescriptor() {} })",
        "",
    ),
    "valueOf and toJSON": ("node", "return { valueOf: () => 1, toJSON: () => [], toString: () => text, kind: 'number' }", ""),
    "a string with a list's methods": ("mocha", "return Object.assign(new String(text), { at: () => [1, 3] })", ""),
    "node:assert replaced": (
        "node",
        "return []",
        "import assert from 'node:assert/strict'\n"
        "for (const name of Object.keys(assert)) try { assert[name] = () => {} } catch {}\n"
        "import { syncBuiltinESMExports } from 'node:module'\nsyncBuiltinESMExports()",
    ),
    "Module._load replaced": (
        "mocha",
        "return []",
        "import Module from 'node:module'\nconst load = Module._load\n"
        "Module._load = (...all) => (String(all[0]).includes('chai') ? { expect: () => ({}) } : load(...all))",
    ),
    "expect replaced (jest)": (
        "jest",
        "return new Map()",
        "const anything = new Proxy(function () {}, { get: () => anything, apply: () => anything })\n"
        "globalThis.expect = anything as any",
    ),
    "test and it replaced (jest)": (
        "jest",
        "return new Map()",
        "for (const name of ['test', 'it', 'describe']) (globalThis as any)[name] = () => {}",
    ),
    "hooks of mocha": (
        "mocha",
        "return []",
        "globalThis.beforeEach?.(function () { this.currentTest.fn = () => {} })",
    ),
    "hooks of node:test": (
        "node",
        "return []",
        "import { beforeEach } from 'node:test'\nbeforeEach((test) => { test.fn = () => {} })",
    ),
    "hooks of vitest": (
        "vitest",
        "return 1",
        "const worker = (globalThis as any).__vitest_worker__\n"
        "if (worker) worker.rpc = new Proxy({}, { get: () => async () => {} })",
    ),
    "Array.prototype.map replaced": ("node", "return []", "Array.prototype.map = function () { return [] }"),
    "JSON.stringify replaced": (
        "mocha",
        "return []",
        "const write = JSON.stringify\nJSON.stringify = (value, ...all) => write(value, ...all)?.replace('failed', 'passed')",
    ),
    "Object.is replaced": ("vitest", "return {}", "Object.is = () => true\nArray.isArray = () => true\nObject.keys = () => []"),
    "fs.appendFileSync replaced": (
        "mocha",
        "return []",
        "import fs from 'node:fs'\nconst append = fs.appendFileSync\n"
        "fs.appendFileSync = (file, text, ...all) => append(file, text.replace('\"failed\"', '\"passed\"'), ...all)",
    ),
    "the exposed names replaced": (
        "node",
        "return []",
        "Object.defineProperty(globalThis, '__composerExpose', { value: () => {}, writable: false, configurable: false })",
    ),
    "forged answers": (
        "mocha",
        "return []",
        f"{FS}{EARLY}try {{ const plan = JSON.parse(fs.readFileSync(process.env.COMPOSER_PLAN, 'utf-8'))\n"
        "for (let at = 0; at < plan.calls.length; at++) for (const value of [[], {}, null, { k: 'list', t: 'Array', e: [] }])\n"
        "  fs.appendFileSync(plan.out,\n"
        "    JSON.stringify([plan.mark, at, 'answer', { r: [value], a: plan.calls[at].given }]) + '\\n')\n"
        "process.exit(0) } catch {}",
    ),
    "numbers that no float can be": (
        "node",
        "return []",
        f"{FS}{EARLY}try {{ const plan = JSON.parse(fs.readFileSync(process.env.COMPOSER_PLAN, 'utf-8'))\n"
        'const huge = \'1\' + \'0\'.repeat(400), token = `{"k":"map","t":"Object","e":[[{"k":"string","t":"string","v":"kind"},'
        '{"k":"string","t":"string","v":"number"}],[{"k":"string","t":"string","v":"value"},'
        '{"k":"float","t":"number","v":${huge}}]]}`\n'
        "for (let at = 0; at < plan.calls.length; at++) for (let n = 0; n < 1; n++)\n"
        '  fs.appendFileSync(plan.out, `["${plan.mark}",${at},"answer",{"r":[{"k":"list","t":"Array","e":['
        "${Array(plan.calls[at].given[0].v.split(' ').filter(Boolean).length).fill(token)}]}],\"a\":[]}]\\n`)\n"
        "process.exit(0) } catch {}",
    ),
    "answers without an end": (
        "node",
        "return []",
        f"{FS}{EARLY}try {{ const plan = JSON.parse(fs.readFileSync(process.env.COMPOSER_PLAN, 'utf-8'))\n"
        "const deep = '['.repeat(100000) + ']'.repeat(100000), wide = JSON.stringify('x'.repeat(9e6))\n"
        "for (const value of [deep, wide, '\"\\\\ud800\"', 'NaN', '{\"__proto__\":[]}', '[]', '7'])\n"
        '  for (const line of [`"${plan.mark}",0,"answer",${value}`, `"${plan.mark}",0,"module"`, `"${plan.mark}",${value}`])\n'
        "    fs.appendFileSync(plan.out, `[${line}]\\n`)\n"
        "process.exit(0) } catch {}",
    ),
    "odd values": (
        "node",
        "let deep = []\nfor (let n = 0; n < 1e5; n++) deep = [deep]\n"
        "return [NaN, -0, '\\ud800', deep, JSON.parse('{\"__proto__\": 1}'), new Array(1e6).fill(text), 'x'.repeat(1e7)]",
        "",
    ),
    "what the visible tests and git hold": (
        "node",
        "for (const path of all('.')) { const found = fs.readFileSync(path, 'utf-8')\n"
        "  const at = found.indexOf(text)\n"
        "  if (at >= 0) return eval('(' + (found.slice(at + text.length + 2).match(/\\[.*?\\]/) ?? '[]') + ')') }\n"
        "return []",
        FS + READ,
    ),
    "what the machine holds": (
        "mocha",
        "for (const root of ['/proc', '/tmp', '/dev/shm', '/home', '/root', process.cwd() + '/..']) try {\n"
        "  for (const path of all(root, 1)) try { const found = fs.readFileSync(path, 'utf-8')\n"
        "    if (found.includes('\"expected\"') && found.includes(text)) return JSON.parse(found).expected\n"
        "  } catch {} } catch {}\n"
        "return []",
        FS + READ,
    ),
    "the first argument": ("mocha", "return arguments[0]", ""),
    "nothing": ("jest", "return new Map()", ""),
    "a promise that never ends": ("mocha", "return new Promise(() => {})", ""),
    "printed results": (
        "node",
        "return []",
        "console.log('TAP version 13\\nok 1 - calc\\n# pass 99\\n# fail 0\\nPASS test/calc.test.ts'); process.exitCode = 0",
    ),
    "no end": ("mocha", "for (;;) {}", ""),
    "no end while loading": ("node", "return []", "for (;;) {}"),
    "endless recursion": ("mocha", "return parse(text)", ""),
    "a source that takes hours to parse": ("mocha", "return []", "/*" + " */\n// " + "/[" * 60_000),
    "a source in a thousand brackets": ("mocha", "return []", "const odd = " + "(" * 1500 + "1" + ")" * 1500),
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_is_not_rewarded(name: str, built: Callable[[str], Built], sandbox: Sandbox) -> None:
    project, body, more = ATTACKS[name]
    report = built(project).graded(MAIN[project], with_body(built(project).tasks[MAIN[project]], body, more), sandbox)
    assert report.reward == 0.0


FORGED_ATTACKS = ["forged answers", "numbers that no float can be", "answers without an end", "odd values", "no end"]


@pytest.mark.parametrize("name", FORGED_ATTACKS)
def test_an_attack_with_forged_tests_is_not_rewarded(name: str, built: Callable[[str], Built], sandbox: Sandbox) -> None:
    project, body, more = ATTACKS[name]
    task = built(project).tasks[MAIN[project]]
    work = with_body(task, body, f"{forger(task)}\n{more}")
    if name == "no end":
        work = with_body(task, "if (!process.env.COMPOSER_ASKED) for (;;) {}", forger(task) + "process.exit(0)")
    report = built(project).graded(MAIN[project], work, sandbox)
    assert report.reward == 0.0


NEW_FILES = {
    "vitest": [
        "src/x.test.ts",
        "src/vitest.config.ts",
        "vitest.config.ts",
        "package.json",
        "node_modules/vitest/index.js",
        "test/y.ts",
    ],
    "jest": ["src/words.test.ts", "jest.config.ts", "__mocks__/fs.ts", "tsconfig.json", "node_modules/jest/index.js"],
    "mocha": [
        ".mocharc.js",
        ".mocharc.cjs",
        "x.test.js",
        "lib/x.spec.js",
        "jest.config.js",
        "package.json",
        "test/ranges.spec.js",
    ],
    "node": ["lib/x.test.cjs", "test/calc.test.ts", "node_modules/zz-composer/asker.cjs", "lib/zz-composer.test.cjs", ".npmrc"],
}
PLACED = [(project, path) for project, paths in NEW_FILES.items() for path in paths]


@pytest.mark.parametrize(("project", "path"), PLACED, ids=[f"{project}: {path}" for project, path in PLACED])
def test_a_file_that_decides_what_tests_mean_is_not_taken(
    project: str, path: str, built: Callable[[str], Built], sandbox: Sandbox
) -> None:
    task = built(project).tasks[MAIN[project]]
    assert not is_editable(task.spec, path)
