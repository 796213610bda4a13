// The trajectory reader: choose arm, step and trajectory, filter, and read it turn by turn.

/** `passed`, `failed`, `partial` or `unscored`: an unscored trajectory carries its reason in place of a number. */
function verdict(reward) {
  if (typeof reward !== 'number') return 'unscored';
  return reward >= 1 ? 'passed' : reward > 0 ? 'partial' : 'failed';
}

const badge = (word, text) => el('span', { class: `badge ${word}` }, text === undefined ? word : text);
const spoken = (word) => word.replaceAll('_', ' ');
const told = (turn) => turn.hints.filter((hint) => !hint.dropped);
const hintsOf = (one) => one.turns.reduce((sum, turn) => sum + told(turn).length, 0);
const block = (text, kind) => el('pre', { class: kind, tabindex: 0 }, text === '' ? '(empty)' : text);

function callView(call) {
  return el('p', { class: 'call' }, el('span', { class: 'arrow', 'aria-hidden': 'true' }, '\u2192 '),
    el('code', {}, call.name || '(unreadable call)', ' ', call.arguments), call.error ? badge('failed', call.error) : null);
}

function resultView(result) {
  return el('div', { class: 'result' }, el('h6', {}, 'Reply of ', el('code', {}, result.name || 'the environment'), ' ',
    badge(result.status === 'ok' ? 'passed' : 'failed', spoken(result.status))), block(result.content, 'reply'));
}

function hintView(hint) {
  const origin = hint.source ? ` \u00b7 written by: ${hint.source}` : '';
  return el('aside', { class: hint.dropped ? 'hint untold' : 'hint' }, el('h6', {}, hint.dropped ? 'No hint' : 'Hint'), hint.text ? el('p', {}, hint.text) : null,
    el('p', { class: 'small' }, `finding: ${spoken(hint.kind)}${origin}`,
      el('br'), hint.dropped ? `Not told: ${hint.dropped}.` : 'Shown to the self-teacher before this turn, never to the policy.'));
}

function pairView(pair, open) {
  const votes = Object.entries(pair.votes);
  return el('details', { class: 'pair', open }, el('summary', {}, `Replay pair ${pair.pair_id}: `, plural(votes.length, 'teacher vote')),
    el('p', { class: 'small' }, [['state', pair.state_id], ['trajectory', pair.trajectory_id], ['turn', pair.turn]]
      .filter(([, v]) => v != null).map(([k, v]) => `${k}: ${v}`).join(' \u00b7 ')),
    el('div', { class: 'sides' },
      el('div', {}, el('h6', {}, badge('passed', 'chosen')), block(pair.chosen, 'reply')),
      el('div', {}, el('h6', {}, badge('failed', 'rejected')), block(pair.rejected, 'reply'))),
    votes.length ? el('dl', { class: 'votes' }, votes.map(([teacher, text]) => el('div', {}, el('dt', {}, teacher), el('dd', {}, block(text, 'reply'))))) : null);
}

function turnView(turn, index, pairs) {
  const confidence = turn.logprob == null ? '' : ` \u00b7 mean log-prob ${number(turn.logprob)}`;
  const body = el('div', { class: 'body' }, block(turn.text, 'sampled'), turn.calls.map(callView), turn.results.map(resultView));
  return el('article', { class: `turn${turn.hints.length ? ' found' : ''}${told(turn).length ? ' hinted' : ''}` },
    el('h5', {}, `Turn ${index}`, told(turn).length ? badge('error', 'error turn') : null,
      el('span', { class: 'small' }, `${plural(turn.tokens, 'sampled token')}${confidence} \u00b7 ${plural(turn.observed, 'observed token')}`)),
    el('div', { class: 'columns' }, body, turn.hints.length ? el('div', { class: 'hints' }, turn.hints.map(hintView)) : null),
    pairs.map((pair) => pairView(pair, false)));
}

function gradeView(grade) {
  if (!grade) return el('p', {}, 'This trajectory was not graded.');
  const hidden = grade.tests_recorded - grade.tests.length;
  return el('section', { class: 'grade' }, el('h4', {}, 'Tests'),
    grade.reasons.length ? el('ul', {}, grade.reasons.map((reason) => el('li', {}, reason))) : null,
    grade.alarms.map((alarm) => el('p', {}, badge('error', 'alarm'), ' ', alarm)),
    grade.rejected.length ? el('p', {}, badge('error', 'rejected files'), ' changed but not graded: ', grade.rejected.map((f) => [el('code', {}, f), ' '])) : null,
    el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Test outcomes' },
      el('table', {}, el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'outcome'), el('th', { scope: 'col' }, 'test'))),
        el('tbody', {}, grade.tests.map(([test, outcome]) => el('tr', {}, el('td', {}, badge(outcome === 'passed' ? 'passed' : 'failed', outcome)), el('td', {}, el('code', {}, test))))))),
    hidden ? el('p', { class: 'small' }, `${plural(hidden, 'more test')} left out of the report.`) : null,
    el('p', { class: 'small' }, grade.cached ? 'An identical tree had been graded before; its verdict was reused. ' : '', grade.isolation ? `Graded in ${grade.isolation}` : ''));
}

function trajectoryView(one, messages, pairs) {
  const score = typeof one.reward === 'number' ? `reward ${number(one.reward)}` : `unscored: ${one.reward}`;
  return [
    el('h4', { id: 'chosen', tabindex: -1 }, one.id, ' ', badge(verdict(one.reward), score)),
    el('p', { class: 'small' }, `task ${one.task} \u00b7 stopped: ${spoken(one.stop)} \u00b7 policy version ${one.version} \u00b7 temperature ${number(one.temperature)} \u00b7 `
      + `${plural(one.prompt_tokens, 'prompt token')} \u00b7 ${plural(one.sampled_tokens, 'sampled token')} in ${plural(one.turns.length, 'turn')}`),
    el('details', { class: 'opening' }, el('summary', {}, `Opening messages (${messages.length})`),
      messages.map((message) => [el('h6', {}, message.role), block(message.content, 'reply')])),
    one.turns.map((turn, index) => turnView(turn, index, pairs.filter((p) => p.trajectory_id === one.id && p.turn === index))),
    gradeView(one.grade),
  ];
}

/** A labelled `<select>`. */
function chooser(label, onchange) {
  const select = el('select', { onchange });
  const set = (options, value) => {
    select.replaceChildren(...options.map(([v, text]) => el('option', { value: v }, text)));
    if (options.some(([v]) => v === value)) select.value = value;
  };
  return { node: el('label', {}, el('span', {}, label), select), select, set };
}

/** What can be read of an arm: the frozen traces, steps of training, and evaluations; each with a key for addresses and a name. */
function partsOf(arm) {
  const traces = arm.traces.trajectories.length ? [{ ...arm.traces, key: 'traces', name: 'frozen traces', these: 'the frozen traces' }] : [];
  const steps = arm.steps.map((s) => ({ ...s, key: String(s.step), name: number(s.step), these: 'this step' }));
  const evaluations = arm.evaluations.map((s) => ({ ...s, key: `eval-${s.step}`, name: `evaluation at ${number(s.step)}`, these: 'this evaluation' }));
  return [...traces, ...steps, ...evaluations];
}

/** The last step of training, or what there is instead. */
const mainPart = (arm) => String((arm.steps[arm.steps.length - 1] || {}).step ?? partsOf(arm)[0].key);

/** What the page does not show, and where it is. */
function leftOut(arm, part) {
  const trajectories = `${number(part.trajectories.length)} of ${number(part.recorded)} trajectories of ${part.these}`;
  const steps = `${number(arm.steps.length)} of ${plural(arm.recorded, 'recorded step')}`;
  const evaluations = `${number(arm.evaluations.length)} of ${plural(arm.evaluations_recorded, 'evaluation')}`;
  return `The page holds ${trajectories}, ${steps} and ${evaluations} of this arm; trajectories/${arm.arm}/ holds all of them, with token ids and log-probs.`;
}

function filterBar(refresh) {
  const reward = chooser('Reward', refresh);
  reward.set([['', 'any'], ['passed', 'passed'], ['partial', 'partial'], ['failed', 'failed'], ['unscored', 'unscored']], '');
  const stop = chooser('Stop reason', refresh);
  const hinted = el('input', { type: 'checkbox', onchange: refresh });
  const words = el('input', { type: 'search', oninput: refresh });
  const nodes = [reward.node, stop.node, el('label', {}, el('span', {}, 'Contains'), words), el('label', { class: 'tick' }, hinted, el('span', {}, 'has a hint'))];
  const offer = (trajectories) => {
    const reasons = [...new Set(trajectories.map((t) => t.stop))].sort();
    stop.set([['', 'any'], ...reasons.map((r) => [r, spoken(r)])], stop.select.value);
  };
  const accepts = (one) => (!reward.select.value || verdict(one.reward) === reward.select.value)
    && (!stop.select.value || one.stop === stop.select.value) && (!hinted.checked || hintsOf(one) > 0)
    && (!words.value || JSON.stringify(one).toLowerCase().includes(JSON.stringify(words.value).slice(1, -1).toLowerCase()));
  return { nodes, offer, accepts };
}

function listEntry(one, select) {
  const hints = hintsOf(one);
  return el('button', { type: 'button', onclick: () => select(one, true) }, el('span', { class: 'name' }, one.id),
    el('span', {}, badge(verdict(one.reward), typeof one.reward === 'number' ? `reward ${number(one.reward)}` : 'unscored'), ' ', spoken(one.stop), hints ? ` \u00b7 ${plural(hints, 'hint')}` : ''));
}

/** Arrow keys walk through the list of trajectories. */
function walk(event) {
  const buttons = [...event.currentTarget.querySelectorAll('button')];
  const at = buttons.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (to === undefined || !buttons[to]) return;
  event.preventDefault();
  buttons[to].focus();
}

/** The arm, step and trajectory named in the address, so that a trajectory can be linked to. */
const linked = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const remember = (place) => history.replaceState(null, '', `#${new URLSearchParams(place)}`);

function showTrajectories(root, { openings, arms }) {
  const readable = arms.filter((arm) => partsOf(arm).length);
  if (!readable.length) { root.replaceChildren(el('p', {}, 'No trajectories were recorded yet.')); return; }
  const list = el('div', { class: 'list', role: 'group', 'aria-label': 'Trajectories of this step', onkeydown: walk });
  const detail = el('div', { class: 'detail' });
  const count = el('p', { class: 'small', role: 'status' });
  const pairBox = el('div');
  const current = () => {
    const arm = readable.find((a) => a.arm === armChooser.select.value);
    return { arm, step: partsOf(arm).find((part) => part.key === stepChooser.select.value) };
  };
  const select = (one, chosen) => {
    const { arm, step } = current();
    for (const button of list.children) button.setAttribute('aria-current', String(button.dataset.id === one.id));
    detail.replaceChildren(...trajectoryView(one, openings[one.opening], arm.pairs).flat(Infinity));
    if (!chosen) return;
    remember({ arm: arm.arm, step: step.key, trajectory: one.id });
    detail.querySelector('#chosen').focus({ preventScroll: matchMedia('(min-width: 50rem)').matches });
  };
  const refresh = () => {
    const { arm, step } = current();
    const found = step.trajectories.filter(filters.accepts);
    list.replaceChildren(...found.map((one) => { const button = listEntry(one, select); button.dataset.id = one.id; return button; }));
    count.textContent = `${found.length} shown. ${leftOut(arm, step)}`;
    const wanted = linked().trajectory;
    if (found.length) select(found.find((one) => one.id === wanted) || found[0], false);
    else detail.replaceChildren(el('p', {}, `No trajectory of ${step.these} matches the filter.`));
  };
  const chooseStep = () => { filters.offer(current().step.trajectories); refresh(); };
  const chooseArm = (wanted) => {
    const arm = readable.find((a) => a.arm === armChooser.select.value);
    const parts = partsOf(arm);
    stepChooser.set(parts.map((part) => [part.key, part.name]), parts.some((part) => part.key === wanted) ? wanted : mainPart(arm));
    const more = arm.pairs_recorded - arm.pairs.length;
    pairBox.replaceChildren(el('h3', {}, `Replay pairs of ${arm.arm}`), el('p', { class: 'small' }, arm.pairs_recorded
      ? `${plural(arm.pairs_recorded, 'pair')} recorded${more ? `, the newest ${arm.pairs.length} shown` : ''}.` : 'None were recorded for this arm.'),
    ...arm.pairs.map((pair) => pairView(pair, false)));
    chooseStep();
  };
  const armChooser = chooser('Arm', () => chooseArm());
  const stepChooser = chooser('Step', chooseStep);
  const filters = filterBar(refresh);
  const telling = readable.find((a) => a.pairs.length) || readable.find((a) => partsOf(a).some((part) => part.trajectories.some(hintsOf))) || readable[0];
  const names = readable.map((a) => a.arm);
  armChooser.set(names.map((name) => [name, name]), names.includes(linked().arm) ? linked().arm : telling.arm);
  root.replaceChildren(el('form', { class: 'controls', onsubmit: (e) => e.preventDefault() }, armChooser.node, stepChooser.node, filters.nodes), count,
    el('div', { class: 'reading' }, list, detail), pairBox);
  chooseArm(linked().step);
  addEventListener('hashchange', () => {
    if (!names.includes(linked().arm)) return;
    armChooser.select.value = linked().arm;
    chooseArm(linked().step);
    root.scrollIntoView();
  });
}
