// Why a table has its health: the rules that it violates, and the newest decision on each service with its inputs.
import { h, UI, useData, Ago, Fragment, useState, pagePath } from './core.js';
import { whole, CELLS, Failure, Go, Health, Prose, Reading, Severity } from './ui.js';
import { Inputs, stateOf } from './services.js';

const { Box, Button, Dialog, Portal, Table, Text } = UI;

export function WhyHealth({ table, close }) {
  const { data, error } = useData(`tables/${encodeURIComponent(table)}`);
  return h(Dialog.Root, { open: true, size: 'xl', onOpenChange: (e) => { if (!e.open) close(); } },
    h(Portal, null, h(Dialog.Backdrop), h(Dialog.Positioner, null, h(Dialog.Content, { 'data-dialog': 'why' },
      h(Dialog.Header, null, h(Dialog.Title, { overflowWrap: 'anywhere' }, `Why: ${table}`)),
      h(Dialog.Body, null, error && !data ? h(Failure, { error }) : null, data ? h(Reasons, { table, data }) : error ? null : h(Reading, { what: 'the catalog' })),
      h(Dialog.Footer, null, h(Go, { to: `${pagePath('table', table)}?tab=services` }, 'Services of the table'), h(Button, { variant: 'outline', onClick: close }, 'Close'))))));
}

function Reasons({ table, data }) {
  const { row, services, now_ms: now } = data;
  const decided = services.filter((s) => s.decision && s.applies).sort((a, b) => b.decision.due - a.decision.due);
  return h(Fragment, null, h(Health, row), row.error ? h(Text, { mt: 2, overflowWrap: 'anywhere' }, row.error) : null,
    row.problems.length ? row.problems.map((p, i) => h(Box, { key: i, mt: 3 }, h(Severity, p), ' ', h(Text, { as: 'span', fontWeight: 'medium' }, whole(p.text)),
      h(Text, { fontSize: 'sm', color: 'fg.muted', overflowWrap: 'anywhere' }, `rule ${p.rule}${p.action ? ` → ${p.action}` : ''}`))) : row.error ? null
      : h(Text, { mt: 2 }, row.looked_ms ? h(Fragment, null, 'No rule has a problem with the numbers of ', h(Ago, { ms: row.looked_ms, now }), '.') : 'The scheduler has not looked at this table yet, so no rule was evaluated.'),
    decided.length ? h(Table.Root, { size: 'sm', mt: 4, 'aria-label': 'Newest decisions', css: CELLS },
      h(Table.Header, null, h(Table.Row, null, ['service', 'state', 'newest decision'].map((text) => h(Table.ColumnHeader, { key: text }, text)))),
      h(Table.Body, null, decided.map((s) => h(Table.Row, { key: s.service }, h(Table.Cell, null, h(Go, { to: `${pagePath('table', table)}?tab=services&service=${s.service}` }, s.service)), h(Table.Cell, null, stateOf(s)),
        h(Table.Cell, null, h(Prose, { maxW: '40rem' }, s.decision.reason, ' ', h(Text, { as: 'span', fontSize: 'sm', color: 'fg.muted' }, h(Ago, { ms: s.decision.decided_ms, now })), h(Inputs, { inputs: s.decision.inputs })))))))
      : h(Text, { mt: 3, color: 'fg.muted' }, 'The scheduler has not decided about a service of this table yet.'));
}

// The rules in force, with their limits.
export function Rules() {
  const [open, setOpen] = useState(true);
  const { data, error } = useData(open ? 'alarms/rules' : null);
  return h(Box, { fontSize: 'sm' },
    h(Button, { size: 'xs', variant: 'plain', px: 0, color: 'fg.muted', 'aria-expanded': open, onClick: () => setOpen(!open) }, `${open ? '▾' : '▸'} When does a table need attention?`),
    open && error && !data ? h(Failure, { error }) : null, open && !data && !error ? h(Reading, { what: 'the rules' }) : null,
    open && data ? h(Fragment, null, h(Table.Root, { size: 'sm', 'aria-label': 'Rules of health', css: CELLS },
      h(Table.Header, null, h(Table.Row, null, ['rule', 'severity', 'above', 'what it measures'].map((text) => h(Table.ColumnHeader, { key: text }, text)))),
      h(Table.Body, null, data.rules.map((r, i) => h(Table.Row, { key: i }, h(Table.Cell, null, r.rule.replaceAll('_', ' '), r.scope ? h(Text, { fontSize: 'xs', color: 'fg.muted' }, `only ${r.scope}`) : null), h(Table.Cell, null, h(Severity, r)), h(Table.Cell, null, r.limit), h(Table.Cell, null, h(Prose, { maxW: '60rem' }, r.measures)))))),
    h(Text, { mt: 2, color: 'fg.muted' }, data.source ? `The rules come from ${data.source}, on top of the shipped ones.` : 'These are the shipped rules; a file alarms.yaml beside the folder of table specs changes them.')) : null);
}
