// The tab "Lakehouse" of a DAG run: the reports of its jobs, which are XCom values that the user may read.
import { h, UI, useData, useState, useEffect, count, size, seconds, pagePath, fullName, Fragment } from './core.js';
import { CELLS, Go, Panel, Prose, State, Waiting, Notice, Failure } from './ui.js';

const { Box, Flex, Text, Table } = UI;
const STATUS = { committed: 'committed', nothing_to_do: 'nothing_to_do', failed: 'failed' };

async function read(path) {
  const answer = await fetch(new URL(`api/v2/${path}`, document.baseURI), { credentials: 'same-origin' });
  if (!answer.ok) { const error = new Error(`Airflow answers ${answer.status} for ${path}`); error.status = answer.status; throw error; }
  return answer.json();
}

async function reports(dag, run) {
  const base = `dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(run)}/taskInstances`;
  const { xcom_entries: entries } = await read(`${base}/~/xcomEntries?xcom_key=return_value&limit=100`);
  const values = await Promise.all(entries.map((e) => read(`${base}/${encodeURIComponent(e.task_id)}/xcomEntries/return_value?map_index=${e.map_index}`).then((x) => ({ task: e.task_id, index: e.map_index, value: parsed(x.value) }))));
  return values.filter(({ value }) => value && STATUS[value.status] && 'table' in value).flatMap(({ task, index, value }) => (value.parts && value.parts.length ? value.parts : [value]).map((report) => ({ task, index, report })));
}
const parsed = (value) => { if (typeof value !== 'string') return value; try { return JSON.parse(value); } catch { return null; } };

function Report({ dagId, runId }) {
  const [state, setState] = useState({});
  useEffect(() => { let live = true; reports(dagId, runId).then((found) => live && setState({ found }), (error) => live && setState({ error })); return () => { live = false; }; }, [dagId, runId]);
  if (state.error) return h(Box, { p: 4 }, h(Failure, { error: state.error }));
  if (!state.found) return h(Box, { p: 4 }, h(Waiting));
  if (!state.found.length) return h(Box, { p: 4 }, h(Notice, { title: 'This run has no lakehouse report' }, 'A report appears when a job of ingestion, of a table service or of a publication has ended.'));
  return h(Box, { p: 4, overflow: 'auto', 'data-lakehouse': 'report' }, state.found.map((one, i) => h(One, { key: i, ...one })));
}

function One({ task, index, report: r }) {
  const numbers = [['rows', r.rows, count], ['inserted', r.inserts, count], ['updated', r.updates, count], ['deleted', r.deletes, count], ['files', r.files, count], ['bytes', r.bytes, size], ['seconds', r.seconds, seconds],
    ['retries after conflicts', r.conflicts, count], ['bad records', r.bad_records, count], ['late rows dropped', r.late_rows_dropped, count], ['duplicates dropped', r.duplicates_dropped, count]].filter(([, v]) => v);
  const isTable = /^[\w-]+(\.[\w-]+)?$/.test(r.table || '');
  return h(Panel, { title: `${task}${index >= 0 ? ` [${index}]` : ''}`, mb: 4 },
    h(Flex, { gap: 3, align: 'center', wrap: 'wrap', mb: 2 }, h(State, { state: r.status }), isTable ? h(Go, { to: pagePath('table', fullName(r.table)) }, r.table) : h(Text, null, r.table),
      r.instant && isTable ? h(Go, { to: `${pagePath('table', fullName(r.table))}?tab=timeline&instant=${r.instant}` }, `instant ${r.instant}`) : r.instant, r.interval ? h(Text, { color: 'fg.muted' }, r.interval) : null),
    r.reason ? h(Text, { mb: 2 }, r.reason) : null, r.warning ? h(Notice, { kind: 'warning', title: 'Warning' }, r.warning) : null,
    r.error ? h(Notice, { kind: 'error', title: r.error.type || r.error.kind || 'The job failed' }, r.error.message || JSON.stringify(r.error)) : null,
    h(Flex, { gap: 6, wrap: 'wrap' }, numbers.map(([name, value, format]) => h(Box, { key: name }, h(Text, { fontSize: 'xl', fontWeight: 'semibold' }, format(value)), h(Text, { fontSize: 'sm', color: 'fg.muted' }, name)))),
    (r.drift || []).length ? h(List, { title: 'Schema drift', rows: r.drift }) : null, (r.lag || []).length ? h(List, { title: 'Lag behind the sources', rows: r.lag }) : null,
    r.instant && isTable ? h(Commit, { table: fullName(r.table), instant: r.instant }) : null,
    (r.partitions || []).length ? h(Text, { mt: 2 }, `partitions: ${r.partitions.join(', ')}`) : null, (r.folders || []).length ? h(Text, { mt: 2, fontSize: 'sm' }, `read: ${r.folders.join(', ')}`) : null);
}

// What the commit itself says: the watermarks before and after it, and where its bad records are.
function Commit({ table, instant }) {
  const { data } = useData(`tables/${encodeURIComponent(table)}/timeline/${encodeURIComponent(instant)}`);
  if (!data) return null;
  const marks = Object.entries(data.watermarks).map(([source, after]) => ({ source, before: data.watermarks_before[source] || '-', after }));
  const bad = Object.entries(data.extra).find(([name]) => name.startsWith('lakehouse.ingest.dead_letters'));
  return h(Fragment, null, marks.length ? h(List, { title: 'Watermarks', rows: marks }) : null,
    bad ? h(Text, { mt: 2, fontSize: 'sm', wordBreak: 'break-all' }, `bad records: ${bad[1]}`) : null);
}

// Rows with the same names as a table, with a column for each name.
function List({ title, rows }) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const text = (value) => (value === undefined || value === null ? '-' : typeof value === 'object' ? JSON.stringify(value) : String(value));
  return h(Box, { mt: 3 }, h(Text, { fontWeight: 'semibold' }, title), h(Table.Root, { size: 'sm', 'aria-label': title, css: CELLS },
    h(Table.Header, null, h(Table.Row, null, names.map((n) => h(Table.ColumnHeader, { key: n }, n.replaceAll('_', ' '))))),
    h(Table.Body, null, rows.map((row, i) => h(Table.Row, { key: i }, names.map((n) => h(Table.Cell, { key: n }, h(Prose, null, text(row[n])))))))));
}

globalThis['Lakehouse report'] = Report;
globalThis.AirflowPlugin = Report;
