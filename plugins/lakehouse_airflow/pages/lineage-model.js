// The model of lineage: a layer and a row for each node. Pure: no DOM, tested apart.

// Layers by the longest path from a node without inputs; a cycle does not add layers beyond the number of nodes.
export function layersOf(nodes, edges) {
  const layer = new Map(nodes.map((n) => [n.id, 0])); const ids = new Set(layer.keys());
  const known = edges.filter((e) => ids.has(e.source) && ids.has(e.target) && e.source !== e.target);
  const open = new Set(); const done = new Set(); const forward = [];
  // Edges that close a cycle are drawn, but place nothing.
  const visit = (id) => { open.add(id); known.filter((e) => e.source === id).forEach((e) => { if (open.has(e.target)) return; forward.push(e); if (!done.has(e.target)) visit(e.target); }); open.delete(id); done.add(id); };
  nodes.forEach((n) => { if (!done.has(n.id)) visit(n.id); });
  for (let turn = 0; turn < nodes.length; turn += 1) {
    let moved = false;
    forward.forEach((e) => { if (layer.get(e.target) < layer.get(e.source) + 1) { layer.set(e.target, layer.get(e.source) + 1); moved = true; } });
    if (!moved) break;
  }
  // A node without inputs stands directly before its first target.
  nodes.forEach((n) => { if (!forward.some((e) => e.target === n.id)) { const next = forward.filter((e) => e.source === n.id).map((e) => layer.get(e.target)); if (next.length) layer.set(n.id, Math.min(...next) - 1); } });
  return layer;
}

export const BOX = { width: 200, height: 52, gapX: 96, gapY: 18, pass: 10 };

// Positions: columns are layers; rows follow the middle of their inputs, so that few edges cross. An edge that passes a
// column has a place between its boxes. `paths` are the points of each edge from the right side of its source on.
export function placed({ nodes, edges }) {
  const layer = layersOf(nodes, edges); const columns = []; const at = (i) => (columns[i] = columns[i] || []);
  const cells = new Map(); const links = [];
  nodes.forEach((n) => { const cell = { id: n.id, layer: layer.get(n.id), height: BOX.height, node: n }; cells.set(n.id, cell); at(cell.layer).push(cell); });
  const drawn = edges.filter((e) => cells.has(e.source) && cells.has(e.target));
  const chains = drawn.map((e, k) => {
    const chain = [cells.get(e.source)];
    for (let i = layer.get(e.source) + 1; i < layer.get(e.target); i += 1) { const pass = { id: `${k}/${i}`, layer: i, height: BOX.pass }; at(i).push(pass); chain.push(pass); }
    chain.push(cells.get(e.target)); chain.slice(1).forEach((cell, i) => links.push([chain[i], cell]));
    return chain;
  });
  const tall = (column) => column.reduce((sum, c) => sum + c.height + BOX.gapY, -BOX.gapY);
  const height = Math.max(BOX.height, ...columns.map(tall));
  columns.forEach((column) => {
    const middle = (c) => { const inputs = links.filter(([from, to]) => to === c && from.y !== undefined && from.layer < c.layer).map(([from]) => from.y + from.height / 2); return inputs.length ? inputs.reduce((a, b) => a + b, 0) / inputs.length : Number.MAX_SAFE_INTEGER; };
    let y = (height - tall(column)) / 2;
    column.map((c) => [middle(c), c]).sort((a, b) => a[0] - b[0]).forEach(([, c]) => { c.x = c.layer * (BOX.width + BOX.gapX); c.y = y; y += c.height + BOX.gapY; });
  });
  const boxes = new Map(nodes.map((n) => { const { x, y } = cells.get(n.id); return [n.id, { ...n, x, y }]; }));
  // Edges of one side of a box are apart, in the order of their other ends.
  const port = (k, last) => {
    const own = (chain) => (last ? chain[chain.length - 1] : chain[0]); const next = (chain) => (last ? chain[chain.length - 2] : chain[1]);
    const mine = chains.map((chain, i) => [chain, i]).filter(([chain]) => own(chain) === own(chains[k])).sort(([a], [b]) => next(a).y - next(b).y).map(([, i]) => i);
    return own(chains[k]).y + (BOX.height * (mine.indexOf(k) + 1)) / (mine.length + 1);
  };
  const paths = drawn.map((edge, k) => {
    const chain = chains[k]; const points = [[chain[0].x + BOX.width, port(k, false)]];
    chain.slice(1, -1).forEach((c) => { const y = c.y + c.height / 2; points.push([c.x, y], [c.x + BOX.width, y]); });
    points.push([chain[chain.length - 1].x, port(k, true)]);
    return { edge, points };
  });
  return { boxes, paths, width: columns.length * (BOX.width + BOX.gapX) - BOX.gapX, height };
}
