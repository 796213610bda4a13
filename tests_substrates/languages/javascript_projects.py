"""Four small projects, written for these tests: vitest, jest and node:test with TypeScript, mocha with ECMAScript modules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_LICENCE = "MIT License\n\nPermission is hereby granted, free of charge, to any person obtaining a copy\n"

VITEST = {
    "LICENSE": _LICENCE,
    "package.json": json.dumps(
        {
            "name": "ledger",
            "version": "1.0.0",
            "type": "module",
            "scripts": {"test": "vitest run"},
            "devDependencies": {"vitest": "^4.0.0", "typescript": "^5.0.0"},
        }
    ),
    "src/ledger.ts": """/** An amount in cents. */
export interface Entry {
  name: string
  amount: number
}

const SIGNS: Record<string, number> = { "+": 1, "-": -1 }

/**
 * Read an entry such as `rent -12.50`.
 */
export function parseEntry(line: string): Entry {
  const [name, text] = line.trim().split(/\\s+/)
  if (!name || !text) throw new Error(`not an entry: ${line}`)
  const sign = SIGNS[text[0]] ?? 1
  const digits = text.replace(/^[+-]/, "")
  return { name, amount: sign * Math.round(parseFloat(digits) * 100) }
}

export class Ledger {
  private entries: Entry[] = []

  add(entry: Entry): this {
    this.entries.push({ ...entry })
    return this
  }

  /** The sum of all amounts of a name. */
  total(name?: string): number {
    let sum = 0
    for (const entry of this.entries) {
      if (name === undefined || entry.name === name) sum += entry.amount
    }
    return sum
  }

  get names(): string[] {
    const found = new Set(this.entries.map((entry) => entry.name))
    return [...found].sort()
  }
}

export async function readAll(lines: AsyncIterable<string> | string[]): Promise<Entry[]> {
  const found: Entry[] = []
  for await (const line of lines) {
    if (line.trim() && !line.startsWith("#")) found.push(parseEntry(line))
  }
  return found
}
""",
    "test/ledger.test.ts": """import { describe, expect, it } from "vitest"
import { Ledger, parseEntry, readAll } from "../src/ledger.js"

describe("parseEntry", () => {
  it.each([
    ["rent -12.50", "rent", -1250],
    ["wage +3000", "wage", 300000],
    ["tea 2.2", "tea", 220],
    ["x 0.01", "x", 1],
    ["bus -2.40", "bus", -240],
  ])("reads %s", (line, name, amount) => {
    expect(parseEntry(line)).toEqual({ name, amount })
  })
  it("refuses", () => {
    expect(() => parseEntry("rent")).toThrow("not an entry")
  })
})
describe("Ledger", () => {
  it("sums", () => {
    const ledger = new Ledger().add({ name: "a", amount: 1 }).add({ name: "b", amount: 5 }).add({ name: "a", amount: 7 })
    expect(ledger.total()).toBe(13)
    expect(ledger.total("a")).toBe(8)
    expect(ledger.total("z")).toBe(0)
    expect(ledger.names).toEqual(["a", "b"])
    expect(new Ledger().add({ name: "z", amount: 2 }).add({ name: "q", amount: 4 }).names).toEqual(["q", "z"])
  })
})
it("reads all", async () => {
  expect(await readAll(["# x", "", "a 1", "b 2"])).toEqual([{ name: "a", amount: 100 }, { name: "b", amount: 200 }])
  expect(await readAll(["c 3"])).toEqual([{ name: "c", amount: 300 }])
  expect(await readAll([])).toEqual([])
})
""",
}

JEST = {
    "LICENSE": _LICENCE,
    "package.json": json.dumps(
        {
            "name": "words",
            "version": "1.0.0",
            "scripts": {"test": "jest"},
            "jest": {"preset": "ts-jest", "testEnvironment": "node"},
            "devDependencies": {"jest": "^30.0.0", "ts-jest": "^29.4.0", "@types/jest": "^30.0.0", "typescript": "^5.0.0"},
        }
    ),
    "tsconfig.json": json.dumps(
        {
            "compilerOptions": {
                "strict": True,
                "target": "es2022",
                "module": "commonjs",
                "esModuleInterop": True,
                "types": ["jest"],
            }
        }
    ),
    "src/words.ts": """export type Count = Map<string, number>

/** Count the words of a text, in the order in which they first appear. */
export function countWords(text: string): Count {
  const found: Count = new Map()
  for (const word of text.toLowerCase().match(/[a-z]+/g) ?? []) {
    found.set(word, (found.get(word) ?? 0) + 1)
  }
  return found
}

function byCount(one: [string, number], other: [string, number]): number {
  if (one[1] !== other[1]) return other[1] - one[1]
  return one[0] < other[0] ? -1 : 1
}

export function top(count: Count, most: number): string[] {
  const order = [...count].sort(byCount)
  return order.slice(0, most).map(([word]) => word)
}

export class Trie {
  children: Record<string, Trie> = {}
  end = false

  insert(word: string): void {
    let node: Trie = this
    for (const letter of word) {
      node = node.children[letter] ??= new Trie()
    }
    node.end = true
  }
}
""",
    "__tests__/words.test.ts": """import { Trie, countWords, top } from "../src/words"

test.each([
  ["b a b", "b", 2],
  ["one two Two", "two", 2],
  ["x", "x", 1],
  ["go Go gO", "go", 3],
  ["tea for two", "for", 1],
])("counts %s", (text, word, n) => {
  expect(countWords(text).get(word)).toBe(n)
})
describe("top", () => {
  it("orders", () => {
    expect(top(countWords("b a c a b a"), 2)).toEqual(["a", "b"])
    expect(top(countWords("z y"), 5)).toEqual(["y", "z"])
    expect(top(new Map([["q", 4], ["r", 9], ["s", 4]]), 3)).toEqual(["r", "q", "s"])
    expect(top(new Map(), 3)).toEqual([])
  })
})
test("trie", () => {
  const trie = new Trie()
  trie.insert("ab")
  trie.insert("b")
  trie.insert("cde")
  expect(trie.children.a.children.b.end).toBe(true)
  expect(trie.children.c.children.d.end).toBe(false)
})
""",
}

MOCHA = {
    "LICENSE": _LICENCE,
    "package.json": json.dumps(
        {
            "name": "ranges",
            "version": "1.0.0",
            "type": "module",
            "scripts": {"test": "mocha"},
            "devDependencies": {"mocha": "^11.0.0", "chai": "^5.0.0"},
        }
    ),
    "index.js": """export * from "./lib/ranges.js"

/** Return how many numbers there are in ranges that do not overlap. */
export function size(ranges) {
  let sum = 0
  for (const [first, last] of ranges) {
    sum += last - first + 1
  }
  return sum
}
""",
    "lib/ranges.js": """// Parse ranges such as "1-3,7".
export function parse(text) {
  const found = []
  for (const part of text.split(",")) {
    const [first, last = first] = part.split("-").map(Number)
    if (Number.isNaN(first) || last < first) throw new RangeError(`no range: ${part}`)
    found.push([first, last])
  }
  return found
}

export function* numbers(ranges) {
  for (const [first, last] of ranges) {
    for (let n = first; n <= last; n++) yield n
  }
}

export const api = {
  merge(ranges) {
    const order = [...ranges].sort((a, b) => a[0] - b[0])
    const merged = []
    for (const [first, last] of order) {
      const before = merged.at(-1)
      if (before && first <= before[1] + 1) before[1] = Math.max(before[1], last)
      else merged.push([first, last])
    }
    return merged
  },
}
""",
    "test/ranges.spec.js": """import { expect } from "chai"
import { api, numbers, parse, size } from "../index.js"

const PARSED = [["1-3", [[1, 3]]], ["7", [[7, 7]]], ["1-2,5", [[1, 2], [5, 5]]], ["10-12,20-21", [[10, 12], [20, 21]]]]

describe("ranges", function () {
  for (const [text, wanted] of PARSED) {
    it(`parses ${text}`, () => expect(parse(text)).to.deep.equal(wanted))
  }
  it("refuses", () => expect(() => parse("3-1")).to.throw(RangeError))
  it("counts", () => {
    expect([...numbers([[1, 3], [5, 5]])]).to.deep.equal([1, 2, 3, 5])
    expect([...numbers([[4, 6]])]).to.deep.equal([4, 5, 6])
    expect([...numbers([])]).to.deep.equal([])
    expect(size([[1, 3], [5, 5]])).to.equal(4)
    expect(size([[2, 9], [11, 17], [30, 30]])).to.equal(16)
    expect(size([])).to.equal(0)
  })
  it("merges", () => {
    expect(api.merge([[5, 6], [1, 3], [2, 4]])).to.deep.equal([[1, 6]])
    expect(api.merge([[1, 1], [9, 9], [4, 7]])).to.deep.equal([[1, 1], [4, 7], [9, 9]])
    expect(api.merge([[10, 20], [12, 13]])).to.deep.equal([[10, 20]])
  })
})
""",
}

NODE = {
    "LICENSE": _LICENCE,
    "package.json": json.dumps(
        {
            "name": "stack",
            "version": "1.0.0",
            "type": "module",
            "scripts": {"test": "node --test"},
            "devDependencies": {"typescript": "^5"},
        }
    ),
    "src/calc.ts": """export type Token = { kind: "number"; value: number } | { kind: "op"; value: string }

/** Split an expression in reverse Polish notation. */
export function tokens(text: string): Token[] {
  const found: Token[] = []
  for (const word of text.split(" ").filter(Boolean)) {
    if (/^-?\\d+(\\.\\d+)?$/.test(word)) found.push({ kind: "number", value: Number(word) })
    else found.push({ kind: "op", value: word })
  }
  return found
}

export function evaluate(text: string): number {
  const stack: number[] = []
  for (const token of tokens(text)) {
    if (token.kind === "number") {
      stack.push(token.value)
      continue
    }
    const right = stack.pop()
    const left = stack.pop()
    if (left === undefined || right === undefined) throw new Error("too few operands")
    switch (token.value) {
      case "+": stack.push(left + right); break
      case "-": stack.push(left - right); break
      case "*": stack.push(left * right); break
      default: throw new Error(`unknown operator ${token.value}`)
    }
  }
  return stack[0]
}
""",
    "lib/shelf.cjs": """"use strict"

function Shelf(width) {
  this.width = width
  this.rows = [[]]
}

Shelf.prototype.put = function (book, thickness) {
  let row = this.rows[this.rows.length - 1]
  const used = row.reduce((sum, [, size]) => sum + size, 0)
  if (used + thickness > this.width) this.rows.push((row = []))
  row.push([book, thickness])
  return this
}

function fee(days) {
  if (days > 40) {
    return -1
  }
  return days * days + 3
}

module.exports = {
  Shelf,
  fee,
  widest(sizes) {
    let best = -Infinity
    for (const size of sizes) {
      if (size > best) best = size
    }
    return sizes.length ? best : 0
  },
}
""",
    "test/calc.test.ts": """import assert from "node:assert/strict"
import { describe, it } from "node:test"
import { evaluate, tokens } from "../src/calc.ts"

describe("calc", () => {
  it("splits", () => assert.deepEqual(tokens("1 +"), [{ kind: "number", value: 1 }, { kind: "op", value: "+" }]))
  for (const [text, wanted] of [["1 2 +", 3], ["5 3 -", 2], ["4 2.5 *", 10], ["1 2 + 3 *", 9], ["-4 9 +", 5]] as const) {
    it(`evaluates ${text}`, () => assert.equal(evaluate(text), wanted))
  }
  it("refuses", () => { assert.throws(() => evaluate("1 +"), /too few/) })
})
""",
    "test/shelf.test.cjs": """const assert = require("node:assert/strict")
const { test } = require("node:test")
const { Shelf, fee, widest } = require("../lib/shelf.cjs")

test("puts", () => {
  const shelf = new Shelf(10).put("a", 4).put("b", 5).put("c", 3).put("d", 7).put("e", 1)
  assert.deepEqual(shelf.rows, [[["a", 4], ["b", 5]], [["c", 3], ["d", 7]], [["e", 1]]])
})
test("charges", () => {
  for (const [days, wanted] of [[1, 4], [2, 7], [5, 28], [7, 52], [12, 147]]) assert.equal(fee(days), wanted)
})
test("finds the widest", () => {
  assert.equal(widest([4, 9, 2]), 9)
  assert.equal(widest([-3, -8]), -3)
  assert.equal(widest([6]), 6)
  assert.equal(widest([]), 0)
})
""",
}

PROJECTS: Mapping[str, Mapping[str, str]] = {"vitest": VITEST, "jest": JEST, "mocha": MOCHA, "node": NODE}


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write a project below `root`."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root
