// Questions check_report.py asks the open page. Each probe returns plain data.

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Set a control's value and tell the page, as a person's hand would. */
function put(control, value) {
  control.value = value;
  control.dispatchEvent(new Event(control.matches('select') ? 'change' : 'input'));
}

const [arm, step, reward] = all('select');
const words = document.querySelector('input[type=search]');
const tick = document.querySelector('.tick input');
const entries = () => all('.list button');
const detail = () => document.querySelector('.detail');

/** Texts of a chart that overlap one another or leave it. */
function crowdedTexts(plot) {
  const frame = plot.getBoundingClientRect();
  const boxes = all('text', plot).map((text) => ({ text: text.textContent, ...text.getBoundingClientRect().toJSON() }));
  const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
  const touching = boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => !apart(a, b)).map((b) => `${a.text} | ${b.text}`));
  const outside = boxes.filter((b) => b.left < frame.left || b.right > frame.right || b.top < frame.top - 2 || b.bottom > frame.bottom);
  return [...touching, ...outside.map((b) => `outside: ${b.text}`)];
}

function pageFacts() {
  const texts = all('svg.plot text');
  const plots = all('svg.plot');
  const contained = '.scroll, pre, .skip, thead';
  return {
    ready: document.documentElement.dataset.ready,
    inner: innerWidth,
    scroll: document.documentElement.scrollWidth,
    wide: all('body *').filter((n) => n.getBoundingClientRect().right > innerWidth + 1 && !n.closest(contained)).map((n) => n.outerHTML.slice(0, 90)).slice(0, 4),
    plots: plots.length,
    drawn: plots.filter((p) => p.querySelector('.line[d^=M], .band[d^=M]')).length,
    labelled: plots.filter((p) => p.querySelectorAll('text.label').length === 2).length,
    smallest: Math.min(...texts.map((t) => parseFloat(getComputedStyle(t).fontSize))),
    broken: texts.filter((t) => /NaN|undefined|Infinity/.test(t.textContent)).length,
    crowded: plots.flatMap(crowdedTexts).slice(0, 4),
    split: all('td .badge').filter((b) => b.getClientRects().length > 1).length,
    turns: all('.detail .turn').length,
    tests: all('.grade tbody tr').length,
    unlabelled: all('select, input').filter((c) => !c.labels.length).length,
    attacked: window.attacked === 1,
    images: document.images.length,
    scripts: document.scripts.length,
    rows: all('.results tbody tr').length,
  };
}

/** Texts and chart lines whose contrast with what lies behind them is below WCAG 2 AA (4.5 for text, 3 for lines). */
function poorContrast() {
  const channel = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const behind = (node) => {
    for (let n = node; n; n = n.parentElement) {
      const colour = parse(getComputedStyle(n).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    throw new Error('no background');
  };
  const ratio = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  };
  const poor = new Map();
  const judge = (node, colour, least) => {
    const found = ratio(parse(colour), behind(node));
    if (found < least) poor.set(`${node.tagName}.${node.getAttribute('class')}`, found.toFixed(2));
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || /^(script|noscript|style)$/i.test(node.tagName)) continue;
    judge(node, node instanceof SVGElement ? getComputedStyle(node).fill : getComputedStyle(node).color, 4.5);
  }
  all('svg.plot .line').forEach((line) => judge(line, getComputedStyle(line).stroke, 3));
  return [...poor].map((entry) => entry.join(' '));
}

/** What must hold on the run of fixture_run.py; each is a sentence and whether it is true. */
const behaviours = {
  'the arm with replay pairs is shown first': () => arm.value === 'three_channels' && step.value === '40',
  'hints stand beside their error turn, with finding and writer': () => {
    put(step, '10');
    tick.click();
    const hint = document.querySelector('.turn.hinted .hint');
    return entries().length > 0 && /unknown tool/.test(hint.textContent) && /template/.test(hint.textContent);
  },
  "a trace's replay pair stands at its turn, with chosen, rejected and votes": () => {
    put(step, 'traces');
    tick.click();
    const shown = all('.votes dt', document.querySelector('.turn .pair')).length;
    put(step, 'eval-40');
    const evaluated = entries().length === 4 && detail().querySelector('h4').textContent.startsWith('-1/');
    put(step, '10');
    tick.click();
    return shown === 3 && evaluated;
  },
  'the filter on hints narrows the list': () => {
    const hinted = entries().length;
    tick.click();
    return hinted < entries().length && entries().length === 14;
  },
  'the filter on reward narrows the list': () => {
    put(reward, 'passed');
    const shown = entries().length;
    const right = all('.list .badge').every((b) => b.textContent === 'reward 1');
    put(reward, '');
    return shown > 0 && shown < 14 && right;
  },
  'a filter that matches nothing says so': () => {
    put(words, 'no such words anywhere');
    const said = /No trajectory/.test(detail().textContent);
    put(words, '');
    return said;
  },
  'hostile text is shown as text, cut, with its control characters visible': () => {
    put(step, '40');
    put(words, 'onerror');
    const text = detail().textContent;
    put(words, '');
    const parts = ['</script><script>window.attacked=1', 'left out of the report', '\u27e8U+202E\u27e9', '\u241b[31m', '{{script}}'];
    return parts.every((part) => text.includes(part));
  },
  'choosing an arm and a step changes the trajectories': () => {
    put(arm, 'grpo');
    put(step, '10');
    return detail().querySelector('h4').textContent.startsWith('10/');
  },
  'an unscored trajectory says why': () => {
    put(reward, 'unscored');
    const text = detail().querySelector('h4').textContent;
    put(reward, '');
    return text.includes('unscored: the sandbox broke');
  },
  'rejected files are named': () => {
    entries()[3].click();
    return document.querySelector('.grade').textContent.includes('tests/conftest.py');
  },
  'the shares of the stop reasons add up': () => {
    const legends = all('.legend').filter((l) => /max_turns/.test(l.textContent));
    const sums = legends.map((l) => all('b', l).reduce((sum, b) => sum + parseInt(b.textContent, 10), 0));
    return sums.length === 3 && sums.every((sum) => Math.abs(sum - 100) <= 2);
  },
  'a legend reads the last step': () => document.querySelector('.legend .at').textContent === 'step 40',
};

const falseBehaviours = () => Object.entries(behaviours).filter(([, holds]) => !holds()).map(([sentence]) => sentence);
const stepRead = () => document.querySelector('.legend .at').textContent;

/** A point right of the middle of the first chart, in window coordinates. */
function placeOfFirstChart() {
  const chart = document.querySelector('svg.plot');
  chart.scrollIntoView({ block: 'center' });
  const box = chart.getBoundingClientRect();
  return [box.x + 0.55 * box.width, box.y + 0.5 * box.height];
}
