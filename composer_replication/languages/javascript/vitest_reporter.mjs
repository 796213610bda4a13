// Writes the outcome of each test that vitest runs to a file of its own, a line each.
import fs from "node:fs"

const line = (found) => fs.appendFileSync(process.env.COMPOSER_OUTCOMES, JSON.stringify([process.env.COMPOSER_MARK, ...found]) + "\n")
const MOST = 500
const first = (errors) => String(errors?.[0]?.message ?? "").split("\n").find((text) => text.trim())?.slice(0, MOST) ?? ""
const STATES = { pass: "passed", passed: "passed", fail: "failed", failed: "failed", skip: "skipped", skipped: "skipped", todo: "skipped" }

export default class {
  written = new Set()

  // vitest up to 3
  onFinished(files = []) {
    for (const file of files) {
      if (file.result?.errors?.length && !file.tasks?.length) line([file.filepath, "", "error", first(file.result.errors)])
      this.tasks(file.filepath, file.tasks ?? [], [])
    }
  }

  tasks(file, tasks, above) {
    if (this.written.has(file) && !above.length) return
    if (!above.length) this.written.add(file)
    for (const task of tasks) {
      const path = [...above, task.name]
      if (task.type === "suite") this.tasks(file, task.tasks, path)
      else line([file, path.join(" > "), STATES[task.result?.state ?? task.mode] ?? "missing", first(task.result?.errors)])
    }
  }

  // vitest from 3
  onTestRunEnd(modules, errors) {
    for (const module of modules) {
      if (this.written.has(module.moduleId)) continue
      this.written.add(module.moduleId)
      const broken = module.errors()
      if (broken.length) line([module.moduleId, "", "error", first(broken)])
      for (const test of module.children.allTests()) {
        const found = test.result()
        line([module.moduleId, test.fullName, STATES[found.state] ?? "missing", first(found.errors)])
      }
    }
    if (errors?.length && !modules.length) line(["", "", "error", first(errors)])
  }
}
