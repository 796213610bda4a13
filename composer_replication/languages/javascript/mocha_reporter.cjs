// Writes the outcome of each test that mocha runs to a file of its own, a line each.
"use strict"

const fs = require("node:fs")

const line = (found) => fs.appendFileSync(process.env.COMPOSER_OUTCOMES, JSON.stringify([process.env.COMPOSER_MARK, ...found]) + "\n")

module.exports = function (runner) {
  const tell = (test, state, error) => {
    const said = String(error?.message ?? error ?? "").split("\n")[0].slice(0, 500)
    line([test.file ?? process.env.COMPOSER_TEST, test.titlePath().join(" > "), state, said])
  }
  runner.on("pass", (test) => tell(test, "passed"))
  runner.on("pending", (test) => tell(test, "skipped"))
  runner.on("fail", (test, error) => tell(test, "failed", error))
}
