// The tab Policies: each setting with its origin, and a change with its preview.
import { h, UI, useData, useState, Ago, Fragment } from './core.js';
import { Panel, Waiting, Failure } from './ui.js';
import { ActionButton } from './actions.js';

const { Box, Flex, Text, Table, Badge, Switch } = UI;
const COLOURS = { default: 'gray', namespace: 'blue', spec: 'purple', table: 'green', pattern: 'orange' };

export function Policies({ table, may, reload }) {
  const read = useData(`tables/${encodeURIComponent(table)}/policies`);
  const [all, setAll] = useState(false);
  if (read.error && !read.data) return h(Failure, { error: read.error });
  if (!read.data) return h(Waiting);
  const again = () => { read.reload(); reload(); };
  return h(Fragment, null,
    h('label', { style: { display: 'inline-flex', gap: '0.4rem', marginBottom: '1rem' } }, h('input', { type: 'checkbox', checked: all, onChange: (e) => setAll(e.target.checked) }), 'show defaults'),
    read.data.policies.map((s) => {
      const rows = s.settings.filter((e) => all || e.origin !== 'default' || e.setting === 'enabled');
      const dead = read.data.dead.filter((d) => d.service === s.service);
      return h(Panel, { key: s.service, title: s.service, mb: 4, actions: h(ActionButton, { table, action: 'edit_policy', fixed: { service: s.service }, disabled: !may.services, onDone: again,
        fields: [{ name: 'settings', label: 'Settings, one name=value per line', kind: 'lines' }, { name: 'pattern', label: 'Pattern of partitions, empty for all', hint: '2026-.*' }] }) },
      h(Table.Root, { size: 'sm', 'aria-label': `Settings of ${s.service}` }, h(Table.Body, null, rows.map((e, i) => h(Table.Row, { key: i }, h(Table.Cell, { w: '40%' }, e.setting), h(Table.Cell, { fontWeight: 'medium', w: '20%' }, e.value),
        h(Table.Cell, null, h(Badge, { colorPalette: COLOURS[e.origin] || 'gray' }, e.origin), ' ', e.pattern || e.scope), h(Table.Cell, null, e.author ? h(Text, { as: 'span', fontSize: 'sm', color: 'fg.muted' }, `by ${e.author}`) : ''))))),
      h(Flex, { gap: 2, mt: 2, wrap: 'wrap' }, ownScopes(rows).map((pattern) => h(ActionButton, { key: pattern, table, action: 'remove_policy', label: pattern ? `Remove policy of ${pattern}` : 'Remove policy',
        fixed: { service: s.service, ...(pattern ? { pattern } : {}) }, disabled: !may.services, onDone: again }))),
      dead.map((d, i) => h(Text, { key: i, fontSize: 'sm', mt: 2 }, `⚠ no effect: ${d.text}`)));
    }));
}

// The policies of the table itself that set something: '' is that of the whole table, others are patterns of partitions.
const ownScopes = (settings) => [...new Set(settings.filter((e) => e.origin === 'table' || e.origin === 'pattern').map((e) => e.pattern || ''))];
