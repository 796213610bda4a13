// Writes the outcome of each test of tape or tap to a file of its own, a line each: from their objects, not from what is printed.
import fs from "node:fs"
import { createRequire } from "node:module"
import path from "node:path"
import { pathToFileURL } from "node:url"

const MOST = 500
const here = createRequire(path.join(process.cwd(), "package.json"))
const line = (found) =>
  fs.appendFileSync(process.env.COMPOSER_OUTCOMES, JSON.stringify([process.env.COMPOSER_MARK, process.env.COMPOSER_TEST, ...found]) + "\n")

function listenToTape(tape) {
  const tests = new Map()
  tape.createStream({ objectMode: true }).on("data", (row) => {
    if (row.type === "test") {
      const above = tests.get(row.parent)
      tests.set(row.id, { name: above ? `${above.name} > ${row.name}` : row.name, said: "", failed: false, skipped: Boolean(row.skip || row.todo) })
    } else if (row.type === "assert") {
      const test = tests.get(row.test)
      if (!test || row.ok || row.todo) return
      test.failed = true
      test.said = test.said || String(row.error?.message ?? row.name).split("\n")[0]
    } else if (row.type === "end") {
      const test = tests.get(row.test)
      if (test) line([test.name, test.failed ? "failed" : test.skipped ? "skipped" : "passed", test.said.slice(0, MOST)])
    }
  })
}

function listenToTap(tap) {
  if (!tap?.parser?.on || tap.composerListens) return
  Object.defineProperty(tap, "composerListens", { value: true })
  tap.parser.on("assert", (found) => {
    if (!found.name) return
    const said = found.diag?.message ?? found.diag?.found ?? ""
    line([found.name, found.skip || found.todo ? "skipped" : found.ok ? "passed" : "failed", String(said).slice(0, MOST)])
  })
}

if (process.env.COMPOSER_FRAMEWORK === "tape") {
  listenToTape(here("tape"))
} else {
  for (const load of [async () => here("tap"), () => import(pathToFileURL(here.resolve("tap")).href)]) {
    try {
      const tap = await load()
      listenToTap(tap.default ?? tap)
      listenToTap(tap)
    } catch {} // a package for one kind of module alone
  }
}
