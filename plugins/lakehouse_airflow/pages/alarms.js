// The page Alarms: open and resolved alarms of rules, and the silences in force.
import { h, UI, useData, useQuery, query, Ago, absolute, pagePath } from './core.js';
import { Frame, Name, PagedTable, Panel, Prose, Severity, Go, Search, Waiting } from './ui.js';
import { ActionButton } from './actions.js';

const { Box, Flex, Text, Button } = UI;
const LIMIT = 50;
export function Alarms() {
  const [get, set] = useQuery();
  const resolved = get('resolved') === 'true';
  const { data, error, loading, reload } = useData(`alarms${query({ resolved, search: get('search'), offset: get('offset'), limit: LIMIT })}`, { every: 15000 });
  const may = useData('permissions').data || { table: false };
  const silence = { path: 'alarms/actions', disabled: !may.table, onDone: reload };
  return h(Frame, { page: 'alarms', stale: data && data.stale, error, title: 'Alarms' },
    h(Flex, { gap: 4, mb: 4, wrap: 'wrap', align: 'center' },
      h(Flex, { role: 'tablist', gap: 1 }, [[false, 'Open'], [true, 'Resolved']].map(([value, label]) => h(Button, { key: label, role: 'tab', 'aria-selected': resolved === value,
        size: 'sm', variant: resolved === value ? 'solid' : 'outline', onClick: () => set({ resolved: value ? 'true' : '' }) }, label))),
      h(Search, { value: get('search'), label: 'Search tables and rules', onChange: (search) => set({ search }) }),
      h(ActionButton, { ...silence, action: 'silence', label: 'New silence', fields: fields('', '') })),
    loading ? h(Waiting) : null,
    data ? h(PagedTable, { columns: columns(data.now_ms, resolved, silence), rows: data.alarms, total: data.total, limit: LIMIT, label: 'Alarms', rowKey: (r) => r.id,
      empty: resolved ? 'No alarm was resolved yet.' : 'No alarm is open.' }) : null,
    data && data.silences.length ? h(Panel, { title: 'Silences in force', mt: 6 }, data.silences.map((s) => h(Flex, { key: s.id, gap: 3, mb: 1, align: 'center', 'data-silence': s.id },
      h(Text, { fontSize: 'sm' }, `${s.rule || 'all rules'} of ${s.scope || 'all tables'} until ${absolute(s.until_ms)}, by ${s.author}: ${s.reason}`),
      h(ActionButton, { ...silence, action: 'end_silence', fixed: { silence: String(s.id) } })))) : null);
}

const fields = (rule, scope) => [
  { name: 'rule', label: 'Rule, empty for all', value: rule }, { name: 'scope', label: 'Table or namespace, empty for all', value: scope, hint: 'sales.orders' },
  { name: 'duration', label: 'For how long', value: '2h', hint: '2h' }, { name: 'reason', label: 'Reason, which others see' },
];

const columns = (now, resolved, silence) => [
  { name: 'severity', label: 'severity', cell: (r) => h(Severity, r) },
  { name: 'table', label: 'table', cell: (r) => (r.table ? h(Go, { to: pagePath('table', r.table) }, h(Name, { text: r.table })) : 'platform') },
  { name: 'rule', label: 'rule', cell: (r) => h(Box, null, r.rule.replaceAll('_', ' '), r.subject ? h(Text, { fontSize: 'xs', color: 'fg.muted' }, r.subject) : null) },
  { name: 'text', label: 'what is wrong', cell: (r) => h(Prose, null, r.text, r.action ? h(Text, { fontSize: 'sm', color: 'fg.muted' }, `→ ${r.action}`) : null) },
  { name: 'raised', label: 'raised', cell: (r) => h(Ago, { ms: r.raised_ms, now }) },
  resolved ? { name: 'resolved', label: 'resolved', cell: (r) => h(Ago, { ms: r.resolved_ms, now }) }
    : { name: 'sent', label: 'sent to', cell: (r) => (r.silenced ? 'silenced' : Object.keys(r.notified).join(', ') || '-') },
  ...(resolved ? [] : [{ name: 'silence', label: '', cell: (r) => (r.silenced ? null : h(ActionButton, { ...silence, action: 'silence', fields: fields(r.rule, r.table) })) }]),
];
