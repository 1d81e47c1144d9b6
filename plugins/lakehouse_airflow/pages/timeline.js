// The tab Timeline: instants as bars on a canvas, a lane per service, zoom by drag; fluid with 100,000 instants.
import { h, UI, useData, useQuery, useState, useEffect, useRef, useMemo, count, seconds, size, absolute, Fragment } from './core.js';
import { Panel, Waiting, Failure, State, Go } from './ui.js';
import { ActionButton } from './actions.js';
import { dagRun } from './queue.js';
import { place, decimate, lanesOf, publications, serviceRuns, ticks, word, operationWord, NO_INSTANTS, PUBLISH } from './timeline-model.js';
import { InstantList } from './timeline-list.js';

const { Box, Flex, Text, Button } = UI;
const LANE = 30; const LEFT = 150; const TOP = 22;

export function Timeline({ table, data, may, reload }) {
  const [get, set] = useQuery();
  const archived = get('archived') === 'true';
  const read = useData(`tables/${encodeURIComponent(table)}/timeline${archived ? '?archived=true' : ''}`);
  const runs = useData(`tables/${encodeURIComponent(table)}/runs`).data;
  const publishes = data.spec.services && data.spec.services.publish && !archived;
  const status = useData(publishes ? `tables/${encodeURIComponent(table)}/publication` : null).data;
  const published = useMemo(() => publications(status), [status]);
  if (read.error && !read.data) return h(Failure, { error: read.error });
  if (!read.data) return h(Fragment, null, h(Text, { role: 'status', color: 'fg.muted', mb: 3 }, `Reading the ${archived ? 'archive' : 'timeline'} of ${table} from storage …`), h(Waiting));
  return h(Chart, { bars: read.data, published, runs: runs ? runs.runs : [], table, data, may, reload, get, set, archived });
}

function Chart({ bars, published, runs, table, data, may, reload, get, set, archived }) {
  const only = get('service');
  const more = useMemo(() => (archived ? [] : [...published, ...serviceRuns(runs, bars)]), [bars, published, runs, archived]);
  const model = useMemo(() => place(bars, only, more), [bars, only, more]);
  const lanes = useMemo(() => lanesOf(bars, more), [bars, more]);
  const whole = [model.first, model.last];
  const from = Number(get('from')) || whole[0]; const to = Number(get('to')) || whole[1];
  const canvas = useRef(null); const drag = useRef(null); const [hover, setHover] = useState(null); const [width, setWidth] = useState(900);
  const [chosen, setChosen] = [get('instant'), (instant) => set({ instant }, { keepPage: true })];
  const shownLanes = lanes.filter(([service]) => !only || service === only);
  const height = TOP + LANE * Math.max(1, shownLanes.length) + 6;
  const zoom = (a, b) => { const [x, y] = a < b ? [a, b] : [b, a]; if (y - x < 2) return; set({ from: Math.round(x), to: Math.round(y) }, { keepPage: true }); };
  const byInstant = useMemo(() => new Map(runs.filter((r) => r.instant).map((r) => [r.instant, r])), [runs]);
  const boxes = useMemo(() => decimate(model, shownLanes.map(([service]) => service), from, to, Math.max(100, width - LEFT)), [model, from, to, width, only, lanes]);
  useEffect(() => {
    const element = canvas.current; if (!element) return undefined;
    const resize = () => setWidth(element.parentElement.clientWidth);
    resize(); const watch = new ResizeObserver(resize); watch.observe(element.parentElement);
    return () => watch.disconnect();
  }, []);
  const dark = document.documentElement.classList.contains('dark');
  useEffect(() => { draw(canvas.current, boxes, { from, to, width, height, lanes: shownLanes, now: bars.now_ms, chosen, hover, dark, drag: drag.current }); });
  const time = (x) => from + ((x - LEFT) / Math.max(1, width - LEFT)) * (to - from);
  const at = (event) => {
    const box = canvas.current.getBoundingClientRect(); const x = event.clientX - box.left; const y = event.clientY - box.top;
    const lane = Math.floor((y - TOP) / LANE);
    const near = boxes.filter((b) => b.lane === lane && x >= LEFT + b.x - 4 && x <= LEFT + b.x + b.w + 4);
    return { x, y, box: near[near.length - 1] || null };
  };
  const move = (event) => { const found = at(event); if (drag.current) { drag.current.x = found.x; setHover({ ...found, box: null }); } else setHover(found); };
  const up = (event) => {
    const begun = drag.current; drag.current = null; const found = at(event);
    if (begun && Math.abs(found.x - begun.begin) > 6) zoom(time(begun.begin), time(found.x));
    else if (found.box) { if (found.box.count > 1) zoom(found.box.begin - 1, Math.max(found.box.end, found.box.begin + 1000)); else if (found.box.instant) setChosen(found.box.instant); }
  };
  const shift = (factor, by) => { const middle = (from + to) / 2 + by * (to - from); const half = ((to - from) / 2) * factor; zoom(middle - half, middle + half); };
  const keys = (event) => {
    const step = { ArrowLeft: [1, -0.2], ArrowRight: [1, 0.2], '+': [0.5, 0], '=': [0.5, 0], '-': [2, 0] }[event.key];
    if (step) { event.preventDefault(); shift(...step); }
    if (event.key === 'Home') set({ from: '', to: '' });
  };
  const visible = model.rows.filter((r) => r.end >= from && r.begin <= to);
  return h(Fragment, null,
    h(Flex, { gap: 2, mb: 3, wrap: 'wrap', align: 'center' },
      h(UI.NativeSelect.Root, { size: 'sm', width: 'auto' }, h(UI.NativeSelect.Field, { value: only, 'aria-label': 'service', onChange: (e) => set({ service: e.target.value }) },
        [['', 'all services'], ...lanes].map(([name, text]) => h('option', { key: name, value: name }, text))), h(UI.NativeSelect.Indicator)),
      h(Button, { size: 'xs', variant: 'outline', onClick: () => shift(0.5, 0) }, 'Zoom in'), h(Button, { size: 'xs', variant: 'outline', onClick: () => shift(2, 0) }, 'Zoom out'),
      h(Button, { size: 'xs', variant: 'outline', onClick: () => set({ from: '', to: '' }) }, 'Whole timeline'),
      h(Button, { size: 'xs', variant: archived ? 'solid' : 'outline', 'aria-pressed': archived, onClick: () => set({ archived: archived ? '' : 'true', from: '', to: '', instant: '' }) }, archived ? 'Active timeline' : 'Archive'),
      h(Text, { fontSize: 'sm', color: 'fg.muted' }, `${count(visible.length)} of ${count(model.rows.length)} instants; drag to zoom, click for the plan or commit`)),
    h(Box, { position: 'relative', borderWidth: 1, borderColor: 'border', borderRadius: 'md', overflow: 'hidden' },
      h('canvas', { ref: canvas, tabIndex: 0, role: 'img', 'aria-label': `Timeline of ${table}: ${count(visible.length)} instants from ${absolute(from)} to ${absolute(to)}`, 'data-boxes': boxes.length,
        style: { width: '100%', height, display: 'block', cursor: 'crosshair' }, onKeyDown: keys, onMouseMove: move, onMouseLeave: () => setHover(null), onMouseDown: (e) => { const f = at(e); drag.current = { begin: f.x, x: f.x }; },
        onMouseUp: up, onDoubleClick: () => set({ from: '', to: '' }) }),
      hover && hover.box ? h(Tip, { key: `${hover.box.instant} ${hover.box.count}`, table, hover, runs: byInstant, width, archived }) : null),
    h(Flex, { gap: 4, mt: 2, fontSize: 'xs', color: 'fg.muted' }, LEGEND.map(([name, text]) => h('span', { key: name }, h('span', { style: { display: 'inline-block', width: 10, height: 10, marginRight: 5, background: PALETTE[name] } }), text))),
    chosen ? h(Detail, { table, instant: chosen, run: byInstant.get(chosen), may, reload, archived, close: () => setChosen('') }) : null,
    h(InstantList, { table, service: only, archived, choose: setChosen, range: get('from') || get('to') ? [from, to] : null, others: { only: NO_INSTANTS.includes(only), rows: visible.filter((r) => NO_INSTANTS.includes(r.service)) } }));
}

// Each is visible on the background of the light and of the dark theme.
const PALETTE = { completed: '#22a06b', pending: '#0891b2', failed: '#dc2626', undone: '#d97706', many: '#5b7fa6' };
const LEGEND = [['completed', 'completed'], ['pending', 'pending'], ['failed', 'pending without heartbeat'], ['undone', 'rollback or restore'], ['many', 'several instants; click to zoom']];

function draw(element, boxes, { from, to, width, height, lanes, now, chosen, hover, dark, drag }) {
  if (!element) return;
  const ratio = globalThis.devicePixelRatio || 1; element.width = width * ratio; element.height = height * ratio;
  const g = element.getContext('2d'); g.scale(ratio, ratio);
  const ink = dark ? '#a1a1aa' : '#52525b'; const line = dark ? '#3f3f46' : '#e4e4e7';
  g.clearRect(0, 0, width, height); g.font = '12px sans-serif'; g.fillStyle = ink; g.strokeStyle = line;
  lanes.forEach(([, label], i) => { g.fillStyle = ink; g.fillText(label, 8, TOP + i * LANE + 19); g.beginPath(); g.moveTo(0, TOP + i * LANE); g.lineTo(width, TOP + i * LANE); g.stroke(); });
  const x = (ms) => LEFT + ((ms - from) / (to - from || 1)) * (width - LEFT);
  ticks(from, to, Math.floor((width - LEFT) / 120)).forEach(([ms, text]) => { g.beginPath(); g.moveTo(x(ms), TOP - 4); g.lineTo(x(ms), height); g.stroke(); g.fillStyle = ink; g.fillText(text, x(ms) + 3, 14); });
  g.save(); g.beginPath(); g.rect(LEFT, 0, width - LEFT, height); g.clip();
  boxes.forEach((b) => { g.fillStyle = PALETTE[b.count > 1 && b.kind === 'completed' ? 'many' : b.kind]; g.fillRect(LEFT + b.x, TOP + b.lane * LANE + 6, Math.max(2, b.w), LANE - 12);
    if (b.instant === chosen || (hover && hover.box === b)) { g.strokeStyle = ink; g.strokeRect(LEFT + b.x - 1, TOP + b.lane * LANE + 5, Math.max(2, b.w) + 2, LANE - 10); } });
  if (now >= from && now <= to) { g.strokeStyle = '#3b82f6'; g.beginPath(); g.moveTo(x(now), TOP); g.lineTo(x(now), height); g.stroke(); }
  if (drag) { g.fillStyle = 'rgba(59,130,246,0.2)'; g.fillRect(Math.min(drag.begin, drag.x), TOP, Math.abs(drag.x - drag.begin), height - TOP); }
  g.restore();
}

// A rest of this time over an instant reads its plan or commit; a move over many instants reads none.
const REST_MS = 400;

function Tip({ table, hover, runs, width, archived }) {
  const b = hover.box; const run = runs.get(b.instant);
  const [rested, setRested] = useState(false);
  useEffect(() => { const timer = setTimeout(() => setRested(true), REST_MS); return () => clearTimeout(timer); }, []);
  const readable = rested && b.count === 1 && !NO_INSTANTS.includes(b.service) && !archived;
  const { data, error } = useData(readable ? `tables/${encodeURIComponent(table)}/timeline/${encodeURIComponent(b.instant)}` : null);
  const text = b.count > 1 ? [`${count(b.count)} instants`, `${absolute(b.begin)} to ${absolute(b.end)}`]
    : b.run ? [`${word(b.service)}: ${b.outcome.replaceAll('_', ' ')}`, `${absolute(b.begin)}, ${seconds((b.end - b.begin) / 1000)}`, `run ${b.run}`, ...(b.error ? [b.error] : [])]
    : b.service === PUBLISH ? [`published ${b.partition}`, `version ${b.instant}`, absolute(b.begin)]
    : [`${word(b.service)} ${b.instant}`, b.state === 'completed' ? `${absolute(b.begin)}, ${seconds((b.end - b.begin) / 1000)}` : `${b.state} since ${absolute(b.begin)}${b.kind === 'failed' ? '; no heartbeat' : ''}`,
      ...(run ? [`run ${run.run}, ${run.tries === 1 ? '1 try' : `${run.tries} tries`}${run.error ? `: ${run.error}` : ''}`] : []), ...(data ? decoded(data) : []),
      ...(error ? [`The plan or commit cannot be read: ${error.message}`] : [])];
  return h(Box, { role: 'tooltip', position: 'absolute', pointerEvents: 'none', top: `${hover.y + 14}px`, left: `${Math.min(hover.x + 10, width - 330)}px`, maxW: '20rem', bg: 'bg.panel', borderWidth: 1, borderRadius: 'md', p: 2, shadow: 'md', fontSize: 'xs', zIndex: 5 },
    text.map((t, i) => h(Text, { key: i, fontWeight: i ? 'normal' : 'semibold' }, t)));
}

// Lists of a decoded plan have at most this number of entries.
const MOST = 100;

// The decoded plan or commit in a few lines.
export function decoded({ operation, numbers, plan }) {
  const { bytes, conflicts, ...counts } = numbers;
  const some = Object.entries(counts).filter(([, value]) => value).map(([name, value]) => `${name.replaceAll('_', ' ')}: ${count(value)}`);
  const steps = Object.entries(plan).filter(([, value]) => Array.isArray(value) && value.length).map(([name, value]) => `${name.replaceAll('_', ' ')}: ${value.length < MOST ? value.length : `${MOST} or more`}`);
  return [operation ? operationWord(operation) : '', some.join(', '), bytes ? size(bytes) : '',
    conflicts ? `${count(conflicts)} ${conflicts === 1 ? 'retry' : 'retries'} after conflicts` : '', steps.length ? `plan: ${steps.join(', ')}` : ''].filter(Boolean);
}

function Detail({ table, instant, run, may, reload, archived, close }) {
  const { data, error } = useData(archived ? null : `tables/${encodeURIComponent(table)}/timeline/${encodeURIComponent(instant)}`);
  const actions = h(Flex, { gap: 2 }, data && data.state === 'completed' && data.operation ? h(ActionButton, { table, action: 'restore', label: 'Restore to this', fixed: { instant }, disabled: !may.table, onDone: reload }) : null,
    data && (data.state !== 'completed' || data.operation) ? h(ActionButton, { table, action: 'rollback', fixed: { instant }, disabled: !may.table, onDone: reload }) : null, h(Button, { size: 'xs', variant: 'ghost', onClick: close, 'aria-label': 'Close the detail' }, '✕'));
  return h(Panel, { title: `Instant ${instant}`, mt: 4, actions },
    archived ? h(Text, { color: 'fg.muted' }, 'The plan of an archived instant is not read here; `lakehouse timeline show --archived` lists it.') : null,
    error ? h(Failure, { error }) : null, !data && !error && !archived ? h(Waiting) : null,
    data ? h(Fragment, null, h(Flex, { gap: 3, align: 'center', wrap: 'wrap' }, h(State, { state: data.state === 'completed' ? 'completed' : 'pending' }), h(Text, { fontWeight: 'medium' }, `${word(data.service)}${data.operation && ['write', 'ttl', 'replacement'].includes(data.service) ? `: ${operationWord(data.operation)}` : ''}`), h(Text, null, data.summary),
      maker(run, data) ? h(Go, { to: maker(run, data) }, 'DAG run that made it') : null),
    h(Flex, { gap: 4, mt: 2, wrap: 'wrap', fontSize: 'sm' }, Object.entries(data.numbers).map(([n, v]) => h('span', { key: n }, `${n.replaceAll('_', ' ')}: ${n === 'bytes' ? size(v) : count(v)}`))),
    h(Tree, { name: 'plan', value: data.plan }), h(Tree, { name: 'partitions', value: data.partitions }), h(Tree, { name: 'files', value: data.files }), h(Tree, { name: 'extra metadata', value: data.extra })) : null);
}

// The DAG run of a service is in the catalog; a commit of an ingestion names its own run.
const RUN_ID = /^lakehouse\.ingest\.run_id(\.|$)/;
const maker = (run, data) => dagRun((run && run.run) || (Object.entries(data.extra).find(([name]) => RUN_ID.test(name)) || ['', ''])[1]);

// A value as a tree that opens on demand; long lists show their first 100 entries.
function Tree({ name, value }) {
  if (value === null || typeof value !== 'object') return h(Text, { fontSize: 'sm' }, h('strong', null, `${name}: `), String(value));
  const entries = Object.entries(value); if (!entries.length) return null;
  return h('details', { style: { marginLeft: '0.6rem' } }, h('summary', { style: { cursor: 'pointer', fontSize: '0.9rem' } }, `${name} (${entries.length})`),
    h(Box, { ml: 3 }, entries.slice(0, 100).map(([n, v]) => h(Tree, { key: n, name: n, value: v }))));
}
