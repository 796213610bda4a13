// Values as plain data, and back: `k` is the kind, `t` the type, `v` the text of a plain value, `e` what is inside.
"use strict"

const MOST = 400, DEEPEST = 8, LONGEST = 10000
const owners = new Map(), functions = new Map(), classes = new Map(), prototypes = new Map()
const BUILT_IN = [Error, TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError]
const ARRAYS = [
  Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array, Float64Array,
]
for (const known of BUILT_IN) {
  classes.set(known.prototype, known.name)
  prototypes.set(known.name, known.prototype)
}
for (const known of [String, Number, Boolean, Object, Array, Date, RegExp, Map, Set, BigInt, parseInt, parseFloat, ...BUILT_IN]) {
  functions.set(known, known.name)
}
const byName = new Map([...functions].map(([value, name]) => [name, value]))

// Takes what a module says of itself: functions that return what its names stand for, and names of classes with private fields.
function expose(path, getters, hidden) {
  for (const [name, get] of Object.entries(getters)) {
    owners.set(`${path}::${name}`, get)
    let value
    try {
      value = get()
    } catch {
      continue
    }
    if (typeof value !== "function" || functions.has(value)) continue
    functions.set(value, `${path}::${name}`)
    byName.set(`${path}::${name}`, value)
    const prototype = value.prototype
    if (prototype !== null && typeof prototype === "object" && !hidden.includes(name)) {
      classes.set(prototype, `${path}::${name}`)
      prototypes.set(`${path}::${name}`, prototype)
    }
  }
}

function seen(value, room = { left: MOST, path: new Set() }, depth = 0) {
  if (--room.left < 0 || depth > DEEPEST) return { k: "more" }
  switch (typeof value) {
    case "undefined": return { k: "undefined" }
    case "boolean": return { k: "bool", t: "boolean", v: String(value) }
    case "number": return { k: "float", t: "number", v: value === 0 ? "0" : String(value) }
    case "bigint": return { k: "int", t: "bigint", v: String(value) }
    case "string": return value.length <= LONGEST && value.isWellFormed() ? { k: "string", t: "string", v: value } : { k: "more" }
    case "function": return functions.has(value) ? { k: "function", t: functions.get(value) } : { k: "opaque" }
    case "symbol": return { k: "opaque" }
  }
  if (value === null) return { k: "null" }
  if (room.path.has(value)) return { k: "opaque" }
  room.path.add(value)
  try {
    return seenObject(value, (inner) => seen(inner, room, depth + 1))
  } finally {
    room.path.delete(value)
  }
}

function seenObject(value, look) {
  const prototype = Object.getPrototypeOf(value)
  if (Object.getOwnPropertySymbols(value).length) return { k: "opaque" }
  if (Array.isArray(value)) return prototype === Array.prototype ? { k: "list", t: "Array", e: Array.from(value, look) } : { k: "opaque" }
  if (prototype === Map.prototype) return { k: "map", t: "Map", e: ordered([...value].map(([key, inner]) => [look(key), look(inner)])) }
  if (prototype === Set.prototype) return { k: "list", t: "Set", e: ordered([...value].map(look)) }
  if (prototype === Date.prototype) return { k: "float", t: "Date", v: String(value.getTime()) }
  if (prototype === RegExp.prototype) return { k: "string", t: "RegExp", v: String(value) }
  if (typeof URL === "function" && prototype === URL.prototype) return { k: "string", t: "URL", v: value.href }
  if (typeof Buffer === "function" && prototype === Buffer.prototype) return { k: "list", t: "Buffer", e: Array.from(value, look) }
  const array = ARRAYS.find((known) => prototype === known.prototype)
  if (array) return { k: "list", t: array.name, e: Array.from(value, look) }
  if (prototype === null || prototype === Object.prototype) {
    const fields = fieldsOf(value)
    return fields ? { k: "map", t: "Object", e: fields.map(([name, inner]) => [look(name), look(inner)]) } : { k: "opaque" }
  }
  const name = classes.get(prototype)
  if (name === undefined || isExotic(value)) return { k: "opaque" }
  const fields = fieldsOf(value)
  if (!fields) return { k: "opaque" }
  if (value instanceof Error) fields.unshift(["message", value.message])
  return { k: "struct", t: name, e: fields.map(([field, inner]) => [field, look(inner)]) }
}

// Returns what is seen of a map or set in one order, whatever theirs is: tests compare them so.
function ordered(items) {
  const texts = new Map(items.map((item) => [item, JSON.stringify(item)]))
  return items.sort((one, other) => (texts.get(one) < texts.get(other) ? -1 : 1))
}

// Returns the own fields of an object in the order of their names, without those that are undefined; nothing where one is computed.
function fieldsOf(value) {
  const found = []
  for (const name of Object.keys(value).sort()) {
    const field = Object.getOwnPropertyDescriptor(value, name)
    if (!("value" in field) || !name.isWellFormed()) return undefined
    if (field.value !== undefined) found.push([name, field.value])
  }
  return found
}

// Returns whether an object has something inside that its fields do not show.
function isExotic(value) {
  const hidden = [Map, Set, WeakMap, WeakSet, Date, RegExp, Promise, ArrayBuffer, String, Number, Boolean, Function]
  return hidden.some((known) => value instanceof known) || ArrayBuffer.isView(value)
}

function built(node) {
  switch (node.k) {
    case "undefined": return undefined
    case "null": return null
    case "bool": return node.v === "true"
    case "int": return BigInt(node.v)
    case "float": return node.t === "Date" ? new Date(Number(node.v)) : Number(node.v)
    case "string": return node.t === "RegExp" ? pattern(node.v) : node.t === "URL" ? new URL(node.v) : node.v
    case "function": return known(byName, node.t)
    case "list": return list(node.t, node.e.map(built))
    case "map": return map(node.t, node.e.map(([key, inner]) => [built(key), built(inner)]))
    case "struct": return struct(node)
  }
  throw new Error(`a value of the kind ${node.k} cannot be made`)
}

function known(table, name) {
  if (!table.has(name)) throw new Error(`there is no ${name}`)
  return table.get(name)
}

function pattern(text) {
  const end = text.lastIndexOf("/")
  return new RegExp(text.slice(1, end), text.slice(end + 1))
}

function list(type, items) {
  if (type === "Array") return items
  if (type === "Set") return new Set(items)
  if (type === "Buffer") return Buffer.from(items)
  return ARRAYS.find((one) => one.name === type).from(items)
}

function map(type, pairs) {
  if (type === "Map") return new Map(pairs)
  const made = {}
  for (const [name, value] of pairs) {
    Object.defineProperty(made, name, { value, writable: true, enumerable: true, configurable: true })
  }
  return made
}

function struct(node) {
  const prototype = known(prototypes, node.t)
  const made = Error.prototype.isPrototypeOf(prototype) || prototype === Error.prototype ? new Error("") : {}
  Object.setPrototypeOf(made, prototype)
  for (const [name, inner] of node.e) {
    const enumerable = !(made instanceof Error && name === "message")
    Object.defineProperty(made, name, { value: built(inner), writable: true, enumerable, configurable: true })
  }
  return made
}

module.exports = { built, expose, owners, seen }
