// The page Queue: what is due, what runs, and what ended today with predicted and actual numbers.
import { h, UI, useData, useQuery, query, count, size, seconds, Ago, absolute, pagePath } from './core.js';
import { whole, Frame, Name, PagedTable, Prose, State, Go, Choice, Search, Waiting } from './ui.js';
import { ActionButton } from './actions.js';
import { DagNotices, SCHEDULE } from './dag-states.js';
// The API serves this module, which page_list.py makes from the specs of services.
import { SERVICES } from './declared.js';

const { Box, Flex, Text, Heading, Progress } = UI;
const SECTIONS = [['due', 'Due now'], ['running', 'Running'], ['done', 'Done in the last day']];
const LIMIT = 50;

export function Queue() {
  const [get, set] = useQuery();
  const section = get('section', 'due');
  const { data, error, loading, reload } = useData(`queue${query({ section, search: get('search'), service: get('service'), offset: get('offset'), limit: LIMIT })}`, { every: 10000 });
  const may = useData('permissions').data || { services: false };
  const shown = data && data.section === section ? data : null;
  return h(Frame, { page: 'queue', stale: data && data.stale, error, title: 'Queue of services' },
    h(DagNotices, { dags: [SCHEDULE] }),
    h(Flex, { gap: 4, mb: 4, wrap: 'wrap', align: 'center' },
      h(Flex, { role: 'tablist', gap: 1 }, SECTIONS.map(([name, label]) => h(UI.Button, { key: name, role: 'tab', 'aria-selected': section === name, size: 'sm',
        variant: section === name ? 'solid' : 'outline', onClick: () => set({ section: name === 'due' ? '' : name }) }, label))),
      h(Search, { value: get('search'), label: 'Search tables', onChange: (search) => set({ search }) }),
      h(Choice, { label: 'service', value: get('service'), onChange: (service) => set({ service }), options: [['', 'all'], ...SERVICES.map((s) => [s, s])] })),
    loading ? h(Waiting) : null,
    shown ? h(PagedTable, { columns: section === 'due' ? dueColumns(shown.now_ms) : runColumns(shown.now_ms, section, { may, reload }), rows: section === 'due' ? shown.due : shown.runs,
      total: shown.total, limit: LIMIT, label: section, empty: EMPTY[section] }) : null);
}

const EMPTY = {
  due: 'No service is due. The DAG services.schedule decides; `lakehouse services due` shows its decisions.',
  running: 'No service runs now.', done: 'No run ended in the last day.',
};
const tableCell = (r) => h(Go, { to: pagePath('table', r.table) }, h(Name, { text: r.table }));
// A change of the table version is no service, so no decision explains it.
const whyCell = (r) => (!SERVICES.includes(r.service) ? r.service : h(Go, { to: `${pagePath('table', r.table)}?tab=services&service=${r.service}` }, r.service));

export function cost(predicted) {
  if (!predicted || predicted.bytes === undefined) return '-';
  return [predicted.bytes ? size(predicted.bytes) : '', predicted.seconds ? `~${seconds(predicted.seconds)}` : ''].filter(Boolean).join(', ') || '-';
}

const dueColumns = (now) => [
  { name: 'table', label: 'table', cell: tableCell },
  { name: 'service', label: 'service', cell: whyCell },
  { name: 'priority', label: 'score', right: true, help: 'Priority times the files that queries no longer open, per second of the run. Higher scores run first.', cell: (r) => r.decision.score.toFixed(1) },
  { name: 'why', label: 'why', cell: (r) => h(Prose, null, r.decision.reason, r.requested && !r.decision.chosen ? ' (requested)' : '', r.decision.chosen || !r.decision.work ? null : h(Text, { fontSize: 'sm', color: 'fg.muted' }, whole(`A run ${r.decision.work}.`))) },
  { name: 'state', label: 'waits for', cell: (r) => (r.decision.chosen ? 'a slot of the pool' : r.decision.code.replaceAll('_', ' ')) },
  { name: 'cost', label: 'cost', right: true, cell: (r) => cost(r.decision.predicted) },
  { name: 'deadline', label: 'deadline', cell: (r) => h(Ago, { ms: r.decision.deadline_ms, now }) },
  { name: 'starts', label: 'starts', cell: (r) => (r.starts_ms ? h(Ago, { ms: r.starts_ms, now }) : 'next slot') },
];

const took = (r, now) => ((r.ended_ms || now) - r.started_ms) / 1000;
export function Bar({ progress, run, now }) {
  const { done, total: all } = progress;
  const expected = run.predicted.seconds;
  const part = all ? done / all : expected ? Math.min(0.99, took(run, now) / expected) : null;
  if (part === null) return '-';
  const text = all ? `${progress.stage}: ${count(done)} of ${count(all)} ${progress.unit}s` : 'by time';
  return h(Box, { minW: '8rem' }, h(Progress.Root, { value: Math.round(part * 100), size: 'sm', 'aria-label': `progress: ${text}` },
    h(Progress.Track, null, h(Progress.Range))), h(Text, { fontSize: 'xs', color: 'fg.muted' }, `${Math.round(part * 100)} %, ${text}`));
}
// The id of a run is `dag/run/task` if Airflow started it.
export const dagRun = (run) => { const parts = String(run).split('/'); return parts.length >= 3 ? `/dags/${encodeURIComponent(parts[0])}/runs/${encodeURIComponent(parts[1])}` : null; };

const runColumns = (now, section, { may, reload }) => [
  { name: 'table', label: 'table', cell: tableCell },
  { name: 'service', label: 'service', cell: whyCell },
  { name: 'state', label: 'state', cell: (r) => (r.error ? h(Prose, { maxW: '24rem' }, h(State, r), h(Text, { fontSize: 'sm', lineClamp: 2, title: r.error }, r.error)) : h(State, r)) },
  ...(section === 'running' ? [{ name: 'progress', label: 'progress', cell: (r) => h(Bar, { progress: r.progress, run: r, now }) }] : []),
  { name: 'started', label: 'started', cell: (r) => h(Ago, { ms: r.started_ms, now }) },
  { name: 'time', label: 'time', right: true, cell: (r) => seconds(took(r, now)) },
  { name: 'predicted', label: 'predicted', right: true, cell: (r) => cost(r.predicted) },
  ...(section === 'done' ? [{ name: 'actual', label: 'actual', right: true, cell: (r) => cost(r.actual) }] : []),
  { name: 'run', label: 'run', cell: (r) => (dagRun(r.run) ? h(Go, { to: dagRun(r.run) }, 'DAG run') : h(Text, { fontSize: 'xs' }, h(Name, { text: r.run }))) },
  ...(section === 'running' ? [{ name: 'stop', label: '', cell: (r) => (dagRun(r.run) && r.state === 'running'
    ? h(ActionButton, { table: r.table, action: 'stop_run', fixed: { service: r.service, run: r.run }, disabled: !may.services, onDone: reload }) : null) }] : []),
];
