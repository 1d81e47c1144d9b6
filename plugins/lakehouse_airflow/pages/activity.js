// Actions of users, the newest first: on all tables, or as a tab of one table.
import { h, UI, useData, useQuery, query, Ago, pagePath } from './core.js';
import { Frame, Name, PagedTable, Prose, State, Go, Waiting, Failure } from './ui.js';
import { LABELS } from './actions.js';

const { Box, Text } = UI;
const LIMIT = 50;
// Their subject may be a namespace, or all tables.
const OF_SCOPE = ['silence', 'end_silence', 'edit_policy', 'remove_policy', 'pause_service', 'resume_service'];

export function ActivityList({ table }) {
  const [get] = useQuery();
  const { data, error, loading } = useData(`actions${query({ table, offset: get('offset'), limit: LIMIT })}`, { every: 5000 });
  return h(Box, null, error ? h(Failure, { error }) : null, loading ? h(Waiting) : null,
    data ? h(PagedTable, { columns: columns(data.now_ms, table), rows: data.actions, total: data.total, limit: LIMIT, label: 'Actions', rowKey: (r) => r.id,
      empty: 'No user has requested an action yet.' }) : null);
}

export function Activity() {
  return h(Frame, { page: 'activity', title: 'Actions of users' }, h(ActivityList, { table: '' }));
}

const columns = (now, table) => [
  { name: 'when', label: 'when', cell: (r) => h(Ago, { ms: r.created_ms, now }) },
  { name: 'author', label: 'user', cell: (r) => r.author },
  ...(table ? [] : [{ name: 'table', label: 'table', cell: (r) => (OF_SCOPE.includes(r.action) ? r.table || 'all tables' : h(Go, { to: pagePath('table', r.table) }, h(Name, { text: r.table }))) }]),
  { name: 'action', label: 'action', cell: (r) => LABELS[r.action] || r.action },
  { name: 'parameters', label: 'parameters', cell: (r) => h(Prose, { fontSize: 'sm', fontFamily: 'mono' }, Object.entries(r.parameters).map(([n, v]) => `${n}=${typeof v === 'string' ? v : JSON.stringify(v)}`).join(' ') || '-') },
  { name: 'state', label: 'state', cell: (r) => (r.result.error ? h(Prose, { maxW: '24rem' }, h(State, r), h(Text, { fontSize: 'sm' }, r.result.error)) : h(State, r)) },
  { name: 'run', label: 'run', cell: (r) => (r.dag_run ? h(Go, { to: `/dags/${r.dag}/runs/${r.dag_run}` }, 'DAG run') : r.request ? `request ${r.request}` : '-') },
];
