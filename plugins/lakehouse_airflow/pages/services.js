// The tab Services: state of each service with its actions, and why it ran or did not run.
import { h, UI, useData, useQuery, count, Ago, Fragment, useState, seconds, size } from './core.js';
import { whole, CELLS, Name, Prose, State, Panel, Waiting, Failure, Go } from './ui.js';
import { ActionButton } from './actions.js';
import { DagNotices } from './dag-states.js';
import { cost, dagRun } from './queue.js';

const { Box, Flex, Text, Table, Button, Code } = UI;

export function Services({ table, data, may, reload }) {
  const [get, set] = useQuery();
  const chosen = get('service');
  return h(Fragment, null,
    h(DagNotices, { services: data.services.filter((s) => s.enabled && s.applies).map((s) => s.service) }),
    h(Table.Root, { size: 'sm', 'aria-label': 'Services', css: CELLS }, h(Table.Header, null, h(Table.Row, null, ['service', 'state', 'newest decision', 'cost', 'last run', ''].map((text, i) => h(Table.ColumnHeader, { key: i }, text)))),
      h(Table.Body, null, data.services.map((s) => h(Table.Row, { key: s.service, 'data-service': s.service },
        h(Table.Cell, { fontWeight: 'medium' }, s.service),
        h(Table.Cell, null, stateOf(s), s.requests ? h(Text, { fontSize: 'xs' }, `${count(s.requests)} open ${s.requests === 1 ? 'request' : 'requests'}`) : null),
        h(Table.Cell, null, h(Prose, { maxW: '40rem' }, s.decision ? h(Fragment, null, whole(s.decision.reason), ' ', h(Text, { as: 'span', color: 'fg.muted', fontSize: 'sm' }, h(Ago, { ms: s.decision.decided_ms, now: data.now_ms })))
          : h(Text, { color: 'fg.muted' }, s.applies ? 'The scheduler has not decided about this service yet.' : `A table of type ${data.spec.type} does not need it.`))),
        h(Table.Cell, null, s.decision && s.applies ? h(Cost, { predicted: s.decision.predicted }) : '-'),
        h(Table.Cell, null, s.run ? h(Fragment, null, h(State, s.run), h(Box, null, h(Ago, { ms: s.run.started_ms, now: data.now_ms }))) : '-'),
        h(Table.Cell, null, h(Flex, { gap: 1 },
          s.applies ? h(ActionButton, { table, action: 'request_service', fixed: { service: s.service }, disabled: !may.services, onDone: reload }) : null,
          s.applies ? h(ActionButton, { table, action: s.enabled ? 'pause_service' : 'resume_service', fixed: { service: s.service }, disabled: !may.services, onDone: reload }) : null,
          s.decision || s.run ? h(Button, { size: 'xs', variant: chosen === s.service ? 'solid' : 'outline', onClick: () => set({ service: chosen === s.service ? '' : s.service }) }, 'Why') : null)))))),
    chosen ? h(Why, { table, service: chosen }) : null);
}

export function stateOf(s) {
  if (!s.applies) return 'not applicable';
  if (!s.enabled) return 'switched off';
  if (!s.decision) return '-';
  return s.decision.due ? '▲ due' : 'not due';
}

function Cost({ predicted }) {
  if (!predicted || predicted.bytes === undefined) return '-';
  return h(Fragment, null, predicted.bytes ? size(predicted.bytes) : '', predicted.seconds ? h(Box, null, `~${seconds(predicted.seconds)}`) : null);
}

function Why({ table, service }) {
  const { data, error } = useData(`tables/${encodeURIComponent(table)}/services/${service}/decisions`, { every: 15000 });
  const [compared, setCompared] = useState([]);
  if (error && !data) return h(Failure, { error });
  if (!data) return h(Waiting);
  const toggle = (i) => setCompared((old) => (old.includes(i) ? old.filter((n) => n !== i) : [...old, i].slice(-2)));
  return h(Panel, { title: `Why: ${service}`, mt: 4 },
    data.decisions.length === 0 ? h(Text, { color: 'fg.muted' }, 'The scheduler has not decided about this service yet.') : null,
    h(Table.Root, { size: 'sm', 'aria-label': `Decisions on ${service}`, css: CELLS }, h(Table.Body, null, data.decisions.map((d, i) => h(Table.Row, { key: i },
      h(Table.Cell, null, h('input', { type: 'checkbox', checked: compared.includes(i), 'aria-label': `compare decision ${i + 1}`, onChange: () => toggle(i) })),
      h(Table.Cell, null, h(Ago, { ms: d.decided_ms, now: data.now_ms })), h(Table.Cell, null, d.chosen ? '▶ runs' : d.due ? '▲ due, waits' : '– not due'),
      h(Table.Cell, null, h(Prose, { maxW: '60rem' }, d.reason, h(Inputs, { inputs: d.inputs }))), h(Table.Cell, { textAlign: 'end' }, cost(d.predicted)))))),
    compared.length === 2 ? h(Compare, { one: data.decisions[compared[0]], other: data.decisions[compared[1]], now: data.now_ms }) : h(Text, { fontSize: 'sm', color: 'fg.muted', mt: 2 }, 'Choose two decisions to compare their inputs.'),
    data.runs.length ? h(Box, { mt: 4 }, h(Text, { fontWeight: 'semibold', mb: 1 }, 'Runs'), h(Table.Root, { size: 'sm', 'aria-label': `Runs of ${service}`, css: CELLS }, h(Table.Body, null, data.runs.map((r) => h(Table.Row, { key: r.run },
      h(Table.Cell, null, h(State, r)), h(Table.Cell, null, h(Ago, { ms: r.started_ms, now: data.now_ms })), h(Table.Cell, null, r.ended_ms ? seconds((r.ended_ms - r.started_ms) / 1000) : '-'),
      h(Table.Cell, null, `predicted ${cost(r.predicted)}`, h(Box, null, `actual ${cost(r.actual)}`)), h(Table.Cell, null, r.error ? h(Prose, null, r.error) : r.instant || ''), h(Table.Cell, null, dagRun(r.run) ? h(Go, { to: dagRun(r.run) }, 'DAG run') : h(Name, { text: r.run }))))))) : null);
}

const inputText = (name, value) => (typeof value !== 'number' ? String(value) : name.endsWith('bytes') ? size(value) : name.endsWith('seconds') ? seconds(value) : count(value));

// The numbers that the decision compared, such as `delta commits 6`.
export function Inputs({ inputs }) {
  const shown = Object.entries(inputs).filter(([, v]) => v !== null && typeof v !== 'object');
  if (!shown.length) return null;
  return h(Text, { fontSize: 'xs', color: 'fg.muted' }, 'inputs: ', shown.map(([n, v], i) => h('span', { key: n, 'data-line': true }, `${n.replaceAll('_', ' ')} ${inputText(n, v)}${i < shown.length - 1 ? ', ' : ''}`, i < shown.length - 1 ? h('wbr') : null)));
}

function Compare({ one, other, now }) {
  const names = [...new Set([...Object.keys(one.inputs), ...Object.keys(other.inputs)])];
  const text = (value) => (value === undefined ? '-' : typeof value === 'object' ? JSON.stringify(value) : String(value));
  return h(Table.Root, { size: 'sm', mt: 3, 'aria-label': 'Comparison', css: CELLS }, h(Table.Header, null, h(Table.Row, null, h(Table.ColumnHeader, null, 'input'), [one, other].map((d, i) => h(Table.ColumnHeader, { key: i }, h(Ago, { ms: d.decided_ms, now }))))),
    h(Table.Body, null, [['reason', one.reason, other.reason], ['code', one.code, other.code], ...names.map((n) => [n, text(one.inputs[n]), text(other.inputs[n])])].map(([name, a, b]) => h(Table.Row, { key: name },
      h(Table.Cell, null, name), h(Table.Cell, { fontWeight: a === b ? 'normal' : 'semibold' }, h(Prose, null, a)), h(Table.Cell, { fontWeight: a === b ? 'normal' : 'semibold' }, h(Prose, null, b))))));
}
