// The tab Policies: each setting with its origin, and a change with its preview.
import { h, UI, useData, useState, Ago, Fragment } from './core.js';
import { CELLS, Prose, Waiting, Failure } from './ui.js';
import { ActionButton } from './actions.js';

const { Flex, Text, Table, Badge } = UI;
const COLOURS = { default: 'gray', namespace: 'blue', spec: 'purple', table: 'green', pattern: 'orange' };

export function Policies({ table, may, reload }) {
  const read = useData(`tables/${encodeURIComponent(table)}/policies`);
  const [all, setAll] = useState(false);
  if (read.error && !read.data) return h(Failure, { error: read.error });
  if (!read.data) return h(Waiting);
  const again = () => { read.reload(); reload(); };
  return h(Fragment, null,
    h(Flex, { gap: 4, mb: 3, align: 'center', wrap: 'wrap' }, h('label', { style: { display: 'inline-flex', gap: '0.4rem' } }, h('input', { type: 'checkbox', checked: all, onChange: (e) => setAll(e.target.checked) }), 'show defaults'),
      h(Text, { fontSize: 'sm', color: 'fg.muted' }, 'A pattern of partitions wins over the table, the table over its spec, the spec over the namespace.')),
    h(Table.Root, { size: 'sm', 'aria-label': 'Settings of services', css: CELLS },
      h(Table.Header, null, h(Table.Row, null, ['service', 'setting', 'value', 'set by', ''].map((text, i) => h(Table.ColumnHeader, { key: i }, text)))),
      h(Table.Body, null, read.data.policies.map((s) => h(Service, { key: s.service, service: s, dead: read.data.dead.filter((d) => d.service === s.service), all, table, may, again })))));
}

function Service({ service: s, dead, all, table, may, again }) {
  const rows = s.settings.filter((e) => all || e.origin !== 'default');
  const off = s.settings.some((e) => e.setting === 'enabled' && e.value === 'false');
  const edit = h(ActionButton, { table, action: 'edit_policy', fixed: { service: s.service }, disabled: !may.services, onDone: again,
    fields: [{ name: 'settings', label: 'Settings, one name=value per line', kind: 'lines', hint: s.settings.length ? `${s.settings[0].setting}=${s.settings[0].value}` : '' }, { name: 'pattern', label: 'Pattern of partitions, empty for all', hint: '2026-.*' }] });
  const remove = ownScopes(rows).map((pattern) => h(ActionButton, { key: pattern, table, action: 'remove_policy', label: pattern ? `Remove policy of ${pattern}` : 'Remove policy',
    fixed: { service: s.service, ...(pattern ? { pattern } : {}) }, disabled: !may.services, onDone: again }));
  const first = h(Fragment, null, h(Text, { fontWeight: 'medium' }, s.service), off ? h(Text, { fontSize: 'xs', color: 'fg.muted' }, 'switched off') : null);
  const actions = h(Flex, { direction: 'column', align: 'flex-start', gap: 1 }, edit, remove);
  const body = rows.length ? rows.map((e, i) => h(Table.Row, { key: i, 'data-policy': s.service },
    i ? null : h(Table.Cell, { rowSpan: rows.length }, first),
    h(Table.Cell, null, e.setting), h(Table.Cell, { fontWeight: 'medium' }, h(Prose, { maxW: '24rem' }, e.value)),
    h(Table.Cell, null, h(Badge, { colorPalette: COLOURS[e.origin] || 'gray' }, e.origin), ' ', h(Text, { as: 'span', fontSize: 'sm' }, e.pattern || e.scope), e.author ? h(Text, { fontSize: 'xs', color: 'fg.muted' }, `by ${e.author}`) : null),
    i ? null : h(Table.Cell, { rowSpan: rows.length }, actions)))
    : h(Table.Row, { 'data-policy': s.service }, h(Table.Cell, null, first), h(Table.Cell, { colSpan: 3, color: 'fg.muted' }, `Defaults of ${s.service} apply to all ${s.settings.length} settings.`), h(Table.Cell, null, actions));
  return h(Fragment, null, body, dead.map((d, i) => h(Table.Row, { key: `dead ${i}` }, h(Table.Cell), h(Table.Cell, { colSpan: 4 }, h(Prose, { maxW: '60rem' }, `⚠ no effect: ${d.text}`)))));
}

// The policies of the table itself that set something: '' is that of the whole table, others are patterns of partitions.
const ownScopes = (settings) => [...new Set(settings.filter((e) => e.origin === 'table' || e.origin === 'pattern').map((e) => e.pattern || ''))];
