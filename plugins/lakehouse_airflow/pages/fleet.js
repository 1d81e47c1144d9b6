// The page Fleet: all tables, those that need attention first.
import { h, UI, Router, prefetch, useData, useState, useQuery, query, count, size, seconds, Ago, pagePath } from './core.js';
import { whole, Frame, Card, PagedTable, Health, Name, State, Spark, Choice, Search, Waiting } from './ui.js';
import { DagNotices, SCHEDULE } from './dag-states.js';
import { bytesRead, useTableNumbers, ReadNote } from './table-numbers.js';
import { lazyPage } from './lazy.js';

const { Box, Flex, Text, Code } = UI;
const WhyHealth = lazyPage('./why.js', 'WhyHealth'); const Rules = lazyPage('./why.js', 'Rules');
const LIMIT = 50;

const filterOf = (get) => ({ search: get('search'), namespace: get('namespace'), health: get('health'), order: get('order', 'attention'),
  ascending: get('ascending') === 'true', offset: get('offset') || null, limit: LIMIT });

// Asks for the documents of this page while Airflow still builds its own.
export function prefetchFleet() {
  const params = new URLSearchParams(globalThis.location.search);
  prefetch(`tables${query(filterOf((name, fallback = '') => params.get(name) ?? fallback))}`);
  prefetch('summary');
}

export function Fleet() {
  const [get, set] = useQuery();
  const filter = filterOf(get);
  const { data, error, loading } = useData(`tables${query(filter)}`, { every: 15000 });
  const summary = useData('summary', { every: 15000 });
  const rows = useTableNumbers(data ? data.rows : []);
  const filtered = filter.search || filter.namespace || filter.health;
  return h(Frame, { page: '', stale: data && data.stale, error, title: 'Lakehouse tables' },
    h(DagNotices, { dags: [SCHEDULE] }),
    h(Totals, { summary: summary.data, read: bytesRead(rows) }),
    h(Flex, { gap: 4, my: 4, wrap: 'wrap', align: 'center' },
      h(Search, { value: filter.search, label: 'Search tables', onChange: (search) => set({ search }) }),
      h(Choice, { label: 'namespace', value: filter.namespace, onChange: (namespace) => set({ namespace }),
        options: [['', 'all'], ...((data && data.namespaces) || []).map((name) => [name, name])] }),
      h(Choice, { label: 'health', value: filter.health, onChange: (health) => set({ health }),
        options: [['', 'all'], ['attention', 'needs attention'], ['healthy', 'healthy'], ['unreadable', 'cannot be read'], ['unknown', 'not checked yet']] })),
    loading ? h(Waiting) : null,
    data && data.total === 0 && !filtered ? h(First) : null,
    data && (data.total > 0 || filtered) ? h(PagedTable, { columns: columns(data.now_ms, (table) => set({ why: table }, { keepPage: true })), rows, total: data.total, limit: LIMIT,
      label: 'Tables', rowKey: (row) => row.table, empty: 'No table matches these filters.' }) : null,
    data && data.rows.length ? h(Footer) : null,
    get('why') ? h(WhyHealth, { table: get('why'), close: () => set({ why: '' }, { keepPage: true }) }) : null);
}

// The rules are asked for when the rows are painted, so that the first page needs few requests.
function Footer() {
  const [shown, setShown] = useState(false);
  return h(Box, { mt: 3 }, shown ? h(Rules) : h(UI.Button, { size: 'xs', variant: 'plain', px: 0, color: 'fg.muted', onClick: () => setShown(true) }, '▸ When does a table need attention?'));
}

function Totals({ summary: s, read }) {
  if (!s) return h(Box, { h: '4.6rem' });
  const grown = s.grown_bytes;
  return h(Flex, { gap: 3, wrap: 'wrap' },
    h(Card, { label: s.tables === 1 ? 'table' : 'tables', value: count(s.tables) }),
    h(Card, { label: s.attention === 1 ? 'needs attention' : 'need attention', value: count(s.attention), to: '/plugin/lakehouse?health=attention' }),
    h(Card, { label: 'services running', value: count(s.running), to: pagePath('queue') }),
    h(Card, { label: 'services due', value: count(s.due), hint: s.oldest_due_ms ? `oldest for ${seconds((s.now_ms - s.oldest_due_ms) / 1000)}` : null, to: pagePath('queue') }),
    h(Card, { label: 'open alarms', value: count(s.alarms), to: pagePath('alarms') }),
    h(Card, { label: 'in all tables', value: size(s.bytes + read), hint: grown === null ? null : `${grown >= 0 ? '+' : '-'}${size(Math.abs(grown))} since yesterday` }));
}

function First() {
  return h(Box, { borderWidth: 1, borderRadius: 'md', p: 6, maxW: '46rem' },
    h(Text, { fontWeight: 'semibold', mb: 2 }, 'The catalog has no tables yet'),
    h(Text, { mb: 3 }, 'Put a table spec into the folder of table specs and run its DAG, or register an existing table:'),
    h(Code, { display: 'block', p: 3, whiteSpace: 'pre' }, 'lakehouse table register --table sales.orders --location s3://lake/sales/orders'));
}

const problemOf = (row) => {
  if (row.error) return row.error;
  return row.problems.length ? whole(row.problems[0].text) : '';
};

const THREE_LINES = { marginTop: '0.25rem', overflow: 'hidden', display: '-webkit-box', WebkitBoxOrient: 'vertical', WebkitLineClamp: 3 };

const columns = (now, why) => [
  { name: 'table', label: 'table', order: 'table', cell: (r) => h('div', { style: { minWidth: '8.5rem' } }, h(Router.Link, { to: pagePath('table', r.table) }, h(Name, { text: r.table }))) },
  { name: 'health', label: 'health', order: 'attention', help: 'Problems of rules with their values and limits, the worst first. Why shows all of them and the decisions.', cell: (r) => h('div', { 'data-text': true, style: { maxWidth: '30rem', minWidth: '9.5rem' } }, h(Health, r), h('button', { type: 'button', 'data-why': true, 'aria-label': `Why: ${r.table}`, onClick: () => why(r.table) }, 'Why'),
    problemOf(r) ? h('p', { style: THREE_LINES }, problemOf(r)) : null,
    h(ReadNote, { row: r }),
    r.problems.length && r.problems[0].action ? h('p', { 'data-muted': true }, `→ ${r.problems[0].action}`) : null) },
  { name: 'fresh', label: 'last commit', order: 'freshness', help: 'The newest commit of a write. Rule freshness.', cell: (r) => h(Ago, { ms: r.numbers.last_commit_ms ?? null, now }) },
  { name: 'small', label: 'small files', order: 'small_files', right: true, help: 'Base files below the limit of small files, of all files. Rule small_files.', cell: (r) => small(r.numbers) },
  { name: 'logs', label: 'log backlog', order: 'log_bytes', right: true, help: 'Log files that wait for compaction. Rule compaction_backlog.', cell: (r) => size(r.numbers.log_bytes) },
  { name: 'size', label: 'size', order: 'base_bytes', right: true, cell: (r) => size(r.numbers.base_bytes) },
  { name: 'plans', label: 'plans', right: true, help: 'Plans of services on the timeline that have not ended; a failed one has no active executor.', cell: (r) => plans(r.numbers) },
  { name: 'run', label: 'last service', cell: (r) => (r.last_run ? h('div', null, h(State, { state: r.last_run.state }),
    h('div', null, r.last_run.service), h('div', null, h(Ago, { ms: r.last_run.started_ms, now }))) : '-') },
  { name: 'growth', label: '7 days', cell: (r) => h(Spark, { values: r.history }) },
];

function small(numbers) {
  const { small_files: few, files, file_groups: groups } = numbers;
  if (few === null || few === undefined) return '-';
  const all = files ?? groups;
  return all ? `${count(few)} (${Math.round((100 * few) / all)} %)` : count(few);
}
const plans = ({ pending_plans: pending, failed_plans: failed }) => {
  if (pending === undefined || pending === null) return '-';
  return failed ? h('div', null, `${pending} pending`, h('div', null, `${failed} failed`)) : `${pending} pending`;
};
