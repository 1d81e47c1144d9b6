// The heat map of the tab Partitions: a calendar of days, or days by the values of another level, with three measures.
import { h, UI, Router, useQuery, useState, useMemo, count, size, seconds, absolute, pagePath, Fragment } from './core.js';
import { daysOf, calendar, bounds, levelOf, MEASURES, DAY_MS } from './heatmap-model.js';

const { Box, Flex, Text, Table, Button } = UI;
// Dark colours of the light theme and light ones of the dark theme are the large values.
const SCALES = {
  size: { light: ['#dbeafe', '#93c5fd', '#3b82f6', '#1d4ed8', '#1e3a8a'], dark: ['#1e3a8a', '#1d4ed8', '#3b82f6', '#93c5fd', '#dbeafe'] },
  small: { light: ['#dcfce7', '#fef3c7', '#fdba74', '#f97316', '#9a3412'], dark: ['#166534', '#854d0e', '#c2410c', '#fb923c', '#fed7aa'] },
  fresh: { light: ['#166534', '#22c55e', '#86efac', '#e7e5e4', '#a8a29e'], dark: ['#bbf7d0', '#4ade80', '#15803d', '#44403c', '#78716c'] },
};
const MOST_DAYS = 371; const MOST_ROWS = 20; const MATRIX_DAYS = 62; const WEEKDAYS = ['Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun'];
const shown = { bytes: size, share: (v) => `${Math.round(v * 100)} %`, seconds: (v) => `${seconds(v)} ago` };
const iso = (ms) => new Date(ms).toISOString().slice(0, 10);

export function isByDay(partitions) { return Boolean(daysOf(partitions)); }

export function HeatMap({ table, partitions, now }) {
  const [get, set] = useQuery();
  const [tip, setTip] = useState(null);
  const found = useMemo(() => daysOf(partitions), [partitions]);
  const name = MEASURES[get('measure')] ? get('measure') : 'size'; const measure = MEASURES[name];
  const navigate = Router.useNavigate();
  const matrix = found.others.length > 1 && found.others.length <= MOST_ROWS;
  const newest = found.days[found.days.length - 1].ms; const oldest = found.days[0].ms;
  const back = Math.min(Number(get('back')) || 0, Math.max(0, newest - oldest)); const span = (matrix ? MATRIX_DAYS : MOST_DAYS) * DAY_MS;
  const last = newest - back; const first = Math.max(oldest, last - span + DAY_MS);
  const days = found.days.filter((d) => d.ms >= first && d.ms <= last);
  const cellsOf = matrix ? days.flatMap((d) => [...d.rows.values()]) : days;
  const limits = bounds(cellsOf.map((c) => measure.of(c, now)), measure.unit);
  const scale = SCALES[name][document.documentElement.classList.contains('dark') ? 'dark' : 'light'];
  const open = (cell) => cell && cell.partitions.length === 1 && navigate(`${pagePath('table', table)}?tab=files&partition=${encodeURIComponent(cell.partitions[0])}`);
  const grid = { days, first, last, scale, limits, measure, now, setTip, open };
  return h(Box, { position: 'relative' },
    h(Flex, { gap: 3, mb: 3, wrap: 'wrap', align: 'center' },
      h(Flex, { role: 'radiogroup', 'aria-label': 'Measure', gap: 1 }, Object.entries(MEASURES).map(([key, { label }]) => h(Button, { key, size: 'xs', role: 'radio', 'aria-checked': key === name, variant: key === name ? 'solid' : 'outline', onClick: () => set({ measure: key === 'size' ? '' : key }, { keepPage: true }) }, label))),
      h(Text, { fontSize: 'sm', color: 'fg.muted' }, `${iso(first)} to ${iso(last)}, ${count(days.length)} days with data${found.left ? `; ${count(found.left)} partitions have no day` : ''}`),
      oldest < first ? h(Button, { size: 'xs', variant: 'ghost', onClick: () => set({ back: newest - first + DAY_MS }, { keepPage: true }) }, '← Older days') : null,
      back ? h(Button, { size: 'xs', variant: 'ghost', onClick: () => set({ back: Math.max(0, back - span) || '' }, { keepPage: true }) }, 'Newer days →') : null),
    matrix ? h(Matrix, { ...grid, rows: found.others }) : h(Calendar, grid),
    h(Legend, { scale, limits, measure }),
    tip ? h(Tip, { tip, now }) : null,
    h('details', { style: { marginTop: '0.75rem' } }, h('summary', { style: { cursor: 'pointer', fontSize: '0.85rem' } }, 'Numbers of these days as a table'),
      h(Box, { maxH: '20rem', overflow: 'auto' }, h(Table.Root, { size: 'sm', 'aria-label': 'Days' }, h(Table.Header, null, h(Table.Row, null, ['day', 'partitions', 'size', 'logs', 'base files', 'small files', 'last write'].map((text, i) => h(Table.ColumnHeader, { key: text, textAlign: i ? 'end' : 'start' }, text)))),
        h(Table.Body, null, [...days].reverse().map((d) => h(Table.Row, { key: d.ms }, [iso(d.ms), count(d.partitions.length), size(d.bytes), size(d.log_bytes), count(d.base_files), count(d.small_files), d.written_ms === null ? '-' : absolute(d.written_ms)].map((text, i) => h(Table.Cell, { key: i, textAlign: i ? 'end' : 'start' }, text)))))))));
}

const fillOf = (cell, { measure, now, scale, limits }) => { const value = cell ? measure.of(cell, now) : null; return value === null ? 'transparent' : scale[levelOf(value, limits)]; };
const titleOf = (label, cell, { measure, now }) => { const value = cell ? measure.of(cell, now) : null; return cell ? `${label}: ${measure.label.toLowerCase()} ${value === null ? 'not known' : shown[measure.unit](value)}` : `${label}: no partition`; };

// One square; a day without a partition has a dashed border, so a gap is seen.
function Square({ cell, label, x, y, side, grid }) {
  const place = (event) => { const box = event.currentTarget.ownerSVGElement.parentElement.parentElement.getBoundingClientRect(); const own = event.currentTarget.getBoundingClientRect(); grid.setTip({ label, cell, x: own.left - box.left + own.width / 2, y: own.bottom - box.top + 6, width: box.width }); };
  const one = cell && cell.partitions.length === 1;
  return h('rect', { x, y, width: side, height: side, rx: 3, fill: fillOf(cell, grid), stroke: cell ? 'var(--chakra-colors-border, #d4d4d8)' : 'var(--chakra-colors-fg-subtle, #a1a1aa)', strokeDasharray: cell ? undefined : '2 2', strokeWidth: 1, 'data-day': label, 'data-quiet': true,
    style: { cursor: one ? 'pointer' : 'default' }, onMouseEnter: place, onMouseLeave: () => grid.setTip(null), onClick: () => grid.open(cell) }, h('title', null, titleOf(label, cell, grid)));
}

const LABEL = { fontSize: '11px', fill: 'var(--chakra-colors-fg-muted, #52525b)' };

function Calendar(grid) {
  const { days, first, last } = grid; const of = new Map(days.map((d) => [d.ms, d]));
  const { cells, columns } = calendar(first, last);
  const side = columns <= 6 ? 34 : columns <= 14 ? 26 : columns <= 28 ? 20 : 15; const step = side + 4; const left = 38; const top = 20;
  const months = cells.filter((c, i) => i === 0 || new Date(c.ms).getUTCDate() === 1).filter((c, i, all) => i === 0 || c.column - all[i - 1].column >= 3 || all.length < 3);
  const width = left + Math.max(columns * step, 48); const height = top + 7 * step;
  return h(Box, { overflowX: 'auto' }, h('svg', { width, height, role: 'img', 'aria-label': sentence(grid), 'data-heatmap': 'calendar', style: { display: 'block' } },
    WEEKDAYS.map((text, i) => h('text', { key: text, x: 0, y: top + i * step + side / 2 + 4, style: LABEL }, text)),
    months.map((c) => h('text', { key: c.ms, x: left + c.column * step, y: 12, style: LABEL }, iso(c.ms).slice(0, 7))),
    cells.map((c) => h(Square, { key: c.ms, cell: of.get(c.ms), label: iso(c.ms), x: left + c.column * step, y: top + c.row * step, side, grid }))));
}

function Matrix({ rows, ...grid }) {
  const { days, first, last } = grid; const of = new Map(days.map((d) => [d.ms, d])); const cells = calendar(first, last).cells;
  const side = cells.length <= 31 ? 24 : 15; const step = side + 3; const left = Math.min(220, 14 + Math.max(...rows.map((r) => r.length)) * 7); const top = 20;
  const every = Math.max(1, Math.ceil(80 / step));
  return h(Box, { overflowX: 'auto' }, h('svg', { width: left + cells.length * step, height: top + rows.length * step, role: 'img', 'aria-label': sentence(grid), 'data-heatmap': 'matrix', style: { display: 'block' } },
    rows.map((row, i) => h('text', { key: row, x: 0, y: top + i * step + side / 2 + 4, style: LABEL }, row.length > 29 ? `${row.slice(0, 28)}…` : row || '(none)', h('title', null, row))),
    cells.map((c, i) => (i % every === 0 ? h('text', { key: c.ms, x: left + i * step, y: 12, style: LABEL }, iso(c.ms)) : null)),
    rows.flatMap((row, i) => cells.map((c, j) => h(Square, { key: `${row} ${c.ms}`, cell: of.has(c.ms) ? of.get(c.ms).rows.get(row) : undefined, label: `${iso(c.ms)} ${row}`, x: left + j * step, y: top + i * step, side, grid })))));
}

function sentence({ days, measure, now }) {
  const known = days.map((d) => [measure.of(d, now), d]).filter(([v]) => v !== null); const most = known.reduce((a, b) => (b[0] > a[0] ? b : a), known[0] || [0, { ms: 0 }]);
  return known.length ? `${measure.label} of ${days.length} days from ${iso(days[0].ms)} to ${iso(days[days.length - 1].ms)}; largest on ${iso(most[1].ms)}: ${shown[measure.unit](most[0])}` : `${measure.label}: not known`;
}

function Legend({ scale, limits, measure }) {
  const text = (i) => (measure.unit === 'share' ? (i === 0 ? '0 %' : `up to ${shown.share(limits[i])}`) : `up to ${measure.unit === 'seconds' ? seconds(limits[i]) : shown[measure.unit](limits[i])}`);
  return h(Flex, { gap: 4, mt: 3, fontSize: 'xs', color: 'fg.muted', wrap: 'wrap', align: 'center' }, h('span', null, { size: 'Bytes of a day', share: 'Base files that are small', seconds: 'Time since the last write' }[measure.unit === 'bytes' ? 'size' : measure.unit]),
    scale.map((colour, i) => (limits[0] === limits[limits.length - 1] && i !== 2 ? null : h('span', { key: i, style: { display: 'inline-flex', alignItems: 'center', gap: '0.3rem' } }, h('span', { 'aria-hidden': true, style: { display: 'inline-block', width: 12, height: 12, borderRadius: 3, background: colour, border: '1px solid var(--chakra-colors-border, #d4d4d8)' } }), text(i)))),
    h('span', { style: { display: 'inline-flex', alignItems: 'center', gap: '0.3rem' } }, h('span', { 'aria-hidden': true, style: { display: 'inline-block', width: 12, height: 12, borderRadius: 3, border: '1px dashed var(--chakra-colors-fg-muted, #71717a)' } }), 'no partition'));
}

function Tip({ tip, now }) {
  const c = tip.cell;
  const lines = c ? [`${size(c.bytes)}${c.log_bytes ? `, of it ${size(c.log_bytes)} logs` : ''}`, `${count(c.small_files)} of ${count(c.base_files)} base files are small`, c.written_ms === null ? 'last write not known' : `last write ${seconds((now - c.written_ms) / 1000)} ago (${absolute(c.written_ms)})`, c.partitions.length > 1 ? `${count(c.partitions.length)} partitions` : 'click for its files'] : ['no partition'];
  return h(Box, { role: 'tooltip', position: 'absolute', pointerEvents: 'none', top: `${tip.y}px`, left: `${Math.max(0, Math.min(tip.x - 20, tip.width - 300))}px`, bg: 'bg.panel', borderWidth: 1, borderRadius: 'md', p: 2, shadow: 'md', fontSize: 'xs', zIndex: 5, whiteSpace: 'nowrap' },
    h(Text, { fontWeight: 'semibold' }, tip.label), lines.map((line) => h(Text, { key: line }, line)));
}
