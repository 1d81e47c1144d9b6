// The tab Lineage: sources, tables, derived tables and publications as the specs of the catalog declare them.
import { h, UI, Router, useData, pagePath, Fragment } from './core.js';
import { Failure, Go, Notice, Panel, Waiting } from './ui.js';
import { placed, BOX } from './lineage-model.js';

const { Box, Flex, Text } = UI;
const KINDS = { source: ['source', 'var(--chakra-colors-teal-fg, #0f766e)'], table: ['table', 'var(--chakra-colors-blue-fg, #1d4ed8)'], publication: ['published as', 'var(--chakra-colors-purple-fg, #7e22ce)'] };
const MARGIN = 6;

export function Lineage({ table }) {
  const { data, error } = useData(`tables/${encodeURIComponent(table)}/lineage`, { every: 60000 });
  if (error && !data) return h(Failure, { error });
  if (!data) return h(Waiting);
  if (data.nodes.length < 2) return h(Notice, { title: 'This table has no lineage' }, 'Its spec declares no source in a section `ingest` and no publication, and no other table of the catalog reads it with `source: table`. Programs that write to it directly are not shown.');
  return h(Fragment, null, h(Panel, { title: 'Sources, derived tables and publications' }, h(Picture, { data, table }),
    data.shortened ? h(Text, { mt: 2, fontSize: 'sm', color: 'fg.muted' }, 'Tables farther away are left out; open the lineage of a table at the edge.') : null,
    h(Flex, { gap: 4, mt: 3, fontSize: 'xs', color: 'fg.muted', wrap: 'wrap' }, Object.entries(KINDS).map(([kind, [text]]) => h('span', { key: kind }, h('span', { style: { color: colour(kind) } }, '■ '), text)), h('span', null, 'from the specs of the catalog; nothing is read from the tables'))),
  h(Panel, { title: 'As a list', mt: 4 }, h(List, { data, table })));
}

// Tokens of the theme, which change with it.
const colour = (kind) => KINDS[kind][1];
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// A wide picture shrinks to the page, down to a size that can still be read; then it scrolls.
const SMALLEST = 0.75;

function Picture({ data, table }) {
  const { boxes, paths, width, height } = placed(data); const [w, t] = [width + 2 * MARGIN, height + 2 * MARGIN];
  const names = new Map(data.nodes.map((n) => [n.id, n.name]));
  const text = data.edges.map((e) => `${names.get(e.source)} to ${names.get(e.target)}`).join('; ');
  return h(Box, { overflowX: 'auto' }, h('svg', { viewBox: `0 0 ${w} ${t}`, role: 'group', 'aria-label': `Lineage of ${table}: ${text}`, 'data-lineage': data.nodes.length, style: { display: 'block', width: '100%', maxWidth: w, minWidth: Math.round(w * SMALLEST) } },
    h('defs', null, h('marker', { id: 'lakehouse-arrow', viewBox: '0 0 8 8', refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto-start-reverse' }, h('path', { d: 'M0,0 L8,4 L0,8 Z', fill: 'var(--chakra-colors-fg-muted, #71717a)' }))),
    h('g', { transform: `translate(${MARGIN},${MARGIN})` }, paths.map(({ edge, points }, i) => h(Edge, { key: i, points, label: edge.label })), [...boxes.values()].map((b) => h(NodeBox, { key: b.id, node: b, mine: b.kind === 'table' && b.table === table })))));
}

// Points come in pairs: a curve leads to a column, a straight line passes it. An edge of a cycle goes back in one curve.
function curve(points) {
  const steps = [`M${points[0]}`];
  for (let i = 1; i < points.length; i += 1) {
    const [x, y] = points[i - 1]; const [u, v] = points[i];
    if (i % 2 === 0) steps.push(`L${u},${v}`); else { const bend = u > x ? (u - x) / 2 : 60; steps.push(`C${x + bend},${y} ${u - bend},${v} ${u},${v}`); }
  }
  return steps.join(' ');
}

function Edge({ points, label }) {
  const [x, y] = points[points.length - 1];
  return h('g', null, h('path', { d: curve(points), fill: 'none', stroke: 'var(--chakra-colors-fg-muted, #71717a)', strokeWidth: 1.3, markerEnd: 'url(#lakehouse-arrow)' }),
    label ? h('text', { x: x - 10, y: y - 5, textAnchor: 'end', style: { fontSize: '11px', fill: 'var(--chakra-colors-fg-muted, #52525b)', stroke: 'var(--chakra-colors-bg, #fff)', strokeWidth: 3, paintOrder: 'stroke' } }, cut(label, 14), h('title', null, label)) : null);
}

function NodeBox({ node, mine }) {
  const inner = [h('title', { key: 't' }, `${node.name}${node.detail ? `\n${node.detail}` : ''}`),
    h('rect', { key: 'r', x: node.x, y: node.y, width: BOX.width, height: BOX.height, rx: 6, fill: 'var(--chakra-colors-bg, #fff)', stroke: colour(node.kind), strokeWidth: mine ? 3 : 1.3 }),
    h('text', { key: 'n', x: node.x + 10, y: node.y + 21, style: { fontSize: '13px', fontWeight: 600, fill: 'var(--chakra-colors-fg, #18181b)' } }, cut(node.name, 25)),
    h('text', { key: 'd', x: node.x + 10, y: node.y + 39, style: { fontSize: '11px', fill: 'var(--chakra-colors-fg-muted, #52525b)' } }, cut(`${KINDS[node.kind][0]}${node.detail ? ` · ${node.detail}` : ''}`, 31))];
  const to = target(node);
  return to && !mine ? h(Router.Link, { to, 'aria-label': `${KINDS[node.kind][0]} ${node.name}` }, inner) : h('g', null, inner);
}

// A publication opens the state of its partitions.
const target = (node) => (node.table ? `${pagePath('table', node.table)}?tab=${node.kind === 'publication' ? 'publication' : 'lineage'}` : null);

function List({ data, table }) {
  const nodes = new Map(data.nodes.map((n) => [n.id, n]));
  const name = (n) => (target(n) && n.table !== table ? h(Go, { to: target(n) }, n.name) : n.name);
  return h('ul', { style: { paddingLeft: '1.1rem', listStyle: 'disc', fontSize: '0.875rem' } }, data.edges.map((e, i) => h('li', { key: i }, name(nodes.get(e.source)), ' → ', name(nodes.get(e.target)), e.label ? ` (${e.label})` : '')));
}
