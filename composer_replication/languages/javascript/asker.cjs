// Makes calls that are written down, and says what each gave. It never sees what is expected.
"use strict"

const fs = require("node:fs")
const { built, expose, owners, seen } = require("./values.cjs")

const MOST_ITEMS = 100
let blocks = new Set()
globalThis.__composerExpose = expose

// Notes blocks from here on: instrumented modules load the recorder, which would note them elsewhere.
function noteBlocks() {
  globalThis.__composerHit = (number) => void blocks.add(number)
  globalThis.__composerCalled = () => {}
}

// Reads the calls, loads their modules with `load(path)`, and writes a line for each answer.
exports.run = async function (load) {
  const plan = JSON.parse(fs.readFileSync(process.env.COMPOSER_PLAN, "utf-8"))
  const write = (line) => fs.appendFileSync(plan.out, JSON.stringify([plan.mark, ...line]) + "\n")
  const failed = new Set()
  for (const path of plan.modules) {
    try {
      await load(path)
    } catch (error) {
      failed.add(path)
      write([-1, "module", `${path}: ${String(error && error.message).slice(0, 300)}`])
    }
  }
  noteBlocks()
  for (let at = plan.first; at < plan.calls.length; at++) {
    write([at, "begun"])
    write([at, "answer", await steady(plan.calls[at], plan)])
  }
}

async function steady(call, plan) {
  let line
  for (let n = 0; n < plan.repeats; n++) {
    const again = JSON.stringify(await answer(call, plan.details))
    if (line !== undefined && again !== line) return null
    line = again
  }
  return JSON.parse(line)
}

async function answer(call, details) {
  let given, make
  try {
    given = call.given.map(built)
    make = callable(call.key.split("::")[0], call.how)
  } catch {
    return { p: true }
  }
  const before = details ? given.map((value) => seen(value)) : []
  blocks = new Set()
  let result
  try {
    result = look(await inTime(make(given)))
  } catch (error) {
    if (error === LATE) return { p: true }
    result = { k: "throws" }
  }
  const found = { r: [result], a: given.map((value) => seen(value)) }
  return details ? { ...found, b: before, z: [{ k: "undefined" }], h: [...blocks].sort((one, other) => one - other) } : found
}

const LATE = {}
const inTime = async (value) => {
  if (value === null || typeof value !== "object" || typeof value.then !== "function") return value
  let timer
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(LATE), 1000)))
  try {
    return await Promise.race([value, late])
  } finally {
    clearTimeout(timer)
  }
}

// Returns what an iterator still gives as a list, and anything else as it is.
function look(value) {
  const iterates = value !== null && typeof value === "object" && typeof value.next === "function" && typeof value[Symbol.iterator] === "function"
  if (!iterates) return seen(value)
  const items = []
  for (const item of value) {
    items.push(item)
    if (items.length > MOST_ITEMS) return { k: "more" }
  }
  return { ...seen(items), t: "iterator" }
}

// Returns a function that makes a call, given the object that a method is called on in front of its arguments.
function callable(path, how) {
  const get = owners.get(`${path}::${how.owner}`)
  if (!get) throw new Error(`there is no ${how.owner}`)
  const owner = get()
  const { member, kind } = how
  switch (kind) {
    case "function": return (given) => owner.apply(undefined, given)
    case "static": return (given) => owner[member](...given)
    case "new": return (given) => new owner(...given)
    case "method": return ([self, ...given]) => owner.prototype[member].apply(self, given)
    case "get": return ([self]) => Object.getOwnPropertyDescriptor(owner.prototype, member).get.call(self)
    case "set": return ([self, value]) => Object.getOwnPropertyDescriptor(owner.prototype, member).set.call(self, value)
  }
  throw new Error(`there is no kind ${kind}`)
}
