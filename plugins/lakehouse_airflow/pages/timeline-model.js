// The model of the timeline: rows from columns, lanes, and the boxes of a range. Pure: no DOM, tested apart.
// The API serves declared.js, which page_list.py makes from the specs of services.
import { WITHOUT_INSTANT, WORDS as OF_INSTANTS } from './declared.js';

const WRITES = ['commit', 'deltacommit', 'replacecommit'];

// The lane of publications. Rows of services that leave no instant are runs of the catalog.
export const PUBLISH = 'publish';
export const NO_INSTANTS = [PUBLISH, ...WITHOUT_INSTANT];
// Lanes from top to bottom, with their words.
const WORDS = { ...OF_INSTANTS, [PUBLISH]: 'publication' };
export const word = (service) => WORDS[service] || service;
export const operationWord = (operation) => operation.toLowerCase().replaceAll('_', ' ');

export function kindOf(action, state, active) {
  if (state !== 'completed') return active || !WRITES.includes(action) ? 'pending' : 'failed';
  return action === 'rollback' || action === 'restore' ? 'undone' : 'completed';
}

// One row per partition that readers see: a point in time. `instant` is the published version, as a row of the table.
export function publications(status) {
  return (status ? status.partitions : []).filter((p) => p.published && Number.isFinite(Date.parse(p.published))).map((p) => {
    const at = Date.parse(p.published);
    return { instant: p.instant, service: PUBLISH, action: PUBLISH, state: 'completed', begin: at, end: at, kind: 'completed', partition: p.partition };
  });
}

const RUN_KINDS = { committed: 'completed', nothing_to_do: 'completed', running: 'pending', waiting: 'pending', failed: 'failed', died: 'failed' };

// Rows of services that leave no instant, such as archive, since the first instant of the timeline.
export function serviceRuns(runs, bars) {
  const since = bars.begin_ms.length ? bars.begin_ms[0] : 0;
  return runs.filter((r) => WITHOUT_INSTANT.includes(r.service) && r.started_ms >= since).map((r) => ({
    instant: '', service: r.service, action: r.service, state: r.ended_ms ? 'completed' : 'inflight', begin: r.started_ms,
    end: Math.max(r.started_ms, r.ended_ms || bars.now_ms), kind: RUN_KINDS[r.state] || 'completed', run: r.run, outcome: r.state, error: r.error,
  }));
}

// Rows ordered by begin. A pending row ends at the time of the read. `more` are rows that are no instants.
export function place(bars, only = '', more = []) {
  const active = new Set(bars.active); const rows = []; let longest = 0;
  for (let i = 0; i < bars.instants.length; i += 1) {
    if (only && bars.services[i] !== only) continue;
    const end = Math.max(bars.begin_ms[i], bars.end_ms[i] ?? bars.now_ms);
    // A savepoint has the requested time of its commit, which may be much older.
    const begin = bars.actions[i] === 'savepoint' && bars.end_ms[i] ? end : bars.begin_ms[i];
    rows.push({ instant: bars.instants[i], service: bars.services[i], action: bars.actions[i], state: bars.states[i], begin, end, kind: kindOf(bars.actions[i], bars.states[i], active.has(bars.instants[i])) });
  }
  for (let i = 0; i < more.length; i += 1) if (!only || more[i].service === only) rows.push(more[i]);
  rows.sort((a, b) => a.begin - b.begin);
  let last = rows.length ? rows[0].begin : bars.now_ms; const first = rows.length ? rows[0].begin : bars.now_ms - 3600000;
  for (let i = 0; i < rows.length; i += 1) { last = Math.max(last, rows[i].end); longest = Math.max(longest, rows[i].end - rows[i].begin); }
  last = Math.max(last, first + 1000);
  const pad = Math.max(1000, (last - first) * 0.02);
  return { rows, longest, first: first - pad, last: last + pad };
}

// Lanes that have rows: [service, word].
export function lanesOf(bars, more = []) {
  const used = new Set(bars.services); more.forEach((row) => used.add(row.service));
  return [...Object.keys(WORDS), ...[...used].filter((service) => !WORDS[service])].filter((service) => used.has(service)).map((service) => [service, word(service)]);
}

// Boxes to draw for a range: rows of one lane that fall on the same pixels become one box, so that the number of boxes
// is bounded by the width of the canvas, whatever the number of rows.
export function decimate(model, lanes, from, to, width) {
  const { rows } = model; const scale = width / (to - from || 1);
  let low = 0; let high = rows.length; const begin = from - model.longest;
  while (low < high) { const middle = (low + high) >> 1; if (rows[middle].begin < begin) low = middle + 1; else high = middle; }
  const number = new Map(lanes.map((service, i) => [service, i])); const boxes = []; const open = new Map();
  for (let i = low; i < rows.length && rows[i].begin <= to; i += 1) {
    const r = rows[i]; const lane = number.get(r.service);
    if (lane === undefined || r.end < from) continue;
    const x = Math.max(-2, Math.floor((r.begin - from) * scale)); const right = Math.min(width + 2, Math.ceil((r.end - from) * scale)); const w = Math.max(2, right - x);
    const key = `${lane}/${r.kind}`; const last = open.get(key);
    if (last && x <= last.x + last.w && last.w <= 4 && w <= 4 && x - last.x < 3) { last.count += 1; last.end = Math.max(last.end, r.end); last.w = Math.max(last.w, x + w - last.x); continue; }
    const box = { ...r, lane, x, w, count: 1 };
    boxes.push(box); open.set(key, box);
  }
  return boxes;
}

const STEPS = [1, 5, 15, 60, 300, 900, 3600, 10800, 21600, 86400, 604800, 2592000, 31536000].map((s) => s * 1000);
export function ticks(from, to, most) {
  const step = STEPS.find((s) => (to - from) / s <= Math.max(2, most)) || STEPS[STEPS.length - 1]; const found = [];
  for (let ms = Math.ceil(from / step) * step; ms <= to && found.length < 50; ms += step) {
    const text = new Date(ms).toISOString(); found.push([ms, step >= 86400000 ? text.slice(0, 10) : `${text.slice(5, 10)} ${text.slice(11, step < 60000 ? 19 : 16)}`]);
  }
  return found;
}
