// Takes what ava's own process says (TAP 13), before it is printed: tests run in threads, and what they print does not come here.
import fs from "node:fs"
import { isMainThread } from "node:worker_threads"

const MOST = 500
let rest = "", found = null

function tell() {
  if (found) {
    fs.appendFileSync(process.env.COMPOSER_OUTCOMES, JSON.stringify([process.env.COMPOSER_MARK, process.env.COMPOSER_TEST, ...found]) + "\n")
  }
  found = null
}

function take(line) {
  const result = /^(not )?ok \d+ - (.*?)( # (?:SKIP|TODO).*)?$/.exec(line)
  if (result) {
    tell()
    const name = result[2].replace(/\\([\\#])/g, "$1").replaceAll(" › ", " > ")
    found = [name, result[3] ? "skipped" : result[1] ? "failed" : "passed", ""]
  } else if (found && found[1] === "failed") {
    const said = /^ {4}(name|message): *(?:>-|\|-)?(.*)$/.exec(line)
    if (said && said[2].trim()) found[2] = `${found[2]} ${said[2].trim()}`.trim().slice(0, MOST)
  }
}

if (isMainThread && /[\\/]ava[\\/].*cli\.m?js$/.test(process.argv[1] ?? "")) {
  process.stdout.write = (chunk, ...more) => {
    const lines = (rest + chunk).split("\n")
    rest = lines.pop()
    lines.forEach(take)
    const done = more.find((one) => typeof one === "function")
    if (done) process.nextTick(done)
    return true
  }
  process.on("exit", tell)
}
