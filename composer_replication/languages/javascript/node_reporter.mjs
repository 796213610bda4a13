// Writes the outcome of each test that node:test runs to a file of its own, a line each.
import fs from "node:fs"

const line = (found) => fs.appendFileSync(process.env.COMPOSER_OUTCOMES, JSON.stringify([process.env.COMPOSER_MARK, ...found]) + "\n")
const MOST = 500

export default async function* (events) {
  const path = []
  for await (const { type, data } of events) {
    if (type === "test:start") {
      path.length = data.nesting
      path[data.nesting] = data.name
    } else if ((type === "test:pass" || type === "test:fail") && data.details?.type !== "suite") {
      const name = [...path.slice(0, data.nesting), data.name].join(" > ")
      const skipped = data.skip !== undefined || data.todo !== undefined
      const state = skipped ? "skipped" : type === "test:pass" ? "passed" : "failed"
      const error = data.details?.error
      const said = state === "failed" ? String(error?.cause?.message ?? error?.message ?? error).split("\n").find((text) => text.trim()) : ""
      line([process.env.COMPOSER_TEST, name, state, (said ?? "").slice(0, MOST)])
    }
  }
}
