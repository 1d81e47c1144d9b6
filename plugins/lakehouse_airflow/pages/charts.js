// Charts as SVG: histogram of file sizes, growth, and a tree map. Each has a text for screen readers.
import { h, UI, size, count, absolute } from './core.js';

const { Box, Text, Flex } = UI;
const colour = (name, fallback) => `var(--chakra-colors-${name}, ${fallback})`;
const FG = colour('fg-muted', '#888');

export function Histogram({ files }) {
  const most = Math.max(1, ...files.histogram.map((b) => b.files));
  const text = files.histogram.map((b) => `${b.files} files ${b.up_to_bytes ? `up to ${size(b.up_to_bytes)}` : 'above'}`).join(', ');
  const width = 520; const height = 150; const step = width / files.histogram.length;
  const edges = files.histogram.map((b) => b.up_to_bytes ?? Infinity);
  const place = edges.findIndex((e) => files.target_bytes <= e);
  return h('svg', { viewBox: `0 0 ${width} ${height + 34}`, width: '100%', role: 'img', 'aria-label': `Sizes of base files: ${text}` },
    files.histogram.map((b, i) => {
      const tall = (b.files / most) * (height - 16); const small = b.up_to_bytes !== null && b.up_to_bytes <= files.small_bytes;
      return h('g', { key: i }, h('title', null, `${count(b.files)} files, ${size(b.bytes)}`), h('rect', { x: i * step + 4, y: height - tall, width: step - 8, height: tall, fill: small ? colour('orange-solid', '#f97316') : colour('blue-solid', '#3b82f6') }),
        b.files ? h('text', { x: i * step + step / 2, y: height - tall - 4, textAnchor: 'middle', style: { fontSize: '11px' }, fill: FG }, count(b.files)) : null,
        h('text', { x: i * step + step / 2, y: height + 14, textAnchor: 'middle', style: { fontSize: '10px' }, fill: FG }, b.up_to_bytes ? `≤ ${size(b.up_to_bytes).replace('.0', '')}` : 'larger'));
    }),
    place >= 0 ? h('g', null, h('line', { x1: (place + 0.95) * step, x2: (place + 0.95) * step, y1: 0, y2: height, stroke: colour('green-solid', '#16a34a'), strokeDasharray: '4 3' }),
      h('text', { x: (place + 0.9) * step, y: height + 29, textAnchor: 'end', style: { fontSize: '10px' }, fill: FG }, `target ${size(files.target_bytes)}; orange: small`)) : null);
}

export function Growth({ points }) {
  const found = points.filter((p) => p.numbers.base_bytes !== undefined && p.numbers.base_bytes !== null);
  if (found.length < 2) return h(Text, { color: 'fg.muted' }, 'There is no history yet; the scheduler stores the numbers of each hour.');
  const width = 520; const height = 150; const first = found[0].hour_ms; const span = found[found.length - 1].hour_ms - first || 1;
  const most = Math.max(...found.map((p) => p.numbers.base_bytes + (p.numbers.log_bytes || 0))) || 1;
  const at = (value) => height - (value / most) * (height - 10);
  const x = (p) => ((p.hour_ms - first) / span) * width;
  const area = (top, bottom) => `M${found.map((p) => `${x(p).toFixed(1)},${at(top(p)).toFixed(1)}`).join(' L')} L${[...found].reverse().map((p) => `${x(p).toFixed(1)},${at(bottom(p)).toFixed(1)}`).join(' L')} Z`;
  const base = (p) => p.numbers.base_bytes; const all = (p) => base(p) + (p.numbers.log_bytes || 0);
  const last = found[found.length - 1];
  return h(Box, null, h('svg', { viewBox: `0 0 ${width} ${height}`, width: '100%', role: 'img', 'aria-label': `Bytes from ${size(all(found[0]))} to ${size(all(last))}` },
    h('path', { d: area(base, () => 0), fill: colour('blue-solid', '#3b82f6'), opacity: 0.75 }), h('path', { d: area(all, base), fill: colour('orange-solid', '#f97316'), opacity: 0.85 })),
  h(Flex, { justify: 'space-between', fontSize: 'xs', color: 'fg.muted' }, h('span', null, absolute(first)), h('span', null, `■ base ${size(base(last))}   ■ logs ${size(last.numbers.log_bytes || 0)}`), h('span', null, absolute(last.hour_ms))));
}

// Squarified tree map: rows are filled along the shorter side as long as their rectangles become more square.
export function TreeMap({ parts }) {
  const width = 1000; const height = 260; const total = parts.reduce((sum, p) => sum + p.value, 0);
  if (!total) return h(Text, { color: 'fg.muted' }, 'There is no data.');
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
  return h('svg', { viewBox: `0 0 ${width} ${height}`, width: '100%', role: 'img', 'aria-label': `Bytes of ${parts.length} partitions; the largest is ${parts[0].name} with ${size(parts[0].value)}` },
    cells.map((c, i) => h('g', { key: i }, h('title', null, `${c.name}: ${size(c.value)}${c.skewed ? ', more than 4 times the median' : ''}`),
      h('rect', { x: c.x + 1, y: c.y + 1, width: Math.max(0, c.w - 2), height: Math.max(0, c.h - 2), rx: 2, fill: c.skewed ? colour('orange-solid', '#f97316') : colour('blue-solid', '#3b82f6'), opacity: 0.85 }),
      c.w > 70 && c.h > 26 ? h('text', { x: c.x + 6, y: c.y + 17, style: { fontSize: '12px' }, fill: '#fff' }, c.name.length * 7 > c.w - 10 ? `${c.name.slice(0, Math.floor((c.w - 16) / 7))}…` : c.name) : null)));
}
