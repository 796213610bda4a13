// Building the page. Text reaches the document only as text nodes and attributes, never as markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child != null && child !== false) node.append(child instanceof Node ? child : visible(String(child)));
  }
  return node;
}

/** An HTML element: attributes (`onclick` and the like are listeners), then children (nodes, strings, nested lists, null). */
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** The same for SVG. */
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** The text with every character shown that would otherwise be invisible or reorder its surroundings. */
function visible(text) {
  return text
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
      (c) => '\u27e8U+' + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0') + '\u27e9');
}

/** A number for people: at most four significant digits, or the word for one that is not finite. */
function number(value) {
  if (typeof value !== 'number') return value == null ? 'n/a' : value;
  if (Number.isInteger(value)) return value.toLocaleString('en');
  const size = Math.abs(value);
  if (size >= 1e4) return Math.round(value).toLocaleString('en');
  return size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** A number short enough to stand beside an axis: `0.25`, `12k`, `4e-4`. */
function tickLabel(value) {
  const size = Math.abs(value);
  if (size >= 1e4) return new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 4 }).format(value);
  return size > 0 && size < 1e-2 ? String(Number(value.toPrecision(4)).toExponential()) : number(value);
}

/** `1 turn`, `2 turns`. */
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? '' : 's'}`;
