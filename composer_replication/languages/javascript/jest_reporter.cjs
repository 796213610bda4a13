// Writes the outcome of each test that jest runs to a file of its own, a line each.
"use strict"

const fs = require("node:fs")

const line = (found) => fs.appendFileSync(process.env.COMPOSER_OUTCOMES, JSON.stringify([process.env.COMPOSER_MARK, ...found]) + "\n")
const COLOURS = /\u001b\[[0-9;]*m/g
const STATES = { passed: "passed", failed: "failed" }
const first = (text) => String(text ?? "").replace(COLOURS, "").split("\n").find((one) => one.trim() && !/^\s*●/.test(one))?.trim().slice(0, 500) ?? ""

module.exports = class {
  onTestResult(test, found) {
    if (found.testExecError || (found.failureMessage && !found.testResults.length)) {
      line([test.path, "", "error", first(found.testExecError?.message ?? found.failureMessage)])
    }
    for (const one of found.testResults) {
      line([test.path, [...one.ancestorTitles, one.title].join(" > "), STATES[one.status] ?? "skipped", first(one.failureMessages[0])])
    }
  }
}
