// Charts in SVG: lines with error bars (one colour, dash and marker per arm) and stacked shares. No library.

const HEIGHT = 210;
const MARGIN = { left: 58, right: 12, top: 10, bottom: 38 };
const DASHES = ['', '7 3', '2 3', '9 3 2 3', '12 4', '4 2 1 2'];

/** Round tick values that cover [low, high]. */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
  const found = [];
  for (let i = Math.ceil(low / unit - 1e-9); i * unit <= high + unit * 1e-9; i += 1) found.push(Number((i * unit).toPrecision(12)));
  return found;
}

/** Marker `index` (by arm) at a point. */
function marker(index, x, y, size = 3.2) {
  const shapes = [
    `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0`,
    `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
    `M${x} ${y - size * 1.2}L${x + size * 1.2} ${y + size}H${x - size * 1.2}z`,
    `M${x} ${y - size * 1.3}L${x + size * 1.3} ${y}L${x} ${y + size * 1.3}L${x - size * 1.3} ${y}z`,
  ];
  return svg('path', { class: `fill c${index % 6}`, d: shapes[index % shapes.length] });
}

const finite = (value) => typeof value === 'number';

/** The vertical range of a line chart, error bars included; shares and rewards start at 0. */
function rangeOf(panel) {
  const values = panel.series.flatMap((s) => s.values.flatMap((v, i) => {
    const half = s.se && finite(s.se[i]) ? s.se[i] : 0;
    return finite(v) ? [v - half, v + half] : [];
  }));
  if (!values.length) return [0, 1];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (/^(share|reward)/.test(panel.unit) && low >= -0.25 && high <= 1.25) [low, high] = [Math.min(low, 0), Math.max(high, 1)];
  else if (low > 0 && low < high / 2) low = 0;
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return [low, high];
}

/** The frame of a chart: scales, grid, ticks and axis labels. */
function frame(width, steps, [low, high], unit) {
  const [first, last] = [steps[0], steps[steps.length - 1]];
  const x = (step) => MARGIN.left + (last === first ? 0.5 : (step - first) / (last - first)) * (width - MARGIN.left - MARGIN.right);
  const y = (value) => HEIGHT - MARGIN.bottom - ((value - low) / (high - low)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const bottom = HEIGHT - MARGIN.bottom;
  const whole = ticks(first, last, Math.max(2, Math.floor(width / 90))).filter(Number.isInteger);
  const middle = (MARGIN.top + bottom) / 2;
  const nodes = [
    ticks(low, high, 4).map((t) => [
      svg('path', { class: 'grid', d: `M${MARGIN.left} ${y(t)}H${width - MARGIN.right}` }),
      svg('text', { x: MARGIN.left - 6, y: y(t) + 4, 'text-anchor': 'end' }, tickLabel(t)),
    ]),
    (last === first ? [first] : whole).map((t) => [
      svg('path', { class: 'axis', d: `M${x(t)} ${bottom}v4` }),
      svg('text', { x: x(t), y: bottom + 16, 'text-anchor': 'middle' }, tickLabel(t)),
    ]),
    svg('path', { class: 'axis', d: `M${MARGIN.left} ${MARGIN.top}V${bottom}H${width - MARGIN.right}` }),
    svg('text', { class: 'label', x: (MARGIN.left + width - MARGIN.right) / 2, y: HEIGHT - 5, 'text-anchor': 'middle' }, 'optimizer step'),
    svg('text', { class: 'label', transform: `translate(12 ${middle}) rotate(-90)`, 'text-anchor': 'middle' }, unit),
  ];
  return { x, y, nodes };
}

/** Lines, markers where points are few, and bars of one standard error. A value that is not finite leaves a gap. */
function drawLines(panel, width) {
  const steps = [...new Set(panel.series.flatMap((s) => s.steps))].sort((a, b) => a - b);
  const { x, y, nodes } = frame(width, steps, rangeOf(panel), panel.unit);
  for (const one of panel.series) {
    let path = '';
    let pen = 'M';
    const marks = [];
    one.steps.forEach((step, i) => {
      const value = one.values[i];
      if (!finite(value)) { pen = 'M'; return; }
      path += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = 'L';
      const half = one.se && one.se[i];
      if (finite(half)) {
        const [top, low] = [y(value + half), y(value - half)];
        marks.push(svg('path', { class: `bar c${one.arm % 6}`, d: `M${x(step) - 3} ${top}h6M${x(step)} ${top}V${low}M${x(step) - 3} ${low}h6` }));
      }
      const lonely = !finite(one.values[i - 1]) && !finite(one.values[i + 1]);
      if (one.steps.length <= 12 || lonely) marks.push(marker(one.arm, x(step), y(value)));
    });
    nodes.push(svg('path', { class: `line c${one.arm % 6}`, d: path, 'stroke-dasharray': DASHES[one.arm % 6] }), marks);
  }
  return { steps, x, nodes };
}

/** Shares of a whole as stacked bands. */
function drawStack(panel, width) {
  const { x, y, nodes } = frame(width, panel.steps, [0, 1], panel.unit);
  const totals = panel.steps.map((_, i) => panel.parts.reduce((sum, p) => sum + (finite(p.values[i]) ? p.values[i] : 0), 0) || 1);
  let floor = panel.steps.map(() => 0);
  panel.parts.forEach((part, index) => {
    const roof = floor.map((f, i) => f + (finite(part.values[i]) ? part.values[i] : 0) / totals[i]);
    const point = (values) => (step, i) => `${x(step).toFixed(1)} ${y(values[i]).toFixed(1)}`;
    const single = panel.steps.length === 1;
    const outline = single
      ? `M${x(panel.steps[0]) - 20} ${y(roof[0])}h40V${y(floor[0])}h-40z`
      : `M${panel.steps.map(point(roof)).join('L')}L${panel.steps.map(point(floor)).reverse().join('L')}z`;
    nodes.push(svg('path', { class: `band c${index % 6} ${index >= 6 ? 'again' : ''}`, d: outline }));
    floor = roof;
  });
  return { steps: panel.steps, x, nodes, totals };
}

/** The legend of a chart; it also holds the values of the step being read. */
function legendOf(panel, arms) {
  const swatch = (index, stacked) => svg('svg', { width: 26, height: 12, 'aria-hidden': 'true' }, stacked
    ? svg('rect', { class: `band c${index % 6} ${index >= 6 ? 'again' : ''}`, x: 2, y: 1, width: 20, height: 10 })
    : [svg('path', { class: `line c${index % 6}`, d: 'M0 6H26', 'stroke-dasharray': DASHES[index % 6] }), marker(index, 13, 6)]);
  const entries = panel.kind === 'stack'
    ? panel.parts.map((part, i) => ({ name: part.name, index: i, part }))
    : panel.series.map((series) => ({ name: arms[series.arm], index: series.arm, series }));
  const step = el('span', { class: 'at' });
  const rows = entries.map((entry) => ({ ...entry, value: el('b') }));
  const node = el('div', { class: 'legend', 'aria-live': 'polite' }, step,
    rows.map((row) => el('span', { class: 'entry' }, swatch(row.index, panel.kind === 'stack'), row.name, ' ', row.value)));
  const read = (at, position, totals) => {
    step.textContent = `step ${number(at)}`;
    for (const { series, part, value } of rows) {
      if (part) {
        value.textContent = `${Math.round((100 * (finite(part.values[position]) ? part.values[position] : 0)) / totals[position])} %`;
        continue;
      }
      const i = series.steps.indexOf(at);
      const se = i >= 0 && series.se ? series.se[i] : null;
      value.textContent = i < 0 ? '\u2013' : number(series.values[i]) + (finite(se) ? ` \u00b1 ${number(se)}` : '');
    }
  };
  return { node, read };
}

/** One chart: title, drawing, legend. It redraws to the width it is given, so text keeps its size on a phone. */
function chart(panel, arms) {
  const picture = svg('svg', { class: 'plot', height: HEIGHT, tabindex: 0, role: 'img', 'aria-label': `${panel.title}, ${panel.unit} by optimizer step` });
  const legend = legendOf(panel, arms);
  const thinned = panel.of > 400 ? el('p', { class: 'small' }, `${number(panel.of)} points, thinned to 400`) : null;
  const figure = el('figure', { class: 'chart' }, el('figcaption', {}, panel.title), picture, legend.node, thinned);
  const cursor = svg('path', { class: 'cursor' });
  let drawn = null;
  let position = 0;
  const move = (to, show) => {
    position = Math.max(0, Math.min(drawn.steps.length - 1, to));
    const at = drawn.steps[position];
    cursor.setAttribute('d', show ? `M${drawn.x(at)} ${MARGIN.top}V${HEIGHT - MARGIN.bottom}` : '');
    legend.read(at, position, drawn.totals);
  };
  const draw = () => {
    const width = Math.max(220, Math.floor(figure.clientWidth));
    if (drawn && drawn.width === width) return;
    drawn = { width, ...(panel.kind === 'stack' ? drawStack : drawLines)(panel, width) };
    picture.setAttribute('width', width);
    picture.replaceChildren(...drawn.nodes.flat(Infinity), cursor);
    move(drawn.steps.length - 1, false);
  };
  picture.addEventListener('pointermove', (event) => {
    const pointed = event.clientX - picture.getBoundingClientRect().left;
    const distances = drawn.steps.map((s) => Math.abs(drawn.x(s) - pointed));
    move(distances.indexOf(Math.min(...distances)), true);
  });
  const leave = () => move(drawn.steps.length - 1, false);
  picture.addEventListener('pointerleave', leave);
  picture.addEventListener('blur', leave);
  picture.addEventListener('keydown', (event) => {
    const to = { ArrowLeft: position - 1, ArrowRight: position + 1, Home: 0, End: drawn.steps.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to, true);
  });
  return { figure, draw };
}

/** All families of metrics, each under its heading. */
function showCurves(root, families, arms) {
  const charts = [];
  const make = (panel) => { const one = chart(panel, arms); charts.push(one); return one.figure; };
  const sections = families.map((family, index) => el('details', { open: true, class: 'family' },
    el('summary', {}, el('h3', { id: `family-${index}` }, family.title)),
    el('div', { class: 'charts' }, family.panels.map(make))));
  root.replaceChildren(...(sections.length ? sections : [el('p', {}, 'No metrics were recorded yet.')]));
  const drawAll = () => charts.forEach((one) => one.figure.clientWidth && one.draw());
  drawAll();
  new ResizeObserver(() => requestAnimationFrame(drawAll)).observe(root);
}
