// Charts as SVG: histogram of file sizes, growth, and a tree map. Each has a text for screen readers.
import { h, UI, useEffect, useRef, useState, size, count, absolute } from './core.js';

const { Box, Text, Flex } = UI;
const colour = (name, fallback) => `var(--chakra-colors-${name}, ${fallback})`;
const FG = colour('fg-muted', '#888');
const LARGE = colour('blue-solid', '#3b82f6'); const SMALL = colour('orange-solid', '#f97316'); const TARGET = colour('green-fg', '#16a34a');
// White letters are readable on both, in light and dark.
const PART = '#2563eb'; const SKEWED = '#c2410c';
const LETTERS = { fontSize: '11px' };

// A drawing as wide as its place: one unit is one pixel, so that letters keep their size at every width.
export function Drawing({ height, label, children }) {
  const place = useRef(null); const [width, setWidth] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(place.current);
    return () => watch.disconnect();
  }, []);
  return h('div', { ref: place, style: { minHeight: height } }, width ? h('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label, style: { display: 'block' } }, children(width)) : null);
}

export function Histogram({ files }) {
  const most = Math.max(1, ...files.histogram.map((b) => b.files));
  const text = files.histogram.map((b) => `${b.files} files ${b.up_to_bytes ? `up to ${size(b.up_to_bytes)}` : 'above'}`).join(', ');
  const height = 150; const edges = files.histogram.map((b) => b.up_to_bytes ?? Infinity);
  const place = edges.findIndex((e) => files.target_bytes <= e);
  return h('div', null, h(Drawing, { height: height + 20, label: `Sizes of base files: ${text}` }, (width) => {
    const step = width / files.histogram.length; const wide = Math.min(step - 8, 72); const line = (place + 1) * step - 1;
    return [...files.histogram.map((b, i) => {
      const tall = (b.files / most) * (height - 18); const small = b.up_to_bytes !== null && b.up_to_bytes <= files.small_bytes; const middle = i * step + step / 2;
      return h('g', { key: i }, h('title', null, `${count(b.files)} files, ${size(b.bytes)}`), h('rect', { x: middle - wide / 2, y: height - tall, width: wide, height: tall, fill: small ? SMALL : LARGE }),
        b.files ? h('text', { x: middle, y: height - tall - 4, textAnchor: 'middle', style: LETTERS, fill: FG }, count(b.files)) : null,
        h('text', { x: middle, y: height + 15, textAnchor: 'middle', style: LETTERS, fill: FG }, b.up_to_bytes ? `≤ ${size(b.up_to_bytes).replace('.0', '')}` : 'larger'));
    }), h('line', { key: 'axis', x1: 0, x2: width, y1: height, y2: height, stroke: FG, 'data-quiet': true }),
    place >= 0 ? h('line', { key: 'target', x1: line, x2: line, y1: 0, y2: height, stroke: TARGET, strokeWidth: 2, strokeDasharray: '5 3' }, h('title', null, `target ${size(files.target_bytes)}`)) : null];
  }),
  h(Flex, { gap: 4, wrap: 'wrap', fontSize: 'xs', color: 'fg.muted', mt: 1 }, h(Key, { fill: SMALL }, `small, up to ${size(files.small_bytes)}`), h(Key, { fill: LARGE }, 'large enough'),
    h('span', null, h('span', { style: { color: TARGET, fontWeight: 700 } }, '┆'), ` target ${size(files.target_bytes)}`)));
}

const Key = ({ fill, children }) => h('span', { style: { whiteSpace: 'nowrap' } }, h('span', { style: { display: 'inline-block', width: 10, height: 10, marginRight: 5, background: fill } }), children);

export function Growth({ points }) {
  const found = points.filter((p) => p.numbers.base_bytes !== undefined && p.numbers.base_bytes !== null);
  if (found.length < 2) return h(Text, { color: 'fg.muted' }, 'There is no history yet; the scheduler stores the numbers of each hour.');
  const height = 150; const first = found[0].hour_ms; const span = found[found.length - 1].hour_ms - first || 1;
  const most = Math.max(...found.map((p) => p.numbers.base_bytes + (p.numbers.log_bytes || 0))) || 1;
  const at = (value) => height - (value / most) * (height - 10);
  const area = (x, top, bottom) => `M${found.map((p) => `${x(p).toFixed(1)},${at(top(p)).toFixed(1)}`).join(' L')} L${[...found].reverse().map((p) => `${x(p).toFixed(1)},${at(bottom(p)).toFixed(1)}`).join(' L')} Z`;
  const base = (p) => p.numbers.base_bytes; const all = (p) => base(p) + (p.numbers.log_bytes || 0);
  const last = found[found.length - 1];
  return h(Box, null, h(Drawing, { height, label: `Bytes from ${size(all(found[0]))} to ${size(all(last))}` }, (width) => {
    const x = (p) => ((p.hour_ms - first) / span) * width;
    return [h('path', { key: 'base', d: area(x, base, () => 0), fill: LARGE }), h('path', { key: 'logs', d: area(x, all, base), fill: SMALL })];
  }),
  h(Flex, { justify: 'space-between', wrap: 'wrap', gap: 3, fontSize: 'xs', color: 'fg.muted', mt: 1 }, h('span', null, absolute(first)), h(Key, { fill: LARGE }, `base ${size(base(last))}`), h(Key, { fill: SMALL }, `logs ${size(last.numbers.log_bytes || 0)}`), h('span', null, absolute(last.hour_ms))));
}

// Squarified tree map: rows are filled along the shorter side as long as their rectangles become more square.
function squarified(parts, width, height) {
  const total = parts.reduce((sum, p) => sum + p.value, 0);
  const cells = []; let x = 0; let y = 0; let w = width; let t = height;
  let rest = parts.filter((p) => p.value > 0).map((p) => ({ ...p, area: (p.value / total) * width * height }));
  const worst = (row, side) => { const sum = row.reduce((s, p) => s + p.area, 0); return Math.max(...row.map((p) => Math.max((side * side * p.area) / (sum * sum), (sum * sum) / (side * side * p.area)))); };
  while (rest.length) {
    const side = Math.min(w, t); const row = [rest[0]]; let n = 1;
    while (n < rest.length && worst([...row, rest[n]], side) <= worst(row, side)) { row.push(rest[n]); n += 1; }
    const sum = row.reduce((s, p) => s + p.area, 0); const thick = sum / side; let along = 0;
    row.forEach((p) => { const long = p.area / thick; cells.push(w >= t ? { ...p, x, y: y + along, w: thick, h: long } : { ...p, x: x + along, y, w: long, h: thick }); along += long; });
    if (w >= t) { x += thick; w -= thick; } else { y += thick; t -= thick; }
    rest = rest.slice(n);
  }
  return cells;
}

// The end of a partition path tells partitions apart.
const valuesOf = (name) => name.split('/').map((level) => level.slice(level.indexOf('=') + 1)).join('/');
const fitting = (text, width) => (text.length * 7 > width ? `…${text.slice(-Math.max(1, Math.floor((width - 6) / 7)))}` : text);

export function TreeMap({ parts }) {
  if (!parts.some((p) => p.value > 0)) return h(Text, { color: 'fg.muted' }, 'There is no data.');
  const label = `Bytes of ${parts.length} partitions; the largest is ${parts[0].name} with ${size(parts[0].value)}`;
  return h(Drawing, { height: 220, label }, (width) => squarified(parts, width, 220).map((c, i) => h('g', { key: i }, h('title', null, `${c.name}: ${size(c.value)}${c.skewed ? ', more than 4 times the median' : ''}`),
    h('rect', { x: c.x + 1, y: c.y + 1, width: Math.max(0, c.w - 2), height: Math.max(0, c.h - 2), rx: 2, fill: c.skewed ? SKEWED : PART }),
    c.w > 70 && c.h > 26 ? h('text', { x: c.x + 6, y: c.y + 17, style: { fontSize: '12px' }, fill: '#fff' }, fitting(valuesOf(c.name), c.w - 10)) : null)));
}
