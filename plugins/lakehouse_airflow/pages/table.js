// The page of one table: its tabs, and the tabs Overview, Partitions, Services, Publication, Policies and Files.
import { h, UI, useData, useQuery, query, count, size, seconds, Ago, absolute, pagePath, Fragment, useState } from './core.js';
import { CELLS, Frame, Card, Health, Missing, Name, Prose, State, Go, Panel, Loaded, Waiting, Notice, PagedTable, Search } from './ui.js';
import { ActionButton, Kept } from './actions.js';
import { ActivityList } from './activity.js';
import { DagNotices } from './dag-states.js';
import { useTableNumbers } from './table-numbers.js';
import { Histogram, Growth, TreeMap } from './charts.js';
import { HeatMap, isByDay } from './heatmap.js';
import { lazyPage } from './lazy.js';
import { Services } from './services.js';
import { Policies } from './policies.js';

const { Box, Flex, Text, Heading, Table, Code, Badge, SimpleGrid } = UI;
const VERSIONS = [['upgrade', '9'], ['downgrade', '6']];
const Timeline = lazyPage('./timeline.js', 'Timeline');
const Lineage = lazyPage('./lineage-view.js', 'Lineage');
const TABS = [['overview', 'Overview'], ['timeline', 'Timeline'], ['partitions', 'Partitions'], ['services', 'Services'], ['publication', 'Publication'], ['lineage', 'Lineage'],
  ['policies', 'Policies'], ['files', 'Files'], ['activity', 'Activity']];
const BODIES = { overview: Overview, timeline: TimelineTab, partitions: Partitions, services: Services, publication: Publication, lineage: ({ table }) => h(Lineage, { table }), policies: Policies, files: Files,
  activity: ({ table }) => h(ActivityList, { table }) };

export function TablePage({ parts }) {
  const table = parts[0];
  const [get, set] = useQuery();
  const tab = get('tab', 'overview');
  const { data, error, loading, reload } = useData(`tables/${encodeURIComponent(table)}`, { every: 15000 });
  const may = useData(`tables/${encodeURIComponent(table)}/permissions`).data || { table: false, services: false };
  const Body = Object.hasOwn(BODIES, tab) ? BODIES[tab] : null;
  if (error && error.code === 'unknown_table') return h(Missing, { title: `There is no table ${table}` }, error.message);
  return h(Frame, { page: 'table', stale: data && data.stale, error, title: table },
    h(Flex, { gap: 3, align: 'baseline', wrap: 'wrap', mb: 1 }, h(Heading, { as: 'h2', size: 'lg' }, table), data ? h(Health, data.row) : null),
    data ? h(Text, { color: 'fg.muted', fontSize: 'sm', mb: 2, wordBreak: 'break-all' }, facts(data)) : null,
    data ? data.row.problems.map((p, i) => h(Notice, { key: i, kind: p.severity >= 3 ? 'error' : 'warning', title: p.text }, p.action ? `→ ${p.action}` : '')) : null,
    data && data.row.error ? h(Notice, { kind: 'error', title: 'This table cannot be read' }, `${data.row.error}\nThe catalog still knows its services, policies and specs.`) : null,
    h(Flex, { role: 'tablist', 'aria-label': 'Parts of the table', gap: 1, mb: 4, borderBottomWidth: 1, borderColor: 'border', overflowX: 'auto' },
      TABS.map(([name, label]) => h(UI.Button, { key: name, role: 'tab', 'aria-selected': tab === name, variant: 'plain', size: 'sm', borderRadius: 0,
        borderWidth: 0, borderBottomWidth: 2, borderColor: tab === name ? 'border.info' : 'transparent', fontWeight: tab === name ? 'semibold' : 'normal',
        onClick: () => set({ tab: name === 'overview' ? '' : name, service: '', order: '', partition: '' }) }, label))),
    loading ? h(Waiting) : null,
    data && Body ? h(Box, { role: 'tabpanel', 'aria-label': tab }, h(Body, { table, data, may, reload })) : null,
    Body ? null : h(Fragment, null, h(Notice, { kind: 'warning', title: `There is no tab ${tab}` }, `Tabs of a table are ${TABS.map(([name]) => name).join(', ')}.`), h(Go, { to: pagePath('table', table) }, `← Overview of ${table}`)));
}

function facts({ spec, row }) {
  const parts = [spec.type, spec.index && `index ${typeof spec.index === 'string' ? spec.index : spec.index.type || ''}`, spec.record_key && `key ${[].concat(spec.record_key).join(', ')}`,
    spec.partition_by && `partition ${[].concat(spec.partition_by).map((p) => (typeof p === 'string' ? p : p.field || JSON.stringify(p))).join(', ')}`, row.location];
  return parts.filter(Boolean).join('   ·   ');
}

function Overview({ table, data, may, reload }) {
  const [{ numbers: n }] = useTableNumbers([data.row]); const now = data.now_ms;
  // A table that cannot be read is not read again by each panel.
  const broken = Boolean(data.row.error);
  const files = useData(broken ? null : `tables/${encodeURIComponent(table)}/files?limit=1`);
  const described = useData(broken ? null : `tables/${encodeURIComponent(table)}/description`);
  if (broken) return h(Panel, { title: 'Versions of the spec' }, h(Specs, { specs: data.specs, now }));
  return h(Fragment, null,
    h(Flex, { gap: 3, wrap: 'wrap', mb: 4 },
      h(Card, { label: 'base files', value: size(n.base_bytes) }), h(Card, { label: 'log backlog', value: size(n.log_bytes) }),
      h(Card, { label: 'file groups', value: count(n.file_groups) }), h(Card, { label: 'last commit', value: h(Ago, { ms: n.last_commit_ms ?? null, now }) }),
      h(Card, { label: 'watermark', value: h(Ago, { ms: n.watermark_ms ?? null, now }), hint: n.watermark_ms ? absolute(n.watermark_ms) : 'no event time' }),
      h(Card, { label: 'conflicts in a day', value: count(n.conflicts) }), h(Card, { label: 'metadata table', value: size(n.metadata_bytes) })),
    h(SimpleGrid, { columns: { base: 1, lg: 2 }, gap: 4, mb: 4 },
      h(Panel, { title: 'File sizes' }, h(Loaded, { read: files }, (found) => h(Histogram, { files: found }))),
      h(Panel, { title: 'Growth, 30 days' }, h(Growth, { points: data.points }))),
    h(SimpleGrid, { columns: { base: 1, lg: 2 }, gap: 4 },
      h(Panel, { title: 'Last commits' }, h(Loaded, { read: described }, (found) => h(Commits, { found, table, may, reload }))),
      h(Panel, { title: 'Schema' }, h(Loaded, { read: described }, (found) => h(Schema, { found }))),
      h(Panel, { title: 'Savepoints', actions: h(ActionButton, { table, action: 'savepoint', disabled: !may.table, onDone: reload,
        fields: [{ name: 'comment', label: 'Reason for the savepoint' }, { name: 'instant', label: 'Instant, empty for the newest commit' }] }) },
      h(Loaded, { read: described }, (found) => h(Savepoints, { found, table, may, reload }))),
      h(Panel, { title: 'Table version', actions: h(Flex, { gap: 2 }, VERSIONS.map(([action, hint]) => h(ActionButton, { key: action, table, action, disabled: !may.table, onDone: reload,
        fields: [{ name: 'to', label: 'New table version', hint, help: 'Stop the writers first. Services of the table wait for the change.' }] }))) },
      h(Loaded, { read: described }, (found) => h(Text, null, found.type))),
      h(Panel, { title: 'Versions of the spec' }, h(Specs, { specs: data.specs, now }))));
}

const Rows = ({ head, rows, label }) => h(Table.Root, { size: 'sm', 'aria-label': label, css: CELLS }, h(Table.Header, null, h(Table.Row, null, head.map((text) => h(Table.ColumnHeader, { key: text }, text)))),
  h(Table.Body, null, rows.map((cells, i) => h(Table.Row, { key: i }, cells.map((cell, j) => h(Table.Cell, { key: j }, cell))))));

function Commits({ found, table, may, reload }) {
  if (!found.commits.length) return h(Text, { color: 'fg.muted' }, 'No commit yet.');
  const saved = new Set(found.savepoints.map((s) => s.instant));
  return h(Fragment, null, h(Rows, { label: 'Last commits', head: ['instant', 'operation', 'rows', 'files', ''], rows: [...found.commits].reverse().map((c, i) => [
    h(Go, { to: `${pagePath('table', table)}?tab=timeline&instant=${c.instant}` }, c.instant), h(Prose, { 'data-text': 'narrow' }, c.operation.toLowerCase().replaceAll('_', ' ')),
    h(Changes, { commit: c }), h(Fragment, null, count(c.files), h(Box, null, size(c.bytes))),
    i !== 0 ? '' : saved.has(c.instant) ? 'savepoint' : h(ActionButton, { table, action: 'rollback', fixed: { instant: c.instant }, disabled: !may.table, onDone: reload })]) }),
  saved.has(found.commits.at(-1).instant) ? h(Box, { mt: 2 }, h(Kept)) : null,
  h(Flex, { mt: 3, gap: 2 }, h(ActionButton, { table, action: 'rollback_failed', disabled: !may.table, onDone: reload })));
}

function Changes({ commit: c }) {
  const parts = [[c.inserts, 'new'], [c.updates, 'changed'], [c.deletes, 'deleted']].filter(([rows]) => rows);
  return parts.length ? parts.map(([rows, what]) => h(Box, { key: what }, `${count(rows)} ${what}`)) : 'no rows';
}

const Schema = ({ found }) => h(Box, { maxH: '20rem', overflow: 'auto' }, h(Rows, { label: 'Schema', head: ['column', 'type'], rows: found.schema.map((c) => [h(Name, { text: c.column }), h(Prose, null, h(Code, { display: 'inline', whiteSpace: 'normal', overflowWrap: 'anywhere' }, c.type))]) }));

function Savepoints({ found, table, may, reload }) {
  if (!found.savepoints.length) return h(Text, { color: 'fg.muted' }, 'No savepoint. A savepoint keeps a commit from clean, and the table can be restored to it.');
  return h(Rows, { label: 'Savepoints', head: ['instant', 'files', 'by', 'reason', ''], rows: found.savepoints.map((s) => [s.instant, count(s.files), h(Name, { text: s.by }), h(Prose, { 'data-text': 'narrow' }, s.comment),
    h(ActionButton, { table, action: 'restore', fixed: { instant: s.instant }, disabled: !may.table, onDone: reload })]) });
}

const Specs = ({ specs, now }) => h(Rows, { label: 'Versions of the spec', head: ['version', 'by', 'file', 'since'], rows: specs.map((s) => [s.spec_version, h(Name, { text: s.author || '-' }), s.source ? h(Prose, null, h(Name, { text: s.source })) : '-', h(Ago, { ms: s.created_ms, now })]) });

function TimelineTab(props) { return h(Timeline, props); }

// The values of a partition path, as `2026-01-31` of `day=2026-01-31`: the metastore may name columns otherwise.
const valuesOf = (name) => name.split('/').map((level) => level.slice(level.indexOf('=') + 1)).join('/');

function Partitions({ table, data }) {
  const read = useData(`tables/${encodeURIComponent(table)}/description`);
  const services = data.spec.services || {};
  const status = useData(services.publish ? `tables/${encodeURIComponent(table)}/publication` : null).data;
  const versions = new Map((status ? status.partitions : []).map((p) => [valuesOf(p.partition), p]));
  const ttl = data.services.find((s) => s.service === 'ttl');
  const [get, set] = useQuery();
  const wanted = get('search').toLowerCase();
  return h(Loaded, { read }, (found) => {
    const all = found.partitions.filter((p) => p.partition.toLowerCase().includes(wanted));
    const sizes = found.partitions.map((p) => p.base_bytes + p.log_bytes).sort((a, b) => a - b);
    const median = sizes[Math.floor(sizes.length / 2)] || 0;
    const ordered = [...all].sort((a, b) => (b.base_bytes + b.log_bytes) - (a.base_bytes + a.log_bytes));
    return h(Fragment, null,
      h(Flex, { mb: 3, gap: 4, align: 'center' }, h(Search, { value: get('search'), label: 'Search partitions', onChange: (search) => set({ search }) }),
        h(Text, { color: 'fg.muted' }, `${count(all.length)} of ${count(found.partitions.length)} partitions, median ${size(median)}`)),
      isByDay(all) ? h(Panel, { title: 'Days', mb: 4 }, h(HeatMap, { table, partitions: all, now: data.now_ms })) : h(Panel, { title: 'Bytes by partition', mb: 4 }, h(TreeMap, { parts: ordered.slice(0, 200).map((p) => ({ name: p.partition, value: p.base_bytes + p.log_bytes, skewed: median > 0 && p.base_bytes + p.log_bytes > 4 * median })) })),
      h(Rows, { label: 'Partitions', head: ['partition', 'file groups', 'base', 'logs', 'log ratio', 'small files', 'last write', 'planned groups', 'expires', ...(services.publish ? ['published version'] : []), 'skew'], rows: ordered.slice(0, 200).map((p) => {
        const whole = p.base_bytes + p.log_bytes;
        return [h(Go, { to: `${pagePath('table', table)}?tab=files&partition=${encodeURIComponent(p.partition)}` }, h(Name, { text: p.partition })), count(p.file_groups), size(p.base_bytes), size(p.log_bytes),
          p.log_ratio === null ? '-' : `${Math.round(p.log_ratio * 100)} %`, `${count(p.small_files)} of ${count(p.base_files)}`, h(Ago, { ms: p.written_ms, now: data.now_ms }), count(p.planned_groups), expiry(p, ttl, data.now_ms), ...(services.publish ? [version(versions.get(valuesOf(p.partition)))] : []), median > 0 && whole > 4 * median ? h(Badge, { colorPalette: 'orange' }, `▲ ${(whole / median).toFixed(1)} × median`) : ''];
      }) }), ordered.length > 200 ? h(Text, { color: 'fg.muted', mt: 2 }, `${count(ordered.length - 200)} smaller partitions are not shown; search for them.`) : null);
  });
}

function expiry(p, ttl, now) {
  if (!p.expired && !p.expires_ms) return '-';
  const paused = ttl && !ttl.enabled ? ' (ttl is paused)' : '';
  return h('span', { title: p.expired }, p.expired ? `expired: ${p.expired}` : h(Ago, { ms: p.expires_ms, now }), paused);
}

const version = (p) => (!p ? '-' : p.instant ? h('span', { title: p.published }, p.instant, ' ', h(State, { state: p.state })) : h(State, { state: p.state }));

function Publication({ table, data, may, reload }) {
  const declared = data.spec.services && data.spec.services.publish;
  const read = useData(declared ? `tables/${encodeURIComponent(table)}/publication` : null);
  if (!declared) return h(Notice, { kind: 'info', title: 'This table is not published' }, 'Declare a section services.publish in its spec to publish its partitions in a Hive Metastore.');
  return h(Fragment, null, h(DagNotices, { dags: [`publish.${table}`] }), h(Loaded, { read }, (found) => h(Fragment, null, h(Text, { mb: 2 }, `Published as ${found.target}`),
    h(Rows, { label: 'Published partitions', head: ['partition', 'state', 'version', 'files', 'bytes', 'published', 'why', ''], rows: found.partitions.map((p) => [h(Name, { text: p.partition }), h(State, { state: p.state }), p.instant || '-',
      count(p.files), size(p.size_bytes), h(Published, { text: p.published }), p.reason ? h(Prose, null, p.reason) : '-', h(Flex, { gap: 1 }, ['publish', 'withdraw'].map((action) => h(ActionButton, { key: action, table, action, fixed: { partitions: [p.partition] }, disabled: !may.table, onDone: reload })))]) }))));
}

const Published = ({ text }) => (text ? h('time', { dateTime: text, title: text }, h(Ago, { ms: Date.parse(text) })) : '-');

function Files({ table }) {
  const [get, set] = useQuery();
  const partition = get('partition'); const offset = get('offset');
  const read = useData(`tables/${encodeURIComponent(table)}/files${query({ partition: partition === '(root)' ? '' : partition, offset, limit: 50 })}`);
  return h(Loaded, { read }, (found) => h(Fragment, null,
    partition ? h(Text, { mb: 2 }, `Partition ${partition} `, h(UI.Button, { size: 'xs', variant: 'outline', onClick: () => set({ partition: '' }) }, 'All partitions')) : null,
    h(Panel, { title: 'File sizes', mb: 4 }, h(Histogram, { files: found })),
    h(PagedTable, { label: 'File groups', total: found.total, limit: 50, rows: found.groups, empty: 'There are no files.', rowKey: (r) => r.partition + r.file_group, columns: [
      { name: 'partition', label: 'partition', cell: (r) => h(Name, { text: r.partition || '(root)' }) }, { name: 'group', label: 'file group', cell: (r) => h(Code, { fontSize: 'xs' }, h(Name, { text: r.file_group })) },
      { name: 'instant', label: 'base instant', cell: (r) => r.base_instant }, { name: 'base', label: 'base file', right: true, cell: (r) => size(r.base_bytes) },
      { name: 'logs', label: 'logs', right: true, cell: (r) => size(r.log_bytes) }, { name: 'count', label: 'log files', right: true, cell: (r) => count(r.log_files) }] })));
}
