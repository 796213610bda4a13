// Writes down what functions are called with, and which blocks of the code run, a line each.
"use strict"

const fs = require("node:fs")
const { expose, seen } = require("./values.cjs")

const MOST_CALLS = 150, LONGEST = 20000
// Calls of a function that are looked at: when none of the first can be written down, and at all. More are "full": not all are known.
const MOST_IN_VAIN = 50, MOST_TRIED = 3000
const counts = new Map(), known = new Set(), blocks = new Set()
const file = process.env.COMPOSER_RECORD

function write(line) {
  if (file) fs.appendFileSync(file, JSON.stringify(line) + "\n")
}

// Returns the file of tests that runs, as each framework says it.
function running() {
  const worker = globalThis.__vitest_worker__
  if (worker && worker.filepath) return worker.filepath
  const path = jestState().testPath
  return path || process.env.COMPOSER_TEST || process.argv[1] || ""
}

function jestState() {
  try {
    return globalThis.expect.getState()
  } catch {
    return {}
  }
}

// What runs: a test of vitest, or the words of the test's name, which a hook before it notes; empty before the first test.
let named = ""
const current = () => {
  const worker = globalThis.__vitest_worker__
  return worker ? worker.current : named
}

function wordsOf(now) {
  if (now === null || typeof now !== "object") return now || ""
  const names = []
  for (let task = now; task && task.name && task.type !== "module"; task = task.suite) {
    if (task !== task.file) names.unshift(task.name)
  }
  return names.join(" ")
}

function noteTests() {
  if (globalThis.__vitest_worker__) return
  if (typeof globalThis.beforeEach === "function") {
    globalThis.beforeEach(function () {
      named = this && this.currentTest ? this.currentTest.titlePath().join(" ") : jestState().currentTestName || ""
    })
  } else if (process.env.COMPOSER_FRAMEWORK === "node") {
    require("node:test").beforeEach((test) => {
      named = (test.fullName || test.name).split(" > ").join(" ")
    })
  }
}
try {
  noteTests()
} catch {} // loaded while a test runs: its blocks count for all tests of the file

globalThis.__composerExpose = expose
let last
globalThis.__composerHit = (number) => {
  const now = current()
  if (now !== last) {
    last = now
    blocks.clear()
  }
  if (blocks.has(number)) return
  blocks.add(number)
  write(["hit", running(), wordsOf(now), number])
}
globalThis.__composerCalled = (key, given) => {
  let count = counts.get(key)
  if (count === undefined) counts.set(key, (count = { kept: 0, tried: 0 }))
  if (count.kept >= MOST_CALLS || count.tried >= (count.kept ? MOST_TRIED : MOST_IN_VAIN)) return
  if (++count.tried === MOST_TRIED) write(["full", key])
  let line
  try {
    line = JSON.stringify(["call", key, Array.from(given, (value) => seen(value))])
  } catch {
    return
  }
  if (line.length > LONGEST || known.has(line) || /"k":"(opaque|more)"/.test(line)) return
  known.add(line)
  count.kept++
  write(JSON.parse(line))
}
