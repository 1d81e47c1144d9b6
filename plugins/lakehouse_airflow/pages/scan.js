// The page Fleet scan: tables that `lakehouse fleet scan` found, their support, and what to do with each.
import { h, UI, useData, useQuery, query, count, size, Ago, pagePath } from './core.js';
import { Frame, Card, Name, Notice, PagedTable, Prose, Go, Choice, Search, Waiting } from './ui.js';

const { Box, Flex, Text, Code, Badge } = UI;
const LIMIT = 50;
const KINDS = { hudi: 'Hudi', parquet: 'Parquet', delta: 'Delta', iceberg: 'Iceberg', other: 'other', unreadable: 'unreadable' };

export function Scan() {
  const [get, set] = useQuery();
  const filter = { place: get('place'), search: get('search'), kind: get('kind') };
  const { data, error, loading } = useData(`scans${query({ ...filter, offset: get('offset') || null, limit: LIMIT })}`, { every: 15000 });
  const scan = data && data.scans.find((s) => s.place === data.place);
  return h(Frame, { page: 'scan', stale: data && data.stale, error, title: 'Fleet scan' },
    loading ? h(Waiting) : null,
    data && !data.scans.length ? h(First) : null,
    data && data.scans.length && !scan ? h(Notice, { kind: 'warning', title: `No scan of ${data.place} is recorded` }, `Recorded places are ${data.scans.map((s) => s.place).join(', ')}.`) : null,
    scan ? h(Found, { data, scan, filter, set }) : null);
}

function Found({ data, scan, filter, set }) {
  const { totals: t, now_ms: now } = data;
  return h(Box, null,
    h(Flex, { gap: 3, wrap: 'wrap', mb: 4 },
      h(Card, { label: t.tables === 1 ? 'table found' : 'tables found', value: count(t.tables), hint: h(Box, { as: 'span' }, 'scanned ', h(Ago, { ms: scan.started_ms, now }), scan.author ? ` by ${scan.author}` : '') }),
      h(Card, { label: 'tables of Hudi', value: count(t.hudi) }),
      h(Card, { label: 'registered', value: count(t.registered), hint: t.hudi ? `${Math.round((100 * t.registered) / t.hudi)} % of Hudi's` : null, to: '/plugin/lakehouse' }),
      h(Card, { label: 'cannot be read', value: count(t.unreadable) })),
    t.hudi && !t.registered ? h(Notice, { title: 'No table of this place is registered yet' },
      `Registration does not change the behaviour of a table: services that another program runs stay disabled. Register all readable tables:\nlakehouse fleet scan ${scan.place} --register`) : null,
    t.tables ? null : h(Notice, { title: 'The scan found no table' }, `It listed ${count(scan.folders)} folders of ${scan.place}. A table has a folder .hoodie, or Parquet files.`),
    h(Flex, { gap: 4, mb: 4, wrap: 'wrap', align: 'center' },
      h(Search, { value: filter.search, label: 'Search locations', onChange: (search) => set({ search }) }),
      data.scans.length > 1 ? h(Choice, { label: 'place', value: scan.place, onChange: (place) => set({ place }), options: data.scans.map((s) => [s.place, s.place]) }) : null,
      h(Choice, { label: 'format', value: filter.kind, onChange: (kind) => set({ kind }), options: [['', 'all'], ...Object.entries(KINDS)] })),
    h(PagedTable, { columns: columns(scan.place), rows: data.tables, total: data.total, limit: LIMIT, label: 'Scanned tables', rowKey: (r) => r.location, empty: 'No table matches these filters.' }));
}

function First() {
  return h(Box, { borderWidth: 1, borderRadius: 'md', p: 6, maxW: '46rem' },
    h(Text, { fontWeight: 'semibold', mb: 2 }, 'No place was scanned yet'),
    h(Text, { mb: 3 }, 'A scan finds the tables below a folder or a URL, or in a Hive Metastore, and reports which of them can be read, written and serviced. It changes nothing:'),
    h(Code, { display: 'block', p: 3, whiteSpace: 'pre' }, 'lakehouse fleet scan s3://lake\nlakehouse fleet scan hms://metastore:9083'));
}

const shorter = (location, place) => (location.startsWith(place) ? location.slice(place.length).replace(/^\/+/, '') : location) || location;

function Support({ table: r }) {
  if (r.problem) return h(Badge, { colorPalette: 'red', variant: 'subtle' }, '✖ cannot be used');
  const [palette, text] = r.writable ? ['green', '● read and write'] : r.readable ? ['orange', '▲ read only'] : ['gray', '○ not supported'];
  return h(Badge, { colorPalette: palette, variant: 'subtle' }, text);
}

// Reasons of refusals once, with the operations that they prevent.
function reasonsOf(r) {
  const operations = new Map();
  r.refusals.forEach(({ operation, reason }) => operations.set(reason, [...(operations.get(reason) || []), operation]));
  return [...operations].map(([reason, names]) => `no ${names.join(', ')}: ${reason}`);
}

const columns = (place) => [
  { name: 'table', label: 'table', cell: (r) => h(Box, { minW: '9rem' }, h(Name, { text: shorter(r.location, place) }),
    r.metastore_tables.length ? h(Text, { fontSize: 'xs', color: 'fg.muted' }, `metastore: ${r.metastore_tables.join(', ')}`) : null) },
  { name: 'format', label: 'format', cell: (r) => h(Box, null, KINDS[r.kind] || r.kind, r.version ? ` ${r.version}` : '', h(Text, { fontSize: 'xs', color: 'fg.muted' }, r.type.toLowerCase().replaceAll('_', ' '))) },
  { name: 'size', label: 'size', right: true, help: 'Known if the scan ran with --sizes.', cell: (r) => size(r.bytes) },
  { name: 'features', label: 'features', cell: (r) => (r.features.length ? h(Box, { minW: '14rem', maxW: '22rem', 'data-text': true }, r.features.map((f) => h(Text, { key: f.feature, fontSize: 'xs' }, `${f.feature}: `, h(Name, { text: f.value.replaceAll(',', ', ') })))) : '-') },
  { name: 'support', label: 'supported', cell: (r) => h(Box, { maxW: '24rem' }, h(Support, { table: r }),
    r.services.length ? h(Text, { fontSize: 'xs', color: 'fg.muted' }, `${count(r.services.length)} services`) : null,
    reasonsOf(r).map((text) => h(Prose, { key: text, fontSize: 'xs' }, text))) },
  { name: 'next', label: 'what to do', cell: (r) => (r.registered ? h(Text, { fontSize: 'sm' }, 'Look at its services.') : h(Box, { fontSize: 'sm', maxW: '24rem', 'data-text': true }, h(Name, { text: r.problem || r.next[0] || '-' }))) },
  { name: 'registered', label: 'registered', cell: (r) => (r.registered ? h(Go, { to: pagePath('table', r.registered) }, h(Name, { text: r.registered })) : h(Text, { color: 'fg.muted' }, 'no')) },
];
