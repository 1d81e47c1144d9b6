// The model of the timeline: rows from columns, lanes, and the boxes of a range. Pure: no DOM, tested apart.
const WRITES = ['commit', 'deltacommit', 'replacecommit'];
const ORDER = ['deltacommit', 'commit', 'replacecommit', 'compaction', 'logcompaction', 'clustering', 'indexing', 'clean', 'savepoint', 'rollback', 'restore', 'publish'];

export function kindOf(action, state, active) {
  if (state !== 'completed') return active || !WRITES.includes(action) ? 'pending' : 'failed';
  return action === 'rollback' || action === 'restore' ? 'undone' : 'completed';
}

// The lane of publications, which are no instants of the table.
export const PUBLISH = 'publish';

// One row per partition that readers see: a point in time. `instant` is the published version, as a row of the table.
export function publications(status) {
  return (status ? status.partitions : []).filter((p) => p.published && Number.isFinite(Date.parse(p.published))).map((p) => {
    const at = Date.parse(p.published);
    return { instant: p.instant, action: PUBLISH, state: 'completed', begin: at, end: at, kind: 'completed', partition: p.partition };
  });
}

// Rows ordered by begin. A pending row ends at the time of the read.
export function place(bars, only = '', published = []) {
  const active = new Set(bars.active); const rows = []; let longest = 0;
  for (let i = 0; i < bars.instants.length; i += 1) {
    if (only && bars.actions[i] !== only) continue;
    const begin = bars.begin_ms[i]; const end = Math.max(begin, bars.end_ms[i] ?? bars.now_ms);
    longest = Math.max(longest, end - begin);
    rows.push({ instant: bars.instants[i], action: bars.actions[i], state: bars.states[i], begin, end, kind: kindOf(bars.actions[i], bars.states[i], active.has(bars.instants[i])) });
  }
  if (!only || only === PUBLISH) rows.push(...published);
  rows.sort((a, b) => a.begin - b.begin);
  const first = rows.length ? rows[0].begin : bars.now_ms - 3600000;
  const last = rows.reduce((most, r) => Math.max(most, r.end), first + 1000);
  const pad = Math.max(1000, (last - first) * 0.02);
  return { rows, longest, first: first - pad, last: last + pad };
}

// In a merge-on-read table, a completed compaction is a commit on the timeline.
export function lanesOf(bars, type = '', published = []) {
  const found = new Set(bars.actions); if (published.length) found.add(PUBLISH); const merges = String(type).toUpperCase() === 'MERGE_ON_READ';
  const labels = { deltacommit: 'writes', commit: merges ? 'compacted' : 'writes', replacecommit: 'replaced' };
  return ORDER.filter((action) => found.has(action)).map((action) => [action, labels[action] || action]);
}

// Boxes to draw for a range: rows of one lane that fall on the same pixels become one box, so that the number of boxes
// is bounded by the width of the canvas, whatever the number of rows.
export function decimate(model, lanes, from, to, width) {
  const { rows } = model; const scale = width / (to - from || 1);
  let low = 0; let high = rows.length; const begin = from - model.longest;
  while (low < high) { const middle = (low + high) >> 1; if (rows[middle].begin < begin) low = middle + 1; else high = middle; }
  const number = new Map(lanes.map((action, i) => [action, i])); const boxes = []; const open = new Map();
  for (let i = low; i < rows.length && rows[i].begin <= to; i += 1) {
    const r = rows[i]; const lane = number.get(r.action);
    if (lane === undefined || r.end < from) continue;
    const x = Math.max(-2, Math.floor((r.begin - from) * scale)); const right = Math.min(width + 2, Math.ceil((r.end - from) * scale)); const w = Math.max(2, right - x);
    const key = `${lane}/${r.kind}`; const last = open.get(key);
    if (last && x <= last.x + last.w && last.w <= 4 && w <= 4 && x - last.x < 3) { last.count += 1; last.end = Math.max(last.end, r.end); last.w = Math.max(last.w, x + w - last.x); continue; }
    const box = { lane, x, w, kind: r.kind, count: 1, begin: r.begin, end: r.end, instant: r.instant, action: r.action, state: r.state, partition: r.partition };
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
