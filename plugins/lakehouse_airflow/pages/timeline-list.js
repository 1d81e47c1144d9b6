// The list below the timeline: the newest instants of the range with rows, files, bytes, time, and what made them.
import { h, UI, useData, useState, useEffect, query, count, seconds, size, absolute, Fragment } from './core.js';
import { Failure, State, Go } from './ui.js';
import { dagRun } from './queue.js';
import { word, operationWord } from './timeline-model.js';

const { Box, Text, Button, Table } = UI;
const LISTED = 40;
// A range that stays for this time is read; while a user zooms step by step, none is.
const REST_MS = 300;
const COLUMNS = [['instant'], ['started'], ['service'], ['operation'], ['state'], ['took', 'r'], ['rows', 'r'], ['files', 'r'], ['bytes', 'r'], ['made by'], ['note']];

// `range` is [from, to] in ms, or null for the whole timeline; `others` are rows without an instant of the table.
export function InstantList({ table, range, service, archived, others, choose }) {
  const path = `tables/${encodeURIComponent(table)}/instants${query({ service, archived, limit: LISTED, since_ms: range ? Math.max(0, Math.floor(range[0])) : '', until_ms: range ? Math.ceil(range[1]) : '' })}`;
  const [asked, setAsked] = useState(path);
  useEffect(() => { const timer = setTimeout(() => setAsked(path), REST_MS); return () => clearTimeout(timer); }, [path]);
  const read = useData(others.only ? null : asked);
  const [last, setLast] = useState(null);
  useEffect(() => { if (read.data) setLast(read.data); }, [read.data]);
  const shown = others.only ? { instants: [], total: 0 } : read.data || last;
  const reading = !others.only && (asked !== path || (!read.data && !read.error));
  const rows = [...(shown ? shown.instants.map(instantRow) : []), ...others.rows.map(otherRow)].sort((a, b) => b.begin - a.begin).slice(0, LISTED);
  const total = (shown ? shown.total ?? shown.instants.length : 0) + others.rows.length;
  return h(Box, { mt: 4, 'aria-busy': reading || undefined },
    h(Text, { fontWeight: 'semibold', mb: 1 }, `Newest instants of this range${shown && total > rows.length ? ` (${rows.length} of ${count(total)})` : ''}`,
      reading ? h(Text, { as: 'span', role: 'status', 'data-loading': true, fontWeight: 'normal', color: 'fg.muted' }, shown ? '  ·  reading this range …' : '  ·  reading the commits of this table …') : null),
    read.error && !others.only ? h(Failure, { error: read.error }) : null,
    rows.length ? h(Box, { overflowX: 'auto' }, h(Table.Root, { size: 'sm', 'aria-label': 'Instants' },
      h(Table.Header, null, h(Table.Row, null, COLUMNS.map(([name, right]) => h(Table.ColumnHeader, { key: name, textAlign: right ? 'end' : 'start', whiteSpace: 'nowrap' }, name)))),
      h(Table.Body, null, rows.map((r) => h(Table.Row, { key: r.key }, cellsOf(r, choose).map((cell, i) => h(Table.Cell, { key: i, textAlign: COLUMNS[i][1] ? 'end' : 'start', whiteSpace: i === 10 ? 'normal' : 'nowrap' }, cell)))))))
      : shown ? h(Text, { color: 'fg.muted' }, archived ? 'The archive has no write in this range.' : 'No instant in this range.') : null);
}

const instantRow = (r) => ({ key: `${r.requested} ${r.action}`, instant: r.requested, begin: r.begin_ms, service: r.service, operation: r.operation, state: r.state === 'COMPLETED' ? 'completed' : r.state.toLowerCase(), seconds: r.seconds,
  rows: r.rows, files: r.files, bytes: r.bytes, run: r.run, by: r.author || r.engine, note: r.note });
const otherRow = (r) => ({ key: `${r.service} ${r.begin} ${r.partition || r.run}`, instant: r.instant, begin: r.begin, service: r.service, operation: '', state: r.outcome || r.state, seconds: r.partition ? null : (r.end - r.begin) / 1000, run: r.run, note: r.partition || r.error || '' });

const cellsOf = (r, choose) => [
  r.instant ? h(Button, { variant: 'plain', size: 'xs', px: 0, h: 'auto', color: 'fg.info', onClick: () => choose(r.instant) }, r.instant) : '-',
  absolute(r.begin), word(r.service), r.operation ? operationWord(r.operation) : '-', h(State, { state: r.state }), seconds(r.seconds), count(r.rows), count(r.files), size(r.bytes), h(Maker, r), r.note || '-',
];

// The run of Airflow as a link; else the user, the run or the program that the commit names.
function Maker({ run, by }) {
  const to = dagRun(run);
  if (to) return h(Fragment, null, h(Go, { to, title: `DAG run ${run}` }, String(run).split('/')[0]), by && by !== 'lakehouse' ? ` ${by}` : '');
  return run || by || '-';
}
