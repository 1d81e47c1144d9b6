// Building blocks of the pages: links, tabs of the platform, health, tables that are paged on the server, states.
import { h, UI, Router, useData, useQuery, useState, useEffect, count, size, absolute, pagePath, Ago, Children, Fragment } from './core.js';

const { Box, Flex, HStack, VStack, Text, Heading, Badge, Button, Table, Skeleton, Input, Spinner } = UI;

export function Go({ to, children, ...more }) {
  return h(UI.Link, { asChild: true, color: 'fg.info', ...more }, h(Router.Link, { to }, children));
}

const PAGES = [['', 'Fleet'], ['queue', 'Queue'], ['alarms', 'Alarms'], ['activity', 'Activity'], ['scan', 'Fleet scan']];

export function Frame({ page, children, stale, error, title }) {
  useEffect(() => { document.title = `${title || 'Lakehouse'} - Airflow`; }, [title]);
  return h(Box, { p: 4, overflow: 'auto', h: '100%', 'data-lakehouse': 'page' },
    h(Flex, { as: 'nav', 'aria-label': 'Lakehouse', gap: 1, mb: 4, borderBottomWidth: 1, borderColor: 'border' },
      PAGES.map(([path, name]) => h(Box, {
        key: name, px: 3, py: 2, mb: '-1px', borderBottomWidth: 2,
        borderColor: page === path ? 'border.info' : 'transparent', fontWeight: page === path ? 'semibold' : 'normal',
      }, h(Router.Link, { to: path ? pagePath(path) : '/plugin/lakehouse', 'aria-current': page === path ? 'page' : undefined }, name)))),
    stale ? h(Notice, { kind: 'warning', title: 'The catalog does not answer' },
      `This page shows the state of ${absolute(stale.since_ms)}. ${stale.text}`) : null,
    error ? h(Failure, { error }) : null,
    children);
}

const KINDS = { warning: ['orange', '⚠'], error: ['red', '✖'], info: ['blue', 'ℹ'] };
export function Notice({ kind = 'info', title, children }) {
  const [palette, icon] = KINDS[kind];
  return h(Box, { role: kind === 'info' ? 'status' : 'alert', colorPalette: palette, bg: 'colorPalette.subtle', color: 'colorPalette.fg',
    borderWidth: 1, borderColor: 'colorPalette.muted', borderRadius: 'md', px: 4, py: 3, mb: 4 },
  h(Text, { fontWeight: 'semibold' }, `${icon} ${title}`), h(Text, { fontSize: 'sm', whiteSpace: 'pre-wrap' }, children));
}

// An address that leads nowhere, with the way back.
export function Missing({ title, children }) {
  return h(Frame, { page: 'missing', title }, h(Notice, { kind: 'warning', title }, children), h(Go, { to: '/plugin/lakehouse' }, '← All tables'));
}

export function Failure({ error }) {
  const title = { 403: 'Not permitted', 404: 'Not found', 503: 'The catalog does not answer' }[error.status] || 'This request failed';
  return h(Notice, { kind: 'error', title }, error.message);
}

const HEALTH = {
  attention: ['orange', '▲', 'needs attention'], healthy: ['green', '●', 'healthy'],
  unreadable: ['red', '✖', 'cannot be read'], unknown: ['gray', '○', 'not checked yet'],
};
export function Health({ health, severity = 0 }) {
  const [palette, icon, text] = HEALTH[health] || HEALTH.unknown;
  const severe = health === 'attention' && severity >= 3 ? 'red' : palette;
  return h(Badge, { colorPalette: severe, variant: 'subtle' }, `${icon} ${text}`);
}

const SEVERITY = { 1: ['blue', 'ℹ', 'info'], 2: ['orange', '▲', 'warning'], 3: ['red', '✖', 'critical'] };

export function Severity({ severity }) {
  const [palette, icon, text] = SEVERITY[Math.min(3, Math.max(1, severity))];
  return h(Badge, { colorPalette: palette, variant: 'subtle' }, `${icon} ${text}`);
}

const STATES = {
  running: ['cyan', '▶'], committed: ['green', '✔'], nothing_to_do: ['gray', '–'], waiting: ['orange', '⏳'], failed: ['red', '✖'], died: ['red', '✖'],
  done: ['green', '✔'], requested: ['blue', '…'], refused: ['orange', '⚠'], open: ['blue', '…'], taken: ['cyan', '▶'],
  completed: ['green', '✔'], pending: ['cyan', '▶'],
};
export function State({ state }) {
  const [palette, icon] = STATES[state] || ['gray', '○'];
  return h(Badge, { colorPalette: palette, variant: 'subtle' }, `${icon} ${String(state).replaceAll('_', ' ')}`);
}

export function Card({ label, value, hint, to }) {
  const inner = h(Box, { borderWidth: 1, borderColor: 'border', borderRadius: 'md', px: 4, py: 2, minW: '9rem', h: to ? '100%' : undefined, bg: 'bg', 'data-card': true },
    h(Text, { fontSize: '2xl', fontWeight: 'semibold', lineHeight: 1.2 }, value),
    h(Text, { fontSize: 'sm', color: 'fg.muted' }, label),
    hint ? h(Text, { fontSize: 'xs', color: 'fg.muted' }, hint) : null);
  return to ? h(Router.Link, { to }, inner) : inner;
}

export function Panel({ title, children, actions, ...more }) {
  return h(Box, { as: 'section', 'aria-label': title, borderWidth: 1, borderColor: 'border', borderRadius: 'md', p: 4, bg: 'bg', minW: 0, ...more },
    title ? h(Flex, { justify: 'space-between', mb: 3, align: 'center' }, h(Heading, { as: 'h3', size: 'sm' }, title), actions || null) : null, children);
}

// Sparkline of values, oldest first, with its range as text for screen readers.
export function Spark({ values, width = 96, height = 22 }) {
  if (!values || values.length < 2) return h(Text, { as: 'span', color: 'fg.muted' }, '-');
  const low = Math.min(...values); const span = Math.max(...values) - low || 1;
  const step = width / (values.length - 1);
  const points = values.map((v, i) => `${(i * step).toFixed(1)},${(height - 2 - ((v - low) / span) * (height - 4)).toFixed(1)}`).join(' ');
  const text = `from ${size(values[0])} to ${size(values[values.length - 1])} in 7 days`;
  return h('svg', { width, height, role: 'img', 'aria-label': text },
    h('title', null, text), h('polyline', { points, fill: 'none', stroke: 'var(--chakra-colors-blue-solid, #3b82f6)', strokeWidth: 1.5 }));
}

const FIRST_ROWS = 12;

// Cells stay on one line, so that a value and its unit are not divided; prose, in an element with `data-text`, wraps.
export const CELLS = {
  '& th': { whiteSpace: 'nowrap', fontSize: 'xs', fontWeight: 'semibold' },
  '& td': { whiteSpace: 'nowrap', verticalAlign: 'top' },
  '& td:has([data-text])': { whiteSpace: 'normal' },
  '& [data-text]': { minWidth: '9rem', overflowWrap: 'anywhere' },
  '& [data-text=narrow]': { minWidth: '5rem' },
  '& [data-text] time, & [data-line]': { whiteSpace: 'nowrap' },
};
export const Prose = ({ children, ...more }) => h(Box, { 'data-text': true, maxW: '34rem', ...more }, Children.map(children, (child) => (typeof child === 'string' ? whole(child) : child)));

// A text whose numbers stay on one line with their units, such as `2.1 MB` and `10 min`.
const VALUE = /(\d) (B|kB|MB|GB|TB|PB|EB|ms|s|min|h|days|%)(?!\w)/g;
export const whole = (text) => String(text).replace(VALUE, '$1\u00a0$2');

// A name such as `sales.orders_daily` wraps between its parts only.
export function Name({ text }) {
  const parts = String(text).split(/(?<=[._/@-])/);
  return h('span', { style: { whiteSpace: 'normal' } }, parts.map((part, i) => h(Fragment, { key: i }, i ? h('wbr') : null, part)));
}

// Rows are plain elements with the style of the table: a Chakra component for each cell paints them a quarter of a second later.
const ROWS = {
  ...CELLS,
  '& tbody td': { px: 2, py: 2, borderBottomWidth: '1px' },
  '& thead th': { px: 2 },
  '& tbody td[data-right]': { textAlign: 'end' },
  '& tbody a:not([class])': { color: 'fg.info', fontWeight: 'medium' },
  '& tbody a:not([class]):hover': { textDecoration: 'underline' },
  '& tbody [data-muted]': { color: 'fg.muted' },
  '& tbody p:not([class])': { fontSize: 'sm' },
  '& tbody button[data-why]': { fontSize: 'xs', color: 'fg.info', marginInlineStart: '0.5rem', textDecoration: 'underline', cursor: 'pointer' },
};

// The rows of a screen are drawn first, the others after the browser has painted them.
function useDrawn(rows) {
  const [all, setAll] = useState(rows.length <= FIRST_ROWS);
  useEffect(() => {
    if (all) return undefined;
    const timer = setTimeout(() => setAll(true), 0);
    return () => clearTimeout(timer);
  }, [all]);
  return all ? rows : rows.slice(0, FIRST_ROWS);
}

// A table that the server sorts and pages. Columns: {name, label, cell, order}.
export function PagedTable({ columns, rows, total, limit = 50, label, empty, rowKey }) {
  const [get, set] = useQuery();
  const offset = Number(get('offset', '0')); const order = get('order'); const ascending = get('ascending') === 'true';
  const drawn = useDrawn(rows);
  return h(Box, null,
    h(Table.Root, { size: 'sm', 'aria-label': label, striped: false, css: ROWS },
      h(Table.Header, null, h(Table.Row, null, columns.map((c) => h(Table.ColumnHeader, {
        key: c.name, textAlign: c.right ? 'end' : 'start', title: c.help,
        'aria-sort': c.order && order === c.order ? (ascending ? 'ascending' : 'descending') : undefined,
      }, c.order ? h(Button, { variant: 'plain', size: 'xs', px: 0, h: 'auto', fontWeight: 'semibold',
        onClick: () => set({ order: c.order, ascending: order === c.order && !ascending ? 'true' : '' }) },
      `${c.label}${order === c.order ? (ascending ? ' ▲' : ' ▼') : ''}`) : c.label)))),
      h(Table.Body, null, drawn.map((row, i) => h('tr', { key: rowKey ? rowKey(row) : i },
        columns.map((c) => h('td', { key: c.name, 'data-right': c.right || undefined }, c.cell(row))))))),
    rows.length === 0 ? h(Box, { p: 4, color: 'fg.muted' }, empty) : null,
    total > limit ? h(Flex, { gap: 3, mt: 3, align: 'center', justify: 'flex-end' },
      h(Text, { fontSize: 'sm', color: 'fg.muted' }, `${count(offset + 1)} to ${count(Math.min(offset + limit, total))} of ${count(total)}`),
      h(Button, { size: 'xs', variant: 'outline', disabled: offset === 0, onClick: () => set({ offset: Math.max(0, offset - limit) || '' }, { keepPage: true }) }, 'Previous'),
      h(Button, { size: 'xs', variant: 'outline', disabled: offset + limit >= total, onClick: () => set({ offset: offset + limit }, { keepPage: true }) }, 'Next')) : null);
}

export function Choice({ label, value, options, onChange }) {
  return h('label', { style: { display: 'inline-flex', gap: '0.4rem', alignItems: 'center', fontSize: '0.85rem' } }, label,
    h(UI.NativeSelect.Root, { size: 'sm', width: 'auto' },
      h(UI.NativeSelect.Field, { value, 'aria-label': label, onChange: (e) => onChange(e.target.value) },
        options.map(([name, text]) => h('option', { key: name, value: name }, text))),
      h(UI.NativeSelect.Indicator)));
}

// A text field whose value reaches the URL when typing pauses.
export function Search({ value, onChange, label }) {
  const [text, setText] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => { if (text !== value) onChange(text); }, 250);
    return () => clearTimeout(timer);
  }, [text]);
  return h(Input, { size: 'sm', maxW: '18rem', type: 'search', value: text, placeholder: label, 'aria-label': label, onChange: (e) => setText(e.target.value) });
}

// The text while a document is read from the files of a table: what is read, and for how long.
export function Reading({ what = 'the files and the timeline of the table' }) {
  const [since] = useState(Date.now()); const [now, setNow] = useState(since);
  useEffect(() => { const timer = setInterval(() => setNow(Date.now()), 1000); return () => clearInterval(timer); }, []);
  const passed = Math.round((now - since) / 1000);
  return h(Box, { role: 'status', 'data-loading': true, color: 'fg.muted', py: 2 }, h(Spinner, { size: 'xs', mr: 2 }), `Reading ${what}${passed >= 2 ? `, ${passed} s` : ''} ...`,
    passed >= 10 ? h(Text, { fontSize: 'sm' }, 'The API server reads few tables at the same time; this read waits for others, or the table has many files.') : null);
}

// A document of a read of a table. While the table is read again, the last state is shown with its age.
export function Loaded({ read, children }) {
  const { data, error, reading } = read;
  if (!data) return error ? h(Failure, { error }) : h(Reading);
  return h(Fragment, null,
    reading ? h(Text, { role: 'status', 'data-loading': true, fontSize: 'sm', color: 'fg.muted', mb: 2 }, h(Spinner, { size: 'xs', mr: 2 }), 'Reading the table again. Shown is its state of ', h(Ago, { ms: data.as_of_ms ?? null }), '.') : null,
    error ? h(Notice, { kind: 'warning', title: 'The table could not be read now; the last state is shown' }, error.message) : null,
    children(data), data.as_of_ms && !reading ? h(Text, { fontSize: 'xs', color: 'fg.muted', mt: 2 }, 'read ', h(Ago, { ms: data.as_of_ms })) : null);
}

export const Waiting = () => h(VStack, { align: 'stretch', role: 'status', 'data-loading': true, 'aria-label': 'loading' }, [1, 2, 3, 4].map((n) => h(Skeleton, { key: n, height: '1.6rem' })));
