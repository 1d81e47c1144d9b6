// Notices about DAGs that a page depends on: paused, overdue, or missing; with a button that starts a paused one.
import { h, UI, useData, useState, seconds, Fragment } from './core.js';
import { Go } from './ui.js';

const { Box, Button, Flex, Text, Code } = UI;
const EVERY_MS = 15000;
export const SCHEDULE = 'services.schedule';

// The states of DAGs, and of those that decide about services.
export function useDagStates({ dags = [], services = [] }) {
  const words = new URLSearchParams([...dags.map((name) => ['dag', name]), ...services.map((name) => ['service', name])]);
  return useData(words.size ? `dag-states?${words}` : null, { every: EVERY_MS });
}

// What does not happen while the DAG begins no run.
function effectOf(id) {
  if (id === SCHEDULE) return 'No table service runs, numbers and health of tables are not renewed, and no alarm is sent.';
  if (id === 'lakehouse.actions') return 'Requested actions wait.';
  const [kind, ...name] = id.split('.');
  const subject = name.join('.');
  return { publish: `No partition of ${subject} is published.`, ingest: `No new data of ${subject} arrives.`, services: `No run of ${subject} is decided.` }[kind] || '';
}

export function DagNotices({ dags, services }) {
  const { data, reload } = useDagStates({ dags, services });
  if (!data) return null;
  return h(Fragment, null,
    data.dags.filter((dag) => dag.is_paused || dag.is_overdue).map((dag) => h(DagNotice, { key: dag.dag_id, dag, now: data.now_ms, reload })),
    data.missing.map((id) => h(Panel, { key: id, title: `This Airflow has no DAG ${id}`, text: `${effectOf(id)} Build it in a DAG file with lakehouse_dags(globals()).` })));
}

function DagNotice({ dag, now, reload }) {
  const id = dag.dag_id;
  if (!dag.is_paused) {
    const gap = dag.last_run_ms === null ? '' : `Its last run began ${seconds((now - dag.last_run_ms) / 1000)} ago, and its interval is ${seconds(dag.interval_s)}. `;
    return h(Panel, { title: `The DAG ${id} begins no runs`, text: `${gap}${effectOf(id)} Check Airflow's scheduler with \`lakehouse doctor\`.`, action: h(Go, { to: `/dags/${encodeURIComponent(id)}` }, 'Open the DAG') });
  }
  return h(Panel, { title: `The DAG ${id} is paused`, text: effectOf(id), action: dag.may_edit ? h(Start, { id, reload }) : h(Command, { id }) });
}

const Command = ({ id }) => h(Text, { fontSize: 'sm' }, 'You may not start it. A user with the permission to edit it may: ', h(Code, null, `airflow dags unpause ${id}`));

// Airflow's own API unpauses the DAG with the permission of the user, and records it in its audit log.
function Start({ id, reload }) {
  const [busy, setBusy] = useState(false); const [error, setError] = useState('');
  const start = async () => {
    setBusy(true); setError('');
    try { await unpause(id); reload(); } catch (problem) { setError(problem.message); }
    setBusy(false);
  };
  return h(Fragment, null, h(Button, { size: 'xs', colorPalette: 'blue', disabled: busy, onClick: start, 'aria-label': `Start ${id}` }, busy ? 'Starting ...' : 'Start'),
    error ? h(Text, { fontSize: 'sm', role: 'alert' }, `It was not started: ${error}`) : null);
}

async function unpause(id) {
  const url = new URL(`api/v2/dags/${encodeURIComponent(id)}?update_mask=is_paused`, document.baseURI);
  const answer = await fetch(url, { method: 'PATCH', credentials: 'same-origin', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ is_paused: false }) });
  if (!answer.ok) throw new Error(answer.status === 403 ? 'you do not have the permission to edit this DAG' : `Airflow answered HTTP ${answer.status}`);
}

function Panel({ title, text, action }) {
  return h(Box, { role: 'alert', 'data-lakehouse': 'dag-notice', colorPalette: 'orange', bg: 'colorPalette.subtle', color: 'colorPalette.fg', borderWidth: 1, borderColor: 'colorPalette.muted', borderRadius: 'md', px: 4, py: 2, mb: 3 },
    h(Flex, { gap: 3, align: 'center', justify: 'space-between', wrap: 'wrap' },
      h(Box, { flex: '1 1 24rem' }, h(Text, { fontWeight: 'semibold' }, `⚠ ${title}`), h(Text, { fontSize: 'sm' }, text)), action));
}

// When a recorded request is taken.
export function RequestText({ request, service }) {
  const { data } = useDagStates({ services: [service] });
  const id = data ? data.deciding[service] : SCHEDULE;
  const waits = data && (data.missing.includes(id) || data.dags.some((dag) => dag.dag_id === id && dag.is_paused));
  return h(Text, null, waits ? `Request ${request} waits until the DAG ${id} is started.` : `Request ${request}: the next decision of the scheduler takes it.`);
}
